"""Float operations: IEEE, each result rounded once to its type.

Sums, products, quotients and square roots are exact to the last bit. The elementary functions are computed in
float64 and rounded once, so a float32 result is the nearest one but for very rare half-way cases; CUDA's own
are within a few units in the last place of it. `min` and `max` ignore NaN and order -0 below +0.
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
_TESTS: dict[str, Callable[[Lanes], Lanes]] = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}
_ELEMENTARY: dict[str, Callable[[Lanes], Lanes]] = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "cbrt": np.cbrt,
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
    return lambda x: round_float64(np.asarray(function(x.astype(np.float64))), dtype)[()]
