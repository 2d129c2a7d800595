"""Batches of tiny products by every configuration of their family, on both backends, against float64."""

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
    "sim": [(7, 9, 6, 20)],
    "cuda": [(10001, 4, 4, 4), (4096, 16, 16, 64), (300, 49, 49, 32), (64, 49, 32, 49), (77, 64, 64, 128)],
}
BITS = {np.float64: 52, np.float32: 23}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64], ids=lambda x: x.__name__)
@pytest.mark.parametrize("along_k", [False, True], ids=["along N", "along K"])
@pytest.mark.spread(4)
def test_every_configuration(backend: Backend, dtype: Any, along_k: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    out_dtype = tw.float64 if dtype is np.float64 else tw.float32
    for batch, m, n, k in EXTENTS[backend.name]:
        a, b = (random.standard_normal((batch, rows, k)).astype(dtype) for rows in (m, n))
        wide = a.astype(np.float64), b.astype(np.float64).swapaxes(1, 2)
        exact, bound = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
        x, y = backend.put(a), backend.put(b if along_k else np.ascontiguousarray(b.swapaxes(1, 2)))
        y = y.swapaxes(1, 2) if along_k else y
        found = tw.matmul.explain(x, y, out_dtype=out_dtype)
        legal = [c for c in found.candidates if c.family.name == "tiny" and c.rejection is None]
        assert len(legal) >= 2
        for chosen in legal:
            with monkeypatch.context() as patched:
                patched.setattr(dispatch, "fastest", lambda *_, chosen=chosen: chosen)
                entry._signature.cache_clear()
                result = backend.get(tw.matmul(x, y, out_dtype=out_dtype))
            entry._signature.cache_clear()
            error = np.abs(result - exact)
            assert (error <= (k + 1) * 2.0 ** -BITS.get(dtype, 23) * bound).all(), (m, n, k, chosen.configuration)
