"""Row quantisation: q = x / scale as int8 or float8 (e4m3), with a scale for each row that its greatest element fits.

The scale is max(abs(x)) / 127, or / 448 for e4m3. Quotients are rounded to the nearest number of the type, halves to
the even one, and saturate. A row stays in registers between the search for its greatest element and what is written:
each element is read once. The threads of a row take 16 bytes each, side by side, and go on by as many bytes as they
take together. Short rows share a block (threads along y), so that blocks have 128 threads or more.

Rows may have any length: their tiles are guarded, and zeros outside do not change the maximum. A row of zeros has the
scale 0.

Run it: `tilewright demo examples/kernels/quantise.py`, or `python examples/kernels/quantise.py`
"""

from functools import cache

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe


@tw.kernel
def quantise(q, scale, x, tiles: tw.constexpr, columns: tw.constexpr):
    """Quantise a row for each thread number along y; `columns` is that of a row's tile, at least those of x."""
    at, thread = tw.block_idx.x * tw.block_dim.y + tw.thread_idx.y, tiles.get_slice(tw.thread_idx.x)
    rows = tw.guarded(x)[at, ...], tw.guarded(q)[at, ...]
    x_part, q_part = (thread.partition_S(tw.local_tile(row, (columns,), 0)) for row in rows)
    values = x_part.to(tw.float32)
    step = tw.reduce(abs(values), "max", tiles.size) / GREATEST[q.dtype]
    values *= 1 / tw.maximum(step, SMALLEST)
    q_part[...] = (tw.round(values) if q.dtype.is_integer else values).to(q.dtype)
    if tw.thread_idx.x == 0:
        tw.guarded(scale)[at] = step


GREATEST = {tw.int8: 127.0, tw.float8_e4m3fn: 448.0}
SMALLEST = 2.0**-126  # its reciprocal is a float32
ACCESSES = 4  # of 16 bytes, that a thread has under way


@cache
def plan_for(dtype: tw.DType, columns: int):
    """Return the copy of a row, the block, and the elements of a row's tile."""
    width = 16 // dtype.bytes
    threads = min(1024, 1 << (tw.ceil_div(columns, ACCESSES * width) - 1).bit_length())
    tiles = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout(threads), tw.Layout(width))
    return tiles, (threads, max(1, 128 // threads)), tw.ceil_div(columns, threads * width) * threads * width


def launch(q, scale, x) -> None:
    """Quantise the rows of a matrix of float16, bfloat16 or float32 to int8 or float8_e4m3fn; scale is float32."""
    rows, columns = x.shape
    tiles, block, held = plan_for(describe(x).dtype, columns)
    quantise[tw.ceil_div(rows, block[1]), block](q, scale, x, tiles, held)


def reference(x: np.ndarray, dtype: tw.DType) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers and the scales, as float32 arithmetic gives them."""
    x = x.astype(np.float32)
    scale = np.abs(x).max(1) / np.float32(GREATEST[dtype])
    values = x * (np.float32(1) / np.maximum(scale, np.float32(SMALLEST)))[:, None]
    limit = np.float32(GREATEST[dtype])
    return (np.rint(values) if dtype is tw.int8 else np.clip(values, -limit, limit)).astype(dtype.numpy), scale


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: both types, a row in a block and several."""
    shapes = [(5, 4096), (37, 77)] if quick else [(16384, 4096), (8192, 16384)]
    return [_case(shape, dtype, backend) for shape in shapes for dtype in GREATEST]


def _case(shape: tuple[int, int], dtype: tw.DType, backend: Backend) -> Case:
    def prepare() -> Trial:
        host = np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(tw.bfloat16.numpy)
        x, scale = put(host, backend), put(np.full(shape[0], np.nan, np.float32), backend)
        q = put(np.full(shape, 1, dtype.numpy), backend)

        def result() -> np.ndarray:
            numbers = fetch(q.float() if hasattr(q, "float") else q)[:64].astype(np.float32)
            return numbers * fetch(scale)[:64, None]

        numbers, scales = reference(host[:64], dtype)
        expected = numbers.astype(np.float32) * scales[:, None]
        return Trial(lambda: launch(q, scale, x), result, expected, limit=0.0)

    name, size = f"quantise to {dtype}", shape[0] * shape[1]
    return Case(name, f"{shape[0]} x {shape[1]} bfloat16", prepare, bytes_moved=3 * size)


def example_quantise():
    """Return grid, block and arguments for `tilewright show examples/kernels/quantise.py:quantise`."""
    matrix, scale = tw.spec(tw.bfloat16, (16384, 4096)), tw.spec(tw.float32, (16384,))
    tiles, block, held = plan_for(tw.bfloat16, 4096)
    return 16384, block, (tw.spec(tw.int8, (16384, 4096)), scale, matrix, tiles, held)


if __name__ == "__main__":
    main(cases)
