"""Tiles of many matrices, one matrix after another: for grouped products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar  # Any: integers of host or device

from tilewright.arguments import integer
from tilewright.errors import ArgumentError
from tilewright.frontend.rewrite import function
from tilewright.schedulers.tiles import Scheduler, block_of

Extents = Callable[[Any], tuple[Any, Any]]


@dataclass(frozen=True)
class ColumnByColumn(Scheduler):
    """Column by column: the tiles that read the same columns of B come one after another."""

    @function
    def place(self, number: Any, m_tiles: Any, n_tiles: Any) -> tuple[Any, Any]:
        """Return row and column of a tile."""
        return number % m_tiles, number // m_tiles


@dataclass(frozen=True)
class Groups:
    """The tiles of several matrices, numbered consecutively, so that one launch of persistent blocks computes them all.

    Block b of n takes the tiles b, b + n, b + 2 n, ... of all matrices together; a matrix may have none. Within a
    matrix `numbering` maps numbers to tiles, by default column by column.

    >>> for tiles in Groups().order([(2, 1), (0, 3), (1, 2)], blocks=2):
    ...     print(tiles)
    [(0, 0, 0), (2, 0, 0)]
    [(0, 1, 0), (2, 0, 1)]

    In a kernel `extents(g)` returns the tiles of matrix g along both modes, as device values. It is called once for
    each matrix and in order, so that it may keep what it read for the previous one::

        for group, row, column in plan.scheduler(count, extents):
            ...
    """

    numbering: Scheduler = ColumnByColumn()

    def __call__(self, count: Any, extents: Extents, *, block: Any = None, blocks: Any = None) -> GroupTiles:
        """Return the tiles of this block, in a kernel: those of `count` matrices."""
        return GroupTiles(self.numbering, count, extents, *block_of(block, blocks))

    def order(self, tiles: list[tuple[int, int]], blocks: int) -> list[list[tuple[int, int, int]]]:
        """Return the tiles (matrix, row, column) of each block, for the rows and columns of tiles of each matrix."""
        if integer("order", "blocks", blocks) < 1:
            raise ArgumentError(f"order: blocks is at least 1, got {blocks}")
        return [list(self(len(tiles), tiles.__getitem__, block=b, blocks=blocks)) for b in range(blocks)]


class GroupTiles:
    """The tiles of one block, for a single loop."""

    __tilewright_state__: ClassVar[bool] = True

    def __init__(self, numbering: Scheduler, count: Any, extents: Extents, block: Any, blocks: Any) -> None:
        self.numbering = numbering
        self.count = count
        self.extents = extents
        self.blocks = blocks
        self.number: Any = block - blocks  # of the tile, among all
        self.group: Any = -1  # the matrix that has it, whose tiles are from `first` up to `last`
        self.first: Any = 0
        self.last: Any = 0
        self.m_tiles: Any = 0
        self.n_tiles: Any = 0

    @function
    def __iter__(self) -> Iterator[tuple[Any, Any, Any]]:
        return map(self.place, iter(self.take, self.count))

    @function
    def take(self) -> Any:
        """Advance to the block's next tile, and return its matrix; after the last one `count`."""
        self.number += self.blocks
        while (self.number >= self.last) & (self.group < self.count):
            self.group += 1
            if self.group < self.count:
                self.m_tiles, self.n_tiles = self.extents(self.group)
                self.first = self.last
                self.last = self.first + self.m_tiles * self.n_tiles
        return self.group

    @function
    def place(self, group: Any) -> tuple[Any, Any, Any]:
        """Return the matrix, and row and column of the tile."""
        row, column = self.numbering.place(self.number - self.first, self.m_tiles, self.n_tiles)
        return group, row, column
