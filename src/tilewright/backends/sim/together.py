"""Clusters as the race checker sees them: each as one block.

The blocks of a chunk stand cluster by cluster, so that what is kept by (blocks, threads) is, without a copy, also kept
by (clusters, threads of a cluster). To the race checker a cluster is one block with the threads of all of its blocks,
and a piece of shared memory for each. `Together` is that view; without clusters it changes nothing. `Presence` says
whether a block is there when others reach into it.
"""

from __future__ import annotations

import numpy as np

from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.order import Order
from tilewright.backends.sim.storage import RemoteStorage, Storage
from tilewright.backends.sim.values import Array, Lanes, Mask
from tilewright.ir.core import Buffer, Kernel, Op


class Together:
    """The threads of a cluster as if they were one block: `threads` of them, in `blocks` such rows of the chunk.

    `rank` is the block of each thread in its cluster.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.size: int = machine.cluster_size
        self.each: int = machine.threads
        self.threads: int = self.size * self.each
        self.rank: Array = np.repeat(np.arange(self.size, dtype=np.int64), self.each)[None, :]

    def reach(self, scope: str | None) -> int | None:
        """Return how many neighbouring threads are within a scope of each other, None where it reaches everybody.

        That is the grid, and "gpu" reaches it; of several ranks it reaches the blocks of one, and "sys" all.
        """
        reaches = {"cta": self.each, "cluster": self.threads}
        if self._machine.ranks is not None:
            reaches["gpu"] = self._machine.blocks_of_rank * self.each
        return reaches.get(scope or "")

    def reaches_of(self, kernel: Kernel) -> tuple[int, ...]:
        """Return how far the scopes of a kernel's accesses and fences reach that do not reach everybody."""
        return tuple(sorted({self.reach(op.effects.scope) or 0 for op in kernel.body.walk()} - {0}))

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

    def ranks_of(self, storage: Storage, ranks: Lanes = None) -> Lanes:
        """Return the blocks of the cluster whose memory an access reaches: its `ranks`, or what the storage knows."""
        if ranks is None and isinstance(storage, RemoteStorage):
            ranks = storage.ranks
        if ranks is None:
            return self.rank
        return np.asarray(self.values(ranks)).astype(np.int64).clip(0, self.size - 1)

    def party(self, cluster: int, thread: int) -> tuple[int, int]:
        """Return the block and the number in it of a thread of a cluster of the grid."""
        return cluster * self.size + thread // self.each, thread % self.each


class Presence:
    """Whether blocks are there while others of their cluster reach into their shared memory.

    A block has begun for who knows of something that a thread of it has done. It is there until an access is over of
    which one of its threads knows at its end, or an arrival of a phase for which one of them has waited: that has come,
    also where it is relaxed and tells nothing of its thread.
    """

    def __init__(self, machine: Machine, together: Together, order: Order) -> None:
        self._machine, self._together, self._order = machine, together, order
        self._last = np.zeros((0, 0, 0), np.int64)  # the event of the last access, by cluster, thread and block reached
        self._ops: dict[int, tuple[Op, Buffer]] = {}
        # By mbarrier: the last arrival of each thread of another block, and its phase; 0 where that was waited for.
        self._arrivals: dict[tuple[Buffer, int], tuple[Array, Array]] = {}

    def begin(self) -> None:
        """Forget the blocks that are over."""
        together = self._together
        self._last = np.zeros((together.blocks, together.threads, together.size), np.int64)
        self._ops.clear()
        self._arrivals.clear()

    def arrive(self, op: Op, buffer: Buffer | None, number: int, phase: Array, here: Array) -> None:
        """Take note of arrivals in a phase of a block's mbarrier, as it is numbered in its cluster."""
        together = self._together
        if together.size == 1 or buffer is None:
            return
        here = here & (together.rank != number // (buffer.size or 1))
        if here.any():
            event = self._order.tick()
            self._ops[event] = op, buffer
            none = np.zeros((2, together.blocks, together.threads), np.int64)
            events, phases = self._arrivals.setdefault((buffer, number), (none[0], none[1]))
            np.copyto(events, event, where=here)
            np.copyto(phases, phase, where=here)

    def acquire(self, buffer: Buffer | None, number: int, phase: Array) -> None:
        """Forget arrivals in phases of an mbarrier up to one, a number a cluster, for which threads have waited."""
        if buffer is not None and (buffer, number) in self._arrivals:
            events, phases = self._arrivals[buffer, number]
            events[phases <= phase] = 0

    def reach(
        self, op: Op, buffer: Buffer, event: int, rows: Array, threads: Array, ranks: Array, *, lasts: bool = True
    ) -> None:
        """Take note of accesses of threads, by clusters, to the memory of blocks.

        One that does not `lasts` is over when its bytes have come to an mbarrier of that block.
        """
        others = ranks != threads // self._together.each
        rows, threads, ranks = rows[others], threads[others], ranks[others]
        if not rows.size:
            return
        self._ops[event] = op, buffer
        if lasts:
            self._last[rows, threads, ranks] = event
        known = self._known()
        newest = known[rows if len(known) > 1 else 0, threads, ranks]
        unknown = newest <= self._order.start
        if unknown.any():
            what = "may not have begun when"
            help = "let the blocks of the cluster meet before they reach each other's memory: tw.cluster_sync()"
            first = int(np.argmax(unknown))
            self._report(op, buffer, what, help, rows[first], threads[first], ranks[first], int(unknown.sum()))

    def _known(self) -> Array:
        """Return the newest event of any thread of a block that threads know of: (rows, threads, blocks)."""
        own = self._order.known[:, :, : self._together.threads]
        newest: Array = own.reshape(*own.shape[:2], self._together.size, self._together.each).max(axis=3)
        return newest

    def finish(self) -> None:
        """Report accesses to blocks that may have been over by then."""
        known, together = self._order.known, self._together
        at_end = known.reshape(len(known), together.size, together.each, -1).max(axis=2)[:, :, : together.threads]
        last = self._last.copy()
        for (buffer, number), (events, _) in self._arrivals.items():
            ranked = last[:, :, number // (buffer.size or 1)]
            np.maximum(ranked, events, out=ranked)
        bad = (last > 0) & (last >= at_end.swapaxes(1, 2))
        for event in np.unique(last[bad]).tolist():
            where = np.argwhere(bad & (last == event))
            row, thread, rank = (int(n) for n in where[0])
            op, buffer = self._ops[event]
            help = (
                "let the blocks of the cluster meet before they leave: tw.cluster_sync() at the end, or a wait for the "
                "mbarrier at which the others arrive last"
            )
            self._report(op, buffer, "may have left when", help, row, thread, rank, len(where))

    def _report(
        self, op: Op, buffer: Buffer, what: str, help: str, row: int, thread: int, rank: int, count: int
    ) -> None:
        machine, first = self._machine, int(row) * self._together.size
        block, number = first + int(thread) // self._together.each, int(thread) % self._together.each
        reached = machine.block_coordinate(first + int(rank))
        fault = Fault(
            op, "absent-block", f"block {reached} of the cluster {what} another block reaches its {buffer.root.name}",
            machine.block_coordinate(block), machine.thread_coordinate(number), buffer.root.name, help=help,
            count=count,
        )  # fmt: skip
        machine.collector.report(fault)
