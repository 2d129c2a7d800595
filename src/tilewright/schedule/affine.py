"""Affine expressions of indices: where the elements are that the logic of a nest names, and when it runs.

An affine expression, c0 + c1 * i + c2 * j + ..., of loop indices and of sizes that only the launch knows says where an
element is. What is added up may also be a quotient e // c or a remainder e % c of an affine expression by a number
c > 0, rounded down as in Python: both are exact for the dependences, which know c * (e // c) <= e < c * (e // c) + c.
An affine expression is a value wherever one is asked for, and becomes one by arithmetic that is not affine.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Union

from tilewright.errors import ScheduleError
from tilewright.schedule.memory_spaces import Role
from tilewright.schedule.naming import LoopName, Numbered, assigned_names, calling_frame, next_number
from tilewright.schedule.values import Apply, Expression, Guard, Number, expression, left_over, rounded_down


class _Linear:
    """What an index, a dimension and an affine expression share: the arithmetic that stays affine."""

    def as_affine(self) -> Affine:
        raise NotImplementedError  # pragma: no cover  # each of the three has its own

    def as_expression(self) -> Expression:
        """Return the value of the expression."""
        place = self.as_affine()
        return Number(place.constant) if place.is_constant else Position(place)

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
        return NotImplemented if affine_or_none(other) is None and not isinstance(other, float) else -1 * self + other

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

    def __floordiv__(self, other: Any) -> Any:  # Any: as in __add__
        if isinstance(other, float):
            return self._value("//", operator.floordiv, other)
        divisor = self._divisor("//", other)
        if isinstance(divisor, Affine):
            return self._value("//", rounded_down, divisor)
        return NotImplemented if divisor is None else quotient(self.as_affine(), divisor)

    def __mod__(self, other: Any) -> Any:  # Any: as in __add__
        if isinstance(other, float):
            return self._value("%", operator.mod, other)
        divisor = self._divisor("%", other)
        if isinstance(divisor, Affine):
            return self._value("%", left_over, divisor)
        return NotImplemented if divisor is None else remainder(self.as_affine(), divisor)

    def _divisor(self, sign: str, other: Any) -> int | Affine | None:  # Any: as in __add__
        """Return a positive number or a size to divide by, None for what answers itself; raise for any other one."""
        divisor = affine_or_none(other)
        if divisor is None:
            return None
        if any(isinstance(symbol, Index) for symbol in divisor.symbols()):
            raise ScheduleError(
                f"{self} {sign} {divisor} is not affine: it divides by what is not a number",
                help="divide by a whole number from 1, or a size; for a value that says where no element is, divide "
                "cast(index, type) by it",
            )
        if divisor.terms:
            return divisor
        if divisor.constant < 1:
            raise ScheduleError(
                f"{self} {sign} {divisor} divides by a number below 1",
                help="indices are divided by whole numbers from 1",
            )
        return divisor.constant

    def __rfloordiv__(self, other: Any) -> Any:  # Any: as in __add__
        return as_affine(other) // self if affine_or_none(other) is not None else NotImplemented

    def __rmod__(self, other: Any) -> Any:  # Any: as in __add__
        return as_affine(other) % self if affine_or_none(other) is not None else NotImplemented

    def __tilewright_apply__(self, name: str, function: Any, operands: tuple[Any, ...]) -> Any:  # Any: as in __add__
        """Record a function of device numbers, such as `tw.exp`, of the value of this expression."""
        return Apply(name, function, tuple(expression(x) for x in operands))

    def _value(self, name: str, function: Any, other: Any) -> Any:  # Any: as in __add__
        """Return the value of this expression combined with another, which is not a place any more."""
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

    __hash__: Any = object.__hash__

    def _is(self, other: object) -> bool:
        return self is other


class Recording(threading.local):
    """What the logic of a nest stores while it is recorded; None where no logic is."""

    stores: list[Any] | None = None  # Any: a Store of `arrays`
    extents: Mapping[Any, Any] | None = None  # Any: indices of the nest; numbers and sizes
    guards: tuple[Guard, ...] = ()  # the conditions around what is stored next

    @property
    def is_on(self) -> bool:
        return self.stores is not None


recording: Recording = Recording()


class Index(Numbered, _Linear, LoopName):
    """The index of one loop. Indices are equal only to themselves.

    >>> i, j = Index("i"), Index("j")
    >>> print(2 * i - j + 3)
    2 * i - j + 3

    An index yields itself, so that for a nest of one loop both `i = nest.get_indices()` and `(i,) = nest.get_indices()`
    can be written.
    """

    def __init__(self, name: str | None = None) -> None:
        self.number: tuple[int, int] = next_number()
        names = assigned_names(calling_frame()) if name is None else (name,)
        self.name: str = names[0] if names else f"i{self.number[0]}"

    def __iter__(self) -> Iterator[Index]:
        yield self

    def as_affine(self) -> Affine:
        """Return the expression 1 * index."""
        return Affine(((self, 1),), 0)

    def __repr__(self) -> str:
        return self.name


class Dimension(Numbered, _Linear):
    """A size that is known only at launch: an extent of arrays and of nests, at least 0.

    At a launch its value is the extent of the arrays that were declared with it, and its own argument if it is among
    the kernel's `args`; all must agree. With the role OUTPUT it is a number that the kernel computes, in the logic of a
    nest: `size.set(value)` writes it, to an int64 array of one element.

    >>> M = Dimension("M")
    >>> M
    M
    """

    def __init__(self, name: str | None = None, role: Role = Role.INPUT) -> None:
        self.number: tuple[int, int] = next_number()
        names = assigned_names(calling_frame()) if not name else (name,)
        self.name: str = names[0] if names else f"n{self.number[0]}"
        if role not in (Role.INPUT, Role.OUTPUT, Role.INPUT_OUTPUT):
            raise ScheduleError(f"size {self.name} has the role {role!r}", help="Role.INPUT or Role.OUTPUT")
        self.role = role
        self.cell: Any = None  # Any: an Array, which is made of sizes

    def as_affine(self) -> Affine:
        """Return the expression 1 * dimension. Raises `ScheduleError` for one that the kernel computes."""
        if self.role is not Role.INPUT:
            raise ScheduleError(
                f"{self} is computed by the kernel and is not known before",
                help="compute it by a kernel of its own, and take a size of role INPUT where it is needed",
            )
        return Affine(((self, 1),), 0)

    def set(self, value: Any) -> None:  # Any: whatever is an expression
        """Write a size of role OUTPUT, in the logic of a nest."""
        raise NotImplementedError  # pragma: no cover  # `arrays` defines it

    def __repr__(self) -> str:
        return self.name


Symbol = Union[Index, Dimension, "Term"]
Size = Union[int, Dimension]
Ends = tuple[Union[int, None], Union[int, None]]  # the least and the greatest value, None where there is none


def create_dimensions(*names: str | Role, role: Role = Role.INPUT) -> tuple[Dimension, ...]:
    """Return sizes that are known only at launch, one for each name, or for each variable that they are assigned to.

    >>> M, N = create_dimensions()
    >>> M, N, create_dimensions("K")
    (M, N, (K,))

    Raises `ScheduleError` if no names are given and none can be found.
    """
    if names and isinstance(names[0], Role):
        return create_dimensions(*(names[1:] or assigned_names(calling_frame())), role=names[0])
    if not (given_names := names or assigned_names(calling_frame())):
        raise ScheduleError("create_dimensions() without names", help='name them: create_dimensions("M", "N")')
    return tuple(Dimension(str(name), role) for name in given_names)


@dataclass(frozen=True, eq=False)
class Affine(_Linear):
    """constant + sum of factor * symbol, with integer factors other than 0, symbols in the order of their creation."""

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

    def symbols(self) -> set[Index | Dimension]:
        """Return the indices and sizes that occur, inside of quotients and remainders too."""
        found: set[Index | Dimension] = set()
        for symbol, _ in self.terms:
            found |= symbol.symbols() if isinstance(symbol, Term) else {symbol}
        return found

    def nonlinear(self) -> tuple[Term, ...]:
        """Return the terms that are not linear, each after those inside of it."""
        found: dict[Term, None] = {}
        for symbol, _ in self.terms:
            if isinstance(symbol, Term):
                found.update(dict.fromkeys((*(x for part in symbol.parts for x in part.nonlinear()), symbol)))
        return tuple(found)

    def mentions(self, index: Symbol) -> bool:
        """Return whether the expression depends on an index: as a term, or inside of one that is not linear."""
        return self.divides(index) or any(s is index for s, _ in self.terms)

    def divides(self, index: Symbol) -> bool:
        """Say whether an index is inside of a quotient or the like, so that the expression is not linear in it."""
        return any(isinstance(s, Term) and any(x.mentions(index) for x in s.parts) for s, _ in self.terms)

    def bounds(self, known: Callable[[Any], Ends]) -> Ends:  # Any: an index or a size
        """Return the least and greatest value for those of its symbols, None where there is none that is known."""
        low: int | None = self.constant
        high: int | None = self.constant
        for symbol, factor in self.terms:
            ends = symbol.ends(known) if isinstance(symbol, Term) else known(symbol)
            least, most = ends if factor > 0 else ends[::-1]
            low = None if low is None or least is None else low + factor * least
            high = None if high is None or most is None else high + factor * most
        return low, high

    def substitute(self, mapping: Mapping[Any, Any]) -> Affine:  # Any: symbols to what is affine
        """Return the expression with symbols replaced by affine expressions or numbers."""
        terms: dict[Symbol, int] = {}
        constant = self.constant
        for symbol, factor in self.terms:
            if isinstance(symbol, Term):
                value = symbol.of(*(part.substitute(mapping) for part in symbol.parts))
            else:
                value = as_affine(mapping.get(symbol, symbol))
            constant += factor * value.constant
            for inner, c in value.terms:
                terms[inner] = terms.get(inner, 0) + factor * c
        return Affine.of(terms, constant)

    def evaluate(self, values: Mapping[Any, Any]) -> Any:  # Any: numbers of the host or of a device
        """Return the value of the expression for values of all symbols."""
        found = [(s.evaluate(values) if isinstance(s, Term) else values[s], c) for s, c in self.terms]
        parts = [(x if abs(c) == 1 else x * abs(c), c) for x, c in found]
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
            in_brackets = isinstance(symbol, Term) and symbol.has_operator and (size > 1 or (factor < 0 and not text))
            name = f"({symbol.name})" if in_brackets else symbol.name
            body = name if size == 1 else f"{size} * {name}"
            text += f" {sign} {body}" if text else (f"-{body}" if factor < 0 else body)
        if self.constant or not text:
            text += (f" {'-' if self.constant < 0 else '+'} {abs(self.constant)}") if text else str(self.constant)
        return text

    __repr__ = __str__


class Term:
    """A term that is not linear, made of affine expressions, its `parts`.

    There is one object for each, so that terms add up: functions such as `quotient` return it.
    """

    number: tuple[int, ...]  # behind that of its last symbol, and told from all others there by what it consists of
    parts: tuple[Affine, ...]
    has_operator = True  # in its text
    __slots__ = ("__weakref__", "number", "parts")

    def __init__(self, parts: tuple[Affine, ...], *kind: int) -> None:
        self.parts = parts
        texts = [n for x in parts for n in (x.constant, *(n for s, c in x.terms for n in (c, *s.number, -1)), -1)]
        last: tuple[int, ...] = max(s.number for x in parts for s, _ in x.terms)
        self.number = (*last, *kind, *texts)

    @property
    def name(self) -> str:
        """The term as text."""
        raise NotImplementedError  # pragma: no cover  # each kind has its own

    def symbols(self) -> set[Index | Dimension]:
        """Return the indices and sizes that occur."""
        return {symbol for part in self.parts for symbol in part.symbols()}

    def of(self, *parts: Affine) -> Affine:
        """Return the same of other parts."""
        raise NotImplementedError  # pragma: no cover  # each kind has its own

    def evaluate(self, values: Mapping[Any, Any]) -> Any:  # Any: numbers of the host or of a device
        """Return the value of the expression for values of all symbols."""
        raise NotImplementedError  # pragma: no cover  # each kind has its own

    def ends(self, known: Callable[[Any], Ends]) -> Ends:  # Any: an index or a size
        """Return the least and greatest value for those of the symbols; None for no bound."""
        raise NotImplementedError  # pragma: no cover  # each kind has its own

    def __repr__(self) -> str:
        return self.name


class Division(Term):
    """value // divisor or value % divisor, for a number from 2, rounded down."""

    sign: str
    __slots__ = ("divisor",)

    def __init__(self, value: Affine, divisor: int) -> None:
        super().__init__((value,), ord(self.sign[0]), divisor)
        self.divisor: int = divisor

    @property
    def value(self) -> Affine:
        return self.parts[0]

    @property
    def name(self) -> str:
        first = self.value.terms[0]
        is_plain = len(self.value.terms) == 1 and not self.value.constant and first[1] == 1
        is_name = is_plain and not isinstance(first[0], Division)
        return f"{self.value if is_name else f'({self.value})'} {self.sign} {self.divisor}"

    def bounds(self, low: int | None, high: int | None) -> Ends:
        """Return the least and greatest value for those of the expression that is divided; None for no bound."""
        raise NotImplementedError  # pragma: no cover  # both kinds have their own

    def ends(self, known: Callable[[Any], Ends]) -> Ends:  # Any: as in Term
        """Return the least and greatest value for those of the symbols."""
        return self.bounds(*self.value.bounds(known))

    def __reduce__(self) -> tuple[Any, ...]:
        return division, (type(self), self.value, self.divisor)


class Quotient(Division):
    """value // divisor."""

    sign = "//"
    __slots__ = ()

    def of(self, *parts: Affine) -> Affine:
        """Return the quotient of another expression."""
        return quotient(parts[0], self.divisor)

    def evaluate(self, values: Mapping[Any, Any]) -> Any:  # Any: as in Division
        """Return the value of the expression for values of all symbols."""
        return rounded_down(self.value.evaluate(values), self.divisor)

    def bounds(self, low: int | None, high: int | None) -> Ends:
        """Return the least and greatest value for those of the expression that is divided."""
        return None if low is None else low // self.divisor, None if high is None else high // self.divisor


class Remainder(Division):
    """value % divisor, from 0 to divisor - 1."""

    sign = "%"
    __slots__ = ()

    def of(self, *parts: Affine) -> Affine:
        """Return the remainder of another expression."""
        return remainder(parts[0], self.divisor)

    def evaluate(self, values: Mapping[Any, Any]) -> Any:  # Any: as in Division
        """Return the value of the expression for values of all symbols."""
        return left_over(self.value.evaluate(values), self.divisor)

    def bounds(self, low: int | None, high: int | None) -> Ends:
        """Return the least and greatest value for those of the expression that is divided."""
        if low is not None and high is not None and low // self.divisor == high // self.divisor:
            return low % self.divisor, high % self.divisor
        return 0, self.divisor - 1


_divisions: weakref.WeakValueDictionary[Any, Division] = weakref.WeakValueDictionary()  # Any: what tells them apart


def division(kind: type[Division], value: Affine, divisor: int) -> Division:
    """Return the quotient or remainder that there is of an expression whose factors are smaller than the divisor."""
    key = (kind, value.terms, value.constant, divisor)
    return _divisions.setdefault(key, kind(value, divisor))


def quotient(value: Affine, divisor: int) -> Affine:
    """Return value // divisor, rounded down: multiples of the divisor come out of it.

    >>> i, j = Index("i"), Index("j")
    >>> print(quotient(8 * i + j + 5, 4), "and", (4 * i - 8) // 4, "and", (7 - i) // 4)
    2 * i + (j + 1) // 4 + 1 and i - 2 and (-i + 7) // 4
    """
    rest = _rest(value, divisor)
    whole = value - rest
    exact = Affine.of({s: c // divisor for s, c in whole.terms}, whole.constant // divisor)
    return exact + Affine(((division(Quotient, rest, divisor), 1),), 0) if rest.terms else exact


def remainder(value: Affine, divisor: int) -> Affine:
    """Return value % divisor, from 0 to divisor - 1: multiples of the divisor are left out.

    >>> i, j = Index("i"), Index("j")
    >>> print(remainder(8 * i + j + 5, 4), "and", (4 * i - 6) % 4, "and", (7 - i) % 4)
    (j + 1) % 4 and 2 and (-i + 7) % 4
    """
    rest = _rest(value, divisor)
    return Affine(((division(Remainder, rest, divisor), 1),), 0) if rest.terms else rest


def _rest(value: Affine, divisor: int) -> Affine:
    """Return an expression less some multiple of the divisor, with factors that are smaller than the divisor."""
    if divisor == 1:
        return Affine((), 0)
    terms = {s: c % divisor if c > 0 else -(-c % divisor) for s, c in value.terms}
    # Where indices are taken off, the constant is what keeps the sum from falling below 0.
    falls = any(c < 0 for c in terms.values())
    return Affine.of(terms, value.constant if falls else value.constant % divisor)


def affine_or_none(x: Any) -> Affine | None:  # Any: asks what it is
    """Return a number, index, dimension or affine expression as an expression, None for anything else."""
    if isinstance(x, _Linear):
        return x.as_affine()
    if isinstance(x, bool):
        return None
    try:
        return Affine((), x.__index__())
    except (AttributeError, TypeError):  # an array has the method, and is not a number
        return None


def as_affine(x: Any) -> Affine:  # Any: checked here
    """Return what is affine as an expression. Raises `ScheduleError` for anything else."""
    place = affine_or_none(x)
    if place is None:
        raise ScheduleError(f"{x!r} is not affine", help="use indices, whole numbers, and sums and multiples of them")
    return place


@dataclass(frozen=True, eq=False)
class Position(Expression):
    """The value of an affine expression of the indices."""

    place: Affine

    def __str__(self) -> str:
        return f"({self.place})" if len(self.place.terms) > 1 or self.place.constant else str(self.place)
