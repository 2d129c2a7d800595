"""`tw.cross_entropy` and its gradient keep within bounds that follow from their arithmetic, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import FLOATS, Array, Backend
from tests.conformance.test_rows import EXP, assert_bounded, numbers, unit

import tilewright as tw

CASES = [(tw.float32, shape) for shape in [(4, 1), (300, 3), (2, 3, 40)]]
CASES += [(dtype, shape) for dtype in FLOATS for shape in [(5, 77), (2, 40000)]]
IGNORED = -7


def labels_for(shape: tuple[int, ...], seed: int = 0) -> Array:
    labels = np.random.default_rng(seed).integers(0, shape[-1], shape[:-1])
    labels.flat[1] = IGNORED
    return labels


@pytest.mark.parametrize("smoothing", [0.0, 0.125])
@pytest.mark.parametrize(("dtype", "shape"), CASES, ids=str)
@pytest.mark.spread(4)
def test_losses_and_gradients(backend: Backend, dtype: tw.DType, shape: tuple[int, ...], smoothing: float) -> None:
    """The sum of exponentials has the error that tests of softmax derive; its logarithm turns it into an absolute one."""
    x, labels, u = numbers(shape, dtype), labels_for(shape), unit(dtype)
    labels = labels.astype(np.int32) if dtype is tw.float16 else labels
    grad = numbers(shape[:-1], dtype, 3)
    placed = backend.put(x), backend.put(labels)
    options = {"ignore_index": IGNORED, "label_smoothing": smoothing}
    loss, top, total = tw.cross_entropy(*placed, statistics=True, **options)
    found = tw.cross_entropy_backward(backend.put(grad), *placed, top, total, **options)

    wide, counts = x.astype(np.float64), labels != IGNORED
    greatest = wide.max(-1, keepdims=True)
    d = greatest - wide
    e = np.exp(-d)
    sums = e.sum(-1, keepdims=True)
    columns = shape[-1]
    steps = 40 + (EXP + 2) * (columns // 4096 + 1)  # additions in a row, and a scaling for each part of a row
    of_sum = u * (3 * np.log(max(columns, 2)) + EXP + steps + 3 * d.max())
    at_label = np.take_along_axis(wide, np.where(counts, labels, 0)[..., None], -1)
    plain = np.log(sums) + greatest
    mean = wide.mean(-1, keepdims=True)
    expected = plain - (1 - smoothing) * at_label - smoothing * mean
    bound = of_sum + u * 4 * (np.log(sums) + np.abs(greatest - at_label) + np.abs(expected))
    bound += smoothing * u * (steps + 2) * (np.abs(wide).mean(-1, keepdims=True) + np.abs(at_label))
    kind = tw.float64 if dtype is tw.float64 else tw.float32
    zero = counts[..., None]
    assert_bounded(backend.get(loss), np.where(zero, expected, 0)[..., 0], (bound * zero)[..., 0], kind)

    shares = e / sums
    label_share = (np.arange(columns) == labels[..., None]) * (1 - smoothing)
    g = grad.astype(np.float64)[..., None] * zero
    slope = (shares - label_share - smoothing / columns) * g
    of_slope = shares * u * (3 * d + EXP + 3) + shares * of_sum + 3 * u * (shares + label_share + smoothing / columns)
    assert_bounded(backend.get(found), slope, of_slope * np.abs(g) + 2.0**-120 * (dtype.bits <= 32), dtype)


def test_labels_that_are_no_columns_give_nan(backend: Backend) -> None:
    logits, labels = numbers((5, 100), tw.float32), np.array([100, -1, 2**40, 3, -(2**62)])
    placed = backend.put(logits), backend.put(labels)
    loss, top, total = tw.cross_entropy(*placed, statistics=True)
    found = backend.get(tw.cross_entropy_backward(backend.put(np.ones(5, np.float32)), *placed, top, total))
    assert np.isnan(backend.get(loss)).tolist() == [True, True, True, False, True]
    assert np.isnan(found).all(1).tolist() == [True, True, True, False, True] and not np.isnan(found[3]).any()


def test_special_logits(backend: Backend) -> None:
    """Classes that are excluded by -inf have no share; NaN and inf give NaN; ignored rows give 0 whatever they hold."""
    x = np.zeros((5, 9), np.float32)
    x[0, 3:] = -np.inf
    x[1, 0], x[2, 0], x[3] = np.nan, np.inf, np.nan
    x[4] = -np.inf
    labels = np.array([0, 1, 1, -100, 0])
    loss, top, total = tw.cross_entropy(backend.put(x), backend.put(labels), statistics=True)
    np.testing.assert_allclose(backend.get(loss), [np.log(3), np.nan, np.nan, 0, np.nan], rtol=1e-6)
    ones = backend.put(np.ones(5, np.float32))
    found = backend.get(tw.cross_entropy_backward(ones, backend.put(x), backend.put(labels), top, total))
    np.testing.assert_allclose(found[0], np.array([-2, 1, 1, 0, 0, 0, 0, 0, 0]) / 3, rtol=1e-6)
    assert (found[3] == 0).all() and np.isnan(found[[1, 2, 4]]).any(1).all()


def test_the_gradient_may_take_the_place_of_the_logits(backend: Backend) -> None:
    for columns in (50, 20000):
        x, labels = numbers((3, columns), tw.bfloat16), labels_for((3, columns))
        labels[1] = columns - 1
        at, ones = (backend.put(x), backend.put(labels)), backend.put(np.full(3, 1 / 3, np.float32))
        _, top, total = tw.cross_entropy(*at, statistics=True)
        known = backend.get(tw.cross_entropy_backward(ones, *at, top, total))
        assert tw.cross_entropy_backward(ones, *at, top, total, out=at[0]) is at[0]
        assert np.array_equal(backend.get(at[0]), known)


def test_one_gradient_for_all_rows(backend: Backend) -> None:
    x, labels = backend.put(numbers((2, 3, 8), tw.float32)), backend.put(labels_for((2, 3, 8)) % 8)
    _, top, total = tw.cross_entropy(x, labels, statistics=True)
    one = backend.put(np.full(1, 0.5, np.float32))
    spread = backend.strided(one, (2, 3), (0, 0))
    whole = backend.put(np.full((2, 3), 0.5, np.float32))
    pair = [backend.get(tw.cross_entropy_backward(g, x, labels, top, total)) for g in (spread, whole)]
    assert np.array_equal(*pair)


def test_labels_in_a_column(backend: Backend) -> None:
    """Modes of one element join with any others, whatever their strides."""
    x, host = backend.put(numbers((2, 1, 4), tw.float32)), np.array([1, 0, 0, 3, 0, 0])
    labels, whole = backend.strided(backend.put(host), (2, 1), (3, 1)), backend.put(host[::3].reshape(2, 1).copy())
    pair = [tw.cross_entropy(x, each, statistics=True) for each in (labels, whole)]
    assert np.array_equal(*(backend.get(loss) for loss, _, _ in pair))
    grad = backend.put(np.ones((2, 1), np.float32))
    found = [tw.cross_entropy_backward(grad, x, each, *pair[0][1:]) for each in (labels, whole)]
    assert np.array_equal(*map(backend.get, found))


X: Any = np.ones((2, 3), np.float32)
PADDED: Any = np.zeros((2, 5), np.int64)[:, :3]
L: Any = np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tw.cross_entropy(X, L.astype(np.float32)), "labels is float32, and cross_entropy takes int64, int32"),
        (lambda: tw.cross_entropy(X, L[:1]), "labels has the shape (1,), and logits (2, 3): one label for each row"),
        (lambda: tw.cross_entropy(X[:, :0], L), "rows without columns have no loss"),
        (lambda: tw.cross_entropy(np.ones((2, 3, 4), np.float32), PADDED), "the modes of labels do not lie one behind"),
        (lambda: tw.cross_entropy(X, L, label_smoothing=1.5), "label_smoothing is 1.5"),
        (lambda: tw.cross_entropy(X, L, ignore_index=0.5), "ignore_index is a whole number of 64 bits, got 0.5"),
        (lambda: tw.cross_entropy(X, L, ignore_index=2**70), "whole number of 64 bits, got 1180591620717411303424"),
        (lambda: tw.cross_entropy(X[:0], L[:0], ignore_index=-(2**63) - 1), "ignore_index is a whole number"),
        (lambda: tw.cross_entropy(X, L, out=np.ones(3, np.float32)), "out has the shape (3,), and the result (2,)"),
        (lambda: tw.cross_entropy_backward(X, X, L, X[:, 0], X[:, 0]), "grad has the shape (2, 3), and logits (2, 3)"),
        (lambda: tw.cross_entropy_backward(X[0, :2], X, L, X[0, :2], L), "total is int64"),
    ],
)
def test_refused(call: Any, text: str) -> None:
    with pytest.raises(tw.ArgumentError) as caught:
        call()
    assert text in str(caught.value)
