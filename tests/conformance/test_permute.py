"""`tw.permute` moves bits as NumPy's transpose does, for any rank, strides, element size and alignment."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.harness import Array, Backend, Simulator, assert_same_bits

import tilewright as tw

TYPES = (tw.int8, tw.bfloat16, tw.float32, tw.float64, tw.bool_)


def numbered(shape: tuple[int, ...], dtype: tw.DType = tw.float32) -> Array:
    """Return elements whose bits all differ, as far as the type has so many."""
    count = np.arange(1, math.prod(shape) + 1)
    if dtype is tw.bool_:
        return (count % 3 == 0).reshape(shape)
    bits = count.astype({1: "u1", 2: "u2", 4: "u4", 8: "u8"}[dtype.bytes])
    return bits.view(dtype.numpy).reshape(shape)


def check(backend: Backend, x: Array, axes: tuple[int, ...]) -> None:
    assert_same_bits(backend.get(tw.permute(backend.put(x), axes)), x.transpose(axes), (x.shape, axes))


@pytest.mark.parametrize("axes", [*itertools.permutations(range(3)), (3, 2, 1, 0), (1, 0, 3, 2), (0, 3, 1, 2)], ids=str)
@pytest.mark.spread(4)
def test_orders(backend: Backend, axes: tuple[int, ...]) -> None:
    check(backend, numbered((70, 5, 66) if len(axes) == 3 else (5, 9, 6, 40)), axes)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.spread(3)
def test_elements(backend: Backend, dtype: tw.DType) -> None:
    for shape, axes in (
        ((130, 67), (1, 0)),
        ((64, 3, 16), (1, 0, 2)),
        ((3, 2, 144), (2, 1, 0)),
        ((9, 7, 2), (1, 0, 2)),
    ):
        check(backend, numbered(shape, dtype), axes)


RUNS = {  # shapes and orders in which columns or rows of a tile have several runs
    "of columns": ((8, 5, 3, 70), (3, 2, 1, 0)),
    "of rows": ((70, 3, 5, 8), (3, 2, 1, 0)),
    "of both": ((16, 3, 5, 4), (3, 1, 2, 0)),
    "by one mode": ((4, 37, 8), (2, 1, 0)),
    "of several matrices": ((4, 3, 9, 2, 32), (0, 4, 2, 3, 1)),
    "that no power of two divides": ((6, 5, 3, 12), (3, 2, 1, 0)),
}


@pytest.mark.parametrize("dtype", TYPES[:-1], ids=str)
@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.spread(6)
def test_runs(backend: Backend, runs: str, dtype: tw.DType) -> None:
    shape, axes = RUNS[runs]
    check(backend, numbered(shape, dtype), axes)


@pytest.mark.parametrize("dtype", TYPES[:-1], ids=str)
@pytest.mark.parametrize("count", [2, 3, 4, 7, 8, 12, 16])
@pytest.mark.spread(6)
def test_few_that_lie_together(backend: Backend, count: int, dtype: tw.DType) -> None:
    """Channels last to channels first and back: threads have a vector of each channel."""
    for shape, axes in (((2, 301, count), (0, 2, 1)), ((2, count, 301), (0, 2, 1)), ((count, 4096 // count), (1, 0))):
        check(backend, numbered(shape, dtype), axes)


LAYOUTS = {
    "a whole": ((8, 24), (24, 1), 0, (0, 1)),
    "padded": ((8, 24), (40, 1), 0, (1, 0)),
    "anywhere": ((8, 24), (33, 1), 3, (1, 0)),
    "columns": ((24, 8), (1, 24), 0, (0, 1)),
    "backwards": ((8, 24), (-50, -2), 400, (1, 0)),
    "without a contiguous mode": ((6, 8, 24), (3, 700, 20), 0, (2, 1, 0)),
    "rows without a contiguous mode": ((6, 8, 24), (700, 50, 2), 0, (1, 0, 2)),
    "one number for all": ((5, 24), (1, 0), 0, (1, 0)),
    "a row for all": ((5, 24), (0, 1), 0, (1, 0)),
    "pairs at odd places": ((9, 7, 2), (40, 4, 1), 3, (1, 0, 2)),
    "a number": ((), (), 0, ()),
    "modes of one": ((1, 6, 1, 4), (9, 4, 3, 1), 0, (3, 2, 0, 1)),
    "windows that overlap": ((20, 8), (1, 1), 0, (1, 0)),
    "three together at odd places": ((2, 45, 3), (137, 3, 1), 1, (0, 2, 1)),
    "three planes, every other": ((2, 3, 45), (280, 90, 2), 1, (0, 2, 1)),
    "runs at odd places": ((8, 3, 5, 9), (150, 45, 9, 1), 1, (3, 2, 1, 0)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.spread(4)
def test_strides(backend: Backend, layout: str) -> None:
    shape, strides, offset, axes = LAYOUTS[layout]
    memory = numbered((8192,))
    host = np.lib.stride_tricks.as_strided(memory[offset:], shape, [4 * s for s in strides])
    x = backend.strided(backend.put(memory), shape, strides, offset)
    assert_same_bits(backend.get(tw.permute(x, axes)), host.transpose(axes))


def test_results_with_strides_of_their_own(backend: Backend) -> None:
    x, memory = numbered((6, 20)), backend.put(np.zeros(2000, np.float32))
    tw.permute(backend.put(x), (1, 0), out=backend.strided(memory, (20, 6), (14, 2), 5))
    expected = np.zeros(2000, np.float32)
    np.lib.stride_tricks.as_strided(expected[5:], (20, 6), (56, 8))[...] = x.T
    assert_same_bits(backend.get(memory), expected)  # what is between stays


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4, 2)], ids=str)
def test_arrays_without_elements(backend: Backend, shape: tuple[int, ...]) -> None:
    axes = tuple(range(len(shape)))[::-1]
    assert tuple(tw.permute(backend.zeros(shape, tw.int16), axes).shape) == shape[::-1]


@st.composite
def moves(draw: st.DrawFn) -> tuple[Array, tuple[int, ...]]:
    rank = draw(st.integers(1, 5))
    shape = tuple(draw(st.sampled_from([1, 2, 3, 4, 5, 8, 16, 17])) for _ in range(rank))
    shape = shape if math.prod(shape) <= 20000 else (*shape[:3], 1, 1)[:rank]
    dtype = draw(st.sampled_from(TYPES))
    x = numbered(tuple(2 * n for n in shape) if math.prod(shape) < 500 else shape, dtype)
    steps = draw(st.permutations([1, 1, 1, 2, -1]))[:rank]
    x = x[tuple(slice(None, n * step if step > 0 else None, step) for n, step in zip(x.shape, steps, strict=True))]
    return x, tuple(draw(st.permutations(range(x.ndim))))


@settings(max_examples=25, deadline=None)
@given(moves())
def test_any_order_of_any_view(case: tuple[Array, tuple[int, ...]]) -> None:
    x, axes = case
    assert_same_bits(Simulator().get(tw.permute(x, axes)), x.transpose(axes), (x.shape, x.strides, axes))


X: Any = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tw.permute(X, (0, 0)), "axes are (0, 0), and x has 2 modes"),
        (lambda: tw.permute(X, (0,)), "axes are (0,), and x has 2 modes"),
        (lambda: tw.permute(X, (0, 2)), "axes are (0, 2), and x has 2 modes"),
        (lambda: tw.permute(X, 1), "axes are 1, and numbers of modes are expected"),
        (lambda: tw.permute(X, ("a", "b")), "axes are ('a', 'b')"),
        (lambda: tw.permute(None, (0,)), "x is None, and permute takes arrays"),
        (lambda: tw.permute(X, (1, 0), out=X), "out has the shape (2, 3), and the result (3, 2)"),
        (lambda: tw.permute(X, (1, 0), out=X.T), "out shares memory with x"),
        (lambda: tw.permute(X, (0, 1), out=X), "out shares memory with x"),
        (lambda: tw.permute(X, (1, 0), out=np.ones((3, 2))), "out is float64, and permute takes float32"),
    ],
)
def test_refused(call: Any, text: str) -> None:
    with pytest.raises(tw.ArgumentError) as caught:
        call()
    assert text in str(caught.value)
