"""Tuning of plans: build the kernels of a grid of parameters, check them, and keep the fastest.

On a GPU the candidates are timed. In the simulator they are ranked by an estimate: the least time that the profiler's
counts leave possible on a GPU of its table, which says nothing of latency.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from tilewright._version import __version__
from tilewright.arch import Gpu as GpuFigures
from tilewright.arch import find_gpu
from tilewright.bench.device import Gpu
from tilewright.bench.machine import driver_release
from tilewright.errors import ScheduleError, TilewrightError, TuningError
from tilewright.frames import hiding_frames
from tilewright.profile import Profile
from tilewright.profile.bounds import bounds_of
from tilewright.runtime import driver
from tilewright.runtime.nvrtc import compiler_identity
from tilewright.runtime.result_rows import Place, Winner
from tilewright.runtime.result_store import Store
from tilewright.schedule.arrays import Array
from tilewright.schedule.package import check_name, kernel_of
from tilewright.schedule.parameters import get_parameters_from_grid, named_values
from tilewright.schedule.scheduled import ScheduledKernel
from tilewright.tune.configs import Config
from tilewright.tune.decorator import store_of
from tilewright.tune.keys import arch_of, is_simulated, kind_of, ordinal_of
from tilewright.tune.results import Trial, Tuning, as_text, trial_json
from tilewright.tune.space import listed
from tilewright.tune.trials import Call, Tuner


@dataclass(frozen=True)
class PlanTuning:
    """What came of tuning a plan: the kernel to call, the parameters that made it, and all candidates.

    `estimates` has, where the simulator ran, the seconds by which candidates were ranked, and `gpu` the GPU that they
    are for; `tuning.source` says whether times were measured, stored or not taken.
    """

    kernel: ScheduledKernel
    parameters: Mapping[Any, Any]  # Any: parameters or their names; their values
    tuning: Tuning
    estimates: Mapping[Config, float]
    gpu: str

    def as_json(self) -> dict[str, Any]:  # Any: plain data
        """Return everything as plain data; times in milliseconds."""
        found = self.tuning.as_json()
        found["trials"] = [
            {**trial_json(trial), "estimate": self._milliseconds(trial.config)} for trial in self.tuning.trials
        ]
        return {**found, "estimated_for": self.gpu if self.estimates else None}

    def table(self) -> Table:
        """Return the table that printing shows, the fastest first."""
        by = f"estimate for {self.gpu} (ms)" if self.estimates else "ms"
        table = Table("parameters", by, "")
        for trial in sorted(self.tuning.trials, key=self._rank):
            shown = self._milliseconds(trial.config) if self.estimates else trial.milliseconds
            mark = "best" if trial.config == self.tuning.best else ""
            if trial.status in ("failed", "wrong"):
                mark = f"{trial.status}: {trial.reason}"
            table.add_row(str(trial.config), "-" if shown is None else f"{shown:.4f}", mark)
        return table

    def __str__(self) -> str:
        return as_text(self.table())

    def _rank(self, trial: Trial) -> tuple[bool, float]:
        shown = self._milliseconds(trial.config) if self.estimates else trial.milliseconds
        return shown is None, shown or 0.0

    def _milliseconds(self, config: Config) -> float | None:
        seconds = self.estimates.get(config)
        return None if seconds is None else seconds * 1e3


@hiding_frames
def tune_plan(
    source: Any,  # Any: a plan with parameters, or a function of them, as `Package.add` takes
    grid: Sequence[Mapping[Any, Any]],  # Any: parameters or their names; their values
    arrays: Sequence[Any],  # Any: arrays of any library, and numbers
    *,
    args: Sequence[Array | str] | None = None,
    name: str = "tuned",
    reference: Callable[..., object] | None = None,
    outputs: Sequence[str] = (),
    tolerance: float | None = None,
    warmup: float = 10,
    rep: float = 40,
    seed: int = 0,
    budget: float | None = None,
    workers: int | None = None,
    progress: bool = True,
    store: Store | str | None = "default",
    force: bool = False,
    gpu: str = "H200",
) -> PlanTuning:
    """Return the best kernel among those of a grid of parameters, as they run on the given arrays.

    `source` and `args` are what `Package.add` takes, `grid` what `create_parameter_grid` gives; the arrays come in the
    order of `args`. All candidates are built, in an order drawn from `seed`, and compiled in parallel; those that a
    check refuses stay in the report with the reason. Each one's results (those of the arrays that it writes, or
    `outputs`) are compared with those of `reference`, a function of the same arguments that writes them, or
    else with those of most candidates. Then they are timed as `tw.autotune` does, `warmup` and `rep` milliseconds each
    and the best ones again, interleaved. What won is stored on disk and found again, unless `force`. With NumPy arrays
    all run in the simulator, and the right one with the least estimate for `gpu` is the best; that is not stored.

    All arrays hold afterwards what they held before. Raises `ScheduleError` for an empty grid, `TuningError` where no
    candidate can be used.
    """
    check_name("function", name)
    get_parameters_from_grid(grid)
    choices = {Config(named_values(choice)): choice for choice in grid}
    candidates = _Candidates(source, choices, name, args)
    configs = list(choices)
    random.Random(seed).shuffle(configs)
    first = candidates.first(configs)
    names = [array.name for array in first.arguments]
    if len(arrays) != len(names):
        raise ScheduleError(f"{name} takes ({', '.join(names)}), got {len(arrays)} arguments")
    given = {array.name: value for array, value in zip(first.arguments, arrays, strict=True) if array.rank}
    simulated = is_simulated(given)
    kept, place = store_of(store), None
    if not simulated and kept is not None:
        place = _place(candidates, given, arrays)
        winner = None if force else kept.find(place)
        best = None if winner is None else next((c for c in choices if str(c) == winner.config), None)
        if best is not None and winner is not None:
            found = Tuning(best, (), "stored", winner.milliseconds)
            return PlanTuning(candidates.kernel(best), choices[best], found, {}, gpu)
        kept.check_writable()
    call = Call(
        name=name,
        launch=lambda config: candidates.kernel(config)(*arrays),
        arrays=given,
        outputs=outputs,
        reference=None if reference is None else lambda: reference(*arrays),
        tolerance=tolerance,
        arch=None if simulated else arch_of(given),
    )
    tuner = Tuner(call, None if simulated else Gpu(call.ordinal), warmup, rep, budget, workers, progress)
    found = tuner.run(listed(configs), len(configs))
    estimates: dict[Config, float] = {}
    if simulated:
        figures = find_gpu(gpu)
        right = [trial.config for trial in found.trials if trial.status == "untimed"]
        estimates = {config: estimate(candidates.kernel(config).analyze(*arrays), figures) for config in right}
        best = min(right, key=lambda config: estimates[config])
        found = Tuning(best, found.trials, found.source, None, found.complete)
    elif kept is not None and place is not None and found.milliseconds is not None:
        winner = Winner(str(found.best), found.milliseconds)
        kept.keep(place, winner, name=name, trials=found.as_json()["trials"])
    return PlanTuning(candidates.kernel(found.best), choices[found.best], found, estimates, gpu)


def estimate(profile: Profile, gpu: GpuFigures) -> float:
    """Return the seconds that a profile's launches take at least on a GPU, one after the other.

    Of each launch that is max over resources of amount / (rate * share): the resource that takes longest at its peak
    rate. The share is 1 for DRAM. For what each multiprocessor has, it is blocks / (n ceil(blocks / n)) with n
    multiprocessors: in the last wave some of them have no block.
    """
    seconds = 0.0
    for launch in profile.launches:
        waves = -(-launch.blocks // gpu.multiprocessors)
        share = launch.blocks / (waves * gpu.multiprocessors) if waves else 1.0
        limits = bounds_of(launch, gpu).limits
        seconds += max((x.seconds / (1.0 if x.name == "DRAM" else share) for x in limits), default=0.0)
    return seconds


class _Candidates:
    """The kernels of a grid, each built once; what was refused is refused again."""

    def __init__(
        self, source: Any, choices: Mapping[Config, Mapping[Any, Any]], name: str, args: Sequence[Array | str] | None
    ) -> None:
        self.source, self.choices, self.name, self.args = source, choices, name, args
        self._built: dict[Config, ScheduledKernel | Exception] = {}

    def kernel(self, config: Config) -> ScheduledKernel:
        """Return the kernel of a candidate; raises what building it raised."""
        built = self._built.get(config)
        if built is None:
            try:
                built = kernel_of(self.source, self.choices[config], self.name, self.args)
            except TilewrightError as error:
                built = error
            self._built[config] = built
        if isinstance(built, Exception):
            raise built
        return built

    def first(self, configs: Sequence[Config]) -> ScheduledKernel:
        """Return the first kernel that can be built. Raises `TuningError` with all reasons where none can."""
        for config in configs:
            try:
                return self.kernel(config)
            except TilewrightError:
                continue
        reasons = {config: str(self._built[config]).splitlines()[0] for config in configs}
        raise TuningError(
            f"none of the {len(configs)} candidates for {self.name} can be built",
            details=[f"{config}: {reason}" for config, reason in reasons.items()],
        )

    def fingerprint(self) -> str:
        """Return a hash of the grid and of the code of its first and last kernel that can be built."""
        digest = hashlib.sha256()
        configs = list(self.choices)
        parts = [__version__, compiler_identity(), self.name, repr(configs)]
        parts += [self.first(order).source() for order in (configs, configs[::-1])]
        for part in parts:
            digest.update(part.encode() + b"\0")
        return digest.hexdigest()


def _place(candidates: _Candidates, given: Mapping[str, Any], arrays: Sequence[Any]) -> Place:
    properties = driver.device_properties(ordinal_of(given))
    release = driver_release() or "unknown"
    version = "{}.{}".format(*properties.driver_version)
    kinds = [f"{kind_of(value)} {getattr(value, 'shape', '')}" for value in arrays]
    return Place(properties.name, f"{release} (CUDA {version})", candidates.fingerprint(), "; ".join(kinds))
