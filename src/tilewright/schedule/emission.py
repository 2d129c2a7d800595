"""Building a plan's kernel: its loops, conditions and statements become operations of the language.

`Emission` walks through the loops. A vectorized innermost loop is emitted here too: what lies side by side along it is
read and written by wide accesses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tilewright.language.copying import copy
from tilewright.layout import Layout
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.arrays import Array, Load, Role, Store
from tilewright.schedule.binding import Binding
from tilewright.schedule.caches import Cache, Location
from tilewright.schedule.filling import PrivateCache, is_private
from tilewright.schedule.loop_nest import Condition, Loop, Part, Statement, at_places
from tilewright.schedule.pipelines import CachedLoops
from tilewright.schedule.plan_state import PlanState
from tilewright.schedule.scope import Parts, Scope, compute_type, evaluate, located
from tilewright.schedule.tiles import Tiles
from tilewright.tensors import Tensor
from tilewright.trace.carry import rename
from tilewright.trace.control import branch
from tilewright.trace.control import loop as emit_loop
from tilewright.trace.memory import registers
from tilewright.trace.scalar import as_scalar
from tilewright.trace.threads import block_idx, thread_idx


class Emission:
    """One building of a kernel: walks through the loops, and lets caches, tiles and vectors emit what is theirs."""

    def __init__(
        self,
        plan: PlanState,
        arguments: Mapping[Array, Any],  # Any: tensors and device numbers
        scratch: Mapping[Cache, Any] | None = None,  # Any: tensors
    ) -> None:
        self.plan = plan
        self.scope = Scope(plan, arguments, scratch)
        self.tiles = None if plan.tensorization is None else Tiles(self.scope, plan.tensorization)
        self.cached = CachedLoops(self.scope, self.tiles, self.guarded)

    def emit(self) -> None:
        """Emit the whole kernel."""
        for binding in self.plan.bindings:
            self._enter(binding)
        for array in self.plan.arrays:
            if array.role is Role.TEMP and not any(cache.array is array for cache in self.plan.caches):
                self._keep_in_registers(array)
        if self.tiles is not None:
            self.tiles.declare()
        self.guarded(0, self.plan.nest.parts)

    def _keep_in_registers(self, array: Array) -> None:
        """Give a TEMP array that has no cache its elements in registers: those that one thread touches."""
        serial = frozenset(self.plan.serial)
        first = self.plan.nest.order[0]
        cache = Cache(array, array, first, first, serial, location=Location.PRIVATE, element_type=array.element_type)
        private = PrivateCache(self.scope, cache)
        self.scope.storage[array] = private.storage(private.allocate())

    def _enter(self, binding: Binding) -> None:
        special = block_idx if binding.kind == "BLOCK" else thread_idx
        number = (special.x, special.y, special.z)[binding.axis]
        if binding.kind == "WARP" and binding.axis == 0:
            number = number // self.plan.target.warp_size
        for index, value in binding.values(number, self.scope.values).items():
            rename(index.name, value)
            self.scope.values[index] = value
            if isinstance(value, int):
                self.scope.ranges[index] = (value, value)

    # --- loops -------------------------------------------------------------------------------------------

    def region(self, depth: int, parts: Parts) -> None:
        """Emit what runs inside of `depth` serial loops: fill the caches of this place, run the loops, write back."""
        caches = [cache for cache in self.scope.caches(depth, parts) if not (cache.is_ahead and depth)]
        if caches:
            self.scope.parts = parts
            self.cached.with_caches(caches, depth > 0, lambda: self.loop(depth, parts))
        else:
            self.loop(depth, parts)

    def loop(self, depth: int, parts: Parts) -> None:
        """Emit serial loop number `depth` and what is inside of it; behind the last loop, the statements."""
        if self.tiles is not None:
            if depth == len(self.scope.loops) - 3:
                self.tiles.emit(parts)
                return
            if self.tiles.multiplies_at_once(depth, parts):
                self.tiles.within(parts, self.tiles.multiply_at_once)
                return
        if depth == len(self.scope.loops):
            self.scope.statements(parts)
            return
        loop = self.scope.loops[depth]
        low, high = self.scope.span(loop, parts)

        ahead = [cache for cache in self.scope.caches(depth + 1, parts) if cache.is_ahead]
        if ahead:
            self.cached.run_ahead(depth, parts, ahead)
            return

        def iteration(value: Any, parts: Parts) -> None:  # Any: a number of host or device
            with self.scope.at(loop.index, value, (low, high)):
                self.guarded(depth + 1, parts)

        is_innermost = depth + 1 == len(self.scope.loops) and not self.scope.caches(depth + 1, parts)
        if loop.index in self.plan.vectorized and is_innermost:
            assert high is not None, loop
            if low < high:
                _vector_loop(self.scope, loop, low, high, parts)
                return
        if high is not None and low == high:
            iteration(low, parts)
        elif loop.index in self.plan.nest.fusing:
            assert high is not None, loop
            for number in range(low, high + 1, loop.step):
                iteration(number, parts)
        else:
            self.scope.run(loop, low, high, lambda value: iteration(value, parts))

    def guarded(self, depth: int, parts: Parts) -> None:
        """Emit what is inside of `depth` loops under the conditions that are decided there."""
        alive = tuple(decided for part in parts if (decided := self.scope.decided(part)) is not None)
        if not alive:
            return
        if len(alive) == 1 and not self.synchronises(depth):
            known = tuple(c for c in alive[0].conditions if self.scope.is_known(c.value))
            undecided = replace(alive[0], conditions=tuple(c for c in alive[0].conditions if c not in known))
            self.scope.when(known, lambda: self.region(depth, (undecided,)))
            return
        self.region(depth, alive)

    def synchronises(self, depth: int) -> bool:
        """Whether threads meet inside of `depth` loops, so that none may be missing there."""
        if self.plan.tensorization is not None:
            return True
        return any(c.is_of_block and self.plan.depth(c) >= depth for c in self.plan.caches)


# --- vectors ---------------------------------------------------------------------------------------------

_Key = tuple[tuple[int, int], tuple[Affine, ...]]  # the number of an array, and an element of it


def _vector_loop(scope: Scope, loop: Loop, low: int, high: int, parts: Parts) -> None:
    """Emit the innermost loop from `low` to `high` as vectors; element by element where an edge cuts them.

    The conditions of a part are affine: where they hold for the first and the last iteration, they hold for all.
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
    """The iterations of the innermost loop at once: the first at `low`, `trips` in all."""

    def __init__(self, scope: Scope, loop: Loop, low: int, trips: int) -> None:
        self.scope, self.loop, self.low, self.trips = scope, loop, low, trips

    def emit(self, part: Part) -> None:
        """Emit the statements of a part, each for all iterations before the next."""
        for statement in part.statements:
            with located(statement.location):
                moved = at_places(statement, part.places).store
                self._run(statement, moved)

    def _run(self, statement: Statement, store: Store) -> None:
        scope, type = self.scope, compute_type(statement)
        held: dict[_Key, Callable[[Any], Any]] = {}  # Any: the number of an iteration; device numbers
        for load in store.value.loads():
            key = (load.array.number, load.place)
            if key not in held:
                read = self._loaded(load)
                if read is not None:
                    held[key] = read
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

    def _loaded(self, load: Load) -> Callable[[Any], Any] | None:  # Any: the number of an iteration; device numbers
        """Read a load for all iterations and return what gives each its own; None where each reads for itself."""
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
        """Return how far apart in memory two neighbouring iterations are, None in registers or for no number."""
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
        """Return the elements of all iterations, which lie side by side."""
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
