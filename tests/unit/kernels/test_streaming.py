"""The streaming family: products of few rows, every configuration, and no spills."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels import dispatch
from tilewright.kernels import matmul as entry
from tilewright.kernels._streaming_kernel import stream_matrix
from tilewright.kernels.problem import Operand, Problem
from tilewright.kernels.streaming import Streaming, _plan

H200 = Arch.parse("sm_90a")


def whole(seed: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


def padded(seed: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Return rows that begin at multiples of 16 bytes, with NaN behind each."""
    room = np.full((*shape[:-1], -(-shape[-1] // 8) * 8 + 8), np.nan, dtype)
    room[..., : shape[-1]] = whole(seed, shape, dtype)
    return room[..., : shape[-1]]


def multiplied(monkeypatch: pytest.MonkeyPatch, place: int, *arrays: Any, **options: Any) -> Any:
    """Return a product by the streaming configuration at a place among those that can run."""
    found = tw.matmul.explain(*arrays, **options, arch="sm_90a")
    legal = [c for c in found.candidates if c.family.name == "streaming" and c.rejection is None]
    chosen = legal[place % len(legal)]
    with monkeypatch.context() as patched:
        patched.setattr(dispatch, "fastest", lambda *_: chosen)
        entry._signature.cache_clear()
        result = tw.matmul(*arrays, **options)
    entry._signature.cache_clear()
    return result


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "place"),
    [
        (1, 40, 300, np.float16, 0),
        (8, 16, 128, ml_dtypes.bfloat16, 1),
        (13, 70, 1000, np.float16, 2),
        (3, 33, 24, ml_dtypes.bfloat16, 3),
    ],
)
@pytest.mark.spread(2)
def test_products_of_few_rows(monkeypatch: pytest.MonkeyPatch, m: int, n: int, k: int, dtype: Any, place: int) -> None:
    """With addends, an epilogue, and NaN behind rows whose last vectors are cut off."""
    a, b = padded(0, (m, k), dtype), padded(1, (n, k), dtype).T
    bias, gain = whole(2, (n,), np.float32), whole(3, (m, 1), np.float32)
    more: Any = {"bias": bias, "epilogue": lambda acc: acc * gain, "out_dtype": tw.float32}
    result = multiplied(monkeypatch, place, a, b, **more)
    assert np.array_equal(result, (a.astype(np.float64) @ b.astype(np.float64) + bias) * gain)


@pytest.mark.parametrize("shape", [(2, 5, 20, 40), (1, 9, 17, 8), (3, 2, 24, 0)], ids=str)
def test_batches_addends_and_results_that_lie_anywhere(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int, int]
) -> None:
    batch, m, n, k = shape
    a, b = padded(0, (batch, m, k), np.float16), padded(1, (batch, n, k), np.float16).swapaxes(1, 2)
    c = whole(2, (batch, m, n), np.float32)
    room = np.full((batch, m, 2 * n), np.nan, np.float32)
    found = multiplied(monkeypatch, 1, a, b, c=c, alpha=2, beta=-1, out=room[:, :, ::2])
    assert np.array_equal(found, 2 * (a.astype(np.float64) @ b.astype(np.float64)) - c)
    assert np.isnan(room[:, :, 1::2]).all()


def test_numbers_that_are_not_finite_stay_in_their_row_and_column(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = padded(0, (11, 140), np.float16), padded(1, (21, 140), np.float16).T
    a[3, 139], a[10, 0], b[7, 20] = np.nan, np.inf, np.nan
    found = multiplied(monkeypatch, 0, a, b, out_dtype=tw.float32)
    with np.errstate(invalid="ignore"):
        expected = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(found, expected, equal_nan=True)


def problem_of(m: int, n: int = 8190, k: int = 8184, major: Any = "K") -> Problem:
    x = Operand(tw.bfloat16, "K", 16)
    b, d = Operand(tw.bfloat16, major, 16), Operand(tw.bfloat16, "MN", 4)
    return Problem(m, n, k, 1, x, b, d, tw.bfloat16, tw.float32)


def test_it_is_for_few_rows_and_matrices_along_k() -> None:
    assert Streaming().configurations(problem_of(16), H200)
    assert not Streaming().configurations(problem_of(17), H200)
    assert not Streaming().configurations(problem_of(1, major="MN"), H200)
    early = Arch.parse("sm_75")
    for configuration in Streaming().configurations(problem_of(1), early):
        rejection = Streaming().resources(problem_of(1), configuration, early).rejection
        assert rejection == "sm_75 has no matrix instruction of 16 x 8 x 16 for bfloat16"


def test_on_hopper_a_family_that_was_measured_is_chosen() -> None:
    for m, n, k in ((1, 576, 7168), (8, 16, 2048), (16, 8192, 8192), (1, 64, 256)):
        a, b = tw.spec(tw.bfloat16, (m, k)), tw.spec(tw.bfloat16, (k, n), stride=(1, k))
        found = tw.matmul.explain(a, b, arch="sm_90a")
        assert any(c.family.name == "streaming" and c.prediction for c in found.candidates)
        assert found.choice is not None and found.choice.family.name == "hopper"


@pytest.mark.parametrize("arch", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90a"])
@pytest.mark.parametrize("m", [8, pytest.param(16, marks=pytest.mark.slow)])
def test_nothing_spills(arch: str, m: int) -> None:
    problem, target = problem_of(m), Arch.parse(arch)
    for configuration in Streaming().configurations(problem, target):
        if Streaming().resources(problem, configuration, target).rejection is None:
            plan = _plan(problem, configuration)
            d, x, b = (
                tw.spec(tw.bfloat16, (rows, columns, 1), stride=(columns, 1, 0))
                for rows, columns in ((m, 8190), (m, 8184), (8190, 8184))
            )
            one = np.float32(1)
            launcher = stream_matrix.numbered(0).configure(min_blocks=1)[1, plan.threads]
            resources = launcher.resources(d, x, b, one, one, plan, arch=arch)
            assert not resources.spills and resources.local_bytes == 0, (configuration, resources)
