"""Inclusive prefix sum of a vector of any length, in one pass: y[i] = x[0] + ... + x[i].

Every element is read once and written once. A block sums up one tile, publishes the sum of the tile, and then looks
back for the sums of the tiles before it ("Single-pass Parallel Prefix Scan with Decoupled Look-back", Merrill and
Garland, 2016). What is done about the time that looking back takes:

- As many blocks run as the GPU holds at once, and each goes through every `blocks`-th tile. It sums up and publishes
  its next tile before it looks back for this one: the sums that it asks for were published a whole tile ago, so
  that it hardly ever waits. The sums are taken again where they are needed, from shared memory.
- A block knows the prefix of its tile before, and adds the sums of the `blocks` tiles from there on. The first warp
  reads them at once, and adds them in an order that the numbers of elements and blocks alone decide: equal input gives
  equal bits on every run. (The paper's blocks publish their prefix too, and stop at the first one that they meet.
  Which one that is depends on timing, and with it the rounding of float sums.)
- A status word of 64 bits holds a sum and the flag that it is there (0 means not yet). One access reads or writes
  both, so that no fence is needed: nothing else is handed over.

Blocks wait for each other, so all of them have to be on the GPU at once: the launch is cooperative, and refused where
they are not. A thread has 4 vectors of four elements, 8 KB apart, so that every access of a warp is 512 bytes. Their
sums are scanned over the block as one tuple, which takes one barrier. The vector's end may be anywhere: the tiles are
guarded. The share of a copy on an H200 is 0.90; a tile a block, which looks back for the sums of blocks that run at
the same time, reaches 0.81.

Run it: `python examples/kernels/prefix_sum.py`
"""

from typing import Any

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe

THREADS, VECTORS, EACH = 512, 4, 4
TILE = THREADS * VECTORS * EACH
PARTS = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout(THREADS), tw.Layout(EACH))
PUBLISHED = 1 << 32  # a status word with a sum of 0


@tw.function
def publish(status, tile, total):
    """Let all blocks see the sum of a tile."""
    if tw.thread_idx.x == 0 and tile < status.shape[0]:
        tw.store(status, tile, total.bitcast(tw.uint32).to(tw.uint64) | PUBLISHED)


@tw.function
def sum_between(status, first, last, dtype: tw.constexpr, blocks: tw.constexpr):
    """Return the sum of the tiles first, ..., last - 1 to a warp, once all are published; at most `blocks` tiles."""
    tiles, total = [first + i + tw.lane_id() for i in range(0, blocks, 32)], dtype(0)
    words = [tw.load(status, tile) if (tile >= 0) & (tile < last) else PUBLISHED for tile in tiles]
    for tile, word in zip(tiles, words, strict=True):
        while word == 0:
            word = tw.load(status, tile)
        total += word.to(tw.uint32).bitcast(dtype)
    return tw.reduce(total, group="warp")


@tw.function
def running_sums(values):
    """Return the sums of the first elements of a vector, of the first two, and so on."""
    sums = +values
    for i in tw.static_range(1, tw.size(values.shape)):
        sums[i] += sums[i - 1]
    return sums


@tw.kernel
def prefix_sum(y, x, status, blocks: tw.constexpr):
    """Load a tile, sum up the one before, and write the one before that; the words of `status` are 0 before."""
    thread, ring, prefix = PARTS.get_slice(tw.thread_idx.x), tw.shared(x.dtype, 3 * TILE), x.dtype(0)

    def part(tensor, tile):  # a thread reads what it copied itself: no barrier
        return thread.partition_S(tw.local_tile(tensor, (TILE,), tile, guard=tensor is not ring))

    for step in range(tw.ceil_div(status.shape[0], blocks) + 2):
        tile, last = (tw.block_idx.x + (step - behind) * blocks for behind in (0, 2))
        tw.cp_async_wait()
        tw.copy(part(x, tile), part(ring, step % 3))
        if step >= 1:
            publish(status, last + blocks, tw.reduce(part(ring, (step - 1) % 3).reduce("add")))
        if step >= 2 and last < status.shape[0]:
            values = part(ring, (step - 2) % 3)
            parts = tuple(values[:, n].reduce("add") for n in range(VECTORS))
            sums, totals = tw.scan(parts, exclusive=True, with_total=True)
            is_first = tw.warp_id() == 0
            prefix += tw.broadcast(sum_between(status, last - blocks, last, x.dtype, blocks) if is_first else 0)
            before = prefix
            for n in tw.static_range(VECTORS):
                part(y, last)[:, n] = running_sums(values[:, n]) + (before + sums[n])
                before += totals[n]


PERSISTENT = prefix_sum.configure(min_blocks=2, cooperative=True)  # on each multiprocessor: 64 registers a thread


def launch(y, x, status=None, blocks: int | None = None) -> None:
    """Write the prefix sums of x, int32 or float32, to y.

    `status` may be given, an array of `workspace_shape(x.shape[0])`, int64 and zero before each launch; `blocks` too,
    at most as many as the GPU holds at once, which is how many there are without it.
    """
    status = _zeros(workspace_shape(x.shape[0]), x) if status is None else status
    if blocks is None:
        kind = describe(x).dtype, getattr(x, "device", None)
        if kind not in _resident:
            _resident[kind] = PERSISTENT[1, THREADS].resident_blocks(y, x, status, 1)
        blocks = max(1, min(status.shape[0], _resident[kind]))
    PERSISTENT[blocks, THREADS](y, x, status, blocks)


_resident: dict[tuple[tw.DType, Any], int] = {}  # by element type and device


def workspace_shape(size: int) -> tuple[int]:
    """Return the shape of the status words: one for each tile."""
    return (tw.ceil_div(size, TILE),)


def _zeros(shape: tuple[int, int], like: Any) -> Any:  # Any: arrays of NumPy, torch or our own
    if hasattr(like, "new_zeros"):
        import torch

        return like.new_zeros(shape, dtype=torch.int64)
    return put(np.zeros(shape, np.int64), "sim" if isinstance(like, np.ndarray) else "cuda")


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: both element types, a length that nothing divides."""
    size = 140_003 if quick else (1 << 28) - 3
    return [_case(size, dtype, backend, quick) for dtype in (np.float32, np.int32)]


def _case(size: int, dtype: type, backend: Backend, quick: bool) -> Case:
    def prepare() -> Trial:
        # Small integers, and a sum that float32 holds: every addition is exact, in whatever order.
        host = np.random.default_rng(0).integers(-9, 10, size, np.int8).astype(dtype)
        x, y = put(host, backend), put(np.full_like(host, 7), backend)
        expected = host.cumsum(dtype=dtype)
        library = (lambda: x.cumsum(0, dtype=x.dtype)) if hasattr(x, "data_ptr") else None
        blocks = 5 if quick else None  # so that each has several tiles
        return Trial(lambda: launch(y, x, blocks=blocks), lambda: fetch(y), expected, limit=0.0, library=library)

    return Case("prefix sum", f"{size} {np.dtype(dtype).name}", prepare, bytes_moved=8 * size)


def example_prefix_sum():
    """Return grid, block and arguments for `tilewright show examples/kernels/prefix_sum.py:prefix_sum`."""
    vector, status = tw.spec(tw.float32, (1 << 28,)), tw.spec(tw.int64, workspace_shape(1 << 28))
    return 264, THREADS, (vector, vector, status, 264)


if __name__ == "__main__":
    main(cases)
