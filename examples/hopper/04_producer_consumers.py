"""Multiply bfloat16 matrices with one producer and two consumers: C[m, n] = sum A[m, k] B[n, k].

A block computes 128 x 256 of C with three warpgroups. The first, the producer, starts copies by TMA: one thread of it
does all, and the group gives most of its registers back. The other two, the consumers, multiply 64 x 256 each by wgmma,
and take those registers for their sums. They meet at two mbarriers for each stage of a ring in shared memory:

- `full`: the producer announces the bytes of a stage, and the copies deliver them; the consumers wait for them.
- `empty`: one thread of each consumer arrives when its products of the stage are over; the producer waits for both
  before it fills the stage again.

Round k uses stage k % stages for the (k // stages)-th time, so it waits for phase k // stages of `full`. The producer
waits for the phase before that of `empty`: the other parity, which passes at once the first time.

One group of products stays under way while the next one is begun: behind `tw.wgmma_wait(1)` the products of the round
before are over, and its stage is handed back. Neither a proxy fence nor a barrier of the block is in the loops: TMA
writes as the tensor cores read, and the completion of each is known to whoever waits for it.

A and B are contiguous along K; M and N are multiples of the tile, K of 64.

Run it: `python examples/hopper/04_producer_consumers.py`
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


@dataclass(frozen=True)
class Plan:
    """The tiles and how they are copied and multiplied: everything that the kernel knows at compile time."""

    tile: tuple[int, int, int]
    stages: int
    smem_a: Any  # (M, K, stages)
    smem_b: Any  # (N, K, stages)
    mma: tw.TiledMMA

    @property
    def stage_bytes(self) -> int:
        """The bytes of A and B in a stage."""
        m, n, k = self.tile
        return 2 * (m + n) * k


@tw.kernel
def matmul_producer_consumers(C, A, B, plan: tw.constexpr):
    """Compute one tile of C."""
    sA, sB = tw.shared(A.dtype, plan.smem_a), tw.shared(B.dtype, plan.smem_b)
    full = tw.mbarrier(1, stages=plan.stages)
    empty = tw.mbarrier(CONSUMERS, stages=plan.stages)
    tw.sync_threads()  # the barriers are there
    k_tiles = A.shape[1] // plan.tile[2]
    if tw.warpgroup_id() == 0:
        tw.set_registers(40)
        if tw.thread_idx.x == 0:
            produce(A, B, sA, sB, full, empty, k_tiles, plan)
    else:
        tw.set_registers(232)
        consume(C, sA, sB, full, empty, k_tiles, plan)


@tw.function
def produce(A, B, sA, sB, full, empty, k_tiles, plan):
    """Fill the stages, one tile of K after another."""
    m, n, k = plan.tile
    for k_tile in range(k_tiles):
        stage, turn = k_tile % plan.stages, k_tile // plan.stages
        empty[stage].wait((turn + 1) % 2)
        full[stage].arrive_expect_tx(plan.stage_bytes)
        gA = tw.local_tile(A, (m, k), (tw.block_idx.y, k_tile), guard=True)
        gB = tw.local_tile(B, (n, k), (tw.block_idx.x, k_tile), guard=True)
        tw.copy(tw.atoms.SM90_TMA_LOAD, gA, sA[:, :, stage], barrier=full[stage])
        tw.copy(tw.atoms.SM90_TMA_LOAD, gB, sB[:, :, stage], barrier=full[stage])


@tw.function
def consume(C, sA, sB, full, empty, k_tiles, plan):
    """Multiply what the stages hold, and store the sums."""
    tid = tw.thread_idx.x - WARPGROUP
    thread = plan.mma.get_slice(tid)
    tA, tB = thread.partition_A(sA), thread.partition_B(sB)
    tCgC = thread.partition_C(tw.local_tile(C, plan.tile[:2], (tw.block_idx.y, tw.block_idx.x)))
    acc = thread.make_fragment_C(tCgC)
    for k_tile in range(k_tiles):
        stage = k_tile % plan.stages
        full[stage].wait(k_tile // plan.stages % 2)
        tw.wgmma_fence()
        tw.gemm(plan.mma, tA[:, :, :, stage], tB[:, :, :, stage], acc, accumulate=k_tile > 0)
        tw.wgmma_commit()
        tw.wgmma_wait(1)
        if k_tile > 0 and tid % WARPGROUP == 0:
            empty[(k_tile - 1) % plan.stages].arrive()
    tw.wgmma_wait(0)
    tw.copy(acc, tCgC)


@cache
def plan_for(stages: int = 4) -> Plan:
    """Return the plan: tiles of 128 x 256 x 64, in layouts that TMA writes and wgmma reads."""
    tile = m, n, k = (128, 256, 64)
    rows = tw.atoms.GMMA_K_SW128(tw.bfloat16)
    mma = tw.make_tiled_mma(tw.atoms.SM90_64x256x16_F32BF16BF16_SS, (CONSUMERS, 1, 1))
    return Plan(tile, stages, tw.tile_to_shape(rows, (m, k, stages)), tw.tile_to_shape(rows, (n, k, stages)), mma)


def matmul(C, A, B, stages: int = 4) -> None:
    """Compute C = A B^T for bfloat16 of extents that are multiples of the tile."""
    plan = plan_for(stages)
    (m, n), k = C.shape, A.shape[1]
    if m % plan.tile[0] or n % plan.tile[1] or k % plan.tile[2]:
        raise ValueError(f"{m} x {n} x {k} is not a multiple of the tile {plan.tile}")
    matmul_producer_consumers[(n // plan.tile[1], m // plan.tile[0]), THREADS](C, A, B, plan)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases; on a GPU, with torch, which has bfloat16, large products."""
    extents = (256, 512, 320) if quick else (4096, 4096, 4096)
    return [_case(stages, extents, backend) for stages in (2, 4)]


def _case(stages: int, extents: tuple[int, int, int], backend: Backend) -> Case:
    m, n, k = extents

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        a, b = (random.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
        A, B, C = put(a, backend), put(b, backend), put(np.full((m, n), np.nan, np.float32), backend)
        expected = a.astype(np.float32) @ b.astype(np.float32).T
        return Trial(lambda: matmul(C, A, B, stages), lambda: fetch(C), expected, k * 2.0**-23 * 16)

    return Case(f"producer and consumers, {stages} stages", f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)


def example_matmul_producer_consumers():
    """Return grid, block and arguments for `tilewright show ...04_producer_consumers.py:matmul_producer_consumers`."""
    matrix, out = tw.spec(tw.bfloat16, (4096, 4096)), tw.spec(tw.float32, (4096, 4096))
    return (16, 32), THREADS, (out, matrix, matrix, plan_for())


if __name__ == "__main__":
    main(cases)
