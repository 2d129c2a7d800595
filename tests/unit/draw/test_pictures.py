"""What drawings say: the label of each cell is what the layout, tiling or access gives at its coordinate."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import Layout, draw
from tilewright.atoms import CopyAtom, UniversalCopy, UniversalFMA
from tilewright.draw.model import Drawing, Grid
from tilewright.draw.shapes import ADVANCE, Label, scene_of
from tilewright.draw.writers import _Style
from tilewright.errors import ArgumentError, LayoutError
from tilewright.layout import DynamicInt, crd2idx


def grid_of(drawing: Drawing, row: int = 0, column: int = 0) -> Grid:
    grid = drawing.grids[row][column]
    assert grid is not None
    return grid


def labels(grid: Grid) -> list[list[str]]:
    return [[cell.label for cell in row] for row in grid.cells]


@pytest.mark.parametrize(
    "layout",
    [
        Layout((4, 8)),
        Layout(((2, 2), (2, 4)), ((1, 4), (2, 8))),
        Layout((3, 5), (0, 7)),
        tw.composition(tw.Swizzle(2, 0, 2), tw.row_major((4, 4))),
    ],
    ids=str,
)
def test_layout_cells_are_offsets(layout: Layout) -> None:
    rows, columns = (tw.size(mode) for mode in layout.shape)
    found = labels(grid_of(draw.picture(layout)))
    assert found == [[str(layout(i, j)) for j in range(columns)] for i in range(rows)]


def test_layouts_of_other_ranks() -> None:
    assert labels(grid_of(draw.picture(Layout(6, 2)))) == [["0", "2", "4", "6", "8", "10"]]
    assert labels(grid_of(draw.picture(Layout((6,), (2,))))) == [["0", "2", "4", "6", "8", "10"]]
    assert labels(grid_of(draw.picture(Layout(())))) == [["0"]]
    three = draw.picture(Layout((2, 2, 3)))
    assert [grid_of(three, 0, k).title for k in range(3)] == ["(_,_,0)", "(_,_,1)", "(_,_,2)"]
    assert labels(grid_of(three, 0, 2)) == [["8", "10"], ["9", "11"]]
    four = draw.picture(tw.flat_divide(tw.row_major((4, 8)), (2, 4)))
    # The tiles stand as they do in the matrix: down the rows of tiles, across their columns.
    assert labels(grid_of(four, 1, 1)) == [["20", "21", "22", "23"], ["28", "29", "30", "31"]]


def test_coordinate_layouts_show_coordinates() -> None:
    assert labels(grid_of(draw.picture(tw.layout.identity_layout((2, 2))))) == [["(0,0)", "(0,1)"], ["(1,0)", "(1,1)"]]


def test_nested_modes_have_heavier_lines_and_coordinates() -> None:
    rows = grid_of(draw.picture(Layout(((2, 3, 2), 2)))).rows
    assert rows.levels == (0, 0, 1, 0, 1, 0, 2, 0, 1, 0, 1, 0)
    assert rows.headers[1][7] == "1,0,1"
    assert len(grid_of(draw.picture(Layout(((1, 4), 2)))).rows.headers) == 1  # an extent of 1 nests nothing


def test_large_layouts_are_cut_with_a_note() -> None:
    drawing = draw.picture(Layout((100, 1 << 40)), limit=(3, 5))
    grid = grid_of(drawing)
    assert (len(grid.cells), len(grid.cells[0])) == (3, 5)
    assert drawing.all_notes == ("rows 3 to 99 are left out", f"columns 5 to {(1 << 40) - 1} are left out")
    for text in (draw.text(drawing), draw.typst(drawing), draw.svg(drawing)):
        assert "rows 3 to 99 are left out" in text
    assert draw.picture(Layout((2, 2, 9))).notes == ("5 of 9 grids are left out",)


def test_swizzle_shows_before_and_after() -> None:
    swizzle = tw.Swizzle(2, 3, 2)
    drawing = draw.picture(swizzle)
    assert labels(grid_of(drawing, 0, 0))[1] == ["4", "5", "6", "7"]
    assert labels(grid_of(drawing, 0, 1)) == [[str(swizzle((4 * r + c) * 8) // 8) for c in range(4)] for r in range(4)]
    assert "a run of 8 elements" in drawing.notes[0]
    assert labels(grid_of(draw.picture(tw.Swizzle(0, 0, 0)), 0, 1)) == [["0"]]
    lower = tw.Swizzle(1, 0, -2)
    assert labels(grid_of(draw.picture(lower), 0, 1)) == [[str(lower(4 * r + c)) for c in range(4)] for r in range(2)]


def test_tensor_shows_its_elements() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3) / 2
    assert labels(grid_of(draw.picture(tw.tensor(array)))) == [["0", "0.5", "1"], ["1.5", "2", "2.5"]]
    tile = tw.local_tile(tw.tensor(array), (2, 2), (0, 1))
    assert labels(grid_of(draw.picture(tile)))[1] == ["2.5", "?"]  # the tile overhangs: outside of the storage
    assert labels(grid_of(draw.picture(tw.identity_tensor((1, 2))))) == [["(0,0)", "(0,1)"]]


@pytest.mark.parametrize("bits", [None, 32, 64])
def test_tiled_copy_names_thread_and_value(bits: int | None) -> None:
    copy = tw.make_tiled_copy(UniversalCopy(bits), Layout((4, 4)), Layout((2, 1)))
    drawing = draw.picture(copy, dtype=tw.float32)
    assert [len(row) for row in drawing.grids] == [1]  # what is equal is drawn once
    both = grid_of(drawing)
    assert both.title == "source and destination"
    for thread in range(16):
        for value in range(2):
            i, j = tw.layout.idx2crd(copy.layout_tv(thread, value), copy.tile_shape)
            assert both.cells[i][j].lines == (f"T{thread}", f"V{value}")


def test_tiled_copy_whose_sides_differ() -> None:
    """Two threads swap their halves: what thread 0 reads, thread 1 writes."""
    atom = CopyAtom("swap", "", 32, Layout(2), Layout((2, 32), (32, 1)), Layout((2, (16, 2)), (16, (1, 32))))
    copy = tw.make_tiled_copy(atom, Layout(2), Layout(2))
    drawing = draw.picture(copy, dtype=tw.float16)
    assert labels(grid_of(drawing, 0, 0)) == [["T0V0", "T0V1", "T1V0", "T1V1"]]
    assert labels(grid_of(drawing, 0, 1)) == [["T0V0", "T1V0", "T0V1", "T1V1"]]


def test_tiled_copy_takes_the_narrowest_type_that_fits() -> None:
    copy = tw.make_tiled_copy(UniversalCopy(128), Layout((4, 4)), Layout((1, 8)))
    assert "tile (4,32) of 16-bit elements" in draw.picture(copy).notes


def test_tiled_mma_is_placed_as_a_product() -> None:
    mma = tw.make_tiled_mma(UniversalFMA(tw.float32), Layout((2, 4)), (4, 8, 2))
    drawing = draw.picture(mma)
    assert drawing.grids[0][0] is None
    b, a, c = grid_of(drawing, 0, 1), grid_of(drawing, 1, 0), grid_of(drawing, 1, 1)
    m, n, k = mma.shape_mnk
    assert (len(a.cells), len(a.cells[0])) == (m, k)
    assert (len(b.cells), len(b.cells[0])) == (k, n)
    assert (len(c.cells), len(c.cells[0])) == (m, n)
    for thread in range(mma.size):
        part = mma.get_slice(thread)
        parts = [part.partition_C(tw.identity_tensor((m, n))), part.partition_A(tw.identity_tensor((m, k)))]
        where_c, where_a = ([p[i] for i in range(p.size)] for p in parts)
        for value, (i, j) in enumerate(where_c):
            assert c.cells[i][j].lines == (f"T{thread}", f"V{value}")
        for value, (i, j) in enumerate(where_a):
            assert a.cells[i][j].lines[1] == f"V{value}"
    # Four threads along N hold the same element of A, two along M the same of B.
    assert a.cells[1][0].lines[0] == "T1+3"
    assert b.cells[0][1].lines[0] == "T2+1"
    assert c.columns.levels[4] == 1 and c.rows.levels[2] == 1  # where the atoms side by side end


def test_tiling_marks_a_part() -> None:
    matrix = tw.row_major((4, 4))
    drawing = draw.tiling(matrix, lambda t: tw.local_partition(t, Layout((2, 2)), 3))
    marked = {c.lines for row in grid_of(drawing).cells for c in row if c.mark}
    part = tw.local_partition(tw.tensor(np.arange(16).reshape(4, 4)), Layout((2, 2)), 3)
    assert marked == {(str(part[i]), f"#{i}") for i in range(4)}


def test_tiling_takes_views_of_the_tensor_itself() -> None:
    whole = tw.tensor(np.arange(16).reshape(4, 4))
    tile = tw.local_tile(whole, (2, 2), (1, 0))
    by_view, by_function = draw.tiling(whole, tile), draw.tiling(whole, lambda t: tw.local_tile(t, (2, 2), (1, 0)))
    assert by_view == by_function
    with pytest.raises(LayoutError, match="was not cut from"):
        draw.tiling(whole, tw.tensor(np.zeros(4)))
    with pytest.raises(LayoutError, match="returned 3"):
        draw.tiling(whole, lambda t: 3)  # type: ignore[arg-type, return-value]


def test_tiling_of_tiled_copies_overlaps_and_overhang() -> None:
    copy = tw.make_tiled_copy(UniversalCopy(64), Layout((2, 2)), Layout((2, 1)))
    array = tw.tensor(np.zeros((4, 2), np.float32))
    drawing = draw.tiling(array, lambda t: copy.get_slice(1).partition_S(t), lambda t: t)
    lines = [row[0].lines[1] for row in grid_of(drawing).cells]
    assert lines == ["#0", "#1", "#0+1", "#1+1"]
    corner = draw.tiling((3, 3), lambda t: tw.local_tile(t, (2, 2), (1, 1)))
    assert [c.lines for row in grid_of(corner).cells for c in row if c.mark] == [("8", "#0")]


def test_tiling_of_nested_shapes() -> None:
    layout = Layout(((2, 2), 4))
    drawing = draw.tiling(layout, lambda t: t[(None, 1), :])
    marked = {(i, j) for i, row in enumerate(grid_of(drawing).cells) for j, c in enumerate(row) if c.mark}
    assert marked == {(i, j) for i in (2, 3) for j in range(4)}


class Symbol(DynamicInt):
    def __str__(self) -> str:
        return "n"


def test_what_cannot_be_drawn_is_refused() -> None:
    for dynamic in (Layout((Symbol(), 4), (1, 1)), Layout((4, 4), (Symbol(), 1))):
        with pytest.raises(LayoutError, match="cannot be drawn"):
            draw.picture(dynamic)
    with pytest.raises(ArgumentError, match="str has no picture"):
        draw.text("layout")
    assert crd2idx((1, 1), (2, 2)) == 3  # the order that a tile's elements are numbered in


def test_beside_joins_grids_and_notes() -> None:
    both = draw.beside(draw.picture(Layout((2, 2))), draw.picture(tw.Swizzle(1, 0, 1)), title="both")
    assert [grid_of(both, 0, k).title for k in range(3)] == ["(2,2):(1,2)", "Sw<1,0,1>: before", "after"]
    assert both.notes == tuple(f"Sw<1,0,1>: {note}" for note in draw.picture(tw.Swizzle(1, 0, 1)).notes)


def test_beside_tells_whose_a_note_is() -> None:
    """Each note, colour key and cut belongs to one drawing; what holds for all is told once."""
    tall, small = draw.picture(Layout((40, 2))), draw.picture(Layout((2, 2)))
    assert draw.beside(tall, small).all_notes == ("(40,2):(1,40): rows 32 to 39 are left out",)
    assert draw.beside(tall, tall).all_notes == ("rows 32 to 39 are left out",)
    copy = draw.picture(tw.make_tiled_copy(UniversalCopy(32), Layout((4, 4)), Layout((2, 1))))
    mma = draw.picture(tw.make_tiled_mma(tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN))
    both = draw.beside(copy, mma)
    assert "T: thread, V: its value" in both.notes and both.colour_key == "the thread mod 32"  # of both
    assert f"{copy.title}: tile (8,4) of 16-bit elements" in both.notes
    one, two = draw.picture(tw.Swizzle(1, 0, 1), title="x"), draw.picture(tw.Swizzle(2, 0, 2), title="x")
    keys = draw.beside(one, two).colour_key.split("; ")
    assert [key.split(": ")[0] for key in keys] == ["drawing 1", "drawing 2"]
    assert grid_of(draw.beside(mma, small), 0, 1).title.startswith(mma.title)
    for drawing in (both, draw.beside(small, tall)):
        assert_titles_fit(drawing)


def assert_titles_fit(drawing: Drawing) -> None:
    """Assert that no title of a grid runs into the next."""
    scene = scene_of(drawing)
    titles = sorted((s.y, s.x, s.text) for s in scene.shapes if isinstance(s, Label) and s.bold and s.size == 8.0)
    for (y, x, text), (other_y, other_x, _) in pairwise(titles):
        assert y != other_y or x + len(text) * ADVANCE * 8.0 <= other_x


FOUR_WARPS = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN, (2, 2, 1))
SEVERAL_WARPS = {
    "four": FOUR_WARPS,
    "four, larger tile": tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN, (2, 2, 1), (64, 32, 32)),
    "four along K": tw.make_tiled_mma(tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN, (2, 1, 2)),
    "eight": tw.make_tiled_mma(tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN, (4, 2)),
    "scalar": tw.make_tiled_mma(UniversalFMA(tw.float32), (8, 16)),
    "scalar, across": tw.make_tiled_mma(UniversalFMA(tw.float32), Layout((16, 16), (16, 1)), (32, 32, None)),
    "quads of lanes": tw.make_tiled_mma(tw.atoms.SM70_8x8x4_F32F16F16F32_TN, (4, 4)),
}


@pytest.mark.parametrize("name", SEVERAL_WARPS)
@pytest.mark.spread(2)
def test_several_warps_are_summed_up_and_one_is_drawn_in_full(name: str) -> None:
    mma = SEVERAL_WARPS[name]
    drawing = draw.picture(mma)
    assert max(len(grid.cells) for row in drawing.grids for grid in row if grid is not None) <= 32
    holders: dict[tuple[int, int], set[int]] = {}
    m, n, _ = mma.shape_mnk
    for thread in mma.thread_numbers:
        for value in range(tw.size(mma.layout_c_tv[1])):
            holders.setdefault(tw.layout.idx2crd(mma.layout_c_tv(thread, value), (m, n)), set()).add(thread)
    summary, detail = grid_of(drawing, 1, 1), grid_of(drawing, 3, 1)
    height, width = m // summary.rows.extent, n // summary.columns.extent
    for i, row in enumerate(summary.cells):
        for j, cell in enumerate(row):
            for di, dj in ((0, 0), (height - 1, width - 1), (height - 1, 0), (0, width - 1)):
                warps = sorted({t // 32 for t in holders[i * height + di, j * width + dj]})
                others = f"+{len(warps) - 1}" if len(warps) > 1 else ""
                assert cell.label == f"W{warps[0]}{others}"
    lanes = set()
    for i, row in enumerate(detail.cells):
        for j, cell in enumerate(row):
            assert cell.label.startswith(f"T{min(holders[i, j])}")
            lanes |= holders[i, j]
    assert lanes.issuperset(t for t in mma.thread_numbers if t < 32)


def test_one_warp_in_full_names_its_own_lanes() -> None:
    """What other warps hold of the same elements the summary tells: +n is for lanes of this warp."""
    drawing = draw.picture(FOUR_WARPS)
    a, b = grid_of(drawing, 3, 0), grid_of(drawing, 2, 1)
    one = draw.picture(tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN))
    assert labels(a) == labels(grid_of(one, 1, 0)) and labels(b) == labels(grid_of(one, 0, 1))
    assert labels(grid_of(drawing, 1, 0)) == [["W0+1"], ["W1+1"]]
    shared = draw.picture(SEVERAL_WARPS["scalar"])  # lanes that hold the same elements of A are of one warp
    assert any("+n: held by n more threads" in note for note in shared.notes)
    assert not any("held by" in note for note in drawing.notes)


@pytest.mark.parametrize(("kind", "there"), [("SS", "C"), ("RS", "AC")])
def test_operands_in_shared_memory_have_no_lanes_to_be_drawn(kind: str, there: str) -> None:
    """All threads hold all of them: cells that said T0+127 V1935 took most of the picture and of the text."""
    atom = getattr(tw.atoms, f"SM90_64x128x16_F32BF16BF16_{kind}")
    drawing = draw.picture(atom)
    detail = [grid for row in drawing.grids[2:] for grid in row if grid is not None]
    assert [grid.title for grid in detail] == [f"{name}, first warp" for name in there]
    read = [note.split(":")[0] for note in drawing.notes if "shared memory" in note]
    assert read == [" and ".join(n for n in "AB" if n not in there)]
    scene = scene_of(drawing)
    assert scene.width * scene.height < 1200 * 800
    text = draw.text(atom, width=100)
    assert len(text.splitlines()) < 130 and all(len(line) <= 100 for line in text.splitlines())


def test_several_warps_element_by_element() -> None:
    drawing = draw.picture(FOUR_WARPS, whole=True)
    c = grid_of(drawing, 1, 1)
    assert (len(c.cells), len(c.cells[0])) == (32, 16)
    assert c.cells[0][0].fill != c.cells[16][0].fill != c.cells[0][8].fill  # a hue for each warp
    assert c.cells[0][0].fill != c.cells[2][0].fill  # a tint for each quarter of its lanes
    assert "warp" in drawing.colour_key
    one = draw.picture(tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN))
    assert one == draw.picture(tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN), whole=True)


def test_warps_are_counted_from_one() -> None:
    c = grid_of(draw.picture(FOUR_WARPS, first=1), 1, 1)
    assert labels(c) == [["W1", "W3"], ["W2", "W4"]] and c.rows.headers == (("1-16", "17-32"),)
    a = grid_of(draw.picture(FOUR_WARPS, first=1), 1, 0)
    assert labels(a) == [["W1+1"], ["W2+1"]]


def test_rows_and_columns_of_c_are_numbered() -> None:
    for mma in (tw.make_tiled_mma(tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN), FOUR_WARPS):
        drawing = draw.picture(mma)
        assert all(g.show_rows and g.show_columns for row in drawing.grids for g in row if g is not None)


@pytest.mark.parametrize("width", [1, 20, 33, 60, 79, 200])
@pytest.mark.parametrize(
    "x",
    [
        tw.Layout((4, 30)),
        tw.Layout(((2, 2), (3, 2, 4)), ((1, 24), (2, 6, 48))),
        tw.composition(tw.Swizzle(3, 0, 3), tw.row_major((8, 8))),
        tw.Swizzle(2, 0, 3),
        tw.identity_tensor((3, 12)),
        tw.atoms.SM80_16x8x16_F32F16F16F32_TN,
    ],
    ids=str,
)
def test_folded_tables_hold_the_same_cells(x: Any, width: int) -> None:
    """Law: the runs of a folded table, put beside each other, are the table; each fits, or is of one column."""
    for grid in (grid for row in draw.picture(x).grids for grid in row if grid is not None):
        style = _Style([grid])
        parts = list(style.folded(grid, width))
        assert tuple(sum((part.cells[i] for part in parts), ()) for i in range(grid.rows.shown)) == grid.cells
        for part in parts:
            lines = [line.rstrip() for line in style.block(part)][bool(part.title) :]
            assert part.columns.shown == 1 or max(map(len, lines)) <= width
    assert draw.text(x, width=500) == draw.text(x)


def test_a_width_is_a_number_from_one() -> None:
    with pytest.raises(ArgumentError, match=r"draw\.text: width is at least 1, got 0"):
        draw.text(tw.Layout(4), width=0)
