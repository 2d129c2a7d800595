"""Pictures that count from 1, and pictures of atoms."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright as tw
from tilewright.draw import text
from tilewright.errors import ArgumentError

ATOMS = [
    tw.atoms.SM70_8x8x4_F32F16F16F32_NT,
    tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN,
    tw.atoms.UniversalFMA(tw.float32),
]
COPIES = [tw.atoms.UniversalCopy(128), tw.atoms.SM75_U32x4_LDSM_N, tw.atoms.SM75_U16x8_LDSM_T, tw.atoms.UniversalCopy()]


def numbers(table: str, letter: str) -> list[int]:
    return [int(n) for n in re.findall(rf"{letter}(\d+)", table)]


@pytest.mark.parametrize("atom", ATOMS, ids=str)
def test_an_atom_is_drawn_as_a_product_of_one(atom: tw.atoms.MMAAtom) -> None:
    assert text(atom) == text(tw.make_tiled_mma(atom))
    again = text(atom, first=1)
    for letter in "TV":
        assert numbers(again, letter) == [n + 1 for n in numbers(text(atom), letter)]


@pytest.mark.parametrize("atom", COPIES, ids=str)
def test_an_atom_is_drawn_as_a_copy_of_one(atom: tw.atoms.CopyAtom) -> None:
    table = text(atom)
    assert set(numbers(table, "T")) == set(range(atom.threads))
    again = text(atom, first=1)
    for letter in "TV":
        assert numbers(again, letter) == [n + 1 for n in numbers(table, letter)]
    assert "16-bit" in text(tw.atoms.UniversalCopy(128), dtype="float16")


def test_print_typst_takes_what_moye_gives_it(capsys: pytest.CaptureFixture[str]) -> None:
    copy = tw.make_tiled_copy(tw.atoms.UniversalCopy(64), tw.Layout((2, 3), (3, 1)), tw.Layout((2, 3), (1, 2)))
    for x in (*ATOMS, *COPIES[:3], tw.make_tiled_mma(ATOMS[0]), copy):
        tw.print_typst(x)
        zero = capsys.readouterr().out
        tw.print_typst(x, first=1)
        assert zero.startswith("#set page")
        assert zero != capsys.readouterr().out


def test_layouts_and_coordinates_count_from_one() -> None:
    layout = tw.Layout((2, (2, 2)), (1, (4, -2)))
    assert "    1,1 2,1   1,2 2,2" in text(layout, first=1)
    assert "1 │   1   5 │  -1   3" in text(layout, first=1)
    assert "(1,1)" in text(tw.identity_tensor((2, 2)), first=1)
    assert "(3,3)" not in text(tw.identity_tensor((2, 2)), first=1)
    assert "columns 5 to 8 are left out" in text(tw.Layout((2, 8)), first=1, limit=(2, 4))
    assert "(_,_,2)" in text(tw.Layout((2, 2, 2)), first=1)


def test_elements_of_a_tensor_stay() -> None:
    table = text(tw.tensor(np.array([[10, 20], [30, 40]])), first=1)
    assert "1 │ 10 20" in table
    assert "2 │ 30 40" in table


def test_what_cannot_count_from_one() -> None:
    with pytest.raises(ArgumentError, match="keeps its numbers"):
        text(tw.draw.picture(tw.Layout(4)), first=1)
    with pytest.raises(ArgumentError, match="first"):
        text(tw.Layout(4), first=2)
