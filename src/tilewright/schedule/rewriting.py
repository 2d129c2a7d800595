"""Expressions and statements with indices replaced."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.expressions import Apply, Convert, Expression, Load, Position, Store
from tilewright.schedule.statements import Statement


def moved(x: Expression, places: Mapping[Index, Affine]) -> Expression:
    """Return an expression whose indices are replaced by affine expressions."""
    if isinstance(x, Load):
        return Load(x.array, tuple(place.substitute(places) for place in x.place))
    if isinstance(x, Position):
        return Position(x.place.substitute(places))
    if isinstance(x, Convert):
        return Convert(moved(x.value, places), x.dtype)
    if isinstance(x, Apply):
        return Apply(x.name, x.function, tuple(moved(part, places) for part in x.arguments))
    return x


def at_places(statement: Statement, places: Mapping[Index, Affine]) -> Statement:
    """Return a statement whose indices are replaced by affine expressions."""
    store = statement.store
    place = tuple(part.substitute(places) for part in store.place)
    return Statement(statement.number, Store(store.array, place, moved(store.value, places), store.location))
