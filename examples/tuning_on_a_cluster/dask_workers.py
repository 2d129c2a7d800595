"""Tune a kernel on the workers of a Dask cluster.

    python dask_workers.py                              two workers of this machine
    python dask_workers.py --gpu tcp://scheduler:8786   the workers of a cluster, a GPU each, as dask-cuda starts them

Workers get this file's text with each job, so they need Tilewright and no copy of it. What won is in the store that
--store names: on a folder that all machines see, each of them finds it there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
from dask.distributed import Client, LocalCluster

import tilewright as tw


class DaskExecutor:
    """Calls functions in tasks of Dask.

    `Client.get_executor(pure=False)` does for a tuning too, as long as no worker dies: of a task that has killed
    its workers, the futures of distributed 2026.8 never hear.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(self, function: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """Return the future of a call."""
        result: Future[Any] = Future()

        def end(task: Any) -> None:
            try:
                result.set_result(task.result())
            except BaseException as error:  # CancelledError is not an Exception
                result.set_exception(error)

        # Without retries: the tuner finds out which of the candidates has killed a worker.
        self._client.submit(function, *args, pure=False, retries=0).add_done_callback(end)
        return result


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
    options.add_argument("scheduler", nargs="?")
    options.add_argument("--gpu", action="store_true")
    options.add_argument("--store", default="tuning.sqlite")
    chosen = options.parse_args()

    x = np.arange(1000, dtype=np.float32)
    if chosen.gpu:
        import cupy

        x = cupy.arange(1 << 26, dtype=cupy.float32)
    tuned = tw.autotune(CONFIGS, key=["x"], reference=scaled, store=chosen.store, progress=False)(scale)
    cluster = chosen.scheduler or LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with Client(cluster) as client:
        workers = len(client.scheduler_info(-1)["workers"])
        tuning = tuned.tune(x * 0, x, 2.0, executor=DaskExecutor(client))
    print(f"{len(tuning.trials)} candidates at {workers} workers, {tuning.source}; the best: {tuning.best}")
    if chosen.scheduler is None:
        cluster.close()


if __name__ == "__main__":
    main()
