"""The greatest element of each row, and its k <= 32 greatest, with their indices. Rows have fewer than 2^31 elements.

Both kernels read a row once. Elements are compared as torch compares them: NaN is above everything, and -0 equals 0; of
equal elements, the one with the lowest index comes first. `rank` turns an element into an integer of that order, and
a candidate is a key of 64 bits, its rank above its index with all bits flipped: the greatest key is the greatest
element with the lowest index. No two keys are equal, so the result does not depend on which thread saw which element.

- `argmax`: each thread keeps the best element that it sees, and one reduction finds the block's best.
- `topk`: each warp keeps the best 32 keys that it sees, in order, one in each lane. It passes over vectors in which no
  element is above the k-th of them, which takes a comparison for each element. In random data, the n-th element that
  a warp sees is one of the best k so far with probability k / n, so few go further: about k * (1 + log(n / k)) of n.
  The worst case is a row in ascending order. At the end, the lists of all warps are sorted together.

What follows the end of a row reads as the least element. Its index is above all others, so it loses to any element.

Run it: `python examples/kernels/argmax_topk.py`
"""

from typing import Any

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put

BYTES = 16  # of an access
LEAST = -(1 << 31)  # of int32: the sign bit
MOST = 32  # the greatest k: the lanes of a warp


@tw.function
def rank(value):
    """Return a uint32 in the order of a float32, float16, bfloat16 or int32."""
    if value.dtype is tw.int32:
        return (value ^ LEAST).bitcast(tw.uint32)
    bits = (value.to(tw.float32) + 0.0).bitcast(tw.int32)  # -0 + 0 is 0
    return tw.where(value != value, -1, bits ^ ((bits >> 31) | LEAST)).bitcast(tw.uint32)


@tw.function
def key(rank, index):
    """Return what candidates are compared by."""
    return rank.to(tw.uint64) << 32 | (~index).to(tw.uint32).to(tw.uint64)


@tw.function
def vector(x, i):
    """Return 16 bytes of the block's row, with the least element of the type behind the row's end."""
    part = tw.local_tile(x[tw.block_idx.x, :], (BYTES // x.dtype.bytes,), i, guard=True, fill=least(x.dtype))
    values = tw.fragment_like(part)
    tw.copy(part, values)
    return values


def least(dtype: tw.DType) -> float | int:
    """Return the least element of a type."""
    return float("-inf") if dtype.is_float else dtype.lowest


@tw.kernel
def argmax(values, indices, x):
    """Find the greatest element of a row, by one block."""
    row, thread, each = tw.block_idx.x, tw.thread_idx.x, BYTES // x.dtype.bytes
    best, place = tw.uint32(0), thread * each
    for i in range(thread, tw.ceil_div(x.shape[1], each), tw.block_dim.x):
        part = vector(x, i)
        for n in tw.static_range(each):
            if rank(part[n]) > best:
                best, place = rank(part[n]), (i * each + n).to(tw.int32)
    index = (~tw.reduce(key(best, place), "max")).to(tw.uint32).bitcast(tw.int32)
    if thread == 0:
        values[row], indices[row] = x[row, index], index


@tw.function
def insert(best, new, k: tw.constexpr):
    """Return the best 32 keys of a warp with the new ones in their places, those above the k-th at least."""
    lane = tw.lane_id()
    hits = tw.ballot(new > tw.shuffle(best, k - 1))
    while hits != 0:
        hit, above = tw.shuffle(new, tw.ffs(hits) - 1), tw.shuffle_up(best, 1)
        best = tw.where(best > hit, best, tw.where((lane == 0) | (above > hit), hit, above))
        hits &= (hits - 1) & tw.ballot(new > tw.shuffle(best, k - 1))
    return best


@tw.kernel
def topk(values, indices, x, k: tw.constexpr):
    """Find the k greatest elements of a row, by one block."""
    row, thread, lane, each = tw.block_idx.x, tw.thread_idx.x, tw.lane_id(), BYTES // x.dtype.bytes
    best = tw.uint64(0)
    for first in range(thread - lane, tw.ceil_div(x.shape[1], each), tw.block_dim.x):
        part = vector(x, first + lane)
        ranks = [rank(part[n]) for n in range(each)]
        if tw.vote_any(max(ranks) > (tw.shuffle(best, k - 1) >> 32).to(tw.uint32)) or first < tw.block_dim.x:
            for n in tw.static_range(each):
                best = insert(best, key(ranks[n], (first + lane) * each + n), k)
    index = (~tw.sort(best, descending=True)).to(tw.uint32).bitcast(tw.int32)
    if thread < k:
        values[row, thread], indices[row, thread] = x[row, index], index


def launch_argmax(values, indices, x) -> None:
    """Write the greatest element of each row of x and its index, int32 or int64, to vectors."""
    argmax[x.shape[0], _threads(x, 2 * BYTES)](values, indices, x)


def launch(values, indices, x, k: int) -> None:
    """Write the k greatest elements of each row of x, the greatest first, and their indices, int32 or int64."""
    if not 1 <= k <= min(MOST, x.shape[1]):
        raise tw.ArgumentError(f"k is {k}: expected 1 to {MOST}, and at most the row's {x.shape[1]} elements")
    topk[x.shape[0], _threads(x, 8 * BYTES)](values, indices, x, k)


def _threads(x: Any, bytes_each: int) -> int:
    """Return the threads of a block: so many that each has about as many bytes of a row, in 1 to 16 warps."""
    return 32 * min(max(x.shape[1] * tw.dtype(x.dtype).bytes // (32 * bytes_each), 1), 16)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: the logits of a vocabulary, and short rows of which few differ."""
    shapes = [(3, 1003, 8), (5, 67, 32)] if quick else [(512, 128_256, 32), (16384, 1000, 8)]
    return [case(*shape, backend) for shape in shapes for case in (_argmax_case, _topk_case)]


def _data(rows: int, columns: int, backend: Backend) -> tuple[np.ndarray, Any]:
    host = np.random.default_rng(0).integers(-4 * columns, 4 * columns, (rows, columns)).astype(np.float32)
    host[:, ::7] = -np.inf
    return host, put(host, backend)


def _argmax_case(rows: int, columns: int, k: int, backend: Backend) -> Case:
    def prepare() -> Trial:
        host, x = _data(rows, columns, backend)
        values, indices = put(np.zeros(rows, np.float32), backend), put(np.full(rows, -1, np.int32), backend)
        library = (lambda: x.max(1)) if hasattr(x, "data_ptr") else None
        return Trial(
            lambda: launch_argmax(values, indices, x), lambda: fetch(indices), host.argmax(1), 0.0, library=library
        )

    return Case("argmax", f"{rows} x {columns} float32", prepare, bytes_moved=4 * rows * columns)


def _topk_case(rows: int, columns: int, k: int, backend: Backend) -> Case:
    def prepare() -> Trial:
        host, x = _data(rows, columns, backend)
        values, indices = put(np.zeros((rows, k), np.float32), backend), put(np.full((rows, k), -1, np.int32), backend)
        expected = np.argsort(-host, axis=1, kind="stable")[:, :k]
        library = (lambda: x.topk(k)) if hasattr(x, "data_ptr") else None
        return Trial(lambda: launch(values, indices, x, k), lambda: fetch(indices), expected, 0.0, library=library)

    return Case(f"top {k}", f"{rows} x {columns} float32", prepare, bytes_moved=4 * rows * columns)


def example_topk():
    """Return grid, block and arguments for `tilewright show examples/kernels/argmax_topk.py:topk`."""
    x, values = tw.spec(tw.bfloat16, (16384, 4096)), tw.spec(tw.bfloat16, (16384, 8))
    return 16384, 64, (values, tw.spec(tw.int64, (16384, 8)), x, 8)


def example_argmax():
    """Return grid, block and arguments for `tilewright show examples/kernels/argmax_topk.py:argmax`."""
    values, indices = tw.spec(tw.bfloat16, (16384,)), tw.spec(tw.int64, (16384,))
    return 16384, 256, (values, indices, tw.spec(tw.bfloat16, (16384, 4096)))


if __name__ == "__main__":
    main(cases)
