"""What a kernel shares with its bound and configured forms: the function, rewritten once, and all that was compiled."""

from __future__ import annotations

import inspect
import types
from typing import Any, Protocol
from weakref import WeakSet

from tilewright.frontend.captures import Captures
from tilewright.frontend.rewrite import rewrite
from tilewright.frontend.sources import remember
from tilewright.runtime.recent import Recent

_MAX_VARIANTS = 256  # of options and block shapes: those used last are kept, and at most twice as many (see `Recent`)


class Forgotten(Protocol):
    """What was compiled for some options and one block shape."""

    def forget(self) -> None:
        """Drop what was compiled."""


class Code:
    """What a kernel shares with its bound and configured forms: the function, and all that was compiled of it."""

    def __init__(self, function: types.FunctionType, *, is_traceable: bool = False) -> None:
        self.function = function
        self.signature: inspect.Signature = inspect.signature(function)
        self.captures: Captures = Captures(function)
        self._rewritten = function if is_traceable else None
        if not is_traceable:
            remember(function)
        # By the numbers of bound and of further arguments, the options that code depends on, and the block.
        self.variants: Recent[tuple[object, ...], Any] = Recent(_MAX_VARIANTS)  # Any: compiled forms, of `launch`
        self.held: WeakSet[Forgotten] = WeakSet()  # all that someone still holds, in the table or not
        self.changes: int = 0  # how often something that the kernel was traced with was found changed

    def rewrite(self) -> types.FunctionType:
        """Return the function with its control flow made traceable."""
        if self._rewritten is None:
            self._rewritten = rewrite(self.function)
        return self._rewritten

    def forget(self) -> None:
        """Discard the compiled code: something that the kernel was traced with has changed."""
        self.changes += 1
        for variant in list(self.held):
            variant.forget()
