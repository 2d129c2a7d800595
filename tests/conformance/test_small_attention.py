"""Attention by small blocks of one consumer, of which a multiprocessor holds three, on both backends, against float64."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import Array, Backend, Gpu
from tests.conformance.test_attention import PLACES, assert_close, known, normal, view_of

import tilewright as tw
from tilewright.kernels.attention import by_warpgroups, read_problem
from tilewright.kernels.operands import read

BF16 = np.dtype(ml_dtypes.bfloat16)
SLOW = pytest.mark.slow

# Batch, heads, key heads, tokens, keys, elements of a head.
CASES = [
    pytest.param((1, 2, 1, 70, 150, 64), BF16, {"causal": True}, id="causal"),
    pytest.param((2, 2, 2, 66, 77, 48), np.float16, {}, id="a tile of keys", marks=SLOW),
    pytest.param((1, 1, 1, 200, 90, 56), BF16, {"window": (30, 20)}, id="window", marks=SLOW),
    pytest.param((1, 1, 1, 150, 40, 64), BF16, {"causal": True}, id="rows without keys", marks=SLOW),
    pytest.param((3, 4, 4, 5, 420, 64), BF16, {}, id="a ring that goes round", marks=SLOW),
]


@pytest.mark.parametrize(("case", "dtype", "options"), CASES)
@pytest.mark.filterwarnings("ignore:needless wait")
def test_every_row(backend: Backend, case: tuple[int, ...], dtype: Any, options: dict[str, Any]) -> None:
    batch, heads, shared, tokens, keys, head = case
    q, k, v = normal((batch, heads, tokens, head), *[(batch, shared, keys, head)] * 2, dtype=dtype)
    expected, placed = known(q, k, v, **options), [backend.put(x) for x in (q, k, v)]
    out, lse = backend.put(np.full_like(q, np.nan)), backend.put(np.full(q.shape[:3], np.nan, np.float32))
    problem = read_problem("attention", *placed, options.get("causal", False), options.get("window"), None, PLACES)
    by_warpgroups(problem, [view_of(x) for x in (out, *placed)], view_of(lse), blocks=1, parts=1)
    assert_close(backend.get(out), expected.out, dtype)
    assert_close(np.nan_to_num(backend.get(lse), neginf=-1), np.nan_to_num(expected.lse, neginf=-1), np.float32)


def check_sequences(
    backend: Backend, starts: list[int], arrays: list[Array], options: dict[str, Any], **how: int
) -> None:
    """Compare the results of sequences of which one follows another, but for a last one whose values are not finite."""
    q, _, v = arrays
    placed = [backend.put(x) for x in arrays]
    out, at = backend.put(np.full((*q.shape[:2], v.shape[2]), np.nan, BF16)), backend.put(np.array(starts, np.int32))
    problem = read_problem(
        "attention", *placed, options.get("causal", False), options.get("window"), None, (at, at, None)
    )
    views = [problem.heads(x) for x in (read("attention", "out", out), problem.q, problem.k, problem.v)]
    by_warpgroups(problem, views, None, **how)
    found, rest = backend.get(out), starts if np.isfinite(v[-1].astype(np.float32)).all() else starts[:-1]
    for begin, end in itertools.pairwise(rest):
        one = known(*(x[begin:end].swapaxes(0, 1)[None] for x in arrays), **options)
        assert_close(found[begin:end].swapaxes(0, 1)[None], one.out, BF16)


@pytest.mark.parametrize(
    ("starts", "options"),
    [([0, 5, 5, 75, 140], {"causal": True}), pytest.param([0, 64, 128, 131, 260], {"window": (20, 3)}, marks=SLOW)],
)
@pytest.mark.filterwarnings("ignore:needless wait")
def test_sequences_in_one_array(backend: Backend, starts: list[int], options: dict[str, Any]) -> None:
    arrays = normal((starts[-1], 2, 64), *[(starts[-1], 1, 64)] * 2, dtype=BF16)
    check_sequences(backend, starts, arrays, options, blocks=1, parts=1)


@pytest.mark.filterwarnings("ignore:needless wait")
def test_numbers_of_keys(backend: Backend) -> None:
    """Keys and values behind a batch's number may be NaN."""
    lengths = np.array([37, 100, 0])
    q, k, v = normal((3, 1, 70, 64), *[(3, 1, 100, 64)] * 2, dtype=BF16)
    for n, length in enumerate(lengths):
        k[n, :, length:], v[n, :, length:] = np.nan, np.nan
    placed, out = [backend.put(x) for x in (q, k, v)], backend.put(np.full_like(q, np.nan))
    problem = read_problem("attention", *placed, False, None, None, (None, None, backend.put(lengths)))
    by_warpgroups(problem, [view_of(x) for x in (out, *placed)], None, blocks=1, parts=1)
    for n, length in enumerate(lengths):
        one = known(q[n : n + 1], k[n : n + 1, :, :length], v[n : n + 1, :, :length])
        assert_close(backend.get(out)[n : n + 1], one.out, BF16)


@pytest.mark.parametrize(
    ("starts", "options", "parts"),
    [
        ([0, 40, 40, 170], {"causal": True}, 12),
        pytest.param([0, 3, 90], {"window": (20, 3)}, 4, marks=SLOW),
        pytest.param([0, 1, 2, 130], {}, 12, marks=SLOW),
    ],
)
@pytest.mark.filterwarnings("ignore:needless wait")
def test_parts_of_sequences(backend: Backend, starts: list[int], options: dict[str, Any], parts: int) -> None:
    """Tiles that see fewer tiles of keys than there are parts: the rest of them has no keys, and must clear its own."""
    arrays = normal(*[(starts[-1], 1, 64)] * 3, dtype=BF16)
    check_sequences(backend, starts, arrays, options, blocks=99, keys=16, parts=parts)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tokens", [1, 16, 17, 32, 33, 50, 64, 65, 100, 197, 256, 700, 1024, 1025])
def test_lengths_of_sequences(tokens: int, causal: bool) -> None:
    """Every kernel that is chosen by the number of tokens, with many heads and few, and in one array."""
    backend = Gpu()
    for head, heads, batch in ((64, 5, 40), (64, 2, 1), (128, 3, 30), (32, 2, 9), (256, 1, 20)):
        q, k, v = normal(*[(batch, heads, tokens, head)] * 3, dtype=BF16)
        placed = [backend.put(x) for x in (q, k, v)]
        expected = known(q, k, v, causal=causal).out
        assert_close(backend.get(tw.attention(*placed, causal=causal)), expected, BF16)
        rows = [backend.put(np.ascontiguousarray(x.swapaxes(1, 2)).reshape(-1, heads, head)) for x in (q, k, v)]
        at = backend.put(np.arange(batch + 1, dtype=np.int32) * tokens)
        found = backend.get(tw.attention(*rows, causal=causal, offsets=at))
        assert_close(found.reshape(batch, tokens, heads, head).swapaxes(1, 2), expected, BF16)
