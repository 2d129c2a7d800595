"""Compute y = a * x + b for a float16 matrix of any extents, with 16-byte accesses wherever they are legal.

A matrix is cut into tiles, and the last tiles of its rows and columns overhang. `guard=True` lets the tiles know: their
elements outside of the matrix read as zero, and are not written. Nothing else in the kernel says so.

What that costs: a block asks once whether its tile is inside. If so, it reads and writes as without a guard, 16
bytes an access; if not, each access has a predicate. Rows whose extent is a multiple of 8 elements are accessed by
whole vectors at the edge too. Rows of 8190 elements begin at multiples of 4 bytes only, so that wider accesses than 4
bytes are never legal in such a matrix: give matrices a row stride of a multiple of 8 elements, and the extent does
not matter.

`guard=False` gives the kernel for extents that the tile divides: `benchmarks/edges.py` measures one against the other.

Run it: `tilewright demo examples/kernels/elementwise.py`, or `python examples/kernels/elementwise.py`
"""

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put


@tw.kernel
def multiply_add(y, x, a: tw.float32, b: tw.float32, tiles: tw.constexpr, guard: tw.constexpr):
    """Compute one tile, 32 x 256 elements: 4 rows of 8 elements a thread."""
    block, thread = (tw.block_idx.y, tw.block_idx.x), tiles.get_slice(tw.thread_idx.x)
    x_part = thread.partition_S(tw.local_tile(x, tiles.tile_shape, block, guard=guard))
    y_part = thread.partition_D(tw.local_tile(y, tiles.tile_shape, block, guard=guard))
    y_part[...] = a * x_part + b


# 8 rows of 32 threads, each with 4 rows of 8 elements: a warp reads 512 bytes of a row at once.
TILES = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout((8, 32), (32, 1)), tw.Layout((4, 8), (8, 1)))


def launch(y, x, a: float, b: float, guard: bool = True) -> None:
    """Compute y = a * x + b."""
    (rows, columns), (tile_rows, tile_columns) = x.shape, TILES.tile_shape
    grid = (tw.ceil_div(columns, tile_columns), tw.ceil_div(rows, tile_rows))
    multiply_add[grid, TILES.size](y, x, a, b, TILES, guard)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: extents that the tile divides, and extents that it does not."""
    shapes = [(256, 512), (255, 510), (33, 1000)] if quick else [(8192, 8192), (8191, 8190), (8191, 8184)]
    return [_case(shape, backend) for shape in shapes]


def _case(shape: tuple[int, int], backend: Backend) -> Case:
    def prepare() -> Trial:
        host = np.random.default_rng(0).integers(-512, 512, shape).astype(np.float16) / np.float16(256)
        x, y = put(host, backend), put(np.full_like(host, np.nan), backend)
        expected = (np.float32(0.5) * host.astype(np.float32) + np.float32(0.25)).astype(np.float16)
        return Trial(lambda: launch(y, x, 0.5, 0.25), lambda: fetch(y), expected, limit=0.0)

    rows, columns = shape
    return Case("a * x + b, guarded tiles", f"{rows} x {columns} float16", prepare, bytes_moved=4 * rows * columns)


def example_multiply_add():
    """Return grid, block and arguments for `tilewright show examples/kernels/elementwise.py:multiply_add`."""
    matrix = tw.spec(tw.float16, (8192, 8192))
    return (32, 256), TILES.size, (matrix, matrix, 0.5, 0.25, TILES, True)


if __name__ == "__main__":
    main(cases)
