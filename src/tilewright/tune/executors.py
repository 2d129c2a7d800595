"""A tuning whose candidates are measured by the workers of a `concurrent.futures` executor."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tilewright.bench.progress import Progress
from tilewright.errors import ArgumentError, TilewrightError
from tilewright.tune.configs import Config
from tilewright.tune.results import Trial, Tuning, Verdicts, why_none
from tilewright.tune.trials import FINALISTS, NEAR, Budgeted
from tilewright.tune.workers import Job, Report, Travelling, work

_TASKS = 8  # of a batch, where an executor does not say how many workers it has
_TASKS_A_WORKER = 2
_ATTEMPTS = 3  # to reach a worker that lives and has the GPU that is meant
_POLL_SECONDS = 0.5
_HELP = (
    "pass an executor of concurrent.futures, Client.get_executor() of Dask, or an object whose submit returns a "
    "concurrent.futures.Future"
)


class Executor(Protocol):
    """What a tuning needs of an executor: futures of `concurrent.futures`, as `Executor.submit` returns."""

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Call a function in a worker."""


@dataclass
class _Task:
    configs: list[Config]
    attempt: int = 1
    before: str = ""  # what came of the attempt before


class RemoteTuner(Budgeted):
    """Tries the candidates of one call in workers.

    A group of candidates is one task. Of a group whose worker died each candidate is tried alone, so that one that
    kills its worker takes no others with it. What comes from another GPU than `device` does not count, and is tried
    again in the hope of another worker.
    """

    def __init__(
        self,
        executor: Executor,
        job: Job,
        candidate: Callable[[Config], Travelling],
        device: str | None,
        *,
        budget: float | None,
        workers: int | None,
        progress: bool,
    ) -> None:
        self.executor: Executor = executor
        self.job: Job = job
        self.device: str | None = device
        self.budget: float | None = budget
        self.progress: bool = progress
        self.times: dict[Config, float | None] = {}
        self.trials: dict[Config, Trial] = {}
        self._candidate = candidate
        known = workers or getattr(executor, "_max_workers", None)
        self._tasks = _TASKS if not isinstance(known, int) else max(1, known) * _TASKS_A_WORKER
        self._verdicts = Verdicts({} if job.has_reference else None, job.tolerance)
        self._complete = True
        self._order: list[Config] = []  # whichever worker answers first
        self._jobs = 0
        self._pending: dict[Future[Any], _Task] = {}

    def run(self, batches: Iterator[list[Config]], total: int | None) -> Tuning:
        """Try batches until they end or the budget is spent, and return the best that is right.

        Raises `TuningError` where no candidate is right, and what a worker raised because it cannot do the job at all.
        """
        begin = time.perf_counter()
        with Progress(f"tuning {self.job.name}", total, shown=self.progress) as bar:
            try:
                for batch in batches:
                    self._start(batch, bar)
                    while self._pending and not self._is_over(begin):
                        self._collect(bar)
                    if self._pending or self._is_over(begin):
                        self._complete = False
                        break
            finally:
                self._cancel()
        return self._finish()

    def _start(self, batch: Sequence[Config], bar: Progress) -> None:
        able = []
        self._order += batch
        for config in batch:
            try:
                self._candidate(config)
            except TilewrightError as error:
                self._out(config, f"{type(error).__name__}: {error}", bar)
            else:
                able.append(config)
        size = -(-len(able) // self._tasks)
        for start in range(0, len(able), max(size, 1)):
            self._submit(_Task(able[start : start + size]), bar)

    def _submit(self, task: _Task, bar: Progress) -> None:
        bar.describe(f"{sum(len(t.configs) for t in self._pending.values()) + len(task.configs)} candidates at workers")
        try:
            future = self.executor.submit(work, self._data(task.configs))
        except Exception as error:  # a pool that broke, or was shut down
            self._complete = False
            why = f"the executor takes no more work: {_named(error)}"
            for config in task.configs:
                self._out(config, f"{task.before}; {why}" if task.before else f"not tried, as {why}", bar)
            return
        if not isinstance(future, Future):
            raise ArgumentError(f"executor.submit returned a {type(future).__name__}", help=_HELP)
        self._pending[future] = task

    def _data(self, configs: Sequence[Config], is_final: bool = False) -> bytes:
        self._jobs += 1
        candidates = [self._candidate(config) for config in configs]
        return pickle.dumps(self.job.with_candidates(candidates, is_final, self._jobs, self.device))

    def _collect(self, bar: Progress) -> None:
        done, _ = wait(self._pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        for future in done:
            task = self._pending.pop(future)
            try:
                report: Report = future.result()
            except TilewrightError:
                raise  # this worker cannot do the job, and nor will the others
            except (Exception, CancelledError) as error:
                self._retry(task, f"its worker died: {_named(error)}", bar, is_lost=True)
                continue
            if report.device == self.device:
                self._take(task.configs, report, bar)
            else:
                found = report.device or "no GPU"
                self._retry(task, f"measured on {found} and not on {self.device or 'the simulator'}", bar)

    def _retry(self, task: _Task, reason: str, bar: Progress, is_lost: bool = False) -> None:
        if is_lost and len(task.configs) > 1:
            for config in task.configs:
                self._submit(_Task([config], 1, reason), bar)
        elif task.attempt < _ATTEMPTS:
            self._submit(_Task(task.configs, task.attempt + 1, reason), bar)
        else:
            for config in task.configs:
                self._out(config, reason, bar)

    def _take(self, configs: Sequence[Config], report: Report, bar: Progress) -> None:
        for config, (status, milliseconds, reason) in zip(configs, report.trials, strict=True):
            self.trials[config] = Trial(config, status, milliseconds, reason)
            self.times[config] = milliseconds
            bar.advance(str(config))
        for n, (results, members) in enumerate(report.groups):
            if results is not None or n == 0:  # with a reference, those behind the first are wrong already
                self._verdicts.join(results, [configs[member] for member in members])

    def _out(self, config: Config, reason: str, bar: Progress) -> None:
        self.trials[config] = Trial(config, "failed", None, reason)
        self.times[config] = None
        bar.advance(str(config))

    def _finish(self) -> Tuning:
        right = self._verdicts.right()
        for config, trial in self.trials.items():
            if trial.status in ("ok", "untimed") and config not in right:
                self.trials[config] = replace(trial, status="wrong", reason=self._verdicts.why_wrong(config))
        trials = tuple(self.trials[config] for config in self._order if config in self.trials)
        usable = [trial for trial in trials if trial.status in ("ok", "untimed")]
        if not usable:
            raise why_none(self.job.name, trials)
        if self.device is None:
            return Tuning(usable[0].config, trials, "simulated", None, self._complete)
        best = self._final(sorted(usable, key=lambda trial: trial.milliseconds or 0.0))
        return Tuning(best.config, trials, "measured", best.milliseconds, self._complete)

    def _final(self, ranked: Sequence[Trial]) -> Trial:
        """Return the fastest of those near the top, compared by one worker, as each was timed on a GPU of its own."""
        limit = (ranked[0].milliseconds or 0.0) * NEAR
        near = [trial for trial in ranked[:FINALISTS] if (trial.milliseconds or 0.0) <= limit]
        for _ in range(_ATTEMPTS if len(near) > 1 else 0):
            try:
                data = self._data([trial.config for trial in near], is_final=True)
                report: Report = self.executor.submit(work, data).result()
            except (Exception, CancelledError):  # the order that was measured before stands
                continue
            if report.device == self.device and report.best is not None:
                index, milliseconds = report.best
                return replace(near[index], milliseconds=milliseconds)
        return near[0]

    def _cancel(self) -> None:
        for future in self._pending:
            future.cancel()
        self._pending.clear()


def check_executor(executor: object) -> None:
    """Raise `ArgumentError` for what cannot be given work."""
    if not callable(getattr(executor, "submit", None)):
        raise ArgumentError(
            f"executor is a {type(executor).__name__}, which has no submit(function, *args)",
            help=_HELP,
        )


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
