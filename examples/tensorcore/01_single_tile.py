"""Multiply one tile by one tensor-core instruction: C[m, n] = sum over 8 k of A[m, k] * B[n, k], 16 x 8, in TF32.

An mma instruction takes its operands from the registers of a whole warp, and prescribes which lane holds what:
`tw.draw.svg(MMA)` shows it.

- `single_tile`: each lane reads what it is to hold straight from global memory, as `partition_A` and its like say.
- `single_tile_ldmatrix`: the tiles come to shared memory first, and ldmatrix deals them out: a lane gives the address
  of a row of 16 bytes and is given elements of eight rows. So one thread has two views of the same tile: the rows that
  it names (`partition_S` of the copy), and the registers that it gets. The latter are the mma's fragment, which
  `retile_D` arranges in the order in which the copy fills it.

TF32 is float32 of which the instruction reads 19 bits: sign, exponent and 10 bits of fraction.

Run it: `python examples/tensorcore/01_single_tile.py`
"""

from collections.abc import Callable

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put

M, N, K = 16, 8, 8
WARP = 32


@tw.kernel
def single_tile(C, A, B, mma: tw.constexpr):
    """Read the fragments from global memory, multiply, write the result."""
    thread = mma.get_slice(tw.thread_idx.x)
    tCgA, tCgB, tCgC = thread.partition_A(A), thread.partition_B(B), thread.partition_C(C)  # (values, 1, 1)
    rA, rB, acc = thread.make_fragment_A(tCgA), thread.make_fragment_B(tCgB), thread.make_fragment_C(tCgC)
    tw.copy(tCgA, rA)
    tw.copy(tCgB, rB)
    tw.clear(acc)
    tw.gemm(mma, acc, rA, rB, acc)
    tw.copy(acc, tCgC)


@tw.kernel
def single_tile_ldmatrix(
    C,
    A,
    B,
    copy_a: tw.constexpr,
    copy_b: tw.constexpr,
    load_a: tw.constexpr,
    load_b: tw.constexpr,
    mma: tw.constexpr,
):
    """Bring the tiles to shared memory, and the fragments from there by ldmatrix."""
    sA, sB = tw.shared(A.dtype, SMEM_A), tw.shared(B.dtype, SMEM_B)
    tid = tw.thread_idx.x
    copier_a, copier_b = copy_a.get_slice(tid), copy_b.get_slice(tid)
    tw.copy(copy_a, copier_a.partition_S(A), copier_a.partition_D(sA))
    tw.copy(copy_b, copier_b.partition_S(B), copier_b.partition_D(sB))
    tw.cp_async_wait()
    tw.sync_threads()

    thread, loader_a, loader_b = mma.get_slice(tid), load_a.get_slice(tid), load_b.get_slice(tid)
    rA, rB = thread.partition_fragment_A(sA), thread.partition_fragment_B(sB)
    tw.copy(load_a, loader_a.partition_S(sA), loader_a.retile_D(rA))
    tw.copy(load_b, loader_b.partition_S(sB), loader_b.retile_D(rB))

    tCgC = thread.partition_C(C)
    acc = thread.make_fragment_C(tCgC)
    tw.clear(acc)
    tw.gemm(mma, acc, rA, rB, acc)
    tw.copy(acc, tCgC)


MMA = tw.make_tiled_mma(tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN)

# Two lanes share a row of A with 16 bytes each; B has half as many rows, and its lanes take 8 bytes.
COPY_A = tw.make_tiled_copy(tw.atoms.CpAsync(128), tw.Layout((16, 2), (2, 1)), tw.Layout((1, 4)))
COPY_B = tw.make_tiled_copy(tw.atoms.CpAsync(64), tw.Layout((8, 4), (4, 1)), tw.Layout((1, 2)))

# Rows of 8 floats; from every other four rows on, the two halves of a row change places. So the eight rows of four
# floats that ldmatrix reads at once are in 32 different banks.
SMEM_A, SMEM_B = (tw.ComposedLayout(tw.Swizzle(1, 2, 3), 0, tw.row_major((rows, K))) for rows in (M, N))

# A matrix of ldmatrix has 8 rows of 16 bytes, here 4 floats: A is four of them, B two.
LOAD_A = tw.make_tiled_copy_A(tw.atoms.SM75_U32x4_LDSM_N, MMA)
LOAD_B = tw.make_tiled_copy_B(tw.atoms.SM75_U32x2_LDSM_N, MMA)


def plain(C, A, B) -> None:
    """Compute C = A B^T for one tile, from global memory."""
    single_tile[1, WARP](tw.static(C), tw.static(A), tw.static(B), MMA)


def by_ldmatrix(C, A, B) -> None:
    """Compute C = A B^T for one tile, through shared memory."""
    arrays = tw.static(C), tw.static(A), tw.static(B)
    single_tile_ldmatrix[1, WARP](*arrays, COPY_A, COPY_B, LOAD_A, LOAD_B, MMA)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the two cases; a tile is small enough to be quick."""
    return [_case("TF32 tile", plain, backend), _case("TF32 tile, ldmatrix", by_ldmatrix, backend)]


def _case(name: str, function: Callable[..., None], backend: Backend) -> Case:
    def prepare() -> Trial:
        random = np.random.default_rng(0)
        a, b = (random.standard_normal((rows, K), dtype=np.float32) for rows in (M, N))
        A, B, C = put(a, backend), put(b, backend), put(np.full((M, N), np.nan, np.float32), backend)
        expected = a.astype(np.float64) @ b.astype(np.float64).T
        # Each operand loses up to one part in 1024, if it is cut off.
        limit = float((np.abs(a) @ np.abs(b).T).max()) * 2.0**-9
        return Trial(lambda: function(C, A, B), lambda: fetch(C), expected, limit)

    return Case(name, f"{M} x {N} x {K} float32", prepare, flops=2 * M * N * K)


def _example(*more: object):
    a, b, c = tw.spec(tw.float32, (M, K)), tw.spec(tw.float32, (N, K)), tw.spec(tw.float32, (M, N))
    return 1, WARP, (tw.static(c), tw.static(a), tw.static(b), *more, MMA)


def example_single_tile():
    """Return grid, block and arguments for `tilewright show`."""
    return _example()


def example_single_tile_ldmatrix():
    """Return grid, block and arguments for `tilewright show`."""
    return _example(COPY_A, COPY_B, LOAD_A, LOAD_B)


if __name__ == "__main__":
    main(cases)
