"""Affine expressions of loop indices and of sizes that only the launch knows: c0 + c1 * i + c2 * j + ..."""

from __future__ import annotations

import itertools
import operator
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

from tilewright.errors import ScheduleError
from tilewright.schedule.naming import assigned_names

_numbers = itertools.count()
_copies = itertools.count(1)


class _Linear:
    """What an index, a dimension and an affine expression share: the arithmetic that stays affine."""

    def as_affine(self) -> Affine:
        raise NotImplementedError  # pragma: no cover  # each of the three has its own

    def __add__(self, other: Any) -> Any:  # Any: numbers, indices, and expressions of values, which answer themselves
        if isinstance(other, float):
            return self._value("+", operator.add, other)
        other = affine_or_none(other)
        if other is None:
            return NotImplemented
        mine = self.as_affine()
        terms = dict(mine.terms)
        for symbol, factor in other.terms:
            terms[symbol] = terms.get(symbol, 0) + factor
        return Affine.of(terms, mine.constant + other.constant)

    __radd__ = __add__

    def __neg__(self) -> Affine:
        return self * -1  # type: ignore[no-any-return]  # a product with a number is affine

    def __sub__(self, other: Any) -> Any:  # Any: as in __add__
        if isinstance(other, float):
            return self._value("-", operator.sub, other)
        other = affine_or_none(other)
        return NotImplemented if other is None else self + -1 * other

    def __rsub__(self, other: Any) -> Any:  # Any: as in __add__
        return -1 * self + other

    def __mul__(self, other: Any) -> Any:  # Any: as in __add__
        if isinstance(other, float):
            return self._value("*", operator.mul, other)
        other = affine_or_none(other)
        if other is None:
            return NotImplemented
        mine = self.as_affine()
        if mine.terms and other.terms:
            raise ScheduleError(
                f"{mine} times {other} is not affine",
                help="an index may be multiplied by a number that is known when the nest is declared",
            )
        varying, factor = (mine, other.constant) if not other.terms else (other, mine.constant)
        return Affine.of({symbol: c * factor for symbol, c in varying.terms}, varying.constant * factor)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Any:  # Any: refused, whatever it is
        raise ScheduleError(
            f"{self} // {other} is not affine", help="make a loop of its own for the quotient, or split the index"
        )

    def __mod__(self, other: Any) -> Any:  # Any: refused, whatever it is
        raise ScheduleError(
            f"{self} % {other} is not affine", help="make a loop of its own for the remainder, or split the index"
        )

    def __tilewright_apply__(self, name: str, function: Any, operands: tuple[Any, ...]) -> Any:  # Any: as in __add__
        """Record a function of device numbers, such as `tw.exp`, of the value of this expression."""
        from tilewright.schedule.expressions import Apply, expression

        return Apply(name, function, tuple(expression(x) for x in operands))

    def _value(self, name: str, function: Any, other: Any) -> Any:  # Any: as in __add__
        """Return the value of this expression combined with another, which is no place any more."""
        return self.__tilewright_apply__(name, function, (self, other))

    def __truediv__(self, other: Any) -> Any:  # Any: as in __add__
        return self._value("/", operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Any:  # Any: as in __add__
        return self.__tilewright_apply__("/", operator.truediv, (other, self))

    def __lt__(self, other: Any) -> Any:  # Any: as in __add__
        return self._value("<", operator.lt, other)

    def __le__(self, other: Any) -> Any:  # Any: as in __add__
        return self._value("<=", operator.le, other)

    def __gt__(self, other: Any) -> Any:  # Any: as in __add__
        return self._value(">", operator.gt, other)

    def __ge__(self, other: Any) -> Any:  # Any: as in __add__
        return self._value(">=", operator.ge, other)

    # In a nest's logic == compares values, as it does of elements; elsewhere it says whether two expressions are one.

    def __eq__(self, other: object) -> Any:  # Any: a bool, or an expression
        return self._value("==", operator.eq, other) if recording.is_on else self._is(other)

    def __ne__(self, other: object) -> Any:  # Any: as in __eq__
        return self._value("!=", operator.ne, other) if recording.is_on else not self._is(other)

    __hash__ = object.__hash__

    def _is(self, other: object) -> bool:
        return self is other


class Recording(threading.local):
    """Whether the logic of a nest is recorded at the moment."""

    is_on = False


recording = Recording()


class Numbered:
    """What is ordered by its making, and told from others by its `number`: this, and which copy of it.

    A copy, or one that another process made, is another thing in the same place of the order.
    """

    number: tuple[int, int]

    def __setstate__(self, state: dict[str, Any]) -> None:  # Any: attributes
        self.__dict__.update(state)
        self.number = self.number[0], next(_copies)


def next_number() -> tuple[int, int]:
    """Return the number of what is made now, and is no copy."""
    return next(_numbers), 0


class Index(Numbered, _Linear):
    """The index of one loop. Indices are equal only to themselves.

    >>> i, j = Index("i"), Index("j")
    >>> print(2 * i - j + 3)
    2 * i - j + 3
    """

    def __init__(self, name: str | None = None) -> None:
        self.number = next_number()
        found = assigned_names(sys._getframe(1)) if name is None else (name,)
        self.name = found[0] if found else f"i{self.number[0]}"

    def as_affine(self) -> Affine:
        """Return the expression 1 * index."""
        return Affine(((self, 1),), 0)

    def __repr__(self) -> str:
        return self.name


class Dimension(Numbered, _Linear):
    """A size that is known only at launch: an extent of arrays and of nests, at least 0.

    At a launch it has the extent of the arrays that were declared with it, which must agree.

    >>> M = Dimension("M")
    >>> M
    M
    """

    def __init__(self, name: str | None = None) -> None:
        self.number = next_number()
        found = assigned_names(sys._getframe(1)) if name is None else (name,)
        self.name = found[0] if found else f"n{self.number[0]}"

    def as_affine(self) -> Affine:
        """Return the expression 1 * dimension."""
        return Affine(((self, 1),), 0)

    def __repr__(self) -> str:
        return self.name


Symbol = Union[Index, Dimension]
Size = Union[int, Dimension]


def create_dimensions(*names: str) -> tuple[Dimension, ...]:
    """Return sizes that are known only at launch, one for each name, or for each variable that they are assigned to.

    >>> M, N = create_dimensions()
    >>> M, N, create_dimensions("K")
    (M, N, (K,))

    Raises `ScheduleError` where there are no names, and none are seen.
    """
    found = names or assigned_names(sys._getframe(1))
    if not found:
        raise ScheduleError("create_dimensions() without names", help='name them: create_dimensions("M", "N")')
    return tuple(Dimension(name) for name in found)


@dataclass(frozen=True, eq=False)
class Affine(_Linear):
    """constant + sum of factor * symbol, with integer factors other than 0, symbols in the order of their making."""

    terms: tuple[tuple[Symbol, int], ...]
    constant: int

    def _is(self, other: object) -> bool:
        return isinstance(other, Affine) and self.constant == other.constant and self.terms == other.terms

    def __hash__(self) -> int:
        return hash((self.terms, self.constant))

    def __reduce__(self) -> tuple[Any, ...]:
        return Affine.of, (dict(self.terms), self.constant)  # in the order that the symbols have when they arrive

    @staticmethod
    def of(terms: Mapping[Symbol, int], constant: int = 0) -> Affine:
        """Return the expression for factors by symbol."""
        kept = sorted(((s, c) for s, c in terms.items() if c), key=lambda term: term[0].number)
        return Affine(tuple(kept), constant)

    def as_affine(self) -> Affine:
        """Return the expression itself."""
        return self

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def factor(self, symbol: Symbol) -> int:
        """Return the factor of a symbol, 0 where it does not occur."""
        return next((c for s, c in self.terms if s is symbol), 0)

    def substitute(self, mapping: Mapping[Any, Any]) -> Affine:  # Any: symbols to what is affine
        """Return the expression with symbols replaced by affine expressions or numbers."""
        terms: dict[Symbol, int] = {}
        constant = self.constant
        for symbol, factor in self.terms:
            value = as_affine(mapping.get(symbol, symbol))
            constant += factor * value.constant
            for inner, c in value.terms:
                terms[inner] = terms.get(inner, 0) + factor * c
        return Affine.of(terms, constant)

    def evaluate(self, values: Mapping[Any, Any]) -> Any:  # Any: numbers of the host or of a device
        """Return the value for given values of all symbols."""
        parts = [(values[s] if abs(c) == 1 else values[s] * abs(c), c) for s, c in self.terms]
        added, taken = [x for x, c in parts if c > 0], [x for x, c in parts if c < 0]
        total: Any = added.pop(0) if added else None
        for part in added:
            total = total + part
        if total is None and (self.constant or not taken):
            total = self.constant  # 5 - i, where i + 5 reads better with the number last
            rest = 0
        else:
            rest = self.constant
        for part in taken:
            total = -part if total is None else total - part
        return total + rest if rest else total

    def __str__(self) -> str:
        text = ""
        for symbol, factor in sorted(self.terms, key=lambda term: term[1] < 0):  # what is added, then what is taken off
            sign, size = ("-" if factor < 0 else "+"), abs(factor)
            body = symbol.name if size == 1 else f"{size} * {symbol.name}"
            text += f" {sign} {body}" if text else (f"-{body}" if factor < 0 else body)
        if self.constant or not text:
            text += (f" {'-' if self.constant < 0 else '+'} {abs(self.constant)}") if text else str(self.constant)
        return text

    __repr__ = __str__


def affine_or_none(x: Any) -> Affine | None:  # Any: asks what it is
    """Return a number, index, dimension or affine expression as an expression, None for anything else."""
    if isinstance(x, _Linear):
        return x.as_affine()
    if isinstance(x, bool):
        return None
    try:
        return Affine((), x.__index__())
    except AttributeError:
        return None


def as_affine(x: Any) -> Affine:  # Any: checked here
    """Return what is affine as an expression. Raises `ScheduleError` for anything else."""
    found = affine_or_none(x)
    if found is None:
        raise ScheduleError(f"{x!r} is not affine", help="use indices, whole numbers, and sums and multiples of them")
    return found
