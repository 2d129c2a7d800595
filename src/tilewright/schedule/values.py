"""Values that the logic of a nest computes: recorded when it is declared, computed when a kernel is built.

An `Expression` is arithmetic and comparisons, conversions, and functions of device numbers. What else may stand in one
says so by a method `as_expression`: indices, and arrays without modes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.arguments import function as check_function
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ScheduleError
from tilewright.frames import showing_frames
from tilewright.schedule.parameters import Delayed
from tilewright.trace.mathematics import where as device_where
from tilewright.trace.scalar import Scalar


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

    def types(self) -> Iterator[DType]:
        """Yield the element types that decide in which type a value is computed that has this one as a part."""
        for part in self.operands:
            yield from part.types()

    def __bool__(self) -> bool:
        raise ScheduleError(
            f"the logic of a nest cannot branch on {self}, a value that only the kernel knows",
            help="tw.where(condition, a, b) computes both and takes one; in place of Python's max and min, tw.maximum "
            "and tw.minimum",
        )

    # `==` builds an expression, so identity has to say what is the same.
    __hash__: Any = object.__hash__

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
class Later(Expression):
    """The value of a parameter, which is chosen when the kernel is built."""

    value: Delayed

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, eq=False)
class Convert(Expression):
    """A value converted to an element type, as by `x.to(dtype)` of device numbers."""

    value: Expression
    dtype: DType

    @property
    def operands(self) -> tuple[Expression, ...]:
        return (self.value,)

    def types(self) -> Iterator[DType]:
        yield self.dtype

    def __str__(self) -> str:
        return f"{self.dtype}({self.value})"


@dataclass(frozen=True, eq=False)
class Apply(Expression):
    """A function of values: an operator of Python's, or a function of device numbers."""

    name: str
    function: Callable[..., Any]  # Any: device numbers
    arguments: tuple[Expression, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", showing_frames(self.function))  # as it is compared

    @property
    def operands(self) -> tuple[Expression, ...]:
        return self.arguments

    @property
    def is_comparison(self) -> bool:
        """Whether two values are compared, in a type of their own."""
        return self.name in ("<", "<=", ">", ">=", "==", "!=")

    def types(self) -> Iterator[DType]:
        return iter(()) if self.is_comparison else super().types()

    def __str__(self) -> str:
        if self.name.isidentifier():
            return f"{self.name}({', '.join(map(str, self.arguments))})"
        texts = [f"({x})" if isinstance(x, Apply) and not x.name.isidentifier() else str(x) for x in self.arguments]
        return f"{self.name}{texts[0]}" if len(texts) == 1 else f"{texts[0]} {self.name} {texts[1]}"


class Decision:
    """What tells one `If` from another."""


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition under which a statement runs: where it holds, or where it does not.

    Statements whose guards have one `decision` are of one `If`, which computes its condition once.
    """

    decision: Decision
    test: Expression
    holds: bool

    def __str__(self) -> str:
        return str(self.test) if self.holds else f"not ({self.test})"


def expression(x: Any) -> Expression:  # Any: checked here
    """Return a number, index or affine expression as an expression; expressions stay as they are.

    Raises `ScheduleError` for anything else.
    """
    if isinstance(x, Expression):
        return x
    if isinstance(x, (bool, float)):
        return Number(x)
    if isinstance(x, Delayed):
        return Later(x)
    if hasattr(x, "as_expression"):
        value: Expression = x.as_expression()
        return value
    if hasattr(x, "__index__") and getattr(x, "ndim", 0) == 0:  # an array has the method too
        return Number(x.__index__())
    if hasattr(x, "item") and getattr(x, "ndim", 0) == 0:  # a NumPy number
        return Number(x.item())
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


def rounded_down(value: Any, divisor: Any) -> Any:  # Any: numbers of the host or of a device
    """Return value // divisor, rounded down, for one from 1; // of device numbers rounds towards zero, as C does."""
    if not may_be_negative(value):
        return value // divisor
    if isinstance(divisor, int) and divisor & (divisor - 1) == 0:
        return value >> (divisor.bit_length() - 1)
    return (value - device_where(value < 0, divisor - 1, 0)) // divisor


def left_over(value: Any, divisor: Any) -> Any:  # Any: numbers of the host or of a device
    """Return value % divisor, from 0 to divisor - 1, for one from 1."""
    if not may_be_negative(value):
        return value % divisor
    if isinstance(divisor, int) and divisor & (divisor - 1) == 0:
        return value & (divisor - 1)
    return value - rounded_down(value, divisor) * divisor


def may_be_negative(value: Any) -> bool:  # Any: as above
    """Whether a number of the device may be below 0, as far as is known."""
    if not isinstance(value, Scalar):
        return False  # Python rounds down
    facts = value.value.facts
    return facts is None or not facts.non_negative
