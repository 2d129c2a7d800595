"""Packed weights by warpgroups: every configuration against the definition, and what its machine code looks like."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.helpers.machine_code import reads_under_way
from tests.unit.kernels.test_quantized import random_weights, whole
from tests.unit.kernels.test_weight_resources import arguments, problem_of

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels import dispatch
from tilewright.kernels import matmul as entry
from tilewright.kernels._weights_warpgroup_kernel import multiply_weights_by_warpgroups
from tilewright.kernels.choice import all_candidates, fastest
from tilewright.kernels.model import Machine
from tilewright.kernels.problem import Operand, Problem
from tilewright.kernels.weight_warpgroups import WarpgroupConfiguration, WeightWarpgroups, warpgroup_plan
from tilewright.runtime import libraries
from tilewright.runtime.disassemble import disassemble

BF16 = ml_dtypes.bfloat16
SM90A = Arch.parse("sm_90a")


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that multiplies by a configuration (rows, columns, splits) of the family, in two blocks."""

    def run(x: Any, weights: Any, rows: int, columns: int, splits: int = 1, **arguments: Any) -> Any:
        explained = tw.matmul.explain(x, weights, arch="sm_90a", **arguments)
        legal = [c for c in explained.candidates if c.rejection is None]
        of_family = [c for c in legal if c.family.name == "weight warpgroups"]
        chosen = [
            c for c in of_family if (*c.configuration.tile[:2], c.configuration.splits) == (rows, columns, splits)
        ]
        assert len(chosen) == 1, [str(c.configuration) for c in of_family]
        few = replace(chosen[0], configuration=replace(chosen[0].configuration, blocks=2))
        monkeypatch.setattr(dispatch, "fastest", lambda *_: few)
        entry._signature.cache_clear()
        try:
            return tw.matmul(x, weights, **arguments)
        finally:
            entry._signature.cache_clear()

    return run


# Bits, group, M, N, K, type of x, zeros; rows and columns of a tile, blocks that share K; type of the result.
CASES = [
    (4, 128, 9, 72, 264, BF16, "each", 16, 128, 1, None),  # three chunks, of which an iteration takes two; TMA stores
    (8, 32, 3, 150, 140, np.float16, "one", 8, 256, 1, np.float32),  # groups in a chunk; two times 64 columns
    (4, 64, 5, 40, 100, np.float16, "none", 8, 64, 1, np.float32),  # consumers that share K
    (4, 128, 5, 40, 1100, np.float16, "each", 8, 128, 2, np.float32),  # two blocks that share K
    (8, 128, 30, 100, 1100, BF16, "each", 32, 64, 1, None),
    (8, 64, 33, 70, 300, BF16, "each", 64, 128, 1, np.float32),
    (4, 256, 70, 130, 700, BF16, "each", 128, 128, 1, None),
    (4, -1, 40, 300, 260, np.float16, "none", 64, 256, 1, None),
    (8, -1, 20, 40, 4200, BF16, "one", 32, 128, 8, np.float32),
    (4, 32, 130, 260, 140, BF16, "each", 128, 128, 1, None),  # several tiles along both modes
    (4, 128, 8, 700, 128, BF16, "each", 8, 128, 1, None),  # three tiles a block, each shorter than the ring
    (4, 128, 8, 300, 600, BF16, "none", 8, 64, 1, None),
    (8, 128, 8, 1100, 100, np.float16, "none", 8, 256, 1, None),
    (4, 128, 100, 72, 1032, BF16, "each", 128, 128, 2, None),  # two blocks add up the sums of 64 rows each
    (8, 128, 70, 40, 2056, np.float16, "one", 128, 128, 4, None),  # two of four blocks
    (4, 128, 50, 72, 1032, BF16, "each", 64, 128, 2, None),  # two blocks add up the sums of 32 rows each
    (4, 32, 20, 136, 1032, np.float16, "none", 32, 128, 2, np.float32),  # of 16 rows
    (8, 64, 13, 40, 4100, BF16, "each", 16, 256, 8, np.float32),  # sums that wait in stages of the weights
    (4, 128, 8, 40, 3500, BF16, "none", 8, 128, 1, None),  # more iterations than stages: each is filled again
]


@pytest.mark.parametrize("case", [pytest.param(n, marks=[pytest.mark.slow] * (n > 2)) for n in range(len(CASES))])
@pytest.mark.spread(3)
def test_products(compute: Any, case: int) -> None:
    bits, group, m, n, k, dtype, zeros, rows, columns, splits, out = CASES[case]
    codes, scales, zero, full = random_weights(case, k, n, bits, group, signed=False, zeros=zeros, scale=np.float16)
    weights, x = tw.quantized(codes, scales, zero, bits=bits, group=group), whole(case, (m, k), dtype)
    found = compute(x, weights, rows, columns, splits, out_dtype=out and tw.float32)
    assert np.array_equal(found, (x.astype(np.float64) @ full).astype(out or dtype))


@pytest.mark.slow
def test_arguments_of_a_product_of_matrices_are_taken(compute: Any) -> None:
    codes, scales, zero, full = random_weights(0, 96, 24, 4, 32, signed=False, zeros="each", scale=np.float16)
    weights, x = tw.quantized(codes, scales, zero, group=32), whole(1, (2, 3, 96), np.float16)
    c, bias, gain = (whole(i, s, np.float32) for i, s in enumerate([(2, 3, 24), (24,), (3, 1)]))
    found = compute(
        x.swapaxes(0, 1).copy().swapaxes(0, 1), weights, 8, 128, alpha=2, beta=3, c=c, bias=bias,
        epilogue=lambda acc: acc * gain, out_dtype=tw.float32,
    )  # fmt: skip
    assert np.array_equal(found, (2 * (x.astype(np.float64) @ full) + 3 * c + bias) * gain)


def test_a_group_that_is_infinite_meets_no_zeros_of_padding(compute: Any) -> None:
    """An iteration takes 256 of K: of 384 the last 128 are zeros, which no scale multiplies."""
    codes, scales = np.full((384, 3), 5, np.uint8), np.array([[1, 1, 1], [np.inf, 1, 2]], np.float16)
    found = compute(np.ones((2, 384), np.float16), tw.quantized(codes, scales, group=256), 8, 128, out_dtype=tw.float32)
    assert np.array_equal(found, np.tile([np.inf, 1920.0, 2560.0], (2, 1)))


# Type of x, group, zeros, type of the scales, and the rounding of a weight.
ROUNDED = [
    (BF16, 128, "each", BF16, 2.0**-8),
    (np.float16, 256, "none", np.float32, 2.0**-11),
    (BF16, -1, "one", np.float16, 2.0**-8),
    (np.float16, 64, "none", np.float16, 2.0**-11),  # two groups in a chunk
]


@pytest.mark.parametrize("case", [pytest.param(n, marks=[pytest.mark.slow] * (n > 0)) for n in range(len(ROUNDED))])
def test_weights_are_rounded_once_if_that_is_asked_for(compute: Any, case: int) -> None:
    """A tile or two of more than 128 rows, and more chunks than an iteration has, of which the last are padding."""
    dtype, group, zeros, scale, rounding = ROUNDED[case]
    m, n, k, random = 140 + 120 * case, 24, 650, np.random.default_rng(case)
    of_groups = (-(-k // group) if group > 0 else 1, n)
    codes, scales = random.integers(0, 16, (k, n), np.uint8), random.uniform(0.5, 1, of_groups).astype(scale)
    zero = {"each": random.integers(0, 17, of_groups), "one": np.full(of_groups, 7), "none": None}[zeros]
    weights = tw.quantized(codes, scales, zero, group=group)
    x, full = random.standard_normal((m, k)).astype(dtype), weights.dequantised().astype(np.float64)
    found = compute(x, weights, 256, 128, precision="rounded", out_dtype=tw.float32)
    wide, sums = x.astype(np.float64), np.abs(x.astype(np.float64)) @ np.abs(full)
    assert (np.abs(found - wide @ full.astype(dtype).astype(np.float64)) <= k * 2.0**-24 * sums).all()
    assert (np.abs(found - wide @ full) <= (rounding + k * 2.0**-24) * sums).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("m", [8, 16, 32, 64, 128])
def test_stages_hold_what_blocks_send_each_other(m: int, bits: int) -> None:
    """A tile's sums leave from there, or those of a half do and as many come; also of wide tiles with few stages."""
    problem = problem_of(tw.bfloat16, bits, 32, m, 1000)
    wide = replace(problem, weights=replace(problem.weights, scale=tw.float32))
    plans = [warpgroup_plan(one, c) for one in (problem, wide) for c in configurations(one)]
    rooms = [(tw.size(p.smem_x) * 2, tw.size(p.smem_w) * 4)[p.lender] for p in plans if p.peers > 1]
    sizes = [plan.columns * plan.tokens * 4 for plan in plans if plan.peers > 1]
    assert len(sizes) >= 2 and all(room >= sums for room, sums in zip(rooms, sizes, strict=True)), (rooms, sizes)
    assert any(plan.lends for plan in plans) == (m >= 32)
    assert all(plan.lender == 0 for plan in plans if plan.lends)
    assert any(plan.lender == 1 for plan in plans) == (m in (16, 32, 64) and bits == 8)


def test_consumers_that_share_k_have_two_stages_each() -> None:
    """They wait for their next stage before they give one back: of one each, as in 64 x 64 of bytes, nothing comes."""
    x, codes, rows = np.ones((40, 256), BF16), np.ones((256, 64), np.uint8), np.ones((2, 64), BF16)
    weights = tw.quantized(codes, rows, np.arange(128).reshape(2, 64), bits=8, group=128)
    found = tw.matmul.explain(x, weights, arch="sm_90a").candidates
    of_family = [c.configuration for c in found if c.family.name == "weight warpgroups" and c.rejection is None]
    assert of_family and all(c.stages >= 2 * c.shares for c in of_family), list(map(str, of_family))


def test_only_many_rows_of_4_bits_are_rounded() -> None:
    """Fewer rows, bytes and small groups take the kernels and plans that they take without."""

    def tiles(m: int, bits: int = 4, group: int = 128, precision: str | None = "rounded") -> tuple[Any, set[int]]:
        weights = tw.quantized(
            np.zeros((512, 4096), np.uint8), np.ones((512 // group, 4096), BF16), bits=bits, group=group
        )
        found = tw.matmul.explain(tw.spec(tw.bfloat16, (m, 512)), weights, precision=precision, arch="sm_90a")
        assert found.choice is not None and ("weights may be rounded" in str(found)) == (precision is not None)
        return found.choice.configuration, {c.configuration.tile[0] for c in found.candidates if c.rejection is None}

    chosen, rows = tiles(4096)
    assert chosen.tile[:2] == (256, 128) and 256 in rows
    for others in ((4096, 8), (4096, 4, 32), (128,)):
        assert 256 not in tiles(*others)[1], others
    assert 256 not in tiles(4096, precision=None)[1]
    problem = problem_of(tw.bfloat16, 4, 128, 128)
    for one in configurations(problem):
        assert warpgroup_plan(problem, one) == warpgroup_plan(replace(problem, sums_stay=True), one), str(one)


# --- machine code ----------------------------------------------------------------------------------------------------


def compiled(dtype: tw.DType, bits: int, group: int, rows: int, columns: int, splits: int) -> Any:
    d = Operand(dtype, "MN", 16)
    problem = replace(problem_of(dtype, bits, group, rows, n=1024), d=d, sums_stay=rows == 256)
    configuration = next(c for c in configurations(problem) if (*c.tile[:2], c.splits) == (rows, columns, splits))
    plan, kernel = warpgroup_plan(problem, configuration), multiply_weights_by_warpgroups.numbered(2)
    kernel = kernel.configure(min_blocks=1, cluster=splits, dependent_launch=plan.begins_early)
    d, x, packed, beside = arguments(problem)
    one = np.float32(1)
    return kernel.lower(d, x, packed, one, one, plan, *beside, arch="sm_90a", block=plan.threads).module


def configurations(problem: Problem) -> list[WarpgroupConfiguration]:
    family = WeightWarpgroups()
    found = [c for c in family.configurations(problem, SM90A) if isinstance(c, WarpgroupConfiguration)]
    return [c for c in found if family.resources(problem, c, SM90A).rejection is None]


MACHINE_CODE = [
    (tw.bfloat16, 4, 128, 128, 128, 2), (tw.bfloat16, 4, 128, 128, 128, 1), (tw.bfloat16, 4, 128, 64, 128, 2),
    (tw.bfloat16, 4, 128, 8, 64, 1), (tw.float16, 4, 32, 64, 256, 1), (tw.bfloat16, 8, 64, 16, 256, 4),
    (tw.float16, 8, 128, 128, 128, 2), (tw.bfloat16, 8, 256, 8, 128, 1), (tw.bfloat16, 4, 128, 256, 128, 1),
    (tw.bfloat16, 4, 128, 32, 128, 2),
]  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(n, marks=[pytest.mark.slow] * (n > 0)) for n in range(len(MACHINE_CODE))]
)
def test_conversions_run_under_products(case: int, tmp_path: Path) -> None:
    """Nothing spills, no product waits for another, and operand A of an item is made before the wait for the last."""
    dtype, bits, group, rows, _, splits = MACHINE_CODE[case]
    module = compiled(*MACHINE_CODE[case])
    assert not module.resources.spills and not module.resources.local_bytes, module.resources
    assert not re.search(r"C75\d\d", module.log), module.log
    if libraries.find_program("nvdisasm") is None:
        pytest.skip("needs nvdisasm")
    assert set(reads_under_way(module.cubin, tmp_path)) == {0}  # when a stage is given back
    code = disassemble(module.cubin)
    assert ("ACQBULK" in code) == (rows <= 64 or splits == 2)  # such blocks begin early, and wait for the launch before
    found = re.findall(r"HGMMA|WARPGROUP\.DEPBAR|HADD2\.BF16_V2|HFMA2|HADD2", code)
    if (dtype, bits, group) != (tw.bfloat16, 4, 128):
        return
    text = "".join({"HGMMA": "p", "WARPGROUP.DEPBAR": "w"}.get(word, "c") for word in found)
    # Before each wait an item has been converted, 32 registers, beside the first one before the loop.
    waits = text.split("w")[:-1]
    assert len(waits) >= 2 and "p" in waits[0], text
    assert all(part.count("c") >= (32 if n else 64) for n, part in enumerate(waits)), text
    if rows == 256:  # rounded weights wait for their item as others do
        assert set(re.findall(r"DEPBAR\.LE gsb0, (\w+)", code)) == {"0x0"}


def test_one_row_is_streamed_by_two_blocks_of_a_multiprocessor() -> None:
    """Memory decides; what a block does before and behind it is hidden by the other one."""
    problem, machine = problem_of(tw.bfloat16, 4, 128, 1, 8192, 8192), Machine.of(SM90A)
    chosen = fastest(problem, machine, all_candidates(problem, machine))
    assert (chosen.family.name, chosen.configuration.tile[:2]) == ("weight streaming", (8, 32))


@pytest.mark.parametrize("bits", [4, 8])
def test_the_choice(bits: int) -> None:
    """On Hopper warpgroups from 16 rows on; no other target has them."""
    for arch, rows in (("sm_90a", (16, 64, 100, 5000)), ("sm_80", (16, 5000))):
        machine = Machine.of(Arch.parse(arch))
        for m in rows:
            problem = problem_of(tw.bfloat16, bits, 128, m, 8192, 8192)
            chosen = fastest(problem, machine, all_candidates(problem, machine))
            assert (chosen.family.name == "weight warpgroups") == (arch == "sm_90a"), (
                arch,
                m,
                str(chosen.configuration),
            )


# Rows of x, K, and the fastest of what was measured on an H200 with 8192 columns: rows, columns, blocks that share K.
FASTEST = [
    (8, 8192, (8, 64, 1)), (16, 8192, (16, 64, 1)), (32, 8192, (32, 128, 2)), (64, 8192, (64, 128, 2)),
    (64, 4096, (64, 128, 2)), (128, 8192, (128, 128, 2)), (128, 4096, (128, 128, 2)), (4096, 8192, (128, 128, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("m", "k", "tile"), FASTEST)
def test_what_was_fastest_is_chosen(m: int, k: int, tile: tuple[int, int, int]) -> None:
    problem, machine = problem_of(tw.bfloat16, 4, 128, m, 8192, k), Machine.of(SM90A)
    chosen = fastest(problem, machine, all_candidates(problem, machine)).configuration
    assert (*chosen.tile[:2], chosen.splits) == tile, str(chosen)


@pytest.mark.parametrize("residue", [pytest.param(n, marks=[pytest.mark.slow] * (n != 5)) for n in range(8)])
def test_what_lies_behind_rows_stays(compute: Any, residue: int) -> None:
    """Rows that end at 16 bytes leave by TMA, which writes whole 16 bytes at their ends; others leave by threads."""
    m, n, k, rows = 9, 64 + residue, 264, 16
    codes, scales, zero, full = random_weights(residue, k, n, 4, 128, signed=False, zeros="each", scale=np.float16)
    weights, x = tw.quantized(codes, scales, zero, bits=4, group=128), whole(residue, (m, k), BF16)
    memory = np.full((m, 80), 77, BF16)
    compute(x, weights, rows, 128, out=memory[:, :n])
    assert np.array_equal(memory[:, :n], (x.astype(np.float64) @ full).astype(BF16))
    assert (memory[:, n:] == 77).all()
