"""Multiply bfloat16 matrices by stream-K: C[m, n] = sum A[m, k] B[n, k], blocks that share the last tiles.

In 05 each block computes whole tiles of C. 140 tiles by 132 blocks take as long as 264 would: in the second wave eight
blocks work, and 124 wait. Here the blocks share the tiles of K of the last, uneven wave and of one whole wave before it
(`tw.schedulers.StreamK`): each gets an equal stretch, which may begin in the middle of one tile of C and end in the
middle of another. Tiles of earlier waves are computed as in 05, afterwards.

A block that has the beginning of a tile, but not its end, writes its sums to global memory, and sets a flag. The block
that has the end waits for the flags of the others, adds their sums to its own, and stores the tile (`fix_up`).
The stretch is worked off from its end: what others wait for comes first, what waits for others comes last. Each
consumer has a flag and 64 x 256 sums of its own, and a flag is put back by who has seen it, so that the next launch
finds zeros.

Otherwise it is 05: a producer that fills a ring by TMA, two consumers, results through shared memory by TMA.

A and B are contiguous along K, C along N; M and N are multiples of the tile, K of 64.

Run it: `python examples/hopper/08_stream_k.py`
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
LEAST = 4  # tiles of K a block, below which fewer blocks do it
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
    scheduler: tw.schedulers.StreamK

    @property
    def stage_bytes(self) -> int:
        """The bytes of A and B in a stage."""
        m, n, k = self.tile
        return 2 * (m + n) * k


@tw.kernel
def matmul_stream_k(C, A, B, partials, flags, plan: tw.constexpr):
    """Compute the parts of tiles of C that the scheduler gives this block."""
    m, n, k = plan.tile
    sA, sB = tw.shared(A.dtype, plan.smem_a), tw.shared(B.dtype, plan.smem_b)
    sC = tw.shared(C.dtype, plan.smem_c)
    ring = tw.pipeline(plan.stages, consumers=4 * CONSUMERS, bytes=plan.stage_bytes)
    tw.sync_threads()  # the barriers are there
    tiles = plan.scheduler(C.shape[0] // m, C.shape[1] // n, A.shape[1] // k)

    if tw.warpgroup_id() == 0:
        tw.set_registers(40)
        if tw.thread_idx.x == 0:
            state = ring.producer()
            for part in tiles:
                for k_tile in range(part.first, part.last):
                    gA = tw.local_tile(A, (m, k), (part.row, k_tile), guard=True)
                    gB = tw.local_tile(B, (n, k), (part.column, k_tile), guard=True)
                    with state.fill() as (stage, full):
                        tw.copy(tw.atoms.SM90_TMA_LOAD, gA, sA[:, :, stage], barrier=full)
                        tw.copy(tw.atoms.SM90_TMA_LOAD, gB, sB[:, :, stage], barrier=full)
    else:
        tw.set_registers(232)
        consumer, thread = tw.warpgroup_id() - 1, tw.thread_idx.x % WARPGROUP
        ours = tw.named_barrier(1 + consumer, WARPGROUP)
        mine = plan.mma.get_slice(tw.thread_idx.x - WARPGROUP)
        tA, tB = mine.partition_A(sA), mine.partition_B(sB)
        acc = tw.registers(tw.float32, plan.mma.partition_shape((m, n), "C"))
        state = ring.consumer(behind=1)
        for part in tiles:
            for k_tile in range(part.first, part.last):
                with state.read() as stage:
                    tw.wgmma_fence()
                    tw.gemm(plan.mma, tA[:, :, :, stage], tB[:, :, :, stage], acc, accumulate=k_tile > part.first)
                    tw.wgmma_commit()
                    tw.wgmma_wait(1)
            tw.wgmma_wait(0)
            state.release()
            if tiles.fix_up(part, acc, partials, flags, consumer, thread, ours):
                store(C, acc, sC, part, consumer, ours, plan)
        if thread == 0:
            tw.tma_store_wait(0)  # the buffer is there until its last store has read it


@tw.function
def store(C, acc, sC, part, consumer, ours, plan):
    """Store the sums of a consumer's 64 x 256, a half at a time."""
    is_leader = tw.thread_idx.x % WARPGROUP == 0
    rows, columns = plan.smem_c.shape[0], plan.mma.tile_size(1) // HALVES
    buffer = sC[:, :, consumer]
    writer = plan.write.get_slice(tw.thread_idx.x % WARPGROUP)
    target = writer.partition_D(buffer)
    for half in tw.static_range(HALVES):
        out = tw.registers(C.dtype, plan.half.partition_shape((rows, columns), "C"))
        for i in range(tw.size(out.shape)):
            out[i] = acc[half * tw.size(out.shape) + i].to(C.dtype)
        if is_leader:
            tw.tma_store_wait(0)  # the store before has read the buffer
        ours.sync()
        tw.copy(plan.write, writer.retile_S(out), target)
        tw.fence_proxy_async()
        ours.sync()
        if is_leader:
            where = (CONSUMERS * part.row + consumer, HALVES * part.column + half)
            tw.copy(tw.atoms.SM90_TMA_STORE, buffer, tw.local_tile(C, (rows, columns), where, guard=True))
            tw.tma_store_commit()


@cache
def plan_for(stages: int = 4, whole_waves: bool = True) -> Plan:
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
        tw.schedulers.StreamK(tw.schedulers.Grouped(rows=8), whole_waves),
    )


def workspace(backend: Backend, blocks: int = 132) -> tuple[Any, Any]:
    """Return partial sums and flags for launches of up to so many blocks. Launches leave the flags at zero."""
    plan = plan_for()
    values = plan.tile[0] * plan.tile[1] // (CONSUMERS * WARPGROUP)
    partials, flags = plan.scheduler.workspace(blocks, CONSUMERS, WARPGROUP, values)
    return put(np.zeros(partials, np.float32), backend), put(np.zeros(flags, np.int32), backend)


def matmul(C, A, B, space, stages: int = 4, blocks: int = 132, whole_waves: bool = True) -> None:
    """Compute C = A B^T for bfloat16 of extents that are multiples of the tile, by at most so many blocks."""
    plan = plan_for(stages, whole_waves)
    (m, n), k = C.shape, A.shape[1]
    if m % plan.tile[0] or n % plan.tile[1] or k % plan.tile[2]:
        raise ValueError(f"{m} x {n} x {k} is not a multiple of the tile {plan.tile}")
    tiles, k_tiles = (m // plan.tile[0]) * (n // plan.tile[1]), k // plan.tile[2]
    blocks = min(blocks, max(tiles, tiles * k_tiles // LEAST))
    if blocks > space[1].shape[0]:
        raise ValueError(f"the workspace is that of {space[1].shape[0]} blocks, and {blocks} are launched")
    matmul_stream_k[blocks, THREADS](C, A, B, *space, plan)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases: few blocks for many tiles; on a GPU with torch, products whose last wave is nearly empty."""
    if quick:
        return [
            _case(3, (256, 512, 320), backend, quick),  # 4 tiles of 5
            _case(4, (128, 256, 64 * 4 * LEAST), backend, quick),  # one tile by all blocks
            _case(2, (128, 1280, 192), backend, quick),  # a wave of whole tiles behind the shared ones
        ]
    return [_case(132, extents, backend, quick) for extents in ((1792, 2560, 8192), (4096, 4608, 4096))]


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
        space = workspace(backend, blocks)
        return Trial(lambda: matmul(C, A, B, space, stages, blocks), lambda: _float32(C), expected, limit, library)

    return Case(f"stream-K, {blocks} blocks", f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)


def example_matmul_stream_k():
    """Return grid, block and arguments for `tilewright show ...08_stream_k.py:matmul_stream_k`."""
    matrix = tw.spec(tw.bfloat16, (4096, 4096))
    partials, flags = plan_for().scheduler.workspace(132, CONSUMERS, WARPGROUP, 128)
    return (
        132,
        THREADS,
        (matrix, matrix, matrix, tw.spec(tw.float32, (partials,)), tw.spec(tw.int32, flags), plan_for()),
    )


if __name__ == "__main__":
    main(cases)
