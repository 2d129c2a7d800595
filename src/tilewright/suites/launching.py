"""What a launch costs on the host: the time until it is queued, apart from what the kernel takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.bench.device import Gpu
from tilewright.bench.progress import Progress
from tilewright.bench.timing import median_interval, quantile
from tilewright.demo.arrays import put
from tilewright.language import block_idx, thread_idx
from tilewright.launch import kernel
from tilewright.suites.report import Column, Report, Row

CALLS = 400  # fewer than the queue of launches holds, so that the host never waits for the GPU
SETS = 16
ROUNDS = 60
_COLUMNS = (
    Column("microseconds", "us a call", "{:.2f}"),
    Column("p10_us", "p10", "{:.2f}"),
    Column("p90_us", "p90", "{:.2f}"),
)


@kernel
def add_first(a, b, c):  # type: ignore[no-untyped-def]  # the arguments of a kernel have no Python types
    """Add one element of two arrays: what is left of a launch is its host time."""
    if block_idx.x * 32 + thread_idx.x < 1:
        c[0] = a[0] + b[0]


def new_report() -> Report:
    """Return the report before anything is measured. Raises `DeviceError` without a GPU."""
    Gpu()
    return Report("launch", "host time of a launch with three arrays", _COLUMNS, {"calls": CALLS, "rounds": ROUNDS})


def measure(report: Report) -> None:
    """Time calls of a kernel that does nothing, in batches that the GPU's queue holds."""
    watch = Gpu()
    sets = [tuple(put(np.ones(1000 + n, np.float32), "cuda") for _ in range(3)) for n in range(SETS)]
    for arrays in sets:
        add_first[1, 32](*arrays)
    prepared = add_first[1, 32].prepare(*sets[0])

    def changing() -> None:
        for n in range(CALLS):
            add_first[1, 32](*sets[n % SETS])

    def fixed() -> None:
        for _ in range(CALLS):
            prepared()

    def loop_only() -> None:
        for n in range(CALLS):
            sets[n % SETS]

    runs: dict[str, Callable[[], None]] = {
        "kernel[grid, block](a, b, c), other arrays each time": changing,
        "prepared launch": fixed,
        "the loop alone": loop_only,
    }
    first: Any = sets[0][0]
    if hasattr(first, "add_"):

        def library() -> None:
            for _ in range(CALLS):
                first.add_(1.0)

        runs["torch add_"] = library
    times: dict[str, list[float]] = {name: [] for name in runs}
    try:
        with Progress("launching", ROUNDS) as bar:
            for _ in range(ROUNDS):
                for name, run in runs.items():
                    watch.synchronize()
                    begin = time.perf_counter()
                    run()
                    times[name].append((time.perf_counter() - begin) / CALLS * 1e6)
                    watch.synchronize()
                bar.advance()
    finally:
        for name, found in times.items():
            if found:
                report.rows.append(_row(name, found))


def _row(name: str, microseconds: list[float]) -> Row:
    interval = median_interval(microseconds)
    return Row(
        name,
        {
            "microseconds": statistics.median(microseconds),
            "p10_us": quantile(microseconds, 0.1),
            "p90_us": quantile(microseconds, 0.9),
            "low_us": interval.low,
            "high_us": interval.high,
            "confidence": interval.confidence,
        },
    )
