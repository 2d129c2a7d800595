"""Caches in a loop: filled before what reads them, or some turns ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.errors import ScheduleError
from tilewright.instructions.cp_async import cp_async_commit, cp_async_wait
from tilewright.lang.memory import sync_threads
from tilewright.schedule.caches import Cache, Location
from tilewright.schedule.filling import PrivateCache
from tilewright.schedule.loop_nest import Loop
from tilewright.schedule.shared_caches import SharedCache
from tilewright.schedule.sharing import spread
from tilewright.schedule.steps import is_step_ahead, steps_of

if TYPE_CHECKING:
    from tilewright.schedule.emission import Emission, Parts


def with_caches(emission: Emission, caches: list[Cache], in_loop: bool, body: Callable[[], None]) -> None:
    """Fill caches, emit a body that uses them, and write back what it wrote; `in_loop`: again and again."""
    shared = [SharedCache(emission, c) for c in caches if c.location is Location.SHARED]
    private = [c for c in caches if c.location is not Location.SHARED]
    plan = emission.plan
    if shared:
        if in_loop:
            sync_threads()  # what the last turn read has been read
        filled = [cache for cache in shared if emission.is_filled(cache.cache)]
        for cache in filled:
            cache.fill()
        if any(cache.is_asynchronous for cache in filled):
            cp_async_wait()
        if filled:
            sync_threads()
    with emission.holding({cache.cache.array: cache.storage(cache.buffer(0)) for cache in shared}):
        _with_private(emission, private, body)
    written = [cache for cache in shared if cache.cache.is_written(plan)]
    if written:
        sync_threads()
        for cache in written:
            cache.flush()


def _with_private(emission: Emission, caches: list[Cache], body: Callable[[], None]) -> None:
    if not caches:
        body()
        return
    first, rest = caches[0], caches[1:]
    if first.location is Location.MMA_FRAGMENT:
        assert emission.tensors is not None, first
        emission.tensors.with_fragments(first, lambda: _with_private(emission, rest, body))
        return
    cache = PrivateCache(emission, first)
    tensor = cache.allocate()
    if emission.is_filled(first):
        cache.fill(tensor)
    with emission.holding({first.array: cache.storage(tensor)}):
        _with_private(emission, rest, body)
    if first.is_written(emission.plan):
        cache.flush(tensor)


def is_ahead(cache: Cache) -> bool:
    """Whether a cache is filled for later turns while this one is computed."""
    return is_step_ahead(cache) or (cache.location is Location.SHARED and (cache.stages > 1 or cache.through_registers))


def pipelined_loop(emission: Emission, loop: Loop, depth: int, parts: Parts, caches: list[Cache]) -> None:
    """Emit a loop whose caches are filled some turns ahead."""
    if all(is_step_ahead(cache) for cache in caches):
        steps = steps_of(emission, depth, parts)
        assert steps is not None, caches
        steps.run(parts)
        return
    if any(is_step_ahead(cache) for cache in caches):
        raise ScheduleError(
            f"{loop.index} has caches in shared memory and in fragments that are filled ahead",
            help="split the loop: the outer one fills shared memory, the inner one fragments",
        )
    if len({(c.stages, c.through_registers) for c in caches}) > 1:
        raise ScheduleError(
            f"caches of {', '.join(c.array.name for c in caches)} are filled in one loop, {loop.index}, and have "
            f"{', '.join(str(c.stages) for c in caches)} buffers",
            help="give them the same number",
        )
    shared = [SharedCache(emission, cache) for cache in caches]
    if caches[0].through_registers:
        _through_registers(emission, loop, depth, parts, shared)
    else:
        _in_stages(emission, loop, depth, parts, shared)


def _in_stages(emission: Emission, loop: Loop, depth: int, parts: Parts, caches: list[SharedCache]) -> None:
    """Emit the loop with a ring of buffers: turn t reads buffer t % stages, and fills that of turn t + stages - 1."""
    stages = caches[0].cache.stages
    ahead, step = stages - 1, loop.step
    stop = loop.stop.evaluate(emission.values)
    span = (0, loop.last)
    with emission.at(loop.index, 0, span):
        is_async = any(cache.is_asynchronous for cache in caches)

    def start(value: Any, slot: int = 0, slots: int = 1) -> None:  # Any: a number of host or device
        there = value < stop
        with emission.at(loop.index, value, span):
            for number, piece in spread([cache.vectors for cache in caches], slots)[slot]:
                caches[number].fill(value // step % stages, there, piece)
        if is_async and slot + 1 == slots:
            cp_async_commit()

    def wait() -> None:
        if is_async:
            cp_async_wait(stages - 2)
        sync_threads()

    for turn in range(ahead):
        start(turn * step)

    def tile(value: Any, number: int, body: Callable[[], None]) -> None:  # Any: a number of host or device
        turn = value + number * step
        stage = turn // step % stages
        with (
            emission.at(loop.index, turn, span),
            emission.holding({c.cache.array: c.storage(c.buffer(stage)) for c in caches}),
        ):
            body()

    steps = steps_of(emission, depth + 1, parts) if _runs_across(emission, depth + 1, parts, caches) else None
    if steps is not None:
        wait()
        tile(0, 0, lambda: steps.read(0))

    def turn_of(value: Any) -> None:  # Any: a device number
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
        tile(value, 0, lambda: emission.guarded(depth + 1, parts))

    emission.run(loop, 0, loop.last, turn_of)
    if is_async:
        cp_async_wait(0)
    sync_threads()


def _runs_across(emission: Emission, depth: int, parts: Parts, caches: list[SharedCache]) -> bool:
    """Whether the loop inside reads its first fragments from the next turn's buffers.

    It does where fragments, and nothing else, are read from the buffers: a buffer is then free once the turn's last
    fragments have been read, and what is read beyond the last turn is a buffer, too.
    """
    if any(not is_ahead(cache) for cache in emission.caches(depth, parts)):
        return False
    ahead = {cache.array for cache in emission.caches(depth + 1, parts) if is_step_ahead(cache)}
    return ahead == {cache.cache.array for cache in caches}


def _through_registers(emission: Emission, loop: Loop, depth: int, parts: Parts, caches: list[SharedCache]) -> None:
    """Emit the loop with one buffer: the next turn's elements wait in registers while this turn's are used."""
    stop = loop.stop.evaluate(emission.values)
    span = (0, loop.last)

    def fetched(value: Any) -> list[Any]:  # Any: a number of host or device; tensors in registers
        with emission.at(loop.index, value, span):
            return [cache.fetch(value < stop) for cache in caches]

    for cache, held in zip(caches, fetched(0), strict=True):
        cache.put(held)
    sync_threads()

    def turn(value: Any) -> None:  # Any: a device number
        coming = fetched(value + loop.step)
        with (
            emission.at(loop.index, value, span),
            emission.holding({c.cache.array: c.storage(c.buffer(0)) for c in caches}),
        ):
            emission.guarded(depth + 1, parts)
        sync_threads()
        for cache, held in zip(caches, coming, strict=True):
            cache.put(held)
        sync_threads()

    emission.run(loop, 0, loop.last, turn)
