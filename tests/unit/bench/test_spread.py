"""Quantiles against NumPy, and the coverage of the interval against experiment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.bench.timing import median_interval, quantile

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


@given(VALUES, st.floats(0, 1))
def test_quantile_is_numpys(values: list[float], q: float) -> None:
    assert quantile(values, q) == pytest.approx(float(np.quantile(values, q)), rel=1e-9, abs=1e-9)


@given(VALUES)
def test_interval_encloses_the_median(values: list[float]) -> None:
    found = median_interval(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert found.confidence >= 0.95 or (found.low, found.high) == (min(values), max(values))


@pytest.mark.parametrize("n", [5, 8, 15, 40])
def test_coverage_is_what_it_says(n: int) -> None:
    random = np.random.default_rng(n)
    inside = 0
    trials = 4000
    for sample in random.exponential(size=(trials, n)):
        found = median_interval(sample.tolist())
        inside += found.low <= np.log(2) <= found.high
    assert inside / trials == pytest.approx(found.confidence, abs=0.015)


def test_nothing_has_no_quantile() -> None:
    with pytest.raises(tw.ArgumentError):
        quantile([], 0.5)
