"""Time one function on a GPU, each run by itself and with a cold L2 cache; medians, and how sure a median is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tilewright.arguments import function, given, instance, number
from tilewright.bench.device import Gpu, Run, Stopwatch
from tilewright.errors import ArgumentError
from tilewright.recording import Recorded, record_launches, surround_launches


@dataclass(frozen=True)
class Interval:
    """A median with the interval that covers the true one with probability `confidence`."""

    median: float
    low: float
    high: float
    confidence: float


def quantile(values: Sequence[float], q: float) -> float:
    """Return the q-quantile of `values`: x at position q (n - 1) of the sorted ones, neighbours joined by a line.

    >>> quantile([4.0, 1.0, 3.0, 2.0], 0.5)
    2.5

    Raises `ArgumentError` without values, or for q outside of 0 to 1.
    """
    if not values:
        raise ArgumentError("a quantile of no values")
    if not 0 <= q <= 1:
        raise ArgumentError(f"a quantile lies between 0 and 1, got {q}")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    if ordered[below] == ordered[above]:  # also keeps infinities what they are
        return ordered[below]
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the median of `values` and its confidence interval by order statistics.

    With n independent values, each is below the true median with probability 1/2, so the k-th smallest and the k-th
    largest enclose it with probability 1 - 2 P(B < k), B binomial (n, 1/2). Nothing is assumed of the distribution.
    The largest k that reaches `confidence` is taken; where none does (n < 6 for 0.95) k is 1, the whole range, and the
    result says how sure that is.

    >>> median_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    Interval(median=3.5, low=1.0, high=6.0, confidence=0.96875)

    Source: Conover, Practical Nonparametric Statistics, on confidence intervals for quantiles.
    """
    n = len(values)
    ordered = sorted(values)
    k = 1
    while 2 * (k + 1) <= n and _coverage(n, k + 1) >= confidence:
        k += 1
    return Interval(quantile(ordered, 0.5), ordered[k - 1], ordered[n - k], _coverage(n, k))


def _coverage(n: int, k: int) -> float:
    return max(0.0, 1 - 2 * sum(math.comb(n, i) for i in range(k)) / float(2**n))


_PROBES = 5
_MAX_HOLDS = 64
_HOLDS_OF_A_LAUNCH = 4  # flushes, of some tens of microseconds each, behind which a launch is queued
_MODES: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
}


@dataclass(frozen=True)
class TimedLaunch:
    """One launch of a kernel, and the seconds that it took on the GPU."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    seconds: float


@dataclass(frozen=True)
class Timing:
    """The times of single runs in milliseconds, and how they were taken.

    `host_ms` is the time of one call on the host, until all work is queued. Before each run the device is kept busy by
    `holds` flushes of `flush_bytes`, long enough that the run is queued before its start is marked; `host_bound` is
    true if the host was still too slow (it waits for the device, for example), so that its time is included.
    """

    milliseconds: tuple[float, ...]
    host_ms: float
    flush_bytes: int
    holds: int
    host_bound: bool

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)


def do_bench(
    fn: Run,
    warmup: float = 25,
    rep: float = 100,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "median",
) -> float | list[float]:
    """Return the time of one call of `fn` on the GPU, in milliseconds.

    Signature and meaning are Triton's: `fn` runs for about `warmup` and then `rep` milliseconds, each run between two
    events and after a write that flushes the L2 cache. During that write the host queues the call, so the time does not
    include the cost of the launch; `time_runs` reports whether that was so. The result is the "median" (or "min",
    "max", "mean", "all": the list) of the runs, or the list of their `quantiles`, a number where there is only one.

    `fn` must queue its work on the current stream of PyTorch or CuPy, or on the default stream. Its first call, which
    may compile, is not timed. Raises `ArgumentError` for another mode and for kernels that run on the simulator,
    `DeviceError` without a GPU.
    """
    _check_mode(quantiles, return_mode)
    return summarise(time_runs(fn, warmup, rep).milliseconds, quantiles, return_mode)


def time_runs(
    fn: Run,
    warmup: float = 25,
    rep: float = 100,
    *,
    setup: Run | None = None,
    stopwatch: Stopwatch | None = None,
) -> Timing:
    """Time `fn` as `do_bench` does and return all measurements.

    `setup` runs before each run and is not timed: it restores what `fn` changes. Raises `ArgumentError` for times that
    are not positive.
    """
    function("time_runs", "fn", fn)
    number("time_runs", "warmup, in milliseconds,", warmup, least=0)
    number("time_runs", "rep, in milliseconds,", rep, above=0)
    if setup is not None:
        function("time_runs", "setup", setup)
    watch: Stopwatch = Gpu() if stopwatch is None else stopwatch
    prepare = setup or _nothing
    prepare()
    if stopwatch is None:
        call_on_device(fn)
    else:
        fn()
    watch.synchronize()

    host_ms, queued_ms, flush_ms, whole_ms = _probe(watch, fn, prepare)
    holds = max(1, math.ceil(1.5 * queued_ms / flush_ms))
    host_bound = holds > _MAX_HOLDS
    holds = min(holds, _MAX_HOLDS)
    whole_ms += (holds - 1) * flush_ms

    def run() -> tuple[Any, Any]:
        prepare()
        for _ in range(holds):
            watch.flush()
        start = watch.mark()
        fn()
        return start, watch.mark()

    for _ in range(int(warmup / whole_ms)):
        run()
    marks = [run() for _ in range(max(1, int(rep / whole_ms)))]
    watch.synchronize()
    times = tuple(watch.milliseconds(start, end) for start, end in marks)
    return Timing(times, host_ms, watch.flush_bytes, holds, host_bound)


@contextmanager
def time_launches(stopwatch: Stopwatch | None = None) -> Iterator[list[TimedLaunch]]:
    """Time each launch of the body of a `with` once, between two events and after a write over the L2 cache.

    The list is filled when the body is over. Kernels are compiled before; the writes keep the device busy while the
    host queues the launch. Raises `DeviceError` without a GPU, `ArgumentError` where a kernel ran on the simulator.
    """
    watch: Stopwatch = Gpu() if stopwatch is None else stopwatch
    marks: list[tuple[Any, Any]] = []
    found: list[TimedLaunch] = []

    @contextmanager
    def timed(launcher: object) -> Iterator[None]:
        for _ in range(_HOLDS_OF_A_LAUNCH):
            watch.flush()
        start = watch.mark()
        yield
        marks.append((start, watch.mark()))

    with surround_launches(timed) as launches:
        yield found
    if stopwatch is None:
        _demand_device(launches)
    watch.synchronize()
    for launch, (start, end) in zip(launches, marks, strict=True):
        assert launch.grid is not None, launch
        found.append(TimedLaunch(launch.kernel, launch.grid, launch.block, watch.milliseconds(start, end) / 1000))


def call_on_device(fn: Run) -> object:
    """Call `fn` and return its result; raise `ArgumentError` where it launches kernels on the simulator."""
    with record_launches() as launches:
        result = fn()
    _demand_device(launches)
    return result


def _demand_device(launches: Sequence[Recorded]) -> None:
    """Raise `ArgumentError` where a launch ran on the simulator."""
    for launch in launches:
        if launch.function is None:
            raise ArgumentError(
                f"kernel {launch.kernel!r} ran on the simulator, where time means nothing",
                help="pass arrays on a GPU; on the simulator count with tw.simulate(profile=True)",
            )


def _probe(watch: Stopwatch, fn: Run, prepare: Run) -> tuple[float, float, float, float]:
    """Return milliseconds: a call on the host, the call with its marks, a flush on the device, and a whole run."""
    watch.flush()  # the first one allocates
    watch.synchronize()
    start = watch.mark()
    for _ in range(_PROBES):
        watch.flush()
    flush_ms = max(watch.milliseconds(start, watch.mark()) / _PROBES, 1e-3)
    host, queued, whole = [], [], []
    for _ in range(_PROBES):
        start = watch.mark()
        prepare()
        watch.flush()
        begin = watch.host_seconds()
        watch.mark()
        before = watch.host_seconds()
        fn()
        host.append((watch.host_seconds() - before) * 1000)
        end = watch.mark()
        queued.append((watch.host_seconds() - begin) * 1000)
        whole.append(watch.milliseconds(start, end))
    return statistics.median(host), statistics.median(queued), flush_ms, max(statistics.median(whole), 1e-3)


def summarise(times: Sequence[float], quantiles: Sequence[float] | None, return_mode: str) -> float | list[float]:
    """Return what `do_bench` gives for the times of single runs.

    >>> summarise([1.0, 3.0, 2.0], None, "median"), summarise([1.0, 3.0, 2.0], [0.5, 1.0], "min")
    (2.0, [2.0, 3.0])
    """
    _check_mode(quantiles, return_mode)
    if quantiles is not None:
        values = [quantile(times, q) for q in quantiles]
        return values[0] if len(values) == 1 else values
    if return_mode == "all":
        return list(times)
    return float(_MODES[return_mode](times))


def _check_mode(quantiles: Sequence[float] | None, return_mode: str) -> None:
    instance("do_bench", "return_mode", return_mode, str, f"one of {', '.join(_MODES)} or all")
    if return_mode != "all" and return_mode not in _MODES:
        raise ArgumentError(f"return_mode is one of {', '.join(_MODES)} or all, got {return_mode!r}")
    if not isinstance(quantiles, (list, tuple, type(None))):
        raise ArgumentError(f"quantiles is None or a list of numbers from 0 to 1, got {given(quantiles)}")
    for q in quantiles or ():
        number("do_bench", "each of quantiles", q)
        if not 0 <= q <= 1:
            raise ArgumentError(f"quantiles lie between 0 and 1, got {q}")


def _nothing() -> None:
    pass
