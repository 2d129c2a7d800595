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
            identity = (
                s0, a0.is_contiguous() or a0.stride(), a0.dtype, a0.get_device(),
                s1, a1.is_contiguous() or a1.stride(), a1.dtype, a1.get_device(),
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
test. A plan refuses other types itself, with None: that is faster than to look the plan up by the types of each call's
arguments.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

from tilewright.dtypes import DType, bool_, dtype, float32, int32, int64
from tilewright.errors import ArgumentError
from tilewright.freezing import freeze, needs_freezing
from tilewright.runtime import driver
from tilewright.runtime.arrays import (
    ALIGNMENT,
    LEGACY_STREAM,
    Adapter,
    ArrayClass,
    ArrayInfo,
    ArrayLayout,
    Layouts,
    StreamGetter,
    adapter_for,
)
from tilewright.runtime.recent import Recent

# What each plan keeps: those used last, and at most twice as many (see `Recent`).
_MAX_CALLS = 4096
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


class Call:
    """What is known of calls whose arguments agree in all but pointers and numbers.

    `key` decides which compiled kernel runs. `layouts` has shape and strides of each array, by the
    position of its pointer among the values of a reading. `kernel` is the place for what the caller found out for such
    calls: what runs them. `is_ready` says that nothing else has to be looked at.
    """

    __slots__ = ("__weakref__", "is_ready", "kernel", "key", "layouts")

    def __init__(self, key: tuple[Hashable, ...], layouts: Layouts) -> None:
        self.key = key
        self.layouts = layouts
        self.kernel: Any = None  # Any: the caller's
        self.is_ready = False


# The call, values to pass (the pointer of each array and the number of each scalar), and the arrays that were described
# in full: those whose memory has to be kept or whose stream has to be waited for.
Reading = tuple[Call, tuple[Any, ...], tuple[ArrayInfo, ...]]


class Signature:
    """The parameters of a kernel, and the plans for the argument types that it was called with."""

    def __init__(self, names: Sequence[str], constexpr: Collection[str] = (), max_calls: int | None = None) -> None:
        self.names = tuple(names)
        self.constexpr = frozenset(constexpr)
        self.max_calls = max_calls or _MAX_CALLS
        self._plans: dict[tuple[type, ...], ArgumentPlan] = {}
        self.last: ArgumentPlan | None = None  # the plan of the last call

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
        kinds = tuple(map(type, args))
        # Two threads may both make a plan; the second is dropped.
        return self._plans.get(kinds) or self._plans.setdefault(kinds, ArgumentPlan(self, args))


class ArgumentPlan:
    """How to read arguments of certain types.

    `read(*args)` gives a `Reading`, or None for arguments of other types; `describe(args)` gives the whole
    knowledge of each, for tracing. `starts` holds the index of each argument's value in a reading.
    `kernels` is the place for what was compiled, by key: a key means something within its plan only. Calls and kernels
    that were not used for long are forgotten; a kernel is alive as long as it is here, or a call that uses it.
    """

    def __init__(self, signature: Signature, args: tuple[Any, ...]) -> None:
        assert len(args) == len(signature.names), (signature.names, len(args))
        self.names = signature.names
        self._calls: Recent[Hashable, Call] = Recent(signature.max_calls)
        # Any: the caller's compiled kernels. Calls would keep what is forgotten here; those that go on find it again.
        self.kernels: Recent[Hashable, Any] = Recent(MAX_KERNELS, on_turn=self._calls.clear)
        self.roles: list[_Role] = [
            _Constant(name, value) if name in signature.constexpr or value is None else _role(name, value)
            for name, value in zip(self.names, args, strict=True)
        ]
        starts, next_value = [], 0
        for role in self.roles:
            starts.append(next_value)
            next_value += role.values
        self.starts = tuple(starts)
        getters = [r.adapter.current_stream for r in self.roles if isinstance(r, _Array) and r.adapter.current_stream]
        self._streams: tuple[StreamGetter, ...] = tuple(dict.fromkeys(getters))
        is_one = len(self._streams) == 1 and all(r.adapter.fast for r in self.roles if isinstance(r, _Array))
        # The current stream of the framework that all arrays are of; None where `stream` has more to look at.
        self.current_stream = self._streams[0] if is_one else None
        self.read = _compile_read(self, list(map(type, args)))

    def describe(self, args: tuple[Any, ...]) -> tuple[Argument, ...]:
        """Return what is known of each argument; raise `ArgumentError` naming one that cannot be taken."""
        return tuple(role.describe(value) for role, value in zip(self.roles, args, strict=True))

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

    def classify(self, identity: tuple[Any, ...], args: tuple[Any, ...], described: tuple[ArrayInfo, ...]) -> Call:
        """Work out what follows from the arguments of a call of a new kind, and remember it.

        Where there are arrays, the last of `identity` are the alignments of their pointers, or 0 for all at 16 bytes.
        """
        known = self._calls.get(identity)
        if known is not None:
            return known
        infos = iter(described)
        key: list[Hashable] = []
        layouts: list[ArrayLayout | None] = []
        has_arrays = False
        for role, value in zip(self.roles, args, strict=True):
            if isinstance(role, _Array):
                info = role.describe(value) if role.adapter.fast else next(infos)
                key.append(class_number(info))
                layouts.append((info.shape, info.strides))
                has_arrays = True
            elif isinstance(role, _Constant):
                key.append(freeze(value) if role.needs_freezing else value)
            else:
                layouts.append(None)
                if role.is_python_int:
                    key.append(int32.lowest <= value <= int32.highest)
        if has_arrays:
            key.append(identity[-1])
        return self._calls.add(identity, Call(tuple(key), tuple(layouts)))

    def explain(self, args: tuple[Any, ...], error: Exception) -> Exception:
        self.describe(args)  # raises an error that names the argument, where there is something to say
        return error


class _Array:
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


class _Number:
    """A scalar: one value. Python's ints are int32 where they fit, else int64."""

    values = 1

    def __init__(self, name: str, element: DType, *, is_python_int: bool = False) -> None:
        self.name = name
        self.dtype = element
        self.is_python_int = is_python_int

    def describe(self, value: Any) -> Scalar:
        if not self.is_python_int or int32.lowest <= value <= int32.highest:
            return Scalar(value, self.dtype)
        if int64.lowest <= value <= int64.highest:
            return Scalar(value, int64)
        raise ArgumentError(f"argument {self.name!r} is {value}, which does not fit into 64 bits")


class _Constant:
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


_Role = Union[_Array, _Number, _Constant]


def _role(name: str, value: Any) -> _Role:
    adapter = adapter_for(value)
    if adapter is not None:
        return _Array(name, adapter)
    element = scalar_type(value)
    if element is not None:
        return _Number(name, element, is_python_int=element is int32 and isinstance(value, int))
    raise ArgumentError(
        f"argument {name!r} is a {type(value).__name__}; a kernel takes arrays and numbers",
        help=f"for a compile-time argument write {name}: tw.constexpr",
    )


def scalar_type(value: object) -> DType | None:
    """Return the type in which a kernel gets a number, or None for what is not a number.

    >>> scalar_type(3), scalar_type(2**40), scalar_type(0.5), scalar_type(True)
    (tw.int32, tw.int32, tw.float32, tw.bool)

    A Python int is the 32-bit kind here; whether it fits is seen from its value, call by call.
    """
    if isinstance(value, bool):
        return bool_
    if "numpy" in {base.__module__ for base in type(value).__mro__}:  # NumPy's float64 is a Python float as well
        try:
            return dtype(value.dtype.name) if hasattr(value, "dtype") else None
        except TypeError:
            return None
    if isinstance(value, int):
        return int32
    return float32 if isinstance(value, float) else None


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


class_number = _ClassNumbers()


def _compile_read(plan: ArgumentPlan, kinds: Sequence[type]) -> Callable[..., Reading | None]:
    """Write and compile the function that reads arguments of these types; the module's text shows one."""
    statements: list[str] = []
    identity: list[str] = []
    values: list[str] = []
    pointers: list[str] = []
    described: list[str] = []
    names: dict[str, Any] = {f"A{n}": kind for n, kind in enumerate(kinds)}
    names |= {"alignment": ALIGNMENT, "freeze": freeze, "calls": plan.calls, "class_number": class_number}
    names |= {"classify": plan.classify, "explain": plan.explain}
    for n, role in enumerate(plan.roles):
        a = f"a{n}"
        if isinstance(role, _Constant):
            identity.append(f"freeze({a})" if role.needs_freezing else a)
        elif isinstance(role, _Number):
            identity += [f"{int32.lowest} <= {a} <= {int32.highest}"] if role.is_python_int else []
            values.append(a)
        else:
            names[f"describe{n}"] = role.describe
            statements += _reading_of_array(n, role)
            identity += [f"s{n}", _identity_of_array(n, role)]
            pointers.append(f"p{n}")
            values.append(f"p{n}")
            described += [] if role.adapter.fast else [f"i{n}"]
    alignments = _tuple([f"alignment[{p} & 15]" for p in pointers])
    identity += [f"({' | '.join(pointers)}) & 15 and {alignments}"] if pointers else []
    arguments = _tuple([f"a{n}" for n in range(len(kinds))])
    lines = [
        f"def read({', '.join(f'a{n}' for n in range(len(kinds)))}):",
        f"    if {' or '.join(f'type(a{n}) is not A{n}' for n in range(len(kinds))) or 'False'}:",
        "        return None",
        "    try:",
        *(f"        {statement}" for statement in statements),
        f"        identity = {_tuple(identity)}",
        f"        call = calls.get(identity) or classify(identity, {arguments}, {_tuple(described)})",
        f"        return call, {_tuple(values)}, {_tuple(described)}",
        "    except Exception as error:",
        f"        raise explain({arguments}, error)",
    ]
    exec(compile("\n".join(lines), "<tilewright argument plan>", "exec"), names)
    read: Callable[..., Reading | None] = names["read"]
    return read


def _reading_of_array(n: int, role: _Array) -> list[str]:
    """Return the statements that set p and s (pointer and shape) of argument `n`."""
    fast = role.adapter.fast
    if fast is None:
        return [f"i{n} = describe{n}(a{n})", f"p{n} = i{n}.pointer", f"s{n} = i{n}.shape"]
    return [f"p{n} = {fast.pointer.format(a=f'a{n}')}", f"s{n} = {fast.shape.format(a=f'a{n}')}"]


def _identity_of_array(n: int, role: _Array) -> str:
    """Return the expressions that with the shape tell what a kernel is specialised on for argument `n`."""
    fast = role.adapter.fast
    return f"i{n}.strides, class_number(i{n})" if fast is None else fast.identity.format(a=f"a{n}")


def _tuple(items: Sequence[str]) -> str:
    return "(" + "".join(f"{item}, " for item in items).rstrip() + ")"
