"""A report within a page of others, without scripts: what a notebook shows of a profile, a report or a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tilewright import notebook
from tilewright.backends.sim.findings import Finding
from tilewright.figures import Figures, Line
from tilewright.notebook import Cell, Column, Row
from tilewright.profile.bounds import LaunchReport
from tilewright.profile.facts import amount, facts, shape

_COLUMNS = (
    Column("line"),
    Column("instructions", is_wide=True),
    Column("wavefronts"),
    Column("ideal", is_wide=True),
    Column("sectors"),
    Column("ideal", is_wide=True),
    Column("used", is_wide=True),
    Column("", is_text=True),
)
_MOST_OPEN = 2  # launches that are shown unfolded


def as_inline(launches: Sequence[LaunchReport]) -> str:
    """Return the lines of each launch with what they cost, the facts beside them, and what could be faster."""
    if not launches:
        return notebook.box("No kernel was measured.")
    if len(launches) == 1:
        return notebook.box(_title(launches[0]), *_launch(launches[0]), note=_note(launches[0]))
    return notebook.box(f"{len(launches)} launches", *_folded(launches))


def run_as_inline(findings: Sequence[Finding], launched: Sequence[str], launches: Sequence[LaunchReport]) -> str:
    """Return what a run gave: findings, the kernels that ran, and what was measured."""
    words = [f"{name}, {times} times" if times > 1 else name for name, times in Counter(launched).items()]
    found = [notebook.message(finding.message) for finding in findings]
    title = f"{len(found) or 'no'} finding{'' if len(found) == 1 else 's'}"
    return notebook.box(title, *found, *_folded(launches), note=f"ran {', '.join(words) or 'no kernel'}")


def _folded(launches: Sequence[LaunchReport]) -> list[str]:
    return [
        notebook.details(_title(each), notebook.paragraph(_note(each)), *_launch(each), is_open=n < _MOST_OPEN)
        for n, each in enumerate(launches)
    ]


def _title(each: LaunchReport) -> str:
    """Return a launch's name, grid and block."""
    return f"{each.launch.kernel}: grid {shape(each.launch.grid)}, block {shape(each.launch.block)}"


def _note(each: LaunchReport) -> str:
    launch, words = each.launch, []
    files = sorted({line.location.short_file for line in launch.lines if line.location is not None})
    words += [", ".join(files)] if files else []
    longest = each.bounds.longest
    if longest is not None:
        words.append(f"limited by {longest.name} on {each.gpu.title}")
    if each.times > 1:
        words.append(f"launched {each.times} times alike, the figures of one")
    if launch.is_sampled:
        words.append(f"measured in {launch.measured_blocks} of {launch.blocks} blocks, and scaled")
    return "; ".join(words)


def _launch(each: LaunchReport) -> list[str]:
    is_one_file = len({line.file for line in each.launch.lines} - {None}) == 1
    rows = [Row([*_figures(_place(line, is_one_file), line), Cell(line.text)]) for line in each.launch.lines]
    rows.append(Row([*_figures("sum", each.launch.total), Cell("")], kind="strong"))
    remarks = [notebook.message(remark.message, is_open=n == 0) for n, remark in enumerate(each.remarks)]
    about = [(label, text) for label, text in facts(each) if text]
    return [
        notebook.table(_COLUMNS, rows),
        *remarks,
        notebook.details("bytes, bounds, occupancy", notebook.facts(about)),
    ]


def _place(line: Line, is_one_file: bool) -> str:
    """Return a line's number, and its file where there are several."""
    if line.location is None:
        return "-"
    return str(line.location.line if is_one_file else line.location)


def _figures(place: str, found: Figures) -> list[Cell]:
    """Return the cells of a line or sum; those of a memory that was not used stay empty."""
    shared, used = bool(found.shared_requests), bool(found.global_requests)
    conflict = "hot" if found.shared_conflicts else ""
    wasted = "hot" if found.global_sectors > found.global_sectors_ideal else ""
    cells = [
        (amount(sum(found.instructions.values())), True, ""),
        (amount(found.shared_wavefronts), shared, conflict),
        (amount(found.shared_wavefronts_ideal), shared, "soft"),
        (amount(found.global_sectors), used, wasted),
        (amount(found.global_sectors_ideal), used, "soft"),
        (f"{found.sector_use:.0%}", used, wasted),
    ]
    return [Cell(place, "soft"), *(Cell(text, kind) if is_there else Cell("") for text, is_there, kind in cells)]
