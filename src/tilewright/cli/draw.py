"""`tilewright draw EXPRESSION -o FILE`: pictures of layouts from the shell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tilewright.cli.output import json_option, print_json
from tilewright.layout.text import excerpt

# Of one grid, of which a picture has at most a few: a picture that no one can look at takes minutes and gigabytes.
_MOST_CELLS = 65536

if TYPE_CHECKING:
    from tilewright.dtypes import DType


def _limit(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, int]:
    match = re.fullmatch(r"0*([1-9][0-9]{0,8}),0*([1-9][0-9]{0,8})", text)
    if match is None:
        raise click.BadParameter(f"{excerpt(text)!r} is not ROWS,COLUMNS such as 32,64", context, parameter)
    rows, columns = int(match[1]), int(match[2])
    if rows * columns > _MOST_CELLS:
        raise click.BadParameter(
            f"{rows} x {columns} is {rows * columns} cells a grid; at most {_MOST_CELLS} are drawn", context, parameter
        )
    return rows, columns


def _dtype(context: click.Context, parameter: click.Parameter, name: str | None) -> DType | None:
    from tilewright.dtypes import dtype

    try:
        return None if name is None else dtype(name)
    except TypeError as error:
        raise click.BadParameter(str(error), context, parameter) from None


@click.command()
@click.argument("expression")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="A .svg, .png, .pdf or .typ file."
)
@click.option("--title", help="The title of the picture; the layout itself by default.")
@click.option(
    "--banks",
    "dtype",
    metavar="DTYPE",
    callback=_dtype,
    help="Show the shared-memory bank of each element of this type, such as float16.",
)
@click.option("--limit", default="32,32", show_default=True, callback=_limit, help="The most rows and columns shown.")
@json_option
def draw(
    expression: str, output: Path | None, title: str | None, dtype: DType | None, limit: tuple[int, int], as_json: bool
) -> None:
    """Draw the layout that EXPRESSION gives, to a file or without `-o` as a table.

    EXPRESSION is a layout as it prints, or one of the functions of tilewright.layout as for `tilewright layout`:

    tilewright draw "(4,8):(8,1)" -o layout.svg
    """
    import tilewright as tw  # the drawings are reached as users do: no module of the package imports them
    from tilewright.cli.expressions import evaluate
    from tilewright.layout.tuples import show

    value = evaluate(expression)
    drawing = tw.draw.picture(
        value if dtype is None else tw.draw.banks(value, dtype, limit=limit), title=title, limit=limit
    )
    written = None if output is None else tw.draw.save(drawing, output)
    if as_json:
        file = None if written is None else str(written)
        notes = list(drawing.all_notes)
        print_json({"expression": expression, "result": show(value), "file": file, "notes": notes})
    elif written is None:
        click.echo(tw.draw.text(drawing))
    else:
        click.echo(f"wrote {written}")
