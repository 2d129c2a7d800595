"""What of the logic's values says where an element is or when a statement runs: minima, and quotients by sizes.

A `Minimum` is a term of affine expressions like a quotient by a number: the dependences know that it is no more than
any of its parts, and look at each part that it may be. The greatest of some is the least of their negatives, taken off.
What is divided by a size of the launch is known exactly where that is known: at a launch.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from tilewright.dtypes import int32, int64
from tilewright.errors import ScheduleError
from tilewright.frames import showing_frames
from tilewright.schedule.affine import (
    Affine,
    Dimension,
    Ends,
    Index,
    Position,
    Quotient,
    Remainder,
    Symbol,
    Term,
    affine_or_none,
    as_affine,
)
from tilewright.schedule.values import Apply, Convert, Expression, Number, left_over, rounded_down
from tilewright.trace.mathematics import maximum as device_maximum
from tilewright.trace.mathematics import minimum as device_minimum

Case: TypeAlias = tuple[Affine, ...]  # expressions all of which are at least 0


class Minimum(Term):
    """The least of two or more affine expressions, none of which is another one and a number."""

    has_operator = False
    __slots__ = ()

    @property
    def name(self) -> str:
        return f"min({', '.join(map(str, self.parts))})"

    def of(self, *parts: Affine) -> Affine:
        """Return the least of other expressions."""
        return minimum(*parts)

    def evaluate(self, values: Mapping[Any, Any]) -> Any:  # Any: numbers of the host or of a device
        """Return the value of the expression for values of all symbols."""
        first, *others = [part.evaluate(values) for part in self.parts]
        for other in others:
            is_known = isinstance(first, int) and isinstance(other, int)
            first = min(first, other) if is_known else device_minimum(first, other)
        return first

    def ends(self, known: Callable[[Any], Ends]) -> Ends:  # Any: an index or a size
        """Return the least and greatest value for those of the symbols."""
        lows, highs = zip(*(part.bounds(known) for part in self.parts), strict=True)
        most = [high for high in highs if high is not None]
        return None if None in lows else min(lows), min(most) if most else None

    def __reduce__(self) -> tuple[Any, ...]:
        return _minimum_of, self.parts


class BySize(Term):
    """value // size or value % size, for an expression of sizes of the launch that is at least 1, rounded down."""

    __slots__ = ("is_quotient",)

    def __init__(self, value: Affine, size: Affine, is_quotient: bool) -> None:
        super().__init__((value, size), ord("/" if is_quotient else "%"))
        self.is_quotient: bool = is_quotient

    @property
    def value(self) -> Affine:
        return self.parts[0]

    @property
    def size(self) -> Affine:
        return self.parts[1]

    @property
    def name(self) -> str:
        plain = [len(x.terms) == 1 and not x.constant and not isinstance(x.terms[0][0], Term) for x in self.parts]
        value, size = (f"{x}" if is_plain else f"({x})" for x, is_plain in zip(self.parts, plain, strict=True))
        return f"{value} {'//' if self.is_quotient else '%'} {size}"

    def of(self, *parts: Affine) -> Affine:
        """Return the quotient or remainder of another expression by another size."""
        return divided(parts[0], parts[1], self.is_quotient)

    def evaluate(self, values: Mapping[Any, Any]) -> Any:  # Any: numbers of the host or of a device
        """Return the value of the expression for values of all symbols."""
        value, size = (part.evaluate(values) for part in self.parts)
        return rounded_down(value, size) if self.is_quotient else left_over(value, size)

    def ends(self, known: Callable[[Any], Ends]) -> Ends:  # Any: an index or a size
        """Return the least and greatest value for those of the symbols."""
        low, high = self.value.bounds(known)
        if not self.is_quotient:
            return 0, high if low is not None and low >= 0 else None
        return None if low is None else min(low, 0), None if high is None else max(high, 0)

    def __reduce__(self) -> tuple[Any, ...]:
        return _by_size, (self.value, self.size, self.is_quotient)


_by_sizes: weakref.WeakValueDictionary[Any, BySize] = weakref.WeakValueDictionary()  # Any: what tells them apart


def _by_size(value: Affine, size: Affine, is_quotient: bool) -> BySize:
    key = (value.terms, value.constant, size.terms, size.constant, is_quotient)
    return _by_sizes.setdefault(key, BySize(value, size, is_quotient))


def divided(value: Affine, size: Affine, is_quotient: bool) -> Affine:
    """Return value // size, or value % size.

    >>> from tilewright.schedule.affine import Index
    >>> i, N = Index("i"), Dimension("N")
    >>> print(divided(i.as_affine(), N // 16, True), "and", divided(i + 1, as_index(4), False))
    i // (N // 16) and (i + 1) % 4
    """
    if any(isinstance(symbol, Index) for symbol in size.symbols()):
        raise ScheduleError(
            f"{value} is divided by {size}, which depends on an index", help="divide by numbers and sizes of the launch"
        )
    if size.is_constant:
        return value // size.constant if is_quotient else value % size.constant  # type: ignore[no-any-return]  # affine
    if value.is_constant and value.constant == 0:
        return value
    return Affine(((_by_size(value, size, is_quotient), 1),), 0)


def divisors(x: Expression) -> Iterator[Affine]:
    """Yield the sizes that a value divides indices by."""
    if isinstance(x, Position):
        yield from (term.size for term in x.place.nonlinear() if isinstance(term, BySize))
    if isinstance(x, Apply) and x.function in (rounded_down, left_over):
        size = as_index(x.arguments[1])
        if size is not None:
            yield size
    for part in x.operands:
        yield from divisors(part)


_minima: weakref.WeakValueDictionary[Any, Minimum] = weakref.WeakValueDictionary()  # Any: what tells them apart


def minimum(*values: Affine) -> Affine:
    """Return the least of some affine expressions.

    >>> from tilewright.schedule.affine import Index
    >>> i = Index("i")
    >>> print(minimum(20 - i, as_index(16)), "and", minimum(i + 1, i - 2), "and", minimum(i + 5, as_index(7)) - i)
    min(16, -i + 20) and i - 2 and min(7, i + 5) - i
    """
    parts: list[Affine] = []
    for value in (part for given in values for part in spread(given)):
        if any((value - other).is_constant and (value - other).constant >= 0 for other in parts):
            continue
        parts = [x for x in parts if not ((x - value).is_constant and (x - value).constant >= 0)] + [value]
    if len(parts) == 1:
        return parts[0]
    parts.sort(key=lambda x: (len(x.terms), [(s.number, c) for s, c in x.terms]))
    return Affine(((_minimum_of(*parts), 1),), 0)


def _minimum_of(*parts: Affine) -> Minimum:
    key = tuple((part.terms, part.constant) for part in parts)
    return _minima.setdefault(key, Minimum(parts, ord("m")))


def spread(value: Affine) -> Iterator[Affine]:
    """Yield expressions the least of which is a value: those without a minimum that is added to them."""
    for symbol, factor in value.terms:
        if isinstance(symbol, Minimum) and factor > 0:
            rest = value - Affine.of({symbol: factor})
            for part in symbol.parts:
                yield from spread(rest + factor * part)
            return
    yield value


def at_least_zero(value: Affine) -> tuple[Case, ...]:
    """Return cases without minima in one of which value >= 0 holds, and in no case where it does not.

    >>> from tilewright.schedule.affine import Index
    >>> i = Index("i")
    >>> least = minimum(20 - i, as_index(16))
    >>> at_least_zero(least - i), at_least_zero(i - least)
    (((-i + 16, -2 * i + 20),), ((i - 16,), (2 * i - 20,)))
    """
    each = [_alternatives(part) for part in spread(value)]
    return tuple(tuple(x for xs in chosen for x in xs) for chosen in itertools.product(*each))


def _alternatives(value: Affine) -> list[Case]:
    """Return cases of value >= 0, where minima are only taken off: one of their parts has to do."""
    for symbol, factor in value.terms:
        if isinstance(symbol, Minimum):
            rest = value - Affine.of({symbol: factor})
            return [case for part in symbol.parts for case in _alternatives(rest + factor * part)]
    return [(value,)]


def choices(*values: Affine) -> Iterator[tuple[Affine, ...]]:
    """Yield, for each way to choose the parts that the minima in some expressions are, what is 0 then."""
    found = dict.fromkeys(x for value in values for x in value.nonlinear() if isinstance(x, Minimum))
    each = [[Affine.of({x: 1}) - part for part in x.parts] for x in found]
    yield from itertools.product(*each)


def least_and_most(value: Affine, shape: Mapping[Any, Any]) -> tuple[list[Affine], list[Affine]]:
    """Return bounds from below and above that have no index, over a box: `shape` has the extents of indices.

    Each list has all bounds that are seen, and may be empty. Bounds are of numbers and sizes.
    """
    lows, highs = [Affine((), value.constant)], [Affine((), value.constant)]
    for symbol, factor in value.terms:
        low, high = _bounds_of(symbol, shape)
        less, more = (low, high) if factor > 0 else (high, low)
        lows = [x + factor * y for x in lows for y in less]
        highs = [x + factor * y for x in highs for y in more]
    return lows, highs


def _bounds_of(symbol: Symbol, shape: Mapping[Any, Any]) -> tuple[list[Affine], list[Affine]]:
    zero = Affine((), 0)
    if isinstance(symbol, Minimum):
        each = [least_and_most(part, shape) for part in symbol.parts]
        lows = [low for low, _ in each]
        numbers = [[x.constant for x in low if x.is_constant] for low in lows]
        least = [Affine((), min(max(x) for x in numbers))] if all(numbers) else []
        return least, [x for _, high in each for x in high]
    if isinstance(symbol, Quotient):
        low, high = least_and_most(symbol.value, shape)
        return [x // symbol.divisor for x in low], [x // symbol.divisor for x in high]
    if isinstance(symbol, Remainder):
        return [zero], [Affine((), symbol.divisor - 1)]
    if isinstance(symbol, BySize):
        return [], []
    if isinstance(symbol, Dimension):
        return [symbol.as_affine()], [symbol.as_affine()]
    extent = shape.get(symbol)
    return [zero], [] if extent is None else [as_affine(extent) - 1]


def as_index(x: Any) -> Affine | None:  # Any: asks what it is
    """Return what says where an element is, or when a statement runs; None for what is not affine.

    That is what `affine_or_none` returns, and values that are made of it by + - * // and %, by conversions to int32 and
    int64, by `minimum` and `maximum`, and by /, which rounds down here as // does: an index is a whole number.
    """
    if not isinstance(x, Expression):
        return affine_or_none(x)
    if isinstance(x, Position):
        return x.place
    if isinstance(x, Number):
        return None if isinstance(x.value, float) else affine_or_none(x.value)
    if isinstance(x, Convert) and x.dtype in (int32, int64):
        return as_index(x.value)
    if isinstance(x, Apply) and x.name in _WHOLE and len(x.arguments) == 2:
        first, second = map(as_index, x.arguments)
        if first is None or second is None or (x.name == "*" and first.terms and second.terms):
            return None
        if x.name in ("/", "//", "%") and second.terms and not any(isinstance(s, Index) for s in second.symbols()):
            return divided(first, second, x.name != "%")
        return _WHOLE[x.name](first, second)
    if isinstance(x, Apply) and x.function in _DEVICE:
        parts = [part for part in map(as_index, x.arguments) if part is not None]
        if len(parts) == len(x.arguments):
            return minimum(*parts) if x.function is _DEVICE[0] else -minimum(*(-part for part in parts))
    return None


# As an `Apply` has them; whether this file met them with hidden frames depends on what was imported first.
_DEVICE = showing_frames(device_minimum), showing_frames(device_maximum)

_WHOLE: dict[str, Callable[[Affine, Affine], Affine]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "/": operator.floordiv, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip
