"""Transpose a matrix: dst[j, i] = src[i, j].

A transpose reads rows and writes columns, and global memory wants both to be rows. Shared memory turns one into
the other: a block reads a tile by rows and writes it out by columns of the tile. How the tile is laid out in
shared memory decides the speed, and nothing else in the kernel changes:

- `TRANSPOSED`: the tile is stored transposed. Threads that write it hit one bank 32 times.
- `PADDED`: a row takes 33 floats, so that a column falls into 32 different banks.
- `SWIZZLED`: 64 x 64 floats whose 16-byte chunks are permuted from row to row. No bank is hit twice, rows stay
  aligned, and both sides of global memory are accessed 16 bytes a thread (`transpose_fast`).

Run it: `python examples/02_transpose.py`
"""

from collections.abc import Callable

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put


@tw.kernel
def transpose(dst, src, smem_layout: tw.constexpr, threads: tw.constexpr):
    """Transpose one 32 x 32 tile, an element at a time. `smem_layout` is the layout of the tile of `src`."""
    smem = tw.shared(src.dtype, smem_layout)
    rows, columns = smem_layout.shape
    i, j = tw.block_idx.y, tw.block_idx.x
    g_src = tw.local_tile(src, (rows, columns), (i, j))
    g_dst = tw.local_tile(dst, (columns, rows), (j, i))

    tid = tw.thread_idx.x
    tw.copy(tw.local_partition(g_src, threads, tid), tw.local_partition(smem, threads, tid))
    tw.cp_async_wait()
    tw.sync_threads()
    tw.copy(tw.local_partition(smem.T, threads, tid), tw.local_partition(g_dst, threads, tid))


@tw.kernel
def transpose_fast(dst, src, smem_layout: tw.constexpr, load: tw.constexpr, store: tw.constexpr):
    """Transpose one tile with 16-byte accesses on both sides of global memory.

    A thread collects four elements of a column in registers and writes them as one vector.
    """
    smem = tw.shared(src.dtype, smem_layout)
    rows, columns = smem_layout.shape
    i, j = tw.block_idx.y, tw.block_idx.x
    g_src = tw.local_tile(src, (rows, columns), (i, j))
    g_dst = tw.local_tile(dst, (columns, rows), (j, i))

    loader, storer = load.get_slice(tw.thread_idx.x), store.get_slice(tw.thread_idx.x)
    tw.copy(load, loader.partition_S(g_src), loader.partition_D(smem))
    tw.cp_async_wait()
    tw.sync_threads()

    t_dst = storer.partition_D(g_dst)
    values = tw.fragment_like(t_dst)
    tw.copy(storer.partition_S(smem.T), values)
    tw.copy(values, t_dst)


TILE = (32, 32)
THREADS = tw.Layout((8, 32), (32, 1))  # 8 rows of 32: neighbouring threads access neighbouring columns
TRANSPOSED = tw.Layout(TILE, (1, 32))
PADDED = tw.Layout(TILE, (33, 1))

# Chunk c of row r (16 bytes each) stands at chunk c ^ (r / 4 % 8): Swizzle(3 bits, above the 2 bits inside a chunk,
# taken 6 bits higher: 64 floats a row, rows in groups of 4).
SWIZZLED = tw.composition(tw.Swizzle(3, 2, 6), tw.Layout((64, 64), (64, 1)))
# Loading, 16 threads cover a row of 64 floats. Storing, 8 threads cover 32 neighbours of a row of dst, and a warp
# 4 rows, so that its 32 reads of shared memory go to 32 banks.
LOAD = tw.make_tiled_copy(tw.atoms.CpAsync(128, cache="global"), tw.Layout((16, 16), (16, 1)), tw.Layout((1, 4)))
STORE = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout((32, 8), (8, 1)), tw.Layout((1, 4)))


def launch(dst, src, smem_layout: tw.Layout = PADDED) -> None:
    """Transpose a matrix whose extents are multiples of 32."""
    rows, columns = src.shape
    transpose[(columns // 32, rows // 32), THREADS.size](dst, src, smem_layout, THREADS)


def launch_fast(dst, src) -> None:
    """Transpose a float32 matrix whose extents are multiples of 64."""
    rows, columns = src.shape
    transpose_fast[(columns // 64, rows // 64), LOAD.size](dst, src, SWIZZLED, LOAD, STORE)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: one a layout of shared memory."""
    n = 512 if quick else 2048
    variants: list[tuple[str, Callable[..., None]]] = [
        ("transpose, tile transposed", lambda dst, src: launch(dst, src, TRANSPOSED)),
        ("transpose, padded", launch),
        ("transpose, swizzled, 16 bytes", launch_fast),
    ]
    return [_case(name, function, n, backend) for name, function in variants]


def _case(name: str, function: Callable[..., None], n: int, backend: Backend) -> Case:
    def prepare() -> Trial:
        host = np.random.default_rng(0).standard_normal((n, n), dtype=np.float32)
        src, dst = put(host, backend), put(np.full_like(host, np.nan), backend)
        library = (lambda: dst.copy_(src.t())) if hasattr(dst, "copy_") else None
        return Trial(lambda: function(dst, src), lambda: fetch(dst), host.T, limit=0.0, library=library)

    return Case(name, f"{n} x {n} float32", prepare, bytes_moved=2 * 4 * n * n)


def example_transpose():
    """Return grid, block and arguments for `tilewright show examples/02_transpose.py:transpose`."""
    matrix = tw.spec(tw.float32, (2048, 2048))
    return (64, 64), THREADS.size, (matrix, matrix, PADDED, THREADS)


def example_transpose_fast():
    """Return grid, block and arguments for `tilewright show examples/02_transpose.py:transpose_fast`."""
    matrix = tw.spec(tw.float32, (2048, 2048))
    return (32, 32), LOAD.size, (matrix, matrix, SWIZZLED, LOAD, STORE)


if __name__ == "__main__":
    main(cases)
