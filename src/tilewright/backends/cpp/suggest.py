"""Names for values that the user did not name, from what they are and what they are used for."""

from __future__ import annotations

from tilewright.backends.cpp.structure import Structure
from tilewright.dtypes import bool_
from tilewright.ir.core import Op, Value, VectorType
from tilewright.ir.ops import (
    Atomic,
    Binary,
    Cast,
    Constant,
    Load,
    Special,
)

_FARTHEST = 32  # values that are looked at to find what an offset is for


def suggest(value: Value, structure: Structure) -> str:
    """Return the user's name for a value, or one that says something about it."""
    op = value.definition
    if value.name:
        return value.name
    if isinstance(op, Load):
        return f"{op.buffer.name}_{'vector' if isinstance(value.type, VectorType) else 'value'}"
    if isinstance(op, Atomic):
        return f"old_{op.buffer.name}"
    if isinstance(op, Special):
        return _register(op)
    if isinstance(value.type, VectorType):
        return "vector"
    if value.type is bool_:
        return "condition"
    if value.type.is_float:
        return "x"
    return _part(op) or _place(value, structure) or "n"


def _register(op: Special) -> str:
    """Return bx for block_idx.x, ty for thread_idx.y, and block_dim_x in full."""
    group, axis = op.name.split(".")
    return f"{group[0]}{axis}" if group.endswith("idx") else f"{group}_{axis}"


def _part(op: Op | None) -> str | None:
    """Return tid_div_32 or tid_mod_32 for a quotient or remainder of something with a name."""
    if not (isinstance(op, Binary) and op.kind in ("div", "rem") and isinstance(op.rhs.definition, Constant)):
        return None
    whole = op.lhs.definition
    base = op.lhs.name or (_register(whole) if isinstance(whole, Special) else None)
    divisor = op.rhs.definition.value
    return f"{base}_{'div' if op.kind == 'div' else 'mod'}_{divisor}" if base and divisor > 0 else None


def _place(value: Value, structure: Structure) -> str | None:
    """Return index for what a buffer is indexed by, and offset or A_offset for a part of that."""
    readers = structure.readers.get(value, [])
    if any(_indexed_by(value, reader) for reader in readers):
        return "index"
    buffers = _indexed(value, structure)
    if not buffers:
        return None
    return f"{next(iter(buffers))}_offset" if len(buffers) == 1 else "offset"


def _indexed(value: Value, structure: Structure) -> dict[str, None]:
    """Return the names of the buffers whose indices a value is a part of, looking a few ops ahead."""
    found: dict[str, None] = {}
    parts = [value]
    for part in parts:  # grows meanwhile
        for reader in structure.readers.get(part, []):
            found.update(_indexed_by(part, reader))
            if isinstance(reader, (Binary, Cast)) and reader.result not in parts and len(parts) < _FARTHEST:
                parts.append(reader.result)
    return found


def _indexed_by(value: Value, op: Op) -> dict[str, None]:
    return {use.buffer.name: None for use in op.uses if use.index is value}
