"""How often the slow tests repeat: in full by default, a fraction of it where TILEWRIGHT_SLOW_FACTOR says so."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest

FACTOR = float(os.environ.get("TILEWRIGHT_SLOW_FACTOR") or 1)
if not (math.isfinite(FACTOR) and FACTOR > 0):
    raise pytest.UsageError(f"TILEWRIGHT_SLOW_FACTOR is a number above 0, got {FACTOR}")


def scaled(count: int) -> int:
    """Return the repetitions of a slow test that has `count` in full; at least one."""
    return max(1, round(count * FACTOR))


def slow(amount: float) -> Any:
    """Return a parameter of a slow test: a number of repetitions, or of seconds, times the factor."""
    return pytest.param(scaled(amount) if isinstance(amount, int) else amount * FACTOR, marks=pytest.mark.slow)
