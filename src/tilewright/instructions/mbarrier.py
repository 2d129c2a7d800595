"""mbarrier: barriers in shared memory that threads arrive at and wait for, for warps with different work.

    MbarrierInit       mbarrier.init                 MbarrierWait    mbarrier.try_wait.parity, in a loop
    MbarrierArrive     mbarrier.arrive               MbarrierTest    mbarrier.test_wait.parity
    MbarrierCopies     cp.async.mbarrier.arrive.noinc
    MbarrierExpect     mbarrier.arrive.expect_tx, mbarrier.expect_tx

Source: PTX ISA, "mbarrier", "mbarrier.expect_tx operation", "cp.async.mbarrier.arrive".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.arguments import shown
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import Expression, call
from tilewright.backends.cpp.memory import address
from tilewright.backends.sim.agents import Agent, Pause, Poll, Scheduler, Waiting, groups_of
from tilewright.backends.sim.values import Array, Frame, Lanes, both
from tilewright.dtypes import bool_, int32, uint64
from tilewright.errors import InternalError, LanguageError
from tilewright.instructions.mbarrier_text import (
    ARRIVE,
    ARRIVE_AT,
    COPIES,
    EXPECT,
    WAIT,
    arrive_many_function,
    init_function,
    poll_function,
)
from tilewright.ir.core import Buffer, Space, Value
from tilewright.ir.effects import Completion, Effects, Order, Waits, attribute, operand, updates, writes
from tilewright.ir.evaluate import facts_of
from tilewright.ir.instruction import Instruction, Meeting
from tilewright.trace.carry import DeviceObject
from tilewright.trace.control import branch
from tilewright.trace.engine import allocate
from tilewright.trace.scalar import Scalar, as_scalar, narrowed
from tilewright.trace.threads import linear_thread
from tilewright.trace.tracer import current, demand_clusters

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

_MOST_ARRIVALS = 2**20 - 1
_BYTES = 8


# --- what a kernel says ----------------------------------------------------------------------------------


class MBarrier(DeviceObject):
    """`stages` barriers in shared memory, each of whose phases is over after `count` arrivals.

    A phase ends automatically with its last arrival, and the next one starts. Phase n has parity n % 2, and
    `wait(parity)` returns when the phase of that parity is over::

        arrivals  0 1 ... count            0 1 ... count             0
        phase     0 (parity 0)          -> 1 (parity 1)           -> 2 (parity 0)
        wait(0)   waits                    passes                    waits
        wait(1)   passes                   waits                     passes

    So iteration k over a ring of stages waits for `full[k % stages]` with parity `k // stages % 2`, and the producer
    waits for `empty[k % stages]` with the opposite parity, which passes at once for the first `stages` tiles.

    >>> import numpy as np
    >>> import tilewright as tw
    >>> @tw.kernel
    ... def total(out, x):
    ...     there = tw.mbarrier(1)
    ...     tw.sync_threads()
    ...     if tw.warp_id() == 0:
    ...         if tw.elect_one():
    ...             out[0] = x[0] + x[1]
    ...             there.arrive()
    ...     else:
    ...         there.wait(0)
    ...         out[tw.thread_idx.x] = 2 * out[0]
    >>> out = np.zeros(64, np.int32)
    >>> total[1, 64](out, np.array([3, 4], np.int32))
    >>> out[0].item(), out[63].item()
    (7, 14)

    The constructor allocates shared memory and lets one thread initialise it; call `tw.sync_threads()` between that and
    the first use. After `wait`, a thread sees everything that the arriving threads wrote before they arrived.

    Raises `LanguageError` for a count outside of 1 to 2**20 - 1. Needs sm_80. Source: PTX ISA, mbarrier.
    """

    def __init__(self, count: Any, stages: int = 1) -> None:
        given: object = stages
        if not isinstance(given, int) or given < 1:
            raise LanguageError(
                f"tw.mbarrier has at least one stage, and the number is known while tracing, not {shown(given)}"
            )
        if isinstance(count, int) and not 1 <= count <= _MOST_ARRIVALS:
            raise LanguageError(f"an mbarrier counts 1 to {_MOST_ARRIVALS} arrivals a phase, not {shown(count)}")
        self.stages = given
        self._engine = allocate(Space.SHARED, uint64, given, _BYTES)
        self.stage: Any = None  # of one stage: which
        self.rank: Any = None  # of one in another block of the cluster: which block
        self._initialise(as_scalar(count, int32))

    def _initialise(self, count: Scalar) -> None:
        """Let the first thread of the block initialise every stage."""
        tracer = current("tw.mbarrier")

        def initialise() -> None:
            for stage in range(self.stages):
                tracer.emit(MbarrierInit(self.buffer, as_scalar(stage, int32).value, count.value))

        branch(as_scalar(linear_thread(), int32) == 0, initialise)

    @property
    def buffer(self) -> Buffer:
        """The shared memory that holds the stages."""
        return self._engine.buffer

    def __getitem__(self, stage: Any) -> MBarrier:
        """Return the barrier of one stage."""
        if isinstance(stage, int) and not 0 <= stage < self.stages:
            raise LanguageError(f"stage {stage} of an mbarrier with {self.stages} stages")
        if self.stage is not None:
            raise LanguageError("this is the mbarrier of one stage already", help="index the one that has all stages")
        return self.at(stage)

    def at(self, stage: Any) -> MBarrier:
        """Return the barrier at an element of the buffer."""
        one = object.__new__(MBarrier)
        one.stages, one._engine, one.stage, one.rank = 1, self._engine, stage, None
        return one

    def at_rank(self, rank: Any) -> MBarrier:
        """Return the mbarrier of the block `rank` of the cluster, for arrivals: `empty[stage].at_rank(0).arrive()`.

        A thread that waits for it there sees what this thread did before. Only the block that owns the mbarrier waits
        for it, and such a wait acquires from the whole cluster. Source: PTX ISA, mapa, mbarrier.arrive.shared::cluster.
        """
        tracer, blocks = current("mbarrier.at_rank"), math.prod(current("mbarrier.at_rank").cluster_shape)
        demand_clusters(tracer, "mbarrier.at_rank")
        if isinstance(rank, int) and not 0 <= rank < blocks:
            raise LanguageError(
                f"mbarrier.at_rank: there is no block {rank} in a cluster of {blocks}",
                help="launch with clusters: @tw.kernel(cluster=2), or kernel.configure(cluster=2)",
            )
        one = self.at(self.element("at_rank"))
        one.rank = narrowed(rank)
        return one

    def leaf(self) -> Scalar | None:
        """Return which stage this is, for loops and branches that carry the barrier of one stage."""
        return None if self.stage is None else as_scalar(self.stage)

    def with_leaf(self, leaf: Scalar) -> MBarrier:
        """Return the barrier of another stage."""
        return self.at(leaf)

    def memory(self) -> Buffer:
        """Return the shared memory of the barrier, which takes the name of the variable."""
        return self.buffer

    def arrive(self, count: Any = 1, *, relaxed: bool = False) -> None:
        """Arrive `count` times in each thread that executes this (PTX mbarrier.arrive).

        With `relaxed` an arrival at the mbarrier of another block (`at_rank`) orders only what bulk copies and wgmma
        have done, not the thread's own loads and stores: enough to release a stage, and it saves a fence.
        """
        if relaxed and self.rank is None:
            raise LanguageError(
                "arrive: an arrival at the mbarrier of another block can be relaxed; one in the block costs no fence",
                help="leave relaxed= out, or write barrier.at_rank(rank).arrive(relaxed=True)",
            )
        if isinstance(count, int) and not 1 <= count <= _MOST_ARRIVALS:
            raise LanguageError(f"a thread arrives 1 to {_MOST_ARRIVALS} times at once, not {count}")
        tracer, index, number = current("mbarrier.arrive"), self.element("arrive"), narrowed(count)
        if self.rank is not None:
            tracer.emit(MbarrierArriveAt(self.buffer, index.value, number.value, self.rank.value, relaxed))
            return
        tracer.emit(MbarrierArrive(self.buffer, index.value, number.value))

    def arrive_expect_tx(self, bytes: Any) -> None:
        """Announce bytes of bulk copies to the phase, and arrive (PTX mbarrier.arrive.expect_tx).

        The phase is over when all its arrivals and all announced bytes have come. A copy of a tile counts the bytes of
        the whole tile, with those outside of the tensor. It may start before or after this, in that phase. Needs sm_90.
        """
        self._expect(bytes, "arrive_expect_tx", arrives=True)

    def expect_tx(self, bytes: Any) -> None:
        """Announce bytes of bulk copies to the phase, without arriving (PTX mbarrier.expect_tx)."""
        self._expect(bytes, "expect_tx", arrives=False)

    def _expect(self, bytes: Any, what: str, *, arrives: bool) -> None:
        tracer = current(f"mbarrier.{what}")
        if tracer.arch.is_amd or tracer.arch.number < 90:
            raise LanguageError(
                f"mbarrier.{what}: {tracer.arch} has no bulk copies, whose bytes it counts; they need sm_90 or later",
                help="copy by cp.async, and arrive with cp_async_arrive()",
            )
        if isinstance(bytes, int) and not 0 <= bytes <= _MOST_ARRIVALS:
            raise LanguageError(
                f"a phase of an mbarrier counts 0 to {_MOST_ARRIVALS} bytes, not {bytes}",
                help="copy less in a phase, or let several mbarriers share the bytes",
            )
        index, size = self.element(what), narrowed(bytes)
        tracer.emit(MbarrierExpect(self.buffer, arrives, index.value, size.value))

    def cp_async_arrive(self) -> None:
        """Arrive when the thread's asynchronous copies issued so far have completed, without waiting for them.

        The arrival is one of the phase's `count`, in each thread (PTX cp.async.mbarrier.arrive.noinc).
        """
        index = self.element("cp_async_arrive")
        current("mbarrier.cp_async_arrive").emit(MbarrierCopies(self.buffer, index.value))

    def wait(self, parity: Any) -> None:
        """Wait until the phase of this parity, 0 or 1, is over (PTX mbarrier.try_wait.parity in a loop)."""
        index, awaited = self.element("wait"), _parity(parity)
        current("mbarrier.wait").emit(MbarrierWait(self.buffer, index.value, awaited.value))

    def test(self, parity: Any) -> Scalar:
        """Return whether the phase of this parity, 0 or 1, is over (PTX mbarrier.test_wait.parity)."""
        index, tested = self.element("test"), _parity(parity)
        return Scalar(current("mbarrier.test").emit(MbarrierTest(self.buffer, index.value, tested.value), bool_)[0])

    def element(self, what: str) -> Scalar:
        """Return which element of the buffer it is; `what` is done to it."""
        if self.rank is not None and what != "arrive":
            raise LanguageError(
                f"{what} of an mbarrier of another block: threads arrive there, and wait in their own block",
                help="write barrier.at_rank(rank).arrive(), and barrier.wait(parity) in that block",
            )
        if self.stage is None and self.stages > 1:
            raise LanguageError(
                f"{what} of an mbarrier with {self.stages} stages does not say of which",
                help=f"write {self.buffer.name or 'barrier'}[stage].{what}(...)",
            )
        return narrowed(0 if self.stage is None else self.stage)

    def __repr__(self) -> str:
        return f"mbarrier({self.buffer.name or self.stages})"


def _parity(given: Any) -> Scalar:
    if isinstance(given, (int, bool)) and given not in (0, 1):
        raise LanguageError(
            f"the parity of a phase is 0 or 1, not {given}",
            help="phase n has parity n % 2: a ring of stages waits in round k with parity k // stages % 2",
        )
    return narrowed(given)


# --- the ops ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Mbarrier(Instruction):
    """An op on the mbarrier buffer[index]."""

    RESERVED: ClassVar[str] = r"mbarrier_\w+|cp_async_mbarrier_arrive"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("mbarrier", "let the whole block meet: tw.sync_threads()")

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        (buffer,) = self.buffers
        placed = buffer.space is Space.SHARED and buffer.dtype is uint64
        expect(placed, f"{buffer.name} does not hold mbarriers: they are uint64 in shared memory")
        expect(all(v.type is int32 for v in self.operands), "index, count and parity are int32")

    def meet(self, brings: Value | int = 0, takes: Value | None = None, **more: bool) -> Meeting:
        """Return what is done at the barriers of the buffer."""
        (buffer,) = self.buffers
        given = brings if isinstance(brings, int) else facts_of(brings).constant
        taken = None if takes is None else facts_of(takes).constant
        is_known = given is not None and (taken is not None or takes is None)
        return Meeting(buffer, f"mbarrier {buffer.name}", taken, given or 0, is_known=is_known, **more)

    def place(self, printer: Printer) -> str:
        """Return the address in C++, of a target that has mbarriers."""
        if not printer.arch.has_mbarrier:
            raise printer.refuse(self, f"an mbarrier needs sm_80 or later, and the target is {printer.arch}")
        (use,) = self.uses
        assert use.index is not None
        return address(printer, use.buffer, use.index).text


@dataclass(eq=False)
class MbarrierInit(_Mbarrier):
    """Make buffer[index] an mbarrier in phase 0, each of whose phases completes after `count` arrivals."""

    buffer: Buffer = writes("index", lasting=True)
    index: Value = operand()
    count: Value = operand()

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, fences_itself=True)
    COUNTED: ClassVar[str | None] = "mbarrier init"

    def meeting(self) -> Meeting:
        return self.meet(takes=self.count)

    def simulate(self, compiler: Compiler) -> Step:
        index, count = compiler.slots((self.index, self.count))
        mbarriers = compiler.mbarriers(self.buffer)

        def run(frame: Frame) -> None:
            mbarriers.initialise(self, frame.values[index], frame.values[count], frame.mask)

        return run

    def cuda(self, printer: Printer) -> None:
        place = self.place(printer)
        printer.prelude.need(init_function(has_clusters=printer.arch.number >= 90))
        printer.statement(f"mbarrier_init({place}, {exact(printer, self.count).text});", self)


@dataclass(eq=False)
class MbarrierArrive(_Mbarrier):
    """Count `count` arrivals of each active thread at the mbarrier buffer[index]."""

    buffer: Buffer = updates("index")
    index: Value = operand()
    count: Value = operand()

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, order=Order.RELEASE)
    COUNTED: ClassVar[str | None] = "mbarrier arrive"

    def meeting(self) -> Meeting:
        return self.meet(self.count)

    def simulate(self, compiler: Compiler) -> Step:
        index, count = compiler.slots((self.index, self.count))
        mbarriers = compiler.mbarriers(self.buffer)

        def run(frame: Frame) -> None:
            mbarriers.arrive(self, frame.values[index], frame.values[count], frame.mask)

        return run

    def cuda(self, printer: Printer) -> None:
        place, count = self.place(printer), exact(printer, self.count).text
        if count == "1":
            printer.prelude.need(ARRIVE)
            printer.statement(f"mbarrier_arrive({place});", self)
        else:
            printer.prelude.need(arrive_many_function(has_count=printer.arch.number >= 90))
            printer.statement(f"mbarrier_arrive({place}, {count});", self)


@dataclass(eq=False)
class MbarrierArriveAt(MbarrierArrive):
    """Count `count` arrivals at the mbarrier buffer[index] of the block `rank` of the cluster."""

    rank: Value = operand()
    relaxed: bool = attribute()

    def meeting(self) -> Meeting:
        return replace(self.meet(self.count), is_known=False)  # any block of the cluster may arrive

    def simulate(self, compiler: Compiler) -> Step:
        index, count, rank = compiler.slots((self.index, self.count, self.rank))
        mbarriers = compiler.mbarriers(self.buffer)

        def run(frame: Frame) -> None:
            values = frame.values
            mbarriers.arrive(self, values[index], values[count], frame.mask, values[rank], relaxed=self.relaxed)

        return run

    def cuda(self, printer: Printer) -> None:
        place, count, rank = self.place(printer), exact(printer, self.count).text, exact(printer, self.rank).text
        printer.prelude.need(ARRIVE_AT[self.relaxed])
        name = "mbarrier_arrive_at_relaxed" if self.relaxed else "mbarrier_arrive_at"
        printer.statement(f"{name}({place}, {rank}, {count});", self)


@dataclass(eq=False)
class MbarrierExpect(_Mbarrier):
    """Announce `bytes` to the phase under way of the mbarrier buffer[index], of each active thread; then arrive."""

    buffer: Buffer = updates("index")
    arrives: bool = attribute()
    index: Value = operand()
    bytes: Value = operand()

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, order=Order.RELEASE)
    COUNTED: ClassVar[str | None] = "mbarrier arrive"

    @property
    def effects(self) -> Effects:
        return self.EFFECTS if self.arrives else replace(self.EFFECTS, order=Order.NONE)

    def meeting(self) -> Meeting:
        return self.meet(int(self.arrives), announces=facts_of(self.bytes).low > 0)

    def simulate(self, compiler: Compiler) -> Step:
        index, size = compiler.slots((self.index, self.bytes))
        mbarriers = compiler.mbarriers(self.buffer)

        def run(frame: Frame) -> None:
            mbarriers.expect(self, frame.values[index], frame.values[size], frame.mask)
            if self.arrives:
                mbarriers.arrive(self, frame.values[index], np.int32(1), frame.mask)

        return run

    def cuda(self, printer: Printer) -> None:
        place = self.place(printer)
        if printer.arch.number < 90:
            raise printer.refuse(self, f"bytes of bulk copies need sm_90 or later, and the target is {printer.arch}")
        name = "mbarrier_arrive_expect_tx" if self.arrives else "mbarrier_expect_tx"
        printer.prelude.need(EXPECT[self.arrives])
        printer.statement(f"{name}({place}, {exact(printer, self.bytes).text});", self)


@dataclass(eq=False)
class MbarrierCopies(_Mbarrier):
    """Arrive once at the mbarrier buffer[index] when the thread's asynchronous copies issued so far have landed."""

    buffer: Buffer = updates("index")
    index: Value = operand()

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, order=Order.RELEASE, follows=Completion.GROUP)
    COUNTED: ClassVar[str | None] = "mbarrier copies"

    def meeting(self) -> Meeting:
        return self.meet(1)

    def simulate(self, compiler: Compiler) -> Step:
        index, mbarriers = compiler.slot(self.index), compiler.mbarriers(self.buffer)

        def run(frame: Frame) -> None:
            mbarriers.defer_arrival(self, frame.values[index], frame.mask)

        return run

    def cuda(self, printer: Printer) -> None:
        place = self.place(printer)
        printer.prelude.need(COPIES)
        printer.statement(f"cp_async_mbarrier_arrive({place});", self)


@dataclass(eq=False)
class MbarrierWait(_Mbarrier):
    """Wait until the phase of that `parity`, the current or the one before, of the mbarrier buffer[index] is over.

    Phases count from 0, so that the wait for phase n has parity n % 2. On a new barrier parity 1 passes at once.
    """

    buffer: Buffer = updates("index")
    index: Value = operand()
    parity: Value = operand()

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, order=Order.ACQUIRE, waits=Waits.SOME)
    COUNTED: ClassVar[str | None] = "mbarrier wait"

    def meeting(self) -> Meeting:
        return self.meet(waits=facts_of(self.parity).constant == 0)

    def simulate(self, compiler: Compiler) -> Step:
        raise InternalError("a wait at an mbarrier outside of agents", location=self.location)

    def pause(self, compiler: Compiler, live: Sequence[int]) -> Pause:
        return _Wait(self, compiler, live)

    def cuda(self, printer: Printer) -> None:
        place, sleeps = self.place(printer), printer.arch.number >= 90
        scope = _scope_of_waits(self.buffer, printer)
        name = f"mbarrier_{'try' if sleeps else 'test'}{scope}"
        printer.prelude.need(poll_function(may_sleep=sleeps, scope=scope))
        wait = WAIT.replace("mbarrier_test", name).replace("mbarrier_wait", f"mbarrier_wait{scope}")
        printer.prelude.need(wait)
        printer.statement(f"mbarrier_wait{scope}({place}, {exact(printer, self.parity).text});", self)


@dataclass(eq=False)
class MbarrierTest(_Mbarrier):
    """result: bool = whether a wait for that parity would pass now."""

    buffer: Buffer = updates("index")
    index: Value = operand()
    parity: Value = operand()

    RESULTS: ClassVar[int | None] = 1
    EFFECTS: ClassVar[Effects] = Effects(removable=False, order=Order.ACQUIRE, waits=Waits.SOME)
    COUNTED: ClassVar[str | None] = "mbarrier test"

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        super().verify(expect)
        expect(self.result.type is bool_, "a test gives bool")

    def simulate(self, compiler: Compiler) -> Step:
        raise InternalError("a test of an mbarrier outside of agents", location=self.location)

    def pause(self, compiler: Compiler, live: Sequence[int]) -> Pause:
        return _Test(self, compiler, live)

    def cuda(self, printer: Printer) -> Expression:
        self.place(printer)
        scope = _scope_of_waits(self.buffer, printer)
        printer.prelude.need(poll_function(may_sleep=False, scope=scope))
        return call(
            f"mbarrier_test{scope}", (address(printer, self.buffer, self.index), exact(printer, self.parity)), bool_
        )


# --- how the simulator waits -----------------------------------------------------------------------------


class _Wait(Pause):
    """A wait for a phase of an mbarrier."""

    op: MbarrierWait

    def __init__(self, op: MbarrierWait, compiler: Compiler, live: Sequence[int]) -> None:
        self._index, self._parity = compiler.slots((op.index, op.parity))
        self._allowed = compiler.hidden_slot()  # the threads whose use of it is right
        super().__init__((*live, self._index, self._parity, self._allowed))
        self.op, self._mbarriers = op, compiler.mbarriers(op.buffer)

    def begin(self, frame: Frame) -> None:
        """Check the wait; threads whose use is wrong go on at once."""
        values = frame.values
        allowed = self._mbarriers.begin_wait(self.op, values[self._index], values[self._parity], frame.mask)
        values[self._allowed] = np.True_ if allowed is None or allowed is frame.mask else allowed

    def ready(self, agent: Agent, scheduler: Scheduler) -> Lanes:
        values = agent.frame.values
        over = self._mbarriers.over(values[self._index], values[self._parity], agent.frame.mask)
        return over | ~values[self._allowed]

    def passed(self, agent: Agent) -> None:
        self._mbarriers.passed(self.op, agent.frame.values[self._index], agent.frame.mask)

    def waiting(self, frame: Frame, row: int, threads: Array) -> list[Waiting]:
        found, barriers = [], self._mbarriers
        for element, those in groups_of(frame.values[self._index], row, threads):
            at = row, element
            phase = int(barriers.phase[at])
            what = f"mbarrier {barriers.name(element)}, phase {phase} (parity {phase % 2}): {barriers.awaits(*at)}"
            missing = max(int(barriers.pending[at]), 0)
            found.append(Waiting(self.op, those, what, other=barriers.announced_by(*at), missing=missing))
        return found


class _Test(Poll):
    """A test of an mbarrier: made when a barrier has changed, and repeated while none has."""

    def __init__(self, op: MbarrierTest, compiler: Compiler, live: Sequence[int]) -> None:
        super().__init__(live, op)
        self._index, self._parity, self._result = compiler.slots((op.index, op.parity, op.result))
        self._compiler, self._mbarriers = compiler, compiler.mbarriers(op.buffer)

    def finish(self, agent: Agent, scheduler: Scheduler) -> None:
        """Test, once the agent may go on."""
        assert self.op is not None
        values, mask = agent.frame.values, agent.frame.mask
        index, parity = values[self._index], values[self._parity]
        allowed = self._mbarriers.begin_wait(self.op, index, parity, mask)
        held = both(allowed, self._mbarriers.over(index, parity, allowed, lands=not scheduler.is_late()))
        assert held is not None
        values[self._result] = held
        if held.any():
            self._mbarriers.passed(self.op, index, held)
        scheduler.idle_polls = 0 if held.any() else scheduler.idle_polls + 1
        agent.seen = self._compiler.barrier_version


# --- how they are written --------------------------------------------------------------------------------


def _scope_of_waits(buffer: Buffer, printer: Printer) -> str:
    """Return what is added to names of waits at which threads of other blocks arrive: they acquire from the cluster."""
    for op in printer.structure.users[buffer]:
        if op.effects.reaches_blocks or (isinstance(op, MbarrierArriveAt) and not op.relaxed):
            return "_cluster"
    return ""
