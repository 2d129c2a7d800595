"""Gradients of functions of rows keep within bounds that follow from their arithmetic, against NumPy in float64.

Sums are bounded by (number of roundings) u (sum of the terms' magnitudes), with u of the computing type; what the
kernels read of the forward pass is taken as it is, so only their own roundings count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import FLOATS, Array, Backend
from tests.conformance.test_rows import assert_bounded, numbers, unit
from tests.helpers.slow import rest_is_slow

import tilewright as tw

LONG = {tw.float16: 16400, tw.bfloat16: 16400, tw.float32: 8200, tw.float64: 4100}  # too long for softmax's registers
MIDDLE = {tw.float16: 9000, tw.bfloat16: 9000, tw.float32: 5000, tw.float64: 2100}  # for a block, double for a cluster
CASES = [(tw.float32, shape) for shape in [(3, 1), (300, 7), (2, 3, 256)]]
CASES += [(dtype, shape) for dtype in FLOATS for shape in [(5, 77), (2, MIDDLE[dtype]), (3, 2 * LONG[dtype])]]
CASES += [(tw.float64, (27, 5000)), (tw.float64, (3, 33000))]  # more steps than places in a cluster; too long for it
every_case = pytest.mark.parametrize(("dtype", "shape"), CASES, ids=str)

DEPTH = 40  # additions in a row over a row's parts and threads, and products' roundings


def summed(terms: Array, u: float, extra: int = 0) -> tuple[Array, Array]:
    """Return sums of rows and how far off they may be."""
    return terms.sum(-1, keepdims=True), u * (DEPTH + extra) * np.abs(terms).sum(-1, keepdims=True)


@pytest.mark.parametrize("is_log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize(("dtype", "shape"), [*CASES[:4:2], *((d, (2, LONG[d])) for d in FLOATS)], ids=str)
@pytest.mark.spread(4)
def test_softmax(backend: Backend, dtype: tw.DType, shape: tuple[int, ...], is_log: bool) -> None:
    grad, u = numbers(shape, dtype, 1), unit(dtype)
    x = numbers(shape, tw.float64, 2)
    e = np.exp(x - x.max(-1, keepdims=True))
    e /= e.sum(-1, keepdims=True)
    y = (np.log(e) if is_log else e).astype(dtype.numpy)
    function = tw.log_softmax_backward if is_log else tw.softmax_backward
    found = backend.get(function(backend.put(grad), backend.put(y)))
    g, result = grad.astype(np.float64), y.astype(np.float64)
    if is_log:
        total, off = summed(g, u)
        factor = np.exp(result)
        expected = g - factor * total
        # The exponential's argument has two roundings: ex2.approx takes y * log2(e).
        bound = factor * off + np.abs(factor * total) * u * (12 + 3 * np.abs(result)) + u * np.abs(expected)
        bound += 2.0**-126 * np.abs(total) * (dtype.bits <= 32)
    else:
        total, off = summed(g * result, u)
        expected = result * (g - total)
        bound = np.abs(result) * (off + 3 * u * (np.abs(g) + np.abs(total)))
    assert_bounded(found, expected, bound, dtype)


@pytest.mark.parametrize("is_centred", [False, True], ids=["rms_norm", "layer_norm"])
@every_case
@pytest.mark.spread(12)
def test_norms(backend: Backend, dtype: tw.DType, shape: tuple[int, ...], is_centred: bool) -> None:
    x, grad, w = numbers(shape, dtype), numbers(shape, dtype, 1), numbers(shape[-1:], dtype, 2)
    u, kind = unit(dtype), np.float64 if dtype is tw.float64 else np.float32
    v, g, factor = (a.astype(np.float64) for a in (x, grad, w))
    mean = (v.mean(-1) if is_centred else 0 * v.mean(-1)).astype(kind)
    scale = (1 / np.sqrt(((v - mean[..., None]) ** 2).mean(-1) + 1e-5)).astype(kind)
    arrays = [backend.put(a) for a in (grad, x, scale, w)]
    if is_centred:
        *arrays, weight = [arrays[0], arrays[1], backend.put(mean), arrays[2], arrays[3]]
        dx, dw, db = tw.layer_norm_backward(*arrays, weight)
        assert_bounded(
            backend.get(db),
            g.reshape(-1, shape[-1]).sum(0),
            u * (DEPTH + g[..., 0].size) * np.abs(g).reshape(-1, shape[-1]).sum(0),
            dtype,
        )
    else:
        dx, dw = tw.rms_norm_backward(*arrays)
    m, s = (a.astype(np.float64)[..., None] for a in (mean, scale))
    values, slope = (v - m) * s, g * factor
    of_values = 3 * u * np.abs(values) + u * s * np.abs(v - m)
    total, off = summed(slope * values / shape[-1], u, 8)
    shift, of_shift = summed(slope / shape[-1], u, 4) if is_centred else (0.0, 0.0)
    expected = s * (slope - shift - values * total)
    bound = of_shift + np.abs(values) * off + of_values * np.abs(total)
    bound = s * (bound + 4 * u * (np.abs(slope) + np.abs(shift) + np.abs(values * total))) + 2 * u * np.abs(expected)
    assert_bounded(backend.get(dx), expected, bound, dtype)
    terms = (g * values).reshape(-1, shape[-1])
    rows = len(terms)
    assert_bounded(backend.get(dw), terms.sum(0), u * (DEPTH + rows + 4) * np.abs(terms).sum(0), dtype)


def test_sums_over_rows_have_the_same_bits_each_time(backend: Backend) -> None:
    x, grad = backend.put(numbers((500, 40), tw.float32)), backend.put(numbers((500, 40), tw.float32, 1))
    _, scale = tw.rms_norm(x, statistics=True)
    w = backend.put(np.ones(40, np.float32))
    first = backend.get(tw.rms_norm_backward(grad, x, scale, w)[1])
    for _ in range(2):
        assert np.array_equal(backend.get(tw.rms_norm_backward(grad, x, scale, w)[1]), first)


@pytest.mark.parametrize("columns", rest_is_slow([24, 5000, 17000, 66000], 24, 5000))
def test_gradients_in_place(backend: Backend, columns: int) -> None:
    """dx may be dy or x itself: the sums are the same."""
    x, grad, w = (numbers(s, tw.float32, n) for n, s in enumerate(((3, columns), (3, columns), (columns,))))
    _, mean, scale = (backend.put(np.array(a)) for a in tw.layer_norm(x, w, statistics=True))
    known = [backend.get(a) for a in tw.layer_norm_backward(*map(backend.put, (grad, x)), mean, scale, backend.put(w))]
    for place in (0, 1):
        arrays = [backend.put(grad), backend.put(x)]
        found = tw.layer_norm_backward(*arrays, mean, scale, backend.put(w), out=arrays[place])
        assert found[0] is arrays[place]
        assert all(np.array_equal(backend.get(a), b) for a, b in zip(found, known, strict=True))


def test_strides_of_gradients(backend: Backend) -> None:
    memory = numbers((4096,), tw.float32)
    x = numbers((3, 2, 24), tw.float32, 3)
    _, mean, scale = tw.layer_norm(x, statistics=True)
    for strides, offset in (((0, 0, 0), 0), ((96, 700, 1), 1), ((1, 3, 6), 0), ((-60, -30, -1), 200)):
        grad = backend.strided(backend.put(memory), x.shape, strides, offset)
        host = np.ascontiguousarray(np.lib.stride_tricks.as_strided(memory[offset:], x.shape, [4 * s for s in strides]))
        for found, known in zip(
            tw.layer_norm_backward(grad, *map(backend.put, (x, mean, scale))),
            tw.layer_norm_backward(host, x, mean, scale),
            strict=True,
        ):
            np.testing.assert_allclose(backend.get(found), known, rtol=1e-4, atol=1e-4)


def test_arrays_without_elements(backend: Backend) -> None:
    for shape in ((0, 5), (4, 0, 5), (3, 0)):
        x, numbers_of = backend.zeros(shape, tw.float32), backend.zeros(shape[:-1], tw.float32)
        dx, dw, db = tw.layer_norm_backward(x, x, numbers_of, numbers_of)
        assert tuple(dx.shape) == shape and (backend.get(dw) == 0).all() and (backend.get(db) == 0).all()
        assert tuple(dw.shape) == shape[-1:]
        assert tuple(tw.softmax_backward(x, x).shape) == shape


@pytest.mark.parametrize("columns", [5, 9001])
def test_gradients_of_float64_in_narrow_results(backend: Backend, columns: int) -> None:
    x, y = (backend.put(numbers((1, columns), tw.float64, n, 1.0)) for n in (1, 2))
    labels, total = backend.put(np.array([3])), backend.put(np.full(1, 2.0))
    narrow = backend.zeros((1, columns), tw.float16)
    for function, given in (
        (tw.log_softmax_backward, (x, y)),
        (tw.cross_entropy_backward, (total, x, labels, total, total)),
    ):
        known = backend.get(function(*given)).astype(np.float16)
        assert np.array_equal(backend.get(function(*given, out=narrow)), known)


F32: Any = np.ones((2, 3), np.float32)
SQUARE: Any = np.ones((3, 3), np.float32)
ROW: Any = np.ones(2, np.float32)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tw.softmax_backward(F32, F32.T), "grad has the shape (2, 3), and result (3, 2)"),
        (lambda: tw.softmax_backward(None, F32), "grad is None, and softmax_backward takes arrays"),
        (lambda: tw.rms_norm_backward(F32, F32, F32[0]), "scale has the shape (3,), and x (2, 3)"),
        (lambda: tw.rms_norm_backward(F32, F32, ROW.astype(float)), "scale is float64, and rms_norm_backward takes"),
        (lambda: tw.rms_norm_backward(F32, F32, np.ones(4, np.float32)[::2]), "scale is not contiguous"),
        (lambda: tw.rms_norm_backward(F32, F32, ROW, ROW), "weight has the shape (2,), and rows of x have 3"),
        (lambda: tw.layer_norm_backward(F32, F32, None, ROW), "mean is None, and layer_norm_backward takes arrays"),
        (lambda: tw.layer_norm_backward(ROW[0], ROW[0], ROW, ROW), "grad is a float32"),
        (lambda: tw.rms_norm_backward(F32, F32, ROW, SQUARE[0], out=SQUARE[:2]), "out shares memory with weight"),
        (lambda: tw.rms_norm_backward(F32, F32, ROW, out=F32[:1]), "out has the shape (1, 3)"),
    ],
)
def test_refused(call: Any, text: str) -> None:
    with pytest.raises(tw.ArgumentError) as caught:
        call()
    assert text in str(caught.value)
