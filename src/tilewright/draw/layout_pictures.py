"""Pictures of layouts, swizzles and tensors: each cell shows where its coordinate leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.draw.colours import PAPER, categorical, ramp
from tilewright.draw.frames import LIMIT, Frame, Limit, frame_of
from tilewright.draw.model import Axis, Cell, Drawing, Grid
from tilewright.errors import LayoutError
from tilewright.layout import ComposedLayout, Layout, Swizzle, is_static
from tilewright.layout.tuples import show
from tilewright.tensors import CoordinateEngine, NumpyEngine, Tensor

AnyLayout = Layout | ComposedLayout


def layout_drawing(layout: AnyLayout, limit: Limit = LIMIT) -> Drawing:
    """Draw a layout: a cell for each coordinate, labelled with its offset.

    The fill runs from pale to blue with the offset. Under a swizzle it is one colour for each place that the swizzle
    moves runs of elements to, so that a column of one colour is a column in one place.
    """
    _need_static(layout)
    frame = frame_of(layout.shape, limit, f"layout {layout}")
    fill, key = _fill_of(layout, frame)
    grids = frame.grids(lambda c: Cell((show(layout(c)),), fill(layout(c))))
    return Drawing(grids, str(layout), frame.notes, key)


def _need_static(layout: AnyLayout) -> None:
    if not is_static(layout):
        raise LayoutError(f"layout {layout} cannot be drawn: a leaf is dynamic", help="draw a static layout")


def _fill_of(layout: AnyLayout, frame: Frame) -> tuple[Callable[[Any], str], str]:
    swizzle = _swizzle_of(layout)
    if swizzle is not None and swizzle.bits:
        return _place_fill(swizzle), _place_key(swizzle)
    offsets = [layout(c) for c in frame.coords()]
    return ramp_over(offsets), ""


def ramp_over(offsets: list[Any]) -> Callable[[Any], str]:
    """Return the fill of an offset on a ramp over all of them; coordinates have no order and stay white."""
    if not all(isinstance(x, int) for x in offsets):
        return lambda _: PAPER
    low, high = min(offsets), max(offsets)
    return lambda offset: ramp((offset - low) / max(high - low, 1))


def _swizzle_of(layout: AnyLayout) -> Swizzle | None:
    outer = layout.outer if isinstance(layout, ComposedLayout) else None
    return outer if isinstance(outer, Swizzle) else None


def _place_fill(swizzle: Swizzle) -> Callable[[int], str]:
    """Return the fill by the bits of the offset that the swizzle writes."""
    start = swizzle.base + max(-swizzle.shift, 0)
    return lambda offset: categorical((offset >> start) % (1 << swizzle.bits))


def _place_key(swizzle: Swizzle) -> str:
    start = swizzle.base + max(-swizzle.shift, 0)
    bits = f"bit {start}" if swizzle.bits == 1 else f"bits {start} to {start + swizzle.bits - 1}"
    return f"{bits} of the offset, which the swizzle writes"


def swizzle_drawing(swizzle: Swizzle, limit: Limit = LIMIT) -> Drawing:
    """Draw a swizzle: runs of elements before and after, a row for each value of the bits that it reads.

    A cell is a run of `2**base` elements, which stay together; its label is the number of the run.
    """
    high = swizzle.base + abs(swizzle.shift)
    columns = 1 << (high - swizzle.base) if swizzle.bits else 1
    rows = 1 << swizzle.bits
    frame = frame_of((rows, columns), limit, str(swizzle))
    fill = _place_fill(swizzle)

    def cell(number: int) -> Cell:
        return Cell((str(number),), fill(number << swizzle.base))

    before = frame.grids(lambda c: cell(c[0] * columns + c[1]), "before")
    after = frame.grids(lambda c: cell(swizzle((c[0] * columns + c[1]) << swizzle.base) >> swizzle.base), "after")
    unit = "one element" if swizzle.base == 0 else f"a run of {1 << swizzle.base} elements"
    notes = (f"a cell is {unit}: each place on the right shows where it leads",)
    return Drawing(((before[0][0], after[0][0]),), str(swizzle), notes, _place_key(swizzle) if swizzle.bits else "")


def tensor_drawing(tensor: Tensor, limit: Limit = LIMIT) -> Drawing:
    """Draw a tensor: its elements at their coordinates where they are on the host, its offsets otherwise."""
    _need_static(tensor.layout)
    if not isinstance(tensor.engine, (NumpyEngine, CoordinateEngine)):
        return layout_drawing(tensor.layout, limit).titled(tensor.title)
    frame = frame_of(tensor.shape, limit, tensor.title)
    fill, key = _fill_of(tensor.layout, frame)
    grids = frame.grids(lambda c: Cell((value_text(tensor, c),), fill(tensor.layout(c))))
    if isinstance(tensor.engine, NumpyEngine) and not key:
        key = "the offset in memory, from pale to blue"
    return Drawing(grids, tensor.title, frame.notes, key)


def value_text(tensor: Tensor, coord: Any) -> str:  # Any: a coordinate
    """Return an element as a short label; a coordinate outside the storage has none."""
    try:
        value = tensor[coord]
    except IndexError:
        return "?"
    if isinstance(value, tuple):
        return show(value)
    number = value.item() if hasattr(value, "item") else value
    return f"{number:.4g}" if isinstance(number, float) else str(number)


def single_grid(frame: Frame, cell_at: Callable[[Any], Cell], title: str, rows: Axis, columns: Axis) -> Grid:
    """Fill a frame of one grid, with axes of the caller's own."""
    cells = [tuple([cell_at((i, j)) for j in range(columns.shown)]) for i in range(rows.shown)]
    return Grid(title, tuple(cells), rows, columns)
