"""The layouts on which CUTLASS and pycute test their algebra, held to the laws that those tests state.

One list for each operation; a case is a layout as text, or the arguments of the operation. Dynamic cases of CUTLASS are
here with static values.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.layout.symbols import Symbol, value_of

import tilewright.layout as L
from tilewright.layout import ComposedLayout, Layout, Swizzle

INVERSES = [
    "1:0", "1:1", "((1,1)):((0,0))", "((3,7)):((0,0))", "(4):(0)", "(4):(1)", "(4):(2)", "(2,4):(0,2)", "(8,4):(1,8)",
    "(8,4):(4,1)", "(2,4,6):(1,2,8)", "(2,4,6):(4,1,8)", "(2,4,4,6):(4,1,0,8)", "(4,2):(1,16)", "(4,2):(1,5)",
    "(4,2):(1,4)", "(2,4):(4,1)", "(128,128):(65536,1)", "(128,160):(65536,1)", "(128,3,160):(65536,512,1)", "(128,64):(131072,2)",
    "(32,4,4,4):(262144,4,8388608,1)", "(2,2,2):(4,0,1)", "4:-1",
    "(((((32,4),1),(32,2)),4),1,(2,2),2):(((((262144,4),0),(0,1)),8388608),0,(2,16),32)",
]  # fmt: skip

SWIZZLED = [
    ComposedLayout(Swizzle(1, 0, 2), 0, Layout((4, 4))),
    ComposedLayout(Swizzle(1, 0, 2), 0, Layout((4, 4), (4, 1))),
    ComposedLayout(Swizzle(1, 0, 1), 0, Layout((4, 4), (8, 1))),
]
SLICED = [
    L.composition(Swizzle(3, 0, 3), Layout((8, 8), (8, 1))),
    L.composition(Swizzle(3, 0, -3), Layout((8, 8), (8, 1))),
    L.composition(Swizzle(2, 1, 3), Layout(((2, 2, 2), (2, 2, 2)), ((32, 2, 8), (4, 1, 16)))),
]

COALESCED = [
    "1:0", "1:1", "(2,4):(1,2)", "(2,4,6):(1,2,8)", "(2,1,6):(1,6,2)", "(2,1,6):(1,7,2)", "(2,1,6):(4,7,8)",
    "(2,4,6):(4,1,8)", "(2,(4,6)):(1,(2,8))", "(2,4,6):(24,6,1)", "((2,2),(2,2)):((1,4),(8,32))",
    "(2,(1,6)):(1,(6,2))", "(1,(2,3),1):(0,(1,2),0)", "(4,4):(0,0)",
    "(2,4):(4,1)", "(2,1,3):(3,0,1)", "(2,1,3):(2,4,4)", "(2,1,3):(2,0,4)",
]  # fmt: skip

COMPLEMENTS = [
    ("1:0", None), ("1:0", 2), ("1:1", 1), ("1:2", 1), ("1:0", 5), ("4:1", None), ("4:1", 8), ("4:2", None), ("4:2", 16),
    ("4:4", 17), ("(2,4):(1,4)", None), ("(2,4):(1,6)", None), ("(2,4,8):(8,1,64)", None), ("((2,2),(2,2)):((1,4),(8,32))", None),
    ("(2,(3,4)):(3,(1,6))", None), ("4:1", 17), ("(4,2):(1,16)", 32), ("(2,4):(8,1)", 100), ("(2,1):(1,7)", 20),
    ("1:0", (2, 2)), ("1:1", 5), ("1:1", (2, 2)), ("1:2", 5), ("1:2", 8), ("1:2", (2, 2)), ("4:0", None), ("4:0", 2), ("4:0", 8),
    ("4:2", 19), ("4:2", (2, 2)), ("4:4", (2, 2)), ("(2,4):(1,2)", None), ("(2,3):(1,2)", None), ("(2,4,8):(8,1,0)", None),
    ("(2,4,8):(8,1,0)", 460), ("((2,2),(2,2)):((1,32),(8,4))", None), ("(4,6):(1,6)", None), ("(4,2):(1,10)", None),
    ("(4,2):(1,16)", None), ("12:1", 1), ("12:1", 53), ("12:1", 128), ("12:2", 1), ("12:2", 53), ("12:2", 128), ("(3,6):(1,3)", None),
    ("(3,6):(1,9)", None), ("(3,6):(1,10)", None), ("64:1", (32, 4, 4)),
]  # fmt: skip

COMPOSITIONS = [
    ("1:0", "1:0"), ("1:0", "1:1"), ("1:1", "1:0"), ("1:1", "1:1"), ("(4):(1)", "(4):(1)"), ("(4):(2)", "(4):(1)"),
    ("(4):(0)", "(4):(1)"), ("(4):(1)", "(4):(0)"), ("(1):(0)", "(4):(1)"), ("(4):(1)", "(1):(0)"), ("(4):(1)", "(2):(1)"),
    ("(4):(1)", "(2):(2)"), ("(4):(2)", "(2):(2)"), ("(4,3):(1,4)", "(12):(1)"), ("(12):(1)", "(4,3):(1,4)"),
    ("(12):(2)", "(4,3):(1,4)"), ("(12):(1)", "(4,3):(3,1)"), ("(12):(2)", "(4,3):(3,1)"), ("(12):(1)", "(2,3):(2,4)"),
    ("(4,3):(1,4)", "(4,3):(1,4)"), ("(4,3):(3,1)", "(4,3):(1,4)"), ("(4,3):(3,1)", "(12):(1)"), ("(4,3):(1,4)", "(6):(2)"),
    ("(4,3):(3,1)", "(6):(2)"), ("(4,3):(3,1)", "(6,2):(2,1)"), ("(4,3):(1,4)", "(3,4):(4,1)"), ("(8,8):(8,1)", "(16):(4)"),
    ("(8,8,8):(1,8,64)", "((2,2,2),(2,2,2)):((1,16,4),(8,2,32))"), ("(8,8):(8,1)", "((2,2,2),(2,2,2)):((1,16,4),(8,2,32))"),
    ("((2,2,2),(2,2,2)):((1,16,4),(8,2,32))", "(8,8):(8,1)"), ("((4,2),4):((1,16),4)", "((4,2),(2,2)):((1,4),(8,16))"),
    ("(128,24,5):(1,128,3072)", "480:32"), ("(1):(0)", "(4):(1)"), ("(4):(1)", "(4):(2)"), ("(4,3):(3,1)", "(24):(1)"),
    ("(4,3):(3,1)", "(8):(1)"), ("(4,3,1):(3,1,0)", "(24):(1)"), ("(4,6,8):(1,4,7)", "6:1"), ("(4,6,8,10):(2,3,5,7)", "6:12"),
    ("(8,8):(8,1)", "2:3"), ("(8,8):(8,1)", "3:3"), ("(48,24,5):(1,128,3072)", "32:1"), ("3:1", "4:1"), ("(4):(-1)", "(4):(1)"),
    ("(4):(1)", "(4):(-1)"), ("(4):(-1)", "(4):(-1)"), ("(4):(1)", "(4):(-2)"), ("(4,4):(-1,1)", "(2,4,2):(1,2,8)"),
    ("(4,4):(-1,1)", "(2,4,2):(1,4,2)"), ("(1,(2,4)):(0,(-1,512))", "2:-1"), ("(1,(2,4)):(0,(-1,512))", "4:-1"),
    ("(4):(2)", "(2):(1)"), ("(4,3):(1,4)", "(6):(1)"), ("(4,3):(1,4)", "(6,2):(2,1)"), ("(4,3):(1,4)", "(4,3):(3,1)"),
    ("(8,8):(1,8)", "((2,2,2),(2,2,2)):((1,16,4),(8,2,32))"), ("((4,2)):((1,16))", "(4,2):(2,1)"), ("(2,2):(2,1)", "(2,2):(2,1)"),
    ("(4,8,2):(1,4,32)", "(2,2,2):(2,8,1)"), ("(4,8,2):(2,8,1)", "(2,2,2):(1,8,2)"), ("(4,8,2):(2,8,1)", "(4,2,2):(2,8,1)"),
    ("12:1", "4:1"), ("(12,3):(1,24)", "(4):(1)"), ("16:2", "4:2"), ("(128,24,5):(1,128,3072)", "64:2"), ("(1):(1)", "(4):(1)"),
    ("(4,3,1):(3,1,0)", "(4):(1)"), ("(4,4):(4,1)", "(4,4):(1@1,1@0)"), ("(4,(2,3)):(6,(3,1))", "(2,4):(1@1@1,1@0)"),
]  # fmt: skip

PAIRS = [
    ("1:0", "1:0"), ("1:1", "1:0"), ("1:0", "1:1"), ("1:1", "1:1"), ("6:1", "2:1"), ("6:1", "2:3"), ("6:1", "(2,3):(3,1)"),
    ("6:2", "2:1"), ("6:2", "2:3"), ("6:2", "(2,3):(3,1)"), ("(6,6):(1,12)", "(6,3):(3,1)"), ("(6,6):(12,1)", "(6,3):(3,1)"),
    ("32:1", "2:8"), ("(4,1):(1,1)", "2:1"), ("(4,1):(1,1)", "2:2"), ("(8,8):(1,8)", "32:2"), ("(8,8):(8,1)", "32:2"),
    ("2:1", "32:1"), ("48:1", "32:1"), ("96:1", "32:2"), ("32:1", "48:1"), ("(32,4,4):(1,32,128)", "64:1"),
    ("(128,4,3):(1,512,0)", "32:1"), ("(128,4,3):(1,512,0)", "32:2"), ("(16,4,3):(1,512,0)", "32:1"),
]  # fmt: skip

PRODUCTS = [
    ("1:0", "1:0"), ("1:1", "1:0"), ("1:0", "1:1"), ("1:1", "1:1"), ("3:1", "4:1"), ("3:0", "4:1"), ("3:0", "4:0"),
    ("3:2", "4:1"), ("(3):(1)", "(2,4):(1,2)"), ("(8,(2,2)):(1,(8,16))", "4:2"), ("(2,2):(1,2)", "(3,3):(3,1)"),
    ("(3):(32)", "(32):(1)"), ("(3):(2)", "(4):(1)"), ("(3):(32)", "(128):(1)"), ("(3):(32)", "(8,8):(8,1)"),
    ("((4,2)):((1,16))", "(4,4):(1,4)"),
    ("3:1", "4:0"), ("(2,4):(1,2)", "(3):(1)"), ("(8,(2,2)):(1,(8,16))", "(4):(2)"), ("(3):(32)", "(8,8):(1,8)"),
    ("((4,2)):((1,16))", "(4,2):(2,1)"), ("((2,2),(2,2)):((1,4),(8,32))", "(2,2):(1,2)"),
    ("((2,2),(2,2)):((1,4),(8,32))", "(2,2):(2,1)"), ("((4,6)):((1,6))", "(3):(1)"),
]  # fmt: skip


@pytest.mark.parametrize("text", INVERSES)
def test_inverses(text: str) -> None:
    layout = Layout.from_text(text)
    left, right = L.left_inverse(layout), L.right_inverse(layout)
    for i in [*range(min(layout.size, 3000)), layout.size - 1]:
        assert layout(left(layout(i))) == layout(i)
    assert all(layout(right(i)) == i for i in range(right.size))


@pytest.mark.parametrize("layout", SWIZZLED, ids=str)
def test_inverses_of_swizzled_layouts(layout: Any) -> None:
    left, right = L.left_inverse(layout), L.right_inverse(layout)
    assert all(layout(left(layout(i))) == layout(i) for i in range(layout.size))
    assert all(layout(right(i)) == i for i in range(L.size(right)))


@pytest.mark.parametrize("layout", SLICED, ids=str)
def test_slices_of_swizzled_layouts(layout: Any) -> None:
    for i in range(8):
        row, row_offset = L.slice_and_offset(layout, (i, None))
        column, column_offset = L.slice_and_offset(layout, (None, i))
        for j in range(8):
            assert row_offset + row(j) == layout(i, j) and column_offset + column(j) == layout(j, i)


@pytest.mark.parametrize("text", COALESCED)
def test_coalesce(text: str) -> None:
    layout = Layout.from_text(text)
    found = L.coalesce(layout)
    assert found.depth <= 1
    assert [found(i) for i in range(found.size)] == [layout(i) for i in range(layout.size)]


E0, E1, E01 = L.E(0), L.E(1), L.E(0, 1)
BASES = [  # and the rank of what is joined
    (Layout((2, 4), (E0, 2 * E0)), 1), (Layout((2, 4), (E0, E1)), 2), (Layout((2, 4), (E0, 4 * E0)), 2),
    (Layout((2, 4, 3), (3 * E1, 6 * E1, E0)), 2), (Layout((2, (3, 4)), (E01, (2 * E01, 6 * E01))), 1),
    (Layout((4, 2, 2), (E0, E1, 2 * E1)), 2), (Layout((2, 1, 4), (E1, E0, 2 * E1)), 1),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "rank"), BASES, ids=str)
def test_coalesce_of_basis_strides(layout: Layout, rank: int) -> None:
    """Steps through one mode of the coordinate are joined as those through memory are."""
    found = L.coalesce(layout)
    assert found.rank == rank
    if 1 not in layout.shape:
        assert [found(i) for i in range(found.size)] == [layout(i) for i in range(layout.size)]


@pytest.mark.parametrize(("stride", "following"), [(E0, 2), (2, 4 * E0), (E0, 2 * E01), (E0, 2 * E1)])
def test_coalesce_joins_no_different_modes(stride: Any, following: Any) -> None:
    assert L.coalesce(Layout((2, 3), (stride, following))).rank == 2


@pytest.mark.parametrize(("text", "cotarget"), COMPLEMENTS)
def test_complement(text: str, cotarget: Any) -> None:
    layout = Layout.from_text(text)
    target = layout.cosize if cotarget is None else cotarget
    found = L.complement(layout, target)
    kept = L.filter(layout)
    offsets = [found(i) for i in range(found.size)]
    assert offsets == sorted(set(offsets))
    reached = [kept(i) + x for x in offsets for i in range(kept.size)]
    assert len(set(reached)) == len(reached)
    count = L.size(target)
    assert found.size >= count // kept.size
    assert found.cosize <= -(-count // layout.cosize) * layout.cosize
    assert L.make_layout(layout, found).cosize >= count
    assert not {kept(i) for i in range(kept.size)} & set(offsets[1:])
    assert L.complement(L.make_layout(kept, found), target).size == 1
    assert L.complement(L.complement(found, layout.cosize), target) == found


@pytest.mark.parametrize(("a", "b"), COMPOSITIONS)
def test_composition(a: str, b: str) -> None:
    outer, inner = Layout.from_text(a), Layout.from_text(b)
    found = L.composition(outer, inner)
    assert L.compatible(inner.shape, found.shape)
    assert [found(i) for i in range(inner.size)] == [outer(inner(i)) for i in range(inner.size)]


@pytest.mark.parametrize("outer", [Layout((8, 8), (8, 1)), L.composition(Swizzle(2, 0, 3), Layout((8, 8), (8, 1)))])
def test_composition_with_a_swizzled_layout(outer: Any) -> None:
    inner = L.composition(Swizzle(2, 0, -3), Layout((8, 8), (8, 1)))
    found = L.composition(outer, inner)
    assert [found(i) for i in range(64)] == [outer(inner(i)) for i in range(64)]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_logical_divide(a: str, b: str) -> None:
    layout, tiler = Layout.from_text(a), Layout.from_text(b)
    found = L.logical_divide(layout, tiler)
    assert found.rank == 2
    assert L.compatible(tiler.shape, found[0].shape)
    assert [found[0](i) for i in range(tiler.size)] == [layout(tiler(i)) for i in range(tiler.size)]
    zipped, tiled, flat = (f(layout, tiler) for f in (L.zipped_divide, L.tiled_divide, L.flat_divide))
    assert all(zipped(i) == tiled(i) == flat(i) == found(i) for i in range(found.size))


@pytest.mark.parametrize(("a", "b"), PRODUCTS)
def test_logical_product(a: str, b: str) -> None:
    block, tiler = Layout.from_text(a), Layout.from_text(b)
    found = L.logical_product(block, tiler)
    assert found.rank == 2
    assert L.compatible(tiler.shape, found[1].shape)
    assert [found[0](i) for i in range(block.size)] == [block(i) for i in range(block.size)]
    copies = [{block(i) + found[1](j) for i in range(block.size)} for j in range(tiler.size)]
    apart = {frozenset(c) for c in copies}
    assert sum(map(len, apart)) == len(set().union(*apart))  # copies are the same, or do not meet


@pytest.mark.parametrize("text", ["(2,2,2):(0,0,0)", "(7,5,16):(0,0,0)", "(2,2,2):(1,0,2)", "(7,5,16):(3,1,0)"])
def test_nullspace(text: str) -> None:
    layout = Layout.from_text(text)
    found = L.nullspace(layout)
    assert found.size == layout.size // L.filter(layout).size
    assert all(layout(found(i)) == 0 for i in range(found.size))


@pytest.mark.parametrize("shape", [15, (15, 14), (15, 14, 13), (64, 64), (3, (4, 5), 2), (1, 5), (128, 24, 5)])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 12, 30, 64, 128])
def test_domain_distribute(shape: Any, count: int) -> None:
    found = L.domain_distribute(shape, count)
    offsets = [found(i) for i in range(found.size)]
    assert offsets == sorted(set(offsets))
    assert max(offsets) < L.size(shape)
    assert count % found.size == 0


EVEN = [
    (16, 8), (16, 16), ((16,), (16,)), (16, (16,)), ((16,), 16), ((16,), 8), ((2, 8), (2, 8)), (((2, 8),), ((2, 8),)),
    (((2, 8),), (16,)), (((2, (4, 2)),), (16,)), (((2, (4, 2)),), ((2, 8),)), (((2, (4, 2)),), ((2, (4, 2)),)),
    ((32, 64), 128), ((32, 64), (Layout(8, 2), 32)),
]  # fmt: skip
UNEVEN = [
    (16, 12), (8, 16), (8, (16,)), (12, (16,)), ((16,), 12), (16, (2, 8)), ((16,), (2, 8)), ((2, 8), (16,)),
    ((2, 8), (2, (2, 4))), (16, ((2, 8),)), (8, ((2, 8),)), ((16,), ((2, 8),)), (((2, 8),), ((2, (4, 2)),)),
    ((4, 6), ((2, 2), 6)), ((32, 64), (Layout(8, 3), 32)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "tiler", "even"), [(*c, True) for c in EVEN] + [(*c, False) for c in UNEVEN])
def test_evenly_divides(shape: Any, tiler: Any, even: bool) -> None:
    assert L.evenly_divides(shape, tiler) is even
    if even:
        assert L.size(L.logical_divide(Layout(shape), tiler)) == L.size(shape)


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5), ((3, 2), (5, 2, 2))])
def test_comparisons_are_the_order_of_layouts(shape: Any) -> None:
    columns, rows = L.col_major(shape), L.row_major(shape)
    coordinates = [columns.get_hier_coord(i) for i in range(columns.size)]
    assert all(L.elem_less(c, shape) for c in coordinates)
    for a in coordinates:
        for b in coordinates:
            assert L.colex_less(a, b) == (columns(a) < columns(b))
            assert L.lex_less(a, b) == (rows(a) < rows(b))


COMPACT = [  # a shape, its strides by columns and by rows; and where the extents are dynamic, in which 1 is like any other
    (1, 0, 0, 1, 1), (8, 1, 1, 1, 1), ((4, 8), (1, 4), (8, 1), (1, 4), (8, 1)), ((4, 8, 2), (1, 4, 32), (16, 2, 1), (1, 4, 32), (16, 2, 1)),
    ((4, 8, 1, 2), (1, 4, 0, 32), (16, 2, 0, 1), (1, 4, 32, 32), (16, 2, 2, 1)),
    (((4, 8), 1, 2), ((1, 4), 0, 32), ((16, 2), 0, 1), ((1, 4), 32, 32), ((16, 2), 2, 1)),
    ((4, (8, 1, 2)), (1, (4, 0, 32)), (16, (2, 0, 1)), (1, (4, 32, 32)), (16, (2, 2, 1))),
    ((4, (8, 1, (2, 3))), (1, (4, 0, (32, 64))), (48, (6, 0, (3, 1))), (1, (4, 32, (32, 64))), (48, (6, 6, (3, 1)))),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "columns", "rows", "dynamic_columns", "dynamic_rows"), COMPACT)
def test_compact_strides(shape: Any, columns: Any, rows: Any, dynamic_columns: Any, dynamic_rows: Any) -> None:
    assert (L.compact_col_major(shape), L.compact_row_major(shape)) == (columns, rows)
    scaled = L.transform_leaf(columns, lambda x: 3 * x), L.transform_leaf(rows, lambda x: 3 * x)
    assert (L.compact_col_major(shape, 3), L.compact_row_major(shape, 3)) == scaled
    values = {f"n{i}": n for i, n in enumerate(L.flatten_to_tuple(shape))}
    symbols = L.unflatten(tuple(map(Symbol, values)), shape) if isinstance(shape, tuple) else Symbol("n0")
    found = (L.compact_col_major(symbols), L.compact_row_major(symbols))
    assert value_of(found, values) == (dynamic_columns, dynamic_rows)


def test_functions_of_several_tuples() -> None:
    def added(*x: int) -> int:
        return sum(x)

    def joined(*x: int) -> tuple[int, ...]:
        return x

    assert L.transform_apply((1, 2, 3), (4, 5, 6), added, joined) == (5, 7, 9)
    assert L.transform_apply((1, 2, 3), (4, 5, 6), (7, 8, 9), added, joined) == (12, 15, 18)
    assert L.fold((1, 2, 3), 0, added) == L.fold_first((1, 2, 3), added) == 6
    assert [L.reverse(t) for t in ((), (123,), (123, 456), (1, 2, 3, 4, 5))] == [
        (),
        (123,),
        (456, 123),
        (5, 4, 3, 2, 1),
    ]
    assert [L.product(t) for t in ((8, 4), (8, 4, 2), ((1, 2), 8, 2))] == [32, 64, 32]
    assert [L.max(t) for t in ((8, 4), (8, 4, 2), ((1, 2), 8, 2))] == [8, 8, 8]
    assert [L.inner_product(t, t) for t in ((8, 4), (8, 4, 2), ((1, 2), 8, 2))] == [80, 84, 73]


def test_weak_congruence() -> None:
    """The shapes of CUTLASS's test, least first: which of them is nested like which, or less deep."""
    shapes = [2, (2,), (2, 2), (2, (2, 2)), ((2, 2), (2, 2))]
    nested_within = {0: {0, 1, 2, 3, 4}, 1: {1}, 2: {2, 3, 4}, 3: {3, 4}, 4: {4}}
    for i, a in enumerate(shapes):
        assert {k for k, b in enumerate(shapes) if L.weakly_congruent(a, b)} == nested_within[i]
        assert {k for k, b in enumerate(shapes) if L.congruent(a, b)} == {i}
    assert L.compatible((1, 1), (1, (1, 1)))
    assert not L.compatible((1,), 1)


def test_integer_tuples_of_pycute_and_moye() -> None:
    f = L.shape_div
    assert f((3, 4), 6) == (1, 2)
    assert f((3, 4), 12) == f((3, 4), 36) == (1, 1)
    assert f(((3, 4), 6), 36) == ((1, 1), 2)
    assert f((6, (3, 4)), 36) == (1, (1, 2))
    assert f((12, 3), (2, 3)) == (6, 1)
    assert f(12, (3, 4)) == 1
    assert L.prefix_product(((2, 3), (2, 1, 2), (5, 2, 1))) == ((1, 2), (6, 12, 12), (24, 120, 240))
