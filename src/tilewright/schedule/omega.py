"""The Omega test: exact elimination of integer variables from linear equations and inequalities.

A `Problem` holds bands, low <= sum(c * v) <= high, where either end may be missing. Dividing a band by the gcd of its
coefficients and rounding its ends inwards loses no integer point, and a band whose ends meet is an equation.

Equations go first, each to its end before the next. With v the variable of the smallest coefficient a in size, and q_u
the integer nearest to a_u / a for every other variable u and for the constant,

    a * v + sum(a_u * u) + c == 0    with    v = v' - sum(q_u * u) - q_c

is an equation of v' and the same others, whose coefficients a_u - q_u * a are at most |a| / 2 in size. This is a column
operation of a Hermite normal form: it and its inverse are integral, so that integer points correspond one to one. Where
|a| is 1 at last, v' is given by the others.

    This ends. The coefficients of an equation have gcd 1. So where |a| > 1, some a_u - q_u * a is not zero, and the
    smallest coefficient is at most half of what it was: after log2 |a| + 1 such steps it is 1, and the equation and one
    variable are gone. No step brings a new variable, so there are at most as many equations to solve as variables.
    Nothing else is done to an equation before it is solved, and what becomes an equation later finds one variable less.

Then one variable v after another. Its bands say beta <= a * v and b * v <= alpha, with a, b > 0. For each such pair

    real shadow    a * alpha - b * beta >= 0                    what any v demands
    dark shadow    a * alpha - b * beta >= (a - 1) * (b - 1)    what assures an integer v

They are the same condition where a or b is 1, and v can be left out. That ends too, with the variables. Where the two
differ for every variable that is left, or v has so many bands that their pairs would be too many, an integer point of
the bands is searched for in `lattice_search` (Pugh goes on with points between the shadows, one equation for each: as
many as the coefficients are large).

What can take long is that search, and numbers that grow in long systems of equations. Both spend `Work`.

Source: William Pugh, "The Omega Test: a fast and practical integer programming algorithm for dependence analysis",
Supercomputing 1991.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from tilewright.schedule.lattice_search import integer_point
from tilewright.schedule.sides import (
    Definition,
    Ends,
    Form,
    Linear,
    NoSolutionError,
    Sides,
    Work,
    mentions,
    nearest_quotient,
    nearest_to_zero,
    overlap,
    replaced,
)
from tilewright.schedule.simplex import Row

LARGE = 40  # bands; a variable whose elimination adds more is left to the search, even where its shadows agree


class Problem:
    """A conjunction of bands over variables, which are numbers, that `solve` consumes."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.bounds: dict[int, Ends] = {}  # bands of one variable
        self.bands: dict[Form, Ends] = {}  # bands of several
        self.equations: list[Linear] = []  # each == 0
        self.steps: list[Definition | Sides] = []  # how to find the variables that are gone, the last one first
        self.impossible: bool = False

    def require(self, terms: Mapping[int, int], low: int | None, high: int | None) -> None:
        """Add the band low <= sum(terms) <= high."""
        try:
            self._require(terms, low, high)
        except NoSolutionError:
            self.impossible = True

    def solve(self) -> dict[int, int] | None:
        """Return integers that meet all bands, or None where there are none; a variable left out may be 0.

        Raises `WorkLimitError` where that takes more work than the limit.
        """
        if self.impossible:
            return None
        try:
            values = self._solve()
        except NoSolutionError:
            return None
        for step in reversed(self.steps):
            values[step.variable] = step.choose(values)
        return values

    def _solve(self) -> dict[int, int]:
        """Eliminate until bounds are left, and return the values that they allow."""
        while True:
            while self.equations:
                self._eliminate(self._next_equation())
            if not self.bands:
                return {v: nearest_to_zero(ends) for v, ends in self.bounds.items()}
            variable = self._choose()
            if variable is None:
                return self._search()
            sides = self._take(variable)
            self.steps.append(sides)
            self._cast(sides)

    # Bands

    def _require(self, terms: Mapping[int, int], low: int | None, high: int | None) -> None:
        form = tuple(sorted((v, c) for v, c in terms.items() if c))
        if not form:
            if (low is not None and low > 0) or (high is not None and high < 0):
                raise NoSolutionError
            return
        divisor = gcd(*(c for _, c in form))
        if form[0][1] < 0:
            divisor = -divisor
            low, high = high, low
        if divisor != 1:
            form = tuple((v, c // divisor) for v, c in form)
            low = None if low is None else -(-low // divisor)  # rounded up
            high = None if high is None else high // divisor
        if len(form) == 1:
            self._bound(form[0][0], low, high)
        else:
            self._band(form, low, high)

    def _bound(self, variable: int, low: int | None, high: int | None) -> None:
        ends = overlap(self.bounds.get(variable, (None, None)), (low, high))
        self.bounds[variable] = ends
        if ends[0] is not None and ends[0] == ends[1]:
            self.equations.append(Linear({variable: 1}, -ends[0]))

    def _band(self, form: Form, low: int | None, high: int | None) -> None:
        least, most = self._reach(form)
        overlap((least, most), (low, high))
        if low is not None and least is not None and least >= low:
            low = None  # the bounds imply it
        if high is not None and most is not None and most <= high:
            high = None
        if low is None and high is None:
            return
        ends = overlap(self.bands.get(form, (None, None)), (low, high))
        if ends[0] is not None and ends[0] == ends[1]:
            self.bands.pop(form, None)
            self.equations.append(Linear(dict(form), -ends[0]))
        else:
            self.bands[form] = ends

    def _reach(self, form: Form) -> Ends:
        """Return the least and the largest value that the bounds of the variables allow a form."""
        least: int | None = 0
        most: int | None = 0
        for v, c in form:
            low, high = self.bounds.get(v, (None, None))
            if c < 0:
                low, high = high, low
            least = None if least is None or low is None else least + c * low
            most = None if most is None or high is None else most + c * high
        return least, most

    # Equations

    def _next_equation(self) -> Linear:
        """Take the equation that is easiest to solve: a coefficient +-1 if there is one, and few terms."""

        def difficulty(number: int) -> tuple[int, int]:
            terms = self.equations[number].terms
            return min(map(abs, terms.values()), default=0), len(terms)

        return self.equations.pop(min(range(len(self.equations)), key=difficulty))

    def _eliminate(self, equation: Linear) -> None:
        """Solve one equation to its end: one variable less."""
        divisor = gcd(*equation.terms.values())
        if divisor == 0 or equation.constant % divisor:
            raise NoSolutionError
        terms = {v: c // divisor for v, c in equation.terms.items()}
        constant = equation.constant // divisor
        while True:
            variable = min(terms, key=lambda v: (abs(terms[v]), v in self.bounds))
            a = terms.pop(variable)
            if abs(a) == 1:
                self._substitute(variable, Linear({v: -a * c for v, c in terms.items()}, -a * constant))
                return
            shift = {v: -nearest_quotient(c, a) for v, c in terms.items()}
            shift[variable], offset = 1, -nearest_quotient(constant, a)
            self._substitute(variable, Linear({v: c for v, c in shift.items() if c}, offset))
            terms = {v: c + a * shift[v] for v, c in terms.items() if c + a * shift[v]}
            terms[variable], constant = a, constant + a * offset

    def _substitute(self, variable: int, value: Linear) -> None:
        """Put `value` in the place of `variable` everywhere."""
        self.steps.append(Definition(variable, value))
        touched = [(dict(form), ends) for form, ends in self.bands.items() if mentions(form, variable)]
        largest = max(map(abs, value.terms.values()), default=0)
        self.work.spend((len(touched) + len(self.equations)) * len(value.terms) + len(self.bands), largest)
        self.bands = {form: ends for form, ends in self.bands.items() if not mentions(form, variable)}
        equations, self.equations = self.equations, []
        for each in equations:
            terms, shift = replaced(each.terms, variable, value)
            if terms:
                self.equations.append(Linear(terms, each.constant + shift))
            elif each.constant + shift:
                raise NoSolutionError
        if variable in self.bounds:
            touched.append(({variable: 1}, self.bounds.pop(variable)))
        for band, (low, high) in touched:
            terms, shift = replaced(band, variable, value)
            self._require(terms, None if low is None else low - shift, None if high is None else high - shift)

    # Inequalities

    def _choose(self) -> int | None:
        """Return the variable to eliminate next: its shadows agree, and it leaves the fewest bands; None for none."""
        counts: dict[int, list[int]] = {}  # lower sides, upper sides, the largest coefficient of each
        for form, (low, high) in self.bands.items():
            for v, c in form:
                count = counts.get(v)
                if count is None:
                    at_least, at_most = self.bounds.get(v, (None, None))
                    count = counts[v] = [int(at_least is not None), int(at_most is not None), 1, 1]
                for end, side in ((low, c < 0), (high, c > 0)):
                    if end is not None:
                        count[side] += 1
                        count[2 + side] = max(count[2 + side], abs(c))

        def growth(variable: int) -> int | None:
            lowers, uppers, a, b = counts[variable]
            if not lowers or not uppers:
                return -lowers - uppers
            added = lowers * uppers - lowers - uppers
            return added if (a == 1 or b == 1) and added <= LARGE else None

        candidates = [(added, v) for v in counts if (added := growth(v)) is not None]
        return min(candidates)[1] if candidates else None

    def _take(self, variable: int) -> Sides:
        """Remove the bands of a variable, and return what they say of it."""
        lowers: list[tuple[int, Linear]] = []
        uppers: list[tuple[int, Linear]] = []
        touched = [form for form in self.bands if mentions(form, variable)]
        bands: list[tuple[Form, Ends]] = [(form, self.bands.pop(form)) for form in touched]
        if variable in self.bounds:
            bands.append((((variable, 1),), self.bounds.pop(variable)))
        for form, (low, high) in bands:
            terms = dict(form)
            coefficient = terms.pop(variable)
            sign = 1 if coefficient > 0 else -1
            # low <= coefficient * v + rest <= high, as sides of |coefficient| * v
            rest = {v: -sign * c for v, c in terms.items()}
            for end, side in ((low, lowers if sign > 0 else uppers), (high, uppers if sign > 0 else lowers)):
                if end is not None:
                    side.append((abs(coefficient), Linear(rest, sign * end)))
        return Sides(variable, lowers, uppers)

    def _cast(self, sides: Sides) -> None:
        """Add the shadow of a variable that was taken out, whose real and dark shadow agree."""
        for a, beta in sides.lowers:
            for b, alpha in sides.uppers:
                terms = {v: a * c for v, c in alpha.terms.items()}
                for v, c in beta.terms.items():
                    terms[v] = terms.get(v, 0) - b * c
                self.work.spend(len(terms))
                self._require(terms, b * beta.constant - a * alpha.constant, None)

    def _search(self) -> dict[int, int]:
        """Return values for the variables of the bands and bounds that are left."""
        bands = [*self.bands.items(), *((((v, 1),), ends) for v, ends in self.bounds.items())]
        variables = sorted({v for form, _ in bands for v, _ in form})
        rows: list[Row] = []
        for form, (low, high) in bands:
            terms = dict(form)
            for end, sign in ((low, 1), (high, -1)):
                if end is not None:
                    rows.append(([sign * terms.get(v, 0) for v in variables], -sign * end))
        point = integer_point(rows, len(variables), self.work)
        if point is None:
            raise NoSolutionError
        return dict(zip(variables, point, strict=True))
