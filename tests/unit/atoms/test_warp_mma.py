"""Warp-level matrix instructions: their layouts against the formulas of the PTX ISA, and their arithmetic."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.atoms.fragments import positions
from tilewright.atoms.mma import MMAAtom
from tilewright.instructions.mma import NAMES

ATOMS: list[MMAAtom] = [getattr(tw.atoms, name) for name in NAMES]
Place = Callable[[int, int, int, int], tuple[int, int]]  # group, place in the group, register element -> (row, column)


def test_the_table_is_whole() -> None:
    assert len(set(NAMES)) == len(NAMES)
    counts = {arch: sum(name.startswith(arch) for name in NAMES) for arch in ("SM70", "SM75", "SM80", "SM89", "SM90")}
    assert counts == {"SM70": 12, "SM75": 4, "SM80": 63, "SM89": 8, "SM90": 3}
    assert set(NAMES) <= set(dir(tw.atoms))
    with pytest.raises(AttributeError, match="SM80_16x8x8_F32"):
        tw.atoms.SM80_16x8x8_F32


@pytest.mark.parametrize("atom", ATOMS, ids=str)
def test_layouts_are_bijections(atom: MMAAtom) -> None:
    m, n, k = atom.shape_mnk
    c, d = (atom.layout_c, m * n), (atom.layout_of_d, m * n)
    for layout, size in ((atom.layout_a, m * k), (atom.layout_b, n * k), c, d):
        table = positions(layout)
        assert table.shape[0] == atom.threads
        assert sorted(table.ravel().tolist()) == list(range(size))
        assert table[-1, -1] == layout(table.shape[0] - 1, table.shape[1] - 1)


@pytest.mark.parametrize("atom", [a for a in ATOMS if a.dtype_a.bits < 8], ids=str)
def test_words_hold_neighbours_along_k(atom: MMAAtom) -> None:
    words = atom.in_words()
    packing = 32 // atom.dtype_a.bits
    m, n, k = atom.shape_mnk
    assert words.shape_mnk == (m, n, k // packing)
    for layout, packed, rows in ((atom.layout_a, words.layout_a, m), (atom.layout_b, words.layout_b, n)):
        elements, whole = positions(layout), positions(packed)
        for j in range(packing):
            column, row = np.divmod(elements[:, j::packing], rows)
            assert (column % packing == j).all()
            assert (column // packing * rows + row == whole).all()
    assert (words.registers_a, words.registers_b) == (
        replace(atom.registers_a, lanes=1),
        replace(atom.registers_b, lanes=1),
    )


# --- the formulas of the PTX ISA, "Matrix Fragments for mma.m..n..k.." ----------------------------------------
# g is groupID = lane / 4, t is threadID_in_group = lane % 4, i the number of the element among a0, a1, ...


def _a_f16(k: int) -> Place:
    if k == 8:
        return lambda g, t, i, _: (g if i < 2 else g + 8, t * 2 + (i & 1))
    return lambda g, t, i, _: (g if i in (0, 1, 4, 5) else g + 8, t * 2 + (i & 1) + (8 if i >= 4 else 0))


def _b_f16(g: int, t: int, i: int, _: int) -> tuple[int, int]:
    return g, t * 2 + (i & 1) + (8 if i >= 2 else 0)


def _a_64(m: int, k: int) -> Place:
    if m == 8:
        return lambda g, t, i, _: (g, t)
    if k == 16:
        return lambda g, t, i, _: (g, i * 2 + t) if i % 2 == 0 else (g + 8, i * 2 - 2 + t)
    return lambda g, t, i, _: (g if i % 2 == 0 else g + 8, t if i < 2 else t + 4)


def _packed(per_word: int, m: int) -> Place:
    """A of narrow integers: `per_word` of them a register."""

    def place(g: int, t: int, i: int, count: int) -> tuple[int, int]:
        column = t * per_word + i % per_word
        if m == 8:
            return g, column
        lower = i < per_word or 2 * per_word <= i < 3 * per_word
        return (g if lower else g + 8), column + (4 * per_word if i >= 2 * per_word else 0)

    return place


def _b_packed(per_word: int) -> Place:
    return lambda g, t, i, _: (g, t * per_word + i % per_word + (4 * per_word if i >= per_word else 0))


def _c(m: int) -> Place:
    return lambda g, t, i, _: (g if i < 2 else g + 8, t * 2 + (i & 1))


def _formulas(atom: MMAAtom) -> tuple[Place, Place, Place]:
    m, _, k = atom.shape_mnk
    bits = atom.dtype_a.bits
    if bits == 16:
        return _a_f16(k), _b_f16, _c(m)
    if bits >= 32:
        return _a_64(m, k), lambda g, t, i, _: (g, t + 4 * i), _c(m)
    return _packed(32 // bits, m), _b_packed(32 // bits), _c(m)


@pytest.mark.parametrize("atom", [a for a in ATOMS if a.arch != "sm_70"], ids=str)
def test_layouts_are_those_of_the_isa(atom: MMAAtom) -> None:
    m, n, _ = atom.shape_mnk
    layouts = ((atom.layout_a, m), (atom.layout_b, n), (atom.layout_c, m))
    for (layout, rows), place in zip(layouts, _formulas(atom), strict=True):
        table = positions(layout)
        for lane in range(32):
            for i in range(table.shape[1]):
                row, column = place(lane // 4, lane % 4, i, table.shape[1])
                assert table[lane, i] == row + rows * column, (lane, i)


@pytest.mark.parametrize("atom", [a for a in ATOMS if a.arch == "sm_70"], ids=str)
def test_quad_pairs_are_those_of_the_isa(atom: MMAAtom) -> None:
    a_major, b_major = atom.name[-2:]
    for thread in range(8):
        lane = atom.thr_id(thread)
        assert lane in (0, 1, 2, 3, 16, 17, 18, 19)
        high = 4 if lane >= 16 else 0
        for i in range(4):
            by_row, by_column = (lane % 4 + high, i), (i + high, lane % 4)
            for layout, row_wise in ((atom.layout_a, a_major == "T"), (atom.layout_b, b_major == "N")):
                row, column = by_row if row_wise else by_column
                assert layout(thread, i) == row + 8 * column
        for i in range(8):
            for layout, dtype in ((atom.layout_c, atom.dtype_c), (atom.layout_of_d, atom.dtype_d)):
                row, column = lane % 4 + high, i
                if dtype is tw.float32:
                    row, column = (lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)
                assert layout(thread, i) == row + 8 * column


# --- arithmetic ------------------------------------------------------------------------------------------


def random_tile(rng: np.random.Generator, shape: tuple[int, ...], dtype: tw.DType) -> np.ndarray:
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.storage.numpy)
    return rng.integers(dtype.lowest, dtype.highest, shape, endpoint=True).astype(dtype.numpy)


@pytest.mark.parametrize("atom", ATOMS, ids=str)
def test_reference_by_python_integers_and_floats(atom: MMAAtom) -> None:
    rng = np.random.default_rng(0)
    m, n, k = atom.shape_mnk
    a, b, c = (
        random_tile(rng, s, t) for s, t in (((m, k), atom.dtype_a), ((n, k), atom.dtype_b), ((m, n), atom.dtype_c))
    )
    d = atom.reference(a, b, c)
    assert d.dtype == atom.dtype_d.numpy and d.shape == (m, n)
    for i, j in ((0, 0), (m - 1, n - 1), (3, 5)):
        pairs = [(x.item(), y.item()) for x, y in zip(a[i], b[j], strict=True)]
        if atom.dtype_d.is_float:
            if atom.dtype_a is tw.tfloat32:
                pairs = [(_tf32(x), _tf32(y)) for x, y in pairs]
            exact = sum(float(x) * float(y) for x, y in pairs) + float(c[i, j])
            assert float(d[i, j]) == pytest.approx(exact, rel=2.0**-10 if d.itemsize == 2 else 2.0**-23, abs=2.0**-20)
            continue
        if atom.name.endswith("XORPOPC"):
            total = sum(x ^ y for x, y in pairs)
        else:
            total = sum(x * y for x, y in pairs)
        total += int(c[i, j])
        if atom.name.endswith("SATURATE"):
            total = min(max(total, -(2**31)), 2**31 - 1)
        assert int(d[i, j]) == (total + 2**31) % 2**32 - 2**31


def _tf32(x: float) -> float:
    bits = np.array([x], np.float32).view(np.uint32) & np.uint32(0xFFFFE000)
    return float(bits.view(np.float32)[0])


def test_saturation_and_wrapping() -> None:
    ones = np.ones((16, 32), np.int8), np.ones((8, 32), np.int8)
    c = np.full((16, 8), 2**31 - 1, np.int32)
    assert (tw.atoms.SM80_16x8x32_S32S8S8S32_TN_SATURATE.reference(*ones, c) == 2**31 - 1).all()
    assert (tw.atoms.SM80_16x8x32_S32S8S8S32_TN.reference(*ones, c) == -(2**31) + 31).all()


def test_references_take_batches() -> None:
    rng = np.random.default_rng(1)
    for name in ("SM80_16x8x8_F32TF32TF32F32_TN", "SM80_16x8x32_S32S8S8S32_TN", "SM80_8x8x128_S32U1U1S32_TN_XORPOPC"):
        atom = getattr(tw.atoms, name)
        m, n, k = atom.shape_mnk
        a, b = random_tile(rng, (3, 1, m, k), atom.dtype_a), random_tile(rng, (2, n, k), atom.dtype_b)
        c = random_tile(rng, (3, 2, m, n), atom.dtype_c)
        batched = atom.reference(a, b, c)
        assert (batched[2, 1] == atom.reference(a[2, 0], b[1], c[2, 1])).all()


def test_operand_types_pickle_and_say_how_they_are_held() -> None:
    assert pickle.loads(pickle.dumps(tw.tfloat32)) is tw.tfloat32
    assert tw.tfloat32.storage is tw.float32 and tw.float16.storage is tw.float16
    assert tw.atoms.SM80_16x8x64_S32S4U4S32_TN.dtype_a.lowest == -8


@pytest.mark.parametrize("name", ["SM80_16x8x8_F32TF32TF32F32_TN", "SM80_16x8x64_S32S4U4S32_TN"])
def test_atoms_pickle(name: str) -> None:
    atom = getattr(tw.atoms, name).in_words()
    copy = pickle.loads(pickle.dumps(atom))
    assert copy == atom and hash(copy) == hash(atom)
    m, n, k = atom.shape_mnk
    ones = np.ones((m, k), atom.dtype_a.storage.numpy), np.ones((n, k), atom.dtype_b.storage.numpy)
    c = np.zeros((m, n), atom.dtype_c.numpy)
    assert (copy.reference(*ones, c) == atom.reference(*ones, c)).all()
