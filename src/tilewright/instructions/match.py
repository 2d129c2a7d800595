"""match: which lanes of a warp hold the same value. All threads of the warp take part.

Source: PTX ISA, "match.sync".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import Expression, Rank, call
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.machine import demand_whole_warps
from tilewright.backends.sim.values import Frame, at_least_2d, by_lanes, by_threads, fill, over_warps
from tilewright.dtypes import bool_, uint32, uint64
from tilewright.ir.core import Value
from tilewright.ir.effects import Effects, Scope, attribute, operand
from tilewright.ir.instruction import Instruction
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import current, refuse_partial_warps

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step


# --- what a kernel says ----------------------------------------------------------------------------------


def match_any(value: Any) -> Scalar:
    """Return the lanes of the warp that hold the same value as this one, as the bits of a uint32 (match.any.sync).

    Values are compared bit by bit: a NaN matches itself, and 0.0 does not match -0.0.
    """
    return _match("any", value)


def match_all(value: Any) -> Scalar:
    """Return whether all lanes of the warp hold the same value, compared bit by bit (match.all.sync)."""
    return _match("all", value)


def _match(kind: str, value: Any) -> Scalar:
    what = f"tw.match_{kind}"
    tracer = current(what)
    refuse_partial_warps(tracer, what, tracer.arch.warp_size)
    op = Match(kind, _bits(as_scalar(value)).value)
    return Scalar(tracer.emit(op, uint32 if kind == "any" else bool_)[0])


def _bits(x: Scalar) -> Scalar:
    """Return the bits of a value as uint32 or uint64."""
    if x.dtype.is_float:
        x = x.bitcast(f"uint{x.dtype.bits}")
    return x.to(uint64 if x.dtype.bits == 64 else uint32)


# --- the op ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Match(Instruction):
    """result: uint32 = the lanes with an equal value for `any`; bool, whether all lanes have one value, for `all`."""

    kind: str = attribute()
    value: Value = operand()

    RESULTS: ClassVar[int | None] = 1
    EFFECTS: ClassVar[Effects] = Effects(together=Scope.WARP, removable=False)
    COUNTED: ClassVar[str | None] = "match"
    RESERVED: ClassVar[str] = "match_all"
    STANDS_IN_EXPRESSIONS: ClassVar[bool] = True
    ON_AMD: ClassVar[tuple[str, str] | None] = (
        "match instruction",
        "compare with tw.shuffle(value, lane) in a loop over the lanes, and collect the bits with tw.ballot",
    )

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.kind in ("any", "all"), f"no match {self.kind}")
        expect(self.value.type in (uint32, uint64), "a match takes uint32 or uint64")
        expect(self.result.type is (uint32 if self.kind == "any" else bool_), "wrong type of a match's result")

    def simulate(self, compiler: Compiler) -> Step:
        """Compare each lane with the active lanes of its warp."""
        value, result = compiler.slot(self.value), compiler.slot(self.result)
        machine, kind = compiler.machine, self.kind
        threads, warp = machine.threads, machine.warp
        bits = np.uint32(1) << np.arange(warp, dtype=np.uint32)

        def run(frame: Frame) -> None:
            demand_whole_warps(self, "a match", frame.mask, machine, full=False)
            mask = np.ones((1, 1), np.bool_) if frame.mask is None else frame.mask
            given = at_least_2d(frame.values[value])
            blocks = max(given.shape[0], mask.shape[0])
            lanes = by_lanes(fill(given, blocks, threads), warp)
            active = by_lanes(fill(mask, blocks, threads), warp)
            equal = (lanes[..., :, None] == lanes[..., None, :]) & active[..., None, :]
            if kind == "any":
                frame.values[result] = by_threads((equal * bits).sum(axis=-1, dtype=np.uint32), threads)
            else:
                same = (equal | ~active[..., None, :] | ~active[..., :, None]).all(axis=(-2, -1))
                frame.values[result] = over_warps(same, threads, warp)

        return run

    def cuda(self, printer: Printer) -> Expression:
        value = exact(printer, self.value)
        if self.kind == "any":
            return call("__match_any_sync", (Expression("0xffffffff", Rank.ATOM, uint32), value), uint32)
        printer.prelude.need(_MATCH_ALL)
        return call("match_all", (value,), bool_)


_MATCH_ALL = f"""\
// True where all lanes of the warp hold the same value.
template <typename T>
{FUNCTION} bool match_all(T value) {{
    int all;
    __match_all_sync(0xffffffff, value, &all);
    return all != 0;
}}"""
