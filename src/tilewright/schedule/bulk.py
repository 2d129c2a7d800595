"""Which caches bulk copies (TMA) can fill: what a tensor map and a box ask of an array and of its cache."""

from __future__ import annotations

from tilewright.schedule.affine import Affine
from tilewright.schedule.binding import WARPGROUP
from tilewright.schedule.caches import Cache, Location, order_of
from tilewright.schedule.plan_state import PlanState, Tensorization

_UNIT = 16  # bytes: of strides of the tensor, and of the rows of a box
_MOST_MODES = 5
_ROW = 256  # bytes: of a row of results that are stored at once
Reason = tuple[str, str]  # why not, and what to do

_BY_THREADS = "leave tma out: the threads of the block fill it"
_BY_WARPGROUPS = "leave tma out: each thread stores its own results"


def filled_in_bulk(plan: PlanState, cache: Cache) -> bool:
    """Return whether TMA fills a cache: as it says, and where it says nothing, what warpgroups read and TMA can fill.

    A stride that only the launch knows may be one that no tensor map has: such an array is left to the threads.
    """
    if cache.tma is not None:
        return cache.tma
    if not plan.is_read_by_warpgroups(cache) or why_not_in_bulk(plan, cache) is not None:
        return False
    return all(isinstance(step, int) for step in cache.array.strides)


def why_not_in_bulk(plan: PlanState, cache: Cache) -> Reason | None:
    """Return why TMA cannot fill a cache, and what to do; None where it can."""
    if cache.location is Location.MMA_FRAGMENT:
        return _of_results(plan, cache)
    return _of_place(plan, cache) or _of_elements(plan, cache)


def columns_at_once(tile: Tensorization) -> int:
    """Return how many columns of a tile of C a warpgroup stores at once: half of a wide tile, up to 256 bytes a row."""
    most = max(_ROW // tile.c.array.element_type.bytes, 8)
    return max(n for n in range(8, min(tile.shape.n, most) + 1, 8) if tile.shape.n % n == 0)


def result_bytes(plan: PlanState, cache: Cache) -> int:
    """Return the bytes of shared memory through which results go that are stored by TMA."""
    tile = plan.tensorization
    if not cache.leaves_in_bulk or tile is None:
        return 0
    warpgroups = plan.block[0] // WARPGROUP - plan.producer
    return tile.shape.m * columns_at_once(tile) * cache.array.element_type.bytes * warpgroups


def _of_results(plan: PlanState, cache: Cache) -> Reason | None:
    """Return why the results of a warpgroup cannot leave by TMA."""
    tile, array = plan.tensorization, cache.array
    if tile is None or not tile.recipe.is_of_warpgroup or array is not tile.c.array:
        return (
            "it holds fragments, and only the results of a warpgroup's tiles leave by TMA",
            "leave tma out, or tensorize by a shape of a warpgroup",
        )
    if isinstance(cache.source, Cache):
        return f"it is written back to {cache.source!r}, and TMA stores to the array itself", "cache the array itself"
    if plan.is_temporary(array) or array.memory.element_type is not array.element_type:
        return f"{array.name} is not an array that the launch gives with these elements", _BY_WARPGROUPS
    if array.rank > _MOST_MODES:
        return f"a tensor map has at most {_MOST_MODES} modes, and {array.name} has {array.rank}", _BY_WARPGROUPS
    along = [[m for m, place in enumerate(tile.c.place) if place.factor(index)] for index in tile.indices[:2]]
    if any(len(modes) != 1 for modes in along) or along[0] == along[1]:
        return f"rows and columns of the tile do not run along modes of {array.name} of their own", _BY_WARPGROUPS
    rows, columns = along[0][0], along[1][0]
    if (tile.c.place[rows].factor(tile.indices[0]), tile.c.place[columns].factor(tile.indices[1])) != (1, 1):
        return f"the tile takes every other element of {array.name}", _BY_WARPGROUPS
    if array.strides[columns] != 1:
        return (
            f"neighbours along {tile.indices[1]} have stride {array.strides[columns]} in {array.name}",
            _BY_WARPGROUPS,
        )
    size = array.element_type.bytes
    for mode, step in enumerate(array.strides):
        if mode != columns and isinstance(step, int) and array.shape[mode] != 1 and step * size % _UNIT:
            return (
                f"mode {mode} of {array.name} has a stride of {step * size} bytes, and TMA takes multiples of {_UNIT}",
                _BY_WARPGROUPS,
            )
    # At the end of a row TMA writes whole 16 bytes; an extent that only the launch knows is looked at there.
    for row in (columns_at_once(tile), array.shape[columns]):
        if isinstance(row, int) and row * size % _UNIT:
            return f"a row of {row} {array.element_type} is not a multiple of {_UNIT} bytes", _BY_WARPGROUPS
    ends = {
        end
        for place, extent in zip(tile.c.place, array.shape, strict=True)
        for end in (place, (extent - 1 if isinstance(extent, int) else Affine.of({extent: 1}, -1)) - place)
    }
    for edge in tile.edges:
        if not edge.value.factor(tile.indices[2]) and edge.value not in ends:
            return f"a tile would cross the boundary at which {edge}, where {array.name} does not end", _BY_WARPGROUPS
    return None


def _of_place(plan: PlanState, cache: Cache) -> Reason | None:
    """Return what is wrong with where a cache is, and with what it is filled from."""
    arch, array = plan.target.arch, cache.array
    if arch.is_amd or arch.number < 90:
        return f"{arch.name} has no bulk copies; they need sm_90 or later", _BY_THREADS
    if cache.location is not Location.SHARED:
        return f"it lives in {cache.location.name}, and TMA copies to shared memory", "location=Location.SHARED"
    if isinstance(cache.source, Cache):
        return f"it is filled from {cache.source!r}, and TMA copies from the array itself", _BY_THREADS
    if plan.is_temporary(array):
        return f"{array.name} is TEMP, and TMA copies what the launch gives", _BY_THREADS
    if plan.is_written(cache):
        return "it is written, and TMA fills what is only read", _BY_THREADS
    if cache.through_registers:
        return "the next iteration waits in registers", "leave double_buffer_location out"
    return None


def _of_elements(plan: PlanState, cache: Cache) -> Reason | None:
    """Return what of the array, or of the box, no tensor map and no bulk copy has."""
    array, region = cache.array, plan.region(cache)
    size = array.element_type.bytes
    if cache.element_type is not array.element_type or array.element_type is not array.memory.element_type:
        return f"its elements are converted, and TMA copies {array.memory.element_type} as they are", _BY_THREADS
    if array.element_type.kind == "bool":
        return "tensor maps have no bool", _BY_THREADS
    if array.rank > _MOST_MODES:
        return f"a tensor map has at most {_MOST_MODES} modes, and {array.name} has {array.rank}", _BY_THREADS
    if any(step != 1 for step in region.steps):
        return f"its elements lie {region.steps} apart in {array.name}", _BY_THREADS
    fast = order_of(cache.layout, region.shape, array)[0]
    if array.strides[fast] != 1:
        return (
            f"mode {fast} is contiguous in it, and has stride {array.strides[fast]} in {array.name}: TMA does not "
            "transpose",
            "leave layout out, or leave tma out: threads then transpose it",
        )
    for mode, step in enumerate(array.strides):
        if mode != fast and isinstance(step, int) and array.shape[mode] != 1 and step * size % _UNIT:
            return (
                f"mode {mode} of {array.name} has a stride of {step * size} bytes, and TMA takes multiples of {_UNIT}",
                f"pad the rows of {array.name}: layout=strides that are multiples of {_UNIT // size}; or {_BY_THREADS}",
            )
    if region.shape[fast] * size % _UNIT:
        return (
            f"a row of its box has {region.shape[fast] * size} bytes, and TMA copies multiples of {_UNIT}",
            f"split so that a row has a multiple of {_UNIT // size} elements; or {_BY_THREADS}",
        )
    return None
