"""Where accesses of an array go while a kernel is built: the array itself, or the cache that holds its elements now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.errors import ScheduleError
from tilewright.layout import ComposedLayout, Layout, coalesce, composition, make_layout
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.arrays import Array
from tilewright.schedule.expressions import Load
from tilewright.tensors import Tensor


class Storage:
    """A tensor that holds the elements of an array from `origin` on, those that lie `steps` apart.

    `tensor` has the modes of the array. A number of the launch (an array without modes) is held as it is.
    """

    def __init__(
        self,
        array: Array,
        tensor: Any,  # Any: a Tensor, or a device number for an array without modes
        origin: tuple[Affine, ...],
        steps: tuple[int, ...] = (),  # 1 in each mode where none are given
    ) -> None:
        self.array, self.tensor, self.origin, self.steps = array, tensor, origin, steps

    def place(self, place: tuple[Affine, ...]) -> tuple[Affine, ...]:
        """Return how far from the origin an element stands in the array."""
        return tuple(mode - start for mode, start in zip(place, self.origin, strict=True))

    def load(self, place: tuple[Affine, ...], values: Mapping[Any, Any]) -> Any:  # Any: symbols; device numbers
        """Return an element."""
        if not place:
            return self.tensor
        return self.tensor[self.coordinates(place, values)]

    def store(self, place: tuple[Affine, ...], values: Mapping[Any, Any], value: Any) -> None:  # Any: as in load
        """Write an element, converted to the tensor's type."""
        self.tensor[self.coordinates(place, values)] = value

    def coordinates(self, place: tuple[Affine, ...], values: Mapping[Any, Any]) -> Any:  # Any: as in load
        """Return the coordinates of an element in the tensor."""
        found = tuple(
            _quotient(mode, step, values)
            for mode, step in zip(self.place(place), self.steps or (1,) * len(place), strict=True)
        )
        return found if len(found) != 1 else found[0]


def _joined(mode: Layout | ComposedLayout) -> Layout:
    """Return a mode whose parts are joined where they lie in line; one of an array is whole as it is."""
    assert isinstance(mode, Layout), mode
    if not isinstance(mode.shape, tuple):
        return mode
    found: Layout = coalesce(mode)
    return found


def _quotient(place: Affine, step: int, values: Mapping[Any, Any]) -> Any:  # Any: symbols; device numbers
    """Return place / step, which is a whole number."""
    if all(factor % step == 0 for _, factor in place.terms) and place.constant % step == 0:
        return Affine.of({s: factor // step for s, factor in place.terms}, place.constant // step).evaluate(values)
    return place.evaluate(values) // step


def tile_view(
    storage: Storage,
    place: tuple[Affine, ...],
    along: Sequence[tuple[Index, int]],
    values: Mapping[Any, Any],  # Any: symbols; numbers of host or device
    divisor: Callable[[Affine], int],
) -> Tensor:
    """Return what an access touches while some indices run: a tensor with a mode for each of them, in their order.

    `along` gives the indices with their extents; `values` where they begin and what the others are. `divisor` says what
    divides an expression. Raises `ScheduleError` where the elements lie in no layout of those modes.
    """
    tensor: Tensor = storage.tensor
    if any(step != 1 for step in storage.steps):
        raise ScheduleError(f"{Load(storage.array, place)} is cached with gaps, and no matrix instruction reads it")
    inner = tensor.layout.inner if isinstance(tensor.layout, ComposedLayout) else tensor.layout
    modes = [_joined(inner[d]) for d in range(inner.rank)]
    coordinates = storage.place(place)
    tile = []
    for index, extent in along:
        moving = [(d, c) for d, at in enumerate(coordinates) if (c := at.factor(index))]
        if all(modes[d].rank == 1 and not isinstance(modes[d].shape, tuple) for d, _ in moving):
            step: Any = 0
            for d, factor in moving:
                step = step + factor * modes[d].stride
            tile.append(Layout(extent, step))
            continue
        d, factor = moving[0]
        start = coordinates[d] - factor * index
        if len(moving) > 1 or factor < 0 or divisor(start) % (factor * extent):
            raise ScheduleError(
                f"{Load(storage.array, place)} moves with {index} across the blocks of a layout of shared memory",
                help="give the cache a plain layout: layout=Array.Layout.FIRST_MAJOR",
            )
        tile.append(composition(modes[d], Layout(extent, factor)))
    offset: Any = 0
    for mode, at in zip(modes, coordinates, strict=True):
        offset = offset + mode(at.evaluate(values))
    layout = make_layout(*tile)
    if isinstance(tensor.layout, ComposedLayout):
        return Tensor(tensor.engine, ComposedLayout(tensor.layout.outer, tensor.layout.offset + offset, layout))
    engine = tensor.engine if isinstance(offset, int) and offset == 0 else tensor.engine.offset(offset)
    return Tensor(engine, layout)
