"""Grouped products on both backends, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import Array, Backend

import tilewright as tw

EXTENTS = {"sim": (150, 72, 40), "cuda": (3000, 1032, 1500)}


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32], ids=["bfloat16", "float32"])
@pytest.mark.spread(2)
def test_ragged_experts_and_their_gradients(backend: Backend, dtype: Any) -> None:
    random = np.random.default_rng(0)
    total, k, n = EXTENTS[backend.name]
    ends = np.array([0, 17, 17, total // 2, total - 5, total + (9 if backend.name == "cuda" else 0)], np.int32)
    held = np.minimum(ends, total)
    x, w, dy = (random.standard_normal(s).astype(dtype) for s in ((total, k), (len(ends), k, n), (total, n)))
    X, W, dY, offsets = map(backend.put, (x, w, dy, ends))
    groups = list(zip([0, *held[:-1]], held, strict=True))
    products = {
        "y": (
            tw.grouped_matmul(X, W, offsets, out_dtype=tw.float32),
            [(x[i:j], w[g]) for g, (i, j) in enumerate(groups)],
        ),
        "dx": (
            tw.grouped_matmul(dY, W.swapaxes(1, 2), offsets, out_dtype=tw.float32),
            [(dy[i:j], w[g].T) for g, (i, j) in enumerate(groups)],
        ),
        "dw": (tw.grouped_matmul(X.T, dY, offsets, out_dtype=tw.float32), [(x[i:j].T, dy[i:j]) for i, j in groups]),
    }
    for name, (result, pairs) in products.items():
        found = backend.get(result)
        for g, (a, b) in enumerate(pairs):
            close_to_product(found[g] if name == "dw" else found[groups[g][0] : groups[g][1]], a, b)


def test_lists(backend: Backend) -> None:
    random = np.random.default_rng(1)
    shapes = [(130, 72, 40), (0, 8, 8), (1, 3, 5), (64, 0, 9), (33, 100, 200)]
    a = [random.standard_normal((m, k)).astype(np.float16) for m, k, _ in shapes]
    b = [random.standard_normal((k, n)).astype(np.float16) for _, k, n in shapes]
    results = tw.grouped_matmul([*map(backend.put, a)], [*map(backend.put, b)], out_dtype=tw.float32)
    for x, y, result in zip(a, b, results, strict=True):
        close_to_product(backend.get(result), x, y)


def close_to_product(found: Array, a: Array, b: Array) -> None:
    bound = np.abs(a).astype(np.float64) @ np.abs(b)
    assert (np.abs(found - a.astype(np.float64) @ b) <= (a.shape[1] / 8 + 16) * 2.0**-23 * bound).all()
