"""What is known of an integer value: its range and what it is a multiple of.

Facts are computed when a value is built and are true of the value in every thread. They decide whether
an index can be divided exactly, whether a comparison is already known, and whether a vector access is aligned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.dtypes import DType


@dataclass(frozen=True)
class Facts:
    """`low <= x <= high`, and `x` is a multiple of `divisor` (0 divides only 0)."""

    low: int
    high: int
    divisor: int = 1

    @property
    def constant(self) -> int | None:
        """The value, when only one is possible."""
        return self.low if self.low == self.high else None

    @property
    def non_negative(self) -> bool:
        return self.low >= 0

    def join(self, other: Facts) -> Facts:
        """Return what holds of a value that is either this or the other."""
        divisor = math.gcd(self.divisor, other.divisor)
        return Facts(min(self.low, other.low), max(self.high, other.high), divisor)

    def meet(self, other: Facts) -> Facts:
        """Return what holds of a value of which both this and the other are true.

        Facts that contradict each other belong to code that never runs; there this stays as it is.
        """
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Facts(low, high, math.lcm(self.divisor, other.divisor)) if low <= high else self


def unknown(dtype: DType, divisor: int = 1) -> Facts:
    """Return the facts of any value of an integer type."""
    return Facts(dtype.lowest, dtype.highest, divisor)


def exactly(value: int) -> Facts:
    """Return the facts of a constant."""
    return Facts(value, value, abs(value))


def wrap(facts: Facts, dtype: DType) -> Facts:
    """Return the facts after the result is reduced to the type: a range that overflows is lost.

    Two's complement keeps the low bits, so the power of two in the divisor survives.
    """
    if dtype.lowest <= facts.low and facts.high <= dtype.highest:
        return facts
    return unknown(dtype, facts.divisor & -facts.divisor)


def add(a: Facts, b: Facts) -> Facts:
    """Return the facts of the exact sum, not yet reduced to a type."""
    return Facts(a.low + b.low, a.high + b.high, math.gcd(a.divisor, b.divisor))


def subtract(a: Facts, b: Facts) -> Facts:
    """Return the facts of the exact difference, not yet reduced to a type."""
    return Facts(a.low - b.high, a.high - b.low, math.gcd(a.divisor, b.divisor))


def multiply(a: Facts, b: Facts) -> Facts:
    """Return the facts of the exact product, not yet reduced to a type."""
    corners = [a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high]
    return Facts(min(corners), max(corners), a.divisor * b.divisor)


def divide(a: Facts, b: Facts, dtype: DType) -> Facts:
    """Return the facts of C++'s quotient, which rounds towards zero; division by 0 is undefined."""
    if b.low < 0 or b.high == 0:
        return unknown(dtype)
    corners = [truncated_division(x, y) for x in (a.low, a.high) for y in (max(b.low, 1), b.high)]
    exact = b.constant is not None and a.divisor % b.low == 0
    return Facts(min(corners), max(corners), a.divisor // b.low if exact else 1)


def remainder(a: Facts, b: Facts, dtype: DType) -> Facts:
    """Return the facts of C++'s remainder, which has the dividend's sign; division by 0 is undefined."""
    if b.low < 0 or b.high == 0:
        return unknown(dtype)
    limit = b.high - 1
    low = 0 if a.low >= 0 else max(a.low, -limit)
    high = 0 if a.high <= 0 else min(a.high, limit)
    return Facts(low, high, math.gcd(a.divisor, b.divisor))  # a - q * b


def minimum(a: Facts, b: Facts) -> Facts:
    """Return the facts of the smaller of two values."""
    return Facts(min(a.low, b.low), min(a.high, b.high), math.gcd(a.divisor, b.divisor))


def maximum(a: Facts, b: Facts) -> Facts:
    """Return the facts of the larger of two values."""
    return Facts(max(a.low, b.low), max(a.high, b.high), math.gcd(a.divisor, b.divisor))


def bit_and(a: Facts, b: Facts, dtype: DType) -> Facts:
    """Return the facts of `a & b`: bounded by a side that is not negative, with the more trailing zeros of the two."""
    known = [f.high for f in (a, b) if f.low >= 0]
    power = max(a.divisor & -a.divisor, b.divisor & -b.divisor, 1)
    return Facts(0, min(known), power) if known else unknown(dtype, power)


def bit_or_xor(a: Facts, b: Facts, dtype: DType) -> Facts:
    """Return the facts of `a | b` and of `a ^ b`."""
    power = math.gcd(a.divisor & -a.divisor, b.divisor & -b.divisor) or 1
    if a.low < 0 or b.low < 0:
        return unknown(dtype, power)
    return Facts(0, (1 << max(a.high.bit_length(), b.high.bit_length())) - 1, power)


def shift_left(a: Facts, b: Facts, dtype: DType) -> Facts:
    """Return the facts of the exact `a << b`, not yet reduced to a type."""
    if b.low < 0 or b.high >= dtype.bits:
        return unknown(dtype)
    return multiply(a, Facts(1 << b.low, 1 << b.high, 1 << b.low))


def shift_right(a: Facts, b: Facts, dtype: DType) -> Facts:
    """Return the facts of `a >> b`, which rounds downwards."""
    if b.low < 0 or b.high >= dtype.bits:
        return unknown(dtype)
    corners = [x >> y for x in (a.low, a.high) for y in (b.low, b.high)]
    exact = b.constant is not None and a.divisor % (1 << b.low) == 0
    return Facts(min(corners), max(corners), a.divisor >> b.low if exact else 1)


def truncated_division(x: int, y: int) -> int:
    """Return the quotient as C++ defines it: rounded towards zero."""
    quotient = abs(x) // abs(y)
    return quotient if (x >= 0) == (y >= 0) else -quotient
