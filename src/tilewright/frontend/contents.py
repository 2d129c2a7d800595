"""What can change inside of the objects that a kernel captures: attributes, and the items of containers.

A list, a dict and a set are watched whole. Of a module, a class and any other object, the attributes are watched whose
names the kernel's code, or that of a helper or method, reads: these are few, and they are the same wherever the object
is handed on. What they hold is looked into too. Packages that are installed count as constant.
"""

from __future__ import annotations

import array
import collections
import dis
import enum
import functools
import operator
import re
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias  # Any: whatever the user's variables hold

from tilewright.errors import LanguageError

MAX_ITEMS = 4096  # of one container or array, and of places in all: each launch compares them

_SEQUENCES = (list, collections.deque, bytearray)
_ATOMS = (int, float, complex, str, bytes, type(None), type(Ellipsis), enum.Enum, types.CodeType, range, slice)

Key: TypeAlias = "tuple[int, str | None]"  # the identity of a holder, and a name in it
Kind = Literal["item", "cell", "attribute", "absent", "unset", "sequence", "dict", "set", "array"]


@dataclass(frozen=True)
class Watched:
    """A place that is compared at each launch, and what it held.

    An `item` of globals and an `attribute` have a name, and so has an attribute that is `absent`, of value False, and
    one that is `unset` in an object's dictionary, so that the method of its class counts.
    The `value` of a container is a tuple of what it holds.
    """

    kind: Kind
    holder: Any
    name: str | None
    value: Any

    @property
    def key(self) -> Key:
        """What tells the place from others."""
        return id(self.holder), self.name

    def now(self) -> Any:
        """Return what the place holds now; raises one of Python's errors where there is nothing."""
        match self.kind:
            case "item":
                return self.holder[self.name]
            case "cell":
                return self.holder.cell_contents
            case "attribute":
                return getattr(self.holder, str(self.name))
            case "absent":
                return hasattr(self.holder, str(self.name))
            case "unset":
                return self.name in self.holder
        return _held(self.kind, self.holder)

    def renewed(self) -> Watched:
        """Return the place with what it holds now."""
        return replace(self, value=self.now())

    def term(self, n: int) -> tuple[str, dict[str, Any]]:
        """Return the Python text that says whether the place holds what it held, and the names in it."""
        h, v = f"h{n}", f"v{n}"
        names = {h: self.holder, v: self.value}
        match self.kind:
            case "item":
                return f"{h}[{self.name!r}] is {v}", names
            case "cell":
                return f"{h}.cell_contents is {v}", names
            case "attribute":
                if str(self.name).isidentifier():
                    return f"{h}.{self.name} is {v}", names
                return f"getattr({h}, {self.name!r}) is {v}", names
            case "absent":
                return f"not hasattr({h}, {self.name!r})", names
            case "unset":
                return f"{self.name!r} not in {h}", names
            case "set":
                return f"{h} == {v}", {h: self.holder, v: frozenset(self.value)}
            case "array":
                return f"held('array', {h}) == {v}", {**names, "held": _held}
            case "dict":
                size = len(self.value) // 2
                keys, values = self.value[:size], self.value[size:]
                text = f"len({h}) == {size} and all(map(is_, {h}, k{n})) and all(map(is_, {h}.values(), {v}))"
                return text, {h: self.holder, f"k{n}": keys, v: values, "is_": operator.is_}
        return f"len({h}) == {len(self.value)} and all(map(is_, {h}, {v}))", {**names, "is_": operator.is_}


def _held(kind: str, container: Any) -> tuple[Any, ...]:
    """Return what a container holds: of a dict the keys and then the values, of an array its bytes."""
    match kind:
        case "dict":
            return (*container, *container.values())
        case "set":
            return tuple(sorted(container, key=lambda item: (type(item).__name__, repr(item))))
        case "array":
            of = getattr(container, "dtype", None) or getattr(container, "typecode", None) or container.format
            return getattr(container, "shape", ()), str(of), container.tobytes()
    return tuple(container)


class Reached:
    """The objects that a kernel can reach from its variables, and the attribute names that its code reads.

    `functions` are those that were found in objects: methods, and functions in the user's modules. Their code has to
    be read too.
    """

    def __init__(self) -> None:
        self.functions: list[types.FunctionType] = []
        self._names: set[str] = set()
        self._tested: set[str] = set()  # of these, the ones that hasattr or getattr may ask for
        self._objects: dict[int, tuple[Any, str]] = {}  # by identity, with the text that leads there
        self._places: dict[Key, Watched] = {}

    def read(self, names: Names) -> None:
        """Note that code reads attributes of these names, of whatever object."""
        self._tested |= names.texts
        for module in names.modules:
            if module in sys.modules:
                self.add(sys.modules[module], module)
        new = (names.attributes | names.texts) - self._names
        self._names |= new
        if new:
            for value, path in list(self._objects.values()):
                self._attributes(value, path, new)

    def add(self, value: Any, path: str) -> None:
        """Note that code can reach an object."""
        if id(value) in self._objects or isinstance(value, _ATOMS):
            return
        if isinstance(value, tuple):
            for n, item in enumerate(value):
                self.add(item, f"{path}[{n}]")
        if isinstance(value, types.MethodType):
            self.add(value.__self__, path)
            self._function(value.__func__)
            return
        if isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self.add(part, path)
            return
        if isinstance(value, weakref.ref):
            self.add(value(), path)
            return
        if isinstance(value, types.FunctionType):
            self._function(value)
            return
        if is_opaque(value):
            return
        self._objects[id(value)] = value, path
        self._contents(value, path)
        self._attributes(value, path, self._names)

    def _function(self, value: Any) -> None:
        inner = unwrapped(value)
        if isinstance(inner, types.FunctionType) and is_of_user(inner):
            self.functions.append(inner)

    def _contents(self, value: Any, path: str) -> None:
        """Watch a container's items, and look into them."""
        kind: Kind
        if isinstance(value, _SEQUENCES):
            kind, size = "sequence", len(value)
        elif isinstance(value, (dict, types.MappingProxyType)):
            kind, size = "dict", len(value)
        elif isinstance(value, set):
            kind, size = "set", len(value)
        elif _is_array(value):
            kind, size = "array", value.size
        elif isinstance(value, (array.array, memoryview)):
            kind, size = "array", len(memoryview(value).cast("B")) // value.itemsize
        elif isinstance(value, (collections.UserDict, collections.UserList)):
            self.add(value.data, path)
            return
        elif isinstance(value, collections.ChainMap):
            self.add(value.maps, path)
            return
        else:
            return
        if size > MAX_ITEMS:
            raise LanguageError(
                f"{path}, which the kernel captures, has {size} items, and a launch compares at most {MAX_ITEMS} to "
                "see whether they changed",
                help="pass it as an argument, or capture a tuple, which does not change",
            )
        held = _held(kind, value)
        self._watch(Watched(kind, value, None, held))
        if kind != "array":
            for item in held:
                self.add(item, f"an item of {path}")

    def _attributes(self, value: Any, path: str, names: Iterable[str]) -> None:
        """Watch those attributes of an object that code reads, and look into them."""
        if not isinstance(value, (type, types.ModuleType)):
            cls: Any = type(value)
            self.functions += _dunder_methods(cls)
        for name in names:
            held = _attribute(value, name)
            if held is _NOTHING:
                if name in self._tested and not _has(value, name):
                    self._watch(Watched("absent", value, name, False))
                continue
            if isinstance(held, property):
                self._function(held.fget)
                continue
            if isinstance(held, (staticmethod, classmethod)):
                held = held.__func__
            elif isinstance(held, types.FunctionType) and name not in _dictionary(value):
                self._watch(Watched("attribute", value if isinstance(value, type) else type(value), name, held))
                if not isinstance(value, type):
                    self._watch(Watched("unset", _dictionary(value), name, False))
            elif not isinstance(held, types.ModuleType) and (name in _dictionary(value) or not _is_descriptor(held)):
                self._watch(Watched("attribute", value, name, held))
            self.add(held, f"{path}.{name}")

    def _watch(self, place: Watched) -> None:
        if len(self._places) < MAX_ITEMS:
            self._places[place.key] = place

    def watched(self) -> Iterator[Watched]:
        """Yield the places to compare."""
        yield from self._places.values()


def _attribute(value: Any, name: str) -> Any:
    """Return what an object, a class or a module keeps as an attribute, `_NOTHING` where nothing of the user's.

    No code of the user runs: what a property computes follows from what it reads.
    """
    own = _dictionary(value).get(name, _NOTHING)
    if isinstance(value, types.ModuleType):
        return own
    for cls in value.__mro__ if isinstance(value, type) else type(value).__mro__:
        held = vars(cls).get(name, _NOTHING)
        if held is _NOTHING:
            continue
        if isinstance(held, types.MemberDescriptorType) and not isinstance(value, type):  # of __slots__
            try:
                return held.__get__(value)
            except AttributeError:
                return _NOTHING
        if own is _NOTHING or hasattr(type(held), "__set__"):
            return held if is_of_user(cls) else _NOTHING
        break
    return own


_NOTHING = object()


def _is_descriptor(held: Any) -> bool:
    return hasattr(type(held), "__get__") and not isinstance(held, types.FunctionType)


def _has(value: Any, name: str) -> bool:
    """Say whether an object has an attribute, without a call of the user's `__getattr__`."""
    classes = value.__mro__ if isinstance(value, type) else type(value).__mro__
    return any(name in vars(cls) or "__getattr__" in vars(cls) for cls in classes)


def _dictionary(value: Any) -> Mapping[str, Any]:
    try:
        own = object.__getattribute__(value, "__dict__")  # the user's `__getattr__` is not asked
    except AttributeError:
        return {}
    return own if isinstance(own, (dict, types.MappingProxyType)) else {}


def unwrapped(value: Any) -> Any:
    """Return the function that a decorator such as `@tw.function` or functools.cache made a value of, or the value."""
    return _dictionary(value).get("__wrapped__", value)


def is_opaque(value: Any) -> bool:
    """Say whether an object is only compared as a whole: those of this package, and what is installed."""
    if isinstance(value, (types.ModuleType, type)):
        return not is_of_user(value)
    kind = type(value).__module__.partition(".")[0]
    return kind == "tilewright" or (kind in _FRAMEWORKS and not _is_array(value))


_FRAMEWORKS = ("numpy", "torch", "cupy", "jax", "jaxlib", "ml_dtypes", "logging", "threading", "_thread")


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_of_user(value: Any) -> bool:
    """Say whether a function, class or module is the user's own, and not of a package that is installed."""
    module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    if not isinstance(module, str):
        return False
    file = getattr(value if isinstance(value, types.ModuleType) else sys.modules.get(module), "__file__", None)
    return _is_own(module, file if isinstance(file, str) else None)


@cache
def _is_own(module: str, file: str | None) -> bool:
    root = module.partition(".")[0]
    if root in ("tilewright", "builtins") or root in sys.builtin_module_names:
        return False
    if file is None:
        return root not in sys.stdlib_module_names
    paths = sysconfig.get_paths()
    return not file.startswith(tuple({paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}))


class Names(NamedTuple):
    """The names that code reads, that of functions and classes in it included: sorted, of variables and attributes.

    `texts` are those by which it may read an attribute: `getattr(config, "tile", 4)`. `modules` are those that it
    imports itself.
    """

    variables: tuple[str, ...]
    attributes: frozenset[str]
    texts: frozenset[str]
    modules: frozenset[str]


@cache
def names_read(code: types.CodeType) -> Names:
    """Return the names of globals, builtins and attributes that code reads."""
    variables: set[str] = set()
    attributes: set[str] = set()
    texts: set[str] = set()
    modules: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _READS_VARIABLE:
            variables.add(instruction.argval)
        elif instruction.opname in _READS_ATTRIBUTE:
            attributes.add(str(instruction.argval))
        elif instruction.opname == "IMPORT_NAME":
            modules.add(instruction.argval)
    by_text = _TAKE_NAMES.intersection(code.co_names)
    by_name = _TAKE_VARIABLES.intersection(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = names_read(constant)
            variables.update(inner.variables)
            attributes |= inner.attributes
            texts |= inner.texts
            modules |= inner.modules
        elif (by_text or by_name) and isinstance(constant, str):
            found = {name for name in re.split(r"\W+", constant) if name.isidentifier()}
            texts |= found
            variables |= found if by_name else set()
    return Names(tuple(sorted(variables)), frozenset(attributes), frozenset(texts), frozenset(modules))


# The body of a class reads a global as any other name.
_READS_VARIABLE = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_READS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"})
_TAKE_NAMES = frozenset({"getattr", "hasattr", "vars", "attrgetter", "__dict__"})
_TAKE_VARIABLES = frozenset({"globals", "eval"})


@cache
def _dunder_methods(cls: type) -> tuple[types.FunctionType, ...]:
    """Return the methods of a user's class that Python calls by itself, such as `__getitem__`."""
    return tuple(
        method
        for each in cls.__mro__
        if is_of_user(each)
        for name, method in vars(each).items()
        if name.startswith("__") and isinstance(method, types.FunctionType) and name not in _NOT_IN_KERNELS
    )


_NOT_IN_KERNELS = ("__init__", "__post_init__", "__new__", "__repr__", "__str__", "__del__", "__reduce__", "__hash__",
                   "__eq__", "__init_subclass__", "__setattr__", "__delattr__")  # fmt: skip
