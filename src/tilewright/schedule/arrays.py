"""Arrays of a nest: what they are for, their types, shapes and layouts, and reads and writes of their elements.

An array is memory, or a `View` of it: a part, or the same elements with other modes or of another type. Views of one
memory are known to be that: an access of a view is an access of its `base`, the memory itself or a `Form` of it, which
has coordinates of its own because no affine map leads to those of the memory.
"""

from __future__ import annotations

import enum
import keyword
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tilewright.arguments import text
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, Dimension, Size
from tilewright.schedule.elements import Load, Store, read_index, record, record_store
from tilewright.schedule.memory_spaces import WRITTEN, AllocateFlags, Role
from tilewright.schedule.naming import Numbered, assigned_names, calling_frame, next_number
from tilewright.schedule.parameters import Delayed, waiting
from tilewright.schedule.places import as_index
from tilewright.schedule.values import Expression
from tilewright.schedule.view_kinds import Seeing, Seen, number_of_extent
from tilewright.schedule.views import Product, Projection, plain

__all__ = ["AllocateFlags", "Array", "ArrayLayout", "Form", "Load", "Role", "Store", "View", "record"]

_Role = Role  # `Array.Role` is it, under the same name


class ArrayLayout(enum.Enum):
    """The order of an array in memory: the first index varies slowest (row-major) or fastest (column-major)."""

    FIRST_MAJOR = "first"
    LAST_MAJOR = "last"
    DEFERRED = "deferred"  # of a CONST array, until `Array.deferred_layout` gives it that of a cache


class Array(Numbered):
    """An array that the logic of a nest reads or writes: element (i, j, ...) at i * strides[0] + j * strides[1] + ...

    `role` is its purpose, `element_type` is a tilewright dtype or what `tw.dtype` takes (tfloat32, which tensor cores
    read of a float32, is kept as float32), `shape` has an int or a `Dimension` for each mode, `layout` is
    `Array.Layout.FIRST_MAJOR` (the default), `LAST_MAJOR`, or the strides in elements. `data` holds the values of a
    CONST array, which brings its shape and type. The name is that of the variable that the array is assigned to, unless
    given; it is that of the kernel's parameter. `flags` give the memory of a TEMP array that no cache keeps. `offset`
    is 0: an array starts with its first element.

    A role of INPUT and a shape of () make a launch argument; another role makes memory of one number, which the logic
    writes by `set`. `Scalar` declares both.

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
        offset: int = 0,
        flags: AllocateFlags = AllocateFlags.NONE,
    ) -> None:
        self.number: tuple[int, int] = next_number()
        names = assigned_names(calling_frame()) if name is None else (name,)
        if name is not None:
            text("Array", "name", name)
        self.name: str = names[0] if names else f"array{self.number[0]}"
        self.forms: dict[Any, Form] = {}  # Any: what tells forms of this memory apart
        self.flags = flags
        if not self.name.isidentifier() or keyword.iskeyword(self.name):
            raise ScheduleError(
                f"an array cannot be called {self.name!r}",
                help="kernels have a parameter of that name: an identifier of Python, and none of its keywords",
            )
        if not isinstance(role, Role):
            raise ScheduleError(f"array {self.name}: {role!r} is not a Role", help="such as Role.INPUT")
        if (role is Role.CONST) != (data is not None):
            raise ScheduleError(f"array {self.name}: data belongs to an array of role CONST, and to no other")
        if not isinstance(flags, AllocateFlags):
            raise ScheduleError(f"array {self.name}: flags={flags!r}", help="such as AllocateFlags.STACK")
        if offset != 0:
            raise ScheduleError(
                f"array {self.name} has the offset {offset!r}",
                help="an array begins with its first element: declare it with offset=0 and call the kernel with a view "
                f"that begins there, such as {self.name}[offset:] of NumPy, or take {self.name}.sub_array(...)",
            )
        self.role = role
        try:
            self.data: np.ndarray[Any, Any] | None = None if data is None else np.ascontiguousarray(data)
        except ValueError as error:
            raise ScheduleError(f"array {self.name}: data is not an array of numbers: {error}") from None
        if self.data is not None:
            shape = self.data.shape if shape is None else shape
            element_type = self.data.dtype if element_type is None else element_type
        if shape is None:
            raise ScheduleError(f"array {self.name} needs a shape")
        # As for NumPy, Python's int has 64 bits; a number's default, float32, is Python's float here.
        declared_type = "float32" if element_type is None else "int64" if element_type is int else element_type
        if layout is ArrayLayout.DEFERRED and role is not Role.CONST:
            raise ScheduleError(
                f"array {self.name} is {role.name} and its layout is deferred",
                help="only CONST arrays, whose data belongs to the kernel, take the layout of a cache",
            )
        self.is_number: bool = isinstance(shape, (tuple, list)) and not len(shape) and role in WRITTEN
        shape = (1,) if self.is_number else shape  # what is written has a place in memory
        self.declare(declared_type if isinstance(declared_type, Delayed) else as_dtype(declared_type), shape, layout)

    def declare(self, element_type: Any, shape: Sequence[Size], layout: ArrayLayout | Sequence[int]) -> None:
        """Set the type, shape and layout of the array; parameters may be placeholders for these."""
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
        self.shape: tuple[Size, ...] = tuple(
            _size(self.name, extent, mode == len(shape) - 1) for mode, extent in enumerate(shape)
        )
        self.layout: ArrayLayout | tuple[int, ...] = layout if isinstance(layout, ArrayLayout) else tuple(layout)
        is_delayed = any(isinstance(extent, Delayed) for extent in self.shape)
        if isinstance(self.layout, tuple) and len(self.layout) != len(self.shape):
            raise ScheduleError(f"array {self.name}: strides {self.layout} do not fit the shape {self.shape}")
        if self.data is not None and not is_delayed and self.data.shape != self.shape:
            raise ScheduleError(f"array {self.name}: data of shape {self.data.shape} for the shape {self.shape}")

    stands_for: Dimension | None = None  # the size that a number of the launch gives
    is_waiting: bool = False  # whether it is a view, and where depends on a parameter without a value

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_open(self) -> bool:
        """Whether the last extent is inf: then the accesses of the first nest that uses the array determine it."""
        return any(isinstance(extent, float) for extent in self.shape)

    def settle(self, extent: int | None) -> None:
        """Give an open array its last extent."""
        if extent is None:
            raise ScheduleError(
                f"array {self.name} has an open extent, and how far it is accessed only the launch knows",
                help="declare its shape with a Dimension",
            )
        self.shape = (*self.shape[:-1], extent)

    @property
    def is_static(self) -> bool:
        """Whether all extents are known when the nest is declared."""
        return all(isinstance(extent, int) for extent in self.shape)

    @property
    def strides(self) -> tuple[Any, ...]:  # Any: ints, and None where a stride depends on a size of the launch
        """The stride of each mode in elements, None if it is known only at launch."""
        if isinstance(self.layout, tuple):
            return self.layout
        strides: list[int | None] = []
        step: int | None = 1
        for extent in reversed(self.shape) if self.layout is ArrayLayout.FIRST_MAJOR else self.shape:
            strides.append(step)
            step = step * extent if step is not None and isinstance(extent, int) else None
        return tuple(reversed(strides)) if self.layout is ArrayLayout.FIRST_MAJOR else tuple(strides)

    @property
    def steps(self) -> tuple[Product, ...]:
        """The stride of each mode in elements, as a product of sizes."""
        if isinstance(self.layout, tuple):
            return tuple((step,) for step in self.layout)
        if self.layout is ArrayLayout.LAST_MAJOR:
            return tuple(tuple(self.shape[:mode]) for mode in range(self.rank))
        return tuple(tuple(self.shape[mode + 1 :]) for mode in range(self.rank))

    # --- what it is a part of ----------------------------------------------------------------------------

    @property
    def memory(self) -> Array:
        """The array whose elements these are: itself, unless it is a view."""
        return self

    @property
    def base(self) -> Array:
        """The array whose coordinates distinguish accesses: the memory, or a form of it."""
        return self

    @property
    def projection(self) -> Projection:
        """The positions of the elements in the base."""
        return Projection.whole(self.rank)

    @property
    def start(self) -> int:
        """The offset of the first element in the memory, in elements of this type."""
        return 0

    def address(self, place: Sequence[Affine]) -> Affine | None:
        """Return the offset of an element in the memory, in bytes; None if the strides are known only at launch."""
        steps = [plain(step) for step in self.steps]
        if None in steps:
            return None
        total = Affine((), self.start)
        for mode, step in zip(place, steps, strict=True):
            total = total + mode * step
        found: Affine = total * self.element_type.bytes
        return found

    def form(
        self, key: Any, name: str, element_type: DType, shape: tuple[Size, ...], steps: tuple[Product, ...], start: int
    ) -> Form:  # Any: hashes and compares as what the form is
        """Return the form of this memory with a key."""
        if key not in self.forms:
            self.forms[key] = Form(self, name, element_type, shape, steps, start)
        return self.forms[key]

    # --- views -------------------------------------------------------------------------------------------

    def sub_array(self, offsets: Sequence[Any], shape: Sequence[Any], strides: Sequence[int] | None = None) -> View:
        """Return a part: `shape` elements from `offsets` on, along each mode every one, or every `strides`-th.

        Offsets and extents are numbers, sizes, or affine expressions of indices. Raises `ScheduleError` for a part that
        does not lie within the array, as far as that is known; kernels and launches check the rest.

        >>> from tilewright.schedule import Array, Role
        >>> A = Array(Role.INPUT, "float32", (16, 8), name="A")
        >>> A.sub_array((4, 0), (6, 8), (2, 1))
        A_sub: 6 x 8 of A
        """
        return _view(self, "sub_array", (offsets, shape, strides), "sub")

    def split_dimension(self, dim: int, size: Any) -> View:  # Any: a number or a size
        """Return a view in which a mode is cut into rows of `size` elements: `dim` counts rows, `dim + 1` elements.

        Raises `ScheduleError` for a mode that the size does not divide, as far as that is known; launches check the
        rest.
        """
        return _view(self, "split_dimension", (dim, size), "split")

    def merge_dimensions(self, dim1: int, dim2: int) -> View:
        """Return a view in which two adjacent modes are merged. They must be contiguous with each other in memory."""
        return _view(self, "merge_dimensions", (dim1, dim2), "merged")

    def slice(self, dims: Sequence[int], offsets: Sequence[Any]) -> View:  # Any: numbers, sizes, affine expressions
        """Return the elements at which some modes are fixed; the view has the other modes."""
        return _view(self, "slice", (dims, offsets), "slice")

    def reorder_dimensions(self, order: Sequence[int]) -> View:
        """Return a view with the modes in another order: its mode n is mode order[n]."""
        return _view(self, "reorder_dimensions", (order,), "reordered")

    def reshape(self, shape: Sequence[Any]) -> View:  # Any: numbers and sizes
        """Return the elements, in their order in memory, with another shape; (-1,) is one mode of all.

        Raises `ScheduleError` for elements that are not contiguous by rows, and for more or fewer elements.
        """
        return _view(self, "reshape", (shape,), "reshaped")

    def reinterpret_cast(self, element_type: Any) -> View:  # Any: whatever names an element type
        """Return the same memory as elements of another type; the last mode has as many as fill its bytes.

        Raises `ScheduleError` where the type has another size and the last mode is not contiguous, or does not hold
        whole elements.
        """
        given = element_type if isinstance(element_type, Delayed) else _held(self.name, as_dtype(element_type))
        return _view(self, "reinterpret_cast", (given,), str(given))

    def memory_buffer(self) -> View:
        """Return the memory as bytes: a uint8 array of one mode."""
        return self.reshape((-1,)).reinterpret_cast("uint8")

    _split_dimension, _merge_dimensions, _slice = split_dimension, merge_dimensions, slice
    _reorder, _reshape = reorder_dimensions, reshape

    def _get_memory_buffer(self) -> View:
        return self.memory_buffer()

    def _reinterpret_cast(self, element_type: Any) -> View:  # Any: as in reinterpret_cast
        return self.reinterpret_cast(element_type)

    def deferred_layout(self, cache: Any) -> None:  # Any: a Cache, which stands above arrays
        """Give a CONST array with `Array.Layout.DEFERRED` the layout of a cache of it.

        Raises `ScheduleError` for another role, a layout that is not deferred (any more), a cache of another array, and
        one without a layout of its own.
        """
        if self.role is not Role.CONST or self.layout is not ArrayLayout.DEFERRED:
            state = "is not CONST" if self.role is not Role.CONST else f"has the layout {self.layout} already"
            raise ScheduleError(f"array {self.name} {state}", help="declare it with layout=Array.Layout.DEFERRED")
        if cache.array is not self:
            raise ScheduleError(f"{cache!r} is not a cache of {self.name}")
        if not isinstance(cache.layout, (ArrayLayout, tuple)):
            raise ScheduleError(
                f"{cache!r} has the layout {cache.layout!r}",
                help="cache it with FIRST_MAJOR, LAST_MAJOR or strides, which the array can have too",
            )
        if isinstance(cache.layout, tuple):
            _refuse_shared_places(self, cache.layout)
        self.layout = cache.layout

    # --- elements ----------------------------------------------------------------------------------------

    def __getitem__(self, indices: Any) -> Load:  # Any: indices and affine expressions, one or a tuple
        return Load(self, self.place(indices, read_index))

    def __setitem__(self, indices: Any, value: Any) -> None:  # Any: as in __getitem__; whatever is an expression
        record_store(self, self.place(indices), value)

    def set(self, value: Any) -> None:  # Any: whatever is an expression
        """Write a number that the kernel computes, in the logic of a nest: `Scalar(tw.float32, Role.OUTPUT).set(x)`."""
        if not self.is_number:
            raise ScheduleError(f"{self!r} is not a number that is written", help="Scalar(element_type, Role.OUTPUT)")
        record_store(self, (Affine((), 0),), value)

    def as_expression(self) -> Expression:
        """Return the one element of an array that has one. Raises `ScheduleError` for another one."""
        if any(number_of_extent(extent) != 1 for extent in self.shape):
            raise ScheduleError(
                f"the logic of a nest cannot compute with {self!r}", help="use elements of arrays, indices and numbers"
            )
        return self[(0,) * self.rank]

    def place(
        self, indices: Any, index_of: Callable[[Any], Affine | None] = as_index
    ) -> tuple[Affine, ...]:  # Any: as in __getitem__
        """Return the affine expression of each mode. Raises `ScheduleError` for a wrong number or other expressions."""
        index_tuple = tuple(indices) if isinstance(indices, (tuple, list)) else (indices,)
        if self.is_number and not index_tuple:
            index_tuple = (0,)
        if len(index_tuple) != self.rank:
            raise ScheduleError(f"array {self.name} has {self.rank} modes and is indexed by {len(index_tuple)}")
        places = []
        for mode, index in enumerate(index_tuple):
            # What waits for a parameter is an expression once that has a value; nothing is asked of it before.
            place: Any = index if isinstance(index, Delayed) else index_of(index)
            if place is None:
                what = _described(index)
                raise ScheduleError(
                    f"mode {mode} of array {self.name} is indexed by {what}, which is not affine",
                    help="index by loop indices, whole numbers, their sums and multiples, and quotients by numbers",
                )
            places.append(place)
        return tuple(places)

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


def _size(name: str, extent: object, is_last: bool) -> Size:
    if isinstance(extent, float) and math.isinf(extent) and is_last:
        return extent  # type: ignore[return-value]  # open, until a nest's accesses say
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
        return getattr(self.as_expression(), name)(*others)

    operate.__name__ = name
    return operate


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    setattr(Array, f"__{_name}__", _as_number(f"__{_name}__"))
    setattr(Array, f"__r{_name}__", _as_number(f"__r{_name}__"))
for _name in ("lt", "le", "gt", "ge", "neg", "invert", "abs"):
    setattr(Array, f"__{_name}__", _as_number(f"__{_name}__"))
Array.__tilewright_apply__ = _as_number("__tilewright_apply__")  # type: ignore[attr-defined]  # found by its name


# --- views -----------------------------------------------------------------------------------------------


class View(Array):
    """A part of an array, or the same elements with other modes or of another type: made by methods of `Array`.

    A view of a parameter's making waits, as the parameter does, until that has a value.
    """

    def __init__(self, parent: Array, method: str, arguments: tuple[Any, ...], name: str) -> None:
        self.number: tuple[int, int] = next_number()
        self.name = name
        self.role: Role = parent.role
        self.data: None = None
        self.flags: AllocateFlags = parent.flags
        self.parent = parent
        self.method = method
        self.arguments = arguments
        self.is_number = False
        self._seen: Seen | None = None
        self.is_waiting: bool = self.is_delayed
        if not self.is_waiting:
            self._seen = getattr(Seeing(parent, name), method)(*arguments)

    @property
    def is_delayed(self) -> bool:
        """Whether a parameter without a value is in it or in what it views."""
        parent = self.parent.is_delayed if isinstance(self.parent, View) else _waits(vars(self.parent).values())
        return parent or _waits(self.arguments)

    @property
    def seen(self) -> Seen:
        """What it is a view of, and where."""
        if self._seen is None:
            raise waiting()
        return self._seen

    @property
    def memory(self) -> Array:
        return self.parent.memory

    @property
    def base(self) -> Array:
        base: Array = self.seen.base
        return base

    @property
    def projection(self) -> Projection:
        return self.seen.projection

    @property
    def shape(self) -> tuple[Any, ...]:  # type: ignore[override]  # Any: sizes, and affine expressions of indices
        if self._seen is None and self.method == "sub_array":
            return tuple(self.arguments[1])  # a nest may take it before its parameters have values
        return self.seen.shape

    @property
    def element_type(self) -> DType:  # type: ignore[override]  # as declared
        return self.seen.element_type

    @property
    def layout(self) -> tuple[int, ...]:  # type: ignore[override]  # strides alone
        return self.strides

    @property
    def steps(self) -> tuple[Product, ...]:
        return self.projection.steps(self.base.steps, self.rank)

    @property
    def strides(self) -> tuple[Any, ...]:  # Any: as in Array
        parent = self.parent
        is_known = isinstance(parent, View) or not _waits(vars(parent).values())  # a view asks for itself
        if self._seen is None and self.method == "sub_array" and is_known and not _waits((self.arguments[2],)):
            # They are known before a parameter says how far a part reaches, and from where on.
            pairs = zip(parent.strides, self.arguments[2] or (1,) * parent.rank, strict=True)
            return tuple(None if step is None else step * by for step, by in pairs)
        return tuple(plain(step) for step in self.steps)

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        if self._seen is None:
            return f"{self.name}: view of {self.parent.name}"
        type = "" if self.element_type is self.memory.element_type else f" {self.element_type}"
        return f"{self.name}: {' x '.join(map(str, self.shape))}{type} of {self.memory.name}"


class Form(Array):
    """The memory of an array with coordinates of its own: elements of another size, or modes of other sizes.

    Element (i, j, ...) is at start + i * steps[0] + j * steps[1] + ..., counted in elements of its type.
    """

    def __init__(
        self,
        memory: Array,
        name: str,
        element_type: DType,
        shape: tuple[Size, ...],
        steps: tuple[Product, ...],
        start: int,
    ) -> None:
        self.number: tuple[int, int] = next_number()
        self.name = name
        self.role: Role = memory.role
        self.data: None = None
        self.flags: AllocateFlags = memory.flags
        self.is_number = False
        self.element_type: DType = element_type
        self.shape: tuple[Size, ...] = shape
        self._memory, self._steps, self._start = memory, steps, start

    @property
    def memory(self) -> Array:
        return self._memory

    @property
    def start(self) -> int:
        return self._start

    @property
    def steps(self) -> tuple[Product, ...]:
        return self._steps

    @property
    def layout(self) -> tuple[int, ...]:  # type: ignore[override]  # strides alone
        return self.strides

    @property
    def strides(self) -> tuple[Any, ...]:  # Any: as in Array
        return tuple(plain(step) for step in self._steps)


def _view(parent: Array, method: str, arguments: tuple[Any, ...], suffix: str) -> View:
    names = assigned_names(calling_frame(2))
    name = names[0] if names else f"{parent.name}_{suffix}"
    return View(parent, method, arguments, name if name.isidentifier() else f"{parent.name}_view")


def _waits(values: Iterable[Any]) -> bool:  # Any: whatever stands in declarations
    return any(isinstance(x, Delayed) or (isinstance(x, (tuple, list)) and _waits(x)) for x in values)


def _refuse_shared_places(array: Array, strides: tuple[int, ...]) -> None:
    """Raise `ScheduleError` for strides that put two elements of an array in one place."""
    if len(strides) != array.rank:
        raise ScheduleError(f"array {array.name}: strides {strides} do not fit the shape {array.shape}")
    reached = 0
    for step, extent in sorted(zip(strides, array.shape, strict=True)):
        if extent == 1:
            continue
        if step <= reached:
            raise ScheduleError(
                f"the strides {strides} put two elements of {array.name}, of the shape {array.shape}, in one place",
                help="take the layout of a cache that holds the whole array",
            )
        reached += step * (extent - 1)
