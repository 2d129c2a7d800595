"""Products with packed weights on both backends: exact on small whole numbers, and close to float64 on normal ones."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import Backend

import tilewright as tw
from tilewright.kernels import dispatch
from tilewright.kernels import matmul as entry

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


SHAPES = [(1, 8192, 8192), (16, 1000, 4096), (60, 2056, 1160), (300, 520, 776)]


@pytest.mark.parametrize(("bits", "group"), [(4, 128), (4, 32), (8, -1), (8, 64)])
def test_configurations_of_warpgroups(backend: Backend, monkeypatch: pytest.MonkeyPatch, bits: int, group: int) -> None:
    """All legal ones on a GPU, to the bit; `tests/unit/kernels/test_weight_warpgroups.py` has the simulator."""
    if backend.name == "sim":
        pytest.skip("for GPUs")
    random = np.random.default_rng(bits + group)
    dtype = np.float16 if bits == 4 else ml_dtypes.bfloat16
    for m, n, k in SHAPES:
        codes = random.integers(0, 2**bits, (k, n)).astype(np.uint8)
        groups = (1 if group == -1 else -(-k // group), n)
        scales = random.choice([0.5, 1.0, 2.0], groups).astype(np.float16)
        zeros = random.integers(0, 2**bits + 1, groups).astype(np.int16)
        weights = tw.quantized(*map(backend.put, (codes, scales, zeros)), bits=bits, group=group)
        host = random.integers(-2, 3, (m, k)).astype(dtype)
        x, rows = backend.put(host), k if group == -1 else group
        full = (codes - np.repeat(zeros, rows, 0)[:k].astype(np.float64)) * np.repeat(scales, rows, 0)[:k]
        exact = host.astype(np.float64) @ full
        for out in (tw.float32, None):
            found = tw.matmul.explain(x, weights, out_dtype=out).candidates
            legal = [c for c in found if c.family.name == "weight warpgroups" and c.rejection is None]
            if not legal:
                pytest.skip("needs sm_90a")
            for chosen in legal:
                monkeypatch.setattr(dispatch, "fastest", lambda *_, c=chosen: c)
                entry._signature.cache_clear()
                result = backend.get(tw.matmul(x, weights, out_dtype=out))
                with np.errstate(over="ignore"):
                    assert np.array_equal(result, exact.astype(result.dtype)), (m, n, k, str(chosen.configuration))
    monkeypatch.undo()
    entry._signature.cache_clear()
