"""`tilewright layout EXPRESSION` and `draw EXPRESSION`: layouts worked out, as tables and as pictures."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright.cli.failures import demand_writable
from tilewright.cli.output import json_option, print_json, terminal_width
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
        click.echo(tw.draw.text(value, width=terminal_width()) if isinstance(value, Swizzle) else show(value))
        return
    facts = _facts(value)
    click.echo(tw.draw.text(value, width=terminal_width()))
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


_MOST_HELD = 65536  # threads times values of a tiling that is drawn


def _instructions() -> dict[str, Any]:  # Any: atoms of instructions, and element types
    """Return what a name stands for in an expression to draw: instructions that multiply or copy, element types."""
    import tilewright as tw
    from tilewright import dtypes

    atoms = {name: getattr(tw.atoms, name) for name in dir(tw.atoms) if re.fullmatch(r"[A-Z]\w*_\w+", name)}
    found = {n: x for n, x in atoms.items() if isinstance(x, (tw.atoms.MMAAtom, tw.atoms.CopyAtom))}
    # To ask for every public name would import the whole library, a second.
    public = set(dir(tw))
    return found | {n: x for n, x in vars(dtypes).items() if isinstance(x, dtypes.DType) and n in public}


def _tilings() -> dict[str, Any]:  # Any: functions of the library, of which only these are called
    """Return the functions that make tiled copies and tiled products, each refusing what is too large to draw."""
    import tilewright as tw
    from tilewright.dtypes import dtype

    made = {name: getattr(tw, name) for name in dir(tw) if name.startswith(("make_tiled_", "make_cotiled_"))}
    made |= {
        "UniversalCopy": tw.atoms.UniversalCopy,
        "UniversalFMA": lambda *types: tw.atoms.UniversalFMA(*map(dtype, types)),
    }
    return {name: _bounded(function) for name, function in made.items()}


def _bounded(function: Any) -> Any:  # Any: as above
    from tilewright.errors import ArgumentError
    from tilewright.layout.tuples import leaves

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        count = 1
        for value in _flat([*arguments, *named.values()]):
            extents = leaves(value.shape) if _is_layout(value) else [value] if isinstance(value, int) else []
            for extent in extents:
                count *= max(extent, 1)
        if count > _MOST_HELD:
            raise ArgumentError(
                f"{function.__name__} over {count} threads and values is too large to draw",
                help=f"at most {_MOST_HELD} are drawn",
            )
        return function(*arguments, **named)

    return call


def _flat(values: Any) -> list[Any]:
    """Return the values of nested tuples and lists, one by one."""
    found = []
    for value in values:
        found += _flat(value) if isinstance(value, (tuple, list)) else [value]
    return found


@click.command()
@click.argument("expression")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="A .svg, .png, .pdf or .typ file."
)
@click.option("--title", help="The title of the picture; the layout itself by default.")
@click.option(
    "--banks",
    metavar="DTYPE",
    callback=_dtype,
    help="Show the shared-memory bank of each element of this type, such as float16.",
)
@click.option("--limit", default="32,32", show_default=True, callback=_limit, help="The most rows and columns shown.")
@click.option("--dtype", metavar="DTYPE", callback=_dtype, help="The element type that a tiled copy is drawn for.")
@click.option("--whole", is_flag=True, help="Draw all elements of a product of several warps, in place of a summary.")
@json_option
def draw(
    expression: str,
    output: Path | None,
    title: str | None,
    banks: DType | None,
    limit: tuple[int, int],
    dtype: DType | None,
    whole: bool,
    as_json: bool,
) -> None:
    """Draw what EXPRESSION gives, to a file or without `-o` as a table.

    EXPRESSION is a layout as it prints, one of the functions of tilewright.layout as for `tilewright layout`, the name
    of an instruction, or a tiled copy or a tiled product, of which threads and values are drawn:

    tilewright draw "(4,8):(8,1)" -o layout.svg

    tilewright draw SM80_16x8x16_F32BF16BF16F32_TN -o mma.svg

    tilewright draw "make_tiled_mma(SM80_16x8x16_F32BF16BF16F32_TN, (2,2,1))" -o warps.svg

    tilewright draw "make_tiled_copy(UniversalCopy(128), (8,4):(4,1), (1,8))" --dtype float16 -o copy.svg
    """
    import tilewright as tw  # the drawings are reached as users do: no module of the package imports them
    from tilewright.cli.expressions import evaluate
    from tilewright.layout.tuples import show

    demand_writable(output)
    value = evaluate(expression, names=_instructions(), more=_tilings())
    drawing = tw.draw.picture(
        value if banks is None else tw.draw.banks(value, banks, limit=limit),
        title=title,
        limit=limit,
        dtype=dtype,
        whole=whole,
    )
    try:
        written = None if output is None else tw.draw.save(drawing, output)
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written: {error.strerror or error}") from error
    if as_json:
        file = None if written is None else str(written)
        notes = list(drawing.all_notes)
        result = show(value) if isinstance(value, (int, tuple)) else str(value)
        print_json({"expression": expression, "result": result, "file": file, "notes": notes})
    elif written is None:
        click.echo(tw.draw.text(drawing, width=terminal_width()))
    else:
        click.echo(f"wrote {written}")
