"""Recipes: what a warp computes by each, who holds what, and that compilers take the instructions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest
from tests.helpers.compilers import has_nvrtc

import tilewright as tw
from tilewright.arch import Arch
from tilewright.dtypes import FLOAT8_AMD, DType
from tilewright.errors import ScheduleError
from tilewright.runtime.clang import find_clang
from tilewright.schedule.mma_shapes import MMAShape
from tilewright.schedule.recipes import Factors, Recipe, factors_of, find_recipe, offers, recipe_for

ARCHES = ("sm_70", "sm_75", "sm_80", "sm_90a", "gfx908", "gfx90a", "gfx942")
TYPES = [
    (tw.float16, tw.float32), (tw.float16, tw.float16), (tw.bfloat16, tw.float32), (tw.tfloat32, tw.float32),
    (tw.float32, tw.float32), (tw.float64, tw.float64), (tw.int8, tw.int32), (tw.uint8, tw.int32),
    *((pair, tw.float32) for pair in itertools.product(FLOAT8_AMD, repeat=2)),
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One shape on one target."""

    target: str
    shape: MMAShape
    given: Factors
    sums: DType

    @property
    def arch(self) -> Arch:
        return Arch.parse(self.target)

    @cached_property
    def recipe(self) -> Recipe:
        return recipe_for(self.arch, self.shape, self.given, self.sums)

    @property
    def sides(self) -> tuple[int, int, int]:
        """The rows of the instruction's A, of its B, and K."""
        m, n = (self.shape.n, self.shape.m) if self.recipe.transposed else (self.shape.m, self.shape.n)
        return m, n, self.shape.k

    def __str__(self) -> str:
        return f"{self.target}-{self.shape.name}-{'-'.join(map(str, factors_of(self.given)))}-{self.sums}"


CASES = [
    Case(target, shape, given, sums)
    for target in ARCHES
    for shape in MMAShape
    for given, sums in TYPES
    if not shape.is_of_warpgroup and find_recipe(Arch.parse(target), shape, given, sums) is not None
]
each = pytest.mark.parametrize("case", CASES, ids=str)


@tw.kernel
def multiply(C, A, B, mmas: tw.constexpr):
    """C += A B^T: each TiledMMA adds to the elements of C that are its own."""
    for mma in mmas:
        thread = mma.get_slice(tw.thread_idx.x)
        a, b, c = thread.partition_A(A), thread.partition_B(B), thread.partition_C(C)
        ra, rb, rc = thread.make_fragment_A(a), thread.make_fragment_B(b), thread.make_fragment_C(c)
        tw.copy(a, ra)
        tw.copy(b, rb)
        tw.copy(c, rc)
        tw.gemm(mma, rc, ra, rb, rc)
        tw.copy(rc, c)


@tw.kernel
def owners(counts, held, values, mma: tw.constexpr, operand: tw.constexpr):
    """Count how many lanes hold each element of a tile, and how many elements each lane holds."""
    thread = mma.get_slice(tw.thread_idx.x)
    part = {"A": thread.partition_A, "B": thread.partition_B, "C": thread.partition_C}[operand](values)
    held[tw.thread_idx.x] = part.size
    for e in tw.static_range(part.size):
        tw.atomic_add(counts, part[e], 1)


def numbers(dtype: DType, *shape: int) -> np.ndarray:
    """Return small whole numbers: sums of their products are exact in every type of sums."""
    random = np.random.default_rng(sum(shape))
    return random.integers(0 if dtype is tw.uint8 else -2, 3, shape).astype(dtype.storage.numpy)


def arguments(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns, depth = case.sides
    c = np.random.default_rng(1).integers(-9, 10, (rows, columns)).astype(case.sums.numpy)
    a, b = factors_of(case.given)
    return c, numbers(a, rows, depth), numbers(b, columns, depth)


# --- what they compute -----------------------------------------------------------------------------------------------


@each
@pytest.mark.spread(6)
def test_a_warp_multiplies(case: Case) -> None:
    c, a, b = arguments(case)
    expected = a.astype(np.float64).astype(np.int64) @ b.astype(np.float64).astype(np.int64).T + c.astype(np.int64)
    kernel = multiply.configure(arch=case.target)
    kernel[1, case.arch.warp_size](*map(tw.static, (c, a, b)), case.recipe.mmas)
    np.testing.assert_array_equal(c.astype(np.int64), expected)


@each
@pytest.mark.spread(6)
def test_blocks_share_out_the_elements_of_c(case: Case) -> None:
    rows, columns, _ = case.sides
    total = np.zeros((rows, columns), np.int64)
    for mma in case.recipe.mmas:
        counts, held = lanes(case, mma, "C", (rows, columns))
        assert held == rows * columns // case.shape.num_blocks // case.arch.warp_size
        total += counts
    np.testing.assert_array_equal(total, 1)


@each
@pytest.mark.spread(6)
def test_lanes_hold_what_the_manuals_say(case: Case) -> None:
    """Each element of A and B is held once; each quad pair of sm_70 holds the eight rows that it multiplies.

    Source: PTX ISA, "Matrix multiply-accumulate operation using mma instruction"; AMD CDNA, "Matrix Fused Multiply-Add".
    """
    rows, columns, depth = case.sides
    for operand, extent in (("A", rows), ("B", columns)):
        copies = 4 * 8 // extent if case.target == "sm_70" else 1
        for mma in case.recipe.mmas:
            counts, held = lanes(case, mma, operand, (extent, depth))
            np.testing.assert_array_equal(counts, copies)
            assert held == extent * depth * copies // case.arch.warp_size


def lanes(case: Case, mma: tw.TiledMMA, operand: str, extents: tuple[int, int]) -> tuple[np.ndarray, int]:
    """Return how many lanes hold each element of a tile, and how many elements a lane holds."""
    positions = np.arange(extents[0] * extents[1], dtype=np.int32).reshape(extents)
    counts, held = np.zeros(positions.size, np.int32), np.zeros(case.arch.warp_size, np.int32)
    kernel = owners.configure(arch=case.target)
    kernel[1, case.arch.warp_size](counts, held, tw.static(positions), mma, operand)
    assert len(set(held.tolist())) == 1
    return counts.reshape(extents), int(held[0])


# --- what compilers say ----------------------------------------------------------------------------------------------

# The instructions of one pass, by the name of the target and the types: how often, and which.
INSTRUCTIONS = {
    ("sm_75", "M16N16K16", "float16"): (4, "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"),
    ("sm_75", "M32N8K16", "int8"): (4, "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32"),
    ("sm_80", "M16N16K16", "bfloat16"): (2, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"),
    ("sm_80", "M8N32K16", "float16"): (2, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"),
    ("sm_80", "M16N16K8", "float32"): (2, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"),
    ("sm_90a", "M32N8K16", "uint8"): (2, "mma.sync.aligned.m16n8k16.row.col.s32.u8.u8.s32"),
    ("gfx908", "M16N16K4_B1", "float32"): (1, "__builtin_amdgcn_mfma_f32_16x16x4f32"),
    ("gfx908", "M64N64K2_B2", "bfloat16"): (2, "__builtin_amdgcn_mfma_f32_32x32x2bf16"),
    ("gfx90a", "M64N64K4_B4", "int8"): (4, "__builtin_amdgcn_mfma_i32_16x16x4i8"),
    ("gfx90a", "M32N32K8_B1", "bfloat16"): (1, "__builtin_amdgcn_mfma_f32_32x32x8bf16_1k"),
    ("gfx90a", "M16N16K4_B1", "float64"): (1, "__builtin_amdgcn_mfma_f64_16x16x4f64"),
    ("gfx942", "M16N16K32_B1", "int8"): (1, "__builtin_amdgcn_mfma_i32_16x16x32_i8"),
    ("gfx942", "M32N32K4_B1", "float32"): (1, "__builtin_amdgcn_mfma_f32_32x32x4_xf32"),
    ("gfx942", "M64N64K4_B2", "bfloat16"): (2, "__builtin_amdgcn_mfma_f32_32x32x4bf16_1k"),
    ("gfx942", "M16N16K32_B1", "float8_e4m3fnuz"): (1, "__builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8"),
    ("gfx90a", "M32N32K8_B1", "float16"): (1, "__builtin_amdgcn_mfma_f32_32x32x8f16"),
}


@pytest.mark.parametrize(("target", "shape", "given"), INSTRUCTIONS)
@pytest.mark.spread(4)
def test_compilers_take_the_instructions(target: str, shape: str, given: str) -> None:
    dtype = tw.dtype(given)
    case = Case(
        target, MMAShape[shape], dtype, (dtype if given == "float64" else tw.float32) if dtype.is_float else tw.int32
    )
    if find_clang(target) is None if case.arch.is_amd else not has_nvrtc():
        pytest.skip("needs clang" if case.arch.is_amd else "needs NVRTC")
    launcher = multiply.configure(arch=target)[1, case.arch.warp_size]
    given_arguments = (*map(tw.static, arguments(case)), case.recipe.mmas)
    assert launcher.resources(*given_arguments).registers > 0
    count, instruction = INSTRUCTIONS[target, shape, given]
    text = launcher.lower(*given_arguments).source.text if case.arch.is_amd else launcher.ptx(*given_arguments)
    assert text.count(instruction) == count


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ARCHES)
def test_what_is_not_found_is_refused(target: str) -> None:
    arch = Arch.parse(target)
    for shape in MMAShape:
        if shape.is_of_warpgroup and shape.n not in (8, 96, 256):  # the others differ by N alone
            continue
        for given, sums in [*TYPES, (tw.float16, tw.int32), (tw.int8, tw.float32)]:
            if find_recipe(arch, shape, given, sums) is not None:
                continue
            with pytest.raises(ScheduleError) as caught:
                recipe_for(arch, shape, given, sums)
            names = " and ".join(dict.fromkeys(map(str, factors_of(given))))
            assert str(caught.value).startswith(f"{target} has no {shape.name} of {names} with {sums} accumulators")


@pytest.mark.parametrize("target", ARCHES)
def test_what_a_target_has_is_looked_up_once(target: str) -> None:
    """All shapes by all types are more recipes than are kept: each refusal would make them anew."""
    arch = Arch.parse(target)
    text = offers(arch)
    before = find_recipe.cache_info()
    assert offers(arch) == text
    assert find_recipe.cache_info() == before
