"""Kernels of one warpgroup or one bulk copy with one mistake each, and right ones that look alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.bulk_copies import load_of, row_of, run_body, zeros

import tilewright as tw

LOAD, STORE, ADD = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_STORE, tw.atoms.SM90_TMA_REDUCE_ADD
MMA = tw.make_tiled_mma(tw.atoms.SM90_64x8x16_F32F16F16_SS)
SMEM_A = tw.tile_to_shape(tw.atoms.GMMA_K_SW32(tw.float16), (64, 16))
SMEM_B = tw.tile_to_shape(tw.atoms.GMMA_K_SW32(tw.float16), (8, 16))


def products(body, threads=128):
    """Run a body with tiles of A (64 x 16) and B (8 x 16) in shared memory."""

    @tw.kernel
    def kernel(D, A, B):
        sA, sB = tw.shared(A.dtype, SMEM_A), tw.shared(B.dtype, SMEM_B)
        body(D, A, B, sA, sB)

    halves = np.ones((64, 16), np.float16), np.ones((8, 16), np.float16)
    kernel[1, threads](tw.static(np.zeros((64, 8), np.float32)), *halves)


@tw.function
def fill(sA, sB, A, B, threads=128):
    for e in range(tw.thread_idx.x, 64 * 16, threads):
        sA[e // 16, e % 16] = A[e // 16, e % 16]
    for e in range(tw.thread_idx.x, 8 * 16, threads):
        sB[e // 16, e % 16] = B[e // 16, e % 16]


@tw.function
def begin(sA, sB, acc, thread):
    tw.wgmma_fence()
    tw.gemm(MMA, thread.partition_A(sA), thread.partition_B(sB), acc, accumulate=False)


def fence_in_three_of_four_warps():
    @tw.function
    def body(D, A, B, sA, sB):
        fill(sA, sB, A, B)
        if tw.warp_id() < 3:
            tw.fence_proxy_async()
        tw.sync_threads()
        thread = MMA.get_slice(tw.thread_idx.x)
        tD = thread.partition_C(D)
        acc = thread.make_fragment_C(tD)
        begin(sA, sB, acc, thread)
        tw.wgmma_commit()
        tw.wgmma_wait(0)
        tw.copy(acc, tD)

    products(body)


def fence_before_the_writes():
    @tw.function
    def body(D, A, B, sA, sB):
        tw.fence_proxy_async()
        fill(sA, sB, A, B)
        tw.sync_threads()
        thread = MMA.get_slice(tw.thread_idx.x)
        tD = thread.partition_C(D)
        acc = thread.make_fragment_C(tD)
        begin(sA, sB, acc, thread)
        tw.wgmma_commit()
        tw.wgmma_wait(0)
        tw.copy(acc, tD)

    products(body)


def results_through_smem_without_barrier():
    @tw.function
    def body(D, A, B, sA, sB):
        s = tw.shared(tw.float32, tw.row_major((64, 8)))
        fill(sA, sB, A, B, 256)
        tw.fence_proxy_async()
        tw.sync_threads()
        if tw.warpgroup_id() == 0:
            thread = MMA.get_slice(tw.thread_idx.x)
            tS = thread.partition_C(s)
            acc = thread.make_fragment_C(tS)
            begin(sA, sB, acc, thread)
            tw.wgmma_commit()
            tw.wgmma_wait(0)
            tw.copy(acc, tS)
        else:
            t = tw.thread_idx.x - 128
            D[t // 8, t % 8] = s[t // 8, t % 8]

    products(body, 256)


def operand_overwritten_by_cp_async_while_under_way():
    @tw.function
    def body(D, A, B, sA, sB):
        fill(sA, sB, A, B)
        tw.fence_proxy_async()
        tw.sync_threads()
        thread = MMA.get_slice(tw.thread_idx.x)
        tD = thread.partition_C(D)
        acc = thread.make_fragment_C(tD)
        begin(sA, sB, acc, thread)
        tw.wgmma_commit()
        e = tw.thread_idx.x * 8
        tw.copy(
            tw.atoms.SM80_CP_ASYNC_CACHEALWAYS(128),
            tw.local_tile(A, (1, 8), (e // 16, e % 16 // 8)),
            tw.local_tile(sA, (1, 8), (e // 16, e % 16 // 8)),
        )
        tw.cp_async_wait()
        tw.wgmma_wait(0)
        tw.copy(acc, tD)

    products(body)


def two_products_into_one_sum_then_only_first_waited():
    @tw.function
    def body(D, A, B, sA, sB):
        fill(sA, sB, A, B)
        tw.fence_proxy_async()
        tw.sync_threads()
        thread = MMA.get_slice(tw.thread_idx.x)
        tD = thread.partition_C(D)
        acc = thread.make_fragment_C(tD)
        other = thread.make_fragment_C(tD)
        begin(sA, sB, acc, thread)
        tw.wgmma_commit()
        tw.gemm(MMA, thread.partition_A(sA), thread.partition_B(sB), other, accumulate=False)
        tw.wgmma_commit()
        tw.wgmma_wait(1)
        tw.copy(other, tD)

    products(body)


def wgmma_wait_in_a_loop_other_iteration_touches():
    @tw.function
    def body(D, A, B, sA, sB):
        fill(sA, sB, A, B)
        tw.fence_proxy_async()
        tw.sync_threads()
        thread = MMA.get_slice(tw.thread_idx.x)
        tD = thread.partition_C(D)
        acc = thread.make_fragment_C(tD)
        tw.clear(acc)
        for k in range(D.shape[1] // 2):
            acc[0] += 1.0
            tw.wgmma_fence()
            tw.gemm(MMA, thread.partition_A(sA), thread.partition_B(sB), acc)
            tw.wgmma_commit()
        tw.wgmma_wait(0)
        tw.copy(acc, tD)

    products(body)


def wgmma_without_commit_but_wait():
    @tw.function
    def body(D, A, B, sA, sB):
        fill(sA, sB, A, B)
        tw.fence_proxy_async()
        tw.sync_threads()
        thread = MMA.get_slice(tw.thread_idx.x)
        tD = thread.partition_C(D)
        acc = thread.make_fragment_C(tD)
        begin(sA, sB, acc, thread)
        tw.wgmma_wait(0)
        tw.copy(acc, tD)

    products(body)


def tma_load_over_wgmma_operand():
    @tw.function
    def body(D, A, B, sA, sB):
        full = tw.mbarrier(1)
        fill(sA, sB, A, B)
        tw.fence_proxy_async()
        tw.sync_threads()
        thread = MMA.get_slice(tw.thread_idx.x)
        tD = thread.partition_C(D)
        acc = thread.make_fragment_C(tD)
        begin(sA, sB, acc, thread)
        tw.wgmma_commit()
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(2048)
            tw.copy(LOAD, tw.local_tile(tw.guarded(A), (64, 16), (0, 0)), sA, barrier=full)
        full.wait(0)
        tw.wgmma_wait(0)
        tw.copy(acc, tD)

    products(body)


def barrier_used_before_block_meets():
    @tw.function
    def body(out, x, smem, full):
        if tw.thread_idx.x == 32:
            full.arrive_expect_tx(128)
            tw.copy(LOAD, load_of(x, 0), row_of(smem, 0), barrier=full)
        full.wait(0)
        out[0, tw.lane_id()] = smem[0, tw.lane_id()]

    run_body(body, 64)


def store_then_write_after_wait_of_thread0_without_barrier():
    @tw.function
    def body(out, x, smem, full):
        i = tw.thread_idx.x
        smem[0, i] = i
        tw.fence_proxy_async()
        tw.sync_threads()
        if i == 0:
            tw.copy(STORE, row_of(smem, 0), load_of(out, 0))
            tw.tma_store_commit()
            tw.tma_store_wait(0)
        smem[0, i] = 5

    run_body(body, 32)


def two_loads_to_one_place():
    @tw.function
    def body(out, x, smem, full):
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(256)
            tw.copy(LOAD, load_of(x, 0), row_of(smem, 0), barrier=full)
            tw.copy(LOAD, load_of(x, 1), row_of(smem, 0), barrier=full)
        full.wait(0)
        out[0, tw.lane_id()] = smem[0, tw.lane_id()]

    run_body(body, 32)


def load_while_store_reads():
    @tw.function
    def body(out, x, smem, full):
        i = tw.thread_idx.x
        smem[0, i] = i
        tw.fence_proxy_async()
        tw.sync_threads()
        if i == 0:
            tw.copy(STORE, row_of(smem, 0), load_of(out, 0))
            tw.tma_store_commit()
            full.arrive_expect_tx(128)
            tw.copy(LOAD, load_of(x, 0), row_of(smem, 0), barrier=full)
            full.wait(0)
            tw.tma_store_wait(0)

    run_body(body, 32)


def load_of_what_a_store_wrote_without_wait():
    @tw.function
    def body(out, x, smem, full):
        i = tw.thread_idx.x
        smem[0, i] = i
        tw.fence_proxy_async()
        tw.sync_threads()
        if i == 0:
            tw.copy(STORE, row_of(smem, 0), load_of(out, 0))
            tw.tma_store_commit()
            tw.tma_store_wait(0)
            full.arrive_expect_tx(128)
            tw.copy(LOAD, load_of(out, 0), row_of(smem, 1), barrier=full)
            full.wait(0)
            tw.tma_store_wait(0)

    run_body(body, 32)


def expect_dynamic_negative():
    @tw.function
    def body(out, x, smem, full):
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(x[0, 0] - 128)
            tw.copy(LOAD, load_of(x, 0), row_of(smem, 0), barrier=full)
        full.wait(0)

    run_body(body, 32)


def stage_beyond():
    @tw.kernel
    def kernel(out):
        b = tw.mbarrier(1, stages=2)
        tw.sync_threads()
        b[out[0] + 2].wait(1)

    kernel[1, 32](zeros(1))


def fence_global_instead_of_shared():
    @tw.function
    def body(out, x, smem, full):
        i = tw.thread_idx.x
        smem[0, i] = i
        tw.fence_proxy_async("global")
        tw.sync_threads()
        if i == 0:
            tw.copy(STORE, row_of(smem, 0), load_of(out, 0))
            tw.tma_store_commit()
            tw.tma_store_wait(0)

    run_body(body, 32)


def wait_group_before_commit():
    @tw.function
    def body(out, x, smem, full):
        i = tw.thread_idx.x
        smem[0, i] = i
        tw.fence_proxy_async()
        tw.sync_threads()
        if i == 0:
            tw.copy(STORE, row_of(smem, 0), load_of(out, 0))
            tw.tma_store_wait(0)
            tw.tma_store_commit()
        tw.sync_threads()
        smem[0, i] = 4
        out[1, i] = smem[0, i]

    run_body(body, 32)


def arrive_with_count_beyond():
    @tw.kernel
    def kernel(out):
        b = tw.mbarrier(4)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            b.arrive(5)
        b.wait(0)

    kernel[1, 64](zeros(3))


def phase_two_ahead():
    @tw.kernel
    def kernel(out):
        b = tw.mbarrier(1)
        tw.sync_threads()
        if tw.warp_id() == 0:
            for j in range(4):
                if tw.lane_id() == 0:
                    b.arrive()
        else:
            for j in range(4):
                b.wait(j % 2)

    kernel[1, 64](zeros(3))


def reduce_add_then_read_without_wait():
    @tw.function
    def body(out, x, smem, full):
        i = tw.thread_idx.x
        smem[0, i] = i
        tw.fence_proxy_async()
        tw.sync_threads()
        if i == 0:
            tw.copy(tw.atoms.SM90_TMA_REDUCE_ADD, row_of(smem, 0), load_of(out, 0))
            tw.tma_store_commit()
            tw.tma_store_wait(0)
            out[1, 0] = out[0, 3]

    run_body(body, 32)


def reduce_and_store_mixed():
    @tw.function
    def body(out, x, smem, full):
        i = tw.thread_idx.x
        smem[0, i] = i
        tw.fence_proxy_async()
        tw.sync_threads()
        if i == 0:
            tw.copy(tw.atoms.SM90_TMA_REDUCE_ADD, row_of(smem, 0), load_of(out, 0))
            tw.tma_store_commit()
            tw.copy(STORE, row_of(smem, 0), load_of(out, 0))
            tw.tma_store_commit()
            tw.tma_store_wait(0, read=False)

    run_body(body, 32)


def plain_store_under_a_reduction():
    @tw.function
    def body(out, x, smem, full):
        i = tw.thread_idx.x
        smem[0, i] = i
        tw.fence_proxy_async()
        tw.sync_threads()
        if i == 0:
            tw.copy(tw.atoms.SM90_TMA_REDUCE_ADD, row_of(smem, 0), load_of(out, 0))
            tw.tma_store_commit()
        tw.sync_threads()
        out[0, i] = 3
        if i == 0:
            tw.tma_store_wait(0)

    run_body(body, 32)


def other_threads_read_a_reduction_the_starter_waited_for_without_barrier():
    @tw.function
    def body(out, x, smem, full):
        i = tw.thread_idx.x
        smem[0, i] = i
        tw.fence_proxy_async()
        tw.sync_threads()
        if i == 0:
            tw.copy(tw.atoms.SM90_TMA_REDUCE_ADD, row_of(smem, 0), load_of(out, 0))
            tw.tma_store_commit()
            tw.tma_store_wait(0, read=False)
        x[1, i] = out[0, i]

    run_body(body, 32)


def reduce_then_reduce_is_fine():
    @tw.function
    def body(out, x, smem, full):
        i = tw.thread_idx.x
        smem[0, i] = i
        tw.fence_proxy_async()
        tw.sync_threads()
        if i == 0:
            tw.copy(tw.atoms.SM90_TMA_REDUCE_ADD, row_of(smem, 0), load_of(out, 0))
            tw.tma_store_commit()
            tw.copy(tw.atoms.SM90_TMA_REDUCE_ADD, row_of(smem, 0), load_of(out, 0))
            tw.tma_store_commit()
            tw.tma_store_wait(0, read=False)
            x[0, 0] = out[0, 3]

    run_body(body, 32)


def reduce_and_thread_atomic_is_fine():
    @tw.function
    def body(out, x, smem, full):
        i = tw.thread_idx.x
        smem[0, i] = i
        tw.fence_proxy_async()
        tw.sync_threads()
        if i == 0:
            tw.copy(tw.atoms.SM90_TMA_REDUCE_ADD, row_of(smem, 0), load_of(out, 0))
            tw.tma_store_commit()
        tw.atomic_add(out, (0, i), 1)
        if i == 0:
            tw.tma_store_wait(0)

    run_body(body, 32)


def the_same_with_a_barrier_is_fine():
    @tw.function
    def body(out, x, smem, full):
        i = tw.thread_idx.x
        smem[0, i] = i
        tw.fence_proxy_async()
        tw.sync_threads()
        if i == 0:
            tw.copy(tw.atoms.SM90_TMA_REDUCE_ADD, row_of(smem, 0), load_of(out, 0))
            tw.tma_store_commit()
            tw.tma_store_wait(0, read=False)
        tw.sync_threads()
        x[1, i] = out[0, i]

    run_body(body, 32)


MISTAKES: dict[Callable[[], None], set[str]] = {
    fence_in_three_of_four_warps: {"missing-fence"},
    fence_before_the_writes: {"missing-fence"},
    results_through_smem_without_barrier: {"race"},
    operand_overwritten_by_cp_async_while_under_way: {"missing-wait", "race"},
    two_products_into_one_sum_then_only_first_waited: {"missing-wait"},
    wgmma_wait_in_a_loop_other_iteration_touches: {"missing-wait"},
    wgmma_without_commit_but_wait: {"missing-wait"},
    tma_load_over_wgmma_operand: {"race"},
    barrier_used_before_block_meets: {"race"},
    store_then_write_after_wait_of_thread0_without_barrier: {"race"},
    two_loads_to_one_place: {"missing-wait"},
    load_while_store_reads: {"missing-wait"},
    load_of_what_a_store_wrote_without_wait: {"missing-wait"},
    expect_dynamic_negative: {"deadlock", "transaction-bytes"},
    stage_beyond: {"out-of-bounds"},
    fence_global_instead_of_shared: {"missing-fence"},
    wait_group_before_commit: {"missing-wait", "race"},
    arrive_with_count_beyond: {"barrier-divergence"},
    phase_two_ahead: {"deadlock"},
    reduce_add_then_read_without_wait: {"missing-wait"},
    reduce_and_store_mixed: {"missing-wait"},
    plain_store_under_a_reduction: {"missing-wait", "race"},
    other_threads_read_a_reduction_the_starter_waited_for_without_barrier: {"race"},
}
RIGHT = [reduce_then_reduce_is_fine, reduce_and_thread_atomic_is_fine, the_same_with_a_barrier_is_fine]


def findings(run: Callable[[], None]) -> list[Any]:
    with tw.simulate(raise_errors=False) as simulated:
        run()
    return list(simulated.findings)


@pytest.mark.parametrize(("run", "kinds"), MISTAKES.items(), ids=lambda x: getattr(x, "__name__", None))
def test_a_mistake_is_found(run: Callable[[], None], kinds: set[str]) -> None:
    found = findings(run)
    assert {finding.kind for finding in found} == kinds, [finding.message for finding in found]
    assert all(Path(__file__).name in finding.message for finding in found)


@pytest.mark.parametrize("run", RIGHT, ids=lambda run: run.__name__)
def test_what_is_right_is_silent(run: Callable[[], None]) -> None:
    assert findings(run) == []
