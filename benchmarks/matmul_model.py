"""What the model of tw.matmul is made of: the time of a step of K of each configuration, on one GPU.

    python -m benchmarks.matmul_model [--only TYPE ...] [--json FILE]

Each multiprocessor gets the same number of tiles (as many as it holds, or fewer), for a short and a long K: the
difference is steps, and what the short K took beside its steps is the overhead. Random normal data (integers:
uniform), candidates in random order.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import interleaved, machine

import tilewright as tw
from tilewright.kernels._multistage_kernel import matmul_tiles
from tilewright.kernels.model import Machine
from tilewright.kernels.multistage import Multistage, _blocks, _resident
from tilewright.kernels.multistage_plan import plan_for
from tilewright.kernels.problem import Operand, Problem
from tilewright.runtime import driver

SHORT, LONG = 1024, 5120
TYPES = {
    tw.bfloat16: (torch.bfloat16, torch.bfloat16, tw.float32),
    tw.tfloat32: (torch.float32, torch.float32, tw.float32),
    tw.float32: (torch.float32, torch.float32, tw.float32),
    tw.float64: (torch.float64, torch.float64, tw.float64),
    tw.int8: (torch.int8, torch.int32, tw.int32),
    tw.float8_e4m3fn: (torch.float8_e4m3fn, torch.bfloat16, tw.float32),
}


def random_matrix(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a random matrix on the GPU."""
    if dtype is torch.int8:
        return torch.randint(-128, 128, (rows, columns), dtype=dtype, device="cuda")
    return torch.randn(rows, columns, device="cuda").to(dtype)


def problem_of(compute: tw.DType, m: int, n: int, k: int) -> Problem:
    """Return the problem of aligned matrices with K contiguous in both."""
    stored, out, accumulator = TYPES[compute]
    name = str(stored).removeprefix("torch.")
    operand = Operand(tw.dtype(name), "K", 16)
    return Problem(m, n, k, 1, operand, operand, Operand(tw.dtype(str(out)[6:]), "MN", 16), compute, accumulator)


def measure(compute: tw.DType) -> dict[str, Any]:
    """Return the step and overhead of each legal configuration, in microseconds, by tiles a multiprocessor."""
    properties = driver.device_properties()
    arch, processors = properties.arch, properties.multiprocessors
    stored, out, accumulator = TYPES[compute]
    runs: dict[tuple[str, int, int], Callable[[], None]] = {}
    for candidate in Multistage().candidates(problem_of(compute, 8192, 8192, LONG), Machine.of(arch)):
        if candidate.rejection:
            continue
        configuration = candidate.configuration
        depth = configuration.tile[2]
        m, n, k = (LONG // extent * extent for extent in configuration.tile)
        whole = problem_of(compute, m, n, k)
        blocks, asked = _resident(whole, configuration, candidate.resources, arch), _blocks(whole, configuration, arch)
        for held in range(1, blocks + 1):
            for k in (SHORT // depth * depth, LONG // depth * depth):
                across = 12 if processors % 12 == 0 else 1
                m, n = across * configuration.tile[0], processors // across * held * configuration.tile[1]
                plan = plan_for(problem_of(compute, m, n, k), configuration, arch)
                a, b = random_matrix(m, k, stored), random_matrix(n, k, stored)
                d = torch.empty(m, n, dtype=out, device="cuda")
                views = [x.unsqueeze(-1) for x in (d, a, b)]
                one, none = accumulator.numpy.type(1), accumulator.numpy.type(0)
                launcher = matmul_tiles.numbered(0).configure(min_blocks=asked)[processors * held, plan.threads]
                runs[str(configuration), held, k] = (
                    lambda launcher=launcher, views=views, plan=plan, one=one, none=none: launcher(
                        *views, one, none, plan
                    )
                )
    times = interleaved(runs, rounds=5, batch_seconds=0.01)  # type: ignore[arg-type]
    found: dict[str, Any] = {}
    for (name, held, k), time in times.items():  # type: ignore[misc]
        found.setdefault(name, {}).setdefault(str(held), {})[str(k)] = time["seconds"] * 1e6
    for name, by_held in found.items():
        depth = int(name.split(",")[0].split("x")[2])
        for held, took in by_held.items():
            short, long = SHORT // depth, LONG // depth
            step = (took[str(long * depth)] - took[str(short * depth)]) / (long - short)
            overhead = took[str(short * depth)] - short * step
            by_held[held] = {"step_us": step, "overhead_us": overhead}
            print(f"{compute!s:14} {name:40} {held} tiles  {step:7.4f} us a step, {overhead:6.2f} us more", flush=True)
    return found


def main() -> None:
    """Measure everything and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", help="element types; all without it")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    for compute in TYPES:
        if not options.only or str(compute) in options.only:
            results[str(compute)] = measure(compute)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
