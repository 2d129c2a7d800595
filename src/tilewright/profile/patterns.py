"""The accesses to one buffer of shared memory, kept as patterns so that other layouts can be tried on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.layout import ComposedLayout, Layout
from tilewright.profile.banks import wavefronts
from tilewright.source import SourceLocation

Array = np.ndarray[Any, np.dtype[Any]]

MOST_PATTERNS = 4096  # of one buffer; what comes later is counted, and not tried again


@dataclass
class Pattern:
    """One request of a warp: the element at which each lane begins (-1: the lane does nothing), and how often.

    `width` is in bytes; `kind` is "load", "store", "copy", "matrix" or "atomic" (`tilewright.profile.banks`).
    """

    location: SourceLocation | None
    kind: str
    width: int
    elements: Array
    times: int


@dataclass
class SharedBuffer:
    """A buffer of shared memory with the requests that reached it; `layout` as it was declared, where known.

    `offset` is the buffer's place in the block's shared memory, in bytes. `is_complete` is False where there were
    more patterns than are kept.
    """

    name: str
    element: str
    element_bytes: int
    size: int
    offset: int
    layout: Layout | ComposedLayout | None
    location: SourceLocation | None
    patterns: list[Pattern] = field(default_factory=list)
    is_complete: bool = True

    def cost(self, place: Callable[[Array], Array] | None = None) -> tuple[int, int]:
        """Return the wavefronts of all patterns and the fewest they could take.

        With `place`, every element e stands at element place(e) instead.
        """
        took = least = 0
        for kind, width, elements, times in self.groups:
            moved = elements if place is None else place(elements)
            waves, ideal = wavefronts(self.offset + moved * self.element_bytes, elements >= 0, width, kind)
            took, least = took + int(waves @ times), least + int(ideal @ times)
        return took, least

    def each_cost(self) -> Iterator[tuple[Pattern, int, int]]:
        """Yield each pattern with the wavefronts it takes and the fewest it could take."""
        for pattern in self.patterns:
            elements = pattern.elements[None, :]
            addresses = self.offset + elements * self.element_bytes
            took, least = wavefronts(addresses, elements >= 0, pattern.width, pattern.kind)
            yield pattern, int(took[0]), int(least[0])

    def heaviest(self, count: int) -> SharedBuffer:
        """Return the buffer with the patterns that cost most only, itself where it has no more."""
        if len(self.patterns) <= count:
            return self
        dear = sorted(self.each_cost(), key=lambda each: (each[2] - each[1]) * each[0].times)
        return replace(self, patterns=[pattern for pattern, _, _ in dear[:count]])

    @cached_property
    def groups(self) -> list[tuple[str, int, Array, Array]]:
        """The patterns of one kind and width as one array (patterns, lanes), and how often each came."""
        found: dict[tuple[str, int], list[Pattern]] = {}
        for pattern in self.patterns:
            found.setdefault((pattern.kind, pattern.width), []).append(pattern)
        return [
            (kind, width, np.stack([p.elements for p in group]), np.array([p.times for p in group], np.int64))
            for (kind, width), group in found.items()
        ]
