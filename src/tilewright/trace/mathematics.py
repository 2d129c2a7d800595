"""Math functions: on device scalars they become instructions, on host numbers they are NumPy's.

A value that is neither may have a method `__tilewright_apply__(name, function, operands)`, which defines them for
it: the expressions of a loop nest's logic record the function, and apply it to device scalars when a kernel is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.arguments import given, shown
from tilewright.dtypes import float32, int32, uint32
from tilewright.errors import ArgumentError, LanguageError
from tilewright.ir.ops import Fma
from tilewright.tensors import Tensor
from tilewright.trace.control import truth
from tilewright.trace.scalar import (
    Scalar,
    arithmetic,
    as_scalar,
    common_type,
    convert,
    is_numpy_number,
    is_typed,
    select,
    unary,
)
from tilewright.trace.tracer import current

_ROUNDINGS = frozenset({"floor", "ceil", "trunc", "round"})


def _function(name: str, text: str) -> Any:
    def apply(x: Any) -> Any:
        if isinstance(x, Scalar):
            if name in _ROUNDINGS and not x.dtype.is_float:
                return x
            return unary(name, x if x.dtype.is_float else x.to(float32))
        return _on_other(name, apply, x)

    apply.__name__ = apply.__qualname__ = name
    width = "" if name in _ROUNDINGS else " (float32 for an integer)"
    kind = "as a bool" if name.startswith("is") else f"in the type of x{width}"
    apply.__doc__ = f"Return {text}, {kind}."
    return apply


def _on_other(name: str, function: Any, *values: Any) -> Any:
    """Apply a function to values that are not device scalars: those that define it themselves, or host numbers."""
    for x in values:
        if hasattr(x, "__tilewright_apply__"):
            return x.__tilewright_apply__(function.__name__, function, values)
    try:
        return _on_host(name, *values)
    except (TypeError, ValueError, AttributeError) as error:
        came = " and ".join(map(given, values))
        raise ArgumentError(f"tw.{function.__name__} takes numbers, got {came}") from error


def _is_tensor(x: object) -> bool:
    return issubclass(type(x), Tensor)  # the class of a number that comes with the launch must not be asked for


def _on_tensors(function: Any, *values: Any) -> Tensor:
    """Apply a function of several operands to the elements of those that are tensors."""
    tensor = next(filter(_is_tensor, values))
    result: Tensor = tensor.__tilewright_apply__(function.__name__, function, values)
    return result


def _on_host(name: str, *values: Any) -> Any:
    import numpy as np

    try:
        if name == "rsqrt":
            return 1 / np.sqrt(values[0])
        if name == "erf":
            return np.vectorize(__import__("math").erf)(values[0])
        return getattr(np, {"round": "rint", "pow": "power", "asin": "arcsin", "acos": "arccos", "atan": "arctan",
                            "atan2": "arctan2"}.get(name, name))(*values)  # fmt: skip
    except OverflowError:
        kinds = ", ".join(map(given, values))
        raise ArgumentError(f"tw.{name} takes numbers of at most 64 bits, got {kinds}") from None


sqrt: Callable[[Any], Any] = _function("sqrt", "the square root")
rsqrt: Callable[[Any], Any] = _function("rsqrt", "1 / sqrt(x)")
cbrt: Callable[[Any], Any] = _function("cbrt", "the cube root")
exp: Callable[[Any], Any] = _function("exp", "e ** x")
exp2: Callable[[Any], Any] = _function("exp2", "2 ** x")
expm1: Callable[[Any], Any] = _function("expm1", "e ** x - 1, exact for small x")
log: Callable[[Any], Any] = _function("log", "the natural logarithm")
log2: Callable[[Any], Any] = _function("log2", "the logarithm to base 2")
log10: Callable[[Any], Any] = _function("log10", "the logarithm to base 10")
log1p: Callable[[Any], Any] = _function("log1p", "log(1 + x), exact for small x")
sin: Callable[[Any], Any] = _function("sin", "the sine of x in radians")
cos: Callable[[Any], Any] = _function("cos", "the cosine of x in radians")
tan: Callable[[Any], Any] = _function("tan", "the tangent of x in radians")
asin: Callable[[Any], Any] = _function("asin", "the arc sine, in radians")
acos: Callable[[Any], Any] = _function("acos", "the arc cosine, in radians")
atan: Callable[[Any], Any] = _function("atan", "the arc tangent, in radians")
sinh: Callable[[Any], Any] = _function("sinh", "the hyperbolic sine")
cosh: Callable[[Any], Any] = _function("cosh", "the hyperbolic cosine")
tanh: Callable[[Any], Any] = _function("tanh", "the hyperbolic tangent")
erf: Callable[[Any], Any] = _function("erf", "the error function")
floor: Callable[[Any], Any] = _function("floor", "the greatest integer not above x")
ceil: Callable[[Any], Any] = _function("ceil", "the least integer not below x")
trunc: Callable[[Any], Any] = _function("trunc", "x without its fraction")
round: Callable[[Any], Any] = _function("round", "the nearest integer, halves to even")
isnan: Callable[[Any], Any] = _function("isnan", "whether x is not a number")
isinf: Callable[[Any], Any] = _function("isinf", "whether x is infinite")
isfinite: Callable[[Any], Any] = _function("isfinite", "whether x is neither infinite nor NaN")


def abs(x: Any) -> Any:
    """Return the absolute value, in the type of x."""
    return x.__abs__() if isinstance(x, Scalar) else _on_other("abs", abs, x)


def popcount(x: Any) -> Any:
    """Return the number of one bits of an integer, as int32."""
    return _bits("popcount", popcount, x)


def clz(x: Any) -> Any:
    """Return the number of leading zero bits of an integer, as int32; the width of the type for 0."""
    return _bits("clz", clz, x)


def _bits(kind: str, function: Any, x: Any) -> Any:
    if hasattr(x, "__tilewright_apply__"):
        return x.__tilewright_apply__(kind, function, (x,))
    if not isinstance(x, Scalar) or not x.dtype.is_integer or x.dtype.bits < 32:
        raise LanguageError(f"tw.{kind} takes a device integer of 32 or 64 bits, got {shown(x)}")
    return convert(unary(kind, x), int32)


def _binary(kind: str, function: Any, a: Any, b: Any, host: str) -> Any:
    if _is_tensor(a) or _is_tensor(b):
        return _on_tensors(function, a, b)
    if isinstance(a, Scalar) or isinstance(b, Scalar):
        result = arithmetic(kind, a, b)
        if result is NotImplemented:
            other = b if isinstance(a, Scalar) else a
            raise LanguageError(f"tw.{function.__name__} takes numbers and tensors, got {shown(other)}")
        return result
    return _on_other(host, function, a, b)


def _float_binary(kind: str, function: Any, a: Any, b: Any) -> Any:
    if _is_tensor(a) or _is_tensor(b):
        return _on_tensors(function, a, b)
    if isinstance(a, Scalar) or isinstance(b, Scalar):
        type = common_type(a, b)
        if not type.is_float:
            a, b = as_scalar(a, None).to(float32), as_scalar(b, None).to(float32)
        return arithmetic(kind, a, b)
    return _on_other(kind, function, a, b)


def minimum(a: Any, b: Any) -> Any:
    """Return the lesser of two numbers; where one is NaN, the other (IEEE minNum, CUDA fminf)."""
    return _binary("min", minimum, a, b, "fmin")


def maximum(a: Any, b: Any) -> Any:
    """Return the greater of two numbers; where one is NaN, the other (IEEE maxNum, CUDA fmaxf)."""
    return _binary("max", maximum, a, b, "fmax")


def pow(a: Any, b: Any) -> Any:
    """Return a ** b in floating point."""
    return _float_binary("pow", pow, a, b)


def atan2(a: Any, b: Any) -> Any:
    """Return the angle of the point (b, a) in radians, from -pi to pi."""
    return _float_binary("atan2", atan2, a, b)


def copysign(a: Any, b: Any) -> Any:
    """Return the magnitude of a with the sign of b."""
    return _float_binary("copysign", copysign, a, b)


def fmod(a: Any, b: Any) -> Any:
    """Return the remainder of a / b with the sign of a."""
    return _float_binary("fmod", fmod, a, b)


def fma(a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c, rounded once; in float32 for narrower types, then rounded to them."""
    if any(map(_is_tensor, (a, b, c))):
        return _on_tensors(fma, a, b, c)
    scalars = [x for x in (a, b, c) if is_typed(x)] or [x for x in (a, b, c) if isinstance(x, Scalar)]
    if not scalars:
        for x in (a, b, c):
            if hasattr(x, "__tilewright_apply__"):
                return x.__tilewright_apply__("fma", fma, (a, b, c))
        try:
            return a * b + c
        except (TypeError, ValueError, OverflowError):
            kinds = ", ".join(map(given, (a, b, c)))
            raise ArgumentError(f"tw.fma takes three numbers, got {kinds}") from None
    type = scalars[0].dtype
    for x in (a, b, c):
        type = common_type(as_scalar(0, type), x)
    if not type.is_float:
        return a * b + c
    wide = type if type.bits >= 32 else float32
    x, y, z = (as_scalar(v, wide) for v in (a, b, c))
    return convert(Scalar(current("tw.fma").pure(Fma(x.value, y.value, z.value), wide)), type)


def where(condition: Any, a: Any, b: Any) -> Any:
    """Return a where the condition holds and b elsewhere; both are computed."""
    if any(map(_is_tensor, (condition, a, b))):
        return _on_tensors(where, condition, a, b)
    condition = truth(condition)
    if isinstance(condition, Scalar):
        return select(condition, a, b)
    if isinstance(condition, bool):
        return a if condition else b
    return _on_other("where", where, condition, a, b)


# --- what instructions take -------------------------------------------------------------------------------


def as_word(x: object, what: str) -> Scalar:
    """Return the bits of an integer of 32 bits as uint32; `what` names the function that takes it."""
    if isinstance(x, int) and not isinstance(x, bool) and int32.lowest <= x <= uint32.highest:
        return as_scalar(x & uint32.highest, uint32)
    return as_integer(x, what, 32).to(uint32)


def as_integer(x: object, what: str, *bits: int) -> Scalar:
    """Return an integer of one of these widths as a device scalar; `what` names the function that takes it."""
    known = isinstance(x, (Scalar, int)) or is_numpy_number(x)
    scalar = as_scalar(x) if known and not isinstance(x, bool) else None
    if scalar is None or not scalar.dtype.is_integer or scalar.dtype.bits not in bits:
        widths = " or ".join(map(str, bits))
        raise LanguageError(f"{what} takes an integer of {widths} bits, got {shown(x)}")
    return scalar
