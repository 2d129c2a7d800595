"""Where accesses of an array go while a kernel is built: the array itself, or the cache that holds its elements now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.schedule.affine import Affine
from tilewright.schedule.arrays import Array


@dataclass(frozen=True)
class Storage:
    """A tensor that holds the elements of an array from `origin` on.

    `tensor` has the modes of the array. A number of the launch (an array without modes) is held as it is.
    """

    array: Array
    tensor: Any  # Any: a Tensor, or a device number for an array without modes
    origin: tuple[Affine, ...]

    def place(self, place: tuple[Affine, ...]) -> tuple[Affine, ...]:
        """Return where an element stands in the tensor."""
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
        found = tuple(mode.evaluate(values) for mode in self.place(place))
        return found if len(found) != 1 else found[0]
