"""Tune a kernel on the workers of a Ray cluster.

    python ray_workers.py                     two workers of this machine
    python ray_workers.py --gpu --address auto   the cluster that this machine belongs to, a GPU for each task

Ray has no executor of `concurrent.futures`, but its references become such futures, which is all that a tuning needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import ray

import tilewright as tw


class RayExecutor:
    """Calls functions in tasks of Ray, each of which has so many CPUs and GPUs for itself."""

    def __init__(self, cpus: float, gpus: float) -> None:
        # Without retries: the tuner finds out which of the candidates has killed a worker.
        self._call = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(lambda function, args: function(*args))

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Return the future of a call."""
        return self._call.remote(function, args).future()


@tw.kernel
def scale(out, x, factor, width: tw.constexpr, threads: tw.constexpr):
    """Compute out[i] = x[i] * factor, `width` elements a thread."""
    first = (tw.block_idx.x * threads + tw.thread_idx.x) * width
    for k in tw.static_range(width):
        if first + k < x.shape[0]:
            out[first + k] = x[first + k] * factor


def grid(meta) -> int:
    """Return the number of blocks for a config."""
    return tw.ceil_div(meta["x"].size, meta["width"] * meta["threads"])


def scaled(out, x, factor) -> None:
    """Compute what every candidate has to."""
    out[...] = x * factor


CONFIGS = [tw.Config(width=w, threads=t, grid=grid, block=t) for w in (1, 2, 4) for t in (128, 256)]


def main() -> None:
    """Tune, and print what was found."""
    options = argparse.ArgumentParser()
    options.add_argument("--address")
    options.add_argument("--gpu", action="store_true")
    options.add_argument("--store", default="tuning.sqlite")
    chosen = options.parse_args()
    ray.init(chosen.address, include_dashboard=False, **({} if chosen.address else {"num_cpus": 2}))

    x = np.arange(1000, dtype=np.float32)
    if chosen.gpu:
        import cupy

        x = cupy.arange(1 << 26, dtype=cupy.float32)
    tuned = tw.autotune(CONFIGS, key=["x"], reference=scaled, store=chosen.store, progress=False)(scale)
    available = ray.cluster_resources()
    workers = int(available.get("GPU", 0) if chosen.gpu else available["CPU"])
    executor = RayExecutor(cpus=0 if chosen.gpu else 1, gpus=int(chosen.gpu))
    tuning = tuned.tune(x * 0, x, 2.0, executor=executor)
    print(f"{len(tuning.trials)} candidates at {workers} workers, {tuning.source}; the best: {tuning.best}")
    ray.shutdown()


if __name__ == "__main__":
    main()
