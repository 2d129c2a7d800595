"""Engines: where the elements of a tensor live, and how one is read and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tilewright.dtypes import DType
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import LayoutError
from tilewright.layout.coordinates import Offset, add_offsets
from tilewright.layout.ints import Int
from tilewright.layout.layouts import Layout
from tilewright.layout.swizzle import ComposedLayout
from tilewright.layout.tuples import show

if TYPE_CHECKING:
    import numpy as np


@runtime_checkable
class Engine(Protocol):
    """Where the elements of a tensor live. Engines are immutable: moving one gives another."""

    @property
    def dtype(self) -> DType:
        """The element type."""

    @property
    def space(self) -> str:
        """One of "host", "global", "shared", "register", "coordinate"."""

    def offset(self, elements: Any) -> Engine:  # Any: an integer, or a coordinate for a coordinate engine
        """Return this engine moved on by `elements`."""

    def load(self, index: Any) -> Any:  # Any: a host number, a kernel's value, or a coordinate
        """Return the element at `index` from here."""

    def store(self, index: Any, value: Any) -> None:
        """Write the element at `index` from here."""

    def guard(self, dividend: Int, divisor: Int, what: str) -> Engine:
        """Return an engine that remembers that `divisor` has to divide `dividend` once values are known."""

    def fragment(self, layout: Layout | ComposedLayout, dtype: DType) -> Engine:
        """Return new storage, private to a thread, for a tensor of that layout."""

    def recast(self, dtype: DType) -> Engine:
        """Return the same memory as elements of another type."""


class NumpyEngine:
    """Elements in a one-dimensional NumPy array, from position `start` on."""

    __slots__ = ("dtype", "start", "storage")
    space = "host"

    def __init__(self, storage: np.ndarray[Any, Any], start: int = 0, dtype: DType | None = None) -> None:
        self.storage: np.ndarray[Any, Any] = storage
        self.start: int = start
        self.dtype: DType = as_dtype(storage.dtype) if dtype is None else dtype

    def offset(self, elements: Any) -> NumpyEngine:
        return NumpyEngine(self.storage, self.start + elements, self.dtype)

    def place(self, index: Any) -> int:
        place: int = self.start + index
        if not 0 <= place < len(self.storage):
            raise IndexError(f"element {place} of storage with {len(self.storage)} elements")
        return place

    def load(self, index: Any) -> Any:
        return self.storage[self.place(index)]

    def store(self, index: Any, value: Any) -> None:
        self.storage[self.place(index)] = value

    def load_where(self, inside: bool, index: Any, fill: Any) -> Any:
        return self.load(index) if inside else self.dtype.numpy.type(fill)

    def store_where(self, inside: bool, index: Any, value: Any) -> None:
        if inside:
            self.store(index, value)

    def bounded(self, number: Any, limit: Any) -> Any:
        """Return a number, or the nearest of 0 to `limit`."""
        return min(max(number, 0), limit)

    def guard(self, dividend: Int, divisor: Int, what: str) -> NumpyEngine:
        return self

    def fragment(self, layout: Layout | ComposedLayout, dtype: DType) -> NumpyEngine:
        import numpy as np

        return NumpyEngine(np.zeros(layout.cosize, dtype.numpy), 0, dtype)

    def recast(self, dtype: DType) -> NumpyEngine:
        old, new = self.dtype.bytes, dtype.bytes
        if self.start * old % new or self.storage.nbytes % new:
            raise LayoutError(f"recast to {dtype}: the tensor starts or ends inside an element of {new} bytes")
        return NumpyEngine(self.storage.view(dtype.numpy), self.start * old // new, dtype)

    def __repr__(self) -> str:
        return f"NumpyEngine({self.dtype}, start={self.start}, of={len(self.storage)})"


class CoordinateEngine:
    """The values of an identity tensor: no memory, the element at an offset is that coordinate itself."""

    __slots__ = ("base", "dtype")
    space = "coordinate"

    def __init__(self, base: Offset = 0) -> None:
        self.base: Offset = base
        self.dtype: DType = as_dtype("int32")

    def offset(self, elements: Any) -> CoordinateEngine:
        return CoordinateEngine(add_offsets(self.base, elements))

    def load(self, index: Any) -> Any:
        return add_offsets(self.base, index)

    def store(self, index: Any, value: Any) -> None:
        raise LayoutError("a coordinate tensor cannot be written", help="its values are its coordinates")

    def guard(self, dividend: Int, divisor: Int, what: str) -> CoordinateEngine:
        return self

    def fragment(self, layout: Layout | ComposedLayout, dtype: DType) -> Engine:
        raise LayoutError(
            "a coordinate tensor has no storage to make a fragment like", help="make it of the data tensor"
        )

    def recast(self, dtype: DType) -> Engine:
        raise LayoutError("a coordinate tensor has no elements to recast")

    def __repr__(self) -> str:
        return f"CoordinateEngine({show(self.base)})"
