"""`tw.matmul` as users hold it: the product of `kernels.matmul`, and `tune`, which measures the kernels for one."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any  # Any: arrays of any library

from tilewright.arguments import integer, number
from tilewright.errors import ArgumentError
from tilewright.frames import hiding_frames
from tilewright.kernels.matmul import Matmul
from tilewright.runtime.arrays import ArraySpec

if TYPE_CHECKING:
    from tilewright.tune import Tuning
    from tilewright.tune.executors import Executor


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
        executor: Executor | None = None,
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

        With `executor`, workers compile, check and time the candidates, a GPU each, as with `tw.autotune(executor=)`,
        and `workers` is their number, if the executor does not report it. The process that asked stores the result.
        Workers make arrays of the same layouts and alignments. They get the elements of arrays up to 1 MiB; larger ones
        are filled with a random sample of their elements. A Python function in `epilogue` has to be defined at the top
        of a file, and arrays are those of NumPy, PyTorch and CuPy, or such that pickle.

        In the simulator, where times mean nothing, the candidates are run and compared, and nothing is stored.

        >>> import numpy as np, tilewright as tw
        >>> a, b = np.ones((16, 32), np.float16), np.ones((32, 16), np.float16)
        >>> found = tw.matmul.tune(a, b, most=2, progress=False)
        >>> found.source, [trial.status for trial in found.trials]
        ('simulated', ['untimed', 'untimed'])

        Raises `ArgumentError` as the call would and for what cannot be sent to workers, `TuningError` where no
        candidate can be used or, before anything is measured, where the store cannot be written.
        """
        from tilewright.tune import products as tuning
        from tilewright.tune.executors import check_executor

        if most is not None:
            most = integer("tw.matmul.tune", "most", most, minimum=1)
        if budget is not None:
            number("tw.matmul.tune", "budget", budget, least=0)
        if tolerance is not None:
            number("tw.matmul.tune", "tolerance", tolerance, least=0)
        if workers is not None:
            workers = integer("tw.matmul.tune", "workers", workers, minimum=0)
        if executor is not None:
            check_executor(executor)
        for name in options.keys() - inspect.signature(self).parameters:
            raise ArgumentError(f"tw.matmul.tune has no argument {name!r}", help="see help(tw.matmul.tune)")
        _refuse_specs(a, b)
        explained = self.explain(a, b, **options)
        if explained.choice is None:
            raise ArgumentError("the result is empty: nothing is launched, and there is nothing to tune")
        limits = tuning.Limits(budget, tolerance, workers, progress, flush)
        return tuning.tune(self, explained, a, b, options, most, limits, store, force, executor)


def _refuse_specs(*arrays: Any) -> None:
    if any(isinstance(array, ArraySpec) for array in arrays):
        raise ArgumentError("tw.matmul.tune measures, and tw.spec has no memory", help="pass arrays on the GPU")


matmul: Product = Product()
