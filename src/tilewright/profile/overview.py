"""A timeline in one glance: a strip as wide as the page, each piece in the colour of what takes most of it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import numpy as np

from tilewright.profile.shapes import box, svg

Array = np.ndarray[Any, np.dtype[Any]]

_PIECES = 320
# Arithmetic and waits last while others work: they show where a piece has nothing else.
_BACKGROUND = {"k-compute": 1e-6, "k-wait": 1e-3}


def overview(spans: Iterable[tuple[float, float, str, int]], rows: int, width: float, label: str) -> str:
    """Return the strip of a picture `width` wide: spans are left, right, colour, and the rows that they are in as bits.

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
