"""What every thread of a run did, and which of it races: a graph search over a recorded run. Slow, and independent.

A thread's accesses between two of its synchronisations are one node. Asynchronous copies are nodes of their own, after
the node in which they are issued and before the one that begins when they land.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import cache

import numpy as np

from tilewright.backends.sim.findings import Collector
from tilewright.backends.sim.machine import Access, AccessKind, Machine, Observer, Signal
from tilewright.backends.sim.program import Program
from tilewright.backends.sim.storage import GlobalStorage, SharedStorage
from tilewright.instructions.barrier import Barrier
from tilewright.ir.core import Kernel, Op, Parameter, Value

READS = (AccessKind.LOAD, AccessKind.COPY_READ)


class Recorder(Observer):
    """Records one chunk of blocks as a graph, and the accesses of its nodes."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.before: list[list[int]] = []  # of each node, the nodes that come directly before it
        self.accesses: list[tuple[np.ndarray, int, np.ndarray, int]] = []  # first bytes, bytes, nodes, what is done
        self.copies: dict[tuple[Op, int, int, int], list[int]] = defaultdict(list)  # under way, in order
        self.memories: dict[object, int] = {}
        self.arrivals: dict[tuple[object, int, int], list[tuple[int, int]]] = defaultdict(list)  # phases and nodes

    def node(self, *before: int) -> int:
        self.before.append(list(before))
        return len(self.before) - 1

    def begin(self, machine: Machine) -> None:
        self._now = [[self.node() for _ in range(machine.threads)] for _ in range(machine.blocks)]
        # What has to come before a thread's next node, where there has to be one: copies issued or landed.
        self._since: list[list[list[int]]] = [[[] for _ in range(machine.threads)] for _ in range(machine.blocks)]
        self._over = [[False] * machine.threads for _ in range(machine.blocks)]

    def now(self, b: int, t: int) -> int:
        """Return the node of what a thread does now."""
        if self._over[b][t]:
            self._now[b][t] = self.node(self._now[b][t], *self._since[b][t])
            self._since[b][t], self._over[b][t] = [], False
        return self._now[b][t]

    def _active(self, mask: np.ndarray | None) -> list[tuple[int, int]]:
        shape = self.machine.blocks, self.machine.threads
        full = np.broadcast_to(True if mask is None else mask, shape)
        return [(int(b), int(t)) for b, t in np.argwhere(full)]

    def access(self, access: Access) -> None:
        storage = access.storage
        if not isinstance(storage, (GlobalStorage, SharedStorage)):
            return
        threads = self._active(access.mask)
        index = np.broadcast_to(np.asarray(access.index), (self.machine.blocks, self.machine.threads))
        elements = [int(index[b, t]) for b, t in threads]
        kind = access.kind
        if kind is AccessKind.COPY_LAND:
            for (b, t), element in zip(threads, elements, strict=True):
                self._since[b][t].append(self.copies[access.op, b, t, element].pop(0))
                self._over[b][t] = True
            return
        if kind is AccessKind.COPY_WRITE:
            nodes = []
            for (b, t), element in zip(threads, elements, strict=True):
                # Several copies in a row have the same node before them.
                issued = self.now(b, t) if self._since[b][t] or not self._over[b][t] else self._now[b][t]
                nodes.append(self.node(issued))
                self.copies[access.op, b, t, element].append(nodes[-1])
                self._over[b][t] = True
            self._issued = dict(zip(threads, nodes, strict=True))
        elif kind is AccessKind.COPY_READ:
            nodes = [self._issued[who] for who in threads]
        else:
            nodes = [self.now(b, t) for b, t in threads]
        item = storage.buffer.dtype.bytes
        starts = np.array(elements, np.int64) * item
        memory = np.full(len(threads), self._memory(storage.buffer))
        if isinstance(storage, SharedStorage):
            starts += storage.offset
            memory = np.array([self._memory(b) for b, _ in threads])
        what = 2 * (kind not in READS) + (kind in (AccessKind.ATOMIC, AccessKind.BARRIER))
        self.accesses.append((memory << 32 | starts, item * access.lanes, np.array(nodes, np.int64), what))

    def _memory(self, which: object) -> int:
        """Return a number for a global array, or for a block's shared memory."""
        return self.memories.setdefault(which, len(self.memories))

    def barrier(self, op: Op, mask: np.ndarray | None) -> None:
        assert isinstance(op, Barrier)
        groups = defaultdict(list)
        for b, t in self._active(mask):
            groups[b, 0 if op.scope == "block" else t // 32].append((b, t))
        for members in groups.values():
            meeting = self.node(*[self.now(b, t) for b, t in members])
            for b, t in members:
                self._now[b][t] = self.node(meeting)

    def arrive(self, signal: Signal) -> None:
        for b, t, element, phase in self._signalling(signal):
            self.arrivals[signal.buffer, element, b].append((phase, self.now(b, t)))
            self._over[b][t] = True

    def acquire(self, signal: Signal) -> None:
        for b, t, element, phase in self._signalling(signal):
            self._since[b][t] += [node for n, node in self.arrivals[signal.buffer, element, b] if n <= phase]
            self._over[b][t] = True

    def _signalling(self, signal: Signal) -> list[tuple[int, int, int, int]]:
        shape = self.machine.blocks, self.machine.threads
        index, phase = (np.broadcast_to(np.asarray(x), shape) for x in (signal.index, signal.phase))
        return [(b, t, int(index[b, t]), int(phase[b, t])) for b, t in self._active(signal.mask)]

    def races(self) -> bool:
        """Return whether two accesses to one place are not ordered, and one of them writes."""
        earlier = [0] * len(self.before)  # nodes are made in an order in which paths go upwards
        for node, before in enumerate(self.before):
            for other in before:
                earlier[node] |= earlier[other] | 1 << other
        width = min((size for _, size, _, _ in self.accesses), default=1)
        rows = [
            np.stack([starts // width + k, nodes * 4 + what], axis=1)
            for starts, size, nodes, what in self.accesses
            for k in range(size // width)
        ]
        table = np.unique(np.concatenate(rows), axis=0) if rows else np.zeros((0, 2), np.int64)
        cells, firsts = np.unique(table[:, 0], return_index=True)
        is_ordered = cache(lambda low, high: bool(earlier[high] >> low & 1))
        for found in np.split(table[:, 1], firsts[1:]) if len(cells) else ():
            for one in found[found & 2 > 0].tolist():
                for other in found.tolist():
                    low, high = sorted((one >> 2, other >> 2))
                    if low != high and not (one & other & 1) and not is_ordered(low, high):
                        return True
        return False


def races(
    kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int], arguments: Mapping[Parameter, object]
) -> bool:
    """Return whether a run of the kernel races. The blocks must fit into one chunk."""
    arrays = {p.target: a for p, a in arguments.items() if isinstance(a, np.ndarray)}
    numbers = {p.target: p.target.dtype.numpy.type(a) for p, a in arguments.items() if isinstance(p.target, Value)}
    machine = Machine(kernel, grid, block, arrays, Collector(raise_errors=False))
    recorder = Recorder(machine)
    machine.observers = (recorder,)
    program = Program(kernel, machine, numbers)
    assert machine.total_blocks <= machine.chunk
    with np.errstate(all="ignore"):
        machine.begin(0, machine.total_blocks)
        program.run()
    return recorder.races()
