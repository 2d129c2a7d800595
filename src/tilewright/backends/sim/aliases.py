"""Memory that several buffers see: other element types over the same bytes, and buffers that begin at an address.

A buffer with a base is a view: of global memory the same NumPy memory in another type, of shared memory a place in the
same arena (`SharedStorage` as any other), of registers the same parts, as wide as the narrowest element.

A pointed buffer has an address in each thread. What it may reach are the arrays of the launch, and those whose
addresses the host handed out; together they are the launch's `AddressSpace`. An address is what kernels know an array
by: the real one of an array on the host, that of the GPU for a copy of a GPU's array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.backends.sim.storage import FlatStorage, GlobalStorage, RegisterStorage
from tilewright.backends.sim.values import Array, Lanes, Mask, at_least_2d, merge, pack
from tilewright.ir.core import Buffer

_ROW = 256  # stretches begin at multiples of this in the record of accesses, as a GPU's allocations do


# --- other element types ---------------------------------------------------------------------------------------------


class GlobalView(GlobalStorage):
    """A caller's array as elements of another type; element 0 begins where the array's does."""

    def __init__(self, buffer: Buffer, base: GlobalStorage) -> None:
        old, new = base.flat.itemsize, buffer.dtype.bytes
        low, high = -(-base.low * old // new), base.high * old // new  # elements that are there as a whole
        skipped = low * new - base.low * old
        flat = base.flat.view(np.uint8)[skipped : skipped + (high - low) * new]
        self.empty: bool = base.empty or low >= high
        self.shape: tuple[int, ...] = (0 if self.empty else high - low,)
        self.strides: tuple[int, ...] = (1,)
        self.low: int = 0 if self.empty else low
        self.high: int = 0 if self.empty else high
        FlatStorage.__init__(
            self, buffer, np.empty(1, buffer.dtype.numpy) if self.empty else flat.view(buffer.dtype.numpy)
        )
        self.present: Array | None = None
        if base.present is not None and not self.empty:
            there = np.repeat(base.present, old)[skipped : skipped + (high - low) * new]
            self.present = np.logical_and.reduce(there.reshape(-1, new), axis=1)
        self.address: int = self.flat.__array_interface__["data"][0]
        self._offset, self._split = self.address // new, bool(self.address % new)
        self.place_in_allocation: Any | int = base.place_in_allocation


class PartedRegisters(RegisterStorage):
    """Registers that are seen as elements of several types: `parts` keeps them in pieces as wide as the narrowest."""

    def __init__(self, buffer: Buffer, parts: RegisterStorage) -> None:
        assert buffer.size is not None, buffer.name
        self.buffer = buffer
        self.low: int = 0
        self.high: int = buffer.size
        self.tracks: bool = False
        self.version: int = 0
        self._parts = parts
        self._width = parts.buffer.dtype.bytes
        self._count = buffer.dtype.bytes // self._width

    @property
    def pieces(self) -> list[Lanes]:
        """What the threads hold, in pieces as wide as the narrowest type."""
        return self._parts.pieces

    @property
    def written(self) -> Any:  # type: ignore[override]  # Any: read as the list of a plain buffer is
        """Which threads have written each element as a whole."""
        return _WrittenWhole(self._parts.written, self._count)

    def allocate(self, mask: Mask = None) -> None:
        self._parts.allocate(mask)

    def load(self, index: Lanes, lanes: int, mask: Mask) -> Lanes:
        found = [self._parts.load(place, 1, mask) for place in self._places(index, lanes)]
        packed = np.ascontiguousarray(pack(found)).view(self.buffer.dtype.numpy)
        return packed if lanes > 1 else packed[..., 0]

    def store(self, index: Lanes, value: Lanes, lanes: int, mask: Mask) -> None:
        whole = np.ascontiguousarray(value if lanes > 1 else at_least_2d(value)[..., None])
        pieces = whole.view(f"u{self._width}")
        for n, place in enumerate(self._places(index, lanes)):
            self._parts.store(place, np.ascontiguousarray(pieces[..., n]), 1, mask)
        self.version += self.tracks

    def _places(self, index: Lanes, lanes: int) -> list[Lanes]:
        kind = index.dtype.type
        return [index * kind(self._count) + kind(n) for n in range(lanes * self._count)]


class _WrittenWhole:
    """For each element the threads that have written all of its parts: None for no thread, True for all, or a mask."""

    def __init__(self, parts: Sequence[Array | bool | None], count: int) -> None:
        self._parts, self._count = parts, count

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[n] for n in range(*place.indices(len(self._parts) // self._count))]
        parts = self._parts[place * self._count : (place + 1) * self._count]
        if any(part is None for part in parts):
            return None
        whole: Any = True
        for part in parts:
            if part is not True:
                whole = part if whole is True else whole & part
        return whole


# --- addresses -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reachable:
    """An array that a kernel may reach by an address: what kernels know it by, of its lowest byte, and its name."""

    array: Array
    address: int
    name: str


def reachable(array: Array, name: str, address: int | None = None) -> Reachable:
    """Return an array as what an address may reach: its own, or that of its element 0 on a GPU that it is a copy of."""
    lowest = _lowest(array)
    if address is not None:
        first: int = array.__array_interface__["data"][0]
        return Reachable(array, address + lowest - first, name)
    return Reachable(array, lowest, name)


@dataclass(frozen=True)
class _Stretch:
    """Addresses `low` to `high` that arrays cover, `moved` bytes further in this process, and their place."""

    low: int
    high: int
    moved: int
    place: int


class AddressSpace:
    """All memory that a launch may reach, by address."""

    def __init__(self, reachable: Sequence[Reachable]) -> None:
        self._known = [(each, *_extent(each)) for each in reachable if each.array.size]
        self._stretches: list[_Stretch] = []
        end = 0
        for each, low, high in sorted(self._known, key=lambda known: known[1]):
            moved = _lowest(each.array) - low
            last = self._stretches[-1] if self._stretches else None
            if last is not None and low < last.high and moved == last.moved:
                self._stretches[-1] = _Stretch(last.low, max(high, last.high), moved, last.place)
            else:
                self._stretches.append(_Stretch(low, high, moved, -(-end // _ROW) * _ROW + low % _ROW))
            last = self._stretches[-1]
            end = last.place + last.high - last.low
        self.size = end
        columns = [(s.low, s.high, s.moved, s.place) for s in self._stretches] or [(0, 0, 0, 0)]
        self._lows, self._highs, self._moved, self._placed = (
            np.array(column, np.int64) for column in zip(*columns, strict=True)
        )
        self.first: int = min((s.low + s.moved for s in self._stretches), default=0) // 16 * 16
        self._last = max((s.high + s.moved for s in self._stretches), default=0)
        self._read_only = [known for known in self._known if not known[0].array.flags.writeable]

    def memory(self, type: np.dtype[Any]) -> Array:
        """Return all memory from the first array to the last as one array; only what arrays cover may be touched."""
        if not self._stretches:
            return np.empty(0, type)
        count = (self._last - self.first) // (16 * 16) * 16 + 32  # a multiple of every vector
        interface = {"version": 3, "data": (self.first, False), "shape": (count * 16,), "typestr": "|u1"}
        return np.asarray(_Interface(interface, self._known)).view(type)

    def covered(self, addresses: Array, width: int) -> Array:
        """Return where `width` bytes from an address on lie in arrays."""
        row = np.maximum(np.searchsorted(self._lows, addresses, side="right") - 1, 0)
        inside: Array = (addresses >= self._lows[row]) & (addresses + width <= self._highs[row])
        present = self._present
        if present is not None:
            place = np.where(inside, addresses - self._lows[row] + self._placed[row], 0)
            for byte in range(width):
                inside = inside & (present[np.minimum(place + byte, self.size - 1)])
        return inside

    def covers_places(self, places: Array, width: int) -> Array:
        """Return where `width` bytes from a place of the record of accesses on lie in arrays."""
        return self.covered(self.addresses_of_places(places), width)

    @cached_property
    def _present(self) -> Array | None:
        """Which bytes belong to an array, where any array has gaps between its rows; None where none has."""
        if all(high - low == each.array.nbytes for each, low, high in self._known):
            return None
        present = np.zeros(self.size, np.bool_)
        for each, low, _ in self._known:
            shape, strides = (*each.array.shape, each.array.itemsize), (*map(abs, each.array.strides), 1)
            start = int(self.places(np.array([low]))[0])
            np.lib.stride_tricks.as_strided(present[start:], shape, strides)[...] = True
        return present

    def read_only(self, addresses: Array) -> Array:
        """Return where an address lies in an array that cannot be written."""
        found = np.zeros(addresses.shape, np.bool_)
        for _, low, high in self._read_only:
            found |= (addresses >= low) & (addresses < high)
        return found

    def real(self, addresses: Array) -> Array:
        """Return the addresses in this process, less `first`; those that no array covers give anything."""
        row = np.maximum(np.searchsorted(self._lows, addresses, side="right") - 1, 0)
        moved: Array = addresses + self._moved[row] - self.first
        return moved

    def places(self, addresses: Array) -> Array:
        """Return the places of addresses in the record of accesses, in which stretches lie one after another."""
        row = np.maximum(np.searchsorted(self._lows, addresses, side="right") - 1, 0)
        place: Array = addresses - self._lows[row] + self._placed[row]
        return place

    def real_of_places(self, places: Array) -> Array:
        """Return the addresses in this process, less `first`, of places in the record of accesses."""
        row = np.maximum(np.searchsorted(self._placed, places, side="right") - 1, 0)
        moved: Array = places - self._placed[row] + self._lows[row] + self._moved[row] - self.first
        return moved

    def addresses_of_places(self, places: Array) -> Array:
        """Return the addresses at places in the record of accesses."""
        row = np.maximum(np.searchsorted(self._placed, places, side="right") - 1, 0)
        found: Array = places - self._placed[row] + self._lows[row]
        return found

    def place_of_real(self, address: int) -> int:
        """Return the place of an address of this process, which belongs to an array of the launch."""
        for stretch in self._stretches:
            if stretch.low <= address - stretch.moved < stretch.high:
                return address - stretch.moved - stretch.low + stretch.place
        raise AssertionError(address)

    def address_of(self, storage: GlobalStorage) -> int:
        """Return the address of element 0 of an array of the launch, 0 for one that is empty."""
        if storage.empty:
            return 0
        for stretch in self._stretches:
            if stretch.low <= storage.address - stretch.moved < stretch.high:
                return storage.address - stretch.moved - storage.low * storage.flat.itemsize
        raise AssertionError(storage.buffer)

    def name_of(self, place: int) -> tuple[str, int] | None:
        """Return the name of the array at a place, and the element there."""
        for stretch in self._stretches:
            address = place - stretch.place + stretch.low
            for each, low, high in self._known:
                if stretch.low <= address < stretch.high and low <= address < high:
                    return each.name, (address - low) // each.array.itemsize
        return None


@dataclass(frozen=True)
class _Interface:  # as NumPy's protocol names it
    """What `np.asarray` reads to make an array; the array keeps it, and it keeps those that it is a view of."""

    __array_interface__: dict[str, Any]
    owners: object


def _lowest(array: Array) -> int:
    """Return the address in this process of the lowest byte of an array."""
    lowest: int = array.__array_interface__["data"][0]
    before: int = sum(min(0, s * (n - 1)) for n, s in zip(array.shape, array.strides, strict=True))
    return lowest + before


def _extent(each: Reachable) -> tuple[int, int]:
    array = each.array
    span = sum(abs(s) * (n - 1) for n, s in zip(array.shape, array.strides, strict=True)) + array.itemsize
    return each.address, each.address + span


class PointedStorage(FlatStorage):
    """A global buffer that begins at an address, which may differ from thread to thread."""

    low: int = -(1 << 62)
    high: int = 1 << 62

    def __init__(self, buffer: Buffer, space: AddressSpace) -> None:
        super().__init__(buffer, space.memory(buffer.dtype.numpy))
        self.space = space
        self._base: Lanes = np.int64(0)
        self._views: list[PointedStorage] = []

    def point(self, address: Lanes, mask: Mask) -> None:
        """Begin at an address, in the threads of the mask."""
        new = np.asarray(address).astype(np.int64)[()]
        self._base = new if mask is None else merge(mask, new, self._base)
        for view in self._views:
            view._base = self._base

    def view(self, buffer: Buffer) -> PointedStorage:
        """Return the same memory as elements of another type: it begins where this one does."""
        found = PointedStorage(buffer, self.space)
        self._views.append(found)
        return found

    def addresses(self, index: Lanes) -> Array:
        """Return the addresses of elements."""
        found = at_least_2d(self._base) + at_least_2d(index).astype(np.int64) * self.flat.itemsize
        return np.asarray(found)

    def outside(self, index: Lanes, lanes: int) -> Array:
        """Return the threads whose elements lie in no array."""
        return ~self.space.covered(self.addresses(index), lanes * self.flat.itemsize)

    def misaligned(self, index: Lanes, lanes: int) -> Array:
        """Return the threads whose access begins at an address that is not a multiple of its size."""
        found: Array = self.addresses(index) % (lanes * self.flat.itemsize) != 0
        return found

    def places(self, index: Lanes) -> Array:
        """Return the bytes of the record of accesses at which elements begin."""
        return self.space.places(self.addresses(index))

    def locate(self, index: Lanes) -> Lanes:
        """Return positions in `flat`; elements that lie in no array are beyond its end."""
        addresses, item = self.addresses(index), self.flat.itemsize
        real = self.space.real(addresses)
        good = self.space.covered(addresses, item) & (real % item == 0)
        return np.where(good, real // item, self.flat.size)

    def phase(self, lanes: int) -> int | None:
        return 0

    def spots(self, rows: Array, index: Array) -> Array:
        """Return the positions of elements that are counted from the beginning of the record of accesses."""
        item = self.flat.itemsize
        return np.asarray(self.space.real_of_places(index * item) // item)

    def window(self, position: Array) -> tuple[Array, Array]:
        # A copy of what is reached: NumPy's `ufunc.at` copies an array that might overlap its operands, and this one
        # spans all memory.
        which, place = np.unique(position, return_inverse=True)
        return self.flat.take(which), place.reshape(position.shape)

    def put_window(self, window: Array, position: Array, place: Array) -> None:
        self.flat[position] = window[place]

    def store(self, index: Lanes, value: Lanes, lanes: int, mask: Mask) -> None:
        refused = self.space.read_only(self.addresses(index))
        if refused.any() and (mask is None or (refused & mask).any()):
            raise IndexError("an array that is read-only")
        super().store(index, value, lanes, mask)
