"""Floats: conversions, operations and the fused multiply-add, as IEEE has them, each result rounded once to its type.

Conversions round to nearest even; integers saturate from floats.

Sums, products, quotients and square roots are exact to the last bit. The elementary functions are computed in
float64 and rounded once, so a float32 result is the nearest one but for very rare half-way cases; CUDA's own
are within a few units in the last place of it. `min` and `max` ignore NaN and order -0 below +0.

C libraries and NumPy's vector code differ in the last places of float64: the cube root of one in use is 3.7 units off.
So float64 functions are computed in the wider type of the machine where it has one (x86 has 64 bits of significand),
and rounded; and cube roots, in which libraries are worst, are corrected by a step of Newton's method everywhere.

The fused multiply-add of float32 and the 16-bit types: a product is exact in float64, and the sum is rounded to float64
and then to the type. The second rounding goes wrong only where the float64 sum lies exactly half-way between two values
of the type and is itself inexact; those sums are rounded to odd instead, which makes two roundings one (Boldo and
Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd").

That of float64: the same paper's algorithm over exact products and sums; where an intermediate could overflow or
underflow, exact rational arithmetic, thread by thread.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from tilewright.backends.sim.values import Array, Lanes
from tilewright.dtypes import LARGEST_FLOAT8, DType, bfloat16, float32, float64


def convert(source: DType, target: DType) -> Callable[[Lanes], Lanes]:
    """Return the function that converts values of `source` to `target`."""
    if target.kind == "bool":
        return lambda x: np.not_equal(x, source.numpy.type(0))
    if target.bits == 8 and target.is_float:
        return lambda x: _to_float8(np.asarray(x), target)[()]
    if source.is_float and not target.is_float:
        return lambda x: _saturate(x, target)
    if target is bfloat16 and (source is float64 or (source.is_integer and source.bits > 16)):
        return lambda x: round_float64(_to_float64_odd(np.asarray(x)), bfloat16)[()]
    numpy_type = target.numpy
    return lambda x: x.astype(numpy_type)


def round_float64(x: Array, dtype: DType) -> Array:
    """Return float64 values rounded to a float type."""
    if dtype is not bfloat16:
        return x.astype(dtype.numpy)
    # ml_dtypes goes by way of float32; rounding to odd on the way makes the two roundings one.
    single = x.astype(np.float32)
    back = single.astype(np.float64)
    move = (back != x) & ((single.view(np.uint32) & 1) == 0) & np.isfinite(single) & ~np.isnan(x)
    towards = np.where(x > back, np.float32(np.inf), np.float32(-np.inf))
    return np.where(move, np.nextafter(single, towards), single).astype(dtype.numpy)


def _to_float8(x: Array, target: DType) -> Array:
    """Return values rounded to float32 and then to an 8-bit float, the largest finite number where they are larger."""
    largest = np.float32(LARGEST_FLOAT8[target])
    clipped: Array = np.clip(x.astype(np.float32), -largest, largest).astype(target.numpy)
    return clipped


def _to_float64_odd(x: Array) -> Array:
    """Return integers as float64; those beyond 53 bits rounded to odd in a place below any type's last bit."""
    if x.dtype.kind == "f" or x.itemsize < 8:
        return x.astype(np.float64)
    rest = x & x.dtype.type(0x7FF)
    odd = (x - rest) | np.where(rest != 0, x.dtype.type(0x800), x.dtype.type(0))
    large = (x >= 2**53) | (x <= -(2**53)) if x.dtype.kind == "i" else x >= 2**53
    return np.where(large, odd, x).astype(np.float64)


def _saturate(x: Lanes, target: DType) -> Lanes:
    """Return floats truncated to integers, the nearest integer where they do not fit, 0 for NaN."""
    value = np.trunc(np.asarray(x).astype(np.float64))
    above = value >= float(target.highest + 1)
    below = value < float(target.lowest)
    outside = above | below | np.isnan(value)
    if not outside.any():
        return value.astype(target.numpy)[()]
    inner = np.where(outside, 0.0, value).astype(target.numpy)
    kind = target.numpy.type
    return np.where(above, kind(target.highest), np.where(below, kind(target.lowest), inner))[()]


def bitcast(x: Lanes, target: DType, lanes: int) -> Lanes:
    """Return the bits of a scalar or vector read as `lanes` lanes of a type (1: as a scalar)."""
    array = np.asarray(x)
    if array.ndim < 3:
        array = (array.reshape(1, 1) if array.ndim == 0 and lanes > 1 else array)[..., None]
    viewed = np.ascontiguousarray(array).view(target.numpy)
    return viewed if lanes > 1 else viewed[..., 0][()]


_LOWEST = np.int64(-(2**63))
_SMALLEST_NORMAL_DOUBLED = 0x01000000  # float32's smallest normal, its bits shifted left by one
_SPLITTER = float(2**27 + 1)


def fma(dtype: DType) -> Callable[[Lanes, Lanes, Lanes], Lanes]:
    """Return the function a * b + c of a float type."""
    if dtype is float32:
        return _fma_float32
    if dtype is float64:
        return _fma_float64

    def narrow(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
        a, b, c = (x.astype(np.float64) for x in (a, b, c))
        return round_float64(_add_to_odd(a * b, c), dtype)[()]

    return narrow


def _fma_float32(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    c = c.astype(np.float64)
    product = a.astype(np.float64) * b.astype(np.float64)
    total = product + c
    result = total.astype(np.float32)
    # Half-way for normal results: bit 28 of the significand set and the 28 bits below it clear. Subnormal
    # results are rounded elsewhere, so any of them (zero wraps to the top) takes the slow way too.
    half_way = (total.view(np.int64) << np.int64(35)).min() == _LOWEST
    if half_way or ((result.view(np.uint32) << np.uint32(1)) - np.uint32(1)).min() < _SMALLEST_NORMAL_DOUBLED:
        result = _add_to_odd(product, c).astype(np.float32)
    return result


def _two_sum(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """Return the rounded sum and what the rounding lost; together they are exact."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _add_to_odd(a: Lanes, b: Lanes) -> Array:
    """Return a + b in float64, rounded to odd: of the two neighbours of an inexact sum, the odd one."""
    total, lost = (np.asarray(x) for x in _two_sum(a, b))
    even = (total.view(np.int64) & 1) == 0
    move = even & (lost != 0) & np.isfinite(total) & np.isfinite(lost)
    if not move.any():
        return total
    return np.where(move, np.nextafter(total, np.where(lost > 0, np.inf, -np.inf)), total)


def _two_product(a: Lanes, b: Lanes) -> tuple[Lanes, Lanes]:
    """Return the rounded product and what the rounding lost (Dekker and Veltkamp)."""
    high_a = (t := _SPLITTER * a) - (t - a)
    high_b = (t := _SPLITTER * b) - (t - b)
    low_a, low_b = a - high_a, b - high_b
    product = a * b
    return product, ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b


def _fma_float64(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    a, b, c = np.broadcast_arrays(a, b, c)
    product, low = _two_product(a, b)
    middle, lost = _two_sum(c, low)
    total, rest = _two_sum(product, middle)
    result = total + _add_to_odd(lost, rest)
    plain = product + c
    sizes = np.abs(np.stack([a, b, product, c, plain]))
    finite = np.isfinite(sizes[0]) & np.isfinite(sizes[1]) & np.isfinite(sizes[3])
    zero = (a == 0) | (b == 0)
    inside = ((sizes < 2.0**970) & ((sizes > 2.0**-900) | (sizes == 0))).all(axis=0) & ((product != 0) | zero)
    # An infinite addend stays as it is, also where the product would overflow by itself.
    plain = np.where(np.isinf(c) & np.isfinite(a) & np.isfinite(b), c, plain)
    result = np.array(np.where(zero | ~finite, plain, result))
    for position in np.argwhere(finite & ~zero & ~inside):
        where = tuple(position)
        result[where] = _rational(float(a[where]), float(b[where]), float(c[where]))
    return result[()]


def _rational(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c  # the sign of zero
    try:
        return float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


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
        exact = _EXACT[kind]
        if dtype is bfloat16:  # the same bits as ml_dtypes', in a quarter of the time
            return lambda a, b: exact(a.astype(np.float32), b.astype(np.float32)).astype(bfloat16.numpy)
        return exact
    function = _BY_FLOAT64.get(kind)
    if function is None:
        return None
    if dtype.bits == 64 and kind in _WIDENED:
        return lambda a, b: np.asarray(function(a.astype(_WIDE), b.astype(_WIDE))).astype(np.float64)[()]

    def run(a: Lanes, b: Lanes) -> Lanes:
        return round_float64(np.asarray(function(a.astype(np.float64), b.astype(np.float64))), dtype)[()]

    return run


def approximate(kind: str) -> Callable[[Lanes, Lanes], Lanes]:
    """Return the function that computes an approximate quotient or power of float32.

    It goes the instruction's way and rounds once: what is special about its operands is so here.
    """
    return approximate_quotient if kind == "div" else _approximate_power


_LARGEST_DIVISOR = np.float32(2.0**126)  # its reciprocal is the smallest normal number


def approximate_quotient(a: Lanes, b: Lanes) -> Lanes:
    """Return a * (1 / b), where the reciprocal of what is greater than 2**126 is 0 (PTX div.approx)."""
    with np.errstate(all="ignore"):
        quotient = a / b
        return np.where(np.abs(b) > _LARGEST_DIVISOR, a * np.copysign(np.float32(0), b), quotient)[()]


def _approximate_power(a: Lanes, b: Lanes) -> Lanes:
    """Return 2 ** (b * log2(a)): NaN for a negative base (CUDA's __powf)."""
    with np.errstate(all="ignore"):
        power = np.exp2(b.astype(np.float64) * np.log2(a.astype(np.float64)))
        return np.asarray(power).astype(np.float32)[()]


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
