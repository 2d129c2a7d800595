"""Which ordinary writes the async proxy sees: those behind which their thread ran a proxy fence, and told of it.

A write of thread u at event e is seen by asynchronous work that thread t starts, where u ran a proxy fence at an
event f after e, and f happens before what t does now (see `order`). By the memory model of PTX a fence anywhere on the
way from u to t would do. NVIDIA's guides demand the fence of the writers, and so does the checker.
"""

from __future__ import annotations

import numpy as np

from tilewright.backends.sim.order import Order
from tilewright.backends.sim.values import Array, Mask


class ProxyFences:
    """The proxy fences that threads of the chunk have run, by their events."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._fences: list[tuple[int, Array]] = []

    def begin(self) -> None:
        """Forget the fences of blocks that are over."""
        self._fences.clear()

    def add(self, mask: Mask) -> None:
        """Record a fence of the threads of the mask."""
        self._fences.append((self._order.tick(), np.ones((1, 1), np.bool_) if mask is None else mask))

    def are_before(self, rows: Array, threads: Array, others: Array, events: Array) -> Array:
        """Say which writes of `others` at `events` the async proxy sees in work that `threads` of the rows start."""
        seen = np.zeros(len(events), np.bool_)
        oldest = int(events.min()) if len(events) else 0
        for event, mask in reversed(self._fences):
            if event < oldest or seen.all():
                break
            ran = mask[rows if len(mask) > 1 else 0, others if mask.shape[1] > 1 else 0]
            told = self._order.is_before(rows, threads, others, np.full(len(events), event))
            seen |= ran & (events < event) & told
        return seen
