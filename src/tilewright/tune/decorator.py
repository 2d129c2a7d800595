"""`@tw.autotune`."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tilewright.arguments import function, instance, integer, names, number
from tilewright.errors import ArgumentError
from tilewright.frames import hiding_frames
from tilewright.launch import Kernel
from tilewright.runtime.result_store import Store
from tilewright.tune.autotuner import Autotuned, Settings
from tilewright.tune.configs import Config
from tilewright.tune.executors import Executor, check_executor
from tilewright.tune.space import Space


def store_of(given: Store | str | os.PathLike[str] | None) -> Store | None:
    """Return the store that is meant: "default" is the one in the cache folder, None is none."""
    kinds = (Store, str, os.PathLike, type(None))
    instance("a tuning", "store", given, kinds, "a path, a tuning store or None")
    if given is None or isinstance(given, Store):
        return given
    return Store() if given == "default" else Store(Path(given))


def autotune(
    configs: Sequence[Config] | None = None,
    key: Sequence[str] = (),
    *,
    space: Space | None = None,
    reset_to_zero: Sequence[str] = (),
    restore_value: Sequence[str] | None = None,
    outputs: Sequence[str] = (),
    reference: Callable[..., object] | None = None,
    tolerance: float | None = None,
    warmup: float = 10,
    rep: float = 40,
    seed: int = 0,
    budget: float | None = None,
    max_trials: int = 200,
    workers: int | None = None,
    progress: bool = True,
    store: Store | str | os.PathLike[str] | None = "default",
    executor: Executor | None = None,
) -> Callable[[Kernel | Callable[..., Any]], Autotuned]:
    """Choose compile-time values by measuring: `@tw.autotune(configs=[tw.Config(BM=128), ...], key=["n"])`.

    Put it above `@tw.kernel`, or on a function that launches kernels and takes the values of a config by name::

        @tw.autotune(configs=[tw.Config(BM=b, block=256) for b in (64, 128)], key=["A"])
        @tw.kernel
        def kernel(C, A, BM: tw.constexpr): ...

        kernel[lambda meta: meta["A"].shape[0] // meta["BM"], None](C, A)

    The first call with a new kind of arguments tries the candidates: the `configs`, or points of a `space`, all of them
    if there are at most `max_trials`, else by a search that `seed` makes reproducible. The kind is given by the element
    types, alignments and divisibility of arrays (all that a kernel is specialised on) and by the values of the
    arguments named in `key`; for an array named there, by its shape. The search ends after `budget` seconds if it has
    found a candidate.

    Each candidate runs once and is checked before it is timed as `tw.bench.do_bench` does with `warmup` and `rep`
    milliseconds; those within 5 % of the best run once more, interleaved. The check compares the arrays that the
    kernels write (as traced) or that `outputs` names, and what the function returns, with `reference`, a function of
    the same arguments that writes the same outputs; without one, with what most candidates agree on. The bound is max
    |x - y| <= tolerance max |y|, by default 1e-4 in float32, 0 for integers. A candidate that fails or is wrong is
    excluded and listed.

    Outputs that candidates read (C = alpha A B + beta C) are restored before each run; `restore_value` names others to
    restore, `reset_to_zero` those to set to zero. Afterwards all arrays have their original contents, and the call
    itself runs.

    Kernels are compiled ahead in `workers` processes (by default one per core). Winners are stored in `store`, a file
    (by default tuning.sqlite in the cache folder, None for this process only), by device, driver, kernel and key. In
    the simulator, where times mean nothing, calls use the first candidate that can be traced; `tune` checks all.

    With `executor`, workers trace, compile, check and time candidates, a GPU each: any executor of
    `concurrent.futures`, Dask's `Client.get_executor()`, or an object whose `submit(function, *args)` returns such a
    future. A worker gets copies of the arguments, and finds kernel, `reference` and hooks by module and name, or reads
    the text of their file, if its own is different or missing; so define these at the top of a file. Times from a GPU
    or driver other than that of the arrays are discarded, and those candidates are sent to a worker again. A candidate
    whose worker dies is tried alone up to three times, then it is listed as failed. `workers` then is the number of the
    executor's workers, if it does not report it. `tune` takes an executor too, for one that is made after the module is
    imported.

    Raises `ArgumentError` for candidates that do not fit the function and for objects that cannot be sent,
    `TuningError` if no candidate can be used and, from `tune`, if the store cannot be: a call gives a warning then.
    """
    if (configs is None) == (space is None):
        raise ArgumentError("@tw.autotune takes configs=[...] or space=tw.Space(...), one of them")
    instance("@tw.autotune", "configs", configs, (list, tuple, type(None)), "a list of tw.Config")
    for config in configs or ():
        instance("@tw.autotune", "each of configs", config, Config, "a tw.Config", "such as tw.Config(BM=128)")
    instance("@tw.autotune", "space", space, (Space, type(None)), "a tw.Space", "such as tw.Space(BM=(64, 128))")
    max_trials = integer("@tw.autotune", "max_trials", max_trials, minimum=1)
    if workers is not None:
        workers = integer("@tw.autotune", "workers", workers, minimum=0)
    if budget is not None:
        number("@tw.autotune", "budget", budget, least=0)
    if tolerance is not None:
        number("@tw.autotune", "tolerance", tolerance, least=0)
    if executor is not None:
        check_executor(executor)
    if reference is not None:
        function("@tw.autotune", "reference", reference)
    settings = Settings(
        key=names("@tw.autotune", "key", key),
        reset_to_zero=names("@tw.autotune", "reset_to_zero", reset_to_zero),
        restore_value=None if restore_value is None else names("@tw.autotune", "restore_value", restore_value),
        outputs=names("@tw.autotune", "outputs", outputs),
        reference=reference,
        tolerance=tolerance,
        warmup=number("@tw.autotune", "warmup", warmup, least=0),
        rep=number("@tw.autotune", "rep", rep, least=0),
        seed=integer("@tw.autotune", "seed", seed),
        budget=budget,
        max_trials=max_trials,
        workers=workers,
        progress=progress,
        store=store_of(store),
        executor=executor,
    )

    @hiding_frames
    def decorate(target: Kernel | Callable[..., Any]) -> Autotuned:
        if not isinstance(target, (Kernel, types.FunctionType)):
            raise ArgumentError(f"@tw.autotune goes above @tw.kernel or on a function, got {type(target).__name__}")
        return Autotuned(target, space if space is not None else tuple(configs or ()), settings)

    return decorate
