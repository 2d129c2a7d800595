"""Where the caches of a plan go: at which loops they are filled, and which of them cannot be."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.errors import ScheduleError
from tilewright.layout import Layout
from tilewright.layout.layouts import flat_modes
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.arrays import Array, ArrayLayout
from tilewright.schedule.bulk import filled_in_bulk
from tilewright.schedule.caches import Cache, Location, Region, Strategy, elements_of, static_layout
from tilewright.schedule.dependences import Side, difference, is_before, iterations
from tilewright.schedule.elements import index_loads
from tilewright.schedule.integers import System, UndecidedError
from tilewright.schedule.loop_nest import Loop
from tilewright.schedule.plan_state import PlanState
from tilewright.schedule.targets import is_count

_MOST = 2**18  # differences of threads that are looked at one by one


def refuse_unknown(location: object, strategy: object, ahead: object, stages: object) -> None:
    """Raise `ScheduleError` where the options of a cache are not of the kinds that `Plan.cache` names."""
    for value, kind in ((location, Location), (strategy, Strategy)):
        if not isinstance(value, kind):
            members = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
            raise ScheduleError(f"{value!r} is not a {kind.__name__} of a cache", help=f"one of {members}")
    if ahead is not None and (not isinstance(ahead, Location) or ahead is Location.MMA_FRAGMENT):
        raise ScheduleError(
            f"double_buffer_location={ahead!r}",
            help="the location of the cache, or Location.PRIVATE: where the next iteration waits",
        )
    if stages is not None and not is_count(stages):
        raise ScheduleError(f"pipeline_stages={stages!r}", help="a whole number, 1 for no pipeline")


def place_cache(
    plan: PlanState,
    source: Array | Cache,
    *,
    index: Index | None,
    trigger_index: Index | None,
    max_elements: int | None,
    level: int | None,
    trigger_level: int | None,
    location: Location,
) -> Cache:
    """Return a cache at its place among the loops. Raises `ScheduleError` as `Plan.cache` says.

    With `max_elements` its place is that among the loops as they are bound now.
    """
    # What a view is a part of is cached: all accesses of it, by this view and by others, are of one memory.
    if not isinstance(source, (Cache, Array)):
        raise ScheduleError(f"{source!r} is not an array of this plan")
    array = source.array if isinstance(source, Cache) else source.base
    source = source if isinstance(source, Cache) else array
    if array not in plan.arrays:
        raise ScheduleError(f"{source!r} is not an array of this plan")
    for access in plan.accesses(array):
        if next(index_loads(access.place), None) is not None:
            raise ScheduleError(
                f"a cache of {array.name}: which elements the {access} touches only the kernel knows",
                location=access.statement.location,
                help="cache the array of the indices",
            )
    if sum(x is not None for x in (index, max_elements, level)) != 1:
        raise ScheduleError("a cache takes one of index, level and max_elements")
    for name, number in (("level", level), ("trigger_level", trigger_level), ("max_elements", max_elements)):
        if number is not None and not is_count(number):
            raise ScheduleError(f"{name}={number!r}", help="a whole number, at least 1")
    if trigger_index is not None and trigger_level is not None:
        raise ScheduleError("a cache takes one of trigger_index and trigger_level")
    if level is not None:
        index = _at_level(plan.nest.order, level)
    if trigger_level is not None:
        trigger_index = _at_level(plan.nest.order, trigger_level)
    cache = Cache(array, source, index, trigger_index, frozenset(), location=location, max_elements=max_elements)
    return _at_its_place(plan, replace(cache, trigger_is_given=trigger_index is not None))


def _at_its_place(plan: PlanState, cache: Cache) -> Cache:
    """Return a cache with the loops that it keeps, as `max_elements` or its index says."""
    order, name = plan.nest.order, cache.array.name
    at = cache.at if cache.max_elements is None else _largest(plan, cache, cache.max_elements)
    trigger = at if cache.trigger is None else cache.trigger
    first, last = (len(order) if index is None else plan.nest.position(index) for index in (trigger, at))
    if first > last:
        raise ScheduleError(
            f"the cache of {name} at {at} is filled at {trigger}, which is inside of it",
            help="the trigger index is the cache's index or an outer one",
        )
    inside = frozenset(order[first:])
    if isinstance(cache.source, Cache) and not inside - plan.bound <= cache.source.inside:
        raise ScheduleError(
            f"the cache of {name} at {trigger} is filled from {cache.source!r}, which is filled further inside",
            help="cache the array itself, or at an inner index",
        )
    return replace(cache, at=at, trigger=trigger, inside=inside)


def _at_level(order: tuple[Index, ...], level: int) -> Index:
    if not 1 <= level <= len(order):
        raise ScheduleError(f"level {level} of {len(order)} loops", help="a level counts the loops inside, from 1")
    return order[-level]


def _largest(plan: PlanState, cache: Cache, elements: int) -> Index | None:
    """Return the outermost index inside of which no more elements are touched than that, None for one iteration."""
    order = plan.nest.order
    best, least, apart = len(order) + 1, None, None
    for first in range(len(order), -1, -1):
        try:
            region = plan.region(replace(cache, inside=frozenset(order[first:])))
        except ScheduleError as error:
            if least is not None:
                break
            apart = apart or error  # accesses that move apart may run through one box further outside
            continue
        least = region.size if least is None else least
        if region.size > elements:
            break
        best = first
    if best > len(order) and apart is not None:
        raise apart
    if best > len(order):
        raise ScheduleError(
            f"one iteration touches {least} elements of {cache.array.name} that lie in one box, and "
            f"max_elements={elements}",
            help="allow as many, or give an index",
        )
    return order[best] if best < len(order) else None


# --- what a plan decides when it is built ----------------------------------------------------------------


def settled(plan: PlanState) -> list[Cache]:
    """Return the caches of a plan as they will be built, now that all loops are bound.

    Those of `max_elements` get the loops that they keep. A thrifty cache is left out where its box lies in what it is
    filled from exactly as it would lie in the cache. In blocks of one thread, caches without a location that shared
    memory cannot hold, the largest first, go to global memory.
    """
    made: dict[Cache, Array | Cache] = {}  # what stands in the place of each
    kept: list[Cache] = []
    for cache in plan.caches:
        source = made.get(cache.source, cache.source) if isinstance(cache.source, Cache) else cache.source
        cache_now = replace(cache, source=source)
        if cache.max_elements is not None:
            trigger = cache.trigger if cache.trigger_is_given else None
            cache_now = _at_its_place(plan, replace(cache_now, trigger=trigger))
        if cache.thrifty and _is_there_already(plan, cache_now):
            made[cache] = source
            continue
        cache_now = replace(cache_now, tma=filled_in_bulk(plan, cache_now))
        made[cache] = cache_now
        kept.append(cache_now)
    x, y, z = plan.block
    return _spilled(plan, kept) if x * y * z == 1 else kept


def _is_there_already(plan: PlanState, cache: Cache) -> bool:
    """Whether a cache would hold its elements in the memory and the order in which its source has them."""
    source, array = cache.source, cache.array
    strides: tuple[Any, ...]  # Any: a number, or the strides of a mode of modes; None where the launch knows it
    if isinstance(source, Cache):
        if plan.feeds_matrix_instructions(cache) or (cache.location_is_given and cache.location is not source.location):
            return False
        outer = plan.region(source)
        layout, by = static_layout(source, outer), outer.steps
        strides = tuple(layout[mode].stride for mode in range(array.rank))
    else:
        if plan.is_temporary(array) or (cache.location_is_given and cache.location is not Location.GLOBAL):
            return False
        if plan.feeds_matrix_instructions(cache):
            return False
        strides, by = array.strides, (1,) * array.rank
    region = plan.region(cache)
    mine = static_layout(cache, region)
    return source.element_type is cache.element_type and all(
        extent == 1 or (isinstance(stride, int) and stride * max(step // apart, 1) == mine[mode].stride)
        for mode, (extent, stride, step, apart) in enumerate(zip(region.shape, strides, region.steps, by, strict=True))
    )


def _spilled(plan: PlanState, caches: list[Cache]) -> list[Cache]:
    """Return caches with those that shared memory cannot hold in global memory, where no location was given."""
    left = list(caches)
    while sum(shared_bytes(plan, c) for c in left) > plan.target.max_shared_memory_per_block:
        free = [c for c in left if not c.location_is_given and c.location is Location.SHARED]
        if not free:
            break
        largest = max(free, key=lambda c: shared_bytes(plan, c))
        made: dict[Cache, Cache] = {}  # sources come before what is filled from them
        for cache in left:
            location = Location.GLOBAL if cache is largest else cache.location
            source = made.get(cache.source, cache.source) if isinstance(cache.source, Cache) else cache.source
            made[cache] = replace(cache, location=location, source=source)
        left = list(made.values())
    return left


def shared_bytes(plan: PlanState, cache: Cache) -> int:
    """Return the bytes of shared memory that a cache takes, all of its buffers together."""
    if cache.location is not Location.SHARED:
        return 0
    return elements_of(cache, plan.region(cache)) * cache.element_type.bytes


def refuse_nonsense(plan: PlanState, cache: Cache) -> None:
    """Raise `ScheduleError` for a cache that cannot be what it was asked to be."""
    region = plan.region(cache)
    if cache.location is Location.MMA_FRAGMENT and cache.through_registers:
        raise ScheduleError(f"{cache.name} lives in registers and is not filled through registers")
    if cache.is_ahead and plan.depth(cache) == 0:
        raise ScheduleError(
            f"{cache.name} is double-buffered, and no loop runs around it",
            help="give an index inside of the loop whose next iteration shall be fetched ahead",
        )
    is_written = any(access.is_write for access in plan.accesses(cache.array))
    if cache.is_ahead and cache.location is not Location.MMA_FRAGMENT and is_written:
        raise ScheduleError(
            f"{cache.name} is double-buffered and written: the next iteration would be fetched before this one is "
            "stored",
            help="double-buffer arrays that are only read",
        )
    _refuse_layout(cache, region)
    vector: object = cache.vectorize
    if not isinstance(vector, bool) and (not is_count(vector) or cache.vectorize & (cache.vectorize - 1)):
        raise ScheduleError(f"vectorize={vector!r}", help="a power of two elements, True or False")


def _refuse_layout(cache: Cache, region: Region) -> None:
    if cache.layout is ArrayLayout.DEFERRED:
        raise ScheduleError(
            f"the layout of {cache.name} is DEFERRED", help="a CONST array's may be: it takes that of its cache"
        )
    if cache.layout is None or isinstance(cache.layout, ArrayLayout):
        return
    if isinstance(cache.layout, tuple):
        if len(cache.layout) != len(region.shape):
            raise ScheduleError(f"{cache.name} has {len(region.shape)} modes, and strides {cache.layout}")
        layout = Layout(region.shape, cache.layout)
    elif isinstance(cache.layout, Layout):
        layout = cache.layout
        shape = layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)
        if shape != region.shape:
            raise ScheduleError(
                f"{cache.name} holds a box of {region.shape}, and its layout is {layout}",
                help=f"give a layout of the shape {region.shape}",
            )
    else:
        raise ScheduleError(f"layout={cache.layout!r}", help="FIRST_MAJOR, LAST_MAJOR, strides, or a tw.Layout")
    places = np.zeros(1, np.int64)
    for extent, stride in zip(*flat_modes(layout), strict=True):
        if not (isinstance(extent, int) and isinstance(stride, int)):
            raise ScheduleError(f"the layout {layout} of {cache.name} has strides that are not numbers")
        places = (places[:, None] + np.arange(extent) * stride).reshape(-1)
    least = int(places.min())
    if len(np.unique(places)) < len(places) or least < 0:
        raise ScheduleError(
            f"the layout {layout} of {cache.name} puts two elements in one place"
            if least >= 0
            else f"the layout {layout} of {cache.name} has places below 0",
            help="give each element of the box a place of its own",
        )


# --- write-backs -----------------------------------------------------------------------------------------


def refuse_conflicts(plan: PlanState, cache: Cache) -> None:
    """Raise `ScheduleError` where the boxes that two threads (two blocks for shared memory) write back overlap.

    Each would write the elements of the other as they were when it read them.
    """
    region = plan.region(cache)
    runners = [
        (binding, loop)
        for binding in plan.bindings
        for loop in binding.loops
        if (not cache.is_of_block or binding.kind == "BLOCK") and loop.trips != 1
    ]
    loops = [loop for _, loop in runners]
    held = {loop.index for loop in (*plan.varying(cache), *loops)}
    # Threads do not wait for one another: one may be in another iteration of the loops around.
    around = [
        loop
        for loop in plan.nest.loops
        if loop.index not in held and loop.trips != 1 and any(mode.mentions(loop.index) for mode in region.origin)
    ]
    divided = any(mode.divides(loop.index) for mode in region.origin for loop in (*loops, *around))
    if divided:
        meet = _meet_as_integers(plan, region, loops, around)
    else:
        meet = not _is_apart(region, loops, around) and _meet(region, loops, around)
    if not meet:
        return
    units = ", ".join(sorted({binding.unit.name for binding, _ in runners}))
    raise ScheduleError(
        f"{cache.name} holds a box of {' x '.join(map(str, region.shape))} elements of {cache.array.name} from "
        f"[{', '.join(map(str, region.origin))}], and the boxes that {_others(cache, units)} write back overlap",
        location=next((access.statement.location for access in plan.accesses(cache.array) if access.is_write), None),
        help="cache at an inner index, or bind the loops so that each has a box of its own",
    )


def _others(cache: Cache, units: str) -> str:
    who = "blocks" if cache.is_of_block else "threads"
    return f"{who} ({units})" if units else who


def _is_apart(region: Region, loops: list[Loop], around: list[Loop]) -> bool:
    """Whether the boxes of different iterations surely differ: those of each loop move the box out of all others.

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
    """Whether boxes of different iterations of `loops` have an element in common, found by trying all distances."""
    distances, every = 1, [*loops, *around]
    for loop in every:
        if loop.trips is None:
            return True
        distances *= 2 * loop.trips - 1
    if distances > _MOST:
        return True
    ranges = [range(-(loop.trips or 1) + 1, loop.trips or 1) for loop in every]
    factors = [[_factor(mode, loop) for loop in every] for mode in region.origin]
    for distance in itertools.product(*ranges):
        if any(distance[: len(loops)]) and all(
            _overlap(sum(f * t for f, t in zip(row, distance, strict=True)), shape, step)
            for row, shape, step in zip(factors, region.shape, region.steps, strict=True)
        ):
            return True
    return False


def _meet_as_integers(plan: PlanState, region: Region, loops: list[Loop], around: list[Loop]) -> bool:
    """Whether boxes of different iterations of `loops` have an element in common; True where that is not decided."""
    apart = {loop.index for loop in (*loops, *around)}
    mine, other = Side(plan.nest, 0), Side(plan.nest, 1)
    system: System[Any] = mine.runs(region.origin).and_(other.runs(region.origin))  # Any: theirs, and those of elements
    for loop in plan.nest.loops:
        if loop.index not in apart:
            system = system.equal(*difference(*iterations(loop)))
    for mode, (origin, shape, step) in enumerate(zip(region.origin, region.shape, region.steps, strict=True)):
        terms, constant = difference(mine.terms(origin), other.terms(origin))
        system = system.equal({**terms, (mode, 0): step, (mode, 1): -step}, constant)
        for side in (0, 1):
            system = system.at_least_zero({(mode, side): 1}).at_least_zero({(mode, side): -1}, shape - 1)
    try:
        return any(
            is_before(system, *order).solve() is not None
            for loop in loops
            for order in (iterations(loop), iterations(loop)[::-1])
        )
    except UndecidedError:
        return True


def _factor(mode: Affine, loop: Loop) -> int:
    return mode.factor(loop.index) * loop.step


def _overlap(distance: int, shape: int, step: int) -> bool:
    return abs(distance) <= (shape - 1) * step and distance % step == 0
