"""Kernels of tensorized plans: what compilers and the model of shared memory say, and what is fused with products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.helpers.compilers import has_nvrtc, needs_nvrtc
from tests.helpers.products import FIRST, LAST, Product
from tests.helpers.slow import covering

import tilewright as tw
from tilewright.runtime.clang import find_clang
from tilewright.schedule.affine import Dimension
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location
from tilewright.schedule.mma_shapes import MMAFragmentOp, MMAShape
from tilewright.schedule.nest import Nest
from tilewright.schedule.schedule import fuse
from tilewright.schedule.targets import Target

needs_clang = pytest.mark.skipif(find_clang() is None, reason="needs clang")
# 128 x 256 for eight warps, three tiles of K under way, and fragments a step ahead.
FAST = Product(
    "sm_90a", output="float16", warps=(2, 4), tiles=(4, 4), steps=4, size=(2, 1, 3), shared=True, stages=3,
    fragments=True, keep=True, layouts=(FIRST, LAST, FIRST), prologue=(MMAFragmentOp.SET, 0.0),
)  # fmt: skip


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_fast_plan_keeps_to_its_registers(arch: str) -> None:
    kernel = replace(FAST, size=(32, 16, 64)).plan.build()
    assert not kernel.resources(arch).spills


def test_the_fast_plan_has_no_bank_conflicts() -> None:
    profile = FAST.plan.build().analyze()
    assert profile.shared_wavefronts == profile.shared_wavefronts_ideal > 0


def test_the_fast_plan_reads_ahead_across_turns() -> None:
    """The first fragments are read before the loop, those of the next iteration in its last step; copies are spread."""
    before, loop, inside = (
        FAST.plan.build().source().split("__global__")[1].partition("for (int i2 = 0; i2 < 192; i2 += 64)")
    )
    assert loop and "ldmatrix_x4(" in before
    steps = [part.count("cp_async_cg_16") for part in inside.partition("cp_async_wait<0>")[0].split("mma_m16n8k16")]
    assert steps == [1, 1, 1, 0, 0]
    assert inside.index("cp_async_wait<1>") > inside.index("mma_m16n8k16")


def test_the_fast_plan_multiplies() -> None:
    product = replace(FAST, output="float32")
    product.check()


@needs_clang
@pytest.mark.parametrize(
    ("target", "kind", "shared"),
    covering(["gfx908", "gfx90a"], [("M16N16K4_B1", "float32"), ("M64N64K4_B4", "float16")], [False, True]),
)
@pytest.mark.spread(2)
def test_clang_compiles_what_cdna_runs(target: str, kind: tuple[str, str], shared: bool) -> None:
    shape, dtype = kind
    product = Product(target, shape, dtype, passes=4, fused=2, keep=True, shared=shared, size=(2, 2, 4))
    assert product.plan.build().resources().registers > 0


@pytest.mark.skipif(find_clang("gfx942") is None, reason="needs clang 17 or later")
@pytest.mark.parametrize("shape", ["M16N16K32_B1", "M32N32K16_B1"])
def test_clang_compiles_products_of_two_eight_bit_floats(shape: str) -> None:
    types = {"dtype": "float8_e4m3fnuz", "dtype_b": "float8_e5m2fnuz"}
    product = Product("gfx942", shape, **types, passes=2, keep=True, shared=True, tiles=(2, 2), steps=2)
    kernel = product.plan.build()
    instruction = f"v_mfma_f32_{shape[1:].split('_')[0].replace('N', 'x').replace('K', 'x')}_fp8_bf8"
    assert instruction in kernel.sass() and not kernel.resources().spills


@pytest.mark.parametrize("role", [Role.TEMP, Role.OUTPUT])
@pytest.mark.parametrize("target", ["sm_80", "gfx908"])
def test_elements_are_finished_in_fragments(role: Role, target: str) -> None:
    """D = max(A B + bias, 0), and twice that, in the registers that hold the sums."""
    m, n, k = 32, 64, 64
    A, B = Array(Role.INPUT, "float16", (m, k), name="A"), Array(Role.INPUT, "float16", (k, n), name="B")
    C, bias = Array(role, "float32", (m, n), name="C"), Array(Role.INPUT, "float32", (n,), name="bias")
    D, E = Array(Role.OUTPUT, "float32", (m, n), name="D"), Array(Role.OUTPUT, "float16", (m, n), name="E")
    product, finish = Nest((m, n, k)), Nest((m, n))
    i, j, p = product.get_indices()
    x, y = finish.get_indices()

    @product.iteration_logic
    def _() -> None:
        C[i, j] += A[i, p] * B[p, j]

    @finish.iteration_logic
    def _() -> None:
        D[x, y] = tw.maximum(C[x, y] + bias[y], 0.0)
        E[x, y] = D[x, y] * 2.0

    schedule = fuse(product.create_schedule(), finish.create_schedule(), partial=2)
    i1, j1, f, p1 = schedule.get_indices()
    i2, j2, p2 = schedule.tile({i1: 16, j1: 16, p1: 32})
    schedule.reorder(i1, j1, f, p1, i2, j2, p2)
    plan = schedule.create_plan(Target(target))
    plan.bind({i1: plan.target.GridUnit.BLOCK_Y, j1: plan.target.GridUnit.BLOCK_X})
    plan.tensorize((i2, j2, p2), MMAShape.M16N16K16, 2, prologue_op=MMAFragmentOp.SET, prologue_arg=0.0)
    plan.cache(C, index=f, location=Location.MMA_FRAGMENT)
    random = np.random.default_rng(0)
    a, b, added = (random.integers(-2, 3, shape).astype(np.float32) for shape in ((m, k), (k, n), (n,)))
    c, d, e = np.full((m, n), np.nan, np.float32), np.zeros((m, n), np.float32), np.zeros((m, n), np.float16)
    kernel = plan.build(args=(A, B, bias, D, E) if role is Role.TEMP else (A, B, bias, D, E, C))
    kernel(*(a.astype(np.float16), b.astype(np.float16), added, d, e), *(() if role is Role.TEMP else (c,)))
    np.testing.assert_array_equal(d, np.maximum(a @ b + added, 0))
    np.testing.assert_array_equal(e, 2 * d)
    if role is not Role.TEMP:
        np.testing.assert_array_equal(c, a @ b)


@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("fragments", [False, True])
def test_sizes_of_the_launch_through_shared_memory(stages: int, fragments: bool) -> None:
    m, n, k = Dimension("M"), Dimension("N"), Dimension("K")
    A, B = Array(Role.INPUT, "float16", (m, k), name="A"), Array(Role.INPUT, "float16", (k, n), name="B")
    C = Array(Role.INPUT_OUTPUT, "float32", (m, n), name="C")
    nest = Nest((m, n, k))
    i, j, p = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += A[i, p] * B[p, j]

    schedule = nest.create_schedule()
    i1, j1, p1 = schedule.tile({i: 32, j: 32, p: 32})
    i2, j2, p2 = schedule.tile({i1: 16, j1: 16, p1: 16})
    schedule.reorder(i, j, p, i1, j1, p1, i2, j2, p2)
    plan = schedule.create_plan(Target("sm_80"))
    unit = plan.target.GridUnit
    plan.bind({i: unit.BLOCK_Y, j: unit.BLOCK_X, i1: unit.WARP_Y, j1: unit.WARP_X})
    plan.tensorize((i2, j2, p2), MMAShape.M16N16K16)
    for array in (A, B):
        plan.cache(array, index=p1, pipeline_stages=stages)
        if fragments:
            plan.cache(array, index=i2, location=Location.MMA_FRAGMENT, double_buffer=True)
    plan.cache(C, index=p, location=Location.MMA_FRAGMENT)
    kernel = plan.build()
    random = np.random.default_rng(0)
    for rows, columns, depth in ((32, 32, 32), (64, 96, 128)):
        a, b, c = (
            random.integers(-2, 3, s).astype(np.float32) for s in ((rows, depth), (depth, columns), (rows, columns))
        )
        given = c.copy()
        kernel(a.astype(np.float16), b.astype(np.float16), given)
        np.testing.assert_array_equal(given, a @ b + c)


@needs_nvrtc
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.spread(2)
def test_registers_fall_with_the_fused_passes(shared: bool) -> None:
    """Across the fence between groups the compiler moves no reads; across the iterations of a loop neither."""
    product = Product("sm_80", passes=8, keep=True, shared=shared, stages=2 if shared else 1, size=(2, 2, 4))
    for static in (True, False):
        counts = {}
        for fused in (8, 4, 2, 1):
            report = replace(product, fused=fused, static=static).plan.report()
            counts[fused] = report.registers
            assert report.fragments_a == report.fragments_b == fused
        assert counts[8] > counts[4] > counts[2] >= counts[1]


@pytest.mark.parametrize(
    ("target", "fragments", "keep", "shared"), covering(["sm_80", "gfx908"], "AB", [False, True], [False, True])
)
@pytest.mark.spread(2)
def test_fragments_that_no_cache_holds_are_declared_around_all_tiles(
    target: str, fragments: str, keep: bool, shared: bool
) -> None:
    """Turns that read ahead are written out, each with loops over a warp's tiles: the registers serve all of them."""
    if find_clang() is None if target == "gfx908" else not has_nvrtc():
        pytest.skip("needs a compiler")
    product = Product(target, tiles=(2, 2), steps=3, keep=keep, shared=shared, stages=2, size=(1, 1, 3))
    plan, order = product.plan, product.plan.nest.order
    array = product.arrays["AB".index(fragments)]
    plan.cache(array, index=order[6], location=Location.MMA_FRAGMENT, double_buffer=True)
    assert plan.build().resources().registers > 0
    product.check()
