"""The fused multiply-add, rounded once, for each float type.

float32 and the 16-bit types: a product is exact in float64, and the sum is rounded to float64 and then to
the type. The second rounding goes wrong only where the float64 sum lies exactly half-way between two values
of the type and is itself inexact; those sums are rounded to odd instead, which makes two roundings one
(Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd").

float64: the same paper's algorithm over exact products and sums; where an intermediate could overflow or
underflow, exact rational arithmetic, thread by thread.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from tilewright.backends.sim.conversions import round_float64
from tilewright.backends.sim.values import Array, Lanes
from tilewright.dtypes import DType, float32, float64

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
