"""Statements of a nest: what one point of the iteration space stores, and what that depends on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tilewright.schedule.affine import Affine, Apply, Convert, Expression, Index, Position
from tilewright.schedule.arrays import Array, Load, Store
from tilewright.source import SourceLocation

# The operators whose order of application changes a sum by its rounding only, and a minimum not at all.
REDUCTIONS = frozenset({"+", "*", "min", "max", "minimum", "maximum", "&", "|", "^"})


@dataclass(frozen=True, eq=False)
class Access:
    """One read or write of an array by a statement."""

    statement: Statement
    array: Array
    place: tuple[Affine, ...]
    is_write: bool

    def __str__(self) -> str:
        return f"{'write of' if self.is_write else 'read of'} {Load(self.array, self.place)}"


@dataclass(frozen=True, eq=False)
class Statement:
    """array[place] = value at each point of a nest; `number` counts the statements of the nest."""

    number: int
    store: Store

    @property
    def location(self) -> SourceLocation | None:
        return self.store.location

    @cached_property
    def accesses(self) -> tuple[Access, ...]:
        """All reads, then the write."""
        reads = [Access(self, load.array, load.place, False) for load in self.store.value.loads()]
        return (*reads, Access(self, self.store.array, self.store.place, True))

    @cached_property
    def reduction(self) -> tuple[str, Expression] | None:
        """The operator and what is combined, of array[place] = array[place] op value, where value does not read it.

        The operator is one of `REDUCTIONS`; other statements have none.
        """
        value = self.store.value
        if not isinstance(value, Apply) or value.name not in REDUCTIONS or len(value.arguments) != 2:
            return None
        for mine, other in (value.arguments, value.arguments[::-1]):
            if self._is_target(mine) and not any(load.array is self.store.array for load in other.loads()):
                return value.name, other
        return None

    def _is_target(self, x: Expression) -> bool:
        return isinstance(x, Load) and x.array is self.store.array and x.place == self.store.place

    def __str__(self) -> str:
        target = Load(self.store.array, self.store.place)
        if self.reduction is not None and not self.reduction[0].isidentifier():
            return f"{target} {self.reduction[0]}= {self.reduction[1]}"
        return f"{target} = {self.store.value}"


def arrays_of(statements: tuple[Statement, ...]) -> Iterator[Array]:
    """Yield the arrays that statements name, each once, in the order of their making."""
    found = {access.array for statement in statements for access in statement.accesses}
    yield from sorted(found, key=lambda array: array.number)


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
