"""Writing drawings to files: Typst source as it is, SVG, PNG and PDF through the Typst compiler's wheel."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from tilewright.arguments import instance
from tilewright.draw.shapes import scene_of
from tilewright.draw.subjects import picture
from tilewright.draw.typst_source import typst_text
from tilewright.errors import ArgumentError, TilewrightError

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
