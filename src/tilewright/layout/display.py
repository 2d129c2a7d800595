"""How a value shows itself in a notebook and on a rich console: by asking the drawings, found by name.

Drawings read layouts, tilings and tensors, so nothing here may import them. `Displayed` looks the package up when
a notebook asks for a picture, the way a plug-in is found; see docs/adr/0009-drawings-found-by-name.md.
"""

from __future__ import annotations

import importlib
from typing import Any

# The package that draws: `svg_or_none(x)` and `rich_table(x)`.
_DRAWINGS = "tilewright.draw.printing"


class Displayed:
    """A value with a picture: notebooks show it in place of its text, `rich.print` shows it as a table."""

    __slots__ = ()

    def _repr_svg_(self) -> str | None:
        picture: str | None = importlib.import_module(_DRAWINGS).svg_or_none(self)
        return picture

    def __rich__(self) -> Any:  # Any: what rich can print
        return importlib.import_module(_DRAWINGS).rich_table(self)
