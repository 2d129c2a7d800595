"""The checker of waits for asynchronous copies that wait for nothing, at any time in a launch.

A wait at the end of a pipeline, or in the first round of a loop, may find nothing that it has to wait for. One that
leaves copies under way each time, and never completes one, is a mistake: a group that is committed too late, or a
number of groups that is too large. So is one in a kernel without asynchronous copies, unless it is written with
`tw.copy` and specialised for arrays that cannot be copied asynchronously, or of which there is nothing to copy: with
other arrays the same kernel waits for copies.
"""

from __future__ import annotations

from tilewright.backends.sim.findings import Fault, place_of
from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.observers import Access, AccessKind, Observer
from tilewright.backends.sim.values import Array, Mask
from tilewright.ir.core import Kernel, Op
from tilewright.ir.effects import Completion


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
