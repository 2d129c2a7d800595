"""Asynchronous copies under way, which land in shared memory when waited for; the checker of waits for nothing.

A wait at the end of a pipeline, or in the first iteration of a loop, may find nothing that it has to wait for. One that
leaves copies under way each time, and never completes one, is a mistake: a group that is committed too late, or a
number of groups that is too large. So is one in a kernel without asynchronous copies, unless it is written with
`tw.copy` and specialised for arrays that cannot be copied asynchronously, or of which there is nothing to copy: with
other arrays the same kernel waits for copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilewright.backends.sim.findings import Fault, place_of
from tilewright.backends.sim.machine import Access, AccessKind, Machine, Observer
from tilewright.backends.sim.storage import Storage
from tilewright.backends.sim.values import Array, Frame, Lanes, Mask, both, merge
from tilewright.ir.core import Kernel, Op
from tilewright.ir.effects import Completion


@dataclass
class Pending:
    """One op's copies of all threads that have not landed: values already read, the place they go to.

    `group` is how many groups the thread had committed before, `number` counts the copies of the chunk in the
    order of issue. A thread leaves `mask` when its copy lands.
    """

    op: Op
    destination: Storage
    index: Lanes
    value: Lanes
    lanes: int
    mask: Mask
    group: int | Array
    number: int


class CopyQueue:
    """The copies under way in the chunk of blocks, and how many groups each thread has committed.

    While all threads commit together the number is one int for all of them.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._pending: list[Pending] = []
        self._committed: int | Array = 0
        self.issued: int = 0

    def clear(self) -> None:
        """Forget everything: copies that were never waited for never land."""
        self._pending.clear()
        self._committed = 0

    def issue(self, op: Op, destination: Storage, index: Lanes, value: Lanes, lanes: int, mask: Mask) -> None:
        """Add a copy to the open group of each active thread."""
        self._pending.append(Pending(op, destination, index, value, lanes, mask, self._committed, self.issued))
        self.issued += 1

    def commit(self, frame: Frame) -> None:
        """Close the open group of each active thread."""
        more = self._committed + 1
        self._committed = more if frame.mask is None else merge(frame.mask, more, self._committed)

    def wait(self, newest: int | None, frame: Frame) -> None:
        """Let land what is not in a thread's `newest` committed groups or in the open one; None: everything."""
        self._land_where(
            frame.mask, lambda copy: None if newest is None else np.asarray(copy.group < self._committed - newest)
        )

    def land_before(self, number: int, mask: Mask) -> None:
        """Let land what threads issued before the copy of that number."""
        self._land_where(mask, lambda copy: None if copy.number < number else np.False_)

    def _land_where(self, mask: Mask, ready: Callable[[Pending], Mask | np.bool_]) -> None:
        """Let copies land in the threads of the mask where they are ready; None says everywhere."""
        left = []
        for copy in self._pending:
            here = ready(copy)
            if here is not None and here.all():
                here = None
            if here is not None and not here.any():
                left.append(copy)
                continue
            landing = both(both(copy.mask, mask), None if here is None else np.asarray(here))
            if landing is not None and not landing.any():
                left.append(copy)
                continue
            self._land(copy, landing)
            if landing is not copy.mask:
                assert landing is not None
                copy.mask = ~landing if copy.mask is None else copy.mask & ~landing
                if copy.mask.any():
                    left.append(copy)
        self._pending = left

    def _land(self, copy: Pending, mask: Mask) -> None:
        if self._machine.observers:
            access = Access(copy.op, AccessKind.COPY_LAND, copy.destination, copy.index, copy.lanes, mask)
            self._machine.observe(access)
        try:
            copy.destination.store(copy.index, copy.value, copy.lanes, mask)
        except IndexError as error:
            raise self._machine.outside(copy.op, copy.destination.buffer, error) from None


class WaitChecker(Observer):
    """Reports lines with waits that never completed a copy."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        self._machine = machine
        effects = [op.effects for op in kernel.body.walk()]
        self._copies = any(e.asynchronous is Completion.GROUP for e in effects)
        self._commits = any(e.commits is Completion.GROUP for e in effects)
        self._is_for_others = not self._copies and kernel.copies_to_shared
        self._under_way = 0  # copies of single threads
        self._landed = False
        self._useful: set[object] = set()
        self._useless: dict[object, Op] = {}

    def begin(self, machine: Machine) -> None:
        self._under_way = 0

    def access(self, access: Access) -> Array | None:
        if access.kind is AccessKind.COPY_WRITE:
            self._under_way += self._count(access.mask)
        elif access.kind is AccessKind.COPY_LAND:
            self._under_way -= self._count(access.mask)
            self._landed = True
        return None

    def _count(self, mask: Mask) -> int:
        everybody = self._machine.blocks * self._machine.threads
        return everybody if mask is None else int(mask.sum()) * (everybody // mask.size)

    def wait(self, op: Op, mask: Mask) -> None:
        if op.effects.completes is not Completion.GROUP:
            return
        line = place_of(op)
        if self._landed:
            self._useful.add(line)
        elif self._under_way or not self._copies:
            self._useless.setdefault(line, op)
        self._landed = False

    def end(self) -> None:
        for line, op in {} if self._is_for_others else self._useless.items():
            if line not in self._useful:
                self._report(op)

    def _report(self, op: Op) -> None:
        machine, pending = self._machine, op.effects.pending
        name = f"tw.cp_async_wait({'' if pending is None else pending})"
        fault = Fault(
            op,
            "needless-wait",
            f"needless wait: {name} never waits for anything in this launch",
            machine.block_coordinate(-machine.first_block),
            notes=("it completes no copy, in no block; the first one:",),
            help=self._help(op),
        )
        machine.collector.report(fault)

    def _help(self, op: Op) -> str:
        pending = op.effects.pending
        if not self._copies:
            return "the kernel has no asynchronous copies: remove the wait, or use tw.copy from global to shared memory"
        if pending is not None and not self._commits:
            return "close the group of copies before the wait (tw.cp_async_commit), or wait for all: tw.cp_async_wait()"
        if pending:
            return f"a wait that leaves {pending} groups under way needs more than {pending} committed before it"
        return "wait after the copies are issued and committed, and once for each group"
