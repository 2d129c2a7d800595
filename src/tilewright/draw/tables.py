"""Drawings as text: a table for each grid, with rules where nested modes end and brackets around marked cells."""

from __future__ import annotations

from tilewright.draw.model import Axis, Drawing, Grid

_GAP = "   "


def table_text(drawing: Drawing) -> str:
    """Return a drawing as lines of text."""
    lines = [drawing.title] if drawing.title else []
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
    return "\n".join([*lines, *drawing.all_notes])


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
    """Join the lines of a label: T3 over V1 is T3V1, and what could be misread as one word stands apart."""
    apart = len(lines) > 1 and (lines[1].startswith(("#", "b")) or "+" in lines[0])
    return (" " if apart else "").join(lines)


def _row_names(axis: Axis) -> tuple[str, ...]:
    """Return the header of each row: its index, and its coordinate where the mode is nested."""
    if len(axis.headers) < 2:
        return axis.headers[0]
    wide = max(len(c) for c in axis.headers[1])
    return tuple([f"{i} {c.rjust(wide)}" for i, c in zip(*axis.headers, strict=True)])
