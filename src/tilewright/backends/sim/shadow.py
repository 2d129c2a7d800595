"""Shadow memory: who wrote and who read each piece of memory last.

Memory is seen in cells of the narrowest access that a kernel makes. A cell's record is a word::

    bit 62        an asynchronous copy to the cell is under way
    bits 61..20   the event of the access (see `order`)
    bits 19..0    who: the thread, or for global memory its number in the chunk of blocks; event 0 means no thread

One last write is enough: whoever is not ordered after an earlier one was reported then, or is not ordered after the
last either. Of reads two are kept. For a later write to be ordered after all reads, those of other blocks, then of
other warps, then of other threads count, and two that differ in the most of these stand for all (with barriers of
whole blocks and warps only; otherwise there are two for each warp, its lowest and its highest lane).

The record is kept by region. Shared memory is one region. Global arrays of a launch that share memory are one region,
others each have their own; what no op of the kernel writes has none, because nothing can go wrong there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tilewright.backends.sim.aliases import PointedStorage
from tilewright.backends.sim.clocks import Cell
from tilewright.backends.sim.machine import Access, BulkAccess, Machine
from tilewright.backends.sim.order import Order, same_rows
from tilewright.backends.sim.storage import GlobalStorage, Storage
from tilewright.backends.sim.together import Together
from tilewright.backends.sim.values import Array, Lanes, Mask, at_least_2d
from tilewright.ir.core import Buffer, Kernel, Space
from tilewright.ir.effects import Proxy, Use

BITS = 20
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

    def part(self, at: Array) -> Touch:
        """Return the touch of some of the cells."""
        return Touch(self.cells[at], self.who[at], self.rows[at], self.threads[at])


def event_of(words: Array) -> Array:
    """Return the events of words."""
    return (words & ~UNDER_WAY) >> BITS


class Marks:
    """The accesses of one kind, reads or atomic updates, of which several are kept side by side: two a cell.

    They are written to the arrays when they are asked for. What a barrier of all threads orders before that is never
    written. Where blocks learn of each other through memory, the last access of each further block is kept beside.
    """

    def __init__(self, cells: int, order: Order, is_global: bool, each: int | None = None) -> None:
        self._order, self._is_global = order, is_global
        self._each = each or order.threads  # so many of who makes accesses are one block
        self._slots = order.warps if order.partial else 1
        self._first = np.zeros(cells * self._slots, np.int64)
        self._second = np.zeros(cells * self._slots, np.int64)
        self._pending: list[tuple[Touch, int]] = []
        self._waiting = 0
        self._newest = 0  # the last event written down
        self._further: list[tuple[Array, Array]] = []  # in the order of keys, of cell and block, and words

    def restart(self, cells: int) -> None:
        """Forget everything; there are so many cells."""
        self.clear()
        self._newest = 0
        self._further.clear()
        if self._first.size != cells * self._slots:
            self._first, self._second = (np.zeros(cells * self._slots, np.int64) for _ in range(2))

    def repeat(self, rows: int) -> None:
        """Give each of `rows` blocks cells of its own."""
        self._write_down()
        self._first, self._second = _repeated(self._first, rows), _repeated(self._second, rows)

    def kept(self) -> tuple[Array, Array]:
        """Return the cells with accesses, and the words of these; a cell comes up to two times for each warp."""
        self._write_down()
        first, second = np.flatnonzero(self._first), np.flatnonzero(self._second)
        words = [self._first[first], self._second[second], *(words for _, words in self._further)]
        places = [first // self._slots, second // self._slots, *(keys >> BITS for keys, _ in self._further)]
        return np.concatenate(places), np.concatenate(words)

    def clear(self) -> None:
        """Forget what is not written down."""
        self._pending.clear()
        self._waiting = 0

    def add(self, touch: Touch, event: int) -> None:
        """Record an access."""
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

    def met(self, touch: Touch, *, forget: bool = False) -> Iterator[tuple[Touch, Array]]:
        """Yield all accesses to the cells of a touch that are kept, as parts of it and words alike.

        What follows an ordinary write has to be ordered after that: where blocks learn of each other, `forget` them.
        """
        for words in self.against(touch):
            yield touch, words
        found = []
        for n, (keys, words) in enumerate(self._further):
            low, high = (np.searchsorted(keys, touch.cells + k << BITS) for k in (0, 1))
            for k in range((high - low).max()):
                at = np.flatnonzero(low + k < high)
                yield touch.part(at), words[low[at] + k]
            if (low < high).any():
                found.append(n)
        if forget and self._order.between and self._is_global:  # not before: what a thread observed is looked up there
            slots = (touch.cells * self._slots)[None, :] + np.arange(self._slots)[:, None]
            self._first[slots] = self._second[slots] = 0
            for n in found:
                keys, words = self._further[n]
                left = np.isin(keys >> BITS, touch.cells, invert=True)
                self._further[n] = keys[left], words[left]

    def _keep(self, keys: Array, words: Array) -> None:
        """Keep the last of each key; few long arrays are searched faster than many short ones."""
        while True:
            by = np.lexsort((words, keys))
            by = by[np.r_[keys[by[1:]] != keys[by[:-1]], True]]
            keys, words = keys[by], words[by]
            if not self._further or self._further[-1][0].size > 2 * keys.size:
                break
            keys, words = (np.concatenate(x) for x in zip(self._further.pop(), (keys, words), strict=True))
        if keys.size <= _MOST_PENDING:
            self._further.append((keys, words))

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
            # What was there comes first, as older accesses.
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
            apart = (words[at] & WHO) // self._each != (last[at] & WHO) // self._each
            at = at[apart & (words[at] != self._second[slots[at]])]
            if self._order.between and self._is_global and 0 < at.size <= _MOST_PENDING:
                self._keep(slots[at] // self._slots << BITS | (words[at] & WHO) // self._each, words[at])

    def _choose_second(self, slots: Array, words: Array, last: Array, rows: Array) -> None:
        """Keep, beside the last access of a slot, of those by others one that differs from it in the most.

        thread t, then u of its warp, then v of another warp, then w of another block:  w is the last, v stays
        """
        order = self._order
        whos = words & WHO, last & WHO
        if self._is_global:
            (block, thread), (last_block, last_thread) = (divmod(who, self._each) for who in whos)
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

    def __init__(self, count: int, order: Order, *, is_global: bool, reads: bool, atomics: bool, pending: bool) -> None:
        self.count = count
        self.is_global = is_global
        self.rows: int = 1
        self.writes: Array = np.zeros(count, np.int64)
        self.reads: Marks | None = Marks(count, order, is_global) if reads else None
        self.atomics: Marks | None = Marks(count, order, is_global) if atomics else None
        # Reads that other threads may write to at the same time; None where the kernel has none.
        self.strong_reads: Marks | None = None
        # Reads of global memory by bulk loads whose bytes have come: by row of the chunk and number of the mbarrier.
        self.bulk_reads: Marks | None = None
        # Strong accesses that do not reach the grid, writes and reads: of each of the kernel's narrow scopes.
        self.narrow_writes: list[Marks] = []
        self.narrow_reads: list[Marks] = []
        # Cells that asynchronous copies, bulk copies and products of warpgroups still have to read.
        self.pending_reads: Array | None = np.zeros(count, np.int64) if pending else None
        # The last ordinary writes of cells that the async proxy reaches, which need a fence in between.
        self.ordinary: Array | None = None

    @property
    def marks(self) -> list[Marks]:
        """Reads and atomic updates, as far as the kernel has any."""
        every = self.reads, self.atomics, self.strong_reads, self.bulk_reads, *self.narrow_writes, *self.narrow_reads
        return [m for m in every if m is not None]

    def separate(self, blocks: int) -> None:
        """Give each block shared cells of its own."""
        if self.rows != blocks:
            self.rows = blocks
            self.writes = _repeated(self.writes, blocks)
            if self.pending_reads is not None:
                self.pending_reads = _repeated(self.pending_reads, blocks)
            if self.ordinary is not None:
                self.ordinary = _repeated(self.ordinary, blocks)
            for marks in self.marks:
                marks.repeat(blocks)

    def meet(self) -> None:
        """Forget the marks of shared memory: a barrier orders all threads of all blocks."""
        if not self.is_global:
            for marks in self.marks:
                marks.clear()


def _repeated(cells: Array, rows: int) -> Array:
    """Return cells once for each row. Where nothing is recorded yet, as is usual, nothing is written to them."""
    return np.tile(cells, rows) if cells.any() else np.zeros(len(cells) * rows, cells.dtype)


_WIDEST = 16  # bytes of an access


class Region:
    """One stretch of memory: its cells, and for each buffer in it the place of its first element, in bytes."""

    def __init__(
        self, machine: Machine, together: Together, order: Order, members: dict[Buffer, int], size: int, uses: _Uses
    ) -> None:
        self._machine, self._together = machine, together
        self.is_global: bool = any(buffer.space is Space.GLOBAL for buffer in members)
        self._starts = members
        self._shift = 0 if any(_is_split(machine.storages[b]) for b in members) else uses.shift(members)
        self._full: dict[int, Touch] = {}
        self._of_block: int = 0 if self.is_global else size  # bytes of shared memory of each block of a cluster
        whole = size if self.is_global else size * together.size
        self.cells: Cells = Cells(
            -(-whole >> self._shift) if size else 0,
            order,
            is_global=self.is_global,
            reads=uses.has(uses.read, members),
            atomics=uses.has(uses.updated, members),
            pending=uses.has(uses.copied if self.is_global else uses.bulk_read, members),
        )
        count = self.cells.count
        if uses.has(uses.bulk, members):
            self.cells.ordinary = np.zeros(count, np.int64)
        if self.is_global and uses.has(uses.bulk_read, members):
            self.cells.bulk_reads = Marks(count, order, True, each=1)
        if uses.has(uses.strongly_read, members):
            self.cells.strong_reads = Marks(count, order, self.is_global)
        if (self.is_global or together.size > 1) and uses.has(uses.narrow, members):
            self.cells.narrow_writes, self.cells.narrow_reads = (
                [Marks(count, order, self.is_global) for _ in uses.reaches] for _ in range(2)
            )
        self.sync: dict[int, Cell] = {}  # what elements hand on, by their place in bytes, and of shared memory by block

    @property
    def rows(self) -> int:
        """How many blocks of the chunk have rows of their own."""
        return self._together.blocks if self.is_global else self.cells.rows

    def begin(self) -> None:
        """Start a chunk of blocks: shared memory is new."""
        self._full.clear()
        if not self.is_global:
            self.sync.clear()
            cells = self.cells
            cells.rows = 1
            cells.writes = np.zeros(cells.count, np.int64)
            if cells.pending_reads is not None:
                cells.pending_reads = np.zeros(cells.count, np.int64)
            if cells.ordinary is not None:
                cells.ordinary = np.zeros(cells.count, np.int64)
            for marks in cells.marks:
                marks.restart(cells.count)

    def await_reads(self, touch: Touch, event: int = 0) -> None:
        """Record that a read of an event is under way in the cells of a touch; 0: that none is any more."""
        assert self.cells.pending_reads is not None
        self.cells.pending_reads[touch.cells] = touch.words(event) | UNDER_WAY if event else 0

    def touch(self, access: Access, mask: Mask) -> Touch:
        """Return the cells that an access reaches in the threads of the mask."""
        buffer = access.storage.buffer
        index, mask = self._together.values(at_least_2d(access.index)), self._together.mask(mask)
        first = at_least_2d(self._first_byte(access.storage, access.ranks))
        if not self.is_global and self.cells.rows == 1:
            index, first, mask = same_rows(index), same_rows(first), None if mask is None else same_rows(mask)
        rows = max(len(index), len(first), 1 if mask is None else len(mask))
        if self.is_global:
            rows = self._together.blocks
        elif rows > 1:
            self.cells.separate(self._together.blocks)
        rows = max(rows, self.cells.rows)
        item = buffer.dtype.bytes
        place = index.astype(np.int64)
        if item > 1:
            place = place * item
        if isinstance(access.storage, PointedStorage):
            cells = self._together.values(access.storage.places(access.index)) >> self._shift
        else:
            cells = (place + self._starts[buffer] + first) >> self._shift
        if self.cells.rows > 1:
            cells = cells + (np.arange(rows, dtype=np.int64) * self.cells.count)[:, None]
        count = max(1, (access.lanes * item) >> self._shift)
        return self._spread(cells, mask, rows, count)

    def _first_byte(self, storage: Storage, ranks: Lanes = None) -> Lanes:
        """Return where the shared memory that each thread reaches begins in its cluster's."""
        if self._together.size == 1 or self.is_global:
            return np.int64(0)
        return self._together.ranks_of(storage, ranks) * self._of_block

    def bulk_touch(self, access: BulkAccess, which: Array) -> Touch:
        """Return the cells that bulk accesses reach, of the threads that `which` selects."""
        (rows, threads), index = self._together.place(access.rows[which], access.threads[which]), access.index[which]
        targets = (access.rows if access.targets is None else access.targets)[which] % self._together.size
        there = np.ones(index.shape, np.bool_) if access.there is None else access.there[which]
        blocks, size, cell = self._together.blocks, access.storage.buffer.dtype.bytes, 1 << self._shift
        if not self.is_global and self.cells.rows == 1 and blocks > 1:
            alike = len(rows) == blocks and (threads == threads[0]).all() and (index == index[0]).all()
            if alike and (targets == targets[0]).all():
                rows, threads, index, there, targets = rows[:1], threads[:1], index[:1], there[:1], targets[:1]
            else:
                self.cells.separate(blocks)
        if cell > size:  # runs of whole cells
            index, there = index[:, :: cell // size], there[:, :: cell // size]
        starts = self._starts[access.storage.buffer] + targets[:, None] * self._of_block
        cells = (index * size + starts) >> self._shift
        if cell < size:
            cells = (cells[..., None] + np.arange(size // cell)).reshape(len(cells), -1)
            there = np.repeat(there, size // cell, axis=1)
        if self.cells.rows > 1:
            cells = cells + (rows * self.cells.count)[:, None]
        at_rows, at_threads = (np.broadcast_to(x[:, None], cells.shape)[there] for x in (rows, threads))
        who = at_rows * self._together.threads + at_threads if self.is_global else at_threads
        return Touch(cells[there], who, at_rows, at_threads)

    def _spread(self, cells: Array, mask: Mask, rows: int, count: int) -> Touch:
        """Return a touch of `count` cells in each thread of the mask, from the first cells of threads."""
        threads = self._together.threads
        full = self._full.get(rows * 64 + count)
        if full is None:
            full = self._full[rows * 64 + count] = self._everyone(rows, count)
        shape = rows, threads
        if cells.shape != shape:
            cells = np.broadcast_to(cells, shape)
        if mask is None:
            if count > 1:
                cells = cells[..., None] + np.arange(count)
            return Touch(cells.reshape(-1), full.who, full.rows, full.threads)
        here = np.flatnonzero(mask if mask.shape == shape else np.broadcast_to(mask, shape))
        cells = cells.reshape(-1)[here]
        if count > 1:
            cells = (cells[:, None] + np.arange(count)).reshape(-1)
            here = (here[:, None] * count + np.arange(count)).reshape(-1)
        return Touch(cells, full.who[here], full.rows[here], full.threads[here])

    def _everyone(self, rows: int, count: int) -> Touch:
        threads = self._together.threads
        number = np.repeat(np.arange(rows * threads, dtype=np.int64), count)
        row, thread = number // threads, number % threads
        return Touch(number, number if self.is_global else thread, row, thread)

    def places(self, storage: Storage, index: Array, rows: Array, threads: Array) -> Array:
        """Return numbers of elements for threads of some rows, the same for those at one place in memory."""
        place = index.astype(np.int64) * storage.buffer.dtype.bytes + self._starts[storage.buffer]
        shape = self._together.blocks, self._together.threads
        if isinstance(storage, PointedStorage):
            start = np.broadcast_to(self._together.values(storage.addresses(np.int64(0))), shape)
            return storage.space.places(start[rows, threads] + index.astype(np.int64) * storage.buffer.dtype.bytes)
        first = np.broadcast_to(self._first_byte(storage), shape)
        place = place + first[rows, threads]
        return np.asarray(place if self.is_global else place | rows << 40)

    def addresses(self, cells: Array) -> Array:
        """Return the addresses of cells, in a region of all global memory."""
        return self._machine.addresses.addresses_of_places(cells << self._shift)

    @property
    def cell_bytes(self) -> int:
        """The bytes of a cell."""
        return 1 << self._shift

    @property
    def is_alone(self) -> bool:
        """True where the region is one buffer's."""
        return len(self._starts) == 1

    def cell_of(self, buffer: Buffer, index: Array) -> Array:
        """Return the cells at which elements of a global buffer begin."""
        return np.asarray((index.astype(np.int64) * buffer.dtype.bytes + self._starts[buffer]) >> self._shift)

    def index_of(self, buffer: Buffer, cell: int) -> int:
        """Return the element of a buffer at the beginning of a cell."""
        inside = cell % self.cells.count if self.cells.rows > 1 else cell
        if isinstance(self._machine.storages.get(buffer), PointedStorage):
            return inside << self._shift  # the place in the address space, from which it is named
        place = inside << self._shift
        place = place % self._of_block if self._of_block else place
        return (place - self._starts[buffer]) // buffer.dtype.bytes


class _Uses:
    """Which buffers a kernel reads, writes, updates and copies from, and by how narrow accesses."""

    def __init__(self, kernel: Kernel, has_strong: bool, together: Together) -> None:
        self.reaches: tuple[int, ...] = together.reaches_of(kernel)
        self.read: set[Buffer] = set()
        self.written: set[Buffer] = set()
        self.updated: set[Buffer] = set()
        self.copied: set[Buffer] = set()
        self.bulk: set[Buffer] = set()  # by the async proxy
        self.bulk_read: set[Buffer] = set()
        self.strongly_read: set[Buffer] = set()
        self.narrow: set[Buffer] = set()  # by strong accesses that do not reach everybody
        self._width: dict[Buffer, int] = {}
        kinds = {Use.READ: self.read, Use.WRITE: self.written, Use.UPDATE: self.updated}
        for op in kernel.body.walk():
            scope = op.effects.scope if has_strong else None
            for use in op.uses:
                if use.use in kinds:
                    strong_read = scope is not None and use.use is Use.READ
                    (self.strongly_read if strong_read else kinds[use.use]).add(use.buffer)
                    if scope is not None and use.use is Use.WRITE:
                        self.updated.add(use.buffer)  # other strong accesses may come at the same time
                    if scope is not None and together.reach(scope) is not None:
                        self.narrow.add(use.buffer)
                    width = use.elements * use.buffer.dtype.bytes
                    if op.effects.proxy is Proxy.ASYNC:
                        self.bulk.add(use.buffer)
                        if use.use is Use.READ:
                            self.bulk_read.add(use.buffer)
                        # Of shared memory it moves 16 bytes together, of a tensor it may reach single elements.
                        width = _WIDEST if use.buffer.space is Space.SHARED else use.buffer.dtype.bytes
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
    """Return whether elements of an array begin at addresses that are not multiples of their size."""
    return isinstance(storage, GlobalStorage) and storage.address % storage.flat.itemsize != 0


def find_regions(kernel: Kernel, machine: Machine, together: Together, order: Order) -> dict[Buffer, Region]:
    """Return the region of each buffer that needs one."""
    uses = _Uses(kernel, machine.has_strong, together)
    changed = uses.written | uses.updated
    found: dict[Buffer, Region] = {}
    shared = {s.buffer: s.offset for s in machine.shared}
    if changed & shared.keys():
        region = Region(machine, together, order, shared, machine.arena_bytes, uses)
        found.update(dict.fromkeys(shared, region))
    pointed = [s for s in machine.storages.values() if isinstance(s, PointedStorage)]
    if pointed:  # what they reach may be any array: all global memory is one region
        arrays = [s for s in machine.storages.values() if isinstance(s, GlobalStorage) and not s.empty]
        space = machine.addresses
        starts = {s.buffer: space.place_of_real(s.address) - s.low * s.flat.itemsize for s in arrays}
        starts.update((s.buffer, 0) for s in pointed)
        if changed & starts.keys() or machine.ranks is not None:  # what a rank only reads, others write
            found.update(dict.fromkeys(starts, Region(machine, together, order, starts, space.size, uses)))
        return found
    for group in _overlapping(s for s in machine.storages.values() if isinstance(s, GlobalStorage)):
        members = {s.buffer: s for s in group}
        if not changed & members.keys():
            continue
        # Cells begin at multiples of their size in memory, so that no access reaches across more than it needs.
        low = min(s.address for s in group) // _WIDEST * _WIDEST
        high = max(s.address + s.flat.nbytes for s in group)
        starts = {buffer: s.address - s.low * s.flat.itemsize - low for buffer, s in members.items()}
        region = Region(machine, together, order, starts, high - low, uses)
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
