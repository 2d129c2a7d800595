"""Arrays of a nest: what they are for, their types, shapes and layouts, and reads and writes of their elements."""

from __future__ import annotations

import enum
import keyword
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from tilewright.arguments import text
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, Dimension, Numbered, Size, as_index, next_number, recording
from tilewright.schedule.naming import assigned_names
from tilewright.schedule.parameters import Delayed
from tilewright.schedule.values import Expression, Guard, expression
from tilewright.source import SourceLocation
from tilewright.trace.tracer import locate


class Role(enum.Enum):
    """What an array is for."""

    INPUT = "input"  # read
    INPUT_OUTPUT = "input_output"  # read and written
    OUTPUT = "output"  # written; what was in it does not matter
    CONST = "const"  # data that belongs to the kernel
    TEMP = "temp"  # lives only while the kernel runs


_Role = Role  # `Array.Role` is it, under the same name


class ArrayLayout(enum.Enum):
    """The order of an array in memory: the first index varies slowest (row-major) or fastest (column-major)."""

    FIRST_MAJOR = "first"
    LAST_MAJOR = "last"


class Array(Numbered):
    """An array that the logic of a nest reads or writes: element (i, j, ...) at i * strides[0] + j * strides[1] + ...

    `role` says what it is for, `element_type` is a tilewright dtype or what `tw.dtype` takes (tfloat32, which tensor
    cores read of a float32, is kept as float32), `shape` has an int or a `Dimension` for each mode, `layout` is
    `Array.Layout.FIRST_MAJOR` (the default), `LAST_MAJOR`, or the strides in elements. `data` holds the values of a
    CONST array, which brings its shape and type. The name is that of the variable that the array is assigned to, unless
    given; it is that of the kernel's parameter.

    A role of INPUT and a shape of () make a number that the launch gives.

    >>> import tilewright as tw
    >>> from tilewright.schedule import Array, Role
    >>> A = Array(role=Role.INPUT, element_type=tw.float32, shape=(16, 8))
    >>> A, A.strides
    (A: input float32 (16, 8), (8, 1))
    >>> Array(Role.INPUT, tw.float16, (16, 8), Array.Layout.LAST_MAJOR, name="B").strides
    (1, 16)

    Raises `ScheduleError` for strides that do not fit the shape, and for CONST without data or data without CONST.
    Source: Accera, `Array`.
    """

    Role: TypeAlias = _Role
    Layout: TypeAlias = ArrayLayout

    def __init__(
        self,
        role: Role,
        element_type: Any = None,  # Any: whatever names an element type
        shape: Sequence[Size] | None = None,
        layout: ArrayLayout | Sequence[int] = ArrayLayout.FIRST_MAJOR,
        *,
        data: Any = None,  # Any: whatever NumPy makes an array of
        name: str | None = None,
    ) -> None:
        self.number = next_number()
        names = assigned_names(sys._getframe(1)) if name is None else (name,)
        if name is not None:
            text("Array", "name", name)
        self.name = names[0] if names else f"array{self.number[0]}"
        if not self.name.isidentifier() or keyword.iskeyword(self.name):
            raise ScheduleError(
                f"an array cannot be called {self.name!r}",
                help="kernels have a parameter of that name: an identifier of Python, and none of its keywords",
            )
        if not isinstance(role, Role):
            raise ScheduleError(f"array {self.name}: {role!r} is not a Role", help="such as Role.INPUT")
        if (role is Role.CONST) != (data is not None):
            raise ScheduleError(f"array {self.name}: data belongs to an array of role CONST, and to no other")
        self.role = role
        try:
            self.data = None if data is None else np.ascontiguousarray(data)
        except ValueError as error:
            raise ScheduleError(f"array {self.name}: data is not an array of numbers: {error}") from None
        if self.data is not None:
            shape = self.data.shape if shape is None else shape
            element_type = self.data.dtype if element_type is None else element_type
        if shape is None:
            raise ScheduleError(f"array {self.name} needs a shape")
        declared_type = "float32" if element_type is None else element_type
        self.declare(declared_type if isinstance(declared_type, Delayed) else as_dtype(declared_type), shape, layout)

    def declare(self, element_type: Any, shape: Sequence[Size], layout: ArrayLayout | Sequence[int]) -> None:
        """Give the array its type, shape and layout, which a parameter may stand for until it has a value."""
        self.element_type: DType = _held(self.name, element_type)
        if not isinstance(shape, (tuple, list)):
            raise ScheduleError(
                f"array {self.name} has the shape {shape!r}", help="give each mode its extent: shape=(16, 8)"
            )
        if not isinstance(layout, (ArrayLayout, tuple, list)):
            raise ScheduleError(
                f"array {self.name} has the layout {layout!r}",
                help="Array.Layout.FIRST_MAJOR, Array.Layout.LAST_MAJOR, or a stride for each mode",
            )
        self.shape: tuple[Size, ...] = tuple(_size(self.name, extent) for extent in shape)
        self.layout = layout if isinstance(layout, ArrayLayout) else tuple(layout)
        is_delayed = any(isinstance(extent, Delayed) for extent in self.shape)
        if isinstance(self.layout, tuple) and len(self.layout) != len(self.shape):
            raise ScheduleError(f"array {self.name}: strides {self.layout} do not fit the shape {self.shape}")
        if self.data is not None and not is_delayed and self.data.shape != self.shape:
            raise ScheduleError(f"array {self.name}: data of shape {self.data.shape} for the shape {self.shape}")
        if self.role is Role.TEMP and not is_delayed and not self.is_static:
            raise ScheduleError(f"array {self.name} is TEMP and of a size that is known only at launch")

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether all extents are known when the nest is declared."""
        return all(isinstance(extent, int) for extent in self.shape)

    @property
    def strides(self) -> tuple[Any, ...]:  # Any: ints, and None where a stride depends on a size of the launch
        """The stride of each mode in elements, None where only the launch knows it."""
        if isinstance(self.layout, tuple):
            return self.layout
        strides: list[int | None] = []
        step: int | None = 1
        for extent in reversed(self.shape) if self.layout is ArrayLayout.FIRST_MAJOR else self.shape:
            strides.append(step)
            step = step * extent if step is not None and isinstance(extent, int) else None
        return tuple(reversed(strides)) if self.layout is ArrayLayout.FIRST_MAJOR else tuple(strides)

    def __getitem__(self, indices: Any) -> Load:  # Any: indices and affine expressions, one or a tuple
        return Load(self, self.place(indices))

    def __setitem__(self, indices: Any, value: Any) -> None:  # Any: as in __getitem__; whatever is an expression
        _record_store(self, self.place(indices), value)

    def place(self, indices: Any) -> tuple[Affine, ...]:  # Any: as in __getitem__
        """Return the affine expression of each mode. Raises `ScheduleError` for a wrong number or other expressions."""
        index_tuple = indices if isinstance(indices, tuple) else (indices,)
        if len(index_tuple) != self.rank:
            raise ScheduleError(f"array {self.name} has {self.rank} modes and is indexed by {len(index_tuple)}")
        places = []
        for mode, index in enumerate(index_tuple):
            # What waits for a parameter is an expression once that has a value; nothing is asked of it before.
            place: Any = index if isinstance(index, Delayed) else as_index(index)
            if place is None:
                what = _described(index)
                raise ScheduleError(
                    f"mode {mode} of array {self.name} is indexed by {what}, which is not affine",
                    help="index by loop indices, whole numbers, their sums and multiples, and quotients by numbers",
                )
            places.append(place)
        return tuple(places)

    def as_expression(self) -> Expression:
        """Return the one element of an array without modes: a number of the launch."""
        if self.rank:
            raise ScheduleError(
                f"the logic of a nest cannot compute with {self!r}", help="use elements of arrays, indices and numbers"
            )
        return self[()]

    def __repr__(self) -> str:
        return f"{self.name}: {self.role.value} {self.element_type} {self.shape}"


def _described(index: Any) -> str:  # Any: what is given in place of an affine expression
    if not isinstance(index, Expression):
        return repr(index)
    return "a value that is read" if any(True for _ in index.loads()) else str(index)


def _held(name: str, element_type: Any) -> Any:  # Any: an element type, or a parameter in place of it
    """Return the type in which memory holds the elements. Raises `ScheduleError` where it holds none by themselves."""
    if not isinstance(element_type, DType):
        return element_type
    if element_type.bits < 8:
        raise ScheduleError(
            f"array {name} is of {element_type}, whose elements have no places of their own in memory",
            help="int8 and uint8 are the smallest",
        )
    return element_type.storage


def _size(name: str, extent: object) -> Size:
    if isinstance(extent, Dimension):
        return extent
    if isinstance(extent, Delayed):
        return extent  # type: ignore[return-value]  # the size that it stands for, once it has a value
    if hasattr(extent, "__index__"):
        size: int = extent.__index__()
        if size >= 1:
            return size
    raise ScheduleError(
        f"array {name} has an extent {extent!r}", help="extents are whole numbers from 1, or Dimensions"
    )


def _as_number(name: str) -> Any:  # Any: a method
    """Return the operator of an array without modes: that of its one element."""

    def operate(self: Array, *others: Any) -> Any:  # Any: whatever is an expression
        return getattr(self[()], name)(*others)

    operate.__name__ = name
    return operate


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    setattr(Array, f"__{_name}__", _as_number(f"__{_name}__"))
    setattr(Array, f"__r{_name}__", _as_number(f"__r{_name}__"))
for _name in ("lt", "le", "gt", "ge", "neg", "invert", "abs"):
    setattr(Array, f"__{_name}__", _as_number(f"__{_name}__"))
Array.__tilewright_apply__ = _as_number("__tilewright_apply__")  # type: ignore[attr-defined]  # found by its name


# --- elements --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Load(Expression):
    """The element of an array at a place."""

    array: Array
    place: tuple[Affine, ...]

    def loads(self) -> Iterator[Load]:
        """Yield itself."""
        yield self

    def __str__(self) -> str:
        return f"{self.array.name}[{', '.join(map(str, self.place))}]" if self.place else self.array.name


@dataclass(frozen=True, eq=False)
class Store:
    """array[place] = value, at a line of the user's."""

    array: Array
    place: tuple[Affine, ...]
    value: Expression
    location: SourceLocation | None
    guards: tuple[Guard, ...] = ()


def record(logic: Callable[[], Any]) -> list[Store]:  # Any: whatever the user's logic returns, which is nothing
    """Run a nest's logic once on its indices and return what it stores, in order."""
    outer = recording.stores, recording.guards
    recording.stores, recording.guards = [], ()
    try:
        logic()
        return recording.stores
    finally:
        recording.stores, recording.guards = outer


def _record_store(array: Array, place: tuple[Affine, ...], value: Any) -> None:  # Any: whatever is an expression
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
