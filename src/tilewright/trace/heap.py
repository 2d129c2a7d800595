"""What a block of rewritten code changes in Python objects: a snapshot before it is traced, compared after it.

A block is traced once (or a few times), and the device runs it any number of times or not at all. So an object that it
changes is put back as it was, and each place that holds something else is carried as a variable is: `l[0]`,
`state.phase`. What cannot be carried is refused: what grows, what is not the kernel's own, what has no places.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any  # Any: whatever the user's variables hold

from tilewright.errors import LanguageError
from tilewright.trace.holders import ARRAY_ITERATOR, ATTRIBUTES, GENERATOR, ITERATOR, Places, same_value
from tilewright.trace.reach import Found, Memory, Walk, is_user_type
from tilewright.trace.tracer import Tracer, current

LOOP = "in a loop on the device"
BRANCH = "in a branch that the device decides"
CONDITION = "in the condition of a loop on the device"


@dataclass(frozen=True, eq=False)
class Change:
    """An object that a block changed."""

    found: Found
    before: Any
    after: Any


@dataclass(frozen=True, eq=False)
class Place:
    """One place of an object that a block changed, as a variable: how the user writes it, and what it held before."""

    found: Found
    key: Any
    name: str
    before: Any

    def same(self, other: Place) -> bool:
        """Say whether another place is the same."""
        return (self.found is other.found and self.key is other.key) or (
            self.found is other.found and type(self.key) is type(other.key) and bool(self.key == other.key)
        )

    def read(self) -> Any:
        """Return what the place holds now."""
        return self.found.holder.read(self.found.object)[self.key]


@dataclass(eq=False)
class Heap:
    """A snapshot of the objects that functions reach, apart from the cells of variables."""

    found: list[Found]
    before: list[Any] = field(default_factory=list)
    forgotten: list[tuple[Found, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.before = [each.holder.read(each.object) for each in self.found]
        self._numbers = {id(each.object) for each in self.found if not each.holder.is_variable}

    def holds(self, value: Any) -> bool:
        """Say whether a value is one of the objects: it is then known by what it is, not by what it holds."""
        return id(value) in self._numbers

    def held(self, found: Found) -> Any:
        """Return what an object of the snapshot held."""
        return next(before for each, before in zip(self.found, self.before, strict=True) if each is found)

    def place(self, found: Found, key: Any) -> Place:
        """Return one place of an object of the snapshot."""
        return Place(found, key, found.holder.path(found.path, key), self.held(found)[key])

    def forget(self, value: Any) -> None:
        """Put an object back as it was and take it out: it is carried by what it holds.

        It is still put back with the others: a trace that does not yet carry what refers to it changes it in place.
        """
        self.restore()
        self.release([value])
        both = list(zip(self.found, self.before, strict=True))
        self.forgotten += [pair for pair in both if pair[0].object is value]
        kept = [pair for pair in both if pair[0].object is not value]
        self.found, self.before = [each for each, _ in kept], [before for _, before in kept]

    def leave_out(self, objects: Collection[int]) -> None:
        """Take objects out, given by their ids, before a block is traced: that it changes them is known."""
        self.found = [each for each in self.found if id(each.object) not in objects]
        self.__post_init__()

    def release(self, objects: Iterable[Any]) -> None:
        """Let objects be known by what they hold."""
        self._numbers.difference_update(map(id, objects))

    def changes(self, where: str) -> list[Change]:
        """Return the objects that hold something else. Raises `LanguageError` for those that no block may change."""
        result = []
        for found, before in zip(self.found, self.before, strict=True):
            after = found.holder.read(found.object)
            if _same(found, before, after):
                continue
            before, after = found.holder.completed(found.object, before, after)
            if found.holder.has_places and _same(found, before, after):
                continue
            if not found.holder.restorable:
                raise _advanced(found, where)
            result.append(Change(found, before, after))
        for change in result:
            if change.found.outside:
                self.restore()
                raise _outside(change, where)
        return result

    def restore(self) -> None:
        """Put every object back as it was."""
        for found, before in (*zip(self.found, self.before, strict=True), *self.forgotten):
            if found.holder.restorable and not _same(found, before, found.holder.read(found.object)):
                found.holder.write(found.object, before)

    def places(self, changes: Iterable[Change]) -> list[Place]:
        """Return the places of a loop that changed. Raises `LanguageError` where an object has others than before."""
        result = []
        for change in changes:
            found = change.found
            if not found.holder.has_places or not _same_keys(found, change.before, change.after):
                self.restore()
                raise _structure(change, LOOP)
            result += [
                Place(found, key, found.holder.path(found.path, key), value)
                for key, value in change.before.items()
                if not same_value(value, change.after[key])
            ]
        return result

    def refuse_different(self, number: int, left: Any, right: Any) -> None:
        """Raise `LanguageError` where the sides of a branch leave an object with different places or contents."""
        found = self.found[number]
        if not (_same_keys(found, left, right) if found.holder.has_places else found.holder.same(left, right)):
            raise _structure(Change(found, left, right), BRANCH)

    def write(self, places: Iterable[Place], values: Iterable[Any]) -> None:
        """Set the places of a loop to values."""
        _write(((place.found, place.key) for place in places), values)


def _write(places: Iterable[tuple[Found, Any]], values: Iterable[Any]) -> None:
    contents: dict[int, tuple[Found, Places]] = {}
    for (found, key), value in zip(places, values, strict=True):
        contents.setdefault(id(found), (found, found.holder.read(found.object)))[1][key] = value
    for found, content in contents.values():
        found.holder.write(found.object, content)


def snapshot(tracer: Tracer, functions: Iterable[Callable[..., Any]], variables: Iterable[Any] = ()) -> Heap:
    """Take a snapshot of what functions that the rewriter made reach, apart from the cells of variables."""
    walk = Walk(memory(tracer))
    for value in tracer.arguments:
        walk.visit(value, "an argument", True)
    for function in functions:
        walk.function(function)
    walk.run()
    cells = {id(cell) for cell in variables}
    return Heap([each for each in walk.found.values() if id(each.object) not in cells])


def iterators_in(tracer: Tracer, value: Any) -> set[int]:
    """Return the ids of an iterator, and of those that it reads."""
    walk = Walk(memory(tracer))
    walk.visit(value, "items", False)
    walk.run()
    return {id(each.object) for each in walk.found.values() if each.holder in (GENERATOR, ITERATOR, ARRAY_ITERATOR)}


def keeping_state(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Return a function that refuses, with `LanguageError`, calls of another one that change Python's state.

    For the functions that operations on many elements are given: how often they are called while tracing says nothing
    of how often the device combines. Where no state can be reached, the function is returned as it is.
    """
    walk = Walk(memory(current(what)))
    walk.visit(function, getattr(function, "__name__", "op"), False)
    walk.run()
    if not walk.found:
        return function

    def call(*operands: Any) -> Any:
        heap = Heap(list(walk.found.values()))
        result = function(*operands)
        where = f"in the function that {what} is given"
        for change in heap.changes(where):
            heap.restore()
            raise LanguageError(
                f"{_place_of(change)!r} changes {where}: {_ONCE}",
                help="the function returns one value of two, and changes nothing else",
            )
        return result

    return call


def memory(tracer: Tracer) -> Memory:
    """Return what a trace knows of reachable objects."""
    if tracer.reach is None:
        tracer.reach = Memory()
    return tracer.reach


def replaced(before: Any, after: Any, heap: Heap) -> list[Any]:
    """Return the objects of a snapshot that were replaced by others, in a variable or in what it holds."""
    return [value for pair in pairs(before, after) for value in pair if heap.holds(value)]


def pairs(before: Any, after: Any) -> Iterator[tuple[Any, Any]]:
    """Yield two values where they are not the same object, and what they hold at the same places."""
    seen: set[tuple[int, int]] = set()
    pending = [(before, after)]
    while pending:
        before, after = pending.pop()
        if before is after or (id(before), id(after)) in seen:
            continue
        seen.add((id(before), id(after)))
        yield before, after
        if type(before) is not type(after):
            continue
        if isinstance(before, (tuple, list, deque)) and len(before) == len(after):
            pending += zip(before, after, strict=True)
        elif isinstance(before, dict) and before.keys() == after.keys():
            pending += [(before[key], after[key]) for key in before]
        elif is_user_type(type(before)):
            pending.append((ATTRIBUTES.read(before), ATTRIBUTES.read(after)))


def _same(found: Found, before: Any, after: Any) -> bool:
    if not found.holder.has_places:
        return found.holder.same(before, after)
    return _same_keys(found, before, after) and all(
        value is after[key] or same_value(value, after[key]) for key, value in before.items()
    )


def _same_keys(found: Found, before: Places, after: Places) -> bool:
    if not found.holder.ordered:
        return before.keys() == after.keys()
    return len(before) == len(after) and all(a is b or hash(a) == hash(b) for a, b in zip(before, after, strict=True))


# --- what is refused -----------------------------------------------------------------------------------

_ONCE = "the kernel is traced once for all iterations and threads"


def _structure(change: Change, where: str) -> LanguageError:
    found, before, after = change.found, change.before, change.after
    noun = found.holder.noun
    if not found.holder.has_places:
        return LanguageError(
            f"the {noun} {found.path!r} changes {where}, and it cannot be carried",
            help="keep values in tw.registers or a tensor, or loop with tw.static_range, which runs while tracing",
        )
    a, b = (f"{len(c)} items" if noun in ("list", "deque") else _keys(c) for c in (before, after))
    what = f"has {a} before it and {b} after it" if where is LOOP else f"has {a} on one side and {b} on the other"
    return LanguageError(
        f"the {noun} {found.path!r} changes its size or keys {where}: it {what}",
        help="keep values in tw.registers or a tensor, with a variable that counts them; or loop with tw.static_range, "
        "which runs while tracing, where lists and dicts may grow",
    )


def _keys(content: Places) -> str:
    return ", ".join(map(str, content)) or "nothing"


def _place_of(change: Change) -> str:
    """Return how the user writes the first place of an object that changed."""
    found = change.found
    if not found.holder.has_places:
        return found.path
    before, after = change.before, change.after
    key = next((k for k in (*before, *after) if k not in before or k not in after), None)
    if key is None:
        key = next(k for k in before if not same_value(before[k], after[k]))
    return found.holder.path(found.path, key)


def _outside(change: Change, where: str) -> LanguageError:
    return LanguageError(
        f"{_place_of(change)!r} changes {where}, and it is not the kernel's own: {_ONCE}, and leaves the object behind",
        help="make the object inside of the kernel, or store the result in a tensor",
    )


def _advanced(found: Found, where: str) -> LanguageError:
    noun = found.holder.noun
    article = "an" if noun[0] in "aeiou" else "a"
    return LanguageError(
        f"{article} {noun} that exists before, {found.path!r}, is read or changed {where}: {_ONCE}",
        help="take the values before it, or loop with tw.static_range, which runs while tracing",
    )
