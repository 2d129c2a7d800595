"""Clusters: which block of its cluster a thread is in, and the barrier at which all threads of a cluster meet.

    ClusterRegister    %cluster_ctarank, %cluster_ctaid, %clusterid
    ClusterArrive      barrier.cluster.arrive
    ClusterWait        barrier.cluster.wait

Source: PTX ISA, "barrier.cluster", "%cluster_ctarank" and its like; CUTLASS, include/cute/arch/cluster_sm90.hpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.arguments import shown
from tilewright.backends.cpp.expression import Expression, call
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.agents import Agent, Pause, Scheduler, Waiting
from tilewright.backends.sim.values import Array, Frame, Lanes
from tilewright.dtypes import int32
from tilewright.errors import InternalError, LanguageError, MissingAttributeError
from tilewright.ir.effects import Effects, Order, Waits, attribute
from tilewright.ir.facts import Facts
from tilewright.ir.instruction import Instruction
from tilewright.trace.scalar import Scalar
from tilewright.trace.threads import block_idx
from tilewright.trace.tracer import Tracer, current, demand_clusters

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

_ON_AMD = "cluster of blocks", "let blocks work by themselves, or split the kernel into two launches"


# --- what a kernel says ----------------------------------------------------------------------------------


class ClusterIndex:
    """Three numbers of clusters, `.x`, `.y` and `.z`; what the launch fixes is a Python int."""

    def __init__(self, name: str, doc: str) -> None:
        self._name = name
        self.__doc__ = doc

    @property
    def x(self) -> Any:  # Any: an integer of host or device
        return self._axis("x")

    @property
    def y(self) -> Any:
        return self._axis("y")

    @property
    def z(self) -> Any:
        return self._axis("z")

    def _axis(self, axis: str) -> Any:
        tracer = current(f"tw.{self._name}.{axis}")
        extent = tracer.cluster_shape["xyz".index(axis)]
        if self._name == "cluster_dim":
            return extent
        if extent == 1:
            return 0 if self._name == "block_idx_in_cluster" else getattr(block_idx, axis)
        if self._name == "block_idx_in_cluster":
            return Scalar(tracer.pure(ClusterRegister(f"cluster_ctaid.{axis}", extent), int32))
        return Scalar(tracer.pure(ClusterRegister(f"clusterid.{axis}", 2**31 // extent), int32))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise MissingAttributeError(f"tw.{self._name} has no {name!r}", help="its axes are x, y and z")

    def __repr__(self) -> str:
        return f"tw.{self._name}"


cluster_dim: ClusterIndex = ClusterIndex(
    "cluster_dim", "The number of blocks of a cluster along each axis (CUDA clusterDim)."
)
cluster_idx: ClusterIndex = ClusterIndex(
    "cluster_idx", "The cluster's index in the grid of clusters (CUDA clusterIdx)."
)
block_idx_in_cluster: ClusterIndex = ClusterIndex(
    "block_idx_in_cluster", "The block's index in its cluster (PTX %cluster_ctaid)."
)


def block_rank_in_cluster() -> Any:
    """Return the number of the block in its cluster, x fastest, from 0 (PTX %cluster_ctarank).

    In a kernel that is launched without clusters it is the int 0.
    """
    tracer = current("tw.block_rank_in_cluster")
    x, y, z = tracer.cluster_shape
    if x * y * z == 1:
        return 0
    return Scalar(tracer.pure(ClusterRegister("cluster_ctarank", x * y * z), int32))


def cluster_sync() -> None:
    """Wait for all threads of all blocks of the cluster; their memory accesses are then visible.

    It is `tw.cluster_arrive()` and then `tw.cluster_wait()`. A block may access the shared memory of another one only
    after the first such barrier, when all blocks have started, and may not exit before the others' accesses are done:

    >>> import numpy as np
    >>> import tilewright as tw
    >>> @tw.kernel(cluster=2)
    ... def swap(out, x):
    ...     mine, i = tw.shared(tw.int32, 32), tw.thread_idx.x
    ...     mine[i] = x[32 * tw.block_idx.x + i]
    ...     tw.cluster_sync()  # both have written
    ...     out[32 * tw.block_idx.x + i] = mine.at_rank(1 - tw.block_rank_in_cluster())[i]
    ...     tw.cluster_sync()  # both have read: they may leave
    >>> out = np.zeros(64, np.int32)
    >>> swap[2, 32](out, np.arange(64, dtype=np.int32))
    >>> out[0].item(), out[32].item()
    (32, 0)

    The barrier does not wait for threads that have exited. Needs sm_90. Source: PTX ISA, barrier.cluster.
    """
    tracer = _demand("tw.cluster_sync")
    tracer.emit(ClusterArrive(False))
    tracer.emit(ClusterWait())


def cluster_arrive(*, relaxed: bool = False) -> None:
    """Arrive at the barrier of the cluster without waiting; threads that wait see what this thread did before.

    Each thread waits (`tw.cluster_wait`) before it arrives again. With `relaxed` the arrival orders no memory, and
    needs no fence: threads that wait know that this block has started, and see the mbarriers that it initialised, which
    have their own fence. That is enough at the start of a kernel:

    >>> import numpy as np
    >>> import tilewright as tw
    >>> @tw.kernel(cluster=2)
    ... def count(out):
    ...     told = tw.mbarrier(64)
    ...     tw.cluster_arrive(relaxed=True)  # the mbarrier is made
    ...     tw.cluster_wait()
    ...     for rank in tw.static_range(2):
    ...         told.at_rank(rank).arrive()
    ...     told.wait(0)
    ...     out[32 * tw.block_idx.x + tw.thread_idx.x] = 1
    >>> out = np.zeros(64, np.int32)
    >>> count[2, 32](out)
    >>> int(out.sum())
    64

    Source: PTX ISA, barrier.cluster, fence.mbarrier_init; CUTLASS, cluster_arrive_relaxed.
    """
    given: object = relaxed
    if not isinstance(given, bool):
        raise LanguageError(f"tw.cluster_arrive: relaxed is True or False, not {shown(given)}")
    _demand("tw.cluster_arrive").emit(ClusterArrive(given))


def cluster_wait() -> None:
    """Wait until all threads of the cluster have arrived, this one among them (`tw.cluster_arrive`)."""
    _demand("tw.cluster_wait").emit(ClusterWait())


def _demand(what: str) -> Tracer:
    tracer = current(what)
    demand_clusters(tracer, what)
    return tracer


# --- the ops ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class ClusterRegister(Instruction):
    """result: int32 = the special register of PTX of that name, below `extent`."""

    name: str = attribute()
    extent: int = attribute()

    RESULTS: ClassVar[int | None] = 1
    STANDS_IN_EXPRESSIONS: ClassVar[bool] = True
    COUNTED: ClassVar[str | None] = "integer"
    RESERVED: ClassVar[str] = r"cluster_ctarank|cluster_ctaid_\w|clusterid_\w"
    ON_AMD: ClassVar[tuple[str, str] | None] = _ON_AMD

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.result.type is int32, "a number of a block is int32")

    def facts(self) -> Facts | None:
        return Facts(0, self.extent - 1)

    def simulate(self, compiler: Compiler) -> Step:
        machine, name, result = compiler.machine, self.name, compiler.slot(self.result)

        def run(frame: Frame) -> None:
            frame.values[result] = machine.special[name]

        return run

    def cuda(self, printer: Printer) -> Expression:
        _demand_target(printer, self)
        function = self.name.replace(".", "_")
        printer.prelude.need(f"""\
{FUNCTION} int {function}() {{
    int number;
    asm("mov.u32 %0, %%{self.name};" : "=r"(number));
    return number;
}}""")
        return call(function, (), int32)


@dataclass(eq=False)
class ClusterArrive(Instruction):
    """Arrive at the barrier of the cluster, and release what the thread did before, unless `relaxed`."""

    relaxed: bool = attribute()

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, order=Order.RELEASE)
    COUNTED: ClassVar[str | None] = "cluster arrive"
    RESERVED: ClassVar[str] = "cluster_arrive|cluster_arrive_relaxed|cluster_wait"
    ON_AMD: ClassVar[tuple[str, str] | None] = _ON_AMD

    @property
    def effects(self) -> Effects:
        return replace(self.EFFECTS, order=Order.NONE) if self.relaxed else self.EFFECTS

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        """Expect nothing: it has no operands."""

    def simulate(self, compiler: Compiler) -> Step:
        barriers = compiler.cluster_barriers

        def run(frame: Frame) -> None:
            barriers.arrive(self, frame.mask, relaxed=self.relaxed)

        return run

    def cuda(self, printer: Printer) -> None:
        _demand_target(printer, self)
        printer.prelude.need(_ARRIVE[self.relaxed])
        printer.statement("cluster_arrive_relaxed();" if self.relaxed else "cluster_arrive();", self)


@dataclass(eq=False)
class ClusterWait(Instruction):
    """Wait until all threads of the cluster that have not left have arrived; what they released is then visible."""

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, order=Order.ACQUIRE, waits=Waits.SOME)
    COUNTED: ClassVar[str | None] = "cluster wait"
    RESERVED: ClassVar[str] = ClusterArrive.RESERVED
    ON_AMD: ClassVar[tuple[str, str] | None] = _ON_AMD

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        """Expect nothing: it has no operands."""

    def simulate(self, compiler: Compiler) -> Step:
        raise InternalError("a wait at the barrier of a cluster outside of agents", location=self.location)

    def pause(self, compiler: Compiler, live: Sequence[int]) -> Pause:
        return _ClusterWait(self, compiler, live)

    def cuda(self, printer: Printer) -> None:
        _demand_target(printer, self)
        printer.prelude.need(_WAIT)
        printer.statement("cluster_wait();", self)


class _ClusterWait(Pause):
    """A wait at the barrier of the cluster, for the phase in which the thread has arrived."""

    op: ClusterWait

    def __init__(self, op: ClusterWait, compiler: Compiler, live: Sequence[int]) -> None:
        super().__init__(live)
        self.op, self._barriers, self._machine = op, compiler.cluster_barriers, compiler.machine

    def begin(self, frame: Frame) -> None:
        self._barriers.begin_wait(self.op, frame.mask)

    def ready(self, agent: Agent, scheduler: Scheduler) -> Lanes:
        return self._barriers.ready()

    def passed(self, agent: Agent) -> None:
        self._barriers.passed(self.op, agent.frame.mask)

    def waiting(self, frame: Frame, row: int, threads: Array) -> list[Waiting]:
        absent = self._barriers.missing(row)
        what = " and ".join(f"{count} threads of its block {rank}" for rank, count in absent)
        return [Waiting(self.op, threads, f"all threads of the cluster: {what} have not arrived")]


# --- how they are written --------------------------------------------------------------------------------


def _demand_target(printer: Printer, op: Instruction) -> None:
    if not printer.arch.has_clusters:
        raise printer.refuse(op, f"clusters need sm_90 or later, and the target is {printer.arch}")


_NO_FENCE = "// Arrives without a fence: whoever waits knows that this block has begun, and what mbarriers it has.\n"
_ARRIVE = {
    relaxed: f"""\
{_NO_FENCE if relaxed else ""}\
{FUNCTION} void cluster_arrive{"_relaxed" if relaxed else ""}() {{
    asm volatile("barrier.cluster.arrive.{"relaxed" if relaxed else "release"};" ::: "memory");
}}"""
    for relaxed in (False, True)
}

_WAIT = f"""\
{FUNCTION} void cluster_wait() {{
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}}"""
