"""Elements of arrays in the logic of a nest: what is read, and what is recorded as written."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, recording
from tilewright.schedule.values import Expression, Guard, expression
from tilewright.source import SourceLocation
from tilewright.trace.tracer import locate


@dataclass(frozen=True, eq=False)
class Element:
    """An array or view, and the indices of an element of it."""

    named: Any  # Any: an Array, which stands above its elements
    indices: tuple[Affine, ...]

    @property
    def array(self) -> Any:  # Any: as named
        """The base: the array that is accessed."""
        return self.named.base

    @cached_property
    def place(self) -> tuple[Affine, ...]:
        """Where in the base."""
        return _place(self.named, self.indices)

    @property
    def element_type(self) -> DType:
        """The type of the element as it is seen."""
        type: DType = self.named.element_type
        return type


class Load(Element, Expression):
    """The element of an array at indices; of a view, an element of its base."""

    def loads(self) -> Iterator[Load]:
        """Yield itself."""
        yield self

    def __str__(self) -> str:
        return element_text(self.named, self.indices)


def element_text(array: Any, indices: tuple[Affine, ...]) -> str:  # Any: as in Element
    """Return an element as text: of a view of the same type, by its place in the memory."""
    if not array.is_waiting and array.base is not array and array.element_type is array.base.element_type:
        return element_text(array.base, _place(array, indices))
    name: str = array.name
    return name if array.is_number or not indices else f"{name}[{', '.join(map(str, indices))}]"


def _place(array: Any, indices: tuple[Affine, ...]) -> tuple[Affine, ...]:  # Any: as in Element
    place: tuple[Affine, ...] = indices if array.base is array else array.projection.place(indices)
    return place


@dataclass(frozen=True, eq=False)
class Store(Element):
    """named[indices] = value, at a line of the user's; of a view, an element of its base."""

    value: Expression
    location: SourceLocation | None
    guards: tuple[Guard, ...] = ()


def record(
    logic: Callable[[], Any], extents: Mapping[Any, Any] | None = None
) -> list[Store]:  # Any: whatever the user's logic returns, which is nothing; indices; numbers and sizes
    """Run a nest's logic once on its indices, which run to `extents`, and return what it stores, in order."""
    outer = recording.stores, recording.guards, recording.extents
    recording.stores, recording.guards, recording.extents = [], (), extents
    try:
        logic()
        return recording.stores
    finally:
        recording.stores, recording.guards, recording.extents = outer


def record_store(array: Any, place: tuple[Affine, ...], value: Any) -> None:  # Any: as in Element; an expression
    """Record `array[place] = value`. Raises `ScheduleError` outside of a nest's logic."""
    if recording.stores is None:
        raise ScheduleError(
            f"array {array.name} is written outside of a nest's logic",
            help="write it in a function decorated with @nest.iteration_logic",
        )
    location = locate(sys._getframe(2))
    if location is not None:  # what called the logic is this library and says nothing
        location = replace(location, inlined_at=None)
    recording.stores.append(Store(array, place, expression(value), location, recording.guards))
