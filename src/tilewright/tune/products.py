"""The tuning of a product: its candidates by config, how each is launched, and what of that travels to workers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any  # Any: arrays of any library

from tilewright.arch import Arch
from tilewright.bench.device import Gpu
from tilewright.errors import ArgumentError
from tilewright.kernels import winners
from tilewright.kernels.choice import Explanation
from tilewright.kernels.family import Candidate
from tilewright.kernels.matmul import Matmul, forget_plans
from tilewright.kernels.quantized import Quantized
from tilewright.launch import observers
from tilewright.runtime.arrays import describe
from tilewright.runtime.result_rows import Place
from tilewright.runtime.result_store import Store
from tilewright.tune.arguments import Packed, like, pack
from tilewright.tune.configs import Config
from tilewright.tune.executors import Executor, RemoteTuner
from tilewright.tune.keys import arrays_of
from tilewright.tune.results import Tuning
from tilewright.tune.space import listed
from tilewright.tune.trials import Call, Tuner
from tilewright.tune.workers import Job, device_name

_WARMUP_MS, _REP_MS = 10, 40


@dataclass(frozen=True)
class Limits:
    """What a tuning is asked for beside the product; see `tw.matmul.tune`."""

    budget: float | None
    tolerance: float | None
    workers: int | None
    progress: bool
    flush: bool


class Candidates:
    """Candidates of a product by config, and the launches of each on the arrays of a call."""

    def __init__(
        self, product: Matmul, a: Any, b: Any, options: Mapping[str, Any], by_config: Mapping[Config, Candidate]
    ) -> None:
        self.product: Matmul = product
        self.inputs: tuple[Any, Any] = (a, b)
        self.by_config: Mapping[Config, Candidate] = by_config
        self._options = {**options, **_addend(options)}
        self._prepared: dict[Config, Callable[[], object]] = {}
        self._planned: Candidate | None = None  # by which calls are planned now

    @cached_property
    def out(self) -> Any:
        """What candidates write: laid out as the call's own `out`, which they leave alone."""
        given = self._options.get("out")
        made = None if given is None else like(given)
        if made is None:  # of the library and type of the result
            made = self.product(*self.inputs, **{**self._options, "out": None})
        return made[0] if isinstance(made, tuple) else made  # with `also`, its further results come behind it

    def call(self, tolerance: float | None, arch: Arch | None) -> Call:
        """Return the call that is tuned; candidates are compared with the first that runs."""
        a, b = self.inputs
        arrays = {"a": a, "b": b, "c": self._options.get("c"), "out": self.out}
        return Call(
            name="tw.matmul",
            launch=self.launch,
            arrays=arrays_of({name: array for name, array in arrays.items() if array is not None}),
            outputs=("out",),
            reference=self._reference,
            tolerance=tolerance,
            arch=arch,
        )

    def launch(self, config: Config) -> None:
        """Compute the product by a candidate.

        What only looks at launches sees them. Repetitions are prepared, but for those that PyTorch captures: a prepared
        launch goes to the stream that it was prepared for.
        """
        candidate = self.by_config.get(config)
        if candidate is None:
            raise ArgumentError(f"this GPU has no candidate {config}, which another process found")
        if observers or _is_capturing():
            self._by(candidate, self.product)
            return
        if config not in self._prepared:
            self._prepared[config] = self._by(candidate, self.product.prepare)
        self._prepared[config]()

    def _by(self, candidate: Candidate, compute: Callable[..., Any]) -> Any:
        if self._planned is not candidate:
            forget_plans()
            self._planned = candidate
        with winners.forcing(candidate):
            return compute(*self.inputs, **{**self._options, "out": self.out})

    def _reference(self) -> None:
        for n, config in enumerate(self.by_config, 1):
            try:
                return self.launch(config)
            except Exception:
                if n == len(self.by_config):
                    raise
        return None


@dataclass(frozen=True)
class Named:
    """A candidate as it travels: by its name in the store."""

    values: Mapping[str, str]
    text: str

    def config(self) -> Config:
        """Return the config, in the process that it came to."""
        return Config(self.values)


@dataclass(frozen=True)
class ProductWork:
    """A product as it travels. Its candidates are compared with the first of `order` that runs, as everywhere."""

    arguments: Packed
    order: Sequence[Named]
    tolerance: float | None

    def call(self, candidates: Sequence[Named]) -> Call:
        """Return the call, in the process that it came to."""
        product = Matmul()
        arguments = self.arguments.unpack()
        a, b = arguments.pop("a"), arguments.pop("b")
        explained = product.explain(a, b, **arguments)
        known = {winners.text_of(x): x for x in explained.candidates if x.prediction is not None}
        named = {x.config(): known.get(x.text) for x in (*self.order, *candidates)}
        found = {config: candidate for config, candidate in named.items() if candidate is not None}
        arch = explained.machine.arch if isinstance(_ordinal_of(a), int) else None
        made = Candidates(product, a, b, arguments, found).call(self.tolerance, arch)
        forget_plans()  # of the candidates of a job before
        return made


def tune(
    product: Matmul, explained: Explanation, a: Any, b: Any, options: Mapping[str, Any], most: int | None,
    limits: Limits, store: bool, force: bool, executor: Executor | None,
) -> Tuning:  # fmt: skip
    """Measure the candidates of a product that was explained, and use the fastest from now on."""
    if isinstance(b, Quantized):  # whose order is of a pass before the candidates
        a, b = b.take_columns(a), replace(b, order=None)
    configs = _configs(explained, most)
    ordinal = _ordinal_of(a)
    kept, place = Store(), None if ordinal is None else winners.place_of(explained.problem, ordinal)
    if place is not None and store:
        known = None if force else kept.find(place)
        for config, candidate in configs.items():
            if known is not None and winners.text_of(candidate) == known.config:
                _take(place, candidate)
                return Tuning(config, (), "stored", known.milliseconds)
        kept.check_writable()
    arch = None if ordinal is None else explained.machine.arch
    candidates = Candidates(product, a, b, options, configs)
    try:
        if executor is None:
            stopwatch = None if ordinal is None else Gpu(ordinal)
            tuner: Tuner | RemoteTuner = Tuner(
                candidates.call(limits.tolerance, arch), stopwatch, _WARMUP_MS, _REP_MS, limits.budget, limits.workers,
                limits.progress, limits.flush,
            )  # fmt: skip
        else:
            tuner = _remote(executor, configs, {"a": a, "b": b, **options}, limits, ordinal)
        found = tuner.run(listed(list(configs)), len(configs))
    finally:
        forget_plans()  # of the candidates
    if place is not None and found.milliseconds is not None:
        _take(place, configs[found.best])
        if store:
            winners.keep(kept, place, configs[found.best], found.milliseconds, found.as_json()["trials"])
    return found


def _remote(
    executor: Executor, configs: Mapping[Config, Candidate], arguments: Mapping[str, Any], limits: Limits,
    ordinal: int | None,
) -> RemoteTuner:  # fmt: skip
    named = {config: Named(config.values, winners.text_of(candidate)) for config, candidate in configs.items()}
    work = ProductWork(pack(arguments, "tw.matmul.tune"), tuple(named.values()), limits.tolerance)
    return RemoteTuner(
        executor,
        Job("tw.matmul", work, True, limits.tolerance, _WARMUP_MS, _REP_MS, limits.flush),
        lambda config: named[config],
        None if ordinal is None else device_name(arrays_of(arguments)),
        budget=limits.budget,
        workers=limits.workers,
        progress=limits.progress,
    )


def _configs(explained: Explanation, most: int | None) -> dict[Config, Candidate]:
    """Return the candidates to try by what they are called, those predicted to be fastest first."""
    found = explained.candidates
    ranked = sorted((c.prediction.us, n) for n, c in enumerate(found) if c.prediction is not None)
    first = found.index(explained.choice) if explained.choice is not None else None
    order = [n for _, n in ranked if n != first][: None if most is None else most - 1]
    chosen = [found[n] for n in ([] if first is None else [first]) + order]
    configs: dict[Config, Candidate] = {}
    for candidate in chosen:
        config = Config(kernel=candidate.family.name, configuration=str(candidate.configuration))
        if config in configs:  # the short text leaves out what seldom differs
            config = Config(kernel=candidate.family.name, configuration=repr(candidate.configuration))
        configs[config] = candidate
    return configs


def _ordinal_of(a: Any) -> int | None:
    info = describe(a)
    assert info is not None, type(a)
    return info.device if isinstance(info.device, int) else None


def _take(place: Place, candidate: Candidate) -> None:
    winners.remember(place, candidate)
    forget_plans()


def _is_capturing() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _addend(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what beta multiplies where the call names out alone: what out holds."""
    if options.get("beta", 0) != 0 and options.get("c") is None and options.get("out") is not None:
        return {"c": options["out"]}
    return {}
