"""Vectorized loops: what lies side by side along the innermost loop is read and written by wide accesses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewright.lang.carry import rename
from tilewright.lang.control import branch
from tilewright.lang.control import loop as emit_loop
from tilewright.lang.copying import copy
from tilewright.lang.memory import registers
from tilewright.lang.scalar import as_scalar
from tilewright.layout import Layout
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.arrays import Array, Load, Store
from tilewright.schedule.filling import is_private
from tilewright.schedule.loop_nest import Condition, Loop, Part
from tilewright.schedule.scope import Parts, Scope, compute_type, evaluate, located
from tilewright.schedule.statements import Statement, at_places
from tilewright.tensors import Tensor

_Key = tuple[int, tuple[Affine, ...]]


def vector_loop(scope: Scope, loop: Loop, low: int, high: int, parts: Parts) -> None:
    """Emit the innermost loop from `low` to `high` as vectors; element by element where an edge cuts them.

    The conditions of a part are affine, so that they hold for all turns where they hold for the first and the last one.
    """
    span = (low, high)

    def by_elements(part: Part) -> None:
        def iteration(value: Any) -> None:  # Any: a device number
            with scope.at(loop.index, value, span):
                scope.statements((part,))

        scope.run(loop, low, high, iteration)

    for part in parts:
        alive = scope.decided(part)
        if alive is None:
            continue
        if any(c.is_equality and c.value.factor(loop.index) for c in alive.conditions):
            by_elements(alive)
            continue
        ends = tuple(_everywhere(condition, loop.index, low, high) for condition in alive.conditions)
        free = replace(alive, conditions=())
        vector = _Vector(scope, loop, low, (high - low) // loop.step + 1)
        depends = any(condition.value.factor(loop.index) for condition in alive.conditions)
        whole = scope.holds(ends)
        branch(
            whole,
            lambda free=free, vector=vector: vector.emit(free),  # type: ignore[misc]  # bound now
            (lambda alive=alive: by_elements(alive)) if depends else None,  # type: ignore[misc]  # bound now
        )


def _everywhere(condition: Condition, index: Index, low: int, high: int) -> Condition:
    """Return the condition at that end of the loop where it is hardest to meet."""
    return condition.substitute({index: Affine((), low if condition.value.factor(index) > 0 else high)})


class _Vector:
    """The turns of the innermost loop at once: the first at `low`, `trips` in all."""

    def __init__(self, scope: Scope, loop: Loop, low: int, trips: int) -> None:
        self.scope, self.loop, self.low, self.trips = scope, loop, low, trips

    def emit(self, part: Part) -> None:
        """Emit the statements of a part, each for all turns before the next."""
        for statement in part.statements:
            with located(statement.location):
                moved = at_places(statement, part.places).store
                self._run(statement, moved)

    def _run(self, statement: Statement, store: Store) -> None:
        scope, type = self.scope, compute_type(statement)
        held: dict[_Key, Callable[[Any], Any]] = {}  # Any: the number of a turn; device numbers
        for load in store.value.loads():
            key = (load.array.number, load.place)
            if key not in held:
                found = self._loaded(load)
                if found is not None:
                    held[key] = found
        target = scope.storage[store.array]
        results = None
        if self._stride(store.array, store.place) == 1:
            results = registers(target.tensor.dtype, self.trips)
            rename(f"{store.array.name}_{self.loop.index}", results)

        def iteration(number: Any) -> None:  # Any: a device number
            with self._at(self.low + number * self.loop.step):

                def load(x: Load) -> Any:  # Any: a device number
                    kept = held.get((x.array.number, x.place))
                    return scope.storage[x.array].load(x.place, scope.values) if kept is None else kept(number)

                value = evaluate(store.value, type, load, lambda place: place.evaluate(scope.values))
                value = as_scalar(value, None).to(target.tensor.dtype)
                if results is None:
                    target.store(store.place, scope.values, value)
                else:
                    results[number] = value

        name = self.loop.index.name if (self.low, self.loop.step) == (0, 1) else None
        emit_loop(0, self.trips, 1, iteration, unroll=True, name=name)
        if results is not None:
            copy(results, self._view(store.array, store.place))

    def _loaded(self, load: Load) -> Callable[[Any], Any] | None:  # Any: the number of a turn; device numbers
        """Read a load for all turns and return what gives each turn its own; None where each reads for itself."""
        stride = self._stride(load.array, load.place)
        if stride == 0:
            with self._at(self.low):
                value = self.scope.storage[load.array].load(load.place, self.scope.values)
            return lambda number: value
        if stride != 1:
            return None
        view = self._view(load.array, load.place)
        values = registers(view.dtype, self.trips)
        rename(f"{load.array.name}_{self.loop.index}", values)
        copy(view, values)
        return lambda number: values[number]

    def _at(self, value: Any) -> Any:  # Any: a number of host or device; a context
        return self.scope.at(self.loop.index, value, (self.low, self.low + (self.trips - 1) * self.loop.step))

    def _stride(self, array: Array, place: tuple[Affine, ...]) -> int | None:
        """Return how far apart in memory two neighbouring turns are, None where that is no number, or in registers."""
        moving = [mode for mode, at in enumerate(place) if at.factor(self.loop.index)]
        if not moving:
            return 0
        storage = self.scope.storage[array]
        tensor = storage.tensor
        if is_private(tensor) or not isinstance(tensor.layout, Layout):
            return None
        strides = tensor.layout.stride if isinstance(tensor.layout.stride, tuple) else (tensor.layout.stride,)
        steps = storage.steps or (1,) * len(place)
        total = 0
        for mode in moving:
            move, stride = place[mode].factor(self.loop.index) * self.loop.step, strides[mode]
            if not isinstance(stride, int) or move % steps[mode]:
                return None
            total += move // steps[mode] * stride
        return total

    def _view(self, array: Array, place: tuple[Affine, ...]) -> Tensor:
        """Return the elements of all turns, which lie side by side."""
        storage = self.scope.storage[array]
        with self._at(self.low):
            found = storage.coordinates(place, self.scope.values)
        coordinates = found if isinstance(found, tuple) else (found,)
        layout = storage.tensor.layout
        strides = layout.stride if isinstance(layout.stride, tuple) else (layout.stride,)
        offset: Any = 0
        for coordinate, stride in zip(coordinates, strides, strict=True):
            offset = offset + coordinate * stride
        return Tensor(storage.tensor.engine.offset(offset), Layout(self.trips, 1))
