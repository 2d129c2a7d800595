"""Shared memory that products of warpgroups have yet to read: from their issue to the wait for their group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.backends.sim.machine import Access, Machine
from tilewright.backends.sim.shadow import Region, Touch
from tilewright.backends.sim.together import Together
from tilewright.backends.sim.values import Array


@dataclass(eq=False, slots=True)
class _Pending:
    """One access that has not ended in the threads of `left`, a mask; `groups` is the number of each one's group."""

    access: Access
    region: Region
    touch: Touch
    rows: int  # of the region when the touch was made
    event: int
    groups: Array  # (blocks, warpgroups); 0 where the warpgroup takes no part

    def mark(self) -> None:
        """Record in the cells that a product has yet to read them."""
        self.region.await_reads(self.touch, self.event)


class PendingOperands:
    """The reads of operands that are under way, in the order of issue."""

    def __init__(self, machine: Machine, together: Together) -> None:
        self._machine, self._together = machine, together
        self._pending: list[_Pending] = []

    def __bool__(self) -> bool:
        return bool(self._pending)

    def clear(self) -> None:
        """Forget everything: a new chunk of blocks begins."""
        self._pending.clear()

    def add(self, access: Access, region: Region, touch: Touch, event: int) -> None:
        """Begin to read."""
        products = self._machine.products
        groups = self._together.groups(np.where(products.active(access.mask), products.committed + 1, 0))
        self._pending.append(_Pending(access, region, touch, region.rows, event, groups))
        self._pending[-1].mark()

    def end(self) -> list[tuple[Access, Region, Touch]]:
        """End the reads of products that are over, and return them."""
        products = self._machine.products
        ended, left = [], []
        for each in self._pending:
            over = each.groups <= self._together.groups(products.completed)
            if not over.all():
                left.append(each)
                if not (over & (each.groups > 0)).any():
                    continue
            ended.append((each.access, each.region, self._end(each, over)))
        for _, region, touch in ended:
            region.await_reads(touch)
        self._pending = left
        if ended:
            for each in left:  # another product may read the same
                each.mark()
        return ended

    def _end(self, each: _Pending, over: Array) -> Touch:
        """Take out of a pending access what is over, and return it."""
        if over.all():
            return self._touch(each)
        size = self._machine.products.size
        if (over != over[:1]).any() and each.region.rows == 1:
            each.region.cells.separate(self._together.blocks)
        touch = self._touch(each)
        done = over[touch.rows if each.region.rows > 1 else 0, touch.threads // size]
        done = np.asarray(done)
        each.touch = touch.part(~done)
        each.rows = each.region.rows
        each.groups = np.where(over, 0, each.groups)
        per_thread = np.repeat(each.groups > 0, size, axis=1)
        missing = self._together.threads - per_thread.shape[1]
        each.access.mask = np.pad(per_thread, ((0, 0), (0, missing))).reshape(-1, self._together.each)
        return touch.part(done)

    def _touch(self, each: _Pending) -> Touch:
        """Return the cells of an access, as its region counts them by now."""
        return each.touch if each.rows == each.region.rows else each.region.touch(each.access, each.access.mask)
