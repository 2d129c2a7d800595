"""Loops that run in parallel: no two of their turns may depend on one another."""

from __future__ import annotations

from tilewright.schedule.binding import Binding
from tilewright.schedule.loop_nest import LoopNest


def refuse_crossings(nest: LoopNest, bindings: tuple[Binding, ...]) -> None:
    """Raise `ScheduleError` where two threads or blocks would access one element, and one of them writes."""
