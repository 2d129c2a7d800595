"""The attention of examples/hopper on both backends, against float64: rows and keys that no tile divides, shared heads."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import Backend, Gpu

from tilewright.demo.examples import examples_folder, load_example

MODULE = load_example(examples_folder() / "hopper" / "10_attention.py")
BF16 = np.dtype(ml_dtypes.bfloat16)


def check(backend: Backend, heads: int, shared: int, tokens: int, keys: int, causal: bool, **more: Any) -> None:
    """Compare results and sums of exponentials in two batches."""
    random, dtype, head = np.random.default_rng(0), more.pop("dtype", BF16), more.pop("head", 128)
    shapes = ((2, h, n, head) for h, n in ((heads, tokens), (shared, keys), (shared, keys)))
    q, k, v = (random.standard_normal(shape, dtype=np.float32).astype(dtype) for shape in shapes)
    out, lse = backend.put(np.full_like(q, np.nan)), backend.put(np.full((2, heads, tokens), np.nan, np.float32))
    MODULE.launch(out, *map(backend.put, (q, k, v)), causal, lse, **more)
    expected, expected_lse = MODULE.reference(q, k, v, causal, np.arange(tokens))
    # Weights are rounded to the element type, and the result is a mean of rows of V by them, rounded once more.
    limit = 2.0**-7 * np.abs(v.astype(np.float64)).max()
    assert (np.abs(backend.get(out).astype(np.float64) - expected) <= limit).all()
    np.testing.assert_allclose(backend.get(lse), expected_lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("heads", "shared", "tokens", "keys", "causal", "dtype"),
    [
        (1, 1, 1, 1, False, np.float16),
        (2, 1, 129, 50, False, np.float16),
        (2, 1, 20, 16, True, BF16),  # the first rows see no key
        (2, 1, 40, 100, True, BF16),
    ],
)
@pytest.mark.spread(3)
def test_every_row(backend: Backend, heads: int, shared: int, tokens: int, keys: int, causal: bool, dtype: Any) -> None:
    """Small tiles of keys: many steps, and a ring that goes round."""
    check(backend, heads, shared, tokens, keys, causal, dtype=dtype, blocks=3, keys_of_tile=16)


@pytest.mark.slow
@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("tokens", "keys"), [(400, 700), (700, 400)])
def test_tiles_as_they_are_used(backend: Backend, head: int, causal: bool, tokens: int, keys: int) -> None:
    """Tiles of all plans; three tiles for one of the blocks, which fills each stage of Q twice."""
    check(backend, 2, 1, tokens, keys, causal, head=head, blocks=3)


@pytest.mark.gpu
@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("tokens", "keys"), [(1000, 1000), (4096, 4096), (3000, 5001)])
def test_many_tiles(head: int, causal: bool, tokens: int, keys: int) -> None:
    """Every multiprocessor has some, and takes turns: too much for the simulator."""
    pytest.importorskip("torch")
    check(Gpu(), 8, 2, tokens, keys, causal, head=head)
