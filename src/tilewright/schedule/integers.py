"""Systems of linear equations and inequalities over the integers: is there a solution, and which.

Two accesses of a loop nest depend on each other where some integers, the indices of the two iterations, meet linear
conditions: both lie in the loops, both reach the same element, and one comes before the other. `System` states such
conditions and `solve` decides them exactly: it answers None only where no integers meet them all. The method is the
Omega test with a search in reduced lattices (`tilewright.schedule.omega`). It always ends, but no method is known that
ends soon for every system; so the work is limited, and beyond the limit no answer is given.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from operator import index
from typing import Generic, TypeVar

from tilewright.errors import ArgumentError, ScheduleError
from tilewright.schedule.omega import Problem
from tilewright.schedule.sides import Work, WorkLimitError

Var = TypeVar("Var", bound=Hashable)
Sum = tuple[tuple[tuple[Var, int], ...], int]  # terms (variable, coefficient), and the constant

LIMIT = 2_000_000  # steps: two seconds at most; questions about loop nests take thousands


class UndecidedError(ScheduleError):
    """Whether integers meet some conditions was not found out within the limit of work."""


@dataclass(frozen=True)
class System(Generic[Var]):
    """State linear conditions on integers, and find integers that meet all of them.

    A variable is any hashable object, and stands for an integer without bounds until a condition bounds it. A system
    is a value: `equal`, `at_least_zero` and `and_` return a longer one and leave theirs as it was, so that systems
    with a common start share it. Coefficients and constants are integers of any size.

    With loops 0 <= i < 4 and 0 <= j < 4, is there an element that i + 1 and 2 * j both reach, with i before j?

    >>> loops = System[str]()
    >>> for name in "ij":
    ...     loops = loops.at_least_zero({name: 1}).at_least_zero({name: -1}, 3)
    >>> same = loops.equal({"i": 1, "j": -2}, 1)
    >>> same.solve()
    {'i': 1, 'j': 1}
    >>> print(same.at_least_zero({"i": -1, "j": 1}, -1).solve())
    None

    Neither may a solution be a fraction:

    >>> print(System[str]().equal({"i": 2, "j": 4}, 1).solve())
    None
    """

    equalities: tuple[Sum[Var], ...] = ()
    inequalities: tuple[Sum[Var], ...] = ()

    def equal(self, terms: Mapping[Var, int], constant: int = 0) -> System[Var]:
        """Return this system with one condition more: sum(c * v) + constant == 0.

        `terms` maps each variable v to its coefficient c. Raise `ArgumentError` where a number is not an integer.

        >>> print(System[str]().equal({"i": 1, "j": -16}, 3))
        i - 16*j + 3 == 0
        """
        return System((*self.equalities, _sum(terms, constant)), self.inequalities)

    def at_least_zero(self, terms: Mapping[Var, int], constant: int = 0) -> System[Var]:
        """Return this system with one condition more: sum(c * v) + constant >= 0.

        `terms` maps each variable v to its coefficient c. Raise `ArgumentError` where a number is not an integer.

        >>> print(System[str]().at_least_zero({"i": -1}, 15))
        -i + 15 >= 0
        """
        return System(self.equalities, (*self.inequalities, _sum(terms, constant)))

    def and_(self, other: System[Var]) -> System[Var]:
        """Return the system of the conditions of both; a variable of both is one variable.

        >>> print(System[str]().equal({"i": 1}, -7).and_(System[str]().at_least_zero({"j": 1})))
        i - 7 == 0
        j >= 0
        """
        return System(self.equalities + other.equalities, self.inequalities + other.inequalities)

    def variables(self) -> tuple[Var, ...]:
        """Return the variables of the conditions, in the order in which they first occur."""
        return tuple(dict.fromkeys(v for terms, _ in self.equalities + self.inequalities for v, _ in terms))

    def holds(self, values: Mapping[Var, int]) -> bool:
        """Return whether `values`, which has a value for every variable, meets all conditions.

        >>> System[str]().at_least_zero({"i": 1}, -2).holds({"i": 1})
        False
        """
        return all(_value(each, values) == 0 for each in self.equalities) and all(
            _value(each, values) >= 0 for each in self.inequalities
        )

    def solve(self, work: Work | None = None) -> dict[Var, int] | None:
        """Return integers that meet all conditions, or None where no integers do.

        The answer has a value for each of `variables()`; equal systems get equal answers. Both answers are exact,
        whatever the size of the numbers and with variables that nothing bounds. Questions that share `work` share its
        limit; without it, this one has `LIMIT` steps. Raises `UndecidedError` beyond the limit.

        >>> System[str]().at_least_zero({"n": 1}, -3).at_least_zero({"m": 1, "n": -2}).solve()
        {'n': 3, 'm': 6}
        """
        variables = self.variables()
        numbers = {variable: number for number, variable in enumerate(variables)}
        problem = Problem(work or Work(LIMIT))
        try:
            for terms, constant in sorted(self.inequalities, key=lambda each: len(each[0])):  # bounds first
                problem.require({numbers[v]: c for v, c in terms}, -constant, None)
            for terms, constant in self.equalities:
                problem.require({numbers[v]: c for v, c in terms}, -constant, -constant)
            values = problem.solve()
        except WorkLimitError:
            raise UndecidedError(
                f"whether integers meet {len(self.equalities)} equations and {len(self.inequalities)} inequalities of "
                f"{len(variables)} variables was not decided within {problem.work.limit:,} steps"
            ) from None
        return None if values is None else {v: values.get(numbers[v], 0) for v in variables}

    def __str__(self) -> str:
        lines = [f"{_text(each)} == 0" for each in self.equalities]
        return "\n".join(lines + [f"{_text(each)} >= 0" for each in self.inequalities]) or "true"


def _sum(terms: Mapping[Var, int], constant: int) -> Sum[Var]:
    """Return the terms and the constant as plain integers, without the terms that are zero."""
    try:
        return tuple((v, index(c)) for v, c in terms.items() if c != 0), index(constant)
    except TypeError:
        raise ArgumentError(
            "a condition on integers takes integers as coefficients and as its constant, "
            f"not {dict(terms)} and {constant!r}"
        ) from None


def _value(each: Sum[Var], values: Mapping[Var, int]) -> int:
    terms, constant = each
    return sum(c * values[v] for v, c in terms) + constant


def _text(each: Sum[Var]) -> str:
    terms, constant = each
    parts = [(c, f"{v}" if abs(c) == 1 else f"{abs(c)}*{v}") for v, c in terms]
    if constant != 0 or not parts:
        parts.append((constant, f"{abs(constant)}"))
    (first, text), *rest = parts
    return ("-" if first < 0 else "") + text + "".join(f" {'-' if c < 0 else '+'} {part}" for c, part in rest)
