"""Multiply bfloat16 matrices by clusters: two blocks share the tile of B that both multiply with.

As in 05, blocks stay and compute many tiles of C, one after another. Here two of them form a cluster, which computes
256 x 256 of C: each block 128 rows of its own, and both the same columns. So both need the same tile of B. Each brings
half of it and sends that to both (`SM90_TMA_LOAD_MULTICAST`): it lands at the same place in the shared memory of each,
and its bytes arrive at the mbarrier that each has at the same place. Of B a block reads half as much from the
second-level cache.

A stage now belongs to two producers. Before either sends its half of B there, the consumers of both blocks have to be
done with the stage, so with `blocks=2` each consumer warp gives it back to both: it arrives at the `empty` mbarriers of
both blocks, which count twice as many warps. `full` waits in each block for the bytes that come to it, from wherever:
its tile of A and both halves of B.

No block may send anything before the other one has made its mbarriers, and none may leave while the other one arrives
at them: `tw.cluster_sync()` stands at both ends.

A and B are contiguous along K, C along N; M is a multiple of 256, N of 256 and K of 64.

Run it: `python examples/hopper/06_cluster_multicast.py`
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put

WARPGROUP = 128
CONSUMERS = 2  # warpgroups
THREADS = WARPGROUP * (1 + CONSUMERS)
BLOCKS = 2  # of a cluster, one above the other
EVERY = (1 << BLOCKS) - 1  # a bit for each of them
ORDER = tw.schedulers.Grouped(rows=4)  # of the clusters' tiles
HALVES = 2  # of a consumer's results, stored one after the other


@dataclass(frozen=True)
class Plan:
    """The tiles and how they are copied and multiplied: everything that the kernel knows at compile time."""

    tile: tuple[int, int, int]  # of a block
    stages: int
    scheduler: tw.schedulers.Scheduler  # in which order clusters compute tiles
    smem_a: Any  # (M, K, stages)
    smem_b: Any  # (N, K, stages)
    smem_c: Any  # (M, N, consumers) of the buffers of results
    mma: tw.TiledMMA
    half: tw.TiledMMA  # of the registers that hold half of a consumer's results
    write: tw.TiledCopy  # fragments of results to such a buffer

    @property
    def stage_bytes(self) -> int:
        """The bytes of A and B that come to a stage of a block."""
        m, n, k = self.tile
        return 2 * (m + n) * k


@tw.kernel(cluster=BLOCKS)
def matmul_cluster(C, A, B, plan: tw.constexpr):
    """Compute the tiles of C that the scheduler gives this cluster, a block the rows of its rank."""
    m, n, k = plan.tile
    sA, sB = tw.shared(A.dtype, plan.smem_a), tw.shared(B.dtype, plan.smem_b)
    sC = tw.shared(C.dtype, plan.smem_c)
    ring = tw.pipeline(plan.stages, consumers=4 * CONSUMERS, bytes=plan.stage_bytes, blocks=BLOCKS)
    tw.cluster_sync()  # the barriers of both are there
    rank, clusters = tw.block_rank_in_cluster(), tw.grid_dim.x // BLOCKS
    tiles = plan.scheduler(C.shape[0] // (m * BLOCKS), C.shape[1] // n, block=tw.cluster_idx.x, blocks=clusters)
    k_tiles = A.shape[1] // k

    if tw.warpgroup_id() == 0:
        tw.set_registers(40)
        if tw.thread_idx.x == 0:
            state = ring.producer()
            for row, column in tiles:
                for k_tile in range(k_tiles):
                    gA = tw.local_tile(A, (m, k), (BLOCKS * row + rank, k_tile), guard=True)
                    gB = tw.local_tile(B, (n // BLOCKS, k), (BLOCKS * column + rank, k_tile), guard=True)
                    with state.fill() as (stage, full):
                        ours = tw.local_tile(sB[:, :, stage], (n // BLOCKS, k), (rank, 0))
                        tw.copy(tw.atoms.SM90_TMA_LOAD, gA, sA[:, :, stage], barrier=full)
                        tw.copy(tw.atoms.SM90_TMA_LOAD_MULTICAST, gB, ours, barrier=full, mask=EVERY)
    else:
        tw.set_registers(232)
        thread = plan.mma.get_slice(tw.thread_idx.x - WARPGROUP)
        tA, tB = thread.partition_A(sA), thread.partition_B(sB)
        acc = tw.registers(tw.float32, plan.mma.partition_shape((m, n), "C"))
        state = ring.consumer(behind=1)
        for row, column in tiles:
            for k_tile in range(k_tiles):
                with state.read() as stage:
                    tw.wgmma_fence()
                    tw.gemm(plan.mma, tA[:, :, :, stage], tB[:, :, :, stage], acc, accumulate=k_tile > 0)
                    tw.wgmma_commit()
                    tw.wgmma_wait(1)
            tw.wgmma_wait(0)
            state.release()
            store(C, acc, sC, BLOCKS * row + rank, column, plan)
        if tw.thread_idx.x % WARPGROUP == 0:
            tw.tma_store_wait(0)  # the buffer is there until its last store has read it
    tw.cluster_sync()  # the other block may still arrive here


@tw.function
def store(C, acc, sC, row, column, plan):
    """Store the sums of a consumer's 64 x 256, a half at a time, as 05 does."""
    consumer, is_leader = tw.warpgroup_id() - 1, tw.thread_idx.x % WARPGROUP == 0
    rows, columns = plan.smem_c.shape[0], plan.mma.tile_size(1) // HALVES
    ours, buffer = tw.named_barrier(1 + consumer, WARPGROUP), sC[:, :, consumer]
    writer = plan.write.get_slice(tw.thread_idx.x % WARPGROUP)
    part = writer.partition_D(buffer)
    for half in tw.static_range(HALVES):
        out = tw.registers(C.dtype, plan.half.partition_shape((rows, columns), "C"))
        for i in range(tw.size(out.shape)):
            out[i] = acc[half * tw.size(out.shape) + i].to(C.dtype)
        if is_leader:
            tw.tma_store_wait(0)  # the store before has read the buffer
        ours.sync()
        tw.copy(plan.write, writer.retile_S(out), part)
        tw.fence_proxy_async()
        ours.sync()
        if is_leader:
            where = (CONSUMERS * row + consumer, HALVES * column + half)
            tw.copy(tw.atoms.SM90_TMA_STORE, buffer, tw.local_tile(C, (rows, columns), where, guard=True))
            tw.tma_store_commit()


@cache
def plan_for(stages: int = 4, scheduler: tw.schedulers.Scheduler = ORDER) -> Plan:
    """Return the plan: tiles of 128 x 256 x 64, in layouts that TMA writes and wgmma reads."""
    tile = m, n, k = (128, 256, 64)
    rows = tw.atoms.GMMA_K_SW128(tw.bfloat16)
    mma = tw.make_tiled_mma(tw.atoms.SM90_64x256x16_F32BF16BF16_SS, (CONSUMERS, 1, 1))
    half = tw.make_tiled_mma(tw.atoms.SM90_64x128x16_F32BF16BF16_SS)
    return Plan(
        tile,
        stages,
        scheduler,
        tw.tile_to_shape(rows, (m, k, stages)),
        tw.tile_to_shape(rows, (n, k, stages)),
        tw.tile_to_shape(rows, (m // CONSUMERS, n // HALVES, CONSUMERS)),
        mma,
        half,
        tw.make_tiled_copy_C(tw.atoms.SM90_U32x4_STSM_N, half),
    )


def matmul(C, A, B, stages: int = 4, blocks: int | None = None) -> None:
    """Compute C = A B^T for bfloat16 of extents that are multiples of a cluster's tile, by at most so many blocks.

    Without a number it is as many as the GPU holds at once: a cluster lies on neighbouring multiprocessors, and groups
    of these may be odd.
    """
    plan = plan_for(stages)
    (m, n), k = C.shape, A.shape[1]
    tile = BLOCKS * plan.tile[0], plan.tile[1], plan.tile[2]
    if m % tile[0] or n % tile[1] or k % tile[2]:
        raise ValueError(f"{m} x {n} x {k} is no multiple of the tile {tile}")
    if blocks is None:
        blocks = matmul_cluster[BLOCKS, THREADS].resident_blocks(C, A, B, plan)
    clusters = min(blocks // BLOCKS, (m // tile[0]) * (n // tile[1]))
    matmul_cluster[BLOCKS * clusters, THREADS](C, A, B, plan)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases: few clusters for many tiles; on a GPU with torch, which has bfloat16, a large product."""
    if quick:
        return [_case(6, (512, 512, 256), backend, quick)]
    return [_case(None, (n, n, n), backend, quick) for n in (4096, 8192)]


def _float32(C: Any) -> Any:
    """Return the results as float32, which NumPy has by itself."""
    return fetch(C.float()) if hasattr(C, "float") else fetch(C).astype(np.float32)


def _case(blocks: int | None, extents: tuple[int, int, int], backend: Backend, quick: bool) -> Case:
    m, n, k = extents

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        a, b = (random.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
        A, B = put(a, backend), put(b, backend)
        C = put(np.full((m, n), np.nan, ml_dtypes.bfloat16), backend)
        expected = a.astype(np.float32) @ b.astype(np.float32).T
        limit = float(np.abs(expected).max()) * 2.0**-8  # the results are rounded to 8 bits
        library = (lambda: A @ B.T) if backend == "cuda" else None
        stages = 3 if quick else 4
        return Trial(lambda: matmul(C, A, B, stages, blocks), lambda: _float32(C), expected, limit, library)

    return Case(f"clusters, {blocks or 'all'} blocks", f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)


def example_matmul_cluster():
    """Return grid, block and arguments for `tilewright show ...06_cluster_multicast.py:matmul_cluster`."""
    matrix = tw.spec(tw.bfloat16, (4096, 4096))
    return 132, THREADS, (matrix, matrix, matrix, plan_for())


if __name__ == "__main__":
    main(cases)
