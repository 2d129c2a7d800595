"""What a plan has to be whose tile a warpgroup multiplies, whose caches TMA fills, or which has a producer."""

from __future__ import annotations

from tilewright.errors import ScheduleError
from tilewright.schedule.arrays import ArrayLayout
from tilewright.schedule.bulk import why_not_in_bulk
from tilewright.schedule.caches import Cache, Location, order_of
from tilewright.schedule.loop_nest import Access
from tilewright.schedule.plan_state import PlanState, Tensorization

_TRANSPOSED_BITS = 16  # of the elements that wgmma takes with M or N contiguous


def refuse_warpgroups(plan: PlanState) -> None:
    """Raise `ScheduleError` for bindings, caches and tiles that warpgroups, TMA and a producer cannot have."""
    for cache in plan.caches:
        why = why_not_in_bulk(plan, cache) if cache.tma else None
        if why is not None:
            does = "store" if cache.location is Location.MMA_FRAGMENT else "fill"
            raise ScheduleError(f"TMA cannot {does} {cache.name}: {why[0]}", help=why[1])
    tile = plan.tensorization
    if tile is None or not tile.recipe.is_of_warpgroup:
        _refuse_without_tile(plan, tile)
        return
    for binding in plan.bindings:
        if binding.kind in ("THREAD", "WARP"):
            raise ScheduleError(
                f"{binding.unit.name} is bound in a plan whose tile is {tile.shape.name}: a whole warpgroup runs it",
                help="bind to WARPGROUP, which counts warpgroups",
            )
    for access in (tile.b,) if tile.has_a_in_registers else (tile.a, tile.b):
        _refuse_operand(plan, tile, access)
    _refuse_computed(plan, tile)
    for cache in plan.caches:
        if cache.array is tile.a.array and cache.location is Location.MMA_FRAGMENT and cache.is_ahead:
            raise ScheduleError(
                f"{cache.name} is read ahead, and {tile.shape.name} takes A from its registers until its products are "
                "waited for",
                location=tile.statement.location,
                help="leave double_buffer and pipeline_stages out, or give them to a cache in shared memory",
            )
    if plan.producer:
        _refuse_producer(plan)


def _refuse_computed(plan: PlanState, tile: Tensorization) -> None:
    """Raise `ScheduleError` where a part computes A, and it is not kept in the registers that are multiplied from."""
    array = tile.a.array
    if not any(access.is_write for access in plan.accesses(array)):
        return
    cache = max((c for c in plan.caches if c.array is array), key=plan.depth, default=None)
    if (
        plan.is_temporary(array)
        and cache is not None
        and cache.location is Location.MMA_FRAGMENT
        and (plan.is_new(cache) and tile.computed is None)
    ):
        return
    raise ScheduleError(
        f"{array.name} is computed in the kernel whose {tile.shape.name} multiplies it, and is not TEMP and kept in "
        "fragments alone",
        location=tile.statement.location,
        help=f"declare {array.name} as TEMP, of the type that is multiplied, and keep it in registers: "
        f"plan.cache({array.name}, index=..., location=Location.MMA_FRAGMENT); or compute it in a kernel of its own",
    )


def _refuse_without_tile(plan: PlanState, tile: Tensorization | None) -> None:
    """Raise `ScheduleError` where warpgroups are bound, or one produces, and none multiplies."""
    what = next((b.unit.name for b in plan.bindings if b.kind == "WARPGROUP"), "a producer" if plan.producer else None)
    if what is not None:
        tiled = "nothing is tensorized" if tile is None else f"the tile is {tile.shape.name}, which a warp runs"
        raise ScheduleError(
            f"{what} is bound, and {tiled}",
            help="tensorize by a shape of a warpgroup, such as MMAShape.M64N256K16; or bind to WARP_X and WARP_Y",
        )


def _refuse_operand(plan: PlanState, tile: Tensorization, access: Access) -> None:
    """Raise `ScheduleError` where a factor is not where, or not as, a warpgroup reads it."""
    array = access.array
    caches = sorted((cache for cache in plan.caches if cache.array is array), key=plan.depth)
    here = f"plan.cache({array.name}, index=..., location=Location.SHARED)"
    if not caches:
        raise ScheduleError(
            f"{tile.shape.name} reads {array.name} from shared memory, and it has no cache there",
            location=tile.statement.location,
            help=f"{here}, at a loop outside of the tile",
        )
    inner = caches[-1]
    if inner.location is not Location.SHARED:
        raise ScheduleError(
            f"{tile.shape.name} reads {array.name} from shared memory, and {inner.name} keeps it in "
            f"{inner.location.name}",
            location=tile.statement.location,
            help=f"{here}; of its factors a warpgroup takes A alone from registers",
        )
    _refuse_major(plan, tile, access, inner)


def _refuse_major(plan: PlanState, tile: Tensorization, access: Access, cache: Cache) -> None:
    """Raise `ScheduleError` where M or N is contiguous in a cache of elements that wgmma does not transpose."""
    shape = plan.region(cache).shape
    fast = order_of(cache.layout, shape, access.array)[0]
    type = access.array.element_type
    if access.place[fast].factor(tile.indices[2]) or type.bits == _TRANSPOSED_BITS:
        return
    along = next((mode for mode, place in enumerate(access.place) if place.factor(tile.indices[2])), 0)
    layout = ArrayLayout.FIRST_MAJOR if along == access.array.rank - 1 else ArrayLayout.LAST_MAJOR
    raise ScheduleError(
        f"{tile.shape.name} takes {type} with K contiguous, and in {cache.name} mode {fast} is, which moves with "
        f"{', '.join(sorted(s.name for s in access.place[fast].symbols()))}",
        location=tile.statement.location,
        help=f"let threads transpose it: plan.cache({access.array.name}, ..., layout=Array.Layout.{layout.name}); or "
        f"store {access.array.name} so",
    )


def _refuse_producer(plan: PlanState) -> None:
    """Raise `ScheduleError` for a cache that a producer would fill and TMA cannot."""
    tile = plan.tensorization
    assert tile is not None
    for cache in plan.caches:
        if not cache.is_of_block or cache.tma or not plan.is_read(cache) or cache.array is tile.c.array:
            continue
        why = why_not_in_bulk(plan, cache)
        if why is None:
            why = (
                ("tma is False", "tma=True") if plan.is_read_by_warpgroups(cache) else ("tma is not given", "tma=True")
            )
        raise ScheduleError(
            f"a producer fills caches by TMA, and {cache.name} is filled otherwise: {why[0]}",
            help=f"{why[1].removesuffix('; or leave tma out: the threads of the block fill it')}; or leave producer "
            "out: all threads then fill caches",
        )
