"""Views of arrays of any library: other shapes and strides over the same memory, without the library.

    >>> import numpy as np
    >>> from tilewright.runtime.arrays import describe
    >>> x = np.arange(6.0).reshape(2, 3)
    >>> transposed = view(x, (3, 2, 4), (1, 3, 0))      # a mode of 4 that repeats the matrix
    >>> describe(transposed).host()[:, :, 3]
    array([[0., 3.],
           [1., 4.],
           [2., 5.]])

Kernels take a `View` as they take an array. Its class remembers the library that the memory is of, because a launch
goes to that library's current stream.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from tilewright.dtypes import DType
from tilewright.errors import ArgumentError
from tilewright.runtime.arrays import Adapter, ArrayInfo, Device, FastAccess, adapter_for

_FAST = FastAccess("{a}.pointer", "{a}.shape", "{a}.strides, {a}.dtype, {a}.device, {a}.writable")


class View:
    """Memory seen with a shape and strides in elements; `owner` keeps it alive.

    `stream` is the stream on which the producer of the memory says that it is ready, as in `ArrayInfo`.
    """

    __slots__ = ("device", "dtype", "owner", "pointer", "shape", "stream", "strides", "writable")
    __tilewright_adapter__: ClassVar[Adapter]

    def __init__(
        self,
        pointer: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: DType,
        device: Device,
        writable: bool,
        owner: object,
        stream: int | None = None,
    ) -> None:
        self.pointer: int = pointer
        self.shape: tuple[int, ...] = shape
        self.strides: tuple[int, ...] = strides
        self.dtype: DType = dtype
        self.device = device
        self.writable: bool = writable
        self.owner: object = owner
        self.stream: int | None = stream

    def __repr__(self) -> str:
        return f"<view of {self.dtype} {self.shape}:{self.strides} on {self.device}>"


def _describe(view: Any) -> ArrayInfo:
    return ArrayInfo(
        view.pointer, view.shape, view.strides, view.dtype, view.device, view.writable, view.stream, owner=view
    )


@cache
def view_class(adapter: Adapter) -> type[View]:
    """Return the class of views of one library's arrays."""
    # Only arrays without a fast way to be read bring a stream of their own, which `describe` tells of.
    own = Adapter(adapter.library, _describe, _FAST if adapter.fast else None, adapter.current_stream)
    return type("View", (View,), {"__slots__": (), "__tilewright_adapter__": own, "__doc__": View.__doc__})


def view(array: object, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> View:
    """Return an array's memory with another shape and other strides, `offset` elements further on.

    Raises `ArgumentError` for what is not an array, and for a shape and strides of different lengths. That the view
    stays inside the array's memory is the caller's promise.
    """
    adapter = adapter_for(array)
    if adapter is None:
        raise ArgumentError(f"a view is made of an array, got {type(array).__name__}")
    if len(shape) != len(strides):
        raise ArgumentError(f"a view has as many strides as extents, got the shape {shape} and the strides {strides}")
    info = adapter.describe(array)
    pointer = info.pointer + offset * info.dtype.bytes
    kind = view_class(adapter)
    return kind(pointer, shape, strides, info.dtype, info.device, info.writable, info.owner, info.stream)
