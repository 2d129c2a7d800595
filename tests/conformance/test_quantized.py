"""Products with packed weights on both backends: exact on small whole numbers, and close to float64 on normal ones."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import Backend

import tilewright as tw

EXTENTS = {
    "sim": [(3, 70, 264), (21, 40, 160)],
    "cuda": [(1, 4096, 4096), (16, 1000, 8192), (37, 2064, 1000), (300, 520, 776)],
}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize(("bits", "group"), [(4, 128), (4, 32), (8, -1), (8, 64)])
@pytest.mark.spread(4)
def test_products_with_packed_weights(backend: Backend, dtype: Any, bits: int, group: int) -> None:
    random = np.random.default_rng(bits + group)
    for m, n, k in EXTENTS[backend.name]:
        codes = random.integers(0, 2**bits, (k, n)).astype(np.uint8)
        groups = (1 if group == -1 else -(-k // group), n)
        scales = random.uniform(0.5, 1.5, groups).astype(np.float16)
        zeros = random.integers(0, 2**bits + 1, groups).astype(np.int16)
        weights = tw.quantized(*map(backend.put, (codes, scales, zeros)), bits=bits, group=group)
        x = random.standard_normal((m, k)).astype(dtype)
        rows = k if group == -1 else group
        full = (codes - np.repeat(zeros, rows, 0)[:k].astype(np.float64)) * np.repeat(scales, rows, 0)[:k]
        found = backend.get(tw.matmul(backend.put(x), weights, out_dtype=tw.float32))
        bound = np.abs(x).astype(np.float64) @ np.abs(full)
        assert (np.abs(found - x.astype(np.float64) @ full) <= (k / 8 + 64) * 2.0**-23 * bound).all(), (m, n, k)
        again = backend.get(tw.matmul(backend.put(x), weights, out_dtype=tw.float32))
        assert np.array_equal(found, again)
