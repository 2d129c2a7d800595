"""How fast the simulator is: the cases of the examples, without checks, with them, and measuring."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from tilewright.bench.progress import Progress
from tilewright.demo.examples import Case, example_files, load_example
from tilewright.demo.runner import check
from tilewright.profile import Run, simulate
from tilewright.recording import record_launches
from tilewright.suites.report import Column, Report, Row, told

REPEATS = 3
_COLUMNS = (
    Column("size", "size"),
    Column("threads", "threads", "{:,}"),
    Column("seconds", "s", "{:.3f}"),
    Column("checked_seconds", "s, checked", "{:.3f}"),
    Column("profiled_seconds", "s, profiled", "{:.3f}"),
    Column("threads_per_second", "threads/s", "{:,.0f}"),
)
MODES: dict[str, Callable[[], AbstractContextManager[Run]]] = {
    "seconds": partial(simulate, check=False),
    "checked_seconds": simulate,
    "profiled_seconds": partial(simulate, profile=True),
}


def new_report() -> Report:
    """Return the report before anything is measured."""
    return Report(
        "simulate",
        "the simulator on the cases of the examples, the best of several runs",
        _COLUMNS,
        {"repeats": REPEATS},
    )


def measure(report: Report) -> None:
    """Run each case in each mode; rows land in `report` as they come."""
    cases: list[Case] = []
    for path in example_files():
        cases += load_example(path).cases("sim", True)
    with Progress("simulating", len(cases)) as bar:
        for case in cases:
            bar.describe(case.name)
            report.rows.append(_row(case))
            bar.advance()


def _row(case: Case) -> Row:
    row = Row(case.name, {"size": case.size})
    try:
        trial = case.prepare()
        with record_launches() as launches:
            trial.launch()  # traced here, so that the times are the simulator's alone
        for name, mode in MODES.items():
            seconds = []
            for _ in range(REPEATS):
                with mode():
                    begin = time.perf_counter()
                    trial.launch()
                    seconds.append(time.perf_counter() - begin)
            row.figures[name] = min(seconds)
        _, row.failure = check(trial)
    except Exception as exception:
        row.failure = told(exception)
        return row
    threads = 0
    for launch in launches:
        assert launch.grid is not None
        gx, gy, gz = launch.grid
        bx, by, bz = launch.block
        threads += gx * gy * gz * bx * by * bz
    row.figures |= {"threads": threads, "threads_per_second": threads / row.figures["seconds"]}
    return row
