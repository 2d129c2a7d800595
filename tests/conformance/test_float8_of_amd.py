"""gfx942's 8-bit floats: what the conversions give, compared with the formats' definition, and their text."""

from __future__ import annotations

import bisect
import itertools
import re
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from tests.conformance.harness import Array
from tests.conformance.test_fragment_conversions import LAYOUTS, both_ways
from tests.conformance.test_operand_types import convert_all

import tilewright as tw
from tilewright.runtime.clang import find_clang

# The bits of the fraction, and the bias of the exponent.
FORMATS = {tw.float8_e4m3fnuz: (3, 8), tw.float8_e5m2fnuz: (2, 16)}
NAN = 0x80
each = pytest.mark.parametrize("dtype", FORMATS, ids=str)
needs_clang = pytest.mark.skipif(find_clang("gfx942") is None, reason="needs clang 17 or later")


def value_of(code: int, dtype: tw.DType) -> Fraction | None:
    """Return the number that a byte stands for; None for the only one that is not a number."""
    fraction_bits, bias = FORMATS[dtype]
    if code == NAN:
        return None
    fraction, exponent = code % (1 << fraction_bits), code % 128 >> fraction_bits
    magnitude = Fraction(fraction + (1 << fraction_bits if exponent else 0), 1 << fraction_bits)
    magnitude *= Fraction(2) ** (max(exponent, 1) - bias)
    return -magnitude if code >= 128 else magnitude


@cache
def magnitudes(dtype: tw.DType) -> list[Fraction]:
    """Return the magnitude of each byte without a sign, in order: the larger the byte, the larger it is."""
    found = [abs(value_of(code, dtype) or Fraction(0)) for code in range(128)]
    assert found == sorted(set(found))
    return found


def nearest(x: Fraction, dtype: tw.DType) -> int:
    """Return the byte of the nearest number, the even one of two, and the last one of what lies beyond."""
    all_of_them = magnitudes(dtype)
    above = bisect.bisect_left(all_of_them, abs(x))
    neighbours = [code for code in (above - 1, above) if 0 <= code < 128]
    code = min(neighbours, key=lambda c: (abs(abs(x) - all_of_them[c]), c % 2))
    return code + 128 if x < 0 and code else code


def converted(x: Array, dtype: tw.DType) -> Array:
    out = np.zeros(x.size, dtype.numpy)
    convert_all.configure(arch="gfx942")[-(-x.size // 128), 128](out, x)
    return out


@each
def test_every_code_becomes_its_number(dtype: tw.DType) -> None:
    codes = np.arange(256, dtype=np.uint8).view(dtype.numpy)
    for wide in (tw.float16, tw.bfloat16, tw.float32, tw.float64):
        found = converted(codes, wide).astype(np.float64)
        assert np.isnan(found[NAN]) and not np.isinf(found).any()
        assert all(Fraction(y) == value_of(code, dtype) for code, y in enumerate(found.tolist()) if code != NAN)


@each
@pytest.mark.parametrize("source", [tw.float32, tw.float16, tw.bfloat16, tw.float64, tw.int32], ids=str)
@pytest.mark.spread(3)
def test_rounds_to_the_nearest_even_and_saturates(dtype: tw.DType, source: tw.DType) -> None:
    numbers = sorted(float(value_of(code, dtype) or 0) for code in range(256) if code != NAN)
    ties = [(a + b) / 2 for a, b in itertools.pairwise(numbers)]
    near = [np.nextafter(np.float32(t), np.float32(side)).item() for t in ties for side in (-np.inf, np.inf)]
    x = np.array([*numbers, *ties, *near, 1e5, -1e9, 1e-9, -1e-9, -0.0], np.float64)
    if source is tw.int32:
        x = np.array([*range(-600, 600), 2**31 - 1, -(2**31)])
    with np.errstate(over="ignore"):
        given = x.astype(source.numpy)
    given = given[np.isfinite(given.astype(np.float64))]
    found = converted(given, dtype).view(np.uint8).tolist()
    assert found == [nearest(Fraction(v), dtype) for v in given.astype(np.float64).tolist()]


@each
def test_no_infinity_and_no_negative_zero(dtype: tw.DType) -> None:
    largest = 0x7F
    given = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, -1e-30], np.float32)
    assert converted(given, dtype).view(np.uint8).tolist() == [NAN, largest, largest + 128, 0, 0, 0]


@tw.kernel
def arithmetic(out, x):
    i = tw.thread_idx.x
    out[0, i] = x[i] * 3.0
    out[1, i] = x[i] + x[(i + 1) % 64]
    out[2, i] = 1000.0
    out[3, i] = -x[i]


@each
def test_arithmetic_rounds_each_result(dtype: tw.DType) -> None:
    x = np.random.default_rng(0).standard_normal(64).astype(dtype.numpy)
    out = np.zeros((4, 64), dtype.numpy)
    arithmetic.configure(arch="gfx942")[1, 64](out, x)
    exact = [Fraction(float(v)) for v in x]
    assert out[0].view(np.uint8).tolist() == [nearest(3 * v, dtype) for v in exact]
    assert out[1].view(np.uint8).tolist() == [
        nearest(a + b, dtype) for a, b in zip(exact, exact[1:] + exact[:1], strict=True)
    ]
    assert out[2].view(np.uint8).tolist() == [nearest(Fraction(1000), dtype)] * 64
    assert out[3].view(np.uint8).tolist() == [nearest(-v, dtype) for v in exact]
    text = arithmetic.source(out, x, block=64, arch="gfx942")
    assert f"{dtype}{{0x{nearest(Fraction(1000), dtype):02x} " in text


@each
@pytest.mark.parametrize("wide", [tw.float32, tw.float16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.spread(4)
def test_pairs_give_what_single_conversions_give(dtype: tw.DType, wide: tw.DType, layout: tw.Layout) -> None:
    x = np.random.default_rng(1).standard_normal(256).astype(np.float32) * 100
    for source, target in ((wide, dtype), (dtype, wide)):
        out, again = (np.zeros(256, target.numpy) for _ in range(2))
        both_ways.configure(arch="gfx942")[1, 32](out, again, x.astype(source.numpy), target, layout)
        assert np.array_equal(out.view(np.uint8), again.view(np.uint8)) and out.astype(np.float32).any()


# --- text and machine code -----------------------------------------------------------------------------------------

WORDS = {tw.float8_e4m3fnuz: "fp8", tw.float8_e5m2fnuz: "bf8"}


@needs_clang
@each
def test_instructions_of_single_values(dtype: tw.DType) -> None:
    for source, target, instruction in (
        (tw.float32, dtype, f"v_cvt_pk_{WORDS[dtype]}_f32"),
        (dtype, tw.float32, f"v_cvt_f32_{WORDS[dtype]}"),
        (dtype, tw.float16, f"v_cvt_f32_{WORDS[dtype]}"),
        (tw.int32, dtype, f"v_cvt_pk_{WORDS[dtype]}_f32"),
    ):
        code = convert_all.sass(tw.spec(target, 1), tw.spec(source, 1), block=128, arch="gfx942")
        assert len(re.findall(instruction, code)) == 1
        assert ("v_med3_f32" in code) == (target is dtype)  # what does not fit is bounded first


@needs_clang
@each
@pytest.mark.parametrize("wide", [tw.float32, tw.float16], ids=str)
def test_instructions_of_pairs(dtype: tw.DType, wide: tw.DType) -> None:
    def count(source: tw.DType, target: tw.DType, instruction: str) -> int:
        out, x = (tw.static(tw.spec(t, (256,))) for t in (target, source))
        code = both_ways.sass(out, out, x, target, tw.Layout(8), block=32, arch="gfx942")
        return len(re.findall(instruction, code))

    if wide is tw.float32:
        assert count(wide, dtype, rf"v_cvt_pk_{WORDS[dtype]}_f32") >= 4
    assert count(dtype, wide, rf"v_cvt_pk_f32_{WORDS[dtype]}") == 4


@needs_clang
def test_variables_named_like_the_types() -> None:
    @tw.kernel
    def named(out, x):
        float8_e4m3fnuz = x[tw.thread_idx.x]
        float8_e5m2fnuz = float8_e4m3fnuz.to(tw.float8_e5m2fnuz)
        out[tw.thread_idx.x] = float8_e5m2fnuz

    arguments = tw.spec(tw.float8_e5m2fnuz, 1), tw.spec(tw.float8_e4m3fnuz, 1)
    assert "v_cvt_pk_bf8_f32" in named.sass(*arguments, block=64, arch="gfx942")


REFUSED = {
    "sm_90a": "arithmetic and conversion of {} need gfx942, and the target is sm_90a",
    "gfx90a": "arithmetic and conversion of {} need gfx942, and the target is gfx90a",
}


@each
@pytest.mark.parametrize("arch", REFUSED)
def test_other_targets_refuse_conversions(dtype: tw.DType, arch: str) -> None:
    with pytest.raises(tw.LanguageError) as caught:
        convert_all.lower(tw.spec(dtype, 1), tw.spec(tw.float32, 1), block=128, arch=arch)
    text = str(caught.value)
    assert text.startswith(REFUSED[arch].format(dtype)) and f"float32 to {dtype}" in text
    assert ("float8_e4m3fn and tw.float8_e5m2;" in text) == (arch == "sm_90a")


@pytest.mark.parametrize("dtype", [tw.float8_e4m3fn, tw.float8_e5m2], ids=str)
def test_gfx942_refuses_the_formats_of_nvidia(dtype: tw.DType) -> None:
    with pytest.raises(tw.LanguageError) as caught:
        convert_all.lower(tw.spec(tw.float32, 1), tw.spec(dtype, 1), block=128, arch="gfx942")
    text = str(caught.value)
    assert text.startswith(f"arithmetic and conversion of {dtype} need sm_89 or later, and the target is gfx942\n")
    assert "the 8-bit floats of gfx942 are tw.float8_e4m3fnuz and tw.float8_e5m2fnuz" in text


@each
@pytest.mark.parametrize("arch", ["gfx942", "gfx90a", "sm_80"])
def test_copies_work_everywhere(dtype: tw.DType, arch: str) -> None:
    @tw.kernel
    def copied(out, x):
        out[tw.thread_idx.x] = x[tw.thread_idx.x]

    x = np.arange(256, dtype=np.uint8).view(dtype.numpy)
    out = np.zeros_like(x)
    assert f"struct {dtype} {{" in copied.source(out, x, block=256, arch=arch)
    copied.configure(arch=arch)[1, 256](out, x)
    assert np.array_equal(out.view(np.uint8), x.view(np.uint8))
