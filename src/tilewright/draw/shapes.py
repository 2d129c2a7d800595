"""Where everything of a drawing is placed, in points: boxes, lines and labels, for the printers of Typst and SVG."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tilewright.draw.model import INK, PALE_INK, RULE, Axis, Cell, Drawing, Grid

Anchor = Literal["start", "middle", "end"]

# The advance of a character of a monospaced font, as a part of the font's size.
ADVANCE = 0.602

_LABEL, _SMALL, _HEADER, _TITLE, _NOTE = 8.5, 7.0, 6.5, 10.0, 7.5
_TINY = 5.0
_GRID_TITLE = 8.0
_PAD = 3.0
_GAP = 20.0
_EDGE = 8.0
# The width of the line before an index, by the level of the mode that ends there; the first is inside a mode.
_RULES = (0.35, 1.1, 1.7, 2.3)
_FRAME = 1.1
_MARK = 1.4


@dataclass(frozen=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    w: float
    h: float
    fill: str


@dataclass(frozen=True)
class Line:
    """A straight line."""

    x1: float
    y1: float
    x2: float
    y2: float
    colour: str
    width: float


@dataclass(frozen=True)
class Label:
    """Text whose middle is at height y; `anchor` says which end of it is at x."""

    x: float
    y: float
    text: str
    size: float
    colour: str = INK
    anchor: Anchor = "middle"
    bold: bool = False


@dataclass
class Scene:
    """Shapes in the order in which they are painted, on a page of `width` by `height`."""

    width: float = 0.0
    height: float = 0.0
    shapes: list[Box | Line | Label] = field(default_factory=list)

    def add(self, shape: Box | Line | Label) -> None:
        self.shapes.append(shape)


@dataclass(frozen=True)
class _Measure:
    """The sizes that all grids of a drawing share, so that their cells line up."""

    cell_w: float
    cell_h: float
    label: float
    left: tuple[float, ...]  # the width of row headers, for each column of grids
    top: tuple[float, ...]  # the height of titles and column headers, for each row of grids


def scene_of(drawing: Drawing) -> Scene:
    """Place the grids of a drawing, its title and its notes."""
    measure = _measure(drawing)
    scene = Scene()
    y = _EDGE
    if drawing.title:
        scene.add(Label(_EDGE, y + _TITLE / 2, drawing.title, _TITLE, anchor="start", bold=True))
        y += _TITLE + 9
    widths = [
        measure.left[c] + max([max(measure.cell_w * _grid_columns(g), _title_width(g)) for g in column])
        for c, column in enumerate(_columns_of(drawing))
    ]
    for r, row in enumerate(drawing.grids):
        x = _EDGE
        for c, grid in enumerate(row):
            if grid is not None:
                _place_grid(scene, grid, measure, x + measure.left[c], y + measure.top[r])
            x += widths[c] + _GAP
        y += (
            measure.top[r]
            + measure.cell_h * max([g.rows.shown + _torn(g.rows) for g in row if g is not None], default=0)
            + 12
        )
    y -= 12
    for number, note in enumerate(drawing.captions):
        y += 12 if number == 0 else _NOTE + 3.5
        scene.add(Label(_EDGE, y, note, _NOTE, PALE_INK, "start"))
    scene.height = y + (_NOTE / 2 if drawing.captions else 0) + _EDGE
    texts = [_text_end(s) for s in scene.shapes if isinstance(s, Label)]
    scene.width = max([_EDGE + sum(widths) + _GAP * (len(widths) - 1), *texts]) + _EDGE
    return scene


def _text_end(label: Label) -> float:
    return label.x + len(label.text) * ADVANCE * label.size if label.anchor == "start" else 0.0


def _columns_of(drawing: Drawing) -> list[list[Grid | None]]:
    count = max(len(row) for row in drawing.grids)
    return [[row[c] if c < len(row) else None for row in drawing.grids] for c in range(count)]


def _title_width(grid: Grid | None) -> float:
    return 0.0 if grid is None else len(grid.title) * ADVANCE * _GRID_TITLE


def _grid_columns(grid: Grid | None) -> int:
    return 0 if grid is None else grid.columns.shown + _torn(grid.columns)


def _torn(axis: Axis) -> int:
    """Return 1 where rows or columns are left out: a strip of dots takes the place of one."""
    return 1 if axis.left_out else 0


def _measure(drawing: Drawing) -> _Measure:
    there = [g for row in drawing.grids for g in row if g is not None]
    cells = [c for g in there for row in g.cells for c in row]
    two_lines = any(len(c.lines) > 1 for c in cells)
    label = _SMALL if two_lines else _LABEL
    longest = max(len(line) for c in cells for line in c.lines)
    cell_h = 21.0 if two_lines else 17.0
    header = max([len(h) * ADVANCE * _TINY for g in there for h in g.columns.headers[-1]], default=0)
    cell_w = max(cell_h, longest * ADVANCE * label + 2 * _PAD, header + 2)
    left = tuple([max([_left(g) for g in column if g is not None], default=0.0) for column in _columns_of(drawing)])
    top = tuple([max([_top(g) for g in row if g is not None], default=0.0) for row in drawing.grids])
    return _Measure(cell_w, cell_h, label, left, top)


def _left(grid: Grid) -> float:
    """Return the width of a grid's row headers: the indices, and left of them nested coordinates."""
    if not grid.show_rows:
        return 0.0
    widths = [_HEADER, _TINY]
    return sum(
        [max([len(h) for h in line]) * ADVANCE * w + 4 for line, w in zip(grid.rows.headers, widths, strict=False)]
    ) + (8 if grid.rows.name else 0)


def _top(grid: Grid) -> float:
    height = 15.0 if grid.title else 0.0
    if grid.show_columns:
        height += _HEADER + 4 + (_TINY + 2 if len(grid.columns.headers) > 1 else 0) + (8 if grid.columns.name else 0)
    return height


def _place_grid(scene: Scene, grid: Grid, measure: _Measure, x: float, y: float) -> None:
    """Place one grid with its first cell at (x, y), headers and title to the left and above."""
    _place_cells(scene, grid, measure, x, y)
    _place_rules(scene, grid, measure, x, y)
    _place_marks(scene, grid, measure, x, y)
    _place_dots(scene, grid, measure, x, y)
    _place_headers(scene, grid, measure, x, y)
    if grid.title:
        scene.add(Label(x, y - _top(grid) + 6, grid.title, _GRID_TITLE, anchor="start", bold=True))


def _place_cells(scene: Scene, grid: Grid, measure: _Measure, x: float, y: float) -> None:
    w, h, size = measure.cell_w, measure.cell_h, measure.label
    for i, row in enumerate(grid.cells):
        for j, cell in enumerate(row):
            scene.add(Box(x + j * w, y + i * h, w, h, cell.fill))
            ink = PALE_INK if cell.faded else INK
            middle = y + i * h + h / 2
            step = size + 0.8
            first = middle - step * (len(cell.lines) - 1) / 2
            for k, line in enumerate(cell.lines):
                scene.add(Label(x + j * w + w / 2, first + k * step, line, size, ink))


def _place_rules(scene: Scene, grid: Grid, measure: _Measure, x: float, y: float) -> None:
    """Rule the grid: thin lines between cells first, so that heavier ones lie over them, and the frame last."""
    w, h = measure.cell_w, measure.cell_h
    right, bottom = x + grid.columns.shown * w, y + grid.rows.shown * h
    lines = [(grid.columns.level(j), x + j * w, y, x + j * w, bottom) for j in range(1, grid.columns.shown)]
    lines += [(grid.rows.level(i), x, y + i * h, right, y + i * h) for i in range(1, grid.rows.shown)]
    for level, x1, y1, x2, y2 in sorted(lines, key=lambda line: line[0]):
        scene.add(Line(x1, y1, x2, y2, INK if level else RULE, _RULES[level]))
    scene.add(Line(x, y, right, y, INK, _FRAME))
    scene.add(Line(x, y, x, bottom, INK, _FRAME))
    # The edge where rows or columns go on is left thin.
    scene.add(Line(right, y, right, bottom, *((RULE, _RULES[0]) if grid.columns.left_out else (INK, _FRAME))))
    scene.add(Line(x, bottom, right, bottom, *((RULE, _RULES[0]) if grid.rows.left_out else (INK, _FRAME))))


def _place_marks(scene: Scene, grid: Grid, measure: _Measure, x: float, y: float) -> None:
    """Outline each region of marked neighbours of one fill, a little inside, so that two regions do not merge."""
    w, h, inset = measure.cell_w, measure.cell_h, _MARK / 2 + 0.2
    for i, row in enumerate(grid.cells):
        for j, cell in enumerate(row):
            if not cell.mark:
                continue
            same = {d: _same_region(grid, cell, i + d[0], j + d[1]) for d in _SIDES}
            left, right = x + j * w + inset * (not same[0, -1]), x + (j + 1) * w - inset * (not same[0, 1])
            top, bottom = y + i * h + inset * (not same[-1, 0]), y + (i + 1) * h - inset * (not same[1, 0])
            edges = {
                (0, -1): (left, top, left, bottom),
                (0, 1): (right, top, right, bottom),
                (-1, 0): (left, top, right, top),
                (1, 0): (left, bottom, right, bottom),
            }
            for side, edge in edges.items():
                if not same[side]:
                    scene.add(Line(*edge, INK, _MARK))


_SIDES = ((0, -1), (0, 1), (-1, 0), (1, 0))


def _same_region(grid: Grid, cell: Cell, i: int, j: int) -> bool:
    if not (0 <= i < len(grid.cells) and 0 <= j < len(grid.cells[i])):
        return False
    other = grid.cells[i][j]
    return other.mark and other.fill == cell.fill


def _place_dots(scene: Scene, grid: Grid, measure: _Measure, x: float, y: float) -> None:
    w, h = measure.cell_w, measure.cell_h
    right, bottom = x + grid.columns.shown * w, y + grid.rows.shown * h
    if grid.columns.left_out:
        for i in range(grid.rows.shown):
            scene.add(Label(right + w / 2, y + i * h + h / 2, "···", _LABEL, PALE_INK))
    if grid.rows.left_out:
        for j in range(grid.columns.shown):
            for k in (-3, 0, 3):
                scene.add(Label(x + j * w + w / 2, bottom + h / 2 + k, "·", _LABEL, PALE_INK))


def _place_headers(scene: Scene, grid: Grid, measure: _Measure, x: float, y: float) -> None:
    w, h = measure.cell_w, measure.cell_h
    if grid.show_columns:
        up = y - _HEADER / 2 - 2.5
        for at, line in enumerate(reversed(grid.columns.headers)):
            tiny = len(grid.columns.headers) > 1 and at == 0
            for j, text in enumerate(line):
                scene.add(Label(x + j * w + w / 2, up, text, _TINY if tiny else _HEADER, PALE_INK))
            up -= _TINY + 2
        if grid.columns.name:
            scene.add(Label(x + grid.columns.shown * w / 2, up - 1.5, f"{grid.columns.name} →", _HEADER, PALE_INK))
    if not grid.show_rows:
        return
    across = x - 3.5
    for at, line in enumerate(reversed(grid.rows.headers)):
        size = _TINY if len(grid.rows.headers) > 1 and at == 0 else _HEADER
        for i, text in enumerate(line):
            scene.add(Label(across, y + i * h + h / 2, text, size, PALE_INK, "end"))
        across -= max(len(text) for text in line) * ADVANCE * size + 4
    if grid.rows.name:
        scene.add(Label(across, y + grid.rows.shown * h / 2, f"{grid.rows.name}↓", _HEADER, PALE_INK, "end"))
