"""The choice of `tw.matmul` on 200 products to which nothing of the model was fitted: what it costs against the best.

    python -m benchmarks.matmul_unseen [--from 0] [--to 200] [--most 6] [--seconds 100] [--json FILE] [--known FILE ...]

Products are drawn by a seed of their own: extents log-uniform from 128 to 16384 of any residue, with rows at 16 bytes,
B contiguous along K or along N, bfloat16. Of each the candidates that are predicted within 1.3 of the choice, six at
most, run interleaved, as CUDA graphs where a call takes less than a millisecond, on normal data and warm caches. In the
end stand the geometric mean of the choice's time over that of the fastest, and the products where it costs most.

A run that has too little time for all is continued by another with `--known` and the files of those before: what these
have is not measured again, and counts. `--ahead` compiles for sm_90a what would be launched, on a machine without a
GPU, into the folder of `TILEWRIGHT_CACHE_DIR`.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from benchmarks.matmul import draw, summary
from benchmarks.random_problems.ahead import Compiler

from tilewright.arch import default_arch
from tilewright.kernels.arguments import Inputs, Options, arrange_problem
from tilewright.kernels.choice import all_candidates, fastest
from tilewright.kernels.dispatch import machine_of, plan_call
from tilewright.kernels.model import Machine
from tilewright.launch import observers
from tilewright.runtime.arrays import describe

COUNT, SEED = 200, 2026  # the model was looked at with what seed 17 draws (`matmul_shapes.json`)
WITHIN, MOST = 1.3, 6  # of the predicted time, and candidates
ALIGNED = 8  # elements of 16 bytes

Arrays = tuple[Any, Any, Any]
Run = Callable[[], object]


class Product(NamedTuple):
    """Extents, and whether B is contiguous along K, as the transpose of a weight is."""

    m: int
    n: int
    k: int
    is_along_k: bool

    @property
    def name(self) -> str:
        return f"{self.m} x {self.n} x {self.k} {'KK' if self.is_along_k else 'KM'}"


def products() -> list[Product]:
    """Return the products, the same in every run."""
    source = random.Random(SEED)
    return [Product(*extents, source.random() < 0.5) for extents in draw(COUNT, SEED)]


def arrays_of(product: Product, matrix: Callable[[int, int], Any]) -> Arrays:
    """Return A, B and the result, each made by `matrix(rows, columns)`."""
    m, n, k, is_along_k = product
    return matrix(m, k), matrix(n, k).T if is_along_k else matrix(k, n), matrix(m, n)


def nowhere(rows: int, columns: int) -> Any:
    """Return a matrix in host memory of which nothing is touched."""
    return np.empty((rows, -(-columns // ALIGNED) * ALIGNED), ml_dtypes.bfloat16)[:, :columns]


def on_gpu(rows: int, columns: int) -> Any:
    """Return a matrix of normal random numbers."""
    import torch

    values = torch.empty(rows, -(-columns // ALIGNED) * ALIGNED, dtype=torch.bfloat16, device="cuda").normal_()
    return values[:, :columns]


def runs_of(arrays: Arrays, machine: Machine, most: int) -> tuple[dict[str, Run], dict[str, float], str]:
    """Return what runs the candidates that are looked at, what is predicted of each, and the choice's name."""
    infos = (*map(describe, arrays), None, None)
    arranged = arrange_problem(Inputs(infos), Options(None))
    found = all_candidates(arranged.problem, machine)
    choice = fastest(arranged.problem, machine, found)
    assert choice.prediction is not None
    limit = WITHIN * choice.prediction.us
    near = [c for c in found if c.prediction is not None and c.prediction.us <= limit and c is not choice]
    near.sort(key=lambda c: c.prediction.us if c.prediction is not None else limit)
    pointers = [info.pointer for info in infos if info is not None]
    runs: dict[str, Run] = {}
    predicted = {}
    for candidate in (choice, *near[: most - 1]):
        assert candidate.prediction is not None
        name = f"{candidate.family.name}, {candidate.configuration}"
        given = (*arrays, None, None)
        planned = plan_call(arranged, given, (0, 1, 2), candidate)
        runs[name] = partial(planned.run, given, pointers, infos, 1, 0)
        predicted[name] = candidate.prediction.us
    return runs, predicted, next(iter(runs))


def measure(product: Product, machine: Machine, most: int) -> dict[str, Any]:
    """Time the candidates of a product."""
    from benchmarks.timing import interleaved

    runs, predicted, choice = runs_of(arrays_of(product, on_gpu), machine, most)
    times = interleaved(runs, rounds=5, batch_seconds=0.004)
    us = {name: found["seconds"] * 1e6 for name, found in times.items()}
    best = min(us, key=us.__getitem__)
    return {
        "choice": choice, "best": best, "ratio": us[choice] / us[best],
        "candidates": {name: {"us": us[name], "predicted_us": predicted[name]} for name in us},
    }  # fmt: skip


def compile_ahead(wanted: list[Product], most: int) -> None:
    """Put the kernels of products into the store."""
    compiler, machine, begin = Compiler(), Machine.of(default_arch()), time.monotonic()
    observers[threading.get_ident()] = compiler
    try:
        for number, product in enumerate(wanted):
            for run in runs_of(arrays_of(product, nowhere), machine, most)[0].values():
                run()
            done = f"{time.monotonic() - begin:7.1f} s  {len(compiler.known)} kernels"
            print(f"{done}  {number + 1} products, {product.name}", flush=True)
    finally:
        observers.pop(threading.get_ident(), None)


def show(results: dict[str, dict[str, Any]]) -> None:
    """Print what the choice costs in all, and where most."""
    ratios = {name: found["ratio"] for name, found in results.items()}
    figures = summary([1 / ratio for ratio in ratios.values()])
    print(f"{len(ratios)} products: the choice takes {1 / figures['geometric_mean']:.4f} of the best (geometric mean), "
          f"at most 1 / 0.95 of it for {figures['at_least_0.95']:.0%}")  # fmt: skip
    for name in sorted(ratios, key=ratios.__getitem__, reverse=True)[:10]:
        found = results[name]
        print(f"  {ratios[name]:.3f}  {name:28} {found['choice']}; best: {found['best']}")


def main() -> None:
    """Measure the products that are asked for, print what the choice costs, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first product")
    parser.add_argument("--to", type=int, default=COUNT, help="number of that behind the last one")
    parser.add_argument("--most", type=int, default=MOST, help="candidates of a product; each new one is traced first")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no product after so many")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--known", type=Path, nargs="*", default=[], help="files of runs before")
    parser.add_argument("--ahead", action="store_true", help="compile what would be launched, and measure nothing")
    options = parser.parse_args()
    wanted, begin = products()[options.first : options.to], time.monotonic()
    if options.ahead:
        compile_ahead(wanted, options.most)
        return
    from benchmarks.timing import machine

    results: dict[str, dict[str, Any]] = {}
    for path in options.known:
        results |= json.loads(path.read_text())["products"]
    gpu = machine_of(0)
    for product in wanted:
        if product.name not in results:
            if time.monotonic() - begin > options.seconds:
                break
            found = results[product.name] = measure(product, gpu, options.most)
            print(f"{product.name:28} {found['ratio']:.3f}  {found['choice']}", flush=True)
    show(results)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "products": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
