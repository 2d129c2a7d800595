"""Products of matrices whose rows lie on several ranks: parts are multiplied as they come, and sent as they are done.

Each is one launch where a kernel of `kernels.exchanged` takes it: its tiles wait for their own part, and leave as they
are done. Elsewhere it is a row of launches on the stream of its arrays, a rank's rows in each. Ranks are ordered by
flags in memory alone: no rank waits on the host. Rows follow the ring from the rank's own on, so that at each step
every rank sends to another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any  # Any: arrays of NumPy, CuPy or PyTorch

from tilewright.arguments import given, shown
from tilewright.distributed._exchange_kernels import THREADS, TILE, add, push
from tilewright.distributed.buffers import ExchangeBuffer
from tilewright.dtypes import float32
from tilewright.errors import ArgumentError
from tilewright.kernels.exchanged import multiply_gathered, multiply_scattered, parts_of, rows_of_parts
from tilewright.products import matmul
from tilewright.runtime.arrays import ArrayInfo, describe

_BLOCKS = 64  # of the kernels that move and add: fewer than multiprocessors, so that products run beside them


def all_gather_matmul(x: Any, w: Any, out: Any, buffer: ExchangeBuffer) -> Any:
    """Compute out = concatenate(x of rank 0, x of rank 1, ...) @ w on every rank, and return `out`.

    x is (M, K) on each rank, w is (K, N) and `out` (size * M, N), all rows contiguous; `buffer` is an
    `ExchangeBuffer(group, (M, K), dtype of x)`. The rank sends its rows to the others, multiplies its own, and then
    theirs in the order of the ring, each part as soon as it has come.

    >>> import numpy as np, tilewright as tw
    >>> def main(rank):
    ...     x, w = np.full((8, 16), rank.rank + 1, np.float32), np.ones((16, 8), np.float32)
    ...     buffer = tw.distributed.ExchangeBuffer(rank, (8, 16), tw.float32)
    ...     return tw.distributed.all_gather_matmul(x, w, np.empty((16, 8), np.float32), buffer)[::8, 0].tolist()
    >>> tw.simulate(ranks=2).run(main)
    [[16.0, 32.0], [16.0, 32.0]]

    Raises `ArgumentError` for shapes and types that do not fit each other or the buffer.
    """
    name = "all_gather_matmul"
    rows, depth = _matrix(name, "x", x).shape
    _product(name, (size_of(buffer, name) * rows, depth), w, out)
    _demand_buffer(name, buffer, (rows, depth), x)
    with buffer:
        part = parts_of(rows, depth, buffer.dtype.bytes)
        if buffer.size > 1 and multiply_gathered(x, w, out, part, buffer.exchange(-1)):
            return out
        parts = prod(-(-extent // each) for extent, each in zip((rows, depth), part, strict=True))
        # The next rank to read what this one sends is the one before it.
        send(x, buffer, [buffer.ring(-step) for step in range(1, buffer.size)])
        for step in range(buffer.size):
            sender = buffer.ring(step)
            rows_of = x
            if step > 0:
                buffer.wait(sender, parts=parts)
                rows_of = buffer.slot(buffer.rank, sender).reshape(rows, depth)
            matmul(rows_of, w, out=out[sender * rows : (sender + 1) * rows])
    return out


def _push(target: Any, x: Any) -> None:
    push[_blocks(x.shape[0]), THREADS]([target], x)


def send(x: Any, buffer: ExchangeBuffer, readers: Sequence[int], copy: Callable[[Any, Any], object] = _push) -> None:
    """Copy x to the rank's slot at each of the readers, and tell the other ranks among them when it is there."""
    for reader in readers:
        copy(buffer.slot(reader, buffer.rank), x.reshape(-1))
        if reader != buffer.rank:
            buffer.tell([reader])


def matmul_reduce_scatter(x: Any, w: Any, out: Any, buffer: ExchangeBuffer, residual: Any = None) -> Any:
    """Compute out = (sum over ranks of x @ w)[rows of this rank] + residual, and return `out`.

    x is (size * M, K), w is (K, N), of each rank its own part of K, and `out` is (M, N): rank r gets rows r * M to
    (r + 1) * M. `buffer` is an `ExchangeBuffer(group, (M, N), dtype)`, where `dtype` is that in which products travel:
    tw.float32, or the type of `out`, which takes less time. The products for the other ranks are written to their
    memory as they are computed, the rank's own last. Sums are in float32, and have the same bits in each run. The
    residual has the shape and the type of `out`, and is the rank's own.

    >>> import numpy as np, tilewright as tw
    >>> def main(rank):
    ...     x, w = np.full((8, 16), rank.rank + 1, np.float32), np.ones((16, 8), np.float32)
    ...     buffer = tw.distributed.ExchangeBuffer(rank, (4, 8), tw.float32)
    ...     return tw.distributed.matmul_reduce_scatter(x, w, np.empty((4, 8), np.float32), buffer)[0, 0].item()
    >>> tw.simulate(ranks=2).run(main)
    [48.0, 48.0]

    Raises `ArgumentError` for shapes and types that do not fit each other or the buffer, and for rows that the ranks do
    not divide.
    """
    name = "matmul_reduce_scatter"
    rows = _rows_of_rank(name, x, buffer)
    _product(name, (rows, _matrix(name, "x", x).shape[1]), w, out)
    _demand_buffer(name, buffer, (rows, _matrix(name, "w", w).shape[1]), None, out)
    if residual is not None:
        given, made = _matrix(name, "residual", residual), _matrix(name, "out", out)
        if (given.shape, given.dtype) != (made.shape, made.dtype):
            what = f"{shown(given.shape)} of {given.dtype}, and out {shown(made.shape)} of {made.dtype}"
            raise ArgumentError(f"{name}: residual is {what}")
    with buffer:
        _reduce(x, w, rows, [out.reshape(-1)], buffer, residual)
    return out


def matmul_all_reduce(x: Any, w: Any, out: Any, buffer: ExchangeBuffer, results: ExchangeBuffer) -> Any:
    """Compute out = sum over ranks of x @ w on every rank, and return `out`.

    x is (size * M, K), w is (K, N), of each rank its own part of K, and `out` is (size * M, N). `buffer` is an
    `ExchangeBuffer(group, (M, N), dtype)` as for `matmul_reduce_scatter`, and `results` another one of the type of
    `out`. Each rank adds up its rows, as that does, and writes the sums to all ranks.

    >>> import numpy as np, tilewright as tw
    >>> def main(rank):
    ...     x, w = np.full((8, 16), rank.rank + 1, np.float32), np.ones((16, 8), np.float32)
    ...     buffers = [tw.distributed.ExchangeBuffer(rank, (4, 8), tw.float32) for _ in range(2)]
    ...     return tw.distributed.matmul_all_reduce(x, w, np.empty((8, 8), np.float32), *buffers)[::4, 0].tolist()
    >>> tw.simulate(ranks=2).run(main)
    [[48.0, 48.0], [48.0, 48.0]]

    Raises `ArgumentError` as `matmul_reduce_scatter`.
    """
    name = "matmul_all_reduce"
    rows = _rows_of_rank(name, x, buffer)
    _product(name, _matrix(name, "x", x).shape, w, out)
    shape = rows, _matrix(name, "w", w).shape[1]
    _demand_buffer(name, buffer, shape, None, out)
    _demand_buffer(name, results, shape, out)
    with buffer, results:
        everybody = [results.ring(-step) for step in range(results.size)]
        _reduce(x, w, rows, [results.slot(reader, results.rank) for reader in everybody], buffer)
        results.tell(everybody)
        results.wait(results.rank, results.size)
        for rank in range(results.size):
            part = out[rank * rows : (rank + 1) * rows].reshape(-1)
            push[_blocks(rows * shape[1]), THREADS]([part], results.slot(results.rank, rank))
    return out


def _reduce(x: Any, w: Any, rows: int, targets: Sequence[Any], buffer: ExchangeBuffer, residual: Any = None) -> None:
    """Write the rank's products to the ranks whose rows they are, and add up those that come to the targets."""
    columns = buffer.shape[1]
    own = targets[0].reshape(rows, columns)
    if buffer.size > 1 and _is_alike(buffer, own) and multiply_scattered(x, w, own, buffer.exchange(1), residual):
        if targets[1:]:
            push[_blocks(rows * columns), THREADS](list(targets[1:]), targets[0])
        return
    for step in range(1, buffer.size + 1):
        reader = buffer.ring(step)
        part = buffer.slot(reader, buffer.rank).reshape(rows, columns)
        matmul(x[reader * rows : (reader + 1) * rows], w, out=part)
        buffer.tell([reader])
    buffer.wait(buffer.ring(0), buffer.size, -(-rows // rows_of_parts(rows)))
    more = [] if residual is None else [residual.reshape(-1)]
    add[_blocks(rows * columns), THREADS](list(targets), buffer.slots(), more)


def _is_alike(buffer: ExchangeBuffer, array: Any) -> bool:
    """Say whether an array has the type of a buffer."""
    info = describe(array)
    return info is not None and info.dtype is buffer.dtype


def _blocks(elements: int) -> int:
    return min(_BLOCKS, -(-elements // TILE))


# --- what is refused -------------------------------------------------------------------------------------------


def size_of(buffer: object, name: str) -> int:
    """Return how many ranks a buffer has; raise `ArgumentError` for what is none."""
    if not isinstance(buffer, ExchangeBuffer):
        raise ArgumentError(
            f"{name}: buffer is an ExchangeBuffer, got {given(buffer)}",
            help="make one before the first call: tw.distributed.ExchangeBuffer(group, shape, dtype)",
        )
    return buffer.size


def _matrix(function: str, name: str, array: Any) -> ArrayInfo:
    """Return the description of a matrix with contiguous rows; raise `ArgumentError` for others."""
    info = describe(array)
    if info is None or len(info.shape) != 2:
        raise ArgumentError(f"{function}: {name} is a matrix, got {given(array) if info is None else info.shape}")
    if info.shape[0] and info.strides not in ((info.shape[1], 1), (1, 1)) and name != "w":
        raise ArgumentError(
            f"{function}: {name} has strides {info.strides}, and the exchange takes whole rows one after another",
            help="pass a contiguous copy",
        )
    return info


def _product(function: str, shape: tuple[int, ...], w: Any, out: Any) -> None:
    """Raise `ArgumentError` where w and out do not fit matrices of a shape."""
    depth, columns = _matrix(function, "w", w).shape
    if depth != shape[1]:
        raise ArgumentError(f"{function}: x has {shape[1]} columns, and w {depth} rows")
    found = _matrix(function, "out", out)
    if found.shape != (shape[0], columns):
        raise ArgumentError(f"{function}: out has shape {found.shape}, and the result {(shape[0], columns)}")
    if 0 in (*shape, columns):
        raise ArgumentError(f"{function}: a matrix is empty", help="leave the call out")


def _rows_of_rank(function: str, x: Any, buffer: ExchangeBuffer) -> int:
    size, rows = size_of(buffer, function), _matrix(function, "x", x).shape[0]
    if rows % size:
        raise ArgumentError(
            f"{function}: x has {rows} rows, which {size} ranks do not divide",
            help=f"pad x to {-(-rows // size) * size} rows",
        )
    return rows // size


def _demand_buffer(function: str, buffer: ExchangeBuffer, shape: tuple[int, int], like: Any, other: Any = None) -> None:
    """Raise `ArgumentError` for a buffer of another shape or type than what is sent.

    That has the type of `like`; without it float32, or the type of `other`.
    """
    size_of(buffer, function)
    info, rest = (None if x is None else describe(x) for x in (like, other))
    dtype = float32 if info is None else info.dtype
    if buffer.shape != shape or (buffer.dtype is not dtype and (rest is None or buffer.dtype is not rest.dtype)):
        raise ArgumentError(
            f"{function}: the buffer is for shape {shown(buffer.shape)} of {buffer.dtype}, and what is sent has shape "
            f"{shown(shape)} of {dtype}" + ("" if rest is None or rest.dtype is dtype else f" or {rest.dtype}"),
            help="make a buffer for these extents on all ranks",
        )
