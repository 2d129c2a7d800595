"""What values are made of: keys that values share where they are computed alike, and sums taken apart."""

from __future__ import annotations

from typing import Any

from tilewright.ir.core import Value
from tilewright.ir.ops import Binary, Cast, Constant, Special


def identity_of(value: Value) -> Any:  # Any: what is equal for values that are computed alike
    """Return a key that two values share if the same pure arithmetic gives them."""
    op = value.definition
    if isinstance(op, Constant):
        return ("constant", value.type, op.value)
    if isinstance(op, Special):
        return ("special", op.name)
    if isinstance(op, Binary):
        return (op.kind, value.type, identity_of(op.lhs), identity_of(op.rhs))
    return ("cast", value.type, identity_of(op.x)) if isinstance(op, Cast) else value


def linear_terms(value: Value) -> tuple[dict[Any, int], int]:
    """Return what an integer is a sum of: factors of terms, by their keys, and a number."""
    terms: dict[Any, int] = {}
    constant = 0
    pending = [(value, 1)]
    while pending:
        part, factor = pending.pop()
        op = part.definition
        if isinstance(op, Constant):
            constant += factor * int(op.value)
        elif isinstance(op, Binary) and op.kind in ("add", "sub"):
            pending += [(op.lhs, factor), (op.rhs, factor if op.kind == "add" else -factor)]
        elif isinstance(op, Binary) and op.kind == "mul" and isinstance(op.rhs.definition, Constant):
            pending.append((op.lhs, factor * int(op.rhs.definition.value)))
        else:
            key = identity_of(part)
            terms[key] = terms.get(key, 0) + factor
    return {key: factor for key, factor in terms.items() if factor}, constant
