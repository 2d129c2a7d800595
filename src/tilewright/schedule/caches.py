"""Caches: what a box of loops touches of an array, kept in faster memory."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tilewright.dtypes import DType, float32
from tilewright.errors import ScheduleError
from tilewright.layout import Layout
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.arrays import Array, ArrayLayout, Role
from tilewright.schedule.expressions import Load
from tilewright.schedule.loop_nest import Loop
from tilewright.schedule.statements import Access

if TYPE_CHECKING:
    from tilewright.schedule.plan import Plan


class Location(enum.Enum):
    """Where a cache lives."""

    SHARED = "shared"  # the block's shared memory
    PRIVATE = "private"  # registers of each thread
    MMA_FRAGMENT = "fragment"  # registers of a warp, as its matrix instructions hold them


class Strategy(enum.Enum):
    """Which elements of a shared cache each thread copies."""

    BLOCKED = "blocked"  # a run of neighbours
    STRIPED = "striped"  # vectors that lie a block's vectors apart, so that neighbouring threads copy neighbours


@dataclass(frozen=True)
class Region:
    """The box of an array's elements that some loops touch: `shape` elements from `origin` on, `steps` apart.

    The origin depends on the loops outside only. Law: the elements that the loops touch are among
    origin[m] + steps[m] * c[m] for 0 <= c[m] < shape[m].
    """

    origin: tuple[Affine, ...]
    shape: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def size(self) -> int:
        total = 1
        for extent in self.shape:
            total *= extent
        return total


@dataclass(frozen=True, eq=False)
class Cache:
    """A cache of a plan, made by `plan.cache(...)`.

    `index` is the outermost loop whose accesses are kept, `trigger` the loop outside of which it is filled, and
    `inside` are the loops that run between filling and writing back. `stages` counts the buffers.
    """

    array: Array
    source: Array | Cache
    index: Index
    trigger: Index
    inside: frozenset[Index]
    layout: Any = None  # Any: an Array.Layout, strides, or a Layout
    location: Location = Location.SHARED
    stages: int = 1
    through_registers: bool = False
    vectorize: bool | int = True
    strategy: Strategy = Strategy.STRIPED
    element_type: DType = float32

    @property
    def name(self) -> str:
        """The name in generated code: sA of A in shared memory, rA in registers."""
        return ("s" if self.location is Location.SHARED else "r") + self.array.name

    def depth(self, plan: Plan) -> int:
        """Return how many serial loops run outside of where it is filled."""
        order = plan.nest.order
        at = order.index(self.trigger)
        return sum(order.index(index) < at for index in plan.serial)

    def varying(self, plan: Plan) -> tuple[Loop, ...]:
        """Return the loops whose turns share one filling: those inside, and for shared memory the block's threads."""
        shared = {
            index
            for binding in plan.bindings
            if binding.kind != "BLOCK" and self.location is Location.SHARED
            for index in binding.indices
        }
        return tuple(
            loop
            for loop in plan.nest.loops
            if loop.index in shared or (loop.index in self.inside and loop.index not in plan.bound)
        )

    def region(self, plan: Plan) -> Region:
        """Return the box that it holds. Raises `ScheduleError` where there is none."""
        return region_of(self.array, accesses_of(plan, self.array), self.varying(plan))

    def accesses(self, plan: Plan) -> list[Access]:
        return accesses_of(plan, self.array)

    def is_read(self, plan: Plan) -> bool:
        """Whether what the array held before is needed: it is read, or parts of the box are not written."""
        reads = [access for access in self.accesses(plan) if not access.is_write]
        writes = {access.place for access in self.accesses(plan) if access.is_write}
        tile = plan.tensorization
        if self.is_new(plan) or (tile is not None and tile.sets(self.array)):
            return False
        conditions = any(part.conditions for part in plan.nest.parts)
        return bool(reads) or len(writes) > 1 or conditions or not self._is_covered(plan, *writes)

    def is_new(self, plan: Plan) -> bool:
        """Whether its elements begin and end with it: those of a TEMP array that no cache around keeps for longer."""
        mine = self.depth(plan)
        return self.array.role is Role.TEMP and not any(
            other.array is self.array and other.depth(plan) < mine for other in plan.caches
        )

    def _is_covered(self, plan: Plan, place: tuple[Affine, ...]) -> bool:
        """Whether a write reaches every element of the box: each mode by loops of its own, without gaps."""
        varying = self.varying(plan)
        used = [loop for loop in varying for mode in place if mode.factor(loop.index)]
        if len(set(used)) < len(used):
            return False
        region = self.region(plan)
        for mode, step in zip(place, region.steps, strict=True):
            digits = sorted((abs(mode.factor(x.index)) * x.step, x.trips or 0) for x in varying if x in used)
            reached = 0
            for stride, trips in digits:
                if stride and stride > reached + step:
                    return False
                reached += stride * (trips - 1)
        return True

    def is_written(self, plan: Plan) -> bool:
        """Whether it has to be written back."""
        return not self.is_new(plan) and any(access.is_write for access in self.accesses(plan))

    def refuse_nonsense(self, plan: Plan) -> None:
        """Raise `ScheduleError` for a cache that cannot be what it was asked to be."""
        region = self.region(plan)
        if self.location is Location.MMA_FRAGMENT and self.through_registers:
            raise ScheduleError(f"{self.name} lives in registers and is not filled through registers")
        is_ahead = self.stages > 1 or self.through_registers
        if is_ahead and self.location is Location.PRIVATE:
            raise ScheduleError(
                f"{self.name} lives in the registers of each thread and is double-buffered",
                help="cache it in shared memory: double_buffer_location=PRIVATE then fetches through registers",
            )
        if is_ahead and self.depth(plan) == 0:
            raise ScheduleError(
                f"{self.name} is double-buffered, and no loop runs around it",
                help="give an index inside of the loop whose next turn shall be fetched ahead",
            )
        if is_ahead and self.location is Location.SHARED and any(access.is_write for access in self.accesses(plan)):
            raise ScheduleError(
                f"{self.name} is double-buffered and written: the next turn would be fetched before this one is stored",
                help="double-buffer arrays that are only read",
            )
        self._refuse_layout(region)
        if not isinstance(self.vectorize, bool) and (self.vectorize < 1 or self.vectorize & (self.vectorize - 1)):
            raise ScheduleError(f"vectorize={self.vectorize}", help="a power of two elements, True or False")

    def _refuse_layout(self, region: Region) -> None:
        if self.layout is None or isinstance(self.layout, ArrayLayout):
            return
        if isinstance(self.layout, tuple):
            if len(self.layout) != len(region.shape):
                raise ScheduleError(f"{self.name} has {len(region.shape)} modes, and strides {self.layout}")
            layout = Layout(region.shape, self.layout)
        elif isinstance(self.layout, Layout):
            layout = self.layout
            shape = layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)
            if shape != region.shape:
                raise ScheduleError(
                    f"{self.name} holds a box of {region.shape}, and its layout is {layout}",
                    help=f"give a layout of the shape {region.shape}",
                )
        else:
            raise ScheduleError(f"layout={self.layout!r}", help="FIRST_MAJOR, LAST_MAJOR, strides, or a tw.Layout")
        places = [layout(number) for number in range(region.size)]
        if len(set(places)) < len(places) or min(places) < 0:
            raise ScheduleError(
                f"the layout {layout} of {self.name} puts two elements in one place"
                if min(places) >= 0
                else f"the layout {layout} of {self.name} has places below 0",
                help="give each element of the box a place of its own",
            )

    def __repr__(self) -> str:
        return f"Cache({self.array.name}, {self.location.name}, index={self.index})"


def refuse_unknown(location: object, strategy: object, ahead: object, stages: object) -> None:
    """Raise `ScheduleError` where the options of a cache are not of the kinds that `Plan.cache` names."""
    for value, kind in ((location, Location), (strategy, Strategy)):
        if not isinstance(value, kind):
            members = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
            raise ScheduleError(f"{value!r} is no {kind.__name__} of a cache", help=f"one of {members}")
    if ahead not in (None, Location.SHARED, Location.PRIVATE):
        raise ScheduleError(
            f"double_buffer_location={ahead!r}", help="Location.SHARED or Location.PRIVATE, where the next turn waits"
        )
    if stages is not None and not is_count(stages):
        raise ScheduleError(f"pipeline_stages={stages!r}", help="a whole number, 1 for no pipeline")


def is_count(number: object) -> bool:
    """Whether something is a whole number from 1."""
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def accesses_of(plan: Plan, array: Array) -> list[Access]:
    """Return the accesses of an array by all parts, with their places among the loops."""
    found = []
    for part in plan.nest.parts:
        for statement in part.statements:
            for access in statement.accesses:
                if access.array is array:
                    place = tuple(mode.substitute(part.places) for mode in access.place)
                    found.append(Access(access.statement, array, place, access.is_write))
    return found


def region_of(array: Array, accesses: Iterable[Access], varying: Iterable[Loop]) -> Region:
    """Return the least box of an array that accesses touch while some loops run through all of their turns."""
    loops = {loop.index: loop for loop in varying}
    origins: list[tuple[Affine, ...]] = []
    lows: list[list[int]] = []
    highs: list[list[int]] = []
    first: Access | None = None
    touched = list(accesses)
    for access in touched:
        origin = tuple(Affine.of({s: c for s, c in mode.terms if s not in loops}) for mode in access.place)
        first = first or access
        if origins and origin != origins[0]:
            raise ScheduleError(
                f"no one box holds what {first} and {access} touch: they move apart as the loops outside run",
                location=access.statement.location,
                help="cache at an outer index, inside of which both run through the same elements",
            )
        origins.append(origin)
        ends = [_ends(mode, loops, access) for mode in access.place]
        lows.append([low for low, _ in ends])
        highs.append([high for _, high in ends])
    if first is None:
        raise ScheduleError(f"array {array.name} is not used in this plan")
    low = [min(mode) for mode in zip(*lows, strict=True)]
    high = [max(mode) for mode in zip(*highs, strict=True)]
    steps = []
    for mode, (least, most) in enumerate(zip(low, high, strict=True)):
        moves = [access.place[mode].factor(x) * loop.step for access in touched for x, loop in loops.items()]
        starts = [access.place[mode].constant - touched[0].place[mode].constant for access in touched]
        steps.append(math.gcd(*moves, *starts) if most > least else 1)
    return Region(
        tuple(origin + least for origin, least in zip(origins[0], low, strict=True)),
        tuple((most - least) // step + 1 for least, most, step in zip(low, high, steps, strict=True)),
        tuple(steps),
    )


def _ends(mode: Affine, loops: dict[Index, Loop], access: Access) -> tuple[int, int]:
    """Return the least and greatest value of the part of a place that varies."""
    low = high = mode.constant
    for symbol, factor in mode.terms:
        loop = loops.get(symbol) if isinstance(symbol, Index) else None
        if loop is None:
            continue
        if loop.last is None:
            raise ScheduleError(
                f"a cache of {Load(access.array, access.place)} inside of {loop.index} has a size that only the launch "
                "knows",
                help=f"split {loop.index}, and cache inside of its inner loop",
            )
        ends = (0, factor * loop.last)
        low, high = low + min(ends), high + max(ends)
    return low, high


def place_cache(
    plan: Plan,
    source: Array | Cache,
    *,
    index: Index | None,
    trigger_index: Index | None,
    max_elements: int | None,
    level: int | None,
    trigger_level: int | None,
) -> Cache:
    """Return a cache at its place among the loops. Raises `ScheduleError` as `Plan.cache` says."""
    array = source.array if isinstance(source, Cache) else source
    if array not in plan.arrays:
        raise ScheduleError(f"{source!r} is no array of this plan")
    if sum(x is not None for x in (index, max_elements, level)) != 1:
        raise ScheduleError("a cache takes one of index, level and max_elements")
    for name, number in (("level", level), ("trigger_level", trigger_level), ("max_elements", max_elements)):
        if number is not None and not is_count(number):
            raise ScheduleError(f"{name}={number!r}", help="a whole number, at least 1")
    order = plan.nest.order
    if max_elements is not None:
        index = _largest(plan, array, max_elements)
    elif level is not None:
        index = _at_level(order, level)
    assert index is not None
    if trigger_level is not None:
        trigger_index = _at_level(order, trigger_level)
    trigger = index if trigger_index is None else trigger_index
    if plan.nest.position(trigger) > plan.nest.position(index):
        raise ScheduleError(
            f"the cache of {array.name} at {index} is filled at {trigger}, which is inside of it",
            help="the trigger index is the cache's index or an outer one",
        )
    inside = frozenset(order[plan.nest.position(trigger) :])
    if isinstance(source, Cache) and not inside <= source.inside:
        raise ScheduleError(
            f"the cache at {trigger} is filled from {source!r}, which is filled further inside",
            help="cache the array itself, or at an inner index",
        )
    return Cache(array, source, index, trigger, inside)


def _at_level(order: tuple[Index, ...], level: int) -> Index:
    if not 1 <= level <= len(order):
        raise ScheduleError(f"level {level} of {len(order)} loops", help="a level counts the loops inside, from 1")
    return order[-level]


def _largest(plan: Plan, array: Array, elements: int) -> Index:
    """Return the outermost index inside of which no more elements are touched than that."""
    best = None
    for level in range(1, len(plan.nest.order) + 1):
        inside = set(plan.nest.order[-level:])
        try:
            region = region_of(array, accesses_of(plan, array), [x for x in plan.nest.loops if x.index in inside])
        except ScheduleError:
            break
        if region.size > elements:
            break
        best = plan.nest.order[-level]
    if best is None:
        raise ScheduleError(f"no loop touches as few as {elements} elements of {array.name}")
    return best


def order_of(layout: Any, shape: tuple[int, ...], array: Array) -> tuple[int, ...]:  # Any: as `Cache.layout`
    """Return the modes of a cache from the one whose neighbours are neighbours in memory to the slowest."""
    modes = tuple(range(len(shape)))
    if layout is None:
        steps = array.strides
        known = [step if step is not None else 2**62 - mode for mode, step in enumerate(steps)]
        return tuple(sorted(modes, key=lambda mode: known[mode]))
    if isinstance(layout, ArrayLayout):
        return modes if layout is ArrayLayout.LAST_MAJOR else modes[::-1]
    given = layout if isinstance(layout, tuple) else tuple(layout[mode].stride for mode in modes)
    return tuple(sorted(modes, key=lambda mode: given[mode] if isinstance(given[mode], int) else 0))


def caches_at(plan: Plan, depth: int) -> Iterator[Cache]:
    """Yield the caches that are filled inside of so many serial loops, in the order in which they were asked for."""
    for cache in plan.caches:
        if cache.depth(plan) == depth:
            yield cache
