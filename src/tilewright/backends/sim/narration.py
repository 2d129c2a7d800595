"""The narrator: what the warps of a few blocks did, step by step, and for which phases of which barriers they waited.

A step is an op that some threads of the chunk run: the simulator's order, not time. A wait begins at the step at which
a warp comes to it, and is over when the last arrival of its phase comes, bytes of bulk copies included; that the warp
goes on later, because others run first, is not a wait.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from tilewright.backends.sim.machine import Access, Arrival, BulkAccess, Machine, Signal
from tilewright.backends.sim.values import Array, Lanes, Mask, at_least_2d
from tilewright.figures import MOST_EVENTS, MOST_WAITS, Activity, Event, Timeline, Wait
from tilewright.ir.core import Buffer, Op
from tilewright.ir.effects import Order, Waits

_BLOCKS = 2  # of the first chunk that is measured

# Classes that a picture shows together.
_COMPUTE = frozenset({"integer", "float", "special function", "fma", "select", "convert", "branch"})
_NAMED = "named barrier"

_Barrier = tuple[Buffer | None, int, int, int]  # buffer, row of the chunk, element, and phase


@dataclass
class _Open:
    """Threads of a block that have come to a wait and not gone on; `number` is the element, or the named barrier."""

    op: Op
    row: int
    buffer: Buffer | None
    number: int
    threads: Array
    begin: int


class Narrator:
    """Keeps the events of the first blocks."""

    def __init__(self, machine: Machine) -> None:
        self.timelines: list[Timeline] = []
        self._warp, self._threads = machine.warp, machine.threads
        self._warps = -(-machine.threads // machine.warp)
        self._rows = 0  # blocks of the running chunk that are narrated
        self._step = 0
        self._under_way: dict[Op, deque[list[Event]]] = {}
        self._groups = machine.products
        self._products: list[tuple[int, Event, Array, Array]] = []  # row, its warpgroups, and the group of each
        self._mask: tuple[Mask, list[int]] | None = None
        self._open: list[_Open] = []
        self._over: dict[_Barrier, int] = {}  # the step at which something last came to a phase

    def begin(self, machine: Machine) -> None:
        """Narrate the chunk's first blocks, if none has been."""
        if self.timelines:
            self._rows = 0
            return
        self._rows, self._mask = min(_BLOCKS, machine.blocks), None
        self.timelines = [Timeline(machine.block_coordinate(row), self._warps) for row in range(self._rows)]

    def execute(self, op: Op, name: str, mask: Mask) -> None:
        """Add an op that is about to run, to the event before it where that is alike."""
        if not self._rows or all(len(timeline.activity) >= MOST_WAITS for timeline in self.timelines):
            return
        self._step += 1
        kind = "compute" if name in _COMPUTE else name
        # Arithmetic of several lines is one event: else it is most of the events that are kept.
        line = None if op.location is None or kind == "compute" else op.location.line
        is_async = op.effects.asynchronous is not None
        issued = []
        for row, (timeline, warps) in enumerate(zip(self.timelines, self._active(mask), strict=True)):
            if not warps:
                continue
            self._act(timeline, kind, warps)
            last = timeline.events[-1] if timeline.events else None
            if last is not None and (last.kind, last.line, last.warps) == (kind, line, warps):
                last.count += 1
            elif timeline.is_cut:
                continue
            else:
                last = Event(self._step, kind, line, warps, is_async=is_async)
                timeline.events.append(last)
                timeline.is_cut = len(timeline.events) >= MOST_EVENTS
                if is_async and kind == "mma":
                    groups = np.flatnonzero(self._groups.active(mask)[row])
                    self._products.append((row, last, groups, self._groups.committed[row, groups] + 1))
            if is_async and kind != "mma":
                issued.append(last)
        if issued:
            self._under_way.setdefault(op, deque()).append(issued)

    def _act(self, timeline: Timeline, kind: str, warps: int) -> None:
        """Add a step to what the warps do, to the steps just before it where these are alike."""
        timeline.steps = self._step + 1
        last = timeline.activity[-1] if timeline.activity else None
        if last is not None and (last.end, last.warps, last.kind) == (self._step, warps, kind):
            last.end = self._step + 1
        elif len(timeline.activity) < MOST_WAITS:
            timeline.activity.append(Activity(self._step, self._step + 1, warps, kind))

    def land(self, op: Op) -> None:
        """Note that the oldest copies of an op land."""
        waiting = self._under_way.get(op)
        if self._rows and waiting:
            for event in waiting.popleft():
                event.landed = self._step

    def finish_products(self) -> None:
        """Note which products are over, after a wait for groups of them."""
        under_way = []
        for each in self._products:
            row, event, groups, numbers = each
            if (self._groups.completed[row, groups] >= numbers).all():
                event.landed = self._step
            else:
                under_way.append(each)
        self._products = under_way

    def _active(self, mask: Mask) -> list[int]:
        """Return for each block that is narrated the warps that are active, as bits."""
        known = self._mask
        if known is not None and known[0] is mask:
            return known[1]
        every = (1 << self._warps) - 1
        found = []
        for row in range(self._rows):
            lanes = None if mask is None else mask[row if mask.shape[0] > 1 else 0]
            if lanes is None or len(lanes) == 1:
                found.append(every if lanes is None or lanes[0] else 0)
                continue
            some = np.logical_or.reduceat(lanes, np.arange(0, len(lanes), self._warp))
            found.append(sum(1 << int(number) for number in np.flatnonzero(some)))
        self._mask = mask, found
        return found

    # --- waits -----------------------------------------------------------------------------------------------

    def use_barrier(self, access: Access) -> None:
        """Note the threads that come to a wait at an mbarrier."""
        if self._rows and _is_wait(access.op):
            self._come(access.op, access.storage.buffer, access.index, access.mask)

    def arrive(self, signal: Signal) -> None:
        """Note arrivals, and who waits at a named barrier from then on."""
        if not self._rows:
            return
        for row in range(self._rows):
            threads, numbers, phases = self._of_row(row, signal.index, signal.phase, signal.mask)
            for number, phase in {(int(n), int(p)) for n, p in zip(numbers[threads], phases[threads], strict=True)}:
                self._over[signal.buffer, row, number, phase] = self._step
        if signal.buffer is None and _is_wait(signal.op):
            self._come(signal.op, None, signal.index, signal.mask)

    def arrive_bytes(self, access: BulkAccess, which: Array, arrival: Arrival) -> None:
        """Note that bytes of bulk copies have come to phases of mbarriers."""
        buffer, elements, phases = arrival
        for row, element, phase in zip(access.rows[which].tolist(), elements.tolist(), phases.tolist(), strict=True):
            if row < self._rows:
                self._over[buffer, row, element, phase] = self._step

    def acquire(self, signal: Signal) -> None:
        """Note the threads that go on after a wait."""
        for row in range(self._rows):
            threads, numbers, phases = self._of_row(row, signal.index, signal.phase, signal.mask)
            if not threads.any():
                continue
            for each in [e for e in self._open if (e.op, e.row, e.buffer) == (signal.op, row, signal.buffer)]:
                going = each.threads & threads & (numbers == each.number)
                if going.any():
                    self._end(each, going, int(phases[going][0]))
        self._open = [each for each in self._open if each.threads.any()]

    def _come(self, op: Op, buffer: Buffer | None, index: Lanes, mask: Mask) -> None:
        for row in range(self._rows):
            threads, numbers, _ = self._of_row(row, index, 0, mask)
            for number in np.unique(numbers[threads]).tolist():
                self._open.append(_Open(op, row, buffer, number, threads & (numbers == number), self._step))

    def _end(self, each: _Open, going: Array, phase: int) -> None:
        """Add the wait of each warp of the threads that go on."""
        each.threads = each.threads & ~going
        timeline = self.timelines[each.row]
        over = max(each.begin, self._over.get((each.buffer, each.row, each.number, phase), each.begin))
        line = None if each.op.location is None else each.op.location.line
        name = _NAMED if each.buffer is None else each.buffer.name or "mbarrier"
        first = 0
        for warp in range(self._warps):
            lanes = np.flatnonzero(going[first : first + self._warp])
            if lanes.size and len(timeline.waits) < MOST_WAITS:
                thread = first + int(lanes[0]) if lanes.size == 1 else None
                timeline.waits.append(
                    Wait(warp, thread, name, each.number, phase, line, each.begin, over, max(over, self._step))
                )
            first += self._warp

    def _of_row(self, row: int, index: Lanes, phase: Lanes, mask: Mask) -> tuple[Array, Array, Array]:
        """Return of a block's threads which are active, and the number and the phase of each."""
        found = []
        for value in (np.True_ if mask is None else mask, index, phase):
            array = at_least_2d(value)
            found.append(np.broadcast_to(array[row if array.shape[0] > 1 else 0], self._threads))
        active, numbers, phases = found
        return active, numbers, phases


def _is_wait(op: Op) -> bool:
    """Return whether threads stop at an op until a phase is over; a test of an mbarrier gives a result instead."""
    effects = op.effects
    return effects.waits is Waits.SOME and effects.order is not Order.RELEASE and not op.results
