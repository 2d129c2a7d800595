"""What a kernel reads from its globals and closure: when something there changes, the kernel is traced anew.

Watched are the constants, functions and objects that the kernel's code names, and those of the helper functions that
it can call, in the same package. Modules and attributes of objects are assumed not to change.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple  # Any: whatever the user's variables hold

from tilewright.dtypes import DType
from tilewright.freezing import same
from tilewright.layout import ComposedLayout, Layout, Swizzle

# Objects of ours that may be replaced by equal ones without a change of meaning.
_BY_VALUE = (DType, Layout, Swizzle, ComposedLayout)
_PARTS = ("__code__", "__defaults__", "__kwdefaults__")  # of a helper function
UNASSIGNED = object()  # what a variable of a closure holds that has no value yet


class Captures:
    """Watches what one function captures."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        # Globals and a name, a cell, or a function and its attribute, and the value seen. Most kernels capture nothing
        # but modules: then it is empty.
        self.watched: list[tuple[Any, str | None, Any]] = []
        self._is_as_seen: Callable[[], bool] = lambda: True

    def note(self) -> None:
        """Record what the function captures now, before it is traced."""
        seen: dict[tuple[int, str | None], tuple[Any, str | None, Any]] = {}
        for function in _reachable(self._function):
            for name, value, holder in captured_variables(function):
                key = name if isinstance(holder, dict) else None
                seen[id(holder), key] = holder, key, value
            if function is not self._function:  # a helper: what reloads modules in notebooks puts new code into it
                for part in _PARTS:
                    seen[id(function), part] = function, part, getattr(function, part)
        self.watched = [w for w in seen.values() if _is_watched(w[2])]
        self._is_as_seen = _compile_comparison(self.watched)

    def changed(self) -> bool:
        """Say whether something differs from what it was when it was noted. Costs a launch some nanoseconds each."""
        try:
            if self._is_as_seen():
                return False
            now = [_read(holder, name) for holder, name, _ in self.watched]
        except (KeyError, ValueError):  # a variable was deleted
            return True
        return not all(same(value, seen, _BY_VALUE) for value, (_, _, seen) in zip(now, self.watched, strict=True))


def _compile_comparison(watched: Sequence[tuple[Any, str | None, Any]]) -> Callable[[], bool]:
    """Write and compile the function that says whether all values are the very objects that were seen.

    For a global and a variable of a closure it is::

    lambda: h0["TILE"] is v0 and h1.cell_contents is v1
    """
    names: dict[str, Any] = {}
    terms = []
    for n, (holder, name, value) in enumerate(watched):
        names.update({f"h{n}": holder, f"v{n}": value})
        place = f"[{name!r}]" if isinstance(holder, dict) else f".{name or 'cell_contents'}"
        terms.append(f"h{n}{place} is v{n}")
    comparison: Callable[[], bool] = eval(f"lambda: {' and '.join(terms) or True}", names)
    return comparison


def _read(holder: Any, name: str | None) -> Any:
    """Return what a watched place holds now."""
    if name is None:
        return content(holder)
    return getattr(holder, name) if isinstance(holder, types.FunctionType) else holder[name]


def _is_watched(value: Any) -> bool:
    return value is not UNASSIGNED and not isinstance(value, types.ModuleType)


def _reachable(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """Yield a function and those of its package that it captures, and so on."""
    package = package_of(function)
    pending, seen = [function], set()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        yield current
        for variable in captured_variables(current):
            inner = getattr(variable.value, "__wrapped__", variable.value)  # what @tw.function made
            if isinstance(inner, types.FunctionType) and package_of(inner) == package:
                pending.append(inner)


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


@cache
def global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that code reads from outside of its functions, those of functions and classes in it included."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in _READS_GLOBAL}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(global_names(constant))
    return tuple(sorted(names))


# The body of a class reads a global as any other name.
_READS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})


def package_of(function: object) -> str:
    """Return the package of a function: what is outside of it stays what it is while the program runs."""
    return (getattr(function, "__module__", None) or "").partition(".")[0]
