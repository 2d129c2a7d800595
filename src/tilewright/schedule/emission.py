"""Building a plan's kernel: its loops, conditions and statements become operations of the language.

`Emission` walks through the loops, the last of which may be vectorized.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tilewright.instructions.register_budget import set_registers
from tilewright.instructions.wgmma import wgmma_commit
from tilewright.language.copying import clear
from tilewright.layout import Layout
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.arrays import Array, Store
from tilewright.schedule.beginnings import is_constant, is_of_several
from tilewright.schedule.binding import WARPGROUP, Binding
from tilewright.schedule.caches import Cache, Location
from tilewright.schedule.conditions import is_of_indices
from tilewright.schedule.filling import PrivateCache
from tilewright.schedule.loop_nest import Loop, Part, Statement
from tilewright.schedule.pipelines import CachedLoops
from tilewright.schedule.plan_state import PlanState
from tilewright.schedule.rings import ProducedGroup, budgets
from tilewright.schedule.scope import Parts, Scope, Storage
from tilewright.schedule.tiles import Tiles
from tilewright.schedule.values import Number
from tilewright.schedule.vectors import emit_vectors
from tilewright.schedule.warpgroups import WarpgroupTiles
from tilewright.tensors import Tensor
from tilewright.trace.carry import rename
from tilewright.trace.control import branch
from tilewright.trace.memory import registers
from tilewright.trace.threads import block_idx, grid_dim, linear_thread, thread_idx, warpgroup_id


class Emission:
    """One building of a kernel: walks through the loops, and lets caches, tiles and vectors emit what is theirs."""

    def __init__(
        self,
        plan: PlanState,
        arguments: Mapping[Array, Any],  # Any: tensors and device numbers
        cache_memory: Mapping[Cache, Any] | None = None,  # Any: tensors
    ) -> None:
        self.plan = plan
        self.scope: Scope = Scope(plan, arguments, cache_memory)
        tile = plan.tensorization
        of_warpgroup = tile is not None and tile.recipe.is_of_warpgroup
        self.tiles: Tiles | None = None
        if tile is not None:
            self.tiles = WarpgroupTiles(self.scope, tile) if of_warpgroup else Tiles(self.scope, tile)
        self.cached: CachedLoops = CachedLoops(self.scope, self.tiles, self.guarded)

    def emit(self) -> None:
        """Emit the whole kernel."""
        for binding in self.plan.bindings:
            if not (self.plan.blocks if binding.kind == "BLOCK" else self.plan.producer):
                self._enter(binding)
        self.cached.declare()
        if not self.plan.producer:
            self._compute()
            return
        produces = warpgroup_id() == 0
        branch(produces, self._produce, self._consume)

    # --- roles -------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        """Emit the role that fills caches: one thread of a warpgroup, which gives most of its registers back."""
        budget = budgets(self.scope.threads // WARPGROUP)
        if budget is not None:
            set_registers(budget[0])

        def fill() -> None:
            with self._own_states():
                for group in self.cached.groups.values():
                    assert isinstance(group, ProducedGroup), group
                    group.begin_producer()
                self._each_block(lambda: self._fill(0, self.plan.nest.parts))

        branch(linear_thread() == 0, fill)

    def _fill(self, depth: int, parts: Parts) -> None:
        """Emit the loops around caches that TMA fills, and their filling."""
        alive = tuple(decided for part in parts if (decided := self.scope.decided(part)) is not None)
        group = self.cached.group(depth, alive)
        if isinstance(group, ProducedGroup):
            group.fill()
        if not any(deeper > depth for deeper in self.cached.groups) or not alive:
            return
        loop = self.scope.loops[depth]
        low, high = self.scope.span(loop, alive)

        def iteration(value: Any) -> None:  # Any: a number of host or device
            with self.scope.at(loop.index, value, (low, high)):
                self._fill(depth + 1, alive)

        self._each_value(loop, low, high, iteration)

    def _consume(self) -> None:
        """Emit the role that computes, in all other warpgroups, which take the registers that the producer gave."""
        budget = budgets(self.scope.threads // WARPGROUP)
        if budget is not None:
            set_registers(budget[1])
        for binding in self.plan.bindings:
            if binding.kind != "BLOCK":
                self._enter(binding)
        tiles = self.tiles
        assert isinstance(tiles, WarpgroupTiles), tiles
        with self._own_states():
            for depth, group in self.cached.groups.items():
                assert isinstance(group, ProducedGroup), group
                group.begin_consumer(tiles.may_defer(depth))
                tiles.defers |= group.behind
            self._compute()

    def _each_block(self, body: Callable[[], None]) -> None:
        """Emit a body: where blocks stay, for one number of a block after the other."""
        scope = self.scope
        if self.plan.blocks is None:
            body()
            return
        bound = sorted((b for b in self.plan.bindings if b.kind == "BLOCK"), key=lambda b: b.axis)
        counts = [binding.count(scope.values) for binding in bound]

        def iteration(number: Any) -> None:  # Any: a device number
            values, ranges = dict(scope.values), dict(scope.ranges)
            for binding, count in zip(bound, counts, strict=True):
                self._take(binding, number if binding is bound[-1] else number % count)
                number = number // count
            body()
            scope.values, scope.ranges = values, ranges

        scope.repeat(block_idx.x, math.prod(counts), grid_dim.x, iteration, "number")

    @contextmanager
    def _own_states(self) -> Iterator[None]:
        """Let a role have states of rings of its own."""
        self.scope.ring_states = []
        try:
            yield
        finally:
            self.scope.ring_states = []

    def _compute(self) -> None:
        """Emit what computes, in the places of one block or of several."""
        if self.tiles is not None:
            self.tiles.begin()
        held = {array.memory for array in self.scope.storage}  # by the launch
        self._each_block(lambda: self._compute_once(held))
        if self.tiles is not None:
            self.tiles.finish()

    def _compute_once(self, held: set[Array]) -> None:
        """Emit registers, loops and statements."""
        for array in self.plan.arrays:
            if array not in self.scope.storage and not any(cache.array is array for cache in self.plan.caches):
                self._keep_in_registers(array)
        if self.tiles is not None:
            self.tiles.declare()
        self._begin_scratch(held)
        self.guarded(0, self.plan.nest.parts)
        if self.plan.blocks is not None and any(
            c.is_of_block and not (self.plan.producer and c.is_filled_in_bulk) for c in self.plan.caches
        ):
            self.scope.meet()  # what the caches hold has been read

    def _keep_in_registers(self, array: Array) -> None:
        """Give a TEMP array that has no cache its elements in registers: those that one thread touches."""
        if is_constant(self.plan, array):
            self.scope.storage[array] = self._zero(array)
            return
        serial = frozenset(self.plan.serial)
        first = self.plan.nest.order[0]
        cache = Cache(array, array, first, first, serial, location=Location.PRIVATE, element_type=array.element_type)
        private = PrivateCache(self.scope, cache)
        tensor = private.allocate()
        if array.memory in self.plan.begun:
            clear(tensor)
        self.scope.storage[array] = private.storage(tensor)

    def _zero(self, array: Array) -> Storage:
        """Return the storage of an array that is nothing but zeros: one register is all of its elements."""
        register = registers(array.element_type, 1)
        rename(array.name, register)
        clear(register)
        shape, steps = (1,) * array.rank, (0,) * array.rank
        layout = Layout(shape, steps) if array.rank > 1 else Layout(1, 0)
        return Storage(array, Tensor(register.engine, layout), (Affine((), 0),) * array.rank)

    def _begin_scratch(self, held: set[Array]) -> None:
        """Put zeros into memory of the launch that is read before it is written: each thread where it accesses it.

        Where several threads of a block access an element, one of them does it for all.
        """
        begun = sorted(self.plan.begun & held, key=lambda array: array.number)
        own = [array for array in begun if not is_of_several(self.plan, array, "THREAD")]
        for array in own:
            self._put_zeros(array, self.plan.serial)
        shared = [array for array in begun if array not in own]
        if not shared:
            return
        threads = {index for binding in self.plan.bindings if binding.kind != "BLOCK" for index in binding.indices}
        order = tuple(index for index in self.plan.nest.order if index in threads or index in self.plan.serial)

        def by_one_thread() -> None:
            for array in shared:
                self._put_zeros(array, order)

        branch(self.scope.thread < 1, by_one_thread)
        self.scope.meet()

    def _put_zeros(self, array: Array, order: tuple[Index, ...]) -> None:
        """Emit the loops of a plan that move through an array, in which it is set to zero wherever it is accessed."""
        for part in self.plan.nest.parts:
            for zero in _zeros(part, array):
                values = [*zero.places(), *(condition.value for condition in part.conditions)]
                moving = {s for value in values for s in value.substitute(part.places).symbols()}
                loops = [self.plan.nest.loop(index) for index in order if index in moving]
                self._zero_in(loops, replace(part, statements=(zero,)))

    def _zero_in(self, loops: list[Loop], part: Part) -> None:
        if not loops:
            self.scope.statements((part,))
            return
        loop, (low, high) = loops[0], self.scope.span(loops[0], (part,))

        def iteration(value: Any) -> None:  # Any: a number of host or device
            with self.scope.at(loop.index, value, (low, high)):
                self._zero_in(loops[1:], part)

        if high == low:
            iteration(low)
        elif high is None or high > low:
            self.scope.run(loop, low, high, iteration)

    def _enter(self, binding: Binding) -> None:
        special = block_idx if binding.kind == "BLOCK" else thread_idx
        number = (special.x, special.y, special.z)[binding.axis]
        if binding.kind == "WARP" and binding.axis == 0:
            number = number // self.plan.target.warp_size
        if binding.kind == "WARPGROUP":
            number = warpgroup_id() - 1 if self.plan.producer else warpgroup_id()
        self._take(binding, number)

    def _take(self, binding: Binding, number: Any) -> None:  # Any: a number of the device
        """Give the indices of a binding their values for the number of a block, thread, warp or warpgroup."""
        for index, value in binding.values(number, self.scope.values).items():
            rename(index.name, value)
            self.scope.values[index] = value
            if isinstance(value, int):
                self.scope.ranges[index] = (value, value)

    # --- loops -------------------------------------------------------------------------------------------

    def region(self, depth: int, parts: Parts) -> None:
        """Emit what runs inside of `depth` serial loops: fill the caches of this place, run the loops, write back."""
        group = self.cached.group(depth, parts)
        produced = isinstance(group, ProducedGroup)
        caches = [
            cache
            for cache in self.scope.caches(depth, parts)
            if not (cache.is_ahead and depth) and not (produced and cache.is_filled_in_bulk)
        ]

        def body() -> None:
            if caches:
                self.scope.parts = parts
                self.cached.with_caches(caches, depth > 0, lambda: self.loop(depth, parts))
            else:
                self.loop(depth, parts)

        if isinstance(group, ProducedGroup):
            self._read(group, body)
        else:
            body()

    def _read(self, group: ProducedGroup, body: Callable[[], None]) -> None:
        """Emit a body that reads a stage of a ring; products of the stage before may still be under way."""
        tiles = self.tiles
        assert isinstance(tiles, WarpgroupTiles), tiles
        tiles.is_deferred = group.behind
        group.read(body, wgmma_commit)
        tiles.is_deferred = False

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
        if loop.index in self.plan.vectorized:  # those are innermost, and all that is inside of them
            emit_vectors(self.scope, self.scope.loops[depth:], parts)
            return
        low, high = self.scope.span(loop, parts)

        group = self.cached.group(depth + 1, parts)
        produced = isinstance(group, ProducedGroup)
        ahead = [
            c for c in self.scope.caches(depth + 1, parts) if c.is_ahead and not (produced and c.is_filled_in_bulk)
        ]
        if ahead:
            self.cached.run_ahead(depth, parts, ahead)
            return

        def iteration(value: Any, parts: Parts) -> None:  # Any: a number of host or device
            with self.scope.at(loop.index, value, (low, high)):
                self.guarded(depth + 1, parts)
                if loop.index in self.plan.waiting and low != high:
                    self.scope.meet()  # what other threads wrote is there for the next iteration

        self._each_value(loop, low, high, lambda value: iteration(value, parts))
        if isinstance(group, ProducedGroup):
            group.end()

    def _each_value(self, loop: Loop, low: int, high: int | None, body: Callable[[Any], None]) -> None:
        """Emit a body for each value of a loop's index: one by one where the loop tells fused schedules apart."""
        if high is not None and low == high:
            body(low)
        elif loop.index in self.plan.nest.fusing:
            assert high is not None, loop
            for number in range(low, high + 1, loop.step):
                body(number)
        else:
            self.scope.run(loop, low, high, body)

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
        if any(index in self.plan.waiting for index in self.plan.serial[depth:]):
            return True
        return any(c.is_of_block and self.plan.depth(c) >= depth for c in self.plan.caches)


def _zeros(part: Part, memory: Array) -> list[Statement]:
    """Return statements that set what a part accesses of an array to zero, under the conditions on indices there."""
    found: dict[Any, Statement] = {}  # Any: what tells statements apart
    for statement in part.statements:
        for access in statement.accesses:
            if access.array.memory is memory:
                guards = tuple(g for g in statement.store.guards[: access.under] if is_of_indices(g.test))
                store = Store(access.array, access.place, Number(0), statement.location, guards)
                key = (access.array, access.place, tuple((guard.decision, guard.holds) for guard in guards))
                found.setdefault(key, Statement(statement.number, store))
    return list(found.values())
