"""What is said of a race: which two accesses meet, and what usually fixes it."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.backends.sim.bulk_races import help_with_bulk
from tilewright.backends.sim.findings import Fault, name_place
from tilewright.backends.sim.machine import AccessKind, Machine
from tilewright.backends.sim.ranked import RankedStorage
from tilewright.backends.sim.storage import GlobalStorage, Storage
from tilewright.ir.core import Op
from tilewright.ir.effects import Proxy

_NARROW = ("cta", "cluster")  # scopes that reach no other cluster, or no other block
_PLAIN_WRITES = (AccessKind.STORE, AccessKind.COPY_WRITE, AccessKind.COPY_LAND)
READS = (AccessKind.LOAD, AccessKind.COPY_READ, AccessKind.OPERAND_READ)
_NOUNS = {
    AccessKind.LOAD: "load",
    AccessKind.STORE: "store",
    AccessKind.ATOMIC: "atomic update",
    AccessKind.COPY_READ: "asynchronous copy's read",
    AccessKind.COPY_WRITE: "asynchronous copy's write",
    AccessKind.COPY_LAND: "asynchronous copy's write",
    AccessKind.OPERAND_READ: "wgmma's read",
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
        noun = _NOUNS[self.kind]
        return noun.replace("asynchronous", "bulk") if self.is_bulk else noun

    @property
    def is_bulk(self) -> bool:
        """Whether it is by the async proxy."""
        return self.op.effects.proxy is Proxy.ASYNC


@dataclass(frozen=True)
class Conflict:
    """Two accesses to one place without an order: the one that came second in the simulator, and the first.

    `under_way` says that the first is an asynchronous copy or product that has not been waited for, `unfenced` that the
    second is by the async proxy, which may not see the first although that comes before.
    """

    late: Party
    early: Party
    storage: Storage
    index: int
    under_way: bool
    count: int
    unfenced: bool = False
    cause: str = ""  # what is told in place of the usual help

    @property
    def same_thread(self) -> bool:
        return (self.late.block, self.late.thread) == (self.early.block, self.early.thread)

    @property
    def kind(self) -> str:
        """The kind of the finding."""
        if self.unfenced:
            return "missing-fence"
        if self.under_way and (self.same_thread or self.late.kind in READS):
            return "missing-wait"
        apart = self.late.block != self.early.block and _is_global(self.storage)
        if apart and {self.late.kind, self.early.kind} <= set(_PLAIN_WRITES):
            return "overlapping-writes"
        return "race"


def _is_global(storage: Storage) -> bool:
    return isinstance(storage, (GlobalStorage, RankedStorage))


def _ranks(conflict: Conflict, machine: Machine) -> tuple[int | None, int | None]:
    """Return the ranks of the second access and of the first."""
    late, early = (party.block - machine.first_block for party in (conflict.late, conflict.early))
    return machine.rank_of(late), machine.rank_of(early)


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
        f"{kind.replace('-', ' ')}: {late.noun} {_preposition(late.kind)} {place} {_meeting(conflict, machine)}",
        machine.block_coordinate(late.block - machine.first_block),
        machine.thread_coordinate(late.thread),
        conflict.storage.buffer.name,
        conflict.index,
        coordinate,
        notes,
        conflict.cause or _help(conflict, kind, machine),
        conflict.count,
        other=early.op,
        role=f"the {late.noun}: ",
    )
    machine.collector.report(fault)


def _preposition(kind: AccessKind) -> str:
    return "to" if kind in (AccessKind.STORE, AccessKind.COPY_WRITE) else "of"


def _meeting(conflict: Conflict, machine: Machine) -> str:
    """Return what the second access meets."""
    early = conflict.early
    if conflict.unfenced:
        other = "another thread" if conflict.late.block == early.block else "another block"
        whose = "its own thread" if conflict.same_thread else other
        return f"meets a {early.noun} by {whose}, which no proxy fence follows"
    if conflict.under_way:
        whose = "its own thread's" if conflict.same_thread else "another thread's"
        if early.kind is AccessKind.OPERAND_READ:
            return f"while {whose} wgmma has yet to read it"
        does = "has yet to read it" if early.kind is AccessKind.COPY_READ else "to it is under way"
        return f"while {whose} {'bulk' if early.is_bulk else 'asynchronous'} copy {does}"
    article = "an" if early.noun[0] in "aeiou" else "a"
    if conflict.late.block != early.block:
        late, rank = _ranks(conflict, machine)
        if late != rank:
            return f"meets {article} {early.noun} by rank {rank}, and nothing orders the two"
        which = "the two" if machine.orders or not _is_global(conflict.storage) else "blocks"
        return f"meets {article} {early.noun} by another block, and nothing orders {which}"
    return f"meets {article} {early.noun} by another thread, and nothing orders the two"


def _help(conflict: Conflict, kind: str, machine: Machine) -> str:
    """Return what usually fixes it."""
    warp = machine.warp
    late, early = conflict.late, conflict.early
    if conflict.unfenced:
        space = '"global"' if _is_global(conflict.storage) else ""
        return (
            f"let the threads that write there run tw.fence_proxy_async({space}) behind their writes, before the "
            "barrier, arrival or release that tells this one"
        )
    bulk = help_with_bulk(early.op, early.kind, under_way=conflict.under_way)
    if bulk is not None:
        return bulk
    if conflict.under_way:
        if early.kind is AccessKind.OPERAND_READ:
            wait = (
                "commit the product and wait for its group (tw.wgmma_commit, tw.wgmma_wait) before its operand changes"
            )
            return wait if conflict.same_thread else f"{wait}, and let a barrier follow"
        if early.kind is AccessKind.COPY_READ:
            return "wait for the copy (tw.cp_async_wait) before its source changes"
        wait = "commit the copy's group and wait for it (tw.cp_async_commit, tw.cp_async_wait)"
        if kind == "missing-wait":
            return (
                f"{wait}" + ("" if conflict.same_thread else ", and let tw.sync_threads() follow") + " before this line"
            )
        return f"{wait} before another thread writes there, with tw.sync_threads() between"
    ranks = _ranks(conflict, machine)
    if ranks[0] != ranks[1]:
        return _help_between_ranks(conflict)
    if late.block != early.block and not _is_global(conflict.storage):
        if "cta" in {e.effects.scope for e in (late.op, early.op)}:
            return 'let the scope reach the blocks of the cluster: scope="cluster"'
        return "let the blocks of the cluster meet between the two: tw.cluster_sync(), or an mbarrier of one of them"
    if late.block != early.block and machine.orders:
        if {e.effects.scope for e in (late.op, early.op)} & {*_NARROW}:
            clusters = {party.block // machine.cluster_size for party in (late, early)}
            return f'let the scope reach other blocks: scope="{"cluster" if len(clusters) == 1 else "gpu"}"'
        return (
            "release what was done before and acquire it: a barrier of the block, then in one thread tw.threadfence() "
            'or sem="release" on a flag, and on the other side sem="acquire" or tw.threadfence(), then a barrier'
        )
    if late.block != early.block:
        return "let each block write elements of its own, use an atomic operation, or split the work into two launches"
    if late.op is early.op and early.kind in _PLAIN_WRITES:
        return "let each thread write elements of its own, let one thread write, or use an atomic operation"
    barrier = "tw.sync_threads()"
    if late.thread // warp == early.thread // warp and not isinstance(conflict.storage, GlobalStorage):
        barrier += ", or tw.sync_warp() where only threads of one warp meet,"
    elif machine.has_roles:
        barrier += ", or an mbarrier or named barrier between warps of different branches,"
    if early.kind is AccessKind.COPY_LAND:
        return f"put {barrier} after the wait for the copy: a wait makes a thread's own copies visible to itself only"
    if early.kind in READS:
        return f"put {barrier} after the last {early.noun} of what was there before"
    return f"put {barrier} between the two"


def _help_between_ranks(conflict: Conflict) -> str:
    """Return what orders two ranks."""
    if {e.effects.scope for e in (conflict.late.op, conflict.early.op)} & {*_NARROW, "gpu"}:
        return 'let the scope reach other GPUs: scope="sys"'
    return (
        "let the rank that comes first tell the other: a barrier of the block, then in one thread "
        'tw.store(flag, i, value, sem="release", scope="sys") to a flag that the other one reads by '
        'tw.load(flag, i, sem="acquire", scope="sys") until it is there, then a barrier'
    )
