"""Finished functions of rows keep within bounds that follow from their arithmetic, against NumPy in float64.

Bounds count roundings: u is half the distance of the computing type's numbers at 1. `steps` is how many additions in a
row one element of a sum goes through, by the order that docs/language.md gives for reductions.
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import FLOATS, Array, Backend

import tilewright as tw
from tilewright.kernels.rows import plan_rows

EXP = 8  # u: the distance of an exponential from the exact one (2 ulp of CUDA's, 4 of NumPy's), of its argument
EXTENTS = {tw.float16: 33000, tw.bfloat16: 33000, tw.float32: 17001, tw.float64: 8200}  # too long for registers
SHAPES = [(3, 1), (37, 7), (2, 3, 256), (1, 2048)]
CASES = [(tw.float32, shape) for shape in SHAPES]
CASES += [(dtype, shape) for dtype in FLOATS for shape in [(5, 77), (2, EXTENTS[dtype])]]
every_case = pytest.mark.parametrize(("dtype", "shape"), CASES, ids=str)


def numbers(shape: tuple[int, ...], dtype: tw.DType, seed: int = 0, scale: float = 4.0, shift: float = 0.0) -> Array:
    random = np.random.default_rng(seed)
    return (shift + scale * random.standard_normal(shape)).astype(dtype.numpy)


def unit(dtype: tw.DType) -> float:
    return 2.0**-53 if dtype is tw.float64 else 2.0**-24


def steps(columns: int, dtype: tw.DType) -> tuple[int, int]:
    """Return the additions in a row of one element in its thread and over the threads, and the parts of a long row.

    A thread adds its elements in four runs; 1024 threads are joined in 10 steps.
    """
    each = 64 // dtype.bytes
    plan = plan_rows(dtype.bits, columns, 16)
    return each // 4 + 2 + 10, -(-columns // plan.held) if plan.is_long else 0


def rounding(expected: Array, dtype: tw.DType) -> Array:
    """Return how far rounding to a type may move numbers."""
    info = ml_dtypes.finfo(dtype.numpy)
    return np.abs(expected) * float(info.eps) / 2 + float(info.smallest_subnormal) / 2


def assert_bounded(found: Array, expected: Array, bound: Array, dtype: tw.DType) -> None:
    wide = found.astype(np.float64)
    slack = 1.01 * bound + rounding(np.abs(expected) + bound, dtype) + 8 * 2.0**-53 * np.abs(expected)
    worst = np.abs(wide - expected) - slack
    assert (worst <= 0).all(), (worst.max(), np.argmax(worst), wide.ravel()[np.argmax(worst)])


def check_softmax(
    found: Array, x: Array, dtype: tw.DType, *, is_log: bool = False, out: tw.DType | None = None
) -> None:
    """Compare with the formula: of e^-d the argument has 3 roundings, and sums of d e^-d are at most ln C."""
    wide, u = x.astype(np.float64), unit(dtype)
    columns, (depth, parts) = x.shape[-1], steps(x.shape[-1], dtype)
    d = wide.max(-1, keepdims=True) - wide
    e = np.exp(-d)
    total = e.sum(-1, keepdims=True)
    of_total = 3 * np.log(max(columns, 2)) + EXP + depth + (EXP + 2) * (parts + 1) + 3 * (parts > 0) * d.max()
    if is_log:
        expected = -d - np.log(total)
        bound = u * (d + of_total + 4 * np.log(total) + np.abs(expected))
    else:
        expected = e / total
        bound = u * expected * (3 * d + EXP + of_total + 3) + 2.0**-126 * (dtype.bits <= 32)
    assert_bounded(found, expected, bound, out or dtype)


@every_case
@pytest.mark.spread(4)
def test_softmax(backend: Backend, dtype: tw.DType, shape: tuple[int, ...]) -> None:
    x = numbers(shape, dtype)
    check_softmax(backend.get(tw.softmax(backend.put(x))), x, dtype)


@pytest.mark.parametrize(("dtype", "shape"), CASES[1::2], ids=str)
@pytest.mark.spread(4)
def test_log_softmax(backend: Backend, dtype: tw.DType, shape: tuple[int, ...]) -> None:
    x = numbers(shape, dtype)
    check_softmax(backend.get(tw.log_softmax(backend.put(x))), x, dtype, is_log=True)


@every_case
@pytest.mark.spread(4)
def test_rms_norm(backend: Backend, dtype: tw.DType, shape: tuple[int, ...]) -> None:
    """The root has half of the relative error of the mean of squares."""
    x, w, u = numbers(shape, dtype), numbers(shape[-1:], dtype, 1), unit(dtype)
    found, scale = tw.rms_norm(backend.put(x), backend.put(w), eps=1e-6, statistics=True)
    wide, (depth, parts) = x.astype(np.float64), steps(shape[-1], dtype)
    root = 1 / np.sqrt((wide**2).mean(-1) + 1e-6)
    relative = u * ((depth + parts + 4) / 2 + 4)
    kind = tw.float64 if dtype is tw.float64 else tw.float32
    assert_bounded(backend.get(scale), root, relative * root, kind)
    expected = wide * root[..., None] * w.astype(np.float64)
    assert_bounded(backend.get(found), expected, np.abs(expected) * (relative + 2 * u), dtype)


FAR = [(tw.float32, (2, 1000), 1e3), (tw.float32, (2, 17001), 1e3), (tw.float64, (2, 77), 1e6)]
FAR += [(tw.bfloat16, (2, 33008), 1.0)]  # long rows that end with a vector


@pytest.mark.parametrize(("dtype", "shape", "shift"), [*((*case, 0.0) for case in CASES), *FAR], ids=str)
@pytest.mark.spread(4)
def test_layer_norm(backend: Backend, dtype: tw.DType, shape: tuple[int, ...], shift: float) -> None:
    """An error of the mean moves all distances, and adds its square to the variance; rows may be far from zero."""
    x, u = numbers(shape, dtype, shift=shift), unit(dtype)
    w, b = numbers(shape[-1:], dtype, 1), numbers(shape[-1:], dtype, 2)
    found, mean, scale = tw.layer_norm(backend.put(x), backend.put(w), backend.put(b), statistics=True)
    wide, (depth, parts) = x.astype(np.float64), steps(shape[-1], dtype)
    middle, variance = wide.mean(-1), wide.var(-1)
    root = 1 / np.sqrt(variance + 1e-5)
    # Each join of two means rounds numbers below twice the greatest four times.
    of_mean = u * np.abs(wide).max(-1) * (depth + 1 + (8 * (parts + 11) if parts else 0))
    of_variance = of_mean**2 + u * variance * (depth + 6 * (parts + 1))
    if parts:
        of_variance += 2 * of_mean * np.sqrt(variance)
    relative = of_variance / (variance + 1e-5) / 2 + 5 * u
    kind = tw.float64 if dtype is tw.float64 else tw.float32
    assert_bounded(backend.get(mean), middle, of_mean, kind)
    assert_bounded(backend.get(scale), root, relative * root, kind)
    apart, weight = wide - middle[..., None], np.abs(w.astype(np.float64))
    expected = apart * root[..., None] * w.astype(np.float64) + b.astype(np.float64)
    bound = weight * root[..., None] * (of_mean[..., None] + np.abs(apart) * (relative[..., None] + 4 * u))
    assert_bounded(backend.get(found), expected, bound + u * np.abs(expected), dtype)


def arrangements() -> dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int]]:
    """Return shape, strides, offset and axis of views into 4096 elements."""
    return {
        "padded rows": ((7, 24), (40, 1), 0, -1),
        "rows anywhere": ((7, 24), (33, 1), 3, -1),
        "columns": ((24, 7), (1, 24), 0, -1),
        "along the first mode": ((24, 7), (7, 1), 0, 0),
        "along a mode in the middle": ((3, 24, 5), (120, 5, 1), 0, 1),
        "backwards": ((7, 24), (-48, -2), 7 * 48, -1),
        "modes that do not join": ((3, 2, 4, 24), (96, 700, 24, 1), 0, -1),
        "a row for all": ((5, 24), (0, 1), 0, -1),
        "one number for all": ((5, 24), (1, 0), 0, -1),
        "a vector": ((24,), (1,), 0, -1),
        "a number": ((), (), 0, -1),
        "three modes of one": ((1, 1, 24, 1), (3, 5, 1, 7), 0, 2),
    }


@pytest.mark.parametrize("arrangement", arrangements())
@pytest.mark.spread(4)
def test_strides(backend: Backend, arrangement: str) -> None:
    shape, strides, offset, axis = arrangements()[arrangement]
    memory = numbers((4096,), tw.float32)
    x = backend.strided(backend.put(memory), shape, strides, offset)
    host = np.lib.stride_tricks.as_strided(memory[offset:], shape, [4 * s for s in strides])
    found = backend.get(tw.softmax(x, axis))
    assert found.shape == shape
    check_softmax(np.moveaxis(np.atleast_1d(found), axis, -1), np.moveaxis(np.atleast_1d(host), axis, -1), tw.float32)
    if shape and axis == -1:
        wide = host.astype(np.float64)
        apart = wide - wide.mean(-1, keepdims=True)
        expected = apart / np.sqrt(wide.var(-1, keepdims=True) + 0.5)
        np.testing.assert_allclose(backend.get(tw.layer_norm(x, eps=0.5)), expected, atol=1e-5)


def test_results_in_place_and_in_other_types(backend: Backend) -> None:
    for columns in (100, 17001):
        x = numbers((3, columns), tw.float32)
        at = backend.put(x)
        assert tw.softmax(at, out=at) is at
        check_softmax(backend.get(at), x, tw.float32)
    x = numbers((3, 100), tw.bfloat16)
    wide = backend.zeros((3, 100), tw.float32)
    tw.softmax(backend.put(x), out=wide)
    check_softmax(backend.get(wide), x, tw.bfloat16, out=tw.float32)
    for dtype, columns in itertools.product((tw.float16, tw.bfloat16), (4, 9001)):  # computed in float64
        x, narrow = numbers((1, columns), tw.float64), backend.zeros((1, columns), dtype)
        for function in (tw.softmax, tw.log_softmax):
            known = backend.get(function(backend.put(x)))
            found = backend.get(function(backend.put(x), out=narrow))
            assert np.array_equal(found, known.astype(dtype.numpy)), (function, dtype, columns)
    x = numbers((3, 100), tw.bfloat16)
    columns = backend.put(np.zeros(300, np.float32))
    tw.softmax(backend.put(x), out=backend.strided(columns, (3, 100), (1, 3)))
    check_softmax(backend.get(columns).reshape(100, 3).T, x, tw.bfloat16, out=tw.float32)


@pytest.mark.parametrize("shape", [(0, 5), (0,), (5, 0), (0, 0), (2, 0, 3)], ids=str)
def test_arrays_without_elements(backend: Backend, shape: tuple[int, ...]) -> None:
    x = backend.zeros(shape, tw.float32)
    for function in (tw.softmax, tw.log_softmax, tw.rms_norm, tw.layer_norm):
        assert tuple(function(x).shape) == shape
    if shape[-1]:
        assert tuple(tw.layer_norm(x, statistics=True)[1].shape) == shape[:-1]


def special_rows(columns: int) -> Array:
    x = np.zeros((8, columns), np.float32)
    most = np.finfo(np.float32).max
    x[0, 3], x[0, 5] = most, -most
    x[1] = -most
    x[2] = -np.inf
    x[2, 9] = -5
    x[3, 0] = np.nan
    x[4, 7] = np.inf
    x[5] = -np.inf
    x[6] = -most
    x[6, columns - 1] = most
    x[7] = np.nan
    return x


@pytest.mark.parametrize("columns", [40, 20000])
def test_special_values(backend: Backend, columns: int) -> None:
    x = special_rows(columns)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        e = wide - wide.max(1, keepdims=True)
        total = np.exp(e).sum(1, keepdims=True)
        placed = backend.put(x)
        np.testing.assert_allclose(backend.get(tw.softmax(placed)), np.exp(e) / total, rtol=1e-5)
        # Sums of float32: 2 most is infinite there.
        expected = (e - np.log(total)).astype(np.float32)
        np.testing.assert_allclose(backend.get(tw.log_softmax(placed)), expected, rtol=1e-5)
        squares = (x * x).sum(1, keepdims=True, dtype=np.float32)
        expected = x * (1 / np.sqrt(squares / np.float32(columns)))
        np.testing.assert_allclose(backend.get(tw.rms_norm(placed, eps=0.0)), expected, rtol=1e-5)
        found = backend.get(tw.layer_norm(placed))
        # A row with a number that is none has none; the others have a mean, or overflow as their squares do.
        assert np.isnan(found[[2, 3, 4, 5, 7]]).all()


def test_constant_rows_are_zero_or_infinite(backend: Backend) -> None:
    x = backend.put(np.full((2, 64), 3, np.float32))
    assert (backend.get(tw.layer_norm(x)) == 0).all()
    assert np.isnan(backend.get(tw.layer_norm(x, eps=0.0))).all()  # 0 * inf


def test_one_row_does_not_change_another(backend: Backend) -> None:
    """A row has the same bits whatever rows are around it."""
    for shape in ((40, 24), (3, 2000)):
        x = numbers(shape, tw.float32)
        spoiled = x.copy()
        spoiled[::2] = np.nan
        for function in (tw.softmax, tw.rms_norm, tw.layer_norm):
            whole, parts = (backend.get(function(backend.put(a))) for a in (x, spoiled))
            assert np.array_equal(whole[1::2], parts[1::2]), function


F32: Any = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tw.softmax(None), "x is None, and softmax takes arrays"),
        (lambda: tw.softmax([1.0, 2.0]), "x is a list, and softmax takes arrays"),
        (lambda: tw.softmax(F32.astype(np.int32)), "x is int32, and softmax takes float16"),
        (lambda: tw.softmax(F32, 2), "axis is 2, and the array has 2 modes"),
        (lambda: tw.softmax(F32, -3), "axis is -3, and the array has 2 modes"),
        (lambda: tw.softmax(F32, (0, 1)), "axis of softmax is (0, 1)"),
        (lambda: tw.softmax(F32, out=np.ones((3, 2), np.float32)), "out has the shape (3, 2), and the result (2, 3)"),
        (lambda: tw.softmax(F32, out=np.ones((2, 3), np.int32)), "out is int32"),
        (lambda: tw.softmax(F32, out=np.broadcast_to(np.float32(1), (2, 3))), "out is read-only"),
        (lambda: tw.softmax(F32, out=overlapping()), "elements of out share memory"),
        (lambda: tw.softmax(SHARED[:, :3], out=SHARED[:, 1:]),
         "out shares memory with x, which is read while out is written"),
        (lambda: tw.rms_norm(F32, F32[0, :2]), "weight has the shape (2,), and rows of x have 3 elements"),
        (lambda: tw.layer_norm(F32, bias=F32), "bias has the shape (2, 3), and rows of x have 3 elements"),
        (lambda: tw.rms_norm(np.array(1.0, np.float32)), "x has no mode, and rms_norm is of the last one"),
        (lambda: tw.rms_norm(F32, eps=-1.0), "eps of rms_norm is -1.0"),
        (lambda: tw.layer_norm(F32, eps="small"), "eps of layer_norm is a number, got str"),
        (lambda: tw.rms_norm(SHARED[0, :3], SHARED[1, :3], out=SHARED[1, :3]), "out shares memory with weight"),
        (lambda: tw.layer_norm(F32[:, :0], statistics=True), "rows of x have no elements"),
    ],
)  # fmt: skip
def test_refused(call: Any, text: str) -> None:
    with pytest.raises(tw.ArgumentError) as caught:
        call()
    assert text in str(caught.value)


SHARED = np.ones((2, 4), np.float32)


def overlapping() -> Array:
    memory = np.ones(8, np.float32)
    return np.ndarray((2, 3), np.float32, memory, 0, (4, 4))
