"""What launches before the one that runs read and wrote, for kernels that may begin before these have ended.

A launch with `dependent_launch=True` is ordered after the launch before it only behind `tw.grid_dependency_wait`. The
simulator runs launches one after the other, so it remembers, for each thread of Python, what the launches read and
wrote that may still run: the last one, and those before it that the last one, itself launched so, did not wait for.

Once a process has made a kernel with that option, the elements that launches reach are remembered, with the line of
the last access of each kind. Of a launch before that, the arrays are known: what the kernel reads and writes, whole. An
array that Python has freed is forgotten. What the host does between two launches is not seen.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.backends.sim.findings import Fault, name_place
from tilewright.backends.sim.machine import Access, AccessKind, Arrival, BulkAccess, Machine, Observer
from tilewright.backends.sim.order import Order
from tilewright.backends.sim.storage import GlobalStorage
from tilewright.backends.sim.values import Array, Mask, at_least_2d
from tilewright.ir.core import Buffer, Kernel, Op
from tilewright.ir.effects import Scope

_READS = (AccessKind.LOAD, AccessKind.COPY_READ, AccessKind.OPERAND_READ)
_MOST = 8  # launches that may run at once
_MOST_OPS = int(np.iinfo(np.uint16).max)  # that are told apart
_HELP = (
    "call tw.grid_dependency_wait() before this line, in the thread itself or in one that a barrier lets it know of; "
    "what stands before the wait reads only what no launch before writes"
)


@dataclass
class Stretch:
    """The memory of one array that a launch reached: from an address on, elements of so many bytes.

    `wrote` and `read` hold for each element the number of the op that did so last in `ops`, 0 for none.
    """

    start: int
    item: int
    wrote: Array
    read: Array
    ops: list[Op]
    owner: Any  # Any: a weak reference to what owns the memory, or the owner

    @property
    def lives(self) -> bool:
        """Whether the memory is still that of the array."""
        return not isinstance(self.owner, weakref.ref) or self.owner() is not None


@dataclass
class Launched:
    """A launch that may still run: what it reached, or its kernel and arrays where elements were not recorded."""

    name: str
    recorded: list[Stretch]
    kernel: Kernel | None = None
    arrays: dict[Buffer, Stretch] = field(default_factory=dict)

    @property
    def stretches(self) -> list[Stretch]:
        """What it reached; of a kernel and its arrays, all elements of those that an op reads or writes."""
        if self.kernel is None:
            return self.recorded
        ops = [op for op in self.kernel.body.walk() if op.uses]
        numbers: dict[tuple[Buffer, bool], int] = {}
        for number, op in enumerate(ops, 1):
            for use in op.uses:
                if use.use.is_read:
                    numbers[use.buffer.root, False] = min(number, _MOST_OPS)
                if use.use.is_write:
                    numbers[use.buffer.root, True] = min(number, _MOST_OPS)
        for buffer, stretch in self.arrays.items():
            count, stretch.ops = stretch.wrote.size, ops
            stretch.wrote = np.broadcast_to(np.uint16(numbers.get((buffer, True), 0)), count)
            stretch.read = np.broadcast_to(np.uint16(numbers.get((buffer, False), 0)), count)
        return list(self.arrays.values())


class _Running(threading.local):
    def __init__(self) -> None:
        self.launches: list[Launched] = []


_running = _Running()


def forget_launches() -> None:
    """Forget what this thread has launched: as if the GPU had been waited for."""
    _running.launches.clear()


class Predecessors(Observer):
    """Records what a launch reaches, and compares it with launches that may still run where it may begin early.

    `order` is what happens before what in a block (see `order`). With `cells` single elements are recorded.
    """

    def __init__(
        self, kernel: Kernel, machine: Machine, order: Order, arrays: dict[Buffer, Array], cells: bool
    ) -> None:
        self._kernel, self._machine, self._order, self._cells = kernel, machine, order, cells
        self._ops: list[Op] = []
        self._numbers: dict[Op, int] = {}
        self._storages = {b: s for b, s in machine.storages.items() if isinstance(s, GlobalStorage) and b.base is None}
        self._stretches = {b: self._stretch(s, arrays[b]) for b, s in self._storages.items()}
        self._waits: list[tuple[int, Array]] = []  # of the chunk: the event, and the threads
        self._waited = self._all_wait = False
        if not kernel.dependent_launch:  # it begins when all others have ended
            forget_launches()
        before = list(_running.launches)
        # By buffer: what may still be written and read, before this launch has waited and after.
        self._unsafe = {b: found for b in self._storages if (found := self._meet(b, before))}

    def _stretch(self, storage: GlobalStorage, array: Array) -> Stretch:
        count = storage.flat.size if not storage.empty else 0
        wrote, read = (np.zeros(count, np.uint16) if self._cells else _none_of(count) for _ in range(2))
        return Stretch(storage.address, storage.flat.itemsize, wrote, read, self._ops, owner_of(array))

    def _number(self, op: Op) -> int:
        found = self._numbers.get(op)
        if found is None:
            self._ops.append(op)
            found = self._numbers[op] = min(len(self._ops), _MOST_OPS)
        return found

    # --- comparing -------------------------------------------------------------------------------------------

    def _meet(self, buffer: Buffer, launches: list[Launched]) -> list[_Met]:
        """Return what launches that may still run reached of an array."""
        found, storage = [], self._storages[buffer]
        if storage.empty:
            return []
        for number, launch in enumerate(launches):
            for stretch in launch.stretches:
                met = _overlap(storage, stretch)
                if met is not None and stretch.lives:
                    found.append(_Met(launch.name, stretch.ops, *met, number < len(launches) - 1))
        return found

    def begin(self, machine: Machine) -> None:
        self._waits.clear()

    def await_grids(self, op: Op, mask: Mask) -> None:
        shape = self._machine.blocks, self._machine.threads
        self._waits.append((self._order.tick(), np.broadcast_to(np.True_ if mask is None else mask, shape)))
        self._waited = True

    def barrier(self, op: Op, mask: Mask) -> None:
        if op.effects.together is Scope.GRID and self._waited:
            self._all_wait = True

    def access(self, access: Access) -> Array | None:
        buffer = access.storage.buffer.root
        storage = access.storage
        if not isinstance(storage, GlobalStorage) or access.kind is AccessKind.COPY_LAND:
            return None
        if not self._cells and buffer not in self._unsafe:
            return None
        shape = self._machine.blocks, self._machine.threads
        index, mask = at_least_2d(access.index), access.mask
        if buffer not in self._unsafe and storage is self._storages[buffer]:  # who it is does not matter, as mostly
            there = index if mask is None else np.broadcast_to(index, shape)[np.broadcast_to(mask, shape)]
            spots = there.astype(np.int64).reshape(-1) - storage.low
            if access.lanes > 1:
                spots = (spots[:, None] + np.arange(access.lanes)).reshape(-1)
            self._record(access, buffer, spots[(spots >= 0) & (spots < storage.flat.size)])
            return None
        rows, threads = np.nonzero(np.broadcast_to(np.True_ if mask is None else mask, shape))
        index = np.broadcast_to(index, shape)[rows, threads].astype(np.int64)
        self._reach(access, buffer, storage, rows, threads, index[:, None] + np.arange(access.lanes))
        return None

    def start_bulk(self, access: BulkAccess) -> bool:
        buffer, storage = access.storage.buffer.root, access.storage
        if isinstance(storage, GlobalStorage) and (self._cells or buffer in self._unsafe):
            self._reach(access, buffer, storage, access.rows, access.threads, access.index, access.there)
        return False

    def finish_bulk(self, access: BulkAccess, which: Array, arrival: Arrival | None) -> None:
        """Do nothing: a bulk access counts where it starts."""

    def _reach(
        self, access: Access | BulkAccess, buffer: Buffer, storage: GlobalStorage, rows: Array, threads: Array,
        index: Array, there: Array | None = None,
    ) -> None:  # fmt: skip
        """Record an access, and compare it with what launches that may still run reached."""
        base = self._storages[buffer]
        spots = index - storage.low
        inside = (spots >= 0) & (spots < storage.flat.size)
        if there is not None:
            inside &= there
        which, _ = np.nonzero(inside)
        spots = spots[inside]
        if storage is not base:  # bytes of the array as another type
            old, new = storage.flat.itemsize, base.flat.itemsize
            each = max(old // new, 1)
            spots = ((spots * old) // new)[:, None] + np.arange(each)
            which, spots = np.repeat(which, each), spots.reshape(-1)
            spots = np.minimum(spots, base.flat.size - 1)
        for met in self._unsafe.get(buffer, ()):
            self._compare(met, access, buffer, rows[which], threads[which], spots, access.kind not in _READS)
        if self._cells:
            self._record(access, buffer, spots)

    def _record(self, access: Access | BulkAccess, buffer: Buffer, spots: Array) -> None:
        stretch = self._stretches[buffer]
        (stretch.read if access.kind in _READS else stretch.wrote)[spots] = self._number(access.op)

    def _compare(
        self, met: _Met, access: Access | BulkAccess, buffer: Buffer, rows: Array, threads: Array, spots: Array,
        writes: bool,
    ) -> None:  # fmt: skip
        early = met.wrote.take(spots)
        if writes:
            early = np.where(early, early, met.read.take(spots))
        at = np.flatnonzero(early)
        if not at.size or (self._all_wait and not met.outlives):
            return
        if not met.outlives:
            at = at[~self._have_waited(rows[at], threads[at])]
        if not at.size:
            return
        first = int(at[0])
        self._report(met, access, buffer, (int(rows[first]), int(threads[first])), int(spots[first]), int(early[first]),
                     len(np.unique(rows[at] * self._machine.threads + threads[at])))  # fmt: skip

    def _have_waited(self, rows: Array, threads: Array) -> Array:
        """Say which threads are ordered after a wait for the launches before."""
        waited = np.zeros(len(rows), np.bool_)
        for event, mask in reversed(self._waits):
            waited |= mask[rows, threads]
            left = np.flatnonzero(~waited)
            if not left.size:
                break
            for other in np.flatnonzero(mask.any(axis=0)).tolist():
                told = mask[rows[left], other] & self._order.is_before(
                    rows[left], threads[left], np.full(left.size, other), np.full(left.size, event)
                )
                waited[left[told]] = True
                left = left[~told]
                if not left.size:
                    break
        return waited

    def _report(
        self, met: _Met, access: Access | BulkAccess, buffer: Buffer, who: tuple[int, int], spot: int, early: int,
        count: int,
    ) -> None:  # fmt: skip
        machine, storage = self._machine, self._storages[buffer]
        index = spot + storage.low
        place, coordinate = name_place(storage, index)
        place = place.removesuffix(",")  # it ends in one where it has a coordinate
        wrote = bool(met.wrote[spot])
        done, does = ("write", "writes") if wrote else ("read", "reads")
        op = met.ops[early - 1]
        notes = [f"the line of {met.name} that {does} it:"]
        if op.location is not None:
            notes += [f"  {line}" for line in op.location.excerpt()]
        when = (
            "which the launch before has not waited for"
            if met.outlives
            else "which may still run: nothing waits for it"
        )
        fault = Fault(
            access.op, "missing-wait",
            f"missing wait: {access.kind.value} {place}, and kernel {met.name!r}, {when}, may have yet to {done} it",
            machine.block_coordinate(who[0]), machine.thread_coordinate(who[1]), buffer.name, index, coordinate, notes,
            "let that launch wait too: tw.grid_dependency_wait() in each kernel of the row" if met.outlives else _HELP,
            count, other=op,
        )  # fmt: skip
        machine.collector.report(fault)

    def remember(self) -> None:
        """Keep what the launch reached, which is over as far as the simulator goes."""
        launched = Launched(self._kernel.name, list(self._stretches.values()))
        if not self._cells:
            launched = Launched(self._kernel.name, [], self._kernel, self._stretches)
        kept = [] if self._waited else _running.launches
        _running.launches = [*kept, launched][-_MOST:]


@dataclass
class _Met:
    """What a launch reached of an array of this one: ops by element. `outlives`: also behind this launch's own wait."""

    name: str
    ops: list[Op]
    wrote: Array
    read: Array
    outlives: bool


def _overlap(storage: GlobalStorage, stretch: Stretch) -> tuple[Array, Array] | None:
    """Return the ops that wrote and read each element of an array, None where they reached other memory."""
    size, item = storage.flat.itemsize, stretch.item
    low, high = storage.address, storage.address + storage.flat.nbytes
    start, end = max(low, stretch.start), min(high, stretch.start + stretch.wrote.size * item)
    if start >= end or not (stretch.wrote.any() or stretch.read.any()):
        return None
    found = []
    for ops in (stretch.wrote, stretch.read):
        of_bytes = np.zeros(storage.flat.nbytes, np.uint16)
        every = np.repeat(ops, item)
        of_bytes[start - low : end - low] = every[start - stretch.start : end - stretch.start]
        found.append(of_bytes.reshape(-1, size).max(axis=1))
    return found[0], found[1]


def _none_of(count: int) -> Array:
    """Return so many zeros that take no memory."""
    return np.broadcast_to(np.uint16(0), count)


def owner_of(array: Any) -> Any:  # Any: what may own memory, and a weak reference to it or the owner itself
    """Return what owns the memory of an array."""
    owner, inner = None, array
    while inner is not None:
        owner = inner
        inner = getattr(owner, "base", getattr(owner, "owner", None))  # of NumPy's arrays, and of views of our own
    try:
        return weakref.ref(owner)
    except TypeError:
        return owner
