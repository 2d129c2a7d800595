"""A report as one HTML file: annotated source, bank maps, roofline, timelines. It loads nothing from anywhere.

Its style and its script are at the top of this file: no network, no library.
"""

from __future__ import annotations

import json
import linecache
from collections.abc import Mapping, Sequence
from html import escape
from itertools import takewhile

from tilewright.figures import Line, Pattern, SharedBuffer, Timeline
from tilewright.notebook import framed
from tilewright.profile import pictures, roles
from tilewright.profile.bounds import LaunchOccupancy, LaunchReport
from tilewright.profile.conflicts import Conflict, place_of
from tilewright.profile.facts import amount, facts, of_line, quantity
from tilewright.profile.text import as_data, cells_of, differences
from tilewright.source import SourceLocation

CSS = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --paper: #ffffff; --panel: #f6f8fa; --line: #d1d9e0;
  --hot: #d1242f; --cool: #9ec5f4; --cell: #10233c; --good: #1a7f37; --accent: #0969da; --mark: #fff3c4; }
:root[data-theme="dark"] { --ink: #e6edf3; --soft: #9aa5b1; --paper: #0d1117; --panel: #161b22; --line: #30363d;
  --hot: #ff7b72; --cool: #2f5d92; --cell: #f0f6fc; --good: #56d364; --accent: #58a6ff; --mark: #3a3000; }
@media (prefers-color-scheme: dark) { :root:not([data-theme="light"]) { --ink: #e6edf3; --soft: #9aa5b1;
  --paper: #0d1117; --panel: #161b22; --line: #30363d; --hot: #ff7b72; --cool: #2f5d92; --cell: #f0f6fc;
  --good: #56d364; --accent: #58a6ff; --mark: #3a3000; } }
:root[data-theme="light"] { color-scheme: light; } :root[data-theme="dark"] { color-scheme: dark; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
header, main { max-width: 1180px; margin: 0 auto; padding: 0 20px; }
header { display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center; padding-top: 18px; }
h1 { font-size: 21px; margin: 0; flex: 1 1 auto; } h2 { font-size: 17px; margin: 28px 0 8px; }
h3 { font-size: 15px; margin: 16px 0 4px; }
button { font: inherit; color: var(--ink); background: var(--panel); border: 1px solid var(--line); border-radius: 6px;
  padding: 4px 10px; cursor: pointer; }
button[aria-selected="true"] { border-color: var(--accent); box-shadow: inset 0 0 0 1px var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: -2px; }
nav { display: flex; flex-wrap: wrap; gap: 6px; margin: 14px 0; max-height: 40vh; overflow-y: auto; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 10px; margin: 14px 0; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; }
.tile b { display: block; font-size: 19px; font-variant-numeric: tabular-nums; } .tile span { color: var(--soft); }
.bad { color: var(--hot); } .fine { color: var(--good); } .note, .soft { color: var(--soft); }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--panel); }
table { border-collapse: collapse; width: 100%; font: 13px/1.45 ui-monospace, monospace; }
th { text-align: right; font-weight: 600; color: var(--soft); padding: 6px 10px; white-space: nowrap; }
th.code, td.code { text-align: left; width: 100%; }
td { text-align: right; padding: 1px 10px; white-space: pre; font-variant-numeric: tabular-nums; }
td.code { white-space: pre-wrap; overflow-wrap: anywhere; --step: 1ch; text-indent: calc(-4 * var(--step));
  padding-left: calc(10px + (var(--in, 0) + 4) * var(--step)); }
tr.line { cursor: default; } tr.line[aria-expanded] { cursor: pointer; }
tr.line[aria-expanded]:hover, tr.line:focus { background: var(--mark); }
tr.detail td { text-align: left; white-space: pre-wrap; overflow-wrap: anywhere; padding: 6px 16px 10px;
  background: var(--paper); color: var(--ink); }
td.number { color: var(--soft); } tr.sum td { border-top: 1px solid var(--line); font-weight: 600; padding: 5px 10px; }
pre { margin: 6px 0; padding: 10px 12px; background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  overflow-x: auto; font: 13px/1.45 ui-monospace, monospace; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 16px; margin: 8px 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
svg text { font: 11px ui-monospace, monospace; fill: var(--ink); }
.roofline text { stroke: var(--paper); stroke-width: 3; stroke-linejoin: round; paint-order: stroke; }
 svg .axis, svg .note { fill: var(--soft); }
svg .cell { font-size: 10px; fill: var(--cell); } svg .hot { fill: var(--hot); } svg .cool { fill: var(--cool); }
svg .hot + .cell { fill: var(--paper); } svg .rule, svg .grid { stroke: var(--line); }
svg .roof { stroke: var(--accent); stroke-width: 2; } svg .drop { stroke: var(--hot); stroke-dasharray: 4 3; }
svg .point { fill: var(--hot); stroke: var(--paper); stroke-width: 2; }
svg .ring { fill: none; stroke: var(--accent); stroke-width: 2; }
svg .roof.unit { stroke-width: 1; stroke-dasharray: 5 4; }
svg .between { stroke: var(--panel); stroke-width: 1; }
svg.roofline { width: 100%; max-width: 560px; height: auto; display: block; } .scroll svg { display: block; }
.bounds { display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 7fr); gap: 0 28px; align-items: start; }
.strip { display: flex; width: max-content; align-items: flex-start; }
.names { position: sticky; left: 0; background: var(--panel); flex: none; }
.glance { position: relative; cursor: pointer; margin: 6px 0; }
.overview { display: block; width: 100%; height: 60px; border: 1px solid var(--line); border-radius: 4px; }
.overview .k-compute { opacity: .35; }
.glance i { position: absolute; top: 0; height: 100%; border: 2px solid var(--ink); border-radius: 4px;
  pointer-events: none; }
.k-global { fill: #3b82f6; background: #3b82f6; } .k-shared { fill: #14b8a6; background: #14b8a6; }
.k-async { fill: #a855f7; background: #a855f7; } .k-wait { fill: #f59e0b; background: #f59e0b; }
.k-barrier { fill: #ef4444; background: #ef4444; } .k-mma { fill: #22c55e; background: #22c55e; }
.k-compute { fill: #b6c2d1; background: #b6c2d1; } .k-other { fill: #64748b; background: #64748b; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 14px; margin: 6px 0; color: var(--soft); font-size: 13px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 5px; }
dialog { background: var(--paper); color: var(--ink); border: 1px solid var(--line); border-radius: 10px; }
kbd { border: 1px solid var(--line); border-radius: 4px; padding: 0 5px; font: 12px ui-monospace, monospace; }
[hidden] { display: none !important; }
footer { color: var(--soft); font-size: 13px; padding: 24px 0; }
button small { display: block; color: var(--soft); font-size: 12px; overflow-wrap: anywhere; }
nav button { text-align: left; }
.only-narrow { display: none; }
@media (max-width: 700px) { header, main { padding-left: 12px; padding-right: 12px; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 8px; }
  .tiles { grid-template-columns: repeat(2, 1fr); }
  .only-narrow { display: block; } nav button { max-width: 100%; } #help { display: none; }
  .bounds { grid-template-columns: minmax(0, 1fr); }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  .listing thead { display: none; } .listing, .listing tbody { display: block; }
  .listing tr { display: flex; flex-wrap: wrap; gap: 0 10px; padding: 2px 6px; }
  .listing td, .listing th { padding: 0; width: auto; } .listing .empty { display: none; }
  .listing td.number { min-width: 2.4em; order: -2; } .listing tr.sum td { padding: 0; }
  .listing td.code { order: -1; flex: 1 1 70%; text-align: left; --step: .5ch;
    padding-left: calc((var(--in, 0) + 4) * var(--step)); }
  .listing td[data-name] { color: var(--soft); font-size: 12px; text-align: left; }
  .listing td[data-name]::before { content: attr(data-name) ' '; } .listing td.bad { color: var(--hot); }
  .listing th { white-space: normal; overflow-wrap: anywhere; } .listing tr.sum td { border: 0; }
  .listing tr.detail td { padding: 4px 0 8px; }
  .banks:not(.full) { width: 100%; height: auto; } .banks:not(.full) text { font-size: 24px; }
  .banks:not(.full) .cell, .banks:not(.full) .minor { display: none; } }
@media print { button, dialog { display: none; } }
"""

JAVASCRIPT = """
(() => {
  const tabs = [...document.querySelectorAll('nav button')];
  const sections = [...document.querySelectorAll('section.launch')];
  let current = 0;
  const show = (n) => {
    current = (n + sections.length) % sections.length;
    sections.forEach((s, i) => { s.hidden = i !== current; });
    tabs.forEach((t, i) => t.setAttribute('aria-selected', String(i === current)));
    const list = tabs[current].parentElement;
    list.scrollTop = tabs[current].offsetTop - list.offsetTop - list.clientHeight / 2;
  };
  tabs.forEach((tab, n) => tab.addEventListener('click', () => show(n)));
  const toggle = (row) => {
    const open = row.getAttribute('aria-expanded') === 'true';
    row.setAttribute('aria-expanded', String(!open));
    row.nextElementSibling.hidden = open;
  };
  const rows = () => [...sections[current].querySelectorAll('tr.line[aria-expanded]')];
  document.querySelectorAll('tr.line[aria-expanded]').forEach((r) => r.addEventListener('click', () => toggle(r)));
  const move = (by) => {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement);
    const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1);
    all[next].focus();
    all[next].scrollIntoView({ block: 'nearest' });
  };
  const theme = () => {
    const root = document.documentElement;
    const chosen = root.dataset.theme;
    const dark = chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
    root.dataset.theme = dark ? 'light' : 'dark';
  };
  document.querySelectorAll('button.enlarge').forEach((button) => button.addEventListener('click', () => {
    const full = button.nextElementSibling.querySelector('svg').classList.toggle('full');
    button.textContent = full ? 'fit the screen' : 'show the lanes';
  }));
  document.querySelectorAll('.glance').forEach((glance) => {
    const frame = glance.nextElementSibling, mark = glance.querySelector('i');
    const follow = () => {
      glance.hidden = frame.scrollWidth <= frame.clientWidth;
      mark.style.left = `${100 * frame.scrollLeft / frame.scrollWidth}%`;
      mark.style.width = `${100 * frame.clientWidth / frame.scrollWidth}%`;
    };
    const go = (event) => {
      const { left, width } = glance.getBoundingClientRect();
      frame.scrollLeft = (event.clientX - left) / width * frame.scrollWidth - frame.clientWidth / 2;
    };
    frame.addEventListener('scroll', follow);
    new ResizeObserver(follow).observe(frame);
    glance.addEventListener('click', go);
    glance.addEventListener('pointermove', (event) => { if (event.buttons) go(event); });
  });
  const help = document.querySelector('dialog');
  document.querySelector('#theme').addEventListener('click', theme);
  document.querySelector('#help').addEventListener('click', () => help.showModal());
  const keys = {
    j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1),
    ']': () => show(current + 1), '[': () => show(current - 1), t: theme, '?': () => help.showModal(),
  };
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    const active = document.activeElement;
    const row = active && active.matches('tr.line[aria-expanded]');
    if (row && (event.key === 'Enter' || event.key === ' ')) { toggle(active); event.preventDefault(); return; }
    if (event.key.startsWith('Arrow') && !row) return;
    const action = keys[event.key];
    if (action && sections.length) { action(); event.preventDefault(); }
  });
  if (sections.length) show(0);
})();
"""


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
    telling = differences(launches)
    tabs = "".join(
        f'<button role="tab" aria-selected="false">{number} {escape(each.launch.kernel)}'
        + (f"<small>{escape(difference)}</small>" if difference else "")
        + "</button>"
        for number, (each, difference) in enumerate(zip(launches, telling, strict=True), 1)
    )
    keys = "".join(f"<dt><kbd>{escape(key)}</kbd></dt><dd>{escape(what)}</dd>" for key, what in _KEYS.items())
    body = "".join(_section(each) for each in launches) or "<p>No kernel was launched.</p>"
    data = json.dumps(as_data(launches), allow_nan=False).replace("<", "\\u003c")
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
{f'<p class="soft">{len(launches)} launches</p>' if len(launches) > 1 else ""}
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
    if launch.arguments:
        about += "; " + ", ".join(f"{name} {text}" for name, text in launch.arguments)
    if each.times > 1:
        about += f"; launched {each.times} times alike, the figures of one"
    if launch.is_sampled:
        about += f"; measured in {launch.measured_blocks} of {launch.blocks} blocks, and scaled"
    told = [(label, text) for label, text in facts(each) if text != each.bounds.why_no_point]  # under the plot
    listed = "".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in told)
    parts = [
        f'<section class="launch"><h2>{escape(launch.kernel)}</h2><p class="soft">{escape(about)}</p>',
        _tiles(each),
        f"<h2>Lines</h2>{_listing(each)}",
        "".join(_conflict(conflict) for conflict in each.conflicts),
        f"<h2>Bounds</h2><div class=bounds><div>{pictures.roofline(each.bounds)}"
        f"<p class=soft>{escape(_under_plot(each))}</p></div><dl>{listed}</dl></div>",
        _timelines(each),
        "</section>",
    ]
    return "".join(parts)


def _under_plot(each: LaunchReport) -> str:
    """Return what the point of the roofline plot is, or why there is none."""
    bounds = each.bounds
    if bounds.why_no_point is not None:
        return f"{bounds.why_no_point}.".capitalize().replace("dram", "DRAM")
    if bounds.longest is not None and pictures.has_ring(bounds):
        return (
            f"The point is what all limits allow, {quantity(bounds.reachable, 'flop/s')}; the limit is "
            f"{bounds.longest.name}. The ring is the roof of arithmetic and DRAM alone."
        )
    return "The point is what all limits allow; it lies on the roof."


def _tiles(each: LaunchReport) -> str:
    total, held, longest = each.launch.total, each.occupancy, each.bounds.longest
    conflicts, wasted = total.shared_conflicts, total.global_sectors - total.global_sectors_ideal
    found = [
        _against("wavefronts of shared memory", total.shared_wavefronts, total.shared_wavefronts_ideal, conflicts > 0),
        _against("sectors of global memory", total.global_sectors, total.global_sectors_ideal, wasted > 0),
        (quantity(each.launch.touched_bytes, "B"), "moved by DRAM at least", False),
        ("none", "nothing that was counted takes time", False)
        if longest is None
        else (quantity(longest.seconds, "s"), f"at least, limited by {longest.name}", False),
        _occupancy(held),
    ]
    return '<div class="tiles">{}</div>'.format(
        "".join(
            f'<div class="tile"><b{" class=bad" if bad else ""}>{escape(value)}</b><span>{escape(what)}</span></div>'
            for value, what, bad in found
        )
    )


def _against(what: str, took: int, ideal: int, is_poor: bool) -> tuple[str, str, bool]:
    """Return the tile of a count beside its ideal."""
    return (amount(took), f"{what}, {amount(ideal)} ideal", is_poor) if took else ("none", what, False)


def _occupancy(held: LaunchOccupancy) -> tuple[str, str, bool]:
    """Return the tile of the occupancy: unknown where no compiler told the registers, which often limit it."""
    if held.registers is None:
        return "unknown", f"occupancy: at most {held.share:.0%}, by {held.limiter}; the registers are not known", False
    return f"{held.share:.0%}", f"occupancy, by {held.limiter}", False


# --- annotated source ----------------------------------------------------------------------------------------------


def _listing(each: LaunchReport) -> str:
    """Return the lines of the kernel's files from the first with figures to the last, with what they cost."""
    by_file: dict[str, dict[int, Line]] = {}
    for line in each.launch.lines:
        if line.file is not None and line.line is not None:
            by_file.setdefault(line.file, {})[line.line] = line
    head = "".join(f"<th>{name}</th>" for name in ("line", *_HEADS)) + '<th class="code">source</th>'
    rows = []
    for file, lines in by_file.items():
        rows.append(f'<tr><th class="code" colspan="7">{escape(file)}</th></tr>')
        last = 0
        for number in _shown(lines, file):
            if last and number > last + 1:
                rows.append('<tr><td class="number">...</td><td class="empty" colspan="6"></td></tr>')
            rows.append(_row(each, number, _line_of(file, number), lines.get(number)))
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
    rows.append(f'<tr class="sum"><td class="number">sum</td>{cells}<td class="empty"></td></tr>')
    table = f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table class="listing">{table}</table></div>'


def _line_of(file: str, number: int) -> str:
    return linecache.getline(file, number).rstrip("\n")


def _indentation(text: str) -> int:
    return len(text) - len(text.lstrip())


def _shown(lines: dict[int, Line], file: str) -> list[int]:
    """Return the numbers of the lines to show: those with figures and some around them.

    Lines after them that are indented less are those of something else, and no blank line is next to a gap.
    """
    least = min(_indentation(_line_of(file, number)) for number in lines)
    found = {k for number in lines for k in range(max(number - _AROUND, 1), number)}
    for number in lines:
        after = [(k, _line_of(file, k)) for k in range(number, number + _AROUND + 1)]
        inside = takewhile(lambda each: not each[1].strip() or _indentation(each[1]) >= least, after)
        found |= {number, *(k for k, _ in inside)}
    blank = {k for k in found if k not in lines and not _line_of(file, k).strip()}
    while edges := {k for k in blank if not {k - 1, k + 1} <= found}:
        found, blank = found - edges, blank - edges
    return sorted(found)


def _row(each: LaunchReport, number: int, text: str, line: Line | None) -> str:
    # Indented by the style: what does not fit goes on below, further in, and a narrow screen indents by less.
    code = f'<td class="code" style="--in: {_indentation(text)}">{escape(text.lstrip())}</td>'
    if line is None:
        return f'<tr class="line"><td class="number">{number}</td>{_EMPTY}{code}</tr>'
    return (
        f'<tr class="line" tabindex="0" aria-expanded="false"><td class="number">{number}</td>{_figures(line)}'
        f"{code}</tr>"
        f'<tr class="detail" hidden><td colspan="7">{_detail(each, line)}</td></tr>'
    )


_HEADS = ("instr.", "wavefronts", "ideal", "sectors", "used")
_EMPTY = '<td class="empty"></td>' * len(_HEADS)


def _figures(line: Line) -> str:
    """Return the cells of a line's figures; each has its name, which a narrow screen shows in place of the heads."""
    *cells, _, use, _ = cells_of(line)
    return "".join(
        f'<td data-name="{name}"{" class=bad" if is_poor else ""}>{text}</td>'
        if is_there
        else '<td class="empty"></td>'
        for name, (text, is_there, is_poor) in zip(_HEADS, (*cells, use), strict=True)
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
    words += [f"{label}: {text}" if label else text for label, text in of_line(line)]
    if line.operations:
        words.append("operations: " + ", ".join(f"{unit} {amount(n)}" for unit, n in line.operations.items()))
    words += [r.message for r in each.remarks if (r.file, r.line) == (line.file, line.line)]
    return escape("\n".join(words))


# --- conflicts and timelines ---------------------------------------------------------------------------------------


def _conflict(conflict: Conflict) -> str:
    """Return a buffer's part: the gain of the suggestion, the banks of its most expensive lines before and after."""
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
        parts.append(_map(pictures.bank_map(buffer, pattern, pattern.elements)))
        if found is not None:
            parts.append("<h3>The same request with the other layout</h3>")
            parts.append(_map(pictures.bank_map(buffer, pattern, found.place(pattern.elements))))
    return "".join(parts)


def _map(picture: str) -> str:
    """Return a map of banks, which fits a narrow screen without the lanes until a button shows them."""
    return f'<button class="enlarge only-narrow">show the lanes</button>{framed(picture)}'


def _worst(buffer: SharedBuffer, location: SourceLocation | None) -> Pattern:
    """Return the request of a line that wastes most."""
    mine = (each for each in buffer.each_cost() if place_of(each[0].location) == place_of(location))
    return max(mine, key=lambda each: (each[1] - each[2], each[0].times))[0]


def _timelines(each: LaunchReport) -> str:
    found = [timeline for timeline in each.launch.timelines if timeline.events]
    if not found:
        return ""
    there = {pictures.kind_of(event) for timeline in found for event in timeline.events}
    parts = [
        "<h2>Timelines</h2>",
        *_roles(found),
        "<p class=soft>Left to right is the order in which the simulator ran the steps, not time. Arithmetic is a thin "
        "band; a wide box stands for more instructions than a narrow one, but not in proportion.</p>",
        _legend({kind: what for kind, what in pictures.LEGEND.items() if kind in there}),
    ]
    shown: list[Timeline] = []
    for timeline in found:
        twin = next((other for other in shown if other.events == timeline.events), None)
        if twin is not None:
            parts.append(f"<h3>Block {timeline.block}: the same as block {twin.block}</h3>")
            continue
        shown.append(timeline)
        cut = f" (the first {len(timeline.events)} events)" if timeline.is_cut else ""
        parts.append(f"<h3>Block {timeline.block}{cut}</h3>")
        glance = pictures.timeline_overview(timeline)
        parts.append(_wide(glance, pictures.timeline_names(timeline), pictures.timeline(timeline)))
    return "".join(parts)


def _roles(found: Sequence[Timeline]) -> list[str]:
    """Return the rows of the roles of the first block in which there are several."""
    for timeline in found:
        if len(roles.roles_of(timeline)) > 1:
            cut = " (cut)" if timeline.is_waits_cut else ""
            return [
                f"<h3>Roles of block {timeline.block}{cut}</h3>"
                "<p class=soft>Above, what each role did at the steps of the simulator, which runs one at a time; "
                "below, when it waited for a phase that was not over: the barrier, its stage, the phase.</p>",
                _legend(roles.LEGEND),
                _wide(roles.role_overview(timeline), roles.role_names(timeline), roles.picture(timeline)),
            ]
    return []


def _legend(kinds: Mapping[str, str]) -> str:
    return '<div class="legend">{}</div>'.format(
        "".join(f'<span><i class="{kind}"></i>{what}</span>' for kind, what in kinds.items())
    )


def _wide(glance: str, names: str, picture: str) -> str:
    """Return a picture that scrolls beside the names of its rows, under a strip with all of it, which says where."""
    return f'<div class="glance">{glance}<i></i></div>' + framed(f'<div class="strip">{names}{picture}</div>')
