"""Dependences: which accesses of the same element keep their order."""

from __future__ import annotations

from tilewright.schedule.loop_nest import LoopNest


def refuse_violations(before: LoopNest, after: LoopNest, what: str) -> None:
    """Raise `ScheduleError` where two accesses of an element, one of which writes, would change places.

    `what` names the transform. Turns of one reduction may change places with each other.
    """
