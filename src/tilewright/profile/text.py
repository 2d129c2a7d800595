"""A report as text, in tables that `rich` draws, and as plain data for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.figures import Figures, Launch, Line
from tilewright.profile.bounds import LaunchReport
from tilewright.profile.conflicts import Conflict
from tilewright.profile.facts import amount, asynchronous_data, asynchronous_figures, facts, shape
from tilewright.remarks import Remark
from tilewright.tables import print_table

_WIDTH = 150
_MOST_TEXT = 44


def as_text(launches: Sequence[LaunchReport]) -> str:
    """Return the tables of all launches as plain text."""
    file = StringIO()
    console = Console(file=file, width=_WIDTH, color_system=None, legacy_windows=False, force_jupyter=False)
    write(console, launches)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def write(console: Console, launches: Sequence[LaunchReport]) -> None:
    """Print the tables of all launches."""
    if not launches:
        console.print("No kernel was launched.")
    for each, difference in zip(launches, differences(launches, _IN_TITLE), strict=True):
        _write_launch(console, each, difference)


def _write_launch(console: Console, each: LaunchReport, difference: str) -> None:
    launch = each.launch
    title = f"{launch.kernel}  grid {shape(launch.grid)}  block {shape(launch.block)}"
    if difference:
        title += f"  ({difference})"
    console.print(Text(title + (f"  {each.times} times, the figures of one" if each.times > 1 else ""), style="bold"))
    if launch.is_sampled:
        console.print(f"measured in {launch.measured_blocks} of {launch.blocks} blocks; figures are scaled")
    print_table(console, _line_table(each))
    for label, text in facts(each):
        console.print(Text(f"{label:>16}  {text}"))
    for remark in each.remarks:
        console.print(Text(remark.message), soft_wrap=True)
    console.print()


def _line_table(each: LaunchReport) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("line", no_wrap=True)
    for title in ("instructions", "wavefronts", "ideal", "sectors", "ideal", "used", "per request"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", max_width=_MOST_TEXT)
    for line in each.launch.lines:
        place = "-" if line.location is None else str(line.location)
        table.add_row(Text(place), *_texts(line), Text(line.text))
    table.add_row(Text("sum"), *_texts(each.launch.total), "", style="bold")
    return table


def cells_of(found: Figures) -> list[tuple[str, bool, bool]]:
    """Return the cells of figures: each text, whether there is one, and whether it is poor."""
    shared, glob = bool(found.shared_requests), bool(found.global_requests)
    return [
        (amount(sum(found.instructions.values())), True, False),
        (amount(found.shared_wavefronts), shared, found.shared_conflicts > 0),
        (amount(found.shared_wavefronts_ideal), shared, False),
        (amount(found.global_sectors), glob, False),
        (amount(found.global_sectors_ideal), glob, False),
        (f"{found.sector_use:.0%}", glob, found.sector_use < 0.5),
        (f"{found.sectors_per_request:.1f}", glob, False),
    ]


def _texts(found: Figures) -> list[Text]:
    return [
        Text(text if is_there else "", style="red" if is_there and is_poor else "")
        for text, is_there, is_poor in cells_of(found)
    ]


_IN_TITLE = frozenset({"grid", "block"})


def differences(launches: Sequence[LaunchReport], told: AbstractSet[str] = frozenset()) -> list[str]:
    """Return for each launch what tells it from the other launches of its kernel; nothing where it is the only one.

    These are grid, block and arguments where they differ, except those that are `told` already; where they do not tell
    all launches apart, the figures too.
    """
    result = []
    for each in launches:
        others = [other.launch for other in launches if other.launch.kernel == each.launch.kernel]
        described = [_described(launch) for launch in others]
        known = dict.fromkeys(name for found in described for name in found)
        telling = [name for name in known if len({found.get(name) for found in described}) > 1]
        own = _described(each.launch)
        if len(others) > 1 and len({tuple(found.get(name) for name in telling) for found in described}) < len(others):
            names = _differing_figures(others)
            own |= dict.fromkeys(names, "0") | _figures(each.launch)
            telling += names
        result.append(", ".join(f"{name} {own[name]}" for name in telling if name in own and name not in told))
    return result


def _described(launch: Launch) -> dict[str, str]:
    return {"grid": shape(launch.grid), "block": shape(launch.block), "arch": launch.arch, **dict(launch.arguments)}


def _figures(launch: Launch) -> dict[str, str]:
    """Return figures of a launch that may tell it from others: what it takes, then its instructions by class."""
    total = launch.total
    found = {
        "wavefronts": total.shared_wavefronts,
        "sectors": total.global_sectors,
        "instructions": sum(total.instructions.values()),
        **total.instructions,
    }
    return {name: amount(number) for name, number in found.items()}


def _differing_figures(launches: Sequence[Launch]) -> list[str]:
    """Return the names of the first figures that tell launches apart as well as all of them do."""
    figures_of = [_figures(launch) for launch in launches]
    names = dict.fromkeys(name for found in figures_of for name in found)
    telling: list[str] = []
    for name in names:
        apart, further = (
            len({tuple(found.get(each) for each in chosen) for found in figures_of})
            for chosen in (telling, [*telling, name])
        )
        telling += [name] * (further > apart)
    return telling


VERSION = 1  # of the form of the data


def as_data(launches: Sequence[LaunchReport]) -> dict[str, object]:
    """Return all launches as dicts, lists, numbers and strings."""
    return {"version": VERSION, "launches": [_launch(each) for each in launches]}


def _launch(each: LaunchReport) -> dict[str, object]:
    launch, bounds, held = each.launch, each.bounds, each.occupancy
    longest = bounds.longest
    return {
        "kernel": launch.kernel,
        "times": each.times,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "arch": launch.arch,
        "arguments": dict(launch.arguments),
        "blocks": launch.blocks,
        "measured_blocks": launch.measured_blocks,
        "total": figures(launch.total),
        "lines": [_line(line) for line in launch.lines],
        "touched_bytes": launch.touched_bytes,
        "shared_buffers": [
            {
                "name": buffer.name,
                "element": buffer.element,
                "size": buffer.size,
                "offset": buffer.offset,
                "layout": None if buffer.layout is None else str(buffer.layout),
                "patterns_complete": buffer.is_complete,
            }
            for buffer in launch.buffers
        ],
        "conflicts": [_conflict(conflict) for conflict in each.conflicts],
        "remarks": [remark_data(remark) for remark in each.remarks],
        "gpu": each.gpu.name,
        "bounds": {
            "flops": bounds.flops,
            "intensity": bounds.intensity if math.isfinite(bounds.intensity) else None,
            "peak_flops_per_second": bounds.peak if math.isfinite(bounds.peak) else None,
            "attainable_flops_per_second": bounds.attainable if math.isfinite(bounds.attainable) else None,
            "reachable_flops_per_second": bounds.reachable,
            "limiter": None if longest is None else longest.name,
            "limits": [
                {"name": limit.name, "amount": limit.amount, "rate": limit.rate, "seconds": limit.seconds}
                for limit in bounds.limits
            ],
            "units_without_rate": list(bounds.unknown),
        },
        "occupancy": {
            "blocks": held.blocks,
            "warps": held.warps,
            "most_warps": held.most_warps,
            "limits": held.limits,
            "limiter": held.limiter,
            "registers": held.registers,
            "shared_bytes": held.shared_bytes,
            "spills": held.spills,
            "arch": held.arch,
            "problem": held.problem,
        },
        **asynchronous_data(each),
    }


def figures(found: Figures) -> dict[str, object]:
    """Return figures as a dict."""
    return {
        "shared_requests": found.shared_requests,
        "shared_wavefronts": found.shared_wavefronts,
        "shared_wavefronts_ideal": found.shared_wavefronts_ideal,
        "shared_bytes": found.shared_bytes,
        "global_requests": found.global_requests,
        "global_sectors": found.global_sectors,
        "global_sectors_ideal": found.global_sectors_ideal,
        "global_bytes": found.global_bytes,
        "sectors_per_request": found.sectors_per_request,
        "sector_use": found.sector_use,
        **asynchronous_figures(found),
        "barriers": found.barriers,
        "instructions": dict(found.instructions),
        "operations": dict(found.operations),
    }


def _line(line: Line) -> dict[str, object]:
    return {"file": line.file, "line": line.line, "text": line.text, **figures(line)}


def _conflict(conflict: Conflict) -> dict[str, object]:
    found = conflict.suggestion
    return {
        "buffer": conflict.buffer.name,
        "layout": None if conflict.buffer.layout is None else str(conflict.buffer.layout),
        "lines": [
            {
                "file": None if line.location is None else line.location.file,
                "line": None if line.location is None else line.location.line,
                "requests": line.requests,
                "wavefronts": line.wavefronts,
                "ideal": line.ideal,
                "worst": line.worst,
            }
            for line in conflict.lines
        ],
        "suggestion": None
        if found is None
        else {
            "expression": found.expression,
            "kind": found.kind,
            "before": found.before,
            "after": found.after,
            "ideal": found.ideal,
            "removes": found.removes,
            "extra_bytes": found.extra_bytes,
        },
    }


def remark_data(remark: Remark) -> dict[str, object]:
    """Return a remark as a dict."""
    suggestion = remark.suggestion
    return {
        "kind": remark.kind,
        "file": remark.file,
        "line": remark.line,
        "message": remark.message,
        "suggestion": None if suggestion is None else suggestion.expression,
    }
