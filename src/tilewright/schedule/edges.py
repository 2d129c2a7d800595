"""Tiles of matrix instructions that reach beyond the iterations of a nest: which elements of a fragment are there.

A part's conditions say where its iterations end. Each one that a tile may cross depends on one index of the tile, so it
bounds the rows of one operand and of C, or the depth of both operands. Elements beyond are zero in fragments of A and B
and add nothing; those of C are neither read nor stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.errors import ScheduleError
from tilewright.ir.core import Space
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.arrays import Role
from tilewright.schedule.loop_nest import Access, Condition
from tilewright.schedule.plan_state import Tensorization
from tilewright.schedule.scope import Scope
from tilewright.trace.control import branch

Along = Sequence[tuple[Index, int]]  # indices of a tile, with the extents that they run through


class Guard:
    """The conditions of one tile of an operand, at the present values of the loops around."""

    def __init__(self, scope: Scope, conditions: tuple[Condition, ...], along: Along) -> None:
        self.scope = scope
        self.conditions = conditions
        self.along: tuple[tuple[Index, int], ...] = tuple(along)

    def __bool__(self) -> bool:
        """Whether some element may be missing."""
        return bool(self.conditions)

    def inside(self, coordinates: Sequence[Any]) -> Any:  # Any: numbers of host or device
        """Return whether an element of the tile is there."""
        places = {index: self._start(index) + x for (index, _), x in zip(self.along, coordinates, strict=True)}
        return self._hold(places)

    def whole(self) -> Any:  # Any: a condition of host or device
        """Return whether all elements of the tile are there."""
        holds: Any = True
        for condition in self.conditions:
            ends = {
                index: self._start(index) + (extent - 1 if condition.value.factor(index) < 0 else 0)
                for index, extent in self.along
            }
            holds = _both(holds, self._hold(ends, (condition,)))
        return holds

    def _hold(self, places: Mapping[Index, Any], conditions: tuple[Condition, ...] | None = None) -> Any:  # Any: above
        scope, outer = self.scope, self.scope.values
        scope.values = {**outer, **places}
        try:
            return scope.holds(self.conditions if conditions is None else conditions)
        finally:
            scope.values = outer

    def _start(self, index: Index) -> Any:  # Any: a number of host or device
        return self.scope.values.get(index, 0)


def guard_of(scope: Scope, tile: Tensorization, access: Access, moved: tuple[Affine, ...], along: Along) -> Guard:
    """Return the guard of what an access touches while indices of the tile run.

    `moved` is the access's place, or where a cache of fragments has put its tile: from the origin of the region on.
    """
    conditions = []
    for edge in tile.edges:
        if not any(edge.value.factor(index) for index, _ in along):
            continue
        here = edge if moved == access.place else _at(edge, access, moved, along)
        if may_fail(scope, here, along) and not _is_met_by_cache(scope, tile, access, edge):
            conditions.append(here)
    return Guard(scope, tuple(conditions), along)


def _at(edge: Condition, access: Access, moved: tuple[Affine, ...], along: Along) -> Condition:
    """Return a condition as one on where an element is in the array, and not on the loops inside of a cache."""
    for index, _ in along:
        for place, start in zip(access.place, moved, strict=True):
            step, factor = place.factor(index), edge.value.factor(index)
            if step and factor and factor % step == 0:
                times = factor // step
                return Condition(edge.value - times * place + times * start)
    raise ScheduleError(f"{access} cannot be cached in fragments across the boundary at which {edge}")


def may_fail(scope: Scope, condition: Condition, along: Along) -> bool:
    """Whether a condition may fail for some element of the tile."""
    value, low = condition.value, 0
    for index, extent in along:
        factor = value.factor(index)
        first, last = scope.ranges[index] if index in scope.values else (0, 0)
        if last is None:
            return True
        low += min(factor * first, factor * (last + extent - 1))
        value = value - factor * index
    least, _ = scope.bounds(value)
    return least is None or least + low < 0


def _is_met_by_cache(scope: Scope, tile: Tensorization, access: Access, edge: Condition) -> bool:
    """Whether shared memory holds what a fragment takes beyond an edge, so that no element is asked for.

    A cache is filled as far as the array reaches, with zeros beyond, and written back as far. Beyond an edge along rows
    that is not the array's end there are other elements of the array, whose products are not stored.
    """
    array = access.array
    tensor = scope.storage[array].tensor
    if tensor.engine.buffer.space is not Space.SHARED or array.role is Role.TEMP:
        return False
    if access is not tile.c and not edge.value.factor(tile.indices[2]):
        return True
    ends = [
        end
        for place, extent in zip(access.place, array.shape, strict=True)
        for end in (place, (extent - 1 if isinstance(extent, int) else Affine.of({extent: 1}, -1)) - place)
    ]
    return any(edge.value == end for end in ends)


def _both(one: Any, other: Any) -> Any:  # Any: conditions of host or device
    return other if one is True else one if other is True else one & other


def when_whole(guard: Guard, whole: Callable[[], None], masked: Callable[[], None]) -> None:
    """Emit `whole` where a tile is inside of its boundaries, and `masked` where it crosses one."""
    if not guard:
        whole()
        return
    branch(guard.whole(), whole, masked)
