"""What users call to print and save drawings: `text`, `typst`, `svg` and `save`.

`picture` finds the drawing of a thing, with one entry for each kind of thing that can be drawn. Files are written as
Typst source, or as SVG, PNG and PDF through the Typst compiler's wheel. `svg_or_none` and `rich_table` are what
`tilewright.layout.display` looks up by name: pictures for notebooks, tables for rich consoles.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.arguments import instance, integer
from tilewright.atoms import CopyAtom, MMAAtom
from tilewright.draw.layout_pictures import LIMIT, Limit, layout_drawing, swizzle_drawing, tensor_drawing
from tilewright.draw.mma_pictures import mma_drawing
from tilewright.draw.model import Drawing, from_one
from tilewright.draw.shapes import scene_of
from tilewright.draw.thread_pictures import atom_drawing, copy_drawing
from tilewright.draw.writers import svg_text, table_text, typst_text
from tilewright.errors import ArgumentError, TilewrightError
from tilewright.layout import ComposedLayout, Layout, Swizzle
from tilewright.tensors import NumpyEngine, Tensor
from tilewright.tiled import TiledCopy, TiledMMA, make_tiled_mma

if TYPE_CHECKING:
    from rich.text import Text


def picture(
    x: Any,  # Any: what can be drawn, or a shape
    *,
    title: str | None = None,
    limit: Limit = LIMIT,
    dtype: Any = None,  # Any: whatever names an element type
    first: int = 0,
    whole: bool = False,
) -> Drawing:
    """Make the drawing of a layout, swizzle, tensor, tiled copy or tiled mma; a drawing is returned as it is.

    An atom is drawn as the tiled copy or tiled mma of that one atom. `limit` is the most rows and columns that a grid
    shows; a note says what was left out. `dtype` is the element type that a tiled copy is drawn for. `first` is the
    number of the first row, column, thread, value and offset: 0, or 1 as MoYe.jl counts. A tiled mma of several warps
    is drawn as a summary by warp and one block in full, with `whole` element by element.

    >>> import tilewright as tw
    >>> picture(tw.Layout((4, 8)), title="column-major").title
    'column-major'

    Raises `ArgumentError` for an object that cannot be drawn, `LayoutError` when a layout is dynamic.
    """
    integer("a drawing", "first", first, minimum=0, maximum=1)
    drawing = _drawing(x, limit, dtype, whole)
    if first == 1:
        if isinstance(x, Drawing):
            raise ArgumentError(
                "a finished drawing keeps its numbers", help="draw the layout, copy or mma itself with first=1"
            )
        drawing = from_one(drawing, values_too=not (isinstance(x, Tensor) and isinstance(x.engine, NumpyEngine)))
    return drawing.titled(title)


def _drawing(x: Any, limit: Limit, dtype: Any, whole: bool) -> Drawing:
    if isinstance(x, Drawing):
        return x
    if isinstance(x, TiledCopy):
        from tilewright.dtypes import dtype as as_dtype

        return copy_drawing(x, None if dtype is None else as_dtype(dtype), limit)
    if isinstance(x, CopyAtom):
        return atom_drawing(x, dtype, limit)
    if isinstance(x, (TiledMMA, MMAAtom)):
        return mma_drawing(x if isinstance(x, TiledMMA) else make_tiled_mma(x), limit, whole)
    if isinstance(x, Tensor):
        return tensor_drawing(x, limit)
    if isinstance(x, Swizzle):
        return swizzle_drawing(x, limit)
    if isinstance(x, (Layout, ComposedLayout)):
        return layout_drawing(x, limit)
    if isinstance(x, (int, tuple)) and not isinstance(x, bool):
        return layout_drawing(Layout(x), limit)
    raise ArgumentError(
        f"{type(x).__name__} has no picture",
        help="draw a layout, swizzle, tensor, atom, TiledCopy or TiledMMA, or what draw.banks and draw.tiling return",
    )


def text(x: Any, *, width: int | None = None, **options: Any) -> str:  # Any: what can be drawn; see `picture`
    """Return a table of a layout, swizzle, tensor, tiled copy, tiled mma or drawing.

    Tables of more than `width` characters a line are folded: the columns that do not fit follow below.

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
    if width is not None:
        integer("draw.text", "width", width, minimum=1)
    return table_text(picture(x, **options), width)


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


_COMPILED = (".svg", ".png", ".pdf")

# Dots an inch: three for each point, sharp on paper and on a screen of high density.
_DOTS = 216


def save(x: Any, path: str | Path, **options: Any) -> Path:  # Any: what can be drawn; see `picture`
    """Draw `x` to a file whose name ends in .svg, .png, .pdf or .typ (the Typst source), and return its path.

    Options are those of `picture`. All but .typ need the `typst` wheel.

    >>> import pathlib, tempfile, tilewright as tw
    >>> target = pathlib.Path(tempfile.mkdtemp(), "layout.typ")
    >>> save(tw.Layout((4, 8)), target).read_text().startswith("#set page")
    True

    Raises `ArgumentError` for another ending, `TilewrightError` when the wheel is not installed.
    """
    instance("draw.save", "path", path, (str, os.PathLike), "a path such as layout.svg")
    target = Path(path)
    if target.suffix not in (*_COMPILED, ".typ"):
        raise ArgumentError(
            f"a drawing is saved as .svg, .png, .pdf or .typ, not {target.name!r}", help="name a file like layout.svg"
        )
    source = typst_text(scene_of(picture(x, **options)))
    data = source.encode() if target.suffix == ".typ" else compile_typst(source, target.suffix[1:])
    target.write_bytes(data)
    return target


def compile_typst(source: str, form: str) -> bytes:
    """Compile Typst source to "svg", "png" or "pdf", with the compiler's own fonts so that all machines agree."""
    try:
        typst: Any = importlib.import_module("typst")  # its types change from version to version
    except ImportError:
        raise TilewrightError(
            f"the Typst compiler is not installed, which writes .{form} files",
            help='pip install "tilewright[draw]", or pip install typst; .typ files need neither',
        ) from None
    data: bytes = typst.compile(source.encode(), format=form, ppi=_DOTS, ignore_system_fonts=True)
    return data


def svg_or_none(x: Any) -> str | None:  # Any: a value that shows itself
    """Return the picture of a value, or None where it has none: the notebook then shows its text."""
    try:
        return svg(x)
    except TilewrightError:
        return None


def rich_table(x: Any) -> Text | str:  # Any: a value that shows itself
    """Return the table of a value for a rich console, or its own text where it has no table."""
    from rich.text import Text

    try:
        return Text(text(x), no_wrap=True, overflow="ellipsis")
    except TilewrightError:
        return Text(repr(x))
