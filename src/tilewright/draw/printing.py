"""Drawings as text, Typst source and SVG."""

from __future__ import annotations

from typing import Any

from tilewright.draw.shapes import scene_of
from tilewright.draw.subjects import picture
from tilewright.draw.svg_source import svg_text
from tilewright.draw.tables import table_text
from tilewright.draw.typst_source import typst_text


def text(x: Any, **options: Any) -> str:  # Any: what can be drawn; see `picture`
    """Return a table of a layout, swizzle, tensor, tiled copy, tiled mma or drawing.

    >>> import tilewright as tw
    >>> print(text(tw.Layout((2, (2, 2)), (1, (4, 2)))))
    (2,(2,2)):(1,(4,2))
          0   1     2   3
        0,0 1,0   0,1 1,1
      ┌─────────┬────────
    0 │   0   4 │   2   6
    1 │   1   5 │   3   7

    Options are those of `picture`.
    """
    return table_text(picture(x, **options))


def typst(x: Any, *, page: bool = True, **options: Any) -> str:  # Any: what can be drawn; see `picture`
    """Return Typst source that draws `x`, without packages. Without `page` it is a block to put into a document.

    >>> import tilewright as tw
    >>> print(typst(tw.Layout((4, 8))).splitlines()[0])
    #set page(width: ..., height: ..., margin: 0pt, fill: white)

    Options are those of `picture`.
    """
    return typst_text(scene_of(picture(x, **options)), page)


def svg(x: Any, **options: Any) -> str:  # Any: what can be drawn; see `picture`
    """Return an SVG picture of `x` that needs no other program; `save` makes one with the letters as outlines.

    Options are those of `picture`.
    """
    return svg_text(scene_of(picture(x, **options)))


def print_typst(x: Any, **options: Any) -> None:  # Any: what can be drawn; see `typst`
    """Print the Typst source that draws `x`; the options are those of `tw.draw.typst`."""
    print(typst(x, **options), end="")
