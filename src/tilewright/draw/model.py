"""What a drawing is: grids of labelled cells, arranged in rows and columns. Every picture and every table is one.

Subjects (a layout, a tiled copy) become a `Drawing`; printers (text, Typst, SVG) read it. Neither knows the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.arguments import instance
from tilewright.draw.colours import PAPER
from tilewright.errors import ArgumentError
from tilewright.layout.display import Displayed


@dataclass(frozen=True)
class Cell:
    """One square: up to two lines of label on a fill.

    Marked cells stand in a heavy outline, neighbours of one fill in a common one; a faded cell has a pale label.
    """

    lines: tuple[str, ...]
    fill: str = PAPER
    mark: bool = False
    faded: bool = False

    @property
    def label(self) -> str:
        """The label on one line."""
        return "".join(self.lines)


@dataclass(frozen=True)
class Axis:
    """The rows or the columns of a grid: how many there are, how many are shown, and their headers.

    `levels[i]` is the weight of the line before index i: 0 inside the innermost mode, 1 where that ends, and so on.
    """

    name: str
    extent: int
    shown: int
    headers: tuple[tuple[str, ...], ...] = ()
    levels: tuple[int, ...] = ()

    @property
    def left_out(self) -> int:
        return self.extent - self.shown

    def level(self, index: int) -> int:
        """Return the weight of the line before an index."""
        return self.levels[index] if 0 < index < len(self.levels) else 0


@dataclass(frozen=True)
class Grid:
    """Cells in rows and columns under a title. `show_rows` and `show_columns` say whether headers are printed."""

    title: str
    cells: tuple[tuple[Cell, ...], ...]
    rows: Axis
    columns: Axis
    show_rows: bool = True
    show_columns: bool = True


@dataclass(frozen=True)
class Drawing(Displayed):
    """Grids arranged as a table (None where nothing stands), with a title above and notes below.

    `colour_key` says what the colours mean, which text leaves out.

    Grids in one row share their top edge and grids in one column their left edge, so that A, B and C of a matrix
    product line up.
    """

    grids: tuple[tuple[Grid | None, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    colour_key: str = ""

    def titled(self, title: str | None) -> Drawing:
        """Return the drawing under another title; None keeps its own."""
        return self if title is None else replace(self, title=title)

    @property
    def cut_notes(self) -> tuple[str, ...]:
        """What was left out of the grids, once for each axis."""
        found: dict[str, None] = {}
        for grid in (g for row in self.grids for g in row if g is not None):
            for axis, what in ((grid.rows, "rows"), (grid.columns, "columns")):
                if axis.left_out:
                    name = f" ({axis.name})" if axis.name else ""
                    found[f"{what} {axis.shown} to {axis.extent - 1}{name} are left out"] = None
        return tuple(found)

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, then what was left out."""
        return self.notes + self.cut_notes

    @property
    def captions(self) -> tuple[str, ...]:
        """The notes, the meaning of the colours, then what was left out."""
        return self.notes + ((f"colour: {self.colour_key}",) if self.colour_key else ()) + self.cut_notes


def beside(*drawings: Drawing, title: str = "") -> Drawing:
    """Put drawings next to one another, each under its own title; notes are joined."""
    for drawing in drawings:
        instance("draw.beside", "each drawing", drawing, Drawing, "a Drawing", "tw.draw.picture(x) makes one")
    if not drawings:
        raise ArgumentError("draw.beside: there is no drawing", help="draw.beside(tw.draw.picture(x), ...)")
    height = max(len(d.grids) for d in drawings)
    rows: list[list[Grid | None]] = [[] for _ in range(height)]
    for drawing in drawings:
        width = max(len(row) for row in drawing.grids)
        single = height == width == 1
        for i in range(height):
            row = list(drawing.grids[i]) if i < len(drawing.grids) else []
            if single and row[0] is not None:
                row[0] = replace(row[0], title=drawing.title)
            rows[i] += row + [None] * (width - len(row))
    notes = dict.fromkeys(note for d in drawings for note in d.notes)
    keys = dict.fromkeys(d.colour_key for d in drawings if d.colour_key)
    return Drawing(tuple([tuple(row) for row in rows]), title, tuple(notes), "; ".join(keys))
