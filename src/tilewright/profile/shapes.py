"""The elements of SVG that the pictures of a report consist of."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def svg(width: float, height: float, label: str, parts: Iterable[str], kind: str = "", fills: bool = False) -> str:
    """Return an SVG element with a label for those who do not see it; one that `fills` takes any width and height."""
    size = 'preserveAspectRatio="none"' if fills else f'width="{width:g}" height="{height:g}"'
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" {size} role="img" '
        f'class="picture {kind}" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def names(rows: Iterable[tuple[float, str]], width: float, height: float) -> str:
    """Return the names of rows, each at its height: a column that stays where it is while the picture scrolls."""
    told = list(rows)
    label = f"Rows: {', '.join(words for _, words in told)}"
    return svg(width, height, label, [text(4, y, words, "axis") for y, words in told], "names")


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return words at a place."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    """Return a box with a title that a pointer shows."""
    inside = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="{kind}">{inside}</rect>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a line."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>'
