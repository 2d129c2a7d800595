"""What the meter keeps of memory: how a shared buffer was accessed, and which sectors of an array were touched."""

from __future__ import annotations

import numpy as np

from tilewright.backends.sim.observers import AccessKind
from tilewright.backends.sim.storage import GlobalStorage, SharedStorage
from tilewright.backends.sim.values import Array
from tilewright.figures import MOST_PATTERNS, Pattern, SharedBuffer
from tilewright.ir.core import Op
from tilewright.transactions import SECTOR


class Patterns:
    """The patterns of one buffer of shared memory while they are gathered."""

    def __init__(self, storage: SharedStorage) -> None:
        buffer = storage.buffer
        self._result = SharedBuffer(
            name=buffer.name,
            element=str(buffer.dtype),
            element_bytes=buffer.dtype.bytes,
            size=storage.high,
            offset=storage.offset,
            layout=buffer.layout,
            location=buffer.location,
        )
        self._found: dict[tuple[Op, bytes], Pattern] = {}
        self.is_complete = True

    def add(self, op: Op, kind: str, width: int, elements: Array, times: int) -> None:
        """Count requests; the elements (requests, lanes) hold -1 for idle lanes."""
        for row in elements:
            key = op, row.tobytes()
            known = self._found.get(key)
            if known is not None:
                known.times += times
            elif len(self._found) < MOST_PATTERNS:
                self._found[key] = Pattern(op.location, kind, width, row, times)
            else:
                self.is_complete = False

    def finish(self) -> SharedBuffer:
        """Return the buffer with its patterns."""
        self._result.patterns = list(self._found.values())
        self._result.is_complete = self.is_complete
        return self._result


class Touched:
    """Which sectors of one array have been read and written.

    An array's place within a sector is its place in the allocation that it is a part of: a GPU's allocations
    begin at multiples of 256 bytes, NumPy's do not.
    """

    def __init__(self, storage: GlobalStorage) -> None:
        self.start = storage.place_in_allocation
        self._first = (self.start + storage.low * storage.buffer.dtype.bytes) // SECTOR
        last = (self.start + storage.high * storage.buffer.dtype.bytes) // SECTOR
        self._read = np.zeros(last - self._first + 1, np.bool_)
        self._written = np.zeros_like(self._read)

    def add(self, addresses: Array, kind: AccessKind, shifts: Array | None) -> None:
        """Mark the sectors of requests, and of the same requests shifted by so many bytes."""
        places = addresses // SECTOR - self._first
        if shifts is not None:
            places = np.unique(places) + (shifts // SECTOR)[:, None]
        places = places[(places >= 0) & (places < len(self._read))]
        if kind is not AccessKind.STORE:
            self._read[places] = True
        if kind in (AccessKind.STORE, AccessKind.ATOMIC):
            self._written[places] = True

    @property
    def bytes(self) -> int:
        """The bytes of all sectors read and of all sectors written."""
        return SECTOR * int(self._read.sum() + self._written.sum())
