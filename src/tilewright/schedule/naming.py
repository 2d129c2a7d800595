"""Names of what a user makes, those of the variables that it is assigned to, and the order in which it is made."""

from __future__ import annotations

import dis
import functools
import itertools
import sys
from types import CodeType, FrameType
from typing import Any

from tilewright.frames import hands_on, is_user_file

_numbers = itertools.count()
_copies = itertools.count(1)
_SKIPPED = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "RESUME", "COPY"})


class Numbered:
    """What is ordered by its making, and told from others by its `number`: this, and which copy of it.

    A copy, or one that another process made, is another thing in the same place of the order.
    """

    number: tuple[int, int]

    def __setstate__(self, state: dict[str, Any]) -> None:  # Any: attributes
        self.__dict__.update(state)
        self.number = self.number[0], next(_copies)


def next_number() -> tuple[int, int]:
    """Return the number of what is made now and is not a copy."""
    return next(_numbers), 0


class LoopName:
    """What an index of a loop is, for modules that know nothing else of loops."""


def user_frame() -> FrameType | None:
    """Return the frame of the user's code that called into this package, whatever lies between."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def calling_frame(depth: int = 1) -> FrameType | None:
    """Return the frame that called the function that asks, past what hides frames; or with a depth of 2, its caller."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(depth):
        frame = frame and frame.f_back
        while frame is not None and hands_on(frame.f_code):
            frame = frame.f_back
    return frame


def assigned_names(frame: FrameType | None) -> tuple[str, ...]:
    """Return the variables that the call under way in a frame is assigned to, none where it is not seen.

    `A = make()` gives ("A",) and `i, j = make()` gives ("i", "j"). It reads what the interpreter does next, so that it
    needs no source. Any other use of the result gives ().
    """
    if frame is None:
        return ()
    following = [op for op in _instructions(frame.f_code) if op.offset > frame.f_lasti]
    if not following:
        return ()
    first, *others = following
    if first.opname == "UNPACK_SEQUENCE":
        names: list[str] = []
        for op in others:
            if not op.opname.startswith("STORE_") or len(names) >= (first.arg or 0):
                break
            names += _stored(op)
        return tuple(names) if len(names) == first.arg else ()
    return tuple(_stored(first)) if len(_stored(first)) == 1 else ()


@functools.lru_cache(maxsize=32)  # a user's function makes many loops, one after another
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return [op for op in dis.get_instructions(code) if op.opname not in _SKIPPED]


def _stored(op: dis.Instruction) -> list[str]:
    """Return the variables that an instruction stores to: two at once on later interpreters."""
    if not op.opname.startswith(("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")):
        return []
    if op.opname == "STORE_FAST_LOAD_FAST":
        return [op.argval[0]]
    return list(op.argval) if isinstance(op.argval, tuple) else [op.argval]
