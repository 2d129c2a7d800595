"""Which threads run next, chosen by a seed: the orders that `tw.simulate(schedules=...)` tries.

Without a seed the agent that is behind runs first (see `agents`), and the blocks of the grid in order. With one, every
thread has a priority, and of those that may go on the ones with the highest do. Threads of equal priority run in step.
Now and then those that have just been chosen fall behind all others (Burckhardt and others, "A Randomized Scheduler
with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010: an error that needs d decisions shows with a probability
that falls with the d-th power of the program's length, and not exponentially). A seed also says how fine the order is:
blocks, warps, or lanes.

Agents stop before every access that orders memory or whose outcome others see at once: atomic operations, releases,
arrivals. Between two of those an order of accesses makes no difference in a kernel without races.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.backends.sim.values import Array
from tilewright.ir.core import Op
from tilewright.ir.effects import Order, Waits

if TYPE_CHECKING:
    from tilewright.backends.sim.agents import Agent

_GRAINS = ("warp", "warp", "warp", "lane", "block")
_LEVELS = (2, 3, 4, 8, 32)  # of priorities at the start; of lanes the first three
_FALLS = (1 / 32, 1 / 8, 1 / 2)  # how often those that were chosen fall behind
_SPANS = (8, 16, 32, 64, 256)  # or among how many first choices they do so a few times
_MOST_FALLS = 3
_MOST_LEVELS = 16  # beyond it threads of one level fall together: each level is a pass over the chunk


def is_crossing(op: Op) -> bool:
    """Return whether the order of threads at an op may decide what others find."""
    effects = op.effects
    return effects.waits is Waits.NOBODY and (effects.scope is not None or effects.order is not Order.NONE)


class Interleaving:
    """One order of agents; the same seed gives the same order for the same kernel and arguments."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = np.random.default_rng(seed)
        self._grain = _GRAINS[self._random.integers(len(_GRAINS))]
        levels = _LEVELS[: 3 if self._grain == "lane" else None]
        self._levels = levels[self._random.integers(len(levels))]
        self._often = _FALLS[self._random.integers(len(_FALLS))] if self._random.integers(2) else 0.0
        span = _SPANS[self._random.integers(len(_SPANS))]
        self._falls = set(self._random.integers(span, size=self._random.integers(_MOST_FALLS + 1)).tolist())
        self._choices = 0
        self._blocks_alike = bool(self._random.integers(2))
        self._priority = np.zeros((0, 0), np.int64)
        self._lowest = 0

    def blocks(self, total: int, together: int, size: int = 1) -> Array:
        """Return the numbers of the grid's blocks in the order in which they run.

        Of `together` blocks, that run at once, the order changes and not which these are. `size` neighbours stay beside
        each other.
        """
        order = np.arange(total)
        for first in range(0, total, together):
            part = order[first : first + together].reshape(-1, size)
            order[first : first + together] = self._random.permutation(part).reshape(-1)
        return order

    def begin(self, blocks: int, threads: int, warp: int) -> None:
        """Give the threads of a chunk of blocks their priorities."""
        rows = 1 if self._blocks_alike and self._grain != "block" else blocks
        units = {"warp": -(-threads // warp), "lane": threads, "block": 1}[self._grain]
        drawn = self._random.integers(self._levels, size=(rows, units))
        spread = np.repeat(drawn, {"warp": warp, "lane": 1, "block": threads}[self._grain], axis=1)[:, :threads]
        self._priority = np.array(np.broadcast_to(spread, (blocks, threads)))
        self._lowest = self._choices = 0

    def choose(self, candidates: list[tuple[Agent, Array]]) -> tuple[Agent, Array]:
        """Return the agent that runs next and which of its threads do, of those that may: masks (blocks, threads)."""
        best, most = candidates[0], None
        for candidate in candidates:
            top = int(self._priority[candidate[1]].max())
            if most is None or top > most:
                best, most = candidate, top
        agent, going = best
        chosen = going & (self._priority == most)
        if len(candidates) > 1 or (chosen != going).any():
            self._choices += 1
            if self._random.random() < self._often if self._often else self._choices in self._falls:
                self._fall(chosen)
        return agent, chosen

    def give_way(self, threads: Array) -> None:
        """Let threads that only look whether something has changed fall behind all others."""
        self._lowest -= 1
        self._priority[threads] = self._lowest

    def is_late(self) -> bool:
        """Say whether what may come at any time has not come yet."""
        return bool(self._random.integers(2))

    def _fall(self, threads: Array) -> None:
        if self._random.integers(2) and len(np.unique(self._priority)) < _MOST_LEVELS:
            rows = threads.any(axis=1)
            some = np.zeros_like(threads)
            if rows.sum() > 1 and self._random.integers(2):  # in some of the blocks
                some[np.flatnonzero(rows)[self._random.random(int(rows.sum())) < 0.5]] = True
            else:  # some of the threads, as fine as the order is
                width = threads.shape[1] if self._grain == "block" else 32 if self._grain == "warp" else 1
                units = self._random.random(-(-threads.shape[1] // width)) < 0.5
                some |= np.repeat(units, width)[: threads.shape[1]]
            threads = threads & some if (threads & some).any() else threads
        self.give_way(threads)
