"""Tensors over NumPy arrays: written to, read back as arrays, and printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ArgumentError, LayoutError
from tilewright.layout.layouts import Layout
from tilewright.layout.swizzle import ComposedLayout
from tilewright.layout.tuples import leaves, product_each, show, tuple_size
from tilewright.tensors.associative import NAMED
from tilewright.tensors.broadcasting import broadcast_shapes
from tilewright.tensors.engines import NumpyEngine

if TYPE_CHECKING:
    from collections.abc import Callable

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
    if padded is not None:  # a guarded tile, whose elements outside are not in memory
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
    assign = getattr(view.engine, "assign", None)
    if assign is not None:
        assign(view, value)
        return
    if not isinstance(view.engine, NumpyEngine):
        raise LayoutError(f"a whole view of {view.space} memory is not assigned at once", help="use tw.copy or tw.fill")
    import numpy as np

    array = np.asarray(value)
    if hasattr(value, "engine"):
        array = _seen_in(value, view.shape, "an assignment")
        if value.engine.storage is view.engine.storage:
            array = array.copy()  # all elements are read before the first is written
    sizes = product_each(view.shape)
    is_guarded = hasattr(view, "padded")
    if not is_guarded and (array.shape == () or isinstance(view.layout, Layout)):
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
        if is_guarded:
            view[i] = flat[i]
        else:
            view.engine.store(view.layout(i), flat[i])


def compute(name: str, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:  # Any: tensors and numbers
    """Return the host tensor of what NumPy computes of the elements, compact."""
    import numpy as np

    tensors: list[Any] = [x for x in operands if hasattr(x, "engine")]
    shape = broadcast_shapes(name, [t.shape for t in tensors], [t.title for t in tensors])
    values = [to_array(x) if hasattr(x, "engine") else x for x in operands]
    try:
        result = np.asarray(function(*values))
        element = as_dtype(result.dtype)
    except TypeError as error:
        raise ArgumentError(
            f"{name} is not defined on {' and '.join(str(t.dtype) for t in tensors)}: {error}"
        ) from None
    return _new(tensors[0], np.broadcast_to(result, product_each(shape)), shape, element)  # type: ignore[arg-type]


def run_count(count: int) -> int:
    """Return into how many equal runs a reduction cuts its elements: see `Tensor.reduce`."""
    return next(runs for runs in (4, 2, 1) if count % runs == 0 and (count >= 2 * runs or runs == 1))


def reduce(t: Tensor, op: Any, modes: tuple[int, ...], shape: Any, init: Any) -> Any:  # Any: as `Tensor.reduce`
    """Return a host tensor reduced over modes, in the order that `Tensor.reduce` documents."""
    import numpy as np

    function: Any = getattr(np, NAMED[op].numpy) if isinstance(op, str) else op
    array = to_array(t)
    if array.dtype == np.bool_ and op in ("add", "mul"):
        array = array.astype(np.int32)
    kept = [k for k in range(array.ndim) if k not in modes]
    moved = array.transpose([*kept, *reversed(modes)]).reshape(*[array.shape[k] for k in kept], -1)
    runs = run_count(moved.shape[-1])
    length = moved.shape[-1] // runs
    totals = [moved[..., k * length] for k in range(runs)]
    for i in range(1, length):
        totals = [function(total, moved[..., k * length + i]) for k, total in enumerate(totals)]
    while len(totals) > 1:
        totals = [function(a, b) for a, b in zip(totals[::2], totals[1::2], strict=True)]
    total = np.asarray(totals[0] if init is None else function(array.dtype.type(init), totals[0]))
    if shape is None:
        return total[()]
    return _new(t, total.reshape(product_each(shape)), shape, as_dtype(total.dtype))


def _seen_in(t: Tensor, shape: Any, what: str) -> np.ndarray[Any, Any]:
    """Return the elements of a host tensor, broadcast to a shape."""
    import numpy as np

    if broadcast_shapes(what, [shape, t.shape], [t.title]) != shape:
        raise LayoutError(f"values of shape {show(t.shape)} do not fit a view of shape {show(shape)}")
    return np.broadcast_to(to_array(t), product_each(shape))  # type: ignore[arg-type]  # static on the host


def _new(like: Tensor, values: np.ndarray[Any, Any], shape: Any, element: Any) -> Tensor:
    """Return a compact host tensor of values."""
    layout = Layout(shape)
    engine = like.engine.fragment(layout, element)
    engine.storage[:] = values.reshape(-1, order="F")
    kind: Any = type(getattr(like, "plain", like))  # a guarded view gives an ordinary tensor
    made: Tensor = kind(engine, layout)
    return made


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
