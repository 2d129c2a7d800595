"""What a kernel reads from its globals and closure: when something there changes, the kernel is traced anew.

Watched are the constants, functions and objects that the kernel's code names, and those of the helper functions that
it can call, in the same package. Modules, and what hangs on attributes, are taken to stay what they are.
"""

from __future__ import annotations

import dis
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any  # Any: whatever the user's variables hold

from tilewright.dtypes import DType
from tilewright.layout import Layout

# What may be replaced by an equal object without a change of meaning.
_PLAIN = (bool, int, float, str, tuple, DType, Layout)

_Reader = Callable[[], tuple[Any, ...]]


class Captures:
    """Watches what one function captures."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        self._readers: list[_Reader] = []
        self._seen: list[tuple[Any, ...]] = []

    @property
    def watched(self) -> bool:
        """Whether there is anything to watch; most kernels capture nothing but modules."""
        return bool(self._readers)

    def note(self) -> None:
        """Take note of what the function captures now, before it is traced."""
        names: dict[int, tuple[dict[str, Any], list[str]]] = {}
        cells: list[types.CellType] = []
        for function in _reachable(self._function):
            variables = function.__globals__
            _, known = names.setdefault(id(variables), (variables, []))
            known += [n for n in _global_names(function) if n not in known and _is_watched(variables[n])]
            cells += [c for c in function.__closure__ or () if c not in cells and _is_watched(_content(c))]
        self._readers = [_globals_reader(variables, found) for variables, found in names.values() if found]
        if cells:
            self._readers.append(lambda: tuple([_content(c) for c in cells]))
        self._seen = [read() for read in self._readers]

    def changed(self) -> bool:
        """Say whether something differs from what it was when it was noted."""
        for read, seen in zip(self._readers, self._seen, strict=True):
            try:
                now = read()
            except KeyError:  # a global was deleted
                return True
            if not all(map(operator.is_, now, seen)) and not all(map(_same, now, seen)):
                return True
        return False


def _globals_reader(variables: dict[str, Any], names: list[str]) -> _Reader:
    # With two names at least, the getter gives a tuple.
    getter = operator.itemgetter(*names, names[0])
    return lambda: getter(variables)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _is_watched(value: Any) -> bool:
    return value is not None and not isinstance(value, types.ModuleType)


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, _PLAIN) and bool(a == b))


def _global_names(function: types.FunctionType) -> Iterator[str]:
    """Yield the global variables that a function's code reads, the functions inside it included."""
    pending, found = [function.__code__], set()
    while pending:
        code = pending.pop()
        found |= {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
        pending += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    yield from sorted(name for name in found if name in function.__globals__)


def _reachable(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """Yield a function and those of its package that it captures, and so on."""
    package = _package(function)
    pending, seen = [function], set()
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        yield current
        captured = [current.__globals__[name] for name in _global_names(current)]
        captured += [_content(cell) for cell in current.__closure__ or ()]
        for value in captured:
            inner = getattr(value, "__wrapped__", value)  # what @tw.function made
            if isinstance(inner, types.FunctionType) and _package(inner) == package:
                pending.append(inner)


def _package(function: types.FunctionType) -> str:
    return (function.__module__ or "").partition(".")[0]
