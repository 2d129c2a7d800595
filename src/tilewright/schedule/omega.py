"""The Omega test: exact elimination of integer variables from linear equations and inequalities.

A `Problem` holds bands, low <= sum(c * v) <= high, where either end may be missing. Dividing a band by the gcd of its
coefficients and rounding its ends inwards loses no integer point, and a band whose ends meet is an equation.

Equations go first. One with a coefficient +-1 gives its variable as a sum of others. In any other, with the smallest
coefficient a_k in size and m = |a_k| + 1, a new variable s stands for an integer that must exist,

    sum((a_i mod^ m) * v_i) + (c mod^ m) == m * s,    a mod^ m = a - m * floor(a / m + 1/2),

and since a_k mod^ m = -+1, this gives v_k; what is left of the equation has smaller coefficients.

Then one variable v after another. Its bands say beta <= a * v and b * v <= alpha, with a, b > 0. For each such pair

    real shadow    a * alpha - b * beta >= 0                    what any v demands
    dark shadow    a * alpha - b * beta >= (a - 1) * (b - 1)    what assures an integer v

They are the same condition where a or b is 1. Where they differ, the real shadow may have integer points and the dark
one none. Then an integer v lies close to one of its bounds, a * v == beta + i with

    0 <= i <= (a * b_max - a - b_max) / b_max

and each such equation is tried in turn (a splinter), or the same at the upper bounds, or each value of v, whichever
are fewest.

Source: William Pugh, "The Omega Test: a fast and practical integer programming algorithm for dependence analysis",
Supercomputing 1991.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from typing import Literal

from tilewright.schedule.sides import (
    Definition,
    Ends,
    Form,
    Linear,
    NoSolutionError,
    Sides,
    equated,
    mentions,
    nearest_to_zero,
    overlap,
    replaced,
    smallest_cover,
    symmetric_remainder,
)

Method = Literal["exact", "dark", "real"]

LARGE = 40  # bands; an elimination that adds more waits for others, even where its shadows agree


class Problem:
    """A conjunction of bands over the variables 0, 1, 2, ..., that `solve` consumes."""

    def __init__(self, variables: int) -> None:
        self.variables = variables  # also the next new variable
        self.bounds: dict[int, Ends] = {}  # bands of one variable
        self.bands: dict[Form, Ends] = {}  # bands of several
        self.equations: list[Linear] = []  # each == 0
        self.steps: list[Definition | Sides] = []  # how to find the variables that are gone, the last one first
        self.impossible = False
        self.method: Method = "exact"  # which shadow stands for a variable whose two shadows differ

    def copy(self) -> Problem:
        """Return the same bands, with no steps: the copy finds its own variables, and its owner the others."""
        other = Problem(self.variables)
        other.bounds, other.bands, other.equations = self.bounds.copy(), self.bands.copy(), self.equations.copy()
        return other

    def require(self, terms: Mapping[int, int], low: int | None, high: int | None) -> None:
        """Add the band low <= sum(terms) <= high."""
        try:
            self._require(terms, low, high)
        except NoSolutionError:
            self.impossible = True

    def solve(self) -> dict[int, int] | None:
        """Return integers that meet all bands, or None where there are none; a variable left out may be 0."""
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
                self._substitute(*self._isolate(self._next_equation()))
            chosen = self._choose()
            if chosen is None:
                return {v: nearest_to_zero(ends) for v, ends in self.bounds.items()}
            variable, exact = chosen
            sides = self._take(variable)
            self.steps.append(sides)
            if not exact and self.method == "exact":
                return self._search(sides)
            self._cast(sides, dark=self.method == "dark")

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

    def _isolate(self, equation: Linear) -> tuple[int, Linear]:
        """Return a variable and the sum that it equals; it may leave a smaller equation to be solved."""
        divisor = gcd(*equation.terms.values())
        if divisor == 0 or equation.constant % divisor:
            raise NoSolutionError
        terms = {v: c // divisor for v, c in equation.terms.items()}
        constant = equation.constant // divisor
        variable = min(terms, key=lambda v: (abs(terms[v]), v in self.bounds))
        sign = 1 if terms[variable] > 0 else -1
        others = {v: c for v, c in terms.items() if v != variable}
        if abs(terms[variable]) == 1:
            return variable, Linear({v: -sign * c for v, c in others.items()}, -sign * constant)
        modulus = abs(terms[variable]) + 1
        definition = {v: sign * symmetric_remainder(c, modulus) for v, c in others.items()}
        definition[self.variables] = -sign * modulus
        self.variables += 1
        self.equations.append(Linear(terms, constant))
        return variable, Linear(
            {v: c for v, c in definition.items() if c}, sign * symmetric_remainder(constant, modulus)
        )

    def _substitute(self, variable: int, value: Linear) -> None:
        """Put `value` in the place of `variable` everywhere."""
        self.steps.append(Definition(variable, value))
        touched = [(dict(form), ends) for form, ends in self.bands.items() if mentions(form, variable)]
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

    def _choose(self) -> tuple[int, bool] | None:
        """Return the variable to eliminate next and whether its shadows agree; None where only bounds are left.

        Those whose shadows agree come first, and among them those that leave the fewest bands; but what multiplies
        the bands comes last, since the next elimination would multiply them again.
        """
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
        if not counts:
            return None

        def cost(variable: int) -> tuple[int, int]:
            lowers, uppers, a, b = counts[variable]
            if not lowers or not uppers:
                return 0, -lowers - uppers
            return (a - 1) * (b - 1), lowers * uppers - lowers - uppers

        best = min(counts, key=lambda v: (max(cost(v)[1], LARGE), cost(v)))
        return best, cost(best)[0] == 0

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

    def _cast(self, sides: Sides, dark: bool) -> None:
        """Add the real or the dark shadow of a variable that was taken out."""
        for a, beta in sides.lowers:
            for b, alpha in sides.uppers:
                terms = {v: a * c for v, c in alpha.terms.items()}
                for v, c in beta.terms.items():
                    terms[v] = terms.get(v, 0) - b * c
                least = (a - 1) * (b - 1) if dark else 0
                self._require(terms, least - a * alpha.constant + b * beta.constant, None)

    def _search(self, sides: Sides) -> dict[int, int]:
        """Return values of the variables that are left, such that the one taken out has an integer value too.

        Two cheap questions come first. Dark shadows all the way down either yield values or tell nothing; real ones
        tell where there are none, or yield values that need not be integers elsewhere and so are tried out.
        """
        values = self._shadow(sides, "dark")
        if values is not None:
            return values
        values = self._shadow(sides, "real")
        if values is None:
            raise NoSolutionError
        if self._holds(values) and sides.allow(values):
            return values
        values = self._shadow(sides, "exact")
        if values is not None:
            return values
        for splinter in self._splinters(sides):
            values = splinter.solve()
            if values is not None:
                return values
        raise NoSolutionError

    def _shadow(self, sides: Sides, method: Method) -> dict[int, int] | None:
        """Solve a shadow of a variable that was taken out of this problem: the real one for "real", else the dark."""
        shadow = self.copy()
        shadow.method = method
        try:
            shadow._cast(sides, dark=method != "real")
        except NoSolutionError:
            return None
        return shadow.solve()

    def _holds(self, values: Mapping[int, int]) -> bool:
        """Return whether values meet the bands; a variable without one is 0."""
        bands = [*self.bands.items(), *((((v, 1),), ends) for v, ends in self.bounds.items())]
        for form, (low, high) in bands:
            value = sum(c * values.get(v, 0) for v, c in form)
            if (low is not None and value < low) or (high is not None and value > high):
                return False
        return all(equation.at(values) == 0 for equation in self.equations)

    def _splinters(self, sides: Sides) -> Iterator[Problem]:
        """Yield problems that together have every solution outside of the dark shadow."""
        whole = self.copy()
        for a, beta in sides.lowers:
            whole.require(equated(sides.variable, a, beta), beta.constant, None)
        for b, alpha in sides.uppers:
            whole.require(equated(sides.variable, b, alpha), None, alpha.constant)
        for terms, first, count in smallest_cover(sides):
            for offset in range(count):
                splinter = whole.copy()
                splinter.require(terms, first + offset, first + offset)
                yield splinter
