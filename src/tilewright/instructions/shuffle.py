"""shfl: a thread reads a value that another lane of its warp has.

All threads of the warp take part, and a shuffle reads lanes of its group, all of which must exist.

Source: PTX ISA, "shfl.sync"; AMD, ds_bpermute as __shfl in HIP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.conversions import is_half
from tilewright.backends.cpp.expression import Expression, Rank, binary, call, literal, prefix
from tilewright.backends.sim.machine import demand_whole_warps
from tilewright.backends.sim.values import Array, Frame, Lanes, at_least_2d, fill
from tilewright.dtypes import DType, bool_, int32, uint8, uint16, uint32
from tilewright.errors import LanguageError
from tilewright.ir.core import Value, VectorType
from tilewright.ir.effects import Effects, Scope, attribute, operand
from tilewright.ir.instruction import Instruction
from tilewright.trace.scalar import Scalar, as_scalar, narrowed
from tilewright.trace.tracer import current, refuse_partial_warps

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

KINDS = frozenset({"idx", "up", "down", "xor"})


# --- what a kernel says ----------------------------------------------------------------------------------


def shuffle(value: Any, lane: Any, width: int | None = None) -> Scalar:
    """Return the value that lane number `lane` of the group of `width` lanes (the warp) has: shfl.sync.idx."""
    return _shuffle("idx", value, lane, width)


def shuffle_up(value: Any, delta: Any, width: int | None = None) -> Scalar:
    """Return the value of the lane `delta` below; the lowest lanes of a group keep their own (shfl.sync.up)."""
    return _shuffle("up", value, delta, width)


def shuffle_down(value: Any, delta: Any, width: int | None = None) -> Scalar:
    """Return the value of the lane `delta` above; the highest lanes of a group keep their own (shfl.sync.down)."""
    return _shuffle("down", value, delta, width)


def shuffle_xor(value: Any, mask: Any, width: int | None = None) -> Scalar:
    """Return the value of the lane whose number differs by the bits of `mask` (shfl.sync.bfly)."""
    return _shuffle("xor", value, mask, width)


def _shuffle(kind: str, value: Any, lane: Any, width: int | None) -> Scalar:
    tracer = current("a shuffle")
    lanes = tracer.arch.warp_size
    width = lanes if width is None else width
    if width not in [1 << n for n in range(lanes.bit_length())]:
        raise LanguageError(f"the width of a shuffle is a power of two up to {lanes}, got {width}")
    refuse_partial_warps(tracer, "a shuffle", width)
    source = as_scalar(value)
    result = tracer.emit(Shuffle(kind, source.value, narrowed(lane).value, width), source.dtype)
    return Scalar(result[0])


# --- the op ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Shuffle(Instruction):
    """result = value of another lane of the warp, found from `lane` by `kind` within groups of `width` lanes."""

    kind: str = attribute()
    value: Value = operand()
    lane: Value = operand()
    width: int = attribute(32)

    RESULTS: ClassVar[int | None] = 1
    EFFECTS: ClassVar[Effects] = Effects(together=Scope.WARP, removable=False)
    COUNTED: ClassVar[str | None] = "shuffle"
    STANDS_IN_EXPRESSIONS: ClassVar[bool] = True

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.kind in KINDS, f"no shuffle {self.kind}")
        expect(self.value.type == self.result.type, f"types differ: {self.value.type}, {self.result.type}")
        expect(self.width in (1, 2, 4, 8, 16, 32, 64), f"no group of {self.width} lanes")

    def simulate(self, compiler: Compiler) -> Step:
        """Read another lane's value; its own where that lane is out of the group, inactive or not there.

        All threads of the warp have to take part (the GPU's instruction names all of them, and waits for them).
        """
        value, lane, result = compiler.slots((self.value, self.lane, self.result))
        machine = compiler.machine
        find, width, threads, warp = _SOURCES[self.kind], self.width, machine.threads, machine.warp
        own = np.arange(threads, dtype=np.intp)[None, :]

        def run(frame: Frame) -> None:
            demand_whole_warps(self, "a shuffle", frame.mask, machine, full=False)
            values = frame.values
            given = values[value]
            if np.ndim(given) == 0 or given.shape[1] == 1:
                values[result] = given  # all lanes of a warp hold the same
                return
            amount = at_least_2d(values[lane]).astype(np.intp) & (warp - 1)
            source, allowed = find(own % warp, amount, width)
            source = source + own // warp * warp
            allowed = allowed & (source < threads)
            source = np.where(allowed, source, own)
            if frame.mask is not None:
                active = fill(frame.mask, frame.mask.shape[0], threads)
                source = np.where(_take(active, source), source, own)
            values[result] = _take(given, source)

        return run

    def cuda(self, printer: Printer) -> Expression:
        return _written(self, printer, _cuda_call)

    def hip(self, printer: Printer) -> Expression:
        return _written(self, printer, _hip_call)


# --- what it computes ------------------------------------------------------------------------------------

# Each gives the lane read and whether it may be, as PTX's shfl does; amounts count modulo the warp's lanes.
_SOURCES: dict[str, Callable[[Array, Lanes, int], tuple[Array, Array]]] = {
    "up": lambda lane, by, width: (lane - by, lane - by >= lane & -width),
    "down": lambda lane, by, width: (lane + by, lane + by <= (lane & -width) + width - 1),
    "xor": lambda lane, by, width: (lane ^ by, lane ^ by <= (lane & -width) + width - 1),
    "idx": lambda lane, by, width: ((lane & -width) | (by & (width - 1)), np.ones_like(lane | by, np.bool_)),
}


def _take(value: Array, source: Array) -> Array:
    """Return value[:, source], where either may be the same in all blocks."""
    if source.shape[0] == 1:
        taken: Array = value.take(source[0], axis=1)
        return taken
    return np.take_along_axis(np.broadcast_to(value, (source.shape[0], value.shape[1])), source, axis=1)


# --- how it is written -----------------------------------------------------------------------------------

_Call = Callable[[str, Expression, Expression, int, DType], Expression]
_MASK = Expression("0xffffffff", Rank.ATOM, uint32)


def _cuda_call(kind: str, value: Expression, lane: Expression, width: int, type: DType) -> Expression:
    """Return CUDA's call for a value of 32 or 64 bits."""
    name = {"idx": "__shfl_sync", "up": "__shfl_up_sync", "down": "__shfl_down_sync", "xor": "__shfl_xor_sync"}[kind]
    groups = [] if width == 32 else [literal(width, int32)]
    return call(name, (_MASK, value, lane, *groups), type)


def _hip_call(kind: str, value: Expression, lane: Expression, width: int, type: DType) -> Expression:
    """Return HIP's call for a value of 32 or 64 bits."""
    name = {"idx": "__shfl", "up": "__shfl_up", "down": "__shfl_down", "xor": "__shfl_xor"}[kind]
    groups = [] if width == 64 else [literal(width, int32)]
    return call(name, (value, lane, *groups), type)


def _written(op: Shuffle, printer: Printer, call_of: _Call) -> Expression:
    """Return the call for a scalar of any type; narrow ones travel as an int."""
    dtype = op.value.dtype
    if isinstance(op.value.type, VectorType):
        raise printer.refuse(op, "a shuffle moves one scalar, not a vector", "shuffle the lanes one by one")

    def moved(value: Expression) -> Expression:
        type = value.dtype if value.dtype.bits >= 32 else int32
        return call_of(op.kind, value, exact(printer, op.lane), op.width, type)

    value = exact(printer, op.value)
    if is_half(dtype):
        printer.prelude.need_type(dtype)
        bits = moved(Expression(f"{value.at_least(Rank.POSTFIX)}.bits", Rank.POSTFIX, int32, value.reads))
        holder = uint16.c_name if dtype.bits == 16 else uint8.c_name
        return Expression(f"{dtype.c_name}{{({holder}){bits.text}}}", Rank.POSTFIX, dtype, bits.reads)
    if not dtype.is_float and value.type != dtype and dtype.bits >= 32:
        value = prefix(f"({dtype.c_name})", value, dtype)
    result = moved(value)
    if dtype is bool_:
        return binary("!=", result, literal(0, int32), bool_)
    # A narrow integer travels as an int, and comes out with the same value.
    return prefix(f"({dtype.c_name})", result, dtype) if dtype.bits < 32 else result
