"""Reads of sums behind the last wait: ptxas would move them before it, and serialise products or wait earlier for it."""

from __future__ import annotations

import re
from random import Random

import numpy as np
import pytest
from tests.fuzz.hopper import write_hopper_program

import tilewright as tw

BRANCH = "keep_reads_behind();"


def product(atom: str, steps: int, pending: int, tiles: int = 1):
    """Return a kernel of products in `steps` steps (0: without a loop), `pending` of them under way, and its arrays."""
    mma = tw.make_tiled_mma(getattr(tw.atoms, atom))
    a_type, b_type, out = (mma.atom.dtype_a, mma.atom.dtype_b, mma.atom.dtype_d)
    n, k, stages = mma.atom.shape_mnk[1], mma.atom.shape_mnk[2], max(steps, 1)
    layout_a, layout_b = (
        tw.tile_to_shape(tw.atoms.GMMA_K_INTER(kind), (rows, k, stages)) for kind, rows in ((a_type, 64), (b_type, n))
    )

    @tw.kernel
    def kernel(C, A, B):
        sA, sB = tw.shared(a_type, layout_a), tw.shared(b_type, layout_b)
        tid = tw.thread_idx.x
        for stage in tw.static_range(stages):
            for i in range(tid, 64 * k, 128):
                sA[i // k, i % k, stage] = A[i // k, i % k + k * stage]
            for i in range(tid, n * k, 128):
                sB[i // k, i % k, stage] = B[i // k, i % k + k * stage]
        tw.fence_proxy_async()
        tw.sync_threads()
        thread = mma.get_slice(tid)
        tA, tB = thread.partition_A(sA), thread.partition_B(sB)
        acc = tw.registers(out, mma.partition_shape((64, n), "C"))

        def step(number):
            tw.wgmma_fence()
            tw.gemm(mma, tA[:, :, :, number], tB[:, :, :, number], acc, accumulate=number > 0)
            tw.wgmma_commit()
            tw.wgmma_wait(pending)

        def tile():
            if steps:
                for number in tw.range(steps, unroll=1):
                    step(number)
            else:
                step(0)
            tw.wgmma_wait(0)
            found = thread.partition_C(C)
            for i in tw.static_range(tw.size(acc.shape)):
                found[i] = acc[i] * 2

        if tiles == 1:
            tile()
        else:
            for _ in tw.range(tiles, unroll=1):
                tile()

    shapes = ((64, n), out), ((64, stages * k), a_type), ((n, stages * k), b_type)
    return kernel[1, 128], [np.ones(shape, kind.storage.numpy) for shape, kind in shapes]


HALVES, WORDS = "SM90_64x200x16_F16F16F16_SS", "SM90_64x200x16_F32F16F16_SS"


@pytest.mark.parametrize("atom", [HALVES, WORDS])
@pytest.mark.parametrize(("steps", "pending", "tiles"), [(0, 0, 1), (0, 1, 1), (3, 1, 1), (3, 1, 2)])
@pytest.mark.spread(2)
def test_the_assembler_has_nothing_to_say(atom, steps, pending, tiles):
    kernel, arrays = product(atom, steps, pending, tiles)
    log = kernel.lower(*arrays, arch="sm_90a").module.log
    assert not re.search(r"C75\d\d", log), log


@pytest.mark.parametrize(("n", "steps"), [(96, 4), (256, 64)])
def test_results_of_a_loop_with_a_constant_end_wait_for_it(n, steps):
    """They leave through shared memory, two in a register: the assembler would combine them before the wait."""
    mma = tw.make_tiled_mma(getattr(tw.atoms, f"SM90_64x{n}x16_F32BF16BF16_SS"), (2, 1, 1))
    layouts = [tw.tile_to_shape(tw.atoms.GMMA_K_SW128(tw.bfloat16), (rows, 64, 3)) for rows in (128, n)]

    @tw.kernel
    def kernel(C, A, B, trips: tw.constexpr):
        sA, sB = (tw.shared(tw.bfloat16, layout) for layout in layouts)
        sC, full = tw.shared(tw.bfloat16, tw.row_major((128, n))), tw.mbarrier(1, stages=3)
        tw.sync_threads()
        thread = mma.get_slice(tw.thread_idx.x)
        sums = tw.registers(tw.float32, mma.partition_shape((128, n), "C"))
        for step in range(trips):
            tw.sync_threads()
            if tw.thread_idx.x == 0:
                full[step % 3].arrive_expect_tx(128 * (128 + n))
                for array, memory in ((A, sA), (B, sB)):
                    tile = tw.local_tile(tw.guarded(array), (memory.shape[0], 64), (0, step))
                    tw.copy(tw.atoms.SM90_TMA_LOAD, tile, memory[:, :, step % 3], barrier=full[step % 3])
            full[step % 3].wait(step // 3 % 2)
            a, b = thread.partition_A(sA)[:, :, :, step % 3], thread.partition_B(sB)[:, :, :, step % 3]
            tw.wgmma_fence()
            tw.gemm(mma, a, b, sums, accumulate=step > 0)
            tw.wgmma_commit()
            tw.wgmma_wait(1)
        tw.wgmma_wait(0)
        out = tw.registers(tw.bfloat16, sums.shape)
        for i in tw.static_range(tw.size(out.shape)):
            out[i] = sums[i].to(tw.bfloat16)
        tw.copy(out, thread.partition_C(sC))
        tw.fence_proxy_async()
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            tw.copy(tw.atoms.SM90_TMA_STORE, sC, tw.local_tile(tw.guarded(C), (128, n), (0, 0)))
            tw.tma_store_commit()
            tw.tma_store_wait(0)

    shapes = (128, n), (128, 64 * steps), (n, 64 * steps)
    module = kernel[1, 256].lower(*(tw.spec(tw.bfloat16, x) for x in shapes), steps, arch="sm_90a").module
    assert not re.search(r"C75\d\d", module.log), module.log
    assert not module.resources.spills


# Of the random programs of bulk copies and products, some for each advisory: C7514 (196, 287, 376; 991238 and 991261 by loops that
# NVRTC unrolls), C7517.
@pytest.mark.parametrize("seed", [26, 122, 157, 196, 247, 287, 376, 493, 991238, 991261])
@pytest.mark.spread(2)
def test_random_programs_that_drew_advisories(seed):
    assert write_hopper_program(Random(seed)).compile() == ""


@pytest.mark.parametrize(
    ("atom", "steps", "pending", "tiles", "branches"),
    [(WORDS, 3, 1, 1, 0), (WORDS, 3, 0, 2, 0), (HALVES, 3, 0, 1, 1), (HALVES, 3, 1, 2, 1), (WORDS, 0, 0, 1, 2)],
)
def test_the_branch_is_where_reads_would_move(atom, steps, pending, tiles, branches):
    """Not behind a wait in a loop over products, and of wider sums only where there is no such loop."""
    kernel, arrays = product(atom, steps, pending, tiles)
    assert kernel.source(*arrays, arch="sm_90a").count(BRANCH) == branches


def test_registers_of_products_under_way_are_left_alone():
    """Sums of one group are used while the next multiplies: a statement that takes its registers would end it."""
    mma = tw.make_tiled_mma(tw.atoms.SM90_64x128x32_F32E4M3E4M3_SS_TN)
    layouts = [tw.tile_to_shape(tw.atoms.GMMA_K_SW128(tw.float8_e4m3fn), (rows, 128, 2)) for rows in (64, 128)]

    @tw.kernel
    def kernel(C, A, B, tiles):
        sA, sB = (tw.shared(tw.float8_e4m3fn, layout) for layout in layouts)
        for i in range(tw.thread_idx.x, 64 * 128, 128):
            sA[i // 128, i % 128, 0] = A[i // 128, i % 128]
        tw.fence_proxy_async()
        tw.sync_threads()
        thread = mma.get_slice(tw.thread_idx.x)
        tA, tB = thread.partition_A(sA), thread.partition_B(sB)
        total, one, other = (tw.registers(tw.float32, mma.partition_shape((64, 128), "C")) for _ in range(3))
        tw.clear(total)
        for _ in range(tiles):
            for number, sums in enumerate((one, other)):
                tw.wgmma_fence()
                tw.gemm(mma, tA[:, :, :, number], tB[:, :, :, number], sums, accumulate=False)
                tw.wgmma_commit()
            for pending, sums in ((1, one), (0, other)):
                tw.wgmma_wait(pending)
                for i in tw.static_range(tw.size(sums)):
                    total[i] += sums[i]
        found = thread.partition_C(C)
        for i in tw.static_range(tw.size(total)):
            found[i] = total[i]

    a, b = (tw.spec(tw.float8_e4m3fn, (rows, 128)) for rows in (64, 128))
    lowered = kernel[1, 128].lower(tw.spec(tw.float32, (64, 128)), a, b, 4, arch="sm_90a")
    assert not re.search(r"C75\d\d", lowered.module.log), lowered.module.log
    fences = re.findall(r"(wgmma_wait<\d>|fence_registers<64>\(\w+\)|wgmma_fence)(?=\(\);|;)", lowered.source.text)
    assert fences == [
        *("fence_registers<64>(one)", "wgmma_fence", "fence_registers<64>(other)", "wgmma_fence"),
        *("wgmma_wait<1>", "fence_registers<64>(one)", "wgmma_wait<0>"),
        *("fence_registers<64>(one)", "fence_registers<64>(other)"),
    ]


def test_results():
    kernel, (out, a, b) = product(HALVES, 3, 1)
    random = np.random.default_rng(0)
    a[:], b[:] = (random.integers(-2, 3, x.shape).astype(x.dtype) for x in (a, b))
    kernel(out, a, b)
    assert np.array_equal(out, (2 * (a.astype(np.float64) @ b.astype(np.float64).T)).astype(out.dtype))


def test_sums_that_begin_in_a_step_are_not_kept_from_the_one_before():
    """A statement that took them would give what they held the last time round the loop registers of their own."""
    mma = tw.make_tiled_mma(tw.atoms.SM90_64x64x16_F32BF16BF16_SS)
    layout = tw.tile_to_shape(tw.atoms.GMMA_K_SW128(tw.bfloat16), (64, 64))

    @tw.kernel
    def kernel(C, number):
        smem, thread = tw.shared(tw.bfloat16, layout), mma.get_slice(tw.thread_idx.x)
        first, second = thread.partition_A(smem), thread.partition_B(smem)
        found = thread.partition_C(tw.local_tile(C, (64, 64), (0, 0)))
        kept = tw.registers(tw.float32, mma.partition_shape((64, 64), "C"))
        for _ in tw.range(number, unroll=1):
            acc, other = (tw.registers(tw.float32, mma.partition_shape((64, 64), "C")) for _ in "12")
            tw.wgmma_fence()
            for sums in (acc, other, kept):
                tw.gemm(mma, first, second, sums, accumulate=False)
                tw.wgmma_commit()
            tw.wgmma_wait(2)
            tw.copy(acc, found)
            tw.wgmma_wait(0)
            tw.copy(other, found)
        tw.copy(kept, found)

    text = kernel.lower(np.ones((64, 64), np.float32), np.int32(3), arch="sm_90a", block=128).source.text
    body = text[text.index('extern "C"') :]
    fences = [re.findall(r"fence_registers<32>\((\w+)\)", part) for part in re.split(r"wgmma_wait<\d>", body)]
    begun = re.findall(r"ss_first\(\s*(\w+),", body)
    assert begun == ["acc", "other"]
    assert fences[1] == ["acc"] and sorted(fences[2]) == ["kept", "other"], fences
