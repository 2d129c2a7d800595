"""Stream-K: blocks share the tiles of K evenly, and add up what they have of the same tile of C."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple  # Any: integers of host or device, tensors

from tilewright.arguments import given, integer
from tilewright.dtypes import DType, int32
from tilewright.errors import ArgumentError, LanguageError
from tilewright.frontend.rewrite import function
from tilewright.instructions.barrier import named_barrier
from tilewright.instructions.ordered_access import load, store
from tilewright.language.copying import copy
from tilewright.layout import Layout
from tilewright.schedulers.tiles import ROW_BY_ROW, Scheduler, block_of
from tilewright.tensors import Tensor, local_tile
from tilewright.trace.control import DeviceRange
from tilewright.trace.memory import registers

VECTOR = 4  # accumulators that a thread writes at once


class Part(NamedTuple):
    """One step of a block's work: of the tile (row, column), the tiles of K from `first` up to `last`."""

    row: Any
    column: Any
    first: Any
    last: Any
    number: Any  # of the tile


@dataclass(frozen=True)
class StreamK:
    """Blocks that share the tiles of K evenly, where the tiles of C would not fill the last wave.

    The K tiles of all tiles of C form one sequence, and each block takes an equal stretch of it, from its end to its
    start. Three tiles of four tiles of K, by four blocks::

        tile       0        1        2
        K      0 1 2 3  0 1 2 3  0 1 2 3
        block  0 0 0 1  1 1 2 2  2 3 3 3      block 1: K 0, 1 of tile 1, then K 3 of tile 0

    The block with the end of a tile stores it. It first adds the partial sums of the blocks before it. They computed
    this tile first, so it hardly waits, and since a block waits only for blocks of lower numbers, which wait for none
    before they have stored their part, a grid of any size terminates. Sums are in the order of the blocks: results do
    not change from run to run.

    With `whole_waves` (the default) only the last, uneven wave and one whole wave are shared this way; each tile of
    earlier waves has its own block. `numbering` maps numbers to tiles.

    >>> for parts in StreamK().order(1, 3, blocks=4, k_tiles=4):
    ...     print(parts)
    [(0, 0, range(0, 3))]
    [(0, 1, range(0, 2)), (0, 0, range(3, 4))]
    [(0, 2, range(0, 1)), (0, 1, range(2, 4))]
    [(0, 2, range(1, 4))]

    In a kernel::

        tiles = plan.scheduler(m_tiles, n_tiles, k_tiles)
        for part in tiles:
            for k_tile in range(part.first, part.last):
                ...                                            # tile k_tile of K, of the tile (part.row, part.column)
            if tiles.fix_up(part, acc, partials, flags, ...):  # in the threads that hold accumulators
                ...                                            # store acc
    """

    numbering: Scheduler = ROW_BY_ROW
    whole_waves: bool = True

    def __call__(
        self, m_tiles: Any, n_tiles: Any, k_tiles: Any, *, block: Any = None, blocks: Any = None
    ) -> StreamKTiles:
        """Return the parts of this block, in a kernel."""
        return StreamKTiles(self, m_tiles, n_tiles, k_tiles, *block_of(block, blocks))

    def order(self, m_tiles: int, n_tiles: int, blocks: int, k_tiles: int) -> list[list[tuple[int, int, range]]]:
        """Return the parts (row, column, tiles of K) of each block, in order, without a kernel."""
        for name, value in (("m_tiles", m_tiles), ("n_tiles", n_tiles), ("blocks", blocks), ("k_tiles", k_tiles)):
            if integer("order", name, value) < 1:
                raise ArgumentError(f"order: {name} is at least 1, got {value}")
        parts = [list(self(m_tiles, n_tiles, k_tiles, block=block, blocks=blocks)) for block in range(blocks)]
        return [[(p.row, p.column, range(p.first, p.last)) for p in each] for each in parts]

    def workspace(self, blocks: int, groups: int, threads: int, values: int) -> tuple[int, tuple[int, int]]:
        """Return the sizes of `partials` (float32, any contents) and `flags` (int32, zeros) that `fix_up` takes.

        In each block `groups` of `threads` threads hold `values` accumulators a thread. A launch leaves the flags at 0.

        >>> StreamK().workspace(132, groups=2, threads=128, values=128)
        (4325376, (132, 2))
        """
        return blocks * groups * threads * values, (blocks, groups)


class StreamKTiles:
    """The parts of one block."""

    def __init__(self, scheduler: StreamK, m_tiles: Any, n_tiles: Any, k_tiles: Any, block: Any, blocks: Any) -> None:
        self.scheduler = scheduler
        self.block = block
        self.blocks = blocks
        self.m_tiles = m_tiles
        self.n_tiles = n_tiles
        self.k_tiles = k_tiles
        self.shared: Any = self._shared()
        self.quotient: Any = self.shared * k_tiles // blocks
        self.remainder: Any = self.shared * k_tiles % blocks
        self.begin: Any = self._begin(block)
        self.end: Any = self._begin(block + 1)
        self.parts: Any = self._parts()

    @function
    def _shared(self) -> Any:
        """Return how many tiles the blocks share, the first ones."""
        shared = tiles = self.m_tiles * self.n_tiles
        if self.scheduler.whole_waves and tiles >= self.blocks:
            left = tiles % self.blocks
            shared = left + self.blocks if left > 0 else 0
        return shared

    @function
    def _begin(self, block: Any) -> Any:
        """Return where the stretch of a block begins."""
        return block * self.quotient + min(block, self.remainder)

    @function
    def block_at(self, place: Any) -> Any:
        """Return the block whose stretch contains a position; it is the inverse of `_begin`."""
        longer = self.remainder * (self.quotient + 1)  # the stretches of the first blocks have one tile of K more
        block = place // (self.quotient + 1)
        if place >= longer:
            block = self.remainder + (place - longer) // max(self.quotient, 1)
        return block

    @function
    def __iter__(self) -> Iterator[Part]:
        whole = max(self.m_tiles * self.n_tiles - self.shared - self.block + self.blocks - 1, 0) // self.blocks
        return map(self.part, range(self.parts + whole))

    @function
    def _parts(self) -> Any:
        """Return in how many tiles the stretch of this block lies."""
        parts = 0
        if self.begin < self.end:
            parts = (self.end - 1) // self.k_tiles - self.begin // self.k_tiles + 1
        return parts

    @function
    def part(self, index: Any) -> Part:
        """Return one of the parts: those of the stretch from its end, then whole tiles."""
        number = (self.end - 1) // self.k_tiles - index
        first = max(self.begin - number * self.k_tiles, 0)
        last = min(self.end - number * self.k_tiles, self.k_tiles)
        if index >= self.parts:
            number = self.shared + self.block + (index - self.parts) * self.blocks
            first, last = 0, self.k_tiles
        row, column = self.scheduler.numbering.place(number, self.m_tiles, self.n_tiles)
        return Part(row, column, first, last, number)

    @function
    def fix_up(
        self, part: Part, acc: Any, partials: Any, flags: Any, group: Any, thread: Any, barrier: named_barrier
    ) -> Any:
        """Add up the accumulators of the blocks that share a tile, and return whether this block must store it.

        The threads of a group call it together: `thread` is the number in the `group`, whose threads synchronise at
        `barrier`. Other groups of the block have their own accumulators, and do not wait. `partials` and `flags` have
        the sizes of `workspace`. Raises `LanguageError` for tensors of other types or ranks.
        """
        _demand("partials", partials, acc.dtype, 1)
        _demand("flags", flags, int32, 2)
        if part.last < self.k_tiles:  # another block stores the tile
            copy(acc, _of_thread(partials, self.block, flags, group, thread, acc, barrier))
            barrier.sync()
            if thread == 0:
                store(flags, (self.block, group), 1, sem="release")
        elif part.first > 0:
            for peer in range(self.block_at(part.number * self.k_tiles), self.block):
                if thread == 0:
                    while load(flags, (peer, group), sem="acquire") == 0:
                        pass
                    store(flags, (peer, group), 0)  # for the next launch
                barrier.sync()
                _add(acc, _of_thread(partials, peer, flags, group, thread, acc, barrier))
        return part.last == self.k_tiles


def _demand(name: str, tensor: Any, dtype: DType, rank: int) -> None:
    if not isinstance(tensor, Tensor) or tensor.dtype is not dtype or tensor.rank != rank:
        modes = "one mode" if rank == 1 else f"{rank} modes"
        came = tensor.title if isinstance(tensor, Tensor) else given(tensor)
        raise LanguageError(
            f"fix_up takes {name} of {dtype} with {modes}, got {came}",
            help="scheduler.workspace(blocks, groups, threads, values) says how many elements they have",
        )


def _of_thread(
    partials: Any, block: Any, flags: Any, group: Any, thread: Any, acc: Any, barrier: named_barrier
) -> Tensor:
    """Return where the accumulators of a thread lie, as vectors: those of all threads stand beside each other."""
    width = math.gcd(acc.size, VECTOR)
    shape = width, barrier.threads, acc.size // width
    tile: Tensor = local_tile(partials, (math.prod(shape),), (block * flags.shape[1] + group,))
    vectors: Tensor = tile.compose(Layout(shape))[None, thread, None]
    return vectors


@function
def _add(acc: Any, more: Any) -> None:
    """Add the accumulators that a thread of another block has written."""
    width, vectors = more.shape
    ours = acc.compose(Layout((width, vectors)))
    for k in DeviceRange(vectors, unroll=True):
        part = registers(acc.dtype, width)
        copy(more[None, k], part)
        for i in DeviceRange(width, unroll=True):
            ours[i, k] += part[i]
