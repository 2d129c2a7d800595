"""bar and barrier: where the threads of a block, of a warp, or of some warps meet.

    Barrier         bar.sync 0 (__syncthreads), bar.warp.sync (__syncwarp)
    NamedBarrier    barrier.sync, barrier.arrive on one of the block's barriers 1 to 15

Source: PTX ISA, "bar, barrier", "bar.warp.sync".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.agents import Agent, Pause, Scheduler, Waiting, groups_of
from tilewright.backends.sim.barriers import BLOCK_BARRIER
from tilewright.backends.sim.machine import Signal
from tilewright.backends.sim.values import Array, Frame, Lanes
from tilewright.dtypes import int32
from tilewright.errors import LanguageError
from tilewright.ir.core import Value
from tilewright.ir.effects import Effects, Order, Scope, Waits, attribute, operand
from tilewright.ir.evaluate import facts_of
from tilewright.ir.instruction import Instruction, Meeting
from tilewright.trace.scalar import as_scalar
from tilewright.trace.tracer import Tracer, current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

_MOST_NAMED = 15  # number 0 is the barrier of tw.sync_threads


# --- what a kernel says ----------------------------------------------------------------------------------


def sync_threads() -> None:
    """Wait for all threads of the block; their memory accesses are then visible (CUDA __syncthreads)."""
    current("tw.sync_threads").emit(Barrier("block"))


def sync_warp() -> None:
    """Wait for all threads of the warp; their memory accesses are then visible (CUDA __syncwarp)."""
    current("tw.sync_warp").emit(Barrier("warp"))


class named_barrier:  # a word of kernels, like range
    """One of a block's barriers 1 to 15, for `threads` threads in whole warps.

    A phase of the barrier is over when `threads` threads have called `sync` or `arrive`; the next one starts with none.
    After `sync`, a thread sees everything that these threads wrote before they arrived. The warps may be in different
    branches:

    >>> import numpy as np
    >>> import tilewright as tw
    >>> @tw.kernel
    ... def reverse(out, x):
    ...     tile, full = tw.shared(tw.int32, 32), tw.named_barrier(1, 64)
    ...     if tw.warp_id() == 0:
    ...         tile[tw.lane_id()] = x[tw.lane_id()]
    ...         full.arrive()  # the producer goes on
    ...     else:
    ...         full.sync()  # the consumer waits for it
    ...         out[tw.lane_id()] = tile[31 - tw.lane_id()]
    >>> out = np.zeros(32, np.int32)
    >>> reverse[1, 64](out, np.arange(32, dtype=np.int32))
    >>> out[:4].tolist()
    [31, 30, 29, 28]

    `number` may be a device value, the same in all threads of a warp; `threads` is known while tracing. Raises
    `LanguageError` for a number out of 1 to 15 (barrier 0 is `tw.sync_threads`), and for threads that are not whole
    warps or are more than the block has. Source: PTX ISA, barrier.sync and barrier.arrive.
    """

    def __init__(self, number: Any, threads: int) -> None:
        given: object = threads
        tracer = current("tw.named_barrier")
        if tracer.arch.is_amd:
            raise LanguageError(
                f"tw.named_barrier: {tracer.arch} has one barrier, that of the whole block",
                help="let the whole block meet: tw.sync_threads()",
            )
        warp = tracer.arch.warp_size
        if not isinstance(given, int) or given <= 0 or given % warp:
            raise LanguageError(
                f"whole warps arrive at a tw.named_barrier: its threads are a multiple of {warp}, not {given!r}",
                help="count all threads of the warps that sync or arrive; the number must be known while tracing",
            )
        shape = tracer.block_shape
        if shape is not None and given > _whole_warps(shape[0] * shape[1] * shape[2], warp):
            raise LanguageError(
                f"tw.named_barrier waits for {given} threads, and the block has {shape[0] * shape[1] * shape[2]}",
                help="the barrier would never complete: count the threads that arrive in one phase",
            )
        scalar = as_scalar(number, int32)
        facts = scalar.facts
        if facts.high < 1 or facts.low > _MOST_NAMED or (isinstance(number, int) and number not in range(1, 16)):
            raise LanguageError(
                f"a block has named barriers 1 to {_MOST_NAMED}, not {number!r}",
                help="barrier 0 is the one of tw.sync_threads()",
            )
        if facts.high - facts.low < _MOST_NAMED - 1:  # something is known of the number
            claim_barriers(tracer, range(facts.low, facts.high + 1), "tw.named_barrier")
        self.number = number
        self.threads = given

    def sync(self) -> None:
        """Arrive, and wait until all threads of the phase have arrived (PTX barrier.sync)."""
        self._emit("sync")

    def arrive(self) -> None:
        """Arrive without waiting; threads that wait see what this thread wrote before (PTX barrier.arrive)."""
        self._emit("arrive")

    def _emit(self, kind: str) -> None:
        current(f"named_barrier.{kind}").emit(NamedBarrier(kind, self.threads, as_scalar(self.number, int32).value))

    def __repr__(self) -> str:
        return f"named_barrier({self.number!r}, threads={self.threads})"


def claim_barriers(tracer: Tracer, numbers: Iterable[int], owner: str) -> None:
    """Refuse named barriers of a block that two owners use: a `tw.named_barrier`, and collectives of warpgroups."""
    for number in numbers:
        other = tracer.barrier_owners.setdefault(number, owner)
        if other != owner:
            raise LanguageError(
                f"named barrier {number} is used by {owner}, and by {other}",
                help="collectives of groups of several warps take the highest numbers, one for each group of the "
                "block, from 15 downwards; give your own low ones",
            )


def meet_at(number: Any, threads: int) -> None:  # Any: an integer of host or device
    """Wait at a barrier that is claimed, until so many threads have come."""
    current("a barrier").emit(NamedBarrier("sync", threads, as_scalar(number, int32).value))


def _whole_warps(threads: int, warp: int) -> int:
    return -(-threads // warp) * warp


# --- the ops ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Barrier(Instruction):
    """Wait for all threads of the `scope`, "block" or "warp", and make their memory accesses visible."""

    scope: str = attribute()

    CALLED: ClassVar[str | None] = "tw.sync_threads"
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(
        together=Scope.BLOCK, removable=False, refused_apart=True, order=Order.BOTH, waits=Waits.ALL
    )
    COUNTED: ClassVar[str | None] = "barrier"

    @property
    def effects(self) -> Effects:
        return self.EFFECTS if self.scope == "block" else _OF_WARP

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.scope in ("block", "warp"), f"no barrier of scope {self.scope}")

    def simulate(self, compiler: Compiler) -> Step:
        """Tell the observers: where no op waits for part of a block, threads run in step."""
        machine = compiler.machine

        def run(frame: Frame) -> None:
            for observer in machine.observers:
                observer.barrier(self, frame.mask)

        return run

    def pause(self, compiler: Compiler, live: Sequence[int]) -> Pause:
        return _BlockWait(self, compiler, live)

    def cuda(self, printer: Printer) -> None:
        printer.statement("__syncthreads();" if self.scope == "block" else "__syncwarp();", self)

    def hip(self, printer: Printer) -> None:
        self.cuda(printer)


# In the simulator the lanes of a warp that stand at one place run in step, and need not wait for each other.
_OF_WARP = Effects(together=Scope.WARP, removable=False, order=Order.BOTH)


@dataclass(eq=False)
class NamedBarrier(Instruction):
    """Arrive at barrier `id` of the block, 1 to 15; `sync` also waits until `threads` threads have arrived.

    Whole warps arrive. The barrier is then empty again, for its next phase (PTX barrier.sync, barrier.arrive).
    """

    kind: str = attribute()
    threads: int = attribute()
    id: Value = operand()

    CALLED: ClassVar[str | None] = "a named barrier"
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(
        together=Scope.WARP, removable=False, refused_apart=True, order=Order.BOTH, waits=Waits.SOME
    )
    COUNTED: ClassVar[str | None] = "named barrier"
    RESERVED: ClassVar[str] = r"named_barrier_(sync|arrive)"
    ON_AMD: ClassVar[tuple[str, str] | None] = (
        "barrier of a part of the block",
        "let the whole block meet: tw.sync_threads()",
    )

    @property
    def effects(self) -> Effects:
        return self.EFFECTS if self.kind == "sync" else replace(self.EFFECTS, order=Order.RELEASE, waits=Waits.NOBODY)

    def meeting(self) -> Meeting | None:
        number = facts_of(self.id).constant
        called = "a named barrier" if number is None else f"named barrier {number}"
        return Meeting(number, called, self.threads, 1, self.kind == "sync", is_known=number is not None)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.kind in _FUNCTIONS, f"no {self.kind} of a named barrier")
        expect(self.threads > 0 and self.threads % 32 == 0, f"{self.threads} threads are not whole warps")
        expect(self.id.type is int32, "the number of a barrier is an int32")

    def simulate(self, compiler: Compiler) -> Step:
        """Arrive and go on."""
        number, named = compiler.slot(self.id), compiler.named_barriers

        def run(frame: Frame) -> None:
            named.arrive(self, frame.values[number], self.threads, frame.mask)

        return run

    def pause(self, compiler: Compiler, live: Sequence[int]) -> Pause:
        return _NamedWait(self, compiler, live)

    def cuda(self, printer: Printer) -> None:
        printer.prelude.need(_FUNCTIONS[self.kind])
        printer.statement(f"named_barrier_{self.kind}<{self.threads}>({exact(printer, self.id).text});", self)


# --- how the simulator waits -----------------------------------------------------------------------------


class _BlockWait(Pause):
    """A wait for all threads of the block, which is the block's barrier 0."""

    op: Barrier
    group = -1

    def __init__(self, op: Barrier, compiler: Compiler, live: Sequence[int]) -> None:
        self._phase = compiler.hidden_slot()
        super().__init__((*live, self._phase))
        self.op, self._named, self._machine = op, compiler.named_barriers, compiler.machine
        self._number = np.full((1, 1), BLOCK_BARRIER)

    def begin(self, frame: Frame) -> None:
        warp = self._machine.warp
        threads = -(-self._machine.threads // warp) * warp
        frame.values[self._phase] = self._named.arrive(self.op, self._number, threads, frame.mask)[1]

    def ready(self, agent: Agent, scheduler: Scheduler) -> Lanes:
        return self._named.phase_of(self._number) > agent.frame.values[self._phase]

    def passed(self, agent: Agent) -> None:
        for observer in self._machine.observers:
            observer.barrier(self.op, agent.frame.mask)

    def waiting(self, frame: Frame, row: int, threads: Array) -> list[Waiting]:
        arrived, expected = (int(a[row, BLOCK_BARRIER]) for a in (self._named.arrived, self._named.expected))
        return [Waiting(self.op, threads, f"all threads of the block: {arrived} of {expected} have arrived")]


class _NamedWait(Pause):
    """A wait at a named barrier, for the phase in which the thread has arrived."""

    op: NamedBarrier

    def __init__(self, op: NamedBarrier, compiler: Compiler, live: Sequence[int]) -> None:
        self._given = compiler.slot(op.id)
        # The barrier and the phase that each thread has arrived at.
        self._number, self._phase = compiler.hidden_slot(), compiler.hidden_slot()
        super().__init__((*live, self._number, self._phase))
        self.op, self._named, self._machine = op, compiler.named_barriers, compiler.machine

    def begin(self, frame: Frame) -> None:
        values = frame.values
        values[self._number], values[self._phase] = self._named.arrive(
            self.op, values[self._given], self.op.threads, frame.mask
        )

    def ready(self, agent: Agent, scheduler: Scheduler) -> Lanes:
        values = agent.frame.values
        return self._named.phase_of(values[self._number]) > values[self._phase]

    def passed(self, agent: Agent) -> None:
        values = agent.frame.values
        for observer in self._machine.observers:
            observer.acquire(Signal(self.op, None, values[self._number], values[self._phase], agent.frame.mask))

    def waiting(self, frame: Frame, row: int, threads: Array) -> list[Waiting]:
        found = []
        for number, those in groups_of(frame.values[self._number], row, threads):
            arrived, expected, phase = (
                int(state[row, number]) for state in (self._named.arrived, self._named.expected, self._named.phase)
            )
            what = f"named barrier {number}, phase {phase}: {arrived} of {expected} threads have arrived"
            found.append(Waiting(self.op, those, what, missing=expected - arrived))
        return found


# --- how named barriers are written ----------------------------------------------------------------------

_FUNCTIONS = {
    "sync": f"""\
// Waits until `threads` threads of the block have come to this barrier.
template <int threads>
{FUNCTION} void named_barrier_sync(int number) {{
    asm volatile("barrier.sync %0, %1;" :: "r"(number), "n"(threads) : "memory");
}}""",
    "arrive": f"""\
template <int threads>
{FUNCTION} void named_barrier_arrive(int number) {{
    asm volatile("barrier.arrive %0, %1;" :: "r"(number), "n"(threads) : "memory");
}}""",
}
