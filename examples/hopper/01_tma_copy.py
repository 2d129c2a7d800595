"""Copy and transpose a matrix by TMA, the unit of Hopper GPUs that copies whole tiles for one thread.

Up to now all threads of a block copied a tile together, each with its own addresses. Here one thread starts the copy
of the tile and goes on. It names the tile by its coordinates; where the matrix lies, its extents and its strides stand
in a tensor map that the host made for the launch. Two things follow from that:

- The copy knows where the matrix ends. What lies outside arrives as zeros, and is not written: no predicates.
- The copy is done when its bytes have arrived. `full`, an mbarrier, was told how many they are (`arrive_expect_tx`),
  and `full.wait(0)` returns when so many have come.

A store goes the other way. Its thread closes a group (`tw.tma_store_commit`) and waits until the tile has been read
(`tw.tma_store_wait`): before that, shared memory must not change, and the block must not end.

`copy` takes tiles of 16 rows of 256 floats, the longest rows that one box has: memory is read and written in runs of
1 KiB, and a row that begins between two sectors of 32 bytes has few of them at its ends.

`transpose` changes the tile between the two, by ordinary loads and stores. TMA reaches shared memory by a way of its
own, the async proxy, so the threads that wrote run `tw.fence_proxy_async()` before the barrier behind which one of them
starts the store. Rows of 128 bytes are swizzled as the hardware does it: 16-byte chunk c of row r stands at chunk
c ^ (r % 8). A thread turns 4 x 4 elements. The 8 threads that shared memory serves at once take blocks along a
diagonal, so that they meet 8 different chunks when they read, and 8 when they write. Blocks that follow one another
go down the source, so that their tiles lie side by side in the result: what is written in one run counts more than
what is read in one (0.96 of a copy's rate, and 0.91 the other way).

Run it: `python examples/hopper/01_tma_copy.py`
"""

from collections.abc import Callable

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put

# 64 x 64 floats as two columns of rows of 128 bytes, each row swizzled.
ROWS = tw.ComposedLayout(tw.Swizzle(3, 2, 3), 0, tw.Layout((8, 32), (32, 1)))
TILE = (64, 64)
SMEM = tw.tile_to_shape(ROWS, TILE)
THREADS = 256
WIDE_TILE = (16, 256)
WIDE = tw.row_major(WIDE_TILE)


@tw.kernel
def copy(dst, src, tile: tw.constexpr, layout: tw.constexpr):
    """Copy one tile: a single thread starts both copies, and no element passes through registers."""
    smem, full = tw.shared(src.dtype, layout), tw.mbarrier(1)
    i, j = tw.block_idx.y, tw.block_idx.x
    if tw.thread_idx.x == 0:  # the thread that made the barrier
        full.arrive_expect_tx(tw.size(layout) * src.dtype.bytes)
        tw.copy(tw.atoms.SM90_TMA_LOAD, tw.local_tile(src, tile, (i, j), guard=True), smem, barrier=full)
        full.wait(0)
        tw.copy(tw.atoms.SM90_TMA_STORE, smem, tw.local_tile(dst, tile, (i, j), guard=True))
        tw.tma_store_commit()
        tw.tma_store_wait(0)


@tw.kernel
def transpose(dst, src, tile: tw.constexpr, layout: tw.constexpr):
    """Transpose one square tile of 4-byte elements."""
    smem, turned = tw.shared(src.dtype, layout), tw.shared(src.dtype, layout)
    full = tw.mbarrier(1)
    tw.sync_threads()  # the barrier is there for all threads
    i, j = tw.block_idx.x, tw.block_idx.y
    if tw.thread_idx.x == 0:
        full.arrive_expect_tx(tw.size(layout) * src.dtype.bytes)
        tw.copy(tw.atoms.SM90_TMA_LOAD, tw.local_tile(src, tile, (i, j), guard=True), smem, barrier=full)
    full.wait(0)

    blocks = tile[0] // 4
    column = tw.thread_idx.x % blocks
    row = (column + tw.thread_idx.x // blocks) % blocks  # along a diagonal
    part = tw.local_tile(smem, (4, 4), (row, column))
    values = tw.registers(src.dtype, tw.row_major((4, 4)))
    tw.copy(part, values)
    exchanged = tw.registers(src.dtype, tw.row_major((4, 4)))
    for r in tw.static_range(4):
        for c in tw.static_range(4):
            exchanged[c, r] = values[r, c]
    tw.copy(exchanged, tw.local_tile(turned, (4, 4), (column, row)))

    tw.fence_proxy_async()  # the store sees what this thread wrote
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        tw.copy(tw.atoms.SM90_TMA_STORE, turned, tw.local_tile(dst, tile, (j, i), guard=True))
        tw.tma_store_commit()
        tw.tma_store_wait(0)


def launch_copy(dst, src) -> None:
    """Copy a float32 matrix of any extents, whose rows begin at multiples of 16 bytes."""
    rows, columns = src.shape
    grid = tw.ceil_div(columns, WIDE_TILE[1]), tw.ceil_div(rows, WIDE_TILE[0])
    copy[grid, 32](dst, src, WIDE_TILE, WIDE)


def launch_transpose(dst, src) -> None:
    """Transpose a float32 matrix of any extents, where rows of both begin at multiples of 16 bytes."""
    rows, columns = src.shape
    transpose[(tw.ceil_div(rows, TILE[0]), tw.ceil_div(columns, TILE[1])), THREADS](dst, src, TILE, SMEM)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases: tiles that fit, and tiles that overhang."""
    extents = [(256, 512), (200, 324)] if quick else [(8192, 8192), (8000, 8100)]
    return [_case(transposed, shape, backend) for transposed in (False, True) for shape in extents]


def _case(transposed: bool, shape: tuple[int, int], backend: Backend) -> Case:
    launch: Callable[..., None] = launch_transpose if transposed else launch_copy

    def prepare() -> Trial:
        host = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        expected = host.T if transposed else host
        src, dst = put(host, backend), put(np.full(expected.shape, np.nan, np.float32), backend)
        library = (lambda: dst.copy_(src.t() if transposed else src)) if hasattr(dst, "copy_") else None
        return Trial(lambda: launch(dst, src), lambda: fetch(dst), expected, limit=0.0, library=library)

    name = f"TMA {'transpose' if transposed else 'copy'}, {'whole' if shape[0] % 64 == 0 else 'overhanging'} tiles"
    return Case(name, f"{shape[0]} x {shape[1]} float32", prepare, bytes_moved=2 * 4 * shape[0] * shape[1])


def example_copy():
    """Return grid, block and arguments for `tilewright show examples/hopper/01_tma_copy.py:copy`."""
    matrix = tw.spec(tw.float32, (8192, 8192))
    return (32, 512), 32, (matrix, matrix, WIDE_TILE, WIDE)


def example_transpose():
    """Return grid, block and arguments for `tilewright show examples/hopper/01_tma_copy.py:transpose`."""
    matrix = tw.spec(tw.float32, (8192, 8192))
    return (128, 128), THREADS, (matrix, matrix, TILE, SMEM)


if __name__ == "__main__":
    main(cases)
