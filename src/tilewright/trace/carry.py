"""Carried variables: which device values a user's variables hold, and how to put others in their place.

A number is one value; a tensor is its dynamic leaves (offset, extents, strides); a tuple, list or dict is its
items; anything else must stay the same object.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from tilewright.dtypes import DType, bool_
from tilewright.errors import LanguageError
from tilewright.ir.core import Buffer, Value
from tilewright.ir.facts import Facts
from tilewright.ir.ops import Constant
from tilewright.layout import Basis, ComposedLayout, DynamicInt, Layout
from tilewright.tensors import GuardedTensor, Tensor
from tilewright.trace.chosen import address_of, can_be_chosen, chosen_engine, common_alignment, refusal
from tilewright.trace.engine import BufferEngine
from tilewright.trace.scalar import Scalar, as_scalar, is_number, is_numpy_number


class DeviceObject(ABC):
    """An object of the language over a buffer, of which loops and branches carry at most one number."""

    @abstractmethod
    def leaf(self) -> Scalar | None:
        """Return the number by which it may change, None where nothing of it does."""

    @abstractmethod
    def with_leaf(self, leaf: Scalar) -> DeviceObject:
        """Return the object with another number."""

    @abstractmethod
    def memory(self) -> Buffer:
        """Return the buffer, which takes the name of the variable that the object is assigned to."""


Names: TypeAlias = "tuple[str, ...]"
State: TypeAlias = "tuple[Any, ...]"  # Any: what the user's variables hold

RESULT = "__tilewright_result"  # the variable that the rewriter keeps a function's result in
CHOICE = "the value of a conditional expression"  # in place of a variable's name


def read_state(names: Names, variables: Mapping[str, Any]) -> list[Any]:
    """Return the current values of variables, `Undefined` for those not assigned yet."""
    return [variables.get(name, Undefined(name, "it is not assigned before this point")) for name in names]


@dataclass(frozen=True)
class _Part:
    """The leaves of one variable: how many, and how the variable is made of them again."""

    count: int
    rebuild: Callable[[list[Value]], Any]
    shape: tuple[Any, ...]  # what must agree between two sides, comparable with ==
    text: str  # for messages: what the variable is
    tensor: Tensor | None = None
    inner: tuple[_Part, ...] = ()  # of a group
    make: Callable[[list[Any]], Any] | None = None


@dataclass
class Carried:
    """Variables taken apart. `weak` marks leaves that are Python numbers and may still take another type."""

    names: tuple[str, ...]
    leaves: list[Value] = field(default_factory=list)
    leaf_names: list[str] = field(default_factory=list)
    weak: list[bool] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)

    def rebuild(self, values: list[Value]) -> list[Any]:
        """Return the variables with other values in place of the leaves."""
        result, start = [], 0
        for part in self.parts:
            result.append(part.rebuild(values[start : start + part.count]))
            start += part.count
        return result


def flatten(values: Iterable[Any], names: Names, like: Carried | None = None) -> Carried:
    """Take variables apart. `like` is what they were before a loop: those without a value then stay out."""
    carried = Carried(names)
    for n, (value, name) in enumerate(zip(values, names, strict=True)):
        left_out = like is not None and like.parts[n].shape == ("undefined",)
        carried.parts.append(_UNDEFINED if left_out else _part(value, name, carried))
    return carried


_UNDEFINED = _Part(0, lambda _: None, ("undefined",), "nothing")


def _part(value: Any, name: str, carried: Carried) -> _Part:
    if isinstance(value, Undefined):
        return _Part(0, lambda _: value, ("undefined",), "nothing")
    if isinstance(value, Scalar) or is_number(value) or is_numpy_number(value):
        _leaf(value, name, carried)
        return _Part(1, lambda v: Scalar(v[0]), ("number",), _describe(value))
    if isinstance(value, Tensor) and isinstance(value.engine, BufferEngine):
        return _tensor_part(value, name, carried)
    if isinstance(value, DeviceObject):
        leaf = value.leaf()
        if leaf is not None:
            _leaf(leaf, name, carried)
            kind = type(value).__name__
            return _Part(1, lambda v: value.with_leaf(Scalar(v[0])), (kind, _Same(value.memory())), repr(value))
    if isinstance(value, dict):
        inner = [_part(v, f"{name}_{k}", carried) for k, v in value.items()]
        keys = tuple(value)
        return _group(inner, lambda items: dict(zip(keys, items, strict=True)), ("dict", keys))
    if isinstance(value, (tuple, list)):
        inner = [_part(v, f"{name}_{k}", carried) for k, v in enumerate(value)]
        make: Any = getattr(type(value), "_make", type(value))
        return _group(inner, make, (type(value).__name__,))
    return _Part(0, lambda _: value, ("constant", _Same(value)), repr(value))


def _leaf(value: Any, name: str, carried: Carried) -> None:
    weak = is_number(value)
    carried.leaves.append(as_scalar(value).value)
    carried.leaf_names.append(name)
    carried.weak.append(weak)


def _group(inner: list[_Part], make: Callable[[list[Any]], Any], shape: tuple[Any, ...]) -> _Part:
    def rebuild(values: list[Value]) -> Any:
        items, start = [], 0
        for part in inner:
            items.append(part.rebuild(values[start : start + part.count]))
            start += part.count
        return make(items)

    count, text = sum(part.count for part in inner), f"{shape[0]} of {len(inner)}"
    return _Part(count, rebuild, (*shape, *(p.shape for p in inner)), text, inner=tuple(inner), make=make)


class _Same:
    """Compares as the same object, or as equal where the values can say so."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same):
            return False
        if self.value is other.value:
            return True
        try:
            return type(self.value) is type(other.value) and bool(self.value == other.value)
        except Exception:  # a value that cannot be compared is not the same
            return False

    __hash__ = None  # type: ignore[assignment]


# --- tensors -------------------------------------------------------------------------------------------


def _tensor_part(tensor: Tensor, name: str, carried: Carried) -> _Part:
    if isinstance(tensor, GuardedTensor):
        return _guarded_part(tensor, name, carried)
    engine: BufferEngine = tensor.engine
    dynamic = list(_dynamic_leaves(tensor.layout))
    offset = engine.start
    _leaf(offset, name, carried)
    for k, leaf in enumerate(dynamic):
        _leaf(leaf, f"{name}_leaf{k}", carried)

    def rebuild(values: list[Value]) -> Tensor:
        stand_ins = iter([Scalar(v) for v in values[1:]])
        return Tensor(engine.at(Scalar(values[0])), _with_leaves(tensor.layout, stand_ins))

    pattern = str(_with_leaves(tensor.layout, iter([_Hole()] * len(dynamic))))
    shape = ("tensor", _Same(engine.buffer), pattern)
    text = f"a {engine.space} tensor of {engine.dtype} with layout {pattern}"
    return _Part(1 + len(dynamic), rebuild, shape, text, tensor)


def _merge_buffers(before: Carried, after: Carried) -> bool:
    """Carry tensors over different global memory by address, on both sides; say whether `before` became wider."""
    merging = _Merging(before, after)
    for n, name in enumerate(before.names):
        before.parts[n], after.parts[n] = merging.part(before.parts[n], after.parts[n], name)
    return merging.wider


class _Merging:
    """Goes through the parts of two sides, with the places of their leaves."""

    def __init__(self, before: Carried, after: Carried) -> None:
        self.sides = (before, after)
        self.at = [0, 0]
        self.wider = False

    def part(self, old: _Part, new: _Part, name: str) -> tuple[_Part, _Part]:
        """Return the parts of one variable, or of a part of it, with addresses where memory differs."""
        if old.shape != new.shape and len(old.inner) == len(new.inner) > 0:
            inner = [self.part(*pair, f"{name}_{k}") for k, pair in enumerate(zip(old.inner, new.inner, strict=True))]
            return _regrouped(old, [a for a, _ in inner]), _regrouped(new, [b for _, b in inner])
        found = (old, new)
        if old.shape != new.shape and _are_choices(old, new):
            assert old.tensor is not None and new.tensor is not None, name
            engines = old.tensor.engine, new.tensor.engine
            self.wider |= old.shape[:2] != ("chosen", common_alignment(*engines))
            name = "" if name.startswith((CHOICE, RESULT)) else name
            found = (self._chosen(0, old, engines, name), self._chosen(1, new, engines, name))
        self.at = [at + part.count for at, part in zip(self.at, found, strict=True)]
        return found

    def _chosen(self, n: int, part: _Part, engines: tuple[BufferEngine, BufferEngine], name: str) -> _Part:
        """Put the address of a tensor's memory before its other leaves."""
        side, tensor, is_new = self.sides[n], part.tensor, part.shape[0] != "chosen"
        assert tensor is not None, name
        if is_new:
            side.leaves.insert(self.at[n], address_of(tensor.engine.buffer))
            side.leaf_names.insert(self.at[n], f"{name or 'chosen'}_address")
            side.weak.insert(self.at[n], False)
        layout, alignment = tensor.layout, common_alignment(*engines)

        def rebuild(values: list[Value]) -> Tensor:
            stand_ins = iter([Scalar(v) for v in values[2:]])
            return Tensor(chosen_engine(name, engines, values), _with_leaves(layout, stand_ins))

        # What stands for both is aligned as both are, so that a third one is compared with that.
        like = dataclasses.replace(tensor.engine.buffer, name=name, alignment=alignment)
        seen = Tensor(dataclasses.replace(tensor.engine, buffer=like), layout)
        return _Part(part.count + is_new, rebuild, ("chosen", alignment, part.shape[-1]), part.text, seen)


def _regrouped(part: _Part, inner: list[_Part]) -> _Part:
    """Return a group of other parts."""
    assert part.make is not None, part
    return _group(inner, part.make, part.shape[: len(part.shape) - len(inner)])


def _are_choices(old: _Part, new: _Part) -> bool:
    """Say whether two parts are tensors that differ in their global memory alone."""
    if old.tensor is None or new.tensor is None or old.shape[-1] != new.shape[-1]:
        return False
    return can_be_chosen(old.tensor, new.tensor)


def _refuse_memory(name: str, old: _Part, new: _Part, both: bool) -> None:
    """Raise `LanguageError` for tensors that differ in their memory alone."""
    if len(old.inner) == len(new.inner) > 0:
        for k, (a, b) in enumerate(zip(old.inner, new.inner, strict=True)):
            if a.shape != b.shape:
                _refuse_memory(f"{name}[{k}]", a, b, both)
    elif old.tensor is not None and new.tensor is not None and old.shape[-1] == new.shape[-1]:
        what = CHOICE if name.startswith(CHOICE) else f"variable {name!r}"
        error = refusal(what, old.tensor, new.tensor, both)
        if error is not None:
            raise error


def _guarded_part(tensor: GuardedTensor, name: str, carried: Carried) -> _Part:
    """Carry a guarded view: as any, and with its coordinates, of which nothing is known afterwards."""
    edge, where, plain = tensor.edge, tensor.where, tensor.plain
    memory = _tensor_part(plain, name, carried)
    coordinates = [*edge.base, *edge.own, *_dynamic_leaves(where)]
    for k, leaf in enumerate(coordinates):
        _leaf(leaf, f"{name}_coordinate{k}", carried)
    count = len(edge.shape)

    def rebuild(values: list[Value]) -> GuardedTensor:
        view = memory.rebuild(values[: memory.count])
        numbers = [Scalar(v) for v in values[memory.count :]]
        there = replace(edge, base=tuple(numbers[:count]), own=tuple(numbers[count : 2 * count]), low=(None,) * count)
        layout = _with_leaves(where, iter(numbers[2 * count :]))
        return GuardedTensor(view.engine.guarded(), view.layout, layout, there)

    holes = str(_with_leaves(where, iter([_Hole()] * (len(coordinates) - 2 * count))))
    whole = tuple(_Same(x) for x in (*edge.shape, *edge.stride, *edge.begin, *edge.end, edge.fill))
    shape = ("guarded", memory.shape, holes, whole)
    return _Part(memory.count + len(coordinates), rebuild, shape, f"{memory.text}, guarded")


class _Hole(DynamicInt):
    def __repr__(self) -> str:
        return "?"


def _dynamic_leaves(x: Any) -> Iterator[Scalar]:
    if isinstance(x, Layout):
        yield from _dynamic_leaves(x.shape)
        yield from _dynamic_leaves(x.stride)
    elif isinstance(x, ComposedLayout):
        for part in (x.outer, x.offset, x.inner):
            yield from _dynamic_leaves(part)
    elif isinstance(x, tuple):
        for part in x:
            yield from _dynamic_leaves(part)
    elif isinstance(x, Basis):
        yield from _dynamic_leaves(x.value)
    elif isinstance(x, Scalar):
        yield x


def _with_leaves(x: Any, values: Iterator[Any]) -> Any:
    """Return a layout with its dynamic leaves replaced, in the order of `_dynamic_leaves`."""
    if isinstance(x, Layout):
        return Layout(_with_leaves(x.shape, values), _with_leaves(x.stride, values))
    if isinstance(x, ComposedLayout):
        return ComposedLayout(*[_with_leaves(part, values) for part in (x.outer, x.offset, x.inner)])
    if isinstance(x, tuple):
        return tuple(_with_leaves(part, values) for part in x)
    if isinstance(x, Basis):
        return Basis(_with_leaves(x.value, values), x.modes)
    return next(values) if isinstance(x, Scalar) else x


# --- agreement -----------------------------------------------------------------------------------------


def merge_types(before: Carried, after: Carried, both: bool = False) -> Carried | None:
    """Return None where `after` fits into the types of `before`, or `before` with wider Python numbers.

    Raises `LanguageError` naming the variable where the two cannot be one. `both` is for the two sides of an if,
    where either side's Python numbers give way.
    """
    chosen = _merge_buffers(before, after)
    for name, old, new in zip(before.names, before.parts, after.parts, strict=True):
        if old.shape != new.shape:
            _refuse_memory(name, old, new, both)
            raise _disagreement(name, old.text, new.text, both)
    leaves, weak = list(before.leaves), list(before.weak)
    for n, (a, b) in enumerate(zip(before.leaves, after.leaves, strict=True)):
        if a.type == b.type:
            weak[n] = weak[n] and (not both or after.weak[n])
        elif before.weak[n] and _gives_way(a, b):
            leaves[n] = _retyped(a, b.dtype)
            weak[n] = after.weak[n]
        elif not (after.weak[n] and _gives_way(b, a)):
            raise _disagreement(before.leaf_names[n], str(a.type), str(b.type), both)
    if leaves == before.leaves and not chosen:
        return None
    return Carried(before.names, leaves, before.leaf_names, weak, before.parts)


def _gives_way(number: Value, other: Value) -> bool:
    """Say whether a Python number can take the other's type: an int any number's, a float a float's."""
    if number.dtype.kind == "bool":
        return False
    return other.dtype.is_float if number.dtype.is_float else other.dtype.kind != "bool"


def _retyped(value: Value, target: DType) -> Value:
    assert isinstance(value.definition, Constant), value
    return as_scalar(value.definition.value, target).value


def unwrap(side: Carried, target: Carried) -> list[Value]:
    """Return the leaves of one side in the types of the target."""
    return [v if v.type == t.type else _retyped(v, t.dtype) for v, t in zip(side.leaves, target.leaves, strict=True)]


def _disagreement(name: str, before: str, after: str, both: bool) -> LanguageError:
    if name.startswith(RESULT):
        return LanguageError(
            f"a function returns {before} on one path and {after} on another",
            help="return values of one type on every path, the end of the function included",
        )
    what = CHOICE if name == CHOICE else f"variable {name!r}"
    if both:
        return LanguageError(
            f"{what} is {before} in one branch and {after} in the other",
            help="give both branches the same type and layout: convert one, for example with tw.float32(x)",
        )
    return LanguageError(
        f"{what} changes in the loop: it is {before} before it and {after} after an iteration",
        help="give it the type and layout of the later iterations before the loop, for example with tw.float32(0)"
        if before != after
        else f"each iteration makes a new tensor: update the one before the loop, as in {name} += x or {name}[...] = x",
    )


def placeholder(value: Any) -> Any:
    """Return some value of the same kind, for a variable that is not read before it gets another."""
    if isinstance(value, Scalar):
        return as_scalar(0, value.dtype) if value.dtype is not bool_ else as_scalar(False)
    if isinstance(value, (tuple, list)):
        make: Any = getattr(type(value), "_make", type(value))
        return make([placeholder(v) for v in value])
    if isinstance(value, dict):
        return {k: placeholder(v) for k, v in value.items()}
    return value


def joined_facts(a: Facts | None, b: Facts | None) -> Facts | None:
    """Return what holds of a value that is one of two, None where nothing is known of floats."""
    return a.join(b) if a is not None and b is not None else None


def _describe(value: Any) -> str:
    return str(as_scalar(value).dtype)


# --- names ---------------------------------------------------------------------------------------------


def rename(name: str, value: Any) -> None:
    """Name a fresh scalar, or a tensor's buffer or offset, after the variable it is assigned to."""
    if isinstance(value, Scalar):
        if value.number is None:
            _name_value(value.value, name)
    elif isinstance(value, DeviceObject):
        value.memory().name = value.memory().name or name
    elif isinstance(value, Tensor) and isinstance(value.engine, BufferEngine):
        engine = value.engine
        if not engine.buffer.name:
            engine.buffer.name = name
        elif isinstance(engine.start, Scalar):
            _name_value(engine.start.value, name)


def _name_value(value: Value, name: str) -> None:
    if value.name is None and not isinstance(value.definition, Constant):
        value.name = name


# --- variables without a value -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Undefined:
    """Stands for a variable that has no value here, and says why. Reading the variable is the error."""

    name: str
    reason: str


def value_of(x: Any) -> Any:  # Any: what a user's variable holds
    """Return the value of a variable. Raises `LanguageError` when it has none on some path to here."""
    if isinstance(x, Undefined):
        raise LanguageError(
            f"variable {x.name!r} may have no value here: {x.reason}",
            help=f"assign {x.name!r} before, so that it has a value on every path",
        )
    return x
