"""Inclusive prefix sum of a vector of any length, in one pass: y[i] = x[0] + ... + x[i].

Every element is read once and written once. A block sums up one tile, publishes the sum of the tile, and then looks
back for the sums of the tiles before it ("Single-pass Parallel Prefix Scan with Decoupled Look-back", Merrill and
Garland, 2016). Three things make that work:

- A block waits only for blocks of lower numbers. GPUs start blocks in the order of their numbers (CUB's scan relies on
  it too), so those run already, and all of them come to an end.
- A status word of 64 bits holds a sum and the flag that it is there (0 means not yet). One access reads or writes
  both, so that no fence is needed: nothing else is handed over.
- Sums are published for tiles, for groups of 32 tiles, for groups of 1024 tiles, and so on. The first warp reads up
  to 31 words of each level at once, which is all that there is before a tile.

The paper's blocks publish their prefix too, and stop at the first prefix that they meet. Which one that is depends on
timing, and with it the rounding of float sums. The groups are what is different here: the tree of additions is that of
the length alone, so that equal input gives equal bits, on every run and in the simulator. A block at the start of
a group waits for one exchange more for each level that begins there.

A thread has 12 vectors of four elements, 8 KB apart, so that every access of a warp is 512 bytes. Their sums are
scanned over the block as one tuple, which takes one barrier. The vector's end may be anywhere: the tiles are guarded.
What hides the time that blocks wait is that other blocks read: 192 KB are on their way to a multiprocessor, in two
blocks with their tiles in shared memory. The share of a copy on an H200: 0.64 with 96 KB in registers and tiles that
are numbered by an atomic counter (the paper's), 0.78 in shared memory, 0.81 without the counter. Blocks that go from
tile to tile and load the next one ahead reach 0.52.

Run it: `python examples/kernels/prefix_sum.py`
"""

from typing import Any

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put

THREADS, VECTORS, EACH = 512, 12, 4
TILE = THREADS * VECTORS * EACH
PARTS = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout(THREADS), tw.Layout(EACH))
PUBLISHED = 1 << 32  # a status word with a sum of 0


@tw.function
def look_back(status, tile, total, levels: tw.constexpr):
    """Publish the sum of a tile and of the groups that it completes, and return the sum of all tiles before it."""
    lane, before = tw.lane_id(), total.dtype(0)
    nodes = [tile // 32**level for level in range(levels)]
    words = [tw.load(status, (i, n - n % 32 + lane)) if lane < n % 32 else PUBLISHED for i, n in enumerate(nodes)]
    for level, (node, word) in enumerate(zip(nodes, words, strict=True)):
        if lane == 0 and tile == (node + 1) * 32**level - 1:
            tw.store(status, (level, node), (before + total).bitcast(tw.uint32).to(tw.uint64) | PUBLISHED)
        while word == 0:
            word = tw.load(status, (level, node - node % 32 + lane))
        before = tw.reduce(word.to(tw.uint32).bitcast(total.dtype), group="warp") + before
    return before


@tw.kernel
def prefix_sum(y, x, status, levels: tw.constexpr):
    """Sum up one tile, and add the sum of all tiles before it; the words of `status` are 0 before."""
    thread, tile = PARTS.get_slice(tw.thread_idx.x), tw.block_idx.x
    x_part, y_part = (thread.partition_S(tw.local_tile(t, (TILE,), tile, guard=True)) for t in (x, y))
    values = thread.partition_D(tw.shared(x.dtype, TILE))  # a thread reads what it copied itself: no barrier
    tw.copy(x_part, values)
    tw.cp_async_wait()
    sums, totals = tw.scan(tuple(values[:, n].reduce("add") for n in range(VECTORS)), exclusive=True, with_total=True)
    before = tw.broadcast(look_back(status, tile, sum(totals, x.dtype(0)), levels) if tw.warp_id() == 0 else 0)
    for n in tw.static_range(VECTORS):
        vector = +values[:, n]
        for i in tw.static_range(1, EACH):
            vector[i] += vector[i - 1]
        y_part[:, n] = vector + (before + sums[n])
        before += totals[n]


TWO_BLOCKS = prefix_sum.configure(min_blocks=2)  # on each multiprocessor: 64 registers a thread


def launch(y, x, status=None) -> None:
    """Write the prefix sums of x, int32 or float32, to y; `status` may be given, an array of `workspace_shape`."""
    shape = workspace_shape(x.shape[0])
    TWO_BLOCKS[shape[1], THREADS](y, x, _zeros(shape, x) if status is None else status, shape[0])


def workspace_shape(size: int) -> tuple[int, int]:
    """Return the shape of the status words, int64 and zero before each launch: levels by tiles."""
    tiles, levels = tw.ceil_div(size, TILE), 1
    while 32**levels < tiles:
        levels += 1
    return levels, tiles


def _zeros(shape: tuple[int, int], like: Any) -> Any:  # Any: arrays of NumPy, torch or our own
    if hasattr(like, "new_zeros"):
        import torch

        return like.new_zeros(shape, dtype=torch.int64)
    return put(np.zeros(shape, np.int64), "sim" if isinstance(like, np.ndarray) else "cuda")


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: both element types, a length that nothing divides."""
    size = 140_003 if quick else (1 << 28) - 3
    return [_case(size, dtype, backend) for dtype in (np.float32, np.int32)]


def _case(size: int, dtype: type, backend: Backend) -> Case:
    def prepare() -> Trial:
        # Small integers, and a sum that float32 holds: every addition is exact, in whatever order.
        host = np.random.default_rng(0).integers(-9, 10, size, np.int8).astype(dtype)
        x, y = put(host, backend), put(np.full_like(host, 7), backend)
        expected = host.cumsum(dtype=dtype)
        library = (lambda: x.cumsum(0, dtype=x.dtype)) if hasattr(x, "data_ptr") else None
        return Trial(lambda: launch(y, x), lambda: fetch(y), expected, limit=0.0, library=library)

    return Case("prefix sum", f"{size} {np.dtype(dtype).name}", prepare, bytes_moved=8 * size)


def example_prefix_sum():
    """Return grid, block and arguments for `tilewright show examples/kernels/prefix_sum.py:prefix_sum`."""
    vector, shape = tw.spec(tw.float32, (1 << 28,)), workspace_shape(1 << 28)
    return shape[1], THREADS, (vector, vector, tw.spec(tw.int64, shape), shape[0])


if __name__ == "__main__":
    main(cases)
