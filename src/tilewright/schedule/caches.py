"""Caches: what a box of loops touches of an array, kept in faster memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.arch import VECTOR_BYTES
from tilewright.dtypes import DType, float32
from tilewright.errors import ScheduleError
from tilewright.layout import Layout
from tilewright.schedule.affine import Affine, Dimension, Division, Ends, Index, Quotient, Symbol, Term
from tilewright.schedule.arrays import Array, ArrayLayout, Load
from tilewright.schedule.loop_nest import Access, Loop
from tilewright.schedule.memory_spaces import Location as Location
from tilewright.schedule.memory_spaces import Strategy as Strategy
from tilewright.transactions import ROW


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

    `at` is the outermost loop whose accesses are kept, `trigger` the loop outside of which it is filled (None: inside
    of all loops), and `inside` are the loops that run between filling and writing back. `stages` counts the buffers. Of
    a cache whose `location_is_given` is False, and of one of `max_elements`, the plan decides the place when it is
    built. `tma` says whether TMA fills it,
    or stores the results that it holds; None where the plan decides.
    """

    array: Array
    source: Array | Cache
    at: Index | None
    trigger: Index | None
    inside: frozenset[Index]
    layout: Any = None  # Any: an Array.Layout, strides, or a Layout
    location: Location = Location.SHARED
    stages: int = 1
    through_registers: bool = False
    vectorize: bool | int = True
    strategy: Strategy = Strategy.STRIPED
    element_type: DType = float32
    max_elements: int | None = None
    trigger_is_given: bool = False
    thrifty: bool = False
    location_is_given: bool = True
    tma: bool | None = None

    @property
    def index(self) -> Index | None:
        """The outermost loop whose accesses are kept, None where `max_elements` decides which it is."""
        return self.at if self.max_elements is None else None

    @property
    def name(self) -> str:
        """The name in generated code: sA of A in shared memory, gA in global memory, rA in registers."""
        return {Location.SHARED: "s", Location.GLOBAL: "g"}.get(self.location, "r") + self.array.name

    @property
    def is_of_block(self) -> bool:
        """Whether all threads of a block share it."""
        return self.location in (Location.SHARED, Location.GLOBAL)

    @property
    def is_filled_in_bulk(self) -> bool:
        """Whether TMA fills it."""
        return bool(self.tma) and self.location is Location.SHARED

    @property
    def leaves_in_bulk(self) -> bool:
        """Whether TMA stores what it holds, results in fragments."""
        return bool(self.tma) and self.location is Location.MMA_FRAGMENT

    @property
    def is_ahead(self) -> bool:
        """Whether it is filled for later iterations while this one is computed."""
        return self.stages > 1 or self.through_registers

    def __repr__(self) -> str:
        kept = f"index={self.at}" if self.max_elements is None else f"max_elements={self.max_elements}"
        return f"Cache({self.array.name}, {self.location.name}, {kept})"


def region_of(
    array: Array,
    accesses: Iterable[Access],
    varying: Iterable[Loop],
    around: Iterable[Loop] = (),
    *,
    is_whole: bool = False,
) -> Region:
    """Return the least box of an array that accesses touch while some loops run through all of their iterations.

    `around` are the loops outside: what a quotient of their indices leaves over depends on their steps. What lies
    outside of the array is left out where the box does not move; `is_whole` keeps it.
    """
    loops = {loop.index: loop for loop in varying}
    steps_around: dict[Symbol, int] = {loop.index: loop.step for loop in around}
    origins: list[tuple[Affine, ...]] = []
    lows: list[list[int]] = []
    highs: list[list[int]] = []
    first: Access | None = None
    touched = list(accesses)
    for access in touched:
        parts = [
            _parts(mode, loops, access, steps_around, extent if isinstance(extent, int) else None)
            for mode, extent in zip(access.place, array.shape, strict=True)
        ]
        origin = tuple(start for start, _ in parts)
        first = first or access
        if origins and origin != origins[0]:
            raise ScheduleError(
                f"no one box holds what {first} and {access} touch: they move apart as the loops outside run",
                location=access.statement.location,
                help="cache at an outer index, inside of which both run through the same elements",
            )
        origins.append(origin)
        lows.append([low for _, (low, _) in parts])
        highs.append([high for _, (_, high) in parts])
    if first is None:
        raise ScheduleError(f"array {array.name} is not used in this plan")
    low = [min(mode) for mode in zip(*lows, strict=True)]
    high = [max(mode) for mode in zip(*highs, strict=True)]
    steps = []
    for mode, (least, most) in enumerate(zip(low, high, strict=True)):
        moves = [step for access in touched for step in _steps(access.place[mode], loops)]
        starts = [access.place[mode].constant - touched[0].place[mode].constant for access in touched]
        step = math.gcd(*moves, *starts) if most > least else 1
        steps.append(step)
        extent = array.shape[mode]
        if step and not is_whole and origins[0][mode].is_constant and isinstance(extent, int):
            # Blocks that do not divide a loop reach beyond its end, and no iteration is there.
            most = min(most, least + (extent - 1 - least) // step * step)
            least += -(min(least, 0) // step) * step
            low[mode], high[mode] = (least, most) if least <= most else (low[mode], low[mode])
    return Region(
        tuple(origin + least for origin, least in zip(origins[0], low, strict=True)),
        tuple((most - least) // step + 1 for least, most, step in zip(low, high, steps, strict=True)),
        tuple(steps),
    )


def _parts(
    mode: Affine, loops: dict[Index, Loop], access: Access, around: dict[Symbol, int], extent: int | None
) -> tuple[Affine, tuple[int, int]]:
    """Return what of a place moves with the loops outside, and the least and greatest value of all that is added.

    Of a quotient (o + v) // c, with v of the loops inside, o // c is the part that moves: what is added is v // c at
    least, and (v + r) // c at most, for the most that is left over of o. A remainder is from 0 to c - 1. Where only the
    launch knows how far a loop runs, and nothing moves from outside, it is to the end of the array: `extent`.
    """
    origin, low, high, is_open = Affine((), 0), mode.constant, mode.constant, False
    by_symbol: dict[Symbol, Loop] = {loop.index: loop for loop in loops.values()}
    for symbol, factor in mode.terms:
        inside = [x for x in _symbols(symbol) if x in loops]
        if not inside:
            origin = origin + Affine.of({symbol: factor})
            continue
        ends: Ends
        if isinstance(symbol, Term) and not isinstance(symbol, Division):
            raise ScheduleError(
                f"no box holds what {access} touches while {inside[0]} runs: {symbol.name} moves with it",
                location=access.statement.location,
                help="cache at an inner index, inside of which it stays as it is",
            )
        if isinstance(symbol, Division):
            outside = symbol.value.symbols() - set(loops)
            if outside and not isinstance(symbol, Quotient):
                ends = 0, symbol.divisor - 1
            else:
                start, (least, most) = _parts(symbol.value, loops, access, around, None)
                if start.terms:
                    origin = origin + factor * (start // symbol.divisor)
                    most += symbol.divisor - math.gcd(symbol.divisor, *(c * around.get(s, 1) for s, c in start.terms))
                ends = symbol.bounds(least, most)
        else:
            ends = 0, by_symbol[inside[0]].last
        is_linear = not any(isinstance(s, Term) or s not in loops for s, _ in mode.terms)
        if ends[1] is None and factor > 0 and is_linear and extent is not None:
            ends, is_open = (0, 0), True
        if ends[1] is None:
            raise ScheduleError(
                f"a cache of {Load(access.array, access.place)} inside of {symbol.name} has a size that only the "
                "launch knows",
                help=f"split {symbol.name}, and cache inside of its inner loop",
            )
        assert ends[0] is not None, symbol
        reach = factor * ends[0], factor * ends[1]
        low, high = low + min(reach), high + max(reach)
    if is_open and extent is not None:
        high = max(extent - 1, low)
    return origin, (low, high)


def _symbols(symbol: Symbol) -> set[Index | Dimension]:
    return symbol.symbols() if isinstance(symbol, Term) else {symbol}


def _steps(mode: Affine, loops: dict[Index, Loop]) -> Iterator[int]:
    """Yield the distances of which all moves of a place consist while the loops run."""
    by_symbol: dict[Symbol, Loop] = {loop.index: loop for loop in loops.values()}
    for symbol, factor in mode.terms:
        if isinstance(symbol, Term):
            yield from (factor for _ in symbol.symbols() & set(loops))
        elif symbol in loops:
            yield factor * by_symbol[symbol].step


def order_of(layout: Any, shape: tuple[int, ...], array: Array) -> tuple[int, ...]:  # Any: as `Cache.layout`
    """Return the modes of a cache from the one whose neighbours are neighbours in memory to the slowest."""
    modes = tuple(range(len(shape)))
    if layout is None:
        steps = array.strides
        known = [step if step is not None else 2**62 - mode for mode, step in enumerate(steps)]
        return tuple(sorted(modes, key=lambda mode: known[mode]))
    if isinstance(layout, ArrayLayout):
        return modes if layout is ArrayLayout.LAST_MAJOR else modes[::-1]
    strides = layout if isinstance(layout, tuple) else tuple(layout[mode].stride for mode in modes)
    return tuple(sorted(modes, key=lambda mode: strides[mode] if isinstance(strides[mode], int) else 0))


def static_layout(cache: Cache, region: Region) -> Layout:
    """Return the layout of a cache that the user gave, or the compact one in the array's order."""
    if isinstance(cache.layout, Layout):
        return cache.layout
    if isinstance(cache.layout, tuple):
        return Layout(region.shape, cache.layout)
    steps, step = [0] * len(region.shape), 1
    for mode in order_of(cache.layout, region.shape, cache.array):
        steps[mode] = step
        step *= region.shape[mode]
    return Layout(region.shape, tuple(steps))


def elements_of(cache: Cache, region: Region) -> int:
    """Return how many elements of memory a block's buffers take in a plain layout: each begins where a copy may."""
    unit = max((ROW if cache.is_filled_in_bulk else VECTOR_BYTES) // cache.element_type.bytes, 1)
    size = static_layout(cache, region).cosize
    assert isinstance(size, int), cache
    return -(-size // unit) * unit * cache.stages
