"""`@tw.autotune`: a kernel or a launching function whose compile-time values are measured and remembered."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import notebook
from tilewright.bench.device import Gpu
from tilewright.bench.machine import driver_release
from tilewright.errors import ArgumentError, CompileError, LanguageError, TilewrightError, TuningError
from tilewright.frames import hide_frames, hiding_frames, warn_at
from tilewright.launch import Kernel
from tilewright.pickling import ByName
from tilewright.runtime import driver
from tilewright.runtime.arrays import describe
from tilewright.runtime.numbers import scalar_type
from tilewright.runtime.plan import ArgumentPlan, Signature
from tilewright.runtime.result_rows import Place, Winner
from tilewright.runtime.result_store import Store
from tilewright.tune.configs import Config, Extent, Target
from tilewright.tune.executors import Executor, RemoteTuner, check_executor
from tilewright.tune.keys import arch_of, arrays_of, fingerprint, is_simulated, key_value, kind_of, ordinal_of
from tilewright.tune.results import Tuning, as_text, trials_table
from tilewright.tune.space import Space, config_of, listed, searched
from tilewright.tune.trials import Call, Tuner
from tilewright.tune.workers import candidate_of, device_name, job_of

_TRIES_ON_SIMULATOR = 64


@dataclass(frozen=True)
class Settings:
    """The arguments of `autotune` beside the candidates. `store` is None where results stay in this process."""

    key: tuple[str, ...]
    reset_to_zero: tuple[str, ...]
    restore_value: tuple[str, ...] | None
    outputs: tuple[str, ...]
    reference: Callable[..., object] | None
    tolerance: float | None
    warmup: float
    rep: float
    seed: int
    budget: float | None
    max_trials: int
    workers: int | None
    progress: bool
    store: Store | None
    executor: Executor | None = None


class Autotuned(ByName):
    """What `@tw.autotune` makes: called as what it was put on, without the values that it tunes.

    A kernel is called `tuned[grid, block](C, A, B)`, where grid and block may be functions of all arguments by name,
    or `tuned(C, A, B)` where its configs say both. `tune` measures whether a result is known or not.
    """

    def __init__(
        self, target: Kernel | Callable[..., Any], candidates: Sequence[Config] | Space, settings: Settings
    ) -> None:
        self.__wrapped__ = target
        self.__name__: Any | str = getattr(target, "__name__", type(target).__name__)
        self.__qualname__ = getattr(target, "__qualname__", self.__name__)
        self.__doc__, self.__module__ = target.__doc__, target.__module__
        self.candidates = candidates
        self.settings = settings
        self._signature = inspect.signature(target)
        self._parameters = tuple(self._signature.parameters)
        self._check()
        self._tuned = self._names()
        self._own = [name for name in self._parameters if name not in self._tuned]
        self._own_signature = self._signature.replace(
            parameters=[p for name, p in self._signature.parameters.items() if name not in self._tuned]
        )
        kinds = {p.kind for p in self._own_signature.parameters.values()}
        self._is_plain = kinds <= {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        self._plans: Signature | None = None
        # By plan: the names of the key, and where a reading has their arrays; None for what is not an array.
        self._places: dict[ArgumentPlan, list[tuple[str, int | None]]] = {}
        self._best: dict[Hashable, Config] = {}
        self._target = Target(target, self.__name__)

    @hiding_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # Any: the target's own arguments and result
        """Launch with the best config for these arguments; the first call of a kind tunes."""
        return self._call(None, None, args, kwargs)

    @hiding_frames
    def __getitem__(self, configuration: tuple[Extent, Extent]) -> Callable[..., Any]:
        """Return the tuned kernel with a grid and a block."""
        if not isinstance(self.__wrapped__, Kernel):
            raise ArgumentError(f"{self.__name__} is a function that launches, not a kernel: call it without [...]")
        try:
            grid, block = configuration
        except (TypeError, ValueError):
            name = self.__name__
            text = f"{name} is launched as {name}[grid, block](...), got {name}[{configuration!r}]"
            raise ArgumentError(text) from None
        return functools.partial(self._call_kernel, grid, block)

    @hiding_frames
    def tune(
        self,
        *args: Any,
        grid: Extent = None,
        block: Extent = None,
        force: bool = False,
        executor: Executor | None = None,
        **kwargs: Any,
    ) -> Tuning:
        """Return the best config for these arguments, and every candidate's time or fault.

        What is known already is returned as it is; with `force` all is measured anew. On the simulator every
        candidate is run and checked, and none is timed. `executor` is that of `tw.autotune`, for this tuning. All
        arrays hold afterwards what they held before. Raises `TuningError` where no candidate can be used.
        """
        meta = self._bind(args, kwargs)
        index = self._index(meta)
        found = self._search(meta, grid, block, force, executor)
        self._best[index] = found.best
        return found

    def best_config(self, *args: Any, **kwargs: Any) -> Config | None:
        """Return the config that calls with these arguments use, None where none is known yet."""
        meta = self._bind(args, kwargs)
        found = self._best.get(self._index(meta))
        if found is None and not is_simulated(arrays_of(meta)):
            stored = self._stored(meta)
            return None if stored is None else stored.best
        return found

    def _call_kernel(self, grid: Extent, block: Extent, *args: Any, **kwargs: Any) -> Any:
        try:  # not hiding_frames: a call more at every launch
            return self._call(grid, block, args, kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    def _call(self, grid: Extent, block: Extent, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        meta = self._bind(args, kwargs)
        index = self._index(meta)
        config = self._best.get(index)
        if config is None:
            if is_simulated(arrays_of(meta)):
                return self._first_working(index, meta, grid, block)
            config = self._best[index] = self._search(meta, grid, block, is_asked=False).best
        return self._launch(config, meta, grid, block)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, defaults filled in."""
        if not kwargs and len(args) == len(self._own) and self._is_plain:
            return dict(zip(self._own, args, strict=True))
        for name in kwargs:
            if name in self._tuned:
                raise ArgumentError(f"{name} is tuned: {self.__name__} takes it from its configs, not from the call")
        try:
            bound = self._own_signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{self.__name__}: {error}") from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def _launch(self, config: Config, meta: Mapping[str, Any], grid: Extent, block: Extent) -> Any:
        return self._target.launch(config, meta, grid, block)

    def _index(self, meta: Mapping[str, Any]) -> Hashable:
        """Return what tells calls apart: the kind of every argument, and the values of the key."""
        if self._plans is None:
            # What is neither an array nor a number is a constant of the call.
            fixed = [n for n, value in meta.items() if describe(value) is None and scalar_type(value) is None]
            self._plans = Signature(tuple(meta), fixed)
        plan, (call, _, _) = self._plans.read(tuple(meta.values()))
        places = self._places.get(plan)
        if places is None:
            starts = dict(zip(meta, plan.starts, strict=True))
            names = self.settings.key
            places = self._places[plan] = [(n, starts[n] if describe(meta[n]) is not None else None) for n in names]
        # Of an array the shape counts.
        layouts = call.layouts
        return plan, call.key, tuple(meta[n] if start is None else (layouts[start] or ())[:1] for n, start in places)

    def _search(
        self,
        meta: dict[str, Any],
        grid: Extent,
        block: Extent,
        force: bool = False,
        executor: Executor | None = None,
        *,
        is_asked: bool = True,
    ) -> Tuning:
        """Find the best config. A store that cannot be used ends only a tuning that was asked for."""
        arrays = arrays_of(meta)
        simulated = is_simulated(arrays)
        settings = self.settings
        store = None if simulated else settings.store
        if store is not None:
            try:
                stored = None if force else self._stored(meta)
                if stored is not None:
                    return stored
                store.check_writable()
            except TuningError as error:
                if is_asked:
                    raise
                warn_at(f"{error.summary}; what {self.__name__} finds is kept in this process only")
                store = None
        reference = settings.reference
        call = Call(
            name=self.__name__,
            launch=lambda config: self._launch(config, meta, grid, block),
            arrays=arrays,
            outputs=settings.outputs,
            reset_to_zero=settings.reset_to_zero,
            restore_value=settings.restore_value,
            reference=None if reference is None else lambda: reference(**meta),
            tolerance=settings.tolerance,
            arch=None if simulated else arch_of(arrays),
        )
        tuner = self._tuner(call, meta, grid, block, executor or settings.executor)
        try:
            found = tuner.run(self._batches(tuner), self._total())
        except KeyboardInterrupt:
            if tuner.trials:
                print(as_text(trials_table(tuple(tuner.trials.values()), None)), file=sys.stderr)
            raise
        if store is not None and found.milliseconds is not None:
            trials = found.as_json()["trials"]
            store.keep(
                self._place(meta), Winner(str(found.best), found.milliseconds), name=self.__name__, trials=trials
            )
        return found

    def _tuner(
        self, call: Call, meta: dict[str, Any], grid: Extent, block: Extent, executor: Executor | None
    ) -> Tuner | RemoteTuner:
        """Return what tries the candidates: this process, or the workers of an executor."""
        settings, simulated = self.settings, call.arch is None
        if executor is None:
            stopwatch = None if simulated else Gpu(call.ordinal)
            limits = (settings.warmup, settings.rep, settings.budget, settings.workers)
            return Tuner(call, stopwatch, *limits, settings.progress)
        check_executor(executor)
        return RemoteTuner(
            executor,
            job_of(self._target, call, meta, settings.reference, settings.warmup, settings.rep),
            lambda config: candidate_of(self._target, config, meta, grid, block),
            None if simulated else device_name(call.arrays),
            budget=settings.budget,
            workers=settings.workers,
            progress=settings.progress,
        )

    def _batches(self, tuner: Tuner | RemoteTuner) -> Iterator[list[Config]]:
        if isinstance(self.candidates, Space):
            limit = self.settings.max_trials
            return searched(self.candidates, self._parameters, tuner.times, seed=self.settings.seed, limit=limit)
        return listed(self.candidates)

    def _total(self) -> int:
        if isinstance(self.candidates, Space):
            return min(self.settings.max_trials, self.candidates.combinations)
        return len(self.candidates)

    def _first_working(self, index: Hashable, meta: dict[str, Any], grid: Extent, block: Extent) -> Any:
        """Run with the first candidate that can be traced: on the simulator there is nothing to measure."""
        first: TilewrightError | None = None
        for config in self._in_order():
            try:
                result = self._launch(config, meta, grid, block)
            except (LanguageError, CompileError, ArgumentError) as error:
                first = first or error
                continue
            self._best[index] = config
            return result
        assert first is not None
        raise first

    def _in_order(self) -> Iterator[Config]:
        if not isinstance(self.candidates, Space):
            yield from self.candidates
            return
        for n, point in enumerate(self.candidates):
            if n == _TRIES_ON_SIMULATOR:
                return
            yield config_of(self.candidates, point, self._parameters)

    def _stored(self, meta: Mapping[str, Any]) -> Tuning | None:
        """Return what the store knows, where it is still among the candidates."""
        if self.settings.store is None:
            return None
        winner = self.settings.store.find(self._place(meta))
        if winner is None:
            return None
        config = self._config_called(winner.config)
        return None if config is None else Tuning(config, (), "stored", winner.milliseconds)

    def _config_called(self, text: str) -> Config | None:
        if not isinstance(self.candidates, Space):
            return next((config for config in self.candidates if str(config) == text), None)
        points = (config_of(self.candidates, point, self._parameters) for point in self.candidates)
        return next((config for config in points if str(config) == text), None)

    def _place(self, meta: Mapping[str, Any]) -> Place:
        properties = driver.device_properties(ordinal_of(arrays_of(meta)))
        release = driver_release() or "unknown"
        version = "{}.{}".format(*properties.driver_version)
        kinds = [f"{name}: {kind_of(value)}" for name, value in meta.items()]
        keyed = [f"{name}={key_value(meta[name])!r}" for name in self.settings.key]
        return Place(properties.name, f"{release} (CUDA {version})", self._fingerprint, "; ".join(kinds + keyed))

    @functools.cached_property
    def _fingerprint(self) -> str:
        """A hash of what a result depends on beside device and key."""
        candidates = self.candidates.axes if isinstance(self.candidates, Space) else self.candidates
        return fingerprint(inspect.unwrap(self.__wrapped__), repr(candidates))

    def _names(self) -> frozenset[str]:
        if isinstance(self.candidates, Space):
            return frozenset(name for name in self.candidates.names if name in self._parameters)
        return frozenset(name for config in self.candidates for name in config.values)

    def _check(self) -> None:
        """Raise `ArgumentError` for candidates and names that do not fit the function."""
        if isinstance(self.candidates, Space):
            self.candidates.complain_if_empty()
            point = next(iter(self.candidates), None) if self.candidates.combinations <= 1 << 16 else None
            configs = [] if point is None else [config_of(self.candidates, point, self._parameters)]
        else:
            configs = list(self.candidates)
            if not configs:
                raise ArgumentError("@tw.autotune needs at least one config")
        known = ", ".join(self._parameters)
        for parameter in self._signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise ArgumentError(
                    f"{self.__name__} takes {parameter}, and a tuned function has a name for each of its arguments",
                    help="tune a function with named arguments that makes the call",
                )
        for config in configs:
            if not isinstance(config, Config):
                raise ArgumentError(f"configs are tw.Config(...), got {config!r}")
            if set(config.values) != set(configs[0].values):
                raise ArgumentError(f"configs name the same values; {configs[0]} and {config} do not")
            for name in config.values:
                if name not in self._parameters:
                    raise ArgumentError(f"{self.__name__} takes no {name}; its parameters are {known}")
        settings = self.settings
        for what, names in (
            ("key", settings.key),
            ("outputs", settings.outputs),
            ("reset_to_zero", settings.reset_to_zero),
            ("restore_value", settings.restore_value or ()),
        ):
            for name in names:
                if name not in self._parameters:
                    raise ArgumentError(f"{what} names {name}; the parameters of {self.__name__} are {known}")

    def __repr__(self) -> str:
        return f"<autotuned {self.__name__}>"

    def _repr_html_(self) -> str:
        rows = [(str(config), "") for config in list(self._best.values())]
        count = self._total()
        return notebook.box(
            f"autotuned {self.__name__}({', '.join(self._own)})",
            notebook.facts([("tunes", ", ".join(sorted(self._tuned))), ("candidates", str(count))]),
            *([notebook.details("found in this process", notebook.facts(rows))] if rows else []),
            note="the first call of a kind measures the candidates; .tune(...) shows them",
        )
