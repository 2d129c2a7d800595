"""Building a plan's kernel: its loops, conditions and statements become operations of the language.

`Emission` walks through the loops, the last of which may be vectorized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.instructions.barrier import sync_threads
from tilewright.schedule.arrays import Array
from tilewright.schedule.binding import Binding
from tilewright.schedule.caches import Cache, Location
from tilewright.schedule.filling import PrivateCache
from tilewright.schedule.pipelines import CachedLoops
from tilewright.schedule.plan_state import PlanState
from tilewright.schedule.scope import Parts, Scope
from tilewright.schedule.tiles import Tiles
from tilewright.schedule.vectors import emit_vectors
from tilewright.trace.carry import rename
from tilewright.trace.threads import block_idx, thread_idx


class Emission:
    """One building of a kernel: walks through the loops, and lets caches, tiles and vectors emit what is theirs."""

    def __init__(
        self,
        plan: PlanState,
        arguments: Mapping[Array, Any],  # Any: tensors and device numbers
        cache_memory: Mapping[Cache, Any] | None = None,  # Any: tensors
    ) -> None:
        self.plan = plan
        self.scope = Scope(plan, arguments, cache_memory)
        self.tiles = None if plan.tensorization is None else Tiles(self.scope, plan.tensorization)
        self.cached = CachedLoops(self.scope, self.tiles, self.guarded)

    def emit(self) -> None:
        """Emit the whole kernel."""
        for binding in self.plan.bindings:
            self._enter(binding)
        for array in self.plan.arrays:
            if array not in self.scope.storage and not any(cache.array is array for cache in self.plan.caches):
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
        if loop.index in self.plan.vectorized:  # those are innermost, and all that is inside of them
            emit_vectors(self.scope, self.scope.loops[depth:], parts)
            return
        low, high = self.scope.span(loop, parts)

        ahead = [cache for cache in self.scope.caches(depth + 1, parts) if cache.is_ahead]
        if ahead:
            self.cached.run_ahead(depth, parts, ahead)
            return

        def iteration(value: Any, parts: Parts) -> None:  # Any: a number of host or device
            with self.scope.at(loop.index, value, (low, high)):
                self.guarded(depth + 1, parts)
                if loop.index in self.plan.waiting and low != high:
                    sync_threads()  # what other threads wrote is there for the next iteration

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
        if any(index in self.plan.waiting for index in self.plan.serial[depth:]):
            return True
        return any(c.is_of_block and self.plan.depth(c) >= depth for c in self.plan.caches)
