"""Vectorized loops: what lies side by side along the innermost loop is read and written by wide accesses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.errors import ScheduleError
from tilewright.lang.carry import rename
from tilewright.lang.copying import copy
from tilewright.lang.loops import for_loop
from tilewright.lang.memory import registers
from tilewright.lang.ranges import DeviceRange
from tilewright.lang.scalar import as_scalar
from tilewright.layout import Layout
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.evaluation import compute_type, evaluate
from tilewright.schedule.expressions import Load, Store
from tilewright.schedule.filling import is_private
from tilewright.schedule.loop_nest import Condition, Loop, LoopNest, Part
from tilewright.schedule.rewriting import at_places
from tilewright.schedule.statements import Access, Statement
from tilewright.tensors import Tensor

if TYPE_CHECKING:
    from tilewright.schedule.emission import Emission, Parts
    from tilewright.schedule.plan import Plan

_Key = tuple[tuple[int, int], tuple[Affine, ...]]


def vector_loop(emission: Emission, loop: Loop, low: int, high: int, parts: Parts) -> None:
    """Emit the innermost loop from `low` to `high` as vectors; element by element where an edge cuts them.

    The conditions of a part are affine, so that they hold for all turns where they hold for the first and the last one.
    """
    span = (low, high)

    def by_elements(part: Part) -> None:
        def turn(value: Any) -> None:  # Any: a device number
            with emission.at(loop.index, value, span):
                emission.statements((part,))

        emission.run(loop, low, high, turn)

    for part in parts:
        alive = emission.decided(part)
        if alive is None:
            continue
        if any(c.is_equality and c.value.factor(loop.index) for c in alive.conditions):
            by_elements(alive)
            continue
        ends = tuple(_everywhere(condition, loop.index, low, high) for condition in alive.conditions)
        free = replace(alive, conditions=())
        vector = _Vector(emission, loop, low, (high - low) // loop.step + 1)
        depends = any(condition.value.factor(loop.index) for condition in alive.conditions)
        whole = emission.holds(ends)
        emission.choose(
            whole,
            lambda free=free, vector=vector: vector.emit(free),  # type: ignore[misc]  # bound now
            (lambda alive=alive: by_elements(alive)) if depends else None,  # type: ignore[misc]  # bound now
        )


def _everywhere(condition: Condition, index: Index, low: int, high: int) -> Condition:
    """Return the condition at that end of the loop where it is hardest to meet."""
    return condition.substitute({index: Affine((), low if condition.value.factor(index) > 0 else high)})


class _Vector:
    """The turns of the innermost loop at once: the first at `low`, `trips` in all."""

    def __init__(self, emission: Emission, loop: Loop, low: int, trips: int) -> None:
        self.emission, self.loop, self.low, self.trips = emission, loop, low, trips

    def emit(self, part: Part) -> None:
        """Emit the statements of a part, each for all turns before the next."""
        from tilewright.schedule.emission import located

        for statement in part.statements:
            with located(statement.location):
                moved = at_places(statement, part.places).store
                self._run(statement, moved)

    def _run(self, statement: Statement, store: Store) -> None:
        emission, type = self.emission, compute_type(statement)
        held: dict[_Key, Callable[[Any], Any]] = {}  # Any: the number of a turn; device numbers
        for load in store.value.loads():
            key = (load.array.number, load.place)
            if key not in held:
                found = self._loaded(load)
                if found is not None:
                    held[key] = found
        target = emission.storage[store.array]
        results = None
        if self._stride(store.array, store.place) == 1:
            results = registers(target.tensor.dtype, self.trips)
            rename(f"{store.array.name}_{self.loop.index}", results)

        def turn(number: Any) -> tuple[()]:  # Any: a device number
            if (self.low, self.loop.step) == (0, 1):
                rename(self.loop.index.name, number)
            with self._at(self.low + number * self.loop.step):

                def load(x: Load) -> Any:  # Any: a device number
                    kept = held.get((x.array.number, x.place))
                    return emission.storage[x.array].load(x.place, emission.values) if kept is None else kept(number)

                value = evaluate(store.value, type, load, lambda place: place.evaluate(emission.values))
                value = as_scalar(value, None).to(target.tensor.dtype)
                if results is None:
                    target.store(store.place, emission.values, value)
                else:
                    results[number] = value
            return ()

        for_loop(DeviceRange(0, self.trips, 1, unroll=True), turn, (), {})
        if results is not None:
            copy(results, self._view(store.array, store.place))

    def _loaded(self, load: Load) -> Callable[[Any], Any] | None:  # Any: the number of a turn; device numbers
        """Read a load for all turns and return what gives each turn its own; None where each reads for itself."""
        stride = self._stride(load.array, load.place)
        if stride == 0:
            with self._at(self.low):
                value = self.emission.storage[load.array].load(load.place, self.emission.values)
            return lambda number: value
        if stride != 1:
            return None
        view = self._view(load.array, load.place)
        values = registers(view.dtype, self.trips)
        rename(f"{load.array.name}_{self.loop.index}", values)
        copy(view, values)
        return lambda number: values[number]

    def _at(self, value: Any) -> Any:  # Any: a number of host or device; a context
        return self.emission.at(self.loop.index, value, (self.low, self.low + (self.trips - 1) * self.loop.step))

    def _stride(self, array: Any, place: tuple[Affine, ...]) -> int | None:  # Any: an Array
        """Return how far apart in memory two neighbouring turns are, None where that is no number, or in registers."""
        moving = [mode for mode, at in enumerate(place) if at.factor(self.loop.index)]
        if not moving:
            return 0
        storage = self.emission.storage[array]
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

    def _view(self, array: Any, place: tuple[Affine, ...]) -> Tensor:  # Any: an Array
        """Return the elements of all turns, which lie side by side."""
        storage = self.emission.storage[array]
        with self._at(self.low):
            found = storage.coordinates(place, self.emission.values)
        coordinates = found if isinstance(found, tuple) else (found,)
        layout = storage.tensor.layout
        strides = layout.stride if isinstance(layout.stride, tuple) else (layout.stride,)
        offset: Any = 0
        for coordinate, stride in zip(coordinates, strides, strict=True):
            offset = offset + coordinate * stride
        return Tensor(storage.tensor.engine.offset(offset), Layout(self.trips, 1))


# --- legality ----------------------------------------------------------------------------------------------


def refuse_recurrences(nest: LoopNest, index: Index) -> None:
    """Raise `ScheduleError` where one turn of a loop reads or writes an element that another turn writes."""
    loop = nest.loop(index)
    turns = range(0, (loop.last or 0) + 1, loop.step)
    for part in nest.parts:
        accesses = [
            replace(access, place=tuple(mode.substitute(part.places) for mode in access.place))
            for statement in part.statements
            for access in statement.accesses
        ]
        for write in (access for access in accesses if access.is_write):
            for other in accesses:
                if other.array is write.array and _meet(write, other, index, turns):
                    raise ScheduleError(
                        f"{index} cannot be vectorized: {write} and {other} are of the same element in different turns",
                        location=write.statement.location,
                        help="vectorize a loop whose turns are independent of one another",
                    )


def _meet(write: Access, other: Access, index: Index, turns: range) -> bool:
    """Whether the write of one turn and an access of another one may be of the same element, all other loops equal."""
    factors = [(a.factor(index), b.factor(index)) for a, b in zip(write.place, other.place, strict=True)]
    rests = [
        (a - x * index) - (b - y * index)
        for a, b, (x, y) in zip(write.place, other.place, factors, strict=True)
    ]  # fmt: skip
    # Where other loops keep the places apart or not, they may not: only what is known here counts.
    known = [(rest.constant, x, y) for rest, (x, y) in zip(rests, factors, strict=True) if rest.is_constant]
    if all(x == y for _, x, y in known):  # then only the distance between the turns matters
        distances = [d for d in range(-turns[-1], turns[-1] + 1, turns.step) if d]
        return any(all(rest + x * d == 0 for rest, x, _ in known) for d in distances)
    return any(all(rest + x * s - y * t == 0 for rest, x, y in known) for s in turns for t in turns if s != t)


def refuse_loops(plan: Plan) -> None:
    """Raise `ScheduleError` for a vectorized loop that is not the innermost one of those that a thread runs."""
    for index in plan.vectorized:
        if index in plan.bound:
            raise ScheduleError(f"{index} is vectorized and bound", help="vectorize a loop that each thread runs")
        inside = plan.serial[plan.serial.index(index) + 1 :]
        if inside:
            raise ScheduleError(
                f"{index} is vectorized, and {', '.join(map(str, inside))} runs inside of it",
                help="reorder the schedule so that the vectorized loop is the innermost one",
            )
        refuse_recurrences(plan.nest, index)
