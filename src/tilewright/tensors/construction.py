"""Making tensors: of arrays, of engines, of shapes, and of other tensors' memory."""

from __future__ import annotations

from typing import Any

from tilewright.arguments import given as came
from tilewright.arguments import instance
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ArgumentError, LayoutError
from tilewright.layout.ints import DynamicInt
from tilewright.layout.layouts import Layout
from tilewright.layout.modes import identity_layout
from tilewright.layout.swizzle import ComposedLayout
from tilewright.layout.tuples import map_leaves, show
from tilewright.tensors.engines import CoordinateEngine, NumpyEngine
from tilewright.tensors.tensor import Tensor


def tensor(array: Any, layout: Any = None) -> Tensor:  # Any: a NumPy array or what converts to one; a layout or shape
    """Make a host tensor over an array's memory, without copying: by default with the array's own strides.

    A `layout` applies to the array's elements in memory order, starting at the first.

    >>> import numpy as np, tilewright as tw
    >>> tw.tensor(np.arange(6).reshape(2, 3))
    host int64 (2,3):(3,1)
    0 1 2
    3 4 5

    Raises `LayoutError` when a stride is not a whole number of elements, or the layout reaches outside the array.
    """
    import numpy as np

    if any(base.__name__ == "MaskedArray" for base in type(array).__mro__):
        raise LayoutError(
            "tw.tensor: a masked array would be seen with its masked elements as numbers",
            help="give array.filled(value), or array.data",
        )
    try:
        data = np.asarray(array)
        as_dtype(data.dtype)
    except ValueError as error:
        raise ArgumentError(f"tensor: array is {came(array)}, which is not an array of numbers: {error}") from None
    if data.size == 0:
        raise LayoutError(f"an array of shape {show(data.shape)} has no elements, and extents are at least 1")
    width = data.dtype.itemsize
    if any(s % width for s in data.strides):
        raise LayoutError(f"strides {data.strides} of the array are not multiples of its element size {width}")
    steps = [s // width if n > 1 else 0 for n, s in zip(data.shape, data.strides, strict=True)]
    low = sum(min((n - 1) * d, 0) for n, d in zip(data.shape, steps, strict=True))
    high = sum(max((n - 1) * d, 0) for n, d in zip(data.shape, steps, strict=True))
    if layout is None:
        own = Layout(data.shape, tuple(steps))
        storage = storage_of(data, low, high)
        return Tensor(NumpyEngine(storage, -low), own)
    given = layout if isinstance(layout, (Layout, ComposedLayout)) else Layout(layout)
    reach = given.cosize
    if not isinstance(reach, int) or low < 0 or reach > high + 1:
        raise LayoutError(
            f"layout {given} reaches {reach} elements, the array holds {high + 1}",
            help="use a layout whose cosize is at most the array's size",
        )
    return Tensor(NumpyEngine(storage_of(data, low, high)), given)


def storage_of(data: Any, low: int, high: int) -> Any:
    """Return the memory from the lowest to the highest element of an array as a one-dimensional array."""
    import numpy as np

    lowest = data
    for axis, (n, d) in enumerate(zip(data.shape, data.strides, strict=True)):
        if d < 0 and n > 1:
            lowest = np.flip(lowest, axis)
    writeable = data.flags.writeable
    return np.lib.stride_tricks.as_strided(lowest, (high - low + 1,), (data.dtype.itemsize,), writeable=writeable)


def make_tensor(engine: Any, layout: Any) -> Tensor:  # Any: an engine or NumPy array; a layout or shape
    """Make a tensor of an engine and a layout; a NumPy array can serve as the engine.

    >>> import numpy as np, tilewright as tw
    >>> tw.make_tensor(np.arange(8), tw.Layout((2, 4), (4, 1)))[1, 1]
    np.int64(5)
    """
    if isinstance(engine, DynamicInt):
        raise ArgumentError(
            f"make_tensor: engine is {came(engine)}, a number and not memory",
            help="give the engine of a tensor, t.engine, or memory at an address, tw.pointer(address, dtype)",
        )
    if not isinstance(layout, (Layout, ComposedLayout)):
        layout = Layout(layout)
    if not hasattr(engine, "load"):
        return tensor(engine, layout)
    fitted = getattr(engine, "for_layout", None)  # a kernel's engine
    return Tensor(engine if fitted is None else fitted(layout), layout)


def identity_tensor(shape: Any) -> Tensor:  # Any: an integer or nested sequence
    """Make the tensor whose elements are their own coordinates: tile it like the data to get a tile's coordinates.

    Law: identity_tensor(shape)[c] == c.

    >>> import tilewright as tw
    >>> tw.local_tile(tw.identity_tensor((100, 64)), (32, 32), (2, 1))[3, 5]
    (67, 37)
    """
    layout = identity_layout(shape)
    return Tensor(CoordinateEngine(map_leaves(lambda _: 0, layout.shape)), layout)


def recast(t: Tensor, dtype: Any) -> Tensor:  # Any: whatever names an element type
    """Return the same memory seen as elements of another type.

    As `Tensor.recast`. Raises `LayoutError` when the layout does not fall into whole elements of it.
    """
    instance("tensors.recast", "t", t, Tensor, "a tensor")
    return t.recast(dtype)
