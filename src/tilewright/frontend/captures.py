"""What a kernel reads from its globals and closure: when something there changes, the kernel is traced anew.

Watched are the constants, functions and objects that the kernel's code names, and those of the helper functions that
it can call, in the user's own modules. What can change inside of them is watched too, as `contents` finds it.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple  # Any: whatever the user's variables hold
from weakref import ref

from tilewright.dtypes import DType
from tilewright.freezing import same
from tilewright.frontend.contents import Key, Reached, Watched, is_of_user, names_read, unwrapped
from tilewright.layout import ComposedLayout, Layout, Swizzle

# Objects of ours that may be replaced by equal ones without a change of meaning.
_BY_VALUE = (DType, Layout, Swizzle, ComposedLayout)
_PARTS = ("__code__", "__defaults__", "__kwdefaults__")  # of a helper function
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_MOST_GIVEN = 64  # arguments that are watched: a function that is made anew for each call is another one each time
UNASSIGNED = object()  # what a variable of a closure holds that has no value yet


class Captures:
    """Watches what one function captures."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        # Most kernels capture nothing but modules: then it is empty.
        self.watched: list[Watched] = []
        self._is_as_seen: Callable[[], bool] = lambda: True
        self._written: dict[Key, object] = {}  # the places that traces write, with their holders
        self._bound: dict[int, BoundCaptures] = {}  # by the identity of the object that the kernel is a method of
        self._given: dict[int, object] = {}  # by identity: functions, objects and classes of arguments

    def take(self, value: object, *, is_constant: bool) -> None:
        """Watch from now on what an argument reads, too, of those that came last.

        Functions read their variables, and objects that are constants their attributes. Of a structure, which may hold
        arrays, only the class is kept.
        """
        if isinstance(value, (Mapping, tuple, list)):
            for item in value.values() if isinstance(value, Mapping) else value:
                self.take(item, is_constant=is_constant)
        held = value if isinstance(value, _FUNCTIONS) else _that_changes(value) if is_constant else type(value)
        if isinstance(value, _FUNCTIONS) or is_of_user(type(value)):
            self._given[id(held)] = held
        for key in list(self._given)[:-_MOST_GIVEN]:
            del self._given[key]

    def note(self) -> None:
        """Record what the function captures now, before it is traced."""
        watched = [each for each in places_read(self._function, self._objects()) if each.key not in self._written]
        self._is_as_seen, self.watched = compile_comparison(watched), watched

    def settle(self) -> None:
        """Watch no longer what the trace itself changed: a helper may count its calls, or keep what it computed."""
        try:
            if self._is_as_seen():
                return
        except (KeyError, ValueError, AttributeError, TypeError):  # a variable was deleted
            pass
        self._written.update((each.key, each.holder) for each in self.watched if not _is_as_seen(each))
        watched = [each.renewed() for each in self.watched if each.key not in self._written]
        self._is_as_seen, self.watched = compile_comparison(watched), watched

    def _objects(self) -> Sequence[object]:
        """Return what the function reaches besides its variables."""
        return tuple(self._given.values())

    def changed(self) -> bool:
        """Say whether something differs from what it was when it was noted. Costs a launch some nanoseconds each."""
        try:
            if self._is_as_seen():
                return False
        except (KeyError, ValueError, AttributeError, TypeError):  # a variable was deleted
            return True
        if not all(map(_is_as_seen, self.watched)):
            return True
        # Equal objects in place of those that were seen: from now on they are compared as objects.
        watched = [each.renewed() for each in self.watched]
        self._is_as_seen, self.watched = compile_comparison(watched), watched
        return False

    def of(self, instance: object) -> Captures:
        """Return what watches the function as a method of an object: what it reads of the object, and its captures.

        Objects that are equal by value share what was compiled, so they must not change; of these, the class is
        watched, and what its methods read.
        """
        instance = _that_changes(instance)
        known = self._bound.get(id(instance))
        if known is None or not known.is_of(instance):
            known = self._bound[id(instance)] = BoundCaptures(self._function, instance, self._bound)
        return known


class BoundCaptures(Captures):
    """Watches a function that is a method of an object, and what it reads of the object."""

    def __init__(self, function: types.FunctionType, instance: object, known: dict[int, BoundCaptures]) -> None:
        super().__init__(function)
        key = id(instance)
        try:
            self._instance: Callable[[], object] = ref(instance, lambda _: known.pop(key, None))
        except TypeError:  # with __slots__ and no place for references
            self._instance = lambda: instance

    def is_of(self, instance: object) -> bool:
        """Say whether these are the captures of an object."""
        return self._instance() is instance

    def _objects(self) -> Sequence[object]:
        return self._instance(), *super()._objects()


def _that_changes(instance: object) -> object:
    """Return what is watched of an object: its class, where objects are equal by value and so must not change."""
    is_by_value = not isinstance(instance, type) and type(instance).__eq__ is not object.__eq__
    return type(instance) if is_by_value else instance


def _is_as_seen(place: Watched) -> bool:
    try:
        return same(place.now(), place.value, _BY_VALUE)
    except (KeyError, ValueError, AttributeError, TypeError):
        return False


def places_read(
    function: types.FunctionType, objects: Sequence[object], reached: Reached | None = None
) -> list[Watched]:
    """Return the places that a function, and those that it can call, read now; what `reached` watches of objects."""
    seen: dict[Key, Watched] = {}
    reached = Reached() if reached is None else reached
    pending, functions = [function], dict[types.FunctionType, None]()
    package = package_of(function)
    for value in objects:
        reached.add(value, f"the {type(value).__name__}")
    while pending or reached.functions:
        if not pending:
            pending, reached.functions = reached.functions, []
        current = pending.pop()
        if current in functions:
            continue
        functions[current] = None
        for default in (*(current.__defaults__ or ()), *(current.__kwdefaults__ or {}).values()):
            reached.add(default, f"a default of {current.__name__}")
        reached.read(names_read(current.__code__))
        is_constant = _is_ours(current)
        for name, value, holder in captured_variables(current):
            key = name if isinstance(holder, dict) else None
            if _is_watched(value) and not (is_constant and key is not None):
                seen[id(holder), key] = Watched("cell" if key is None else "item", holder, key, value)
            inner = unwrapped(value)
            if isinstance(inner, types.FunctionType) and (package_of(inner) == package or is_of_user(inner)):
                pending.append(inner)
            elif package_of(current) != "tilewright" or key is None:
                reached.add(value, name)
        if current is not function and package_of(current) == package and not is_constant:
            for part in _PARTS:  # what reloads modules in notebooks puts new code into a helper
                seen[id(current), part] = Watched("attribute", current, part, getattr(current, part))
    return [*seen.values(), *reached.watched()]


def compile_comparison(watched: Sequence[Watched]) -> Callable[[], bool]:
    """Write and compile the function that says whether all values are the very objects that were seen.

    For a global, a variable of a closure and a list it is::

    lambda: h0["TILE"] is v0 and h1.cell_contents is v1 and len(h2) == 3 and all(map(is_, h2, v2))
    """
    names: dict[str, Any] = {}
    terms = []
    for n, each in enumerate(watched):
        term, needed = each.term(n)
        names.update(needed)
        terms.append(term)
    comparison: Callable[[], bool] = eval(f"lambda: {' and '.join(terms) or True}", names)
    return comparison


def _is_watched(value: Any) -> bool:
    return value is not UNASSIGNED and not isinstance(value, types.ModuleType)


# --- the variables of one function ---------------------------------------------------------------------


class Variable(NamedTuple):
    """A variable that a function captures, and its value: of a closure, where `holder` is a cell, or a global."""

    name: str
    value: Any
    holder: types.CellType | dict[str, Any]


def captured_variables(function: types.FunctionType) -> Iterator[Variable]:
    """Yield what a function captures: the variables of its closure, then the globals that its code reads.

    A variable of a closure without a value yet has the value `UNASSIGNED`; globals without one are left out.
    """
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield Variable(name, content(cell), cell)
    variables = function.__globals__
    for name in global_names(function.__code__):
        if name in variables:
            yield Variable(name, variables[name], variables)


def content(cell: types.CellType) -> Any:
    """Return the value of a variable of a closure, `UNASSIGNED` where it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return UNASSIGNED


def global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that code reads from outside of its functions, those of functions and classes in it included."""
    return names_read(code).variables


def _is_ours(function: types.FunctionType) -> bool:
    """Say whether a function stands in a module of this package, whose globals and functions are constant.

    A launch of tw.matmul would compare 59 of them. A doctest has globals of its own, which change.
    """
    module = sys.modules.get(function.__module__)
    return package_of(function) == "tilewright" and module is not None and function.__globals__ is vars(module)


def package_of(function: object) -> str:
    """Return the package of a function: what is outside of it stays what it is while the program runs."""
    return (getattr(function, "__module__", None) or "").partition(".")[0]
