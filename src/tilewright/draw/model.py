"""What a drawing is: grids of labelled cells, arranged in rows and columns. Every picture and every table is one.

Subjects (a layout, a tiled copy) become a `Drawing`; printers (text, Typst, SVG) read it. Neither knows the other.

The colours of pictures: eight hues tell threads and banks apart. They are Paul Tol's "light" scheme, made for cells
under black text: it stays distinct in the common forms of colour blindness, and black has a contrast of at least 8 to 1
on each. They are ordered here so that neighbours also differ when printed in grey. The next eight numbers have the same
hues in a paler tint, four tints in all, so that the 32 threads of a warp and the 32 banks each have a fill of their
own. Offsets get a ramp of a single hue from pale to mid blue, which keeps its order in grey. No fact is shown by colour
alone: cells carry labels, and marked ones have a heavy outline.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.arguments import instance
from tilewright.errors import ArgumentError
from tilewright.layout.display import Displayed

PAPER = "#ffffff"
INK = "#000000"
PALE_INK = "#6b6b6b"
RULE = "#8c8c8c"
ALARM = "#ee8866"
CALM = "#99ddff"

# blue, pink, orange, cyan, olive, yellow, mint, pear
HUES = ("#77aadd", "#ffaabb", "#ee8866", "#99ddff", "#aaaa00", "#eedd88", "#44bb99", "#bbcc33")

_RAMP = ("#f6fafd", "#7fb2de")

# How much white the first eight fills, the second eight and so on are mixed with.
_TINTS = (0.0, 0.38, 0.6, 0.77)


def categorical(index: int) -> str:
    """Return the fill of a thread or bank: its hue is index mod 8, its tint index // 8 mod 4.

    >>> categorical(0), categorical(8), categorical(0) == categorical(32)
    ('#77aadd', '#abcaea', True)
    """
    number, hue = divmod(index, len(HUES))
    return tint(HUES[hue], number)


def tint(colour: str, number: int) -> str:
    """Return one of four tints of a colour, 0 for the colour itself; they repeat."""
    return mix(colour, PAPER, _TINTS[number % len(_TINTS)])


def ramp(part: float) -> str:
    """Return the fill at `part` of the ramp, from 0 (pale) to 1.

    >>> ramp(0), ramp(1)
    ('#f6fafd', '#7fb2de')
    """
    return mix(*_RAMP, part)


def mix(a: str, b: str, part: float) -> str:
    """Return the colour at `part` of the way from a to b.

    >>> mix("#000000", "#ff8040", 0.5)
    '#804020'
    """
    return "#" + "".join([f"{round(x + (y - x) * part):02x}" for x, y in zip(_bytes(a), _bytes(b), strict=True)])


def _bytes(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as WCAG 2 defines it: 0 for black, 1 for white."""
    parts = [v / 255 for v in _bytes(colour)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """Return the contrast ratio of two colours, from 1 to 21.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    low, high = sorted((luminance(a), luminance(b)))
    return round((high + 0.05) / (low + 0.05), 2)


@dataclass(frozen=True)
class Cell:
    """One square: up to two lines of label on a fill.

    Marked cells have a heavy outline, neighbours of one fill in a common one; a faded cell has a pale label.
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
    first: int = 0  # the number of the first

    @property
    def left_out(self) -> int:
        return self.extent - self.shown

    def level(self, index: int) -> int:
        """Return the weight of the line before an index."""
        return self.levels[index] if 0 < index < len(self.levels) else 0

    def part(self, start: int, stop: int) -> Axis:
        """Return the axis from one shown index up to another."""
        headers = tuple(header[start:stop] for header in self.headers)
        return replace(self, extent=stop - start, shown=stop - start, headers=headers, levels=self.levels[start:stop])


@dataclass(frozen=True)
class Grid:
    """Cells in rows and columns under a title. `show_rows` and `show_columns` say whether headers are printed."""

    title: str
    cells: tuple[tuple[Cell, ...], ...]
    rows: Axis
    columns: Axis
    show_rows: bool = True
    show_columns: bool = True
    of: str = ""  # the drawing that it came from, where several were put together

    def of_columns(self, start: int, stop: int) -> Grid:
        """Return the grid of some of its columns; only that of the first has the title."""
        return replace(
            self,
            title="" if start else self.title,
            cells=tuple(row[start:stop] for row in self.cells),
            columns=self.columns.part(start, stop),
        )


@dataclass(frozen=True)
class Drawing(Displayed):
    """Grids arranged as a table (None for an empty cell), with a title above and notes below.

    `colour_key` explains the colours, which text omits.

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
                    low, high = axis.shown + axis.first, axis.extent - 1 + axis.first
                    of = f"{grid.of}: " if grid.of else ""
                    found[f"{of}{what} {low} to {high}{name} are left out"] = None
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
    """Put drawings next to one another, each under its own title.

    Notes common to all of them are shown once, others after the title of their drawing.
    """
    for drawing in drawings:
        instance("draw.beside", "each drawing", drawing, Drawing, "a Drawing", "tw.draw.picture(x) makes one")
    if not drawings:
        raise ArgumentError(
            "draw.beside: expected at least one drawing, got none", help="draw.beside(tw.draw.picture(x), ...)"
        )
    height = max(len(d.grids) for d in drawings)
    rows: list[list[Grid | None]] = [[] for _ in range(height)]
    names = _names(drawings)
    are_cut_alike = all(d.cut_notes == drawings[0].cut_notes for d in drawings)
    for drawing, name in zip(drawings, names, strict=True):
        width = max(len(row) for row in drawing.grids)
        is_titled = False
        for i in range(height):
            row = list(drawing.grids[i]) if i < len(drawing.grids) else []
            for j, grid in enumerate(row):
                if grid is None:
                    continue
                if not is_titled and drawing.title:
                    alone = sum(g is not None for line in drawing.grids for g in line) == 1
                    grid = replace(grid, title=drawing.title if alone else f"{drawing.title}: {grid.title}")
                is_titled = True
                row[j] = grid if are_cut_alike else replace(grid, of=grid.of or name)
            rows[i] += row + [None] * (width - len(row))
    notes = _told([d.notes for d in drawings], names)
    keys = _told([(d.colour_key,) if d.colour_key else () for d in drawings], names)
    return Drawing(tuple([tuple(row) for row in rows]), title, notes, "; ".join(keys))


def _names(drawings: tuple[Drawing, ...]) -> list[str]:
    """Return what notes call each drawing: its title, or its number where it has none or another has the same."""
    titles = [d.title for d in drawings]
    return [name if name and titles.count(name) == 1 else f"drawing {number}" for number, name in enumerate(titles, 1)]


def _told(notes: list[tuple[str, ...]], names: list[str]) -> tuple[str, ...]:
    """Return the notes of drawings: those of all as they are, the others with the name of their drawing."""
    found: dict[str, None] = {}
    for own, name in zip(notes, names, strict=True):
        for note in own:
            found[note if all(note in other for other in notes) else f"{name}: {note}"] = None
    return tuple(found)


# --- pictures that count from 1, as Julia and Fortran do -------------------------------------------------------------

Shift = Callable[[str], str]


def from_one(drawing: Drawing, values_too: bool) -> Drawing:
    """Return a drawing whose rows, columns, threads and values are numbered from 1.

    Labels that are not `T3` or `V0` are offsets or coordinates, which count from 1 too where `values_too` says so, or
    elements of a tensor, which stay.
    """
    label = _all_numbers if values_too else _threads_and_values
    grids = tuple([tuple([grid and _grid(grid, label) for grid in row]) for row in drawing.grids])
    notes = tuple([_every_number(note) if note.startswith("threads ") else note for note in drawing.notes])
    return replace(drawing, grids=grids, notes=(*notes, "numbers count from 1"))


def _grid(grid: Grid, label: Shift) -> Grid:
    cells = tuple([tuple([_cell(cell, label) for cell in row]) for row in grid.cells])
    title = _all_numbers(grid.title) if grid.title.startswith("(") else grid.title  # the coordinate of a grid
    return replace(grid, title=title, cells=cells, rows=_axis(grid.rows), columns=_axis(grid.columns))


def _cell(cell: Cell, label: Shift) -> Cell:
    return replace(cell, lines=tuple([label(line) for line in cell.lines]))


def _axis(axis: Axis) -> Axis:
    return replace(axis, first=1, headers=tuple([tuple([_all_numbers(h) for h in row]) for row in axis.headers]))


def _more(match: re.Match[str]) -> str:
    return str(int(match[0]) + 1)


def _all_numbers(text: str) -> str:
    if re.match(r"[TVW]\d", text):
        return _threads_and_values(text)
    return _every_number(text)


def _threads_and_values(text: str) -> str:
    """Write `T3+1` (thread 3 and one more) as `T4+1`, `V0` as `V1`, and the warp `W0` as `W1`."""
    return re.sub(r"(?<=[TVW])\d+", _more, text)


def _every_number(text: str) -> str:
    return re.sub(r"(?<!\d)-?\d+" if text.lstrip("(").startswith("-") else r"\d+", _more, text)
