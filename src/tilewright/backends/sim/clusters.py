"""The barriers of clusters, blocks that run together: who has arrived in which phase, and who has left."""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Machine, Signal, relation_bytes
from tilewright.backends.sim.values import Array, Mask
from tilewright.errors import ArgumentError
from tilewright.ir.core import Kernel, Op
from tilewright.ir.effects import WARPS_OF, Completion, Scope


class ClusterBarriers:
    """The barrier of each cluster of the chunk: how many threads have arrived in the phase under way, and phases.

    `arrived` says of each thread in how many phases it has, `waited` how many it has seen the end of. A thread that has
    left counts as one that arrives.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.version: int = 0
        self.clear()

    def clear(self) -> None:
        """Begin with nobody there."""
        machine = self._machine
        shape = machine.blocks, machine.threads
        self.arrived: Array = np.zeros(shape, np.int64)
        self.waited: Array = np.zeros(shape, np.int64)
        self.left: Array = np.zeros(shape, np.bool_)
        self.phase: Array = np.zeros((machine.blocks // machine.cluster_size, 1), np.int64)

    def arrive(self, op: Op, mask: Mask, *, relaxed: bool = False) -> None:
        """Let threads arrive in the phase under way."""
        here = self._here(mask)
        self._refuse(
            op, here & (self.arrived != self.waited), "arrives at the barrier of a cluster again before it has waited",
            "let each tw.cluster_arrive() be followed by a tw.cluster_wait() of the same threads",
        )  # fmt: skip
        self.version += 1
        for observer in self._machine.observers:
            observer.arrive(Signal(op, None, CLUSTER_BARRIER, self._of_threads(), mask, relaxed=relaxed))
        self.arrived += here
        self._advance()

    def begin_wait(self, op: Op, mask: Mask) -> None:
        """Check that threads which begin to wait have arrived."""
        self._refuse(
            op, self._here(mask) & (self.arrived == self.waited), "waits at the barrier of a cluster without arriving",
            "write tw.cluster_arrive() before, or tw.cluster_sync() for both",
        )  # fmt: skip

    def ready(self) -> Array:
        """Return which threads may go on: those whose phase is over, and those that have not arrived at all."""
        return np.asarray((self._of_threads() > self.waited) | (self.arrived == self.waited))

    def passed(self, op: Op, mask: Mask) -> None:
        """Let threads go on."""
        here = self._here(mask) & (self.arrived > self.waited)
        for observer in self._machine.observers:
            observer.acquire(Signal(op, None, CLUSTER_BARRIER, self.waited.copy(), here))
        self.waited += here

    def leave(self, mask: Mask) -> None:
        """Let threads run to their end."""
        self.left |= self._here(mask)
        self.version += 1
        self._advance()

    def missing(self, row: int) -> list[tuple[int, int]]:
        """Return for each block of a cluster how many of its threads the phase under way waits for, by rank."""
        size = self._machine.cluster_size
        first, phase = row // size * size, self.phase[row // size, 0]
        absent = (self.arrived[first : first + size] <= phase) & ~self.left[first : first + size]
        return [(rank, int(count)) for rank, count in enumerate(absent.sum(axis=1)) if count]

    def _advance(self) -> None:
        there = (self.arrived > self._of_threads()) | self.left
        over = there.reshape(len(self.phase), -1).all(axis=1, keepdims=True)
        over &= ~self.left.reshape(len(self.phase), -1).all(axis=1, keepdims=True)
        self.phase += over

    def _of_threads(self) -> Array:
        return np.repeat(self.phase, self._machine.cluster_size, axis=0)

    def _here(self, mask: Mask) -> Array:
        return np.broadcast_to(np.True_ if mask is None else mask, self.arrived.shape)

    def _refuse(self, op: Op, bad: Array, what: str, help: str) -> None:
        if not bad.any():
            return
        machine = self._machine
        row, thread = (int(n) for n in np.argwhere(bad)[0])
        at = machine.block_coordinate(row), machine.thread_coordinate(thread)
        fault = Fault(op, "barrier-divergence", f"a thread {what}", *at, help=help, count=int(bad.sum()))
        machine.collector.report(fault)


CLUSTER_BARRIER = np.int32(-1)  # in place of the number of a named barrier


_MOST_BYTES = 1 << 31


def demand_whole_groups(kernel: Kernel, threads: int) -> None:
    """Raise `ArgumentError` for clusters of blocks that are not whole warps, or warpgroups where these multiply.

    And for clusters of more threads than the checkers can hold.
    """
    blocks = prod(kernel.cluster)
    if blocks == 1:
        return
    if relation_bytes(blocks * threads) > _MOST_BYTES:
        raise ArgumentError(
            f"kernel {kernel.name!r} is launched in clusters of {blocks} blocks of {threads} threads; the simulator "
            f"keeps what each thread knows of each other, {relation_bytes(blocks * threads) >> 20} MB here",
            help="try the kernel with smaller blocks or clusters",
        )
    multiplies = any(op.effects.asynchronous is Completion.WARPGROUP for op in kernel.body.walk())
    size = kernel.warp_size * (WARPS_OF[Scope.WARPGROUP] if multiplies else 1)
    if threads % size:
        raise ArgumentError(
            f"kernel {kernel.name!r} is launched in clusters with blocks of {threads} threads; the simulator runs "
            f"clusters of blocks of whole {'warpgroups' if multiplies else 'warps'}",
            help=f"launch blocks of a multiple of {size} threads",
        )
