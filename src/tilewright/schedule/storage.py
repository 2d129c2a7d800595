"""Where accesses of an array go while a kernel is built: the array itself, or the cache that holds its elements now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.schedule.affine import Affine
from tilewright.schedule.arrays import Array


@dataclass(frozen=True)
class Storage:
    """A tensor that holds the elements of an array from `origin` on, those that lie `steps` apart.

    `tensor` has the modes of the array. A number of the launch (an array without modes) is held as it is.
    """

    array: Array
    tensor: Any  # Any: a Tensor, or a device number for an array without modes
    origin: tuple[Affine, ...]
    steps: tuple[int, ...] = ()  # 1 in each mode where none are given

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


def _quotient(place: Affine, step: int, values: Mapping[Any, Any]) -> Any:  # Any: symbols; device numbers
    """Return place / step, which is a whole number."""
    if all(factor % step == 0 for _, factor in place.terms) and place.constant % step == 0:
        return Affine.of({s: factor // step for s, factor in place.terms}, place.constant // step).evaluate(values)
    return place.evaluate(values) // step
