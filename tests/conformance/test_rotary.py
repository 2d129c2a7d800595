"""`tw.rope` turns pairs within the roundings of two products and a sum, for any strides and modes that broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import FLOATS, Array, Backend
from tests.conformance.test_rows import assert_bounded, numbers, unit

import tilewright as tw


def turned(x: Array, cos: Array, sin: Array, interleaved: bool) -> tuple[Array, Array]:
    """Return the result in float64, and the sums of the products' magnitudes."""
    v, c, s = (t.astype(np.float64) for t in (x, cos, sin))
    half = v.shape[-1] // 2
    a, b = (v[..., ::2], v[..., 1::2]) if interleaved else (v[..., :half], v[..., half:])
    axis = -1 if interleaved else -2
    pairs = np.stack([a * c - b * s, b * c + a * s], axis)
    sizes = np.stack([np.abs(a * c) + np.abs(b * s), np.abs(b * c) + np.abs(a * s)], axis)
    return pairs.reshape(x.shape), sizes.reshape(x.shape)


def angles(shape: tuple[int, ...], dtype: tw.DType = tw.float32) -> tuple[Array, Array]:
    at = np.random.default_rng(1).uniform(0, 10, shape)
    return np.cos(at).astype(dtype.numpy), np.sin(at).astype(dtype.numpy)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.spread(4)
def test_pairs(backend: Backend, dtype: tw.DType, interleaved: bool) -> None:
    for shape, of_angles in (
        ((2, 3, 5, 128), (5, 64)),
        ((2, 5, 3, 20), (5, 1, 10)),
        ((3, 2), (3, 1)),
        ((6,), (3,)),
        ((2, 4200), (2100,)),
    ):
        x, (cos, sin) = numbers(shape, dtype), angles(of_angles, tw.float64 if dtype is tw.float64 else tw.float32)
        expected, sizes = turned(x, cos, sin, interleaved)
        found = tw.rope(*map(backend.put, (x, cos, sin)), interleaved=interleaved)
        assert_bounded(backend.get(found), expected, 2 * unit(dtype) * sizes, dtype)


@pytest.mark.parametrize("interleaved", [False, True])
def test_strides_and_parts_of_rows(backend: Backend, interleaved: bool) -> None:
    memory, (cos, sin) = numbers((4096,), tw.float32), angles((5, 8))
    placed = [backend.put(t) for t in (cos, sin)]
    for strides, offset in (
        ((200, 20, 1), 0),
        ((100, 17, 1), 3),
        ((1, 3, 20), 0),
        ((-90, -30, -1), 400),
        ((0, 0, 1), 4),
    ):
        x = backend.strided(backend.put(memory), (3, 5, 16), strides, offset)
        host = np.lib.stride_tricks.as_strided(memory[offset:], (3, 5, 16), [4 * s for s in strides])
        expected, sizes = turned(host, cos, sin, interleaved)
        assert_bounded(
            backend.get(tw.rope(x, *placed, interleaved=interleaved)), expected, 2.0**-22 * sizes, tw.float32
        )
    part = backend.put(memory[:120].copy())
    x = backend.strided(part, (5, 16), (24, 1))
    assert tw.rope(x, *placed, interleaved=interleaved, out=x) is x
    host = memory[:120].reshape(5, 24).copy()
    expected, sizes = turned(host[:, :16], cos, sin, interleaved)
    found = backend.get(part).reshape(5, 24)
    assert_bounded(np.ascontiguousarray(found[:, :16]), expected, 2.0**-22 * sizes, tw.float32)
    assert np.array_equal(found[:, 16:], host[:, 16:])  # the rest of each row stays


def test_turning_back(backend: Backend) -> None:
    x, (cos, sin) = numbers((4, 3, 32), tw.float64), angles((3, 16), tw.float64)
    at = [backend.put(t) for t in (cos, sin)]
    found = backend.get(tw.rope(tw.rope(backend.put(x), *at), *at, inverse=True))
    np.testing.assert_allclose(found, x, rtol=0, atol=1e-13)
    assert tuple(tw.rope(backend.zeros((0, 3, 32), tw.float64), *at).shape) == (0, 3, 32)


X: Any = np.ones((2, 4), np.float32)
C: Any = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tw.rope(X[:, :3], C, C), "x has the shape (2, 3), and its last mode consists of pairs"),
        (lambda: tw.rope(X, np.ones(3, np.float32), C), "cos has the shape (3,), which does not broadcast to (2, 2)"),
        (lambda: tw.rope(X, C, C[:1]), "sin has the shape (1,), which does not broadcast to (2, 2)"),
        (lambda: tw.rope(X, np.ones((5, 2, 2), np.float32), C), "cos has the shape (5, 2, 2)"),
        (lambda: tw.rope(X, X[0, :2], C, out=X), "out shares memory with cos"),
        (lambda: tw.rope(X.astype(np.int8), C, C), "x is int8"),
    ],
)
def test_refused(call: Any, text: str) -> None:
    with pytest.raises(tw.ArgumentError) as caught:
        call()
    assert text in str(caught.value)
