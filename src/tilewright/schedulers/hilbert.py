"""Tiles along a Hilbert curve, for matrices of any extents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any  # Any: integers of host or device

from tilewright.frontend.rewrite import function
from tilewright.schedulers.tiles import Scheduler


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
