"""What could be faster, said of a source line, and the layout that would avoid it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright.layout import ComposedLayout, Layout
from tilewright.notebook import MessageShown
from tilewright.source import Located, SourceLocation

if TYPE_CHECKING:
    import numpy as np

# Maps the places of elements, an integer array, to others.
Place = Callable[["np.ndarray[Any, np.dtype[Any]]"], "np.ndarray[Any, np.dtype[Any]]"]


@dataclass(frozen=True)
class Suggestion:
    """Another layout for a buffer: the expression to write, and the wavefronts of its accesses before and after.

    `removes` is True where no conflict is left. `extra_bytes` is what the layout takes more of shared memory. `place`
    maps an element's old place to its new one.
    """

    expression: str
    layout: Layout | ComposedLayout
    kind: str
    before: int
    after: int
    ideal: int
    extra_bytes: int
    place: Place = field(repr=False, compare=False)

    @property
    def removes(self) -> bool:
        """True where the accesses take the fewest wavefronts they could."""
        return self.after == self.ideal

    def __str__(self) -> str:
        effect = f"{self.before} -> {self.after} wavefronts"
        rest = "no conflict left" if self.removes else f"{self.ideal} would be free of conflicts"
        more = f", {self.extra_bytes} bytes more" if self.extra_bytes else ""
        return f"{self.expression}  ({effect}, {rest}{more})"


@dataclass(frozen=True)
class Remark(Located, MessageShown):
    """Something that costs time at one source line.

    `kind` is "bank-conflict", "narrow-copy" or "wide-number". `message` is the whole text; `suggestion` a layout that
    avoids it, verified on the accesses, where there is one.
    """

    kind: str
    message: str
    location: SourceLocation | None
    suggestion: Suggestion | None = None
