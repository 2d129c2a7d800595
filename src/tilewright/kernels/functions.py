"""Functions of users that are compiled into a kernel: what they capture, and when two of them are the same.

    scale = np.ones((64, 1), np.float32)
    captured(lambda acc: acc * scale)       # -> ElementFunction, and the array `scale`

An array that a function captures becomes an argument of the kernel: while tracing, the function sees one element in
its place. Anything else that it captures is part of it. Two functions with the same code that capture equal constants
and arrays at the same places give one `ElementFunction`, so a lambda made anew for each call compiles once.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any  # Any: whatever the user's variables hold

from tilewright.errors import ArgumentError, LanguageError
from tilewright.freezing import freeze
from tilewright.lang.scalar import Scalar, as_scalar
from tilewright.lang.trace import function as traced_function
from tilewright.runtime.arrays import adapter_for
from tilewright.runtime.plan import scalar_type

_MAX_KNOWN = 4096  # functions remembered, before they are forgotten all at once


class ElementFunction:
    """A function of an accumulator, with one element for each array that it captures.

    Equal to itself only: `captured` gives the same object for functions that mean the same. It holds none of the
    captured arrays.
    """

    def __init__(self, name: str, build: Callable[[Sequence[Any]], Callable[..., Any]]) -> None:
        self.name = name
        self._build = build

    def __call__(self, accumulator: Any, *elements: Any) -> Scalar:
        result = self._build(elements)(accumulator)
        if not isinstance(result, Scalar) and scalar_type(result) is None:
            raise LanguageError(
                f"the epilogue {self.name} returns a {type(result).__name__}", help="return one number: the result"
            )
        return as_scalar(result)

    def __repr__(self) -> str:
        return f"<epilogue {self.name}>"


@dataclass(frozen=True)
class Captured:
    """A function, the arrays that it captures, and what they are called."""

    function: ElementFunction
    arrays: tuple[object, ...]
    names: tuple[str, ...]


_known: dict[Hashable, ElementFunction] = {}


def captured(target: object) -> Captured:
    """Return what a function is and which arrays it captures.

    Captured are variables of its closure, globals, defaults of parameters and what functools.partial binds; also those
    of functions of its own package that it calls. Raises `ArgumentError` for what cannot be called with one argument,
    and for captured values that are neither arrays nor hashable.
    """
    if not callable(target):
        raise ArgumentError(
            f"epilogue is a function of the accumulator, got {type(target).__name__}",
            help="for example epilogue=lambda acc: tw.maximum(acc, 0)",
        )
    reader = _Reader(_package(_plain_function(target)))
    key = reader.key("epilogue", target)
    found = _known.get(key)
    if found is None:
        _check_parameters(target)
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        node = _Skeleton(reader).node(target, is_root=True)
        found = _known[key] = ElementFunction(_name(target), node)
    return Captured(found, tuple(reader.arrays), tuple(reader.names))


def _name(target: object) -> str:
    return getattr(_plain_function(target), "__qualname__", None) or type(target).__name__


def _check_parameters(target: Callable[..., Any]) -> None:
    try:
        inspect.signature(target).bind(None)
    except TypeError as error:
        raise ArgumentError(
            f"epilogue is called with the accumulator alone, and {_name(target)} does not take that: {error}",
            help="give its other parameters values, for example functools.partial(f, scale=scale)",
        ) from None
    except ValueError:  # a builtin that does not say
        pass


class _Reader:
    """Finds what a function captures: arrays, and a key of everything else."""

    def __init__(self, package: str | None) -> None:
        self.package = package
        self.arrays: list[object] = []
        self.names: list[str] = []
        self.slots: dict[int, int] = {}  # by id of an array
        self._open: set[int] = set()

    def key(self, name: str, value: Any) -> Hashable:
        """Return what tells a captured value apart."""
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if value is None or isinstance(value, (types.ModuleType, type)):
            return value
        if adapter_for(value) is not None:
            slot = self.slots.get(id(value))
            if slot is None:
                slot = self.slots[id(value)] = len(self.arrays)
                self.arrays.append(value)
                self.names.append(name)
            return ("array", slot)
        if isinstance(value, functools.partial):
            return ("partial", self.key(name, value.func), self._all(name, value.args), self._named(value.keywords))
        if isinstance(value, types.MethodType):
            return ("method", self.key(name, value.__func__), self.key(name, value.__self__))
        if _is_sequence(value):
            return (type(value), self._all(name, value))
        if type(value) is dict:
            return ("dict", self._named(value))
        try:
            return freeze(value)
        except TypeError:
            raise ArgumentError(
                f"the epilogue captures {name!r}, a {type(value).__name__}, which is neither an array nor hashable",
                help="capture arrays, numbers, and tuples, lists or dicts of them",
            ) from None

    def _all(self, name: str, values: Sequence[Any]) -> Hashable:
        return tuple([self.key(f"{name}[{n}]", v) for n, v in enumerate(values)])

    def _named(self, values: dict[Any, Any]) -> Hashable:
        return tuple([(freeze(k), self.key(str(k), v)) for k, v in values.items()])

    def _function(self, function: types.FunctionType) -> Hashable:
        plain = _plain_function(function)
        if _package(plain) != self.package or self.package == "tilewright" or id(plain) in self._open:
            return function
        self._open.add(id(plain))
        code, variables = plain.__code__, plain.__globals__
        cells = plain.__closure__ or ()
        key = (
            "traced" if plain is not function else "function",
            code,
            tuple([self.key(n, _content(c)) for n, c in zip(code.co_freevars, cells, strict=True)]),
            tuple([self.key(n, variables[n]) for n in _global_names(code) if n in variables]),
            tuple([self.key(n, v) for n, v in _defaults(plain)]),
        )
        self._open.discard(id(plain))
        return key


class _Skeleton:
    """Takes a function apart so that it can be built again with elements in the place of the arrays it captures."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader
        self._open: set[int] = set()
        self._attributes: set[str] = set()  # that the functions met so far read, of whatever object

    def node(self, value: Any, *, is_root: bool = False) -> _Node:
        """Return what makes the value anew, given the elements."""
        if id(value) in self.reader.slots:
            slot = self.reader.slots[id(value)]
            return lambda elements: elements[slot]
        if isinstance(value, types.FunctionType):
            return self._function(value, is_root)
        if isinstance(value, functools.partial):
            inner, args, keywords = (
                self.node(value.func, is_root=is_root),
                self._all(value.args),
                self._named(value.keywords),
            )
            return lambda elements: functools.partial(inner(elements), *args(elements), **keywords(elements))
        if isinstance(value, types.MethodType):
            method, owner = self.node(value.__func__, is_root=is_root), self.node(value.__self__)
            return lambda elements: types.MethodType(method(elements), owner(elements))
        if _is_sequence(value):
            make, items = getattr(value, "_make", type(value)), self._all(value)
            return lambda elements: make(items(elements))
        if type(value) is dict:
            return self._named(value)
        self._refuse_arrays_in(value)
        return lambda elements: value

    def _refuse_arrays_in(self, value: object) -> None:
        """Raise for an object with an array in an attribute that the function reads: it would not be an argument."""
        if isinstance(value, (types.ModuleType, type)) or not hasattr(value, "__dict__"):
            return
        for name in sorted(self._attributes):
            if adapter_for(getattr(value, name, None)) is not None:
                raise ArgumentError(
                    f"the epilogue reads the array .{name} of a {type(value).__name__}, "
                    "and attributes are not looked into",
                    help=f"put it into a variable outside of the epilogue: {name} = ....{name}",
                )

    def _all(self, values: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
        nodes = [self.node(v) for v in values]
        return lambda elements: [node(elements) for node in nodes]

    def _named(self, values: dict[Any, Any]) -> Callable[[Sequence[Any]], dict[Any, Any]]:
        nodes = {k: self.node(v) for k, v in values.items()}
        return lambda elements: {k: node(elements) for k, node in nodes.items()}

    def _function(self, function: types.FunctionType, is_root: bool) -> _Node:
        plain = _plain_function(function)
        if _package(plain) != self.reader.package or self.reader.package == "tilewright" or id(plain) in self._open:
            return lambda elements: function
        self._open.add(id(plain))
        code, variables = plain.__code__, plain.__globals__
        names = [n for n in _global_names(code) if n in variables]
        self._attributes.update(code.co_names)
        cells = self._all([_content(c) for c in plain.__closure__ or ()])
        globals_, defaults = self._named({n: variables[n] for n in names}), self._all([v for _, v in _defaults(plain)])
        self._open.discard(id(plain))
        named = {n: variables[n] for n in ("__builtins__", "__name__") if n in variables}
        positional = len(plain.__defaults__ or ())
        keywords = list(plain.__kwdefaults__ or ())
        qualname, module = plain.__qualname__, plain.__module__
        is_traced = plain is not function or (is_root and _has_control_flow(code))

        def build(elements: Sequence[Any]) -> Any:
            values = defaults(elements)
            closure = tuple(types.CellType(v) for v in cells(elements))
            made = types.FunctionType(
                code, {**named, **globals_(elements)}, code.co_name, tuple(values[:positional]), closure
            )
            made.__kwdefaults__ = dict(zip(keywords, values[positional:], strict=True)) or None
            made.__qualname__, made.__module__ = qualname, module
            return traced_function(made) if is_traced else made

        return build


_Node = Callable[[Sequence[Any]], Any]


def _plain_function(target: Any) -> Any:
    """Return the function under functools.partial, a method or @tw.function."""
    while isinstance(target, (functools.partial, types.MethodType)):
        target = target.func if isinstance(target, functools.partial) else target.__func__
    return target.__wrapped__ if getattr(target, "__code__", None) is _TRACED else target


# The code of all that @tw.function makes.
_TRACED = traced_function(lambda: None).__code__


def _is_sequence(value: object) -> bool:
    """Say whether a value is a list, a tuple or a named tuple, whose items may be arrays."""
    return type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_make"))


def _package(function: Any) -> str | None:
    return (getattr(function, "__module__", None) or "").partition(".")[0]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _defaults(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the parameters that have defaults, and these."""
    values = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    yield from zip(names[len(names) - len(values) :], values, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


@cache
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the global variables that code reads, that of functions inside it included."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= set(_global_names(constant))
    return tuple(sorted(found))


def _has_control_flow(code: types.CodeType) -> bool:
    """Say whether a definition has loops or branches; a lambda's cannot be rewritten, and it must do without."""
    jumps = {*dis.hasjrel, *dis.hasjabs}
    return code.co_name != "<lambda>" and any(i.opcode in jumps for i in dis.get_instructions(code))
