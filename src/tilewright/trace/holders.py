"""Objects of Python that change, by kind: how what they hold is read, compared and set again.

A `Holder` of a kind that has places (a list its items, an object its attributes) gives them by their keys. What has
none (a set, a file) is compared as a whole.
"""

from __future__ import annotations

import collections
import functools
import pickle
import queue
import types
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar  # Any: whatever the user's variables hold

from tilewright.trace.scalar import Scalar

Places = dict[Any, Any]


class Holder(ABC):
    """A kind of object that changes."""

    noun: ClassVar[str] = "object"
    has_places: ClassVar[bool] = True
    restorable: ClassVar[bool] = True
    ordered: ClassVar[bool] = True
    is_variable: ClassVar[bool] = False  # no object of its own: a cell, or a name of a module

    @abstractmethod
    def read(self, object: Any) -> Any:
        """Return a copy of what the object holds: by keys where it has places, else what can be compared."""

    def write(self, object: Any, content: Any) -> None:
        """Set what the object holds to what was read."""
        raise NotImplementedError(self.noun)

    def children(self, object: Any) -> Iterable[tuple[Any, Any]]:
        """Yield what the object holds, with its keys."""
        content = self.read(object)
        return list(content.items()) if self.has_places else ()

    def path(self, path: str, key: Any) -> str:
        """Return how the user writes one place of an object that is written `path`."""
        return f"{path}[{key!r}]"

    def same(self, before: Any, after: Any) -> bool:
        """Say whether two contents of an object without places are the same."""
        return bool(before == after)

    def completed(self, object: Any, one: Any, other: Any) -> tuple[Any, Any]:
        """Return two contents with the places that one of them leaves to a default."""
        return one, other


@dataclass(frozen=True)
class _List(Holder):
    noun = "list"

    def read(self, object: Any) -> Places:
        return dict(enumerate(list.__getitem__(object, slice(None))))

    def write(self, object: Any, content: Places) -> None:
        list.__setitem__(object, slice(None), list(content.values()))


@dataclass(frozen=True)
class _Deque(Holder):
    noun = "deque"

    def read(self, object: Any) -> Places:
        return dict(enumerate(collections.deque.copy(object)))

    def write(self, object: Any, content: Places) -> None:
        collections.deque.clear(object)
        collections.deque.extend(object, content.values())


@dataclass(frozen=True)
class _Queue(Holder):
    """`queue.SimpleQueue`, which shows its items only to who takes them out."""

    noun = "queue"

    def read(self, object: Any) -> Places:
        items = self._taken(object)
        self._put(object, items)
        return dict(enumerate(items))

    def write(self, object: Any, content: Places) -> None:
        self._taken(object)
        self._put(object, content.values())

    def _taken(self, object: Any) -> list[Any]:
        return [queue.SimpleQueue.get_nowait(object) for _ in range(queue.SimpleQueue.qsize(object))]

    def _put(self, object: Any, items: Iterable[Any]) -> None:
        for item in items:
            queue.SimpleQueue.put(object, item)


@dataclass(frozen=True)
class _Dict(Holder):
    noun = "dict"

    def read(self, object: Any) -> Places:
        if isinstance(object, collections.OrderedDict):  # its order is its own
            return dict(collections.OrderedDict.items(object))
        return dict(dict.items(object))

    def children(self, object: Any) -> Iterable[tuple[Any, Any]]:
        content = self.read(object)
        return [*content.items(), *((key, key) for key in content)]

    def write(self, object: Any, content: Places) -> None:
        kind = collections.OrderedDict if isinstance(object, collections.OrderedDict) else dict
        kind.clear(object)
        for key, value in content.items():
            kind.__setitem__(object, key, value)


@dataclass(frozen=True)
class _Attributes(Holder):
    """Objects by `__dict__` and `__slots__`, whatever properties and `__setattr__` say."""

    noun = "object"
    ordered = False

    def read(self, object: Any) -> Places:
        content, kind = dict(getattr(object, "__dict__", ())), _class_of(object)
        for name, slot in _slots(kind):
            try:
                content[name] = slot.__get__(object)
            except AttributeError:
                continue
        return content

    def write(self, object: Any, content: Places) -> None:
        kind = _class_of(object)
        slots = dict(_slots(kind))
        own = getattr(object, "__dict__", None)
        if own is not None:
            for name in [n for n in own if n not in content]:
                del own[name]
            own.update((name, value) for name, value in content.items() if name not in slots)
        for name, slot in slots.items():
            if name in content:
                slot.__set__(object, content[name])
            elif hasattr(object, name):
                slot.__delete__(object)

    def completed(self, object: Any, one: Places, other: Places) -> tuple[Places, Places]:
        """Take an attribute that an object has on one side only from its class on the other.

        A cached property that was read first on one side has no place, where the device has no part in its value.
        """
        if one.keys() == other.keys():
            return one, other
        for name in _cached(_class_of(object)):
            if (name in one) != (name in other) and not isinstance({**one, **other}[name], Scalar):
                one, other = ({k: v for k, v in content.items() if k != name} for content in (one, other))
        defaults: Places = {}
        for kind in reversed(type(object).__mro__[:-1]):
            defaults.update(data_of_class(kind))
        both = [key for key in (*one, *other) if (key in one) != (key in other) and key in defaults]
        return tuple({**content, **{k: content.get(k, defaults[k]) for k in both}} for content in (one, other))  # type: ignore[return-value]

    def path(self, path: str, key: Any) -> str:
        return f"{path}.{key}"


def _class_of(value: Any) -> Any:  # Any: mypy takes no type for hashable
    return type(value)


@functools.cache
def _slots(kind: type) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, member)
        for each in reversed(kind.__mro__)
        for name, member in vars(each).items()
        if isinstance(member, types.MemberDescriptorType)
        and each.__module__ != "builtins"
        and name not in ("__dict__", "__weakref__")  # members of some classes that are written in C
    )


@functools.cache
def _cached(kind: type) -> tuple[str, ...]:
    return tuple(
        name
        for each in kind.__mro__
        for name, member in vars(each).items()
        if isinstance(member, functools.cached_property)
    )


def data_of_class(kind: type) -> Places:
    """Return the attributes of a class that are data."""
    return {
        name: value
        for name, value in vars(kind).items()
        if not (name.startswith("__") and name.endswith("__")) and not hasattr(value, "__get__") and name != "_abc_impl"
    }


@dataclass(frozen=True)
class _Class(Holder):
    noun = "class"
    ordered = False

    def read(self, object: Any) -> Places:
        return data_of_class(object)

    def write(self, object: Any, content: Places) -> None:
        now = data_of_class(object)
        for name in now.keys() - content.keys():
            type.__delattr__(object, name)
        for name, value in content.items():
            if name not in now or now[name] is not value:
                type.__setattr__(object, name, value)

    def path(self, path: str, key: Any) -> str:
        return f"{path}.{key}"


@dataclass(frozen=True)
class _Cell(Holder):
    """One variable of a closure."""

    name: str = ""
    noun = "variable"
    is_variable = True

    def of(self, name: str) -> _Cell:
        """Return the holder for a variable of a name."""
        return _Cell(name)

    def read(self, object: types.CellType) -> Places:
        try:
            return {self.name: object.cell_contents}
        except ValueError:
            return {}

    def write(self, object: types.CellType, content: Places) -> None:
        if content:
            object.cell_contents = content[self.name]
        else:
            del object.cell_contents

    def path(self, path: str, key: Any) -> str:
        return path


@dataclass(frozen=True)
class _Globals(Holder):
    """One variable of a module."""

    name: str = ""
    noun = "global"
    is_variable = True

    def of(self, name: str) -> _Globals:
        """Return the holder for a variable of a name."""
        return _Globals(name)

    def read(self, object: dict[str, Any]) -> Places:
        return {self.name: object[self.name]} if self.name in object else {}

    def write(self, object: dict[str, Any], content: Places) -> None:
        object.pop(self.name, None)
        object.update(content)

    def path(self, path: str, key: Any) -> str:
        return path


@dataclass(frozen=True)
class _Set(Holder):
    noun = "set"
    has_places = False

    def read(self, object: Any) -> Any:
        return list(set.copy(object))

    def write(self, object: Any, content: Any) -> None:
        set.clear(object)
        set.update(object, content)

    def children(self, object: Any) -> Iterable[tuple[Any, Any]]:
        return list(enumerate(set.copy(object)))

    def same(self, before: Any, after: Any) -> bool:
        return len(before) == len(after) and set(before) == set(after)


@dataclass(frozen=True)
class _Bytes(Holder):
    noun = "bytearray"
    has_places = False

    def read(self, object: Any) -> Any:
        return bytes(object)

    def write(self, object: Any, content: Any) -> None:
        object[:] = content


@dataclass(frozen=True)
class _Array(Holder):
    noun = "NumPy array"
    has_places = False

    def read(self, object: Any) -> Any:
        return object.shape, object.dtype, object.copy() if object.dtype.hasobject else object.tobytes()

    def children(self, object: Any) -> Iterable[tuple[Any, Any]]:
        return list(enumerate(object.flat)) if object.dtype.hasobject else ()

    def write(self, object: Any, content: Any) -> None:
        import numpy as np

        shape, dtype, data = content
        if not self.same(content, self.read(object)):
            object[...] = data if dtype.hasobject else np.frombuffer(data, dtype).reshape(shape)

    def same(self, before: Any, after: Any) -> bool:
        if before[:2] != after[:2]:
            return False
        if before[1].hasobject:
            return all(a is b for a, b in zip(before[2].flat, after[2].flat, strict=True))
        return bool(before[2] == after[2])


class _Unrestorable(Holder):
    has_places = False
    restorable = False


@dataclass(frozen=True)
class _Generator(_Unrestorable):
    noun = "generator"

    def read(self, object: Any) -> Any:
        frame = object.gi_frame
        if frame is None:
            return None
        return frame.f_lasti, dict(frame.f_locals)

    def children(self, object: Any) -> Iterable[tuple[Any, Any]]:
        frame = object.gi_frame
        if frame is None:
            return ()
        return list(frame.f_locals.items())

    def path(self, path: str, key: Any) -> str:
        return key if isinstance(key, str) and key.isidentifier() else path

    def same(self, before: Any, after: Any) -> bool:
        if before is None or after is None:
            return before is after
        return (
            before[0] == after[0]
            and before[1].keys() == after[1].keys()
            and all(same_value(before[1][name], after[1][name]) for name in before[1])
        )


@dataclass(frozen=True)
class _Iterator(_Unrestorable):
    noun = "iterator"

    def read(self, object: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return object.__reduce__()
            except TypeError:  # it cannot be asked: zip of generators, say
                return repr(object)

    def children(self, object: Any) -> Iterable[tuple[Any, Any]]:
        state = self.read(object)
        return [(n, part) for n, part in enumerate(state[1])] if isinstance(state, tuple) and len(state) > 1 else ()

    def path(self, path: str, key: Any) -> str:
        return path

    def same(self, before: Any, after: Any) -> bool:
        return _same_parts(before, after)


def _same_parts(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):  # what is iterated over
        return len(a) == len(b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same_parts, a, b))
    if hasattr(type(a), "__next__") and type(a) is type(b):  # an inner iterator; it is walked by itself
        return True
    return same_value(a, b)


@dataclass(frozen=True)
class _ArrayIterator(_Unrestorable):
    noun = "iterator"

    def read(self, object: Any) -> Any:
        return object.index if hasattr(object, "base") else (object.finished, object.finished or object.iterindex)


@dataclass(frozen=True)
class _DeviceItems(_Unrestorable):
    """`enumerate`, `zip` or `reversed` of what only the device knows."""

    noun = "iterator"

    def read(self, object: Any) -> Any:
        return object.entered


@dataclass(frozen=True)
class _Buffer(_Unrestorable):
    """What gives its bytes: an array of the module `array`, a memoryview, an object of ctypes."""

    noun = "buffer"

    def read(self, object: Any) -> Any:
        return bytes(object)


@dataclass(frozen=True)
class _ContextVariable(_Unrestorable):
    noun = "context variable"

    def read(self, object: Any) -> Any:
        return (object.get(None),)

    def same(self, before: Any, after: Any) -> bool:
        return same_value(before, after)


@dataclass(frozen=True)
class _File(_Unrestorable):
    noun = "file"

    def read(self, object: Any) -> Any:
        try:
            return object.closed or object.tell()
        except (OSError, ValueError, AttributeError):  # a terminal or a pipe has no position
            return None


@dataclass(frozen=True)
class _Random(_Unrestorable):
    noun = "random generator"

    def read(self, object: Any) -> Any:
        if type(object).__module__.startswith("numpy"):
            return pickle.dumps(object)  # states of different kinds, with arrays
        try:
            return object.getstate()
        except NotImplementedError:  # SystemRandom
            return None


LIST, DEQUE, QUEUE, DICT, ATTRIBUTES, CLASS = _List(), _Deque(), _Queue(), _Dict(), _Attributes(), _Class()
CELL, GLOBALS = _Cell(), _Globals()
DEVICE_ITEMS = _DeviceItems()
SET, BYTES, ARRAY = _Set(), _Bytes(), _Array()
GENERATOR, ITERATOR, FILE, RANDOM = _Generator(), _Iterator(), _File(), _Random()
ARRAY_ITERATOR, BUFFER, CONTEXT_VARIABLE = _ArrayIterator(), _Buffer(), _ContextVariable()

_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def same_value(a: Any, b: Any) -> bool:
    """Say whether a place holds what it held: the same object, or an equal number or text."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, _PLAIN):
        return bool(a == b) and repr(a) == repr(b)  # 0.0 is not -0.0
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same_value, a, b))
    return isinstance(a, Scalar) and a.value is b.value
