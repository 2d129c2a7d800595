"""Caches in loops: filled before what reads them, or ahead of it in shared memory, registers or fragments."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tilewright.errors import ScheduleError
from tilewright.instructions.barrier import sync_threads
from tilewright.instructions.cp_async import cp_async_commit, cp_async_wait
from tilewright.instructions.proxy_fence import fence_proxy_async
from tilewright.language.copying import clear, copy
from tilewright.schedule.caches import Cache, Location
from tilewright.schedule.filling import PrivateCache
from tilewright.schedule.fragments import HeldFragments
from tilewright.schedule.loop_nest import Loop
from tilewright.schedule.rings import BulkGroup, ProducedGroup, SharedGroup
from tilewright.schedule.scope import Parts, Scope
from tilewright.schedule.shared_caches import SharedCache, spread
from tilewright.schedule.tiles import Tiles
from tilewright.tensors import Tensor

Inside = Callable[[int, Parts], None]  # emits what parts do inside of so many serial loops


class CachedLoops:
    """Emits caches around what uses them, and loops whose caches are filled ahead. `inside` emits the rest."""

    def __init__(self, scope: Scope, tiles: Tiles | None, inside: Inside) -> None:
        self.scope = scope
        self.tiles = tiles
        self.inside = inside
        self.groups: dict[int, BulkGroup] = {}  # what TMA fills, by the serial loops around

    def declare(self) -> None:
        """Make what TMA fills, with its mbarriers, at the beginning of the kernel."""
        found: dict[int, list[Cache]] = {}
        for cache in self.scope.plan.caches:
            if cache.is_filled_in_bulk:
                found.setdefault(self.scope.plan.depth(cache), []).append(cache)
        for depth, caches in found.items():
            self._refuse_unequal(depth, caches)
            self.groups[depth] = (ProducedGroup if self.scope.plan.producer else SharedGroup)(self.scope, caches)
        if found:
            sync_threads()  # the mbarriers are there

    def group(self, depth: int, parts: Parts) -> BulkGroup | None:
        """Return the caches that TMA fills inside of so many serial loops, where some part uses them."""
        return (
            self.groups.get(depth)
            if any(cache.is_filled_in_bulk for cache in self.scope.caches(depth, parts))
            else None
        )

    def _order(self, caches: list[SharedCache]) -> None:
        """Order what threads wrote before what matrix instructions of warpgroups read through the async proxy."""
        if any(self.scope.plan.is_read_by_warpgroups(cache.cache) for cache in caches):
            fence_proxy_async()

    def with_caches(self, caches: list[Cache], in_loop: bool, body: Callable[[], None]) -> None:
        """Fill caches, emit a body that uses them, and write back what it wrote; `in_loop`: again and again."""
        scope, plan = self.scope, self.scope.plan
        later = [cache for cache in caches if any(cache.source is other for other in caches)]
        if later:  # filled at one place, each from the other
            first = [cache for cache in caches if cache not in later]
            self.with_caches(first, in_loop, lambda: self.with_caches(later, False, body))
            return
        bulk = [cache for cache in caches if cache.is_filled_in_bulk]
        group = self.groups[plan.depth(bulk[0])] if bulk else None
        shared = [SharedCache(scope, cache) for cache in caches if cache.is_of_block and not cache.is_filled_in_bulk]
        private = [cache for cache in caches if not cache.is_of_block]
        if shared or group is not None:
            if in_loop:
                scope.meet()  # what the last iteration read has been read
            if isinstance(group, SharedGroup):
                group.start()
            filled = [cache for cache in shared if scope.is_filled(cache.cache)]
            begun = [cache for cache in shared if plan.begins_with_zeros(cache.cache)]
            for cache in filled:
                cache.fill()
            for cache in begun:
                cache.clear()
            if any(cache.is_asynchronous for cache in filled):
                cp_async_wait()
            self._order(filled)
            if filled or begun:
                scope.meet()
        held = {cache.cache.array: cache.storage(cache.buffer(0)) for cache in shared}
        if isinstance(group, SharedGroup):
            held |= group.storage(group.wait())
        with scope.holding(held):
            self._with_private(private, body)
        written = [cache for cache in shared if plan.is_written(cache.cache)]
        if written:
            self.scope.meet()
            for cache in written:
                cache.flush()

    def _with_private(self, caches: list[Cache], body: Callable[[], None]) -> None:
        if not caches:
            body()
            return
        first, others = caches[0], caches[1:]
        if first.location is Location.MMA_FRAGMENT:
            assert self.tiles is not None, first
            self.tiles.with_fragments(first, lambda: self._with_private(others, body))
            return
        cache = PrivateCache(self.scope, first)
        tensor = cache.allocate()
        if self.scope.is_filled(first):
            cache.fill(tensor)
        if self.scope.plan.begins_with_zeros(first):
            clear(tensor)
        with self.scope.holding({first.array: cache.storage(tensor)}):
            self._with_private(others, body)
        if self.scope.plan.is_written(first):
            cache.flush(tensor)

    def run_ahead(self, depth: int, parts: Parts, caches: list[Cache]) -> None:
        """Emit serial loop number `depth`, whose caches are filled some iterations ahead."""
        loop = self.scope.loops[depth]
        in_fragments = [cache for cache in caches if cache.location is Location.MMA_FRAGMENT]
        if len(in_fragments) == len(caches):
            steps = self._steps_of(depth, parts)
            assert steps is not None, caches
            steps.run(parts)
            return
        if in_fragments:
            raise ScheduleError(
                f"{loop.index} has caches in shared memory and in fragments that are filled ahead",
                help="split the loop: the outer one fills shared memory, the inner one fragments",
            )
        of_block = [cache for cache in caches if cache.is_of_block]
        self._refuse_unequal(depth + 1, of_block)
        private = [_Ahead(self.scope, loop, cache) for cache in caches if not cache.is_of_block]
        shared = [SharedCache(self.scope, cache) for cache in of_block if not cache.is_filled_in_bulk]

        def inside(value: Any) -> None:  # Any: a device number
            with ExitStack() as stack:
                for cache in private:
                    stack.enter_context(cache.iteration(value))
                self.inside(depth + 1, parts)

        for cache in private:
            cache.begin()
        if not of_block:
            self._in_registers(loop, inside)
        elif of_block[0].through_registers:
            self._through_registers(loop, shared, inside)
        else:
            self._in_stages(loop, depth, parts, shared, inside)

    def _refuse_unequal(self, depth: int, caches: list[Cache]) -> None:
        """Raise `ScheduleError` for caches that are filled at one place, and have different numbers of buffers."""
        if len({(c.stages, c.through_registers) for c in caches}) > 1:
            raise ScheduleError(
                f"caches of {', '.join(c.array.name for c in caches)} are filled in one loop, "
                f"{self.scope.loops[depth - 1].index}, and have {', '.join(str(c.stages) for c in caches)} buffers",
                help="give them the same number",
            )

    def _in_registers(self, loop: Loop, inside: Callable[[Any], None]) -> None:
        """Emit a loop whose caches are in registers alone."""

        def iteration(value: Any) -> None:  # Any: a device number
            with self.scope.at(loop.index, value, (0, loop.last)):
                inside(value)

        self.scope.run(loop, 0, loop.last, iteration)

    def _in_stages(
        self, loop: Loop, depth: int, parts: Parts, caches: list[SharedCache], inside: Callable[[Any], None]
    ) -> None:
        """Emit the loop with a ring of buffers.

        Iteration t reads buffer t % stages, and fills that of iteration t + stages - 1.
        """
        scope = self.scope
        group = self.group(depth + 1, parts)
        assert group is None or isinstance(group, SharedGroup), group
        stages = group.stages if group is not None else caches[0].cache.stages
        ahead, step = stages - 1, loop.step
        stop = loop.stop.evaluate(scope.values)
        span = (0, loop.last)
        with scope.at(loop.index, 0, span):
            is_async = any(cache.is_asynchronous for cache in caches)

        def start(value: Any, slot: int = 0, slots: int = 1) -> None:  # Any: a number of host or device
            there = value < stop
            with scope.at(loop.index, value, span):
                if group is not None and slot == 0:
                    group.start(there)
                for number, piece in spread([cache.vectors for cache in caches], slots)[slot]:
                    caches[number].fill(value // step % stages, there, piece)
            if is_async and slot + 1 == slots:
                cp_async_commit()

        def wait() -> None:
            if is_async:
                cp_async_wait(stages - 2)
            self._order(caches)
            self.scope.meet()

        for number in range(ahead):
            start(number * step)

        def tile(value: Any, number: int, body: Callable[[], None]) -> None:  # Any: a number of host or device
            moved = value + number * step
            stage = moved // step % stages
            held = {c.cache.array: c.storage(c.buffer(stage)) for c in caches}
            if group is not None:
                held |= group.storage(group.wait())
            with scope.at(loop.index, moved, span), scope.holding(held):
                body()

        steps = self._steps_of(depth + 1, parts) if self._runs_across(depth + 1, parts, caches) else None
        if steps is not None:
            wait()
            tile(0, 0, lambda: steps.read(0))

        def iteration(value: Any) -> None:  # Any: a device number
            if steps is not None:
                steps.run_across(
                    parts,
                    lambda number, body: tile(value, number, body),
                    wait,
                    lambda slot, slots: start(value + ahead * step, slot, slots),
                )
                return
            wait()
            start(value + ahead * step)
            tile(value, 0, lambda: inside(value))

        scope.run(loop, 0, loop.last, iteration)
        if is_async:
            cp_async_wait(0)
        self.scope.meet()

    def _runs_across(self, depth: int, parts: Parts, caches: list[SharedCache]) -> bool:
        """Whether the loop inside reads its first fragments from the next iteration's buffers.

        It does where fragments, and nothing else, are read from the buffers: a buffer is then free once the iteration's
        last fragments have been read, and what is read beyond the last iteration is a buffer, too.
        """
        if any(not cache.is_ahead or cache.is_filled_in_bulk for cache in self.scope.caches(depth, parts)):
            return False
        return {cache.array for cache in self._read_ahead(depth, parts)} == {cache.cache.array for cache in caches}

    def _read_ahead(self, depth: int, parts: Parts) -> list[Cache]:
        """Return the caches in fragments that serial loop number `depth` reads ahead."""
        caches = self.scope.caches(depth + 1, parts)
        return [cache for cache in caches if cache.is_ahead and cache.location is Location.MMA_FRAGMENT]

    def _steps_of(self, depth: int, parts: Parts) -> _Steps | None:
        """Return the steps of a serial loop that has fragments read ahead, None where it has none."""
        if depth >= len(self.scope.loops) or self.tiles is None:
            return None
        caches = self._read_ahead(depth, parts)
        return _Steps(self.scope, self.tiles, depth, caches, self.inside) if caches else None

    def _through_registers(self, loop: Loop, caches: list[SharedCache], inside: Callable[[Any], None]) -> None:
        """Emit the loop with one buffer: the next iteration's elements wait in registers while this one's are used."""
        scope = self.scope
        stop = loop.stop.evaluate(scope.values)
        span = (0, loop.last)

        def fetched(value: Any) -> list[Any]:  # Any: a number of host or device; tensors in registers
            with scope.at(loop.index, value, span):
                return [cache.fetch(value < stop) for cache in caches]

        for cache, held in zip(caches, fetched(0), strict=True):
            cache.put(held)
        self.scope.meet()

        def iteration(value: Any) -> None:  # Any: a device number
            coming = fetched(value + loop.step)
            with (
                scope.at(loop.index, value, span),
                scope.holding({c.cache.array: c.storage(c.buffer(0)) for c in caches}),
            ):
                inside(value)
            self.scope.meet()
            for cache, held in zip(caches, coming, strict=True):
                cache.put(held)
            self.scope.meet()

        scope.run(loop, 0, loop.last, iteration)


class _Ahead:
    """A cache in the registers of each thread, read so many iterations of a loop ahead.

    Of `stages` sets of registers the first is that of the present iteration. Each iteration reads the last one, and
    moves all by one in the end, which costs nothing where the compiler writes the loop out.
    """

    def __init__(self, scope: Scope, loop: Loop, cache: Cache) -> None:
        self.scope, self.loop = scope, loop
        self.cache = PrivateCache(scope, cache)
        self.sets = [self.cache.allocate() for _ in range(cache.stages)]
        self.stop = loop.stop.evaluate(scope.values)

    def _read(self, value: Any, tensor: Tensor) -> None:  # Any: a number of host or device
        with self.scope.at(self.loop.index, value, (0, self.loop.last)):
            self.cache.fill(tensor, value < self.stop)

    def begin(self) -> None:
        """Read what the first iterations use, before the loop."""
        for number, tensor in enumerate(self.sets[:-1]):
            self._read(number * self.loop.step, tensor)

    @contextmanager
    def iteration(self, value: Any) -> Iterator[None]:  # Any: a device number
        """Read ahead, and let accesses go to what has been read for this iteration."""
        self._read(value + (len(self.sets) - 1) * self.loop.step, self.sets[-1])
        with self.scope.holding({self.cache.cache.array: self.cache.storage(self.sets[0])}):
            yield
        for present, coming in itertools.pairwise(self.sets):
            copy(coming, present)


class _Steps:
    """A loop that is written out, each iteration with fragments of its own, read while the one before multiplies."""

    def __init__(self, scope: Scope, tiles: Tiles, depth: int, caches: list[Cache], inside: Inside) -> None:
        self.scope, self.depth, self.inside = scope, depth, inside
        self.loop: Loop = scope.loops[depth]
        if self.loop.trips is None:
            raise ScheduleError(
                f"fragments are read ahead in {self.loop.index}, whose length only the launch knows",
                help="split the loop, and read ahead in the inner one",
            )
        self.trips: int = self.loop.trips
        self.held = [HeldFragments(tiles, cache, self.trips) for cache in caches]

    def read(self, step: int) -> None:
        """Read the fragments of a step."""
        with self.scope.knowing({self.loop.index: step * self.loop.step}):
            for held in self.held:
                held.read(step)

    def multiply(self, step: int, parts: Parts) -> None:
        """Emit what a step does with its fragments."""
        with (
            self.scope.knowing({self.loop.index: step * self.loop.step}),
            self.scope.holding({held.cache.array: held.operand(step) for held in self.held}),
        ):
            self.inside(self.depth + 1, parts)

    def run(self, parts: Parts) -> None:
        """Emit the loop by itself."""
        self.read(0)
        for step in range(self.trips):
            if step + 1 < self.trips:
                self.read(step + 1)
            self.multiply(step, parts)

    def run_across(
        self,
        parts: Parts,
        tile: Callable[[int, Callable[[], None]], None],
        wait: Callable[[], None],
        start: Callable[[int, int], None],
    ) -> None:
        """Emit the loop for one tile of shared memory, the last step of which reads from the next tile.

        `tile(n, body)` emits a body for the n-th tile from here on; `wait` lets the next tile be there, `start(s, n)`
        begins to fill part s of n of a later one: a part a step, so that copies and reads do not wait for each other.
        The fragments of step 0 have been read.
        """
        if self.trips == 1:  # one set of fragments: it is free when it has been multiplied
            start(0, 1)
            tile(0, lambda: self.multiply(0, parts))
            wait()
            tile(1, lambda: self.read(0))
            return
        for step in range(self.trips):
            following = (step + 1) % self.trips
            if following == 0:
                wait()
            tile(1 if following == 0 else 0, lambda following=following: self.read(following))  # type: ignore[misc]  # bound now
            if following:
                start(step, self.trips - 1)
            tile(0, lambda step=step: self.multiply(step, parts))  # type: ignore[misc]  # bound now
