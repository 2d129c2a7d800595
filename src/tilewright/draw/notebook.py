"""What `tilewright.layout.display` looks up by name: pictures for notebooks, tables for rich consoles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.draw.printing import svg, text
from tilewright.errors import TilewrightError

if TYPE_CHECKING:
    from rich.text import Text


def svg_or_none(x: Any) -> str | None:  # Any: a value that shows itself
    """Return the picture of a value, or None where it has none: the notebook then shows its text."""
    try:
        return svg(x)
    except TilewrightError:
        return None


def rich_table(x: Any) -> Text | str:  # Any: a value that shows itself
    """Return the table of a value for a rich console, or its own text where there is no table."""
    from rich.text import Text

    try:
        return Text(text(x), no_wrap=True, overflow="ellipsis")
    except TilewrightError:
        return Text(repr(x))
