"""TiledMMA: every product exactly once, whatever the atoms and permutations."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.unit.layout.symbols import Symbol, value_of
from tests.unit.test_tensors import Recorder

import tilewright as tw
from tilewright.atoms import MMAAtom, UniversalFMA
from tilewright.errors import LayoutError
from tilewright.layout import Layout, product_each
from tilewright.tiled import TiledMMA, make_tiled_mma

FMA = UniversalFMA(tw.float32)
# The thread-value layouts of the 16 x 8 x 8 warp instruction: 32 threads, 4 + 2 + 4 values each.
WARP = MMAAtom(
    "warp 16x8x8", "sm_80", (16, 8, 8), tw.float32, tw.float16, tw.float16, tw.float32, Layout(32),
    Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))),
    Layout(((4, 8), 2), ((16, 1), 8)),
    Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))),
)  # fmt: skip

MMAS: dict[str, tuple[TiledMMA, tuple[int, int, int]]] = {
    "one thread": (make_tiled_mma(FMA), (2, 3, 2)),
    "a grid of threads": (make_tiled_mma(FMA, Layout((4, 8))), (8, 16, 3)),
    "row-major threads": (make_tiled_mma(FMA, Layout((4, 8), (8, 1))), (8, 8, 2)),
    "threads along K": (make_tiled_mma(FMA, Layout((2, 2, 4))), (4, 4, 8)),
    "a larger tile": (make_tiled_mma(FMA, Layout((4, 4)), (8, 16, 2)), (16, 16, 4)),
    "permuted": (make_tiled_mma(FMA, Layout((4, 4)), (Layout((4, 2), (2, 1)), Layout((2, 4), (4, 1)))), (16, 16, 2)),
    "a warp": (make_tiled_mma(WARP), (16, 16, 8)),
    "two by two warps": (make_tiled_mma(WARP, Layout((2, 2, 1))), (64, 32, 16)),
    "one quad pair": (make_tiled_mma(tw.atoms.SM70_8x8x4_F32F16F16F32_NT), (16, 24, 8)),
    "two quad pairs": (make_tiled_mma(tw.atoms.SM70_8x8x4_F16F16F16F16_TN, (2, 1)), (16, 8, 4)),
    "quad pairs of two warps": (
        make_tiled_mma(tw.atoms.SM70_8x8x4_F32F16F16F32_TT, Layout((2, 1), (4, 0))),
        (16, 8, 4),
    ),
    "columns of threads apart": (make_tiled_mma(FMA, Layout((4, 4), (1, 8))), (8, 4, 2)),
    "every other thread": (make_tiled_mma(FMA, Layout((4, 4), (2, 8))), (4, 4, 2)),
    "warps with a permutation": (make_tiled_mma(WARP, (2, 1), (32, 16, 8)), (32, 16, 16)),
}


@pytest.mark.parametrize("name", MMAS)
@pytest.mark.spread(4)
def test_every_product_once(name: str) -> None:
    mma, (m, n, k) = MMAS[name]
    where_a, where_b, where_c = (tw.identity_tensor(s) for s in ((m, k), (n, k), (m, n)))
    held: Counter[tuple[int, int]] = Counter()
    shapes = set()
    for thread in mma.thread_numbers:
        mine = mma.get_slice(thread)
        a, b, c = mine.partition_A(where_a), mine.partition_B(where_b), mine.partition_C(where_c)
        shapes.add((a.shape, b.shape, c.shape))
        held.update(c[i] for i in range(c.size))
        (_, _, steps_a), (_, _, steps_b) = product_each(a.shape), product_each(b.shape)
        assert steps_a == steps_b
    assert len(shapes) == 1
    along_k = mma.atom_layout[2].size
    assert held == {(i, j): along_k for i in range(m) for j in range(n)}
    assert _products(mma, where_a, where_b, where_c) == {
        (i, j, x): 1 for i in range(m) for j in range(n) for x in range(k)
    }


def _products(mma: TiledMMA, where_a: Any, where_b: Any, where_c: Any) -> Counter[tuple[int, int, int]]:
    """Carry out the atoms on coordinates: which (m, n, k) does each compute?"""
    done: Counter[tuple[int, int, int]] = Counter()
    atom_m, atom_n, atom_k = mma.atom.shape_mnk
    vmnk = mma.thr_layout_vmnk
    groups: dict[Any, list[int]] = {}
    for thread in mma.thread_numbers:
        groups.setdefault(vmnk.get_flat_coord(thread)[1:], []).append(thread)
    for threads in groups.values():
        parts = [(mma.get_slice(t).partition_A(where_a), mma.get_slice(t).partition_B(where_b)) for t in threads]
        outs = [mma.get_slice(t).partition_C(where_c) for t in threads]
        _, rest_m, rest_n = product_each(outs[0].shape)
        rest_k = product_each(parts[0][0].shape)[2]
        for i in range(rest_m):
            for j in range(rest_n):
                for x in range(rest_k):
                    a = {p[0][v, i, x] for p in parts for v in range(product_each(p[0].shape)[0])}
                    b = {p[1][v, j, x] for p in parts for v in range(product_each(p[1].shape)[0])}
                    c = [o[v, i, j] for o in outs for v in range(product_each(o.shape)[0])]
                    assert (len(a), len(b), len(c)) == (atom_m * atom_k, atom_n * atom_k, atom_m * atom_n)
                    deep = {y for _, y in a}
                    assert deep == {y for _, y in b}
                    assert all((row, y) in a and (column, y) in b for row, column in c for y in deep)
                    done.update((row, column, y) for row, column in c for y in deep)
    return done


@pytest.mark.parametrize("name", MMAS)
@pytest.mark.parametrize("operand", ["A", "B", "C"])
@pytest.mark.spread(4)
def test_thread_value_layouts_agree_with_partitions(name: str, operand: str) -> None:
    mma, _ = MMAS[name]
    m, n, k = mma.shape_mnk
    shape = {"A": (m, k), "B": (n, k), "C": (m, n)}[operand]
    layout = getattr(mma, f"layout_{operand.lower()}_tv")
    numbers = tw.tensor(np.arange(np.prod(shape)), Layout(shape))
    assert layout[0].size == mma.span
    for thread in range(mma.span):
        part = getattr(mma.get_slice(thread), f"partition_{operand}")(numbers)
        assert [layout(thread, value) for value in range(layout[1].size)] == [part[i] for i in range(part.size)]
    assert mma.partition_shape(shape, operand) == part.shape


@pytest.mark.parametrize("name", MMAS)
@pytest.mark.spread(4)
def test_numbers_that_are_left_out_are_those_of_copies(name: str) -> None:
    """Each of them has the slices of one thread, and every thread has as many copies as the others."""
    mma, _ = MMAS[name]
    where = tw.identity_tensor(mma.tiler_mn)
    held: Counter[tuple[Any, ...]] = Counter()
    for number in range(mma.span):
        part = mma.get_slice(number).partition_C(where)
        assert mma.get_slice(number).is_copy == (number not in mma.thread_numbers)
        held[tuple(part[i] for i in range(part.size))] += 1
    threads = {mma.thr_layout_vmnk.get_flat_coord(t)[:3] for t in mma.thread_numbers}
    assert len(held) == len(threads)
    assert set(held.values()) == {mma.span // len(threads)}
    assert len(mma.thread_numbers) == mma.size


@tw.kernel
def quad_pair_product(C, A, B, mma: tw.constexpr):
    """One quad pair multiplies; the other lanes of the warp do the same, and do not store."""
    thread = mma.get_slice(tw.thread_idx.x)
    a, b, c = thread.partition_A(A), thread.partition_B(B), thread.partition_C(C)
    ra, rb, rc = thread.make_fragment_A(a), thread.make_fragment_B(b), thread.make_fragment_C(c)
    tw.copy(a, ra)
    tw.copy(b, rb)
    tw.clear(rc)
    tw.gemm(mma, rc, ra, rb, rc)
    if not thread.is_copy:
        tw.copy(rc, c)


@pytest.mark.parametrize("types", ["F32F16F16F32", "F16F16F16F16"])
@pytest.mark.parametrize("majors", ["NT", "NN", "TN", "TT"])
@pytest.mark.spread(3)
def test_one_quad_pair_multiplies(types: str, majors: str) -> None:
    mma = make_tiled_mma(getattr(tw.atoms, f"SM70_8x8x4_{types}_{majors}"))
    draw = np.random.default_rng(0)
    a, b = draw.integers(-4, 5, (16, 12)).astype(np.float16), draw.integers(-4, 5, (24, 12)).astype(np.float16)
    c = np.full((16, 24), np.nan, mma.atom.dtype_d.numpy)
    quad_pair_product[1, mma.span](*(tw.static(x) for x in (c, a, b)), mma)
    assert (c == a.astype(np.float64) @ b.T.astype(np.float64)).all()
    with pytest.raises(tw.LanguageError, match=r"blocks of a multiple of 32"):
        quad_pair_product[1, mma.size](*(tw.static(x) for x in (c, a, b)), mma)
    with pytest.raises(tw.LanguageError, match=r"its \.span"):
        quad_pair_product[1, 2 * mma.span](*(tw.static(x) for x in (c, a, b)), mma)


@tw.kernel
def add_in_half_precision(D, A, B, C, mma: tw.constexpr):
    """D = A B^T + C of one step of K, where C is float16 and D float32, each held by other threads."""
    thread = mma.get_slice(tw.thread_idx.x)
    a, b, c, d = thread.partition_A(A), thread.partition_B(B), thread.partition_C(C), thread.partition_D(D)
    ra, rb, rc, rd = (thread.make_fragment_A(a), thread.make_fragment_B(b), thread.make_fragment_C(c),
                      thread.make_fragment_D(d))  # fmt: skip
    tw.copy(a, ra)
    tw.copy(b, rb)
    tw.copy(c, rc)
    tw.gemm(mma, rd, ra, rb, rc)
    if not thread.is_copy:
        tw.copy(rd, d)


@pytest.mark.parametrize("majors", ["NT", "NN", "TN", "TT"])
@pytest.mark.parametrize("atoms", [(1, 1), (2, 2)])
@pytest.mark.spread(3)
def test_an_atom_whose_d_is_not_held_as_its_c(majors: str, atoms: tuple[int, int]) -> None:
    mma = make_tiled_mma(getattr(tw.atoms, f"SM70_8x8x4_F32F16F16F16_{majors}"), atoms)
    draw = np.random.default_rng(0)
    a, b, c = (draw.integers(-4, 5, shape).astype(np.float16) for shape in ((32, 4), (16, 4), (32, 16)))
    d = np.full((32, 16), np.nan, np.float32)
    add_in_half_precision[1, mma.span](*(tw.static(x) for x in (d, a, b, c)), mma)
    assert (d == a.astype(np.float64) @ b.T.astype(np.float64) + c).all()
    deep = [np.concatenate([x, x], axis=1) for x in (a, b)]
    with pytest.raises(tw.LanguageError, match="one step of K"):
        add_in_half_precision[1, mma.span](*(tw.static(x) for x in (d, *deep, c)), mma)
    assert mma.layout_d_tv != mma.layout_c_tv
    assert "D (M,N)" in tw.draw.text(mma)


@tw.kernel
def row_sums(Out, C, mma: tw.constexpr):
    """Sums of the rows of C, whose threads' numbers have gaps."""
    thread = mma.get_slice(tw.thread_idx.x)
    c, where = thread.partition_C(C), thread.partition_C(tw.identity_tensor(C.shape))
    rc = thread.make_fragment_C(c)
    tw.copy(c, rc)
    sums, rows = tw.reduce_rows(mma, rc), tw.accumulator_rows(mma, where)
    if not thread.is_copy:
        for i in tw.static_range(rows.shape[0] if isinstance(rows.shape[0], int) else tw.size(rows.shape[0])):
            if rows[i, 0][1] == 0:  # the thread of the first column
                Out[rows[i, 0][0]] = sums[i, 0]


@pytest.mark.parametrize("atoms", [Layout((1, 1)), Layout((1, 2)), Layout((2, 1)), Layout((1, 2), (0, 4))], ids=str)
def test_rows_over_threads_with_gaps(atoms: Layout) -> None:
    """A row is in one quad pair, in two of one warp, or in those of two warps."""
    mma = make_tiled_mma(tw.atoms.SM70_8x8x4_F32F16F16F32_TN, atoms)
    c = np.random.default_rng(0).integers(-4, 5, mma.tiler_mn).astype(np.float32)
    out = np.full(len(c), np.nan, np.float32)
    row_sums[1, mma.span](tw.static(out), tw.static(c), mma)
    assert (out == c.sum(axis=1)).all()


def test_matrix_product_by_fragments() -> None:
    """Compute with each thread's registers and the atom's reference, and compare with NumPy."""
    mma = make_tiled_mma(FMA, Layout((4, 8)), (8, 8, 1))
    draw = np.random.default_rng(0)
    a, b = draw.normal(size=(16, 4)).astype(np.float32), draw.normal(size=(24, 4)).astype(np.float32)
    c = np.zeros((16, 24), np.float32)
    for thread in range(mma.size):
        mine = mma.get_slice(thread)
        part_a, part_b, part_c = (
            mine.partition_A(tw.tensor(a)),
            mine.partition_B(tw.tensor(b)),
            mine.partition_C(tw.tensor(c)),
        )
        ra, rb, rc = mine.make_fragment_A(part_a), mine.make_fragment_B(part_b), mine.make_fragment_C(part_c)
        ra[...], rb[...] = part_a, part_b
        for k in range(4):
            for i in range(product_each(rc.shape)[1]):
                for j in range(product_each(rc.shape)[2]):
                    one = [np.array([[x]]) for x in (ra[0, i, k], rb[0, j, k], rc[0, i, j])]
                    rc[0, i, j] = mma.atom.reference(*one)[0, 0]
        part_c[...] = rc
    assert np.allclose(c, a @ b.T, rtol=1e-5)


def test_dynamic_threads() -> None:
    thread, ld = Symbol("thread"), Symbol("ld")
    mma = make_tiled_mma(FMA, Layout((16, 16)))
    tile = tw.make_tensor(Recorder(), Layout((128, 8), (1, ld)))
    part = mma.get_slice(thread).partition_A(tile)
    assert part.shape == (1, 8, 8)
    assert value_of(part[0, 2, 3], {"thread": 37, "ld": 130}) == 37 % 16 + 2 * 16 + 3 * 130


def test_mixed_types_and_values() -> None:
    atom = UniversalFMA(tw.float32, tw.float16)
    assert (atom.dtype_d, atom.dtype_a, atom.dtype_b, atom.dtype_c) == (tw.float32, tw.float16, tw.float16, tw.float32)
    one = make_tiled_mma(atom, (4, 4))
    assert one == make_tiled_mma(atom, Layout((4, 4)))
    assert hash(one) == hash(make_tiled_mma(atom, (4, 4, 1)))
    assert one.get_slice(0).partition_fragment_A(tw.tensor(np.zeros((8, 2), np.float16))).dtype is tw.float16
    assert one.get_slice(0).partition_fragment_C(tw.tensor(np.zeros((8, 8), np.float16))).dtype is tw.float32


REFUSED: dict[str, tuple[Any, list[str]]] = {
    "gaps that hold no copies": (lambda: make_tiled_mma(FMA, Layout((4, 4), (1, 5))), ["(4,4,1):(1,5,0)", "copies"]),
    "atoms of one number": (lambda: make_tiled_mma(FMA, Layout((4, 4), (1, 2))), ["(4,4,1):(1,2,0)", "of its own"]),
    "atoms all of one number": (lambda: make_tiled_mma(FMA, Layout((4, 4), (0, 1))), ["(4,4,1):(0,1,0)"]),
    "a fourth mode": (lambda: make_tiled_mma(FMA, (2, 2, 2, 2)), ["M, N, K"]),
    "a permutation that cuts atoms": (lambda: make_tiled_mma(FMA, (4, 4), (6, 8, 1)), ["permutation 6 of M", "4"]),
    "a permutation with gaps": (lambda: make_tiled_mma(FMA, (4, 4), (Layout(8, 2),)), ["permutation 8:2 of M"]),
    "an operand of one mode": (
        lambda: make_tiled_mma(FMA).get_slice(0).partition_A(tw.tensor(np.zeros(4))),
        ["two modes"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    operation, words = REFUSED[name]
    with pytest.raises(LayoutError) as caught:
        operation()
    for word in words:
        assert word in str(caught.value), str(caught.value)
