"""A report as one HTML file: annotated source, bank maps, roofline, timelines. It loads nothing from anywhere."""

from __future__ import annotations

import json
import linecache
from collections.abc import Sequence
from html import escape

from tilewright.figures import Line, Pattern, SharedBuffer
from tilewright.profile import pictures
from tilewright.profile.bounds import LaunchReport
from tilewright.profile.conflicts import Conflict, place_of
from tilewright.profile.style import CSS, JAVASCRIPT
from tilewright.profile.tables import as_data
from tilewright.profile.text import amount, facts, quantity
from tilewright.source import SourceLocation

_MOST_MAPS = 4  # lines of a buffer whose banks are drawn
_AROUND = 2  # lines shown around those with figures
_KEYS = {
    "j, k": "the next, the previous line with figures",
    "Enter": "open or close a line's details",
    "[, ]": "the previous, the next launch",
    "t": "light or dark",
    "?": "this list",
}


def as_html(launches: Sequence[LaunchReport]) -> str:
    """Return the whole page."""
    tabs = "".join(
        f'<button role="tab" aria-selected="false">{number} {escape(each.launch.kernel)}</button>'
        for number, each in enumerate(launches, 1)
    )
    keys = "".join(f"<dt><kbd>{escape(key)}</kbd></dt><dd>{escape(what)}</dd>" for key, what in _KEYS.items())
    body = "".join(_section(each) for each in launches) or "<p>No kernel was launched.</p>"
    data = json.dumps(as_data(launches), allow_nan=False).replace("</", "<\\/")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>Tilewright profile</title>
<style>{CSS}</style>
</head>
<body>
<header><h1>Tilewright profile</h1><button id="theme">light or dark</button><button id="help">keys</button></header>
<main>
<nav role="tablist" aria-label="launches"{"" if len(launches) > 1 else " hidden"}>{tabs}</nav>
{body}
<footer>Measured on the simulator; bounds are peak rates, not a forecast.</footer>
</main>
<dialog><h2>Keys</h2><dl>{keys}</dl><form method="dialog"><button>close</button></form></dialog>
<script type="application/json" id="data">{data}</script>
<script>{JAVASCRIPT}</script>
</body>
</html>
"""


def _section(each: LaunchReport) -> str:
    launch = each.launch
    about = f"grid {launch.grid}, block {launch.block}, on {each.gpu.title}"
    if each.times > 1:
        about += f"; launched {each.times} times alike, the figures of one"
    if launch.is_sampled:
        about += f"; measured in {launch.measured_blocks} of {launch.blocks} blocks, and scaled"
    listed = "".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in facts(each))
    parts = [
        f'<section class="launch"><h2>{escape(launch.kernel)}</h2><p class="soft">{escape(about)}</p>',
        _tiles(each),
        f"<h2>Lines</h2>{_listing(each)}",
        "".join(_conflict(conflict) for conflict in each.conflicts),
        f"<h2>Bounds</h2>{pictures.roofline(each.bounds)}<dl>{listed}</dl>",
        _timelines(each),
        "</section>",
    ]
    return "".join(parts)


def _tiles(each: LaunchReport) -> str:
    total, held, longest = each.launch.total, each.occupancy, each.bounds.longest
    conflicts, wasted = total.shared_conflicts, total.global_sectors - total.global_sectors_ideal
    found = [
        (amount(total.shared_wavefronts), f"wavefronts, {amount(total.shared_wavefronts_ideal)} ideal", conflicts > 0),
        (amount(total.global_sectors), f"sectors, {amount(total.global_sectors_ideal)} ideal", wasted > 0),
        (quantity(each.launch.touched_bytes, "B"), "of DRAM at least", False),
        (
            "none" if longest is None else quantity(longest.seconds, "s"),
            f"at least: {longest.name if longest else ''}",
            False,
        ),
        (f"{held.share:.0%}", f"occupancy, by {held.limiter}", False),
    ]
    return '<div class="tiles">{}</div>'.format(
        "".join(
            f'<div class="tile"><b{" class=bad" if bad else ""}>{escape(value)}</b><span>{escape(what)}</span></div>'
            for value, what, bad in found
        )
    )


# --- annotated source ----------------------------------------------------------------------------------------------


def _listing(each: LaunchReport) -> str:
    """Return the lines of the kernel's files from the first with figures to the last, with what they cost."""
    by_file: dict[str, dict[int, Line]] = {}
    for line in each.launch.lines:
        if line.file is not None and line.line is not None:
            by_file.setdefault(line.file, {})[line.line] = line
    heads = [("line", ""), ("instr.", "wide"), ("wavefronts", ""), ("ideal", "wide"), ("sectors", ""), ("used", "wide")]
    head = "".join(f'<th class="{kind}">{name}</th>' for name, kind in heads) + '<th class="code">source</th>'
    rows = []
    for file, lines in by_file.items():
        rows.append(f'<tr><th class="code" colspan="7">{escape(file)}</th></tr>')
        last = 0
        for number in _shown(lines):
            if last and number > last + 1:
                rows.append('<tr><td class="number">...</td><td colspan="6"></td></tr>')
            rows.append(_row(each, number, linecache.getline(file, number).rstrip("\n"), lines.get(number)))
            last = number
    rows += [
        f'<tr class="line"><td class="number">-</td>{_figures(line)}<td class="code">{escape(line.text)}</td></tr>'
        for line in each.launch.lines
        if line.location is None
    ]
    total = each.launch.total
    cells = _figures(
        Line(
            shared_requests=total.shared_requests, shared_wavefronts=total.shared_wavefronts,
            shared_wavefronts_ideal=total.shared_wavefronts_ideal, global_requests=total.global_requests,
            global_sectors=total.global_sectors, global_bytes=total.global_bytes, instructions=total.instructions,
        )
    )  # fmt: skip
    rows.append(f'<tr class="sum"><td>sum</td>{cells}<td></td></tr>')
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _shown(lines: dict[int, Line]) -> list[int]:
    """Return the numbers of the lines to show."""
    return sorted({k for number in lines for k in range(max(number - _AROUND, 1), number + _AROUND + 1)})


def _row(each: LaunchReport, number: int, text: str, line: Line | None) -> str:
    if line is None:
        return f'<tr class="line"><td class="number">{number}</td>{_EMPTY}<td class="code">{escape(text)}</td></tr>'
    return (
        f'<tr class="line" tabindex="0" aria-expanded="false"><td class="number">{number}</td>{_figures(line)}'
        f'<td class="code">{escape(text)}</td></tr>'
        f'<tr class="detail" hidden><td colspan="7">{_detail(each, line)}</td></tr>'
    )


_EMPTY = '<td class="wide"></td><td></td><td class="wide"></td><td></td><td class="wide"></td>'


def _figures(line: Line) -> str:
    shared = (
        ("", "") if not line.shared_requests else (amount(line.shared_wavefronts), amount(line.shared_wavefronts_ideal))
    )
    used = f"{line.sector_use:.0%}" if line.global_requests else ""
    sectors = amount(line.global_sectors) if line.global_requests else ""
    conflict = ' class="bad"' if line.shared_conflicts else ""
    poor = " bad" if line.global_requests and line.sector_use < 0.5 else ""
    return (
        f'<td class="wide">{amount(sum(line.instructions.values()))}</td><td{conflict}>{shared[0]}</td>'
        f'<td class="wide">{shared[1]}</td><td>{sectors}</td><td class="wide{poor}">{used}</td>'
    )


def _detail(each: LaunchReport, line: Line) -> str:
    words = [", ".join(f"{name} {amount(n)}" for name, n in line.instructions.most_common()) + " instructions of warps"]
    if line.shared_requests:
        words.append(
            f"shared memory: {amount(line.shared_requests)} requests, {amount(line.shared_wavefronts)} wavefronts, "
            f"{amount(line.shared_wavefronts_ideal)} ideal"
        )
    if line.global_requests:
        words.append(
            f"global memory: {amount(line.global_requests)} requests, {line.sectors_per_request:.1f} sectors each, "
            f"{line.sector_use:.0%} of them used"
        )
    if line.operations:
        words.append("operations: " + ", ".join(f"{unit} {amount(n)}" for unit, n in line.operations.items()))
    words += [r.message for r in each.remarks if (r.file, r.line) == (line.file, line.line)]
    return escape("\n".join(words))


# --- conflicts and timelines ---------------------------------------------------------------------------------------


def _conflict(conflict: Conflict) -> str:
    """Return what is said of a buffer: the gain of the suggestion, and for its dearest lines the banks twice."""
    buffer, found = conflict.buffer, conflict.suggestion
    about = buffer.element if buffer.layout is None else f"{buffer.element} with {buffer.layout}"
    parts = [f"<h2>Bank conflicts in {escape(buffer.name)}</h2><p class=soft>{escape(about)}</p>"]
    if found is None:
        parts.append("<p>No swizzle or padding that was tried is better.</p>")
    else:
        gain = f"{amount(found.before)} wavefronts become {amount(found.after)}; {amount(found.ideal)} are ideal."
        if found.extra_bytes:
            gain += f" It takes {found.extra_bytes} bytes more of shared memory."
        parts.append(f"<p class={'fine' if found.removes else 'soft'}>With this layout {escape(gain)}</p>")
        parts.append(f"<pre>{escape(found.expression)}</pre>")
    for line in conflict.lines[:_MOST_MAPS]:
        pattern = _worst(buffer, line.location)
        place = "one place" if line.location is None else str(line.location)
        parts.append(f"<h3>{escape(place)}: {pattern.kind} of {pattern.width} bytes a lane, as it is</h3>")
        parts.append(_framed(pictures.bank_map(buffer, pattern, pattern.elements)))
        if found is not None:
            parts.append("<h3>The same request with the other layout</h3>")
            parts.append(_framed(pictures.bank_map(buffer, pattern, found.place(pattern.elements))))
    return "".join(parts)


def _framed(picture: str) -> str:
    """Return a picture in a frame that scrolls, by keys too."""
    return f'<div class="scroll" tabindex="0">{picture}</div>'


def _worst(buffer: SharedBuffer, location: SourceLocation | None) -> Pattern:
    """Return the request of a line that wastes most."""
    mine = (each for each in buffer.each_cost() if place_of(each[0].location) == place_of(location))
    return max(mine, key=lambda each: (each[1] - each[2], each[0].times))[0]


def _timelines(each: LaunchReport) -> str:
    if not any(found.events for found in each.launch.timelines):
        return ""
    legend = "".join(f'<span><i class="{kind}"></i>{what}</span>' for kind, what in pictures.LEGEND.items())
    parts = [
        "<h2>Timelines</h2>"
        "<p class=soft>Left to right is the order in which the simulator ran the steps, not time.</p>",
        f'<div class="legend">{legend}</div>',
    ]
    for found in each.launch.timelines:
        cut = f" (cut after {len(found.events)} events)" if found.is_cut else ""
        parts.append(f"<h3>Block {found.block}{cut}</h3>")
        parts.append(_framed(pictures.timeline(found)))
    return "".join(parts)
