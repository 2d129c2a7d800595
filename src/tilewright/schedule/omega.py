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
from dataclasses import dataclass
from math import gcd
from typing import Literal

Form = tuple[tuple[int, int], ...]  # (variable, coefficient) by rising variable; gcd 1, the first coefficient positive
Ends = tuple[int | None, int | None]  # low and high
Method = Literal["exact", "dark", "real"]


class _NoSolutionError(Exception):
    """No integers meet the bands: ends a search, and never leaves this module."""


@dataclass(frozen=True)
class _Linear:
    """A sum of terms and a constant."""

    terms: dict[int, int]
    constant: int

    def at(self, values: Mapping[int, int]) -> int:
        return sum(c * values.get(v, 0) for v, c in self.terms.items()) + self.constant


@dataclass(frozen=True)
class _Definition:
    """A variable that an equation gives: variable = value."""

    variable: int
    value: _Linear

    def choose(self, values: Mapping[int, int]) -> int:
        return self.value.at(values)


@dataclass(frozen=True)
class _Sides:
    """What bounds a variable: a * v >= beta for each (a, beta) of `lowers`, b * v <= alpha for each of `uppers`."""

    variable: int
    lowers: list[tuple[int, _Linear]]
    uppers: list[tuple[int, _Linear]]

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
        return _nearest_to_zero(self.range(values))


class Problem:
    """A conjunction of bands over the variables 0, 1, 2, ..., that `solve` consumes."""

    def __init__(self, variables: int) -> None:
        self.variables = variables  # also the next new variable
        self.bounds: dict[int, Ends] = {}  # bands of one variable
        self.bands: dict[Form, Ends] = {}  # bands of several
        self.equations: list[_Linear] = []  # each == 0
        self.steps: list[_Definition | _Sides] = []  # how to find the variables that are gone, the last one first
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
        except _NoSolutionError:
            self.impossible = True

    def solve(self) -> dict[int, int] | None:
        """Return integers that meet all bands, or None where there are none; a variable left out may be 0."""
        if self.impossible:
            return None
        try:
            values = self._solve()
        except _NoSolutionError:
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
                return {v: _nearest_to_zero(ends) for v, ends in self.bounds.items()}
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
                raise _NoSolutionError
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
        ends = _overlap(self.bounds.get(variable, (None, None)), (low, high))
        self.bounds[variable] = ends
        if ends[0] is not None and ends[0] == ends[1]:
            self.equations.append(_Linear({variable: 1}, -ends[0]))

    def _band(self, form: Form, low: int | None, high: int | None) -> None:
        least, most = self._reach(form)
        _overlap((least, most), (low, high))
        if low is not None and least is not None and least >= low:
            low = None  # the bounds imply it
        if high is not None and most is not None and most <= high:
            high = None
        if low is None and high is None:
            return
        ends = _overlap(self.bands.get(form, (None, None)), (low, high))
        if ends[0] is not None and ends[0] == ends[1]:
            self.bands.pop(form, None)
            self.equations.append(_Linear(dict(form), -ends[0]))
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

    def _next_equation(self) -> _Linear:
        """Take the equation that is easiest to solve: a coefficient +-1 if there is one, and few terms."""

        def difficulty(number: int) -> tuple[int, int]:
            terms = self.equations[number].terms
            return min(map(abs, terms.values()), default=0), len(terms)

        return self.equations.pop(min(range(len(self.equations)), key=difficulty))

    def _isolate(self, equation: _Linear) -> tuple[int, _Linear]:
        """Return a variable and the sum that it equals; it may leave a smaller equation to be solved."""
        divisor = gcd(*equation.terms.values())
        if divisor == 0 or equation.constant % divisor:
            raise _NoSolutionError
        terms = {v: c // divisor for v, c in equation.terms.items()}
        constant = equation.constant // divisor
        variable = min(terms, key=lambda v: (abs(terms[v]), v in self.bounds))
        sign = 1 if terms[variable] > 0 else -1
        others = {v: c for v, c in terms.items() if v != variable}
        if abs(terms[variable]) == 1:
            return variable, _Linear({v: -sign * c for v, c in others.items()}, -sign * constant)
        modulus = abs(terms[variable]) + 1
        definition = {v: sign * _symmetric_remainder(c, modulus) for v, c in others.items()}
        definition[self.variables] = -sign * modulus
        self.variables += 1
        self.equations.append(_Linear(terms, constant))
        return variable, _Linear(
            {v: c for v, c in definition.items() if c}, sign * _symmetric_remainder(constant, modulus)
        )

    def _substitute(self, variable: int, value: _Linear) -> None:
        """Put `value` in the place of `variable` everywhere."""
        self.steps.append(_Definition(variable, value))
        touched = [(dict(form), ends) for form, ends in self.bands.items() if _mentions(form, variable)]
        self.bands = {form: ends for form, ends in self.bands.items() if not _mentions(form, variable)}
        equations, self.equations = self.equations, []
        for each in equations:
            terms, shift = _replaced(each.terms, variable, value)
            if terms:
                self.equations.append(_Linear(terms, each.constant + shift))
            elif each.constant + shift:
                raise _NoSolutionError
        if variable in self.bounds:
            touched.append(({variable: 1}, self.bounds.pop(variable)))
        for band, (low, high) in touched:
            terms, shift = _replaced(band, variable, value)
            self._require(terms, None if low is None else low - shift, None if high is None else high - shift)

    # Inequalities

    def _choose(self) -> tuple[int, bool] | None:
        """Return the variable to eliminate next and whether its shadows agree; None where only bounds are left.

        Those whose shadows agree come first, and among them those that leave the fewest bands.
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

        best = min(counts, key=cost)
        return best, cost(best)[0] == 0

    def _take(self, variable: int) -> _Sides:
        """Remove the bands of a variable, and return what they say of it."""
        lowers: list[tuple[int, _Linear]] = []
        uppers: list[tuple[int, _Linear]] = []
        touched = [form for form in self.bands if _mentions(form, variable)]
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
                    side.append((abs(coefficient), _Linear(rest, sign * end)))
        return _Sides(variable, lowers, uppers)

    def _cast(self, sides: _Sides, dark: bool) -> None:
        """Add the real or the dark shadow of a variable that was taken out."""
        for a, beta in sides.lowers:
            for b, alpha in sides.uppers:
                terms = {v: a * c for v, c in alpha.terms.items()}
                for v, c in beta.terms.items():
                    terms[v] = terms.get(v, 0) - b * c
                least = (a - 1) * (b - 1) if dark else 0
                self._require(terms, least - a * alpha.constant + b * beta.constant, None)

    def _search(self, sides: _Sides) -> dict[int, int]:
        """Return values of the variables that are left, such that the one taken out has an integer value too.

        Two cheap questions come first. Dark shadows all the way down either yield values or tell nothing; real ones
        tell where there are none, or yield values that need not be integers elsewhere and so are tried out.
        """
        values = self._shadow(sides, "dark")
        if values is not None:
            return values
        values = self._shadow(sides, "real")
        if values is None:
            raise _NoSolutionError
        if self._holds(values) and sides.allow(values):
            return values
        values = self._shadow(sides, "exact")
        if values is not None:
            return values
        for splinter in self._splinters(sides):
            values = splinter.solve()
            if values is not None:
                return values
        raise _NoSolutionError

    def _shadow(self, sides: _Sides, method: Method) -> dict[int, int] | None:
        """Solve a shadow of a variable that was taken out of this problem: the real one for "real", else the dark."""
        shadow = self.copy()
        shadow.method = method
        try:
            shadow._cast(sides, dark=method != "real")
        except _NoSolutionError:
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

    def _splinters(self, sides: _Sides) -> Iterator[Problem]:
        """Yield problems that together have every solution outside of the dark shadow."""
        whole = self.copy()
        for a, beta in sides.lowers:
            whole.require(_equated(sides.variable, a, beta), beta.constant, None)
        for b, alpha in sides.uppers:
            whole.require(_equated(sides.variable, b, alpha), None, alpha.constant)
        for terms, first, count in _smallest_cover(sides):
            for offset in range(count):
                splinter = whole.copy()
                splinter.require(terms, first + offset, first + offset)
                yield splinter


Cover = list[tuple[dict[int, int], int, int]]  # sums, each with the first value to try and how many values


def _smallest_cover(sides: _Sides) -> Cover:
    """Return the values of sums to try: near the lower sides, near the upper sides, or all of the variable."""
    variable = sides.variable
    a_most = max(a for a, _ in sides.lowers)
    b_most = max(b for b, _ in sides.uppers)
    low: Cover = []
    for a, beta in sides.lowers:
        low.append((_equated(variable, a, beta), beta.constant, (a * b_most - a - b_most) // b_most + 1))
    high: Cover = []
    for b, alpha in sides.uppers:
        count = (b * a_most - b - a_most) // a_most + 1
        high.append((_equated(variable, b, alpha), alpha.constant - count + 1, count))
    covers = [low, high]
    first = max((-(-beta.constant // a) for a, beta in sides.lowers if not beta.terms), default=None)
    last = min((alpha.constant // b for b, alpha in sides.uppers if not alpha.terms), default=None)
    if first is not None and last is not None:
        covers.append([({variable: 1}, first, last - first + 1)])
    return min(covers, key=lambda cover: sum(max(count, 0) for _, _, count in cover))


def _equated(variable: int, coefficient: int, side: _Linear) -> dict[int, int]:
    """Return the terms of coefficient * variable - side."""
    return {variable: coefficient} | {v: -c for v, c in side.terms.items()}


def _mentions(form: Form, variable: int) -> bool:
    return any(v == variable for v, _ in form)


def _replaced(terms: Mapping[int, int], variable: int, value: _Linear) -> tuple[dict[int, int], int]:
    """Return the terms with `value` in the place of `variable`, and the constant that this adds."""
    factor = terms.get(variable, 0)
    if not factor:
        return dict(terms), 0
    result = {v: c for v, c in terms.items() if v != variable}
    for v, c in value.terms.items():
        result[v] = result.get(v, 0) + factor * c
    return {v: c for v, c in result.items() if c}, factor * value.constant


def _overlap(one: Ends, other: Ends) -> Ends:
    """Return the ends of what lies in both ranges; raise where nothing does."""
    low = max((end for end in (one[0], other[0]) if end is not None), default=None)
    high = min((end for end in (one[1], other[1]) if end is not None), default=None)
    if low is not None and high is not None and low > high:
        raise _NoSolutionError
    return low, high


def _nearest_to_zero(ends: Ends) -> int:
    low, high = ends
    if low is not None and low > 0:
        return low
    return high if high is not None and high < 0 else 0


def _symmetric_remainder(number: int, modulus: int) -> int:
    """Return the number mod^ modulus: congruent, and at most half of the modulus in size.

    >>> [_symmetric_remainder(n, 3) for n in (2, 3, 4, -2)]
    [-1, 0, 1, 1]
    """
    return number - modulus * ((2 * number + modulus) // (2 * modulus))
