"""Loops that blocks, threads, warps and warpgroups run through: grids, blocks, and each index from its number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.arch import MAX_BLOCK, MAX_GRID
from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Index
from tilewright.schedule.loop_nest import Loop, LoopNest
from tilewright.schedule.targets import GridUnit, Target

_AXES = {"": 0, "X": 0, "Y": 1, "Z": 2}
WARPGROUP = 128  # threads


@dataclass(frozen=True)
class Binding:
    """Loops that one unit of the grid runs through together, the last of which varies fastest."""

    unit: GridUnit
    loops: tuple[Loop, ...]

    @property
    def indices(self) -> tuple[Index, ...]:
        return tuple(loop.index for loop in self.loops)

    @property
    def kind(self) -> str:
        """What runs through the loops: "BLOCK", "THREAD", "WARP" or "WARPGROUP"."""
        return self.unit.name.partition("_")[0]

    @property
    def axis(self) -> int:
        """The axis of the unit: 0 for X, 1 for Y, 2 for Z; warpgroups have X alone."""
        return _AXES[self.unit.name.partition("_")[2]]

    @property
    def extent(self) -> int | None:
        """How many blocks, threads or warps there are, None where only the launch knows."""
        total = 1
        for loop in self.loops:
            if loop.trips is None:
                return None
            total *= loop.trips
        return total

    def count(self, sizes: Mapping[Any, Any]) -> Any:  # Any: numbers of host or device
        """Return how many there are, for sizes that the device knows."""
        total: Any = 1
        for loop in self.loops:
            trips = loop.trips
            total = total * ((loop.stop.evaluate(sizes) + (loop.step - 1)) // loop.step if trips is None else trips)
        return total

    def extent_for(self, sizes: Mapping[Any, int]) -> int:  # Any: dimensions
        """Return how many there are for given sizes of the launch."""
        total = 1
        for loop in self.loops:
            total *= max(-(-loop.stop.evaluate(sizes) // loop.step), 0)
        return total

    def values(self, number: Any, sizes: Mapping[Any, Any]) -> dict[Index, Any]:  # Any: numbers of the device
        """Return each index for the number of a block, thread or warp."""
        values: dict[Index, Any] = {}
        for place, loop in reversed(list(enumerate(self.loops))):
            trips = loop.trips
            if trips is None:
                trips = (loop.stop.evaluate(sizes) + (loop.step - 1)) // loop.step
            iteration = number if place == 0 else number % trips
            number = number if place == 0 else number // trips
            if isinstance(trips, int) and trips == 1:
                iteration = 0
            values[loop.index] = iteration * loop.step
        return values


def bind(
    nest: LoopNest,
    bindings: tuple[Binding, ...],
    mapping: Mapping[Index | tuple[Index, ...], GridUnit],
    target: Target,
    *,
    producer: bool = False,
) -> tuple[Binding, ...]:
    """Return the bindings with more of them. Raises `ScheduleError` as `Plan.bind` says."""
    bound = list(bindings)
    for key, unit in mapping.items():
        if not isinstance(unit, GridUnit):
            raise ScheduleError(f"bind to {unit!r}", help="bind to target.GridUnit.BLOCK_X, THREAD_X, WARP_X, ...")
        indices = key if isinstance(key, tuple) else (key,)
        if not indices or len(set(indices)) < len(indices):
            raise ScheduleError(
                f"{unit.name} is bound to ({', '.join(map(str, indices))})",
                help="name one loop or several, each of them once",
            )
        for binding in bound:
            if binding.unit is unit:
                raise ScheduleError(
                    f"{unit.name} is bound to {_names(binding.indices)} and to {_names(indices)}",
                    help=f"bind a tuple: {{({_names(binding.indices)}, {_names(indices)}): {unit.name}}}",
                )
            for index in indices:
                if index in binding.indices:
                    raise ScheduleError(f"{index} is bound to {binding.unit.name} and to {unit.name}")
        bound.append(Binding(unit, tuple(nest.loop(index) for index in indices)))
    kinds = {binding.kind for binding in bound}
    if {"WARP", "THREAD"} <= kinds:
        raise ScheduleError(
            "loops are bound to threads and to warps",
            help="WARP_X and WARP_Y count whole warps: bind to one of the two",
        )
    if "WARPGROUP" in kinds or producer:
        _check_warpgroups(kinds, target, producer)
    _check_limits(bound, target, producer)
    return tuple(bound)


def _check_warpgroups(kinds: set[str], target: Target, producer: bool) -> None:
    """Raise `ScheduleError` where a target has no warpgroups that multiply, or threads or warps are bound as well."""
    what = "a producer" if producer else "WARPGROUP"
    if target.arch.name != "sm_90a":
        raise ScheduleError(
            f"bind to {what}: {target.arch.name} has no matrix instructions of warpgroups; they need sm_90a",
            help="plan for Target('NVIDIA H100'), or bind to WARP_X and WARP_Y",
        )
    for kind in ("WARP", "THREAD"):
        if kind in kinds:
            raise ScheduleError(
                f"loops are bound to {kind}_X or {kind}_Y, and warpgroups are bound as well",
                help="WARPGROUP counts whole warpgroups, of four warps each: bind to it alone",
            )


def _check_limits(bindings: list[Binding], target: Target, producer: bool) -> None:
    for binding in bindings:
        if binding.kind != "BLOCK" and binding.extent is None:
            raise ScheduleError(
                f"{binding.unit.name} is bound to {_names(binding.indices)}, whose extent only the launch knows",
                help="split the loop, and bind the inner one, whose extent is known",
            )
        limit = MAX_GRID[binding.axis] if binding.kind == "BLOCK" else MAX_BLOCK[binding.axis]
        if binding.extent is not None and binding.extent > limit:
            raise ScheduleError(f"{binding.unit.name} has an extent of {binding.extent}; at most {limit} are possible")
    block = block_of(tuple(bindings), target, producer=producer)
    threads = block[0] * block[1] * block[2]
    if threads > target.max_threads_per_block:
        raise ScheduleError(
            f"a block of {block} is {threads} threads; {target.name} has at most {target.max_threads_per_block}",
            help="split the loops that are bound to threads by less",
        )


def block_of(
    bindings: tuple[Binding, ...],
    target: Target,
    *,
    warps: bool = False,
    warpgroups: bool = False,
    producer: bool = False,
) -> tuple[int, int, int]:
    """Return the threads of a block along each axis.

    `warps` and `warpgroups` say that a block without bound threads is one of them; a producer is a warpgroup more.
    """
    block = [1, 1, 1]
    if warpgroups or producer or any(binding.kind == "WARPGROUP" for binding in bindings):
        count = next((binding.extent or 1 for binding in bindings if binding.kind == "WARPGROUP"), 1)
        return WARPGROUP * (count + producer), 1, 1
    uses_warps = warps or any(binding.kind == "WARP" for binding in bindings)
    for binding in bindings:
        if binding.kind != "BLOCK":
            block[binding.axis] = binding.extent or 1
    if uses_warps and not any(binding.kind == "THREAD" for binding in bindings):
        block[0] *= target.warp_size
    return block[0], block[1], block[2]


def grid_of(bindings: tuple[Binding, ...], sizes: Mapping[Any, int]) -> tuple[int, int, int]:  # Any: dimensions
    """Return the blocks of the grid along each axis."""
    grid = [1, 1, 1]
    for binding in bindings:
        if binding.kind == "BLOCK":
            grid[binding.axis] = binding.extent_for(sizes)
    return grid[0], grid[1], grid[2]


def _names(indices: tuple[Index, ...]) -> str:
    return ", ".join(index.name for index in indices)
