"""Pictures of layouts, swizzles and tensors: each cell shows where its coordinate leads.

A frame says how a shape is put on paper: mode 0 down, mode 1 across, further modes as further grids; nested modes are
ruled heavier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.arguments import given, instance, integer
from tilewright.draw.model import PAPER, Axis, Cell, Drawing, Grid, categorical, ramp
from tilewright.errors import ArgumentError, LayoutError
from tilewright.layout import ComposedLayout, Layout, Swizzle, idx2crd, is_static
from tilewright.layout.tuples import leaves, show, tuple_size
from tilewright.tensors import CoordinateEngine, NumpyEngine, Tensor

Limit = tuple[int, int]

# The rows and columns of one grid, and the grids down and across, that are shown unless more are asked for.
LIMIT: Limit = (32, 32)
_MOST_GRIDS = (4, 4)
_HEAVIEST = 3


def axis_of(mode: Any, name: str, most: int) -> Axis:  # Any: an extent or a nested shape
    """Make the axis of one mode: linear indices as headers, and where the mode is nested its coordinates below.

    >>> axis_of((2, 2), "", 8).headers
    (('0', '1', '2', '3'), ('0,0', '1,0', '0,1', '1,1'))
    >>> axis_of((2, 2), "", 8).levels
    (0, 0, 1, 0)
    """
    extents = leaves(mode)
    extent = int(tuple_size(mode))  # type: ignore[arg-type]  # static: frame_of refuses others
    shown = min(extent, most)
    headers = [tuple([str(i) for i in range(shown)])]
    if len([e for e in extents if e > 1]) > 1:
        headers.append(tuple([",".join([str(c) for c in leaves(idx2crd(i, mode))]) for i in range(shown)]))
    return Axis(name, extent, shown, tuple(headers), tuple([_level(i, extents) for i in range(shown)]))


def _level(index: int, extents: list[int]) -> int:
    """Count the modes that end before an index: each starts anew where a running product divides it."""
    level, step = 0, 1
    for extent in extents[:-1]:
        step *= extent
        level += extent > 1 and index % step == 0
    return min(level, _HEAVIEST) if index else 0


@dataclass(frozen=True)
class Frame:
    """Where the coordinates of a shape are drawn: grids down and across, each with the same rows and columns."""

    panels: tuple[tuple[tuple[str, tuple[Any, ...]], ...], ...]  # Any: a title, and the coordinates past mode 1
    rows: Axis
    columns: Axis
    rank: int
    notes: tuple[str, ...] = ()

    def coords(self) -> Iterator[Any]:
        """Go through the coordinates that are shown."""
        for panel in (p for row in self.panels for p in row):
            for i in range(self.rows.shown):
                for j in range(self.columns.shown):
                    yield self.coord(i, j, panel[1])

    def coord(self, i: int, j: int, rest: tuple[Any, ...]) -> Any:
        """Return the coordinate of a place; a shape of one mode is drawn across."""
        return j if self.rank < 2 else (i, j, *rest)

    def grids(self, cell_at: Callable[[Any], Cell], title: str = "") -> tuple[tuple[Grid | None, ...], ...]:
        """Fill every place with the cell of its coordinate."""
        return tuple([tuple([self._grid(panel, cell_at, title) for panel in row]) for row in self.panels])

    def _grid(self, panel: tuple[str, tuple[Any, ...]], cell_at: Callable[[Any], Cell], title: str) -> Grid:
        name, rest = panel
        cells = [
            tuple([cell_at(self.coord(i, j, rest)) for j in range(self.columns.shown)]) for i in range(self.rows.shown)
        ]
        return Grid(name or title, tuple(cells), self.rows, self.columns, show_rows=self.rank > 1)


def frame_of(shape: Any, limit: Limit = LIMIT, what: str = "a shape") -> Frame:  # Any: an extent or nested shape
    """Lay a static shape out on paper, cut to `limit` rows and columns a grid.

    Raises `LayoutError` when an extent is dynamic: there is nothing to draw.
    """
    instance("a drawing", "limit", limit, tuple, "a pair, the most rows and columns of a grid")
    if len(limit) != 2:
        raise ArgumentError(f"limit is a pair, the most rows and columns of a grid, got {given(limit)}")
    integer("limit", "the number of rows", limit[0], minimum=1)
    integer("limit", "the number of columns", limit[1], minimum=1)
    if not is_static(shape):
        raise LayoutError(
            f"{what} of shape {show(shape)} cannot be drawn: an extent is dynamic", help="draw a static layout"
        )
    modes = shape if isinstance(shape, tuple) else (shape,)
    if len(modes) < 2:
        return Frame(((("", ()),),), axis_of(1, "", 1), axis_of(modes[0] if modes else 1, "", limit[1]), len(modes))
    rows, columns = axis_of(modes[0], "", limit[0]), axis_of(modes[1], "", limit[1])
    panels, notes = _panels(modes[2:])
    return Frame(panels, rows, columns, len(modes), notes)


def _panels(rest: tuple[Any, ...]) -> tuple[tuple[tuple[tuple[str, tuple[Any, ...]], ...], ...], tuple[str, ...]]:
    """Arrange the grids of modes 2 and up: one mode goes across; of more, mode 2 goes down and the others across."""
    if not rest:
        return ((("", ()),),), ()
    sizes = [int(tuple_size(m)) for m in rest]  # type: ignore[arg-type]  # static: frame_of refuses others
    down = sizes[0] if len(sizes) > 1 else 1
    across_shape = tuple(sizes[1:] if len(sizes) > 1 else sizes)
    across = int(tuple_size(across_shape))  # type: ignore[arg-type]  # static, as above
    shown = min(down, _MOST_GRIDS[0]), min(across, _MOST_GRIDS[1])
    table = []
    for i in range(shown[0]):
        row = []
        for j in range(shown[1]):
            right: Any = idx2crd(j, across_shape)
            coord = (i, *right) if len(sizes) > 1 else right
            row.append((show((None, None, *coord)), tuple(coord)))
        table.append(tuple(row))
    left_out = down * across - shown[0] * shown[1]
    notes = (f"{left_out} of {down * across} grids are left out",) if left_out else ()
    return tuple(table), notes


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
