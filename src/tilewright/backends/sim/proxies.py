"""Which ordinary writes the async proxy sees: those behind which a proxy fence was run, and told of.

A write of thread u at event e is seen by asynchronous work that thread t starts, where u ran a proxy fence at an
event f after e, and f happens before what t does now. By the memory model of PTX a fence anywhere on the way from u
to t would do. NVIDIA's guides demand the fence of the writers, and so does the checker within a block; between
blocks it takes one of any thread of either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tilewright.backends.sim.order import Order
from tilewright.backends.sim.values import Array, Mask

IsKnown: TypeAlias = Callable[[Array, Array, int], Array]  # of blocks, their threads, and an event


class ProxyFences:
    """The proxy fences that threads of the chunk have run for global or for shared memory, by their events."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._fences: list[tuple[int, Array]] = []

    def begin(self) -> None:
        """Forget the fences of blocks that are over."""
        self._fences.clear()

    def add(self, mask: Mask) -> None:
        """Record a fence of the threads of the mask."""
        shape = self._order.blocks, self._order.threads
        self._fences.append((self._order.tick(), np.broadcast_to(np.True_ if mask is None else mask, shape)))

    def are_before(
        self, rows: Array, threads: Array, others: Array, events: Array, other_rows: Array, is_known: IsKnown
    ) -> Array:
        """Say which writes of `others` of blocks at `events` the async proxy sees in work of `threads` of the rows.

        `is_known` says of blocks and their threads what was done by them at an event, as far as the threads know.
        """
        seen, apart = np.zeros(len(events), np.bool_), rows != other_rows
        oldest = int(events.min()) if len(events) else 0
        for event, mask in reversed(self._fences):
            if event < oldest or seen.all():
                break
            for row, thread in ((other_rows, others), (rows, threads)):
                may = (events < event) & (apart | (thread is others))
                if may.any():
                    who = np.where(apart & ~mask[row, thread], mask.argmax(axis=1)[row], thread)
                    seen |= may & mask[row, who] & is_known(row, who, event)
        return seen
