"""Math functions against results in decimal arithmetic. Limits are in units in the last place.

They are those of the table of maximum errors in NVIDIA's CUDA programming guide, for float32 and float64 as CUDA
computes them by default; the simulator keeps within them too. 16-bit floats are computed in float32 and rounded:
half a unit, and what float32's error can tip over.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import FLOATS, Array, Backend, assert_within, blocks
from tests.helpers.exact import exact

import tilewright as tw


@dataclass(frozen=True)
class Function:
    """A function, NumPy's for special values, its limits in float32 and float64, and the interval it is tried on."""

    name: str
    special: Callable[..., Any]
    single: float
    double: float
    low: float = -10.0
    high: float = 10.0


FUNCTIONS = (
    Function("rsqrt", lambda x: 1 / np.sqrt(x), 2, 1, 1e-4, 100.0),
    Function("cbrt", np.cbrt, 1, 1),
    Function("exp", np.exp, 2, 1),
    Function("exp2", np.exp2, 2, 1),
    Function("expm1", np.expm1, 1, 1),
    Function("log", np.log, 1, 1, 1e-4, 100.0),
    Function("log2", np.log2, 1, 1, 1e-4, 100.0),
    Function("log10", np.log10, 2, 1, 1e-4, 100.0),
    Function("log1p", np.log1p, 1, 1, -0.999, 100.0),
    Function("sin", np.sin, 2, 2),
    Function("cos", np.cos, 2, 2),
    Function("tan", np.tan, 4, 2),
    Function("asin", np.arcsin, 4, 2, -1.0, 1.0),
    Function("acos", np.arccos, 3, 2, -1.0, 1.0),
    Function("atan", np.arctan, 3, 2),
    Function("sinh", np.sinh, 3, 2),
    Function("cosh", np.cosh, 2, 1),
    Function("tanh", np.tanh, 2, 1),
)
TWO = (
    Function("pow", np.power, 9, 2, 0.01, 8.0),
    Function("atan2", np.arctan2, 3, 2),
)
SPECIAL = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan")]


@tw.kernel
def apply(out, x, functions: tw.constexpr):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.shape[1]:
        for row, function in enumerate(functions):
            out[row, i] = function(x[row, i])


@tw.kernel
def apply_two(out, x, y, functions: tw.constexpr):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.shape[1]:
        for row, function in enumerate(functions):
            out[row, i] = function(x[row, i], y[row, i])


def limit(function: Function, dtype: tw.DType) -> float:
    if dtype.bits < 32:
        return 0.5 + function.single * 2.0**-12
    return (function.single if dtype is tw.float32 else function.double) + 0.5


def inputs(functions: tuple[Function, ...], dtype: tw.DType, seed: int) -> Array:
    random = np.random.default_rng(seed)
    rows = [
        [*random.uniform(f.low, f.high, 1000), *random.uniform(0.5, 2, 24) * max(f.low, 1e-3), *SPECIAL]
        for f in functions
    ]
    x = np.array(rows).astype(dtype.numpy)
    low, high = (np.array([[g(f)] for f in functions]).astype(dtype.numpy) for g in (lambda f: f.low, lambda f: f.high))
    x[:, :1024] = np.clip(x[:, :1024].astype(np.float64), low, high).astype(dtype.numpy)
    return x


def check(found: Array, function: Function, dtype: tw.DType, *arguments: Array, within: float | None = None) -> None:
    """Compare one function's results with the exact ones."""
    nearest, rest = np.zeros(found.shape), np.zeros(found.shape)
    for n, values in enumerate(zip(*(x.astype(np.float64) for x in arguments), strict=True)):
        try:
            nearest[n], rest[n] = exact(function.name, *map(float, values))
        except decimal.DecimalException:  # a pole, an infinity, NaN: nothing is rounded
            with np.errstate(all="ignore"):
                nearest[n] = function.special(*values)
    what = f"{function.name} of {dtype}"
    assert_within(found, nearest, limit(function, dtype) if within is None else within, what, arguments, rest)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.spread(3)
def test_functions(backend: Backend, dtype: tw.DType) -> None:
    x = inputs(FUNCTIONS, dtype, seed=3)
    out = backend.zeros(x.shape, dtype)
    apply[blocks(x.shape[1]), 128](out, backend.put(x), tuple(getattr(tw, f.name) for f in FUNCTIONS))
    found = backend.get(out)
    for function, row, given in zip(FUNCTIONS, found, x, strict=True):
        check(row, function, dtype, given)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.spread(3)
def test_functions_of_two(backend: Backend, dtype: tw.DType) -> None:
    x, y = inputs(TWO, dtype, seed=4), inputs(TWO, dtype, seed=5)
    y[:, -len(SPECIAL) :] = np.roll(y[:, -len(SPECIAL) :], 1, axis=1)
    out = backend.zeros(x.shape, dtype)
    apply_two[blocks(x.shape[1]), 128](out, backend.put(x), backend.put(y), tuple(getattr(tw, f.name) for f in TWO))
    found = backend.get(out)
    for n, function in enumerate(TWO):
        check(found[n], function, dtype, x[n], y[n])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.spread(3)
def test_error_function(backend: Backend, dtype: tw.DType) -> None:
    function = Function("erf", lambda x: np.sign(x) if np.isinf(x) else x, 2, 2, -4.0, 4.0)
    x = inputs((function,), dtype, seed=6)
    out = backend.zeros(x.shape, dtype)
    apply[blocks(x.shape[1]), 128](out, backend.put(x), (tw.erf,))
    check(backend.get(out)[0], function, dtype, x[0])


@pytest.mark.parametrize("dtype", [tw.float32, tw.float64], ids=str)
def test_large_arguments_of_sine_and_cosine(backend: Backend, dtype: tw.DType) -> None:
    x = np.array([[1e3, 1e5, -1e6, 12345.678, 3e7, 1e9, -2e10, 4.5e15]] * 2, dtype.numpy)
    out = backend.zeros(x.shape, dtype)
    apply[1, 128](out, backend.put(x), (tw.sin, tw.cos))
    found = backend.get(out)
    sine, cosine = (next(f for f in FUNCTIONS if f.name == name) for name in ("sin", "cos"))
    check(found[0], sine, dtype, x[0], within=2.5)
    check(found[1], cosine, dtype, x[1], within=2.5)


@pytest.mark.parametrize("off", [0, 1, -3, 5])
def test_cube_roots_do_not_depend_on_the_c_library(monkeypatch: pytest.MonkeyPatch, off: int) -> None:
    """A library whose cube roots are some units off gives the same results: half a unit, and a little."""
    library = np.cbrt
    monkeypatch.setattr(np, "cbrt", lambda x: library(x) + off * np.spacing(library(x)))
    random = np.random.default_rng(7)
    x = random.uniform(-1, 1, 2000) * 2.0 ** random.integers(-1073, 1023, 2000)
    x = np.array([[*x, 5e-324, np.finfo(np.float64).max, 8.0, *SPECIAL]])
    out = np.zeros_like(x)
    with tw.simulate():
        apply[blocks(x.shape[1]), 128](out, x, (tw.cbrt,))
    check(out[0], next(f for f in FUNCTIONS if f.name == "cbrt"), tw.float64, x[0], within=0.51)


def test_functions_of_integers_give_float32(backend: Backend) -> None:
    x = np.array([[1, 2, 4, 9, 100]], np.int32)
    out = backend.zeros(x.shape, tw.float32)
    apply[1, 32](out, backend.put(x), (tw.sqrt,))
    assert np.array_equal(backend.get(out), np.sqrt(x.astype(np.float32)))
    apply[1, 32](out, backend.put(x), (lambda v: 2 ** v.to(tw.float32),))
    assert_within(backend.get(out)[:, :4], 2.0 ** x[:, :4].astype(np.float64), 9, "2 ** x")


def test_integer_powers_of_integers(backend: Backend) -> None:
    """With an exponent that only the device knows, ** is float32's pow."""
    x, y = np.array([[2, 3, 5, 7, -2]], np.int32), np.array([[10, 4, 0, 2, 3]], np.int32)
    out = backend.zeros(x.shape, tw.float32)
    apply_two[1, 32](out, backend.put(x), backend.put(y), (lambda a, b: a**b,))
    assert_within(backend.get(out), np.array([[1024.0, 81, 1, 49, -8]]), 9, "**")


@tw.function
def clamped(v):
    return v if v > 0 else 0.5


def test_selections(backend: Backend) -> None:
    x = np.arange(-8, 8, dtype=np.float32).reshape(1, 16)
    out = backend.zeros((3, 16), tw.float32)
    functions = (lambda v: tw.where(v > 0, v, -2 * v), clamped, lambda v: tw.maximum(tw.minimum(v, 3), -3))
    three = np.repeat(x, 3, axis=0)
    apply[1, 16](out, backend.put(three), functions)
    found = backend.get(out)
    assert np.array_equal(found[0], np.where(x[0] > 0, x[0], -2 * x[0]))
    assert np.array_equal(found[1], np.where(x[0] > 0, x[0], 0.5))
    assert np.array_equal(found[2], np.clip(x[0], -3, 3))
