"""No configuration of the families for packed weights spills registers, and shared memory is read without conflicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels._weights_kernel import multiply_weights, stream_weights
from tilewright.kernels.problem import Configuration, Operand, Problem
from tilewright.kernels.weight_streaming import WeightStreaming, stream_plan
from tilewright.kernels.weight_tiles import WeightTiles, tile_plan
from tilewright.kernels.weights import WeightFormat

# With groups of 32 a step has four groups, and their sums are one too many for some tiles: bytes of a thread that are
# spilled there, by NVRTC 13. Smaller tiles would read the weights more often.
SPILLED = {("sm_80", (64, 64, 256)): 44, ("sm_80", (128, 64, 128)): 24, ("sm_90a", (32, 64, 512)): 12}
FAMILIES = {"streaming": WeightStreaming(), "tiles": WeightTiles()}
ARCHES = ("sm_80", "sm_90a")


def problem_of(dtype: tw.DType, bits: int, group: int, m: int = 16, n: int = 8190, k: int = 8184) -> Problem:
    weights = WeightFormat(bits, k, n, group, tw.float16, None)
    x, packed, d = Operand(dtype, "K", 16), Operand(tw.int32, "K", 16), Operand(dtype, "MN", 4)
    return Problem(m, n, k, 1, x, packed, d, dtype, tw.float32, weights=weights)


def arguments(problem: Problem) -> list[Any]:
    f = problem.weights
    assert f is not None
    d = tw.spec(problem.d.dtype, (problem.m, problem.n, 1), stride=(problem.n, 1, 0))
    x = tw.spec(problem.a.dtype, (problem.m, problem.k, 1), stride=(problem.k, 1, 0))
    beside = [tw.spec(t, (f.tiles, f.groups, 16)) for t in (f.scale, tw.uint8 if f.bits == 4 else tw.int16)]
    return [d, x, tw.spec(tw.int32, (f.tiles, f.chunks, f.words)), beside]


def cases() -> list[tuple[str, str, tw.DType, int, int, int, Configuration]]:
    found = []
    for dtype, bits, group in ((tw.bfloat16, 4, 128), (tw.float16, 4, 32), (tw.bfloat16, 8, 64), (tw.float16, 8, 128)):
        for name, family in FAMILIES.items():
            for m in (8, 16) if name == "streaming" else (4000,):
                problem = problem_of(dtype, bits, group, m)
                for arch in ARCHES:
                    for configuration in family.configurations(problem, Arch.parse(arch)):
                        if family.resources(problem, configuration, Arch.parse(arch)).rejection is None:
                            found.append((arch, name, dtype, bits, group, m, configuration))
    return found


@pytest.mark.slow  # compiles each configuration: two minutes
@pytest.mark.parametrize(("arch", "name", "dtype", "bits", "group", "m", "configuration"), cases(), ids=str)
def test_nothing_spills(
    arch: str, name: str, dtype: tw.DType, bits: int, group: int, m: int, configuration: Configuration
) -> None:
    problem = problem_of(dtype, bits, group, m)
    d, x, packed, beside = arguments(problem)
    one = np.float32(1)
    if name == "streaming":
        kernel, plan = stream_weights, stream_plan(problem, configuration, Arch.parse(arch))
    else:
        kernel, plan = multiply_weights, tile_plan(problem, configuration)
    launcher = kernel.numbered(2).configure(min_blocks=1)[1, plan.threads]
    resources = launcher.resources(d, x, packed, one, one, plan, *beside, arch=arch)
    most = SPILLED.get((arch, configuration.tile), 0) if (name, group) == ("tiles", 32) else 0
    assert max(resources.spill_stores, resources.spill_loads, resources.local_bytes) <= most, resources


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_kernel_compiles_without_spills(name: str) -> None:
    """One configuration of each family in the suite; the slow tests compile all."""
    chosen = next(case for case in cases() if case[1] == name and case[0] == "sm_90a")
    test_nothing_spills(*chosen)
