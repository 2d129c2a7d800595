"""The family of float32 in parts on Hopper: what it proposes, that each compiles well, and what is chosen."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

import tilewright as tw
from tilewright.arch import ARCHES, Arch
from tilewright.kernels._hopper_parts_kernel import cut_tiles, matmul_parts
from tilewright.kernels.choice import all_candidates, fastest
from tilewright.kernels.hopper_parts import CutPlan, HopperParts, parts_plan
from tilewright.kernels.hopper_plan import THREADS, HopperConfiguration
from tilewright.kernels.model import Machine
from tilewright.kernels.precision import PARTS
from tilewright.kernels.problem import Operand, Problem

H200 = Machine.of(Arch.parse("sm_90a"))


def problem_of(name: str, m: int, n: int, k: int, batch: int = 1, *, adds: bool = False) -> Problem:
    matrix, parts = Operand(tw.float32, "K", 16), PARTS[name]
    d, c = Operand(tw.float32, "MN", 16), tw.float32 if adds else None
    return Problem(m, n, k, batch, matrix, matrix, d, parts.part, tw.float32, c=c, parts=parts)


def matrix(rows: int, columns: int, dtype: tw.DType, matrices: int = 1) -> object:
    return tw.spec(dtype, (rows, columns, matrices), stride=(4096, 1, 0 if matrices == 1 else 4096 * rows))


def configurations() -> Iterator[object]:
    """Yield every configuration of every precision; all but the first with tf32 are slow."""
    for name in PARTS:
        for adds in (True, False):
            for c in HopperParts().candidates(problem_of(name, 4093, 4096, 4091, adds=adds), H200):
                first = (name, c.configuration.tile, adds) == ("tf32x3", (128, 128, 32), True)
                words = f"{name}, {c.configuration}{', with C' * adds}"
                yield pytest.param(name, adds, c.configuration, id=words, marks=() if first else pytest.mark.slow)


@pytest.mark.parametrize(("name", "adds", "configuration"), list(configurations()))
def test_nothing_spills(name: str, adds: bool, configuration: HopperConfiguration) -> None:
    """Neither do products wait for each other, which ptxas would tell."""
    problem = problem_of(name, 4093, 4096, 4091, adds=adds)
    plan, parts = parts_plan(problem, configuration, H200.arch), PARTS[name]
    kernel = matmul_parts.numbered(int(adds)).configure(min_blocks=1)
    if configuration.cluster > 1:
        kernel = kernel.configure(cluster=configuration.cluster)
    d, one = matrix(4093, 4096, tw.float32), tw.float32.numpy.type(1)
    whole = matrix(4093, 4091, tw.float32), matrix(4096, 4091, tw.float32)
    cut = (matrix(rows, 4091, parts.part.storage, parts.count) for rows in (4093, 4096))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = kernel[132, THREADS].resources(d, *whole, *cut, one, one, plan, *[d] * adds, arch="sm_90a")
    assert not found.spills and found.local_bytes == 0, found


def test_cutting_reads_and_writes_16_bytes_at_once() -> None:
    target, source = matrix(4096, 4096, tw.bfloat16, 3), matrix(4093, 4092, tw.float32)
    launcher, plan = cut_tiles[(64, 64, 1), 256], CutPlan(PARTS["bf16x9"], 16)
    assert not launcher.resources(target, source, plan, arch="sm_90a").spills
    machine_code = launcher.sass(target, source, plan, arch="sm_90a")
    assert "STG.E.128" in machine_code and "LDG.E.128" in machine_code


@pytest.mark.parametrize("name", PARTS)
def test_large_products_take_the_family_and_small_ones_do_not(name: str) -> None:
    for extents in ((2048,) * 3, (4096,) * 3, (8192,) * 3, (3000, 5000, 2000)):
        problem = problem_of(name, *extents)
        assert isinstance(fastest(problem, H200, all_candidates(problem, H200)).family, HopperParts), extents
    for extents in ((128,) * 3, (64, 64, 262144), (16, 4096, 4096)):
        problem = problem_of(name, *extents)
        assert fastest(problem, H200, all_candidates(problem, H200)).family.name == "multistage", extents


def test_the_family_is_for_its_target_and_its_precisions() -> None:
    problem = problem_of("tf32x3", 512, 512, 512)
    for arch in ARCHES:
        assert bool(HopperParts().candidates(problem, Machine.of(Arch.parse(arch)))) == (arch == "sm_90a")
    assert not HopperParts().candidates(problem_of("tf32x3", 512, 512, 0), H200)
    tf32 = Problem(512, 512, 512, 1, problem.a, problem.b, problem.d, tw.tfloat32, tw.float32)
    assert not HopperParts().candidates(tf32, H200)


def test_cutting_is_counted() -> None:
    found = HopperParts().candidates(problem_of("tf32x3", 4096, 4096, 4096), H200)[0].prediction
    bytes = 2 * 4096 * 4096 * (4 + 2 * 4)
    assert found is not None and bytes / H200.bandwidth < found.packing_us < 1.2 * bytes / H200.bandwidth
