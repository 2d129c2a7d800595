"""How much a call does, counted and not timed: the figure is the same however busy the machine is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def calls_of(run: Callable[[], object]) -> int:
    """Return how many functions, of Python and of C, a warm run calls: the first run, which also traces, does not count."""
    run()
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls
