"""Run cases with progress: the whole demo, or one example as a program."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright.demo.arrays import pick_backend
from tilewright.demo.case import Backend, Case, CasesFunction, Report, Trial
from tilewright.demo.examples import load_example
from tilewright.demo.runner import run_case
from tilewright.demo.table import as_table, failures


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


def run_cases(cases: Sequence[Case], backend: Backend) -> list[Report]:
    """Run `cases` in order, with a progress bar on stderr where that is a terminal."""
    reports: list[Report] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            progress.update(task, description=f"{case.name} ({case.size})")
            reports.append(run_case(case, backend))
            progress.advance(task)
    return reports


def print_reports(reports: Sequence[Report], backend: Backend) -> None:
    """Print the table to stdout, and what failed to stderr."""
    # In a pipe or a log there is no width to fit: do not cut the cells to the 80 columns assumed there.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(as_table(reports, backend))
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
    reports = run_cases(cases(backend, backend == "sim" and not options.full), backend)
    print_reports(reports, backend)
    sys.exit(0 if all(report.passed for report in reports) else 1)
