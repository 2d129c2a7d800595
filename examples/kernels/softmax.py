"""Softmax of each row of a matrix: y = exp(x - max(x)) / sum(exp(x - max(x))).

- `softmax` keeps a row in the registers of its threads, so that each element is read and written once. The threads take
  16 bytes each, side by side, and go on by as many bytes as they take together. Short rows share a block (threads
  along y), so that blocks have 128 threads or more.
- `softmax_long` takes rows of any length in two passes. In the first, each thread keeps the greatest element that it
  has seen and the sum of exp(element - greatest), and scales the sum when a greater one comes. No thread waits for
  another before the end. The second pass goes back from the end of the row, which is still in the caches.

Rows may have any length: their tiles are guarded, and read as -inf outside, of which the exponential is 0.

Run it: `tilewright demo examples/kernels/softmax.py`, or `python examples/kernels/softmax.py`
"""

from functools import cache

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe


@tw.kernel(fastmath=True)
def softmax(y, x, tiles: tw.constexpr, columns: tw.constexpr):
    """Compute a row for each thread number along y; a row is at most `columns` elements, which its threads hold."""
    at, thread = tw.block_idx.x * tw.block_dim.y + tw.thread_idx.y, tiles.get_slice(tw.thread_idx.x)
    rows = tw.guarded(x, fill=-float("inf"))[at, ...], tw.guarded(y)[at, ...]
    x_part, y_part = (thread.partition_S(tw.local_tile(row, (columns,), 0)) for row in rows)
    values = x_part.to(tw.float32)
    values = exp(values - tw.reduce(values, "max", tiles.size))
    y_part[...] = values * (1 / tw.reduce(values, "add", tiles.size))


@tw.kernel(fastmath=True)
def softmax_long(y, x, tiles: tw.constexpr, columns: tw.constexpr):
    """Compute a row of any length in a block, `columns` elements at a time."""
    rows = tw.guarded(x, fill=-float("inf"))[tw.block_idx.x, ...], tw.guarded(y)[tw.block_idx.x, ...]
    x_part, y_part = (tiles.get_slice(tw.thread_idx.x).partition_S(tw.zipped_divide(row, columns)) for row in rows)
    top, total = LOWEST, 0.0
    for i in range(tw.ceil_div(x.shape[1], columns)):
        values = x_part[..., i].to(tw.float32)
        top, old = tw.maximum(top, values.reduce("max")), top
        total = total * exp(old - top) + exp(values - top).reduce("add")
    greatest = tw.reduce(top, "max")
    factor = 1 / tw.reduce(total * exp(top - greatest), "add")
    for i in range(tw.ceil_div(x.shape[1], columns) - 1, -1, -1):
        y_part[..., i] = exp(x_part[..., i].to(tw.float32) - greatest) * factor


def exp(x):
    """Return e^x by one instruction; what is less than 2^-126 becomes 0."""
    return tw.ex2_approx(x * LOG2E, ftz=True)


LOG2E = float(np.log2(np.e))
LOWEST = float(np.finfo(np.float32).min)  # not -inf, because -inf - -inf is NaN
ACCESSES = 4  # of 16 bytes, that a thread has under way


@cache
def plan_for(dtype: tw.DType, columns: int):
    """Return the copy of a row, the block, and the elements of a row that its threads hold."""
    width = 16 // dtype.bytes
    threads = min(1024, 1 << (tw.ceil_div(columns, ACCESSES * width) - 1).bit_length())
    tiles = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout(threads), tw.Layout(width))
    accesses = min(ACCESSES, tw.ceil_div(columns, threads * width))
    return tiles, (threads, max(1, 128 // threads)), accesses * threads * width


def launch(y, x) -> None:
    """Compute softmax over the rows of a matrix of float16, bfloat16 or float32."""
    rows, columns = x.shape
    tiles, block, held = plan_for(describe(x).dtype, columns)
    if columns <= held:
        softmax[tw.ceil_div(rows, block[1]), block](y, x, tiles, held)
    else:
        softmax_long[rows, block](y, x, tiles, held)


def reference(x: np.ndarray) -> np.ndarray:
    """Return softmax over rows in float64."""
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True).astype(np.float64))
    return e / e.sum(1, keepdims=True)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: rows in registers, several of them in a block, and a row that is longer."""
    shapes = [(5, 4096), (37, 77), (2, 40000)] if quick else [(16384, 4096), (8192, 16384), (2048, 131072)]
    return [_case(shape, backend) for shape in shapes]


def _case(shape: tuple[int, int], backend: Backend) -> Case:
    rows = np.r_[: min(shape[0], 64)]  # NumPy takes its time for exponentials: the first rows are checked

    def prepare() -> Trial:
        host = np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(tw.bfloat16.numpy)
        x, y = put(host, backend), put(np.full_like(host, np.nan), backend)
        return Trial(
            lambda: launch(y, x),
            lambda: fetch(y.float() if hasattr(y, "float") else y)[rows].astype(np.float64) * shape[1],
            reference(host[rows]) * shape[1],
            limit=0.5,
            library=(lambda: x.softmax(1)) if hasattr(x, "softmax") else None,
        )

    return Case("softmax", f"{shape[0]} x {shape[1]} bfloat16", prepare, bytes_moved=4 * shape[0] * shape[1])


def example_softmax():
    """Return grid, block and arguments for `tilewright show examples/kernels/softmax.py:softmax`."""
    matrix = tw.spec(tw.bfloat16, (16384, 4096))
    tiles, block, held = plan_for(tw.bfloat16, 4096)
    return 16384, block, (matrix, matrix, tiles, held)


def example_softmax_long():
    """Return grid, block and arguments for `tilewright show examples/kernels/softmax.py:softmax_long`."""
    matrix = tw.spec(tw.bfloat16, (2048, 131072))
    tiles, block, held = plan_for(tw.bfloat16, 131072)
    return 2048, block, (matrix, matrix, tiles, held)


if __name__ == "__main__":
    main(cases)
