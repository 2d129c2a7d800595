"""What a race is called, and what its report says: both sides with their lines, and what usually mends it."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.observers import AccessKind
from tilewright.backends.sim.places import name_place
from tilewright.backends.sim.storage import GlobalStorage, Storage
from tilewright.ir.core import Op

_PLAIN_WRITES = (AccessKind.STORE, AccessKind.COPY_WRITE, AccessKind.COPY_LAND)
_READS = (AccessKind.LOAD, AccessKind.COPY_READ)
_NOUNS = {
    AccessKind.LOAD: "load",
    AccessKind.STORE: "store",
    AccessKind.ATOMIC: "atomic update",
    AccessKind.COPY_READ: "asynchronous copy's read",
    AccessKind.COPY_WRITE: "asynchronous copy's write",
    AccessKind.COPY_LAND: "asynchronous copy's write",
    AccessKind.BARRIER: "use of the mbarrier",
}


@dataclass(frozen=True)
class Party:
    """One side of a race: the op and what it does, the number of the block in the grid and of the thread in it."""

    op: Op
    kind: AccessKind
    block: int
    thread: int

    @property
    def noun(self) -> str:
        return _NOUNS[self.kind]


@dataclass(frozen=True)
class Conflict:
    """Two accesses to one place without an order: the one that came second in the simulator, and the first.

    `under_way` says that the first is an asynchronous copy that nobody has waited for.
    """

    late: Party
    early: Party
    storage: Storage
    index: int
    under_way: bool
    count: int

    @property
    def same_thread(self) -> bool:
        return (self.late.block, self.late.thread) == (self.early.block, self.early.thread)

    @property
    def kind(self) -> str:
        """The kind of the finding."""
        if self.under_way and (self.same_thread or self.late.kind in _READS):
            return "missing-wait"
        if self.late.block != self.early.block and {self.late.kind, self.early.kind} <= set(_PLAIN_WRITES):
            return "overlapping-writes"
        return "race"


def report(machine: Machine, conflict: Conflict) -> None:
    """Hand the conflict to the collector."""
    late, early = conflict.late, conflict.early
    kind = conflict.kind
    if machine.collector.count_again(late.op, kind, conflict.storage.buffer.name, conflict.count, early.op):
        return
    place, coordinate = name_place(conflict.storage, conflict.index)
    block, thread = machine.block_coordinate(early.block - machine.first_block), machine.thread_coordinate(early.thread)
    notes = [f"the {early.noun}: block {block}, thread {thread}"]
    if early.op is not late.op and early.op.location is not None:
        notes += [f"  {line}" for line in early.op.location.excerpt()]
    fault = Fault(
        late.op,
        kind,
        f"{kind.replace('-', ' ')}: {late.noun} {_preposition(late.kind)} {place} {_meeting(conflict)}",
        machine.block_coordinate(late.block - machine.first_block),
        machine.thread_coordinate(late.thread),
        conflict.storage.buffer.name,
        conflict.index,
        coordinate,
        notes,
        _help(conflict, kind, machine.warp),
        conflict.count,
        other=early.op,
        role=f"the {late.noun}: ",
    )
    machine.collector.report(fault)


def _preposition(kind: AccessKind) -> str:
    return "to" if kind in (AccessKind.STORE, AccessKind.COPY_WRITE) else "of"


def _meeting(conflict: Conflict) -> str:
    """Return what the second access meets."""
    early = conflict.early
    if conflict.under_way:
        whose = "its own thread's" if conflict.same_thread else "another thread's"
        does = "has yet to read it" if early.kind is AccessKind.COPY_READ else "to it is under way"
        return f"while {whose} asynchronous copy {does}"
    article = "an" if early.noun[0] in "aeiou" else "a"
    if conflict.late.block != early.block:
        return f"meets {article} {early.noun} by another block, and nothing orders blocks"
    return f"meets {article} {early.noun} by another thread, and nothing orders the two"


def _help(conflict: Conflict, kind: str, warp: int) -> str:
    """Return what usually mends it."""
    late, early = conflict.late, conflict.early
    if conflict.under_way:
        if early.kind is AccessKind.COPY_READ:
            return "wait for the copy (tw.cp_async_wait) before its source changes"
        wait = "commit the copy's group and wait for it (tw.cp_async_commit, tw.cp_async_wait)"
        if kind == "missing-wait":
            return (
                f"{wait}" + ("" if conflict.same_thread else ", and let tw.sync_threads() follow") + " before this line"
            )
        return f"{wait} before another thread writes there, with tw.sync_threads() between"
    if late.block != early.block:
        return "let each block write elements of its own, use an atomic operation, or split the work into two launches"
    if late.op is early.op and early.kind in _PLAIN_WRITES:
        return "let each thread write elements of its own, let one thread write, or use an atomic operation"
    barrier = "tw.sync_threads()"
    if late.thread // warp == early.thread // warp and not isinstance(conflict.storage, GlobalStorage):
        barrier += ", or tw.sync_warp() where only threads of one warp meet,"
    if early.kind is AccessKind.COPY_LAND:
        return f"put {barrier} after the wait for the copy: a wait makes a thread's own copies visible to itself only"
    if early.kind in _READS:
        return f"put {barrier} after the last {early.noun} of what was there before"
    return f"put {barrier} between the two"
