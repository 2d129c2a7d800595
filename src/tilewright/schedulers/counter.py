"""Tiles by a global counter: a block takes the next tile when it is ready for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar  # Any: integers of host or device, tensors

from tilewright.dtypes import int32
from tilewright.errors import LanguageError
from tilewright.frontend.rewrite import function
from tilewright.instructions.atomics import atomic_add, atomic_exch
from tilewright.instructions.barrier import sync_threads, sync_warp
from tilewright.instructions.mbarrier import MBarrier
from tilewright.instructions.vote import elect_one
from tilewright.schedulers.tiles import ROW_BY_ROW, Scheduler, Tiles, block_of
from tilewright.tensors import Tensor
from tilewright.trace.memory import shared
from tilewright.trace.threads import linear_thread

SLOTS = 2  # tile numbers on their way from the thread that takes them to the others


@dataclass(frozen=True)
class Counter(Scheduler):
    """Tiles by a global counter, for blocks or tiles that do not all take the same time.

    `counter` is an array of one int32 that is 0 before the first launch; the last block resets it. A thread draws a
    number by an atomic, and passes it to the others through shared memory. `numbering` maps numbers to tiles. Without
    roles the whole block loops, with one barrier for each tile:

    >>> import numpy as np
    >>> import tilewright as tw
    >>> @tw.kernel
    ... def count(times, counter, scheduler: tw.constexpr):
    ...     for row, column in scheduler(times.shape[0], times.shape[1], counter):
    ...         if tw.thread_idx.x == 0:
    ...             times[row, column] += 1
    >>> times, counter = np.zeros((3, 5), np.int32), np.zeros(1, np.int32)
    >>> count[4, 64](times, counter, tw.schedulers.Counter())
    >>> times.min().item(), times.max().item(), counter[0].item()
    (1, 1, 0)

    With `consumers`, the number of consumer warps, one thread loops over `tiles.producer()`, and those warps over
    `tiles.consumer()`; call `tw.sync_threads()` before the loops, as for `tw.pipeline`::

        tiles = plan.scheduler(m_tiles, n_tiles, counter, consumers=8)
        tw.sync_threads()
        if tw.warpgroup_id() == 0:
            if tw.thread_idx.x == 0:
                for row, column in tiles.producer():
                    ...
        else:
            for row, column in tiles.consumer():
                ...

    Each block draws for itself, so blocks of a cluster that compute one tile together need another scheduler. `order`
    lists the tiles of the blocks if they draw one after another.
    """

    numbering: Scheduler = ROW_BY_ROW

    @function
    def place(self, number: Any, m_tiles: Any, n_tiles: Any) -> tuple[Any, Any]:
        """Return row and column of a tile."""
        return self.numbering.place(number, m_tiles, n_tiles)

    def __call__(
        self,
        m_tiles: Any,
        n_tiles: Any,
        counter: Tensor | None = None,
        *,
        consumers: int | None = None,
        block: Any = None,
        blocks: Any = None,
    ) -> CountedTiles:
        """Return the tiles of this block, in a kernel; `consumers` warps are told by a thread of another role."""
        if counter is None:
            raise LanguageError(
                "tw.schedulers.Counter takes an array to count in",
                help="pass the kernel an array of one int32 that is 0: scheduler(m_tiles, n_tiles, counter)",
            )
        return CountedTiles(self, m_tiles, n_tiles, counter, consumers, *block_of(block, blocks))

    def order(self, m_tiles: int, n_tiles: int, blocks: int) -> list[list[tuple[int, int]]]:
        """Return the tiles (row, column) of each block where the blocks draw one after another."""
        return self.numbering.order(m_tiles, n_tiles, blocks)


class CountedTiles(Tiles):
    """The tiles of one block, by a counter: they are looped over once."""

    def __init__(
        self, scheduler: Counter, m_tiles: Any, n_tiles: Any, counter: Tensor, consumers: int | None, *block: Any
    ) -> None:
        super().__init__(scheduler, m_tiles, n_tiles, *block)
        self.counter = counter
        self.consumers = consumers
        self.numbers: Tensor = shared(int32, SLOTS)
        self.numbers.engine.buffer.name = "numbers"
        if consumers is not None:
            self.told: MBarrier = MBarrier(1, SLOTS)
            self.read: MBarrier = MBarrier(consumers, SLOTS)
            self.told.buffer.name, self.read.buffer.name = "told", "read"

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        if self.consumers is not None:
            raise LanguageError(
                "these tiles are told by one role of the kernel to the other",
                help="loop over tiles.producer() in one thread, and over tiles.consumer() in the warps that are told; "
                "without consumers= the whole block loops over tiles",
            )
        return iter(_Items(_Fetch(self).together, self))

    def producer(self) -> _Items:
        """Return the tiles for the thread that takes them, and tells the other role."""
        return self._for_role(_Fetch(self).tell)

    def consumer(self) -> _Items:
        """Return the tiles for a warp that is told."""
        return self._for_role(_Fetch(self).hear)

    def _for_role(self, take: Any) -> _Items:
        if self.consumers is None:
            raise LanguageError(
                "nothing says how many warps this scheduler tells of its tiles",
                help="call it with consumers=, or loop over the tiles in the whole block",
            )
        return _Items(take, self)

    @function
    def draw(self) -> Any:
        """Take the next number; behind the last tile it is m_tiles * n_tiles. The last block sets the counter back."""
        total = self.m_tiles * self.n_tiles
        ticket = atomic_add(self.counter, 0, 1)
        if ticket == total + self.blocks - 1:
            atomic_exch(self.counter, 0, 0)
        return min(ticket, total)


class _Items:
    """Tiles for one role."""

    def __init__(self, take: Any, tiles: CountedTiles) -> None:
        self.take = take
        self.tiles = tiles

    @function
    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return map(self.tiles.place, iter(self.take, self.tiles.m_tiles * self.tiles.n_tiles))


class _Fetch:
    """Where a thread is in the slots: the next one, and the parity of its phase."""

    __tilewright_state__: ClassVar[bool] = True

    def __init__(self, tiles: CountedTiles) -> None:
        self.tiles = tiles
        self.slot: Any = 0
        self.phase: Any = 0

    def _advance(self) -> None:
        self.slot, self.phase = self.slot ^ 1, self.phase ^ self.slot

    @function
    def together(self) -> Any:
        """Return the next number to all threads of the block. In two slots, one barrier a tile is enough."""
        slot = self.slot
        if linear_thread() == 0:
            self.tiles.numbers[slot] = self.tiles.draw()
        sync_threads()
        self._advance()
        return self.tiles.numbers[slot]

    def tell(self) -> Any:
        """Take the next number, and tell it the other role."""
        slot = self.slot
        self.tiles.read[slot].wait(self.phase ^ 1)
        number = self.tiles.draw()
        self.tiles.numbers[slot] = number
        self.tiles.told[slot].arrive()
        self._advance()
        return number

    @function
    def hear(self) -> Any:
        """Return the next number that the other role has told."""
        slot = self.slot
        self.tiles.told[slot].wait(self.phase)
        number = self.tiles.numbers[slot]
        sync_warp()
        if elect_one():
            self.tiles.read[slot].arrive()
        self._advance()
        return number
