"""Linear programs in rational numbers, solved exactly: is a polyhedron empty, and how far does it reach.

The simplex method on a table of integers with one common denominator. A step of it exchanges two variables,

    s = a * x + rest   ->   x = (s - rest) / a

and every entry of the new table is again an integer over a common denominator (the division by the old one is exact),
so that the numbers stay minors of the matrix that was given. The entering and the leaving variable are the ones of
smallest number that qualify (Bland's rule), so that no table occurs twice and the method ends. An extreme value is
first looked for by the columns of largest coefficient, a limited number of times, which usually is the shorter way.

Sources: R. Bland, "New finite pivoting rules for the simplex method", 1977; J. Edmonds and J.-F. Maurras, "Note sur
les Q-matrices d'Edmonds", 1997, for the integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain

from tilewright.schedule.sides import Work

Row = tuple[list[int], int]  # coefficients and constant of a sum that has to be zero or more


@dataclass(eq=False)
class _Line:
    """A variable of the table as a sum: of the variables of the columns, and last a constant."""

    number: int  # of the condition whose sum this is; -1 for a coordinate
    terms: list[int]


class Polyhedron:
    """The points at which every one of `rows` is zero or more, and a vertex of it.

    Coordinates have no sign. Each is exchanged with a condition at the start and then stays a line, from which its
    value is read; one that no condition mentions stays a column, and is 0.
    """

    def __init__(self, rows: Sequence[Row], size: int, work: Work, goals: Sequence[Row] = ()) -> None:
        """Make the table; extreme values can be asked for of coordinates, and of `goals`, numbered behind them."""
        self.work = work
        self.denominator: int = 1
        self.columns: list[int] = [
            -1
        ] * size  # the number of the condition that is zero at the vertex; -1 for a coordinate
        self.conditions: list[_Line] = [_Line(n, [*terms, constant]) for n, (terms, constant) in enumerate(rows)]
        self.coordinates: list[_Line] = [_Line(-1, [int(m == n) for m in range(size)] + [0]) for n in range(size)]
        self.coordinates += [_Line(-1, [*terms, constant]) for terms, constant in goals]
        self.size = size
        for column in range(size):
            line = next((line for line in self.conditions if line.terms[column]), None)
            if line is not None:
                self._exchange(line, column)
                self.conditions.remove(line)  # now it says what the coordinate is, as the coordinate's own line does

    def is_empty(self) -> bool:
        """Return whether no point meets all conditions; otherwise the table is at a vertex afterwards."""
        while True:
            violated = [line for line in self.conditions if line.terms[-1] < 0]
            if not violated:
                return False
            line = min(violated, key=lambda line: line.number)
            column = self._column(line, 1)
            if column is None:
                return True
            self._exchange(line, column)

    def extreme(self, coordinate: int, sign: int) -> Fraction | None:
        """Return the largest value of a coordinate (the least for sign -1) at a table that is at a vertex.

        None where it has no end. The table is at a vertex with that value afterwards.
        """
        goal = self.coordinates[coordinate]
        if any(goal.terms[c] for c, number in enumerate(self.columns) if number < 0):
            return None
        exchanges = 0
        while True:
            column = self._column(goal, sign, steepest=exchanges < len(self.columns))
            exchanges += 1
            if column is None:
                return Fraction(goal.terms[-1], self.denominator)
            falling = [line for line in self.conditions if line.terms[column] < 0]
            if not falling:
                return None
            leaving = falling[0]
            for line in falling[1:]:
                mine, best = line.terms[-1] * leaving.terms[column], leaving.terms[-1] * line.terms[column]
                if mine > best or (mine == best and line.number < leaving.number):  # both coefficients are negative
                    leaving = line
            self._exchange(leaving, column)

    def vertex(self) -> list[Fraction]:
        """Return the coordinates of the vertex at which the table is."""
        return [Fraction(line.terms[-1], self.denominator) for line in self.coordinates[: self.size]]

    def _column(self, line: _Line, sign: int, steepest: bool = False) -> int | None:
        """Return the column of least number that lets a sum grow (or fall, for sign -1), or of largest coefficient."""
        candidates = [c for c, number in enumerate(self.columns) if number >= 0 and sign * line.terms[c] > 0]
        if steepest:
            return max(candidates, key=lambda c: abs(line.terms[c]), default=None)
        return min(candidates, key=lambda c: self.columns[c], default=None)

    def _exchange(self, leaving: _Line, column: int) -> None:
        """Make the column's variable of a line, and the line's variable of the column."""
        old, pivot = self.denominator, leaving.terms[column]
        given = leaving.terms
        sign = 1 if pivot > 0 else -1
        self.denominator = sign * pivot
        self.work.spend((len(self.conditions) + len(self.coordinates)) * len(given), self.denominator)
        for line in chain(self.conditions, self.coordinates):
            if line is leaving:
                continue
            factor = line.terms[column]
            if factor:
                terms = [sign * (pivot * a - factor * b) // old for a, b in zip(line.terms, given, strict=True)]
                terms[column] = sign * factor
                line.terms = terms
            elif sign * pivot != old:
                line.terms = [sign * pivot * a // old for a in line.terms]
        leaving.terms = [-sign * b for b in given]
        leaving.terms[column] = sign * old
        self.columns[column], leaving.number = leaving.number, self.columns[column]
