"""Pictures that count from 1, as Julia and Fortran do: the numbers of a finished drawing, each one more."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from tilewright.draw.model import Axis, Cell, Drawing, Grid

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
