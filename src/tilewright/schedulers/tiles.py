"""Tiles that a block computes one after another, in an order fixed before the kernel runs: linear, grouped, Hilbert's.

A scheduler numbers the tiles; block b of n computes tiles b, b + n, b + 2 n, ... Blocks that run at the same time thus
compute tiles whose numbers are near each other, and share rows of A and columns of B in the second-level cache as far
as the numbering keeps those tiles together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any  # Any: integers of host or device

from tilewright.arguments import integer
from tilewright.errors import ArgumentError
from tilewright.frontend.rewrite import function
from tilewright.tensors import Tensor
from tilewright.trace.threads import block_idx, grid_dim


class Scheduler(ABC):
    """A numbering of the tiles of a matrix. Derive from it, and map a number to its tile in `place`.

    A frozen dataclass can be part of a kernel's compile-time arguments:

    >>> from dataclasses import dataclass
    >>> import tilewright as tw
    >>> @dataclass(frozen=True)
    ... class ByColumns(tw.schedulers.Scheduler):
    ...     @tw.function
    ...     def place(self, number, m_tiles, n_tiles):
    ...         return number % m_tiles, number // m_tiles
    >>> ByColumns().order(2, 3, blocks=2)
    [[(0, 0), (0, 1), (0, 2)], [(1, 0), (1, 1), (1, 2)]]
    """

    @abstractmethod
    def place(self, number: Any, m_tiles: Any, n_tiles: Any) -> tuple[Any, Any]:
        """Return row and column of the tile of a number in 0 .. m_tiles * n_tiles - 1; each has a different tile."""

    def __call__(
        self,
        m_tiles: Any,
        n_tiles: Any,
        counter: Tensor | None = None,
        *,
        consumers: int | None = None,
        block: Any = None,
        blocks: Any = None,
    ) -> Tiles:
        """Return the tiles of this block, in a kernel: `for row, column in tiles:`.

        `block` of `blocks` is that of a grid of one dimension where it is not given; blocks that compute one tile
        together, a cluster say, give the number of the cluster. `counter` and `consumers` are for schedulers that hand
        out tiles while the kernel runs (`Counter`); a kernel that takes any scheduler gives them to each.
        """
        return Tiles(self, m_tiles, n_tiles, *block_of(block, blocks))

    def order(self, m_tiles: int, n_tiles: int, blocks: int) -> list[list[tuple[int, int]]]:
        """Return the tiles (row, column) of each block, in order, without a kernel."""
        _demand_positive(m_tiles=m_tiles, n_tiles=n_tiles, blocks=blocks)
        return [list(self(m_tiles, n_tiles, block=block, blocks=blocks)) for block in range(blocks)]


class Tiles:
    """The tiles of one block; they may be looped over several times.

    `producer()` and `consumer()` are what the two roles of a kernel loop over. Here both are all the tiles; they differ
    for a scheduler whose producer alone knows the next tile (`Counter`).
    """

    def __init__(self, scheduler: Scheduler, m_tiles: Any, n_tiles: Any, block: Any, blocks: Any) -> None:
        self.scheduler = scheduler
        self.m_tiles = m_tiles
        self.n_tiles = n_tiles
        self.block = block
        self.blocks = blocks

    @function
    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return map(self.place, range(self.block, self.m_tiles * self.n_tiles, self.blocks))

    def place(self, number: Any) -> tuple[Any, Any]:
        """Return row and column of a tile."""
        return self.scheduler.place(number, self.m_tiles, self.n_tiles)

    def producer(self) -> Iterable[tuple[Any, Any]]:
        """Return the tiles for the producer warps."""
        return self

    def consumer(self) -> Iterable[tuple[Any, Any]]:
        """Return the tiles for the consumer warps."""
        return self


def block_of(block: Any, blocks: Any) -> tuple[Any, Any]:
    """Return which block this is, and of how many: of a grid of one dimension where it is not given."""
    if (block is None) != (blocks is None):
        raise ArgumentError("a scheduler takes both block= and blocks=, or neither")
    return (block_idx.x, grid_dim.x) if block is None else (block, blocks)


def _demand_positive(**numbers: int) -> None:
    for name, value in numbers.items():
        if integer("order", name, value) < 1:
            raise ArgumentError(f"order: {name} is at least 1, got {value}")


@dataclass(frozen=True)
class Linear(Scheduler):
    """Row by row.

    >>> Linear().order(2, 3, blocks=2)
    [[(0, 0), (0, 2), (1, 1)], [(0, 1), (1, 0), (1, 2)]]
    """

    @function
    def place(self, number: Any, m_tiles: Any, n_tiles: Any) -> tuple[Any, Any]:
        """Return row and column of a tile."""
        return number // n_tiles, number % n_tiles


ROW_BY_ROW = Linear()


@dataclass(frozen=True)
class Grouped(Scheduler):
    """In groups of `rows` rows of tiles, each group column by column.

    The last group may have fewer rows::

        rows=2     0  2  4  6
                   1  3  5  7
                   8  9 10 11

    With rows=8, 132 blocks then read 8 rows of A and 17 columns of B; row by row of 32 columns, they read 5 and 32.

    >>> Grouped(rows=2).order(3, 4, blocks=1)[0][:5]
    [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]

    Raises `ArgumentError` for fewer than one row.
    """

    rows: int = 8

    def __post_init__(self) -> None:
        if integer("tw.schedulers.Grouped", "rows", self.rows) < 1:
            raise ArgumentError(f"tw.schedulers.Grouped: a group has at least 1 row of tiles, got rows={self.rows}")

    @function
    def place(self, number: Any, m_tiles: Any, n_tiles: Any) -> tuple[Any, Any]:
        """Return row and column of a tile."""
        first = number // (self.rows * n_tiles) * self.rows
        rows = min(m_tiles - first, self.rows)
        inside = number % (self.rows * n_tiles)
        return first + inside % rows, inside // rows


@dataclass(frozen=True)
class Hilbert(Scheduler):
    """Along a Hilbert curve: any number of consecutive tiles are near each other.

    The curve goes through a rectangle of any extents, each tile adjacent to the previous one (where an extent is odd
    one step may be diagonal)::

        4 x 4      0  1 14 15
                   3  2 13 12
                   4  7  8 11
                   5  6  9 10

    >>> Hilbert().order(4, 4, blocks=1)[0][:6]
    [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (3, 0)]

    Finding a tile takes a loop of at most log2(m_tiles * n_tiles) iterations. Source: J. Cerveny, "Generalized Hilbert
    space-filling curve for rectangular domains of arbitrary (non-power of two) sizes".
    """

    @function
    def place(self, number: Any, m_tiles: Any, n_tiles: Any) -> tuple[Any, Any]:
        """Return row and column of a tile.

        A rectangle is walked from its corner (row, column) along a direction of its `length`, and then across, for its
        `breadth`. It is divided until the part that holds the tile is a line::

            long:  1 2      else:  1 3      1 and 3 with both directions exchanged, 3 backwards
                   1 2             1 3
                                   2 2
        """
        row, column = 0, 0
        along_row, along_column, across_row, across_column = 0, 1, 1, 0
        length, breadth = n_tiles, m_tiles
        if m_tiles > n_tiles:
            along_row, along_column, across_row, across_column = 1, 0, 0, 1
            length, breadth = m_tiles, n_tiles
        while length > 1 and breadth > 1:
            half = length // 2
            if 2 * length > 3 * breadth:  # long: two parts, one behind the other
                if half % 2 == 1 and length > 2:
                    half += 1
                if number < half * breadth:
                    length = half
                else:
                    number -= half * breadth
                    row, column = row + half * along_row, column + half * along_column
                    length -= half
            else:
                other = breadth // 2
                if other % 2 == 1 and breadth > 2:
                    other += 1
                if number < half * other:
                    along_row, across_row = across_row, along_row
                    along_column, across_column = across_column, along_column
                    length, breadth = other, half
                elif number < half * other + length * (breadth - other):
                    number -= half * other
                    row, column = row + other * across_row, column + other * across_column
                    breadth -= other
                else:
                    number -= half * other + length * (breadth - other)
                    row += (length - 1) * along_row + (other - 1) * across_row
                    column += (length - 1) * along_column + (other - 1) * across_column
                    along_row, across_row = -across_row, -along_row
                    along_column, across_column = -across_column, -along_column
                    length, breadth = other, length - half
        if breadth > 1:
            along_row, along_column = across_row, across_column
        row, column = row + number * along_row, column + number * along_column
        return row, column
