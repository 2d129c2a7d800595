"""`tensor.to(dtype)`: the elements that the scalar conversion gives, for every pair of floats and any layout."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.conformance.harness import Backend, assert_same_bits, edge_values

import tilewright as tw

FLOATS = (tw.float16, tw.bfloat16, tw.float32, tw.float8_e4m3fn, tw.float8_e5m2)
PAIRS = [pair for pair in itertools.product(FLOATS, FLOATS) if pair[0] is not pair[1]]


@tw.kernel
def both_ways(whole, single, x, dtype: tw.constexpr, layout: tw.constexpr):
    part = (tw.thread_idx.x,)
    fragment = tw.registers(x.dtype, layout)
    tile, out, again = (tw.local_tile(t, (8,), part) for t in (x, whole, single))
    for i in tw.static_range(8):
        fragment[i] = tile[i]
    converted = fragment.to(dtype)
    for i in tw.static_range(8):
        out[i] = converted[i]
        again[i] = fragment[i].to(dtype)


LAYOUTS = (tw.Layout(8), tw.Layout((2, 4), (4, 1)), tw.Layout((2, 2, 2), (1, 8, 2)), tw.Layout((4, 2), (3, 1)))


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.spread(6)
def test_whole_fragments(backend: Backend, source: tw.DType, target: tw.DType, layout: tw.Layout) -> None:
    x = np.random.default_rng(0).choice(edge_values(source), 256)
    out, again = backend.zeros(256, target), backend.zeros(256, target)
    both_ways[1, 32](out, again, backend.put(x), target, layout)
    assert_same_bits(backend.get(out), backend.get(again))
    finite = x[np.isfinite(x.astype(np.float32))]
    assert len(finite) and np.isfinite(backend.get(out).astype(np.float32)).any()
