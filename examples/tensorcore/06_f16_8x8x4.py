"""Multiply float16 matrices by the first tensor-core instruction: C[m, n] = sum A[m, k] * B[n, k], A and B by columns.

`SM70_8x8x4_F32F16F16F32_NT` is carried out by quad pairs: lanes 0 to 3 with 16 to 19, 4 to 7 with 20 to 23, and so on,
so a warp does four products of 8 x 8 x 4 at once. NT says that A is contiguous along M and B along N: a thread then
holds four neighbours along M (or N) of one k. The layouts are those of the other atoms; only `thr_id` is more than a
lane.

- The atoms of four warps cover 32 x 32 of C. The permutation of M and N makes that 64 x 64, and gives each thread
  eight neighbours: two atoms' operands are one load of 16 bytes. `PERMUTATION` maps (row of four, half of the quad
  pair, atom, part of the eight) to M.
- The next tile comes from global memory into registers while this one is multiplied: sm_70 has no asynchronous copies.
- Columns in shared memory are padded by 16 elements. Eight lanes, which are served at once, ask for four k of two
  atoms: with the padding those are eight different groups of four banks.

M and N are multiples of 128, K of 16. From sm_80 on the instruction is there, but slow: use those of 03_multistage.py.

Run it: `python examples/tensorcore/06_f16_8x8x4.py`
"""

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put

TILE = TILE_M, TILE_N, TILE_K = 128, 128, 16

PERMUTATION = tw.Layout((4, 2, 4, 2), (1, 32, 8, 4))
ATOMS = tw.Layout((4, 4), (4, 1))  # neighbouring quad pairs stand side by side along N
MMA = tw.make_tiled_mma(tw.atoms.SM70_8x8x4_F32F16F16F32_NT, ATOMS, (PERMUTATION, PERMUTATION, 4))

# 128 threads, 16 bytes each: 16 of them along a column, 8 columns at once.
COPY = tw.make_tiled_copy(tw.atoms.UniversalCopy(128), tw.Layout((16, 8)), tw.Layout((8, 1)))
SMEM = tw.Layout((TILE_M, TILE_K), (1, TILE_M + 16))  # of A, and of B, whose tile is as large


@tw.kernel
def matmul_8x8x4(C, A, B):
    """Compute one tile of C; one tile of A and B in shared memory, the next in registers."""
    sA, sB = tw.shared(A.dtype, SMEM), tw.shared(B.dtype, SMEM)
    block = (tw.block_idx.x, tw.block_idx.y, None)
    gA = tw.local_tile(A, TILE, block, proj=(1, None, 1))  # (TILE_M, TILE_K, tiles of K)
    gB = tw.local_tile(B, TILE, block, proj=(None, 1, 1))
    gC = tw.local_tile(C, TILE, block, proj=(1, 1, None))

    tid = tw.thread_idx.x
    copier = COPY.get_slice(tid)
    tAgA, tAsA = copier.partition_S(gA), copier.partition_D(sA)
    tBgB, tBsB = copier.partition_S(gB), copier.partition_D(sB)
    next_a, next_b = tw.fragment_like(tAsA), tw.fragment_like(tBsB)

    thread = MMA.get_slice(tid)
    tCsA, tCsB, tCgC = thread.partition_A(sA), thread.partition_B(sB), thread.partition_C(gC)
    rA, rB = thread.make_fragment_A(tCsA), thread.make_fragment_B(tCsB)
    acc = thread.make_fragment_C(tCgC)
    tw.clear(acc)

    k_tiles, steps = tw.size(gA.shape[2]), tw.size(rA.shape[2])
    tw.copy(COPY, tAgA[:, :, :, 0], next_a)
    tw.copy(COPY, tBgB[:, :, :, 0], next_b)
    for k_tile in range(k_tiles):
        tw.sync_threads()  # the tile before has been read
        tw.copy(COPY, next_a, tAsA)
        tw.copy(COPY, next_b, tBsB)
        tw.sync_threads()
        more = k_tile + 1 < k_tiles
        tw.copy(COPY, tAgA[:, :, :, k_tile + 1], next_a, pred=more)
        tw.copy(COPY, tBgB[:, :, :, k_tile + 1], next_b, pred=more)
        for k in tw.static_range(steps):
            tw.copy(tCsA[:, :, k], rA[:, :, k])
            tw.copy(tCsB[:, :, k], rB[:, :, k])
            tw.gemm(MMA, acc, rA[:, :, k], rB[:, :, k], acc)
    tw.copy(acc, tCgC)


def matmul(C, A, B) -> None:
    """Compute C = A B^T for A contiguous along M, B along N, and extents that are multiples of the tile."""
    (m, n), k = C.shape, A.shape[1]
    if m % TILE_M or n % TILE_N or k % TILE_K:
        raise ValueError(f"{m} x {n} x {k} is not a multiple of the tile {TILE_M} x {TILE_N} x {TILE_K}")
    matmul_8x8x4[(m // TILE_M, n // TILE_N), MMA.size](C, A, B)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the one case."""
    m, n, k = (256, 256, 64) if quick else (2048, 2048, 256)

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        a, b = (np.asfortranarray(random.standard_normal((rows, k)).astype(np.float16)) for rows in (m, n))
        A, B, C = put(a, backend), put(b, backend), put(np.full((m, n), np.nan, np.float32), backend)
        expected = a.astype(np.float64) @ b.astype(np.float64).T
        # Products are exact; each step of a sum loses at most 2^-23 of its largest addend.
        limit = float((np.abs(a.astype(np.float32)) @ np.abs(b.astype(np.float32)).T).max()) * 2 * k * 2.0**-23
        return Trial(lambda: matmul(C, A, B), lambda: fetch(C), expected, limit)

    return [Case("float16, 8 x 8 x 4", f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)]


def example_matmul_8x8x4():
    """Return grid, block and arguments for `tilewright show`."""
    matrix = tw.spec(tw.float16, (2048, 256), stride=(1, 2048))
    return (16, 16), MMA.size, (tw.spec(tw.float32, (2048, 2048)), matrix, matrix)


if __name__ == "__main__":
    main(cases)
