"""Caches that are written back: no two threads or blocks may write back the same element."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine
from tilewright.schedule.caches import Cache, Location, Region
from tilewright.schedule.loop_nest import Loop

if TYPE_CHECKING:
    from tilewright.schedule.plan import Plan

_MOST = 2**18  # differences of threads that are looked at one by one


def refuse_conflicts(plan: Plan, cache: Cache) -> None:
    """Raise `ScheduleError` where the boxes that two threads (two blocks for shared memory) write back overlap.

    Each would write the elements of the other as they were when it read them.
    """
    region = cache.region(plan)
    runners = [
        (binding, loop)
        for binding in plan.bindings
        for loop in binding.loops
        if (cache.location is not Location.SHARED or binding.kind == "BLOCK") and loop.trips != 1
    ]
    loops = [loop for _, loop in runners]
    held = {loop.index for loop in (*cache.varying(plan), *loops)}
    # Threads do not wait for one another: one may be in another turn of the loops around.
    around = [
        loop
        for loop in plan.nest.loops
        if loop.index not in held and loop.trips != 1 and any(mode.factor(loop.index) for mode in region.origin)
    ]
    if _is_apart(region, loops, around) or not _meet(region, loops, around):
        return
    units = ", ".join(sorted({binding.unit.name for binding, _ in runners}))
    raise ScheduleError(
        f"{cache.name} holds a box of {' x '.join(map(str, region.shape))} elements of {cache.array.name} from "
        f"[{', '.join(map(str, region.origin))}], and the boxes that {_others(cache, units)} write back overlap",
        location=next((access.statement.location for access in cache.accesses(plan) if access.is_write), None),
        help="cache at an inner index, or bind the loops so that each has a box of its own",
    )


def _others(cache: Cache, units: str) -> str:
    who = "blocks" if cache.location is Location.SHARED else "threads"
    return f"{who} ({units})" if units else who


def _is_apart(region: Region, loops: list[Loop], around: list[Loop]) -> bool:
    """Whether the boxes of different turns differ for certain: the turns of each loop move the box out of all others.

    In each mode the box and the loops have to be digits of one number: each larger than all smaller ones together. Each
    loop has to be a digit in some mode.
    """
    left = set(loops)
    for mode, shape, step in zip(region.origin, region.shape, region.steps, strict=True):
        here = [loop for loop in (*loops, *around) if mode.factor(loop.index)]
        digits: list[tuple[int, int | None]] = [(step, shape)]
        digits += [(abs(mode.factor(loop.index)) * loop.step, loop.trips) for loop in here]
        if _are_digits(digits):
            left -= set(here)
    return not left


def _are_digits(digits: list[tuple[int, int | None]]) -> bool:
    reached: int | None = 0
    for stride, count in sorted(digits, key=lambda digit: (digit[0], digit[1] is None)):
        if count == 1:
            continue
        if reached is None or stride <= reached:
            return False
        reached = None if count is None else reached + stride * (count - 1)
    return True


def _meet(region: Region, loops: list[Loop], around: list[Loop]) -> bool:
    """Whether boxes of different turns of `loops` have an element in common, found by trying all distances."""
    distances, every = 1, [*loops, *around]
    for loop in every:
        if loop.trips is None:
            return True
        distances *= 2 * loop.trips - 1
    if distances > _MOST:
        return True
    ranges = [range(-(loop.trips or 1) + 1, loop.trips or 1) for loop in every]
    factors = [[_factor(mode, loop) for loop in every] for mode in region.origin]
    for turns in itertools.product(*ranges):
        if any(turns[: len(loops)]) and all(
            _overlap(sum(f * t for f, t in zip(row, turns, strict=True)), shape, step)
            for row, shape, step in zip(factors, region.shape, region.steps, strict=True)
        ):
            return True
    return False


def _factor(mode: Affine, loop: Loop) -> int:
    return mode.factor(loop.index) * loop.step


def _overlap(distance: int, shape: int, step: int) -> bool:
    return abs(distance) <= (shape - 1) * step and distance % step == 0
