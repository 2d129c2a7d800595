"""Copy a matrix through shared memory, tile by tile.

The smallest kernel that shows how the parts go together. Each block copies one tile: its threads bring the tile
into shared memory and write it out again. `copy_elements` says so with a loop over single elements,
`copy_tiles` with `tw.copy`, which picks 16-byte asynchronous copies where layouts and alignment allow them.

Run it: `python examples/01_copy.py`
"""

from collections.abc import Callable

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put


@tw.kernel
def copy_elements(dst, src, smem_layout: tw.constexpr, threads: tw.constexpr):
    """Copy one tile with a loop over the elements that a thread owns."""
    smem = tw.shared(src.dtype, smem_layout)
    tile = smem_layout.shape
    block = (tw.block_idx.y, tw.block_idx.x)
    g_src, g_dst = tw.local_tile(src, tile, block), tw.local_tile(dst, tile, block)

    tid = tw.thread_idx.x
    t_src = tw.local_partition(g_src, threads, tid)
    t_dst = tw.local_partition(g_dst, threads, tid)
    t_smem = tw.local_partition(smem, threads, tid)
    for i in range(t_smem.size):
        t_smem[i] = t_src[i]
    # Each thread reads back what it wrote itself, so no barrier is needed.
    for i in range(t_smem.size):
        t_dst[i] = t_smem[i]


@tw.kernel
def copy_tiles(dst, src, smem_layout: tw.constexpr, tiled_copy: tw.constexpr):
    """Copy one tile with `tw.copy`; a tiled copy says which thread moves what."""
    smem = tw.shared(src.dtype, smem_layout)
    tile = smem_layout.shape
    block = (tw.block_idx.y, tw.block_idx.x)
    g_src, g_dst = tw.local_tile(src, tile, block), tw.local_tile(dst, tile, block)

    thread = tiled_copy.get_slice(tw.thread_idx.x)
    t_smem = thread.partition_D(smem)
    tw.copy(thread.partition_S(g_src), t_smem)
    tw.cp_async_wait()
    tw.copy(t_smem, thread.partition_D(g_dst))


TILE = (32, 32)
THREADS = tw.Layout((8, 32), (32, 1))  # 8 rows of 32: neighbouring threads read neighbouring columns

# Rows of shared memory follow one another, or are padded so that a column too falls into different banks. Padding
# by one float is the usual choice; 16-byte accesses need rows that begin on 16 bytes, so there it is four.
PLAIN = tw.Layout(TILE, (32, 1))
PADDED = tw.Layout(TILE, (33, 1))
PADDED_BY_VECTOR = tw.Layout(TILE, (36, 1))

# 32 rows of 8 threads, each with 4 neighbouring floats: one 16-byte access a thread.
TILED_COPY = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout((32, 8), (8, 1)), tw.Layout((1, 4)))

# The same over larger tiles, 64 x 64: four accesses a thread are under way at once, and keep the memory busy.
LARGE = tw.Layout((64, 64), (64, 1))
LARGE_COPY = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout((16, 16), (16, 1)), tw.Layout((1, 4)))


def launch_elements(dst, src, smem_layout: tw.Layout = PLAIN) -> None:
    """Copy a matrix whose extents are multiples of 32."""
    rows, columns = src.shape
    copy_elements[(columns // 32, rows // 32), THREADS.size](dst, src, smem_layout, THREADS)


def launch_tiles(dst, src, smem_layout: tw.Layout = PLAIN, tiled_copy: tw.TiledCopy = TILED_COPY) -> None:
    """Copy a matrix whose extents are multiples of the tile, given by the layout of shared memory."""
    (rows, columns), (tile_rows, tile_columns) = src.shape, smem_layout.shape
    copy_tiles[(columns // tile_columns, rows // tile_rows), tiled_copy.size](dst, src, smem_layout, tiled_copy)


def launch_fast(dst, src) -> None:
    """Copy a matrix whose extents are multiples of 64."""
    launch_tiles(dst, src, LARGE, LARGE_COPY)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: both kernels, with and without padding, and larger tiles."""
    n = 512 if quick else 2048
    variants: list[tuple[str, Callable[..., None], tw.Layout]] = [
        ("copy, element loops", launch_elements, PLAIN),
        ("copy, element loops, padded", launch_elements, PADDED),
        ("copy, tw.copy", launch_tiles, PLAIN),
        ("copy, tw.copy, padded", launch_tiles, PADDED_BY_VECTOR),
    ]
    found = [
        _case(name, lambda dst, src, launch=launch, layout=layout: launch(dst, src, layout), n, backend)
        for name, launch, layout in variants
    ]
    return [*found, _case("copy, tw.copy, larger tiles", launch_fast, n, backend)]


def _case(name: str, launch: Callable[..., None], n: int, backend: Backend) -> Case:
    def prepare() -> Trial:
        host = np.random.default_rng(0).standard_normal((n, n), dtype=np.float32)
        src, dst = put(host, backend), put(np.full_like(host, np.nan), backend)
        library = (lambda: dst.copy_(src)) if hasattr(dst, "copy_") else None
        return Trial(lambda: launch(dst, src), lambda: fetch(dst), host, limit=0.0, library=library)

    return Case(name, f"{n} x {n} float32", prepare, bytes_moved=2 * 4 * n * n)


def example_copy_elements():
    """Return grid, block and arguments for `tilewright show examples/01_copy.py:copy_elements`."""
    matrix = tw.spec(tw.float32, (2048, 2048))
    return (64, 64), THREADS.size, (matrix, matrix, PLAIN, THREADS)


def example_copy_tiles():
    """Return grid, block and arguments for `tilewright show examples/01_copy.py:copy_tiles`."""
    matrix = tw.spec(tw.float32, (2048, 2048))
    return (64, 64), TILED_COPY.size, (matrix, matrix, PLAIN, TILED_COPY)


if __name__ == "__main__":
    main(cases)
