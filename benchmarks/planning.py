"""What a product of a shape that was not met before takes the host: choice and launch are planned, without a GPU.

    PYTHONPATH=src python -m benchmarks.planning [--json FILE]

Two streams of shapes in bfloat16, as an H200 would compute them, behind shapes of the same kind that fill the caches:
any extents from 16 to 4096 that 8 divides, and 4096 x 4096 weights with other numbers of rows. Kernels are neither
compiled nor run.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import threading
import time
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels import choice, dispatch, matmul
from tilewright.kernels.model import Machine
from tilewright.launch import observers

_MOST = 4104


def milliseconds(shapes: list[tuple[int, int, int]], known: int) -> list[float]:
    """Return what each product takes behind the first `known`."""
    memory, times = np.zeros(_MOST * _MOST, tw.bfloat16.numpy), []
    for m, n, k in shapes:
        a, b = memory[: m * k].reshape(m, k), memory[: n * k].reshape(n, k).T
        begin = time.perf_counter()
        tw.matmul(a, b)
        times.append(1e3 * (time.perf_counter() - begin))
    return times[known:]


def main() -> None:
    """Print medians, means and the longest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the times here, too")
    options = parser.parse_args()
    machine = Machine.of(Arch.parse("sm_90a"))
    dispatch.machine_of = matmul.machine_of = lambda _: machine
    dispatch.simulated_families = lambda: choice.FAMILIES
    observers[threading.get_ident()] = lambda *_: True  # stands in for launches
    gc.disable()  # a collection takes 50 ms, whoever is at work then
    random = np.random.default_rng(0)
    drawn = [tuple(int(2 ** random.uniform(4, 12)) // 8 * 8 + 8 for _ in range(3)) for _ in range(400)]
    rows = [(m, 4096, 4096) for start in (1, 2) for m in range(start, 300, 3)]
    found = {"any extents": milliseconds(drawn, 200), "other numbers of rows": milliseconds(rows, 100)}
    report = {
        name: {"median": statistics.median(x), "mean": statistics.mean(x), "most": max(x)} for name, x in found.items()
    }
    for name, x in report.items():
        print(f"{name:24} median {x['median']:.2f} ms, mean {x['mean']:.2f}, most {x['most']:.1f}")
    if options.json:
        options.json.write_text(json.dumps({"milliseconds": report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
