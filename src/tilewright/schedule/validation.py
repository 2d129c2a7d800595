"""What a whole plan has to be before a kernel is built of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.errors import ScheduleError
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Cache, Location
from tilewright.schedule.temporaries import refuse_forgotten, refuse_unwritten
from tilewright.schedule.tensorization import refuse_repeated_operations
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
    refuse_forgotten(plan)
    _refuse_fragments(plan)
    refuse_unwritten(plan)


def _refuse_fragments(plan: Plan) -> None:
    """Raise `ScheduleError` for fragments without instructions, or instructions that the bindings do not fit."""
    tile = plan.tensorization
    kept = [cache for cache in plan.caches if cache.location is Location.MMA_FRAGMENT]
    if tile is None:
        if kept:
            raise ScheduleError(
                f"{kept[0].name} lives in fragments of matrix instructions, and nothing is tensorized",
                help="location=Location.PRIVATE keeps elements in the registers of each thread",
            )
        return
    for binding in plan.bindings:
        if binding.kind == "THREAD":
            raise ScheduleError(
                f"{binding.unit.name} is bound in a plan that is tensorized: a whole warp runs each tile",
                help="bind to WARP_X or WARP_Y, which count warps",
            )
    if set(plan.serial[-3:]) != set(tile.indices):
        raise ScheduleError(
            f"the loops of the tile, ({', '.join(map(str, tile.indices))}), have been bound since it was tensorized",
            help="bind loops outside of the tile",
        )
    operands = (tile.a.array, tile.b.array, tile.c.array)
    for array in operands:
        if array.role is Role.TEMP and not any(cache.array is array for cache in plan.caches):
            raise ScheduleError(
                f"{array.name} is TEMP and without a cache lives in the registers of each thread; a warp multiplies it "
                "whole",
                help=f"plan.cache({array.name}, ..., location=Location.MMA_FRAGMENT), or SHARED",
            )
    for cache in plan.caches:
        inside = cache.inside & set(tile.indices)
        if inside != set(tile.indices) and (inside or cache.array in operands):
            raise ScheduleError(f"{cache.name} is filled inside of the tile", help="give an index outside of its loops")
        if cache.array not in operands:
            continue
        if cache.location is Location.PRIVATE:
            raise ScheduleError(
                f"{cache.name} lives in the registers of each thread, and a warp multiplies {cache.array.name} whole",
                help="cache it in MMA_FRAGMENT or SHARED",
            )
        if cache.array is not tile.c.array and cache.element_type is not cache.array.element_type:
            raise ScheduleError(
                f"{cache.name} keeps {cache.array.name} in {cache.element_type}, and the instructions take "
                f"{cache.array.element_type}",
                help="leave element_type out, or declare the array of the other type",
            )
    for cache in kept:
        if cache.array not in operands:
            raise ScheduleError(
                f"{cache.name} is no operand of the tile and cannot be kept in its fragments",
                help="location=Location.PRIVATE keeps elements in the registers of each thread",
            )
        if tile.a.array is tile.b.array is cache.array:
            raise ScheduleError(
                f"{cache.name} would hold both factors, whose fragments differ", help="cache it in shared memory"
            )
    held = [cache.inside for cache in kept if cache.array is tile.c.array]
    refuse_repeated_operations(plan, lambda index: any(index in inside for inside in held))


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
