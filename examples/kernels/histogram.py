"""Histogram: how often each of 256 values stands in an array of bytes of any length.

Atomic additions to global memory would make all threads of the GPU wait for the same 256 places. So each block counts
in shared memory, where an addition costs little unless lanes of a warp meet at one place, and adds its counts to the
result at the end: 256 global additions for each block, however long the array. Each thread reads 16 bytes at a time.

The last bytes, fewer than 16, are counted one by one by the first block: as part of a guarded vector, what follows
the end of the array would read as zero, and count.

Run it: `python examples/kernels/histogram.py`
"""

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put

BINS, THREADS, BLOCKS = 256, 256, 1056  # eight blocks for each of 132 multiprocessors
EACH = 16  # bytes that a thread reads at a time


@tw.kernel
def clear(counts):
    """Set all counts to 0, by one block of as many threads as there are counts."""
    counts[tw.thread_idx.x] = 0


@tw.kernel
def histogram(counts, x):
    """Add to counts[v] how often v stands in x; a block has a thread for each count."""
    thread, smem = tw.thread_idx.x, tw.shared(tw.int32, BINS)
    smem[thread] = 0
    tw.sync_threads()
    for i in range(tw.block_idx.x * THREADS + thread, x.size // EACH, tw.grid_dim.x * THREADS):
        part = tw.local_tile(x, (EACH,), i, guard=True)
        values = tw.fragment_like(part)
        tw.copy(part, values)
        for n in tw.static_range(EACH):
            tw.atomic_add(smem, values[n].to(tw.int32), 1)
    if tw.block_idx.x == 0 and thread < x.size % EACH:
        tw.atomic_add(smem, x[x.size - 1 - thread].to(tw.int32), 1)
    tw.sync_threads()
    tw.atomic_add(counts, thread, smem[thread])


def launch(counts, x) -> None:
    """Count the values of an array of bytes."""
    clear[1, BINS](counts)
    histogram[min(BLOCKS, tw.ceil_div(x.shape[0], EACH * THREADS)), THREADS](counts, x)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: values that are spread evenly, and values that are mostly small."""
    size = 1 << (16 if quick else 26)
    return [_case(name, size, scale, backend) for name, scale in (("even", None), ("mostly small", 20.0))]


def _case(name: str, size: int, scale: float | None, backend: Backend) -> Case:
    def prepare() -> Trial:
        random = np.random.default_rng(0)
        if scale is None:
            host = random.integers(0, BINS, size, np.uint8)
        else:
            host = np.minimum(random.exponential(scale, size), BINS - 1).astype(np.uint8)
        x, counts = put(host, backend), put(np.full(BINS, -1, np.int32), backend)
        library = (lambda: x.int().bincount(minlength=BINS)) if hasattr(x, "bincount") else None
        expected = np.bincount(host, minlength=BINS).astype(np.int32)
        return Trial(lambda: launch(counts, x), lambda: fetch(counts), expected, limit=0.0, library=library)

    return Case(f"histogram, {name}", f"{size} bytes", prepare, bytes_moved=size)


def example_histogram():
    """Return grid, block and arguments for `tilewright show examples/kernels/histogram.py:histogram`."""
    return BLOCKS, THREADS, (tw.spec(tw.int32, (BINS,)), tw.spec(tw.uint8, (1 << 28,)))


if __name__ == "__main__":
    main(cases)
