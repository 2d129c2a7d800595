"""How the arrays of a problem lie in memory: which mode is contiguous, what divides strides and the first address.

A kernel is specialised on the powers of two that divide extents, strides and addresses, up to 16 bytes. A kind of
problem fixes them, so that its problems of different sizes share their kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Random = np.random.Generator

# What an extent is, by its name: the power of two that divides it, exactly, up to 16.
FITS = {"odd": 0, "2": 1, "4": 2, "8": 3, "16": 4}
WHOLE = 256  # "whole": every tile of a kernel divides it


class Placed(NamedTuple):
    """The shape and strides of an array, in elements, and where it begins: behind so many elements of padding."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    begin: int

    @property
    def span(self) -> int:
        """The elements from the first address of the allocation up to the end of the array."""
        if 0 in self.shape:
            return 1
        return 1 + sum((extent - 1) * step for extent, step in zip(self.shape, self.strides, strict=True) if step > 0)


@dataclass(frozen=True)
class Lay:
    """How a matrix lies: its contiguous mode, "last", "first" or "none"; its alignment; how modes of a batch lie.

    Alignments are "wide" (16 bytes), "middle" (half of that) and "element". A batch is "outer", "inner" (between rows,
    as heads of attention lie) or "one" (one matrix for all, by strides of 0). `is_backward`: rows go backwards.
    """

    contiguous: str = "last"
    alignment: str = "wide"
    batch: str = "outer"
    is_backward: bool = False

    def place(self, shape: tuple[int, ...], bytes: int, random: Random) -> Placed:
        """Return where an array lies, whose last two modes are those of a matrix."""
        unit = 16 // bytes

        def step(least: int) -> int:
            """Return a stride of this alignment, somewhat longer than need be."""
            if self.alignment == "wide":
                return -(-max(least, 1) // unit) * unit + unit * int(random.integers(3))
            odd = max(unit // 2, 1) if self.alignment == "middle" else 1
            return (-(-max(least, 1) // odd) | 1) * odd + 2 * odd * int(random.integers(3))

        batch, (rows, columns) = shape[:-2], shape[-2:]
        inner, outer = (rows, columns) if self.contiguous == "first" else (columns, rows)
        unit_step = 3 if self.contiguous == "none" else 1
        reach, before = step(inner * unit_step), []
        if self.batch == "inner" and len(batch) == 1:
            before, row = [reach], step(reach * batch[0])
        else:
            row, reach = reach, step(reach * outer)
            for extent in reversed(batch):
                before.insert(0, 0 if self.batch == "one" else reach)
                reach = step(reach * extent)
        strides = (unit_step, row) if self.contiguous == "first" else (row, unit_step)
        begin = {"wide": 0, "middle": max(unit // 2, 1), "element": 1}[self.alignment]
        if self.is_backward and rows:
            begin, strides = begin + (rows - 1) * strides[0], (-strides[0], strides[1])
        return Placed(shape, (*before, *strides), begin)


def row_major(shape: tuple[int, ...]) -> Placed:
    """Return where a contiguous array lies that begins at 16 bytes."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.insert(0, step)
        step *= max(extent, 1)
    return Placed(tuple(shape), tuple(strides), 0)


def fitted(size: float, fit: str) -> int:
    """Return an extent about as large as `size` of a class."""
    if fit in ("0", "1"):
        return int(fit)
    if fit == "whole":
        return max(round(size / WHOLE), 1) * WHOLE
    power = FITS[fit]
    found = (int(size) >> power | 1) << power
    return 3 if found == 1 else found


def drawn_extents(
    fits: tuple[str, str, str],
    ranges: Sequence[tuple[int, int]],
    volume: int,
    area: int,
    random: Random,
) -> tuple[int, int, int]:
    """Return log-uniform M, N, K of these ranges, with at most `volume` products and `area` elements of a matrix.

    What is too large is divided by two along its largest mode.
    """
    sizes = [float(np.exp(random.uniform(*np.log(each)))) for each in ranges]
    while True:
        m, n, k = (fitted(size, fit) for size, fit in zip(sizes, fits, strict=True))
        if m * n * k <= volume and max(m * n, m * k, n * k) <= area:
            return m, n, k
        largest = int(np.argmax(sizes))
        if sizes[largest] <= 1:  # whole tiles are more than the volume: the least of them
            return m, n, k
        sizes[largest] /= 2
