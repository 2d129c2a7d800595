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
from tilewright.distributed.copies import Sender, pointer_of, sender_for
from tilewright.dtypes import float32
from tilewright.errors import ArgumentError
from tilewright.kernels.exchanged import gathered_launch, parts_of, parts_of_sums, scattered_launch
from tilewright.kernels.problem import types_of
from tilewright.launch import Launcher
from tilewright.products import matmul
from tilewright.runtime.arrays import ArrayInfo, common_device, describe
from tilewright.runtime.plan import NOT_ASKED, Signature
from tilewright.runtime.replays import quicken

_BLOCKS = 64  # of the kernels that move and add: fewer than multiprocessors, so that products run beside them
_ALONE = 1024  # of one beside which nothing runs


def all_gather_matmul(x: Any, w: Any, out: Any, buffer: ExchangeBuffer, bias: Any = None) -> Any:
    """Compute out = concatenate(x of rank 0, x of rank 1, ...) @ w + bias on every rank, and return `out`.

    x is (M, K) on each rank, w is (K, N) and `out` (size * M, N), all rows contiguous; the bias is (N,) of the type of
    `out`, and `buffer` an `ExchangeBuffer(group, (M, K), dtype of x)`. The rank sends its rows to the others,
    multiplies its own, and then theirs in the order of the ring, each part as soon as it has come.

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
    kind, more = _kind(name, bias=bias)
    if _is_repeated(kind, buffer, out, x, w, *more):
        return out
    rows, depth = _matrix(name, "x", x).shape
    _product(name, x, size_of(buffer, name) * rows, w, out, bias)
    _demand_buffer(name, buffer, (rows, depth), x)
    with buffer:
        part, engine = parts_of(rows, depth, buffer.dtype.bytes, buffer.size), None
        if buffer.size > 1:
            engine = sender_for(buffer, x, part)
            launch = gathered_launch(x, w, out, part, buffer.exchange(-1), bias, sends=engine is None)
            if launch is not None:
                _launch(kind, buffer, (out, x, w, *more), *launch, engine)
                return out

        def multiply() -> None:
            for step in range(buffer.size):
                sender = buffer.ring(step)
                rows_of = x
                if step > 0:
                    buffer.wait(sender, parts=_parts(buffer, part))
                    rows_of = buffer.slot(buffer.rank, sender).reshape(rows, depth)
                matmul(rows_of, w, out=out[sender * rows : (sender + 1) * rows], bias=bias)

        if engine is None:  # the next rank to read what this one sends is the one before it
            send(x, buffer, [buffer.ring(-step) for step in range(1, buffer.size)])
            multiply()
        else:
            engine.beside(multiply, pointer_of(x), buffer.calls)
    return out


def _parts(buffer: ExchangeBuffer, part: tuple[int, int]) -> int:
    """Return the number of parts in which a matrix of a buffer travels."""
    return prod(-(-extent // each) for extent, each in zip(buffer.shape, part, strict=True))


def send(x: Any, buffer: ExchangeBuffer, readers: Sequence[int]) -> None:
    """Copy x to the rank's slot at each of the readers, and tell the other ranks among them when it is there."""
    flat = x.reshape(-1)
    for reader in readers:
        blocks = _blocks(flat.shape[0], _ALONE if reader == buffer.rank else _BLOCKS)
        push[blocks, THREADS]([buffer.slot(reader, buffer.rank)], flat)
        if reader != buffer.rank:
            buffer.tell([reader])


def send_beside(x: Any, buffer: ExchangeBuffer, launch: Callable[[], None]) -> None:
    """Gather x in the slots of a call, beside what is launched; later launches find it there."""
    rows, depth = buffer.shape
    part = parts_of(rows, depth, buffer.dtype.bytes, buffer.size)
    engine, parts = sender_for(buffer, x, part), 1
    if engine is None:
        launch()
        send(x, buffer, [buffer.ring(-step) for step in range(1, buffer.size + 1)])
    else:
        parts = _parts(buffer, part)
        send(x, buffer, [buffer.rank])
        engine.beside(launch, pointer_of(x), buffer.calls)
    buffer.wait(buffer.ring(1), buffer.size - 1, parts)


def matmul_reduce_scatter(
    x: Any, w: Any, out: Any, buffer: ExchangeBuffer, residual: Any = None, bias: Any = None
) -> Any:
    """Compute out = (sum over ranks of x @ w + bias)[rows of this rank] + residual, and return `out`.

    x is (size * M, K), w is (K, N), of each rank its own part of K, and `out` is (M, N): rank r gets rows r * M to
    (r + 1) * M. `buffer` is an `ExchangeBuffer(group, (M, N), dtype)`, where `dtype` is that in which products travel:
    tw.float32, or the type of `out`, which takes less time. The products for the other ranks are written to their
    memory as they are computed, the rank's own last; large ones pass from rank to rank, and each adds its own. Sums are
    in float32, and have the same bits in each run. The residual has the shape of `out` and the bias (N,); both are the
    rank's own, of the type of `out`.

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
    kind, more = _kind(name, residual=residual, bias=bias)
    if _is_repeated(kind, buffer, out, x, w, *more):
        return out
    rows = _rows_of_rank(name, x, buffer)
    _product(name, x, rows, w, out, bias)
    _demand_buffer(name, buffer, (rows, _matrix(name, "w", w).shape[1]), None, out)
    if residual is not None:
        given, made = _matrix(name, "residual", residual), _matrix(name, "out", out)
        if (given.shape, given.dtype) != (made.shape, made.dtype):
            what = f"{shown(given.shape)} of {given.dtype}, and out {shown(made.shape)} of {made.dtype}"
            raise ArgumentError(f"{name}: residual is {what}")
    with buffer:
        _reduce(kind, x, w, rows, [out], buffer, more, residual, bias)
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
    _product(name, x, rows * buffer.size, w, out)
    shape = rows, _matrix(name, "w", w).shape[1]
    _demand_buffer(name, buffer, shape, None, out)
    _demand_buffer(name, results, shape, out)
    with buffer, results:
        everybody = [results.ring(-step) for step in range(results.size)]
        _reduce(name, x, w, rows, [results.slot(reader, results.rank) for reader in everybody], buffer)
        results.tell(everybody)
        results.wait(results.rank, results.size)
        for rank in range(results.size):
            part = out[rank * rows : (rank + 1) * rows].reshape(-1)
            push[_blocks(rows * shape[1]), THREADS]([part], results.slot(results.rank, rank))
    return out


def _reduce(
    kind: str,
    x: Any,
    w: Any,
    rows: int,
    targets: Sequence[Any],
    buffer: ExchangeBuffer,
    more: Sequence[Any] = (),
    residual: Any = None,
    bias: Any = None,
) -> None:
    """Write the rank's products to the ranks whose rows they are, and add up those that come to the targets.

    `more` are those of residual and bias that are there.
    """
    columns, added = buffer.shape[1], () if residual is None else (residual,)
    part = parts_of_sums(rows, columns, buffer.dtype.bytes, buffer.size)
    own = targets[0].reshape(rows, columns)
    is_done = _launch_again(kind, buffer, (own, x, w, *more))
    if not is_done and buffer.size > 1 and _is_alike(buffer, own):
        engine = sender_for(buffer, own, part, is_staged=True)
        staging = None if engine is None else engine.staging
        exchange = buffer.exchange(1, in_ring=buffer.in_ring)
        launch = scattered_launch(x, w, own, part, exchange, added, bias, staging)
        is_done = launch is not None
        if launch is not None:
            _launch(kind, buffer, (own, x, w, *more), *launch, engine)
    if is_done:
        if targets[1:]:
            push[_blocks(rows * columns), THREADS](list(targets[1:]), targets[0])
        return
    more = [each.reshape(-1) for each in added]
    for step in range(1, buffer.size + 1):
        owner, is_own = buffer.ring(step), step == buffer.size
        reader, slot = (buffer.ring(-1), buffer.ring(step + 1)) if buffer.in_ring else (owner, buffer.rank)
        to = [target.reshape(-1) for target in targets] if is_own else [buffer.slot(reader, slot)]
        # Where sums pass from rank to rank, the rank's own product waits for them in a slot into which nobody writes.
        is_added = buffer.in_ring and step > 1
        product = buffer.slot(buffer.rank, buffer.ring(2) if is_added else buffer.rank) if is_added or is_own else to[0]
        matmul(x[owner * rows : (owner + 1) * rows], w, out=product.reshape(rows, columns), bias=bias)
        if is_added:
            buffer.wait(slot, parts=_parts(buffer, part))
            come = [buffer.slot(buffer.rank, slot)]
            add[_blocks(rows * columns), THREADS](to, product.reshape(1, -1), [*come, *(more if is_own else ())])
        if not is_own:
            buffer.tell([reader], slot)
    if not buffer.in_ring:
        buffer.tell([buffer.rank])
        buffer.wait(buffer.ring(0), buffer.size, _parts(buffer, part))
        add[_blocks(rows * columns), THREADS]([target.reshape(-1) for target in targets], buffer.slots(), more)


# --- calls that are repeated ---------------------------------------------------------------------------------------


def _kind(name: str, **arrays: Any) -> tuple[str, tuple[Any, ...]]:
    """Return the name of calls to which those arrays are given that are not None, and these."""
    found = {each: array for each, array in arrays.items() if array is not None}
    return " + ".join((name, *found)), tuple(found.values())


def _is_repeated(name: str, buffer: object, *arrays: Any) -> bool:
    """Say whether a call was made from the pointers of its arrays alone, as calls of its kind were before."""
    if not isinstance(buffer, ExchangeBuffer) or name not in buffer.met:
        return False
    with buffer:
        if _launch_again(name, buffer, arrays):
            return True
        buffer.calls -= 1  # the arrays are looked at, and the call is made then
    return False


def _launch_again(name: str, buffer: ExchangeBuffer, arrays: tuple[Any, ...]) -> bool:
    """Make a call of a kind that was met before; return False, with nothing done, for others.

    A buffer remembers what launches a kind of calls, and where its own memory is among the values of a launch. Even and
    odd calls take different slots.
    """
    signature = buffer.met.get(name)
    if signature is None:
        return False
    try:
        plan, (call, pointers, _) = signature.read(arrays)
    except Exception:  # the operation says it in its own words
        return False
    known = call.kernel and call.kernel.get(buffer.calls % 2)
    if known is None:
        return False
    if plan.compiled is NOT_ASKED:
        quicken(plan, arrays)
    again, own, engine = known
    values = *pointers, *own, buffer.calls

    def launch() -> bool:
        return bool(again(values))

    found: bool = launch() if engine is None else engine.beside(launch, pointers[1], buffer.calls)
    return found


def _launch(
    name: str,
    buffer: ExchangeBuffer,
    arrays: tuple[Any, ...],
    launcher: Launcher,
    args: tuple[Any, ...],
    engine: Sender | None,
) -> None:
    """Launch a kernel, and remember how calls such as this one are made again, where that is known."""

    def launch() -> bool:
        launcher(*args)
        return True

    if engine is None:
        launch()
    else:
        engine.beside(launch, pointer_of(arrays[1]), buffer.calls)
    again = launcher.repeat(args)
    if again is not None:
        signature = buffer.met.setdefault(name, Signature(("out", "x", "w", *name.split(" + ")[1:])))
        _, (call, pointers, _) = signature.read(arrays)
        values = tuple([value for value, _ in launcher.passed(args)])
        begin = len(pointers)
        assert values[:begin] == pointers and values[-1] == buffer.calls, values
        call.kernel = {**(call.kernel or {}), buffer.calls % 2: (again, values[begin:-1], engine)}


def _is_alike(buffer: ExchangeBuffer, array: Any) -> bool:
    """Say whether an array has the type of a buffer."""
    info = describe(array)
    return info is not None and info.dtype is buffer.dtype


def _blocks(elements: int, most: int = _BLOCKS) -> int:
    return min(most, -(-elements // TILE))


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
    info = describe(array, f"{function}: {name}")
    if info is None or len(info.shape) != 2:
        raise ArgumentError(f"{function}: {name} is a matrix, got {given(array) if info is None else info.shape}")
    if info.shape[0] and info.strides not in ((info.shape[1], 1), (1, 1)) and name != "w":
        raise ArgumentError(
            f"{function}: {name} has strides {info.strides}, and the exchange takes whole rows one after another",
            help="pass a contiguous copy",
        )
    return info


def _product(function: str, x: Any, rows: int, w: Any, out: Any, bias: Any = None) -> None:
    """Raise `ArgumentError` where x, w, out and bias do not fit each other, with so many rows of the result.

    In the middle of the exchange it would be too late: the other ranks would wait for this one.
    """
    infos = [_matrix(function, name, array) for name, array in (("x", x), ("w", w), ("out", out))]
    (_, inner), (depth, columns), shape = (info.shape for info in infos)
    if depth != inner:
        raise ArgumentError(f"{function}: x has {inner} columns, and w {depth} rows")
    if shape != (rows, columns):
        raise ArgumentError(f"{function}: out has shape {shape}, and the result {(rows, columns)}")
    if 0 in (rows, depth, columns):
        raise ArgumentError(f"{function}: a matrix is empty", help="leave the call out")
    common_device(infos, ("x", "w", "out"))
    found = infos[2]
    types_of(infos[0].dtype, infos[1].dtype, found.dtype, None)
    if not found.writable:
        raise ArgumentError(f"{function}: out is read-only")
    info = None if bias is None else describe(bias, f"{function}: bias")
    if bias is not None and (info is None or (info.shape, info.strides, info.dtype) != ((columns,), (1,), found.dtype)):
        raise ArgumentError(f"{function}: bias is a contiguous vector of {columns} elements of {found.dtype}")


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
