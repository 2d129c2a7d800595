"""Multiply half-precision matrices with warps that do different work: C[m, n] = sum A[m, k] B[n, k].

A block computes 128 x 128 of C with five warps. Four of them, the consumers, multiply on tensor cores, 64 x 64 each;
the fifth, the producer, does nothing but bring tiles of K into a ring of stages in shared memory. They meet at
mbarriers, two for each stage:

- `full`: the producer's 32 threads arrive when their asynchronous copies have landed, without waiting for them; the
  consumers wait for it before they read.
- `empty`: one thread of each consumer warp arrives when the warp has read the stage; the producer waits for it before
  it fills the stage again.

Round k uses stage k % stages for the (k // stages)-th time, so it waits for phase k // stages of `full`, whose parity
is k // stages % 2. The producer waits for the phase before that of `empty`: the other parity, which passes at once the
first time. No barrier of the whole block stands in the loop: a fast warp runs ahead as far as the ring lets it.

A and B are float16 or bfloat16, contiguous along K; C is float32. M, N and K are multiples of the tile.

Run it: `python examples/tensorcore/05_warp_specialised.py`
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe

CONSUMERS = 4  # warps
THREADS = 32 * (CONSUMERS + 1)


@dataclass(frozen=True)
class Plan:
    """The tiles and how they are copied and multiplied: everything that the kernel knows at compile time."""

    tile: tuple[int, int, int]
    stages: int
    smem_a: tw.ComposedLayout  # (M, K, stages)
    smem_b: tw.ComposedLayout  # (N, K, stages)
    fill: tw.TiledCopy  # global to shared memory, by one warp
    load_a: tw.TiledCopy  # shared memory to fragments
    load_b: tw.TiledCopy
    mma: tw.TiledMMA


@tw.kernel
def matmul_warp_specialised(C, A, B, plan: tw.constexpr):
    """Compute one tile of C."""
    sA, sB = tw.shared(A.dtype, plan.smem_a), tw.shared(B.dtype, plan.smem_b)
    full = tw.mbarrier(32, stages=plan.stages)
    empty = tw.mbarrier(CONSUMERS, stages=plan.stages)
    tw.sync_threads()  # the barriers are there

    block = (tw.block_idx.y, tw.block_idx.x, None)
    gA = tw.local_tile(A, plan.tile, block, proj=(1, None, 1))  # (M, K, tiles of K)
    gB = tw.local_tile(B, plan.tile, block, proj=(None, 1, 1))
    k_tiles = tw.size(gA.shape[2])

    if tw.warp_id() == CONSUMERS:
        produce(gA, gB, sA, sB, full, empty, k_tiles, plan)
    else:
        gC = tw.local_tile(C, plan.tile, block, proj=(1, 1, None))
        consume(gC, sA, sB, full, empty, k_tiles, plan)


@tw.function
def produce(gA, gB, sA, sB, full, empty, k_tiles, plan):
    """Fill the stages, one tile of K after another."""
    copier = plan.fill.get_slice(tw.lane_id())
    tAgA, tAsA = copier.partition_S(gA), copier.partition_D(sA)
    tBgB, tBsB = copier.partition_S(gB), copier.partition_D(sB)
    for k_tile in range(k_tiles):
        stage, turn = k_tile % plan.stages, k_tile // plan.stages
        empty[stage].wait((turn + 1) % 2)
        tw.copy(plan.fill, tAgA[:, :, :, k_tile], tAsA[:, :, :, stage])
        tw.copy(plan.fill, tBgB[:, :, :, k_tile], tBsB[:, :, :, stage])
        full[stage].cp_async_arrive()


@tw.function
def consume(gC, sA, sB, full, empty, k_tiles, plan):
    """Multiply what the stages hold, and store the sums."""
    tid = tw.thread_idx.x
    thread = plan.mma.get_slice(tid)
    rA, rB = thread.partition_fragment_A(sA[:, :, 0]), thread.partition_fragment_B(sB[:, :, 0])
    acc = thread.partition_fragment_C(gC)
    tw.clear(acc)
    loader_a, loader_b = plan.load_a.get_slice(tid), plan.load_b.get_slice(tid)
    tLsA, tLrA = loader_a.partition_S(sA), loader_a.retile_D(rA)
    tLsB, tLrB = loader_b.partition_S(sB), loader_b.retile_D(rB)

    for k_tile in range(k_tiles):
        stage, turn = k_tile % plan.stages, k_tile // plan.stages
        full[stage].wait(turn % 2)
        for k in tw.static_range(tw.size(rA.shape[2])):
            tw.copy(plan.load_a, tLsA[:, :, k, stage], tLrA[:, :, k])
            tw.copy(plan.load_b, tLsB[:, :, k, stage], tLrB[:, :, k])
            tw.gemm(plan.mma, acc, rA[:, :, k], rB[:, :, k], acc)
        tw.sync_warp()  # all lanes have read
        if tw.elect_one():
            empty[stage].arrive()

    tw.copy(acc, thread.partition_C(gC))


MMA_OF = {tw.float16: tw.atoms.SM80_16x8x16_F32F16F16F32_TN, tw.bfloat16: tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN}


@cache
def plan_for(dtype: tw.DType, stages: int = 4) -> Plan:
    """Return the plan for an element type: tiles of 128 x 128 x 32."""
    tile = m, n, k = (128, 128, 32)
    mma = tw.make_tiled_mma(MMA_OF[dtype], (2, 2, 1), (32, 32, 16))
    # 16-byte parts of a row change places with the row's number, so that ldmatrix meets every bank once.
    rows = tw.ComposedLayout(tw.Swizzle(2, 3, 3), 0, tw.Layout((8, k), (k, 1)))
    copier = tw.make_tiled_copy(
        tw.atoms.CpAsync(128, cache="global"), tw.Layout((8, k // 8), (k // 8, 1)), tw.Layout((1, 8))
    )
    return Plan(
        tile,
        stages,
        tw.tile_to_shape(rows, (m, k, stages)),
        tw.tile_to_shape(rows, (n, k, stages)),
        copier,
        tw.make_tiled_copy_A(tw.atoms.SM75_U32x4_LDSM_N, mma),
        tw.make_tiled_copy_B(tw.atoms.SM75_U32x4_LDSM_N, mma),
        mma,
    )


def matmul(C, A, B, stages: int = 4) -> None:
    """Compute C = A B^T for float16 or bfloat16 of extents that are multiples of the tile."""
    plan = plan_for(describe(A).dtype, stages)
    (m, n), k = C.shape, A.shape[1]
    if m % plan.tile[0] or n % plan.tile[1] or k % plan.tile[2]:
        raise ValueError(f"{m} x {n} x {k} is not a multiple of the tile {plan.tile}")
    matmul_warp_specialised[(n // plan.tile[1], m // plan.tile[0]), THREADS](C, A, B, plan)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases: the element types, and a short ring."""
    extents = (256, 256, 192) if quick else (4096, 4096, 4096)
    # NumPy has no bfloat16 of its own, and only its own types are brought to a GPU.
    dtypes: tuple[Any, ...] = (np.float16, ml_dtypes.bfloat16) if backend == "sim" else (np.float16,)
    return [_case(dtype, extents, stages, backend) for dtype in dtypes for stages in (2, 4)]


def _case(dtype: Any, extents: tuple[int, int, int], stages: int, backend: Backend) -> Case:
    m, n, k = extents

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        a, b = (random.standard_normal((rows, k), dtype=np.float32).astype(dtype) for rows in (m, n))
        A, B, C = put(a, backend), put(b, backend), put(np.full((m, n), np.nan, np.float32), backend)
        expected = a.astype(np.float32) @ b.astype(np.float32).T
        # A tensor core cuts its sums where a multiply-add rounds them, so errors add up instead of cancelling.
        limit = k * 2.0**-23 * 16
        library = (lambda: A @ B.T) if hasattr(A, "data_ptr") else None
        return Trial(lambda: matmul(C, A, B, stages), lambda: fetch(C), expected, limit, library)

    name = f"warp-specialised, {tw.dtype(dtype)}, {stages} stages"
    return Case(name, f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)


def example_matmul_warp_specialised():
    """Return grid, block and arguments for `tilewright show ...05_warp_specialised.py:matmul_warp_specialised`."""
    matrix, out = tw.spec(tw.bfloat16, (4096, 4096)), tw.spec(tw.float32, (4096, 4096))
    return (32, 32), THREADS, (out, matrix, matrix, plan_for(tw.bfloat16))


if __name__ == "__main__":
    main(cases)
