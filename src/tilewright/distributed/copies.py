"""What copy engines do for products over several GPUs: they send large parts, beside the kernel that multiplies.

Warps that copy, and stores to another GPU's memory, cost a kernel of 740 us some 30 to 70 us on two H200s. A copy takes
time of the host, so small parts are the kernel's, and so is what goes in one part.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any  # Any: arrays of NumPy, CuPy or PyTorch

from tilewright.distributed.buffers import ExchangeBuffer
from tilewright.kernels.exchanged import MOST_PARTS, Exchange
from tilewright.kernels.results import maker_for
from tilewright.runtime.arrays import StreamGetter, adapter_for, describe
from tilewright.runtime.copies import Copy, CopyStream, copy_stream

_LEAST = 2 << 20  # bytes of a part
_FLAG = 4  # bytes
Extent = tuple[int, int]  # rows, and bytes of each
Rest = tuple[int, int, int, int, int]  # of a copy, but for its number
Place = tuple[int, int, bool, Rest]  # of a copy: target, source, whether that is an offset, and the rest


class Sender:
    """The copy engines of a GPU, which send a matrix of an extent by parts in the calls of an operation on a buffer.

    Without `staging` a matrix goes to all readers, and its copies are queued ahead of the launch; in the ring it goes
    to the rank before, and so does what has come from the one behind. Else the launch writes a matrix for each reader
    there and tells of each part, for which its copy waits. Copies begin behind what the launch's stream was given
    before, and that goes on when they are done: then what they read may be written again.
    """

    def __init__(
        self, copies: CopyStream, stream_of: StreamGetter, whole: Extent, part: Extent, staging: Any = None
    ) -> None:
        self.staging = staging
        self._copies, self._stream_of, self._whole, self._part = copies, stream_of, whole, part
        self._places: dict[int, list[Place]] = {}  # of copies, by the parity of calls

    def learn(self, exchange: Exchange) -> None:
        """Look up where the parts of a call go; every other call takes the same places."""
        if exchange.number % 2 not in self._places:
            found = places_of(exchange, self._whole, self._part, is_staged=self.staging is not None)
            self._places[exchange.number % 2] = found

    def beside(self, launch: Callable[[], bool | None], source: int, number: int) -> bool:
        """Launch, and send beside it: what lies at `source`, or what is staged. Return whether it was launched."""
        stream = self._stream_of(self._copies.ordinal)
        self._copies.follow(stream)
        if self.staging is None:
            self._send(source, number)
        is_launched = launch() is not False
        if self.staging is not None and is_launched:  # nothing stands between a wait and the kernel that ends it
            self._send(pointer_of(self.staging), number)
        self._copies.lead(stream)
        return is_launched

    def _send(self, source: int, number: int) -> None:
        places = self._places[number % 2]
        self._copies.put([Copy(to, source * moves + begin, *rest, number) for to, begin, moves, rest in places])


def sender_for(buffer: ExchangeBuffer, array: Any, part: tuple[int, int], *, is_staged: bool = False) -> Sender | None:
    """Return what sends parts of a call's data, which is as `array`, None where the kernel does."""
    info, adapter = describe(array), adapter_for(array)
    is_one = part == buffer.shape  # then nothing goes on beside its copy
    is_small = prod(part) * buffer.dtype.bytes < _LEAST or not (buffer.in_ring or part[1] == buffer.shape[1])
    if is_small or is_one or info is None or adapter is None:
        return None
    if isinstance(info.device, str) or adapter.current_stream is None:
        return None
    found: Sender | None = buffer.senders.get(is_staged)
    if found is None:
        shape = buffer.size - 1, *buffer.shape
        staging = maker_for(adapter.library, shape, info.dtype, info.device)()[0] if is_staged else None
        (rows, columns), (height, width), bytes = buffer.shape, part, buffer.dtype.bytes
        extents = (rows, columns * bytes), (height, width * bytes)
        found = Sender(copy_stream(info.device), adapter.current_stream, *extents, staging)
        buffer.senders[is_staged] = found
    found.learn(buffer.exchange(1 if is_staged else -1, in_ring=buffer.in_ring))
    return found


def places_of(exchange: Exchange, whole: Extent, part: Extent, *, is_staged: bool) -> list[Place]:
    """Return the places of each copy of a call."""
    found: list[Place] = []
    (rows, pitch), come = whole, describe(exchange.arrived)
    assert come is not None, exchange
    for n, (slot, row, flags) in enumerate(zip(exchange.slots, exchange.rows, exchange.flags, strict=True)):
        told, is_passed = pointer_of(flags) + _FLAG * MOST_PARTS * row, exchange.in_ring and not is_staged and n > 0
        begin, ready = n * rows * pitch * is_staged, pointer_of(exchange.sent) + _FLAG * MOST_PARTS * n
        if is_passed:
            begin = come.pointer + come.strides[0] * come.dtype.bytes * row
            ready = pointer_of(exchange.told) + _FLAG * MOST_PARTS * row
        corners = ((i, j) for i in range(0, rows, part[0]) for j in range(0, pitch, part[1]))
        for one, (i, j) in enumerate(corners):
            extent = min(part[1], pitch - j), min(part[0], rows - i), pitch
            awaited = ready + _FLAG * one if is_staged or is_passed else 0
            first = i * pitch + j
            found.append(
                (pointer_of(slot) + first, begin + first, not is_passed, (*extent, told + _FLAG * one, awaited))
            )
    return found


def pointer_of(array: Any) -> int:
    """Return where an array begins."""
    info = describe(array)
    assert info is not None, array
    return info.pointer
