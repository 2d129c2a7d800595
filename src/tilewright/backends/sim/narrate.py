"""The narrator: what the warps of a few blocks did, step by step, for the pictures of a report."""

from __future__ import annotations

from collections import deque

import numpy as np

from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.values import Array, Mask
from tilewright.figures import MOST_EVENTS, Event, Timeline
from tilewright.ir.core import Op

_BLOCKS = 2  # of the first chunk that is measured

# Classes that a picture shows together.
_COMPUTE = frozenset({"integer", "float", "special function", "fma", "select", "convert", "branch"})


class Narrator:
    """Keeps the events of the first blocks."""

    def __init__(self, machine: Machine) -> None:
        self.timelines: list[Timeline] = []
        self._warp = machine.warp
        self._warps = -(-machine.threads // machine.warp)
        self._rows = 0  # blocks of the running chunk that are narrated
        self._step = 0
        self._under_way: dict[Op, deque[list[Event]]] = {}

    def begin(self, machine: Machine) -> None:
        """Narrate the chunk's first blocks, if none has been."""
        if self.timelines:
            self._rows = 0
            return
        self._rows = min(_BLOCKS, machine.blocks)
        self.timelines = [Timeline(machine.block_coordinate(row), self._warps) for row in range(self._rows)]

    def execute(self, op: Op, name: str, mask: Mask) -> None:
        """Add an op that is about to run, to the event before it where that is alike."""
        if not self._rows or all(timeline.is_cut for timeline in self.timelines):
            return
        self._step += 1
        kind = "compute" if name in _COMPUTE else name
        line = None if op.location is None else op.location.line
        issued = []
        for row, timeline in enumerate(self.timelines):
            warps = self._active(mask, row)
            last = timeline.events[-1] if timeline.events else None
            if last is not None and (last.kind, last.line, last.warps) == (kind, line, warps):
                last.count += 1
            elif warps and not timeline.is_cut:
                last = Event(self._step, kind, line, warps, is_async=op.effects.asynchronous is not None)
                timeline.events.append(last)
                timeline.is_cut = len(timeline.events) >= MOST_EVENTS
            if last is not None and last.is_async and warps:
                issued.append(last)
        if issued:
            self._under_way.setdefault(op, deque()).append(issued)

    def land(self, op: Op) -> None:
        """Take notice that the oldest copies of an op land."""
        waiting = self._under_way.get(op)
        if self._rows and waiting:
            for event in waiting.popleft():
                event.landed = self._step

    def _active(self, mask: Mask, row: int) -> int:
        """Return the warps of a block that are active, as bits."""
        if mask is None:
            return (1 << self._warps) - 1
        lanes: Array = mask[row if mask.shape[0] > 1 else 0]
        if len(lanes) == 1:
            return (1 << self._warps) - 1 if lanes[0] else 0
        warps = (lanes[first : first + self._warp] for first in range(0, len(lanes), self._warp))
        return sum(1 << number for number, warp in enumerate(warps) if np.any(warp))
