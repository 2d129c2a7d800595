"""Approximate functions, by name and under fastmath, against exact ones within the limits that NVIDIA gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend, blocks

import tilewright as tw

EDGES = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 3e38, 2.0**127], np.float32)
# One of CUDA's limits: within so much of the result, or within so many units in its last place.
ABSOLUTE, RELATIVE = "absolute", "relative"


@tw.kernel
def apply(out, function: tw.constexpr, *operands):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < out.shape[0]:
        out[i] = function(*[operand[i] for operand in operands])


def run(backend: Backend, kernel: Any, function: Any, *operands: Array, dtype: Any = tw.float32) -> Array:
    out = backend.zeros(operands[0].shape, dtype)
    kernel[blocks(operands[0].size), 128](out, function, *[backend.put(x) for x in operands])
    return backend.get(out)


def check(found: Array, exact: Array, kind: str, limit: float, *given: Array) -> None:
    """Compare where the exact result is a normal number; infinities and NaN agree."""
    with np.errstate(all="ignore"):
        nearest = exact.astype(np.float32)
        distance = np.abs(found.astype(np.float64) - exact)
        allowed = limit if kind == ABSOLUTE else limit * np.abs(exact)
        special = ~np.isfinite(nearest)
        same = np.where(special, (found == nearest) | (np.isnan(found) & np.isnan(nearest)), distance <= allowed)
    fine = same | (np.abs(exact) < 2.0**-120)
    where = np.flatnonzero(~fine)
    assert not len(where), [(x[where[0]], found[where[0]], exact[where[0]]) for x in given]


def spread(low: float, high: float, seed: int) -> Array:
    return np.random.default_rng(seed).uniform(low, high, 3000).astype(np.float32)


def of(function: Callable[..., Any], *operands: Array) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(function(*[x.astype(np.float64) for x in operands]))


UNITS = 2.0**-23  # two units in the last place are this much of a number at most, times 2
BY_NAME = (
    ("ex2_approx", np.exp2, -120, 120, RELATIVE, 2 * UNITS),
    ("lg2_approx", np.log2, 0.5, 2, ABSOLUTE, 2.0**-22),
    ("lg2_approx", np.log2, 2, 1e30, RELATIVE, 2.0**-22),
    ("rcp_approx", lambda x: 1 / x, -1e30, 1e30, RELATIVE, UNITS),
    ("rsqrt_approx", lambda x: 1 / np.sqrt(x), 1e-6, 1e30, RELATIVE, 2.0**-22.4),
    ("sqrt_approx", np.sqrt, 0, 1e30, RELATIVE, UNITS),
    ("sin_approx", np.sin, -2 * math.pi, 2 * math.pi, ABSOLUTE, 2.0**-20.5),
    ("cos_approx", np.cos, -2 * math.pi, 2 * math.pi, ABSOLUTE, 2.0**-20.5),
    ("tanh_approx", np.tanh, -10, 10, RELATIVE, 2.0**-10.9),
)


@pytest.mark.parametrize(("name", "exact", "low", "high", "kind", "limit"), BY_NAME)
def test_by_name(backend: Backend, name: str, exact: Any, low: float, high: float, kind: str, limit: float) -> None:
    x = spread(low, high, 1)
    if kind == RELATIVE and name != "lg2_approx":
        x = np.concatenate([x, EDGES])
    check(run(backend, apply, getattr(tw, name), x), of(exact, x), kind, limit, x)
    if name != "tanh_approx":
        flushing = run(backend, apply, lambda v: getattr(tw, name)(v, ftz=True), x)
        with np.errstate(all="ignore"):
            flushed = np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x)
        check(flushing, of(exact, flushed), kind, limit, x)


def test_quotients(backend: Backend) -> None:
    x = spread(-1e6, 1e6, 2)
    y = np.float32(2) ** np.random.default_rng(3).uniform(-100, 100, x.size).astype(np.float32)
    for function in (tw.div_approx, lambda a, b: tw.div_approx(a, b, ftz=True)):
        check(run(backend, apply, function, x, y), of(np.divide, x, y), RELATIVE, 2 * UNITS, x, y)
    # What is greater than 2**126 has no reciprocal.
    large = np.array([2.0**127, -(2.0**127), 3e38, np.inf], np.float32)
    above = np.array([1.0, 1.0, -5.0, 7.0], np.float32)
    found = run(backend, apply, tw.div_approx, above, large)
    assert np.array_equal(found, [0, 0, 0, 0])
    assert np.isnan(run(backend, apply, tw.div_approx, np.full(4, np.inf, np.float32), large)).all()


def test_half_precision(backend: Backend) -> None:
    x = np.linspace(-8, 8, 1000).astype(np.float16)
    for function, exact, kind, limit in (
        (tw.ex2_approx, np.exp2, RELATIVE, 2.0**-9.9),
        (tw.tanh_approx, np.tanh, ABSOLUTE, 2.0**-10.987 + 2.0**-12),  # and half a unit, to which the result is rounded
    ):
        found = run(backend, apply, function, x, dtype=tw.float16)
        check(found, of(exact, x), kind, limit, x)
    narrow = x.astype(tw.bfloat16.numpy)
    found = run(backend, apply, tw.rsqrt_approx, narrow[600:], dtype=tw.bfloat16)
    check(found, of(lambda v: 1 / np.sqrt(v), narrow[600:]), RELATIVE, 2.0**-7, narrow[600:])


# --- fastmath ----------------------------------------------------------------------------------------------


@tw.kernel(fastmath=True)
def fast(out, function: tw.constexpr, *operands):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < out.shape[0]:
        out[i] = function(*[operand[i] for operand in operands])


FAST = (
    (tw.exp, np.exp, -80.0, 80.0, RELATIVE, 100 * UNITS),  # 2 + 1.173 |x| units
    (tw.exp2, np.exp2, -120.0, 120.0, RELATIVE, 2 * UNITS),
    (tw.log, np.log, 0.5, 2.0, ABSOLUTE, 2.0**-21.41),
    (tw.log, np.log, 2.0, 1e30, RELATIVE, 3 * UNITS),
    (tw.log2, np.log2, 2.0, 1e30, RELATIVE, 2 * UNITS),
    (tw.log10, np.log10, 2.0, 1e30, RELATIVE, 3 * UNITS),
    (tw.sin, np.sin, -math.pi, math.pi, ABSOLUTE, 2.0**-21.41),
    (tw.cos, np.cos, -math.pi, math.pi, ABSOLUTE, 2.0**-21.19),
    (tw.tan, np.tan, -1.2, 1.2, ABSOLUTE, 2.0**-16),
    (tw.tanh, np.tanh, -10.0, 10.0, RELATIVE, 2.0**-10.9),
    (tw.sqrt, np.sqrt, 0.0, 1e30, RELATIVE, UNITS),
    (tw.rsqrt, lambda x: 1 / np.sqrt(x), 1e-6, 1e30, RELATIVE, 2 * UNITS),
)


@pytest.mark.parametrize(("function", "exact", "low", "high", "kind", "limit"), FAST)
def test_fastmath(
    backend: Backend, function: Any, exact: Any, low: float, high: float, kind: str, limit: float
) -> None:
    x = spread(low, high, 4)
    check(run(backend, fast, function, x), of(exact, x), kind, limit, x)


def test_fast_quotients_and_powers(backend: Backend) -> None:
    x, y = spread(0.01, 100.0, 5), spread(-8.0, 8.0, 6)
    check(run(backend, fast, lambda a, b: a / b, x, y), of(np.divide, x, y), RELATIVE, 2 * UNITS, x, y)
    check(run(backend, fast, lambda a, b: a**b, x, y), of(np.power, x, y), RELATIVE, 2.0**-16, x, y)
    # __powf goes by the logarithm, and __fdividef by the reciprocal.
    assert np.isnan(run(backend, fast, tw.pow, np.float32([-2]), np.float32([3]))).all()
    assert run(backend, fast, lambda a, b: a / b, np.float32([1]), np.float32([2.0**127])).tolist() == [0.0]
    # Whole quotients are exact, and so is what is not float32.
    assert run(backend, fast, lambda a, b: a // b, x, y).tolist() == np.floor(x / y).tolist()
    wide = x.astype(np.float64)
    found = run(backend, fast, lambda a, b: a / b, wide, y.astype(np.float64), dtype=tw.float64)
    assert np.array_equal(found, wide / y.astype(np.float64))


def test_the_functions_named_inside(backend: Backend) -> None:
    """A function is computed as its caller is, or as it says."""

    @tw.function(fastmath=False)
    def exact(a, b):
        return a / b

    @tw.function
    def inherited(a, b):
        return a / b

    @tw.function(fastmath=True)
    def approximate(a, b):
        return exact(a, b) + inherited(a, b)

    a, b = np.float32([1.5]), np.float32([2.0**127])
    quotient = np.float32(1.5) / np.float32(2.0**127)
    assert run(backend, fast, exact, a, b).tolist() == [quotient]
    assert run(backend, fast, inherited, a, b).tolist() == [0.0]
    assert run(backend, apply, inherited, a, b).tolist() == [quotient]
    assert run(backend, apply, approximate, a, b).tolist() == [quotient]  # an exact and a vanished one
    assert run(backend, fast.configure(fastmath=False), inherited, a, b).tolist() == [quotient]
    assert run(backend, apply.configure(fastmath=True), inherited, a, b).tolist() == [0.0]
