"""The fused multiply-add is rounded once: against exact rational arithmetic, for every float type."""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.helpers.slow import examples

from tilewright.backends.sim.floats import fma, round_float64
from tilewright.dtypes import DType, bfloat16, float16, float32, float64

# Digits of the significand, and the exponents of the smallest subnormal and of the first power of two too large.
FORMATS = {float16: (11, -24, 16), bfloat16: (8, -133, 128), float32: (24, -149, 128), float64: (53, -1074, 1024)}


def rounded(exact: Fraction, dtype: DType) -> float:
    """Return the number of a type that is nearest to a rational, ties to even: by the definition, digit by digit."""
    digits, smallest, largest = FORMATS[dtype]
    if exact == 0:
        return 0.0
    exponent = math.floor(math.log2(abs(exact.numerator)) - math.log2(exact.denominator)) - 2
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    unit = Fraction(2) ** max(exponent - digits + 1, smallest)
    nearest = round(exact / unit) * unit  # Python rounds a Fraction's half to even
    if abs(nearest) >= Fraction(2) ** largest:
        return math.inf if exact > 0 else -math.inf
    return math.copysign(float(nearest), 1 if exact > 0 else -1)


def numbers(dtype: DType) -> st.SearchStrategy[float]:
    """Return numbers of a type: any bits, and few bits at scattered exponents, whose sums end half-way."""
    bits = dtype.bits
    word = {16: "u2", 32: "u4", 64: "u8"}[bits]

    def from_bits(x: int) -> float:
        return float(np.array([x], word).view(dtype.numpy)[0].astype(np.float64))

    digits, smallest, largest = FORMATS[dtype]
    sparse = st.builds(
        lambda sign, high, low, exponent: sign * math.ldexp(high * 2.0 ** (digits - 1) + low, exponent),
        st.sampled_from([-1.0, 1.0]),
        st.sampled_from([0.0, 1.0]),
        st.integers(0, 3),
        st.integers(smallest, largest - digits - 1),
    )
    return st.one_of(st.integers(0, 2**bits - 1).map(from_bits).filter(math.isfinite), sparse)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("count", [100, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.spread(2)
def test_fma(dtype: DType, count: int) -> None:
    function = fma(dtype)

    @settings(max_examples=count, deadline=None)
    @given(st.lists(st.tuples(*[numbers(dtype)] * 3), min_size=1, max_size=12))
    @example([(1.0, 2.0**-12, 1.0)])
    def check(triples: list[tuple[float, float, float]]) -> None:
        a, b, c = (np.array(x, np.float64).astype(dtype.numpy) for x in zip(*triples, strict=True))
        with np.errstate(all="ignore"):
            got = np.asarray(function(a, b, c)).astype(np.float64)
        for x, y, z, result in zip(*(v.astype(np.float64).tolist() for v in (a, b, c)), got.tolist(), strict=True):
            wanted = rounded(Fraction(x) * Fraction(y) + Fraction(z), dtype)
            assert result == wanted, (x.hex(), y.hex(), z.hex(), result.hex(), wanted.hex())

    check()


# Products that are a power of two but for a little: 1 - 2**-46, and 1 + 2**-36.
BELOW = (1 + 2.0**-23, 1 - 2.0**-23)
ABOVE = (1 + 2.0**-12, 1 - 2.0**-12 + 2.0**-24)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("factors", [BELOW, ABOVE, (1.0, 1.0)])
@pytest.mark.parametrize(
    "c", [1.0, 1 + 2.0**-23, 1 - 2.0**-24, 2.0**100, 2.0**-126, 2.0**-126 + 2.0**-149, 2.0**-140, 2.0**-140 + 2.0**-149]
)
def test_fma_where_float64_ends_half_way(c: float, factors: tuple[float, float], sign: int) -> None:
    """The product is half of the last place of c, but for so little that float64 loses it in the sum."""
    half = math.frexp(max(c, 2.0**-126))[1] - 25
    x, y, z = (sign * math.ldexp(factors[0], half // 2), math.ldexp(factors[1], half - half // 2), c)
    for a, b, c in ((x, y, z), (-x, y, -z)):
        got = float(fma(float32)(np.float32(a), np.float32(b), np.float32(c)))
        assert got == rounded(Fraction(a) * Fraction(b) + Fraction(c), float32)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_fma_of_infinities_nan_and_zeros(dtype: DType) -> None:
    inf, nan = math.inf, math.nan
    cases = [(inf, 1, 1), (inf, 0, 1), (1, 1, -inf), (inf, 1, -inf), (nan, 1, 1), (0, 5, -0.0), (-0.0, 5, -0.0)]
    a, b, c = (np.array(x, dtype.numpy) for x in zip(*cases, strict=True))
    with np.errstate(all="ignore"):
        got = np.asarray(fma(dtype)(a, b, c)).astype(np.float64)
    np.testing.assert_array_equal(got, [inf, nan, -inf, nan, nan, 0.0, -0.0])
    assert np.signbit(got[5:]).tolist() == [False, True]


def test_fma_of_scalars_is_a_scalar() -> None:
    for dtype in FORMATS:
        result = fma(dtype)(*(dtype.numpy.type(x) for x in (3, 4, 5)))
        assert (result, np.ndim(result), result.dtype) == (17, 0, dtype.numpy)


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(1 + 2.0**-8 + 2.0**-40)
@example(float(struct.unpack("<d", b"\xff" * 6 + b"\xef\x47")[0]))
@examples(75, 500)
def test_float64_to_bfloat16_is_rounded_once(x: float) -> None:
    with np.errstate(all="ignore"):
        got = float(round_float64(np.array([x]), bfloat16)[0])
    assert got == rounded(Fraction(x), bfloat16)


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_an_infinite_addend_stays_where_the_product_overflows(dtype: DType, sign: int) -> None:
    kind = dtype.numpy.type
    largest, infinite = np.array([np.finfo(kind).max], kind), np.array([sign * math.inf], kind)
    with np.errstate(all="ignore"):
        for factor in (largest, -largest):
            assert fma(dtype)(largest, factor, infinite).item() == sign * math.inf
