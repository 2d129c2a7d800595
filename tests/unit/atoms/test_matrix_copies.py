"""Copies of matrices by a warp: their layouts against the words of the PTX ISA."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.atoms.fragments import positions
from tilewright.instructions.matrix_copies import NAMES, StoreMatrixAtom, TransposeMatrixAtom


@pytest.mark.parametrize("name", NAMES)
def test_layouts_are_those_of_the_isa(name: str) -> None:
    atom = getattr(tw.atoms, name)
    transposes = name.endswith("_T")
    registers, memory = atom.dst_tv(tw.float16), atom.src_tv(tw.float16)
    if isinstance(atom, StoreMatrixAtom):
        registers, memory = memory, registers
    matrices = atom.values(tw.float16) // 2
    table = positions(registers)
    assert table.shape == (32, 2 * matrices)
    for lane in range(32):
        for i in range(2 * matrices):
            matrix, row, column = i // 2, lane // 4, 2 * (lane % 4) + i % 2
            if transposes:
                row, column = column, row
            assert table[lane, i] == 64 * matrix + 8 * row + column
    if isinstance(atom, TransposeMatrixAtom):
        assert (positions(memory) == positions(tw.atoms.SM75_U32x1_LDSM_N.dst_tv(tw.float16))).all()
        return
    rows = positions(memory)
    for lane in range(32):
        assert rows[lane].tolist() == [8 * (lane % (8 * matrices)) + i for i in range(8)]


@pytest.mark.parametrize("name", NAMES)
def test_registers_hold_each_bit_once(name: str) -> None:
    atom = getattr(tw.atoms, name)
    table = positions(atom.layout_src if isinstance(atom, StoreMatrixAtom) else atom.layout_dst)
    assert sorted(table.ravel().tolist()) == list(range(32 * table.shape[1]))
    assert atom.threads == 32
    assert atom.arch == ("sm_90" if isinstance(atom, StoreMatrixAtom) else "sm_75")


def test_values_count_registers_and_not_addresses() -> None:
    assert [getattr(tw.atoms, f"SM75_U32x{n}_LDSM_N").values(tw.float16) for n in (1, 2, 4)] == [2, 4, 8]
    assert tw.atoms.SM75_U32x4_LDSM_N.values(tw.float32) == 4
    assert tw.atoms.UniversalCopy(64).values(tw.float16) == 4
