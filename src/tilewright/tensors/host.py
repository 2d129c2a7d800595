"""Tensors over NumPy arrays: written to, read back as arrays, and printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.errors import LayoutError
from tilewright.layout.layouts import Layout
from tilewright.layout.swizzle import ComposedLayout
from tilewright.layout.tuples import leaves, product_each, show, tuple_size
from tilewright.tensors.engines import NumpyEngine

if TYPE_CHECKING:
    import numpy as np

    from tilewright.tensors.tensor import Tensor


# A host tensor of at most this many elements prints its values.
_MOST_PRINTED = 256


def leaf_array(t: Tensor) -> np.ndarray[Any, Any]:
    """Return a host tensor as an array with one axis for each leaf of its shape; a view where the layout is affine."""
    import numpy as np

    if not isinstance(t.engine, NumpyEngine) or not t.layout.is_static:
        raise LayoutError(f"{t.title} has no values on the host", help="to_numpy works on tensors made by tw.tensor")
    padded = getattr(t, "padded", None)
    if padded is not None:  # a guarded tile, whose elements outside are no memory
        found: np.ndarray[Any, Any] = padded()
        return found
    engine, shape = t.engine, leaves(t.shape)
    if isinstance(t.layout, ComposedLayout):
        count = tuple_size(t.shape)
        assert isinstance(count, int), t.shape
        places = [engine.place(t.layout(i)) for i in range(count)]
        return engine.storage[places].reshape(shape, order="F")
    strides = leaves(t.stride)
    low = engine.start + sum(min((s - 1) * d, 0) for s, d in zip(shape, strides, strict=True))
    high = engine.start + sum(max((s - 1) * d, 0) for s, d in zip(shape, strides, strict=True))
    if low < 0 or high >= len(engine.storage):
        raise IndexError(
            f"{t.title} reaches from element {low} to {high} of storage with {len(engine.storage)}: a tile overhangs"
        )
    step = engine.storage.strides[0]
    return np.lib.stride_tricks.as_strided(
        engine.storage[engine.start :], shape, [d * step for d in strides], writeable=engine.storage.flags.writeable
    )


def to_array(t: Tensor) -> np.ndarray[Any, Any]:
    """Return a host tensor as an array with one axis for each top-level mode."""
    array, sizes = leaf_array(t), product_each(t.shape)
    if not isinstance(t.shape, tuple):
        return array
    # NumPy joins axes with the last fastest: reverse all axes, join, reverse back. It copies only where it must.
    joined: np.ndarray[Any, Any] = array.T.reshape(sizes[::-1]).T
    return joined


def static_size(t: Tensor) -> int:
    """Return the number of elements of a tensor that has storage of its own."""
    assert isinstance(t.size, int), t.title
    return t.size


def fill_view(view: Tensor, value: Any) -> None:
    """Write a scalar, array or tensor to every element of a view."""
    fill = getattr(view.engine, "fill", None)
    if fill is not None:
        fill(view.layout, value)
        return
    if not isinstance(view.engine, NumpyEngine):
        raise LayoutError(f"a whole view of {view.space} memory is not assigned at once", help="use tw.copy or tw.fill")
    import numpy as np

    array = np.asarray(value)
    sizes = product_each(view.shape)
    if array.shape == () or isinstance(view.layout, Layout):
        target = leaf_array(view)
        if array.shape == ():
            if isinstance(view.layout, Layout):
                target[...] = array
                return
        elif array.shape == sizes:
            target.T[...] = array.T.reshape(target.shape[::-1])
            return
    if array.shape not in ((), sizes):
        raise LayoutError(
            f"values of shape {show(array.shape)} do not fit a view of shape {show(view.shape)}",
            help=f"assign a scalar, or an array of shape {show(sizes)}",
        )
    flat = np.broadcast_to(array, sizes).ravel(order="F")  # type: ignore[arg-type]  # static on the host
    for i in range(flat.size):
        view.engine.store(view.layout(i), flat[i])


def to_text(t: Tensor) -> str:
    """Return a host tensor's title and, where it is small, its values: a row for each index of the first mode."""
    count = t.size
    if not isinstance(count, int) or count > _MOST_PRINTED:
        return f"{t.title}  ({count} elements)"
    try:
        array = to_array(t)
    except IndexError:
        return f"{t.title}  (reaches outside its storage)"
    rows = array.reshape(1, -1) if array.ndim < 2 else array.reshape(array.shape[0], -1, order="F")
    cells = [[str(v) for v in row] for row in rows.tolist()]
    width = max([len(c) for row in cells for c in row], default=1)
    return "\n".join([t.title, *[" ".join([c.rjust(width) for c in row]) for row in cells]])
