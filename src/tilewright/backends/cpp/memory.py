"""How memory is reached: loads and stores."""

from __future__ import annotations

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import Expression, Rank, prefix
from tilewright.backends.cpp.printer import Printer
from tilewright.dtypes import int32, uint32
from tilewright.ir.core import Buffer, Type, Value, VectorType
from tilewright.ir.infer import facts_of
from tilewright.ir.ops import Bitcast, Constant, Load, Store


def element(printer: Printer, buffer: Buffer, index: Value) -> Expression:
    """Return `buffer[index]`."""
    subscript = exact(printer, index)
    if subscript.unconverted is not None:
        subscript = subscript.unconverted
    elif subscript.type is uint32 and index.type is int32 and not facts_of(index).non_negative:
        subscript = prefix("(int)", subscript, int32)
    text = f"{printer.buffer_names[buffer]}[{subscript.text}]"
    return Expression(text, Rank.POSTFIX, buffer.dtype, subscript.reads)


def address(printer: Printer, buffer: Buffer, index: Value) -> Expression:
    """Return `&buffer[index]`, or the buffer's name for its first element."""
    if isinstance(index.definition, Constant) and index.definition.value == 0:
        return Expression(printer.buffer_names[buffer], Rank.ATOM, buffer.dtype)
    return prefix("&", element(printer, buffer, index), buffer.dtype)


def load(printer: Printer, op: Load) -> Expression:
    """Return `buffer[index]`, or the vector that lies there."""
    type = op.result.type
    printer.type_name(type)
    hinted = printer.dialect.hinted_load(printer, op, type) if op.hints is not None else None
    if hinted is not None:
        return hinted
    if not isinstance(type, VectorType):
        return element(printer, op.buffer, op.index)
    return _as_type(printer, op.buffer, op.index, type, "const ")


def load_as(printer: Printer, op: Load, type: Type) -> Expression:
    """Return the bits that a load gives read as another type of the same size: one access of that type."""
    hinted = printer.dialect.hinted_load(printer, op, type) if op.hints is not None else None
    return hinted or _as_type(printer, op.buffer, op.index, type, "const ")


def _as_type(printer: Printer, buffer: Buffer, index: Value, type: Type, const: str) -> Expression:
    """Return what lies at an index as a type of several elements: one access of its size."""
    return prefix("*", pointer_to(printer, buffer, index, type, const), type)


def pointer_to(printer: Printer, buffer: Buffer, index: Value, type: Type, const: str) -> Expression:
    """Return the address of an element as a pointer to a type of several elements; `const` is "const " or nothing."""
    return prefix(f"({const}{printer.type_name(type)}*)", address(printer, buffer, index), type)


def store(printer: Printer, op: Store) -> None:
    """Print `buffer[index] = value;`."""
    given = _bits_behind(printer, op.value)
    type = given.type
    value = exact(printer, given)
    if op.hints is not None and printer.dialect.hinted_store(printer, op, type, value):
        return
    if isinstance(op.value.type, VectorType):
        target = _as_type(printer, op.buffer, op.index, type, "")
    else:
        target = element(printer, op.buffer, op.index)
    printer.assign(target.text, value, op)


def _bits_behind(printer: Printer, value: Value) -> Value:
    """Return the word whose bits a vector is, so that it is stored as a word; else the value itself."""
    op = value.definition
    if isinstance(value.type, VectorType) and isinstance(op, Bitcast) and value in printer.inlined:
        return value if isinstance(op.x.type, VectorType) else op.x
    return value


def is_vector_access(op: object, buffer: Buffer) -> bool:
    """Return whether an op reaches several elements of a buffer at once."""
    if isinstance(op, Load):
        return op.buffer is buffer and isinstance(op.result.type, VectorType)
    return isinstance(op, Store) and op.buffer is buffer and isinstance(op.value.type, VectorType)
