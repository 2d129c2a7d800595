"""Time several candidates in rounds: each round runs a batch of every candidate, in another order."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping

from tilewright.arguments import given, instance, number
from tilewright.bench.checking import Checker
from tilewright.bench.comparison import Candidate, Comparison
from tilewright.bench.device import Gpu, Run, Stopwatch
from tilewright.bench.progress import Progress
from tilewright.bench.timing import time_runs
from tilewright.errors import ArgumentError

_MAX_CALLS = 200  # in one batch
# A call of less is captured whatever the host takes for it: a busy host may take ten times as long in the next round.
_SHORT_MS = 1.0


class ColdBatch:
    """Calls with a cold cache, each between two marks; the figure of a round is their median."""

    captured = False

    def __init__(self, run: Run, watch: Stopwatch, batch_ms: float) -> None:
        first = time_runs(run, 0, batch_ms, stopwatch=watch)
        self._call, self._watch, self._holds = run, watch, first.holds
        self.calls: int = min(_MAX_CALLS, len(first.milliseconds))
        self.host_bound: bool = first.host_bound

    def run(self) -> float:
        """Return the milliseconds of a call in this round."""
        marks = []
        for _ in range(self.calls):
            for _ in range(self._holds):
                self._watch.flush()
            start = self._watch.mark()
            self._call()
            marks.append((start, self._watch.mark()))
        return statistics.median(self._watch.milliseconds(start, end) for start, end in marks)


class WarmBatch:
    """A batch of calls back to back between two marks; the figure of a round is their mean."""

    def __init__(self, run: Run, watch: Stopwatch, batch_ms: float) -> None:
        self._watch = watch
        self._replay: Callable[[], object] | None = None
        self._call = run
        self.calls: int = 3
        self.run()
        probe = self.run()
        self.calls = max(2, min(_MAX_CALLS, round(batch_ms / max(probe, 1e-4))))
        before = watch.host_seconds()
        for _ in range(self.calls):
            run()
        host_ms = (watch.host_seconds() - before) * 1000 / self.calls
        watch.synchronize()
        # Where the device has done all before the host has queued all, the host's time is what is measured.
        is_bound = 1.2 * host_ms >= probe
        if is_bound or probe < _SHORT_MS:
            self._replay = watch.capture(run, self.calls)
        self.captured: bool = self._replay is not None
        self.host_bound: bool = is_bound and not self.captured
        if self.captured:
            self.run()

    def run(self) -> float:
        """Return the milliseconds of a call in this round."""
        start = self._watch.mark()
        if self._replay is not None:
            self._replay()
        else:
            for _ in range(self.calls):
                self._call()
        return self._watch.milliseconds(start, self._watch.mark()) / self.calls


def compare(
    candidates: Mapping[str, Run],
    *,
    baseline: str | None = None,
    reference: object = None,
    outputs: object = None,
    spoiled: bool = True,
    tolerance: float | None = None,
    rounds: int = 15,
    batch_ms: float = 20.0,
    flush: bool = True,
    stopwatch: Stopwatch | None = None,
    progress: bool = False,
) -> Comparison:
    """Time candidates interleaved, round by round, and return their times and ratios.

    In each of `rounds` rounds every candidate runs for about `batch_ms`; each round has another order, drawn from a
    fixed seed, because a kernel runs at lower clocks after one that draws full power, and with a fixed or rotating
    order that would slow down one candidate only. With `flush` every call runs with a cold L2 cache between two events,
    as in `do_bench`. Without, a round is one batch of calls back to back, as a CUDA graph where a call takes less than
    a millisecond or its launch longer than its work, and PyTorch or CuPy can capture it. `baseline` (the first
    candidate) is what ratios refer to.

    `reference`, where given, is what each candidate must compute before it is timed: an array or a tuple of them, or
    the name of the candidate whose results count. It is compared with the arrays `outputs` that the candidates write,
    or with what a candidate returns. `outputs` hold NaN before each check (integers the lowest value); with
    `spoiled=False`, for candidates that read them, they keep their first contents. They agree where max |x - reference|
    <= tolerance max |reference|; the default tolerance depends on the type (float32: 1e-4; integers: 0).

    Raises `CheckError` for a wrong candidate, `ArgumentError` for one that cannot be compared, `DeviceError` without a
    GPU.
    """
    race = Race(
        candidates,
        baseline=baseline,
        reference=reference,
        outputs=outputs,
        spoiled=spoiled,
        tolerance=tolerance,
        batch_ms=batch_ms,
        flush=flush,
        stopwatch=stopwatch,
    )
    if rounds < 1:
        raise ArgumentError(f"rounds is at least 1, got {rounds}")
    race.run(rounds, "comparing", progress=progress)
    return race.result()


class Race:
    """A comparison that is run round by round and can be looked at after any of them; see `compare`."""

    def __init__(
        self,
        candidates: Mapping[str, Run],
        *,
        baseline: str | None = None,
        reference: object = None,
        outputs: object = None,
        spoiled: bool = True,
        tolerance: float | None = None,
        batch_ms: float = 20.0,
        flush: bool = True,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        instance("compare", "candidates", candidates, Mapping, "a dict of functions by name")
        if not all(map(callable, candidates.values())):
            raise ArgumentError(f"compare: candidates is a dict of functions by name, got {given(candidates)}")
        if not candidates:
            raise ArgumentError("compare needs at least one candidate")
        number("compare", "batch_ms", batch_ms, above=0)
        if baseline is not None and not isinstance(baseline, str):
            raise ArgumentError(f"compare: baseline is the name of a candidate, got {given(baseline)}")
        self._baseline = next(iter(candidates)) if baseline is None else baseline
        if self._baseline not in candidates:
            raise ArgumentError(f"the baseline {baseline!r} is not among the candidates: {', '.join(candidates)}")
        watch: Stopwatch = Gpu() if stopwatch is None else stopwatch
        checker = Checker(candidates, reference, outputs, spoiled, tolerance, watch)
        self._errors = {name: checker.check(name) for name in candidates}
        checker.restore()
        kind = ColdBatch if flush else WarmBatch
        self._batches: dict[str, ColdBatch | WarmBatch] = {
            name: kind(run, watch, batch_ms) for name, run in candidates.items()
        }
        self._times: list[dict[str, float]] = []
        self._flush_bytes = watch.flush_bytes if flush else 0
        self._restore = checker.restore
        self._shuffle = random.Random(0).shuffle

    def round(self, tell: Callable[[str], object] = len) -> None:
        """Run every candidate for one batch, in a new order; `tell` is called with the name of each that is done."""
        order = list(self._batches)
        self._shuffle(order)
        times = {}
        for name in order:
            times[name] = self._batches[name].run()
            tell(name)
        self._times.append(times)
        self._restore()

    def run(self, rounds: int, title: str = "timing", *, progress: bool = True) -> None:
        """Run some rounds, with a progress bar on stderr where that is a terminal and `progress` is true."""
        with Progress(title, rounds * len(self._batches), shown=progress) as bar:
            for _ in range(rounds):
                self.round(bar.advance)

    @property
    def rounds(self) -> int:
        """The rounds that are complete."""
        return len(self._times)

    def result(self) -> Comparison:
        """Return the result of the complete rounds. Raises `ArgumentError` before the first one."""
        if not self._times:
            raise ArgumentError("no round is complete yet")
        candidates = {
            name: Candidate(
                name,
                tuple(times[name] for times in self._times),
                batch.calls,
                batch.captured,
                batch.host_bound,
                self._errors[name],
            )
            for name, batch in self._batches.items()
        }
        return Comparison(candidates, self._baseline, self._flush_bytes)
