"""Carried variables: which device values a user's variables hold, and how to put others in their place.

A number is one value; a tensor is its dynamic leaves (offset, extents, strides); a tuple, list or dict is its
items, an object of a user's class its attributes; anything else must stay the same object. Lists and other objects that
exist before a block is traced stay the same object too, and what they hold is carried place by place (`heap`).
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
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
from tilewright.trace.holders import ATTRIBUTES, DEQUE, DICT, LIST
from tilewright.trace.reach import is_user_type
from tilewright.trace.scalar import Scalar, as_scalar, is_number, is_numpy_number
from tilewright.trace.tracer import current


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

RESULT = "__tilewright_result"  # the variable that the rewriter keeps a function's result in
CHOICE = "the value of a conditional expression"  # in place of a variable's name


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
    numbers: list[Any] = field(default_factory=list)  # what weak leaves are, exactly, whatever type they take
    parts: list[_Part] = field(default_factory=list)
    holds: Callable[[Any], bool] = field(default=lambda _: False)  # which objects stay what they are
    seen: dict[int, tuple[Any, list[Any], int]] = field(default_factory=dict)  # objects that were taken apart

    def rebuild(self, values: list[Value]) -> list[Any]:
        """Return the variables with other values in place of the leaves."""
        result, start = [], 0
        for part in self.parts:
            result.append(part.rebuild(values[start : start + part.count]))
            start += part.count
        return result


def flatten(
    values: Iterable[Any], names: Names, like: Carried | None = None, holds: Callable[[Any], bool] = lambda _: False
) -> Carried:
    """Take variables apart. `like` is what they were before a loop: those without a value then stay out.

    `holds` says which objects stay the same object, because they exist before the block.
    """
    carried = Carried(names, holds=holds)
    for n, (value, name) in enumerate(zip(values, names, strict=True)):
        left_out = like is not None and like.parts[n].shape == ("undefined",)
        carried.parts.append(_UNDEFINED if left_out else _part(value, _identifier(name), carried))
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
    held = _items_of(value)
    if held is None:
        return _Part(0, lambda _: value, ("constant", _Same(value)), repr(value))
    if carried.holds(value):
        return _Part(0, lambda _: value, ("object", _Identity(value)), _title(value, held))
    return _object_part(value, held, name, carried)


def _object_part(value: Any, held: dict[Any, Any], name: str, carried: Carried) -> _Part:
    """Take a container or an object apart; where it is met again, it is the same one there too."""
    if id(value) in carried.seen:
        _, built, number = carried.seen[id(value)]
        return _Part(0, lambda _: built[0], ("again", number), _title(value, held))
    built = [None]
    if not isinstance(value, tuple):
        carried.seen[id(value)] = value, built, len(carried.seen)
    inner = [_part(v, f"{name}_{_identifier(k)}", carried) for k, v in held.items()]

    def make(items: list[Any]) -> Any:
        built[0] = _like(value, dict(zip(held, items, strict=True)))
        return built[0]

    keys = () if isinstance(value, (tuple, list, deque)) else tuple(held)
    return _group(inner, make, (_Identity(type(value)), keys), _title(value, held))


def _group(inner: list[_Part], make: Callable[[list[Any]], Any], shape: tuple[Any, ...], text: str) -> _Part:
    def rebuild(values: list[Value]) -> Any:
        items, start = [], 0
        for part in inner:
            items.append(part.rebuild(values[start : start + part.count]))
            start += part.count
        return make(items)

    count = sum(part.count for part in inner)
    return _Part(count, rebuild, (*shape, *(p.shape for p in inner)), text, inner=tuple(inner), make=make)


def _items_of(value: Any) -> dict[Any, Any] | None:
    """Return what a container or a user's object holds, None for what is not taken apart."""
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (tuple, list, deque)):
        return dict(enumerate(value))
    return ATTRIBUTES.read(value) if is_user_type(type(value)) else None


def _like(value: Any, items: dict[Any, Any]) -> Any:
    """Return a new object like a given one that holds other items."""
    if isinstance(value, tuple):
        make: Any = getattr(type(value), "_make", type(value))
        return make(items.values())
    for kind, holder in ((dict, DICT), (list, LIST), (deque, DEQUE)):
        if isinstance(value, kind):
            made = kind() if type(value) is kind and kind is not deque else copy(value)
            holder.write(made, items)
            return made
    made = object.__new__(type(value))
    ATTRIBUTES.write(made, items)
    return made


def _title(value: Any, held: dict[Any, Any]) -> str:
    kind = type(value).__name__
    return f"{kind} of {len(held)}" if isinstance(value, (dict, tuple, list, deque)) else f"a {kind}"


def _identifier(key: Any) -> str:
    """Return what can be part of a name in the generated code: l_0 of l[0], state_phase of state.phase."""
    text = str(key)
    return text if text.isidentifier() or text == CHOICE else "_".join(re.findall(r"\w+", text))


def _leaf(value: Any, name: str, carried: Carried) -> None:
    weak = is_number(value)
    carried.leaves.append(as_scalar(value).value)
    carried.leaf_names.append(name)
    carried.weak.append(weak)
    carried.numbers.append(value if weak else None)


class _Identity:
    """Compares as the same object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


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
            side.numbers.insert(self.at[n], None)
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
    return _group(inner, part.make, part.shape[: len(part.shape) - len(inner)], part.text)


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
    return _Part(memory.count + len(coordinates), rebuild, shape, f"{memory.text}, guarded with {edge.fill} outside")


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
    leaves, weak, numbers = list(before.leaves), list(before.weak), list(before.numbers)
    for n, (a, b) in enumerate(zip(before.leaves, after.leaves, strict=True)):
        if a.type == b.type:
            weak[n] = weak[n] and (not both or after.weak[n])
        elif before.weak[n] and _gives_way(a, b):
            leaves[n] = as_scalar(numbers[n], b.dtype).value
            weak[n] = after.weak[n]
        elif not (after.weak[n] and _gives_way(b, a)):
            _take_type(a, b)
            _take_type(b, a)
            raise _disagreement(_leaf_text(before, n), str(a.type), str(b.type), both)
    if leaves == before.leaves and not chosen:
        return None
    return replace(before, leaves=leaves, weak=weak)


class TakesType(BaseException):
    """Raised where a Python number that a loop carries meets a type inside: its body is traced again with that.

    No user's `except Exception` may catch it.
    """

    def __init__(self, leaf: Value, dtype: DType) -> None:
        self.leaf = leaf
        self.dtype = dtype


def _take_type(leaf: Value, other: Value) -> None:
    if leaf in current("a loop").weak_leaves and _gives_way(leaf, other):
        raise TakesType(leaf, other.dtype)


def _leaf_text(carried: Carried, n: int) -> str:
    """Return how the user writes what a leaf is, or the leaf's name where it is one of several."""
    start = 0
    for name, part in zip(carried.names, carried.parts, strict=True):
        if part.count == 1 and start == n:
            return name
        start += part.count
    return carried.leaf_names[n]


def _gives_way(number: Value, other: Value) -> bool:
    """Say whether a Python number can take the other's type: an int any number's, a float a float's."""
    if number.dtype.kind == "bool":
        return False
    return other.dtype.is_float if number.dtype.is_float else other.dtype.kind != "bool"


def unwrap(side: Carried, target: Carried) -> list[Value]:
    """Return the leaves of one side in the types of the target."""
    return [
        v if v.type == t.type else as_scalar(number, t.dtype).value
        for v, t, number in zip(side.leaves, target.leaves, side.numbers, strict=True)
    ]


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
    if isinstance(value, Undefined):
        return value
    carried = flatten([value], ("placeholder",))
    return carried.rebuild([as_scalar(False if v.dtype is bool_ else 0, v.dtype).value for v in carried.leaves])[0]


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
