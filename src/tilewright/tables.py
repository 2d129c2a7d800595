"""Tables on narrow terminals: the columns that do not fit follow below, beside the names of the rows once more.

>>> from rich.console import Console
>>> from rich.table import Table
>>> table = Table(box=None, pad_edge=False)
>>> for heading in ("line", "instructions", "wavefronts"):
...     table.add_column(heading)
>>> table.add_row("a.py:3", "1,024", "32")
>>> print_table(Console(width=24), table)
line    instructions
a.py:3  1,024
line    wavefronts
a.py:3  32
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

_LEAST_TEXT = 16  # characters of a column that may be cut
_LEAST_NAME = 8  # of the first column, which is folded where the widest of the others has no room beside it


def print_table(console: Console, table: Table) -> None:
    """Print a table whose cells are whole: in parts that fit the console, each with the first column.

    Words of headings stand below each other where that is narrower. Columns whose overflow is "ellipsis" may be cut.
    """
    between, outside = (2, -2) if table.box is None else (3, 1)
    room = console.width - outside
    widths = [_widths(console, column) for column in table.columns]
    names = max(min(widths[0][0], room - 2 * between - max((least for least, _ in widths[1:]), default=0)), _LEAST_NAME)
    widths[0] = min(names, widths[0][0]), widths[0][1]
    parts: list[list[int]] = [[0]]
    for number in range(1, len(widths)):
        if len(parts[-1]) > 1 and sum(widths[n][0] + between for n in (*parts[-1], number)) > room:
            parts.append([0])
        parts[-1].append(number)
    for part in parts:
        chosen = {number: widths[number][1] for number in part}
        if sum(chosen.values()) + between * len(part) > room:
            left = room - sum(widths[number][0] + between for number in part)
            for number in reversed(part):  # texts come last, and are cut least
                least, most = widths[number]
                chosen[number] = min(most, least + max(left, 0))
                left -= chosen[number] - least
        console.print(_of_columns(table, chosen))
        table.title = None  # once


def _widths(console: Console, column: Column) -> tuple[int, int]:
    """Return the least width in which a column is read, and the width that it takes where there is room."""
    heading, *cells = (Measurement.get(console, console.options, cell) for cell in (column.header, *column.cells))
    content = max((cell.maximum for cell in cells), default=0)
    if column.max_width is not None:
        content = min(content, column.max_width)
    most = max(heading.maximum, content)
    least = min(_LEAST_TEXT, most) if column.overflow == "ellipsis" and column.max_width else content
    return max(least, heading.maximum if column.no_wrap else heading.minimum), most


def _of_columns(table: Table, widths: Mapping[int, int]) -> Table:
    part = Table(title=table.title, title_justify=table.title_justify, box=table.box, pad_edge=table.pad_edge)
    for number, width in widths.items():
        column = table.columns[number]
        is_whole = column.no_wrap and number > 0
        part.add_column(column.header, justify=column.justify, overflow=column.overflow, width=width, no_wrap=is_whole)
    cells: Iterator[tuple[object, ...]] = zip(*(table.columns[number].cells for number in widths), strict=True)
    for row, found in zip(table.rows, cells, strict=True):
        part.add_row(*found, style=row.style, end_section=row.end_section)  # type: ignore[arg-type]  # as they came
    return part
