"""Multiply one tile by a warpgroup: C[m, n] = sum over k of A[m, k] * B[n, k], 64 x 128 x 64, in bfloat16.

wgmma is an instruction of four warps, 128 threads. It reads A and B from shared memory by itself: a thread passes a
descriptor, which says where the tile begins and how it lies, and the sum is spread over the registers of all 128.

- The layouts of shared memory are those that a descriptor can describe: `GMMA_K_SW128` repeats eight rows of 128 bytes,
  whose chunks of 16 bytes are swizzled. `partition_A` and `partition_B` of such memory are what `tw.gemm` takes.
- The tensor cores see shared memory by a way of their own, the async proxy. What threads have written ordinarily, and
  by cp.async, they see behind `tw.fence_proxy_async()` and a barrier.
- The product goes on while the warps do other things. `tw.wgmma_fence` orders what they did with the accumulator before
  it, `tw.wgmma_commit` closes a group of products, and behind `tw.wgmma_wait` the sum is there.

Here the sum begins at zero because `accumulate=False` lets the first product write it; nothing is cleared.

Run it: `python examples/hopper/02_wgmma_tile.py`
"""

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put

M, N, K = 64, 128, 64
WARPGROUP = 128


@tw.kernel
def wgmma_tile(C, A, B, fill: tw.constexpr, mma: tw.constexpr):
    """Bring both tiles to shared memory, multiply them, write the result."""
    sA, sB = tw.shared(A.dtype, SMEM_A), tw.shared(B.dtype, SMEM_B)
    tid = tw.thread_idx.x
    copier = fill.get_slice(tid)
    tw.copy(fill, copier.partition_S(A), copier.partition_D(sA))
    tw.copy(fill, copier.partition_S(B), copier.partition_D(sB))
    tw.cp_async_wait()
    tw.fence_proxy_async()  # what this thread has copied, the tensor cores will see
    tw.sync_threads()

    thread = mma.get_slice(tid)
    tA, tB = thread.partition_A(sA), thread.partition_B(sB)  # views of shared memory: (tile, 1, 4 steps of K)
    tCgC = thread.partition_C(C)
    acc = thread.make_fragment_C(tCgC)
    tw.wgmma_fence()
    tw.gemm(mma, tA, tB, acc, accumulate=False)
    tw.wgmma_commit()
    tw.wgmma_wait(0)
    tw.copy(acc, tCgC)


MMA = tw.make_tiled_mma(tw.atoms.SM90_64x128x16_F32BF16BF16_SS)
SMEM_A = tw.tile_to_shape(tw.atoms.GMMA_K_SW128(tw.bfloat16), (M, K))
SMEM_B = tw.tile_to_shape(tw.atoms.GMMA_K_SW128(tw.bfloat16), (N, K))

# Eight threads copy a row of 128 bytes, 16 bytes each.
FILL = tw.make_tiled_copy(tw.atoms.CpAsync(128, cache="global"), tw.Layout((16, 8), (8, 1)), tw.Layout((1, 8)))


def multiply(C, A, B) -> None:
    """Compute C = A B^T for one tile."""
    wgmma_tile[1, WARPGROUP](tw.static(C), tw.static(A), tw.static(B), FILL, MMA)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the case; a tile is small enough to be quick. On a GPU bfloat16 needs torch."""

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        a, b = (random.standard_normal((rows, K)).astype(ml_dtypes.bfloat16) for rows in (M, N))
        A, B, C = put(a, backend), put(b, backend), put(np.full((M, N), np.nan, np.float32), backend)
        expected = a.astype(np.float64) @ b.astype(np.float64).T
        limit = 2 * K * 2.0**-23 * float((np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T).max())
        return Trial(lambda: multiply(C, A, B), lambda: fetch(C), expected, limit)

    return [Case("wgmma tile", f"{M} x {N} x {K} bfloat16", prepare, flops=2 * M * N * K)]


def example_wgmma_tile():
    """Return grid, block and arguments for `tilewright show`."""
    a, b, c = tw.spec(tw.bfloat16, (M, K)), tw.spec(tw.bfloat16, (N, K)), tw.spec(tw.float32, (M, N))
    return 1, WARPGROUP, (tw.static(c), tw.static(a), tw.static(b), FILL, MMA)


if __name__ == "__main__":
    main(cases)
