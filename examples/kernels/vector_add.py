"""Add two vectors of any length: z = x + y.

Each thread adds four neighbours with 16-byte accesses. The length need not be a multiple of four, nor of the 1024
elements of a block: the tiles are guarded. Only the last block looks where the vectors end, and there only the thread
in whose four elements they do goes from element to element.

Run it: `python examples/kernels/vector_add.py`
"""

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put


@tw.kernel
def vector_add(z, x, y):
    """Add the elements of one block, four a thread."""
    tiles = [tw.local_tile(t, (BLOCK * 4,), (tw.block_idx.x,), guard=True) for t in (x, y, z)]
    a, b, c = [tw.local_tile(t, (4,), (tw.thread_idx.x,)) for t in tiles]
    c[...] = a + b


@tw.kernel
def vector_add_elements(z, x, y):
    """Add one element a thread: an element outside of a guarded tensor reads as zero and is not written."""
    i = tw.block_idx.x * BLOCK + tw.thread_idx.x
    tw.guarded(z)[i] = tw.guarded(x)[i] + tw.guarded(y)[i]


BLOCK = 256


def launch(z, x, y) -> None:
    """Compute z = x + y, four elements a thread."""
    vector_add[tw.ceil_div(x.shape[0], BLOCK * 4), BLOCK](z, x, y)


def launch_elements(z, x, y) -> None:
    """Compute z = x + y, one element a thread."""
    vector_add_elements[tw.ceil_div(x.shape[0], BLOCK), BLOCK](z, x, y)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: both kernels, on a length that nothing divides."""
    n = 100_003 if quick else (1 << 26) + 3
    variants = [("vector add, 16 bytes", launch), ("vector add, elements", launch_elements)]
    return [_case(name, function, n, backend) for name, function in variants]


def _case(name, function, n: int, backend: Backend) -> Case:
    def prepare() -> Trial:
        x, y = (np.random.default_rng(seed).integers(-99, 99, n).astype(np.float32) for seed in (0, 1))
        arrays = [put(array, backend) for array in (np.full_like(x, np.nan), x, y)]
        return Trial(lambda: function(*arrays), lambda: fetch(arrays[0]), x + y, limit=0.0)

    return Case(name, f"{n} float32", prepare, bytes_moved=12 * n)


def example_vector_add():
    """Return grid, block and arguments for `tilewright show examples/kernels/vector_add.py:vector_add`."""
    vector = tw.spec(tw.float32, (100_003,))
    return 98, BLOCK, (vector, vector, vector)


if __name__ == "__main__":
    main(cases)
