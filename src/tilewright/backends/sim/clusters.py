"""Clusters: blocks that run together, whose threads meet at a barrier of their own and reach each other's memory.

The blocks of a chunk stand cluster by cluster, so that what is kept by (blocks, threads) is, without a copy, also kept
by (clusters, threads of a cluster). The race checker sees a cluster so: as one block with the threads of all of its
blocks, and a piece of shared memory for each. `Together` is that view; without clusters it changes nothing.
"""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Machine, Signal
from tilewright.backends.sim.values import Array, Lanes, Mask
from tilewright.errors import ArgumentError
from tilewright.ir.core import Kernel, Op
from tilewright.ir.effects import WARPS_OF, Completion, Scope


class Together:
    """The threads of a cluster as if they were one block: `threads` of them, in `blocks` such rows of the chunk.

    `rank` is the block of each thread in its cluster.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.size, self.each = machine.cluster_size, machine.threads
        self.threads = self.size * self.each
        self.rank = np.repeat(np.arange(self.size, dtype=np.int64), self.each)[None, :]

    @property
    def blocks(self) -> int:
        """How many clusters run."""
        return self._machine.blocks // self.size

    @property
    def first(self) -> int:
        """The number in the grid of the first cluster that runs."""
        return self._machine.first_block // self.size

    def values(self, value: Lanes) -> Lanes:
        """Return a value of all threads by clusters."""
        if self.size == 1 or np.ndim(value) == 0 or value.shape == (1, 1):
            return value
        if value.shape[0] == 1:
            return np.tile(value, (1, self.size))
        if value.shape[1] == 1:
            return np.repeat(value.reshape(-1, self.size), self.each, axis=1)
        return value.reshape(-1, self.threads)

    def mask(self, mask: Mask) -> Mask:
        """Return a mask by clusters."""
        return None if mask is None else self.values(mask)

    def groups(self, counts: Array) -> Array:
        """Return numbers of groups of each block, (blocks, groups), by clusters."""
        return counts if self.size == 1 else counts.reshape(-1, self.size * counts.shape[1])

    def place(self, rows: Array, threads: Array) -> tuple[Array, Array]:
        """Return rows and numbers of threads by clusters."""
        return (rows, threads) if self.size == 1 else (rows // self.size, rows % self.size * self.each + threads)

    def party(self, cluster: int, thread: int) -> tuple[int, int]:
        """Return the block and the number in it of a thread of a cluster of the grid."""
        return cluster * self.size + thread // self.each, thread % self.each


class ClusterBarriers:
    """The barrier of each cluster of the chunk: how many threads have arrived in the phase under way, and phases.

    `arrived` says of each thread in how many phases it has, `waited` how many it has seen the end of. A thread that has
    left counts as one that arrives.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.version = 0
        self.clear()

    def clear(self) -> None:
        """Begin with nobody there."""
        machine = self._machine
        self.arrived, self.waited = (np.zeros((machine.blocks, machine.threads), np.int64) for _ in range(2))
        self.left = np.zeros((machine.blocks, machine.threads), np.bool_)
        self.phase = np.zeros((machine.blocks // machine.cluster_size, 1), np.int64)

    def arrive(self, op: Op, mask: Mask) -> None:
        """Let threads arrive in the phase under way."""
        here = self._here(mask)
        self._refuse(
            op, here & (self.arrived != self.waited), "arrives at the barrier of the cluster again before it has waited",
            "let each tw.cluster_arrive() be followed by a tw.cluster_wait() of the same threads",
        )  # fmt: skip
        self.version += 1
        for observer in self._machine.observers:
            observer.arrive(Signal(op, None, CLUSTER_BARRIER, self._of_threads(), mask))
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


def demand_whole_groups(kernel: Kernel, threads: int) -> None:
    """Raise `ArgumentError` for clusters of blocks that are no whole warps, or warpgroups where these multiply."""
    if prod(kernel.cluster) == 1:
        return
    multiplies = any(op.effects.asynchronous is Completion.WARPGROUP for op in kernel.body.walk())
    size = kernel.warp_size * (WARPS_OF[Scope.WARPGROUP] if multiplies else 1)
    if threads % size:
        raise ArgumentError(
            f"kernel {kernel.name!r} is launched in clusters with blocks of {threads} threads; the simulator runs "
            f"clusters of blocks of whole {'warpgroups' if multiplies else 'warps'}",
            help=f"launch blocks of a multiple of {size} threads",
        )
