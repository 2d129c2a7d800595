"""Arrays of a GPU in the simulator: addresses are those of the GPU, and what is written there comes back."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.harness import Gpu

import tilewright as tw

pytestmark = pytest.mark.gpu


@tw.kernel
def doubled(addresses, sizes):
    g = tw.block_idx.x
    x = tw.make_tensor(tw.pointer(addresses[g], tw.float32), tw.Layout((sizes[g],), (1,)))
    for i in range(tw.thread_idx.x, sizes[g], 32):
        x[i] = x[i] * 2


@pytest.mark.parametrize("where", ["cuda", "sim"])
def test_arrays_of_a_gpu_by_their_addresses(monkeypatch, where):
    if where == "sim":
        monkeypatch.setenv("TILEWRIGHT_BACKEND", "sim")
    backend = Gpu()
    host = [np.arange(n, dtype=np.float32) for n in (5, 64, 1000)]
    given = [backend.put(x) for x in host]
    kernel = tw.kernel(doubled.__wrapped__)
    kernel[3, 32](tw.addresses(given), backend.put(np.array([x.size for x in host], np.int32)))
    for array, x in zip(given, host, strict=True):
        np.testing.assert_array_equal(backend.get(array), x * 2)
