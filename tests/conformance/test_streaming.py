"""Products of few rows by every configuration of the streaming family, on both backends, against float64."""

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
    "sim": [(5, 40, 264), (16, 33, 136)],
    "cuda": [(1, 4096, 4096), (7, 1000, 14336), (8, 576, 7168), (16, 2063, 1016)],
}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.spread(2)
def test_every_configuration(backend: Backend, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    for m, n, k in EXTENTS[backend.name]:
        a, b = random.standard_normal((m, k)).astype(dtype), random.standard_normal((n, k)).astype(dtype)
        bound = np.abs(a).astype(np.float64) @ np.abs(b.T)
        exact = a.astype(np.float64) @ b.T.astype(np.float64)
        x, y = backend.put(a), backend.put(b).T
        found = tw.matmul.explain(x, y, out_dtype=tw.float32)
        legal = [c for c in found.candidates if c.family.name == "streaming" and c.rejection is None]
        assert len(legal) >= 3
        for chosen in legal:
            with monkeypatch.context() as patched:
                patched.setattr(dispatch, "fastest", lambda *_, chosen=chosen: chosen)
                entry._signature.cache_clear()
                results = [backend.get(tw.matmul(x, y, out_dtype=tw.float32)) for _ in range(2)]
            entry._signature.cache_clear()
            assert (np.abs(results[0] - exact) <= (k / 8 + 64) * 2.0**-23 * bound).all(), (
                m,
                n,
                k,
                chosen.configuration,
            )
            assert np.array_equal(*results)
