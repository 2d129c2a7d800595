"""Multiply half-precision matrices with a ring of stages that TMA fills: C[m, n] = sum A[m, k] B[n, k].

The fifth warp of examples/tensorcore/05_warp_specialised.py brought tiles of K by cp.async: 32 threads, 8 copies each.
Here one of its lanes starts two bulk copies for each stage, and that is all. The other four warps multiply on tensor
cores, 64 x 64 each, as before.

`tw.pipeline(stages, consumers=4, bytes=n)` is the ring: an mbarrier `full` for each stage, which is told of the bytes
that its copies bring, and an mbarrier `empty`, at which one lane of each consumer warp arrives when the warp has read
the stage. A state says which stage is next and in which phase; loops carry it as they carry a number:

    with state.fill() as (stage, full):     the producer waits until the stage is empty, and announces its bytes
    with state.read() as stage:             a warp waits until the stage is full; behind it, it gives the stage back

No fence stands between what TMA wrote and the loads of the consumers, nor between these loads and the copy that fills
the stage again: the mbarriers order both.

Rows of 64 elements are 128 bytes, swizzled as TMA does it, so that ldmatrix meets every bank once. Tiles may overhang:
TMA fills up with zeros, which add nothing. K is a multiple of 8, because rows begin at multiples of 16 bytes.

Run it: `python examples/hopper/03_ring.py`
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
    load_a: tw.TiledCopy  # shared memory to fragments
    load_b: tw.TiledCopy
    mma: tw.TiledMMA


@tw.kernel
def matmul_ring(C, A, B, plan: tw.constexpr):
    """Compute one tile of C."""
    sA, sB = tw.shared(A.dtype, plan.smem_a), tw.shared(B.dtype, plan.smem_b)
    m, n, k = plan.tile
    ring = tw.pipeline(plan.stages, consumers=CONSUMERS, bytes=(m + n) * k * A.dtype.bytes)
    tw.sync_threads()  # the barriers are there

    block = (tw.block_idx.y, tw.block_idx.x, None)
    k_tiles = tw.ceil_div(A.shape[1], k)
    if tw.warp_id() == CONSUMERS:
        if tw.elect_one():
            gA = tw.local_tile(A, plan.tile, block, proj=(1, None, 1), guard=True)  # (M, K, tiles of K)
            gB = tw.local_tile(B, plan.tile, block, proj=(None, 1, 1), guard=True)
            state = ring.producer()
            for k_tile in range(k_tiles):
                with state.fill() as (stage, full):
                    tw.copy(tw.atoms.SM90_TMA_LOAD, gA[:, :, k_tile], sA[:, :, stage], barrier=full)
                    tw.copy(tw.atoms.SM90_TMA_LOAD, gB[:, :, k_tile], sB[:, :, stage], barrier=full)
    else:
        gC = tw.local_tile(C, plan.tile, block, proj=(1, 1, None), guard=True)
        consume(gC, sA, sB, ring, k_tiles, plan)


@tw.function
def consume(gC, sA, sB, ring, k_tiles, plan):
    """Multiply what the stages hold, and store the sums."""
    tid = tw.thread_idx.x
    thread = plan.mma.get_slice(tid)
    rA, rB = thread.partition_fragment_A(sA[:, :, 0]), thread.partition_fragment_B(sB[:, :, 0])
    acc = thread.partition_fragment_C(gC)
    tw.clear(acc)
    loader_a, loader_b = plan.load_a.get_slice(tid), plan.load_b.get_slice(tid)
    tLsA, tLrA = loader_a.partition_S(sA), loader_a.retile_D(rA)
    tLsB, tLrB = loader_b.partition_S(sB), loader_b.retile_D(rB)

    state = ring.consumer()
    for _ in range(k_tiles):
        with state.read() as stage:
            for k in tw.static_range(tw.size(rA.shape[2])):
                tw.copy(plan.load_a, tLsA[:, :, k, stage], tLrA[:, :, k])
                tw.copy(plan.load_b, tLsB[:, :, k, stage], tLrB[:, :, k])
                tw.gemm(plan.mma, acc, rA[:, :, k], rB[:, :, k], acc)

    tw.copy(acc, thread.partition_C(gC))


MMA_OF = {tw.float16: tw.atoms.SM80_16x8x16_F32F16F16F32_TN, tw.bfloat16: tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN}


@cache
def plan_for(dtype: tw.DType, stages: int = 4) -> Plan:
    """Return the plan for an element type: tiles of 128 x 128 x 64."""
    tile = m, n, k = (128, 128, 64)
    mma = tw.make_tiled_mma(MMA_OF[dtype], (2, 2, 1), (32, 32, 16))
    rows = tw.ComposedLayout(tw.Swizzle(3, 3, 3), 0, tw.Layout((8, k), (k, 1)))
    return Plan(
        tile,
        stages,
        tw.tile_to_shape(rows, (m, k, stages)),
        tw.tile_to_shape(rows, (n, k, stages)),
        tw.make_tiled_copy_A(tw.atoms.SM75_U32x4_LDSM_N, mma),
        tw.make_tiled_copy_B(tw.atoms.SM75_U32x4_LDSM_N, mma),
        mma,
    )


def matmul(C, A, B, stages: int = 4) -> None:
    """Compute C = A B^T for float16 or bfloat16; rows of A and B begin at multiples of 16 bytes."""
    plan = plan_for(describe(A).dtype, stages)
    m, n = C.shape
    matmul_ring[(tw.ceil_div(n, plan.tile[1]), tw.ceil_div(m, plan.tile[0])), THREADS](C, A, B, plan)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases: the element types, a short ring, and tiles that overhang."""
    small, large = (256, 256, 256), (4096, 4096, 4096)
    extents = small if quick else large
    # NumPy has no bfloat16 of its own, and only its own types are brought to a GPU.
    dtypes: tuple[Any, ...] = (np.float16, ml_dtypes.bfloat16) if backend == "sim" else (np.float16,)
    found = [_case(dtype, extents, stages, backend) for dtype in dtypes for stages in (2, 4)]
    return [*found, _case(np.float16, (200, 136, 152) if quick else (4000, 4040, 4024), 3, backend)]


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

    return Case(f"ring, {tw.dtype(dtype)}, {stages} stages", f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)


def example_matmul_ring():
    """Return grid, block and arguments for `tilewright show examples/hopper/03_ring.py:matmul_ring`."""
    matrix, out = tw.spec(tw.bfloat16, (4096, 4096)), tw.spec(tw.float32, (4096, 4096))
    return (32, 32), THREADS, (out, matrix, matrix, plan_for(tw.bfloat16))


if __name__ == "__main__":
    main(cases)
