"""Measure what a user's file holds: a kernel, a function that does the work or makes candidates, or cases."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.bench.device import Gpu
from tilewright.bench.machine import DATA
from tilewright.bench.race import Race
from tilewright.bench.timing import quantile
from tilewright.demo.arrays import put
from tilewright.demo.examples import Backend, Case
from tilewright.demo.runner import check
from tilewright.errors import ArgumentError
from tilewright.recording import record_launches
from tilewright.runtime.arrays import ArrayInfo, ArraySpec, Static
from tilewright.suites.report import COUNTED, RESOURCES, Column, Report, Row, observed, told

Run = Callable[[], object]
Work = Mapping[str, Mapping[str, "int | None"]]  # by candidate: flops, bytes_moved
ROUNDS, BATCH_MS = 15, 20.0
_COLUMNS = (
    Column("milliseconds", "ms", "{:.4f}"),
    Column("p10_ms", "p10", "{:.4f}"),
    Column("p90_ms", "p90", "{:.4f}"),
    Column("of_first", "against the first", "{:.3f}"),
    Column("gflops", "GFLOP/s", "{:,.0f}"),
    Column("gigabytes_per_second", "GB/s", "{:,.0f}"),
    *COUNTED,
    *RESOURCES,
)


def new_report(target: str, backend: Backend) -> Report:
    """Return the report before anything is measured. Raises `DeviceError` where "cuda" cannot be had."""
    if backend == "cuda":
        Gpu()
    where = "on the GPU" if backend == "cuda" else "on the simulator"
    return Report("file", f"{target} {where}", _COLUMNS, {"target": target, "backend": backend})


def measure_kernel(report: Report, name: str, launcher: Callable[..., object], arguments: Sequence[Any]) -> None:
    """Measure a kernel with its grid and block; arrays that are only described are filled with random numbers.

    Its GB/s count each array argument once for reading and once for writing, as the kernel does either.
    """
    backend: Backend = report.settings["backend"]
    report.settings["data"] = DATA
    real = [materialise(argument, backend) for argument in arguments]
    moved = 0

    def run() -> None:
        launcher(*real)

    with record_launches() as launches:
        run()
    for launch in launches[:1]:
        for arrays in (launch.read, launch.written):
            moved += sum(int(np.prod(x.shape)) * x.dtype.itemsize for x in map(_plain, arrays.values()))
    _measure(report, {name: run}, {name: {"bytes_moved": moved}})


def measure_function(report: Report, name: str, function: Callable[..., Any]) -> None:
    """Measure a function.

    One with the parameters `backend` and `quick` gives cases as examples do. One without parameters gives candidates,
    as a dict of callables or as one callable, or does the work itself each time it is called. Raises `ArgumentError`
    for any other.
    """
    parameters = inspect.signature(function).parameters
    backend: Backend = report.settings["backend"]
    if list(parameters)[:2] == ["backend", "quick"]:
        _measure_cases(report, function(backend, backend == "sim"))
        return
    needed = [
        p.name for p in parameters.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise ArgumentError(
            f"{name} needs a value for {', '.join(needed)}",
            help="write a function without parameters that does the work, or returns what does it",
        )
    try:
        returned = function()
    except Exception as exception:
        report.rows.append(Row(name, failure=told(exception)))
        return
    if isinstance(returned, (Generator, Coroutine, AsyncGenerator)):  # its time would be that of making it
        if isinstance(returned, Coroutine):
            returned.close()  # Python warns of one that nobody awaited
        raise ArgumentError(
            f"a call of {name} does no work: it returns a {type(returned).__name__}, which runs later",
            help="write a function that runs it to its end",
        )
    if callable(returned):
        runs: dict[str, Run] = {name: returned}
    elif isinstance(returned, Mapping) and returned and all(callable(run) for run in returned.values()):
        runs = {str(key): run for key, run in returned.items()}
    else:
        runs = {name: function}
    _measure(report, runs, {})


def _measure_cases(report: Report, cases: Sequence[Case]) -> None:
    for case in cases:
        label = f"{case.name} ({case.size})"
        try:
            trial = case.prepare()
            trial.launch()
            _, failure = check(trial)
        except Exception as exception:
            failure = told(exception)
        if failure is not None:
            report.rows.append(Row(label, failure=failure))
            continue
        runs: dict[str, Run] = {label: trial.launch}
        if trial.library is not None and report.settings["backend"] == "cuda":
            runs = {f"library ({case.size})": trial.library, **runs}
        work = {"bytes_moved": case.bytes_moved, "flops": case.flops}
        _measure(report, runs, dict.fromkeys(runs, work))


def _measure(report: Report, runs: Mapping[str, Run], work: Work) -> None:
    """Run each candidate once, then time all interleaved; on the simulator count instead."""
    on_gpu = report.settings["backend"] == "cuda"
    rows = {}
    for name, run in runs.items():
        row = rows[name] = Row(name)
        report.rows.append(row)
        with observed(row, simulated=not on_gpu):
            run()
    right = {name: run for name, run in runs.items() if rows[name].failure is None}
    if not on_gpu or not right:
        return
    race = Race(right, batch_ms=BATCH_MS, stopwatch=Gpu())
    try:
        race.run(ROUNDS)
    finally:
        if race.rounds:
            _fill(rows, race, right, work)


def _fill(rows: Mapping[str, Row], race: Race, names: Iterable[str], work: Work) -> None:
    comparison = race.result()
    for name in names:
        times = comparison[name].milliseconds
        each = work.get(name, {})
        flops, moved = each.get("flops"), each.get("bytes_moved")
        rows[name].figures |= {
            "milliseconds": comparison[name].median,
            "p10_ms": quantile(times, 0.1),
            "p90_ms": quantile(times, 0.9),
            "of_first": comparison.ratio(name).median if len(comparison) > 1 else None,
            "gflops": flops / comparison[name].median / 1e6 if flops else None,
            "gigabytes_per_second": moved / comparison[name].median / 1e6 if moved and not flops else None,
            "host_bound": comparison[name].host_bound,
        }


def materialise(argument: Any, backend: Backend) -> Any:  # Any: an argument of a kernel
    """Return random numbers in place of a `tw.spec`, on the backend; anything else as it is.

    Floats are standard normal, integers from 0 to 99. Raises `ArgumentError` for strides that leave gaps.
    """
    if isinstance(argument, Static):
        return Static(materialise(argument.array, backend))
    if not isinstance(argument, ArraySpec):
        return argument
    info = argument.info
    order = sorted(range(info.rank), key=lambda mode: -info.strides[mode])
    if not _is_dense(info, order):
        raise ArgumentError(
            f"an array of shape {info.shape} with strides {info.strides} has gaps or overlaps",
            help="measure it by a function that makes its own arrays: tilewright bench file.py:function",
        )
    random = np.random.default_rng(0)
    shape = [info.shape[mode] for mode in order]
    host = random.standard_normal(shape, np.float32) if info.dtype.is_float else random.integers(0, 100, shape)
    array = host.astype(info.dtype.numpy).transpose(np.argsort(order))
    return put(array, backend)


def _is_dense(info: ArrayInfo, order: Sequence[int]) -> bool:
    step = 1
    for mode in reversed(order):
        if info.shape[mode] > 1 and info.strides[mode] != step:
            return False
        step *= info.shape[mode]
    return True


def _plain(array: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy array of the same shape and element size, without elements' memory."""
    from tilewright.runtime.arrays import describe

    info = describe(array)
    assert info is not None, array
    return np.broadcast_to(np.zeros((), info.dtype.numpy), info.shape)
