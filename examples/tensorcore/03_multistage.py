"""Multiply half-precision matrices on tensor cores, with several tiles of K under way: C[m, n] = sum A[m, k] B[n, k].

A block computes 128 x 256 of C with 8 warps, 64 x 64 each. Three things run at the same time:

- asynchronous copies bring the tiles of the rounds to come into a ring of stages in shared memory (`tw.pipeline`);
- ldmatrix brings the next 16 of K from shared memory into registers, four 8 x 8 matrices an instruction;
- the tensor cores multiply the 16 of K that are in registers, with float32 sums.

The tiles lie swizzled in shared memory: 16-byte parts of a row change places with the row's number, so that neither
the copies, which write along rows, nor ldmatrix, which reads down columns, meet two parts in one bank.

At the end the sums pass through shared memory, where the stages were, and leave in rows of 16-byte stores.

A and B are float16 or bfloat16, each contiguous along K or along M (or N), where ldmatrix transposes on the way; C is
contiguous along N, of their type or float32. M, N and K are multiples of the tile.

Run it: `python examples/tensorcore/03_multistage.py`
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe


@dataclass(frozen=True)
class Plan:
    """The tiles and how they are copied and multiplied: everything that the kernel knows at compile time."""

    tile: tuple[int, int, int]
    stages: int
    smem_a: tw.ComposedLayout  # (M, K, stages)
    smem_b: tw.ComposedLayout  # (N, K, stages)
    smem_c: tw.Layout
    copy_a: tw.TiledCopy  # global to shared memory
    copy_b: tw.TiledCopy
    copy_c: tw.TiledCopy  # shared to global memory
    load_a: tw.TiledCopy  # shared memory to fragments
    load_b: tw.TiledCopy
    mma: tw.TiledMMA


@tw.kernel
def matmul_multistage(C, A, B, plan: tw.constexpr):
    """Compute one tile of C."""
    sA, sB = tw.shared(A.dtype, plan.smem_a), tw.shared(B.dtype, plan.smem_b)
    # The grid is (a group of M, N, groups of M): blocks that run at the same time share rows of A and of B.
    block = (tw.block_idx.z * tw.grid_dim.x + tw.block_idx.x, tw.block_idx.y, None)
    gA = tw.local_tile(A, plan.tile, block, proj=(1, None, 1))  # (M, K, tiles of K)
    gB = tw.local_tile(B, plan.tile, block, proj=(None, 1, 1))
    gC = tw.local_tile(C, plan.tile, block, proj=(1, 1, None))

    tid = tw.thread_idx.x
    copier_a, copier_b = plan.copy_a.get_slice(tid), plan.copy_b.get_slice(tid)
    tAgA, tAsA = copier_a.partition_S(gA), copier_a.partition_D(sA)
    tBgB, tBsB = copier_b.partition_S(gB), copier_b.partition_D(sB)

    # Fragments of all steps of a tile's K; ldmatrix sees the same registers in its own order.
    thread = plan.mma.get_slice(tid)
    rA, rB = thread.partition_fragment_A(sA[:, :, 0]), thread.partition_fragment_B(sB[:, :, 0])
    acc = thread.partition_fragment_C(gC)
    tw.clear(acc)
    loader_a, loader_b = plan.load_a.get_slice(tid), plan.load_b.get_slice(tid)
    tLsA, tLrA = loader_a.partition_S(sA), loader_a.retile_D(rA)
    tLsB, tLrB = loader_b.partition_S(sB), loader_b.retile_D(rB)

    k_tiles, steps = tw.size(gA.shape[2]), tw.size(rA.shape[2])
    pipe = tw.pipeline(plan.stages)
    for k_tile in tw.static_range(pipe.ahead):
        tw.copy(plan.copy_a, tAgA[:, :, :, k_tile], tAsA[:, :, :, k_tile], pred=k_tile < k_tiles)
        tw.copy(plan.copy_b, tBgB[:, :, :, k_tile], tBsB[:, :, :, k_tile], pred=k_tile < k_tiles)
        pipe.commit()
    pipe.wait()
    tw.copy(plan.load_a, tLsA[:, :, 0, 0], tLrA[:, :, 0])
    tw.copy(plan.load_b, tLsB[:, :, 0, 0], tLrB[:, :, 0])

    for k_tile in range(k_tiles):
        stage = pipe.read_stage(k_tile)
        for k in tw.static_range(steps):
            if k == steps - 1:  # the next fragments are those of the next tile
                pipe.wait()
                stage = pipe.read_stage(k_tile + 1)
            following = (k + 1) % steps
            tw.copy(plan.load_a, tLsA[:, :, following, stage], tLrA[:, :, following])
            tw.copy(plan.load_b, tLsB[:, :, following, stage], tLrB[:, :, following])
            if k == 0:
                # Past the last tile the copies fill with zeros, so that the loop needs no branch.
                coming, free = k_tile + pipe.ahead, pipe.write_stage(k_tile)
                tw.copy(plan.copy_a, tAgA[:, :, :, coming], tAsA[:, :, :, free], pred=coming < k_tiles)
                tw.copy(plan.copy_b, tBgB[:, :, :, coming], tBsB[:, :, :, free], pred=coming < k_tiles)
                pipe.commit()
            tw.gemm(plan.mma, acc, rA[:, :, k], rB[:, :, k], acc)

    pipe.drain()
    sC = tw.shared(C.dtype, plan.smem_c)
    rC = tw.fragment_like(acc, C.dtype)
    for i in tw.range(tw.size(acc), unroll=True):
        rC[i] = acc[i]
    tw.copy(rC, thread.partition_C(sC))
    tw.sync_threads()
    storer = plan.copy_c.get_slice(tid)
    tw.copy(plan.copy_c, storer.partition_S(sC), storer.partition_D(gC))


THREADS = 256
GROUP = 32  # tiles along M that are computed before the next along N; the best of 8, 16 and 32 on an H200
MMA_OF = {tw.float16: tw.atoms.SM80_16x8x16_F32F16F16F32_TN, tw.bfloat16: tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN}


@cache
def plan_for(
    dtype: tw.DType,
    out_dtype: tw.DType,
    tile: tuple[int, int, int] = (128, 256, 32),
    stages: int = 4,
    majors: str = "KK",
) -> Plan:
    """Return the plan for element types, a tile of 128 x 256 or 128 x 128 by 32 or 64, and the majors of A and B."""
    m, n, k = tile
    # Each warp takes two atoms of 8 columns at a time, as many as one ldmatrix of four matrices fills.
    warps = (2, 4, 1)
    mma = tw.make_tiled_mma(MMA_OF[dtype], warps, (32, 64, 16))
    rows_a, copy_a, load_a = operand(k, is_k_major=majors[0] == "K")
    rows_b, copy_b, load_b = operand(k, is_k_major=majors[1] == "K")
    # A row of a tile of C is stored by neighbouring threads, 16 bytes each.
    vector = 128 // out_dtype.bits
    copy_c = tw.make_tiled_copy(
        tw.atoms.UniversalCopy(128),
        tw.Layout((THREADS * vector // n, n // vector), (n // vector, 1)),
        tw.Layout((1, vector)),
    )
    return Plan(
        tile,
        stages,
        tw.tile_to_shape(rows_a, (m, k, stages)),
        tw.tile_to_shape(rows_b, (n, k, stages)),
        # Padded by 8: the eight rows that a warp writes at once begin in different banks.
        tw.Layout((m, n), (n + 8, 1)),
        copy_a,
        copy_b,
        copy_c,
        tw.make_tiled_copy_A(load_a, mma),
        tw.make_tiled_copy_B(load_b, mma),
        mma,
    )


def operand(k: int, *, is_k_major: bool) -> tuple[tw.ComposedLayout, tw.TiledCopy, tw.atoms.CopyAtom]:
    """Return how 8 rows of a tile lie in shared memory, how it is filled, and the atom that reads it.

    A row is what is contiguous in memory, up to 64 elements: all 32 banks. Its parts of 16 bytes change places with
    the row's number; rows of 32 elements are half of the banks, and two of them share one order.

    >>> print(operand(32, is_k_major=True)[0], operand(32, is_k_major=False)[0])
    Sw<2,3,3> o 0 o (8,32):(32,1) Sw<3,3,3> o 0 o (64,8):(1,64)
    """
    atom = tw.atoms.CpAsync(128, cache="global")
    if is_k_major:
        parts, threads = {32: 2, 64: 3}[k], tw.Layout((THREADS * 8 // k, k // 8), (k // 8, 1))
        rows = tw.ComposedLayout(tw.Swizzle(parts, 3, 3), 0, tw.Layout((8, k), (k, 1)))
        return rows, tw.make_tiled_copy(atom, threads, tw.Layout((1, 8))), tw.atoms.SM75_U32x4_LDSM_N
    rows = tw.ComposedLayout(tw.Swizzle(3, 3, 3), 0, tw.Layout((64, 8), (1, 64)))
    threads = tw.Layout((16, THREADS // 16))
    return rows, tw.make_tiled_copy(atom, threads, tw.Layout((8, 1))), tw.atoms.SM75_U16x8_LDSM_T


def matmul(C, A, B, tile: tuple[int, int, int] = (128, 256, 32), stages: int = 4) -> None:
    """Compute C = A B^T for float16 or bfloat16 of extents that are multiples of the tile."""
    (m, n), k = C.shape, A.shape[1]
    if m % tile[0] or n % tile[1] or k % tile[2]:
        raise ValueError(f"{m} x {n} x {k} is no multiple of the tile {tile}")
    majors = "".join("K" if describe(x).strides[1] == 1 else "M" for x in (A, B))
    plan = plan_for(describe(A).dtype, describe(C).dtype, tile, stages, majors)
    tiles_m, tiles_n = m // tile[0], n // tile[1]
    group = math.gcd(tiles_m, GROUP)
    matmul_multistage[(group, tiles_n, tiles_m // group), THREADS](C, A, B, plan)


@dataclass(frozen=True)
class Variant:
    """What a case computes."""

    name: str
    dtype: Any = np.float16  # Any: NumPy's idea of an element type
    out_dtype: Any = np.float16
    tile: tuple[int, int, int] = (128, 256, 32)
    stages: int = 4
    majors: str = "KK"


VARIANTS = (
    Variant("float16"),
    Variant("64 of K", tile=(128, 256, 64), stages=3),
    Variant("128 x 128", out_dtype=np.float32, tile=(128, 128, 32), stages=3),
    Variant("A by columns", majors="MK"),
    Variant("B by columns", majors="KM"),
    Variant("both by columns", majors="MM"),
)
# NumPy has no bfloat16 of its own, and only its own types are brought to a GPU.
BFLOAT16 = Variant("bfloat16", ml_dtypes.bfloat16, np.float32)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases: element types, tiles, and what is contiguous."""
    extents = (256, 512, 192) if quick else (4096, 4096, 4096)
    variants = (*VARIANTS, BFLOAT16) if backend == "sim" else VARIANTS
    return [_case(variant, extents, backend) for variant in variants]


def _case(variant: Variant, extents: tuple[int, int, int], backend: Backend) -> Case:
    m, n, k = extents

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        a, b = (
            np.array(random.standard_normal((rows, k), dtype=np.float32), order="C" if major == "K" else "F")
            for rows, major in zip((m, n), variant.majors, strict=True)
        )
        a, b = (x.astype(variant.dtype, order="K") for x in (a, b))
        A, B, C = put(a, backend), put(b, backend), put(np.full((m, n), np.nan, variant.out_dtype), backend)
        expected = a.astype(np.float32) @ b.astype(np.float32).T
        # The result is rounded once; results are a few times sqrt(k). Then the rounding of the float32 sums.
        # A tensor core cuts its sums where a multiply-add rounds them, so errors add up instead of cancelling.
        limit = 8 * k**0.5 * float(ml_dtypes.finfo(variant.out_dtype).eps) + k * 2.0**-23 * 16
        library = (lambda: A @ B.T) if hasattr(A, "data_ptr") else None
        return Trial(lambda: matmul(C, A, B, variant.tile, variant.stages), lambda: fetch(C), expected, limit, library)

    return Case(f"multistage, {variant.name}", f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)


def example_matmul_multistage():
    """Return grid, block and arguments for `tilewright show examples/tensorcore/03_multistage.py:matmul_multistage`."""
    matrix = tw.spec(tw.bfloat16, (4096, 4096))
    return (GROUP, 16, 2), THREADS, (matrix, matrix, matrix, plan_for(tw.bfloat16, tw.bfloat16))


if __name__ == "__main__":
    main(cases)
