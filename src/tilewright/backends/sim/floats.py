"""Float operations: IEEE, each result rounded once to its type.

Sums, products, quotients and square roots are exact to the last bit. The elementary functions are computed in
float64 and rounded once, so a float32 result is the nearest one but for very rare half-way cases; CUDA's own
are within a few units in the last place of it. `min` and `max` ignore NaN and order -0 below +0.

C libraries and NumPy's vector code differ in the last places of float64: the cube root of one in use is 3.7 units off.
So float64 functions are computed in the wider type of the machine where it has one (x86 has 64 bits of significand),
and rounded; and cube roots, in which libraries are worst, are corrected by a step of Newton's method everywhere.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import numpy as np

from tilewright.backends.sim.conversions import round_float64
from tilewright.backends.sim.values import Lanes
from tilewright.dtypes import DType


def maximum(a: Lanes, b: Lanes) -> Lanes:
    """Return the larger of two floats; a number if one of them is NaN."""
    zeros = np.equal(a, 0) & np.equal(b, 0)
    result = np.fmax(a, b)
    return np.where(zeros, a + b, result)[()] if zeros.any() else result


def minimum(a: Lanes, b: Lanes) -> Lanes:
    """Return the smaller of two floats; a number if one of them is NaN."""
    return -maximum(-a, -b)


def _cbrt(x: Lanes) -> Lanes:
    """Return the cube root, within a unit in the last place whatever the C library's is.

    With y close to the root, y - (y * y * y - x) / (3 * y * y) is closer: its error is that of y squared. What counts
    is the difference y * y * y - x, which is computed without rounding: each product is split into a float and the rest
    that rounding left of it (Dekker's product).
    """
    exponent = np.frexp(x)[1] // 3
    scaled = np.ldexp(x, -3 * exponent)  # from 1/8 to 8, so that nothing overflows or is subnormal; exact
    y = np.cbrt(scaled)
    with np.errstate(all="ignore"):
        square, rest = _product(y, y)
        cube, cube_rest = _product(square, y)
        corrected = y - ((cube - scaled) + (cube_rest + rest * y)) / (3 * square)
    usable = np.isfinite(x) & (x != 0)  # the others are their own roots
    return np.where(usable, np.ldexp(corrected, exponent), x)


def _product(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """Return a float64 product, and what rounding left of it."""
    product = a * b
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _upper_half(x: Lanes) -> Lanes:
    large = 134217729.0 * x  # 2**27 + 1
    return large - (large - x)


def _erf(x: Lanes) -> Lanes:
    array = np.asarray(x)
    return np.array([math.erf(v) for v in array.ravel().tolist()]).reshape(array.shape)


_EXACT: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "min": minimum,
    "max": maximum,
}
_BY_FLOAT64: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "rem": np.fmod,
    "fmod": np.fmod,
    "pow": np.power,
    "atan2": np.arctan2,
    "copysign": np.copysign,
}
# Of a float64 argument; what is not here is exact, or has its own code.
_WIDENED = {
    "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "pow", "atan2",
}  # fmt: skip
_WIDE = np.longdouble if np.finfo(np.longdouble).nmant >= 63 else np.float64
_TESTS: dict[str, Callable[[Lanes], Lanes]] = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}
_ELEMENTARY: dict[str, Callable[[Lanes], Lanes]] = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "cbrt": _cbrt,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "erf": _erf,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
}


def binary(kind: str, dtype: DType) -> Callable[[Lanes, Lanes], Lanes] | None:
    """Return the function that computes a binary kind in a float type."""
    if kind in _EXACT:
        return _EXACT[kind]
    function = _BY_FLOAT64.get(kind)
    if function is None:
        return None
    if dtype.bits == 64 and kind in _WIDENED:
        return lambda a, b: np.asarray(function(a.astype(_WIDE), b.astype(_WIDE))).astype(np.float64)[()]

    def run(a: Lanes, b: Lanes) -> Lanes:
        return round_float64(np.asarray(function(a.astype(np.float64), b.astype(np.float64))), dtype)[()]

    return run


def unary(kind: str, dtype: DType) -> Callable[[Lanes], Lanes] | None:
    """Return the function that computes a unary kind in a float type."""
    if kind == "neg":
        return operator.neg
    if kind == "abs":
        return operator.abs
    if kind in _TESTS:
        test = _TESTS[kind]
        return lambda x: test(x.astype(np.float64))
    function = _ELEMENTARY.get(kind)
    if function is None:
        return None
    if dtype.bits == 64 and kind in _WIDENED:
        return lambda x: np.asarray(function(x.astype(_WIDE))).astype(np.float64)[()]
    return lambda x: round_float64(np.asarray(function(x.astype(np.float64))), dtype)[()]
