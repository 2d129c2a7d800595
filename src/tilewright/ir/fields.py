"""How an op declares its parts, and what follows from the declaration.

An op is a dataclass. Each field is declared as an operand, a tuple of operands, a block, an attribute or a buffer with
its use; walking, substitution, comparing, printing and the effects on memory are derived from these roles and written
nowhere else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from tilewright.ir.effects import Use, UseDeclaration

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
    """Declare a field that holds compile-time data: a name, a number. Buffers are declared by how they are used."""
    return dataclasses.field(default=default, metadata={"role": ATTRIBUTE})


# How many elements an access has, or how many lanes of a warp make one: a function of the op. Any: of its own class.
Count = Callable[[Any], int]


def reads(index: str, elements: Count | None = None, lanes: Count | None = None, *, rows: bool = False) -> Any:
    """Declare a buffer that the op reads, at the index in the field of that name; one element where none are given."""
    return _buffer(UseDeclaration("", Use.READ, index, elements, lanes, rows))


def writes(
    index: str,
    elements: Count | None = None,
    lanes: Count | None = None,
    *,
    rows: bool = False,
    past_l1: Callable[[Any], bool] | None = None,
    lasting: bool = False,
) -> Any:  # Any: as above
    """Declare a buffer that the op writes, as `reads`; with `lasting` its bytes stay its own until the kernel ends."""
    return _buffer(UseDeclaration("", Use.WRITE, index, elements, lanes, rows, past_l1, lasting))


def updates(index: str, elements: Count | None = None) -> Any:  # Any: as above
    """Declare a buffer that the op reads and writes indivisibly, at the index in the field of that name."""
    return _buffer(UseDeclaration("", Use.UPDATE, index, elements))


def begins() -> Any:  # Any: as above
    """Declare a buffer whose life the op begins, with undefined contents."""
    return _buffer(UseDeclaration("", Use.BEGIN))


def names() -> Any:  # Any: as above
    """Declare a buffer that the op speaks of, and neither reads nor writes."""
    return _buffer(UseDeclaration("", Use.NAME))


def _buffer(declaration: UseDeclaration) -> Any:  # Any: as above
    # The name of the field is known when the class is complete.
    return dataclasses.field(metadata={"role": ATTRIBUTE, "use": declaration})


class Roles(NamedTuple):
    """The names of an op class's fields by role, each in the order of declaration, and its uses of buffers."""

    operand: tuple[str, ...]
    operands: tuple[str, ...]
    block: tuple[str, ...]
    attribute: tuple[str, ...]
    uses: tuple[UseDeclaration, ...]


_known: dict[type, Roles] = {}


def roles_of(op_class: type) -> Roles:
    """Return the field names of an op class by role."""
    roles = _known.get(op_class)
    if roles is None:
        roles = _known[op_class] = _roles(op_class)
    return roles


def _roles(op_class: type) -> Roles:
    fields = dataclasses.fields(op_class)
    uses = tuple(dataclasses.replace(f.metadata["use"], field=f.name) for f in fields if "use" in f.metadata)
    operand, operands, block, attribute = (
        tuple(f.name for f in fields if f.metadata.get("role") == role)
        for role in (OPERAND, OPERANDS, BLOCK, ATTRIBUTE)
    )
    undeclared = [f.name for f in fields if f.type == "Buffer" and "use" not in f.metadata]
    assert not undeclared, f"{op_class.__name__}: how are the buffers {undeclared} used?"
    indices = {u.index for u in uses if u.index is not None}
    assert indices <= set(operand), f"{op_class.__name__}: no operands of the names {indices}"
    return Roles(operand, operands, block, attribute, uses)
