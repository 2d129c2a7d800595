"""Math functions on the device against NumPy, and the same functions on host numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.helpers.language import compiles, run, zeros

import tilewright as tw
from tilewright import dtypes

POSITIVE = {"sqrt", "rsqrt", "log", "log2", "log10"}
UNIT = {"asin", "acos"}
HOST = {"rsqrt": lambda x: 1 / np.sqrt(x), "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "round": np.rint,
        "erf": np.vectorize(math.erf)}  # fmt: skip
FUNCTIONS = [
    "abs", "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "tanh", "erf", "floor", "ceil", "trunc", "round",
]  # fmt: skip


@tw.kernel
def apply(out, x, function: tw.constexpr):
    i = tw.thread_idx.x
    out[i] = function(x[i])


def samples(name: str, t: tw.DType) -> np.ndarray:
    x = np.random.default_rng(1).uniform(-3, 3, 60)
    x = np.abs(x) + 0.01 if name in POSITIVE else x / 3.01 if name in UNIT else x
    x = np.abs(x) if name == "log1p" else x
    return x.astype(t.numpy)


@pytest.mark.parametrize("t", [t for t in dtypes.ALL if t.is_float], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.spread(6)
def test_function_against_numpy(name, t):
    x = samples(name, t)
    out = run(apply, zeros(60, t.numpy), x, getattr(tw, name), block=60).astype(np.float64)
    expected = HOST.get(name, getattr(np, name, None))(x.astype(np.float64))
    tolerance = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}[t.name]
    assert np.allclose(out, expected, rtol=tolerance, atol=tolerance)


def test_functions_compile_for_every_float():
    functions = [getattr(tw, name) for name in (*FUNCTIONS, "isnan", "isinf", "isfinite")]

    @tw.kernel
    def everything(out, x):
        for n, function in enumerate(functions):
            out[n] = tw.float32(function(x[n]))

    for t in ("float16", "bfloat16", "float32", "float64"):
        compiles(everything, tw.spec("float32", 1), tw.spec(t, 1))


def test_integers_become_float32_and_roundings_leave_them():
    found = []

    @tw.kernel
    def integers(out, n):
        found.extend([tw.sqrt(n).dtype, tw.floor(n).dtype, tw.pow(n, 2).dtype, tw.maximum(n, 2).dtype])
        out[0] = tw.sqrt(n)

    assert run(integers, zeros(1, np.float32), 9).tolist() == [3]
    assert [str(t) for t in found] == ["float32", "int32", "float32", "int32"]


def test_functions_of_two_arguments():
    @tw.kernel
    def two(out, a, b):
        i = tw.thread_idx.x
        x, y = a[i], b[i]
        out[0, i] = tw.minimum(x, y)
        out[1, i] = tw.maximum(x, y)
        out[2, i] = tw.atan2(x, y)
        out[3, i] = tw.copysign(x, y)
        out[4, i] = tw.fmod(x, y)
        out[5, i] = tw.pow(tw.abs(x), y)
        out[6, i] = tw.where(x < y, x, 0)
        out[7, i] = tw.fma(x, y, 1)

    rng = np.random.default_rng(2)
    a, b = (rng.uniform(-3, 3, 32).astype(np.float32) for _ in range(2))
    a[:2], b[1:3] = np.nan, np.nan
    out = run(two, np.zeros((8, 32), np.float32), a, b, block=32)
    expected = [np.fmin(a, b), np.fmax(a, b), np.arctan2(a, b), np.copysign(a, b), np.fmod(a, b), np.abs(a) ** b,
                np.where(a < b, a, 0), a * b + 1]  # fmt: skip
    assert np.allclose(out, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    compiles(two, tw.spec("float32", 2), tw.spec("float32", 1), tw.spec("float32", 1), block=32)


def test_fma_rounds_once():
    @tw.kernel
    def fused(out, a, b, c):
        out[0] = tw.fma(a, b, c)

    a = np.float32(1 + 2**-12)
    exact = float(a) * float(a) - 1
    assert run(fused, zeros(1, np.float32), a, a, np.float32(-1)).tolist() == [np.float32(exact)]


def test_classes_of_numbers():
    @tw.kernel
    def classes(out, x):
        i = tw.thread_idx.x
        out[0, i] = tw.isnan(x[i])
        out[1, i] = tw.isinf(x[i])
        out[2, i] = tw.isfinite(x[i])

    for dtype in (np.float16, np.float32, np.float64):
        x = np.array([0, np.nan, np.inf, -np.inf, 1], dtype)
        out = run(classes, np.zeros((3, 5), np.bool_), x, block=5)
        assert np.array_equal(out, [np.isnan(x), np.isinf(x), np.isfinite(x)])


def test_bit_counts():
    @tw.kernel
    def counts(out, x):
        i = tw.thread_idx.x
        out[0, i] = tw.popcount(x[i])
        out[1, i] = tw.clz(x[i])

    for t in (tw.int32, tw.uint32, tw.int64, tw.uint64):
        values = [0, 1, 5, t.highest, t.lowest, 1 << 20]
        out = run(counts, np.zeros((2, 6), np.int32), np.array(values, t.numpy), block=6)
        patterns = [v & ((1 << t.bits) - 1) for v in values]
        assert out[0].tolist() == [p.bit_count() for p in patterns]
        assert out[1].tolist() == [t.bits - p.bit_length() for p in patterns]


def test_functions_of_host_numbers_are_numpys():
    assert tw.sqrt(4.0) == 2
    assert tw.rsqrt(4.0) == 0.5
    assert tw.erf(0.5) == math.erf(0.5)
    assert tw.round(2.5) == 2
    assert tw.minimum(1, np.nan) == 1
    assert tw.where(True, 1, 2) == 1
    assert tw.fma(2, 3, 4) == 10
    assert tw.pow(2.0, 3) == 8
    assert np.array_equal(tw.exp(np.zeros(3)), np.ones(3))
    for name in FUNCTIONS:
        x = 0.5
        assert np.isclose(getattr(tw, name)(x), HOST.get(name, getattr(np, name, None))(x))
