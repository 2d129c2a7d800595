"""What a whole plan has to be before a kernel is built of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.errors import ScheduleError
from tilewright.schedule.arrays import Array
from tilewright.schedule.caches import Cache, Location
from tilewright.schedule.vectors import refuse_loops
from tilewright.schedule.write_backs import refuse_conflicts

if TYPE_CHECKING:
    from tilewright.schedule.plan import Plan


def validate(plan: Plan, parameters: tuple[Array, ...]) -> None:
    """Raise `ScheduleError` for parameters that are not the plan's arrays, and caches that do not fit the bindings."""
    wanted = set(plan.arguments)
    if set(parameters) != wanted or len(parameters) != len(wanted):
        raise ScheduleError(
            f"the kernel's parameters are ({', '.join(a.name for a in parameters)})",
            help=f"name each of ({', '.join(a.name for a in plan.arguments)}) once",
        )
    names = [array.name for array in plan.arrays]
    for name in names:
        if names.count(name) > 1:
            raise ScheduleError(f"two arrays are called {name}", help="give them names: Array(..., name='...')")
    refuse_loops(plan)
    for cache in plan.caches:
        cache.refuse_nonsense(plan)
        if cache.is_written(plan) and cache.location is not Location.MMA_FRAGMENT:
            refuse_conflicts(plan, cache)
    _refuse_rivals(plan)


def _refuse_rivals(plan: Plan) -> None:
    """Raise `ScheduleError` for two caches of an array that are filled at one place in memory of the same kind."""
    found: dict[tuple[Array, int, Location], Cache] = {}
    for cache in plan.caches:
        key = (cache.array, cache.depth(plan), cache.location)
        if key in found:
            raise ScheduleError(
                f"{cache.name} is filled at {found[key].trigger} and at {cache.trigger}, between which no loop runs",
                help="cache the array once there",
            )
        found[key] = cache
