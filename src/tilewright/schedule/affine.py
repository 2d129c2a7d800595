"""What the logic of a nest is written in: affine expressions of indices, and values that are computed.

An affine expression, c0 + c1 * i + c2 * j + ..., of loop indices and of sizes that only the launch knows says where an
element is. A value is recorded when the logic is declared, and computed when a kernel is built, with the operators of
device numbers. An affine expression is a value wherever one is asked for, and becomes one by arithmetic that is not
affine.
"""

from __future__ import annotations

import itertools
import operator
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Union

from tilewright.arguments import function as check_function
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ScheduleError
from tilewright.schedule.naming import LoopName, assigned_names
from tilewright.trace.mathematics import where as device_where

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

    __hash__ = object.__hash__

    def _is(self, other: object) -> bool:
        return self is other


class Recording(threading.local):
    """What the logic of a nest stores while it is recorded; None where no logic is."""

    stores: list[Any] | None = None  # Any: a Store of `arrays`

    @property
    def is_on(self) -> bool:
        return self.stores is not None


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
    """Return the number of what is made now and is not a copy."""
    return next(_numbers), 0


class Index(Numbered, _Linear, LoopName):
    """The index of one loop. Indices are equal only to themselves.

    >>> i, j = Index("i"), Index("j")
    >>> print(2 * i - j + 3)
    2 * i - j + 3

    An index yields itself, so that of a nest of one loop both `i = nest.get_indices()` and `(i,) = nest.get_indices()`
    can be written.
    """

    def __init__(self, name: str | None = None) -> None:
        self.number = next_number()
        names = assigned_names(sys._getframe(1)) if name is None else (name,)
        self.name = names[0] if names else f"i{self.number[0]}"

    def __iter__(self) -> Iterator[Index]:
        yield self

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
        names = assigned_names(sys._getframe(1)) if name is None else (name,)
        self.name = names[0] if names else f"n{self.number[0]}"

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
    given_names = names or assigned_names(sys._getframe(1))
    if not given_names:
        raise ScheduleError("create_dimensions() without names", help='name them: create_dimensions("M", "N")')
    return tuple(Dimension(name) for name in given_names)


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
    place = affine_or_none(x)
    if place is None:
        raise ScheduleError(f"{x!r} is not affine", help="use indices, whole numbers, and sums and multiples of them")
    return place


# --- values ----------------------------------------------------------------------------------------------


class Expression:
    """A value of the logic. Arithmetic and comparisons give further expressions."""

    # Another object's operator shall not take an expression apart as a list.
    __array_ufunc__ = None

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The expressions that this one is computed from."""
        return ()

    def loads(self) -> Iterator[Any]:  # Any: a Load of `arrays`, which yields itself
        """Yield all that the expression reads."""
        for part in self.operands:
            yield from part.loads()

    def __bool__(self) -> bool:
        raise ScheduleError(
            f"the logic of a nest cannot branch on {self}, a value that only the kernel knows",
            help="tw.where(condition, a, b) computes both and takes one; in place of Python's max and min, tw.maximum "
            "and tw.minimum",
        )

    # `==` builds an expression, so identity has to say what is the same.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:  # Any: an expression, as for device numbers
        return Apply("==", operator.eq, (self, expression(other)))

    def __ne__(self, other: object) -> Any:  # Any: an expression, as for device numbers
        return Apply("!=", operator.ne, (self, expression(other)))

    def __tilewright_apply__(self, name: str, function: Callable[..., Any], operands: tuple[Any, ...]) -> Expression:
        """Record a function of device numbers, such as `tw.exp`."""
        return Apply(name, function, tuple(expression(x) for x in operands))


def _operator(symbol: str, function: Callable[..., Any]) -> tuple[Any, Any]:
    def forward(self: Expression, other: Any) -> Expression:
        return Apply(symbol, function, (self, expression(other)))

    def backward(self: Expression, other: Any) -> Expression:
        return Apply(symbol, function, (expression(other), self))

    return forward, backward


for _name, _symbol, _function in (
    ("add", "+", operator.add), ("sub", "-", operator.sub), ("mul", "*", operator.mul),
    ("truediv", "/", operator.truediv), ("floordiv", "//", operator.floordiv), ("mod", "%", operator.mod),
    ("pow", "**", operator.pow), ("and", "&", operator.and_), ("or", "|", operator.or_), ("xor", "^", operator.xor),
    ("lshift", "<<", operator.lshift), ("rshift", ">>", operator.rshift),
):  # fmt: skip
    _forward, _backward = _operator(_symbol, _function)
    setattr(Expression, f"__{_name}__", _forward)
    setattr(Expression, f"__r{_name}__", _backward)
for _name, _symbol in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    setattr(Expression, f"__{_name}__", _operator(_symbol, getattr(operator, _name))[0])
_ONE_OPERAND: tuple[tuple[str, str, Callable[..., Any]], ...] = (  # Any: device numbers
    ("neg", "-", operator.neg),
    ("invert", "~", operator.invert),
    ("abs", "abs", operator.abs),
)
for _name, _symbol, _operation in _ONE_OPERAND:
    setattr(Expression, f"__{_name}__", lambda self, s=_symbol, f=_operation: Apply(s, f, (self,)))


@dataclass(frozen=True, eq=False)
class Number(Expression):
    """A number that is known when the nest is declared."""

    value: int | float | bool

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, eq=False)
class Position(Expression):
    """The value of an affine expression of the indices."""

    place: Affine

    def __str__(self) -> str:
        return f"({self.place})" if len(self.place.terms) > 1 or self.place.constant else str(self.place)


@dataclass(frozen=True, eq=False)
class Convert(Expression):
    """A value converted to an element type, as by `x.to(dtype)` of device numbers."""

    value: Expression
    dtype: DType

    @property
    def operands(self) -> tuple[Expression, ...]:
        return (self.value,)

    def __str__(self) -> str:
        return f"{self.dtype}({self.value})"


@dataclass(frozen=True, eq=False)
class Apply(Expression):
    """A function of values: an operator of Python's, or a function of device numbers."""

    name: str
    function: Callable[..., Any]  # Any: device numbers
    arguments: tuple[Expression, ...]

    @property
    def operands(self) -> tuple[Expression, ...]:
        return self.arguments

    def __str__(self) -> str:
        if self.name.isidentifier():
            return f"{self.name}({', '.join(map(str, self.arguments))})"
        texts = [f"({x})" if isinstance(x, Apply) and not x.name.isidentifier() else str(x) for x in self.arguments]
        return f"{self.name}{texts[0]}" if len(texts) == 1 else f"{texts[0]} {self.name} {texts[1]}"


def expression(x: Any) -> Expression:  # Any: checked here
    """Return a number, index or affine expression as an expression; expressions stay as they are.

    Raises `ScheduleError` for anything else.
    """
    if isinstance(x, Expression):
        return x
    if isinstance(x, (bool, float)):
        return Number(x)
    place = affine_or_none(x)
    if place is not None:
        return Number(place.constant) if place.is_constant else Position(place)
    if hasattr(x, "item") and getattr(x, "ndim", 0) == 0:  # a NumPy number
        return Number(x.item())
    if hasattr(x, "rank") and x.rank == 0:  # an array of no modes: a number of the launch
        element: Expression = x[()]
        return element
    raise ScheduleError(
        f"the logic of a nest cannot compute with {x!r}", help="use elements of arrays, indices and numbers"
    )


def apply(
    function: Callable[..., Any], *arguments: Any
) -> Expression:  # Any: device numbers; whatever is an expression
    """Return a function of device numbers applied to expressions: it is called when the kernel is built.

    >>> from tilewright.schedule import Array, Role, apply
    >>> A = Array(Role.INPUT, "float32", (4,))
    >>> def half(x): return x * 0.5
    >>> print(apply(half, A[0]))
    half(A[0])
    """
    check_function("apply", "function", function)
    name = getattr(function, "__name__", "function")
    return Apply(name if name.isidentifier() else "function", function, tuple(expression(x) for x in arguments))


def where(condition: Any, on_true: Any, on_false: Any) -> Expression:  # Any: whatever is an expression
    """Return one of two values, both of which are computed: on_true where the condition holds, else on_false."""
    return apply(device_where, condition, on_true, on_false)


def cast(value: Any, dtype: Any) -> Expression:  # Any: whatever is an expression; whatever names an element type
    """Return a value converted to an element type."""
    return Convert(expression(value), as_dtype(dtype))
