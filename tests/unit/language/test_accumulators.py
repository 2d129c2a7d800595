"""The views of accumulators: their laws for every atom of the library, computed from the atom's layout in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.atoms.fragments import positions
from tilewright.errors import LanguageError
from tilewright.instructions.mfma import NAMES as MFMAS
from tilewright.instructions.mma import NAMES as WARP_MMAS
from tilewright.language import accumulators

EVERY_ATOM = tuple(name for name in (*WARP_MMAS, *MFMAS) if getattr(tw.atoms, name).layout_d is None)


def _layouts(name: str) -> Any:
    atom = getattr(tw.atoms, name)
    return atom.shape_mnk, atom.thr_id, atom.layout_a, atom.layout_c, atom.row_block


# One atom of each kind: the views depend on nothing but the layouts.
ATOMS = tuple({_layouts(name): name for name in reversed(EVERY_ATOM)}.values())
TILED = {
    "rows": (4, 1, 1),
    "columns": (1, 2, 1),
    "both": (2, 2, 1),
    "depth": (2, 1, 2),
}


def tiled(name: str, layout: Any = (1, 1, 1)) -> Any:
    """Return a tiled mma of an atom; four of sm_70's groups of eight threads make a warp."""
    atom = getattr(tw.atoms, name)
    if name.startswith("SM70"):
        m, n, k = layout
        layout = (m * 4, n, k)
    return tw.make_tiled_mma(atom, layout)


def coordinates(mma: Any, repeats: tuple[int, int], threads: Any = None) -> Any:
    """Return for each thread the coordinates (m, n) of its values (V, M, N), counted from its atom's first row on."""
    shape = tuple(mma.tile_size(mode) * count for mode, count in enumerate(repeats))
    for thread in range(mma.size) if threads is None else threads:
        part = mma.get_slice(thread).partition_C(tw.identity_tensor(shape))
        yield part, np.array([part[n] for n in range(part.size)])


def places(mma: Any) -> list[set[tuple[int, int]]]:
    """Return the coordinates in C's tile of each thread's values."""
    table = positions(mma.layout_c_tv)
    rows = mma.tile_size(0)
    return [{(int(p) % rows, int(p) // rows) for p in part} for part in table]


@pytest.mark.parametrize("name", ATOMS)
@pytest.mark.spread(4)
def test_rows_and_columns_of_every_atom(name: str) -> None:
    mma = tiled(name)
    for part, _ in coordinates(mma, (2, 3), {0, mma.size // 2 - 1, mma.size - 1}):
        view = accumulators.accumulator_rows(mma, part)
        rows, columns = (view.layout[mode].size for mode in (0, 1))
        assert rows * columns == part.size
        table = np.array([[view[r, c] for c in range(columns)] for r in range(rows)])
        assert (table[:, :, 0] == table[:, :1, 0]).all(), "a row of the view lies in one row of C"
        assert (table[:, :, 1] == table[:1, :, 1]).all(), "a column of the view lies in one column of C"
        assert len(np.unique(table[:, 0, 0])) == rows and len(np.unique(table[0, :, 1])) == columns
        assert (np.diff(table[: rows // 2, 0, 0]) > 0).all(), "rows ascend"
        assert (np.diff(table[0, : columns // 3, 1]) > 0).all(), "columns ascend"


@pytest.mark.parametrize("name", ATOMS)
@pytest.mark.parametrize("layout", TILED)
@pytest.mark.spread(6)
def test_threads_of_a_row(name: str, layout: str) -> None:
    """The threads that are found have all columns of a row between them, each once; copies along K are not among them."""
    mma = tiled(name, TILED[layout])
    parts = places(mma)
    masks = accumulators._threads_of_row(mma)
    for thread in range(mma.size):
        threads = {thread}
        for mask in masks:
            threads |= {other ^ mask for other in threads}
        found = [place for other in threads for place in parts[other]]
        rows = {m for m, _ in parts[thread]}
        assert len(found) == len(set(found)) == len(rows) * mma.tile_size(1)
        assert {m for m, _ in found} == rows


def test_three_warps_along_a_row() -> None:
    with pytest.raises(LanguageError, match="spread over 12 threads, whose numbers do not differ by bits"):
        accumulators._threads_of_row(tiled("SM80_16x8x16_F32F16F16F32_TN", (1, 3, 1)))


def test_the_quad_shares_a_row() -> None:
    assert accumulators._threads_of_row(tiled("SM80_16x8x16_F32F16F16F32_TN", (4, 1, 1))) == (1, 2)


@pytest.mark.parametrize("name", ATOMS)
@pytest.mark.spread(4)
def test_operand_a(name: str) -> None:
    """Where C is taken as A, each value of A is the value of C at its coordinate; else a thread lacks one."""
    mma = tiled(name)
    depth = max(mma.tile_size(1), mma.tile_size(2))
    shape = (mma.tile_size(0), depth)
    held, needed = ([], [])  # type: ignore[var-annotated]
    identity = tw.identity_tensor(shape)
    for thread in range(mma.size):
        part = mma.get_slice(thread)
        c, a = part.partition_C(identity), part.partition_A(identity)
        held.append([tuple(c[n]) for n in range(c.size)])
        needed.append([tuple(a[n]) for n in range(a.size)])
    fits = all(set(a) <= set(c) for a, c in zip(needed, held, strict=True))
    places = [[c.index(p) for p in a] for a, c in zip(needed, held, strict=True)] if fits else []
    fits = fits and all(p == places[0] for p in places)
    try:
        found = accumulators._places_in_c(mma, mma, shape)
    except LanguageError as refusal:
        assert not fits
        assert "needs element" in str(refusal)
        return
    assert fits and list(found) == places[0]


def test_atoms_whose_c_is_an_a() -> None:
    fitting = []
    for name in EVERY_ATOM:
        mma = tiled(name)
        try:
            accumulators._places_in_c(mma, mma, (mma.tile_size(0), max(mma.tile_size(1), mma.tile_size(2))))
        except LanguageError:
            continue
        fitting.append(name)
    assert {name.rsplit("_", 2)[0] + "_" + name.rsplit("_", 2)[1] for name in fitting} == {
        "SM70_8x8x4_F16F16F16F16",
        "SM75_16x8x8_F32F16F16F32",
        "SM75_16x8x8_F16F16F16F16",
        "SM80_16x8x8_F16F16F16F16",
        "SM80_16x8x8_F32F16F16F32",
        "SM80_16x8x8_F32BF16BF16F32",
        "SM80_16x8x16_F16F16F16F16",
        "SM80_16x8x16_F32F16F16F32",
        "SM80_16x8x16_F32BF16BF16F32",
    }


def test_permuted_tiles() -> None:
    """A permutation of N changes which columns a thread has, and the view follows."""
    mma = tw.make_tiled_mma(
        tw.atoms.SM80_16x8x16_F32F16F16F32_TN, (2, 2), (None, tw.Layout((2, 4, 2, 2), (1, 2, 16, 8)), None)
    )
    for part, _ in coordinates(mma, (2, 2)):
        view = accumulators.accumulator_rows(mma, part)
        table = np.array([[view[r, c] for c in range(view.layout[1].size)] for r in range(view.layout[0].size)])
        assert (table[:, :, 0] == table[:, :1, 0]).all() and (table[:, :, 1] == table[:1, :, 1]).all()


def test_modes_may_be_left_out() -> None:
    atom = tw.atoms.SM80_16x8x16_F32F16F16F32_TN
    values = tw.tensor(np.zeros(4), tw.Layout(((2, 2),)))
    assert accumulators.accumulator_rows(atom, values).shape == ((2, 1), (2, 1))


@pytest.mark.parametrize("name", ["SM80_16x8x16_F32F16F16F32_TN", "SM80_8x8x4_F64F64F64F64_TN"])
def test_what_is_no_fragment_of_the_mma(name: str) -> None:
    tensor = tw.tensor(np.zeros(24), tw.Layout((3, 4, 2)))
    with pytest.raises(LanguageError, match=r"is a fragment \(V, M, N\) of . values V, got .*\(3,4,2\)"):
        accumulators.accumulator_rows(getattr(tw.atoms, name), tensor)
    with pytest.raises(LanguageError, match="takes a tiled mma or an atom first"):
        accumulators.accumulator_rows(tensor, tensor)


def test_value_modes_of_every_atom_cover_its_values() -> None:
    for name in EVERY_ATOM:
        atom = getattr(tw.atoms, name)
        rows, columns = accumulators._value_modes(atom)
        table = positions(atom.layout_c)
        grid = np.array([[table[0][rows(r) + columns(c)] for c in range(columns.size)] for r in range(rows.size)])
        assert sorted(grid.ravel()) == sorted(table[0])
