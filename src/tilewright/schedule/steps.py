"""Fragments ahead: what the next step multiplies is read while the instructions of this one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tilewright.errors import ScheduleError
from tilewright.schedule.caches import Cache, Location
from tilewright.schedule.held_fragments import HeldFragments
from tilewright.schedule.loop_nest import Loop

if TYPE_CHECKING:
    from tilewright.schedule.emission import Emission, Parts


def is_step_ahead(cache: Cache) -> bool:
    """Whether fragments of a cache are read a step ahead."""
    return cache.location is Location.MMA_FRAGMENT and cache.stages > 1


class Steps:
    """A loop whose turns are unrolled, each with fragments of its own, read while the turn before multiplies."""

    def __init__(self, emission: Emission, depth: int, caches: list[Cache]) -> None:
        self.emission, self.depth = emission, depth
        self.loop: Loop = emission.loops[depth]
        if self.loop.trips is None:
            raise ScheduleError(
                f"fragments are read ahead in {self.loop.index}, whose length only the launch knows",
                help="split the loop, and read ahead in the inner one",
            )
        assert emission.tensors is not None, caches
        self.trips: int = self.loop.trips
        self.held = [HeldFragments(emission.tensors, cache, self.trips) for cache in caches]

    def read(self, turn: int) -> None:
        """Read the fragments of a turn."""
        with self.emission.knowing({self.loop.index: turn * self.loop.step}):
            for held in self.held:
                held.read(turn)

    def multiply(self, turn: int, parts: Parts) -> None:
        """Emit what a turn does with its fragments."""
        emission = self.emission
        with (
            emission.knowing({self.loop.index: turn * self.loop.step}),
            emission.holding({held.cache.array: held.storage(turn) for held in self.held}),
        ):
            emission.guarded(self.depth + 1, parts)

    def run(self, parts: Parts) -> None:
        """Emit the loop by itself."""
        self.read(0)
        for turn in range(self.trips):
            if turn + 1 < self.trips:
                self.read(turn + 1)
            self.multiply(turn, parts)

    def run_across(
        self,
        parts: Parts,
        tile: Callable[[int, Callable[[], None]], None],
        wait: Callable[[], None],
        start: Callable[[int, int], None],
    ) -> None:
        """Emit the loop for one tile of shared memory, the last turn of which reads from the next tile.

        `tile(n, body)` emits a body for the n-th tile from here on; `wait` lets the next tile be there, `start(s, n)`
        begins to fill part s of n of a later one: a part a turn, so that copies and reads do not wait for each other.
        The fragments of turn 0 have been read.
        """
        if self.trips == 1:  # one set of fragments: it is free when it has been multiplied
            start(0, 1)
            tile(0, lambda: self.multiply(0, parts))
            wait()
            tile(1, lambda: self.read(0))
            return
        for turn in range(self.trips):
            following = (turn + 1) % self.trips
            if following == 0:
                wait()
            tile(1 if following == 0 else 0, lambda following=following: self.read(following))  # type: ignore[misc]  # bound now
            if following:
                start(turn, self.trips - 1)
            tile(0, lambda turn=turn: self.multiply(turn, parts))  # type: ignore[misc]  # bound now


def steps_of(emission: Emission, depth: int, parts: Parts) -> Steps | None:
    """Return the steps of a serial loop that has fragments read ahead, None where it has none."""
    if depth >= len(emission.loops):
        return None
    caches = [cache for cache in emission.caches(depth + 1, parts) if is_step_ahead(cache)]
    return Steps(emission, depth, caches) if caches else None
