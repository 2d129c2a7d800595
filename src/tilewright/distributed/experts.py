"""Grouped products whose experts lie on several ranks: rows travel to the experts (dispatch) and back (combine).

Rank r has the experts from r * experts on. How many rows go where is known on the device alone: counts are announced
before rows, grids are those of whole slots, and kernels read how much of a slot is used.
"""

from __future__ import annotations

from typing import Any  # Any: arrays of NumPy, CuPy or PyTorch

from tilewright.arguments import given, integer, shown
from tilewright.distributed._exchange_kernels import (
    THREADS,
    TILE,
    announce_counts,
    announce_ends,
    bound_offsets,
    copy_ends,
    send_rows,
    take_rows,
)
from tilewright.distributed.buffers import ExchangeBuffer, Group
from tilewright.dtypes import int32, int64
from tilewright.errors import ArgumentError
from tilewright.kernels.grouped import grouped_matmul, types_of_groups
from tilewright.kernels.results import host_array
from tilewright.runtime.arrays import ArrayInfo, common_device, describe
from tilewright.runtime.dlpack import row_major

_BLOCKS = 64  # of the kernels that copy: fewer than multiprocessors, so that products run beside them
_VECTOR = 16  # bytes
_MOST = 2**31 - 1  # elements of an array whose rows are copied


class ExpertBuffer(ExchangeBuffer):
    """Symmetric memory for rows that travel to experts or back, at most `capacity` rows from one rank to another.

    Each rank has `experts` of them, and a row has `width` elements: K for `dispatch_grouped_matmul`, N for
    `grouped_matmul_combine`. A rank allocates 2 * ranks * capacity * width elements. Calls use a buffer one at a time,
    in the same order on all ranks, as for `ExchangeBuffer`; one buffer may serve both functions in turn.

    >>> import numpy as np, tilewright as tw
    >>> def main(rank):
    ...     buffer = tw.distributed.ExpertBuffer(rank, capacity=4, width=8, dtype=tw.float16, experts=2)
    ...     return buffer.shape, buffer.experts
    >>> tw.simulate(ranks=2).run(main)
    [((4, 8), 2), ((4, 8), 2)]

    Raises `ArgumentError` for invalid numbers and groups.
    """

    def __init__(self, group: Group, capacity: int, width: int, dtype: object, experts: int) -> None:
        name = "ExpertBuffer"
        self.capacity: int = integer(name, "capacity", capacity, minimum=1)
        self.width: int = integer(name, "width", width, minimum=1)
        self.experts: int = integer(name, "experts", experts, minimum=1)
        integer(name, "capacity * width", self.capacity * self.width, maximum=_MOST)
        super().__init__(group, (self.capacity, self.width), dtype)
        self._announced = group.symmetric((2, self.size, self.experts), "int32").peers
        self._faults = group.symmetric((self.size, 3), "int32").peers
        self._ends = group.symmetric((self.size * self.experts,), "int32").peers[self.rank]

    def check(self) -> None:
        """Raise `ArgumentError` where rows did not arrive: a call had more than the capacity, or wrong offsets.

        Reads what the device wrote, and so waits for it. In an unchecked call nothing is written beyond a buffer: rows
        beyond the capacity do not travel, and `grouped_matmul_combine` sets their results to NaN.
        """
        for rank, (most, is_wrong, is_short) in enumerate(host_array(self._faults[self.rank], "faults").tolist()):
            if is_wrong:
                raise ArgumentError(
                    f"ExpertBuffer: rank {rank} had offsets that decrease, or that are not between 0 and its rows"
                )
            if most > self.capacity:
                raise ArgumentError(
                    f"ExpertBuffer: rank {rank} had {most} rows for one rank, and the capacity is {self.capacity}",
                    help="make a larger buffer on all ranks, or let the router drop rows",
                )
            if is_short:
                raise ArgumentError(
                    f"ExpertBuffer: rank {rank} sent back another number of rows than it had got",
                    help="pass to grouped_matmul_combine the offsets and `arrived` of one dispatch_grouped_matmul",
                )

    def announced(self, reader: int, sender: int) -> Any:
        """Return where a rank finds, in this call, the ends of its experts among the rows of another rank."""
        return self._announced[reader][self.calls % 2, sender]

    def bound(self, offsets: Any, rows: int) -> None:
        """Keep the ends of all experts' rows on the device, bounded."""
        faults = list(self._faults)
        bound_offsets[1, THREADS](self._ends, faults, faults[self.rank], offsets, rows, self.experts, self.rank)

    @property
    def _unit(self) -> int:
        """How many elements one access copies."""
        vector = _VECTOR // self.dtype.bytes
        return vector if self.width % vector == 0 else 1

    @property
    def _grid(self) -> tuple[int, int]:
        return min(_BLOCKS, -(-self.capacity * self.width // TILE)), THREADS

    def send(self, x: Any, reader: int) -> None:
        """Copy the rows of x for a rank to its slot."""
        kernel = send_rows[self._grid]
        kernel(self.slot(reader, self.rank), x, self._ends, reader, self.experts, self.width, self._unit)

    def take(self, out: Any, sender: int) -> None:
        """Copy the rows that a rank sent back to their places in `out`."""
        part, told = self.slot(self.rank, sender), self.announced(self.rank, sender)
        faults = self._faults[self.rank]
        take_rows[self._grid](out, part, told, self._ends, faults, sender, self.width, self._unit)


def dispatch_grouped_matmul(x: Any, w: Any, offsets: Any, out: Any, arrived: Any, buffer: ExpertBuffer) -> Any:
    """Send rows to the ranks of their experts, multiply those that arrive by the experts' weights, and return `out`.

    x is (rows, K), sorted by expert: `offsets`, int32 or int64 of shape (ranks * experts,), has the end of each
    expert's rows. w is (experts, K, N), the weights of this rank's experts, and `buffer` an
    `ExpertBuffer(group, capacity, K, dtype of x, experts)`. With s a rank and e one of this rank's experts:

        out[s, rows of e] = x of rank s[rows of expert rank * experts + e] @ w[e]

    out is (ranks, capacity, N), and `arrived`, int32 of shape (ranks, experts), gets the ends of the experts' rows in
    each part. Rows of a part behind the last end are not written. Each part is multiplied as soon as it has come, the
    rank's own first, then in the order of the ring.

    >>> import numpy as np, tilewright as tw
    >>> def main(rank):
    ...     x, offsets = np.ones((3, 8), np.float32), np.array([1, 3], np.int32)     # one row for expert 0, two for 1
    ...     w = np.full((1, 8, 4), rank.rank + 1, np.float32)                        # one expert on each rank
    ...     buffer = tw.distributed.ExpertBuffer(rank, 3, 8, tw.float32, experts=1)
    ...     out, arrived = np.zeros((2, 3, 4), np.float32), np.empty((2, 1), np.int32)
    ...     tw.distributed.dispatch_grouped_matmul(x, w, offsets, out, arrived, buffer)
    ...     return arrived.tolist(), out[0, :, 0].tolist()
    >>> tw.simulate(ranks=2).run(main)
    [([[1], [1]], [8.0, 0.0, 0.0]), ([[2], [2]], [16.0, 16.0, 0.0])]

    Offsets on a GPU are read by kernels only, so nothing waits on the host. Rows beyond the capacity do not travel; an
    offset below the one before counts as that one, one beyond the rows as their end, and `buffer.check()` raises for
    both. Offsets on the host are checked before anything is sent. Element types and accumulators are those of
    `tw.grouped_matmul`. Raises `ArgumentError` for shapes and types that do not fit each other or the buffer.
    """
    name = "dispatch_grouped_matmul"
    rows = _rows_at_home(name, "x", x, buffer)
    columns = _weights(name, w, buffer, depth=buffer.width)
    _array(name, "out", out, (buffer.size, buffer.capacity, columns))
    _offsets(name, offsets, rows, buffer)
    _arrived(name, arrived, buffer)
    _demand_together(x, w, out, offsets, arrived)
    flat = x.reshape(-1)
    with buffer:
        buffer.bound(offsets, rows)
        everybody = [buffer.ring(-step) for step in range(buffer.size)]
        announce = announce_ends[1, THREADS]
        announce([buffer.announced(r, buffer.rank) for r in range(buffer.size)], buffer._ends, buffer.capacity)
        # The rank's own rows begin where only the device knows, so that they are copied, too.
        for reader in everybody:
            buffer.send(flat, reader)
            buffer.tell([reader] * (reader != buffer.rank))
        for step in range(buffer.size):
            sender = buffer.ring(step)
            if step > 0:
                buffer.wait(sender)
            part = buffer.slot(buffer.rank, sender).reshape(buffer.capacity, buffer.width)
            grouped_matmul(part, w, buffer.announced(buffer.rank, sender), out=out[sender], fill=False)
        copy_ends[1, THREADS](arrived, buffer._announced[buffer.rank][buffer.calls % 2])
    return out


def grouped_matmul_combine(x: Any, w: Any, arrived: Any, offsets: Any, out: Any, buffer: ExpertBuffer) -> Any:
    """Multiply rows by the weights of this rank's experts, send the results back where the rows are from; return `out`.

    x is (ranks, capacity, K), the rows of each rank sorted by expert, with their ends in `arrived`, as
    `dispatch_grouped_matmul` gives them; w is (experts, K, N), and `buffer` an
    `ExpertBuffer(group, capacity, N, dtype of out, experts)`. out is (rows, N) and `offsets` as given to the dispatch:

        out[rows of expert owner * experts + e] = x of rank owner[this rank, rows of e] @ w of rank owner[e]

    Rows behind the last offset become 0. The products for other ranks are written to their memory as they are computed,
    the rank's own last, and each rank takes parts to their places as they come.

    >>> import numpy as np, tilewright as tw
    >>> def main(rank):
    ...     x, offsets = np.ones((2, 3, 8), np.float32), np.array([1, 3], np.int32)
    ...     w = np.full((1, 8, 4), rank.rank + 1, np.float32)
    ...     buffer = tw.distributed.ExpertBuffer(rank, 3, 4, tw.float32, experts=1)
    ...     arrived = np.full((2, 1), rank.rank + 1, np.int32)    # one row of each rank for expert 0, two for expert 1
    ...     out = np.empty((3, 4), np.float32)
    ...     return tw.distributed.grouped_matmul_combine(x, w, arrived, offsets, out, buffer)[:, 0].tolist()
    >>> tw.simulate(ranks=2).run(main)
    [[8.0, 16.0, 16.0], [8.0, 16.0, 16.0]]

    Rows of `out` whose results do not come (the dispatch had no room for them, or `arrived` belongs to another one)
    become NaN, and `buffer.check()` raises. What is checked on the host, types and errors are as for
    `dispatch_grouped_matmul`.
    """
    name = "grouped_matmul_combine"
    rows = _rows_at_home(name, "out", out, buffer)
    depth = _info(name, "x", x).shape[-1:]
    _array(name, "x", x, (buffer.size, buffer.capacity, *depth))
    _weights(name, w, buffer, depth=depth[0], columns=buffer.width)
    _offsets(name, offsets, rows, buffer)
    _arrived(name, arrived, buffer)
    _demand_together(x, w, out, offsets, arrived)
    flat = out.reshape(-1)
    with buffer:
        buffer.bound(offsets, rows)
        announce = announce_counts[1, THREADS]
        announce([buffer.announced(r, buffer.rank) for r in range(buffer.size)], arrived, buffer.capacity)
        for step in range(1, buffer.size + 1):
            reader = buffer.ring(step)
            part = buffer.slot(reader, buffer.rank).reshape(buffer.capacity, buffer.width)
            grouped_matmul(x[reader], w, arrived[reader], out=part, fill=False)
            buffer.tell([reader] * (reader != buffer.rank))
        # The rank before this one has computed its rows first.
        for step in range(1, buffer.size + 1):
            sender = buffer.ring(-step)
            if sender != buffer.rank:
                buffer.wait(sender)
            buffer.take(flat, sender)
    return out


# --- what is refused -------------------------------------------------------------------------------------------


def _info(function: str, name: str, array: Any) -> ArrayInfo:
    info = describe(array, f"{function}: {name}")
    if info is None or not info.shape:
        raise ArgumentError(f"{function}: {name} is an array, got {given(array)}")
    return info


def _array(function: str, name: str, array: Any, shape: tuple[int, ...]) -> None:
    """Raise `ArgumentError` for an array of another shape, and for one whose elements do not follow each other."""
    info = _info(function, name, array)
    if info.shape != shape:
        raise ArgumentError(f"{function}: {name} has shape {info.shape}, and the buffer is for {shown(shape)}")
    if info.strides != row_major(shape) and 0 not in shape:
        raise ArgumentError(
            f"{function}: {name} has strides {info.strides}, and its rows are taken one after another",
            help="pass a contiguous copy",
        )


def _rows_at_home(function: str, name: str, array: Any, buffer: object) -> int:
    """Return how many rows a rank has, which travel by the buffer; raise `ArgumentError` for what it does not take."""
    if not isinstance(buffer, ExpertBuffer):
        raise ArgumentError(
            f"{function}: buffer is an ExpertBuffer, got {given(buffer)}",
            help="make one before the first call: tw.distributed.ExpertBuffer(group, capacity, width, dtype, experts)",
        )
    info = _info(function, name, array)
    if len(info.shape) != 2 or info.dtype != buffer.dtype:
        raise ArgumentError(
            f"{function}: {name} is a matrix of {buffer.dtype}, as the buffer, got {info.dtype} of shape {info.shape}"
        )
    _array(function, name, array, (info.shape[0], buffer.width))
    integer(function, f"the number of elements of {name}", info.shape[0] * buffer.width, maximum=_MOST)
    return info.shape[0]


def _weights(function: str, w: Any, buffer: ExpertBuffer, *, depth: int, columns: int | None = None) -> int:
    """Return the columns of the experts' weights; raise `ArgumentError` for others than (experts, depth, columns)."""
    shape = _info(function, "w", w).shape
    fits = len(shape) == 3 and shape[:2] == (buffer.experts, depth) and columns in (None, shape[2])
    if not fits or 0 in shape:
        wanted = f"({buffer.experts}, {depth}, {'N' if columns is None else columns})"
        raise ArgumentError(f"{function}: w has shape {shape}, and the weights of the rank's experts {wanted}")
    return shape[2]


def _offsets(function: str, offsets: Any, rows: int, buffer: ExpertBuffer) -> None:
    info = _info(function, "offsets", offsets)
    count = buffer.size * buffer.experts
    if info.dtype not in (int32, int64) or info.shape != (count,):
        raise ArgumentError(
            f"{function}: offsets is a vector of int32 or int64 with the ends of {count} experts' rows, got "
            f"{info.dtype} of shape {info.shape}"
        )
    if info.device == "cpu":
        _check_on_host(function, host_array(offsets, "offsets").tolist(), rows, buffer)


def _check_on_host(function: str, ends: list[int], rows: int, buffer: ExpertBuffer) -> None:
    """Raise `ArgumentError` for offsets that kernels would have to bound, and for more rows than have room."""
    for place, (before, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if not before <= end <= rows:
            raise ArgumentError(
                f"{function}: offsets[{place}] is {end}, the expert's rows begin at {before}, and there are {rows}",
                help="offsets are the ends of the experts' rows: np.cumsum(counts)",
            )
    borders = [0, *ends[buffer.experts - 1 :: buffer.experts]]
    for rank in range(buffer.size):
        count = borders[rank + 1] - borders[rank]
        if count > buffer.capacity:
            raise ArgumentError(
                f"{function}: there are {count} rows for rank {rank}, and the buffer's capacity is {buffer.capacity}",
                help="make a larger buffer on all ranks, or let the router drop rows",
            )


def _demand_together(x: Any, w: Any, out: Any, offsets: Any, arrived: Any) -> None:
    """Raise `ArgumentError` for types that have no product, and for arrays on several devices.

    In the middle of the exchange it would be too late: the other ranks would wait for this one.
    """
    names = ("x", "w", "out", "offsets", "arrived")
    infos = [_info("", name, array) for name, array in zip(names, (x, w, out, offsets, arrived), strict=True)]
    common_device(infos, names)
    types_of_groups(infos[0], infos[1], infos[2])


def _arrived(function: str, arrived: Any, buffer: ExpertBuffer) -> None:
    info = _info(function, "arrived", arrived)
    if info.dtype != int32:
        raise ArgumentError(f"{function}: arrived is an array of int32, got {info.dtype}")
    _array(function, "arrived", arrived, (buffer.size, buffer.experts))
