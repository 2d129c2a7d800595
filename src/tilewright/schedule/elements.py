"""Elements of arrays in the logic of a nest: what is read, and what is recorded as written."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilewright.dtypes import DType, int32, int64
from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, Ends, Term, recording
from tilewright.schedule.places import as_index
from tilewright.schedule.values import Apply, Convert, Expression, Guard, expression
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

    def types(self) -> Iterator[DType]:
        yield self.element_type

    def __str__(self) -> str:
        return element_text(self.named, self.indices)


class Gathered(Term):
    """The value of an element, as a term of the place of another one: what it is only the kernel knows.

    Of its value nothing is known, so that accesses which move with it count as of any element. `parts` are the indices
    of the element.
    """

    has_operator = False
    __slots__ = ("load",)

    def __init__(self, load: Load) -> None:
        self.load: Load = load
        self.parts: tuple[Affine, ...] = load.indices
        symbols = [s for mode in load.indices for s, _ in mode.terms]
        last: tuple[int, ...] = max((s.number for s in symbols), default=())
        texts = [n for mode in load.indices for s, c in mode.terms for n in (c, *s.number, -1)]
        self.number: tuple[int, ...] = (
            *last,
            ord("["),
            *load.named.number,
            *(mode.constant for mode in load.indices),
            *texts,
        )

    @property
    def name(self) -> str:
        return str(self.load)

    def of(self, *parts: Affine) -> Affine:
        """Return the element at other indices."""
        return gathered(Load(self.load.named, parts))

    def evaluate(self, values: Mapping[Any, Any]) -> Any:  # Any: numbers of the host or of a device
        """Return the element, as `values[READ]` reads it."""
        return values[READ](self.load, values)

    def ends(self, known: Callable[[Any], Ends]) -> Ends:  # Any: an index or a size
        """Return what the type of the element says: 0 for one that has no sign."""
        return (0 if self.load.element_type.kind == "uint" else None), None

    def __reduce__(self) -> tuple[Any, ...]:
        return _gathered_of, (self.load,)


READ = "read"  # among the values of symbols: what reads an element
_gathered: weakref.WeakValueDictionary[Any, Gathered] = weakref.WeakValueDictionary()  # Any: what tells them apart


def gathered(load: Load) -> Affine:
    """Return the value of an element as a place."""
    return Affine(((_gathered_of(load), 1),), 0)


def _gathered_of(load: Load) -> Gathered:
    key = (load.named, tuple((mode.terms, mode.constant) for mode in load.indices))
    return _gathered.setdefault(key, Gathered(load))


def with_arrays(place: Affine, arrays: Mapping[Any, Any]) -> Affine:  # Any: arrays, and what stands in their place
    """Return a place whose elements are those of other arrays."""
    total = place
    for symbol, factor in place.terms:
        if isinstance(symbol, Term):
            parts = tuple(with_arrays(part, arrays) for part in symbol.parts)
            is_read = isinstance(symbol, Gathered)
            named = arrays.get(symbol.load.named, symbol.load.named) if isinstance(symbol, Gathered) else None
            moved = gathered(Load(named, parts)) if is_read else symbol.of(*parts)
            total = total + factor * (moved - Affine.of({symbol: 1}))
    return total


def index_loads(places: Iterable[Any]) -> Iterator[Load]:  # Any: places, and what waits for a parameter
    """Yield the elements whose values are in places, each after those in its own."""
    known = (place for place in places if isinstance(place, Affine))
    found = (symbol for place in known for symbol in place.nonlinear() if isinstance(symbol, Gathered))
    for symbol in dict.fromkeys(found):
        yield from index_loads(symbol.load.indices)
        yield symbol.load


def read_index(x: Any) -> Affine | None:  # Any: asks what it is
    """Return what says where an element is read: as `as_index`, and elements of whole numbers in it."""
    place = as_index(x)
    if place is not None or not isinstance(x, Expression):
        return place
    if isinstance(x, Load):
        return gathered(x) if x.element_type.kind in ("int", "uint") else None
    if isinstance(x, Convert) and x.dtype in (int32, int64):
        return read_index(x.value)
    if isinstance(x, Apply) and x.name in ("+", "-", "*") and len(x.arguments) == 2:
        first, second = map(read_index, x.arguments)
        if first is None or second is None or (x.name == "*" and first.terms and second.terms):
            return None
        total: Affine = first + second if x.name == "+" else first - second if x.name == "-" else first * second
        return total
    return None


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
