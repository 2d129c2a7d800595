"""No configuration of matmul spills registers, aligned or with edges."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels._multistage_kernel import matmul_tiles
from tilewright.kernels.model import Machine
from tilewright.kernels.multistage import Multistage, _blocks
from tilewright.kernels.multistage_plan import plan_for
from tilewright.kernels.precision import PARTS
from tilewright.kernels.problem import Configuration, Operand, Problem
from tilewright.kernels.split_k import sums_problem

H200 = Arch.parse("sm_90a")
TYPES = {  # of A and B, of the instruction, of the accumulators, and of D and C
    "bfloat16": (tw.bfloat16, tw.bfloat16, tw.float32, tw.bfloat16),
    "tf32": (tw.float32, tw.tfloat32, tw.float32, tw.float32),
    "float32": (tw.float32, tw.float32, tw.float32, tw.float32),
    "float64": (tw.float64, tw.float64, tw.float64, tw.float64),
    "int8": (tw.int8, tw.int8, tw.int32, tw.int32),
    "float8": (tw.float8_e4m3fn, tw.float8_e4m3fn, tw.float32, tw.bfloat16),
    **{name: (tw.float32, parts.part, tw.float32, tw.float32) for name, parts in PARTS.items()},
}


def problem_of(name: str, extents: tuple[int, int, int], majors: str) -> Problem:
    stored, compute, accumulator, out = TYPES[name]
    a, b = (Operand(stored, "K" if major == "K" else "MN", 16) for major in majors)
    d = Operand(out, "MN", 16)
    return Problem(*extents, 1, a, b, d, compute, accumulator, c=out, parts=PARTS.get(name))


def cases() -> list[tuple[str, tuple[int, int, int], str, Configuration]]:
    """Return every configuration once, with the extents and majors that take the most registers of those legal."""
    found = []
    for name in TYPES:
        for extents in ((4093, 4095, 4091), (4096, 4096, 4096)):
            for candidate in Multistage().candidates(problem_of(name, extents, "KK"), Machine.of(H200)):
                done = any(x[0] == name and x[3] == candidate.configuration for x in found)
                if candidate.rejection is None and not done:
                    found.append((name, extents, "KK", candidate.configuration))
    for name in TYPES:
        extents = (125, 127, 40001)
        for candidate in Multistage().candidates(problem_of(name, extents, "KK"), Machine.of(H200)):
            configuration = candidate.configuration
            tiles = [x[3].tile for x in found if x[0] == name and x[3].splits > 1]
            if candidate.rejection is None and configuration.splits > 1 and configuration.tile not in tiles:
                found.append((name, extents, "KK", configuration))
    for name in ("bfloat16", "tf32", "float32", "float64", "tf32x3", "bf16x9"):
        for majors in ("MM", "KM"):
            problem = problem_of(name, (4093, 4095, 4091), majors)
            first = next(c for c in Multistage().candidates(problem, Machine.of(H200)) if c.rejection is None)
            found.append((name, (4093, 4095, 4091), majors, first.configuration))
    return found


@pytest.mark.slow  # compiles each configuration of the family: a minute
@pytest.mark.parametrize(("name", "extents", "majors", "configuration"), cases(), ids=str)
def test_nothing_spills(name: str, extents: tuple[int, int, int], majors: str, configuration: Configuration) -> None:
    problem = problem_of(name, extents, majors)
    stored, _, accumulator, out = TYPES[name]
    m, n, k = extents
    row = 4096 if k < 4096 else 40064

    def matrix(rows: int, columns: int, major: str, dtype: tw.DType, matrices: int = 1) -> object:
        strides = (row, 1, 0) if major == "K" else (1, row, 0)
        return tw.spec(dtype, (rows, columns, matrices), stride=(*strides[:2], 0 if matrices == 1 else rows * row))

    a, b = matrix(m, k, majors[0], stored), matrix(n, k, majors[1], stored)
    d = matrix(m, n, "K", out)
    further = [d]
    if configuration.splits > 1:
        d, problem, further = matrix(m, n, "K", accumulator, configuration.splits), sums_problem(problem), []
    plan = plan_for(problem, configuration, H200)
    one = accumulator.numpy.type(1)
    launcher = matmul_tiles.numbered(len(further)).configure(min_blocks=_blocks(problem, configuration, H200))[
        1, plan.threads
    ]
    resources = launcher.resources(d, a, b, one, one, plan, *further, arch="sm_90a")
    assert not resources.spills and resources.local_bytes == 0, resources
