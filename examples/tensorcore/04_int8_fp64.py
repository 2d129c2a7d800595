"""Multiply int8 and float64 matrices on tensor cores: C[m, n] = sum over k of A[m, k] * B[n, k].

One kernel serves both: the loop of 03_multistage.py, and sums that go straight to global memory. What differs is data:

- int8 with int32 sums: ldmatrix, which knows only 16-bit elements, carries four bytes of K a register, and that is
  just what the instruction wants.
- float64: ldmatrix cannot deal out 8 bytes, so a fragment is read by ordinary loads, which are a tiled copy too. Four
  lanes read 32 bytes of a row, and four rows are served at once: parts of 32 bytes change places with the row's number.

A and B are contiguous along K, C along N; extents are multiples of the tile.

Run it: `python examples/tensorcore/04_int8_fp64.py`
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.driver import device_properties

THREADS = 256
WARPS = (2, 4, 1)


@dataclass(frozen=True)
class Plan:
    """The tiles and how they are copied and multiplied: everything that the kernel knows at compile time."""

    tile: tuple[int, int, int]
    stages: int
    smem_a: tw.ComposedLayout  # (M, K, stages)
    smem_b: tw.ComposedLayout  # (N, K, stages)
    copy_ab: tw.TiledCopy  # global to shared memory
    load_a: tw.TiledCopy  # shared memory to fragments
    load_b: tw.TiledCopy
    mma: tw.TiledMMA


@tw.kernel
def matmul_planned(C, A, B, plan: tw.constexpr):
    """Compute one tile of C."""
    sA, sB = tw.shared(A.dtype, plan.smem_a), tw.shared(B.dtype, plan.smem_b)
    block = (tw.block_idx.x, tw.block_idx.y, None)
    gA = tw.local_tile(A, plan.tile, block, proj=(1, None, 1))  # (M, K, tiles of K)
    gB = tw.local_tile(B, plan.tile, block, proj=(None, 1, 1))
    gC = tw.local_tile(C, plan.tile, block, proj=(1, 1, None))

    tid = tw.thread_idx.x
    copier = plan.copy_ab.get_slice(tid)
    tAgA, tAsA = copier.partition_S(gA), copier.partition_D(sA)
    tBgB, tBsB = copier.partition_S(gB), copier.partition_D(sB)
    thread = plan.mma.get_slice(tid)
    rA, rB = thread.partition_fragment_A(sA[:, :, 0]), thread.partition_fragment_B(sB[:, :, 0])
    tCgC = thread.partition_C(gC)
    acc = thread.make_fragment_C(tCgC)
    tw.clear(acc)
    loader_a, loader_b = plan.load_a.get_slice(tid), plan.load_b.get_slice(tid)
    tLsA, tLrA = loader_a.partition_S(sA), loader_a.retile_D(rA)
    tLsB, tLrB = loader_b.partition_S(sB), loader_b.retile_D(rB)

    k_tiles, steps = tw.size(gA.shape[2]), tw.size(rA.shape[2])
    pipe = tw.pipeline(plan.stages)
    for k_tile in tw.static_range(pipe.ahead):
        tw.copy(plan.copy_ab, tAgA[:, :, :, k_tile], tAsA[:, :, :, k_tile], pred=k_tile < k_tiles)
        tw.copy(plan.copy_ab, tBgB[:, :, :, k_tile], tBsB[:, :, :, k_tile], pred=k_tile < k_tiles)
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
                tw.copy(plan.copy_ab, tAgA[:, :, :, coming], tAsA[:, :, :, free], pred=coming < k_tiles)
                tw.copy(plan.copy_ab, tBgB[:, :, :, coming], tBsB[:, :, :, free], pred=coming < k_tiles)
                pipe.commit()
            tw.gemm(plan.mma, acc, rA[:, :, k], rB[:, :, k], acc)
    pipe.drain()  # zeros may still be on their way
    tw.copy(acc, tCgC)


def _plan(tile: tuple[int, int, int], stages: int, rows: tw.ComposedLayout, load: Any, mma: tw.TiledMMA) -> Plan:
    m, n, k = tile
    vector = 128 // mma.atom.dtype_a.bits
    copy_ab = tw.make_tiled_copy(
        tw.atoms.CpAsync(128, cache="global"),
        tw.Layout((THREADS * vector // k, k // vector), (k // vector, 1)),
        tw.Layout((1, vector)),
    )
    return Plan(
        tile,
        stages,
        tw.tile_to_shape(rows, (m, k, stages)),
        tw.tile_to_shape(rows, (n, k, stages)),
        copy_ab,
        tw.make_tiled_copy_A(load, mma),
        tw.make_tiled_copy_B(load, mma),
        mma,
    )


INT8 = _plan(
    (128, 256, 64),
    4,
    # Rows of 64 bytes, half of the banks: two of them share one order of their 16-byte parts.
    tw.ComposedLayout(tw.Swizzle(2, 4, 3), 0, tw.Layout((8, 64), (64, 1))),
    tw.atoms.SM75_U32x4_LDSM_N,
    tw.make_tiled_mma(tw.atoms.SM80_16x8x32_S32S8S8S32_TN, WARPS, (32, 64, 32)),
)


def fp64_plan(atom: tw.atoms.MMAAtom) -> Plan:
    """Return the plan for float64 by one of its instructions."""
    # Rows of 128 bytes, all banks.
    rows = tw.ComposedLayout(tw.Swizzle(2, 2, 2), 0, tw.Layout((4, 16), (16, 1)))
    mma = tw.make_tiled_mma(atom, WARPS)
    return _plan((128, 128, 16), 3, rows, tw.atoms.UniversalCopy(64), mma)


FP64 = fp64_plan(tw.atoms.SM80_8x8x4_F64F64F64F64_TN)
FP64_HOPPER = fp64_plan(tw.atoms.SM90_16x8x8_F64F64F64F64_TN)  # four times the work an instruction


def matmul(C, A, B, plan: Plan) -> None:
    """Compute C = A B^T by a plan for the element types and extents that are multiples of its tile."""
    (m, n), k = C.shape, A.shape[1]
    if m % plan.tile[0] or n % plan.tile[1] or k % plan.tile[2]:
        raise ValueError(f"{m} x {n} x {k} is not a multiple of the tile {plan.tile}")
    matmul_planned[(m // plan.tile[0], n // plan.tile[1]), THREADS](C, A, B, plan)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases: both element types; the instruction that begins with Hopper where there is one."""
    cases = [
        _case("int8", INT8, (256, 512, 192) if quick else (4096, 4096, 4096), backend),
        _case("float64", FP64, (256, 256, 64) if quick else (4096, 4096, 4096), backend),
    ]
    if backend == "sim" or device_properties().capability >= (9, 0):
        cases.append(_case("float64, sm_90", FP64_HOPPER, (256, 256, 64) if quick else (4096, 4096, 4096), backend))
    return cases


def _case(name: str, plan: Plan, extents: tuple[int, int, int], backend: Backend) -> Case:
    m, n, k = extents
    exact = plan is INT8

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        if exact:
            a, b = (random.integers(-128, 127, (rows, k), np.int8, endpoint=True) for rows in (m, n))
            out = np.full((m, n), np.iinfo(np.int32).min, np.int32)
        else:
            a, b = (random.standard_normal((rows, k)) for rows in (m, n))
            out = np.full((m, n), np.nan)
        A, B, C = put(a, backend), put(b, backend), put(out, backend)
        # Sums of integers below 2^53 are exact in float64, where NumPy multiplies fastest.
        expected = a.astype(np.float64) @ b.astype(np.float64).T
        limit = 0.0 if exact else k * 2.0**-52 * 4
        library = (lambda: A @ B.T) if hasattr(A, "data_ptr") and not exact else None
        return Trial(lambda: matmul(C, A, B, plan), lambda: fetch(C), expected, limit, library)

    return Case(f"tensor cores, {name}", f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)


def example_matmul_planned():
    """Return grid, block and arguments for `tilewright show`: the plan for int8."""
    matrix = tw.spec(tw.int8, (4096, 4096))
    return (32, 16), THREADS, (tw.spec(tw.int32, (4096, 4096)), matrix, matrix, INT8)


if __name__ == "__main__":
    main(cases)
