"""Multiply float32 matrices in TF32 on tensor cores: C[m, n] = sum over k of A[m, k] * B[n, k].

The kernel is `matmul_double_buffered` of 03_matmul.py with another atom: two tiles of K in shared memory, filled by
asynchronous copies, and two steps of K in registers. Four warps compute 128 x 128 of C.

- The atoms of 2 x 2 warps cover 32 x 16 of C. The permutation (32, 32, 8) makes that 32 x 32: each warp takes two
  atoms along N, and then the B operand of a step is four 8 x 8 matrices, one ldmatrix.
- A is contiguous along M and B along K. ldmatrix wants rows of K, and transposes elements of 16 bits only, so the
  fragments of A are read by ordinary loads.

Both are free of bank conflicts: columns of A are padded by 8 floats, so that the four columns of K that a warp reads
begin in banks 0, 8, 16 and 24; and rows of B, half of the banks, have their 16-byte parts swapped by the row's number.

M and N are multiples of 128, K of 16.

Run it: `python examples/tensorcore/02_tf32_double_buffered.py`
"""

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put

TILE_M, TILE_N, TILE_K = 128, 128, 16

MMA = tw.make_tiled_mma(tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN, (2, 2, 1), (32, 32, 8))
LOAD_B = tw.make_tiled_copy_B(tw.atoms.SM75_U32x4_LDSM_N, MMA)

# 128 threads, 16 bytes each: 32 threads along a column of A; 4 along a row of B.
COPY_A = tw.make_tiled_copy(tw.atoms.CpAsync(128, cache="global"), tw.Layout((32, 4)), tw.Layout((4, 1)))
COPY_B = tw.make_tiled_copy(tw.atoms.CpAsync(128, cache="global"), tw.Layout((32, 4), (4, 1)), tw.Layout((1, 4)))

SMEM_A = tw.Layout((TILE_M, TILE_K, 2), (1, TILE_M + 8, TILE_K * (TILE_M + 8)))
ROWS_B = tw.ComposedLayout(tw.Swizzle(2, 2, 3), 0, tw.Layout((8, TILE_K), (TILE_K, 1)))
SMEM_B = tw.tile_to_shape(ROWS_B, (TILE_N, TILE_K, 2))


@tw.kernel
def matmul_tf32(C, A, B):
    """Keep two tiles in shared memory and two steps of K in registers."""
    sA, sB = tw.shared(A.dtype, SMEM_A), tw.shared(B.dtype, SMEM_B)
    tile, block = (TILE_M, TILE_N, TILE_K), (tw.block_idx.x, tw.block_idx.y, None)
    gA = tw.local_tile(A, tile, block, proj=(1, None, 1))  # (TILE_M, TILE_K, tiles of K)
    gB = tw.local_tile(B, tile, block, proj=(None, 1, 1))
    gC = tw.local_tile(C, tile, block, proj=(1, 1, None))

    tid = tw.thread_idx.x
    copier_a, copier_b = COPY_A.get_slice(tid), COPY_B.get_slice(tid)
    tAgA, tAsA = copier_a.partition_S(gA), copier_a.partition_D(sA)
    tBgB, tBsB = copier_b.partition_S(gB), copier_b.partition_D(sB)

    thread, loader_b = MMA.get_slice(tid), LOAD_B.get_slice(tid)
    rA, rB = thread.partition_fragment_A(sA[:, :, 0]), thread.partition_fragment_B(sB[:, :, 0])
    tCsA = thread.partition_A(sA)
    tLsB, tLrB = loader_b.partition_S(sB), loader_b.retile_D(rB)
    tCgC = thread.partition_C(gC)
    acc = thread.make_fragment_C(tCgC)
    tw.clear(acc)

    k_tiles, steps = tw.size(gA.shape[2]), tw.size(rA.shape[2])
    pipe = tw.pipeline(stages=2)
    tw.copy(COPY_A, tAgA[:, :, :, 0], tAsA[:, :, :, 0])
    tw.copy(COPY_B, tBgB[:, :, :, 0], tBsB[:, :, :, 0])
    pipe.commit()
    pipe.wait()
    tw.copy(tCsA[:, :, 0, 0], rA[:, :, 0])
    tw.copy(LOAD_B, tLsB[:, :, 0, 0], tLrB[:, :, 0])

    for k_tile in range(k_tiles):
        stage = pipe.read_stage(k_tile)
        for k in tw.static_range(steps):
            if k == steps - 1:  # the next fragments are those of the next tile
                pipe.wait()
                stage = pipe.read_stage(k_tile + 1)
            following = (k + 1) % steps
            tw.copy(tCsA[:, :, following, stage], rA[:, :, following])
            tw.copy(LOAD_B, tLsB[:, :, following, stage], tLrB[:, :, following])
            if k == 0:
                # Past the last tile the copies fill with zeros, so that the loop needs no branch.
                coming, free = k_tile + pipe.ahead, pipe.write_stage(k_tile)
                tw.copy(COPY_A, tAgA[:, :, :, coming], tAsA[:, :, :, free], pred=coming < k_tiles)
                tw.copy(COPY_B, tBgB[:, :, :, coming], tBsB[:, :, :, free], pred=coming < k_tiles)
                pipe.commit()
            tw.gemm(MMA, acc, rA[:, :, k], rB[:, :, k], acc)
    tw.copy(acc, tCgC)


def matmul(C, A, B) -> None:
    """Compute C = A B^T for A contiguous along M, B along K, and extents that are multiples of the tile."""
    (m, n), k = C.shape, A.shape[1]
    if m % TILE_M or n % TILE_N or k % TILE_K:
        raise ValueError(f"{m} x {n} x {k} is not a multiple of the tile {TILE_M} x {TILE_N} x {TILE_K}")
    matmul_tf32[(m // TILE_M, n // TILE_N), MMA.size](C, A, B)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the one case, at the size of the tutorials."""
    m, n, k = (256, 256, 64) if quick else (2048, 2048, 256)

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        a = np.asfortranarray(random.standard_normal((m, k), dtype=np.float32))
        b = random.standard_normal((n, k), dtype=np.float32)
        A, B, C = put(a, backend), put(b, backend), put(np.full((m, n), np.nan, np.float32), backend)
        expected = a.astype(np.float64) @ b.astype(np.float64).T
        # Each operand loses up to one part in 1024 if it is cut off, and the losses are independent.
        limit = 2.0**-10 * k**0.5 * 16
        library = (lambda: A @ B.T) if hasattr(A, "data_ptr") else None
        return Trial(lambda: matmul(C, A, B), lambda: fetch(C), expected, limit, library)

    return [Case("TF32, double-buffered", f"{m} x {n} x {k} float32", prepare, flops=2 * m * n * k)]


def example_matmul_tf32():
    """Return grid, block and arguments for `tilewright show`."""
    by_columns, by_rows = tw.spec(tw.float32, (2048, 256), stride=(1, 2048)), tw.spec(tw.float32, (2048, 256))
    return (16, 16), MMA.size, (tw.spec(tw.float32, (2048, 2048)), by_columns, by_rows)


if __name__ == "__main__":
    main(cases)
