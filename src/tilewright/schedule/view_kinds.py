"""Each kind of view of an array: a projection onto what it views, or coordinates of its own.

A part, a slice, other orders of modes and modes cut into rows of a number of elements are projections. Elements of
another size, merged modes and rows whose length only the launch knows are a form of the memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, Dimension, Position, Size, affine_or_none
from tilewright.schedule.places import as_index
from tilewright.schedule.values import Convert, Expression, Number
from tilewright.schedule.views import Computed, Extent, Product, Projection, as_size, flat, key_of, plain


@dataclass(frozen=True)
class Seen:
    """What a view is: a projection onto a base, with a shape and an element type."""

    base: Any  # Any: an Array, which stands above
    projection: Projection
    shape: tuple[Extent, ...]
    element_type: DType


class Seeing:
    """Makes each kind of view of a parent; `name` is the view's, for messages."""

    def __init__(self, parent: Any, name: str) -> None:  # Any: an Array
        self.parent = parent
        self.name = name

    @property
    def rank(self) -> int:
        rank: int = self.parent.rank
        return rank

    def _seen(self, projection: Projection, shape: Sequence[Extent], element_type: DType | None = None) -> Seen:
        return Seen(self.parent.base, projection, tuple(shape), element_type or self.parent.element_type)

    def _mode(self, dim: Any) -> int:  # Any: checked here
        if isinstance(dim, bool) or not isinstance(dim, int) or not 0 <= dim < self.rank:
            raise ScheduleError(f"array {self.parent.name} has {self.rank} modes and no mode {dim!r}")
        return dim

    def sub_array(self, offsets: Any, shape: Any, strides: Any) -> Seen:  # Any: checked here
        starts, extents = self._each(offsets, "offsets"), self._each(shape, "shape")
        steps = (1,) * self.rank if not strides else self._each(strides, "strides")
        for mode, (start, extent, step) in enumerate(zip(starts, extents, steps, strict=True)):
            if isinstance(step, bool) or not isinstance(step, int) or step < 1:
                raise ScheduleError(
                    f"a part of {self.parent.name} has the stride {step!r}", help="whole numbers from 1"
                )
            if start is None:
                raise ScheduleError(
                    f"a part of {self.parent.name} begins at {offsets[mode]} in mode {mode}, which is not affine",
                    help="offsets are numbers, sizes, and affine expressions of indices",
                )
            self._refuse_outside(mode, start, extent, step)
        places = [affine_or_none(start) for start in starts]
        return self._seen(self.parent.projection.part(places, steps), extents)

    def _each(self, values: Any, what: str) -> tuple[Extent, ...]:  # Any: checked here
        if not isinstance(values, (tuple, list)) or len(values) != self.rank:
            raise ScheduleError(
                f"a part of {self.parent.name}, which has {self.rank} modes, is given {what}={values!r}",
                help="give one for each mode",
            )
        return tuple(_extent(value) for value in values)

    def _refuse_outside(self, mode: int, start: Extent, extent: Extent, step: int) -> None:
        """Raise `ScheduleError` for a part that begins or ends outside for certain, or has no elements."""
        first, whole = number_of_extent(start), number_of_extent(self.parent.shape[mode])
        many = number_of_extent(extent)
        if many is not None and many < 1:
            raise ScheduleError(f"a part of {self.parent.name} has {many} elements in mode {mode}", help="at least 1")
        last = None if first is None or many is None else first + (many - 1) * step
        if (first is not None and first < 0) or (last is not None and whole is not None and last >= whole):
            raise ScheduleError(
                f"a part of {self.parent.name} takes elements {first} to {last} of mode {mode}, which has "
                f"{self.parent.shape[mode]}",
                help="take a part that lies within the array",
            )

    def split_dimension(self, dim: Any, size: Any) -> Seen:  # Any: checked here
        mode, by = self._mode(dim), _extent(size)
        if isinstance(by, Affine) and all(isinstance(symbol, Dimension) for symbol in by.symbols()):
            by = Computed(by)
        extent = self.parent.shape[mode]
        number = number_of_extent(by)
        whole = number_of_extent(extent)
        if number is None and not isinstance(by, Dimension):
            raise ScheduleError(f"mode {mode} of {self.parent.name} is split by {size}", help="a number, or a size")
        if number is not None and (number < 1 or (whole is not None and whole % number)):
            raise ScheduleError(
                f"mode {mode} of {self.parent.name} has {extent} elements, which rows of {number} do not make up"
            )
        inner: Size = number if number is not None else by  # type: ignore[assignment]  # a Dimension
        rows = as_size((extent,), (inner,)) if isinstance(extent, (int, Dimension)) else None
        shape = [*self.parent.shape[:mode], rows, inner, *self.parent.shape[mode + 1 :]]
        if number is not None:
            return self._seen(self.parent.projection.split(mode, number), shape)
        step = self.parent.steps[mode]
        steps = [*self.parent.steps[:mode], (inner, *step), step, *self.parent.steps[mode + 1 :]]
        return self._form(shape, steps)

    def merge_dimensions(self, dim1: Any, dim2: Any) -> Seen:  # Any: checked here
        one, two = self._mode(dim1), self._mode(dim2)
        if abs(one - two) != 1:
            raise ScheduleError(f"modes {one} and {two} of {self.parent.name} are not neighbours")
        shape, steps = list(self._sizes()), list(self.parent.steps)
        slow, fast = min(one, two), max(one, two)
        if not _is_same(steps[slow], (shape[fast], *steps[fast])):
            slow, fast = fast, slow
            if not _is_same(steps[slow], (shape[fast], *steps[fast])):
                raise ScheduleError(
                    f"modes {one} and {two} of {self.parent.name}, of the shape {self.parent.shape}, do not follow one "
                    "another in memory"
                )
        merged, step = as_size((shape[slow], shape[fast])), steps[fast]
        at = min(one, two)
        return self._form([*shape[:at], merged, *shape[at + 2 :]], [*steps[:at], step, *steps[at + 2 :]])

    def slice(self, dims: Any, offsets: Any) -> Seen:  # Any: checked here
        if not (isinstance(dims, (tuple, list)) and isinstance(offsets, (tuple, list)) and len(dims) == len(offsets)):
            raise ScheduleError(
                f"a slice of {self.parent.name} fixes modes {dims!r} at {offsets!r}",
                help="a place for each of the modes",
            )
        at: dict[int, Affine] = {}
        for dim, offset in zip(dims, offsets, strict=True):
            place = affine_or_none(_extent(offset))
            if place is None:
                raise ScheduleError(f"a slice of {self.parent.name} is at {offset!r}, which is not affine")
            at[self._mode(dim)] = place
            self._refuse_outside(dim, place, 1, 1)
        rest = [mode for mode in range(self.rank) if mode not in at]
        shape = [self.parent.shape[mode] for mode in rest]
        return self._seen(self.parent.projection.fixed(at, self.rank), shape)

    def reorder_dimensions(self, order: Any) -> Seen:  # Any: checked here
        if not isinstance(order, (tuple, list)) or sorted(map(self._mode, order)) != list(range(self.rank)):
            raise ScheduleError(f"{order!r} is not an order of the {self.rank} modes of {self.parent.name}")
        return self._seen(self.parent.projection.reordered(order), [self.parent.shape[mode] for mode in order])

    def reshape(self, shape: Any) -> Seen:  # Any: checked here
        given = [as_size(self._sizes())] if isinstance(shape, (tuple, list)) and list(shape) == [-1] else shape
        extents = [] if not isinstance(given, (tuple, list)) else [_extent(extent) for extent in given]
        if not extents or not all(isinstance(extent, (int, Dimension)) for extent in extents):
            raise ScheduleError(f"{self.parent.name} is given the shape {shape!r}", help="numbers and sizes")
        old, steps = self._sizes(), self.parent.steps
        follows = all(_is_same(steps[m], tuple(old[m + 1 :])) for m in range(self.rank) if old[m] != 1)
        if not follows:
            raise ScheduleError(
                f"the elements of {self.parent.name}, of the shape {self.parent.shape}, are not contiguous by rows"
            )
        sizes: tuple[Size, ...] = tuple(extents)  # type: ignore[arg-type]  # checked above
        if not _is_same(sizes, old):
            counts = [plain(x) for x in (old, sizes)]
            if None not in counts:
                raise ScheduleError(f"{self.parent.name} has {counts[0]} elements, and the shape {shape} {counts[1]}")
            raise ScheduleError(
                f"{self.parent.name} has the shape {self.parent.shape}, and {shape} may have more or fewer elements",
                help="split_dimension cuts a mode into rows; the launch checks that they make it up",
            )
        if len(sizes) == self.rank and all(key_of(a) == key_of(b) for a, b in zip(sizes, old, strict=True)):
            return self._seen(self.parent.projection, old)
        return self._form(sizes, [tuple(sizes[mode + 1 :]) for mode in range(len(sizes))])

    def reinterpret_cast(self, element_type: Any) -> Seen:  # Any: an element type
        old = self.parent.element_type
        if "bool" in (old.name, element_type.name) and old is not element_type:
            raise ScheduleError(f"array {self.parent.name} is of {old} and is not seen as {element_type}")
        if old.bytes == element_type.bytes:
            return self._seen(self.parent.projection, self.parent.shape, element_type)
        sizes, steps = self._sizes(), list(self.parent.steps)
        if not sizes or not _is_same(steps[-1], ()):
            raise ScheduleError(
                f"the last mode of {self.parent.name} is not contiguous, so that {element_type} cannot be made of {old}"
            )
        start = self._start()
        if old.bytes > element_type.bytes:
            ratio = old.bytes // element_type.bytes
            last = as_size((sizes[-1], ratio))
            return self._form(
                [*sizes[:-1], last], [*((*step, ratio) for step in steps[:-1]), ()], element_type, start * ratio
            )
        ratio = element_type.bytes // old.bytes
        counts = [plain((sizes[-1],)), *(plain(step) for step in steps[:-1])]
        if start % ratio or any(count is not None and count % ratio for count in counts):
            raise ScheduleError(
                f"{self.parent.name}, of the shape {self.parent.shape} and from element {start} on, does not fall into "
                f"whole elements of {element_type}"
            )
        narrowed = [(as_size(step, (ratio,)),) for step in steps[:-1]]
        return self._form([*sizes[:-1], as_size((sizes[-1],), (ratio,))], [*narrowed, ()], element_type, start // ratio)

    def _sizes(self) -> tuple[Size, ...]:
        """Return the shape, all of sizes. Raises `ScheduleError` where it depends on indices."""
        for extent in self.parent.shape:
            if not isinstance(extent, (int, Dimension)):
                raise ScheduleError(
                    f"{self.parent.name} has the extent {extent}, which depends on indices",
                    help="change modes and types of the whole array, and take the part of that",
                )
        return tuple(self.parent.shape)

    def _start(self) -> int:
        """Return where the first element is in the memory, in elements. Raises `ScheduleError` where it depends."""
        place = self.parent.base.address(self.parent.projection.place((Affine((), 0),) * self.rank))
        if place is None and all(not offset.terms and not offset.constant for offset in self.parent.projection.offsets):
            first: int = self.parent.base.start
            return first
        if place is None or not place.is_constant:
            raise ScheduleError(
                f"{self.parent.name} begins where only the launch knows, or where indices say",
                help="change modes and types of the whole array, and take the part of that",
            )
        bytes: int = self.parent.element_type.bytes
        return int(place.constant) // bytes

    def _form(
        self,
        shape: Sequence[Any],  # Any: sizes
        steps: Sequence[Product],
        element_type: DType | None = None,
        start: int | None = None,
    ) -> Seen:
        """Return the view of all of a form, the one form of the memory that is like it."""
        memory, type = self.parent.memory, element_type or self.parent.element_type
        first = self._start() if start is None else start
        sizes = tuple(self._sizes() if shape is self.parent.shape else shape)
        for extent in sizes:
            if not isinstance(extent, (int, Dimension)):
                raise ScheduleError(f"{self.parent.name} has an extent that depends on indices: {self.parent.shape}")
        canonical = tuple(_canonical(step) for step in steps)
        if type is memory.element_type and first == 0 and _is_like(memory, sizes, canonical):
            return Seen(memory, Projection.whole(len(sizes)), sizes, type)
        key = type.name, first, tuple(map(key_of, sizes)), tuple(tuple(map(key_of, step)) for step in canonical)
        form = memory.form(key, self.name, type, sizes, canonical, first)
        return Seen(form, Projection.whole(form.rank), form.shape, type)


def _canonical(step: Product) -> Product:
    """Return a product with its number in front, and its sizes in the order of their making."""
    parts = flat(step)
    number = math.prod(x for x in parts if isinstance(x, int))
    sizes = sorted((x for x in parts if not isinstance(x, int)), key=lambda size: size.number)
    return (*((number,) if number != 1 or not sizes else ()), *sizes)


def _is_same(one: Product, other: Product) -> bool:
    """Whether two products are one for all values of the sizes in them."""
    return [key_of(x) for x in _canonical(one)] == [key_of(x) for x in _canonical(other)]


def _is_like(memory: Any, shape: tuple[Size, ...], steps: tuple[Product, ...]) -> bool:  # Any: an Array
    return (
        len(shape) == memory.rank
        and all(key_of(a) == key_of(b) for a, b in zip(shape, memory.shape, strict=True))
        and all(_is_same(a, b) for a, b in zip(steps, memory.steps, strict=True))
    )


def _extent(x: Any) -> Extent:  # Any: checked here
    """Return a size as an int, a Dimension or an affine expression; None for another expression."""
    while isinstance(x, Convert) and not x.dtype.is_float:
        x = x.value  # cast(4, int64) is 4
    if isinstance(x, Dimension):
        return x
    if isinstance(x, Number) and isinstance(x.value, int):
        return x.value
    if isinstance(x, Position):
        x = x.place
    place = as_index(x)
    if place is None:
        if isinstance(x, Expression):
            return None
        raise ScheduleError(f"{x!r} is not a place or an extent", help="numbers, sizes, and affine expressions")
    if place.is_constant:
        return place.constant
    if len(place.terms) == 1 and place.terms[0][1] == 1 and not place.constant:
        symbol = place.terms[0][0]
        return symbol if isinstance(symbol, Dimension) else place
    return place


def number_of_extent(x: Any) -> int | None:  # Any: an extent
    """Return an extent as a number, None where it is not known."""
    place = None if x is None else affine_or_none(x)
    return place.constant if place is not None and place.is_constant else None
