"""Global, shared and register memory as NumPy arrays, and how threads read and write them.

Global and shared memory give three things: `flat`, a one-dimensional array; `locate`, the position in it of an element
index in every thread; and `phase`, which positions are aligned for a vector. Loads and stores are written once, over
these.

A register buffer keeps one value of all threads for each element. A store at an index that is the same in all threads
keeps the value itself, a load hands it out: no copies. That is how a kernel's unrolled loops reach registers. An index
that differs by thread is resolved element by element.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from tilewright.backends.sim.values import Array, Lanes, Mask, at_least_2d, both, extract, merge, pack, same_bits
from tilewright.errors import ArgumentError
from tilewright.ir.core import Buffer

# NumPy copies elements of these sizes with dedicated loops, whatever the type.
_WIDE: dict[int, Any] = {2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


class Storage(Protocol):
    """What a buffer's memory can do. Indices are element indices of the buffer, one a thread."""

    buffer: Buffer
    low: int  # the least index that exists, and the first beyond the greatest
    high: int
    tracks: bool  # whether `version` changes with the contents, which costs a comparison at each store
    version: int

    def load(self, index: Lanes, lanes: int, mask: Mask) -> Lanes:
        """Return the elements at the index, or vectors that begin there; inactive threads get anything."""

    def store(self, index: Lanes, value: Lanes, lanes: int, mask: Mask) -> None:
        """Write elements or vectors; where threads meet at one address, the highest block and thread wins."""


class FlatStorage:  # and no ABC: each access asks several times of what class its storage is, which takes longer then
    """Loads and stores over a flat array; subclasses say where elements lie in it."""

    low = 0
    high = 0
    tracks: bool = False
    version: int = 0

    def __init__(self, buffer: Buffer, flat: Array) -> None:
        self.buffer = buffer
        self.flat: Array = flat
        self._wide: dict[int, tuple[Array, int]] = {}

    def locate(self, index: Lanes) -> Lanes:
        """Return the positions in `flat` of element indices, as intp."""
        raise NotImplementedError

    def phase(self, lanes: int) -> int | None:
        """Return the position below `lanes` that is aligned for a vector; None if no position is."""
        raise NotImplementedError

    def load(self, index: Lanes, lanes: int, mask: Mask) -> Lanes:
        position = self.locate(index)
        if mask is not None:
            position = np.where(mask, position, (self.phase(lanes) or 0) if lanes > 1 else 0)
        if lanes == 1:
            return self.flat.take(position)
        wide = self._rows(lanes, position)
        if wide is None:
            mode = "raise" if mask is None else "clip"
            every = at_least_2d(position)[..., None] + np.arange(lanes)
            return self.flat.take(every, mode=mode)  # type: ignore[call-overload]  # the stubs know no mode but literals
        rows, start = wide
        return rows.take(at_least_2d(start) // lanes)[..., None].view(self.flat.dtype)

    def store(self, index: Lanes, value: Lanes, lanes: int, mask: Mask) -> None:
        position = at_least_2d(self.locate(index))
        wide = self._rows(lanes, position) if lanes > 1 else None
        flat = self.flat
        if wide is not None:
            flat, position = wide[0], wide[1] // lanes
            value = np.ascontiguousarray(value).view(flat.dtype)[..., 0]
        elif lanes > 1:
            position = position[..., None] + np.arange(lanes)
            mask = None if mask is None else mask[..., None]
        else:
            value = at_least_2d(value)
        if mask is None:
            position, value = np.broadcast_arrays(position, value)
            position, value = position.ravel(), value.ravel()
        else:
            position, value, mask = np.broadcast_arrays(position, value, mask)
            position, value = position[mask], value[mask]
        before = flat[position].tobytes() if self.tracks else None
        flat[position] = value
        if before is not None and before != flat[position].tobytes():
            self.version += 1

    def spots(self, rows: Array, index: Array) -> Array:
        """Return the positions of element indices (n, elements) in the n blocks of the chunk that rows names."""
        return np.asarray(index - self.low)

    def counted(self, rows: Array, index: Array) -> Array:
        """Return element indices (n, elements) of blocks as bulk accesses count them, by default as they are."""
        return index

    def gather(self, rows: Array, index: Array, there: Array | None = None, missing: Any = 0) -> Array:
        """Return elements (n, elements) of the blocks that rows names, and a number where they are not there."""
        spots = self.spots(rows, index)
        if there is None:
            return self.flat.take(spots)
        found = self.flat.take(np.where(there, spots, 0))
        found[~there] = missing
        return found

    def scatter(self, rows: Array, index: Array, value: Array, there: Array | None = None) -> None:
        """Write elements (n, elements) of the blocks that rows names, where they are there."""
        spots = self.spots(rows, index)
        if there is not None:
            spots, value = spots[there], value[there]
        self.flat[spots] = value
        self.version += self.tracks

    def window(self, position: Array) -> tuple[Array, Array]:
        """Return an array that holds the elements at positions, and where in it: by default the memory itself."""
        return self.flat, position

    def put_window(self, window: Array, position: Array, place: Array) -> None:
        """Write back what `window` gave, where that was a copy."""
        assert window is self.flat, self.buffer

    def _rows(self, lanes: int, position: Lanes) -> tuple[Array, Lanes] | None:
        """Return `flat` as aligned rows of `lanes`, and the positions from the first row on, if all are aligned."""
        phase = self.phase(lanes)
        if phase is None:
            return None
        start = position - phase if phase else position
        if np.bitwise_and(start, lanes - 1).any():
            return None
        found = self._wide.get(lanes)
        if found is None:
            whole = self.flat[phase : phase + (self.flat.size - phase) // lanes * lanes]
            found = whole.view(_WIDE[lanes * self.flat.itemsize]), phase
            self._wide[lanes] = found
        return (found[0], start) if found[0].size else None


class GlobalStorage(FlatStorage):
    """An array of the caller, with its own strides.

    `flat` spans the array's memory from its lowest to its highest element; `present` marks the elements that
    belong to the array where its rows leave gaps, and is None where there are none.
    """

    def __init__(self, buffer: Buffer, array: Array) -> None:
        item = array.itemsize
        if array.dtype != buffer.dtype.numpy:
            raise ArgumentError(
                f"argument {buffer.name} must be an array of {buffer.dtype}, and is one of {array.dtype}"
            )
        if any(stride % item for stride in array.strides):
            raise ArgumentError(f"the strides of {buffer.name}, {array.strides} bytes, must be multiples of {item}")
        self.shape: Any = array.shape
        self.strides: tuple[int, ...] = tuple(stride // item for stride in array.strides)
        pairs = list(zip(self.shape, self.strides, strict=True))
        self.empty: bool = 0 in self.shape
        self.low: int = 0 if self.empty else sum(min(0, s * (n - 1)) for n, s in pairs)
        self.high: int = 0 if self.empty else 1 + sum(max(0, s * (n - 1)) for n, s in pairs)
        super().__init__(buffer, np.empty(1, array.dtype) if self.empty else self._span(array))
        self.present: Array | None = self._present()
        self.address: int = self.flat.__array_interface__["data"][0]  # of the lowest element
        self._offset, self._split = self.address // item, bool(self.address % item)
        # The byte of element index 0 in the allocation that the array is a part of.
        self.place_in_allocation: int = 0 if self.empty else array.__array_interface__["data"][0] - _allocation(array)

    def _span(self, array: Array) -> Array:
        forward = array[tuple(slice(None, None, -1 if s < 0 else None) for s in self.strides)]
        bits = forward.view(f"u{array.itemsize}")  # as_strided does not know 8-bit floats
        span = np.lib.stride_tricks.as_strided(
            bits, (self.high - self.low,), (array.itemsize,), writeable=array.flags.writeable
        )
        return span.view(array.dtype)

    def _present(self) -> Array | None:
        if self.empty or int(np.prod(self.shape)) == self.high - self.low:
            return None
        present = np.zeros(self.high - self.low, np.bool_)
        absolute = tuple(abs(s) for s in self.strides)
        np.lib.stride_tricks.as_strided(present, self.shape, absolute)[...] = True
        return present

    def locate(self, index: Lanes) -> Lanes:
        position = index.astype(np.intp)
        return position - self.low if self.low else position

    def phase(self, lanes: int) -> int | None:
        return None if self._split else -self._offset % lanes

    def coordinate(self, index: int) -> tuple[int, ...] | None:
        """Return the coordinate in the caller's array that an index stands for; it may lie outside the shape."""
        if not self.shape or 0 in self.strides or min(self.strides) < 0:
            return None
        order = sorted(range(len(self.shape)), key=lambda mode: -self.strides[mode])
        found = [0] * len(self.shape)
        for mode in order:
            found[mode], index = divmod(index, self.strides[mode])
        return tuple(found)


def _allocation(array: Array) -> int:
    """Return the address at which the memory that an array is a view of begins."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    address: int = array.__array_interface__["data"][0]
    return address


class SharedStorage(FlatStorage):
    """A buffer in shared memory: a piece of each block's row in the chunk's arena."""

    def __init__(self, buffer: Buffer, offset: int, size: int) -> None:
        assert offset % buffer.dtype.bytes == 0, buffer.name
        super().__init__(buffer, np.empty(0, buffer.dtype.numpy))
        self.offset = offset
        self.mark = 1  # what says of a byte that it was written: of each tensor that shares bytes on purpose its own
        self.low: int = 0
        self.high = size
        self.bytes: int = size * buffer.dtype.bytes
        self._first = offset // buffer.dtype.bytes
        self._rows_of_blocks = self.flat.reshape(0, 0)
        self._base = np.empty((0, 1), np.intp)

    def attach(self, arena: Array) -> None:
        """Use the arena, an array of bytes (blocks, bytes), as memory from now on."""
        self._rows_of_blocks = arena.view(self.buffer.dtype.numpy)
        self.flat: Array = self._rows_of_blocks.reshape(-1)
        blocks, pitch = self._rows_of_blocks.shape
        self._base = (np.arange(blocks, dtype=np.intp) * pitch + self._first)[:, None]
        self._wide.clear()

    def locate(self, index: Lanes) -> Lanes:
        return self._base + index.astype(np.intp)

    def spots(self, rows: Array, index: Array) -> Array:
        return self._base[rows] + index

    def phase(self, lanes: int) -> int | None:
        return 0 if self.offset % (lanes * self.buffer.dtype.bytes) == 0 else -self._first % lanes

    def load(self, index: Lanes, lanes: int, mask: Mask) -> Lanes:
        if lanes == 1 and mask is None and np.ndim(index) == 2 and index.shape[0] == 1:
            return self._rows_of_blocks.take(index[0].astype(np.intp) + self._first, axis=1)
        return super().load(index, lanes, mask)


class RemoteStorage(SharedStorage):
    """A shared buffer in another block of the cluster: the blocks of a cluster are rows side by side in the arena."""

    def __init__(self, buffer: Buffer, offset: int, size: int, cluster: int) -> None:
        super().__init__(buffer, offset, size)
        self.ranks: Lanes = np.int32(0)
        self._cluster = cluster

    def attach(self, arena: Array) -> None:
        super().attach(arena)
        self.ranks = np.int32(0)  # those of before are of another number of blocks

    def point(self, rank: Lanes, mask: Mask) -> None:
        """Be the buffer of the block of that rank, in the threads of the mask."""
        new = np.asarray(rank).astype(np.int64)[()]
        self.ranks = new if mask is None else merge(mask, new, self.ranks)

    @property
    def targets(self) -> Array:
        """The row of the arena that each thread reaches."""
        rows = np.arange(len(self._base), dtype=np.intp)[:, None]
        return np.asarray(rows // self._cluster * self._cluster + at_least_2d(self.ranks).clip(0, self._cluster - 1))

    def locate(self, index: Lanes) -> Lanes:
        return self._base[self.targets, 0] + index.astype(np.intp)

    def load(self, index: Lanes, lanes: int, mask: Mask) -> Lanes:
        return FlatStorage.load(self, index, lanes, mask)


class RegisterStorage:
    """The registers of one buffer in all threads.

    `written` says for each element which threads have written it since the buffer's life began: None for no
    thread, True for all, or a mask.
    """

    def __init__(self, buffer: Buffer) -> None:
        assert buffer.size is not None, buffer.name
        self.buffer = buffer
        self.tracks: bool = False
        self.version: int = 0
        self.low: int = 0
        self.high: int = buffer.size
        # What a register holds before anything is written: all bits set, which is NaN or -1.
        self._undefined = np.frombuffer(b"\xff" * buffer.dtype.bytes, buffer.dtype.numpy)[0]
        if buffer.dtype.kind == "bool":
            self._undefined = np.False_
        self.elements: list[Lanes] = []
        self.written: list[Array | bool | None] = []
        self.allocate()

    @property
    def pieces(self) -> list[Lanes]:
        """What the threads hold, piece by piece, in whatever type it is read."""
        return self.elements

    def allocate(self, mask: Mask = None) -> None:
        """Begin a new life with undefined contents, in the threads of the mask."""
        if mask is not None:
            # Other threads may still be at an earlier life: where lives differ they keep what they have.
            self.written = [w if w is None else ~mask if w is True else w & ~mask for w in self.written]
            return
        self.elements = [self._undefined] * self.high
        self.written = [None] * self.high

    def load(self, index: Lanes, lanes: int, mask: Mask) -> Lanes:
        if lanes > 1:
            return pack([self.load(index + index.dtype.type(k), 1, mask) for k in range(lanes)])
        if isinstance(index, np.ndarray):
            return self._gather(index, mask)
        return self.elements[self._inside(index)]

    def store(self, index: Lanes, value: Lanes, lanes: int, mask: Mask) -> None:
        if lanes > 1:
            for k in range(lanes):
                self.store(index + index.dtype.type(k), extract(value, k), 1, mask)
        elif isinstance(index, np.ndarray):
            self._scatter(index, value, mask)
        elif mask is None:
            position = self._inside(index)
            self._note(position, value, mask)
            self.elements[position] = value
            self.written[position] = True
        else:
            self._merge(self._inside(index), value, mask)

    def _inside(self, index: Lanes) -> int:
        position = int(index)
        if not 0 <= position < self.high:
            raise IndexError(position)
        return position

    def _note(self, position: int, value: Lanes, mask: Mask) -> None:
        if self.tracks and not same_bits(self.elements[position], value, mask):
            self.version += 1

    def _merge(self, position: int, value: Lanes, mask: Array) -> None:
        self._note(position, value, mask)
        self.elements[position] = merge(mask, value, self.elements[position])
        written = self.written[position]
        if written is not True:
            self.written[position] = mask if written is None else written | mask

    def _touched(self, index: Array, mask: Mask) -> list[int]:
        active = index if mask is None else np.broadcast_arrays(index, mask)[0][np.broadcast_arrays(index, mask)[1]]
        return [self._inside(i) for i in np.unique(active)]

    def _gather(self, index: Array, mask: Mask) -> Lanes:
        result: Lanes = self._undefined
        for position in self._touched(index, mask):
            result = merge(index == position, self.elements[position], result)
        return result

    def _scatter(self, index: Array, value: Lanes, mask: Mask) -> None:
        for position in self._touched(index, mask):
            lanes = both(mask, index == position)
            assert lanes is not None
            self._merge(position, value, lanes)
