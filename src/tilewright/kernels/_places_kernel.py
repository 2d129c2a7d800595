"""Where elements of D are, and the random bits that belong to their places; device code, traced into kernels.

An element's bits are a function of a seed, its row and its column alone. One call of Philox gives 16 bits for each of
eight columns of a row. These are the columns that a thread has in the accumulators of mma and wgmma, two neighbours in
each of four groups of eight:

    column = 32 g + 8 w + 2 q + h  ->  half h of word w of philox(seed, (4 g + q, row))
"""

from __future__ import annotations

from typing import Any  # Any: device numbers

import tilewright as tw

_HALF, _WORD, _PERIOD = 1, 24, 31  # bits of a column that choose a half, and a word; and all that are not g


class Places:
    """The places of a thread's elements of D: one, and others that are known distances away.

    `zeros` are those of the five low bits of the first column which are 0 in every thread. What a call of Philox gives
    for one of the elements is kept for the others: bits of all of them are computed in one place, before branches.
    """

    def __init__(self, row: Any, column: Any, batch: Any, zeros: int = 0) -> None:
        self.row: Any = row
        self.column: Any = column
        self.batch: Any = batch
        self.zeros: int = zeros
        self.words: dict[tuple[int, int, int], Any] = {}

    def at(self, down: int = 0, along: int = 0) -> Place:
        """Return the place so many rows below the first one, and so many columns beside it."""
        return Place(self, down, along)


class Place:
    """One of the places."""

    def __init__(self, places: Places, down: int, along: int) -> None:
        self.places: Places = places
        self.down: int = down
        self.along: int = along

    def bits(self, key: int, seed: Any, mode: str | None, rows: Any) -> Any:
        """Return the 16 random bits of the element, as uint32; `key` tells seeds apart.

        `mode` is the mode of D, "M" or "N", that the result's columns are; its row is rows[0], and rows[1] more for
        each step along D's other mode, and rows[2] for each matrix of the batch.
        """
        places = self.places
        row, column, down, along, zeros = places.row, places.column, self.down, self.along, places.zeros
        if mode == "M":
            row, column, down, along, zeros = column, row, along, down, 0
        shared = 0 if along & _PERIOD & ~zeros else zeros & _HALF | (_WORD if zeros & _WORD == _WORD else 0)
        first = along & ~shared
        words = places.words.get((key, down, first))
        if words is None:
            at = tw.uint32(column + first)
            number = rows[0] + rows[1] * tw.uint32(row + down) + rows[2] * tw.uint32(places.batch)
            words = places.words[key, down, first] = tw.philox(seed, (at >> 5 << 2 | at >> 1 & 3, number))
        at = tw.uint32(column + along)
        if shared & _WORD:
            word = words[along >> 3 & 3]
        else:
            low, high = (tw.where(at & 8 != 0, words[n + 1], words[n]) for n in (0, 2))
            word = tw.where(at & 16 != 0, high, low)
        if shared & _HALF:
            return word >> 16 if along & 1 else word & 0xFFFF
        return word >> ((at & 1) << 4) & 0xFFFF
