"""What bulk copies, mbarriers, clusters and wgmma refuse while tracing or launching."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.helpers.bulk_copies import T, load_of, row_of, run_body, zeros

import tilewright as tw

LOAD, STORE = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_STORE
MULTICAST = tw.atoms.SM90_TMA_LOAD_MULTICAST
MMA = tw.make_tiled_mma(tw.atoms.SM90_64x8x16_F32F16F16_SS)
SMEM_B = tw.tile_to_shape(tw.atoms.GMMA_K_SW32(tw.float16), (8, 16))


@tw.function
def nothing(out, x, smem, full):
    out[0, 0] = 1


def all_threads_store():
    @tw.function
    def body(out, x, smem, full):
        i = tw.thread_idx.x
        smem[0, i] = i
        tw.fence_proxy_async()
        tw.sync_threads()
        tw.copy(STORE, row_of(smem, 0), load_of(out, 0))
        tw.tma_store_commit()
        tw.tma_store_wait(0)

    run_body(body, 32)


def expect_too_many_bytes():
    @tw.function
    def body(out, x, smem, full):
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(1 << 21)
            tw.copy(LOAD, load_of(x, 0), row_of(smem, 0), barrier=full)
        full.wait(0)

    run_body(body, 32)


def expect_negative_bytes():
    @tw.function
    def body(out, x, smem, full):
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(-128)
            tw.copy(LOAD, load_of(x, 0), row_of(smem, 0), barrier=full)
        full.wait(0)

    run_body(body, 32)


def count_too_many():
    @tw.kernel
    def kernel(out):
        b = tw.mbarrier(1 << 20)
        tw.sync_threads()
        b.wait(1)

    kernel[1, 32](zeros(1))


def mask_beyond_cluster():
    @tw.function
    def body(out, x, smem, full):
        tw.cluster_sync()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(128)
            if tw.block_rank_in_cluster() == 0:
                tw.copy(MULTICAST, load_of(x, 0), row_of(smem, 0), barrier=full, mask=0b111)
        full.wait(0)
        tw.cluster_sync()

    run_body(body, 32, 2, 2)


def mask_zero():
    @tw.function
    def body(out, x, smem, full):
        tw.cluster_sync()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(128)
            tw.copy(MULTICAST, load_of(x, 0), row_of(smem, 0), barrier=full, mask=0)
        full.wait(0)
        tw.cluster_sync()

    run_body(body, 32, 2, 2)


def cluster_ops_without_cluster():
    @tw.function
    def body(out, x, smem, full):
        tw.cluster_sync()
        smem.at_rank(1)[0, tw.thread_idx.x] = 1
        tw.cluster_sync()

    run_body(body, 32, 1, 2)


def multicast_without_cluster():
    @tw.function
    def body(out, x, smem, full):
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(128)
            tw.copy(MULTICAST, load_of(x, 0), row_of(smem, 0), barrier=full, mask=0b11)
        full.wait(0)

    run_body(body, 32, 1, 2)


def pointer_off_by_4():
    x = np.arange(8 * T + 1, dtype=np.int32)[1:].reshape(8, T)

    @tw.function
    def body(out, x, smem, full):
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(128)
            tw.copy(LOAD, load_of(x, 0), row_of(smem, 0), barrier=full)
        full.wait(0)

    run_body(body, 32, x=x)


def smem_misaligned():
    @tw.kernel
    def kernel(out, x):
        s = tw.shared(tw.float32, tw.row_major((3, 36)))
        f = tw.mbarrier(1)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            f.arrive_expect_tx(128)
            tw.copy(LOAD, tw.local_tile(tw.guarded(x), (1, 32), (0, 0)), s[1:2, 0:32], barrier=f)
        f.wait(0)

    kernel[1, 32](zeros(1), np.zeros((4, 32), np.float32))


def store_between_16_bytes():
    @tw.function
    def body(out, x, smem, full):
        if tw.thread_idx.x == 0:
            tw.copy(STORE, row_of(smem, 0), load_of(x, 0))

    run_body(body, 32, x=zeros(8, T)[:, : T - 1])


def static_store_between_16_bytes():
    @tw.function
    def body(out, x, smem, full):
        if tw.thread_idx.x == 0:
            tw.copy(STORE, row_of(smem, 0), load_of(x, 0))

    run_body(body, 32, x=tw.static(zeros(8, T)[:, : T - 1]))


def wgmma_A_row_padding():
    @tw.kernel
    def kernel(D, A, B):
        sA, sB = tw.shared(tw.float16, tw.Layout((64, 16), (24, 1))), tw.shared(tw.float16, SMEM_B)
        thread = MMA.get_slice(tw.thread_idx.x)
        tD = thread.partition_C(D)
        acc = thread.make_fragment_C(tD)
        tw.wgmma_fence()
        tw.gemm(MMA, thread.partition_A(sA), thread.partition_B(sB), acc, accumulate=False)

    kernel[1, 128](
        tw.static(np.zeros((64, 8), np.float32)), np.ones((64, 16), np.float16), np.ones((8, 16), np.float16)
    )


def wgmma_operands_in_global():
    @tw.kernel
    def kernel(D, A, B):
        thread = MMA.get_slice(tw.thread_idx.x)
        tD = thread.partition_C(D)
        acc = thread.make_fragment_C(tD)
        tw.wgmma_fence()
        tw.gemm(MMA, thread.partition_A(A), thread.partition_B(B), acc, accumulate=False)

    kernel[1, 128](
        tw.static(np.zeros((64, 8), np.float32)),
        tw.static(np.ones((64, 16), np.float16)),
        tw.static(np.ones((8, 16), np.float16)),
    )


def cluster_does_not_divide():
    run_body(nothing, 32, cluster=3, grid=4)


def negative_stride():
    @tw.function
    def body(out, x, smem, full):
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(128)
            tw.copy(LOAD, load_of(x, 0), row_of(smem, 0), barrier=full)
        full.wait(0)

    run_body(body, 32, x=np.arange(256, dtype=np.int32).reshape(8, 32)[::-1])


def float64_reduce():
    @tw.kernel
    def kernel(x):
        s = tw.shared(tw.float64, tw.row_major((1, 16)))
        if tw.thread_idx.x == 0:
            tw.copy(tw.atoms.SM90_TMA_REDUCE_MAX, s, tw.local_tile(tw.guarded(x), (1, 16), (0, 0)))

    kernel[1, 32](np.zeros((4, 16)))


REFUSED: dict[Callable[[], None], str] = {
    all_threads_store: "tw.copy: SM90_TMA_STORE is started by one thread, and here all threads of the block would start it",
    expect_too_many_bytes: "a phase of an mbarrier counts 0 to 1048575 bytes, not 2097152",
    expect_negative_bytes: "a phase of an mbarrier counts 0 to 1048575 bytes, not -128",
    count_too_many: "an mbarrier counts 1 to 1048575 arrivals a phase, not 1048576",
    mask_beyond_cluster: "tw.copy: SM90_TMA_LOAD_MULTICAST goes to blocks 0 to 1 of the cluster, and the mask is 0b111",
    mask_zero: "tw.copy: SM90_TMA_LOAD_MULTICAST goes to blocks 0 to 1 of the cluster, and the mask is 0b0",
    cluster_ops_without_cluster: "at_rank: there is no block 1 in a cluster of 1",
    multicast_without_cluster: "tw.copy: SM90_TMA_LOAD_MULTICAST goes to blocks 0 to 0 of the cluster, and the mask is 0b11",
    pointer_off_by_4: "argument 'x': TMA takes addresses that are multiples of 16, and the tensor begins at",
    smem_misaligned: "tw.copy: SM90_TMA_LOAD puts boxes at multiples of 128 bytes of shared memory, and the tensor is not known to begin at one",
    wgmma_A_row_padding: "tw.gemm: no descriptor of SM90_64x8x16_F32F16F16_SS describes A: eight rows must be 8 elements apart (16 bytes, a line), and they are 24 apart",
    wgmma_operands_in_global: "tw.gemm: SM90_64x8x16_F32F16F16_SS reads B from shared memory through a descriptor, and it lies in global",
    cluster_does_not_divide: "grid 4 has 4 blocks in x, and clusters of 3 blocks do not divide it",
    negative_stride: "argument 'x': TMA takes strides that are multiples of 16 bytes, below 2**40, and mode 1 has -32 elements of 4 bytes: -128",
    store_between_16_bytes: "argument 'x': a store by TMA writes whole 16 bytes at the end of a row, and rows have 31 elements of 4 bytes",
    static_store_between_16_bytes: "tw.copy: SM90_TMA_STORE writes whole 16 bytes at the end of a row, and rows have 31 elements of 4 bytes",
    float64_reduce: "tw.copy: SM90_TMA_REDUCE_MAX reduces float16, bfloat16, int32, uint32, int64, uint64, not float64",
}


@pytest.mark.parametrize(("run", "text"), REFUSED.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_what_is_refused(run: Callable[[], None], text: str) -> None:
    with pytest.raises((tw.LanguageError, tw.ArgumentError)) as caught:
        run()
    assert str(caught.value).splitlines()[0].startswith(text)
