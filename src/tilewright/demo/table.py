"""Show reports as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from tilewright.demo.case import Backend, Report


def as_table(reports: Sequence[Report], backend: Backend) -> Table:
    """Return the table of `reports`; the columns for rates appear on a GPU only."""
    on_gpu = backend == "cuda"
    table = Table(title=f"Tilewright on {'the GPU' if on_gpu else 'the simulator'}", title_justify="left")
    table.add_column("kernel")
    table.add_column("size")
    table.add_column("time", justify="right")
    table.add_column("max error", justify="right")
    if on_gpu:
        table.add_column("rate", justify="right")
        table.add_column("vs library", justify="right")
    table.add_column("check")
    for report in reports:
        cells: list[Text | str] = [
            Text(report.name),
            Text(report.size),
            format_seconds(report.seconds),
            _number(report.error),
        ]
        if on_gpu:
            rate, ratio = report.rate, report.ratio
            cells.append("-" if rate is None else f"{rate[0]:,.0f} {rate[1]}")
            cells.append("-" if ratio is None else f"{ratio:.2f}")
        # The failure's text goes below the table, where it has room: see `failures`.
        cells.append("[green]ok[/]" if report.passed else "[red]FAILED[/]")
        table.add_row(*cells)
    return table


def failures(reports: Sequence[Report]) -> list[str]:
    """Return one text for each failed case: its name and what went wrong."""
    return [f"{report.name} ({report.size}): {report.failure}" for report in reports if not report.passed]


def as_json(reports: Sequence[Report], backend: Backend) -> dict[str, object]:
    """Return the reports as plain data for JSON."""
    return {
        "backend": backend,
        "passed": all(report.passed for report in reports),
        "cases": [_case_json(report) for report in reports],
    }


def format_seconds(seconds: float | None) -> str:
    """Return a duration in the unit that suits it."""
    if seconds is None:
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def _case_json(report: Report) -> dict[str, object]:
    # JSON has no infinity: an error without a number becomes a string.
    error = report.error
    finite = error is None or error < float("inf")
    return {
        "name": report.name,
        "size": report.size,
        "passed": report.passed,
        "seconds": report.seconds,
        "max_error": error if finite else "infinite",
        "limit": report.limit,
        "rate": None if report.rate is None else {"value": report.rate[0], "unit": report.rate[1]},
        "library_seconds": report.library_seconds,
        "ratio_to_library": report.ratio,
        "failure": report.failure,
    }
