"""What copy engines do for products over several GPUs: they send large parts, beside the kernel that multiplies.

Warps that copy, and stores to another GPU's memory, cost a kernel of 740 us some 30 to 70 us on two H200s. A copy takes
time of the host, so small parts are the kernel's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any  # Any: arrays of NumPy, CuPy or PyTorch

from tilewright.kernels.exchanged import MOST_PARTS, Exchange
from tilewright.kernels.results import maker_for
from tilewright.runtime.arrays import adapter_for, describe
from tilewright.runtime.copies import Copy, CopyStream, copy_stream

_LEAST = 2 << 20  # bytes of a part


class Engine:
    """The copy engines of a GPU, in a call whose kernel is launched on `stream`.

    Copies begin behind what that stream was given before the call, and it goes on when they are done.
    """

    def __init__(self, copies: CopyStream, stream: int) -> None:
        self._copies, self._stream = copies, stream
        copies.follow(stream)

    def send(self, array: Any, bytes: int, exchange: Exchange, ready: Any = None) -> None:
        """Send parts of `bytes` to all readers, and tell of each: of one array to all, or of an array for each.

        With `ready`, (readers, parts), the sender's kernel tells there of each part.
        """
        self._copies.put(_copies(array, bytes, exchange, ready))

    def finish(self) -> None:
        """Let the stream wait for the copies: what was sent may then be written again."""
        self._copies.lead(self._stream)


def engine_for(array: Any, bytes: int) -> Engine | None:
    """Return what sends parts of `bytes` of an array, None where its kernel does."""
    info, adapter = describe(array), adapter_for(array)
    if info is None or isinstance(info.device, str) or adapter is None or bytes < _LEAST:
        return None
    current = adapter.current_stream
    return None if current is None else Engine(copy_stream(info.device), current(info.device))


def memory_like(array: Any, shape: tuple[int, ...]) -> Any:
    """Return an array of no values in particular, of the type and on the device of another."""
    info, adapter = describe(array), adapter_for(array)
    assert info is not None and adapter is not None, array
    return maker_for(adapter.library, shape, info.dtype, info.device)()[0]


def _copies(array: Any, bytes: int, exchange: Exchange, ready: Any) -> Iterator[Copy]:
    source, size = _place(array)
    if ready is not None:
        size //= len(exchange.slots)
    for reader, (slot, flags) in enumerate(zip(exchange.slots, exchange.flags, strict=True)):
        target, told = _place(slot)[0], _place(flags)[0] + 4 * MOST_PARTS * exchange.rank
        begin = 0 if ready is None else reader * size
        sent = 0 if ready is None else _place(ready)[0] + 4 * MOST_PARTS * reader
        for part, first in enumerate(range(0, size, bytes)):
            count, awaited = min(bytes, size - first), sent and sent + 4 * part
            yield Copy(target + first, source + begin + first, count, told + 4 * part, awaited, exchange.number)


def _place(array: Any) -> tuple[int, int]:
    """Return where an array that lies in one piece begins, and its bytes."""
    info = describe(array)
    assert info is not None, array
    return info.pointer, info.size * info.dtype.bytes
