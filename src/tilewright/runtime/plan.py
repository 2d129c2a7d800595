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
            t0 = a0.stride()
            k0 = (s0, t0, a0.dtype, a0.device)
            m0, t0 = known0.get(k0) or classify0(k0, a0)
            ...                                                     # the same for a1
            key = (m0, m1, -2147483648 <= a2 <= 2147483647, a3)
            if (p0 | p1) & 15:
                key += (alignment[p0 & 15], alignment[p1 & 15])
            return key, (p0, s0, t0, p1, s1, t1, a2), ()
        except Exception as error:
            raise explain((a0, a1, a2, a3), error)

All that a kernel is specialised on, except the pointer's alignment, follows from shape, strides, element type
and device; for each such tuple the class is computed once and has a small number, `m0`. Pointers that are all
aligned to 16 bytes, which is the rule, take one test. A plan refuses other types itself, with None: that is
faster than to look the plan up by the types of each call's arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

from tilewright.dtypes import DType, bool_, dtype, float32, int32, int64
from tilewright.errors import ArgumentError
from tilewright.runtime import driver
from tilewright.runtime.adapters import LEGACY_STREAM, Adapter, StreamGetter, adapter_for
from tilewright.runtime.arrays import ALIGNMENT, ArrayClass, ArrayInfo

_MAX_KNOWN = 8192  # shapes remembered for each array type, before they are forgotten all at once


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
# Key, values to pass (pointer, shape, strides for each array; the number for each scalar), and the arrays
# that were described in full: those whose memory has to be kept or whose stream has to be waited for.
Reading = tuple[Hashable, tuple[Any, ...], tuple[ArrayInfo, ...]]


class Signature:
    """The parameters of a kernel, and the plans for the argument types that it was called with."""

    def __init__(self, names: Sequence[str], constexpr: Collection[str] = ()) -> None:
        self.names = tuple(names)
        self.constexpr = frozenset(constexpr)
        self._plans: dict[tuple[type, ...], ArgumentPlan] = {}
        self._last: ArgumentPlan | None = None

    def read(self, args: tuple[Any, ...]) -> tuple[ArgumentPlan, Reading]:
        """Read `args`: all parameters in order, defaults filled in. Return their plan and its reading."""
        plan = self._last
        if plan is not None:
            reading = plan.read(*args)
            if reading is not None:
                return plan, reading
        self._last = plan = self.plan(args)
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
    knowledge of each, for tracing. `starts` holds the index of each argument's first value in a reading.
    `kernels` is the place for what was compiled, by key: a key means something within its plan only.
    """

    def __init__(self, signature: Signature, args: tuple[Any, ...]) -> None:
        assert len(args) == len(signature.names), (signature.names, len(args))
        self.names = signature.names
        self.kernels: dict[Hashable, Any] = {}  # Any: the caller's compiled kernels
        self._roles = [
            _Constant(name, value) if name in signature.constexpr or value is None else _role(name, value)
            for name, value in zip(self.names, args, strict=True)
        ]
        starts, next_value = [], 0
        for role in self._roles:
            starts.append(next_value)
            next_value += role.values
        self.starts = tuple(starts)
        getters = [r.adapter.current_stream for r in self._roles if isinstance(r, _Array) and r.adapter.current_stream]
        self._streams: tuple[StreamGetter, ...] = tuple(dict.fromkeys(getters))
        self._only_stream = self._streams[0] if len(self._streams) == 1 else None
        self.read: Callable[..., Reading | None] = _compile_read(self._roles, list(map(type, args)), self._explain)

    def describe(self, args: tuple[Any, ...]) -> tuple[Argument, ...]:
        """Return what is known of each argument; raise `ArgumentError` naming one that cannot be taken."""
        return tuple(role.describe(value) for role, value in zip(self._roles, args, strict=True))

    def stream(self, ordinal: int, described: tuple[ArrayInfo, ...] = ()) -> int:
        """Return the stream to launch on, made to wait for arrays that other streams are writing.

        It is the current stream of the first array's framework; without one, the stream that an array of
        the reading names, and else the default stream.
        """
        if self._only_stream is not None and not described:
            return self._only_stream(ordinal)
        streams = [current(ordinal) for current in self._streams]
        streams += [info.stream for info in described if info.stream is not None]
        chosen = streams[0] if streams else 0
        # 0 and 1 both name the default stream.
        for other in {stream or LEGACY_STREAM for stream in streams} - {chosen or LEGACY_STREAM}:
            driver.order_streams(first=other, then=chosen, ordinal=ordinal)
        return chosen

    def _explain(self, args: tuple[Any, ...], error: Exception) -> Exception:
        self.describe(args)  # raises an error that names the argument, where there is something to say
        return error


class _Array:
    """An array: three values (pointer, shape, strides)."""

    values = 3

    def __init__(self, name: str, adapter: Adapter) -> None:
        self.name = name
        self.adapter = adapter

    def describe(self, value: Any) -> ArrayInfo:
        try:
            return self.adapter.describe(value)
        except ArgumentError as error:
            summary = f"argument {self.name!r} cannot be used: {error.summary}"
            raise ArgumentError(summary, details=error.details, help=error.help) from None

    def classify(self, identity: Hashable, value: Any) -> tuple[int, tuple[int, ...]]:
        """Return the number of the array's class and its strides in elements, and remember them."""
        info = self.describe(value)
        known = self.adapter.known
        if len(known) >= _MAX_KNOWN:
            known.clear()
        known[identity] = found = (class_number(info), info.strides)
        return found


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
        self.needs_freezing = isinstance(value, (tuple, float))
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
    """Return the type in which a kernel gets a number, or None for what is no number.

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
    """A small number for each class of arrays, so that a key hashes a few ints."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._lock = threading.Lock()

    def __call__(self, info: ArrayInfo) -> int:
        """Return the number of an array's class, alignment left aside."""
        kind: ArrayClass = replace(info.specialisation, alignment=0)
        key = (kind, info.shape, info.strides) if info.static else kind
        with self._lock:
            return self._numbers.setdefault(key, len(self._numbers) + 1)


class_number = _ClassNumbers()


def freeze(value: Any) -> Hashable:
    """Return a key that tells apart values which Python calls equal, such as 1 and 1.0, or 0.0 and -0.0."""
    if isinstance(value, tuple):
        return (type(value), *map(freeze, value))
    if isinstance(value, float):
        return (float, value.hex())
    hash(value)  # a list in a tuple is refused here
    return (type(value), value)


def _compile_read(
    roles: Sequence[_Role], kinds: Sequence[type], explain: Callable[..., Exception]
) -> Callable[..., Reading | None]:
    names: dict[str, Any] = {"alignment": ALIGNMENT, "freeze": freeze, "class_number": class_number, "explain": explain}
    names.update({f"A{n}": kind for n, kind in enumerate(kinds)})
    body: list[str] = []
    key: list[str] = []
    values: list[str] = []
    pointers: list[str] = []
    described: list[str] = []
    for n, role in enumerate(roles):
        a = f"a{n}"
        if isinstance(role, _Constant):
            key.append(f"freeze({a})" if role.needs_freezing else a)
        elif isinstance(role, _Number):
            key += [f"{int32.lowest} <= {a} <= {int32.highest}"] if role.is_python_int else []
            values.append(a)
        else:
            body += _read_array(n, role, names)
            key.append(f"m{n}")
            pointers.append(f"p{n}")
            values += [f"p{n}", f"s{n}", f"t{n}"]
            described += [] if role.adapter.fast else [f"i{n}"]
    body.append(f"key = {_tuple(key)}")
    if pointers:
        body.append(f"if ({' | '.join(pointers)}) & 15:")
        body.append(f"    key += {_tuple([f'alignment[{p} & 15]' for p in pointers])}")
    body.append(f"return key, {_tuple(values)}, {_tuple(described)}")
    arguments = [f"a{n}" for n in range(len(roles))]
    mismatch = " or ".join(f"type(a{n}) is not A{n}" for n in range(len(roles))) or "False"
    lines = [f"def read({', '.join(arguments)}):", f"    if {mismatch}:", "        return None"]
    lines += ["    try:", *(f"        {line}" for line in body)]
    lines += ["    except Exception as error:", f"        raise explain({_tuple(arguments)}, error)"]
    exec(compile("\n".join(lines), "<tilewright argument plan>", "exec"), names)
    read: Callable[..., Reading | None] = names["read"]
    return read


def _read_array(n: int, role: _Array, names: dict[str, Any]) -> list[str]:
    """Return the statements that set p, s, t (pointer, shape, strides) and m (class number) of argument `n`."""
    fast = role.adapter.fast
    if fast is None:
        names[f"describe{n}"] = role.describe
        return [
            f"i{n} = describe{n}(a{n})",
            f"p{n} = i{n}.pointer",
            f"s{n} = i{n}.shape",
            f"t{n} = i{n}.strides",
            f"m{n} = class_number(i{n})",
        ]
    names[f"known{n}"] = role.adapter.known
    names[f"classify{n}"] = role.classify
    a, s, t = f"a{n}", f"s{n}", f"t{n}"
    return [
        f"p{n} = {fast.pointer.format(a=a)}",
        f"{s} = {fast.shape.format(a=a)}",
        f"{t} = {fast.strides.format(a=a)}",
        f"k{n} = {fast.identity.format(a=a, s=s, t=t)}",
        f"m{n}, {t} = known{n}.get(k{n}) or classify{n}(k{n}, {a})",
    ]


def _tuple(items: Sequence[str]) -> str:
    return "(" + "".join(f"{item}, " for item in items).rstrip() + ")"
