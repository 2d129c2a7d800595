"""`tilewright layout EXPRESSION`: layouts worked out in the shell."""

from __future__ import annotations

from typing import Any

import click

from tilewright.cli.output import json_option, print_json

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
