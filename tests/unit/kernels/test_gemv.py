"""The family for a few vectors and a matrix: every way through a matrix, its choice, and its machine code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels import dispatch
from tilewright.kernels import matmul as entry
from tilewright.kernels._gemv_kernel import multiply_vectors
from tilewright.kernels.gemv import Gemv, _plan
from tilewright.kernels.model import Machine
from tilewright.kernels.problem import Operand, Problem

H200 = Arch.parse("sm_90a")
Array = np.ndarray[Any, Any]


def whole(seed: int, shape: tuple[int, ...], dtype: Any) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def padded(seed: int, shape: tuple[int, ...], dtype: Any, beside: int = 3) -> Array:
    """Return rows with NaN behind each."""
    room = np.full((*shape[:-1], shape[-1] + beside), np.nan, dtype)
    room[..., : shape[-1]] = whole(seed, shape, dtype)
    return room[..., : shape[-1]]


def multiplied(monkeypatch: pytest.MonkeyPatch, place: int, *arrays: Any, **options: Any) -> Any:
    """Return a product by the configuration at a place among those that can run."""
    found = tw.matmul.explain(*arrays, **options, arch="sm_90a")
    legal = [c for c in found.candidates if c.family.name == "gemv" and c.rejection is None]
    with monkeypatch.context() as patched:
        patched.setattr(dispatch, "fastest", lambda *_: legal[place % len(legal)])
        entry._signature.cache_clear()
        result = tw.matmul(*arrays, **options)
    entry._signature.cache_clear()
    return result


SHAPES = [(1, 40, 300), (8, 33, 64), (5, 130, 1), (3, 1, 700), (2, 300, 10), (40, 1, 300), (70, 6, 257), (1, 1, 1000)]


@pytest.mark.parametrize("place", [0, 3, 7, 11, 14])
@pytest.mark.parametrize("is_along_k", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.spread(8)
def test_products(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], is_along_k: bool, place: int) -> None:
    """With addends, an epilogue, and NaN behind rows that begin anywhere."""
    m, n, k = shape
    dtype = (np.float32, np.float64, np.float16)[place % 3]
    turn, beside = (lambda x: x.T) if is_along_k else (lambda x: x), place % 5
    a, b = padded(0, (m, k), dtype, beside), turn(padded(1, (n, k) if is_along_k else (k, n), dtype, beside))
    if m > n and not is_along_k:
        a = padded(0, (k, m), dtype, beside).T
    out = np.float64 if dtype is np.float64 else np.float32
    bias, gain = whole(2, (n,), out), whole(3, (m, 1), out)
    more: Any = {"bias": bias, "epilogue": lambda acc: acc * gain, "out_dtype": out}
    expected = (a.astype(np.float64) @ b.astype(np.float64) + bias) * gain
    assert np.array_equal(multiplied(monkeypatch, place, a, b, **more), expected)


@pytest.mark.parametrize("shape", [(3, 4, 50, 40), (2, 50, 4, 40), (3, 1, 17, 0)], ids=str)
def test_batches_and_results_that_lie_anywhere(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int, int]
) -> None:
    batch, m, n, k = shape
    a, b = padded(0, (batch, m, k), np.float32), padded(1, (batch, n, k), np.float32).swapaxes(1, 2)
    c = whole(2, (batch, m, n), np.float32)
    room = np.full((batch, m, 2 * n), np.nan, np.float32)
    found = multiplied(monkeypatch, 1, a, b, c=c, alpha=2, beta=-1, out=room[:, :, ::2])
    assert np.array_equal(found, 2 * (a.astype(np.float64) @ b.astype(np.float64)) - c)
    assert np.isnan(room[:, :, 1::2]).all()


def test_numbers_that_are_not_finite_stay_in_their_row_and_column(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = padded(0, (5, 140), np.float32), padded(1, (21, 140), np.float32).T
    a[3, 139], a[4, 0], b[7, 20] = np.nan, np.inf, np.nan
    b[0, 0] = 1
    for place in (0, 5, 9):
        found = multiplied(monkeypatch, place, a, b)
        assert np.isnan(found[3]).all() and np.isnan(found[:, 20]).all() and np.isposinf(found[4, 0])
        assert np.isfinite(np.delete(found[:3], 20, 1)).all()


def problem_of(m: int, n: int, k: int, major: Any, dtype: tw.DType = tw.float32) -> Problem:
    accumulator = tw.float64 if dtype is tw.float64 else tw.float32
    x, b, d = Operand(dtype, "K", 16), Operand(dtype, major, 16), Operand(dtype, "MN", 16)
    return Problem(m, n, k, 1, x, b, d, dtype, accumulator)


def test_it_is_for_up_to_eight_vectors_of_floats() -> None:
    assert Gemv().configurations(problem_of(8, 100, 100, "K"), H200)
    assert Gemv().configurations(problem_of(100, 8, 100, "K"), H200)
    assert not Gemv().configurations(problem_of(9, 9, 100, "K"), H200)
    assert not Gemv().configurations(problem_of(1, 100, 100, "none"), H200)
    whole_numbers = problem_of(1, 100, 100, "K", tw.int8)
    assert not Gemv().configurations(whole_numbers, H200)


@pytest.mark.parametrize("m", [1, 2, 4, 5, 8])
@pytest.mark.parametrize("dtype", [tw.float16, tw.bfloat16, tw.float32, tw.float64])
def test_sums_fit_into_shared_memory_however_rows_are_aligned(m: int, dtype: tw.DType) -> None:
    """Eight vectors of eight columns a lane would not."""
    for alignment in (2, 4, 8, 16):
        for major in ("K", "MN"):
            problem = replace(problem_of(m, 64, 64, major, dtype), b=Operand(dtype, major, max(alignment, dtype.bytes)))
            assert any(c.rejection is None for c in Gemv().candidates(problem, Machine.of(Arch.parse("sm_75"))))


@pytest.mark.parametrize("dtype", [tw.float32, tw.float64])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 4096, 4096), (2, 32000, 4096), (4096, 1, 4096), (1, 50000, 768)])
def test_float32_and_float64_are_read_once(m: int, n: int, k: int, dtype: tw.DType) -> None:
    for stride in ((1, k), (n, 1)):
        a, b = tw.spec(dtype, (m, k)), tw.spec(dtype, (k, n), stride=stride)
        chosen = tw.matmul.explain(a, b, precision="ieee" if dtype is tw.float32 else None, arch="sm_90a").choice
        assert chosen is not None and chosen.family.name == "gemv"


CODE = [(m, major, dtype) for m in (1, 8) for major in ("K", "MN") for dtype in (tw.float32, tw.float64, tw.bfloat16)]


@pytest.mark.parametrize(
    "most", [1, pytest.param(None, marks=pytest.mark.slow)], ids=["the fastest by prediction", "all configurations"]
)
@pytest.mark.parametrize(
    ("m", "major", "dtype"),
    [pytest.param(*c, marks=() if n in (0, 6) else pytest.mark.slow) for n, c in enumerate(CODE)],
)
def test_loads_are_wide_and_nothing_spills(m: int, major: Any, dtype: tw.DType, most: int | None) -> None:
    """And a configuration asks for all vectors of a step before it multiplies the first."""
    problem = problem_of(m, 8192, 8192, major, dtype)
    found = [(c.prediction.us, c) for c in Gemv().candidates(problem, Machine.of(H200)) if c.prediction is not None]
    candidates = [c for _, c in sorted(found, key=lambda pair: pair[0])]
    assert candidates
    for configuration in dict.fromkeys(c.configuration for c in candidates[:most]):
        plan = _plan(problem, configuration)
        d, a = (tw.spec(dtype, (m, 8192, 1), stride=(8192, 1, 0)) for _ in "da")
        b = tw.spec(dtype, (8192, 8192, 1), stride=(8192, 1, 0) if major == "K" else (1, 8192, 0))
        one = problem.accumulator.numpy.type(1)
        launcher = multiply_vectors.numbered(0).configure(min_blocks=1)[1, plan.threads]
        resources = launcher.resources(d, a, b, one, one, plan, arch="sm_90a")
        assert not resources.spills and resources.local_bytes == 0, (configuration, resources)
        code, bits = str(launcher.sass(d, a, b, one, one, plan, arch="sm_90a")), 8 * plan.width * dtype.bytes
        assert code.count(f"LDG.E.{bits}") >= 8
