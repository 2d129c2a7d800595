"""How a shape lies on paper: mode 0 down, mode 1 across, further modes as further grids; nested modes ruled heavier."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.arguments import given, instance, integer
from tilewright.draw.model import Axis, Cell, Grid
from tilewright.errors import ArgumentError, LayoutError
from tilewright.layout import idx2crd, is_static
from tilewright.layout.tuples import leaves, show, tuple_size

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
    """Where the coordinates of a shape stand: grids down and across, each with the same rows and columns."""

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
        """Return the coordinate of a place; a shape of one mode lies across."""
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
