"""One step of the heat equation on a plate: each element moves towards the mean of its four neighbours.

    y[i, j] = x[i, j] + c * (x[i-1, j] + x[i+1, j] + x[i, j-1] + x[i, j+1] - 4 * x[i, j])

What lies around the plate is cold: 0. Neither kernel says where the plate ends. `tw.guarded(x)` is the plate with zeros
around it, at negative coordinates too:

- `heat_elements` reads five elements of it a thread;
- `heat_tiles` copies a tile with its halo into shared memory, one element more on each side. `tw.domain_offset` lets
  the tile begin one row above and one column to the left of where it writes.

Run it: `python examples/kernels/stencil.py`
"""

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put


@tw.kernel
def heat_elements(y, x, c: tw.float32):
    """Compute one element a thread."""
    x, y = tw.guarded(x), tw.guarded(y)
    i, j = tw.block_idx.y * tw.block_dim.y + tw.thread_idx.y, tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    around = x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1]
    y[i, j] = x[i, j] + c * (around - 4 * x[i, j])


@tw.kernel
def heat_tiles(y, x, c: tw.float32):
    """Compute a tile of 30 x 62 elements of a block: with its halo, 32 x 64 elements are read."""
    i, j = tw.block_idx.y, tw.block_idx.x
    corner = (i * ROWS - 1, j * COLUMNS - 1)
    halo = tw.local_tile(tw.domain_offset(corner, tw.guarded(x)), (ROWS + 2, COLUMNS + 2), (0, 0))
    y_tile = tw.local_tile(y, (ROWS, COLUMNS), (i, j), guard=True)

    smem = tw.shared(x.dtype, tw.row_major((ROWS + 2, COLUMNS + 2)))
    number = tw.thread_idx.y * tw.block_dim.x + tw.thread_idx.x
    tw.copy(tw.local_partition(halo, THREADS, number), tw.local_partition(smem, THREADS, number))
    tw.cp_async_wait()
    tw.sync_threads()
    for a in range(tw.thread_idx.y, ROWS, tw.block_dim.y):
        for b in range(tw.thread_idx.x, COLUMNS, tw.block_dim.x):
            around = smem[a, b + 1] + smem[a + 2, b + 1] + smem[a + 1, b] + smem[a + 1, b + 2]
            y_tile[a, b] = smem[a + 1, b + 1] + c * (around - 4 * smem[a + 1, b + 1])


ROWS, COLUMNS = 30, 62
BLOCK = (32, 8)
THREADS = tw.Layout((8, 32), (32, 1))  # neighbouring threads read neighbouring columns


def launch_elements(y, x, c: float) -> None:
    """Compute a step, one element a thread."""
    rows, columns = x.shape
    heat_elements[(tw.ceil_div(columns, BLOCK[0]), tw.ceil_div(rows, BLOCK[1])), BLOCK](y, x, c)


def launch_tiles(y, x, c: float) -> None:
    """Compute a step through shared memory."""
    rows, columns = x.shape
    heat_tiles[(tw.ceil_div(columns, COLUMNS), tw.ceil_div(rows, ROWS)), BLOCK](y, x, c)


def reference(x: np.ndarray, c: float) -> np.ndarray:
    """Return one step, computed by NumPy in the kernels' order."""
    p = np.pad(x, 1)
    around = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
    return x + np.float32(c) * (around - 4 * x)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: both kernels, on extents that no tile divides."""
    shape = (61, 131) if quick else (8191, 8190)
    variants = [("heat step, elements", launch_elements), ("heat step, tiles with halo", launch_tiles)]
    return [_case(name, function, shape, backend) for name, function in variants]


def _case(name, function, shape: tuple[int, int], backend: Backend) -> Case:
    def prepare() -> Trial:
        host = np.random.default_rng(0).integers(0, 256, shape).astype(np.float32)
        x, y = put(host, backend), put(np.full_like(host, np.nan), backend)
        # Small integers and c = 1/4: every product and sum is exact, whatever is fused.
        return Trial(lambda: function(y, x, 0.25), lambda: fetch(y), reference(host, 0.25), limit=0.0)

    rows, columns = shape
    return Case(name, f"{rows} x {columns} float32", prepare, bytes_moved=8 * rows * columns)


def example_heat_tiles():
    """Return grid, block and arguments for `tilewright show examples/kernels/stencil.py:heat_tiles`."""
    plate = tw.spec(tw.float32, (8191, 8190))
    return (133, 274), BLOCK, (plate, plate, 0.25)


if __name__ == "__main__":
    main(cases)
