"""Which bytes of shared memory have been written since the life of the buffer there began."""

from __future__ import annotations

import numpy as np

from tilewright.backends.sim.storage import SharedStorage
from tilewright.backends.sim.values import Array, Lanes, Mask, at_least_2d, both

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class InitialisedBytes:
    """A byte for each byte of the arena of shared memory: 1 when written.

    Threads of different blocks mostly write the same places. As long as they do, one row stands for all blocks, and
    checking costs as much as for a single block.
    """

    def __init__(self, arena_bytes: int) -> None:
        self._blocks = 0
        self._bytes = np.zeros((1, arena_bytes), np.uint8)

    def begin(self, blocks: int) -> None:
        """Forget everything; `blocks` blocks begin."""
        self._blocks = blocks
        self._bytes = np.zeros((1, self._bytes.shape[1]), np.uint8)

    def forget(self, storage: SharedStorage, mask: Mask) -> None:
        """Take a buffer's bytes as unwritten in the blocks of the mask."""
        piece = slice(storage.offset, storage.offset + storage.buffer.bytes)
        if mask is None or mask.shape[0] == 1:
            self._bytes[:, piece] = 0
        else:
            self._separate()
            self._bytes[mask.any(axis=1), piece] = 0

    def mark(self, storage: SharedStorage, index: Lanes, lanes: int, mask: Mask) -> None:
        """Take elements as written by the threads of the mask."""
        if self._differs(index, mask):
            self._separate()
        cells, position, mask = self._cells(storage, index, lanes, mask)
        full = cells.dtype.type(int.from_bytes(b"\x01" * cells.itemsize, "little"))
        if mask is None:
            cells[position.ravel()] = full
        else:
            position, mask = np.broadcast_arrays(position, mask)
            cells[position[mask]] = full

    def missing(self, storage: SharedStorage, index: Lanes, lanes: int, mask: Mask) -> Array | None:
        """Return the threads of the mask that read something unwritten, None if there are none."""
        if len(self._bytes) == 1 and np.ndim(index) == 2 and index.shape[0] > 1:
            piece = self._bytes[0, storage.offset : storage.offset + storage.buffer.bytes]
            if piece.all():
                return None
            self._separate()
        cells, position, spread = self._cells(storage, index, lanes, mask)
        if spread is not None:
            position = np.where(spread, position, storage.offset // cells.itemsize)
        full = cells.dtype.type(int.from_bytes(b"\x01" * cells.itemsize, "little"))
        unwritten: Array = cells.take(position) != full
        if not unwritten.any():
            return None
        # np.asarray only for the types: with a wide access there are lanes to reduce, so the result is an array.
        found = both(mask, np.asarray(unwritten.any(axis=-1)) if lanes > 1 else unwritten)
        assert found is not None
        return found if found.any() else None

    def _differs(self, index: Lanes, mask: Mask) -> bool:
        return (np.ndim(index) == 2 and index.shape[0] > 1) or (mask is not None and mask.shape[0] > 1)

    def _separate(self) -> None:
        """Give each block a row of its own."""
        if len(self._bytes) != self._blocks:
            self._bytes = np.repeat(self._bytes, self._blocks, axis=0)

    def _cells(self, storage: SharedStorage, index: Lanes, lanes: int, mask: Mask) -> tuple[Array, Array, Mask]:
        """Return the bytes as cells of the buffer's element size, the cells accessed, and the mask in their shape."""
        size = storage.buffer.dtype.bytes
        cells = self._bytes.view(_UNSIGNED[size])
        rows, pitch = cells.shape
        position = at_least_2d(index).astype(np.intp) + storage.offset // size
        if rows > 1:
            position = position + (np.arange(rows, dtype=np.intp) * pitch)[:, None]
        if lanes > 1:
            position = position[..., None] + np.arange(lanes)
            mask = None if mask is None else mask[..., None]
        return cells.reshape(-1), position, mask
