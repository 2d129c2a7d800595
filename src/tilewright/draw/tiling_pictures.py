"""Pictures of tilings: a tensor with the parts of some threads or blocks marked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.arguments import instance
from tilewright.draw.colours import PAPER, categorical
from tilewright.draw.frames import LIMIT, Limit, frame_of
from tilewright.draw.layout_pictures import value_text
from tilewright.draw.model import Cell, Drawing
from tilewright.dtypes import DType
from tilewright.errors import LayoutError
from tilewright.layout import ComposedLayout, Layout, idx2crd
from tilewright.layout.tuples import leaves, show
from tilewright.tensors import CoordinateEngine, NumpyEngine, Tensor, identity_tensor

Part = Tensor | Callable[[Tensor], Tensor]


def tiling(whole: Any, *parts: Part, limit: Limit = LIMIT) -> Drawing:  # Any: a tensor, layout or shape
    """Draw a tensor, layout or shape with parts of it marked, such as one thread's partition or one block's tile.

    A part is a function from a tensor to its part, which works for all of them, or a part that was cut from the
    host tensor `whole` itself. Marked cells show below their offset (or value) the place in the part; each part has
    its own colour.

    >>> import tilewright as tw
    >>> threads = tw.Layout((2, 2))
    >>> drawing = tiling((4, 4), lambda t: tw.local_partition(t, threads, 3))
    >>> print(tw.draw.text(drawing))
    tiling of (4,4):(1,4)
             0       1       2       3
      ┌────────────────────────────────
    0 │      0       4       8      12
    1 │      1  [ 5 #0]      9  [13 #2]
    2 │      2       6      10      14
    3 │      3  [ 7 #1]     11  [15 #3]
    #n: element n of the part

    Raises `LayoutError` when a part is not one of the tensor's.
    """
    kinds = (int, tuple, Layout, ComposedLayout, Tensor)
    instance("draw.tiling", "whole", whole, kinds, "a tensor, a layout or a shape")
    for part in parts:
        if not callable(part):
            instance("draw.tiling", "each part", part, Tensor, "a function from a tensor to its part, or a tensor")
    tensor = _as_tensor(whole)
    shape = tensor.shape
    frame = frame_of(shape, limit, "a tensor")
    owners: dict[Any, list[tuple[int, int]]] = {}
    for number, part in enumerate(parts):
        for place, coord in enumerate(_coords_of(part, tensor)):
            owners.setdefault(coord, []).append((number, place))

    def cell(coord: Any) -> Cell:
        label = value_text(tensor, coord)
        held = owners.get(_flat(coord, shape))
        if held is None:
            return Cell((label,), PAPER, faded=bool(parts))
        number, place = held[0]
        others = f"+{len(held) - 1}" if len(held) > 1 else ""
        return Cell((label, f"#{place}{others}"), categorical(number), mark=True)

    title = f"tiling of {tensor.layout if not isinstance(whole, Tensor) else tensor.title}"
    notes = ("#n: element n of the part",) if parts else ()
    return Drawing(frame.grids(cell), title, frame.notes + notes)


def _as_tensor(whole: Any) -> Tensor:
    if isinstance(whole, Tensor):
        return whole
    layout = whole if isinstance(whole, (Layout, ComposedLayout)) else Layout(whole)
    # Without memory, an element stands for its own offset.
    return Tensor(CoordinateEngine(0), layout)


def _flat(coord: Any, shape: Any) -> Any:
    """Return a coordinate with one integer for each leaf of the shape, the key that parts are compared by."""
    return tuple(leaves(idx2crd(coord, shape)))


def _coords_of(part: Part, whole: Tensor) -> list[Any]:
    """Return the coordinates of a part's elements in the whole, in the part's own order."""
    if isinstance(part, Tensor):
        return _coords_in_storage(part, whole)
    cut: Any = part(_coordinates_like(whole.shape, whole.dtype))
    if not isinstance(cut, Tensor) or not isinstance(cut.engine, CoordinateEngine):
        raise LayoutError(f"a part is a function from a tensor to a part of it; this one returned {cut!r}")
    return [tuple(leaves(cut[i])) for i in range(_count(cut))]


def _coordinates_like(shape: Any, dtype: DType) -> Tensor:
    """Make the identity tensor of a shape that claims an element type, so that copy atoms see the tensor's own."""
    tensor = identity_tensor(shape)
    engine = CoordinateEngine(tensor.engine.base)
    engine.dtype = dtype
    return Tensor(engine, tensor.layout)


def _coords_in_storage(part: Tensor, whole: Tensor) -> list[Any]:
    ours, theirs = whole.engine, part.engine
    if not isinstance(ours, NumpyEngine) or not isinstance(theirs, NumpyEngine) or ours.storage is not theirs.storage:
        raise LayoutError(
            f"{part.title} was not cut from {whole.title}",
            help="pass the host tensor that it was cut from, or a function: lambda t: tw.local_tile(t, tile, coord)",
        )
    places = {ours.start + whole.layout(i): i for i in range(_count(whole))}
    found = [places.get(theirs.start + part.layout(i)) for i in range(_count(part))]
    return [_flat(i, whole.shape) for i in found if i is not None]


def _count(tensor: Tensor) -> int:
    count = tensor.size
    if not isinstance(count, int):
        raise LayoutError(f"a tensor of shape {show(tensor.shape)} cannot be drawn: an extent is dynamic")
    return count
