"""Stretches of memory that the race checker keeps a record of, and how accesses find their cells in them.

Shared memory is one region. Global arrays of a launch that share memory are one region, others each have their own;
what no op of the kernel writes has none, because nothing can go wrong there.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.observers import Access
from tilewright.backends.sim.order import Order, same_rows
from tilewright.backends.sim.shadow import Cells, Touch
from tilewright.backends.sim.storage import GlobalStorage
from tilewright.backends.sim.values import Array, Mask, at_least_2d
from tilewright.ir.core import Buffer, Kernel, Space
from tilewright.ir.effects import Use

_WIDEST = 16  # bytes of an access


class Region:
    """One stretch of memory: its cells, and for each buffer in it the place of its first element, in bytes."""

    def __init__(self, machine: Machine, order: Order, members: dict[Buffer, int], size: int, uses: _Uses) -> None:
        self._machine = machine
        self.is_global = any(buffer.space is Space.GLOBAL for buffer in members)
        self._starts = members
        self._shift = 0 if any(_is_split(machine.storages[b]) for b in members) else uses.shift(members)
        self._threads = np.arange(machine.threads, dtype=np.int64)
        self._full: dict[int, Touch] = {}
        self.cells = Cells(
            -(-size >> self._shift) if size else 0,
            order,
            is_global=self.is_global,
            reads=uses.has(uses.read, members),
            atomics=uses.has(uses.updated, members),
            copied=self.is_global and uses.has(uses.copied, members),
        )

    @property
    def rows(self) -> int:
        """How many blocks of the chunk are told apart."""
        return self._machine.blocks if self.is_global else self.cells.rows

    def begin(self) -> None:
        """Start a chunk of blocks: shared memory is new."""
        self._full.clear()
        if not self.is_global:
            cells = self.cells
            cells.rows = 1
            cells.writes = np.zeros(cells.count, np.int64)
            for marks in cells.marks:
                marks.restart(cells.count)

    def touch(self, access: Access, mask: Mask) -> Touch:
        """Return the cells that an access reaches in the threads of the mask."""
        buffer = access.storage.buffer
        index = at_least_2d(access.index)
        if not self.is_global and self.cells.rows == 1:
            index, mask = same_rows(index), None if mask is None else same_rows(mask)
        rows = max(len(index), 1 if mask is None else len(mask))
        if self.is_global:
            rows = self._machine.blocks
        elif rows > 1:
            self.cells.separate(self._machine.blocks)
        rows = max(rows, self.cells.rows)
        item = buffer.dtype.bytes
        place = index.astype(np.int64)
        if item > 1:
            place = place * item
        cells = (place + self._starts[buffer]) >> self._shift
        if self.cells.rows > 1:
            cells = cells + (np.arange(rows, dtype=np.int64) * self.cells.count)[:, None]
        count = max(1, (access.lanes * item) >> self._shift)
        return self._spread(cells, mask, rows, count)

    def _spread(self, cells: Array, mask: Mask, rows: int, count: int) -> Touch:
        """Return a touch of `count` cells in each thread of the mask, from the first cells of threads."""
        threads = self._machine.threads
        full = self._full.get(rows * 64 + count)
        if full is None:
            full = self._full[rows * 64 + count] = self._everyone(rows, count)
        cells = np.broadcast_to(cells, (rows, threads))
        if mask is None:
            if count > 1:
                cells = cells[..., None] + np.arange(count)
            return Touch(cells.reshape(-1), full.who, full.rows, full.threads)
        here = np.flatnonzero(np.broadcast_to(mask, (rows, threads)))
        cells = cells.reshape(-1)[here]
        if count > 1:
            cells = (cells[:, None] + np.arange(count)).reshape(-1)
            here = (here[:, None] * count + np.arange(count)).reshape(-1)
        return Touch(cells, full.who[here], full.rows[here], full.threads[here])

    def _everyone(self, rows: int, count: int) -> Touch:
        threads = self._machine.threads
        number = np.repeat(np.arange(rows * threads, dtype=np.int64), count)
        row, thread = number // threads, number % threads
        return Touch(number, number if self.is_global else thread, row, thread)

    def index_of(self, buffer: Buffer, cell: int) -> int:
        """Return the element of a buffer at the beginning of a cell."""
        inside = cell % self.cells.count if self.cells.rows > 1 else cell
        return ((inside << self._shift) - self._starts[buffer]) // buffer.dtype.bytes


class _Uses:
    """Which buffers a kernel reads, writes, updates and copies from, and by how narrow accesses."""

    def __init__(self, kernel: Kernel) -> None:
        self.read: set[Buffer] = set()
        self.written: set[Buffer] = set()
        self.updated: set[Buffer] = set()
        self.copied: set[Buffer] = set()
        self._width: dict[Buffer, int] = {}
        kinds = {Use.READ: self.read, Use.WRITE: self.written, Use.UPDATE: self.updated}
        for op in kernel.body.walk():
            for use in op.uses:
                if use.use in kinds:
                    kinds[use.use].add(use.buffer)
                    width = use.elements * use.buffer.dtype.bytes
                    self._width[use.buffer] = min(width, self._width.get(use.buffer, width))
                    if op.effects.asynchronous and use.use is Use.READ:
                        self.copied.add(use.buffer)

    def shift(self, buffers: Iterable[Buffer]) -> int:
        """Return how many bits the bytes of the narrowest access to any of the buffers count."""
        return min((self._width[b] for b in buffers if b in self._width), default=1).bit_length() - 1

    def has(self, uses: set[Buffer], buffers: Iterable[Buffer]) -> bool:
        """Return whether any of the buffers is used so."""
        return any(b in uses for b in buffers)


def _is_split(storage: object) -> bool:
    """Return whether the elements of an array lie across the places where elements should begin."""
    return isinstance(storage, GlobalStorage) and storage.address % storage.flat.itemsize != 0


def find_regions(kernel: Kernel, machine: Machine, order: Order) -> dict[Buffer, Region]:
    """Return the region of each buffer that needs one."""
    uses = _Uses(kernel)
    changed = uses.written | uses.updated
    found: dict[Buffer, Region] = {}
    shared = {s.buffer: s.offset for s in machine.shared}
    if changed & shared.keys():
        region = Region(machine, order, shared, machine.arena_bytes, uses)
        found.update(dict.fromkeys(shared, region))
    for group in _overlapping(s for s in machine.storages.values() if isinstance(s, GlobalStorage)):
        members = {s.buffer: s for s in group}
        if not changed & members.keys():
            continue
        # Cells begin at multiples of their size in memory, so that no access reaches across more than it needs.
        low = min(s.address for s in group) // _WIDEST * _WIDEST
        high = max(s.address + s.flat.nbytes for s in group)
        starts = {buffer: s.address - s.low * s.flat.itemsize - low for buffer, s in members.items()}
        region = Region(machine, order, starts, high - low, uses)
        found.update(dict.fromkeys(members, region))
    return found


def _overlapping(storages: Iterable[GlobalStorage]) -> list[list[GlobalStorage]]:
    """Group arrays whose memory overlaps."""
    groups: list[list[GlobalStorage]] = []
    end = 0
    for storage in sorted((s for s in storages if not s.empty), key=lambda s: s.address):
        if groups and storage.address < end:
            groups[-1].append(storage)
        else:
            groups.append([storage])
            end = 0
        end = max(end, storage.address + storage.flat.nbytes)
    return groups
