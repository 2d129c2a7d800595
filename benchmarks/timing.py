"""Timing for the benchmarks here: `tw.bench.compare` on warm caches, with the figures by the names of the JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tilewright as tw
from tilewright.bench.machine import DATA

Candidate = Callable[[], object]


def interleaved(
    candidates: Mapping[str, Candidate], *, rounds: int = 15, batch_seconds: float = 0.02
) -> dict[str, dict[str, float | bool]]:
    """Return the median seconds of one call of each candidate, and the spread of its batches."""
    found = tw.bench.compare(candidates, rounds=rounds, batch_ms=batch_seconds * 1000, flush=False)
    return {
        name: {
            "seconds": each.median / 1000,
            "low": min(each.milliseconds) / 1000,
            "high": max(each.milliseconds) / 1000,
            "calls_per_batch": each.calls,
            "batches": rounds,
            "captured": each.captured,
        }
        for name, each in found.items()
    }


def machine() -> dict[str, Any]:
    """Return what the figures depend on: GPU, driver, clocks, versions, date, data."""
    return {**tw.bench.machine(), "data": DATA}
