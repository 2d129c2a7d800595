"""How far a sum of K products may be from the exact one, and whether results are within what that allows.

With u = 2^-24 (2^-53 for float64) and S the sum of |a b| over K, computed in float64:

- fused multiply-adds in any order: K u S.
- a tensor core that keeps 24 bits: an instruction that adds c products to a sum is off by 2 (c + 3) u times the |a b|
  that it contains so far (docs/matmul_function.md), so that K / c of them are off by 2 (c + 3) / c K u S at most.
  c is 16 for elements of 16 bits and 8 for tf32, whose numbers lose 2^-10 of themselves before.
- a tensor core that multiplies 8-bit floats cuts each of the c + 1 = 33 addends below 2^-13 of the largest, which is
  S at most: 33 * 2^-13 times the |a b| so far. Sums that are promoted begin anew each 128 of K: four instructions.
- float32 in parts: what the documentation of `tw.matmul` states.
- packed weights: (K / 8 + 64) 2 u S, as their tests have it.
- integers, and small whole numbers as long as all that is added fits: exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from benchmarks.random_problems.kinds import Kind
from benchmarks.random_problems.memory import Memory

import tilewright as tw

U = 2.0**-24
ROOM = 64  # scales, alpha and c are multiples of one over this


@dataclass(frozen=True)
class Arithmetic:
    """What a kind computes with: sums are off by `share(K)` S, whole numbers are exact below `exact`, roundings u."""

    unit: float
    exact: float
    share: Any  # of K


def arithmetic_of(kind: Kind) -> Arithmetic:
    """Return the arithmetic of a kind's sums."""
    parts = {"tf32x3": lambda k: (k / 8 + 90) * U, "bf16x9": lambda k: (k / 16 + 150) * U}
    parts["bf16x6"] = parts["bf16x9"]
    if kind.is_whole:
        return Arithmetic(U, np.inf, lambda k: 0.0)
    if kind.a == "float64":  # the reference is off as much
        return Arithmetic(2.0**-52, 2.0**53, lambda k: 2 * (k + 2) * 2.0**-53)
    if kind.weights is not None:
        return Arithmetic(U, 2.0**24, lambda k: (k / 8 + 64) * 2 * U)
    if kind.precision in parts:
        return Arithmetic(U, 2.0**24, parts[kind.precision])
    if kind.a.startswith("float8"):
        if kind.precision == "fp8_fast":
            return Arithmetic(U, 2.0**13, lambda k: -(-k // 32) * 33 * 2.0**-13)
        return Arithmetic(U, 2.0**24, lambda k: 4 * 33 * 2.0**-13 + (k / 128 + 2) * U)
    if kind.precision == "tf32":
        return Arithmetic(U, 2.0**24, lambda k: 2 * 11 * (-(-k // 8) + 1) * U + 2.0**-9)
    if kind.a == "float32":
        return Arithmetic(U, 2.0**24, lambda k: (k + 2) * U)
    return Arithmetic(U, 2.0**24, lambda k: 2 * 19 * (-(-k // 16) + 1) * U)


@dataclass
class Verdict:
    """The greatest error of a problem over what is allowed, and what is wrong, None if nothing is."""

    worst: float = 0.0
    wrong: str | None = None

    def says(self, what: str) -> None:
        self.wrong = self.wrong or what

    def compare(self, what: str, memory: Memory, found: Any, exact: Any, limit: Any, dtype: tw.DType) -> None:
        """Compare results of a type with what is exact in float64; `limit` is how far they may be before rounding."""
        xp, got = memory.xp, memory.wide(found)
        if tuple(got.shape) != tuple(exact.shape):
            self.says(f"{what} has the shape {tuple(got.shape)}, and not {tuple(exact.shape)}")
            return
        if dtype.is_integer:
            eps, least, most = 0.0, 0.0, np.inf
        else:
            info = ml_dtypes.finfo(dtype.numpy)
            eps, least, most = float(info.eps), float(info.smallest_subnormal), float(info.max)
        limit = xp.where(xp.isfinite(exact), limit + abs(exact) * eps / 2 + least, xp.zeros_like(exact))
        # Only here a rounding of a rounding: what is exact to float64 was rounded to the accumulators' type before.
        limit = limit * 1.001
        with np.errstate(invalid="ignore"):  # infinities less infinities
            error = abs(got - exact)
        fits = error <= limit
        fits |= xp.isnan(got) & xp.isnan(exact)
        fits |= got == exact  # infinities
        beyond = abs(exact) + limit >= most  # may round to infinity; what 8-bit floats make of it is not looked at
        infinite = xp.isinf(got) & ((got > 0) == (exact > 0))
        if dtype.bits == 8:
            fits |= beyond & ~xp.isnan(exact)
        else:
            fits |= beyond & infinite
        counted = xp.isfinite(exact) & xp.isfinite(got) & (limit > 0) & ~(beyond & (dtype.bits == 8))
        if bool(counted.any()):
            self.worst = max(self.worst, float((error[counted] / limit[counted]).max()))
        if not bool(fits.all()):
            self.says(self._described(what, memory, got, exact, limit, fits))

    def _described(self, what: str, memory: Memory, got: Any, exact: Any, limit: Any, fits: Any) -> str:
        bad = ~fits
        count, places = int(bad.sum()), memory.xp.nonzero(bad)
        if isinstance(places, tuple):
            first = tuple(int(x[0]) for x in places)
        else:
            first = tuple(int(x) for x in places[0])
        values = [float(x[first]) for x in (got, exact, limit)]
        return (
            f"{what}: {count} of {int(np.prod(tuple(fits.shape)))} elements are wrong, first {first}: "
            f"got {values[0]!r}, exact {values[1]!r}, allowed {values[2]:.3g}"
        )
