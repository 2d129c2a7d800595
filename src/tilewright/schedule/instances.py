"""Pairs of accesses of a loop nest, and the conditions under which both happen and reach the same element.

A pair is a system of linear conditions on integers. Each loop has two variables, one for the turn of each access, which
count turns: a loop that steps by 4 has the index 4 * turn. Sizes of the launch are unknown integers from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias, Union

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, Dimension, Index, Symbol
from tilewright.schedule.integers import LIMIT, System
from tilewright.schedule.loop_nest import Loop, LoopNest, Part
from tilewright.schedule.statements import Access

# The turn of a loop for the first access of a pair (0) or the second one (1), or a size of the launch.
Variable: TypeAlias = Union[tuple[Index, int], Dimension]
Terms: TypeAlias = tuple[dict[Variable, int], int]
Values: TypeAlias = dict[Variable, int]


@dataclass(frozen=True, eq=False)
class Instance:
    """An access of a part, as one of a pair: `side` is 0 for the first and 1 for the second."""

    nest: LoopNest
    number: int
    access: Access
    side: int = 0

    @property
    def part(self) -> Part:
        return self.nest.parts[self.number]

    def terms(self, value: Affine) -> Terms:
        """Return an expression of the loops' indices in the variables of this side."""
        steps: dict[Symbol, int] = {loop.index: loop.step for loop in self.nest.loops}
        return (
            {(s if isinstance(s, Dimension) else (s, self.side)): c * steps.get(s, 1) for s, c in value.terms},
            value.constant,
        )

    def place(self) -> tuple[Terms, ...]:
        """Return the element that is accessed."""
        return tuple(self.terms(mode.substitute(self.part.places)) for mode in self.access.place)

    def turn(self, index: Index) -> Terms:
        """Return where the nest's own index stands."""
        return self.terms(self.part.places[index])

    def runs(self) -> System[Variable]:
        """Return the conditions under which the access happens: its loops' bounds, and what its part asks for."""
        system = System[Variable]()
        for loop in self.nest.loops:
            system = system.at_least_zero({(loop.index, self.side): 1})
            system = system.at_least_zero(*self.terms(loop.stop - 1 - loop.index))
        for condition in self.part.conditions:
            terms = self.terms(condition.value)
            system = system.equal(*terms) if condition.is_equality else system.at_least_zero(*terms)
        return system

    def at(self, values: Values) -> str:
        """Return the access and the values of the nest's own indices, for those of the variables."""
        found = ", ".join(f"{index}={_value(self.turn(index), values)}" for index in self.part.indices)
        return f"{self.access} at {found}" if found else f"{self.access}"

    def element(self, values: Values) -> str:
        """Return the element that is accessed, with numbers."""
        place = ", ".join(str(_value(mode, values)) for mode in self.place())
        return f"{self.access.array.name}[{place}]" if place else self.access.array.name


@dataclass(frozen=True, eq=False)
class Pair:
    """Two accesses of one array, at least one of which writes."""

    first: Instance
    second: Instance

    @property
    def write(self) -> Access:
        return self.first.access if self.first.access.is_write else self.second.access

    @property
    def is_of_one_reduction(self) -> bool:
        """Whether both are of the element that one and the same statement reduces into."""
        return self.first.access.statement is self.second.access.statement and (
            self.first.access.statement.reduction is not None
        )

    def meets(self) -> System[Variable]:
        """Return the conditions under which both happen, and are of the same element."""
        system = System[Variable]()
        for mine, other in zip(self.first.place(), self.second.place(), strict=True):
            system = system.equal(*difference(mine, other))
        system = system.and_(self.first.runs()).and_(self.second.runs())
        for size in _sizes(system.variables()):
            system = system.at_least_zero({size: 1}, -1)
        return system

    def undecided(self, refused: str, question: str) -> ScheduleError:
        """Return the error of what was refused, because a question about the pair took more than `LIMIT` steps."""
        is_one = self.first.access is self.second.access and self.first.number == self.second.number
        second = "itself in another iteration" if is_one else f"the {self.second.access}"
        return ScheduleError(
            f"{refused}: whether the {self.first.access} and {second} {question} was not decided in {LIMIT:,} steps",
            location=self.write.statement.location,
            help=f"give {self.write.array.name} one dimension for each loop in place of a computed index, use smaller "
            "factors in its indices, or do this before loops are split and skewed",
        )

    def sizes(self, values: Values) -> str:
        """Return the sizes of the launch in a solution, as the end of a sentence."""
        found = [f"{v}={values[v]}" for v in sorted(_sizes(values), key=lambda v: v.number)]
        return f", where {', '.join(found)}" if found else ""


def pairs(nest: LoopNest) -> Iterator[Pair]:
    """Yield each pair once: of one access with itself too, and the access of the earlier part first."""
    found = [
        Instance(nest, number, access)
        for number, part in enumerate(nest.parts)
        for statement in part.statements
        for access in _different(statement.accesses)
    ]
    for n, first in enumerate(found):
        for second in found[n:]:
            is_written = first.access.is_write or second.access.is_write
            if first.access.array is second.access.array and is_written:
                yield Pair(first, replace(second, side=1))


def difference(mine: Terms, other: Terms) -> Terms:
    """Return mine - other."""
    terms = dict(mine[0])
    for variable, factor in other[0].items():
        terms[variable] = terms.get(variable, 0) - factor
    return terms, mine[1] - other[1]


def is_before(system: System[Variable], mine: Terms, other: Terms) -> System[Variable]:
    """Return the system with the condition mine < other."""
    terms, constant = difference(other, mine)
    return system.at_least_zero(terms, constant - 1)


def turns(loop: Loop) -> tuple[Terms, Terms]:
    """Return the turns of a loop for the two accesses of a pair."""
    return ({(loop.index, 0): 1}, 0), ({(loop.index, 1): 1}, 0)


def _different(accesses: tuple[Access, ...]) -> list[Access]:
    """Return accesses without those that are like an earlier one."""
    return list({(a.array, a.place, a.is_write): a for a in reversed(accesses)}.values())[::-1]


def _sizes(variables: Iterable[Variable]) -> list[Dimension]:
    return [v for v in variables if isinstance(v, Dimension)]


def _value(terms: Terms, values: Values) -> int:
    return sum(c * values.get(v, 0) for v, c in terms[0].items()) + terms[1]
