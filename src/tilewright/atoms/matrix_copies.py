"""Copies of 8 x 8 matrices by a warp: ldmatrix, stmatrix and movmatrix, under CuTe's names.

A matrix has 8 rows of 16 bytes. In shared memory a row lies together, at an address that one lane gives: lane 8 * i + r
for row r of matrix i. In registers lane l holds 4 bytes of each matrix: the elements 2 * (l % 4) and the next of row
l / 4 for 16-bit elements, or of column l / 4 where the instruction transposes.

A name says how many 32-bit registers (`U32x4`) or 16-bit elements (`U16x8`) a lane has, and whether matrices are
transposed (`_T`) or not (`_N`). The layouts map (lane, bit) to a bit of the matrices, which lie one after the other.

Source: PTX ISA, "ldmatrix", "stmatrix", "movmatrix"; CUTLASS, include/cute/atom/copy_traits_sm75.hpp and _sm90.hpp.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from tilewright.atoms.copy import CopyAtom
from tilewright.layout import Layout

_ROW = 128  # bits
_MATRIX = 8 * _ROW
_WORD = 32
_LANES = 32

NAMES = (
    *(f"SM75_U32x{n}_LDSM_N" for n in (1, 2, 4)),
    *(f"SM75_U16x{n}_LDSM_T" for n in (2, 4, 8)),
    "SM75_U32x1_MOVM_T",
    *(f"SM90_U32x{n}_STSM_N" for n in (1, 2, 4)),
    *(f"SM90_U16x{n}_STSM_T" for n in (2, 4, 8)),
)

_NAME = re.compile(r"SM(\d+)_U(\d+)x(\d+)_(LDSM|STSM|MOVM)_([NT])")


@cache
def matrix_copy(name: str) -> CopyAtom:
    """Return the atom of a name in `NAMES`.

    >>> from tilewright.dtypes import float16
    >>> atom = matrix_copy("SM75_U32x4_LDSM_N")
    >>> print(atom.src_tv(float16), atom.dst_tv(float16))
    (32,8):(8,1) (32,(2,4)):(2,(1,64))
    """
    match = _NAME.fullmatch(name)
    assert match is not None, name
    arch, instruction, transposed = f"sm_{match[1]}", match[4], match[5] == "T"
    count = int(match[2]) * int(match[3]) // _WORD
    registers = _registers(count, transposed=transposed)
    if instruction == "MOVM":
        plain = _registers(1, transposed=False)
        return CopyAtom(name, arch, _WORD, Layout(_LANES), plain, registers, "movmatrix", layout_ref=plain)
    rows = _rows(count)
    if instruction == "LDSM":
        return CopyAtom(
            name, arch, _ROW, Layout(_LANES), rows, registers, "ldmatrix", layout_ref=registers, transposed=transposed
        )
    return CopyAtom(
        name, arch, _ROW, Layout(_LANES), registers, rows, "stmatrix", layout_ref=registers, transposed=transposed
    )


def _rows(count: int) -> Layout:
    """Return (lane, bit) -> bit as addresses are given: lanes beyond the rows repeat them, and are not used."""
    lanes, repeats = 8 * count, _LANES // (8 * count)
    if repeats == 1:
        return Layout((lanes, _ROW), (_ROW, 1))
    return Layout(((lanes, repeats), _ROW), ((_ROW, 0), 1))


def _registers(count: int, *, transposed: bool) -> Layout:
    """Return (lane, bit) -> bit as registers hold the matrices."""
    several: list[Any] = [(count, _MATRIX)] if count > 1 else []
    if not transposed:
        return _layout(_LANES, _WORD, [(_WORD, 1), *several])
    # Two elements of 16 bits, of neighbouring rows.
    return _layout((4, 8), (2 * _ROW, 16), [(16, 1), (2, _ROW), *several])


def _layout(lanes: Any, steps: Any, values: list[tuple[int, int]]) -> Layout:
    if len(values) == 1:
        return Layout((lanes, values[0][0]), (steps, values[0][1]))
    return Layout((lanes, tuple(v for v, _ in values)), (steps, tuple(d for _, d in values)))
