"""Named barriers and mbarriers of the blocks that run: arrivals, phases, and arrivals deferred to the end of copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.backends.sim.copies import CopyQueue
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Access, AccessKind, Machine, Signal, check_ranks
from tilewright.backends.sim.values import (
    Array,
    Lanes,
    Mask,
    at_least_2d,
    both,
    by_warps,
    over_warps,
    warps_of,
    without,
)
from tilewright.ir.core import Buffer, Op
from tilewright.ir.effects import Scope

NUMBERS = 16  # of a block's barriers; 0 is that of sync_threads
BLOCK_BARRIER = 0


class NamedBarriers:
    """The barriers of a chunk of blocks: arrays (blocks, 16).

    `arrived` and `expected` count threads of the phase under way, both 0 before its first arrival, and `phase` is
    how many phases are over. The hardware counts whole warps, so a partial last warp counts in full.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.version: int = 0  # counts arrivals, so that others see whether anything has changed
        self.clear()

    def clear(self) -> None:
        """Begin with empty barriers."""
        shape = self._machine.blocks, NUMBERS
        self.arrived: Array = np.zeros(shape, np.int64)
        self.expected: Array = np.zeros(shape, np.int64)
        self.phase: Array = np.zeros(shape, np.int64)

    def arrive(self, op: Op, number: Lanes, threads: int, mask: Mask) -> tuple[Array, Array]:
        """Let the warps of the mask arrive, and return the barrier and the phase that each thread arrives at."""
        machine = self._machine
        active, split = warps_of(mask, machine.threads, machine.warp)
        if (active & split).any():
            block, warp = (int(n) for n in np.argwhere(active & split)[0])
            self._report(
                op, block,
                f"a named barrier is reached by part of warp {warp} only",
                "whole warps arrive at a barrier: move it out of the branch or loop that only some lanes run",
            )  # fmt: skip
        of_warps = self._numbers(op, number, mask)
        numbers = over_warps(of_warps, machine.threads, machine.warp) if of_warps.shape[1] > 1 else of_warps
        phase = self.phase_of(numbers)
        of_warps, active = np.broadcast_arrays(of_warps, active)
        for each in np.unique(of_warps[active]).tolist():
            come = (active & (of_warps == each)).sum(axis=1) * machine.warp
            self._count(op, each, np.broadcast_to(come, machine.blocks), threads)
        self.version += 1
        for observer in machine.observers if op.effects.together < Scope.BLOCK else ():
            observer.arrive(Signal(op, None, numbers, phase, mask))
        return numbers, phase

    def phase_of(self, numbers: Array) -> Array:
        """Return the phase under way at the barrier of each thread."""
        if numbers.shape == (1, 1):
            return self.phase[:, numbers[0]]
        return np.take_along_axis(self.phase, np.broadcast_to(numbers, (len(self.phase), numbers.shape[1])), axis=1)

    def _count(self, op: Op, number: int, come: Array, threads: int) -> None:
        """Count arrivals at one barrier in each block, and end phases."""
        arrived, expected = self.arrived[:, number], self.expected[:, number]
        other = (come > 0) & (expected > 0) & (expected != threads)
        if other.any():
            block = int(np.argmax(other))
            self._report(
                op, block,
                f"barrier {number} is met with {threads} threads, while {arrived[block]} of {expected[block]} threads "
                "have arrived there",
                "all that meet at a barrier in one phase give the same number of threads",
            )  # fmt: skip
        expected[(come > 0) & (expected == 0)] = threads
        total = arrived + come
        if (over := total > np.maximum(expected, 1)).any():
            block = int(np.argmax(over))
            self._report(
                op, block,
                f"{come[block]} threads come to barrier {number} at once, which waits for "
                f"{expected[block] - arrived[block]} more of {expected[block]}",
                "count all threads that meet there, or give each group of warps a barrier of its own",
            )  # fmt: skip
        ended = total // np.maximum(expected, 1)
        self.phase[:, number] += ended
        arrived[:] = total - ended * expected
        expected[arrived == 0] = 0

    def _numbers(self, op: Op, number: Lanes, mask: Mask) -> Array:
        """Return the number that each warp names, (blocks or 1, warps), or (1, 1) where all name the same."""
        numbers = at_least_2d(number).astype(np.intp)
        if numbers.shape[1] == 1:
            least = greatest = numbers
            active = np.ones((1, 1), np.bool_) if mask is None else mask.any(axis=1, keepdims=True)
        else:
            here = np.ones_like(numbers, np.bool_) if mask is None else mask
            least = by_warps(np.where(here, numbers, NUMBERS), self._machine.threads, self._machine.warp).min(axis=2)
            greatest = by_warps(np.where(here, numbers, -1), self._machine.threads, self._machine.warp).max(axis=2)
            active = warps_of(mask, self._machine.threads, self._machine.warp)[0]
        if (differ := active & (least != greatest)).any():
            block, warp = (int(n) for n in np.argwhere(differ)[0])
            self._report(
                op, block,
                f"threads of warp {warp} name different barriers: {least[block, warp]} and {greatest[block, warp]}",
                "a warp arrives as a whole: make the number of the barrier depend on tw.warp_id() only",
            )  # fmt: skip
        lowest = BLOCK_BARRIER if op.effects.together is Scope.BLOCK else 1
        if (wrong := active & ((least < lowest) | (greatest >= NUMBERS))).any():
            numbers, wrong = np.broadcast_arrays(np.where(least < lowest, least, greatest), wrong)
            block, summary = int(np.argwhere(wrong)[0][0]), f"named barrier {numbers[wrong][0]} does not exist"
            self._report(op, block, summary, f"a block has named barriers 1 to {NUMBERS - 1}")
        return np.asarray(greatest.clip(0, NUMBERS - 1))

    def _report(self, op: Op, block: int, summary: str, help: str) -> None:
        at = self._machine.block_coordinate(block)
        self._machine.collector.report(Fault(op, "barrier-divergence", summary, at, help=help))


@dataclass
class _DeferredArrival:
    """Arrivals that come when the threads' copies issued before the copy `number` have landed."""

    op: Op
    index: Lanes
    mask: Array
    number: int


@dataclass
class _Delivery:
    """Bytes of bulk copies that have yet to come: for each thread its block, and the element of the mbarrier.

    `land` lets the copies of some threads land, given the elements and phases at which their bytes arrive.
    """

    op: Op
    rows: Array
    threads: Array
    elements: Array
    bytes: int
    land: Callable[[Array, Array, Array], None]
    open: Array


class Mbarriers:
    """The mbarriers in one buffer: arrays (blocks, elements of the buffer).

    `count` is the arrivals that each phase takes, 0 before initialisation, `pending` those that the phase under way
    still waits for, `bytes` those that were announced to it and have not come (less than 0: that came and were not
    announced), and `phase` how many phases are over.
    """

    def __init__(self, buffer: Buffer, machine: Machine, queue: CopyQueue) -> None:
        self.buffer = buffer
        self._machine, self._queue = machine, queue
        self.version: int = 0
        self._deferred: list[_DeferredArrival] = []
        self._deliveries: list[_Delivery] = []
        self._expects: dict[int, Op] = {}  # of each element, what announced bytes last
        self.clear()

    def clear(self) -> None:
        """Begin with memory that holds no mbarriers."""
        assert self.buffer.size is not None
        shape = self._machine.blocks, self.buffer.size
        self.count: Array = np.zeros(shape, np.int64)
        self.pending: Array = np.zeros(shape, np.int64)
        self.bytes: Array = np.zeros(shape, np.int64)
        self.phase: Array = np.zeros(shape, np.int64)
        self._deferred.clear()
        self._deliveries.clear()

    def name(self, element: int) -> str:
        """Return what the user calls one of them."""
        return self.buffer.name if self.buffer.size == 1 else f"{self.buffer.name}[{element}]"

    def initialise(self, op: Op, index: Lanes, count: Lanes, mask: Mask) -> None:
        """Make memory mbarriers in phase 0."""
        mask = self._admitted(op, AccessKind.STORE, index, mask)
        blocks, threads, elements = self._active(index, mask)
        used = self.count[blocks, elements] > 0
        if used.any():
            first = int(np.argmax(used))
            self._report(
                op, "reinitialised-mbarrier", (blocks[first], threads[first]),
                f"{self.name(int(elements[first]))} is initialised again, in its phase "
                f"{self.phase[blocks[first], elements[first]]}: who waits there may wait for ever",
                "make the mbarrier once, before the loop; a phase that is over needs no reset",
            )  # fmt: skip
        counts = self._spread(count, blocks, threads)
        if (counts < 1).any():
            first = int(np.argmax(counts < 1))
            self._report(
                op, "barrier-divergence", (blocks[first], threads[first]),
                f"{self.name(int(elements[first]))} is made to count {counts[first]} arrivals a phase",
                "a phase takes at least one arrival",
            )  # fmt: skip
        self.count[blocks, elements] = self.pending[blocks, elements] = np.maximum(counts, 1)
        self.phase[blocks, elements] = self.bytes[blocks, elements] = 0
        self.version += 1

    def arrive(
        self, op: Op, index: Lanes, count: Lanes, mask: Mask, ranks: Lanes = None, *, relaxed: bool = False
    ) -> None:
        """Count arrivals of threads: in their own blocks, or those of their cluster that `ranks` names."""
        mask = self.admit(op, index, mask, ranks)
        starters, threads, elements = self._active(index, mask)
        if not starters.size:
            return
        blocks, counts = self._targets(starters, threads, ranks), self._spread(count, starters, threads)
        for observer in self._machine.observers:
            phase = self._of_threads(self.phase, index, ranks)
            observer.arrive(Signal(op, self.buffer, index, phase, mask, ranks, relaxed))
        come = np.zeros_like(self.count)
        np.add.at(come, (blocks, elements), counts)
        over = come > self.pending
        if over.any():
            first = int(np.argmax(over[blocks, elements]))
            at = blocks[first], elements[first]
            self._report(
                op, "barrier-divergence", (starters[first], threads[first]),
                f"{come[at]} arrivals come to {self.name(int(elements[first]))} at once, whose phase {self.phase[at]} "
                f"waits for {self.pending[at]} more of {self.count[at]}",
                "count every arrival of a phase when the mbarrier is made; where one thread shall arrive for all, "
                "write `if tw.elect_one():`",
                int(over.sum()),
            )  # fmt: skip
        self.pending -= come
        self._end_phases()

    def expect(self, op: Op, index: Lanes, size: Lanes, mask: Mask) -> None:
        """Announce bytes to the phase under way, of each thread of the mask."""
        mask = self.admit(op, index, mask)
        blocks, threads, elements = self._active(index, mask)
        sizes = self._spread(size, blocks, threads)
        if (sizes < 0).any():
            first = int(np.argmax(sizes < 0))
            self._report(
                op, "transaction-bytes", (blocks[first], threads[first]),
                f"{self.name(int(elements[first]))} is told to expect {sizes[first]} bytes",
                "announce what the copies of the phase bring: the bytes of their whole tiles",
            )  # fmt: skip
        np.add.at(self.bytes, (blocks, elements), sizes)
        self._expects.update(dict.fromkeys(np.unique(elements).tolist(), op))
        self.version += 1

    def deliver_later(
        self, op: Op, index: Array, rows: Array, threads: Array, size: int, land: Callable[[Array, Array, Array], None]
    ) -> None:
        """Let bytes of bulk copies that threads started arrive in the blocks `rows`: once threads wait for them."""
        elements = index.astype(np.int64)
        self._deliveries.append(_Delivery(op, rows, threads, elements, size, land, np.ones(len(rows), np.bool_)))
        self.version += 1

    def _deliver(self, wanted: Array) -> None:
        """Let what is to arrive at elements, a mask (blocks, elements), land and arrive."""
        has_landed = False
        for each in self._deliveries:
            which = each.open & wanted[each.rows, each.elements]
            if which.any():
                has_landed = True
                at = each.rows[which], each.elements[which]
                each.land(which, each.elements[which], self.phase[at])
                np.subtract.at(self.bytes, at, each.bytes)
                each.open &= ~which
        if has_landed:  # else nothing has changed: loops that wait for memory would look again, for ever
            self._deliveries = [each for each in self._deliveries if each.open.any()]
            self._end_phases()

    def finish(self) -> None:
        """Report bulk copies that are under way at the end of their blocks, and bytes that differ."""
        for each in self._deliveries:
            first = int(np.argmax(each.open))
            row, element = int(each.rows[first]), int(each.elements[first])
            self._report(
                each.op, "missing-wait", (row, int(each.threads[first])),
                f"missing wait: a bulk copy is under way at the end of its block, and nobody has waited for phase "
                f"{self.phase[row, element]} of {self.name(element)}",
                "let a thread wait for the phase before the block ends: its shared memory ends with it",
                int(each.open.sum()),
            )  # fmt: skip
        wrong = (self.bytes != 0) & (self.count > 0)
        if not wrong.any() or self._deliveries:
            return
        row, element = (int(n) for n in np.argwhere(wrong)[0])
        if element not in self._expects:
            return
        self._report(
            self._expects[element], "transaction-bytes", (row, 0),
            f"{self.name(element)}, phase {self.phase[row, element]}: {_balance(int(self.bytes[row, element]))}",
            "announce what the copies of a phase bring, tiles that overhang in full: arrive_expect_tx(bytes)",
            int(wrong.any(axis=1).sum()),
        )  # fmt: skip

    def awaits(self, row: int, element: int) -> str:
        """Return what the phase under way of an mbarrier waits for, in words."""
        count, pending = int(self.count[row, element]), int(self.pending[row, element])
        size = int(self.bytes[row, element])
        return f"{count - pending} of {count} arrivals have come" + (f", and {_balance(size)}" if size else "")

    def announced_by(self, row: int, element: int) -> Op | None:
        """Return what announced bytes last, where only bytes are wrong in the phase under way."""
        is_wrong = self.pending[row, element] <= 0 and self.bytes[row, element] != 0
        return self._expects.get(element) if is_wrong else None

    def _end_phases(self) -> None:
        over = (self.pending <= 0) & (self.count > 0) & (self.bytes == 0)
        ended = np.where(over, 1 + (-self.pending) // np.maximum(self.count, 1), 0)
        self.phase += ended
        self.pending += ended * self.count
        self.version += 1

    def defer_arrival(self, op: Op, index: Lanes, mask: Mask) -> None:
        """Let the threads arrive when their copies issued so far have landed: once threads wait for it."""
        mask = self.admit(op, index, mask)
        full = np.broadcast_to(np.True_ if mask is None else mask, self._threads_shape)
        self._deferred.append(_DeferredArrival(op, index, np.array(full), self._queue.issued))
        self.version += 1

    def begin_wait(self, op: Op, index: Lanes, parity: Lanes, mask: Mask) -> Mask:
        """Check the use by a wait or test, and return the threads whose use is right."""
        mask = self.admit(op, index, mask)
        blocks, threads, _ = self._active(index, mask)
        given = self._spread(parity, blocks, threads)
        wrong = (given < 0) | (given > 1)
        if wrong.any():
            first = int(np.argmax(wrong))
            self._report(
                op, "mbarrier-parity", (blocks[first], threads[first]),
                f"the parity of a phase is 0 or 1, and the thread waits with {given[first]}",
                "phase n has parity n % 2: a ring of stages waits in round k with parity k // stages % 2",
                int(wrong.sum()),
            )  # fmt: skip
        return mask

    def over(self, index: Lanes, parity: Lanes, mask: Mask, *, lands: bool = True) -> Array:
        """Return for each thread whether the phase it asks for is over, after landing the copies it depends on."""
        ready = self._over(index, parity)
        if lands and (self._deferred or self._deliveries) and not (ready if mask is None else ready | ~mask).all():
            waiting = both(mask, ~ready)
            blocks, _, elements = self._active(index, waiting)
            wanted = np.zeros(self.count.shape, np.bool_)
            wanted[blocks, elements] = True
            self._land(wanted)
            self._deliver(wanted)
            ready = self._over(index, parity)
        return ready

    def _over(self, index: Lanes, parity: Lanes) -> Array:
        odd = at_least_2d(parity).astype(np.int64) & 1
        return np.asarray((self._of_threads(self.phase, index) & 1) != odd)

    def _land(self, wanted: Array) -> None:
        late, self._deferred = self._deferred, []
        for each in late:
            blocks, threads, elements = self._active(each.index, each.mask)
            now = wanted[blocks, elements]
            if now.any():
                landing = np.zeros(self._threads_shape, np.bool_)
                landing[blocks[now], threads[now]] = True
                self._queue.land_before(each.number, landing)
                self.arrive(each.op, each.index, np.int32(1), landing)
                each.mask = each.mask & ~landing
            if each.mask.any():
                self._deferred.append(each)

    def passed(self, op: Op, index: Lanes, mask: Mask) -> None:
        """Tell the observers that threads go on after a phase."""
        for observer in self._machine.observers:
            observer.acquire(Signal(op, self.buffer, index, self._of_threads(self.phase, index) - 1, mask))

    # --- threads and elements ---------------------------------------------------------------------------

    @property
    def _threads_shape(self) -> tuple[int, int]:
        return self._machine.blocks, self._machine.threads

    def _active(self, index: Lanes, mask: Mask) -> tuple[Array, Array, Array]:
        """Return block, thread and element of each active thread."""
        full = np.broadcast_to(np.True_ if mask is None else mask, self._threads_shape)
        blocks, threads = np.nonzero(full)
        return blocks, threads, self._spread(index, blocks, threads)

    def _spread(self, value: Lanes, blocks: Array, threads: Array) -> Array:
        full = np.broadcast_to(at_least_2d(value), self._threads_shape)
        return np.asarray(full[blocks, threads].astype(np.int64))

    def _targets(self, blocks: Array, threads: Array, ranks: Lanes) -> Array:
        """Return the blocks of the chunk whose mbarriers threads use."""
        if ranks is None:
            return blocks
        size = self._machine.cluster_size
        return np.asarray(blocks // size * size + self._spread(ranks, blocks, threads))

    def _of_threads(self, state: Array, index: Lanes, ranks: Lanes = None) -> Array:
        """Return the state of the element of each thread: (blocks, 1) or (blocks, threads)."""
        if ranks is not None:
            rows = np.indices(self._threads_shape)[0]
            elements = np.broadcast_to(at_least_2d(index), self._threads_shape).astype(np.intp)
            size = self._machine.cluster_size
            rows = rows // size * size + np.broadcast_to(at_least_2d(ranks), self._threads_shape).clip(0, size - 1)
            return np.asarray(state[rows, elements.clip(0, state.shape[1] - 1)])
        elements = at_least_2d(index).astype(np.intp).clip(0, state.shape[1] - 1)
        if elements.shape == (1, 1):
            return state[:, elements[0]]
        return np.take_along_axis(state, np.broadcast_to(elements, (len(state), elements.shape[1])), axis=1)

    # --- faults -----------------------------------------------------------------------------------------

    def _admitted(self, op: Op, kind: AccessKind, index: Lanes, mask: Mask, ranks: Lanes = None) -> Mask:
        machine = self._machine
        if ranks is not None:
            mask = check_ranks(op, self.buffer, ranks, mask, machine)
        refused = machine.observe(Access(op, kind, machine.storages[self.buffer], index, 1, mask, ranks))
        mask = mask if refused is None else without(mask, refused)
        _, _, elements = self._active(index, mask)
        outside = (elements < 0) | (elements >= self.count.shape[1])
        if outside.any():
            error = IndexError(f"element {elements[outside][0]} of {self.count.shape[1]}")
            raise machine.outside(op, self.buffer, error) from None
        return mask

    def admit(self, op: Op, index: Lanes, mask: Mask, ranks: Lanes = None) -> Mask:
        """Return the threads that may use the mbarrier: it is there, and initialised."""
        mask = self._admitted(op, AccessKind.BARRIER, index, mask, ranks)
        blocks, threads, elements = self._active(index, mask)
        missing = self.count[self._targets(blocks, threads, ranks), elements] == 0
        if not missing.any():
            return mask
        first = int(np.argmax(missing))
        self._report(
            op, "uninitialised-mbarrier", (blocks[first], threads[first]),
            f"{self.name(int(elements[first]))} is used before it is initialised",
            "make it with tw.mbarrier outside of branches, and let tw.sync_threads() follow before its first use",
            int(missing.sum()),
        )  # fmt: skip
        bad = np.zeros(self._threads_shape, np.bool_)
        bad[blocks[missing], threads[missing]] = True
        return without(mask, bad)

    def _report(self, op: Op, kind: str, who: tuple[int, int], summary: str, help: str, count: int = 1) -> None:
        machine = self._machine
        block, thread = machine.block_coordinate(int(who[0])), machine.thread_coordinate(int(who[1]))
        machine.collector.report(Fault(op, kind, summary, block, thread, self.buffer.name, help=help, count=count))


def _balance(size: int) -> str:
    """Return in words how the bytes that were announced differ from those that have come."""
    if size > 0:
        return f"{size} bytes that were announced have not come"
    return f"{-size} bytes have come that were not announced"
