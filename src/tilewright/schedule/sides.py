"""Linear sums, and the two sides between which they hold a variable of a system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Form = tuple[tuple[int, int], ...]  # (variable, coefficient) by rising variable; gcd 1, the first coefficient positive
Ends = tuple[int | None, int | None]  # low and high


class NoSolutionError(Exception):
    """No integers meet the bands: ends a search, and stays inside of the Omega test."""


class WorkLimitError(Exception):
    """The search for integers was stopped by its limit of work: stays inside of `tilewright.schedule`."""


@dataclass
class Work:
    """What a search may do, and what it has done, in steps: one step is an operation on one coefficient.

    Operations on numbers of more than 256 bits count more, so that a limit also bounds the memory of a search.
    """

    limit: int
    done: int = 0

    def spend(self, operations: int, largest: int = 0) -> None:
        """Count operations on numbers as large as `largest`; raise `WorkLimitError` beyond the limit."""
        self.done += operations * (1 + largest.bit_length() // 256)
        if self.done > self.limit:
            raise WorkLimitError


@dataclass(frozen=True)
class Linear:
    """A sum of terms and a constant."""

    terms: dict[int, int]
    constant: int

    def at(self, values: Mapping[int, int]) -> int:
        return sum(c * values.get(v, 0) for v, c in self.terms.items()) + self.constant


@dataclass(frozen=True)
class Definition:
    """A variable that an equation gives: variable = value."""

    variable: int
    value: Linear

    def choose(self, values: Mapping[int, int]) -> int:
        return self.value.at(values)


@dataclass(frozen=True)
class Sides:
    """What bounds a variable: a * v >= beta for each (a, beta) of `lowers`, b * v <= alpha for each of `uppers`."""

    variable: int
    lowers: list[tuple[int, Linear]]
    uppers: list[tuple[int, Linear]]

    def range(self, values: Mapping[int, int]) -> Ends:
        """Return the least and the largest integer that the sides allow where the others have `values`."""
        low = max((-(-beta.at(values) // a) for a, beta in self.lowers), default=None)
        high = min((alpha.at(values) // b for b, alpha in self.uppers), default=None)
        return low, high

    def allow(self, values: Mapping[int, int]) -> bool:
        """Return whether they leave the variable an integer."""
        low, high = self.range(values)
        return low is None or high is None or low <= high

    def choose(self, values: Mapping[int, int]) -> int:
        return nearest_to_zero(self.range(values))


def mentions(form: Form, variable: int) -> bool:
    """Return whether the variable has a coefficient in the form."""
    return any(v == variable for v, _ in form)


def replaced(terms: Mapping[int, int], variable: int, value: Linear) -> tuple[dict[int, int], int]:
    """Return the terms with `value` in the place of `variable`, and the constant that this adds."""
    factor = terms.get(variable, 0)
    if not factor:
        return dict(terms), 0
    result = {v: c for v, c in terms.items() if v != variable}
    for v, c in value.terms.items():
        result[v] = result.get(v, 0) + factor * c
    return {v: c for v, c in result.items() if c}, factor * value.constant


def overlap(one: Ends, other: Ends) -> Ends:
    """Return the ends of what lies in both ranges; raise where nothing does."""
    low = max((end for end in (one[0], other[0]) if end is not None), default=None)
    high = min((end for end in (one[1], other[1]) if end is not None), default=None)
    if low is not None and high is not None and low > high:
        raise NoSolutionError
    return low, high


def nearest_to_zero(ends: Ends) -> int:
    """Return the integer of a range that is least in size."""
    low, high = ends
    if low is not None and low > 0:
        return low
    return high if high is not None and high < 0 else 0


def nearest_quotient(number: int, divisor: int) -> int:
    """Return the integer nearest to number / divisor, so that number - divisor * it is at most half of divisor in size.

    >>> [nearest_quotient(n, 3) for n in (2, 3, 4, -2)], nearest_quotient(7, -4)
    ([1, 1, 1, -1], -2)
    """
    return (2 * number + divisor) // (2 * divisor)
