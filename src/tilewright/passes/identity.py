"""When two values are surely the same number: the same object, or equal constants of one type."""

from __future__ import annotations

from collections.abc import Hashable

from tilewright.ir.core import Value
from tilewright.ir.ops import Constant


def identity(value: Value) -> Hashable:
    """Return a key that two values share only if they are the same number.

    Constants stand in no block, so equal ones are many objects. Floats are told apart by their text, which
    keeps 0.0 and -0.0 apart and makes one NaN equal to another.
    """
    op = value.definition
    if isinstance(op, Constant):
        return (value.type, repr(op.value))
    return value


def take_over_name(value: Value, replaced: Value) -> None:
    """Give a value that replaces another one the user's name for it, if it has none of its own."""
    if value.name is None and not isinstance(value.definition, Constant):
        value.name = replaced.name
