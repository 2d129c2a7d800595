"""Objects that a loop or branch replaces while other variables hold them too.

    b = a
    if x[0] > 0:            after it `a` holds one of two lists, and only the device knows whether it is b's
        a = [5]

What `a` holds is carried by its items, in a list of its own, which is the same as long as neither of the lists changes
in place: that is checked when the kernel has been traced.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CellType, FrameType
from typing import Any  # Any: whatever the user's variables hold

from tilewright.errors import LanguageError
from tilewright.source import SourceLocation
from tilewright.trace.heap import Heap, Place, memory, pairs
from tilewright.trace.holders import ATTRIBUTES, DEQUE, DICT, LIST, Holder, Places, same_value
from tilewright.trace.reach import Memory, Walk
from tilewright.trace.tracer import Tracer, is_caller

# What traces a kernel holds the kernel's objects too, and is not one of the functions of which the kernel consists.
_TRACING = tuple(f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("trace", "frontend"))


@dataclass(frozen=True, eq=False)
class Copy:
    """Objects of which some stand for others that are held elsewhere too; all as they were when these were made."""

    name: str
    objects: tuple[Any, ...]
    contents: tuple[Places, ...]
    location: SourceLocation | None


def aliased(
    tracer: Tracer, objects: Sequence[Any], heap: Heap, variables: Mapping[str, CellType], places: Iterable[Place] = ()
) -> set[int]:
    """Return which objects of a snapshot, by their ids, others hold than the given variables and places."""
    if not objects:
        return set()
    walk = _References(memory(tracer), objects, variables, places)
    walk.hits.update(id(each.object) for each in heap.found if each.outside)
    pending = dict(variables)
    frame: FrameType | None = sys._getframe(1)
    while not is_caller(frame):
        assert frame is not None, objects
        if not frame.f_code.co_filename.startswith(_TRACING):
            own = {*frame.f_code.co_varnames, *frame.f_code.co_cellvars}
            for name, value in frame.f_locals.items():
                if name in pending and pending[name].cell_contents is value:
                    del pending[name]  # the nearest variable of its name
                elif name in own:
                    walk.visit(value, name, False)
        frame = frame.f_back
    walk.run()
    return walk.hits & {id(each) for each in objects}


class _References(Walk):
    """A walk that notes which of some objects it meets, apart from those that some variables and places hold."""

    def __init__(
        self, memory: Memory, objects: Iterable[Any], variables: Mapping[str, CellType], places: Iterable[Place]
    ) -> None:
        super().__init__(memory)
        self.hits: set[int] = set()
        self._targets = {id(each) for each in objects}
        self._cells = {id(cell) for cell in variables.values()}
        self._places = {(id(place.found.object), place.key) for place in places}

    def visit(self, value: Any, path: str, outside: bool) -> None:
        if id(value) in self._targets:
            self.hits.add(id(value))
        super().visit(value, path, outside)

    def add(self, holder: Holder, object: Any, path: str, outside: bool) -> None:
        if id(object) not in self._cells:
            for key, value in holder.children(object):
                if (id(object), key) not in self._places:
                    self.visit(value, path, outside)


def note_copies(tracer: Tracer, name: str, before: Any, after: Any, originals: Collection[int]) -> None:
    """Note which objects of a variable stand for others, `before` being what they were made from."""
    for original, copy in pairs(before, after):
        if id(original) in originals and type(original) is type(copy):
            watch(tracer, name, (original, copy))


def watch(tracer: Tracer, name: str, objects: Sequence[Any]) -> None:
    """Note objects that must not change in place from now on."""
    tracer.copies.append(Copy(name, tuple(objects), tuple(map(_content, objects)), tracer.location()))


def refuse_changed_copies(tracer: Tracer) -> None:
    """Raise `LanguageError` where an object that another stands for, or that other, was changed later."""
    for copy in tracer.copies:
        for each, before in zip(copy.objects, copy.contents, strict=True):
            now = _content(each)
            if now.keys() != before.keys() or not all(same_value(before[key], now[key]) for key in now):
                kind = type(each).__name__
                raise LanguageError(
                    f"the device decides which {kind} {copy.name!r} holds, other variables hold it too, "
                    "and it is changed in place later",
                    location=copy.location,
                    help="copy it before, for example with list(x), or assign its items instead of the variable",
                )


def _content(value: Any) -> Places:
    for kind, holder in ((dict, DICT), (list, LIST), (deque, DEQUE)):
        if isinstance(value, kind):
            return holder.read(value)
    return ATTRIBUTES.read(value)
