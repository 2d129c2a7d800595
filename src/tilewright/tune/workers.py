"""Candidates measured by the workers of an executor: what goes there, what a worker does, and what comes back."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tilewright._version import __version__
from tilewright.bench.device import Gpu
from tilewright.bench.machine import driver_release
from tilewright.errors import ArgumentError
from tilewright.pickling import check_pickles
from tilewright.runtime import driver
from tilewright.tune.configs import Config, Extent, Target
from tilewright.tune.keys import arch_of, arrays_of, is_simulated, ordinal_of
from tilewright.tune.results import Results, Status
from tilewright.tune.sending import Sent, receive, send
from tilewright.tune.trials import Call, Tuner

# Any: arguments of a kernel by name
_one_at_a_time = threading.Lock()  # what shares a process shares its GPU


@dataclass(frozen=True)
class Candidate:
    """A config as it travels: numbers for grid and block, the name of its hook."""

    values: Mapping[str, Any]
    options: Mapping[str, Any]
    extents: tuple[Any, Any]
    hook: Sent | None

    def config(self) -> Config:
        """Return the config, in the process that it came to."""
        hook = None if self.hook is None else receive(self.hook)
        grid, block = self.extents
        return Config(self.values, grid=grid, block=block, pre_hook=hook, **self.options)


class Travelling(Protocol):
    """A candidate as it travels."""

    def config(self) -> Config:
        """Return the config, in the process that it came to."""


class Work(Protocol):
    """What candidates are tried on, as it travels."""

    def call(self, candidates: Sequence[Any]) -> Call:
        """Return the call that is tuned, in the process that it came to, with the launches of these candidates."""


@dataclass(frozen=True)
class Job:
    """What one worker is to do: these candidates of some work. With `is_final` the best are compared again.

    `number` makes each job another one, as some executors answer equal calls from memory. `device` is the GPU that
    times count of, None in the simulator: a worker with another one does not begin.
    """

    name: str
    work: Work
    has_reference: bool
    tolerance: float | None
    warmup: float
    rep: float
    flush: bool = True
    version: str = __version__
    device: str | None = None
    candidates: tuple[Travelling, ...] = ()
    is_final: bool = False
    number: int = 0

    def with_candidates(self, candidates: Sequence[Travelling], is_final: bool, number: int, device: str | None) -> Job:
        """Return the job for some of the candidates."""
        return replace(self, candidates=tuple(candidates), is_final=is_final, number=number, device=device)


@dataclass(frozen=True)
class KernelWork:
    """A kernel or a function that launches, with the arguments of a call."""

    name: str
    target: Sent
    reference: Sent | None
    arguments: bytes
    outputs: Sequence[str]
    reset_to_zero: Sequence[str]
    restore_value: Sequence[str] | None
    tolerance: float | None

    def call(self, candidates: Sequence[Candidate]) -> Call:
        """Return the call, in the process that it came to."""
        meta = pickle.loads(self.arguments)
        target = Target(receive(self.target), self.name)
        reference = None if self.reference is None else receive(self.reference)
        arrays = arrays_of(meta)
        return Call(
            name=self.name,
            launch=lambda config: target.launch(config, meta, None, None),
            arrays=arrays,
            outputs=self.outputs,
            reset_to_zero=self.reset_to_zero,
            restore_value=self.restore_value,
            reference=None if reference is None else lambda: reference(**meta),
            tolerance=self.tolerance,
            arch=None if is_simulated(arrays) else arch_of(arrays),
        )


@dataclass(frozen=True)
class Report:
    """What a worker found: its GPU (None for the simulator), and of each candidate status, milliseconds and reason.

    `groups` has candidates with equal results, and those results where there was no reference to compare them with;
    the first group is the reference's where there was one. `best` is the winner of a final comparison, with its time.
    """

    device: str | None
    trials: tuple[tuple[Status, float | None, str | None], ...]
    groups: tuple[tuple[Results | None, tuple[int, ...]], ...]
    best: tuple[int, float] | None = None


def job_of(target: Target, call: Call, meta: Mapping[str, Any], reference: Any, warmup: float, rep: float) -> Job:
    """Return the job that a call makes, without candidates.

    Raises `ArgumentError` for arguments and functions that cannot be sent.
    """
    for name, value in meta.items():
        check_pickles(value, f"the argument {name} of {call.name}", "workers get a copy of each argument")
    work = KernelWork(
        name=call.name,
        target=send(target.function, f"{call.name}"),
        reference=None if reference is None else send(reference, f"the reference of {call.name}"),
        arguments=pickle.dumps(dict(meta)),
        outputs=tuple(call.outputs),
        reset_to_zero=tuple(call.reset_to_zero),
        restore_value=None if call.restore_value is None else tuple(call.restore_value),
        tolerance=call.tolerance,
    )
    return Job(call.name, work, reference is not None, call.tolerance, warmup, rep)


def candidate_of(target: Target, config: Config, meta: Mapping[str, Any], grid: Extent, block: Extent) -> Candidate:
    """Return a config as it travels: functions for grid and block are called here, as a worker may not know them."""
    values = dict(config.values)
    for name, value in values.items():
        check_pickles(value, f"the value of {name} in {config}", "workers get a copy of each config")
    everything = {**meta, **values}
    is_kernel = hasattr(target.function, "_code")
    extents = target.extents(config, everything, grid, block) if is_kernel else (None, None)
    hook = None if config.pre_hook is None else send(config.pre_hook, f"the pre_hook of {config}")
    return Candidate(values, dict(config.options), extents, hook)


def work(data: bytes) -> Report:
    """Do a job: trace, compile, run, check and time its candidates. This is what an executor is given.

    Raises `ArgumentError` for a job of another Tilewright, and for functions that this process has not.
    """
    with _one_at_a_time:
        job: Job = pickle.loads(data)
        if job.version != __version__:
            raise ArgumentError(
                f"a worker has Tilewright {__version__}, and {job.version} tunes",
                help="install the same release on all machines: results hold for one",
            )
        return _report(job)


def _report(job: Job) -> Report:
    if job.device is not None:
        devices = [_named(ordinal) for ordinal in range(driver.device_count())]
        if job.device not in devices:  # where the call itself may be impossible
            return Report(devices[0] if devices else None, (), ())
    call = job.work.call(job.candidates)
    device = None if call.arch is None else device_name(call.arrays)
    if job.device is not None and device != job.device:
        return Report(device, (), ())
    # One process compiles: the other workers of this machine compile as well.
    stopwatch = None if call.arch is None else Gpu(call.ordinal)
    tuner = Tuner(call, stopwatch, job.warmup, job.rep, None, 1, progress=False, flush=job.flush)
    configs = [candidate.config() for candidate in job.candidates]
    verdicts, best = tuner.measure(configs, job.is_final)
    trials = [tuner.trials[config] for config in configs]
    groups = () if verdicts is None else verdicts.groups()
    return Report(
        device,
        tuple((trial.status, trial.milliseconds, trial.reason) for trial in trials),
        tuple(
            (None if job.has_reference else results, tuple(n for n, config in enumerate(configs) if config in members))
            for results, members in groups
        ),
        None if best is None or best.milliseconds is None else (configs.index(best.config), best.milliseconds),
    )


def device_name(arrays: Mapping[str, Any]) -> str:
    """Return what times hold for: a GPU with its driver."""
    return _named(ordinal_of(arrays))


def _named(ordinal: int) -> str:
    return f"{driver.device_properties(ordinal).name}, driver {driver_release() or 'unknown'}"
