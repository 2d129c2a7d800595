"""The elements of SVG that the pictures of a report consist of, and a timeline in one glance."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from itertools import groupby
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_PIECES = 320
# Arithmetic and waits last while others work: they show where a piece has nothing else.
_BACKGROUND = {"k-compute": 1e-6, "k-wait": 1e-3}


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


def overview(spans: Iterable[tuple[float, float, str, int]], rows: int, width: float, label: str) -> str:
    """Return a strip as wide as the page, of a picture `width` wide: spans are left, right, colour, and rows as bits.

    Of each piece of a row the colour is shown that takes most of it.
    """
    width = max(width, 1.0)  # of no activity too
    edges = np.linspace(0.0, width, _PIECES + 1)
    weights: dict[str, Array] = {}
    for left, right, kind, bits in spans:
        first, last = (int(np.clip(x * _PIECES / width, 0, _PIECES - 1)) for x in (left, right))
        reach = slice(first, last + 1)
        taken = np.minimum(edges[1:][reach], right) - np.maximum(edges[:-1][reach], left)
        share = np.maximum(taken, 0.0) * _BACKGROUND.get(kind, 1.0)
        table = weights.setdefault(kind, np.zeros((rows, _PIECES)))
        table[[row for row in range(rows) if bits >> row & 1], reach] += share
    kinds = list(weights)
    stacked = np.stack([*weights.values(), np.zeros((rows, _PIECES))])
    chosen = np.where(stacked.any(0), stacked.argmax(0), len(kinds))
    parts: list[str] = []
    top = 0
    for line, alike in groupby(chosen.tolist()):
        height, begin = len(list(alike)), 0
        for kind, run in groupby(line):
            length = len(list(run))
            if kind < len(kinds):
                parts.append(box(begin, top, length, height, kinds[kind]))
            begin += length
        top += height
    return svg(_PIECES, rows, label, parts, "overview", fills=True)
