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
Place = tuple[int, int, tuple[int, int, int]]  # of a copy: target, offset of the source, and the rest but the number


class Sender:
    """The copy engines of a GPU, which send parts of `bytes` in the calls of an operation on a buffer.

    Without `staging` an array goes to all readers, and its copies are queued ahead of the launch. Else the launch
    writes an array for each reader there and tells of each part, for which its copy waits. Copies begin behind what the
    launch's stream was given before, and that goes on when they are done: then what they read may be written again.
    """

    def __init__(self, copies: CopyStream, stream_of: StreamGetter, bytes: int, staging: Any = None) -> None:
        self.staging = staging
        self._copies, self._stream_of, self._bytes = copies, stream_of, bytes
        self._places: dict[int, list[Place]] = {}  # of copies, by the parity of calls

    def learn(self, exchange: Exchange) -> None:
        """Look up where the parts of a call go; every other call takes the same places."""
        if exchange.number % 2 not in self._places:
            found = places_of(exchange, self._bytes, is_staged=self.staging is not None)
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
        self._copies.put([Copy(to, source + begin, *rest, number) for to, begin, rest in self._places[number % 2]])


def sender_for(buffer: ExchangeBuffer, array: Any, part: tuple[int, int], *, is_staged: bool = False) -> Sender | None:
    """Return what sends parts of a call's data, which is as `array`, None where the kernel does."""
    bytes = prod(part) * buffer.dtype.bytes
    info, adapter = describe(array), adapter_for(array)
    is_one = part[0] >= buffer.shape[0]  # then nothing goes on beside its copy
    if bytes < _LEAST or is_one or part[1] != buffer.shape[1] or info is None or adapter is None:
        return None
    if isinstance(info.device, str) or adapter.current_stream is None:
        return None
    found: Sender | None = buffer.senders.get(is_staged)
    if found is None:
        shape = buffer.size - 1, *buffer.shape
        staging = maker_for(adapter.library, shape, info.dtype, info.device)()[0] if is_staged else None
        found = Sender(copy_stream(info.device), adapter.current_stream, bytes, staging)
        buffer.senders[is_staged] = found
    found.learn(buffer.exchange(1 if is_staged else -1))
    return found


def places_of(exchange: Exchange, bytes: int, *, is_staged: bool) -> list[Place]:
    """Return the places of each copy of a call."""
    found: list[Place] = []
    for reader, (slot, flags) in enumerate(zip(exchange.slots, exchange.flags, strict=True)):
        info = describe(slot)
        assert info is not None, slot
        size, told = info.size * info.dtype.bytes, pointer_of(flags) + _FLAG * MOST_PARTS * exchange.rank
        begin, sent = reader * size * is_staged, pointer_of(exchange.sent) + _FLAG * MOST_PARTS * reader
        for part, first in enumerate(range(0, size, bytes)):
            ready = sent + _FLAG * part if is_staged else 0
            rest = min(bytes, size - first), told + _FLAG * part, ready
            found.append((info.pointer + first, begin + first, rest))
    return found


def pointer_of(array: Any) -> int:
    """Return where an array begins."""
    info = describe(array)
    assert info is not None, array
    return info.pointer
