"""The pictures that MoYe.jl's documentation shows of `print_typst`: rows of their cells, as drawn with `first=1`.

Each is a grid, a row counted from 1, and what its cells say. Where several threads hold an element MoYe.jl names one, and
`draw` adds how many more there are.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

import tilewright as tw
from tilewright.draw.printing import picture

MMA = tw.make_tiled_mma(tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN)
OF_16 = "T1V1 T1V2 T2V1 T2V2 T3V1 T3V2 T4V1 T4V2"

# The picture's name, what is drawn, the element type of a copy, and rows.
PICTURES: dict[str, tuple[Any, str | None, list[tuple[str, int, str]]]] = {
    "TF32F32": (
        MMA,
        None,
        [
            ("B", 1, "T1V1 T5V1 T9V1 T13V1 T17V1 T21V1 T25V1 T29V1"),
            ("B", 8, "T4V2 T8V2 T12V2 T16V2 T20V2 T24V2 T28V2 T32V2"),
            ("A", 1, "T1V1 T2V1 T3V1 T4V1 T1V3 T2V3 T3V3 T4V3"),
            ("A", 9, "T1V2 T2V2 T3V2 T4V2 T1V4 T2V4 T3V4 T4V4"),
            ("A", 16, "T29V2 T30V2 T31V2 T32V2 T29V4 T30V4 T31V4 T32V4"),
            ("C", 1, OF_16),
            ("C", 9, "T1V3 T1V4 T2V3 T2V4 T3V3 T3V4 T4V3 T4V4"),
            ("C", 16, "T29V3 T29V4 T30V3 T30V4 T31V3 T31V4 T32V3 T32V4"),
        ],
    ),
    "mma_atom": (
        tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN),
        None,
        [
            ("A", 1, f"{OF_16} T1V5 T1V6 T2V5 T2V6 T3V5 T3V6 T4V5 T4V6"),
            ("B", 16, "T4V4 T8V4 T12V4 T16V4 T20V4 T24V4 T28V4 T32V4"),
            ("C", 16, "T29V3 T29V4 T30V3 T30V4 T31V3 T31V4 T32V3 T32V4"),
        ],
    ),
    "tiled_mma": (
        tw.make_tiled_mma(
            tw.atoms.SM70_8x8x4_F32F16F16F32_NT, tw.Layout((2, 2), (2, 1)), (tw.Layout((4, 4, 2), (1, 8, 4)), 32, 4)
        ),
        None,
        [
            ("B", 1, "T1V1 T1V2 T1V3 T1V4 T17V1 T17V2 T17V3 T17V4 T5V1 T5V2 T5V3 T5V4 T21V1 T21V2 T21V3 T21V4"),
            ("A", 9, "T17V1 T18V1 T19V1 T20V1"),
            ("A", 32, "T25V8 T26V8 T27V8 T28V8"),
            ("C", 1, "T1V1 T1V2 T3V1 T3V2 T1V5 T1V6 T3V5 T3V6 T5V1 T5V2 T7V1 T7V2 T5V5 T5V6 T7V5 T7V6"),
            ("C", 32, "T26V11 T26V12 T28V11 T28V12 T26V15 T26V16 T28V15 T28V16 T30V11 T30V12 T32V11 T32V12"),
        ],
    ),
    "smem_copy_A": (
        tw.make_tiled_copy_A(tw.atoms.SM75_U32x4_LDSM_N, MMA),
        "float32",
        [
            ("source", 1, "T1V1 T1V2 T1V3 T1V4 T17V1 T17V2 T17V3 T17V4"),
            ("source", 9, "T9V1 T9V2 T9V3 T9V4 T25V1 T25V2 T25V3 T25V4"),
            ("destination", 1, "T1V1 T2V1 T3V1 T4V1 T1V3 T2V3 T3V3 T4V3"),
            ("destination", 9, "T1V2 T2V2 T3V2 T4V2 T1V4 T2V4 T3V4 T4V4"),
        ],
    ),
    "smem_copy_B": (
        tw.make_tiled_copy_B(tw.atoms.SM75_U32x2_LDSM_N, MMA),
        "float32",
        [
            ("source", 2, "T2V1 T2V2 T2V3 T2V4 T10V1 T10V2 T10V3 T10V4"),
            ("source", 8, "T8V1 T8V2 T8V3 T8V4 T16V1 T16V2 T16V3 T16V4"),
            ("destination", 1, "T1V1 T2V1 T3V1 T4V1 T1V2 T2V2 T3V2 T4V2"),
            ("destination", 8, "T29V1 T30V1 T31V1 T32V1 T29V2 T30V2 T31V2 T32V2"),
        ],
    ),
    "tiled_copy": (
        tw.make_tiled_copy(tw.atoms.UniversalCopy(64), tw.Layout((2, 3), (3, 1)), tw.Layout((2, 3), (1, 2))),
        "float64",
        [
            ("source", 1, "T1V1 T1V3 T1V5 T2V1 T2V3 T2V5 T3V1 T3V3 T3V5"),
            ("source", 4, "T4V2 T4V4 T4V6 T5V2 T5V4 T5V6 T6V2 T6V4 T6V6"),
            ("destination", 1, "T1V1 T1V3 T1V5 T2V1 T2V3 T2V5 T3V1 T3V3 T3V5"),
            ("destination", 4, "T4V2 T4V4 T4V6 T5V2 T5V4 T5V6 T6V2 T6V4 T6V6"),
        ],
    ),
    "ldmatrix": (
        tw.make_tiled_copy(tw.atoms.SM75_U32x4_LDSM_N, tw.Layout((16, 2)), tw.Layout((2, 4))),
        "uint16",
        [
            ("source", 1, "T1V1 T9V1 T17V1 T25V1 T5V1 T13V1 T21V1 T29V1"),
            ("source", 9, "T2V1 T10V1 T18V1 T26V1 T6V1 T14V1 T22V1 T30V1"),
            ("source", 32, "T4V8 T12V8 T20V8 T28V8 T8V8 T16V8 T24V8 T32V8"),
            ("destination", 1, "T1V1 T1V3 T1V5 T1V7 T17V1 T17V3 T17V5 T17V7"),
            ("destination", 9, "T5V1 T5V3 T5V5 T5V7 T21V1 T21V3 T21V5 T21V7"),
            ("destination", 32, "T16V2 T16V4 T16V6 T16V8 T32V2 T32V4 T32V6 T32V8"),
        ],
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_cells_are_those_of_moye(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    drawn, dtype, rows = PICTURES[name]
    drawing = picture(drawn, first=1, dtype=dtype)
    grids = {grid.title.split()[0]: grid for line in drawing.grids for grid in line if grid is not None}
    if "source" in grids and "destination" not in grids:  # equal, so they are drawn once
        grids["destination"] = grids["source"]
    for title, row, cells in rows:
        shown = [re.sub(r"\+\d+", "", cell.label) for cell in grids[title].cells[row - 1]]
        assert shown[: len(cells.split())] == cells.split(), (title, row)
    tw.print_typst(drawn, first=1, dtype=dtype)
    assert capsys.readouterr().out.startswith("#set page")


def test_the_tiled_product_of_the_documentation() -> None:
    """What MoYe.jl prints of the product of four quad pairs."""
    mma, _, _ = PICTURES["tiled_mma"]
    atom = mma.atom
    assert str(mma.thr_layout_vmnk) == "((4,2),2,2,1):((1,16),8,4,0)"
    assert [str(p) for p in mma.permutations] == ["(4,4,2):(1,8,4)", "32", "4"]
    assert str(atom.thr_id) == "(4,2):(1,16)"
    assert str(atom.layout_a) == str(atom.layout_b) == "((4,2),4):((8,4),1)"
    assert str(atom.layout_c) == "((2,2,2),(2,2,2)):((1,16,4),(8,2,32))"
