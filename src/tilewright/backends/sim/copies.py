"""Asynchronous copies that are under way: issued by threads, landing in shared memory when waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.observers import Access, AccessKind
from tilewright.backends.sim.storage import Storage
from tilewright.backends.sim.values import Array, Frame, Lanes, Mask, both, merge
from tilewright.ir.core import Op


@dataclass
class Pending:
    """One op's copies of all threads that have not landed: values already read, the place they go to.

    `group` is how many groups the thread had committed before. A thread leaves `mask` when its copy lands.
    """

    op: Op
    destination: Storage
    index: Lanes
    value: Lanes
    lanes: int
    mask: Mask
    group: int | Array


class CopyQueue:
    """The copies under way in the chunk of blocks, and how many groups each thread has committed.

    While all threads commit together the number is one int for all of them.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._pending: list[Pending] = []
        self._committed: int | Array = 0

    def clear(self) -> None:
        """Forget everything: copies that were never waited for never land."""
        self._pending.clear()
        self._committed = 0

    def issue(self, op: Op, destination: Storage, index: Lanes, value: Lanes, lanes: int, mask: Mask) -> None:
        """Add a copy to the open group of each active thread."""
        self._pending.append(Pending(op, destination, index, value, lanes, mask, self._committed))

    def commit(self, frame: Frame) -> None:
        """Close the open group of each active thread."""
        more = self._committed + 1
        self._committed = more if frame.mask is None else merge(frame.mask, more, self._committed)

    def wait(self, newest: int | None, frame: Frame) -> None:
        """Let land what is not in a thread's `newest` committed groups or in the open one; None: everything."""
        left = []
        for copy in self._pending:
            ready = True if newest is None else copy.group < self._committed - newest
            if isinstance(ready, np.ndarray) and ready.all():
                ready = True
            if not np.any(ready):
                left.append(copy)
                continue
            landing = both(both(copy.mask, frame.mask), None if ready is True else np.asarray(ready))
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
