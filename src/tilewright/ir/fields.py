"""How an op declares its parts, and what follows from the declaration.

An op is a dataclass. Each field is declared as an operand, a tuple of operands, a block or an attribute;
walking, substitution, comparing and printing are derived from these roles and written nowhere else.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

OPERAND, OPERANDS, BLOCK, ATTRIBUTE = "operand", "operands", "block", "attribute"


def operand() -> Any:  # Any: stands for the field's declared type, as dataclasses.field does
    """Declare a field that holds one value the op reads."""
    return dataclasses.field(metadata={"role": OPERAND})


def operands() -> Any:  # Any: as above
    """Declare a field that holds a tuple of values the op reads."""
    return dataclasses.field(metadata={"role": OPERANDS})


def block() -> Any:  # Any: as above
    """Declare a field that holds a nested block of ops."""
    return dataclasses.field(metadata={"role": BLOCK})


def attribute(default: Any = dataclasses.MISSING) -> Any:  # Any: as above
    """Declare a field that holds compile-time data: a name, a number, a buffer."""
    return dataclasses.field(default=default, metadata={"role": ATTRIBUTE})


class Roles(NamedTuple):
    """The names of an op class's fields by role, each in the order of declaration."""

    operand: tuple[str, ...]
    operands: tuple[str, ...]
    block: tuple[str, ...]
    attribute: tuple[str, ...]


_known: dict[type, Roles] = {}


def roles_of(op_class: type) -> Roles:
    """Return the field names of an op class by role."""
    roles = _known.get(op_class)
    if roles is None:
        roles = Roles(*(_names_with_role(op_class, role) for role in (OPERAND, OPERANDS, BLOCK, ATTRIBUTE)))
        _known[op_class] = roles
    return roles


def _names_with_role(op_class: type, role: str) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(op_class) if f.metadata.get("role") == role)
