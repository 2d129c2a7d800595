"""Tables on narrow terminals lose nothing that is read."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from tilewright.tables import print_table

HEADINGS = ("row", "instructions", "use of sectors", "ideal", "text")
CELLS = [("copy.py:12", "1,234,567", "100 %", "8", "y[i] = " + "x[i] + " * 9), ("sum", "9", "3 %", "1", "")]


def table(boxed: bool) -> Table:
    made = Table(title="a title") if boxed else Table(title="a title", box=None, pad_edge=False)
    for heading in HEADINGS[:-1]:
        made.add_column(heading, justify="right")
    made.add_column(HEADINGS[-1], no_wrap=True, overflow="ellipsis", max_width=44)
    for row in CELLS:
        made.add_row(*row)
    return made


def printed(made: Table, width: int) -> list[str]:
    file = io.StringIO()
    print_table(Console(file=file, width=width, color_system=None), made)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("boxed", [True, False])
@pytest.mark.parametrize("width", [*range(33, 80), 200])
def test_lines_fit_and_every_figure_is_whole(width: int, boxed: bool) -> None:
    lines = printed(table(boxed), width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert text.count("a title") == 1
    for row in CELLS:
        for cell in row[:-1]:
            assert cell in text
    for word in " ".join(HEADINGS).split():
        assert word in text
    assert text.count("copy.py:12") == text.count("sum")  # each part begins with the names of the rows


def test_a_table_that_fits_is_one() -> None:
    assert "\n".join(printed(table(True), 200)).count("copy.py:12") == 1


def test_a_name_that_leaves_no_room_is_folded() -> None:
    made = Table("", "size")
    made.add_row("a long name of a row with many words", "1024 x 1024")
    lines = printed(made, 30)
    assert max(map(len, lines)) <= 30 and "1024 x 1024" in "\n".join(lines) and "with many" in "".join(lines)
