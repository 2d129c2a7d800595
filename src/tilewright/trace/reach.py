"""Which Python objects a function can reach, and which of them can change.

From a function the walk goes to what its code can name: the variables of its closure, its defaults, the globals that it
reads; from there into containers, attributes, methods and the functions that are found on the way. Numbers, layouts,
tensors and all else of this package stay what they are, as do modules of Python and of others.
"""

from __future__ import annotations

import array
import collections
import contextlib
import contextvars
import ctypes
import dis
import enum
import functools
import gc
import io
import os
import queue
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple  # Any: whatever the user's variables hold

from tilewright.trace.holders import (
    ARRAY,
    ARRAY_ITERATOR,
    ATTRIBUTES,
    BUFFER,
    BYTES,
    CELL,
    CLASS,
    CONTEXT_VARIABLE,
    DEQUE,
    DEVICE_ITEMS,
    DICT,
    FILE,
    GENERATOR,
    GLOBALS,
    ITERATOR,
    LIST,
    QUEUE,
    RANDOM,
    SET,
    Holder,
    data_of_class,
)
from tilewright.trace.iteration import DeviceCalls, DeviceItems
from tilewright.trace.tracer import is_user_code

_ATOMS = (int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), range, slice)
_OTHERS = frozenset({"tilewright", "numpy", "ml_dtypes", "torch", "cupy", "jax", "jaxlib", "cuda", "builtins"})
_LIBRARY = os.path.dirname(os.__file__)
# Modules of Python whose objects hold what the user gives them, or are set by the user.
_OPEN = frozenset({"argparse", "collections", "contextlib", "optparse", "queue", "threading", "types"})
_WRITTEN_IN_C = frozenset({"builtins", "functools", "operator"})  # modules of which we look into all other objects
# Modules of this package whose objects may hold a kernel's state; numbers, layouts, tensors and plans do not.
_HOLDING = ("tilewright.kernels.", "tilewright.language.", "tilewright.schedulers.")
_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_STORES_OF = frozenset({"STORE_ATTR", "DELETE_ATTR"})


def _is_pythons(module: str) -> bool:
    """Say whether a module is of Python's library: the one of that name, and not a file of the user's beside it."""
    root = module.partition(".")[0]
    if root not in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(root), "__file__", None)
    if file is None or not file.endswith(".py"):  # built in, or compiled
        return True
    return file.startswith(_LIBRARY) and "site-packages" not in file


def _is_foreign(module: str) -> bool:
    return module.partition(".")[0] in _OTHERS or _is_pythons(module)


def is_user_type(kind: type) -> bool:
    """Say whether a class is the user's, or one of this package whose objects change as the user's do."""
    if getattr(kind, "__tilewright_state__", False):
        return True
    if not _is_foreign(kind.__module__):
        return not issubclass(kind, (enum.Enum, type, BaseException))
    if kind.__module__ in _OPEN:
        return bool(getattr(kind, "__dictoffset__", 0)) and not issubclass(kind, (dict, list, type, types.FunctionType))
    return kind.__module__.startswith("tilewright.examples")


class Found(NamedTuple):
    """An object that holds others: how it is read and set, how the user's code reaches it, whose it is."""

    holder: Holder
    object: Any
    path: str
    outside: bool  # whether it is there before the kernel runs, and stays when it has run


_Step = Callable[["Walk", Any, str, bool], None]


class Walk:
    """One walk over what functions reach; `found` holds each object that can change once.

    `memory` keeps, for as long as a kernel is traced, what is found out about classes and about code.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.found: dict[tuple[int, Holder], Found] = {}
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # so that no other object gets the number of one that was seen
        self._pending: collections.deque[tuple[Any, str, bool]] = collections.deque()
        self._late: collections.deque[tuple[Any, str, bool]] = collections.deque()

    def named(self, named: types.FunctionType | type) -> None:
        """Walk what is outside of the kernel that a function's code names, or the methods of a class and it itself."""
        for each in self.memory.outside(named):
            self.add(*each)

    def function(self, function: Callable[..., Any]) -> None:
        """Walk what a function made by the rewriter reaches; what only this package's own code leads to, `run` does."""
        if not isinstance(function, types.FunctionType):
            return
        if is_user_code(function.__code__):
            self.named(function)
            self._run_near()
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            self.visit(value, name, id(cell) in self.memory.outside_cells)
        self._run_near()

    def visit(self, value: Any, path: str, outside: bool) -> None:
        """Walk a value later, where anything in it can change."""
        step = self.memory.step(type(value))
        if step is not None and id(value) not in self._seen:
            self._seen.add(id(value))
            self._kept.append(value)
            (self._late if _is_ours(step, value) else self._pending).append((value, path, outside))

    def run(self) -> None:
        """Walk all that is pending; what is near comes first, and what this package's own code leads to last."""
        self._run_near()
        while self._late:
            self._step(*self._late.popleft())
            self._run_near()

    def _run_near(self) -> None:
        while self._pending:
            self._step(*self._pending.popleft())

    def _step(self, value: Any, path: str, outside: bool) -> None:
        step = self.memory.step(type(value))
        assert step is not None, value
        step(self, value, path, outside)

    def add(self, holder: Holder, object: Any, path: str, outside: bool) -> None:
        """Note an object that can change, and walk what it holds."""
        key = id(object), holder
        if key in self.found:
            return
        outside = outside or id(object) in self.memory.outside_objects
        self._kept.append(object)
        self.found[key] = Found(holder, object, path, outside)
        for item, value in holder.children(object):
            self.visit(value, holder.path(path, item), outside)


class Memory:
    """What stays the same while one kernel is traced: the steps for each class, what each code reaches by globals."""

    def __init__(self) -> None:
        # Cells of the kernel's own closure, and of its helpers', kept so that no other cell gets the number of one.
        self.outside_cells: dict[int, types.CellType] = {}
        self.outside_objects: dict[int, Any] = {}  # what can change of all that the kernel's function reaches
        self._steps: dict[type, _Step | None] = {}
        self._outside: dict[int, tuple[Any, list[Found]]] = {}

    def note_closure(self, function: types.FunctionType) -> None:
        """Note that the variables which a function captures are not the kernel's."""
        self.outside_cells.update((id(cell), cell) for cell in function.__closure__ or ())

    def note_kernel(self, function: types.FunctionType) -> None:
        """Note what is there before a kernel runs: a function that it makes may come to it on another way."""
        walk = Walk(self)
        walk.visit(function, function.__name__, True)
        walk.run()
        self.outside_objects.update((id(found.object), found.object) for found in walk.found.values())

    def step(self, kind: type) -> _Step | None:
        """Return how to walk the objects of a class, None where nothing of them can change."""
        try:
            return self._steps[kind]
        except KeyError:
            self._steps[kind] = step = _step_of(kind)
            return step

    def outside(self, named: types.FunctionType | type) -> list[Any]:
        """Return where walks of a function's globals, or of a class, start: what can change first on each way.

        Functions and classes on the way stay what they are, so they are walked once.
        """
        known = self._outside.get(id(key := getattr(named, "__code__", named)))
        if known is None:
            walk = _StaticWalk(self)
            if isinstance(named, type):
                walk.members_of(named)
            else:
                walk.globals_of(named)
            walk.run()
            known = self._outside[id(key)] = key, walk.starts
        return known[1]


class _StaticWalk(Walk):
    """Walks functions, classes and modules, and stops at what can change."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.starts: list[Any] = []
        self._codes: set[int] = set()

    def named(self, named: types.FunctionType | type) -> None:
        if isinstance(named, type):
            self.members_of(named)
        else:
            self.globals_of(named)

    def members_of(self, kind: type) -> None:
        """Walk a class of the user: its data, which can change, and its methods."""
        self.add(CLASS, kind, kind.__name__, True)
        for base in kind.__bases__:
            self.visit(base, base.__name__, True)
        data = data_of_class(kind)
        for name, member in vars(kind).items():
            if name not in data:
                for function in _functions_of(member):
                    self.visit(function, f"{kind.__name__}.{name}", True)
                if is_user_type(type(member)):  # a descriptor, which may keep what it is given
                    self.visit(member, f"{kind.__name__}.{name}", True)

    def globals_of(self, function: types.FunctionType) -> None:
        """Walk the globals that a function's code reads."""
        code, variables = function.__code__, function.__globals__
        # From Python's own functions the walk would go on: from those of threading to all threads, and to whatever
        # these work with. A kernel must not look into that, let alone set it back.
        if id(code) in self._codes or _is_pythons(variables.get("__name__") or ""):
            return
        self._codes.add(id(code))
        self._kept.append(code)
        reads, stores, attributes, stored = _names_of(code)
        for name in reads:
            value = variables.get(name)
            if isinstance(value, types.ModuleType):
                self._module(value, name, attributes, stored)
            elif value is not None:
                self.visit(value, name, True)
        for name in stores:
            holder = GLOBALS.of(name)
            self.starts.append(Found(holder, variables, name, True))

    def _module(self, module: types.ModuleType, path: str, attributes: frozenset[str], stored: frozenset[str]) -> None:
        if module is random:
            self.visit(random._inst, path, True)  # the generator behind its functions
        elif module.__name__ == "numpy" and "random" in attributes:
            self.visit(module.random.mtrand._rand, f"{path}.random", True)
        if _is_foreign(module.__name__) and not module.__name__.startswith("tilewright.examples"):
            return
        variables = vars(module)
        for name in sorted(attributes & variables.keys()):
            value = variables[name]
            if name in stored:
                self.starts.append(Found(GLOBALS.of(name), variables, f"{path}.{name}", True))
            if not isinstance(value, types.ModuleType):
                self.visit(value, f"{path}.{name}", True)

    def add(self, holder: Holder, object: Any, path: str, outside: bool) -> None:
        self.starts.append(Found(holder, object, path, True))


def _names(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str], frozenset[str]]:
    """Return the globals that code reads, those that it assigns, and the attributes that it may read and assigns."""
    reads: dict[str, None] = {}
    stores: dict[str, None] = {}
    attributes: set[str] = set()
    stored: set[str] = set()
    pending = [code]
    while pending:
        current = pending.pop()
        for instruction in dis.get_instructions(current):
            if instruction.opname in _STORES:
                stores[instruction.argval] = None
            elif instruction.opname in _STORES_OF:
                stored.add(instruction.argval)
            elif instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                reads[instruction.argval] = None
        attributes.update(current.co_names)
        pending += [constant for constant in current.co_consts if isinstance(constant, types.CodeType)]
    return tuple(reads), tuple(stores), frozenset(attributes), frozenset(stored)


_names_of = functools.cache(_names)  # not a decorator: of a decorated function the wheel keeps the types


# --- steps: how the objects of each class are walked ---------------------------------------------------


def _step_of(kind: type) -> _Step | None:
    if issubclass(kind, enum.Enum):
        return None if _is_foreign(kind.__module__) else _holds(ATTRIBUTES)
    if issubclass(kind, _ATOMS):
        return None
    for classes, step in _STEPS:
        if issubclass(kind, classes):
            return step
    if kind.__module__.partition(".")[0] == "numpy":
        return _NUMPY_STEPS.get(kind.__name__)
    if hasattr(kind, "__next__") and kind.__module__.partition(".")[0] in ("builtins", "itertools"):
        return _holds(ITERATOR)
    if is_user_type(kind):
        return _instance
    if kind.__module__.startswith(_HOLDING):
        return _own_instance
    return _parts if kind.__module__ in _WRITTEN_IN_C else None


def _holds(holder: Holder) -> _Step:
    def step(walk: Walk, value: Any, path: str, outside: bool) -> None:
        walk.add(holder, value, path, outside)
        if is_user_type(type(value)):
            _instance(walk, value, path, outside)

    return step


def _instance(walk: Walk, value: Any, path: str, outside: bool) -> None:
    walk.add(ATTRIBUTES, value, path, outside)
    walk.visit(type(value), type(value).__name__, True)


def _is_ours(step: _Step, value: Any) -> bool:
    """Say whether this package's code leads on from a value, apart from what @tw.function made."""
    if step is _function:
        return not is_user_code(value.__code__) and not hasattr(value, "__wrapped__")
    return step is _own_instance


def _own_instance(walk: Walk, value: Any, path: str, outside: bool) -> None:
    """Walk an object of this package that a kernel has made: plans and the like, from outside, are constant."""
    if not outside:
        walk.add(ATTRIBUTES, value, path, outside)


def _items(walk: Walk, value: Any, path: str, outside: bool) -> None:
    for n, item in enumerate(value):
        walk.visit(item, f"{path}[{n}]", outside)
    if is_user_type(type(value)):
        _instance(walk, value, path, outside)


def _function(walk: Walk, function: types.FunctionType, path: str, outside: bool) -> None:
    wrapped = getattr(function, "__wrapped__", None)
    if is_user_code(function.__code__):
        walk.named(function)
    elif isinstance(wrapped, types.FunctionType):  # what @tw.function made
        walk.visit(wrapped, path, outside)
        if is_user_code(wrapped.__code__) or not outside:
            walk.add(ATTRIBUTES, function, path, outside)
        return
    elif outside:  # a function of this package: what it keeps is no state of kernels
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cell.cell_contents  # noqa: B018
        except ValueError:
            continue
        walk.add(CELL.of(name), cell, name, outside or id(cell) in walk.memory.outside_cells)
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    for name, value in zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True):
        walk.visit(value, name, outside)
    for name, value in (function.__kwdefaults__ or {}).items():
        walk.visit(value, name, outside)
    walk.add(ATTRIBUTES, function, path, outside)


def _method(walk: Walk, method: types.MethodType, path: str, outside: bool) -> None:
    walk.visit(method.__self__, path.rpartition(".")[0] or path, outside)
    walk.visit(method.__func__, path, outside)


def _reference(walk: Walk, value: weakref.ref[Any], path: str, outside: bool) -> None:
    walk.visit(value(), path, outside)


def _proxy(walk: Walk, value: weakref.ProxyType[Any], path: str, outside: bool) -> None:
    with contextlib.suppress(ReferenceError):  # its object is gone
        walk.visit(value.__dir__.__self__, path, outside)  # type: ignore[attr-defined]  # the object's own method


def _parts(walk: Walk, value: Any, path: str, outside: bool) -> None:
    """Walk what an object refers to that is written in C and keeps it: a view of a dict, the arguments of a call."""
    for part in gc.get_referents(value):
        walk.visit(part, path, outside)


def _weak_container(walk: Walk, value: Any, path: str, outside: bool) -> None:
    """Walk the objects of one of `weakref`; Python's own functions keep caches in such, which may grow."""
    for part in (*value.data, *(value.data.values() if isinstance(value.data, dict) else ())):
        walk.visit(part, path, outside)


def _cache(walk: Walk, cache: Any, path: str, outside: bool) -> None:
    """Walk a function and its results that `functools.lru_cache` keeps; that it keeps more of them is no change."""
    for part in gc.get_referents(cache):
        for each in part.values() if type(part) is dict else (part,):
            walk.visit(each, path, outside)


def _builtin_method(walk: Walk, method: types.BuiltinMethodType, path: str, outside: bool) -> None:
    if not isinstance(method.__self__, types.ModuleType):
        walk.visit(method.__self__, path, outside)


def _partial(walk: Walk, value: functools.partial[Any], path: str, outside: bool) -> None:
    for part in (value.func, value.args, value.keywords):
        walk.visit(part, path, outside)


def _class(walk: Walk, kind: type, path: str, outside: bool) -> None:
    if issubclass(kind, enum.Enum) and not _is_foreign(kind.__module__):
        for member in kind.__members__.values():
            walk.visit(member, f"{kind.__name__}.{member.name}", True)
    if is_user_type(kind) and not _is_pythons(kind.__module__):  # whose methods change what an instance holds
        walk.named(kind)


def _functions_of(member: Any) -> Iterator[Any]:
    if isinstance(member, (staticmethod, classmethod)):
        yield member.__func__
    elif isinstance(member, property):
        yield from (f for f in (member.fget, member.fset, member.fdel) if f is not None)
    elif isinstance(member, (functools.cached_property, functools.partialmethod)):
        yield member.func
    elif isinstance(member, functools.singledispatchmethod):
        yield member.dispatcher
    elif isinstance(member, types.FunctionType):
        yield member


_STEPS: tuple[tuple[tuple[type, ...], _Step | None], ...] = (
    ((tuple, frozenset), _items),
    ((list,), _holds(LIST)),
    ((dict,), _holds(DICT)),
    ((collections.deque,), _holds(DEQUE)),
    ((queue.SimpleQueue,), _holds(QUEUE)),
    ((DeviceItems, DeviceCalls), _holds(DEVICE_ITEMS)),
    ((set,), _holds(SET)),
    ((bytearray,), _holds(BYTES)),
    ((types.FunctionType,), _function),
    ((types.MethodType,), _method),
    ((types.BuiltinMethodType,), _builtin_method),
    ((functools.partial,), _partial),
    ((type,), _class),
    ((types.GeneratorType,), _holds(GENERATOR)),
    ((io.IOBase,), _holds(FILE)),
    ((random.Random,), _holds(RANDOM)),
    ((array.array, memoryview, *ctypes.Structure.__bases__), _holds(BUFFER)),  # the last: all of ctypes
    ((contextvars.ContextVar,), _holds(CONTEXT_VARIABLE)),
    ((threading.local,), _holds(ATTRIBUTES)),
    ((weakref.ref,), _reference),
    (weakref.ProxyTypes, _proxy),
    ((weakref.WeakKeyDictionary, weakref.WeakSet, weakref.WeakValueDictionary), _weak_container),
    ((functools._lru_cache_wrapper,), _cache),
    ((types.ModuleType, types.FrameType, types.TracebackType, types.CodeType), None),
    ((BaseException,), _parts),
)
_NUMPY_STEPS: dict[str, _Step] = {
    "ndarray": _holds(ARRAY),
    "flatiter": _holds(ARRAY_ITERATOR),
    "nditer": _holds(ARRAY_ITERATOR),
    "Generator": _holds(RANDOM),
    "RandomState": _holds(RANDOM),
}
