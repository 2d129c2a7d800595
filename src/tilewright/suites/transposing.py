"""The transposes of `examples/02_transpose.py` against a copy and against the library's transpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.bench.ceilings import measure_ceilings
from tilewright.bench.checking import read, spoil
from tilewright.bench.device import Gpu
from tilewright.bench.machine import DATA
from tilewright.bench.progress import Progress
from tilewright.bench.race import Race
from tilewright.demo.arrays import put
from tilewright.demo.examples import Backend, examples_folder, load_example
from tilewright.errors import ArgumentError
from tilewright.suites.products import Shape, check_memory
from tilewright.suites.report import COUNTED, RESOURCES, Column, Report, Row, observed

TILE = 64  # what extents have to be a multiple of
ROUNDS, BATCH_MS = 15, 10.0
_COLUMNS = (
    Column("milliseconds", "ms", "{:.4f}"),
    Column("gigabytes_per_second", "GB/s", "{:,.0f}"),
    Column("of_ceiling", "of a copy", "{:.1f} %", 100),
    *COUNTED,
    *RESOURCES,
)

Run = Callable[[], object]


def new_report(backend: Backend, size: int) -> Report:
    """Return the report before anything is measured; raise `ArgumentError` for a size that the kernels do not take."""
    if size < TILE or size % TILE:
        raise ArgumentError(f"the size of a transpose is a multiple of {TILE}, got {size}")
    check_memory(Shape(size, size, size), "float32", backend)
    where = "on the GPU" if backend == "cuda" else "on the simulator"
    return Report(
        "transpose",
        f"transpose of {size} x {size} float32 {where}; data: {DATA}",
        _COLUMNS,
        {"backend": backend, "size": size, "data": DATA},
    )


def measure(report: Report) -> None:
    """Check and measure the kernels; the rows land in `report` as they come."""
    backend, size = report.settings["backend"], report.settings["size"]
    example = load_example(examples_folder() / "02_transpose.py")
    host = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    src, dst = put(host, backend), put(np.zeros_like(host), backend)
    runs: dict[str, Run] = {
        "tile stored transposed": lambda: example.launch(dst, src, example.TRANSPOSED),
        "padded": lambda: example.launch(dst, src),
        "swizzled, 16 bytes": lambda: example.launch_fast(dst, src),
    }
    right: dict[str, Run] = {}
    with Progress("checking", len(runs)) as bar:
        for name, run in runs.items():
            bar.advance(name)
            row = _checked(name, run, dst, host.T, simulated=backend == "sim")
            report.rows.append(row)
            if row.failure is None:
                right[name] = run
    if backend == "cuda" and right:
        _race(report, right, src, dst, 2 * host.nbytes)


def _checked(name: str, run: Run, dst: Any, expected: np.ndarray[Any, Any], simulated: bool) -> Row:
    row = Row(name)
    spoil(dst)
    with observed(row, simulated=simulated):
        run()
        if not np.array_equal(read(dst), expected):
            row.failure = "wrong: the result is not the transpose"
    return row


def _race(report: Report, runs: dict[str, Run], src: Any, dst: Any, moved: int) -> None:
    ceilings = measure_ceilings()
    report.facts["ceilings"] = ceilings.as_json()
    report.notes.append(f"ceiling: a copy moves {ceilings.bytes_per_second / 1e12:.2f} TB/s, read and written")
    rows = {row.name: row for row in report.rows if row.name in runs}
    if hasattr(dst, "copy_"):
        extra: dict[str, Run] = {"torch copy": lambda: dst.copy_(src), "torch transpose": lambda: dst.copy_(src.t())}
        runs = {**extra, **runs}
        for name in extra:
            rows[name] = Row(name)
            report.rows.append(rows[name])
    race = Race(runs, batch_ms=BATCH_MS, stopwatch=Gpu())
    try:
        race.run(ROUNDS)
    finally:
        if race.rounds:
            comparison = race.result()
            for name, row in rows.items():
                rate = moved / comparison[name].median * 1e3
                row.figures |= {
                    "milliseconds": comparison[name].median,
                    "gigabytes_per_second": rate / 1e9,
                    "of_ceiling": rate / ceilings.bytes_per_second,
                }
            report.facts["race"] = comparison.as_json()
