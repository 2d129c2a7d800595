"""Read a call's arguments within microseconds: the specialisation key and the values to pass.

A `Signature` belongs to a kernel and holds one `ArgumentPlan` for each combination of argument types that it was called
with. A plan's `read` is a Python function that is written and compiled for these types. For two PyTorch tensors, an
int and a layout it is::

    def read(a0, a1, a2, a3):
        if type(a0) is not A0 or type(a1) is not A1 or type(a2) is not A2 or type(a3) is not A3:
            return None
        try:
            p0 = a0.data_ptr()
            s0 = a0.shape
            ...                                                     # the same for a1
            if p0 < 8589934592 and 0 not in s0 or p1 < 8589934592 and 0 not in s1:
                describe((a0, a1, a2, a3))
            identity = (
                s0, None if a0.is_neg() else a0.is_contiguous() or a0.stride(), a0.dtype, a0.get_device(),
                s1, None if a1.is_neg() else a1.is_contiguous() or a1.stride(), a1.dtype, a1.get_device(),
                -2147483648 <= a2 <= 2147483647, a3,
                (p0 | p1) & 15 and (alignment[p0 & 15], alignment[p1 & 15]),
            )
            call = calls.get(identity) or classify(identity, (a0, a1, a2, a3), ())
            return call, (p0, p1, a2), ()
        except Exception as error:
            raise explain((a0, a1, a2, a3), error)

All that a kernel is specialised on follows from shapes, strides, element types, devices, constants and the alignment of
pointers. For each combination of them what follows is worked out once and kept as a `Call`; later calls find it, and
with it what runs them, by one look into a table. Pointers that are all aligned to 16 bytes, which is the rule, take one
test. A low address may be that of freed memory, and is looked at closer. A plan refuses other types itself, with None:
that is faster than to look the plan up by the types of each call's arguments.

A list, tuple, dict, NamedTuple or dataclass is taken apart by the same function, down to its leaves::

        if type(a0) is not A0:
            return None
        if len(a0) != 2:
            return None
        a0_0, a0_1 = a0
        if type(a0_0) is not A0_0 or type(a0_1) is not A0_1:
            return None
        ...                                                         # the leaves are read as arguments are
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

from tilewright.dtypes import DType
from tilewright.errors import ArgumentError
from tilewright.freezing import freeze, needs_freezing
from tilewright.runtime import driver
from tilewright.runtime.arrays import (
    ALIGNMENT,
    LEGACY_STREAM,
    LOW_ADDRESSES,
    Adapter,
    ArrayClass,
    ArrayInfo,
    ArrayLayout,
    Layouts,
    StreamGetter,
    adapter_for,
)
from tilewright.runtime.numbers import NumberType, number_type
from tilewright.runtime.recent import Recent
from tilewright.source import SourceLocation
from tilewright.structures import MAX_DEPTH, Structure, demand_depth, structure_of

# What each plan keeps: those used last, and at most twice as many (see `Recent`).
_MAX_CALLS = 4096
NOT_ASKED: object = object()
MAX_KERNELS = 128  # compiled forms, of which those of a large kernel take about 1 MB each


@dataclass(frozen=True)
class Scalar:
    """A number given to a kernel, and the type in which the kernel gets it."""

    value: Any  # Any: a Python or NumPy number
    dtype: DType


@dataclass(frozen=True)
class Constexpr:
    """A compile-time argument."""

    value: Any  # Any: whatever is hashable


Argument = Union[ArrayInfo, Scalar, Constexpr]


@dataclass(frozen=True)
class Structured:
    """A structure that was given to a kernel, and what is known of its parts."""

    structure: Structure
    parts: tuple[Union[Argument, Structured], ...]


class Call:
    """What is known of calls whose arguments agree in all but pointers and numbers.

    `key` decides which compiled kernel runs. `layouts` has shape and strides of each array, by the
    position of its pointer among the values of a reading. `kernel` is the place for what the caller found out for such
    calls: what runs them. `is_ready` says that nothing else has to be looked at.
    """

    __slots__ = ("__weakref__", "is_ready", "kernel", "key", "layouts")

    def __init__(self, key: tuple[Hashable, ...], layouts: Layouts) -> None:
        self.key: tuple[Hashable, ...] = key
        self.layouts: Layouts = layouts
        self.kernel: Any = None  # Any: the caller's
        self.is_ready: bool = False


# The call, values to pass (the pointer of each array and the number of each scalar), and the arrays that were described
# in full: those whose memory has to be kept or whose stream has to be waited for.
Reading = tuple[Call, tuple[Any, ...], tuple[ArrayInfo, ...]]


class Signature:
    """The parameters of a kernel, and the plans for the argument types that it was called with.

    `numbers` are those that have a type declared for the numbers given to them.
    """

    def __init__(
        self,
        names: Sequence[str],
        constexpr: Collection[str] = (),
        max_calls: int | None = None,
        numbers: Mapping[str, DType] | None = None,
    ) -> None:
        self.names: tuple[str, ...] = tuple(names)
        self.constexpr: frozenset[str] = frozenset(constexpr)
        self.numbers: Mapping[str, DType] = numbers or {}
        self.max_calls: int = max_calls or _MAX_CALLS
        self._plans: dict[tuple[Hashable, ...], ArgumentPlan] = {}
        self.last: ArgumentPlan | None = None  # the plan of the last call
        self.tables: dict[
            str, Any
        ] = {}  # Any: the compiled launcher's table of calls, where there is one; see `replays`
        self.is_dropped = False  # what was compiled for it is not launched any more

    def read(self, args: tuple[Any, ...]) -> tuple[ArgumentPlan, Reading]:
        """Read `args`: all parameters in order, defaults filled in. Return their plan and its reading."""
        plan = self.last
        if plan is not None:
            reading = plan.read(*args)
            if reading is not None:
                return plan, reading
        self.last = plan = self.plan(args)
        reading = plan.read(*args)
        assert reading is not None, args
        return plan, reading

    def plan(self, args: tuple[Any, ...]) -> ArgumentPlan:
        """Return the plan for the types of `args`."""
        kinds = tuple(map(_kind, args))
        # Two threads may both make a plan; the second is dropped.
        return self._plans.get(kinds) or self._plans.setdefault(kinds, ArgumentPlan(self, args))


class ArgumentPlan:
    """How to read arguments of certain types.

    `read(*args)` gives a `Reading`, or None for arguments of other types; `describe(args)` gives the whole
    knowledge of each leaf, for tracing. `names` are those of the leaves, as users write them (`x`, `params.weight`,
    `xs[2]`), and `starts` holds the index of each leaf's value in a reading.
    `kernels` is the place for what was compiled, by key: a key means something within its plan only. Calls and kernels
    that were not used for long are forgotten; a kernel is alive as long as it is here, or a call that uses it.
    """

    def __init__(self, signature: Signature, args: tuple[Any, ...]) -> None:
        assert len(args) == len(signature.names), (signature.names, len(args))
        self._calls: Recent[Hashable, Call] = Recent(signature.max_calls)
        # Any: the caller's compiled kernels. Calls would keep what is forgotten here; those that go on find it again.
        self.kernels: Recent[Hashable, Any] = Recent(MAX_KERNELS, on_turn=self._calls.clear)
        self._arguments: list[_Role | _Parts] = [
            _Constant(name, value)
            if name in signature.constexpr or value is None
            else _role(name, value, declared=signature.numbers.get(name))
            for name, value in zip(signature.names, args, strict=True)
        ]
        self.roles: list[_Role] = [leaf for argument in self._arguments for leaf in _leaves(argument)]
        self.names: tuple[str, ...] = tuple([role.name for role in self.roles])
        starts: list[int] = []
        next_value = 0
        for role in self.roles:
            starts.append(next_value)
            next_value += role.values
        self.starts: tuple[int, ...] = tuple(starts)
        getters = [r.adapter.current_stream for r in self.roles if isinstance(r, _Array) and r.adapter.current_stream]
        self._streams: tuple[StreamGetter, ...] = tuple(dict.fromkeys(getters))
        is_one = len(self._streams) == 1 and all(r.adapter.fast for r in self.roles if isinstance(r, _Array))
        # The current stream of the framework that all arrays are of; None where `stream` has more to look at.
        self.current_stream: StreamGetter | None = self._streams[0] if is_one else None
        self.signature = signature
        # What the compiled launcher has to know of such arguments: None where it cannot read them, and see `replays`.
        self.compiled: Any = NOT_ASKED
        self.read: Callable[..., Reading | None] = _compile_read(self, self._arguments, args)

    def describe(self, args: tuple[Any, ...]) -> tuple[Argument, ...]:
        """Return what is known of each leaf; raise `ArgumentError` naming one that cannot be taken."""
        return self._describe_leaves(self.leaves(args))

    def describe_arguments(self, args: tuple[Any, ...]) -> tuple[Argument | Structured, ...]:
        """Return what is known of each argument, as `describe`, structures as such."""
        known = iter(self.describe(args))
        return tuple([_grouped(argument, known) for argument in self._arguments])

    def leaves(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the leaves of arguments, in order: the arguments themselves where none is a structure."""
        found: list[Any] = []
        for argument, value in zip(self._arguments, args, strict=True):
            argument.add_leaves(value, found)
        return tuple(found)

    def passed(self, args: tuple[Any, ...], values: tuple[Any, ...]) -> list[tuple[Any, Any]]:
        """Return the values of a reading of arguments, each with the array or the number that it is of."""
        parts = zip(self.roles, self.starts, self.leaves(args), strict=True)
        return [(values[start], leaf) for role, start, leaf in parts if role.values]

    def _describe_leaves(self, leaves: tuple[Any, ...]) -> tuple[Argument, ...]:
        return tuple([role.describe(value) for role, value in zip(self.roles, leaves, strict=True)])

    def stream(self, ordinal: int, described: tuple[ArrayInfo, ...] = ()) -> int:
        """Return the stream to launch on, made to wait for arrays that other streams are writing.

        It is the current stream of the first array's framework; without one, the stream that an array of
        the reading names, and else the default stream.
        """
        if self.current_stream is not None:
            return self.current_stream(ordinal)
        streams = [current(ordinal) for current in self._streams]
        streams += [info.stream for info in described if info.stream is not None]
        chosen = streams[0] if streams else 0
        # 0 and 1 both name the default stream.
        for other in {stream or LEGACY_STREAM for stream in streams} - {chosen or LEGACY_STREAM}:
            driver.order_streams(first=other, then=chosen, ordinal=ordinal)
        return chosen

    @property
    def calls(self) -> dict[Hashable, Call]:
        """The calls used last, by what tells them apart."""
        return self._calls.young

    def classify(self, identity: tuple[Any, ...], leaves: tuple[Any, ...], described: tuple[ArrayInfo, ...]) -> Call:
        """Work out what follows from the leaves of the arguments of a call of a new kind, and remember it.

        Where there are arrays, the last of `identity` are the alignments of their pointers, or 0 for all at 16 bytes.
        """
        known = self._calls.get(identity)
        if known is not None:
            return known
        infos = iter(described)
        key: list[Hashable] = []
        layouts: list[ArrayLayout | None] = []
        has_arrays = False
        for role, value in zip(self.roles, leaves, strict=True):
            if isinstance(role, _Array):
                info = role.describe(value) if role.adapter.fast else next(infos)
                key.append(class_number(info))
                layouts.append((info.shape, info.strides))
                has_arrays = True
            elif isinstance(role, _Constant):
                key.append(freeze(value) if role.needs_freezing else value)
            else:
                layouts.append(None)
                if (limits := role.number.limits) is not None:
                    key.append(limits.lowest <= value <= limits.highest)
        if has_arrays:
            key.append(identity[-1])
        return self._calls.add(identity, Call(tuple(key), tuple(layouts)))

    def explain(self, leaves: tuple[Any, ...], error: Exception) -> Exception:
        self._describe_leaves(leaves)  # raises an error that names the argument, where there is something to say
        return error


class _Leaf:
    """An argument, or a part of one, that is not a structure."""

    name: str

    def add_leaves(self, value: Any, leaves: list[Any]) -> None:
        leaves.append(value)


class _Array(_Leaf):
    """An array: one value, its pointer."""

    values = 1

    def __init__(self, name: str, adapter: Adapter) -> None:
        self.name = name
        self.adapter = adapter

    def describe(self, value: Any) -> ArrayInfo:
        try:
            return self.adapter.describe(value)
        except ArgumentError as error:
            summary = f"argument {self.name!r} cannot be used: {error.summary}"
            raise ArgumentError(summary, details=error.details, help=error.help) from None


class Number(_Leaf):
    """A scalar: one value."""

    values = 1

    def __init__(self, name: str, number: NumberType) -> None:
        self.name = name
        self.number = number

    def describe(self, value: Any) -> Scalar:
        return Scalar(value, self.number.of(self.name, value))


class _Constant(_Leaf):
    """A compile-time argument: no value, only its part of the key."""

    values = 0

    def __init__(self, name: str, value: Any) -> None:
        self.name = name
        # Of one type, as all values of a plan are, only these have equal values that differ.
        self.needs_freezing = needs_freezing(value)
        self.describe(value)  # refuse here what is not hashable: reading does not hash

    def describe(self, value: Any) -> Constexpr:
        try:
            hash(value)
        except TypeError:
            raise ArgumentError(
                f"argument {self.name!r} is a compile-time constant and must be hashable, but it is a "
                f"{type(value).__name__}",
                help="give a tuple in place of a list, or a frozen dataclass",
            ) from None
        return Constexpr(value)


_Role = Union[_Array, Number, _Constant]


class _Parts:
    """A structure with a role for each of its parts."""

    def __init__(self, structure: Structure, parts: list[_Role | _Parts]) -> None:
        self.structure = structure
        self.parts = parts

    def add_leaves(self, value: Any, leaves: list[Any]) -> None:
        for part, inner in zip(self.parts, self.structure.parts(value), strict=True):
            part.add_leaves(inner, leaves)


def _leaves(argument: _Role | _Parts) -> list[_Role]:
    if not isinstance(argument, _Parts):
        return [argument]
    return [leaf for part in argument.parts for leaf in _leaves(part)]


def _grouped(argument: _Role | _Parts, known: Iterator[Argument]) -> Argument | Structured:
    """Return what is known of an argument, taking that of its leaves from an iterator."""
    if not isinstance(argument, _Parts):
        return next(known)
    return Structured(argument.structure, tuple([_grouped(part, known) for part in argument.parts]))


def _kind(value: Any, depth: int = 0) -> Hashable:
    """Return what a plan depends on of an argument: its type, and of a structure the types of its parts."""
    structure = structure_of(value)
    if structure is None or depth > MAX_DEPTH or adapter_for(value) is not None:
        kind: Any = type(value)
        return kind  # type: ignore[no-any-return]
    return structure.identity, tuple([_kind(part, depth + 1) for part in structure.parts(value)])


def _role(name: str, value: Any, depth: int = 0, declared: DType | None = None) -> _Role | _Parts:
    adapter = adapter_for(value)
    if adapter is not None:
        return _Array(name, adapter)
    number = number_type(name, value, declared)
    if number is not None:
        return Number(name, number)
    structure = structure_of(value)
    if structure is not None:
        demand_depth(depth, name)
        parts = enumerate(structure.parts(value))
        return _Parts(structure, [_role(structure.path(name, n), part, depth + 1) for n, part in parts])
    if depth and is_constant(value):
        return _Constant(name, value)
    raise refusal_of(name, value, is_part=depth > 0)


def named_leaves(name: str, value: Any, depth: int = 0) -> dict[str, Any]:
    """Return the leaves of an argument by their names; an argument that is not a structure is its own."""
    structure = None if adapter_for(value) is not None else structure_of(value)
    if structure is None:
        return {name: value}
    demand_depth(depth, name)
    found: dict[str, Any] = {}
    for n, part in enumerate(structure.parts(value)):
        found.update(named_leaves(structure.path(name, n), part, depth + 1))
    return found


_MOST_SHOWN = 40


def shown_argument(argument: Argument) -> str:
    """Return a short text of an argument, for a profile: `float32[64,32]`, a number, a compile-time value.

    Strides are told where the array is not contiguous in row-major order, and of a lambda its line.
    """
    if isinstance(argument, ArrayInfo):
        extents = ",".join(map(str, argument.shape))
        step, is_row_major = 1, True
        for extent, stride in zip(reversed(argument.shape), reversed(argument.strides), strict=True):
            is_row_major &= extent == 1 or stride == step
            step *= extent
        strides = "" if is_row_major else f":[{','.join(map(str, argument.strides))}]"
        return f"{argument.dtype}[{extents}]{strides}"
    value = argument.value
    text = str(value.__name__ if callable(value) and hasattr(value, "__name__") else value)
    if text == "<lambda>":
        code = value.__code__
        return f"lambda at {SourceLocation(code.co_filename, code.co_firstlineno, text)}"
    text = " ".join(text.split())
    if " at 0x" in text:  # an object without a text of its own
        text = type(value).__name__
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def is_constant(value: Any) -> bool:
    """Return whether a value that is neither array nor number is a compile-time constant where a structure holds it.

    What converts to an array, such as a host tensor, has elements that change: it is none.
    """
    return type(value).__hash__ is not None and (isinstance(value, type) or not hasattr(value, "__array__"))


def refusal_of(name: str, value: Any, *, is_part: bool) -> ArgumentError:
    """Return the error for an argument, or a part of a structure, that a kernel cannot take."""
    if is_part:
        return ArgumentError(
            f"argument {name!r} is a {type(value).__name__}; a structure holds arrays, numbers, other structures and "
            "compile-time constants, which are hashable",
            help="give a list, tuple, dict, NamedTuple or dataclass, or a constant that can be hashed",
        )
    return ArgumentError(
        f"argument {name!r} is a {type(value).__name__}; a kernel takes arrays and numbers, and lists, tuples, dicts, "
        "NamedTuples and dataclasses of them",
        help=f"for a compile-time argument write {name}: tw.constexpr",
    )


class _ClassNumbers:
    """A small number for each class of arrays, so that a key hashes a few ints. No number is given twice."""

    def __init__(self) -> None:
        self._numbers: Recent[Hashable, int] = Recent(_MAX_CALLS)
        self._count = itertools.count(1)

    def __call__(self, info: ArrayInfo) -> int:
        """Return the number of an array's class, alignment left aside."""
        kind: ArrayClass = replace(info.specialisation, alignment=0)
        key = (kind, info.shape, info.strides) if info.static else kind
        return self._numbers.get(key) or self._numbers.add(key, next(self._count))


class_number: _ClassNumbers = _ClassNumbers()


def _compile_read(
    plan: ArgumentPlan, arguments: Sequence[_Role | _Parts], args: Sequence[Any]
) -> Callable[..., Reading | None]:
    """Write and compile the function that reads arguments of these types; the module's text shows one."""
    statements: list[str] = []
    identity: list[str] = []
    values: list[str] = []
    pointers: list[str] = []
    described: list[str] = []
    low: list[str] = []
    names: dict[str, Any] = {"alignment": ALIGNMENT, "freeze": freeze, "calls": plan.calls, "typed_keys": _typed_keys}
    names |= {"classify": plan.classify, "explain": plan.explain, "class_number": class_number}
    names["describe"] = plan._describe_leaves
    tops = [f"a{n}" for n in range(len(arguments))]
    opening, leaves = _take_apart(tops, arguments, args, names)
    for n, (role, a) in enumerate(zip(plan.roles, leaves, strict=True)):
        if isinstance(role, _Constant):
            identity.append(f"freeze({a})" if role.needs_freezing else a)
        elif isinstance(role, Number):
            limits = role.number.limits
            identity += [f"{limits.lowest} <= {a} <= {limits.highest}"] if limits is not None else []
            values.append(a)
        else:
            names[f"describe{n}"] = role.describe
            statements += _reading_of_array(n, a, role)
            identity += [f"s{n}", _identity_of_array(n, a, role)]
            pointers.append(f"p{n}")
            values.append(f"p{n}")
            if role.adapter.fast:
                low.append(f"p{n} < {LOW_ADDRESSES} and 0 not in s{n}")
            else:
                described.append(f"i{n}")
    alignments = _tuple([f"alignment[{p} & 15]" for p in pointers])
    identity += [f"({' | '.join(pointers)}) & 15 and {alignments}"] if pointers else []
    statements += [f"if {' or '.join(low)}: describe({_tuple(leaves)})"] if low else []
    lines = [
        f"def read({', '.join(tops)}):",
        *(f"    {line}" for line in opening),
        "    try:",
        *(f"        {statement}" for statement in statements),
        f"        identity = {_tuple(identity)}",
        f"        call = calls.get(identity) or classify(identity, {_tuple(leaves)}, {_tuple(described)})",
        f"        return call, {_tuple(values)}, {_tuple(described)}",
        "    except Exception as error:",
        f"        raise explain({_tuple(leaves)}, error)",
    ]
    exec(compile("\n".join(lines), "<tilewright argument plan>", "exec"), names)
    read: Callable[..., Reading | None] = names["read"]
    return read


def _take_apart(
    variables: Sequence[str], roles: Sequence[_Role | _Parts], values: Sequence[Any], names: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """Return the lines that check the types of variables and take structures apart, and the variables of the leaves.

    What the lines compare with goes into `names`.
    """
    names.update((f"{a.upper()}", type(value)) for a, value in zip(variables, values, strict=True))
    others = " or ".join(f"type({a}) is not {a.upper()}" for a in variables) or "False"
    lines, leaves = [f"if {others}:", "    return None"], []
    for a, role, value in zip(variables, roles, values, strict=True):
        if not isinstance(role, _Parts):
            leaves.append(a)
            continue
        structure, parts = role.structure, [f"{a}_{n}" for n in range(len(role.parts))]
        if structure.form == "dict":
            keys, known = f"tuple({a})", structure.keys
            if not all(type(key) is str for key in known):
                keys, known = f"typed_keys({a})", _typed_keys(known)
            names[f"{a.upper()}_keys"] = known
            lines += [f"if {keys} != {a.upper()}_keys:", "    return None"]
        elif structure.form == "sequence":
            lines += [f"if len({a}) != {len(parts)}:", "    return None"]
        if structure.form == "fields":
            lines += [f"{part} = {a}.{key}" for part, key in zip(parts, structure.keys, strict=True)]
        elif parts:
            lines.append(f"{', '.join(parts)}, = {a}{'.values()' if structure.form == 'dict' else ''}")
        if parts:
            inner, found = _take_apart(parts, role.parts, structure.parts(value), names)
            lines += inner
            leaves += found
    return lines, leaves


def _typed_keys(keys: Collection[Hashable]) -> tuple[Hashable, ...]:
    """Return the keys of a dict with their types: 1 and True are equal, and a kernel sees which it is."""
    return tuple([(type(key), key) for key in keys])


def _reading_of_array(n: int, a: str, role: _Array) -> list[str]:
    """Return the statements that set p and s (pointer and shape) of leaf `n`, which the variable `a` holds."""
    fast = role.adapter.fast
    if fast is None:
        return [f"i{n} = describe{n}({a})", f"p{n} = i{n}.pointer", f"s{n} = i{n}.shape"]
    return [f"p{n} = {fast.pointer.format(a=a)}", f"s{n} = {fast.shape.format(a=a)}"]


def _identity_of_array(n: int, a: str, role: _Array) -> str:
    """Return the expressions that with the shape tell what a kernel is specialised on for leaf `n`."""
    fast = role.adapter.fast
    return f"i{n}.strides, class_number(i{n})" if fast is None else fast.identity.format(a=a)


def _tuple(items: Sequence[str]) -> str:
    return "(" + "".join(f"{item}, " for item in items).rstrip() + ")"
