"""Functions of users that are compiled into a kernel: what they capture, and when two of them are the same.

    scale = np.ones((64, 1), np.float32)
    captured(lambda acc: acc * scale)       # -> ElementFunction, and the array `scale`

An array that a function captures becomes an argument of the kernel: while tracing, the function sees one element in
its place. A number becomes an argument too, unless the function needs its value while it is traced, and behaves like
the literal that it stands for. Anything else that is captured is part of the function. Two functions with the same code
that capture arrays and numbers at the same places, and other things that are equal, give one `ElementFunction`, so a
lambda made anew for each call compiles once, whatever numbers it captures. Attributes that it reads of objects belong
to the function: where one holds another value, it is another function.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple  # Any: whatever the user's variables hold

from tilewright.arch import Arch
from tilewright.dtypes import DType, int32, uint32
from tilewright.errors import ArgumentError, LanguageError
from tilewright.freezing import Itself, freeze, identity
from tilewright.frontend.captures import (
    UNASSIGNED,
    captured_variables,
    compile_comparison,
    global_names,
    package_of,
    places_read,
)
from tilewright.frontend.contents import Reached
from tilewright.frontend.rewrite import function as traced_function
from tilewright.ir.core import Value
from tilewright.ir.facts import unknown
from tilewright.kernels._places_kernel import Place, Places
from tilewright.kernels.dropout import Dropout
from tilewright.kernels.pairs import Gated, Pairs
from tilewright.runtime.arrays import adapter_for
from tilewright.runtime.numbers import scalar_type
from tilewright.runtime.recent import Recent
from tilewright.trace.host_numbers import (
    HostNumber,
    NeedsConstant,
    NumberKind,
    NumberUse,
    Uses,
    captured_number,
    number_kind,
)
from tilewright.trace.mathematics import where
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import Tracer, run

MAX_KNOWN = 1024  # functions that are kept at least, those used last; twice as many at most


class _Template:
    """Functions that differ in nothing but the numbers that they capture, of the same kinds at the same places.

    `constants` are the places of numbers that have to be compiled in. It grows when a function needs another's value.
    """

    def __init__(
        self,
        name: str,
        build: _Node,
        kinds: Sequence[NumberKind],
        constants: frozenset[int],
        seeds: Sequence[_Node],
        pairs: Pairs | None,
    ) -> None:
        self.name = name
        self.pairs: Pairs | None = pairs
        self.build = build
        self.seeds: tuple[_Node, ...] = tuple(seeds)
        self.kinds: tuple[NumberKind, ...] = tuple(kinds)
        self.constants = constants

    def function(self, numbers: Sequence[Any]) -> ElementFunction:
        """Return the function for these numbers: one for all numbers, but for those that are compiled in."""
        constants = {place: numbers[place] for place in sorted(self.constants)}
        key = (self, tuple([(place, freeze(value)) for place, value in constants.items()]))
        return _functions.get(key) or _functions.add(key, ElementFunction(self, constants))


class ElementFunction:
    """A function of an accumulator, or of those of a pair of columns, with one element for each captured array.

    Equal to itself only: `captured` gives the same object for functions that mean the same. It holds none of the
    captured arrays, and of the numbers only those that are compiled in.
    """

    def __init__(self, template: _Template, constants: dict[int, Any]) -> None:
        self.name: str = template.name
        self._template = template
        self._constants = constants
        self._uses: dict[tuple[DType, ...], tuple[NumberUse, ...]] = {}

    @property
    def is_placed(self) -> bool:
        """Whether it has to be told where its element is: it drops elements."""
        return bool(self._template.seeds)

    @property
    def pairs(self) -> Pairs | None:
        """Which columns are a pair, where it takes two accumulators."""
        return self._template.pairs

    def __call__(self, accumulator: Any, *elements: Any) -> Scalar | tuple[Scalar, ...]:
        return self.apply(accumulator, elements, Uses({}))

    def apply(
        self, accumulator: Any, elements: Sequence[Any], uses: Uses, place: Place | None = None, mode: str | None = None
    ) -> Scalar | tuple[Scalar, ...]:
        """Return the result for an accumulator, or several; `uses` has the numbers that are not compiled in.

        Where it takes two accumulators, `accumulator` is the tuple of both.
        A function that is placed is told its `place`, and which `mode` of D the result's columns are.
        """
        kinds, seeds = self._template.kinds, self._template.seeds
        numbers = [
            self._constants[place] if place in self._constants else HostNumber(captured_number(place), kind, uses)
            for place, kind in enumerate(kinds)
        ]
        given = _Given(elements, numbers, [])
        if seeds:
            assert place is not None, self
            rows = [uses.scalar(use) for use in _row_uses(len(kinds))]
            # Here, as what is computed in a branch of the function would not be there for the next element.
            given.bits.extend(place.bits(n, as_scalar(seed(given)), mode, rows) for n, seed in enumerate(seeds))
        result = self._template.build(given)(*((accumulator,) if self.pairs is None else accumulator))
        if issubclass(type(result), (tuple, list)):  # not isinstance, which what stands for a number takes note of
            return tuple([self._number(value) for value in result])
        return self._number(result)

    def _number(self, value: Any) -> Scalar:
        if not isinstance(value, Scalar) and scalar_type(value) is None:
            raise LanguageError(
                f"the epilogue {self.name} returns a {type(value).__name__}",
                help="return one number: the result; and with also= one more for each of those",
            )
        return as_scalar(value)

    def bind(self, uses: Sequence[NumberUse], numbers: Sequence[Scalar]) -> Callable[..., Scalar | tuple[Scalar, ...]]:
        """Return the function in a kernel that was given these numbers for those uses."""
        given = Uses(dict(zip(uses, numbers, strict=True)))
        return lambda accumulator, *elements, **where: self.apply(accumulator, elements, given, **where)

    def uses(self, accumulator: DType, elements: tuple[DType, ...], arch: Arch) -> tuple[NumberUse, ...]:
        """Return what of its numbers a kernel is given, for accumulators and elements of these types.

        The function is traced by itself to find out. Raises `NeedsConstant` where it needs another number's value:
        `captured` gives another function then.
        """
        key = (accumulator, *elements)
        found = self._uses.get(key)
        if found is None:
            found = self._uses[key] = self._find_uses(accumulator, elements, arch)
        return found

    def _find_uses(self, accumulator: DType, elements: tuple[DType, ...], arch: Arch) -> tuple[NumberUse, ...]:
        kinds = self._template.kinds
        rows = _row_uses(len(kinds)) if self.is_placed else ()
        if len(self._constants) == len(kinds):
            return rows
        uses = Uses()
        totals = tuple(Scalar(Value(accumulator, None)) for _ in range(1 if self.pairs is None else 2))
        first, rest = totals[0] if self.pairs is None else totals, [Scalar(Value(x, None)) for x in elements]
        row, column, batch = (Scalar(Value(int32, None, unknown(int32))) for _ in range(3))
        where = Places(row, column, batch).at() if rows else None
        try:
            run(Tracer(self.name, arch, None), self.apply, (first, rest, uses, where), {})
        except NeedsConstant:
            pass
        except Exception:
            # Whatever it is, the kernel's own trace meets it with the numbers themselves, and tells where.
            uses.constants |= set(range(len(kinds)))
        if uses.constants:  # also where the user's code caught what was raised
            self._template.constants |= uses.constants
            raise NeedsConstant(self.name)
        return tuple(dict.fromkeys((*rows, *uses.recorded)))

    def __repr__(self) -> str:
        return f"<epilogue {self.name}{'' if self.pairs is None else f' of pairs, {self.pairs}'}>"


@dataclass(frozen=True)
class Captured:
    """A function, the arrays and numbers that it captures, and what the arrays are called."""

    template: _Template
    function: ElementFunction
    arrays: tuple[object, ...]
    names: tuple[str, ...]
    numbers: tuple[Any, ...]

    def again(self) -> Captured:
        """Return the same with the numbers compiled in that have to be by now."""
        return Captured(self.template, self.template.function(self.numbers), self.arrays, self.names, self.numbers)

    def constant(self) -> Captured:
        """Return the same with all numbers compiled in, and remember that functions like it need that."""
        self.template.constants = frozenset(range(len(self.numbers)))
        return self.again()


class _Given(NamedTuple):
    """What stands for a function's arrays and numbers while it is traced."""

    elements: Sequence[Any]
    numbers: Sequence[Any]
    bits: list[Any]  # of each of its seeds, the element's


_OF_DROPOUT = ("seed", "threshold", "scale")


def _dropped(bits: Scalar, threshold: Any, scale: Any, x: Any) -> Any:
    """Return what becomes of an element with these random bits."""
    return where(bits >= threshold, as_scalar(x) * scale, 0)


def _row_uses(count: int) -> tuple[NumberUse, ...]:
    """Return the parameters by which a kernel knows rows of the result, behind `count` captured numbers."""
    return tuple([NumberUse(captured_number(count + n), uint32) for n in range(3)])


_templates: Recent[Hashable, _Template] = Recent(MAX_KNOWN)
_functions: Recent[Hashable, ElementFunction] = Recent(MAX_KNOWN)


class _Attributes:
    """What functions with one key read of the objects that they capture: their attributes."""

    def __init__(self) -> None:
        self._seen: tuple[Callable[[], bool], frozenset[Hashable]] = lambda: False, frozenset()

    def values(self, target: Any, reader: _Reader) -> frozenset[Hashable]:
        """Return a key of what they hold now."""
        is_as_seen, values = self._seen
        try:
            if is_as_seen():
                return values
        except (KeyError, ValueError, AttributeError, TypeError):  # one was deleted
            pass
        plain = _plain_function(target)
        function: Any = plain if isinstance(plain, types.FunctionType) else _plain_function
        read = places_read(function, (target,), _Reached(reader.looked_into))
        # Not the function's own variables, which have keys already: what is remembered does not keep arrays.
        places = [x for x in read if x.kind not in ("item", "cell") and not isinstance(x.holder, types.FunctionType)]
        values = frozenset([(Itself(x.holder), x.name, identity(x.value)) for x in places])
        self._seen = compile_comparison(places), values
        return values


class _Reached(Reached):
    """The objects that a function reaches; those that were looked into are told apart by what they hold."""

    def __init__(self, known: dict[int, Any]) -> None:
        super().__init__()
        self._known = known

    def _contents(self, value: Any, path: str) -> None:
        if id(value) in self._known:
            for item in value.values() if isinstance(value, dict) else value:
                self.add(item, path)
        elif adapter_for(value) is None:
            super()._contents(value, path)


_attributes: Recent[Hashable, _Attributes] = Recent(MAX_KNOWN)


def captured(target: object) -> Captured:
    """Return what a function is, and which arrays and numbers it captures.

    Captured are variables of its closure, globals, defaults of parameters and what functools.partial binds; also those
    of functions of its own package that it calls. Raises `ArgumentError` for what cannot be called with one argument
    (`tw.gated`: two), and for captured values that are neither arrays nor hashable.
    """
    pairs: Pairs | None = None
    if type(target) is Gated:
        pairs = target.pairs
        target = target.function
    if not callable(target):
        raise ArgumentError(
            f"epilogue is a function of the accumulator, got {type(target).__name__}",
            help="for example epilogue=lambda acc: tw.maximum(acc, 0)",
        )
    reader = _Reader(package_of(_plain_function(target)))
    key = reader.key("epilogue", target)
    if pairs is not None:
        key = ("gated", pairs, key)
    attributes = (_attributes.get(key) or _attributes.add(key, _Attributes())).values(target, reader)
    if attributes:
        key = (key, attributes)
    numbers = tuple(reader.numbers)
    template = _templates.get(key)
    if template is None:
        _check_parameters(target, 1 if pairs is None else 2)
        kinds = reader.kinds
        constants = frozenset() if reader.is_transparent else frozenset(range(len(kinds)))
        skeleton = _Skeleton(reader)
        root = skeleton.node(target, is_root=True)
        template = _templates.add(key, _Template(_name(target), root, kinds, constants, skeleton.seeds, pairs))
    return Captured(template, template.function(numbers), tuple(reader.arrays), tuple(reader.names), numbers)


def _name(target: object) -> str:
    return getattr(_plain_function(target), "__qualname__", None) or type(target).__name__


def _check_parameters(target: Callable[..., Any], count: int) -> None:
    try:
        inspect.signature(target).bind(*[None] * count)
    except TypeError as error:
        alone = "the accumulator alone" if count == 1 else "the two accumulators of a pair alone"
        raise ArgumentError(
            f"epilogue is called with {alone}, and {_name(target)} does not take that: {error}",
            help="give its other parameters values, for example functools.partial(f, scale=scale)",
        ) from None
    except ValueError:  # a builtin that does not say
        pass


# What a function may call with a stand-in for a number: it asks the stand-in for all that depends on the value.
_TRANSPARENT = frozenset(
    {"builtins", "functools", "itertools", "math", "ml_dtypes", "numpy", "operator", "tilewright"}
    | {"_functools", "_operator"}
)
# Builtins by which a function could see that a number is a stand-in.
_REVEALING = frozenset({"type", "id", "eval", "exec", "globals", "locals", "vars", "__import__"})


class _Reader:
    """Finds what a function captures: arrays, numbers, and a key of everything else.

    `is_transparent` says that all of the function's code is known, and that none of it could tell a number from what
    stands for it without asking that.
    """

    def __init__(self, package: str | None) -> None:
        self.package = package
        self.arrays: list[object] = []
        self.names: list[str] = []
        self.slots: dict[int, int] = {}  # by id of an array
        self.numbers: list[Any] = []
        self.kinds: list[NumberKind] = []
        self.is_transparent = True
        self.looked_into: dict[int, Any] = {}  # containers, by identity
        self._open: set[int] = set()

    def key(self, name: str, value: Any) -> Hashable:
        """Return what tells a captured value apart."""
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if value is None:
            return value
        if isinstance(value, (types.ModuleType, type)):
            self._look_into(getattr(value, "__module__", None) or value.__name__)
            return value
        kind = number_kind(value)
        if kind is not None:
            self.numbers.append(value)
            self.kinds.append(kind)
            return kind
        if type(value) is Dropout:
            return ("dropout", *(self.key(n, getattr(value, n)) for n in _OF_DROPOUT))
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
            self.looked_into[id(value)] = value
            return (type(value), self._all(name, value))
        if type(value) is dict:
            self.looked_into[id(value)] = value
            return ("dict", self._named(value))
        self._look_into(type(value).__module__)
        try:
            return freeze(value)
        except TypeError:
            raise ArgumentError(
                f"the epilogue captures {name!r}, a {type(value).__name__}, which is neither an array nor hashable",
                help="capture arrays, numbers, and tuples, lists or dicts of them",
            ) from None

    def _look_into(self, module: str) -> None:
        if module.partition(".")[0] not in _TRANSPARENT:
            self.is_transparent = False

    def _all(self, name: str, values: Sequence[Any]) -> Hashable:
        return tuple([self.key(f"{name}[{n}]", v) for n, v in enumerate(values)])

    def _named(self, values: dict[Any, Any]) -> Hashable:
        return tuple([(freeze(k), self.key(str(k), v)) for k, v in values.items()])

    def _function(self, function: types.FunctionType) -> Hashable:
        plain = _plain_function(function)
        if package_of(plain) != self.package or self.package == "tilewright" or id(plain) in self._open:
            if id(plain) not in self._open:
                self._look_into(plain.__module__ or "")
            return function
        self._open.add(id(plain))
        code = plain.__code__
        if _tells_objects_apart(code):
            self.is_transparent = False
        key = (
            "traced" if plain is not function else "function",
            code,
            tuple([(v.name, self.key(v.name, v.value)) for v in captured_variables(plain)]),
            tuple([self.key(n, v) for n, v in _defaults(plain)]),
        )
        self._open.discard(id(plain))
        return key


class _Skeleton:
    """Takes a function apart so that it can be built again with others in the place of arrays and numbers."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader
        self._open: set[int] = set()
        self._numbers = 0  # met so far, in the order in which the reader met them
        self._attributes: set[str] = set()  # that the functions met so far read, of whatever object
        self.seeds: list[_Node] = []

    def node(self, value: Any, *, is_root: bool = False) -> _Node:
        """Return what makes the value anew, given what stands for arrays and numbers."""
        if id(value) in self.reader.slots:
            slot = self.reader.slots[id(value)]
            return lambda given: given.elements[slot]
        if number_kind(value) is not None:
            place = self._numbers
            self._numbers += 1
            return lambda given: given.numbers[place]
        if type(value) is Dropout:
            seed, *others = (self.node(getattr(value, name)) for name in _OF_DROPOUT)
            number = len(self.seeds)
            self.seeds.append(seed)
            return lambda given: functools.partial(_dropped, given.bits[number], *[node(given) for node in others])
        if isinstance(value, types.FunctionType):
            return self._function(value, is_root)
        if isinstance(value, functools.partial):
            inner, args, keywords = (
                self.node(value.func, is_root=is_root),
                self._all(value.args),
                self._named(value.keywords),
            )
            return lambda given: functools.partial(inner(given), *args(given), **keywords(given))
        if isinstance(value, types.MethodType):
            method, owner = self.node(value.__func__, is_root=is_root), self.node(value.__self__)
            return lambda given: types.MethodType(method(given), owner(given))
        if _is_sequence(value):
            make, items = getattr(value, "_make", type(value)), self._all(value)
            return lambda given: make(items(given))
        if type(value) is dict:
            return self._named(value)
        self._refuse_arrays_in(value)
        return lambda given: value

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

    def _all(self, values: Sequence[Any]) -> Callable[[_Given], list[Any]]:
        nodes = [self.node(v) for v in values]
        return lambda given: [node(given) for node in nodes]

    def _named(self, values: dict[Any, Any]) -> Callable[[_Given], dict[Any, Any]]:
        nodes = {k: self.node(v) for k, v in values.items()}
        return lambda given: {k: node(given) for k, node in nodes.items()}

    def _function(self, function: types.FunctionType, is_root: bool) -> _Node:
        plain = _plain_function(function)
        if package_of(plain) != self.reader.package or self.reader.package == "tilewright" or id(plain) in self._open:
            return lambda given: function
        self._open.add(id(plain))
        code, variables = plain.__code__, plain.__globals__
        captures = list(captured_variables(plain))
        self._attributes.update(code.co_names)
        cells = self._all([v.value for v in captures if v.holder is not variables])
        globals_ = self._named({v.name: v.value for v in captures if v.holder is variables})
        defaults = self._all([v for _, v in _defaults(plain)])
        self._open.discard(id(plain))
        named = {n: variables[n] for n in ("__builtins__", "__name__") if n in variables}
        positional = len(plain.__defaults__ or ())
        keywords = list(plain.__kwdefaults__ or ())
        qualname, module = plain.__qualname__, plain.__module__
        is_traced = plain is not function or (is_root and _has_control_flow(code))

        def build(given: _Given) -> Any:
            values = defaults(given)
            closure = tuple(types.CellType() if v is UNASSIGNED else types.CellType(v) for v in cells(given))
            made = types.FunctionType(
                code, {**named, **globals_(given)}, code.co_name, tuple(values[:positional]), closure
            )
            made.__kwdefaults__ = dict(zip(keywords, values[positional:], strict=True)) or None
            made.__qualname__, made.__module__ = qualname, module
            return traced_function(made) if is_traced else made

        return build


_Node = Callable[[_Given], Any]


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


def _defaults(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the parameters that have defaults, and these."""
    values = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    yield from zip(names[len(names) - len(values) :], values, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


@cache
def _tells_objects_apart(code: types.CodeType) -> bool:
    """Say whether code may see which object a name stands for: by `type(x)`, or `x is y` with something but None."""
    if _REVEALING & set(global_names(code)):
        return True
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IS_OP" and not (before and before.opname == "LOAD_CONST" and before.argval is None):
            return True
        before = instruction
    return any(_tells_objects_apart(c) for c in code.co_consts if isinstance(c, types.CodeType))


def _has_control_flow(code: types.CodeType) -> bool:
    """Say whether a definition has loops or branches; a lambda's cannot be rewritten, and it must do without."""
    jumps = {*dis.hasjrel, *dis.hasjabs}
    return code.co_name != "<lambda>" and any(i.opcode in jumps for i in dis.get_instructions(code))
