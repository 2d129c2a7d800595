"""Expressions of a nest's logic: what is read, computed and stored for one point of the iteration space.

They are recorded when the logic is declared and computed when a kernel is built, with the operators of device numbers.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilewright.arguments import function as check_function
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, affine_or_none, recording
from tilewright.source import SourceLocation

if TYPE_CHECKING:
    from tilewright.schedule.arrays import Array


class Expression:
    """A value of the logic. Arithmetic and comparisons give further expressions."""

    # Another object's operator shall not take an expression apart as a list.
    __array_ufunc__ = None

    @property
    def operands(self) -> tuple[Expression, ...]:
        """The expressions that this one is computed from."""
        return ()

    def loads(self) -> Iterator[Load]:
        """Yield all that the expression reads."""
        if isinstance(self, Load):
            yield self
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
class Load(Expression):
    """The element of an array at a place."""

    array: Array
    place: tuple[Affine, ...]

    def __str__(self) -> str:
        return f"{self.array.name}[{', '.join(map(str, self.place))}]" if self.place else self.array.name


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
        found: Load = x[()]
        return found
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
    from tilewright.lang.mathematics import where as device_where

    return apply(device_where, condition, on_true, on_false)


def cast(value: Any, dtype: Any) -> Expression:  # Any: whatever is an expression; whatever names an element type
    """Return a value converted to an element type."""
    return Convert(expression(value), as_dtype(dtype))


@dataclass(frozen=True, eq=False)
class Store:
    """array[place] = value, at a line of the user's."""

    array: Array
    place: tuple[Affine, ...]
    value: Expression
    location: SourceLocation | None


class _Recording(threading.local):
    stores: list[Store] | None = None


_recording = _Recording()


def record(logic: Callable[[], Any]) -> list[Store]:  # Any: whatever the user's logic returns, which is nothing
    """Run a nest's logic once on its indices and return what it stores, in order."""
    outer, _recording.stores = _recording.stores, []
    recording.is_on = True
    try:
        logic()
        return _recording.stores
    finally:
        _recording.stores = outer
        recording.is_on = outer is not None


def record_store(array: Array, place: tuple[Affine, ...], value: Any) -> None:  # Any: whatever is an expression
    """Record `array[place] = value`. Raises `ScheduleError` outside of a nest's logic."""
    import sys

    from tilewright.lang.tracer import locate

    if _recording.stores is None:
        raise ScheduleError(
            f"array {array.name} is written outside of a nest's logic",
            help="write it in a function decorated with @nest.iteration_logic",
        )
    location = locate(sys._getframe(2))
    if location is not None:  # what called the logic is this library and says nothing
        location = replace(location, inlined_at=None)
    _recording.stores.append(Store(array, place, expression(value), location))
