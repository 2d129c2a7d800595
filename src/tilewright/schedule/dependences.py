"""Dependences: pairs of accesses that reach the same element, and the orders and vectors that would break them.

A pair is a system of linear conditions on integers. Each loop has two variables, one for the iteration of each access,
which count iterations: a loop that steps by 4 has the index 4 * iteration. Sizes of the launch are unknown integers
from 1.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, Union

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, Dimension, Division, Index, Quotient, Symbol, Term, division
from tilewright.schedule.integers import LIMIT, System
from tilewright.schedule.loop_nest import Access, Condition, Loop, LoopNest, Part, settled
from tilewright.schedule.places import BySize, Minimum, choices

# The iteration of a loop for the first access of a pair (0) or the second one (1), a term of it that is not linear, or
# a size of the launch.
Variable: TypeAlias = Union[tuple[Union[Index, Term], int], Dimension]
Terms: TypeAlias = tuple[dict[Variable, int], int]
Values: TypeAlias = dict[Variable, int]


@dataclass(frozen=True, eq=False)
class Side:
    """The loops of a nest at one access of a pair: `side` is 0 for the first and 1 for the second."""

    nest: LoopNest
    side: int

    def terms(self, value: Affine) -> Terms:
        """Return an expression of the loops' indices in the variables of this side."""
        steps: dict[Symbol, int] = {loop.index: loop.step for loop in self.nest.loops}
        return (
            {(s if isinstance(s, Dimension) else (s, self.side)): c * steps.get(s, 1) for s, c in value.terms},
            value.constant,
        )

    def runs(self, values: Iterable[Affine], fixed: Collection[Index] = ()) -> System[Variable]:
        """Return the bounds of the loops, and what the terms in some expressions are that are not linear.

        Indices that are `fixed` are 0, also in loops that run to 0. Of a minimum is said that it is no more than each
        of its parts; `choices` has what else there is to say.
        """
        system = System[Variable]()
        stops = [loop.stop for loop in self.nest.loops if loop.index not in fixed]
        for loop in self.nest.loops:
            if loop.index in fixed:
                system = system.equal({(loop.index, self.side): 1})
                continue
            system = system.at_least_zero({(loop.index, self.side): 1})
            system = system.at_least_zero(*self.terms(loop.stop - 1 - loop.index))
        for found in dict.fromkeys(found for value in (*stops, *values) for found in value.nonlinear()):
            if isinstance(found, Division):
                system = self.divided(system, found, found.divisor)
            elif isinstance(found, BySize):
                system = self._divided_by_size(system, found)
            elif isinstance(found, Minimum):  # an element may be any number
                for part in found.parts:
                    system = system.at_least_zero(*difference(self.terms(part), ({(found, self.side): 1}, 0)))
        return system

    def _divided_by_size(self, system: System[Variable], found: BySize) -> System[Variable]:
        """Return the system with what is known of a quotient or remainder whatever the size is: not all there is."""
        mine: Variable = (found, self.side)
        value, size = self.terms(found.value), self.terms(found.size)
        system = system.at_least_zero(size[0], size[1] - 1)
        least, _ = found.value.bounds(lambda symbol: (0, None))
        if not found.is_quotient:
            system = system.at_least_zero({mine: 1}).at_least_zero(*difference((size[0], size[1] - 1), ({mine: 1}, 0)))
        if least is not None and least >= 0:
            system = system.at_least_zero({mine: 1}).at_least_zero(*difference(value, ({mine: 1}, 0)))
        return system

    def divided(self, system: System[Variable], found: Division | BySize, divisor: int) -> System[Variable]:
        """Return the system with what a quotient or remainder is: 0 <= value - divisor * quotient < divisor."""
        value, mine = self.terms(found.value), (found, self.side)
        if isinstance(found, Quotient) or (isinstance(found, BySize) and found.is_quotient):
            rest = difference(value, ({mine: divisor}, 0))
        else:  # the value less its remainder is the divisor times its quotient
            rest = {mine: 1}, 0
            multiple: Variable = (division(Quotient, found.value, divisor), self.side)
            system = system.equal(*difference(difference(value, rest), ({multiple: divisor}, 0)))
        return system.at_least_zero(*rest).at_least_zero(*difference(({}, divisor - 1), rest))


@dataclass(frozen=True, eq=False)
class Instance:
    """An access of a part, as one of a pair: `side` is 0 for the first and 1 for the second."""

    nest: LoopNest
    number: int
    access: Access
    side: int = 0
    case: tuple[Condition, ...] = ()  # of those in which the statement's own conditions hold
    choice: tuple[Affine, ...] = ()  # what is 0 where the minima in it are certain parts of theirs

    @property
    def part(self) -> Part:
        return self.nest.parts[self.number]

    def terms(self, value: Affine) -> Terms:
        """Return an expression of the loops' indices in the variables of this side."""
        return Side(self.nest, self.side).terms(value)

    @cached_property
    def modes(self) -> tuple[Affine, ...]:
        """The element that is accessed, as expressions of the loops."""
        return tuple(settled(mode.substitute(self.part.places), self.nest.loops) for mode in self.access.place)

    def place(self) -> tuple[Terms, ...]:
        """Return the element that is accessed."""
        return tuple(map(self.terms, self.modes))

    def iteration(self, index: Index) -> Terms:
        """Return where the nest's own index stands."""
        return self.terms(self.part.places[index])

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """What has to hold of the loops where the access happens: what its part asks for, and the statement."""
        own = (condition.substitute(self.part.places) for condition in self.case)
        conditions = [Condition(settled(c.value, self.nest.loops), c.is_equality) for c in own]
        return (*self.part.conditions, *conditions, *(Condition(value, True) for value in self.choice))

    def runs(self) -> System[Variable]:
        """Return the conditions under which the access happens: its loops' bounds, and what its part asks for."""
        values = (*self.modes, *(condition.value for condition in self.conditions))
        system = Side(self.nest, self.side).runs(values, self.part.fixed)
        for condition in self.conditions:
            terms = self.terms(condition.value)
            system = system.equal(*terms) if condition.is_equality else system.at_least_zero(*terms)
        return system

    def chosen(self, *values: Affine) -> Iterator[Instance]:
        """Yield the access for each choice of what the minima in it, and in some expressions, are."""
        for choice in choices(*self.modes, *(condition.value for condition in self.conditions), *values):
            yield replace(self, choice=choice) if choice else self

    def at(self, values: Values) -> str:
        """Return the access and the values of the nest's own indices, for those of the variables."""
        position = ", ".join(f"{index}={_value(self.iteration(index), values)}" for index in self.part.indices)
        return f"{self.access} at {position}" if position else f"{self.access}"

    def element(self, values: Values) -> str:
        """Return the element that is accessed, with numbers."""
        place = ", ".join(str(_value(mode, values)) for mode in self.place())
        return f"{self.access.array.name}[{place}]" if place else self.access.array.name


@dataclass(frozen=True, eq=False)
class Pair:
    """Two accesses of one memory, at least one of which writes."""

    first: Instance
    second: Instance

    @property
    def write(self) -> Access:
        return self.first.access if self.first.access.is_write else self.second.access

    @property
    def is_of_one_case(self) -> bool:
        """Whether both are one access, in one of the cases in which it happens; their order does not matter."""
        one, two = self.first, self.second
        is_one = one.access is two.access and one.number == two.number
        return is_one and one.case is two.case and one.choice is two.choice

    @property
    def is_of_one_reduction(self) -> bool:
        """Whether both are of the element that one and the same statement reduces into."""
        return self.first.access.statement is self.second.access.statement and (
            self.first.access.statement.reduction is not None
        )

    def meets(self) -> System[Variable]:
        """Return the conditions under which both happen, and are of the same element."""
        system = self._same_memory()
        system = system.and_(self.first.runs()).and_(self.second.runs())
        for size in _sizes(system.variables()):
            system = system.at_least_zero({size: 1}, -1)
        return system

    def unknown(self) -> ScheduleError | None:
        """Return the error of what only a launch decides: where both are, or when, is a quotient by a size."""
        sides = [(*x.modes, *(condition.value for condition in x.conditions)) for x in (self.first, self.second)]
        divided = [t for values in sides for x in values for t in x.nonlinear() if isinstance(t, BySize)]
        if not divided:
            return None
        return ScheduleError(
            f"the {self.first.access} and the {self.second.access} may be of one element or not, which {divided[0]} "
            "says, a quotient or remainder by a size of the launch: that cannot be decided before",
            location=self.write.statement.location,
            help="divide by a number, or declare the array with a mode for the quotient",
        )

    def _same_memory(self) -> System[Variable]:
        """Return the conditions under which both are of the same bytes.

        Elements of one array are compared by their places. Forms of one memory have places of their own: their elements
        are compared by their bytes, which overlap where neither ends before the other begins.
        """
        system = System[Variable]()
        if self.first.access.array is self.second.access.array:
            for mine, other in zip(self.first.place(), self.second.place(), strict=True):
                system = system.equal(*difference(mine, other))
            return system
        sides = []
        for side in (self.first, self.second):
            address = side.access.array.address(side.modes)
            if address is None:
                one, two = self.first.access, self.second.access
                raise ScheduleError(
                    f"the {one} and the {two} are of one memory, that of {one.array.memory.name}, seen in two ways "
                    "whose steps only the launch knows: which of them meet cannot be decided",
                    location=self.write.statement.location,
                    help="access what is written in one way only, or declare the array with numbers for its extents",
                )
            sides.append((side.terms(address), side.access.array.element_type.bytes))
        (mine, mine_bytes), (other, other_bytes) = sides
        terms, constant = difference(mine, other)  # mine - other > -mine_bytes, and other - mine > -other_bytes
        system = system.at_least_zero(terms, constant + mine_bytes - 1)
        return system.at_least_zero({v: -c for v, c in terms.items()}, -constant + other_bytes - 1)

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
        texts = [f"{v}={values[v]}" for v in sorted(_sizes(values), key=lambda v: v.number)]
        return f", where {', '.join(texts)}" if texts else ""


def pairs(nest: LoopNest) -> Iterator[Pair]:
    """Yield each pair once: of one access with itself too, and the access of the earlier part first."""
    found = list(instances(nest))
    for n, first in enumerate(found):
        for second in found[n:]:
            is_written = first.access.is_write or second.access.is_write
            if first.access.array.memory is second.access.array.memory and is_written:
                yield Pair(first, replace(second, side=1))


def instances(nest: LoopNest) -> Iterator[Instance]:
    """Yield all accesses, once for each case in which they happen."""
    for number, part in enumerate(nest.parts):
        for statement in part.statements:
            for access in _different(statement.accesses):
                for case in statement.cases[access.under]:
                    yield from Instance(nest, number, access, case=case).chosen()


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


def iterations(loop: Loop) -> tuple[Terms, Terms]:
    """Return the iterations of a loop for the two accesses of a pair."""
    return ({(loop.index, 0): 1}, 0), ({(loop.index, 1): 1}, 0)


def _different(accesses: tuple[Access, ...]) -> list[Access]:
    """Return accesses without those that are like an earlier one."""
    return list({(a.array, a.place, a.is_write, a.under): a for a in reversed(accesses)}.values())[::-1]


def _sizes(variables: Iterable[Variable]) -> list[Dimension]:
    return [v for v in variables if isinstance(v, Dimension)]


def _value(terms: Terms, values: Values) -> int:
    return sum(c * values.get(v, 0) for v, c in terms[0].items()) + terms[1]
