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


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "place"),
    [
        (1, 40, 300, np.float16, 0),
        (8, 16, 128, ml_dtypes.bfloat16, 1),
        (13, 70, 1000, np.float16, 2),
        (3, 33, 24, ml_dtypes.bfloat16, 3),
    ],
)
def test_products_of_few_rows(monkeypatch: pytest.MonkeyPatch, m: int, n: int, k: int, dtype: Any, place: int) -> None:
    """With addends, an epilogue, and rows whose last vectors are cut off."""
    room = whole(1, (n, -(-k // 8) * 8 + 8), dtype)
    a, b = whole(0, (m, -(-k // 8) * 8), dtype)[:, :k], room[:, :k].T
    bias, gain = whole(2, (n,), np.float32), whole(3, (m, 1), np.float32)
    more: Any = {"bias": bias, "epilogue": lambda acc: acc * gain, "out_dtype": tw.float32}
    found = tw.matmul.explain(a, b, **more, arch="sm_90a")
    legal = [c for c in found.candidates if c.family.name == "streaming" and c.rejection is None]
    chosen = legal[place % len(legal)]
    monkeypatch.setattr(dispatch, "fastest", lambda *_: chosen)
    entry._signature.cache_clear()
    result = tw.matmul(a, b, **more)
    entry._signature.cache_clear()
    assert np.array_equal(result, (a.astype(np.float64) @ b.astype(np.float64) + bias) * gain)


def problem_of(m: int, n: int = 8190, k: int = 8184, major: Any = "K") -> Problem:
    x = Operand(tw.bfloat16, "K", 16)
    b, d = Operand(tw.bfloat16, major, 16), Operand(tw.bfloat16, "MN", 4)
    return Problem(m, n, k, 1, x, b, d, tw.bfloat16, tw.float32)


def test_it_is_for_few_rows_and_matrices_along_k() -> None:
    assert Streaming().configurations(problem_of(16), H200)
    assert not Streaming().configurations(problem_of(17), H200)
    assert not Streaming().configurations(problem_of(1, major="MN"), H200)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
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
