"""Numbers of the host whose values a kernel gets when it is launched, and that behave like Python's numbers in it.

A literal in a kernel has no element type of its own: `acc * 0.5` is computed in the type of `acc`, in which 0.5 is
rounded by the host. A `HostNumber` stands for such a literal. Where it meets a device value, the type that it takes is
recorded as a `NumberUse`, and becomes a parameter of the kernel, rounded by the host as the literal would be. Sums,
products and the like of host numbers alone are recorded as expressions, which the host computes at each launch.

Whatever else is asked of it (its truth, its digits, its class, a call of math.sqrt) needs the value while the kernel is
traced: `NeedsConstant` is raised, and the number has to be compiled in.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from tilewright.dtypes import DType, dtype, float32, float64, int32, promote
from tilewright.ir.core import Value
from tilewright.ir.facts import unknown
from tilewright.trace.scalar import (
    Scalar,
    arithmetic,
    compare,
    convert,
    default_type,
    is_numpy_number,
    is_typed,
    rounded,
    true_divide,
)

# Between these, an int fits into the same integer types.
_EDGES = (-(1 << 63), -(1 << 31), -(1 << 15), -(1 << 7), 0, 1 << 7, 1 << 8, 1 << 15, 1 << 16, 1 << 31, 1 << 32, 1 << 63)


class NeedsConstant(BaseException):
    """The value of a host number is needed while a kernel is traced. No `except Exception` of a user may catch it."""


@dataclass(frozen=True)
class NumberKind:
    """What a kernel is specialised on for a number that it gets at its launch.

    `sample` is a Python number that promotes as all of the kind do. `own` is the element type of NumPy's numbers.
    """

    sample: int | float
    own: DType | None = None


def number_kind(value: object) -> NumberKind | None:
    """Return the kind of a number that may be given at a launch, None for what has to be compiled in.

    >>> number_kind(0.5) == number_kind(-1e300), number_kind(3) == number_kind(4), number_kind(3) == number_kind(300)
    (True, True, False)
    """
    if type(value) is float:
        return _FLOAT
    if type(value) is int:
        if not _EDGES[0] <= value < 1 << 64:
            return None
        return _INTS[bisect_right(_EDGES, value) - 1]
    if is_numpy_number(value) and not hasattr(value, "__array_finalize__"):
        try:
            own = dtype(value.dtype)  # type: ignore[attr-defined]
        except TypeError:
            return None
        return NumberKind(0.5 if own.is_float else 0, own) if own in _PASSED else None
    return None


_FLOAT = NumberKind(0.5)
_INTS = tuple(NumberKind(edge) for edge in _EDGES)
_USED = frozenset(map(dtype, ("int8", "int16", "uint8", "uint16")))  # the element types of uses, beside those
_PASSED = frozenset(map(dtype, ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint32", "uint64")))


@dataclass(frozen=True)
class Expression:
    """A number that the host computes at each launch from those that a function captures.

    `text` tells expressions apart: the captured numbers are called n0, n1 and so on.
    """

    text: str
    compute: Callable[[Sequence[Any]], Any] = field(compare=False)  # Any: Python's and NumPy's numbers
    places: frozenset[int] = field(compare=False)


def captured_number(place: int) -> Expression:
    """Return the expression of a captured number alone."""
    return Expression(f"n{place}", operator.itemgetter(place), frozenset((place,)))


@dataclass(frozen=True)
class NumberUse:
    """A parameter of a kernel: an expression, in the element type in which the kernel uses it."""

    expression: Expression
    dtype: DType

    @property
    def held(self) -> DType:
        """The type of the parameter: narrower numbers are passed as the float32 or int32 of the same value."""
        if self.dtype.bits >= 32:
            return self.dtype
        return float32 if self.dtype.is_float else int32

    def value(self, numbers: Sequence[Any]) -> Any:  # Any: a NumPy number
        """Return what a launch passes, rounded as the literal would be."""
        number = self.expression.compute(numbers)
        if hasattr(number, "dtype"):
            number = number.item()
        if self.dtype.is_float and self.dtype is not float64:
            number = rounded(number, self.dtype)
        return self.held.numpy.type(number)


class Uses:
    """The parameters that a function's numbers need, in the order of their first use.

    Without `parameters` they are recorded; with it they are those scalars, and others make `NeedsConstant`.
    """

    def __init__(self, parameters: dict[NumberUse, Scalar] | None = None) -> None:
        self.parameters = parameters
        self.recorded: dict[NumberUse, Scalar] = {}
        self.constants: set[int] = set()  # places of captured numbers whose values were needed

    def scalar(self, use: NumberUse) -> Scalar:
        """Return the parameter of a use."""
        known = self.recorded if self.parameters is None else self.parameters
        parameter = known.get(use)
        if parameter is None:
            if self.parameters is not None:
                self.need(use.expression)
            parameter = Scalar(Value(use.held, None, None if use.held.is_float else unknown(use.held)))
            self.recorded[use] = parameter
        return parameter

    def need(self, expression: Expression) -> NoReturn:
        """Note that an expression's numbers have to be compiled in, and give up the trace."""
        self.constants |= expression.places
        raise NeedsConstant(expression.text)


class HostNumber(Scalar):
    """Stands for a Python or NumPy number whose value comes with each launch."""

    __slots__ = ("_expression", "_kind", "_uses")

    def __init__(self, expression: Expression, kind: NumberKind, uses: Uses) -> None:
        self._expression = expression
        self._kind = kind
        self._uses = uses

    @property
    def number(self) -> Any:
        """A number that promotes as this one does."""
        return self._kind.sample if self._kind.own is None else self._kind.own.numpy.type(self._kind.sample)

    def as_device(self, target: DType | None) -> Scalar:
        """Return the parameter of the kernel that holds this number in an element type, by default its own."""
        kind = self._kind
        target = target or kind.own or default_type(kind.sample)
        if target not in _PASSED | _USED or (isinstance(kind.sample, float) and not target.is_float):
            self.need()
        if not target.is_float and not target.lowest <= kind.sample <= target.highest:
            self.need()
        if kind.own is not None and not target.is_float and promote(kind.own, target) is not target:
            self.need()  # the value decides whether it fits
        return convert(self._uses.scalar(NumberUse(self._expression, target)), target)

    def need(self) -> NoReturn:
        """Give up the trace: the value is needed."""
        self._uses.need(self._expression)

    @property  # type: ignore[misc]  # read by isinstance(x, float), which is to be true; never set
    def __class__(self) -> Any:
        self.need()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__tilewright_"):
            raise AttributeError(name)
        self.need()

    # A float divided by 0 raises at the launch what it raises in Python.
    def _join(self, symbol: str, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        """Return a sum, difference, product or quotient of two host numbers, one of them Python's float."""
        parts = []
        for x in (a, b):
            if type(x) is HostNumber and x._kind.own is None:
                parts.append(x._expression)
            elif type(x) in (int, float):
                parts.append(Expression(f"{type(x).__name__}({x!r})", _always(x), frozenset()))
            else:
                self.need()
        first, second = parts
        if not any(isinstance(x.number if type(x) is HostNumber else x, float) for x in (a, b)):
            self.need()  # how large an int becomes decides its type
        joined = Expression(
            f"({first.text} {symbol} {second.text})",
            lambda numbers: function(first.compute(numbers), second.compute(numbers)),
            first.places | second.places,
        )
        return HostNumber(joined, _FLOAT, self._uses)

    def __neg__(self) -> Any:
        if self._kind is not _FLOAT:
            self.need()
        inner = self._expression
        negative = Expression(f"-{inner.text}", lambda numbers: -inner.compute(numbers), inner.places)
        return HostNumber(negative, _FLOAT, self._uses)

    def __pos__(self) -> Any:
        return self if self._kind.own is None else self.need()


def _always(value: Any) -> Callable[[Sequence[Any]], Any]:
    return lambda numbers: value


def _binary(kind: str, symbol: str, function: Callable[[Any, Any], Any], *, swapped: bool) -> Any:
    def apply(self: HostNumber, other: Any) -> Any:
        a, b = (other, self) if swapped else (self, other)
        if is_typed(other):
            return arithmetic(kind, a, b)
        return self._join(symbol, function, a, b)

    return apply


def _divide(*, swapped: bool) -> Any:
    def apply(self: HostNumber, other: Any) -> Any:
        a, b = (other, self) if swapped else (self, other)
        return true_divide(a, b) if is_typed(other) else self._join("/", operator.truediv, a, b)

    return apply


def _comparison(kind: str) -> Any:
    def apply(self: HostNumber, other: Any) -> Any:
        return compare(kind, self, other) if is_typed(other) else self.need()

    return apply


def _needing(name: str) -> Any:
    def apply(self: HostNumber, *others: Any) -> Any:
        self.need()

    apply.__name__ = name
    return apply


def _install() -> None:
    for name, kind, symbol, function in (
        ("add", "add", "+", operator.add), ("sub", "sub", "-", operator.sub), ("mul", "mul", "*", operator.mul),
    ):  # fmt: skip
        setattr(HostNumber, f"__{name}__", _binary(kind, symbol, function, swapped=False))
        setattr(HostNumber, f"__r{name}__", _binary(kind, symbol, function, swapped=True))
    setattr(HostNumber, "__truediv__", _divide(swapped=False))  # noqa: B010
    setattr(HostNumber, "__rtruediv__", _divide(swapped=True))  # noqa: B010
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(HostNumber, f"__{name}__", _comparison(name))
    # What a literal decides while tracing (unrolled powers, checks of divisors), and what Python asks of a number.
    for name in (
        "floordiv", "rfloordiv", "mod", "rmod", "divmod", "rdivmod", "pow", "rpow", "lshift", "rlshift", "rshift",
        "rrshift", "and", "rand", "or", "ror", "xor", "rxor", "matmul", "rmatmul", "abs", "invert", "bool", "index",
        "int", "float", "complex", "round", "trunc", "floor", "ceil", "str", "repr", "format", "hash", "reduce_ex",
        "array", "copy", "deepcopy",
    ):  # fmt: skip
        setattr(HostNumber, f"__{name}__", _needing(f"__{name}__"))
    # What a number of Python has not, or has another one of.
    for name in (
        "__iter__", "__tilewright_cast__", "assume_multiple", "bitcast", "dtype", "facts",
        "split_multiple", "to", "value",
    ):  # fmt: skip
        setattr(HostNumber, name, property(_needing(name)))


_install()
