"""RMS norm of each row of a matrix: y = x / sqrt(mean(x^2) + eps) * weight.

A row stays in registers between the sum of its squares and what is written: each element is read and written once. The
threads of a row take 16 bytes each, side by side, and go on by as many bytes as they take together. Short rows share a
block (threads along y), so that blocks have 128 threads or more.

Rows may have any length: their tiles are guarded, and zeros outside add nothing to the sum.

Run it: `tilewright demo examples/kernels/rms_norm.py`, or `python examples/kernels/rms_norm.py`
"""

from functools import cache

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe


@tw.kernel
def rms_norm(y, x, weight, eps: tw.float32, tiles: tw.constexpr, columns: tw.constexpr):
    """Compute a row for each thread number along y; `columns` is that of a row's tile, at least those of x."""
    at, thread = tw.block_idx.x * tw.block_dim.y + tw.thread_idx.y, tiles.get_slice(tw.thread_idx.x)
    rows = tw.guarded(x)[at, ...], tw.guarded(y)[at, ...], tw.guarded(weight)
    x_part, y_part, weight_part = (thread.partition_S(tw.local_tile(row, (columns,), 0)) for row in rows)
    values = x_part.to(tw.float32)
    squares = tw.reduce(values * values, "add", tiles.size)
    y_part[...] = values * tw.rsqrt(squares / x.shape[1] + eps) * weight_part.to(tw.float32)


ACCESSES = 4  # of 16 bytes, that a thread has under way


@cache
def plan_for(dtype: tw.DType, columns: int):
    """Return the copy of a row, the block, and the elements of a row's tile."""
    width = 16 // dtype.bytes
    threads = min(1024, 1 << (tw.ceil_div(columns, ACCESSES * width) - 1).bit_length())
    tiles = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout(threads), tw.Layout(width))
    return tiles, (threads, max(1, 128 // threads)), tw.ceil_div(columns, threads * width) * threads * width


def launch(y, x, weight, eps: float = 1e-6) -> None:
    """Compute the RMS norm of the rows of a matrix of float16, bfloat16 or float32."""
    rows, columns = x.shape
    tiles, block, held = plan_for(describe(x).dtype, columns)
    rms_norm[tw.ceil_div(rows, block[1]), block](y, x, weight, eps, tiles, held)


def reference(x: np.ndarray, weight: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    """Return the RMS norm in float64."""
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(1, keepdims=True) + eps) * weight.astype(np.float64)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: a row in a block, several rows in a block, rows that no tile divides."""
    shapes = [(5, 4096), (37, 77)] if quick else [(16384, 4096), (8192, 16384)]
    return [_case(shape, backend) for shape in shapes]


def _case(shape: tuple[int, int], backend: Backend) -> Case:
    def prepare() -> Trial:
        random = np.random.default_rng(0)
        x_host, w_host = (
            random.standard_normal(s, dtype=np.float32).astype(tw.bfloat16.numpy) for s in (shape, shape[1:])
        )
        x, weight, y = (put(a, backend) for a in (x_host, w_host, np.full_like(x_host, np.nan)))
        return Trial(
            lambda: launch(y, x, weight),
            lambda: fetch(y.float() if hasattr(y, "float") else y)[:64].astype(np.float64),
            reference(x_host[:64], w_host),
            limit=0.05,
            library=_torch_rms_norm(x, weight) if hasattr(x, "data_ptr") else None,
        )

    return Case("RMS norm", f"{shape[0]} x {shape[1]} bfloat16", prepare, bytes_moved=4 * shape[0] * shape[1])


def _torch_rms_norm(x, weight):
    import torch

    return lambda: torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)


def example_rms_norm():
    """Return grid, block and arguments for `tilewright show examples/kernels/rms_norm.py:rms_norm`."""
    matrix, row = tw.spec(tw.bfloat16, (16384, 4096)), tw.spec(tw.bfloat16, (4096,))
    tiles, block, held = plan_for(tw.bfloat16, 4096)
    return 16384, block, (matrix, matrix, row, 1e-6, tiles, held)


if __name__ == "__main__":
    main(cases)
