"""How objects of this package are copied and pickled: by name, by their state without caches, or not at all.

What a decorator made (a kernel, a tuned kernel) is pickled like a function: by the module and the qualified name under
which Python finds it. A process that loads it imports the module.
"""

from __future__ import annotations

import copy
import importlib
import operator
import pickle
from dataclasses import fields
from functools import cached_property
from typing import Any, NoReturn, TypeVar  # Any: what is pickled is anything

from tilewright.errors import ArgumentError
from tilewright.frames import hiding_frames

C = TypeVar("C", bound=type)
T = TypeVar("T")

_MOST_WRAPPERS = 16  # decorators that are looked through


def place_of(thing: Any, module: str | None, name: str, same: Any = None) -> tuple[str, str, int] | None:
    """Return where Python finds a thing: module, qualified name, and how many decorators lie around it.

    `same` says of an object whether it will do; without it, only the thing itself. None where it is not found: it was
    made inside of a function, deleted or replaced.
    """
    if module is None or "<locals>" in name:
        return None
    try:
        found = _named(module, name)
    except (ImportError, AttributeError, ValueError):
        return None
    for depth in range(_MOST_WRAPPERS):
        if found is thing or (same is not None and same(found)):
            return module, name, depth
        found = getattr(found, "__wrapped__", None)
        if found is None:
            return None
    return None


def find(module: str, name: str, depth: int) -> Any:
    """Return what `place_of` found, in any process.

    Raises `ArgumentError` where the module has no such thing.
    """
    try:
        found = _named(module, name)
        for _ in range(depth):
            found = found.__wrapped__
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError(
            f"{name} of module {module!r} was pickled by its name, and is not found under it: {error}",
            help="the process that loads it needs a module that defines it: put it into a file that both import",
        ) from None
    return found


def by_name(thing: Any, module: str | None, name: str, what: str) -> tuple[Any, ...]:
    """Return what `__reduce__` returns for a thing that is found by its name.

    Raises `ArgumentError` where it is not.
    """
    place = place_of(thing, module, name)
    if place is None:
        raise not_found(what, module, name)
    return find, place


def not_found(what: str, module: str | None, name: str) -> ArgumentError:
    """Return the error for what cannot be pickled since Python does not find it by its name."""
    return ArgumentError(
        f"{what} cannot be pickled: it goes by its name, and {name!r} of module {module!r} is something else or absent",
        help="define it at the top of a module, under the name that its function has; or pass the values that it is "
        "made of, and make it in the other process",
    )


def refuse(what: str, why: str, help: str) -> NoReturn:
    """Raise `ArgumentError` for something that has no copy."""
    raise ArgumentError(f"{what} cannot be copied or pickled: {why}", help=help)


def check_pickles(value: Any, what: str, help: str) -> None:
    """Raise `ArgumentError` for a part of an object that Python cannot pickle, such as a lambda."""
    try:
        pickle.dumps(value)
    except ArgumentError:
        raise
    except Exception as error:  # what an object's own method raises
        raise ArgumentError(f"{what} cannot be pickled: {error}", help=help) from None


def without_caches(thing: Any, *more: str) -> dict[str, Any]:
    """Return an object's attributes without those of its cached properties, and without `more`.

    What was worked out is worked out again: a hash of text differs from process to process, and what was compiled or
    loaded belongs to one.
    """
    kind = type(thing)
    return {
        name: value
        for name, value in vars(thing).items()
        if name not in more and not isinstance(getattr(kind, name, None), cached_property)
    }


def hashed_once(kind: C) -> C:
    """Let a frozen dataclass work out its hash once, for every launch looks it up; return the class."""
    values = operator.attrgetter(*(field.name for field in fields(kind)))
    hashed: Any = cached_property(lambda self: hash(values(self)))
    hashed.__set_name__(kind, "_hash")
    made: Any = kind
    made._hash, made.__hash__, made.__getstate__ = hashed, lambda self: self._hash, without_caches
    return kind


def changed(thing: T, **values: object) -> T:
    """Return a frozen dataclass with other values of some fields: `dataclasses.replace` in a quarter of its time.

    It is for classes whose `__init__` does nothing more, and that keep at most their hash.
    """
    made = object.__new__(type(thing))
    state = {**vars(thing), **values}
    state.pop("_hash", None)
    vars(made).update(state)
    return made


def with_own_containers(thing: Any) -> Any:
    """Return a shallow copy that shares what an object holds, and not the lists and dicts that it is held in."""
    made = object.__new__(type(thing))
    state = vars(thing).items()
    vars(made).update((name, copy.copy(value) if type(value) in (list, dict, set) else value) for name, value in state)
    return made


def _named(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    parent = ""
    for part in name.split("."):
        if part.startswith("__") and not part.endswith("__") and parent:  # a private name of a class
            part = f"_{parent.lstrip('_')}{part}"
        found = getattr(found, part)
        parent = part
    return found


class ByName:
    """Something that a decorator made of a function: copied as itself, and pickled by its name."""

    __module__: str

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return by_name(self, self.__module__, _qualified_name(self), repr(self))


class KernelByName(ByName):
    """A kernel: pickled by its name, and a bound or configured one by the name of the kernel that it comes from.

    It is a part of `tilewright.launch.Kernel`, whose attributes it reads.
    """

    def derive(self, options: Any, bound: tuple[Any, ...], further: int | None) -> Any:
        """Return the kernel of the same function with these options and bound arguments."""
        kernel: Any = self
        return type(kernel)(kernel._code.function, options, bound, kernel._code, further)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        kernel: Any = self
        if not kernel._bound:
            return kernel
        return kernel.derive(kernel.options, copy.deepcopy(kernel._bound, memo), kernel._further)

    def __reduce__(self) -> tuple[Any, ...]:
        kernel: Any = self
        name, code = _qualified_name(kernel), kernel._code
        place = place_of(kernel, kernel.__module__, name, lambda found: getattr(found, "_code", None) is code)
        if place is None:
            raise not_found(repr(kernel), kernel.__module__, name)
        base = find(*place)
        if base is kernel:
            return find, place
        if kernel.options.stream is not None:
            refuse(repr(kernel), "its stream belongs to this process", "configure(stream=...) it in the other process")
        return KernelByName.derive, (base, kernel.options, kernel._bound, kernel._further)


class LauncherByName:
    """A kernel with a grid and a block. It is a part of `tilewright.launch.Launcher`, whose attributes it reads."""

    __slots__ = ()

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        launcher: Any = self
        return type(launcher)(copy.deepcopy(launcher.kernel, memo), launcher.grid, launcher.block)

    def __reduce__(self) -> tuple[Any, ...]:
        launcher: Any = self
        if callable(launcher.grid):
            check_pickles(launcher.grid, f"the grid of {launcher.kernel!r}", "give numbers, or a function of a module")
        return type(launcher), (launcher.kernel, launcher.grid, launcher.block)


class Refused:
    """Something that belongs to one process and has no copy. `_why_no_copy` is the reason, and what to do instead."""

    __slots__ = ()
    _why_no_copy = ("", "")

    def __copy__(self) -> Any:
        return self

    @hiding_frames
    def __deepcopy__(self, memo: dict[int, Any]) -> NoReturn:
        refuse(f"a {type(self).__name__}", *self._why_no_copy)

    @hiding_frames
    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse(f"a {type(self).__name__}", *self._why_no_copy)


def _qualified_name(thing: Any) -> str:
    name: str = getattr(thing, "__qualname__", None) or thing.__name__
    return name
