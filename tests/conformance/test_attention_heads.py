"""Attention by warpgroups of heads that are filled up, and of V's that are shorter, on both backends, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import Backend, Gpu
from tests.conformance.test_attention import PLACES, arrays, assert_close, known, normal, view_of
from tests.conformance.test_small_attention import check_sequences

import tilewright as tw
from tilewright.kernels.attention import by_warpgroups, gradients_on_hopper, read_problem

BF16 = np.dtype(ml_dtypes.bfloat16)
SLOW = pytest.mark.slow

# Batch, heads, key heads, tokens, keys, elements of a head, and of one of V.
CASES = [
    pytest.param((1, 2, 1, 70, 90, 192, 128), {"causal": True}, id="192 and 128"),
    pytest.param((1, 1, 1, 140, 50, 192, 192), {"causal": True}, id="192", marks=SLOW),
    pytest.param((1, 2, 2, 20, 100, 160, 88), {"window": (30, 1)}, id="160 and 88", marks=SLOW),
    pytest.param((1, 1, 1, 50, 60, 80, 80), {}, id="80"),
    pytest.param((2, 2, 1, 30, 40, 104, 48), {"causal": True}, id="104 and 48", marks=SLOW),
    pytest.param((1, 1, 1, 40, 70, 256, 192), {}, id="256 and 192", marks=SLOW),
    pytest.param((1, 1, 1, 70, 20, 256, 128), {"causal": True}, id="256 and 128", marks=SLOW),
    pytest.param((1, 2, 1, 30, 50, 192, 64), {}, id="192 and 64", marks=SLOW),
    pytest.param((1, 1, 1, 70, 66, 112, 128), {"window": (9, 3)}, id="112 and 128", marks=SLOW),
]


def poisoned(*arrays: Any) -> list[Any]:
    """Return arrays for results."""
    return [np.full_like(x, np.nan) for x in arrays]


@pytest.mark.parametrize("parts", [1, pytest.param(7, marks=SLOW)])
@pytest.mark.parametrize(("case", "options"), CASES)
@pytest.mark.filterwarnings("ignore:needless wait")
def test_results(backend: Backend, case: tuple[int, ...], options: dict[str, Any], parts: int) -> None:
    q, k, v, grad = arrays(case, BF16)
    expected, placed = known(q, k, v, **options), [backend.put(x) for x in (q, k, v)]
    out, lse = (backend.put(x) for x in poisoned(grad, grad[..., 0].astype(np.float32)))
    problem = read_problem("attention", *placed, options.get("causal", False), options.get("window"), None, PLACES)
    by_warpgroups(problem, [view_of(x) for x in (out, *placed)], view_of(lse), blocks=3, keys=16, parts=parts)
    assert_close(backend.get(out), expected.out, BF16)
    assert_close(np.nan_to_num(backend.get(lse), neginf=-1), np.nan_to_num(expected.lse, neginf=-1), np.float32)


@pytest.mark.parametrize("ordered", [False, pytest.param(True, marks=SLOW)])
@pytest.mark.parametrize(("case", "options"), CASES)
@pytest.mark.filterwarnings("ignore:needless wait")
def test_gradients(backend: Backend, case: tuple[int, ...], options: dict[str, Any], ordered: bool) -> None:
    q, k, v, grad = arrays(case, BF16)
    expected, placed = known(q, k, v, grad, **options), [backend.put(x) for x in (q, k, v)]
    problem = read_problem("attention", *placed, options.get("causal", False), options.get("window"), None, PLACES)
    made = [backend.put(x) for x in poisoned(q, k, v)]
    given = [backend.put(x) for x in (grad, expected.out.astype(BF16), expected.lse.astype(np.float32))]
    gradients_on_hopper(problem, [view_of(x) for x in made], (*map(view_of, given), None), ordered)
    for ours, of_formula in zip(made, expected.gradients, strict=True):
        assert_close(backend.get(ours), of_formula, BF16)


@pytest.mark.parametrize(
    "heads", [(192, 128), pytest.param((192, 192), marks=SLOW), pytest.param((96, 96), marks=SLOW)]
)
@pytest.mark.filterwarnings("ignore:needless wait")
def test_sequences(backend: Backend, heads: tuple[int, int]) -> None:
    """What is behind a sequence's keys is another one's, and infinite."""
    placed = normal((100, 2, heads[0]), (100, 1, heads[0]), (100, 1, heads[1]), dtype=BF16)
    placed[2][60:] = np.inf
    check_sequences(backend, [0, 3, 3, 60, 100], placed, {"causal": True}, blocks=2, keys=16, parts=1)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [(192, 128), (192, 192), (160, 160), (96, 96), (80, 64), (256, 128)], ids=str)
def test_as_they_are_chosen(heads: tuple[int, int], causal: bool) -> None:
    """Few tokens and many, and one for many keys."""
    backend = Gpu()
    for batch, count, tokens, keys in ((2, 3, 700, 700), (1, 2, 2000, 2000), (4, 4, 1, 3000), (1, 2, 300, 40)):
        (long, short), of_keys = heads, (batch, count, keys)
        q, k, v, grad = normal(
            (batch, count, tokens, long), (*of_keys, long), (*of_keys, short), (batch, count, tokens, short), dtype=BF16
        )
        expected, placed = known(q, k, v, grad, causal=causal), [backend.put(x) for x in (q, k, v)]
        out, lse = tw.attention(*placed, causal=causal, statistics=True)
        assert_close(backend.get(out), expected.out, BF16)
        found = tw.attention_backward(backend.put(grad), *placed, out, lse, causal=causal)
        for ours, of_formula in zip(found, expected.gradients, strict=True):
            assert_close(backend.get(ours), of_formula, BF16, slack=8)
