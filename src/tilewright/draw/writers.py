"""Drawings written as SVG, as Typst source and as text.

- SVG without any other program, for notebooks: small, and with text that can be searched and copied;
- Typst with its standard library only, one line for each thing on the page;
- text as a table for each grid, with rules where nested modes end and brackets around marked cells.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from html import escape

from tilewright.draw.model import Axis, Drawing, Grid
from tilewright.draw.shapes import Box, Label, Line, Scene

_FONTS = "'DejaVu Sans Mono', Menlo, Consolas, monospace"


def svg_text(scene: Scene) -> str:
    """Write a scene as an SVG document on white, so that it can be read on a dark page too."""
    w, h = _number(scene.width), _number(scene.height)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}pt" height="{h}pt" viewBox="0 0 {w} {h}" '
        f'font-family="{_FONTS}">\n<rect width="{w}" height="{h}" fill="#ffffff"/>\n'
    )
    return head + "\n".join([_svg_shape(s) for s in scene.shapes]) + "\n</svg>\n"


def _svg_shape(shape: Box | Line | Label) -> str:
    if isinstance(shape, Box):
        return (
            f'<rect x="{_number(shape.x)}" y="{_number(shape.y)}" width="{_number(shape.w)}" '
            f'height="{_number(shape.h)}" fill="{shape.fill}"/>'
        )
    if isinstance(shape, Line):
        return (
            f'<line x1="{_number(shape.x1)}" y1="{_number(shape.y1)}" x2="{_number(shape.x2)}" '
            f'y2="{_number(shape.y2)}" stroke="{shape.colour}" stroke-width="{_number(shape.width)}" '
            'stroke-linecap="square"/>'
        )
    weight = ' font-weight="bold"' if shape.bold else ""
    # A third of the size below its middle is where the baseline of digits runs.
    return (
        f'<text x="{_number(shape.x)}" y="{_number(shape.y + shape.size * 0.36)}" font-size="{_number(shape.size)}" '
        f'fill="{shape.colour}" text-anchor="{shape.anchor}"{weight}>{escape(shape.text)}</text>'
    )


def _number(value: float) -> str:
    """Write a number with at most two places."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


_FONT = "DejaVu Sans Mono"

_PAGE = """#set page(width: {w}pt, height: {h}pt, margin: 0pt, fill: white)
"""

# What the lines below are made of. Positions and sizes are in points from the upper left corner of the drawing.
_HEAD = """#let label(x, y, size, ink, anchor, body, weight: "regular") = place(dx: x * 1pt, dy: y * 1pt,
  place(anchor + horizon, text(font: "{font}", size: size * 1pt, fill: rgb(ink), weight: weight, body)))
#let tile(x, y, w, h, fill) = place(dx: x * 1pt, dy: y * 1pt, rect(width: w * 1pt, height: h * 1pt, fill: rgb(fill)))
#let rule(x1, y1, x2, y2, ink, width) = place(line(start: (x1 * 1pt, y1 * 1pt), end: (x2 * 1pt, y2 * 1pt),
  stroke: (paint: rgb(ink), thickness: width * 1pt, cap: "square")))
"""

_ANCHORS = {"start": "left", "middle": "center", "end": "right"}


def typst_text(scene: Scene, page: bool = True) -> str:
    """Write a scene as a Typst document, or without `page` as a piece to put into one."""
    head = _HEAD.format(font=_FONT)
    if page:
        head = _PAGE.format(w=_number(scene.width), h=_number(scene.height)) + head
    body = "\n".join([f"  {_typst_shape(s)}" for s in scene.shapes])
    return f"{head}#block(width: {_number(scene.width)}pt, height: {_number(scene.height)}pt, {{\n{body}\n}})\n"


def _typst_shape(shape: Box | Line | Label) -> str:
    if isinstance(shape, Box):
        place = ", ".join(map(_number, (shape.x, shape.y, shape.w, shape.h)))
        return f'tile({place}, "{shape.fill}")'
    if isinstance(shape, Line):
        ends = ", ".join(map(_number, (shape.x1, shape.y1, shape.x2, shape.y2)))
        return f'rule({ends}, "{shape.colour}", {_number(shape.width)})'
    weight = ', weight: "bold"' if shape.bold else ""
    place = ", ".join(map(_number, (shape.x, shape.y, shape.size)))
    return f'label({place}, "{shape.colour}", {_ANCHORS[shape.anchor]}, {_string(shape.text)}{weight})'


def _string(text: str) -> str:
    """Write a Typst string; what it holds is never read as markup."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


_GAP = "   "


def table_text(drawing: Drawing, width: int | None = None) -> str:
    """Return a drawing as lines of text. Grids that are wider than `width` are folded, their columns in runs."""
    lines = _wrapped([drawing.title] if drawing.title else [], width)
    notes = _wrapped(drawing.all_notes, width)
    text = _side_by_side(drawing)
    if width is None or all(len(line) <= width for line in text):
        return "\n".join([*lines, *text, *notes])
    for grid in (g for row in drawing.grids for g in row if g is not None):
        style = _Style([grid])
        for part in style.folded(grid, width):
            lines += [*([""] if len(lines) > 1 else []), *(line.rstrip() for line in style.block(part))]
    return "\n".join([*lines, *notes])


def _wrapped(texts: Iterable[str], width: int | None) -> list[str]:
    """Return a title or notes in lines of at most a width, but for words that are longer."""
    if width is None:
        return list(texts)
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return [line for text in texts for line in wrapper.wrap(text) or [""]]


def _side_by_side(drawing: Drawing) -> list[str]:
    lines: list[str] = []
    count = max(len(row) for row in drawing.grids)
    styles = [_Style([row[c] for row in drawing.grids if c < len(row)]) for c in range(count)]
    table = [[s.block(g) if g is not None else [] for s, g in zip(styles, row, strict=False)] for row in drawing.grids]
    widths = [max([len(line) for row in table if c < len(row) for line in row[c]], default=0) for c in range(count)]
    for number, blocks in enumerate(table):
        if number:
            lines.append("")
        height = max(len(block) for block in blocks)
        # Tables of one row of grids end on the same line: one with fewer headers starts lower.
        padded = [[""] * (height - len(block)) + block for block in blocks]
        for i in range(height):
            lines.append(_GAP.join([b[i].ljust(w) for b, w in zip(padded, widths, strict=False)]).rstrip())
    return lines


class _Style:
    """What the grids of one column of a drawing share: the width of headers and of cells."""

    def __init__(self, grids: list[Grid | None]) -> None:
        there = [g for g in grids if g is not None]
        cells = [c for g in there for row in g.cells for c in row]
        headers = [h for g in there if g.show_columns for h in g.columns.headers]
        self.brackets = any(c.mark for c in cells)
        labels = [len(_label(c.lines)) for c in cells] + [len(text) for h in headers for text in h]
        self.cell = max(labels, default=1)
        rows = [_row_names(g.rows) for g in there if g.show_rows and g.rows.extent]
        self.margin = max([len(name) for names in rows for name in names], default=0)

    def folded(self, grid: Grid, width: int) -> Iterator[Grid]:
        """Yield a grid in runs of columns that fit a width, each of one column at least."""
        # From run to run they are alike where a run holds whole modes: of the widths that fit, the largest that does.
        most = max((n for n in range(1, grid.columns.shown + 1) if self._width(grid, 0, n) <= width), default=1)
        even = [n for n in range(1, most + 1) if grid.columns.shown % n == 0 and 2 * n > most]
        step = max(even, default=most)
        start = 0
        while start < grid.columns.shown:
            stop = min(start + step, grid.columns.shown)
            while stop > start + 1 and self._width(grid, start, stop) > width:
                stop -= 1
            yield grid.of_columns(start, stop)
            start = stop

    def _width(self, grid: Grid, start: int, stop: int) -> int:
        return max(len(line.rstrip()) for line in self.block(grid.of_columns(start, stop))[bool(grid.title) :])

    def block(self, grid: Grid) -> list[str]:
        """Return the lines of one grid."""
        lines = [" " * (self.margin and self.margin + 3) + grid.title] if grid.title else []
        for header in grid.columns.headers if grid.show_columns else ():
            lines.append(self._line("", [self._cell(text, False) for text in header], grid.columns, " ", " "))
        rule = self._line("", ["─" * len(self._cell("", False))] * grid.columns.shown, grid.columns, "─", "┬")
        lines.append(rule.replace(" │", " ┌", 1) if "│" in rule else rule)
        names = _row_names(grid.rows) if grid.show_rows else ("",) * grid.rows.shown
        for i, row in enumerate(grid.cells):
            if grid.rows.level(i):
                dashes = ["─" * len(self._cell("", False))] * grid.columns.shown
                lines.append(self._line("", dashes, grid.columns, "─", "┼").replace(" │", " ├", 1))
            cells = [self._cell(_label(c.lines), c.mark) for c in row]
            lines.append(self._line(names[i], cells, grid.columns, " ", "│"))
        return lines

    def _cell(self, label: str, mark: bool) -> str:
        if not self.brackets:
            return label.rjust(self.cell)
        return f"[{label.rjust(self.cell)}]" if mark else f" {label.rjust(self.cell)} "

    def _line(self, name: str, cells: list[str], columns: Axis, blank: str, rule: str) -> str:
        """Join the cells of one line, with `rule` where a nested mode of the columns ends."""
        parts = []
        for j, cell in enumerate(cells):
            parts.append(f"{blank}{rule}{blank}{cell}" if columns.level(j) else f"{blank}{cell}")
        edge = "│" if rule != " " else " "
        return f"{name.rjust(self.margin)} {edge}{''.join(parts)}"


def _label(lines: tuple[str, ...]) -> str:
    """Join the lines of a label: T3 over V1 is T3V1, and what could be misread as one word is kept apart."""
    apart = len(lines) > 1 and (lines[1].startswith(("#", "b")) or "+" in lines[0])
    return (" " if apart else "").join(lines)


def _row_names(axis: Axis) -> tuple[str, ...]:
    """Return the header of each row: its index, and its coordinate where the mode is nested."""
    if len(axis.headers) < 2:
        return axis.headers[0]
    wide = max(len(c) for c in axis.headers[1])
    return tuple([f"{i} {c.rjust(wide)}" for i, c in zip(*axis.headers, strict=True)])
