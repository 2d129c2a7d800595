"""Which drawing belongs to what: one entry for each kind of thing that can be drawn."""

from __future__ import annotations

from typing import Any

from tilewright.draw.frames import LIMIT, Limit
from tilewright.draw.layout_pictures import layout_drawing, swizzle_drawing, tensor_drawing
from tilewright.draw.model import Drawing
from tilewright.draw.thread_pictures import copy_drawing, mma_drawing
from tilewright.errors import ArgumentError
from tilewright.layout import ComposedLayout, Layout, Swizzle
from tilewright.tensors import Tensor
from tilewright.tiled import TiledCopy, TiledMMA


def picture(
    x: Any,  # Any: what can be drawn, or a shape
    *,
    title: str | None = None,
    limit: Limit = LIMIT,
    dtype: Any = None,  # Any: whatever names an element type
) -> Drawing:
    """Make the drawing of a layout, swizzle, tensor, tiled copy or tiled mma; a drawing is returned as it is.

    `limit` is the most rows and columns that a grid shows; a note says what was left out. `dtype` is the element
    type that a tiled copy is drawn for.

    >>> import tilewright as tw
    >>> picture(tw.Layout((4, 8)), title="column-major").title
    'column-major'

    Raises `ArgumentError` for what has no picture, `LayoutError` when a layout is dynamic.
    """
    return _drawing(x, limit, dtype).titled(title)


def _drawing(x: Any, limit: Limit, dtype: Any) -> Drawing:
    if isinstance(x, Drawing):
        return x
    if isinstance(x, TiledCopy):
        from tilewright.dtypes import dtype as as_dtype

        return copy_drawing(x, None if dtype is None else as_dtype(dtype), limit)
    if isinstance(x, TiledMMA):
        return mma_drawing(x, limit)
    if isinstance(x, Tensor):
        return tensor_drawing(x, limit)
    if isinstance(x, Swizzle):
        return swizzle_drawing(x, limit)
    if isinstance(x, (Layout, ComposedLayout)):
        return layout_drawing(x, limit)
    if isinstance(x, (int, tuple)) and not isinstance(x, bool):
        return layout_drawing(Layout(x), limit)
    raise ArgumentError(
        f"{type(x).__name__} has no picture",
        help="draw a layout, swizzle, tensor, TiledCopy or TiledMMA, or what draw.banks and draw.tiling return",
    )
