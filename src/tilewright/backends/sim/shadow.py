"""Shadow memory: who wrote and who read each piece of memory last.

Memory is seen in cells of the narrowest access that a kernel makes. A cell's record is a word::

    bit 62        an asynchronous copy to the cell is under way
    bits 61..16   the event of the access (see `order`)
    bits 15..0    who: the thread, or for global memory its number in the chunk of blocks; 0 events mean nobody

One last write is enough: whoever is not ordered after an earlier one was reported then, or is not ordered after the
last either. Of reads two are kept. For a later write to be ordered after all reads, those of other blocks, then of
other warps, then of other threads count, and two that differ in the most of these stand for all (with barriers of
whole blocks and warps only; otherwise there are two for each warp, its lowest and its highest lane).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.backends.sim.order import Order
from tilewright.backends.sim.values import Array

BITS = 16
WHO = (1 << BITS) - 1
UNDER_WAY = 1 << 62
_MOST_PENDING = 1 << 17  # accesses of marks that wait to be written down


@dataclass(slots=True)
class Touch:
    """One access, a row for each thread and cell: which cell, who (as in a word), which block and which thread."""

    cells: Array
    who: Array
    rows: Array
    threads: Array

    def words(self, event: int) -> Array:
        """Return the words that record the access."""
        return self.who | (event << BITS)


def event_of(words: Array) -> Array:
    """Return the events of words."""
    return (words & ~UNDER_WAY) >> BITS


class Marks:
    """The accesses of one kind, reads or atomic updates, of which several may stand side by side: two a cell.

    They are written down when somebody asks. What a barrier of all threads overtakes before is never written.
    """

    def __init__(self, cells: int, order: Order, is_global: bool) -> None:
        self._order, self._is_global = order, is_global
        self._slots = order.warps if order.partial else 1
        self._first = np.zeros(cells * self._slots, np.int64)
        self._second = np.zeros(cells * self._slots, np.int64)
        self._pending: list[tuple[Touch, int]] = []
        self._waiting = 0
        self._newest = 0  # the last event written down

    def restart(self, cells: int) -> None:
        """Forget everything; there are so many cells."""
        self.clear()
        self._newest = 0
        if self._first.size != cells * self._slots:
            self._first, self._second = (np.zeros(cells * self._slots, np.int64) for _ in range(2))

    def repeat(self, rows: int) -> None:
        """Give each of `rows` blocks cells of its own."""
        self._write_down()
        self._first, self._second = np.tile(self._first, rows), np.tile(self._second, rows)

    def clear(self) -> None:
        """Forget what is not written down."""
        self._pending.clear()
        self._waiting = 0

    def add(self, touch: Touch, event: int) -> None:
        """Take down an access."""
        self._pending.append((touch, event))
        self._waiting += touch.cells.size
        if self._waiting > _MOST_PENDING:
            self._write_down()

    def against(self, touch: Touch) -> list[Array]:
        """Return the words that stand for the accesses to each cell of a touch, as several arrays like its own."""
        if self._pending:
            self._write_down()
        if not self._newest or (not self._is_global and self._newest < self._order.lowest_floor):
            return []
        if self._slots == 1:
            return [self._first.take(touch.cells), self._second.take(touch.cells)]
        slots = (touch.cells * self._slots)[None, :] + np.arange(self._slots)[:, None]
        return [*self._first.take(slots), *self._second.take(slots)]

    def _write_down(self) -> None:
        if not self._pending:
            return
        order = self._order
        touches = [touch for touch, _ in self._pending]
        slots, rows, threads = (np.concatenate([getattr(t, x) for t in touches]) for x in ("cells", "rows", "threads"))
        words = np.concatenate([touch.words(event) for touch, event in self._pending])
        if self._slots > 1:
            slots = slots * self._slots + threads // order.warp
        if self._newest and (self._is_global or self._newest >= order.lowest_floor):
            # What stood there comes first, as older accesses.
            words = np.concatenate([self._second.take(slots), self._first.take(slots), words])
            slots, rows = np.concatenate([slots, slots, slots]), np.concatenate([rows, rows, rows])
        self._newest = self._pending[-1][1]
        self.clear()
        self._first[slots] = words
        last = self._first.take(slots)
        self._second[slots] = 0
        at = np.flatnonzero((((last ^ words) & WHO) != 0) & (words != 0))
        if at.size:
            self._choose_second(slots[at], words[at], last[at], rows[at])

    def _choose_second(self, slots: Array, words: Array, last: Array, rows: Array) -> None:
        """Keep, beside the last access of a slot, of those by others one that differs from it in the most.

        thread t, then u of its warp, then v of another warp, then w of another block:  w is the last, v stays
        """
        order = self._order
        whos = words & WHO, last & WHO
        if self._is_global:
            (block, thread), (last_block, last_thread) = (divmod(who, order.threads) for who in whos)
            other_block = (block != last_block) | ((event_of(words) >= order.start) != (event_of(last) >= order.start))
        else:
            (thread, last_thread), other_block = whos, None
        if self._slots > 1:
            # The latest event counts, and of one event the lowest lane, the last being the highest.
            later = np.lexsort((-thread, event_of(words)))
            self._second[slots[later]] = words[later]
        else:
            fresh = event_of(words) >= order.floors(rows)
            for chosen in (fresh, fresh & (thread // order.warp != last_thread // order.warp)):
                self._second[slots[chosen]] = words[chosen]
        if other_block is not None:
            self._second[slots[other_block]] = words[other_block]


class Cells:
    """The record of one stretch of memory. Global cells are those of all blocks, shared cells repeat by block."""

    def __init__(self, count: int, order: Order, *, is_global: bool, reads: bool, atomics: bool, copied: bool) -> None:
        self.count, self.is_global = count, is_global
        self.rows = 1
        self.writes = np.zeros(count, np.int64)
        self.reads = Marks(count, order, is_global) if reads else None
        self.atomics = Marks(count, order, is_global) if atomics else None
        # Global cells that asynchronous copies under way still have to read.
        self.borrowed = np.zeros(count, np.int64) if copied else None

    @property
    def marks(self) -> list[Marks]:
        """Reads and atomic updates, as far as the kernel has any."""
        return [m for m in (self.reads, self.atomics) if m is not None]

    def separate(self, blocks: int) -> None:
        """Give each block shared cells of its own."""
        if self.rows != blocks:
            self.rows = blocks
            self.writes = np.tile(self.writes, blocks)
            for marks in self.marks:
                marks.repeat(blocks)

    def meet(self) -> None:
        """Take notice that a barrier orders all threads of all blocks: pending reads of shared memory are over."""
        if not self.is_global:
            for marks in self.marks:
                marks.clear()
