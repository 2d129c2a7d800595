"""Multiply bfloat16 matrices by two consumers in ping-pong: C[m, n] = sum A[m, k] B[n, k], a tile for each of the two.

In 05 both consumers work on one tile, and both stop multiplying while they store it. Here each has a tile of its own,
128 x 128, and they alternate: while one multiplies, the other one stores, and the tensor cores always have something to
do. That pays where tiles are stored often, that is for small K, or where more is done with the sums than rounding.

    consumer 0      multiply tile 0     store tile 0        multiply tile 2     store ...
    consumer 1                          multiply tile 1     store tile 1        multiply ...

The order is kept by two mbarriers for each consumer (CUTLASS's OrderedSequenceBarrier):

- `multiplies`: one lane of each warp arrives at the other consumer's when all products of a tile have been issued. The
  last ones need not be over: the tensor cores take them one after the other.
- `stores`: the two share one buffer for results. The thread that has stored a tile waits until the store has read the
  buffer, and arrives at the other consumer's.

Consumer 0 waits for a phase that is over from the beginning, as the producer of a ring does: it comes first.

A consumer's tiles are every second one of its block: those that the scheduler gives to one of twice as many blocks.
There is one ring of stages for both. The producer fills it tile after tile, so a consumer uses the stages of its own
tile, and skips those of the other one's: `state.advance(k_tiles)`. The order is needed for that, too, and not only for
speed: a stage may be filled several times for the other tile, and a wait knows phases by their parity. Who waits two
phases early does not wait.

A and B are contiguous along K, C along N; M and N are multiples of the tile, K of 64.

Run it: `python examples/hopper/07_ping_pong.py`
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


@dataclass(frozen=True)
class Plan:
    """The tiles and how they are copied and multiplied: everything that the kernel knows at compile time."""

    tile: tuple[int, int, int]
    stages: int
    smem_a: Any  # (M, K, stages)
    smem_b: Any  # (N, K, stages)
    smem_c: Any  # (M, N)
    mma: tw.TiledMMA  # of one consumer
    write: tw.TiledCopy  # fragments of results to shared memory
    scheduler: tw.schedulers.Scheduler  # in which order blocks compute tiles

    @property
    def stage_bytes(self) -> int:
        """The bytes of A and B in a stage."""
        m, n, k = self.tile
        return 2 * (m + n) * k


@tw.kernel
def matmul_ping_pong(C, A, B, plan: tw.constexpr):
    """Compute the tiles of C that the scheduler gives this block, the consumers alternately."""
    m, n, k = plan.tile
    sA, sB = tw.shared(A.dtype, plan.smem_a), tw.shared(B.dtype, plan.smem_b)
    sC = tw.shared(C.dtype, plan.smem_c)
    ring = tw.pipeline(plan.stages, consumers=4, bytes=plan.stage_bytes)  # a stage is read by one consumer
    multiplies, stores = tw.mbarrier(4, stages=CONSUMERS), tw.mbarrier(1, stages=CONSUMERS)
    tw.sync_threads()  # the barriers are there
    m_tiles, n_tiles, k_tiles = C.shape[0] // m, C.shape[1] // n, A.shape[1] // k
    block, blocks = tw.block_idx.x, tw.grid_dim.x

    if tw.warpgroup_id() == 0:
        tw.set_registers(40)
        if tw.thread_idx.x == 0:
            state = ring.producer()
            for row, column in plan.scheduler(m_tiles, n_tiles):
                for k_tile in range(k_tiles):
                    gA = tw.local_tile(A, (m, k), (row, k_tile), guard=True)
                    gB = tw.local_tile(B, (n, k), (column, k_tile), guard=True)
                    with state.fill() as (stage, full):
                        tw.copy(tw.atoms.SM90_TMA_LOAD, gA, sA[:, :, stage], barrier=full)
                        tw.copy(tw.atoms.SM90_TMA_LOAD, gB, sB[:, :, stage], barrier=full)
    else:
        tw.set_registers(232)
        consumer = tw.warpgroup_id() - 1
        other = 1 - consumer
        thread = plan.mma.get_slice(tw.thread_idx.x % WARPGROUP)
        tA, tB = thread.partition_A(sA), thread.partition_B(sB)
        acc = tw.registers(tw.float32, plan.mma.partition_shape((m, n), "C"))
        state = ring.consumer(behind=1)
        state.advance(consumer * k_tiles)
        parity = other  # consumer 0 does not wait for its first tile
        tiles = plan.scheduler(m_tiles, n_tiles, block=block + consumer * blocks, blocks=CONSUMERS * blocks)
        for row, column in tiles:
            multiplies[consumer].wait(parity)
            for k_tile in range(k_tiles):
                with state.read() as stage:
                    tw.wgmma_fence()
                    tw.gemm(plan.mma, tA[:, :, :, stage], tB[:, :, :, stage], acc, accumulate=k_tile > 0)
                    tw.wgmma_commit()
                    tw.wgmma_wait(1)
            if tw.lane_id() == 0:
                multiplies[other].arrive()
            tw.wgmma_wait(0)
            state.release()
            state.advance(k_tiles)  # past the other one's tile
            stores[consumer].wait(parity)
            store(C, acc, sC, row, column, plan)
            if tw.thread_idx.x % WARPGROUP == 0:
                tw.tma_store_wait(0)  # the store has read the buffer
                stores[other].arrive()
            parity = parity ^ 1


@tw.function
def store(C, acc, sC, row, column, plan):
    """Round a tile, write it to shared memory, and begin its store."""
    out = tw.registers(C.dtype, acc.shape)
    for i in range(tw.size(acc.shape)):
        out[i] = acc[i].to(C.dtype)
    writer = plan.write.get_slice(tw.thread_idx.x % WARPGROUP)
    tw.copy(plan.write, writer.retile_S(out), writer.partition_D(sC))
    tw.fence_proxy_async()
    tw.named_barrier(tw.warpgroup_id(), WARPGROUP).sync()
    if tw.thread_idx.x % WARPGROUP == 0:
        tw.copy(tw.atoms.SM90_TMA_STORE, sC, tw.local_tile(C, plan.tile[:2], (row, column), guard=True))
        tw.tma_store_commit()


@cache
def plan_for(
    tile: tuple[int, int] = (128, 128), stages: int | None = None, scheduler: tw.schedulers.Scheduler = ORDER
) -> Plan:
    """Return the plan: tiles of 128 x 128 or 64 x 256, in layouts that TMA writes and wgmma reads.

    Both are 128 sums a thread. 128 x 128 needs 32 KiB of operands for 64 of K, and 64 x 256 needs 40.
    """
    m, n, k = (*tile, 64)
    stages = stages or {(128, 128): 6, (64, 256): 4}[tile]
    rows = tw.atoms.GMMA_K_SW128(tw.bfloat16)
    mma = tw.make_tiled_mma(getattr(tw.atoms, f"SM90_64x{n}x16_F32BF16BF16_SS"))
    return Plan(
        (m, n, k),
        stages,
        tw.tile_to_shape(rows, (m, k, stages)),
        tw.tile_to_shape(rows, (n, k, stages)),
        tw.tile_to_shape(rows, (m, n)),
        mma,
        tw.make_tiled_copy_C(tw.atoms.SM90_U32x4_STSM_N, mma),
        scheduler,
    )


def matmul(C, A, B, tile: tuple[int, int] = (128, 128), stages: int | None = None, blocks: int = 132) -> None:
    """Compute C = A B^T for bfloat16 of extents that are multiples of the tile, by at most so many blocks."""
    plan = plan_for(tile, stages)
    (m, n), k = C.shape, A.shape[1]
    if m % plan.tile[0] or n % plan.tile[1] or k % plan.tile[2]:
        raise ValueError(f"{m} x {n} x {k} is not a multiple of the tile {plan.tile}")
    tiles = (m // plan.tile[0]) * (n // plan.tile[1])
    matmul_ping_pong[min(blocks, tiles), THREADS](C, A, B, plan)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases: both tiles, an odd number of tiles for a block; on a GPU, with torch, a large product."""
    if quick:
        return [_case((128, 128), 1, (384, 128, 320), backend), _case((64, 256), 2, (256, 512, 192), backend)]
    return [_case(tile, 132, (4096, 4096, k), backend) for tile in ((128, 128), (64, 256)) for k in (512, 4096)]


def _float32(C: Any) -> Any:
    """Return the results as float32, which NumPy has by itself."""
    return fetch(C.float()) if hasattr(C, "float") else fetch(C).astype(np.float32)


def _case(tile: tuple[int, int], blocks: int, extents: tuple[int, int, int], backend: Backend) -> Case:
    m, n, k = extents

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        a, b = (random.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
        A, B = put(a, backend), put(b, backend)
        C = put(np.full((m, n), np.nan, ml_dtypes.bfloat16), backend)
        expected = a.astype(np.float32) @ b.astype(np.float32).T
        limit = float(np.abs(expected).max()) * 2.0**-8  # the results are rounded to 8 bits
        library = (lambda: A @ B.T) if backend == "cuda" else None
        return Trial(lambda: matmul(C, A, B, tile, None, blocks), lambda: _float32(C), expected, limit, library)

    name = f"ping-pong, {tile[0]} x {tile[1]}, {blocks} block{'s' * (blocks > 1)}"
    return Case(name, f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)


def example_matmul_ping_pong(tile: tuple[int, int] = (128, 128)):
    """Return grid, block and arguments for `tilewright show examples/hopper/07_ping_pong.py:matmul_ping_pong`."""
    matrix = tw.spec(tw.bfloat16, (4096, 4096))
    return 132, THREADS, (matrix, matrix, matrix, plan_for(tile))


if __name__ == "__main__":
    main(cases)
