"""Elementary functions in decimal arithmetic of 60 digits: references that no C library takes part in.

Each takes and returns floats as `Decimal`; what is not a finite number, and poles, are left to the caller.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from decimal import Decimal
from functools import cache

DIGITS = 60


def _sum(term: Decimal, next_term: Callable[[Decimal, int], Decimal]) -> Decimal:
    """Return term + next_term(term, 1) + ..., until the terms no longer count."""
    total, n = Decimal(0), 0
    while total + term != total or n == 0:
        total += term
        n += 1
        term = next_term(term, n)
    return total


@cache
def pi() -> Decimal:
    """Machin's formula."""
    return 4 * (4 * _small_atan(1 / Decimal(5)) - _small_atan(1 / Decimal(239)))


def _small_atan(x: Decimal) -> Decimal:
    if not x:
        return x
    power, total, n = x, Decimal(0), 1
    while total + power / n != total:
        total += power / n
        power, n = -power * x * x, n + 2
    return total


def atan(x: Decimal) -> Decimal:
    if abs(x) > 1:
        return (pi() / 2).copy_sign(x) - atan(1 / x)
    for _ in range(3):  # atan(x) = 2 * atan(x / (1 + sqrt(1 + x * x)))
        x = x / (1 + (1 + x * x).sqrt())
    return 8 * _small_atan(x)


def sin(x: Decimal) -> Decimal:
    x = x - 2 * pi() * (x / (2 * pi())).to_integral_value()
    return _sum(x, lambda term, n: -term * x * x / (2 * n * (2 * n + 1)))


def cos(x: Decimal) -> Decimal:
    x = x - 2 * pi() * (x / (2 * pi())).to_integral_value()
    return _sum(Decimal(1), lambda term, n: -term * x * x / (2 * n * (2 * n - 1)))


def asin(x: Decimal) -> Decimal:
    return (pi() / 2).copy_sign(x) if abs(x) == 1 else atan(x / (1 - x * x).sqrt())


def acos(x: Decimal) -> Decimal:
    return pi() / 2 - asin(x)


def cbrt(x: Decimal) -> Decimal:
    return (abs(x) ** (1 / Decimal(3))).copy_sign(x) if x else x


def sinh(x: Decimal) -> Decimal:
    return (x.exp() - (-x).exp()) / 2


def cosh(x: Decimal) -> Decimal:
    return (x.exp() + (-x).exp()) / 2


def erf(x: Decimal) -> Decimal:
    series = _sum(x, lambda term, n: -term * x * x * (2 * n - 1) / (n * (2 * n + 1)))
    return 2 / pi().sqrt() * series


def atan2(y: Decimal, x: Decimal) -> Decimal:
    if not y:
        raise decimal.InvalidOperation("the sign of zero counts, and decimal sums lose it")
    if x > 0:
        return atan(y / x)
    half = pi().copy_sign(y)
    return half / 2 if x == 0 else half + atan(y / x)


FUNCTIONS: dict[str, Callable[..., Decimal]] = {
    "rsqrt": lambda x: 1 / x.sqrt(),
    "cbrt": cbrt,
    "exp": Decimal.exp,
    "exp2": lambda x: (x * Decimal(2).ln()).exp(),
    "expm1": lambda x: x.exp() - 1,
    "log": Decimal.ln,
    "log2": lambda x: x.ln() / Decimal(2).ln(),
    "log10": Decimal.log10,
    "log1p": lambda x: (1 + x).ln(),
    "sin": sin,
    "cos": cos,
    "tan": lambda x: sin(x) / cos(x),
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "sinh": sinh,
    "cosh": cosh,
    "tanh": lambda x: sinh(x) / cosh(x),
    "erf": erf,
    "pow": lambda x, y: (y * x.ln()).exp(),
    "atan2": atan2,
}


def exact(name: str, *arguments: float) -> tuple[float, float]:
    """Return the value of a function as the nearest float64, and what is left of it: together over 100 bits.

    Raises `decimal.DecimalException` where there is none.
    """
    with decimal.localcontext() as context:
        context.prec = DIGITS
        if not all(map(math.isfinite, arguments)):
            raise decimal.InvalidOperation(f"{name} of {arguments}")
        value = FUNCTIONS[name](*map(Decimal, arguments))
        nearest = float(value)
        return nearest, float(value - Decimal(nearest))
