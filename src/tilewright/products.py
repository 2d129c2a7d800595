"""`tw.matmul` as users hold it: the product of `kernels.matmul`, and `tune`, which measures the kernels for one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any  # Any: arrays of any library

from tilewright.arguments import integer, number
from tilewright.errors import ArgumentError
from tilewright.frames import hiding_frames
from tilewright.kernels import winners
from tilewright.kernels.choice import Explanation
from tilewright.kernels.family import Candidate
from tilewright.kernels.matmul import Matmul, forget_plans
from tilewright.launch import observers
from tilewright.runtime.arrays import describe

if TYPE_CHECKING:
    from tilewright.tune import Config, Tuning

_WARMUP_MS, _REP_MS = 10, 40


class Product(Matmul):
    """Multiply matrices: epilogue(alpha * (a @ b) + beta * c + bias), rounded once to `out_dtype`.

    Call it as `tw.matmul(a, b)`; `tw.matmul.explain(a, b)` says how that would be computed, `tw.matmul.prepare(a, b)`
    prepares its launch, and `tw.matmul.tune(a, b)` measures which kernel is fastest. See `__call__`.
    """

    @hiding_frames
    def tune(
        self,
        a: Any,
        b: Any,
        *,
        most: int | None = 32,
        budget: float | None = None,
        tolerance: float | None = None,
        workers: int | None = None,
        progress: bool = True,
        store: bool = True,
        force: bool = False,
        flush: bool = False,
        **options: Any,  # those of the call
    ) -> Tuning:
        """Measure the kernels for this product, and use the fastest for such calls from now on.

        The arguments are those of the call. Of the candidates that `explain` shows, the `most` that are predicted to be
        fastest are tried (None: all), for `budget` seconds if one is given. Each is compiled, in `workers` processes,
        runs once and is compared with the first, the model's choice: max |x - y| <= tolerance max |y|, where the
        default of `tolerance` depends on the type of the result. It is timed as by `tw.bench.compare`, and those within
        5 % of the best once more, interleaved: back to back, as a CUDA graph where PyTorch can capture it and the
        launch would show; with `flush` each time with a cold L2 cache, as after other work. A candidate that fails or
        is wrong is excluded and listed. `out` is not written, and all arrays keep their contents.

        With `store`, the result is stored in the cache folder, by device, CUDA driver, release of Tilewright and
        problem: extents, element types, layouts and alignments. Calls of later processes use it too, and a later `tune`
        returns it without measuring, unless `force` is set. `explain` says where a choice was found by tuning.

        In the simulator, where times mean nothing, the candidates are run and compared, and nothing is stored.

        >>> import numpy as np, tilewright as tw
        >>> a, b = np.ones((16, 32), np.float16), np.ones((32, 16), np.float16)
        >>> found = tw.matmul.tune(a, b, most=2, progress=False)
        >>> found.source, [trial.status for trial in found.trials]
        ('simulated', ['untimed', 'untimed'])

        Raises `ArgumentError` as the call would, `TuningError` where no candidate can be used or, before anything is
        measured, where the store cannot be written.
        """
        if most is not None:
            most = integer("tw.matmul.tune", "most", most, minimum=1)
        if budget is not None:
            number("tw.matmul.tune", "budget", budget, least=0)
        if tolerance is not None:
            number("tw.matmul.tune", "tolerance", tolerance, least=0)
        if workers is not None:
            workers = integer("tw.matmul.tune", "workers", workers, minimum=0)
        _refuse_specs(a, b)
        explained = self.explain(a, b, **options)
        if explained.choice is None:
            raise ArgumentError("the result is empty: nothing is launched, and there is nothing to tune")
        return _Tuning(self, explained, a, b, options).run(
            most, budget, tolerance, workers, progress, store, force, flush
        )


class _Tuning:
    """One tuning: the candidates of a product by config, and how each is launched."""

    def __init__(self, product: Product, explained: Explanation, a: Any, b: Any, options: Mapping[str, Any]) -> None:
        self.product = product
        self.problem = explained.problem
        self.explained = explained
        self.inputs = (a, b)
        self.out = product(
            a, b, **{**options, "out": None, **_addend(options)}
        )  # of the library and type of the result
        self.options = {**options, **_addend(options), "out": self.out}
        self._prepared: dict[Config, Callable[[], object]] = {}
        self._planned: Candidate | None = None  # by which calls are planned now

    def run(
        self, most: int | None, budget: float | None, tolerance: float | None, workers: int | None, progress: bool,
        store: bool, force: bool, flush: bool,
    ) -> Tuning:  # fmt: skip
        from tilewright.bench.device import Gpu
        from tilewright.runtime.result_store import Store
        from tilewright.tune.results import Tuning
        from tilewright.tune.space import listed
        from tilewright.tune.trials import Call, Tuner

        configs = self._configs(most)
        info = describe(self.out)
        assert info is not None
        ordinal = info.device if isinstance(info.device, int) else None
        kept, place = Store(), None if ordinal is None else winners.place_of(self.problem, ordinal)
        if place is not None and store:
            known = None if force else kept.find(place)
            for config, candidate in configs.items():
                if known is not None and winners.text_of(candidate) == known.config:
                    self._take(place, candidate)
                    return Tuning(config, (), "stored", known.milliseconds)
            kept.check_writable()
        arrays = {"a": self.inputs[0], "b": self.inputs[1], "c": self.options.get("c"), "out": self.out}
        call = Call(
            name="tw.matmul",
            launch=lambda config: self._launch(config, configs[config]),
            arrays={name: array for name, array in arrays.items() if array is not None and describe(array) is not None},
            outputs=("out",),
            reference=lambda: self._reference(configs),
            tolerance=tolerance,
            arch=None if ordinal is None else self.explained.machine.arch,
        )
        tuner = Tuner(
            call, None if ordinal is None else Gpu(ordinal), _WARMUP_MS, _REP_MS, budget, workers, progress, flush
        )
        try:
            found = tuner.run(listed(list(configs)), len(configs))
        finally:
            forget_plans()  # of the candidates
        if place is not None and found.milliseconds is not None:
            self._take(place, configs[found.best])
            if store:
                trials = found.as_json()["trials"]
                winners.keep(kept, place, configs[found.best], found.milliseconds, trials)
        return found

    def _configs(self, most: int | None) -> dict[Config, Candidate]:
        """Return the candidates to try by what they are called, those predicted to be fastest first."""
        from tilewright.tune import Config

        found = self.explained.candidates
        ranked = sorted((c.prediction.us, n) for n, c in enumerate(found) if c.prediction is not None)
        first = found.index(self.explained.choice) if self.explained.choice is not None else None
        order = [n for _, n in ranked if n != first][: None if most is None else most - 1]
        chosen = [found[n] for n in ([] if first is None else [first]) + order]
        configs: dict[Config, Candidate] = {}
        for candidate in chosen:
            config = Config(kernel=candidate.family.name, configuration=str(candidate.configuration))
            if config in configs:  # the short text leaves out what seldom differs
                config = Config(kernel=candidate.family.name, configuration=repr(candidate.configuration))
            configs[config] = candidate
        return configs

    def _launch(self, config: Config, candidate: Candidate) -> None:
        """Compute the product by a candidate.

        What only looks at launches sees them. Repetitions are prepared, but for those that PyTorch captures: a prepared
        launch goes to the stream that it was prepared for.
        """
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
            return compute(*self.inputs, **self.options)

    def _reference(self, configs: Mapping[Config, Candidate]) -> None:
        """Compute the product by the first candidate that runs."""
        for n, (config, candidate) in enumerate(configs.items(), 1):
            try:
                return self._launch(config, candidate)
            except Exception:
                if n == len(configs):
                    raise
        return None

    def _take(self, place: Any, candidate: Candidate) -> None:
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


def _refuse_specs(*arrays: Any) -> None:
    from tilewright.runtime.arrays import ArraySpec

    if any(isinstance(array, ArraySpec) for array in arrays):
        raise ArgumentError("tw.matmul.tune measures, and tw.spec has no memory", help="pass arrays on the GPU")


matmul: Product = Product()
