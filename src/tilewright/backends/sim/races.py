"""The race checker: two threads at one place, at least one of them writing, and nothing that orders them.

It is an observer. Each access is compared with the record of its cells (see `shadow`) under the relation of what
happens before what (see `order`), and then recorded itself. The rules are those of the PTX memory model:

- a barrier of the block or warp orders what its threads did before it and what they do after it; shuffles, votes and
  matrix instructions make lanes wait for each other, but order no memory;
- strong accesses (atomic updates, `tw.load`, `tw.store`) do not race with each other as far as their scopes reach; by
  their semantics, and with fences, they order other accesses, of other blocks too (see `clocks`);
- what threads write ordinarily the async proxy sees behind a proxy fence only (see `order`);
- an asynchronous copy reads and writes at some time between its issue and the wait of the thread that issued it. Only
  from that wait on is it something that the thread itself has done.

A report names both sides with their lines, and says what usually fixes the race.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.backends.sim.barriers import NUMBERS
from tilewright.backends.sim.bulk_races import BulkRaces, numbers_of_mbarriers
from tilewright.backends.sim.clocks import Cell, Clocks
from tilewright.backends.sim.clusters import CLUSTER_BARRIER
from tilewright.backends.sim.early_waits import EarlyWaits
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import (
    Access,
    AccessKind,
    Arrival,
    BulkAccess,
    Machine,
    Observer,
    Signal,
    Synchronisation,
)
from tilewright.backends.sim.operands import PendingOperands
from tilewright.backends.sim.order import AGENT, DeferredArrival, Order, same_rows
from tilewright.backends.sim.proxies import ProxyFences
from tilewright.backends.sim.race_reports import READS, Conflict, Party, report
from tilewright.backends.sim.shadow import BITS, UNDER_WAY, WHO, Region, Touch, event_of, find_regions
from tilewright.backends.sim.storage import RemoteStorage
from tilewright.backends.sim.together import Presence, Together
from tilewright.backends.sim.values import Array, Lanes, Mask, at_least_2d, fill
from tilewright.ir.core import Buffer, Kernel, Op, Space, Value
from tilewright.ir.effects import WARPS_OF, Completion, Effects, Scope, Waits
from tilewright.ir.effects import Order as Visibility

_WRITES = (AccessKind.STORE, AccessKind.COPY_WRITE)
_INDIVISIBLE = (AccessKind.ATOMIC, AccessKind.BARRIER)
_MOST_PARTNERS = 8  # different ops for which one op's conflicts are reported, each time it runs


@dataclass(slots=True, eq=False)  # told apart by identity: their arrays have no single truth value
class _PendingRead:
    """A pending read: global cells that a copy under way has yet to read, and the index by which the copy is known.

    A copy of counted elements reads several times; what it reads has one number.
    """

    op: Op
    index: Lanes
    number: int
    region: Region
    touch: Touch
    event: int

    def mark(self) -> None:
        """Record in the cells that a copy has yet to read them."""
        self.region.await_reads(self.touch, self.event)


class RaceChecker(Observer):
    """Finds races, and results of asynchronous copies that are used before their wait."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        self._machine, self._kernel = machine, kernel
        self.together: Together = Together(machine)
        partial = self.together.size > 1 or any(_is_partial(op.effects) for op in kernel.body.walk())
        self._mbarriers = numbers_of_mbarriers(kernel)[1] * self.together.size
        # Writers beside the threads: the mbarriers at which bulk copies arrive, and readers: the warpgroups' products.
        products = machine.products.count * self.together.size
        others = self._mbarriers + (products if any(map(_multiplies, kernel.body.walk())) else 0)
        self._fenced = others  # the number of the first block's writes with a fence for the cluster
        blocks = self.together.size if self.together.size > 1 else 0
        self.order: Order = Order(self.together.threads, machine.warp, partial, others, blocks)
        self.presence: Presence = Presence(machine, self.together, self.order)
        self.early: EarlyWaits = EarlyWaits(self.order)
        self.fences: dict[Space, ProxyFences] = {
            space: ProxyFences(self.order) for space in (Space.SHARED, Space.GLOBAL)
        }
        self.bulk: BulkRaces = BulkRaces(self, kernel)
        self._reaches = self.together.reaches_of(kernel)
        self.regions: dict[Buffer, Region] = find_regions(kernel, machine, self.together, self.order)
        self._distinct = list(dict.fromkeys(self.regions.values()))
        self._has_strong = machine.has_strong
        self.clocks: Clocks | None = None
        if machine.orders:
            self.clocks = Clocks(self.order, self._reaches)
            self.order.between = True
        self._numbers = [0]  # the events that were accesses, and what each was
        self._accesses: list[tuple[Op, AccessKind]] = []
        self._chunks: list[tuple[int, int]] = []  # the first event of each chunk, and its first block
        self._grid_phase, self._grid_floor = 0, 0  # of the barrier of the grid that was last over
        self._landing: Lanes = None  # the index of the copy that is being issued
        self._issued = 0
        self._pending_reads: list[_PendingRead] = []
        self._operands = PendingOperands(machine, self.together)
        self._landed: list[tuple[Region, Touch, int]] = []  # copies, since the last wait or arrival for copies
        self._deferred: dict[Op, list[DeferredArrival]] = {}  # arrivals that wait for copies to land

    @property
    def blocks(self) -> int:
        """How many clusters run."""
        return self.together.blocks

    def begin(self, machine: Machine) -> None:
        self.order.begin(self.together.blocks)
        for fences in self.fences.values():
            fences.begin()
        self.bulk.begin()
        self.presence.begin()
        self.early.begin()
        self._chunks.append((self.order.start, self.together.first))
        if self.clocks is not None:
            self.clocks.begin(self.together.first)
        self._pending_reads.clear()
        self._operands.clear()
        self._landed.clear()
        self._deferred.clear()
        for region in self._distinct:
            region.begin()

    def barrier(self, op: Op, mask: Mask) -> None:
        mask, warps = self.together.mask(mask), WARPS_OF.get(op.effects.together, 0)
        if op.effects.together is Scope.BLOCK and self.together.size > 1:
            warps = self.together.each // self._machine.warp  # each block of a cluster meets by itself
        if self.clocks is not None and warps:
            self.clocks.meet_warps(mask, warps)
        elif self.clocks is not None:
            self.clocks.meet_block(mask)
        if warps:
            self.order.meet_warps(mask, warps)
        elif self.order.meet_block(mask):
            if op.effects.together is Scope.GRID and self._grid_phase != self._machine.grid_phase:
                # Everything so far is before everything that follows, in all blocks.
                self._grid_phase, self._grid_floor = self._machine.grid_phase, self.order.next
            for region in self._distinct:
                region.cells.meet()

    def arrive(self, signal: Signal) -> None:
        deferred = self._deferred.get(signal.op)
        signal = self._by_clusters(signal)
        for element, here in _elements(signal):
            barrier, phase = (signal.buffer, element), _phase(signal, here)
            self.presence.arrive(signal.op, *barrier, phase, here)
            self.early.arrive(*barrier, phase, here, deferred is not None)
            if self.clocks is not None and not signal.relaxed:
                self.clocks.arrive(barrier, phase, here)
            if deferred is None:
                self.order.arrive(barrier, phase, here, signal.buffer is not None, signal.relaxed)
            else:
                self._arrive_for_copies(deferred, barrier, phase, here)

    def _arrive_for_copies(self, deferred: list[DeferredArrival], barrier: Hashable, phase: Array, here: Array) -> None:
        """Let the agents of copies that have landed arrive; what landed is theirs, not the threads'."""
        for region, touch, event in self._landed:
            region.cells.writes[touch.cells] = touch.words(event) | AGENT
        self._landed.clear()
        for arrival in deferred:
            here = self.order.arrive_deferred(arrival, barrier, phase, here)
        deferred[:] = [a for a in deferred if a.here.any()]

    def _by_clusters(self, signal: Signal) -> Signal:
        """Return a signal by clusters, whose barriers are numbered block after block."""
        view = self.together
        if view.size == 1:
            return signal
        index, phase, mask = view.values(signal.index), view.values(signal.phase), view.mask(signal.mask)
        if signal.index is not CLUSTER_BARRIER:
            count = NUMBERS if signal.buffer is None else (signal.buffer.size or 0)
            index = index + (view.rank if signal.ranks is None else view.values(signal.ranks)) * count
        return Signal(signal.op, signal.buffer, index, phase, mask, relaxed=signal.relaxed)

    def acquire(self, signal: Signal) -> None:
        signal = self._by_clusters(signal)
        for element, here in _elements(signal):
            barrier, phase = (signal.buffer, element), _phase(signal, here)
            self.presence.acquire(*barrier, phase)
            here = self.early.acquire(signal.op, *barrier, phase, here)
            self.order.acquire(barrier, phase, here)
            if self.clocks is not None:
                self.clocks.acquire(barrier, phase, here)

    def wait(self, op: Op, mask: Mask) -> None:
        if op.effects.completes is Completion.WARPGROUP:
            self._end_products(mask)
            return
        self._landed.clear()  # to the threads that wait, what has landed is as if they had written it

    def start_bulk(self, access: BulkAccess) -> bool:
        self.bulk.start(access)
        return False

    def finish_bulk(self, access: BulkAccess, which: Array, arrival: Arrival | None) -> None:
        self.bulk.finish(access, which, arrival)

    def note(self, op: Op, kind: AccessKind) -> int:
        """Return the event of a new access."""
        event = self.order.tick()
        self._numbers.append(event)
        self._accesses.append((op, kind))
        return event

    def _end_products(self, mask: Mask) -> None:
        """Let the reads of products that are over be their warpgroup's, of which all threads that waited know."""
        size = self._machine.products.size
        for access, region, touch in self._operands.end():
            reader = self.order.writer(self._mbarriers) + touch.threads // size
            done = Touch(touch.cells, reader, touch.rows, touch.threads)
            assert region.cells.reads is not None
            region.cells.reads.add(done, self.note(access.op, AccessKind.OPERAND_READ))
        self.order.learn(self.together.mask(mask), self._mbarriers + np.arange(self.together.threads) // size)

    def fence_proxy(self, op: Op, mask: Mask) -> None:
        assert op.effects.fences_proxy is not None
        self.fences[Space(op.effects.fences_proxy)].add(self.together.mask(mask))

    def access(self, access: Access) -> Array | None:
        kind = access.kind
        if kind is AccessKind.BARRIER and access.op.effects.follows is not None:
            self._deferred.setdefault(access.op, []).append(self.order.defer_arrival(self.together.mask(access.mask)))
        if kind is AccessKind.COPY_WRITE:
            self._landing = access.index
            self._issued += 1
        elif kind is AccessKind.COPY_LAND and self._pending_reads:
            self._end_pending_reads(access)
        region = self.regions.get(access.storage.buffer)
        if region is not None:
            event = self.note(access.op, kind)
            touch = region.touch(access, access.mask)
            if touch.cells.size:
                self.compare(region, access, touch, event)
                if kind is AccessKind.OPERAND_READ:
                    self.bulk.demand_fences(region, access, touch)
                self.record(region, access, touch, event)
                if access.ranks is not None or isinstance(access.storage, RemoteStorage):
                    ranks = np.broadcast_to(self.together.ranks_of(access.storage, access.ranks), self._shape)
                    rows, threads = self._active(self.together.mask(access.mask))
                    buffer = access.storage.buffer  # of arrivals `presence` is told beside
                    lasts = access.op.effects.asynchronous is None and kind is not AccessKind.BARRIER
                    self.presence.reach(access.op, buffer, event, rows, threads, ranks[rows, threads], lasts=lasts)
        return None

    @property
    def _shape(self) -> tuple[int, int]:
        return self.together.blocks, self.together.threads

    def finish(self) -> None:
        if self.together.size > 1:
            self.presence.finish()
            self.bulk.finish_blocks()

    def coordinates(self, block: int, thread: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Return the coordinates of a block of the grid, and of a thread in it."""
        machine = self._machine
        return machine.block_coordinate(block - machine.first_block), machine.thread_coordinate(thread)

    def op_of(self, event: int) -> Op:
        """Return the op whose access an event is."""
        return self._accesses[bisect.bisect_left(self._numbers, event) - 1][0]

    def tell_fault(self, fault: Fault) -> None:
        """Tell of a fault that is not a race."""
        self._machine.collector.report(fault)

    def synchronise(self, done: Synchronisation) -> None:
        clocks, op = self.clocks, done.op
        if clocks is None:
            return
        order, level = op.effects.order, self._level(op)
        rows, threads = self._active(self.together.mask(done.mask))
        if done.storage is None:
            moment = self.order.now()
            for row, thread in zip(rows.tolist(), threads.tolist(), strict=True):
                clocks.fence(row, thread, moment, level)
            return
        region = self.regions.get(done.storage.buffer)
        if region is None or (order is Visibility.NONE and not clocks.has_fences and not region.sync):
            return
        index = fill(self.together.values(done.index), *self._shape)[rows, threads]
        places = region.places(done.storage, index, rows, threads).tolist()
        use = next(u.use for u in op.uses if u.buffer is done.storage.buffer)
        wrote = np.full(len(rows), use.is_write)
        if done.wrote is not None:
            wrote = self.together.values(done.wrote)[rows, threads]
        how = ("update " if use.is_read else "") + ("release" if Visibility.RELEASE in order else "relaxed")
        at_write = self.order.now() if use.is_write else None
        if not region.is_global and self.together.size == 1:
            level = len(self._reaches)  # shared memory is of one block
        for place, row, thread, writes in zip(places, rows.tolist(), threads.tolist(), wrote.tolist(), strict=True):
            cell = region.sync.get(place)
            if use.is_read and cell is not None:
                clocks.read(cell, row, thread, level, Visibility.ACQUIRE in order)
            if writes and (cell is not None or how.endswith("release") or clocks.has_fences):
                assert at_write is not None
                clocks.write(region.sync.setdefault(place, Cell()), row, thread, at_write, level, how)

    def _level(self, op: Op) -> int:
        """Return how far the scope of an op reaches: as the n-th of the narrow ones, or as all others, as the last."""
        reach = self.together.reach(op.effects.scope)
        return len(self._reaches) if reach is None else self._reaches.index(reach)

    def _is_strong(self, access: Access) -> bool:
        """Return whether an access may meet those of other threads, as far as scopes reach."""
        return access.kind in _INDIVISIBLE or (self._has_strong and access.op.effects.scope is not None)

    def _active(self, mask: Mask) -> tuple[Array, Array]:
        """Return the rows and numbers of the threads of a mask, in order."""
        rows, threads = np.nonzero(np.broadcast_to(np.True_ if mask is None else mask, self._shape))
        return rows, threads

    # --- comparing -------------------------------------------------------------------------------------------

    def compare(self, region: Region, access: Access, touch: Touch, event: int) -> None:
        """Report what the access is not ordered after."""
        kind, cells = access.kind, region.cells
        if kind is AccessKind.COPY_LAND:
            return
        is_strong, is_read = self._is_strong(access), kind in READS
        self._conflicts(region, access, touch, cells.writes.take(touch.cells))
        met = [] if is_strong else [cells.atomics]
        met += [] if is_read else [cells.reads] if is_strong else [cells.reads, cells.strong_reads]
        for marks in met:
            for part, words in () if marks is None else marks.met(touch, forget=not (is_read or is_strong)):
                self._conflicts(region, access, part, words, updates=marks is cells.atomics)
        if not is_read and cells.bulk_reads is not None:
            for part, words in cells.bulk_reads.met(touch):
                self._conflicts(region, access, part, words, by_barriers=True)
        for words in () if is_strong else self.bulk.updates(region, touch):
            self._conflicts(region, access, touch, words)
        if cells.narrow_writes and is_strong:
            self._too_narrow(region, access, touch)
        under_way = self._pending_reads or self._operands or self.bulk.is_reading
        if not is_read and cells.pending_reads is not None and under_way:
            self._conflicts(region, access, touch, cells.pending_reads.take(touch.cells))

    def _too_narrow(self, region: Region, access: Access, touch: Touch) -> None:
        """Report strong accesses of other blocks that race with a strong one because a scope does not reach so far."""
        cells, is_read, level = region.cells, access.kind in READS, self._level(access.op)
        for n, reach in enumerate(self._reaches[: level + 1]):  # the narrower scope of the two counts
            met = [cells.narrow_writes[n], None if is_read else cells.narrow_reads[n]]
            if n == level:
                met = [cells.atomics, None if is_read else cells.strong_reads]
            for marks in met:
                for part, words in () if marks is None else marks.met(touch):
                    same = (words & WHO) // reach == part.who // reach
                    same &= event_of(words) >= self.order.start
                    self._conflicts(region, access, part, np.where(same, 0, words))

    def _conflicts(
        self, region: Region, access: Access, touch: Touch, words: Array, *, by_barriers: bool = False,
        updates: bool = False,
    ) -> None:  # fmt: skip
        """Report the accesses that words stand for, where the touch is not ordered after them.

        `by_barriers`: the words name mbarriers at which copies that have read told of their bytes.
        `updates`: they are strong writes, which a strong read may have observed.
        """
        order = self.order
        if not region.is_global:
            late = words >= order.lowest_floor << BITS
            if not late.any():
                return
        else:
            late = words != 0
            if not late.any():
                return
        is_own = not by_barriers and ((words & WHO) == touch.who).all() and words.max() < UNDER_WAY
        if is_own and (not region.is_global or words.min() >= order.start << BITS):
            return  # each thread meets what it did itself
        at = np.flatnonzero(late)
        words, rows, threads = words[at], touch.rows[at], touch.threads[at]
        fine = self.is_known(region, rows, threads, words, by_barriers=by_barriers)
        bad = ~(fine & (words < UNDER_WAY))
        if updates and bad.any():
            bad[bad] = words[bad] > self._last_observed(region, touch.part(at[bad]))
        if bad.any():
            if by_barriers:  # told by the threads that have started the copies
                events, other_rows = event_of(words), (words & WHO) // self.bulk.count
                starters = np.array([self.bulk.starters.get(event, 0) for event in events.tolist()], np.int64)
                words = events << BITS | (other_rows * self.together.threads + starters)
            self.tell(region, access, touch, at[bad], words[bad])

    def is_known(
        self, region: Region, rows: Array, threads: Array, words: Array, *, by_barriers: bool = False
    ) -> Array:
        """Say which accesses that words stand for happen before what threads of the rows do now."""
        order, events, others, other_rows = self.order, event_of(words), words & WHO, rows
        if region.is_global:
            other_rows, others = np.divmod(others, self.bulk.count if by_barriers else self.together.threads)
            if by_barriers:
                others = order.writer(0) + others
            within = (events >= order.start) & (other_rows == rows)
            fine = within & order.is_before(rows, threads, others, events) | (events < self._grid_floor)
        else:
            fine = order.is_before(rows, threads, others, events)
        if self.clocks and not fine.all():  # what the threads learnt of through memory
            at = np.flatnonzero(~fine)
            starts, firsts = (np.array(x) for x in zip(*self._chunks, strict=True))
            blocks = firsts[np.searchsorted(starts, events[at], "right") - 1] + other_rows[at]
            fine[at] = self.clocks.covers(rows[at], threads[at], blocks, others[at], events[at])
        return np.asarray(fine)

    def _last_observed(self, region: Region, touch: Touch) -> Array:
        """Return, of each cell, the word of the last strong read that its thread knows of: it observed what is before.

        So by PTX's causality order: the block that counts last may read or reset the counter ordinarily. A thread that
        does not look at what it read knows nothing.
        """
        last = np.zeros(touch.cells.shape, np.int64)
        for marks in (region.cells.atomics, region.cells.strong_reads):
            for words in () if marks is None else marks.against(touch):
                reads = [w > 0 and not self._used.isdisjoint(self.op_of(w >> BITS).results) for w in words.tolist()]
                reads &= self.is_known(region, touch.rows, touch.threads, words)
                last = np.maximum(last, np.where(reads, words, 0))
        return last

    @cached_property
    def _used(self) -> set[Value]:
        return {value for op in self._kernel.body.walk() for value in op.operands}

    def record(self, region: Region, access: Access, touch: Touch, event: int) -> None:
        """Record the access in the cells."""
        kind, cells = access.kind, region.cells
        if cells.ordinary is not None and kind not in (*READS, AccessKind.COPY_WRITE, AccessKind.BARRIER):
            cells.ordinary[touch.cells] = touch.words(event)
        if self._is_strong(access):
            marks = cells.strong_reads if kind in READS else cells.atomics
            assert marks is not None
            marks.add(touch, event)
            level = self._level(access.op)
            if cells.narrow_writes and level < len(self._reaches):
                (cells.narrow_reads if kind in READS else cells.narrow_writes)[level].add(touch, event)
                if kind not in READS:
                    self._meet_at_once(region, access, touch, event, self._reaches[level])
        elif kind in _WRITES or kind is AccessKind.COPY_LAND:
            words = touch.words(event)
            if access.op.effects.fences_itself and self.together.size > 1:
                ranks = self._fenced + np.arange(self.together.threads) // self.together.each
                words = self.order.writer(0) + ranks[touch.threads] | event << BITS
                self.order.learn(self.together.mask(access.mask), ranks)
            if kind is AccessKind.COPY_WRITE:
                words |= UNDER_WAY
            cells.writes[touch.cells] = words
            if kind is AccessKind.COPY_LAND:
                self._landed.append((region, touch, event))
            if kind is not AccessKind.COPY_LAND:
                last = cells.writes.take(touch.cells)
                twice = np.flatnonzero(last != words)
                if twice.size:
                    self.tell(region, access, touch, twice, last[twice])
        elif kind is AccessKind.OPERAND_READ:
            self._operands.add(access, region, touch, event)
        else:
            assert cells.reads is not None
            cells.reads.add(touch, event)
            if kind is AccessKind.COPY_READ and cells.pending_reads is not None and access.index is not None:
                self._pending_reads.append(_PendingRead(access.op, self._landing, self._issued, region, touch, event))
                self._pending_reads[-1].mark()

    def _meet_at_once(self, region: Region, access: Access, touch: Touch, event: int, reach: int) -> None:
        """Report blocks that make an access whose scope does not reach so far at one place in one step."""
        order = np.argsort(touch.cells, kind="stable")
        cells, blocks = touch.cells[order], touch.who[order] // reach
        both = np.flatnonzero((cells[1:] == cells[:-1]) & (blocks[1:] != blocks[:-1]))
        if both.size:
            self.tell(region, access, touch, order[both + 1], touch.words(event)[order[both]])

    def _end_pending_reads(self, access: Access) -> None:
        """End the reading of a copy that lands, in the threads in which it does."""
        first = next((x for x in self._pending_reads if x.op is access.op and x.index is access.index), None)
        if first is not None:
            for pending in [x for x in self._pending_reads if x.number == first.number]:
                self._end_pending_read(pending, access)

    def _end_pending_read(self, pending: _PendingRead, access: Access) -> None:
        touch = pending.touch
        assert pending.region.cells.reads is not None
        landed = np.ones(touch.cells.shape, np.bool_)
        if access.mask is not None:
            landed = np.broadcast_to(self.together.values(access.mask), self._shape)[touch.rows, touch.threads]
        done, left = touch.part(landed), touch.part(~landed)
        pending.touch = left
        if not left.cells.size:
            self._pending_reads.remove(pending)
        pending.region.await_reads(done)
        for other in self._pending_reads:  # another copy may read the same
            if other.region is pending.region:
                other.mark()
        event = self.note(access.op, AccessKind.COPY_READ)
        pending.region.cells.reads.add(done, event)

    # --- telling ---------------------------------------------------------------------------------------------

    def tell(
        self, region: Region, access: Access, touch: Touch, at: Array, words: Array, *, unfenced: bool = False
    ) -> None:
        """Report conflicts of an access, at some places of its touch, with those that words stand for.

        There is one report for each access met, and for each of: the same thread, the same block, another block.
        """
        events, distance = event_of(words), self._distance(region, touch, at, words)
        kinds = events << 2 | distance
        for kind in np.unique(kinds)[:_MOST_PARTNERS].tolist():
            same = kinds == kind
            event, where, word = kind >> 2, int(at[np.argmax(same)]), int(words[np.argmax(same)])
            op, done = self._accesses[bisect.bisect_left(self._numbers, event) - 1]
            row, thread = int(touch.rows[where]), int(touch.threads[where])
            cluster, other_thread = self._who(region, word, event, row)
            cause = self.early.told((row, thread), (cluster - self.together.first, other_thread))
            block, thread = self.together.party(self.together.first + row, thread)
            other_block, other_thread = self.together.party(cluster, other_thread)
            conflict = Conflict(
                Party(access.op, access.kind, block, thread),
                Party(op, done, other_block, other_thread),
                access.storage,
                region.index_of(access.storage.buffer, int(touch.cells[where])),
                word >= UNDER_WAY,
                int(same.sum()) * self.together.blocks // region.rows,
                unfenced,
                cause,
            )
            report(self._machine, conflict)

    def _distance(self, region: Region, touch: Touch, at: Array, words: Array) -> Array:
        """Return 0 where a word is of the same thread, 1 where it is of another in the block, 2 elsewhere."""
        who, others = touch.who[at], words & WHO
        distance = (who != others).astype(np.int64)
        if region.is_global:
            threads = self.together.threads
            distance += (who // threads != others // threads) | (event_of(words) < self.order.start)
        return np.asarray(np.minimum(distance, 2))

    def _who(self, region: Region, word: int, event: int, row: int) -> tuple[int, int]:
        """Return the number of the cluster, and of the thread in it, that a word names."""
        if not region.is_global:
            thread = word & WHO & ~AGENT
            group = thread - self.together.threads - self._mbarriers
            if word & AGENT and thread - self.together.threads >= self._fenced:
                thread = (thread - self.together.threads - self._fenced) * self.together.each
            elif word & AGENT and group >= 0:
                thread = group * self._machine.products.size
            return self.together.first + row, self.bulk.starters.get(event, thread)
        first_block = self._chunks[bisect.bisect_right(self._chunks, (event, 1 << 62)) - 1][1]
        other_row, thread = divmod(word & WHO, self.together.threads)
        return first_block + other_row, thread


def _elements(signal: Signal) -> Iterator[tuple[int, Array]]:
    """Yield each barrier of a signal, with the threads that use it."""
    index = same_rows(at_least_2d(signal.index))
    mask = np.ones((1, 1), np.bool_) if signal.mask is None else same_rows(signal.mask)
    for element in np.unique(index[np.broadcast_to(mask, index.shape)] if mask.size == 1 else index).tolist():
        here = mask & (index == element)
        if here.any():
            yield element, here


def _phase(signal: Signal, here: Array) -> Array:
    """Return the phase in each block, (blocks, 1): that of the threads there, -1 without any."""
    phase = same_rows(at_least_2d(signal.phase))
    latest: Array = np.where(here, phase, -1).max(axis=1, keepdims=True)
    return latest


def _multiplies(op: Op) -> bool:
    """Return whether an op is a product of a warpgroup."""
    return op.effects.asynchronous is Completion.WARPGROUP


def _is_partial(effects: Effects) -> bool:
    """Return whether some threads of a block meet at an op without the others."""
    if effects.together is Scope.WARPGROUP and (effects.order is Visibility.BOTH or effects.asynchronous is not None):
        return True
    return effects.scope is None and (effects.order is Visibility.RELEASE or effects.waits is Waits.SOME)
