"""Who holds what: the rules by which PTX spreads the operands of warp-level matrix instructions over 32 threads.

All of mma.sync but the 8 x 8 x 4 of sm_70 follow one rule. A thread has a group g = lane / 4 and a place
t = lane % 4 in it. A 32-bit register (or 64-bit double) holds `e` neighbours along K:

    A, B:  row g,           k = e * t + j              register 0, element j
           row g + 8        (A of 16 rows)             register 1
           k + 4 * e        and so on along K          the next one or two registers
    C, D:  row g, columns 2 * t and 2 * t + 1;  row g + 8, the same columns

Source: PTX ISA, "Warp Level Matrix Instructions", "Matrix Fragments for mma" of each shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.layout import Layout
from tilewright.layout.layouts import flat_modes

if TYPE_CHECKING:
    import numpy as np

WARP = 32  # threads
WORD = 32  # bits of a register

_Mode = tuple[int, int]  # extent and stride


def operand(rows: int, k: int, bits: int) -> Layout:
    """Return the thread-value layout of A or B: `rows` is M or N (8 or 16), elements have `bits` bits.

    >>> print(operand(16, 8, 32))
    ((4,8),(2,2)):((16,1),(8,64))
    >>> print(operand(8, 16, 8))
    ((4,8),4):((32,1),8)
    """
    e = max(WORD // bits, 1)
    values = [(e, rows), (rows // 8, 8), (k // (4 * e), 4 * e * rows)]
    return _thread_value([(4, e * rows), (8, 1)], values)


def accumulator(rows: int) -> Layout:
    """Return the thread-value layout of C and D, `rows` (8 or 16) by 8.

    >>> print(accumulator(16))
    ((4,8),(2,2)):((32,1),(16,8))
    """
    return _thread_value([(4, 2 * rows), (8, 1)], [(2, rows), (rows // 8, 8)])


def _thread_value(threads: list[_Mode], values: list[_Mode]) -> Layout:
    kept = [mode for mode in values if mode[0] > 1] or [(1, 0)]
    sides: list[list[Any]] = [[], []]
    for modes in (threads, kept):
        for side, part in zip(sides, zip(*modes, strict=True), strict=True):
            side.append(part[0] if len(part) == 1 else part)
    return Layout(tuple(sides[0]), tuple(sides[1]))


# --- sm_70: 8 x 8 x 4 by quad pairs ----------------------------------------------------------------------

# Four threads and the four that are 16 lanes above them; a warp has four such pairs.
QUAD_PAIR = Layout((4, 2), (1, 16))
# Operands of 8 rows and 4 of K: a thread holds one row where K is contiguous (A row, B col), else four rows of one k.
QUAD_PAIR_ROW = Layout((8, 4), (1, 8))
QUAD_PAIR_COLUMN = Layout(((4, 2), 4), ((8, 4), 1))
QUAD_PAIR_F16 = Layout((8, 8), (1, 8))
QUAD_PAIR_F32 = Layout(((2, 2, 2), (2, 2, 2)), ((1, 16, 4), (8, 2, 32)))


# --- layouts as tables -----------------------------------------------------------------------------------


def positions(layout_tv: Layout) -> np.ndarray[Any, Any]:
    """Return the table of a static thread-value layout: positions[thread, value].

    >>> positions(Layout((2, (2, 2)), (1, (2, 8))))
    array([[ 0,  2,  8, 10],
           [ 1,  3,  9, 11]])
    """
    sides = [_offsets(layout_tv[mode]) for mode in (0, 1)]
    table: np.ndarray[Any, Any] = sides[0][:, None] + sides[1][None, :]
    return table


def _offsets(layout: Layout) -> np.ndarray[Any, Any]:
    import numpy as np

    offsets = np.zeros(1, np.intp)
    for extent, stride in zip(*flat_modes(layout), strict=True):
        offsets = (np.arange(extent, dtype=np.intp)[:, None] * stride + offsets).reshape(-1)  # type: ignore[arg-type, operator]  # static
    return offsets
