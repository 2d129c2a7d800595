"""Vectors of a kernel that is built: the lanes of the innermost loops, whose statements run for all lanes at once.

What lies side by side along a lane's loop is read and written by wide accesses, and what a lane does not move with is
read once. A reduction over lanes is computed in partial results, which are combined at its end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from tilewright.dtypes import DType
from tilewright.language.copying import copy
from tilewright.layout import Layout
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.arrays import Array, Load, Store
from tilewright.schedule.filling import is_private
from tilewright.schedule.loop_nest import Condition, Loop, Part, Statement, at_places
from tilewright.schedule.scope import Parts, Scope, compute_type, evaluate, located, stored
from tilewright.schedule.values import Apply, Expression
from tilewright.tensors import Tensor
from tilewright.trace.carry import rename
from tilewright.trace.control import branch, nest
from tilewright.trace.control import loop as emit_loop
from tilewright.trace.memory import registers
from tilewright.trace.scalar import as_scalar

_Key = tuple[tuple[int, int], tuple[Affine, ...]]  # the number of an array, and an element of it
_Numbers = Mapping[Index, Any]  # Any: the lane along each index, a number of host or device


def emit_vectors(scope: Scope, loops: tuple[Loop, ...], parts: Parts) -> None:
    """Emit the innermost loops as vectors; element by element where an edge cuts them.

    The conditions of a part are affine: where they hold in the corner of the lanes where they are hardest to meet, they
    hold in all lanes.
    """
    for part in parts:
        alive = scope.decided(part)
        if alive is None:
            continue
        spans = [(loop, *scope.span(loop, (alive,))) for loop in loops]
        lanes = []
        with ExitStack() as fixed:
            for loop, low, high in spans:
                assert high is not None, loop
                if low == high:
                    fixed.enter_context(scope.at(loop.index, low, (low, low)))
                else:
                    lanes.append(Lanes(loop, low, (high - low) // loop.step + 1))
            decided = scope.decided(alive)
            if decided is not None and all(low <= (high or 0) for _, low, high in spans):
                _emit_part(scope, tuple(lanes), decided)


def _emit_part(scope: Scope, lanes: tuple[Lanes, ...], part: Part) -> None:
    def by_elements() -> None:
        _each(scope, lanes, lambda: scope.statements((part,)))

    if not lanes:
        scope.statements((part,))
        return
    depends = [c for c in part.conditions if any(c.value.mentions(lane.index) for lane in lanes)]
    has_guards = any(statement.store.guards for statement in part.statements)
    if has_guards or any(c.is_equality or any(c.value.divides(x.index) for x in lanes) for c in depends):
        by_elements()
        return
    ends = tuple(_everywhere(condition, lanes) for condition in part.conditions)
    free = replace(part, conditions=())
    branch(scope.holds(ends), lambda: Vector(scope, lanes).emit(free), by_elements if depends else None)


def _each(scope: Scope, lanes: tuple[Lanes, ...], body: Callable[[], None]) -> None:
    """Emit a body for each lane, one after the other."""
    if not lanes:
        body()
        return
    lane = lanes[0]

    def iteration(value: Any) -> None:  # Any: a device number
        with scope.at(lane.index, value, (lane.low, lane.high)):
            _each(scope, lanes[1:], body)

    scope.run(lane.loop, lane.low, lane.high, iteration)


def _everywhere(condition: Condition, lanes: tuple[Lanes, ...]) -> Condition:
    """Return the condition in that corner of the lanes where it is hardest to meet."""
    corner = {x.index: Affine((), x.low if condition.value.factor(x.index) > 0 else x.high) for x in lanes}
    return condition.substitute(corner)


@dataclass(frozen=True)
class Lanes:
    """The iterations of a loop that run at once: the first at `low`, `count` in all."""

    loop: Loop
    low: int
    count: int

    @property
    def index(self) -> Index:
        return self.loop.index

    @property
    def high(self) -> int:
        return self.low + (self.count - 1) * self.loop.step

    @property
    def values(self) -> range:
        return range(self.low, self.high + 1, self.loop.step)


class Vector:
    """The iterations of the innermost loops at once."""

    def __init__(self, scope: Scope, lanes: tuple[Lanes, ...]) -> None:
        self.scope = scope
        self.lanes = lanes

    def emit(self, part: Part) -> None:
        """Emit the statements of a part, each for all lanes before the next."""
        for statement in part.statements:
            with located(statement.location):
                store = at_places(statement, part.places, self.scope.plan.nest.loops).store
                if statement.reduction is not None and self._collides(store.place, self.lanes):
                    self._reduce(statement, store)
                else:
                    self._run(store, compute_type(statement))

    # --- statements --------------------------------------------------------------------------------------

    def _run(self, store: Store, type: DType) -> None:
        """Emit a statement: it reads in all lanes, and then writes."""
        held = self._held(store.value, self.lanes)
        self._assign(store, self.lanes, lambda numbers: self._value(store.value, type, held, numbers))

    def _value(
        self, x: Expression, type: DType, held: Mapping[_Key, Callable[[_Numbers], Any]], numbers: _Numbers
    ) -> Any:  # Any: device numbers
        """Return an expression's value in one lane, in which the scope is."""

        def load(x: Load) -> Any:  # Any: a device number
            kept = held.get((x.array.number, x.place))
            return self.scope.storage[x.array].load(x.place, self.scope.values) if kept is None else kept(numbers)

        return evaluate(x, type, load, lambda place: place.evaluate(self.scope.values))

    def _assign(self, store: Store, lanes: tuple[Lanes, ...], value: Callable[[_Numbers], Any]) -> None:  # Any: numbers
        """Compute a value in each lane, and write all of them; in registers first where wide accesses write them."""
        target = self.scope.storage[store.array]
        # Of lanes that write the same element the last one stays, so these write one after the other.
        order = None if self._collides(store.place, lanes) else self._order(store.array, store.place, lanes)

        def converted(numbers: _Numbers) -> Any:  # Any: a device number
            return stored(store, value(numbers), target.tensor.dtype)

        if order is None:
            self._in_lanes(lanes, lambda numbers: target.store(store.place, self.scope.values, converted(numbers)))
            return
        results = _registers(target.tensor.dtype, order)
        rename("_".join([store.array.name, *(lane.index.name for lane in lanes)]), results)
        self._in_lanes(lanes, lambda numbers: results.__setitem__(_place(order, numbers), converted(numbers)))
        copy(results, self._view(store.array, store.place, order))

    # --- reductions --------------------------------------------------------------------------------------

    def _reduce(self, statement: Statement, store: Store) -> None:
        """Emit a reduction into elements that several lanes share."""
        assert statement.reduction is not None, statement
        apart = tuple(x for x in self.lanes if any(mode.mentions(x.index) for mode in store.place))
        summed = tuple(x for x in self.lanes if x not in apart)
        type = compute_type(statement)
        if self._collides(store.place, apart) or not is_associative(statement, type):
            self._in_lanes(self.lanes, lambda _: self._element(store, type))
            return
        target = Load(store.named, store.indices)
        assert isinstance(store.value, Apply), statement
        function, arguments = store.value.function, store.value.arguments
        added = next(x for x in arguments if not (isinstance(x, Load) and x.array is store.array))
        partial = self._partial(store, added, type, summed, apart)
        _combine(partial, function, [lane.count for lane in apart[::-1]])
        held = self._held(target, apart)

        def value(numbers: _Numbers) -> Any:  # Any: a device number
            return function(self._value(target, type, held, numbers), partial[_place(apart[::-1], numbers, 0)])

        self._assign(store, apart, value)

    def _element(self, store: Store, type: DType) -> None:
        """Emit a statement in one lane: what an earlier lane wrote is read."""
        target = self.scope.storage[store.array]
        value = self._value(store.value, type, {}, {})
        target.store(store.place, self.scope.values, stored(store, value, target.tensor.dtype))

    def _partial(
        self, store: Store, added: Expression, type: DType, summed: tuple[Lanes, ...], apart: tuple[Lanes, ...]
    ) -> Tensor:
        """Return what each lane adds, in registers: the number of the summed lane, then the other lanes."""
        held = self._held(added, self.lanes)
        partial = registers(
            type, Layout((math.prod(lane.count for lane in summed), *(lane.count for lane in apart[::-1])))
        )
        rename(f"partial_{store.array.name}", partial)

        def collect(numbers: _Numbers) -> None:
            number: Any = 0
            for lane in summed:
                number = number * lane.count + numbers[lane.index]
            value = as_scalar(self._value(added, type, held, numbers), None).to(type)
            partial[_place(apart[::-1], numbers, number)] = value

        self._in_lanes(self.lanes, collect)
        return partial

    # --- reads and writes --------------------------------------------------------------------------------

    def _held(self, x: Expression, lanes: tuple[Lanes, ...]) -> dict[_Key, Callable[[_Numbers], Any]]:
        """Return what gives each lane its own of those loads that are read for all lanes at once."""  # Any: numbers
        held: dict[_Key, Callable[[_Numbers], Any]] = {}
        for load in x.loads():
            key = (load.array.number, load.place)
            if key not in held:
                read = self._loaded(load, lanes)
                if read is not None:
                    held[key] = read
        return held

    def _loaded(self, load: Load, lanes: tuple[Lanes, ...]) -> Callable[[_Numbers], Any] | None:  # Any: device numbers
        """Read a load for all lanes and return what gives each its own; None where each reads for itself."""
        moving = tuple(lane for lane in lanes if any(mode.mentions(lane.index) for mode in load.place))
        if not moving:
            with self._at({lane.index: lane.low for lane in lanes}):
                value = self.scope.storage[load.array].load(load.place, self.scope.values)
            return lambda numbers: value
        order = self._order(load.array, load.place, moving)
        if order is None:
            return None
        view = self._view(load.array, load.place, order)
        values = _registers(view.dtype, order)
        rename("_".join([load.array.name, *(lane.index.name for lane in moving)]), values)
        copy(view, values)
        return lambda numbers: values[_place(order, numbers)]

    def _in_lanes(self, lanes: tuple[Lanes, ...], body: Callable[[_Numbers], None]) -> None:
        """Emit an unrolled loop for each of the lanes' loops, and a body in which the scope is in one lane."""

        def level(number: int, numbers: _Numbers) -> None:
            if number == len(lanes):
                body(numbers)
                return
            lane = lanes[number]

            def iteration(n: Any) -> None:  # Any: a device number
                with self._at({lane.index: lane.low + n * lane.loop.step}):
                    level(number + 1, {**numbers, lane.index: n})

            name = lane.index.name if (lane.low, lane.loop.step) == (0, 1) else None
            emit_loop(0, lane.count, 1, iteration, unroll=True, name=name)

        level(0, {})

    def _at(self, values: Mapping[Index, Any]) -> ExitStack:  # Any: numbers of host or device
        stack = ExitStack()
        for lane in self.lanes:
            if lane.index in values:
                stack.enter_context(self.scope.at(lane.index, values[lane.index], (lane.low, lane.high)))
        return stack

    def _collides(self, place: tuple[Affine, ...], lanes: tuple[Lanes, ...]) -> bool:
        """Whether two lanes are of one element; True where a quotient or remainder of a lane's index may make it so."""
        if any(mode.divides(lane.index) for mode in place for lane in lanes):
            return True
        seen = set()
        for values in itertools.product(*(lane.values for lane in lanes)):
            point = dict(zip((lane.index for lane in lanes), values, strict=True))
            element = tuple(sum(mode.factor(index) * value for index, value in point.items()) for mode in place)
            if element in seen:
                return True
            seen.add(element)
        return False

    def _order(self, array: Array, place: tuple[Affine, ...], lanes: tuple[Lanes, ...]) -> tuple[Lanes, ...] | None:
        """Return the lanes with that first along which neighbours are neighbours in memory.

        None where there is none, in registers, and where how far they are apart is not a positive number.
        """
        strides = [self._stride(array, place, lane) for lane in lanes]
        ones = [n for n, stride in enumerate(strides) if isinstance(stride, int) and stride == 1]
        if len(ones) != 1 or any(stride is None for stride in strides):  # of two, no access of one is aligned in both
            return None
        return (lanes[ones[0]], *(lane for n, lane in reversed(list(enumerate(lanes))) if n != ones[0]))

    def _stride(self, array: Array, place: tuple[Affine, ...], lane: Lanes) -> Any:  # Any: a number of host or device
        """Return how far apart in memory two neighbouring lanes are, None in registers or for no positive number."""
        moving = [mode for mode, at in enumerate(place) if at.mentions(lane.index)]
        if not moving or any(at.divides(lane.index) for at in place):
            return None
        storage = self.scope.storage[array]
        tensor = storage.tensor
        if is_private(tensor) or not isinstance(tensor.layout, Layout):
            return None
        stride: Any = tensor.layout.stride
        strides = stride if isinstance(stride, tuple) else (stride,)
        steps = storage.steps or (1,) * len(place)
        total: Any = 0
        for mode in moving:
            move = place[mode].factor(lane.index) * lane.loop.step
            if move % steps[mode]:
                return None
            total = total + move // steps[mode] * strides[mode]
        return total if not isinstance(total, int) or total > 0 else None

    def _view(self, array: Array, place: tuple[Affine, ...], order: tuple[Lanes, ...]) -> Tensor:
        """Return the elements of all lanes, a mode for each of their loops in the given order."""
        storage = self.scope.storage[array]
        with self._at({lane.index: lane.low for lane in order}):
            found = storage.coordinates(place, self.scope.values)
        coordinates = found if isinstance(found, tuple) else (found,)
        layout = storage.tensor.layout
        strides = layout.stride if isinstance(layout.stride, tuple) else (layout.stride,)
        offset: Any = 0
        for coordinate, stride in zip(coordinates, strides, strict=True):
            offset = offset + coordinate * stride
        apart = tuple(self._stride(array, place, lane) for lane in order)
        shape = tuple(lane.count for lane in order)
        shown = Layout(shape, apart) if len(order) > 1 else Layout(shape[0], apart[0])
        return Tensor(storage.tensor.engine.offset(offset), shown)


# Of whole numbers these are the same in every order, whatever they are rounded to when they are stored.
_WRAPPING = frozenset({"+", "*", "&", "|", "^"})


def is_associative(statement: Statement, type: DType) -> bool:
    """Whether combining what a reduction adds before it is added gives the same result, but for rounding of floats."""
    assert statement.reduction is not None, statement
    name, added = statement.reduction
    kept = statement.store.array.element_type
    if kept.is_float:
        return type.is_float
    if type.is_float:
        return False
    return name in _WRAPPING or kept is type or (isinstance(added, Load) and added.array.element_type is kept)


def _combine(partial: Tensor, function: Callable[..., Any], others: list[int]) -> None:  # Any: device numbers
    """Combine the partial results along the first mode pairwise, until the first is the result."""
    left: Any = partial.layout.shape
    left = left[0] if isinstance(left, tuple) else left
    while left > 1:
        half = (left + 1) // 2

        def pair(number: Any, *rest: Any, half: int = half) -> None:  # Any: numbers of host or device
            place, other = (number, *rest), (number + half, *rest)
            one = len(place) == 1
            partial[place[0] if one else place] = function(
                partial[place[0] if one else place], partial[other[0] if one else other]
            )

        nest([left - half, *others], pair, unroll=True)
        left = half


def _registers(type: DType, modes: tuple[Lanes, ...]) -> Tensor:
    """Return registers for all lanes, the first mode fastest."""
    shape = tuple(lane.count for lane in modes)
    return registers(type, Layout(shape if len(shape) > 1 else shape[0]))


def _place(modes: tuple[Lanes, ...], numbers: _Numbers, *first: Any) -> Any:  # Any: a number, or a tuple of them
    """Return where a lane is in registers of these modes, with `first` in front of them."""
    place = (*first, *(numbers[lane.index] for lane in modes))
    return place if len(place) > 1 else place[0]
