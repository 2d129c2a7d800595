"""`tilewright layout EXPRESSION` and `draw EXPRESSION`: layouts worked out, as tables and as pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright.cli.output import json_option, print_json
from tilewright.layout.text import excerpt

# Layouts of at most this size list their offsets in JSON, and of at most so many numbers where offsets are coordinates.
_MOST_OFFSETS = 4096
_MOST_NUMBERS = 65536


@click.command()
@click.argument("expression")
@json_option
def layout(expression: str, as_json: bool) -> None:
    """Work out EXPRESSION over layouts and print the result, its table and its size.

    Layouts are written as they print, `(4,8):(8,1)`; every function of tilewright.layout can be called:

    tilewright layout "composition((4,8):(8,1), 8:2)"
    """
    from tilewright.cli.expressions import evaluate

    value = evaluate(expression)
    if as_json:
        print_json({"expression": expression, **_facts(value)})
    else:
        _print(value)


def _is_layout(value: Any) -> bool:
    from tilewright.layout import ComposedLayout, Layout

    return isinstance(value, (Layout, ComposedLayout))


def _print(value: Any) -> None:
    import tilewright as tw  # the drawings are reached as users do: no module of the package imports them
    from tilewright.layout import Swizzle
    from tilewright.layout.tuples import show

    if not _is_layout(value):
        click.echo(tw.draw.text(value) if isinstance(value, Swizzle) else show(value))
        return
    facts = _facts(value)
    click.echo(tw.draw.text(value))
    named = [(name, facts[name]) for name in ("size", "cosize", "rank", "depth")]
    click.echo(", ".join([f"{name} {fact}" for name, fact in named if fact is not None]))


def _facts(value: Any) -> dict[str, Any]:
    """Return what is known of a result, ready for JSON: basis strides and layouts inside tuples as text."""
    from tilewright.errors import LayoutError

    facts: dict[str, Any] = {"kind": type(value).__name__, "result": _plain(value)}
    if not _is_layout(value):
        return facts
    facts["result"] = str(value)
    try:
        cosize = value.cosize
    except LayoutError:  # basis strides lead to coordinates, which have no largest
        cosize = None
    facts |= {"shape": _plain(value.shape), "stride": _plain(value.stride), "size": value.size, "cosize": cosize}
    facts |= {"rank": value.rank, "depth": value.depth}
    facts["offsets"] = _offsets(value)
    return facts


def _offsets(value: Any) -> list[Any] | None:
    from tilewright.layout.tuples import leaves

    if value.size > _MOST_OFFSETS or (value.size and value.size * len(leaves(value(0))) > _MOST_NUMBERS):
        return None
    return [_plain(value(i)) for i in range(value.size)]


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, (bool, int)) else str(value)


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


def _instruction(name: str) -> Any:  # Any: a TiledMMA
    """Return the product of one matrix instruction of a name, None where the text is not the name of one."""
    import tilewright as tw

    if re.fullmatch(r"[A-Z]\w+", name) is None:
        return None
    atom = getattr(tw.atoms, name, None)
    return tw.make_tiled_mma(atom) if isinstance(atom, tw.atoms.MMAAtom) else None


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

    EXPRESSION is a layout as it prints, one of the functions of tilewright.layout as for `tilewright layout`, or the
    name of an instruction that multiplies, of which threads and values are drawn:

    tilewright draw "(4,8):(8,1)" -o layout.svg

    tilewright draw SM80_16x8x16_F32BF16BF16F32_TN -o mma.svg
    """
    import tilewright as tw  # the drawings are reached as users do: no module of the package imports them
    from tilewright.cli.expressions import evaluate
    from tilewright.layout.tuples import show

    value = _instruction(expression)
    value = evaluate(expression) if value is None else value
    drawing = tw.draw.picture(
        value if dtype is None else tw.draw.banks(value, dtype, limit=limit), title=title, limit=limit
    )
    try:
        written = None if output is None else tw.draw.save(drawing, output)
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written: {error.strerror or error}") from error
    if as_json:
        file = None if written is None else str(written)
        notes = list(drawing.all_notes)
        result = str(value) if isinstance(value, tw.TiledMMA) else show(value)
        print_json({"expression": expression, "result": result, "file": file, "notes": notes})
    elif written is None:
        click.echo(tw.draw.text(drawing))
    else:
        click.echo(f"wrote {written}")
