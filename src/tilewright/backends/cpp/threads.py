"""How threads are told apart and meet: special registers, barriers, and shuffles of every type."""

from __future__ import annotations

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.conversions import is_half
from tilewright.backends.cpp.expression import Expression, Rank, binary, prefix
from tilewright.backends.cpp.literals import literal
from tilewright.backends.cpp.printer import Printer
from tilewright.dtypes import bool_, int32, uint8, uint16, uint32
from tilewright.ir.core import VectorType
from tilewright.ir.ops import Barrier, Inside, Shuffle, Special


def special(printer: Printer, op: Special) -> Expression:
    """Return a special register: `thread_idx.x` is threadIdx.x, which is unsigned in C++."""
    group, axis = op.name.split(".")
    head, _, tail = group.partition("_")
    return Expression(f"{head}{tail.capitalize()}.{axis}", Rank.POSTFIX, uint32)


def barrier(printer: Printer, op: Barrier) -> None:
    """Print a barrier of the block or of the warp."""
    printer.statement("__syncthreads();" if op.scope == "block" else "__syncwarp();", op)


def shuffle(printer: Printer, op: Shuffle) -> Expression:
    """Return the call that reads a value of another lane."""
    dtype = op.value.dtype
    if isinstance(op.value.type, VectorType):
        raise printer.refuse(op, "a shuffle moves one scalar, not a vector", "shuffle the lanes one by one")
    value = exact(printer, op.value)
    if is_half(dtype):
        printer.prelude.need_type(dtype)
        bits = _shuffle(
            printer, op, Expression(f"{value.at_least(Rank.POSTFIX)}.bits", Rank.POSTFIX, int32, value.reads)
        )
        holder = uint16.c_name if dtype.bits == 16 else uint8.c_name
        return Expression(f"{dtype.c_name}{{({holder}){bits.text}}}", Rank.POSTFIX, dtype, bits.reads)
    if not dtype.is_float and value.type != dtype and dtype.bits >= 32:
        value = prefix(f"({dtype.c_name})", value, dtype)
    moved = _shuffle(printer, op, value)
    if dtype is bool_:
        return binary("!=", moved, literal(0, int32), bool_)
    # A narrow integer travels as an int, and comes out with the same value.
    return prefix(f"({dtype.c_name})", moved, dtype) if dtype.bits < 32 else moved


def _shuffle(printer: Printer, op: Shuffle, value: Expression) -> Expression:
    type = value.dtype if value.dtype.bits >= 32 else int32
    return printer.dialect.shuffle(op.kind, value, exact(printer, op.lane), op.width, type)


def nothing(printer: Printer, op: Inside) -> None:
    """Print nothing: the op is there for the simulator."""
