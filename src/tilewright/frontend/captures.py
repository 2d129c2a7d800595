"""What a kernel reads from its globals and closure: when something there changes, the kernel is traced anew.

Watched are the constants, functions and objects that the kernel's code names, and those of the helper functions that
it can call, in the same package. Modules, and what hangs on attributes, are taken to stay what they are.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any  # Any: whatever the user's variables hold

from tilewright.dtypes import DType
from tilewright.freezing import same
from tilewright.layout import ComposedLayout, Layout, Swizzle

# Objects of ours that may be replaced by equal ones without a change of meaning.
_BY_VALUE = (DType, Layout, Swizzle, ComposedLayout)
_UNASSIGNED = object()  # what a variable of a closure holds that has no value yet


class Captures:
    """Watches what one function captures."""

    def __init__(self, function: types.FunctionType) -> None:
        self._function = function
        # Globals and a name, or a cell, and the value seen. Most kernels capture nothing but modules: then it is empty.
        self.watched: list[tuple[Any, str | None, Any]] = []
        self._is_as_seen: Callable[[], bool] = lambda: True

    def note(self) -> None:
        """Take note of what the function captures now, before it is traced."""
        found: dict[tuple[int, str | None], tuple[Any, str | None, Any]] = {}
        for function in _reachable(self._function):
            variables = function.__globals__
            for name in _global_names(function):
                found[id(variables), name] = variables, name, variables[name]
            for cell in function.__closure__ or ():
                found[id(cell), None] = cell, None, _content(cell)
        self.watched = [w for w in found.values() if _is_watched(w[2])]
        self._is_as_seen = _compile_comparison(self.watched)

    def changed(self) -> bool:
        """Say whether something differs from what it was when it was noted. Costs a launch some nanoseconds each."""
        try:
            if self._is_as_seen():
                return False
            now = [_content(holder) if name is None else holder[name] for holder, name, _ in self.watched]
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
        terms.append(f"h{n}.cell_contents is v{n}" if name is None else f"h{n}[{name!r}] is v{n}")
    comparison: Callable[[], bool] = eval(f"lambda: {' and '.join(terms) or True}", names)
    return comparison


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _UNASSIGNED


def _is_watched(value: Any) -> bool:
    return value is not _UNASSIGNED and not isinstance(value, types.ModuleType)


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
