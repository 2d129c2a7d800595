"""Literals give back the number they were made from."""

from __future__ import annotations

import math
import struct

import ml_dtypes
import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.backends.c_text import run

from tilewright import dtypes as t
from tilewright.backends.cpp.expression import bfloat16_bits, float16_bits, literal

ANY = st.floats(allow_nan=False)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(FLOAT32)
@example(0.1)
@example(-0.0)
@example(1.401298464324817e-45)
@example(3.4028234663852886e38)
@example(16777216.0)
def test_float32(value: float) -> None:
    text = literal(value, t.float32).text
    assert text.endswith("f") and any(c in text for c in ".e")
    back, meant = np.float32(text[:-1]), np.float32(value)
    assert back.tobytes() == meant.tobytes(), text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_float64(value: float) -> None:
    text = literal(value, t.float64).text
    assert struct.pack("d", float(text)) == struct.pack("d", value)
    assert any(c in text for c in ".e")


def test_what_has_no_digits() -> None:
    assert literal(math.inf, t.float32).text == "__int_as_float(0x7f800000 /* infinity */)"
    assert literal(1e39, t.float32).text == "__int_as_float(0x7f800000 /* infinity */)"
    assert literal(-math.inf, t.float64).text == "__longlong_as_double(0xfff0000000000000 /* -infinity */)"
    assert literal(math.nan, t.float32).text == "__int_as_float(0x7fc00000 /* nan */)"
    assert literal(1.0, t.float16).text == "half{0x3c00 /* 1.0 */}"
    assert literal(0.1, t.float32).text == "0.1f" and literal(2.0, t.float32).text == "2.0f"


@given(ANY)
@example(1.00390625)  # a tie between two bfloat16
@example(1.0039062500000002)  # just above it, and on it once rounded to float32
@example(65519.99999)
@example(3.4e38)
@example(1e-41)
def test_sixteen_bits(value: float) -> None:
    with np.errstate(over="ignore"):
        assert float16_bits(value) == int(np.float64(value).astype(np.float16).view(np.uint16))
    # ml_dtypes rounds a float64 twice; a neighbour that is nearer shows it.
    candidates = np.array([0, 1, 2, 0xFFFF, 0xFFFE], np.uint16) + np.uint16(bfloat16_bits(value))
    with np.errstate(invalid="ignore"):
        numbers = candidates.view(ml_dtypes.bfloat16).astype(np.float64)
    if math.isfinite(numbers[0]) and np.isfinite(numbers).all():
        assert abs(numbers[0] - value) == np.abs(numbers - value).min()


@given(st.sampled_from([x for x in t.ALL if x.is_integer]).flatmap(
    lambda x: st.tuples(st.just(x), st.sampled_from([x.lowest, x.highest]) | st.integers(x.lowest, x.highest))
))  # fmt: skip
def test_integers(case: tuple[t.DType, int]) -> None:
    dtype, value = case
    out = {"out": (dtype.c_name, [0])}
    run(f"out[0] = {literal(value, dtype).text};", {}, out)
    assert out["out"][1] == [value]
