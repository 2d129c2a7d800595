"""Typed numbers of one thread, by the table "Numbers" of docs/language.md: Python's integers, and floats rounded once.

Nothing here comes from the simulator. A float is computed exactly, or in float64 where rounding the result a second
time to float32 is known to change nothing (+ - * / and sqrt: 53 bits are more than twice 24 and two), and rounded.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from tests.conformance.harness import rounded, wrapped
from tests.conformance.test_casts import converted

import tilewright as tw

FLOAT64 = np.float64
TRANSFORMS = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint, "sqrt": np.sqrt}


class Number:
    """A value of one thread and its element type. A float is a NumPy scalar, an integer Python's, a bool Python's."""

    __slots__ = ("dtype", "value")

    def __init__(self, dtype: tw.DType, value: Any) -> None:
        self.dtype = dtype
        self.value = value

    def to(self, dtype: Any) -> Number:
        dtype = getattr(dtype, "dtype", dtype)
        if dtype is self.dtype:
            return self
        return made(dtype, converted(self.value, self.dtype, dtype))

    def bitcast(self, dtype: Any) -> Number:
        dtype = getattr(dtype, "dtype", dtype)
        bits = np.array(self.value, self.dtype.numpy).view(dtype.numpy)
        return made(dtype, bits[()])

    def __bool__(self) -> bool:
        return bool(self.value != 0)

    def __index__(self) -> int:
        assert not self.dtype.is_float, self
        return int(self.value)

    def __repr__(self) -> str:
        return f"{self.dtype}({self.value})"

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> Number:
        return arithmetic("add", self, other)

    def __radd__(self, other: Any) -> Number:
        return arithmetic("add", other, self)

    def __sub__(self, other: Any) -> Number:
        return arithmetic("sub", self, other)

    def __rsub__(self, other: Any) -> Number:
        return arithmetic("sub", other, self)

    def __mul__(self, other: Any) -> Number:
        return arithmetic("mul", self, other)

    def __rmul__(self, other: Any) -> Number:
        return arithmetic("mul", other, self)

    def __truediv__(self, other: Any) -> Number:
        dtype = common_type(self, other)
        dtype = dtype if dtype.is_float else tw.float32
        return arithmetic("div", typed(self, dtype), typed(other, dtype))

    def __rtruediv__(self, other: Any) -> Number:
        return typed(other, self.dtype if self.dtype.is_float else tw.float32) / self

    def __floordiv__(self, other: Any) -> Number:
        if common_type(self, other).is_float:
            return transformed("floor", arithmetic("div", self, other))
        return arithmetic("quotient", self, other)

    def __mod__(self, other: Any) -> Number:
        return arithmetic("fmod" if common_type(self, other).is_float else "remainder", self, other)

    def __and__(self, other: Any) -> Number:
        return bitwise(self, other, lambda a, b: a & b)

    def __or__(self, other: Any) -> Number:
        return bitwise(self, other, lambda a, b: a | b)

    def __xor__(self, other: Any) -> Number:
        return bitwise(self, other, lambda a, b: a ^ b)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __pow__(self, other: Any) -> Number:
        """Raise an integer to a power that is not negative: exact, modulo 2^bits."""
        dtype = common_type(self, other)
        base, power = typed(self, dtype).value, typed(other, dtype).value
        assert not dtype.is_float and power >= 0, (self, other)
        return made(dtype, wrapped(base**power, dtype))

    def __pos__(self) -> Number:
        return self

    def __lshift__(self, other: Any) -> Number:
        amount = int(typed(other, self.dtype).value)
        return made(self.dtype, wrapped(self.value << amount, self.dtype) if amount < self.dtype.bits else 0)

    def __rshift__(self, other: Any) -> Number:
        return made(self.dtype, self.value >> int(typed(other, self.dtype).value))

    def __neg__(self) -> Number:
        if self.dtype.is_float:
            return made(self.dtype, -self.value)
        return made(self.dtype, wrapped(-self.value, self.dtype))

    def __abs__(self) -> Number:
        return made(self.dtype, np.fabs(FLOAT64(self.value)) if self.dtype.is_float else abs(self.value))

    def __invert__(self) -> Number:
        if self.dtype is tw.bool_:
            return Number(tw.bool_, not self.value)
        return made(self.dtype, wrapped(~self.value, self.dtype))

    def __eq__(self, other: object) -> Any:
        return compared(self, other, lambda a, b: a == b)

    def __ne__(self, other: object) -> Any:
        return compared(self, other, lambda a, b: a != b)

    def __lt__(self, other: Any) -> Any:
        return compared(self, other, lambda a, b: a < b)

    def __le__(self, other: Any) -> Any:
        return compared(self, other, lambda a, b: a <= b)

    def __gt__(self, other: Any) -> Any:
        return compared(self, other, lambda a, b: a > b)

    def __ge__(self, other: Any) -> Any:
        return compared(self, other, lambda a, b: a >= b)


def made(dtype: tw.DType, value: Any) -> Number:
    """Return a number of a type from a value that the type represents."""
    if dtype is tw.bool_:
        return Number(dtype, bool(value))
    if dtype.is_float:
        with np.errstate(all="ignore"):
            return Number(dtype, dtype.numpy.type(value))
    return Number(dtype, int(value))


def common_type(a: Any, b: Any) -> tw.DType:
    """Return the type in which an operation on two operands is computed."""
    if isinstance(a, Number) and isinstance(b, Number):
        return tw.promote(a.dtype, b.dtype)
    number, plain = (a, b) if isinstance(a, Number) else (b, a)
    if isinstance(plain, float) and not number.dtype.is_float:
        return tw.float32
    if number.dtype is tw.bool_ and not isinstance(plain, bool):
        return tw.int32
    return number.dtype


def typed(x: Any, dtype: tw.DType) -> Number:
    if isinstance(x, Number):
        return x.to(dtype)
    return made(dtype, rounded(float(x), dtype) if dtype.is_float else x)


def arithmetic(kind: str, a: Any, b: Any) -> Number:
    """Compute in the common type: integers wrap, floats are rounded once, narrow ones by way of float32."""
    dtype = common_type(a, b)
    x, y = typed(a, dtype), typed(b, dtype)
    if dtype.is_narrow_float:
        return arithmetic(kind, x.to(tw.float32), y.to(tw.float32)).to(dtype)
    if dtype.is_float:
        with np.errstate(all="ignore"):
            return made(dtype, _of_floats(kind, FLOAT64(x.value), FLOAT64(y.value)))
    return made(dtype, wrapped(_of_integers(kind, x.value, y.value), dtype))


def _of_floats(kind: str, a: Any, b: Any) -> Any:
    if kind in ("min", "max"):
        if math.isnan(a) or math.isnan(b):
            return b if math.isnan(a) else a
        below = a < b or (a == b and math.copysign(1, a) < math.copysign(1, b))
        return a if below == (kind == "min") else b
    match kind:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "div":
            return a / b
        case "fmod":
            return np.fmod(a, b)
        case _:
            assert kind == "copysign", kind
            return np.copysign(a, b)


def _of_integers(kind: str, a: int, b: int) -> int:
    match kind:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient if kind == "quotient" else a - quotient * b


def bitwise(a: Number, b: Any, operation: Any) -> Number:
    dtype = common_type(a, b)
    return made(dtype, operation(typed(a, dtype).value, typed(b, dtype).value))


def compared(a: Number, b: Any, operation: Any) -> Number:
    dtype = common_type(a, b)
    x, y = typed(a, dtype).value, typed(b, dtype).value
    return Number(tw.bool_, bool(operation(FLOAT64(x), FLOAT64(y)) if dtype.is_float else operation(x, y)))


def transformed(kind: str, x: Any) -> Number:
    """Round to a whole number, or take the root; of an integer the root in float32."""
    if not x.dtype.is_float:
        return x if kind != "sqrt" else transformed(kind, x.to(tw.float32))
    if x.dtype.is_narrow_float:
        return transformed(kind, x.to(tw.float32)).to(x.dtype)
    with np.errstate(all="ignore"):
        return made(x.dtype, TRANSFORMS[kind](FLOAT64(x.value)))


def fused(a: Any, b: Any, c: Any) -> Number:
    """Return a * b + c rounded once, in float32 for narrower types and then rounded to them."""
    dtype = common_type(a + b, c)
    wide = dtype if dtype.bits >= 32 else tw.float32
    x, y, z = (FLOAT64(typed(v, wide).value) for v in (a, b, c))
    with np.errstate(all="ignore"):
        plain = x * y + z
    if np.isfinite([x, y, z]).all():
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if exact:
            return made(wide, rounded(exact, wide)).to(dtype)
        if x * y != 0 or x == 0 or y == 0:  # the sum of zeros, or one that cancels: its sign is IEEE's
            return made(wide, plain).to(dtype)
        return made(wide, 0.0).to(dtype)  # a product too small for float64 that cancels exactly cannot be
    # A product of finite factors is finite before it is rounded, so an infinite addend stays what it is.
    return made(wide, z if np.isfinite([x, y]).all() else plain).to(dtype)


def mathematics(reference: Any, *arguments: Number) -> Number:
    """Return a function computed in a wider type, and rounded."""
    dtype = arguments[0].dtype
    wide = np.longdouble if dtype is tw.float64 else FLOAT64
    with np.errstate(all="ignore"):
        return made(dtype, reference(*(wide(x.value) for x in arguments)))
