"""Run cases, compare each with NumPy, time it against the library on a GPU, and show the results.

`run_cases` serves the whole demo, `main` one example as a program.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tilewright.bench.progress import Progress
from tilewright.bench.race import compare
from tilewright.demo.arrays import pick_backend, synchronize
from tilewright.demo.examples import Array, Backend, Case, CasesFunction, Report, Trial, load_example
from tilewright.tables import print_table

_ROUNDS, _BATCH_MS = 7, 20.0


def run_case(case: Case, backend: Backend) -> Report:
    """Run `case` and return its report. A case that raises is reported as failed; nothing is raised from here."""
    report = Report(case.name, case.size, bytes_moved=case.bytes_moved, flops=case.flops)
    on_gpu = backend == "cuda" and not case.simulated
    try:
        trial = case.prepare()
        begin = time.perf_counter()
        trial.launch()
        if on_gpu:
            synchronize()
        seconds = time.perf_counter() - begin
        error, failure = check(trial)
    except Exception as exception:
        return replace(report, failure=f"{type(exception).__name__}: {exception}")
    report = replace(report, seconds=seconds, error=error, limit=trial.limit, failure=failure)
    return _timed(report, trial) if on_gpu and failure is None else report


def check(trial: Trial) -> tuple[float, str | None]:
    """Return the greatest error of what a trial's last launch computed, and what is wrong with it; None if nothing."""
    error = greatest_difference(trial.result(), trial.expected)
    passed = error <= trial.limit
    return error, None if passed else f"the greatest error is {error:.3g}, the limit {trial.limit:.3g}"


def greatest_difference(actual: Array, expected: Array) -> float:
    """Return the greatest absolute difference of two arrays; infinite where shapes or non-finite values differ."""
    if actual.shape != expected.shape:
        return float("inf")
    if actual.size == 0:
        return 0.0
    a, b = _wide(actual), _wide(expected)
    if np.promote_types(a.dtype, b.dtype).kind in "iu":
        # In unsigned arithmetic the difference is exact: float64 would lose that of two large neighbours.
        return float(np.max(np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)))
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        difference = np.where(same, 0.0, np.abs(a.astype(np.float64) - b.astype(np.float64)))
    return float("inf") if np.isnan(difference).any() else float(difference.max())


def _wide(array: Array) -> Array:
    """Return `array` with bool as an integer and every kind of float as float64."""
    if array.dtype.kind == "b":
        return array.astype(np.uint8)
    return array if array.dtype.kind in "iu" else array.astype(np.float64)


def _timed(report: Report, trial: Trial) -> Report:
    """Time the launch and the library's routine interleaved, so that a change of the clock rate affects both."""
    runs = {"launch": trial.launch} if trial.library is None else {"launch": trial.launch, "library": trial.library}
    try:
        comparison = compare(runs, rounds=_ROUNDS, batch_ms=_BATCH_MS, flush=False)
    except Exception as exception:
        return replace(report, failure=f"{type(exception).__name__} while timing: {exception}")
    library = comparison["library"].median / 1000 if "library" in comparison else None
    return replace(report, seconds=comparison["launch"].median / 1000, library_seconds=library)


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


def collect_cases(files: Sequence[Path], backend: Backend, quick: bool) -> list[Case]:
    """Return the cases of the example `files`. A file that fails gives one case that fails with its error."""
    cases: list[Case] = []
    for path in files:
        try:
            function = getattr(load_example(path), "cases", None)
            cases += [] if function is None else function(backend, quick)
        except Exception as error:
            cases.append(Case(path.stem, "-", partial(_fail, error)))
    return cases


def _fail(error: Exception) -> Trial:
    raise error


def run_cases(cases: Sequence[Case], backend: Backend, *, told: bool = False) -> tuple[list[Report], bool]:
    """Run `cases` in order; return their reports, and whether Ctrl-C ended it before the last one.

    A progress bar is on stderr where that is a terminal. With `told`, and where stdout is none, each report is printed
    there as soon as it is known.
    """
    reports: list[Report] = []
    lines = _Lines(cases, backend) if told and not sys.stdout.isatty() else None
    try:
        with Progress("running", len(cases)) as bar:
            for case in cases:
                bar.describe(f"{case.name} ({case.size})")
                reports.append(run_case(case, backend))
                if lines is not None:
                    lines.tell(reports[-1])
                bar.advance()
    except KeyboardInterrupt:
        return reports, True
    return reports, False


class _Lines:
    """Reports as lines of one width, for a pipe or a log."""

    def __init__(self, cases: Sequence[Case], backend: Backend) -> None:
        self._rated = backend == "cuda"
        self._name = max((len(case.name) for case in cases), default=0)
        self._size = max((len(case.size) for case in cases), default=0)

    def tell(self, report: Report) -> None:
        cells = [f"{report.name:{self._name}}", f"{report.size:{self._size}}", f"{format_seconds(report.seconds):>8}"]
        cells.append(f"{_number(report.error):>8}")
        rate, ratio = report.rate, report.ratio
        if self._rated and rate is not None:
            cells += [f"{rate[0]:,.0f} {rate[1]}", "" if ratio is None else f"{ratio:.2f} of the library's rate"]
        print("  ".join([*cells, "ok" if report.passed else "FAILED"]), flush=True)


def print_reports(reports: Sequence[Report], backend: Backend) -> None:
    """Print the table to stdout where that is a terminal (a pipe got it line by line), and what failed to stderr."""
    if sys.stdout.isatty():
        print_table(Console(), as_table(reports, backend))
    for text in failures(reports):
        print(text, file=sys.stderr)


def main(cases: CasesFunction, arguments: Sequence[str] | None = None) -> None:
    """Run one example as a program: check its cases, print the table, and exit with 1 when a check fails."""
    parser = argparse.ArgumentParser(description="Run the kernels of this file and check them against NumPy.")
    parser.add_argument("--backend", choices=["sim", "cuda"], help="default: the GPU where there is one")
    parser.add_argument("--full", action="store_true", help="full sizes on the simulator too (slow)")
    options = parser.parse_args(arguments)
    backend, note = pick_backend(options.backend)
    if note is not None:
        print(note, file=sys.stderr)
    reports, interrupted = run_cases(cases(backend, backend == "sim" and not options.full), backend, told=True)
    print_reports(reports, backend)
    sys.exit(0 if not interrupted and all(report.passed for report in reports) else 1)
