"""The ladder of matmul kernels: every rung checked, then all of them and cuBLAS timed interleaved.

A rung is a file NN_name.py of `examples/sgemm` with a function `matmul(C, A, B, alpha, beta)`, and perhaps others
whose names begin with matmul and that take the same. `DTYPES` in the file names the element types it takes
(without it: float32).
"""

from __future__ import annotations

import inspect
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.bench.ceilings import Ceilings, measure_ceilings
from tilewright.bench.comparison import Comparison
from tilewright.bench.device import Gpu
from tilewright.bench.machine import DATA, Monitor, Sampler
from tilewright.bench.progress import Progress
from tilewright.bench.race import Race
from tilewright.bench.timing import quantile
from tilewright.demo.examples import Backend, example_files, examples_folder, load_example
from tilewright.errors import ArgumentError
from tilewright.suites.products import Product, Shape, full_precision, library_product
from tilewright.suites.report import COUNTED, RESOURCES, Column, Report, Row, observed, told

PARAMETERS = ["C", "A", "B", "alpha", "beta"]
ROUNDS, BATCH_MS = 15, 20.0

_NUMBER = re.compile(r"(\d+)_")
_COLUMNS = (
    Column("size", "size"),
    Column("milliseconds", "ms", "{:.4f}"),
    Column("gflops", "GFLOP/s", "{:,.0f}"),
    Column("of_library", "of cuBLAS", "{:.3f}"),
    Column("of_library_range", "95 %"),
    Column("of_ceiling", "of ceiling", "{:.1f} %", 100),
    *COUNTED,
    *RESOURCES,
    Column("error", "error/bound", "{:.2g}"),
)


@dataclass(frozen=True)
class Rung:
    """One step of the ladder: its number, its name, and its function."""

    number: int
    name: str
    matmul: Callable[..., Any]
    dtypes: tuple[str, ...]


def parse_rungs(text: str) -> list[int]:
    """Return the numbers that a text names.

    >>> parse_rungs("1-3,7")
    [1, 2, 3, 7]

    Raises `ArgumentError` for any other text.
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,4})\s*(?:-\s*([0-9]{1,4})\s*)?", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise ArgumentError(
                f"rungs are numbers and ranges such as 1-12 or 5,6,10, of at most 4 digits, got {text[:60]!r}"
            )
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return list(dict.fromkeys(numbers))


def find_rungs(numbers: Sequence[int] | None = None, folder: Path | None = None) -> list[Rung]:
    """Load the rungs of these numbers, all without; raise `ArgumentError` for a number that no file has."""
    searched = examples_folder() / "sgemm" if folder is None else folder
    files = {int(match[1]): path for path in example_files(searched) if (match := _NUMBER.match(path.name))}
    if not files:
        raise ArgumentError(
            "this installation of tilewright has no rungs",
            details=[f"looked for NN_name.py in {searched}"],
            help="install it again from a checkout: pip install .",
        )
    for number in numbers or ():
        if number not in files:
            raise ArgumentError(f"rung {number} does not exist; the rungs are {', '.join(map(str, sorted(files)))}")
    chosen = sorted(files) if numbers is None else numbers
    return [rung for number in chosen for rung in _rungs_of(number, files[number])]


def _rungs_of(number: int, path: Path) -> Iterable[Rung]:
    module = load_example(path)
    dtypes = tuple(getattr(module, "DTYPES", ("float32",)))
    title = path.stem.replace("_", " ")
    found = False
    for name, value in vars(module).items():
        if name.startswith("matmul") and _takes_a_product(value):
            found = True
            suffix = name.removeprefix("matmul").strip("_").replace("_", " ")
            yield Rung(number, f"{title}, {suffix}" if suffix else title, value, dtypes)
    if not found:
        raise ArgumentError(f"{path.name} is not a rung: it has no function matmul(C, A, B, alpha, beta)")


def _takes_a_product(value: object) -> bool:
    if not callable(value):
        return False
    try:
        return list(inspect.signature(value).parameters)[: len(PARAMETERS)] == PARAMETERS
    except (TypeError, ValueError):
        return False


def measure(
    report: Report,
    rungs: Sequence[Rung],
    shapes: Sequence[Shape],
    dtype: str,
    backend: Backend,
    *,
    check_only: bool = False,
) -> None:
    """Check and measure rungs on products of some shapes; the rows land in `report` as they come.

    So what is known when the user stops it stands there. Raises `ArgumentError` where no rung takes `dtype` and where
    the matrices do not fit into memory.
    """
    usable = [rung for rung in rungs if dtype in rung.dtypes]
    if not usable:
        raise ArgumentError(
            f"none of these rungs takes {dtype}",
            details=[f"{rung.name}: {', '.join(rung.dtypes)}" for rung in rungs],
        )
    left_out = [rung.name for rung in rungs if rung not in usable]
    if left_out:
        report.notes.append(f"left out, because they do not take {dtype}: {'; '.join(left_out)}")
    if backend == "cuda":
        with full_precision(dtype):
            _measure_on_gpu(report, usable, shapes, dtype, check_only)
    else:
        _count_on_simulator(report, usable, shapes, dtype)


def new_report(backend: Backend, dtype: str, shapes: Sequence[Shape]) -> Report:
    """Return the report before anything is measured."""
    where = "on the GPU" if backend == "cuda" else "on the simulator"
    return Report(
        "sgemm",
        f"C = alpha A B + beta C in {dtype}, {where}; data: {DATA}",
        _COLUMNS,
        {"backend": backend, "dtype": dtype, "sizes": [str(shape) for shape in shapes], "data": DATA},
    )


def _measure_on_gpu(
    report: Report, rungs: Sequence[Rung], shapes: Sequence[Shape], dtype: str, check_only: bool
) -> None:
    ceilings = None
    if not check_only:
        ceilings = measure_ceilings()
        report.facts["ceilings"] = ceilings.as_json()
        report.facts["arithmetic_ceiling"] = ceilings.flops_of(dtype)
        report.notes.append(_ceiling_note(ceilings, dtype))
    for shape in shapes:
        _measure_shape(report, rungs, Product(shape, dtype, "cuda"), ceilings)


def _measure_shape(report: Report, rungs: Sequence[Rung], product: Product, ceilings: Ceilings | None) -> None:
    """Check the rungs on one product, and without ceilings do no more."""
    right: dict[str, tuple[Rung, Row]] = {}
    with Progress(f"checking {product.shape}", len(rungs)) as bar:
        for rung in rungs:
            bar.describe(rung.name)
            row = _checked(rung, product)
            report.rows.append(row)
            if row.failure is None:
                right[rung.name] = rung, row
            bar.advance()
    if ceilings is not None and right:
        _race(report, product, right, ceilings.flops_of(product.dtype))


def _ceiling_note(ceilings: Ceilings, dtype: str) -> str:
    rate = ceilings.flops_of(dtype)
    if rate is None:
        return f"no arithmetic ceiling is known for {dtype} on this GPU"
    clock = "" if ceilings.sm_clock_mhz is None else f" at {ceilings.sm_clock_mhz:.0f} MHz"
    return f"ceiling: {rate / 1e12:.1f} TFLOP/s in {dtype}{clock}; a copy: {ceilings.bytes_per_second / 1e12:.2f} TB/s"


def _checked(rung: Rung, product: Product) -> Row:
    """Run a rung once and compare its result; return its row."""
    row = Row(rung.name, {"rung": rung.number, "size": str(product.shape)})
    arguments = product.C, product.A, product.B, product.alpha, product.beta
    try:
        if product.backend == "cuda":
            rung.matmul(*arguments)  # a rung may tune itself at its first call, which is not what is recorded
        product.reset()
    except Exception as exception:
        row.failure = told(exception)
        return row
    with observed(row, simulated=product.backend == "sim"):
        rung.matmul(*arguments)
        row.figures["error"] = _finite(error := product.error())
        if not error <= 1:
            row.failure = f"wrong: the greatest error is {error:.3g} times what rounding explains"
    return row


def _race(report: Report, product: Product, right: dict[str, tuple[Rung, Row]], ceiling: float | None) -> None:
    """Time the rungs that are right, interleaved with the library."""
    p = product
    runs: dict[str, Callable[[], object]] = {
        name: partial(rung.matmul, p.C, p.A, p.B, p.alpha, p.beta) for name, (rung, _) in right.items()
    }
    library = library_product(product)
    if library is None:
        report.notes.append("cuBLAS was not measured: neither torch nor CuPy is installed (pip install torch)")
        baseline = next(iter(runs))
    else:
        baseline = library[0]
        runs = {baseline: library[1], **runs}
        row = Row(baseline, {"size": str(p.shape)})
        report.rows.append(row)
    watch = Gpu()
    race = None
    try:
        with Sampler(Monitor(watch.ordinal)) as samples:
            race = Race(runs, baseline=baseline, batch_ms=BATCH_MS, stopwatch=watch)
            race.run(ROUNDS, f"timing {p.shape}")
    finally:
        if race is not None and race.rounds:
            comparison = race.result()
            rows = {name: row for name, (_, row) in right.items()}
            if library is not None:
                rows[baseline] = row
            for name, each in rows.items():
                _fill(each, comparison, name, p.shape, None if library is None else baseline, ceiling)
            report.facts[f"race of {p.shape}"] = {
                "rounds": race.rounds,
                "sm_clock_mhz": statistics.median(samples.sm_clocks) if samples.sm_clocks else None,
                "power_w": statistics.median(samples.powers) if samples.powers else None,
                **{k: v for k, v in comparison.as_json().items() if k != "candidates"},
            }


def _fill(
    row: Row, comparison: Comparison, name: str, shape: Shape, library: str | None, ceiling: float | None
) -> None:
    candidate = comparison[name]
    rate = shape.flops / candidate.median * 1e3
    row.figures |= {
        "milliseconds": candidate.median,
        "p10_ms": quantile(candidate.milliseconds, 0.1),
        "p90_ms": quantile(candidate.milliseconds, 0.9),
        "gflops": rate / 1e9,
        "of_ceiling": None if ceiling is None else rate / ceiling,
        "host_bound": candidate.host_bound,
    }
    if library is not None:
        ratio = comparison.ratio(name)
        row.figures |= {
            "of_library": ratio.median,
            "of_library_low": ratio.low,
            "of_library_high": ratio.high,
            "of_library_confidence": ratio.confidence,
            "of_library_range": f"{ratio.low:.3f} to {ratio.high:.3f}",
        }


def _count_on_simulator(report: Report, rungs: Sequence[Rung], shapes: Sequence[Shape], dtype: str) -> None:
    with Progress("simulating", len(rungs) * len(shapes)) as bar:
        for shape in shapes:
            product = Product(shape, dtype, "sim")
            for rung in rungs:
                bar.describe(f"{rung.name} ({shape})")
                report.rows.append(_checked(rung, product))
                bar.advance()


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
