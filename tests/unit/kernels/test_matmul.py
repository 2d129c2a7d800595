"""`tw.matmul` against NumPy: shapes, strides, element types, addends and epilogues, on the simulator."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.slow import covering, examples
from tests.unit.kernels.test_arrangement import broadcast_pair
from tests.unit.runtime.fake_arrays import DLPackArray

import tilewright as tw

Array = np.ndarray[Any, Any]

# Element types of a and b, the precision, and that of the result.
TYPES: list[tuple[Any, Any, str | None, Any]] = [
    (np.float32, np.float32, None, np.float32),
    (np.float32, np.float32, "ieee", np.float32),
    (np.float32, np.float32, "tf32", np.float32),
    (np.float32, np.float32, "tf32x3", np.float32),
    (np.float32, np.float32, "bf16x6", np.float32),
    (np.float32, np.float32, "bf16x9", np.float32),
    (np.float16, np.float16, None, np.float16),
    (ml_dtypes.bfloat16, ml_dtypes.bfloat16, None, ml_dtypes.bfloat16),
    (np.float64, np.float64, None, np.float64),
    (np.int8, np.int8, None, np.int32),
    (np.uint8, np.int8, None, np.int32),
    (np.int8, np.uint8, None, np.int32),
    (np.uint8, np.uint8, None, np.int32),
    (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, None, ml_dtypes.bfloat16),
    (ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, None, ml_dtypes.bfloat16),
]
extent = st.one_of(st.integers(0, 4), st.integers(5, 70))


def whole(seed: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return small whole numbers: their products and sums are exact in every type that computes."""
    low = 0 if np.dtype(dtype) == np.uint8 else -2
    return np.random.default_rng(seed).integers(low, 3, shape).astype(dtype)


@st.composite
def strided(draw: st.DrawFn, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return whole numbers laid out in some way: transposed, padded, a slice, backwards, or broadcast."""
    order = draw(st.permutations(range(len(shape))))
    pads = [draw(st.sampled_from([0, 0, 1, 3, 8])) for _ in shape]
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in shape]
    full = [shape[o] * abs(steps[o]) + pads[o] for o in order]
    memory = whole(draw(st.integers(0, 99)), tuple(full), dtype)
    view = memory.transpose(np.argsort(order))
    view = view[tuple(slice(0, e * abs(s)) for e, s in zip(shape, steps, strict=True))]
    view = view[tuple(slice(None, None, s) for s in steps)]
    if draw(st.integers(0, 9)) == 0 and len(shape) and shape[0]:
        view = np.broadcast_to(view[:1], shape)
    assert view.shape == shape
    return view


def exact(a: Array, b: Array) -> Array:
    return np.matmul(a.astype(np.float64), b.astype(np.float64))


@examples(3, 20)
@given(
    data=st.data(), types=st.sampled_from(TYPES), m=extent, n=extent, k=extent,
    batch=broadcast_pair(), rows=st.booleans(), columns=st.booleans(), is_batched=st.booleans(),
)  # fmt: skip
def test_product(
    data: st.DataObject, types: Any, m: int, n: int, k: int, batch: Any, rows: bool, columns: bool, is_batched: bool
) -> None:
    batch = batch if is_batched else ((), ())
    a = data.draw(strided((*batch[0], m, k) if rows else (k,), types[0]))
    b = data.draw(strided((*batch[1], k, n) if columns else (k,), types[1]))
    result = tw.matmul(a, b, precision=types[2])
    assert result.dtype == types[3]
    assert result.shape == np.matmul(np.zeros(a.shape), np.zeros(b.shape)).shape
    assert np.array_equal(result, exact(a, b).astype(types[3]))


@examples(2, 15)
@given(
    data=st.data(), types=st.sampled_from(TYPES), m=extent, n=extent, k=extent,
    batch=st.lists(st.integers(1, 3), max_size=2), alpha=st.sampled_from([1, -2, 3]), beta=st.sampled_from([0, 1, -3]),
)  # fmt: skip
def test_addends(
    data: st.DataObject, types: Any, m: int, n: int, k: int, batch: list[int], alpha: int, beta: int
) -> None:
    shape = (*batch, m, n)
    a = data.draw(strided((*batch, m, k), types[0]))
    b = data.draw(strided((k, n), types[1]))
    is_whole = types[3] is np.int32
    addend = st.sampled_from([np.int8, np.int32] if is_whole else [np.float16, np.float32, np.float64, np.int32])
    part = tuple(e if data.draw(st.booleans()) else 1 for e in shape)[data.draw(st.integers(0, 2)) :]
    c = np.asarray(data.draw(strided(part, data.draw(addend))))
    bias = data.draw(strided((n,), data.draw(addend)))
    out = data.draw(strided(shape, np.int32 if is_whole else np.float64))
    out = out if out.flags.writeable else out.copy()
    result = tw.matmul(a, b, out=out, alpha=alpha, beta=beta, c=c, bias=bias, precision=types[2])
    assert result is out
    assert np.array_equal(out, alpha * exact(a, b) + beta * c.astype(np.float64) + bias)


def test_fractions_are_rounded_once() -> None:
    """The result is the float32 sum, scaled and shifted in float32, rounded to its type at the end."""
    random = np.random.default_rng(5)
    a, b = (random.standard_normal(s).astype(np.float16) for s in ((33, 40), (40, 25)))
    c, bias = random.standard_normal((33, 25)).astype(np.float32), random.standard_normal(25).astype(np.float16)
    expected = 0.37 * exact(a, b) + 1.7 * c + bias
    wide = tw.matmul(a, b, alpha=0.37, beta=1.7, c=c, bias=bias, out_dtype=tw.float32)
    assert wide.dtype == np.float32 and np.abs(wide - expected).max() < 40 * 2**-22 * np.abs(expected).max()
    narrow = tw.matmul(a, b, alpha=0.37, beta=1.7, c=c, bias=bias)
    assert np.array_equal(narrow, wide.astype(np.float16))


def test_tf32_rounds_and_ieee_does_not() -> None:
    a, b = np.full((8, 8), 1 + 2.0**-13, np.float32), np.eye(8, dtype=np.float32)
    assert np.array_equal(tw.matmul(a, b), a)
    assert np.array_equal(tw.matmul(a, b, precision="tf32"), np.ones_like(a))


def test_a_factor_that_no_float_holds() -> None:
    with pytest.raises(tw.ArgumentError, match="alpha or beta is an integer that no float holds"):
        tw.matmul(np.eye(4), np.eye(4), alpha=10**400)
    with pytest.raises(tw.ArgumentError, match="scale_b is an integer that no float holds"):
        tw.matmul(np.eye(4), np.eye(4), scale_b=10**400)


def test_float64_keeps_alpha_and_beta_in_float64() -> None:
    a, c = np.ones((4, 4)), np.ones((4, 4))
    assert np.array_equal(tw.matmul(a, np.eye(4), alpha=0.1, beta=0.2, c=c), np.full((4, 4), 0.1 + 0.2))


def test_no_k_gives_what_is_added() -> None:
    a, b = np.zeros((3, 0), np.float32), np.zeros((0, 5), np.float32)
    c, bias = whole(1, (3, 5), np.float32), whole(2, (5,), np.float32)
    assert np.array_equal(tw.matmul(a, b), np.zeros((3, 5)))
    found = tw.matmul(a, b, beta=2, c=c, bias=bias, epilogue=lambda acc: acc * 3)
    assert np.array_equal(found, 3 * (2 * c + bias))


def test_beta_of_zero_does_not_read_c() -> None:
    a = whole(1, (8, 8), np.float32)
    c = np.full((8, 8), np.nan, np.float32)
    assert np.array_equal(tw.matmul(a, a, beta=0, c=c), a @ a)


def test_beta_without_c_adds_to_out() -> None:
    a, out = whole(1, (20, 20), np.float32), whole(2, (20, 20), np.float32)
    expected = a @ a + 2 * out
    assert np.array_equal(tw.matmul(a, a, out=out, beta=2), expected)
    assert np.array_equal(out, expected)


ADDED: dict[str, Callable[[Array], dict[str, Any]]] = {
    "c": lambda x: {"c": x, "beta": 1},
    "bias": lambda x: {"bias": x},
    "epilogue": lambda x: {"epilogue": lambda acc: acc + x},
}


@pytest.mark.parametrize(("added", "order"), covering(ADDED, "CF", of=1))
@pytest.mark.spread(2)
def test_out_may_be_what_is_added(added: str, order: Any) -> None:
    a = whole(1, (70, 70), np.float32)
    out = np.array(whole(2, (70, 70), np.float32), order=order)
    expected = a @ a + out
    tw.matmul(a, a, out=out, **ADDED[added](out))
    assert np.array_equal(out, expected)


def test_out_between_the_elements_of_what_is_read() -> None:
    """Only elements count, not the stretch of memory that they lie in."""
    memory = whole(3, (16, 48), np.float32)
    a, b, out = memory[:, :16], memory[:, 16:32], memory[:, 32:]
    expected = a @ b
    tw.matmul(a, b, out=out)
    assert np.array_equal(out, expected)
    assert np.array_equal(memory[:, :32], whole(3, (16, 48), np.float32)[:, :32])


def test_arrays_that_only_speak_dlpack() -> None:
    a, b = whole(1, (9, 7), np.float32), whole(2, (5, 7), np.float32)
    out = np.empty((9, 5), np.float32)
    found = tw.matmul(DLPackArray(a), DLPackArray(b.T), c=DLPackArray(a[:, :5]), beta=1, out=out)
    assert found is out and np.array_equal(out, a @ b.T + a[:, :5])


def test_arrays_are_not_kept() -> None:
    class Memory(np.ndarray):
        pass

    arrays = [whole(n, (21, 21), np.float32).view(Memory) for n in range(4)]
    gone = [weakref.ref(x) for x in arrays]
    tw.matmul(arrays[0], arrays[1], out=arrays[2], epilogue=lambda acc, scale=arrays[3]: acc * scale)
    del arrays
    gc.collect()
    assert [x() for x in gone] == [None] * 4


# Epilogues

SCALE = np.arange(1, 41, dtype=np.float32).reshape(40, 1)


def relu(acc):
    if acc < 0:
        return 0.0
    return acc


def gelu_erf(acc: Any) -> Any:
    return 0.5 * acc * (1 + tw.erf(acc * 0.7071067811865476))


def gelu_tanh(acc: Any) -> Any:
    return 0.5 * acc * (1 + tw.tanh(0.7978845608028654 * (acc + 0.044715 * acc * acc * acc)))


def scaled(acc: Any, scale: Any, shift: Any) -> Any:
    return acc * scale + shift


residual = whole(7, (40, 24), np.float16)


EPILOGUES: list[Any] = [
    (lambda acc: tw.maximum(acc, 0), lambda x: np.maximum(x, 0)),
    (relu, lambda x: np.maximum(x, 0)),
    (lambda acc: 2.5, lambda x: np.full_like(x, 2.5)),
    (lambda acc: acc > 1, lambda x: x > 1),
    (lambda acc: acc * SCALE, lambda x: x * SCALE),
    (lambda acc: tw.maximum(acc + residual, 0), lambda x: np.maximum(x + residual, 0)),
    (lambda acc, row=np.arange(24, dtype=np.int32): acc - row, lambda x: x - np.arange(24)),
    (functools.partial(scaled, scale=SCALE, shift=2.5), lambda x: x * SCALE + 2.5),
    (functools.partial(scaled, scale=np.float32(0.5), shift=residual), lambda x: x / 2 + residual),
    (lambda acc: tw.where(acc > SCALE, SCALE, acc), lambda x: np.minimum(x, SCALE)),
]


@pytest.mark.parametrize(
    ("epilogue", "expected", "order"),
    [  # one order of each in the suite, with and without arrays that the epilogue reads
        pytest.param(*functions, order, marks=() if n % 2 == is_column else pytest.mark.slow)
        for n, functions in enumerate(EPILOGUES)
        for is_column, order in enumerate("CF")
    ],
)
@pytest.mark.spread(6)
def test_epilogue(epilogue: Callable[..., Any], expected: Callable[[Array], Array], order: Any) -> None:
    a, b = whole(1, (40, 30), np.float32), whole(2, (30, 24), np.float32)
    out = np.empty((40, 24), np.float32, order=order)
    tw.matmul(a, b, out=out, epilogue=epilogue)
    assert np.array_equal(out, expected(a @ b).astype(np.float32))


def test_gelu() -> None:
    from math import erf

    random = np.random.default_rng(1)
    a, b = (random.standard_normal((24, 24)).astype(np.float32) for _ in range(2))
    x = exact(a, b)
    expected = 0.5 * x * (1 + np.vectorize(erf)(x * 0.7071067811865476))
    assert np.allclose(tw.matmul(a, b, epilogue=gelu_erf), expected, atol=1e-4)
    assert np.allclose(tw.matmul(a, b, epilogue=gelu_tanh), expected, atol=1e-2)


def test_epilogue_in_a_batch_follows_the_result() -> None:
    """Arrays of an epilogue broadcast to the whole result, the batch modes included."""
    a, b = whole(1, (3, 2, 9, 8), np.float32), whole(2, (2, 8, 7), np.float32)
    per_matrix, per_row = whole(3, (3, 1, 1, 1), np.float32), whole(4, (2, 9, 1), np.float32)
    found = tw.matmul(a, b, epilogue=lambda acc: acc * per_matrix + per_row)
    assert np.array_equal(found, a @ b * per_matrix + per_row)


def test_epilogue_turns_integers_into_floats() -> None:
    a, b = whole(1, (16, 40), np.int8), whole(2, (40, 24), np.uint8)
    scale = np.linspace(0.5, 2, 24).astype(np.float32)
    found = tw.matmul(a, b, epilogue=lambda acc: acc.to(tw.float32) * scale, out_dtype=tw.float16)
    assert np.array_equal(found, (exact(a, b).astype(np.float32) * scale).astype(np.float16))


def test_epilogue_compiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright import launch

    compiled = []
    lower = launch.lower
    monkeypatch.setattr(launch, "lower", lambda *args, **kwargs: compiled.append(1) or lower(*args, **kwargs))
    a = whole(1, (24, 24), np.float32)
    for turn in range(4):
        scale = np.full(24, turn, np.float32)
        found = tw.matmul(a, a, epilogue=lambda acc, scale=scale: acc * scale * 1.25)
        assert np.array_equal(found, a @ a * turn * np.float32(1.25))
    assert len(compiled) == 1
    tw.matmul(a, a, epilogue=lambda acc, scale=scale: acc * scale * 1.5)
    assert len(compiled) == 2
