"""vote and elect: what the threads of a warp decide together. All threads of the warp take part.

Source: PTX ISA, "vote.sync", "elect.sync"; HIP, __any, __all, __ballot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import Expression, Rank, binary, call, literal
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.machine import demand_whole_warps
from tilewright.backends.sim.values import Array, Frame, Mask, at_least_2d, fill, over_warps
from tilewright.dtypes import bool_, int32, uint32, uint64
from tilewright.ir.core import Value
from tilewright.ir.effects import Effects, Scope, attribute, operand
from tilewright.ir.instruction import Instruction
from tilewright.trace.control import truth
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

KINDS = frozenset({"any", "all", "ballot"})


# --- what a kernel says ----------------------------------------------------------------------------------


def vote_any(predicate: Any) -> Scalar:
    """Return whether the predicate holds in any lane of the warp."""
    return _vote("any", predicate)


def vote_all(predicate: Any) -> Scalar:
    """Return whether the predicate holds in all lanes of the warp."""
    return _vote("all", predicate)


def ballot(predicate: Any) -> Scalar:
    """Return the lanes in which the predicate holds, as the bits of a uint32, or of a uint64 for AMD's 64 lanes."""
    return _vote("ballot", predicate)


def _vote(kind: str, predicate: Any) -> Scalar:
    holds = as_scalar(truth(predicate), bool_)
    tracer = current("a vote")
    bits = uint64 if tracer.arch.warp_size == 64 else uint32
    return Scalar(tracer.emit(Vote(kind, holds.value), bits if kind == "ballot" else bool_)[0])


def elect_one() -> Scalar:
    """Return true in one thread of the warp, the same each time, and false in the others (PTX elect.sync).

    Which one is the hardware's choice; before sm_90, and on the simulator where all take part, it is lane 0. Like a
    vote it waits for all threads of the warp.
    """
    return Scalar(current("tw.elect_one").emit(Elect(), bool_)[0])


# --- the ops ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Vote(Instruction):
    """result = any or all (bool) of the warp's predicates, or their bits for `ballot`: uint32; uint64 of 64 lanes."""

    kind: str = attribute()
    predicate: Value = operand()

    RESULTS: ClassVar[int | None] = 1
    EFFECTS: ClassVar[Effects] = Effects(together=Scope.WARP, removable=False)
    COUNTED: ClassVar[str | None] = "vote"
    STANDS_IN_EXPRESSIONS: ClassVar[bool] = True

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.kind in KINDS and self.predicate.type is bool_, "a vote takes a bool")
        types = (uint32, uint64) if self.kind == "ballot" else (bool_,)
        expect(self.result.type in types, "wrong type of a vote's result")

    def simulate(self, compiler: Compiler) -> Step:
        predicate, result, kind = compiler.slot(self.predicate), compiler.slot(self.result), self.kind
        machine = compiler.machine
        threads, warp = machine.threads, machine.warp

        def run(frame: Frame) -> None:
            demand_whole_warps(self, "a vote", frame.mask, machine, full=False)
            found = _outcome(kind, at_least_2d(frame.values[predicate]), frame.mask, threads, warp)
            frame.values[result] = np.repeat(found, warp, axis=1)[:, :threads]

        return run

    def cuda(self, printer: Printer) -> Expression:
        type = uint32 if self.kind == "ballot" else int32
        voted = call(f"__{self.kind}_sync", (_MASK, exact(printer, self.predicate)), type)
        return voted if self.kind == "ballot" else binary("!=", voted, literal(0, int32), bool_)

    def hip(self, printer: Printer) -> Expression:
        if self.kind == "ballot" and self.result.type is not uint64:
            raise printer.refuse(
                self,
                f"a ballot of the 64 lanes of {printer.arch} has 64 bits, and its result is {self.result.type}",
                "use tw.vote_any or tw.vote_all",
            )
        return call(f"__{self.kind}", (exact(printer, self.predicate),), uint64 if self.kind == "ballot" else bool_)


@dataclass(eq=False)
class Elect(Instruction):
    """result: bool, true in one thread of the warp, the same each time."""

    RESULTS: ClassVar[int | None] = 1
    EFFECTS: ClassVar[Effects] = Effects(together=Scope.WARP, removable=False, varies=True)
    COUNTED: ClassVar[str | None] = "elect"

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.result.type is bool_, "an election gives bool")

    def simulate(self, compiler: Compiler) -> Step:
        """Choose the lowest active thread of each warp."""
        result, machine = compiler.slot(self.result), compiler.machine
        threads, warp = machine.threads, machine.warp
        own = np.arange(threads)[None, :]

        def run(frame: Frame) -> None:
            mask = frame.mask
            demand_whole_warps(self, "an election", mask, machine, full=False)
            active = np.ones((1, threads), np.bool_) if mask is None else fill(mask, mask.shape[0], threads)
            lowest = _by_warps(active, threads, warp, absent=False).argmax(axis=2)
            frame.values[result] = active & (over_warps(lowest, threads, warp) == own % warp)

        return run

    def cuda(self, printer: Printer) -> Expression:
        printer.prelude.need(_ELECT[printer.arch.number >= 90])
        return call("elect_one", (), bool_)

    def hip(self, printer: Printer) -> Expression:
        return call("__elect", (), bool_)


# --- what they compute -----------------------------------------------------------------------------------


def _outcome(kind: str, predicate: Array, mask: Mask, threads: int, warp: int) -> Array:
    """Return the outcome of each warp, (blocks, warps), of the predicates of its active threads."""
    neutral = kind == "all"
    if mask is not None:
        predicate = np.where(mask, predicate, neutral)
    lanes = _by_warps(predicate, threads, warp, absent=neutral)
    if kind == "ballot":
        kind_of_bits = np.uint64 if warp == 64 else np.uint32
        bits = kind_of_bits(1) << np.arange(warp, dtype=kind_of_bits)
        ballots: Array = np.where(lanes, bits, kind_of_bits(0)).sum(axis=2, dtype=kind_of_bits)
        return ballots
    found: Array = np.asarray(lanes.all(axis=2) if kind == "all" else lanes.any(axis=2))
    return found


def _by_warps(flags: Array, threads: int, warp: int, *, absent: bool) -> Array:
    """Return flags (blocks, threads) as (blocks, warps, lanes), with `absent` for the lanes a last warp lacks."""
    blocks, warps = flags.shape[0], -(-threads // warp)
    padded = np.full((blocks, warps * warp), absent)
    padded[:, :threads] = flags
    return padded.reshape(blocks, warps, warp)


# --- how they are written --------------------------------------------------------------------------------

_MASK = Expression("0xffffffff", Rank.ATOM, uint32)

_ELECT = {
    # The elected thread is the hardware's choice there, and always the same one; before, it is lane 0.
    True: f"""\
{FUNCTION} bool elect_one() {{
    unsigned int elected;
    asm volatile("{{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }}" : "=r"(elected));
    return elected != 0;
}}""",
    False: f"""\
{FUNCTION} bool elect_one() {{
    unsigned int lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane == 0;
}}""",
}
