"""Races of bulk copies: what they read and write between their start and the wait for them.

A bulk copy is under way in the cells that it reads or writes, as an asynchronous copy of a thread is (see `races`).
What it writes is known to whoever waits for the phase of the mbarrier at which its bytes arrive, or becomes what the
thread that started it has done when that waits for its group. Ordinary writes it sees behind a proxy fence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import proxy

import numpy as np

from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Access, AccessKind, Arrival, BulkAccess
from tilewright.backends.sim.shadow import BITS, UNDER_WAY, WHO, Region, Touch, event_of
from tilewright.backends.sim.values import Array
from tilewright.ir.core import Buffer, Kernel, Op, Space
from tilewright.ir.effects import Completion, Use

if TYPE_CHECKING:
    from tilewright.backends.sim.races import RaceChecker


def numbers_of_mbarriers(kernel: Kernel) -> tuple[dict[Buffer, int], int]:
    """Return the number of the first mbarrier of each buffer to which bulk copies tell their bytes, and how many."""
    first: dict[Buffer, int] = {}
    count = 0
    for op in kernel.body.walk():
        if op.effects.asynchronous is Completion.BARRIER:
            for use in op.uses:
                if use.use is Use.UPDATE and use.buffer not in first:
                    assert use.buffer.size is not None, use.buffer
                    first[use.buffer] = count
                    count += use.buffer.size
    return first, count


def help_with_bulk(op: Op, kind: AccessKind, *, under_way: bool) -> str | None:
    """Return how an access waits for a bulk copy that it meets, None where the op is not such a copy."""
    completion = op.effects.asynchronous
    if op.effects.reaches_blocks and kind is AccessKind.COPY_READ:
        return (
            "let the block that gets the bytes wait for them, and tell this one before the line that writes, at an "
            "mbarrier or by tw.cluster_sync()"
        )
    if completion is Completion.BARRIER:
        return (
            "wait for the phase of the mbarrier at which the copy's bytes arrive, before this line: full.wait(parity); "
            "its bytes are announced by full.arrive_expect_tx(bytes)"
        )
    if completion is Completion.BULK_GROUP and under_way:
        wait = "tw.tma_store_wait(0)" if kind is AccessKind.COPY_READ else "tw.tma_store_wait(0, read=False)"
        return (
            "close the group and wait for it in the thread that started the store (tw.tma_store_commit(), "
            f"{wait}), and let a barrier tell other threads"
        )
    return None


@dataclass(eq=False)
class _Reading:
    """Reads of bulk copies under way: which of their threads have yet to read."""

    access: BulkAccess
    region: Region
    event: int
    left: Array

    def mark(self) -> None:
        """Record in the cells that copies have yet to read them."""
        self.region.await_reads(self.region.bulk_touch(self.access, self.left), self.event)


@dataclass(eq=False)
class _Updating:
    """Reductions under way: which of their threads have yet to update memory, in ascending cells."""

    access: BulkAccess
    region: Region
    event: int
    left: Array

    def words(self, touch: Touch) -> Array:
        """Return the words that stand for the updates of a touch's cells, 0 where there are none."""
        mine = self.region.bulk_touch(self.access, self.left)
        order = np.argsort(mine.cells, kind="stable")
        cells, words = mine.cells[order], mine.words(self.event)[order] | UNDER_WAY
        at = np.minimum(np.searchsorted(cells, touch.cells), len(cells) - 1)
        found: Array = np.where(cells[at] == touch.cells, words[at], 0)
        return found


class BulkRaces:
    """The part of the race checker that follows bulk copies."""

    def __init__(self, checker: RaceChecker, kernel: Kernel) -> None:
        self._checker: RaceChecker = proxy(checker)  # which holds this: no circle keeps a launch's notes
        self._first, self._count = numbers_of_mbarriers(kernel)
        self.count: int = self._count * checker.together.size  # of mbarriers of a block, or of a cluster
        self._reading: list[_Reading] = []
        self._updating: list[_Updating] = []
        self._sent: list[tuple[BulkAccess, Array, int, int]] = []  # reads, of whom, by what number and event known
        self.starters: dict[int, int] = {}  # by the events at which copies landed, a thread that had started them

    def begin(self) -> None:
        """Forget the copies of blocks that are over."""
        self._reading.clear()
        self._updating.clear()
        self._sent.clear()
        self.starters.clear()

    @property
    def is_reading(self) -> bool:
        """Whether a copy under way has yet to read."""
        return bool(self._reading)

    def updates(self, region: Region, touch: Touch) -> Iterator[Array]:
        """Yield the words that stand for reductions under way in the cells of a touch."""
        for updating in self._updating:
            if updating.region is region:
                yield updating.words(touch)

    def start(self, access: BulkAccess) -> None:
        """Compare a bulk access with what was done before, and record that it is under way."""
        checker, region = self._checker, self._checker.regions.get(access.storage.buffer)
        if region is None:
            return
        event = checker.note(access.op, access.kind)
        everybody = np.ones(len(access.rows), np.bool_)
        touch = region.bulk_touch(access, everybody)
        if not touch.cells.size:
            return
        if access.targets is not None:
            view = checker.together
            checker.presence.reach(
                access.op, access.storage.buffer, event, *view.place(access.rows, access.threads),
                access.targets % view.size, lasts=False,
            )  # fmt: skip
        as_one = Access(access.op, access.kind, access.storage, None, 1, None)
        checker.compare(region, as_one, touch, event)
        self.demand_fences(region, as_one, touch)
        if access.told is None:  # else nobody but the mbarrier that is told has read
            checker.record(region, as_one, touch, event)
        if region.cells.ordinary is not None and access.kind is not AccessKind.COPY_READ:
            region.cells.ordinary[touch.cells] = 0
        if access.kind is AccessKind.COPY_READ and region.cells.pending_reads is not None:
            self._reading.append(_Reading(access, region, event, everybody))
            self._reading[-1].mark()
        if access.kind is AccessKind.ATOMIC:
            self._updating.append(_Updating(access, region, event, everybody))

    def demand_fences(self, region: Region, access: Access, touch: Touch) -> None:
        """Report ordinary writes that come before, and that no proxy fence of their threads follows."""
        if region.cells.ordinary is None:
            return
        checker, words = self._checker, region.cells.ordinary.take(touch.cells)
        at = np.flatnonzero(words >= checker.order.start << BITS)
        words, others, rows, threads = words[at], words[at] & WHO, touch.rows[at], touch.threads[at]
        other_rows = rows
        if region.is_global:
            other_rows, others = np.divmod(others, checker.order.threads)

        def is_known(row: Array, thread: Array, event: int) -> Array:
            who = row * checker.order.threads + thread if region.is_global else thread
            return checker.is_known(region, rows, threads, who | event << BITS)

        fences = checker.fences[Space.GLOBAL if region.is_global else Space.SHARED]
        bad = checker.is_known(region, rows, threads, words)
        bad &= ~fences.are_before(rows, threads, others, event_of(words), other_rows, is_known)
        if bad.any():
            checker.tell(region, access, touch, at[bad], words[bad], unfenced=True)

    def finish(self, access: BulkAccess, which: Array, arrival: Arrival | None) -> None:
        """Record that bulk accesses of some threads have taken place."""
        region = self._checker.regions.get(access.storage.buffer)
        if region is not None and access.kind is AccessKind.COPY_READ:
            self._end_reading(region, access, which, arrival)
        elif region is not None and access.kind is AccessKind.ATOMIC:
            self._end_updates(region, access, which)
        elif region is not None and access.kind is AccessKind.COPY_WRITE and arrival is None:
            touch = region.bulk_touch(access, which)
            region.cells.writes[touch.cells] = touch.words(self._checker.note(access.op, access.kind))
        elif region is not None and arrival is not None:
            self._arrive(region, access, which, arrival)

    def _end_updates(self, region: Region, access: BulkAccess, which: Array) -> None:
        """Record that reductions have taken place: who has waited for them knows of it."""
        assert region.cells.atomics is not None
        region.cells.atomics.add(region.bulk_touch(access, which), self._checker.note(access.op, access.kind))
        for updating in self._updating:
            if updating.access is access:
                updating.left = updating.left & ~which
        self._updating = [updating for updating in self._updating if updating.left.any()]

    def _end_reading(self, region: Region, access: BulkAccess, which: Array, arrival: Arrival | None) -> None:
        cells = region.cells
        assert cells.reads is not None
        touch = region.bulk_touch(access, which)
        if arrival is None:
            cells.reads.add(touch, self._checker.note(access.op, access.kind))
        else:  # who waits for the bytes knows of it, and the thread that started the copy does not
            for _, number, some, _ in self._by_barriers(access, which, arrival):
                event, part = self._checker.note(access.op, access.kind), region.bulk_touch(access, some)
                if part.threads.size:
                    self.starters[event] = int(part.threads[0])
                if region.is_global:
                    assert cells.bulk_reads is not None
                    who = part.rows * self.count + number
                    cells.bulk_reads.add(Touch(part.cells, who, part.rows, part.threads), event)
                    continue
                who = np.full_like(part.who, self._checker.order.writer(number))
                cells.reads.add(Touch(part.cells, who, part.rows, part.threads), event)
                self._sent.append((access, some, number, event))
        if cells.pending_reads is None:
            return
        region.await_reads(touch)
        for reading in self._reading:
            if reading.access is access:
                reading.left = reading.left & ~which
        self._reading = [reading for reading in self._reading if reading.left.any()]
        for reading in self._reading:  # another copy may read the same
            if reading.region is region:
                reading.mark()

    def _arrive(self, region: Region, access: BulkAccess, which: Array, arrival: Arrival) -> None:
        """Let copies land whose bytes arrive at an mbarrier: it is who wrote them."""
        order = self._checker.order
        for barrier, number, some, phase in self._by_barriers(access, which, arrival):
            event = self._checker.note(access.op, access.kind)
            touch = region.bulk_touch(access, some)
            region.cells.writes[touch.cells] = order.writer(number) | (event << BITS)
            if touch.threads.size:
                self.starters[event] = int(touch.threads[0])
            self._checker.early.deliver(*barrier, phase, number)
            order.deliver(barrier, phase, number)

    def _by_barriers(
        self, access: BulkAccess, which: Array, arrival: Arrival
    ) -> Iterator[tuple[tuple[Buffer, int], int, Array, Array]]:
        """Yield each mbarrier at which bytes arrive: it, its number, which threads' they are, its phase by cluster."""
        buffer, elements, phases = arrival
        chosen, size = np.flatnonzero(which), self._checker.together.size
        told = access.targets if access.told is None else access.told
        targets = (access.rows if told is None else told)[which]
        assert buffer.size is not None
        elements = elements + targets % size * buffer.size
        for element in np.unique(elements).tolist():
            here = elements == element
            some = np.zeros_like(which)
            some[chosen[here]] = True
            rank, one = divmod(element, buffer.size)
            phase = np.full((self._checker.blocks, 1), -1, np.int64)
            phase[targets[here] // size, 0] = phases[here]
            yield (buffer, element), rank * self._count + self._first[buffer] + one, some, phase

    def finish_blocks(self) -> None:
        """Report blocks that may have left while copies to other blocks still read their shared memory."""
        checker, view = self._checker, self._checker.together
        for access, which, number, event in self._sent:
            known = checker.order.known
            rows, threads = view.place(access.rows[which], access.threads[which])
            blocks = threads // view.each
            last = known[:, :, 2 * view.threads + number].reshape(len(known), view.size, view.each).max(axis=2)
            left = last[rows if len(known) > 1 else 0, blocks] <= event
            if left.any():
                first, name = int(np.argmax(left)), access.storage.buffer.root.name
                block, thread = view.party(view.first + int(rows[first]), int(threads[first]))
                at = checker.coordinates(block, thread)
                fault = Fault(
                    access.op, "absent-block", f"block {at[0]} of the cluster may have left when a bulk copy of its "
                    f"own reads its {name}", *at, name,
                    help="let the block that gets the bytes tell this one before it leaves: tw.cluster_sync() at the "
                    "end, behind the wait for the bytes",
                    count=int(left.sum()),
                )  # fmt: skip
                checker.tell_fault(fault)
