"""One tuning: trace, compile, run, check and time candidates, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.arch import Arch
from tilewright.bench.checking import Kept, fill, read, share_memory, spoil
from tilewright.bench.device import Stopwatch, current_stream
from tilewright.bench.progress import Progress
from tilewright.bench.race import compare
from tilewright.bench.timing import time_runs
from tilewright.errors import ArgumentError, DeviceError, TuningError
from tilewright.recording import Recorded, trace_launches
from tilewright.runtime.arrays import describe
from tilewright.tune.compiling import CompilePool, Source
from tilewright.tune.configs import Config
from tilewright.tune.results import Status, Trial, Tuning, Verdicts, why_none

FINALISTS = 4
NEAR = 1.05  # candidates within 5 % of the best are compared once more, interleaved

Launch = Callable[[Config], object]


@dataclass
class Call:
    """The call that is tuned: how to launch it with a config, its arrays by name, and what is said of them."""

    name: str
    launch: Launch
    arrays: Mapping[str, Any]  # Any: arrays of any library
    outputs: Sequence[str] = ()
    reset_to_zero: Sequence[str] = ()
    restore_value: Sequence[str] | None = None
    reference: Callable[[], object] | None = None
    tolerance: float | None = None
    arch: Arch | None = None  # what machine code is made for; None on the simulator

    @property
    def ordinal(self) -> int | None:
        """The CUDA device of the arrays, None where there is none."""
        for array in self.arrays.values():
            info = describe(array)
            if info is not None and isinstance(info.device, int):
                return info.device
        return None


class Budgeted:
    """What tries candidates until a budget of seconds is spent."""

    budget: float | None
    trials: dict[Config, Trial]

    def _is_over(self, begin: float) -> bool:
        if self.budget is None or time.perf_counter() - begin < self.budget:
            return False
        return any(trial.status in ("ok", "untimed") for trial in self.trials.values())


@dataclass
class Tuner(Budgeted):
    """Tries the candidates of one call. `stopwatch` is None on the simulator: nothing is timed there.

    With `flush` each run that is timed finds a cold L2 cache. Without, runs follow each other, as a CUDA graph where
    the launch would show.
    """

    call: Call
    stopwatch: Stopwatch | None
    warmup: float = 10
    rep: float = 40
    budget: float | None = None
    workers: int | None = None
    progress: bool = True
    flush: bool = True
    times: dict[Config, float | None] = field(default_factory=dict)
    trials: dict[Config, Trial] = field(default_factory=dict)
    _kept: dict[str, Kept] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)
    _images: dict[str, Kept] = field(default_factory=dict)

    def run(self, batches: Iterator[list[Config]], total: int | None) -> Tuning:
        """Try batches until they end or the budget is spent, and return the best that is right.

        All arrays hold what they held before, whatever happens. Raises `TuningError` where no candidate is right,
        and where one has brought the device down.
        """
        try:
            verdicts, complete = self._try_all(batches, total)
            return self._finish(verdicts, complete)
        finally:
            self._restore_all()

    def measure(self, configs: Sequence[Config], is_final: bool) -> tuple[Verdicts | None, Trial | None]:
        """Try candidates and return the groups of those that ran; `trials` has what became of each.

        With `is_final` the best of them are compared once more, and the fastest comes second. All arrays hold what
        they held before.
        """
        try:
            verdicts, _ = self._try_all(iter([list(configs)]), len(configs))
            timed = [t for t in self.trials.values() if t.status == "ok"]
            if not is_final or self.stopwatch is None or not timed:
                return verdicts, None
            return verdicts, self._final(sorted(timed, key=lambda trial: trial.milliseconds or 0.0), self.stopwatch)
        finally:
            self._restore_all()

    def _try_all(self, batches: Iterator[list[Config]], total: int | None) -> tuple[Verdicts | None, bool]:
        """Try batches until they end or the budget is spent; say whether they ended."""
        begin = time.perf_counter()
        verdicts: Verdicts | None = None
        with (
            CompilePool(self.workers) as pool,
            Progress(f"tuning {self.call.name}", total, shown=self.progress) as bar,
        ):
            for batch in batches:
                traced = self._trace(batch, bar)
                if self.call.arch is not None:
                    bar.describe(f"compiling {len(batch)} candidates")
                    pool.compile(_sources(traced, self.call.arch))
                if verdicts is None:
                    verdicts = Verdicts(self._expected(), self.call.tolerance)
                for config in batch:
                    if config in traced:
                        self._try(config, verdicts)
                    bar.advance(str(config))
                    if self._is_over(begin):
                        return verdicts, False
        return verdicts, True

    def _restore_all(self) -> None:
        if self._kept:
            self._wait()
        for kept in self._kept.values():
            kept.restore()
        if self._kept:
            self._wait()

    def _trace(self, batch: Sequence[Config], bar: Progress) -> dict[Config, list[Recorded]]:
        """Return what each candidate launches, and learn from it which arrays are written."""
        traced: dict[Config, list[Recorded]] = {}
        for config in batch:
            bar.describe(f"tracing {config}")
            try:
                with trace_launches(self.call.arch or Arch.parse("sm_90a")) as launches:
                    self.call.launch(config)
            except Exception as error:
                self._out(config, "failed", error)
                continue
            traced[config] = launches
            for launch in launches:
                self._learn(launch)
        for name in (*self.call.outputs, *self.call.reset_to_zero, *(self.call.restore_value or ())):
            self._keep(name)
        return traced

    def _learn(self, launch: Recorded) -> None:
        for name, array in self.call.arrays.items():
            if any(share_memory(array, other) for other in launch.written.values()):
                self._keep(name)
            if any(share_memory(array, other) for other in launch.read.values()):
                self._read.add(name)

    def _keep(self, name: str) -> None:
        if name not in self.call.arrays:
            raise ArgumentError(f"{name} is not an array among the arguments: {', '.join(self.call.arrays)}")
        if name in self._kept:
            return
        self._kept[name] = Kept(self.call.arrays[name])

    def _expected(self) -> dict[str, np.ndarray[Any, Any]] | None:
        """Run the reference on what the arrays hold; return its results."""
        if self.call.reference is None:
            return None
        self._prepare()
        returned = self.call.reference()
        return self._results(returned)

    def _prepare(self) -> None:
        """Make the outputs ready for a run that is checked: spoiled, except for what candidates read."""
        for name, kept in self._kept.items():
            (kept if self._is_needed(name) else self._image(name)).restore()
        self._wait()

    def _is_needed(self, name: str) -> bool:
        return name in self._read and name not in self.call.reset_to_zero

    def _image(self, name: str) -> Kept:
        """Return zeros, or contents that no candidate computes, for an array whose own contents nobody reads."""
        if name not in self._images:
            array = self.call.arrays[name]
            if name in self.call.reset_to_zero:
                fill(array, 0)
            else:
                spoil(array)
            self._images[name] = Kept(array)
        return self._images[name]

    def _results(self, returned: object) -> dict[str, np.ndarray[Any, Any]]:
        self._wait()
        arrays = {name: self.call.arrays[name] for name in self.call.outputs or self._kept}
        values = returned if isinstance(returned, (tuple, list)) else (returned,)
        for n, value in enumerate(values):
            if value is not None and describe(value) is not None:
                arrays[f"result {n}"] = value
        if not arrays:
            raise ArgumentError(
                f"{self.call.name} writes no array that is known, so no candidate can be checked",
                help="name what it writes: @tw.autotune(..., outputs=['C'])",
            )
        return {name: read(array) for name, array in arrays.items()}

    def _try(self, config: Config, verdicts: Verdicts) -> None:
        try:
            self._prepare()
            results = self._results(self.call.launch(config))
        except Exception as error:
            self._out(config, "failed", error)
            self._check_device(config)
            return
        leads = verdicts.add(config, results)
        if not leads and self.call.reference is not None:
            self._out(config, "wrong", verdicts.why_wrong(config))
            return
        if self.stopwatch is None:
            self.trials[config] = Trial(config, "untimed")
            self.times[config] = None
            return
        try:
            milliseconds = self._time(config, self.stopwatch)
        except Exception as error:
            self._out(config, "failed", error)
            self._check_device(config)
            return
        self.trials[config] = Trial(config, "ok", milliseconds)
        self.times[config] = milliseconds

    def _time(self, config: Config, stopwatch: Stopwatch) -> float:
        if not self.flush and not self._changing():
            alone = {"alone": lambda: self.call.launch(config)}
            found = compare(alone, rounds=5, batch_ms=self.rep / 4, flush=False, stopwatch=stopwatch)
            return found["alone"].median
        setup = self._restore_before_run if self._changing() else None
        timing = time_runs(lambda: self.call.launch(config), self.warmup, self.rep, setup=setup, stopwatch=stopwatch)
        return timing.median

    def _changing(self) -> dict[str, Kept]:
        """Return what has to be written anew before each run that is timed."""
        names = self.call.restore_value
        chosen = [n for n in self._kept if n in self._read] if names is None else list(names)
        return {**{n: self._kept[n] for n in chosen}, **{n: self._image(n) for n in self.call.reset_to_zero}}

    def _restore_before_run(self) -> None:
        ordinal = self.call.ordinal
        stream = 0 if ordinal is None else current_stream(ordinal)
        for kept in self._changing().values():
            kept.restore(stream)

    def _wait(self) -> None:
        if self.stopwatch is not None:
            self.stopwatch.synchronize()

    def _check_device(self, config: Config) -> None:
        """Raise `TuningError` where the device refuses all further work."""
        try:
            self._wait()
        except DeviceError as error:
            self._kept.clear()  # nothing can be restored any more
            raise TuningError(
                f"candidate {config} of {self.call.name} has brought the device down",
                details=[str(error)],
                help="run this config on the simulator (TILEWRIGHT_BACKEND=sim), which names the line, and leave it "
                "out by a constraint",
            ) from error

    def _out(self, config: Config, status: Status, reason: object) -> None:
        text = f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason)
        self.trials[config] = Trial(config, status, None, text)
        self.times[config] = None

    def _finish(self, verdicts: Verdicts | None, complete: bool) -> Tuning:
        right = [] if verdicts is None else verdicts.right()
        for config, trial in self.trials.items():
            if trial.status in ("ok", "untimed") and config not in right:
                assert verdicts is not None
                self.trials[config] = replace(trial, status="wrong", reason=verdicts.why_wrong(config))
        usable = [trial for trial in self.trials.values() if trial.status in ("ok", "untimed")]
        if not usable:
            raise why_none(self.call.name, tuple(self.trials.values()))
        trials = tuple(self.trials.values())
        if self.stopwatch is None:
            return Tuning(usable[0].config, trials, "simulated", None, complete)
        best = self._final(sorted(usable, key=lambda trial: trial.milliseconds or 0.0), self.stopwatch)
        return Tuning(best.config, trials, "measured", best.milliseconds, complete)

    def _final(self, ranked: Sequence[Trial], stopwatch: Stopwatch) -> Trial:
        """Return the fastest of those near the top, timed again, interleaved, so that the order does not decide."""
        limit = (ranked[0].milliseconds or 0.0) * NEAR
        near = [trial for trial in ranked[:FINALISTS] if (trial.milliseconds or 0.0) <= limit]
        if len(near) == 1 or self._changing():
            return near[0]
        runs = {str(n): (lambda config=trial.config: self.call.launch(config)) for n, trial in enumerate(near)}
        comparison = compare(runs, rounds=7, batch_ms=self.rep / 2, flush=self.flush, stopwatch=stopwatch)
        winner = max(comparison, key=lambda name: comparison.ratio(name).median)
        return replace(near[int(winner)], milliseconds=comparison[winner].median)


def _sources(traced: Mapping[Config, list[Recorded]], arch: Arch) -> list[Source]:
    texts = [launch.lowered.cuda for launches in traced.values() for launch in launches]
    return [Source(cuda.text, cuda.name, arch.name) for cuda in texts]
