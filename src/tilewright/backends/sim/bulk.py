"""Bulk copies: the elements of boxes in a tensor and in shared memory, and the groups of a thread's stores.

A bulk store reads when it is started and writes when its thread waits for that, or at the end of its block. What is
between is told to the observers, who find what happens to either side meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.backends.sim.aliases import PointedStorage
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import BulkAccess, Machine
from tilewright.backends.sim.storage import FlatStorage
from tilewright.backends.sim.values import Array, Frame, Lanes, Mask, at_least_2d
from tilewright.ir.core import Buffer, TensorMap
from tilewright.ir.maps import ALIGNMENT


def active(machine: Machine, mask: Mask) -> tuple[Array, Array]:
    """Return the blocks of the chunk and the threads of a mask, in order."""
    full = np.broadcast_to(np.True_ if mask is None else mask, (machine.blocks, machine.threads))
    rows, threads = np.nonzero(full)
    return rows, threads


def lanes_of(machine: Machine, value: Lanes, rows: Array, threads: Array) -> Array:
    """Return a value of some threads as int64."""
    full = np.broadcast_to(at_least_2d(value), (machine.blocks, machine.threads))
    return np.asarray(full[rows, threads].astype(np.int64))


class Boxes:
    """The boxes of a tensor map, between the array `tensor` and the shared buffer `memory`."""

    def __init__(self, map: TensorMap, machine: Machine, tensor: Buffer, memory: Buffer) -> None:
        self._map, self._machine = map, machine
        found, shared = machine.storages[tensor], machine.storages[memory]
        assert isinstance(found, FlatStorage) and isinstance(shared, FlatStorage), map
        self.tensor = found
        self.memory = shared
        place = np.arange(map.elements)
        self._steps: list[Array] = []
        for extent in map.box:
            self._steps.append(place % extent)
            place = place // extent
        item = memory.dtype.bytes.bit_length() - 1
        bits = {0: 0, 32: 1, 64: 2, 128: 3}[map.swizzle]
        self._read, self._base = ((1 << bits) - 1) << (7 - item), 3  # the bits that are added to those 3 below

    def elements(self, coordinates: Sequence[Lanes], rows: Array, threads: Array) -> tuple[Array, Array]:
        """Return the elements of the array that boxes hold, (n, elements), and which are inside of the tensor."""
        values = self._machine.described(self._map, rows)
        index = np.full((len(rows), self._map.elements), values.start, np.int64)
        there = np.ones(index.shape, np.bool_)
        modes = zip(coordinates, self._steps, values.extents, values.strides, strict=True)
        skips = self._map.steps or (1,) * self._map.rank
        for (coordinate, steps, extent, stride), skip in zip(modes, skips, strict=True):
            at = self._of(coordinate, rows, threads)[:, None] + steps * skip
            there &= (at >= 0) & (at < extent)
            index += at * stride
        return self.tensor.counted(rows, index), there

    def places(self, start: Lanes, rows: Array, threads: Array) -> Array:
        """Return the elements of shared memory in which boxes lie, in the order of `elements`."""
        place = self._of(start, rows, threads)[:, None] + np.arange(self._map.elements)
        return place ^ ((place & self._read) >> self._base)

    def read(self, index: Array, there: Array) -> Array:
        """Return the elements of boxes, with the map's fill in place of those outside."""
        return self.tensor.gather(np.zeros(len(index), np.intp), index, there, np.nan if self._map.nan else 0)

    def _of(self, value: Lanes, rows: Array, threads: Array) -> Array:
        return lanes_of(self._machine, value, rows, threads)


class Pixels(Boxes):
    """The boxes of a map of pixels: channels of pixels that follow one another through space and images."""

    def elements(self, coordinates: Sequence[Lanes], rows: Array, threads: Array) -> tuple[Array, Array]:
        """As of boxes; the coordinates are of the first channel and pixel, and behind them the offsets in space."""
        map, values = self._map, self._machine.maps[self._map]
        rank, space = map.rank, len(map.corners)
        first = [self._of(c, rows, threads) for c in coordinates]
        counts = [map.pixels(mode, values.extents[mode]) for mode in range(1, 1 + space)]
        number = first[rank - 1]  # of the first pixel: images, then space from the slowest mode on
        for mode in range(space, 0, -1):
            low, step = map.corners[mode - 1][0], map.steps[mode]
            number = number * counts[mode - 1] + (first[mode] - low) // step
        channels, pixels = self._steps
        left = number[:, None] + pixels
        places = [first[0][:, None] + channels]
        for mode, count in enumerate(counts, 1):
            offset = first[rank + mode - 1][:, None]
            places.append(map.corners[mode - 1][0] + left % count * map.steps[mode] + offset)
            left = left // count
        index = np.full(left.shape, values.start, np.int64)
        there = np.ones(index.shape, np.bool_)
        for at, extent, stride in zip([*places, left], values.extents, values.strides, strict=True):
            there &= (at >= 0) & (at < extent)
            index += at * stride
        return index, there


class MadeBoxes(Boxes):
    """The boxes of the maps of a key that threads have made: each copies by the one that its warp has made last."""

    def __init__(self, map: TensorMap, machine: Machine, tensor: Buffer, memory: Buffer, key: object) -> None:
        super().__init__(map, machine, tensor, memory)
        self._key = key

    def elements(self, coordinates: Sequence[Lanes], rows: Array, threads: Array) -> tuple[Array, Array]:
        """As of boxes; elements behind an address are counted from the beginning of the record of accesses."""
        made, size = self._machine.made_maps.get(self._key), self.tensor.buffer.dtype.bytes
        start = np.full(len(rows), -1) if made is None else made.address[rows, threads]
        index = np.zeros((len(rows), self._map.elements), np.int64)
        there = np.repeat((start >= 0)[:, None], self._map.elements, axis=1)
        skips = self._map.steps or (1,) * self._map.rank
        for mode, (coordinate, steps, skip) in enumerate(zip(coordinates, self._steps, skips, strict=True)):
            at = self._of(coordinate, rows, threads)[:, None] + steps * skip
            if made is not None:
                there &= (at >= 0) & (at < made.extents[mode][rows, threads][:, None])
                index += at * made.strides[mode][rows, threads][:, None]
        storage: Any = self.tensor
        if not isinstance(storage, PointedStorage):
            return index + start[:, None], there
        addresses = start[:, None] + index * size
        inside = storage.space.covered(addresses, size)
        return storage.space.places(addresses) // size, there & inside


def boxes_of(map: TensorMap, machine: Machine, tensor: Buffer, memory: Buffer, key: object = None) -> Boxes:
    """Return the boxes of a tensor map, of whichever kind it is; those of made maps have a key."""
    if map.is_pattern:
        return MadeBoxes(map, machine, tensor, memory, key)
    return (Pixels if map.corners else Boxes)(map, machine, tensor, memory)


def look_at_ends(op: Any, map: TensorMap, machine: Machine, there: Array, rows: Array, threads: Array) -> None:
    """Report a store (`op`) to rows that end between 16 bytes, which a launch refuses: threads made the map."""
    inside = there.reshape(len(there), -1, map.box[0]).sum(axis=2) * map.dtype.bytes
    wrong = np.flatnonzero((inside % ALIGNMENT).any(axis=1))
    if not wrong.size:
        return
    name, first = op.destination.name, wrong[0]
    fault = Fault(
        op, "out-of-bounds", f"out of bounds: a row of {name} ends between 16 bytes, and a store by TMA writes all 16",
        machine.block_coordinate(int(rows[first])), machine.thread_coordinate(int(threads[first])), name,
        help="let rows have whole 16 bytes, padding included, or store by threads: tw.copy(src, dst)",
        count=int(wrong.size),
    )  # fmt: skip
    machine.collector.report(fault)


def look_before(op: Any, machine: Machine, coordinates: Sequence[Lanes], rows: Array, threads: Array) -> None:
    """Report stores of boxes that begin before the tensor, illegal instructions on an H200; loads bring zeros."""
    for mode, given in enumerate(coordinates):
        values = lanes_of(machine, given, rows, threads)
        wrong = np.flatnonzero(values < 0)
        if wrong.size:
            name, row, thread = op.destination.name, int(rows[wrong[0]]), int(threads[wrong[0]])
            where = f"{int(values[wrong[0]])} of mode {mode} of its tensor map"
            fault = Fault(
                op, "out-of-bounds", f"out of bounds: a box that is stored by TMA begins before {name}, at {where}, "
                "which a GPU stops as an illegal instruction",
                machine.block_coordinate(row), machine.thread_coordinate(thread), name,
                help="let boxes begin at 0 and reach over the end, where TMA stores nothing, or leave those out",
                count=int(wrong.size),
            )  # fmt: skip
            machine.collector.report(fault)


@dataclass(eq=False)
class _Store:
    """Bulk stores that one op has started: of each thread its group, and whether it has yet to read and to write."""

    read: BulkAccess
    write: BulkAccess
    land: Callable[[Array], None]
    group: Array
    unread: Array
    unwritten: Array


class BulkGroups:
    """The bulk stores under way in the chunk of blocks, and how many groups each thread has committed."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._stores: list[_Store] = []
        self._committed: Array | None = None

    def clear(self) -> None:
        """Begin with no stores."""
        self._stores.clear()
        self._committed = None

    @property
    def _counts(self) -> Array:
        if self._committed is None:
            self._committed = np.zeros((self._machine.blocks, self._machine.threads), np.int64)
        return self._committed

    def add(self, read: BulkAccess, write: BulkAccess, land: Callable[[Array], None]) -> None:
        """Add stores to the open groups of their threads."""
        ones = np.ones(len(read.rows), np.bool_)
        self._stores.append(_Store(read, write, land, self._counts[read.rows, read.threads], ones, ones.copy()))

    def commit(self, frame: Frame) -> None:
        """Close the open group of each active thread."""
        self._counts[active(self._machine, frame.mask)] += 1

    def wait(self, newest: int, read: bool, mask: Mask) -> None:
        """Let stores read, and write unless `read`, that are not in the `newest` groups of a thread that waits."""
        full = np.broadcast_to(np.True_ if mask is None else mask, self._counts.shape)
        for store in self._stores:
            at = store.read.rows, store.read.threads
            self._advance(store, full[at] & (store.group < self._counts[at] - newest), read)
        self._stores = [store for store in self._stores if store.unwritten.any()]

    def _advance(self, store: _Store, done: Array, read: bool) -> None:
        now = store.unread & done
        if now.any():
            store.unread &= ~now
            self._machine.finish_bulk(store.read, now, None)
        now = store.unwritten & done
        if now.any() and not read:
            store.unwritten &= ~now
            store.land(now)
            self._machine.finish_bulk(store.write, now, None)

    def finish(self) -> None:
        """Let what is under way be written, and report stores that still read shared memory as their block ends."""
        machine = self._machine
        for store in self._stores:
            if store.unread.any():
                first = int(np.argmax(store.unread))
                name = store.read.storage.buffer.name
                fault = Fault(
                    store.read.op, "missing-wait",
                    f"missing wait: a bulk store may still read {name} when its block ends",
                    machine.block_coordinate(int(store.read.rows[first])),
                    machine.thread_coordinate(int(store.read.threads[first])),
                    name,
                    help="close the group and wait for it in the thread that started it: tw.tma_store_commit(), "
                    "tw.tma_store_wait(0)",
                    count=int(store.unread.sum()),
                )  # fmt: skip
                machine.collector.report(fault)
            self._advance(store, np.ones(len(store.group), np.bool_), read=False)
        self._stores.clear()
