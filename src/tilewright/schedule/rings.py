"""Caches that TMA fills: their mbarriers, who starts the copies, and who waits for them.

The caches of one place among the loops form a group, whose stages are filled together. Without a producer one thread of
the block starts the copies, and all threads wait for the mbarrier of the stage; before a stage is filled again, a
barrier of the block says that it has been read. With a producer the stages are those of a `tw.pipeline`: the producer
waits for the empty stage, the others for the full one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright import atoms
from tilewright.instructions.mbarrier import MBarrier
from tilewright.instructions.register_budget import registers_at_launch
from tilewright.instructions.wgmma import wgmma_wait
from tilewright.language.copying import copy
from tilewright.language.pipeline import ConsumerState, ProducerState, Ring, pipeline
from tilewright.layout.layouts import raw_layout
from tilewright.schedule.binding import WARPGROUP
from tilewright.schedule.caches import Cache
from tilewright.schedule.scope import Scope, StageState, Storage
from tilewright.schedule.shared_caches import SharedCache
from tilewright.tensors import guarded
from tilewright.trace.carry import rename
from tilewright.trace.control import branch
from tilewright.trace.scalar import as_scalar
from tilewright.trace.threads import linear_thread


def budgets(consumers: int) -> tuple[int, int] | None:
    """Return how many registers a thread of a producer keeps, and one of so many warpgroups beside it then has.

    None for one warpgroup: it has all that a thread can have from the beginning.

    >>> [budgets(consumers) for consumers in (1, 2, 3)]
    [None, (40, 232), (32, 160)]
    """
    if consumers == 1:
        return None
    given = {2: 40, 3: 32}.get(consumers, 24)
    total = registers_at_launch((consumers + 1) * WARPGROUP) * (consumers + 1)
    return given, min((total - given) // consumers // 8 * 8, 240)


class BulkGroup:
    """The caches that TMA fills at one place, in as many stages as they have buffers; made where the kernel begins."""

    def __init__(self, scope: Scope, caches: list[Cache]) -> None:
        self.scope = scope
        self.caches: list[SharedCache] = [SharedCache(scope, cache) for cache in caches]
        self.stages: int = caches[0].stages
        self.bytes: int = sum(cache.region.size * cache.cache.element_type.bytes for cache in self.caches)

    def storage(self, stage: Any) -> dict[Any, Storage]:  # Any: a number of host or device; arrays
        """Return where accesses go while a stage is used."""
        return {cache.cache.array: cache.storage(cache.buffer(stage)) for cache in self.caches}

    def _copy(self, stage: Any, full: MBarrier) -> None:  # Any: as above
        for cache in self.caches:
            copy(atoms.SM90_TMA_LOAD, box_of(cache), cache.buffer(stage), barrier=full)


def box_of(cache: SharedCache) -> Any:  # Any: a guarded tensor
    """Return the region of a cache in its array, as far as the array reaches: what is beyond reads as zeros."""
    assert cache.outer is not None, cache
    start = cache.outer.coordinates(cache.region.origin, cache.scope.values)
    whole = guarded(cache.outer.tensor)
    if len(cache.region.shape) == 1:
        (extent,) = cache.region.shape
        return whole.moved(start).map_layout(lambda where: raw_layout(extent, where[0].stride))
    return whole.moved(start).map_layout(lambda where: raw_layout(cache.region.shape, where.stride))


class SharedGroup(BulkGroup):
    """Caches that one thread fills for the whole block, which waits for it: a block without a producer."""

    def __init__(self, scope: Scope, caches: list[Cache]) -> None:
        super().__init__(scope, caches)
        self.full: MBarrier = MBarrier(1, self.stages)
        rename("full", self.full)
        self.filling: StageState = StageState(self.stages, has_phase=False)
        self.reading: StageState = StageState(self.stages)
        scope.ring_states += [self.filling, self.reading]

    def start(self, when: Any = True) -> None:  # Any: a condition of host or device
        """Begin to fill the next stage, at the present values of the loops, where `when` holds."""
        stage, full = self.filling.stage, self.full[self.filling.stage] if self.stages > 1 else self.full

        def begin() -> None:
            full.arrive_expect_tx(self.bytes)
            self._copy(stage, full)

        first = as_scalar(linear_thread()) == 0
        branch(first if when is True else first & when, begin)
        self.filling.advance(when)

    def wait(self) -> Any:  # Any: a number of host or device
        """Wait for the next stage, in all threads, and return its number."""
        stage = self.reading.stage
        (self.full[stage] if self.stages > 1 else self.full).wait(self.reading.phase)
        self.reading.advance()
        return stage


class ProducedGroup(BulkGroup):
    """Caches that a producer fills while others read: the stages of a `tw.pipeline`.

    `behind`: products of one stage are under way while the next one's begin, so that it is handed back a stage later.
    """

    def __init__(self, scope: Scope, caches: list[Cache]) -> None:
        super().__init__(scope, caches)
        self.ring: Ring = pipeline(
            self.stages, consumers=scope.threads // scope.plan.target.warp_size, bytes=self.bytes
        )
        self.producer: ProducerState | None = None
        self.consumer: ConsumerState | None = None
        self.behind: bool = False

    def begin_producer(self) -> None:
        """Begin the role that fills."""
        self.producer = self.ring.producer()
        self.scope.ring_states.append(self.producer)

    def begin_consumer(self, behind: bool) -> None:
        """Begin the role that reads."""
        self.behind = behind
        self.consumer = self.ring.consumer(behind=int(behind))
        self.scope.ring_states.append(self.consumer)

    def fill(self) -> None:
        """Fill the next stage at the present values of the loops, once it is empty."""
        assert self.producer is not None
        with self.producer.fill() as (stage, full):
            self._copy(stage, full)

    def read(self, body: Callable[[], None], multiplied: Callable[[], None]) -> None:
        """Emit a body that uses the next stage; `multiplied` closes the group of its products."""
        assert self.consumer is not None
        with self.consumer.read() as stage, self.scope.holding(self.storage(stage)):
            body()
            if self.behind:
                multiplied()
                wgmma_wait(1)

    def end(self) -> None:
        """Wait for the last products, and hand the last stage back.

        Nobody waits for it where the loop does not run again. It is handed back all the same: ptxas, which orders reads
        of sums by blocks of instructions, otherwise finds some before the wait, and lets products wait for one another
        (C7514).
        """
        if self.behind:
            assert self.consumer is not None
            wgmma_wait(0)
            self.consumer.release()
