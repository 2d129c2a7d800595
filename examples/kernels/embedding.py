"""Embedding: out[i] = table[ids[i]], and its gradient: dtable[ids[i]] += dout[i].

A warp copies a row, with accesses of 16 bytes where rows begin at multiples of 16 bytes. An id outside of the table,
such as -1 for padding, gives a row of zeros: the tile at that coordinate is outside of the guarded table. It has no
gradient. `padding` is torch's `padding_idx`: a row of the table that is read as any other, but gets no gradient.

The gradient is added by atomics, because an id may appear any number of times. The order of additions is not fixed, so
the last bits of float sums are not either. A table of float16 or bfloat16 gets two neighbours with each atomic, if
rows have an even number of elements and follow one another; each addition rounds to 11 or 8 bits. Where ids repeat
often, give a float32 table: the sums are then float32, whatever the type of `dout`.

Run it: `python examples/kernels/embedding.py`
"""

from typing import Any

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put

WARPS = 8  # of a block, a row each
# A warp takes 1024 elements of a row at a time: 4 vectors a lane, of 16 bytes where the elements have 16 bits.
PARTS = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout((1, 32)), tw.Layout((1, 8)))
TILE = (1, 4 * 32 * 8)


@tw.function
def load(x, row, i):
    """Return the lane's part of a tile of x, which knows what of it is there, and its elements."""
    part = PARTS.get_slice(tw.lane_id()).partition_S(tw.local_tile(x, TILE, (row, i), guard=True))
    values = tw.fragment_like(part)
    tw.copy(part, values)
    return part, values


@tw.kernel
def embedding(out, table, ids):
    """Copy eight rows, one by each warp."""
    row = tw.block_idx.x * WARPS + tw.warp_id()
    source = ids[row] if row < ids.shape[0] else -1
    for i in range(tw.ceil_div(out.shape[1], TILE[1])):
        _, values = load(table, source, i)
        target = tw.local_tile(out, TILE, (row, i), guard=True)
        tw.copy(values, PARTS.get_slice(tw.lane_id()).partition_D(target))


@tw.kernel
def embedding_gradient(dtable, dout, ids, padding, pairs: tw.constexpr):
    """Add eight rows, one by each warp."""
    row = tw.block_idx.x * WARPS + tw.warp_id()
    target = ids[row] if row < ids.shape[0] else -1
    if 0 <= target < dtable.shape[0] and target != padding:
        for i in range(tw.ceil_div(dout.shape[1], TILE[1])):
            part, values = load(dout, row, i)
            column = i * TILE[1] + tw.lane_id() * 8
            for n in tw.static_range(0, values.size, 2 if pairs else 1):
                if part.inside(n):
                    value = (values[n], values[n + 1]) if pairs else values[n]
                    tw.atomic_add(dtable, (target, column + n // 8 * 256 + n % 8), value)


def launch(out, table, ids) -> None:
    """Write table[ids[i]] to out[i], and zeros where ids[i] is outside of the table."""
    embedding[tw.ceil_div(ids.shape[0], WARPS), WARPS * 32](out, table, ids)


def launch_gradient(dtable, dout, ids, padding: int = -1) -> None:
    """Add dout[i] to dtable[ids[i]], except where ids[i] is `padding` or outside of the table."""
    pairs = tw.dtype(dtable.dtype).bits == 16 and dtable.shape[1] % 2 == 0 and _is_contiguous(dtable)
    embedding_gradient[tw.ceil_div(ids.shape[0], WARPS), WARPS * 32](dtable, dout, ids, padding, pairs)


def _is_contiguous(x: Any) -> bool:  # Any: an array of torch, NumPy, CuPy or our own
    if hasattr(x, "is_contiguous"):
        return bool(x.is_contiguous())
    return not hasattr(x, "flags") or bool(x.flags.c_contiguous)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: both kernels, with ids that repeat, and an eighth of them -1."""
    shape = (131, 50, 40) if quick else (16_384, 50_304, 1024)
    return [_case(*shape, backend), _gradient_case(*shape, backend)]


def _data(tokens: int, rows: int, columns: int, random_rows: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    ids = np.where(random.random(tokens) < 1 / 8, -1, random.integers(0, rows, tokens))
    return ids, random.integers(-4, 5, (random_rows, columns), np.int8).astype(np.float16)


def _case(tokens: int, rows: int, columns: int, backend: Backend) -> Case:
    def prepare() -> Trial:
        ids, host = _data(tokens, rows, columns, rows)
        table, where = put(host, backend), put(ids, backend)
        out = put(np.full((tokens, columns), np.nan, np.float16), backend)
        library = (lambda: table[where]) if hasattr(table, "data_ptr") else None
        expected = np.where(ids[:, None] >= 0, host[ids], np.float16(0))
        return Trial(lambda: launch(out, table, where), lambda: fetch(out), expected, limit=0.0, library=library)

    size = f"{tokens} of {rows} rows of {columns} float16"
    return Case("embedding", size, prepare, bytes_moved=2 * 2 * tokens * columns)


def _gradient_case(tokens: int, rows: int, columns: int, backend: Backend) -> Case:
    def prepare() -> Trial:
        ids, host = _data(tokens, rows, columns, tokens)
        dout, where = put(host, backend), put(ids, backend)
        zeros = put(np.zeros((rows, columns), np.float32), backend)
        dtable = [put(np.full((rows, columns), np.nan, np.float32), backend)]

        def run() -> None:
            dtable[0] = zeros.clone() if hasattr(zeros, "clone") else zeros.copy()
            launch_gradient(dtable[0], dout, where, padding=0)

        expected = np.zeros((rows, columns), np.float32)
        np.add.at(expected, ids[ids > 0], host[ids > 0])
        return Trial(run, lambda: fetch(dtable[0]), expected, limit=0.0)

    size = f"{tokens} of {rows} rows of {columns} float16 to float32"
    return Case("embedding's gradient", size, prepare, bytes_moved=2 * tokens * columns + 4 * rows * columns)


def example_embedding():
    """Return grid, block and arguments for `tilewright show examples/kernels/embedding.py:embedding`."""
    out, table = tw.spec(tw.bfloat16, (16384, 4096)), tw.spec(tw.bfloat16, (50304, 4096))
    return 2048, WARPS * 32, (out, table, tw.spec(tw.int64, (16384,)))


def example_embedding_gradient():
    """Return grid, block and arguments for `tilewright show examples/kernels/embedding.py:embedding_gradient`."""
    dtable, dout = tw.spec(tw.bfloat16, (50304, 4096)), tw.spec(tw.bfloat16, (16384, 4096))
    return 2048, WARPS * 32, (dtable, dout, tw.spec(tw.int64, (16384,)), -1, True)


if __name__ == "__main__":
    main(cases)
