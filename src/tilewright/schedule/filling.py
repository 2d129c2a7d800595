"""Caches in a kernel that is built: their memory, how they are filled, and how they are written back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.errors import ScheduleError
from tilewright.ir.core import Space
from tilewright.language.copying import copy
from tilewright.layout import ComposedLayout, Layout
from tilewright.schedule.affine import Affine, Dimension, Index
from tilewright.schedule.caches import Cache, Region, order_of, static_layout
from tilewright.schedule.scope import Scope, Storage
from tilewright.tensors import Tensor
from tilewright.trace.carry import rename
from tilewright.trace.control import branch, nest
from tilewright.trace.engine import BufferEngine
from tilewright.trace.memory import registers
from tilewright.trace.scalar import Scalar, as_scalar


class Filling:
    """What filling a cache and writing it back need, wherever it lives: its region, and what it is filled from.

    `guards` are the modes whose elements may lie outside of the array, below 0 or beyond its extent.
    """

    def __init__(self, scope: Scope, cache: Cache) -> None:
        self.scope = scope
        self.cache = cache
        self.region: Region = scope.plan.region(cache)
        self.outer: Storage | None = scope.storage.get(cache.array)
        if cache.is_of_block and self.outer is not None and is_private(self.outer.tensor):
            raise ScheduleError(
                f"{cache!r} would be filled from registers, which each thread has of its own",
                help="cache in shared memory outside, and in registers inside of it",
            )
        self.order: tuple[int, ...] = order_of(cache.layout, self.region.shape, cache.array)
        self.guards: tuple[int, ...] = tuple(mode for mode in range(len(self.region.shape)) if self._may_leave(mode))

    def _may_leave(self, mode: int) -> bool:
        low, high = self.scope.bounds(self.region.origin[mode])
        extent = self.cache.array.shape[mode]
        if low is None or low < 0:
            return True
        if high is not None and isinstance(extent, int):
            return high + (self.region.shape[mode] - 1) * self.region.steps[mode] >= extent
        # A loop that counts to a size of the launch by blocks may stop in the middle of one; by ones, it cannot.
        return self.region.origin[mode].terms == () or self.region.shape[mode] > 1 or not self._within(mode)

    def _within(self, mode: int) -> bool:
        """Whether the only index of the origin runs to the very extent of the array by ones."""
        origin, extent = self.region.origin[mode], self.cache.array.shape[mode]
        if len(origin.terms) != 1 or origin.constant or not isinstance(extent, Dimension):
            return False
        symbol, factor = origin.terms[0]
        return isinstance(symbol, Index) and factor == 1 and self.scope.plan.nest.loop(symbol).stop == (extent + 0)

    def inside(self, coordinates: tuple[Any, ...]) -> Any:  # Any: numbers of host or device
        """Return whether an element of the region is one of the array."""
        holds: Any = True
        for mode in self.guards:
            start = self.region.origin[mode].evaluate(self.scope.values)
            place = start + coordinates[mode] * self.region.steps[mode]
            extent = self.cache.array.shape[mode]
            limit = self.scope.values[extent] if isinstance(extent, Dimension) else extent
            tests = [place < limit]
            if (low := self.scope.bounds(self.region.origin[mode])[0]) is None or low < 0:
                tests.append(place >= 0)
            for test in tests:
                holds = test if holds is True else holds & test if test is not True else holds
        return holds

    def source_view(self) -> Tensor:
        """Return the region's elements where they are cached from."""
        assert self.outer is not None, self.cache
        tensor: Tensor = self.outer.tensor
        start = self.outer.coordinates(self.region.origin, self.scope.values)
        start = start if isinstance(start, tuple) else (start,)
        if isinstance(tensor.layout, ComposedLayout):
            raise ScheduleError(
                f"{self.cache!r} is filled from {self.cache.source!r}, whose elements lie swizzled",
                help="give the outer cache a layout: Array.Layout.FIRST_MAJOR",
            )
        strides = tensor.layout.stride if isinstance(tensor.layout.stride, tuple) else (tensor.layout.stride,)
        offset: Any = 0
        for first, step in zip(start, strides, strict=True):
            offset = offset + first * step
        engine = tensor.engine if isinstance(offset, int) and offset == 0 else tensor.engine.offset(offset)
        apart = zip(strides, self.region.steps, self.outer.steps or (1,) * len(start), strict=True)
        return Tensor(engine, Layout(self.region.shape, tuple(d * max(step // by, 1) for d, step, by in apart)))

    def storage(self, tensor: Tensor) -> Storage:
        """Return the storage that accesses go to once the cache is filled."""
        return Storage(self.cache.array, tensor, self.region.origin, self.region.steps)


def is_private(tensor: Tensor) -> bool:
    """Whether a tensor lives in the registers of each thread."""
    return not isinstance(tensor.engine, BufferEngine) or tensor.engine.buffer.space is Space.REGISTER


class PrivateCache(Filling):
    """A cache in the registers of each thread."""

    def allocate(self) -> Tensor:
        """Return its registers, in the cache's layout."""
        tensor = registers(self.cache.element_type, static_layout(self.cache, self.region))
        rename(self.cache.name, tensor)
        return tensor

    def fill(self, tensor: Tensor, when: Any = True) -> None:  # Any: a condition of host or device
        """Read the region into registers; zeros where the array has ended, or not `when`."""
        view = self.source_view()
        if self._is_plain(view, tensor):
            copy(view, tensor, pred=None if when is True else when)
            return

        def element(place: tuple[Any, ...]) -> None:  # Any: device numbers
            def read() -> None:
                tensor[place] = as_scalar(view[place], None).to(self.cache.element_type)

            inside = self.inside(place)
            holds = inside if when is True else when if inside is True else inside & when
            branch(holds, read, lambda: tensor.__setitem__(place, 0))

        each(self.region.shape, self.order, element)

    def flush(self, tensor: Tensor) -> None:
        """Write the region back as far as the array reaches."""
        view = self.source_view()
        if self._is_plain(view, tensor):
            copy(tensor, view)
            return

        def element(place: tuple[Any, ...]) -> None:  # Any: device numbers
            def write() -> None:
                view[place] = as_scalar(tensor[place], None).to(view.dtype)

            branch(self.inside(place), write)

        each(self.region.shape, self.order, element)

    def _is_plain(self, view: Tensor, tensor: Tensor) -> bool:
        """Whether all elements are there and of one type, so that they move as wide as alignment allows."""
        return not self.guards and view.dtype is tensor.dtype and not is_private(view)


def each(shape: tuple[int, ...], order: tuple[int, ...], body: Callable[[tuple[Any, ...]], None]) -> None:
    """Emit a body for each coordinate of a box, by unrolled loops, the first mode of `order` innermost."""
    outermost_first = order[::-1]

    def inside(*indices: Any) -> None:  # Any: numbers of host or device
        places = dict(zip(outermost_first, indices, strict=True))
        body(tuple(places[mode] for mode in range(len(shape))))

    nest([shape[mode] for mode in outermost_first], inside, unroll=True)


def divisor_of(value: Any) -> int:  # Any: a number of host or device
    """Return a number that is known to divide a value, 0 for 0."""
    if isinstance(value, Scalar):
        facts = value.value.facts
        return 1 if facts is None else facts.divisor
    return abs(int(value))


def divisor_of_affine(scope: Scope, place: Affine, by: int = 1) -> int:
    """Return a number that is known to divide an expression of the loops over a number that divides it, 0 for 0."""
    if place.constant % by or any(factor % by for _, factor in place.terms):
        return 1
    divisor = abs(place.constant)
    for symbol, factor in place.terms:
        step = (
            scope.plan.nest.loop(symbol).step if isinstance(symbol, Index) else divisor_of(scope.values.get(symbol, 1))
        )
        divisor = math.gcd(divisor, factor * step)
    return divisor // by
