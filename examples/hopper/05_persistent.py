"""Multiply bfloat16 matrices by blocks that stay: C[m, n] = sum A[m, k] B[n, k], a block for each multiprocessor.

As in 04, a producer fills a ring of stages by TMA and two consumers multiply 64 x 256 each. Here a block computes many
tiles of C, one after another, and the ring goes on from tile to tile: while the consumers store a tile, the producer
already brings what the next one needs. `tw.pipeline` keeps the two mbarriers of each stage, and a state for each role
knows the stage and the parity. A consumer is one tile of K behind when it hands a stage back (`behind=1`), because one
group of products stays under way.

The results leave through shared memory. A consumer rounds half of its sums to bfloat16, writes them by stmatrix to a
buffer of its own (64 x 128), and one of its threads stores that by TMA, in whole rows of 128 bytes. The store goes on
while the consumer multiplies the next tile; before the buffer is written again, that thread waits until the store has
read it, and a barrier of the 128 threads tells the others.

`tw.schedulers.Grouped` gives each block its tiles: in groups of eight rows, column by column, so that blocks that run
at the same time share rows of A and of B in the second-level cache. Another scheduler is another argument of the plan.

A and B are contiguous along K, C along N; M and N are multiples of the tile, K of 64.

Run it: `python examples/hopper/05_persistent.py`
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
ORDER = tw.schedulers.Grouped(rows=8)
HALVES = 2  # of a consumer's results, stored one after the other


@dataclass(frozen=True)
class Plan:
    """The tiles and how they are copied and multiplied: everything that the kernel knows at compile time."""

    tile: tuple[int, int, int]
    stages: int
    smem_a: Any  # (M, K, stages)
    smem_b: Any  # (N, K, stages)
    smem_c: Any  # (M, N, consumers) of the buffers of results
    mma: tw.TiledMMA
    half: tw.TiledMMA  # of the registers that hold half of a consumer's results
    write: tw.TiledCopy  # fragments of results to such a buffer
    scheduler: tw.schedulers.Scheduler  # in which order blocks compute tiles

    @property
    def stage_bytes(self) -> int:
        """The bytes of A and B in a stage."""
        m, n, k = self.tile
        return 2 * (m + n) * k


@tw.kernel
def matmul_persistent(C, A, B, plan: tw.constexpr):
    """Compute the tiles of C that the scheduler gives this block."""
    m, n, k = plan.tile
    sA, sB = tw.shared(A.dtype, plan.smem_a), tw.shared(B.dtype, plan.smem_b)
    sC = tw.shared(C.dtype, plan.smem_c)
    ring = tw.pipeline(plan.stages, consumers=4 * CONSUMERS, bytes=plan.stage_bytes)
    tw.sync_threads()  # the barriers are there
    tiles = plan.scheduler(C.shape[0] // m, C.shape[1] // n)
    k_tiles = A.shape[1] // k

    if tw.warpgroup_id() == 0:
        tw.set_registers(40)
        if tw.thread_idx.x == 0:
            state = ring.producer()
            for row, column in tiles:
                for k_tile in range(k_tiles):
                    gA = tw.local_tile(A, (m, k), (row, k_tile), guard=True)
                    gB = tw.local_tile(B, (n, k), (column, k_tile), guard=True)
                    with state.fill() as (stage, full):
                        tw.copy(tw.atoms.SM90_TMA_LOAD, gA, sA[:, :, stage], barrier=full)
                        tw.copy(tw.atoms.SM90_TMA_LOAD, gB, sB[:, :, stage], barrier=full)
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
            store(C, acc, sC, row, column, plan)
        if tw.thread_idx.x % WARPGROUP == 0:
            tw.tma_store_wait(0)  # the buffer is there until its last store has read it


@tw.function
def store(C, acc, sC, row, column, plan):
    """Store the sums of a consumer's 64 x 256, a half at a time."""
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
        tw.tile_to_shape(rows, (m, k, stages)),
        tw.tile_to_shape(rows, (n, k, stages)),
        tw.tile_to_shape(rows, (m // CONSUMERS, n // HALVES, CONSUMERS)),
        mma,
        half,
        tw.make_tiled_copy_C(tw.atoms.SM90_U32x4_STSM_N, half),
        scheduler,
    )


def matmul(C, A, B, stages: int = 4, blocks: int = 132, scheduler: tw.schedulers.Scheduler = ORDER) -> None:
    """Compute C = A B^T for bfloat16 of extents that are multiples of the tile, by at most so many blocks."""
    plan = plan_for(stages, scheduler)
    (m, n), k = C.shape, A.shape[1]
    if m % plan.tile[0] or n % plan.tile[1] or k % plan.tile[2]:
        raise ValueError(f"{m} x {n} x {k} is no multiple of the tile {plan.tile}")
    tiles = (m // plan.tile[0]) * (n // plan.tile[1])
    matmul_persistent[min(blocks, tiles), THREADS](C, A, B, plan)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases: few blocks for many tiles; on a GPU with torch, which has bfloat16, a large product."""
    if quick:
        return [_case(blocks, (384, 512, 320), backend, quick) for blocks in (1, 4)]
    return [_case(132, (n, n, n), backend, quick) for n in (4096, 8192)]


def _float32(C: Any) -> Any:
    """Return the results as float32, which NumPy has by itself."""
    return fetch(C.float()) if hasattr(C, "float") else fetch(C).astype(np.float32)


def _case(blocks: int, extents: tuple[int, int, int], backend: Backend, quick: bool) -> Case:
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

    return Case(f"persistent, {blocks} blocks", f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)


def example_matmul_persistent():
    """Return grid, block and arguments for `tilewright show ...05_persistent.py:matmul_persistent`."""
    matrix = tw.spec(tw.bfloat16, (4096, 4096))
    return 132, THREADS, (matrix, matrix, matrix, plan_for())


if __name__ == "__main__":
    main(cases)
