"""What MoYe.jl's own tests state of tuples, coordinates and layouts, counted from 0 here.

Each table has the inputs and the values of one group of assertions, in their order; a law that is asserted of many
layouts is written once. Assertions on Julia's types and inference have no counterpart. Where the library gives something
else, the table `DIFFERENT` has the case with MoYe.jl's value and the library's, and docs/coming_from_moye_and_cute.md the
reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.layout.symbols import Symbol, value_of

import tilewright.layout as L
from tilewright.errors import LayoutError
from tilewright.layout import Layout


def from_one(t: Any) -> Any:
    """Return a coordinate of MoYe.jl counted from 0."""
    return tuple(map(from_one, t)) if isinstance(t, tuple) else t - 1


def facts(*cases: Any) -> Any:
    """Parametrise over (what is called, what it gives)."""
    return pytest.mark.parametrize(("call", "value"), cases, ids=[str(n) for n in range(len(cases))])


# --- int_tuple.jl ----------------------------------------------------------------------------------------------------


@facts(
    (lambda: L.product_like(((2, 2), 2), ((32, 512), 2048)), ((2, 2), 2)),
    (lambda: L.product(((2, 3, (1, 1)), 4)), 24),
    (lambda: L.repeat_like((2, 3, 4), 1), (1, 1, 1)),
    (lambda: L.repeat_like(((2, 3), (4, 5)), 1), ((1, 1), (1, 1))),
    (lambda: L.shape_div((12, 3), (2, 3)), (6, 1)),
    (lambda: L.shape_div((12, 3), 3), (4, 3)),
    (lambda: L.shape_div(12, (3, 4)), 1),
    (lambda: L.slice_((3, 4), (1, None)), (4,)),
    (lambda: L.slice_((3, (4, 5)), (None, (1, None))), (3, 5)),
    (lambda: L.slice_(((2, 4), (4, 2)), (None, (None, None))), ((2, 4), 4, 2)),
)
def test_tuples(call: Callable[[], Any], value: Any) -> None:
    assert call() == value


# MoYe.jl's elem_less, and the library's, which is CuTe's: every leaf is less, as in the test of a coordinate against an
# extent. MoYe.jl's lets all leaves but the last be equal.
LESS = [
    ((1, 2, 3), (1, 2, 4), True, False), ((1, 2, 3), (1, 2, 3), False, False), ((1, 2, 3), (1, 2, 3, 1), True, False),
    ((1, 2, 3, 1), (1, 2, 3), False, False), (((1, 2, 3),), ((1, 2, 3),), False, False), (((1, 2, 3),), ((1, 2, 4),), True, False),
    (((1, 2, 3),), ((1, 2, 3), 1), True, False), (((1, 2, 3), 1), ((1, 2, 3), 2), True, False),
    (((1, 2, 3), 2), ((1, 2, 4), 1), False, False), (((1, 2), (3, 4)), ((5, 6), (7, 8)), True, True),
    (((1, 2), (3, 4)), ((1, 2), (7, 8)), True, False), (((1, 2), (3, 4)), ((1, 2), (1, 8)), False, False),
    (((1, 2), (3, 4)), ((3, 4), (3, 4)), False, False), (((1, 2), (3, 4)), ((3, 4), (3, 4, 1)), True, False),
    (((1, 2), (3, 4)), ((3, 4), (3, 4), 1), True, False),
]  # fmt: skip
FROM_THE_END = [
    ((1, 2, 3), (1, 2, 4), True), ((1, 2, 3), (1, 2, 3), False), ((1, 2, 3), (1, 1, 2, 3), True), ((1, 1, 2, 3), (1, 2, 3), False),
    (((1, 2, 3),), ((1, 2, 3),), False), (((0, 2, 3),), ((1, 2, 3),), True), (((1, 2, 3),), (1, (1, 2, 3)), True),
    ((1, (1, 2, 3)), (2, (1, 2, 3)), True), ((2, (1, 2, 3)), (1, (2, 2, 3)), True), (((1, 2), (3, 4)), ((5, 6), (7, 8)), True),
    (((1, 2), (3, 4)), ((2, 3), (3, 4)), True), (((1, 2), (3, 4)), ((1, 3), (3, 4)), True), (((5, 4), (3, 4)), ((3, 4), (3, 4)), False),
    (((1, 2), (3, 4)), ((1, 1, 2), (3, 4)), True),
]  # fmt: skip


def leaves(t: Any) -> list[int]:
    return list(L.flatten_to_tuple(t))


@pytest.mark.parametrize(("a", "b", "of_moye", "own"), LESS)
def test_less_in_each_element(a: Any, b: Any, of_moye: bool, own: bool) -> None:
    assert L.elem_less(a, b) is own
    # Both mean the same of leaves of which none are equal, and the library's is the stricter.
    assert of_moye or not own
    if all(x != y for x, y in zip(leaves(a), leaves(b), strict=False)):
        assert of_moye == own


@pytest.mark.parametrize(("a", "b", "less"), FROM_THE_END)
def test_comparison_from_the_end(a: Any, b: Any, less: bool) -> None:
    assert L.colex_less(a, b) is less


@pytest.mark.parametrize(
    ("coordinate", "shape", "after"),
    [
        ((1, 1), (3, 4), (2, 1)), ((3, 1), (3, 4), (1, 2)), ((2, (2, 1), 1), (2, (2, 3), 3), (1, (1, 2), 1)),
        ((2, (2, 2), 1), (2, (2, 3), 3), (1, (1, 3), 1)), ((2, (2, 3), 1), (2, (2, 3), 3), (1, (1, 1), 2)),
    ],
)  # fmt: skip
def test_increment(coordinate: Any, shape: Any, after: Any) -> None:
    assert L.increment(from_one(coordinate), shape) == from_one(after)


# --- stride.jl -------------------------------------------------------------------------------------------------------

FLAT, NESTED = ((3, 4), (2, 8)), ((3, (2, 2)), (2, (16, 8)))


@pytest.mark.parametrize(
    ("coordinate", "layout", "index"),
    [
        (5, FLAT, 11), (7, FLAT, 17), (12, FLAT, 29), ((2, 2), FLAT, 11), ((1, 3), FLAT, 17), ((3, 4), FLAT, 29),
        ((1, 2), ((3, 4),), 4), ((2, 3), ((3, 4),), 8), ((3, 4), ((3, 4),), 12), ((2, 3), NESTED, 11), ((1, 2), NESTED, 17),
        ((3, 4), NESTED, 29),
    ],
)  # fmt: skip
def test_coordinates_to_indices(coordinate: Any, layout: tuple[Any, ...], index: int) -> None:
    assert L.crd2idx(from_one(coordinate), *layout) == index - 1


def test_indices_to_coordinates() -> None:
    assert L.idx2crd(8, (3, 4), (1, 3)) == (2, 2)
    assert L.idx2crd(9, (3, 4), (1, 3)) == (0, 3)
    with pytest.raises(LayoutError):
        L.idx2crd(8, (3, 4), (1, 3, 5))


def test_compact_strides() -> None:
    assert L.compact_col_major((3, 4, 5)) == (1, 3, 12)
    assert L.compact_row_major((3, 4, 5)) == (20, 5, 1)


# --- static.jl and the start of layout.jl ----------------------------------------------------------------------------


def test_layouts_are_numbers_known_while_compiling() -> None:
    layout = Layout((3, 4), (1, 2))
    for number in (layout.size, layout.cosize, layout.depth, layout(0), layout((0, 1))):
        assert type(number) is int
    assert L.is_static(layout)


def test_layouts_from_shapes() -> None:
    assert Layout((2, (2, 2))) == L.col_major((2, (2, 2))) == Layout((2, (2, 2)), (1, (2, 4)))
    assert L.row_major((2, (2, 2))) == Layout((2, (2, 2)), (4, (2, 1)))
    assert Layout(2) == Layout(2, 1) == L.row_major(2)
    assert L.flatten(Layout(((4, 3), 1), ((3, 1), 0))) == Layout((4, 3, 1), (3, 1, 0))


COALESCED = [
    Layout(1, 0), Layout(1, 1), Layout((2, 4)), Layout((2, 4, 6)), Layout((2, 1, 6), (1, 6, 2)), Layout((2, 1, 6), (1, 7, 2)),
    Layout((2, 1, 6), (4, 7, 8)), L.row_major((2, 4)), L.row_major((2, 4, 6)), L.row_major((2, 1, 3)),
    Layout((2, 1, 3), (2, 4, 4)), Layout((2, 1, 3), (2, 0, 4)), Layout(((2, 2), (2, 2)), ((1, 4), (8, 32))), Layout((2, (1, 6)), (1, (6, 2))),
]  # fmt: skip


@pytest.mark.parametrize("layout", COALESCED, ids=str)
def test_coalesce(layout: Layout) -> None:
    found = L.coalesce(layout)
    assert found.depth <= 1 and found.size == layout.size
    assert [found(i) for i in range(found.size)] == [layout(i) for i in range(layout.size)]


def test_coalesce_to_one_mode() -> None:
    assert L.coalesce(Layout((2, (1, 6)), (1, (6, 2)))) == Layout(12, 1)


COMPOSED = [
    ("1:0", "1:0"), ("1:0", "1:1"), ("1:1", "1:0"), ("1:1", "1:1"), ("(4):(1)", "(4):(1)"), ("(4):(2)", "(4):(1)"), ("(4):(0)", "(4):(1)"),
    ("(4):(1)", "(4):(0)"), ("(4):(1)", "(1):(0)"), ("(4):(1)", "(2):(1)"), ("(4):(2)", "(2):(1)"), ("(4):(1)", "(2):(2)"),
    ("(4):(2)", "(2):(2)"), ("(4,3):(1,4)", "(12):(1)"), ("(12):(1)", "(4,3):(1,4)"), ("(12):(2)", "(4,3):(1,4)"),
    ("(12):(1)", "(4,3):(3,1)"), ("(12):(2)", "(4,3):(3,1)"), ("(12):(1)", "(2,3):(2,4)"), ("(4,3):(1,4)", "(4,3):(1,4)"),
    ("(4,3):(1,4)", "(6):(2)"), ("(4,3):(1,4)", "(6,2):(2,1)"), ("(4,3):(3,1)", "(4,3):(1,4)"), ("(4,3):(3,1)", "(12):(1)"),
    ("(4,3):(3,1)", "(6):(2)"), ("(4,3):(3,1)", "(6,2):(2,1)"), ("(8,8):(1,8)", "((2,2,2),(2,2,2)):((1,16,4),(8,2,32))"),
    ("(8,8):(8,1)", "((2,2,2),(2,2,2)):((1,16,4),(8,2,32))"), ("((4,2)):((1,16))", "(4,2):(2,1)"), ("(2,2):(2,1)", "(2,2):(2,1)"),
    ("(4,8,2):(1,4,32)", "(2,2,2):(2,8,1)"), ("(4,8,2):(2,8,1)", "(2,2,2):(1,8,2)"), ("(4,8,2):(2,8,1)", "(4,2,2):(2,8,1)"),
    ("12:1", "4:1"), ("(12,3):(1,24)", "(4):(1)"), ("16:2", "4:2"), ("(128,24,5):(1,128,3072)", "64:2"),
    ("(128,24,5):(1,128,3072)", "480:32"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), COMPOSED)
def test_composition(a: str, b: str) -> None:
    outer, inner = Layout.from_text(a), Layout.from_text(b)
    found = L.composition(outer, inner)
    assert L.compatible(inner.shape, found.shape)
    assert [found(i) for i in range(found.size)] == [outer(inner(i)) for i in range(found.size)]


# What MoYe.jl's tests leave dynamic, by name.
VALUES = {
    "n2": 2,
    "n3": 3,
    "n4": 4,
    "n5": 5,
    "n6": 6,
    "n12": 12,
    "n16": 16,
    "n24": 24,
    "n64": 64,
    "n128": 128,
    "n480": 480,
}
N2, N3, N4, N5, N6, N12, N16, N24, N64, N128, N480 = map(Symbol, VALUES)
# Two of them go through one mode. In the others the result depends on where the modes of the first end, which is refused.
DYNAMIC = [(Layout(N12, 1), Layout(4, 1)), (Layout(N16, N2), Layout(N4, N2))]
ACROSS_DYNAMIC = [
    (Layout((N12, N3), (1, N24)), Layout((4,), (1,))), (Layout((N128, N24, N5), (1, N128, 3072)), Layout(N64, 2)),
    (Layout((N128, N24, N5), (1, N128, 3072)), Layout(N480, 32)),
]  # fmt: skip
DYNAMIC_SHAPES = [
    Layout((2, 1, 6), (1, N5, 2)), L.col_major((N2, 4, 6)), L.col_major((2, N4, 6)), L.col_major((2, 4, N6)), L.row_major((N2, 4, 6)),
    L.row_major((2, N4, 6)), L.row_major((2, 4, N6)),
]  # fmt: skip


@pytest.mark.parametrize(("outer", "inner"), DYNAMIC, ids=str)
def test_composition_of_dynamic_layouts(outer: Layout, inner: Layout) -> None:
    found = value_of(L.composition(outer, inner), VALUES)
    a, b = value_of(outer, VALUES), value_of(inner, VALUES)
    assert [found(i) for i in range(b.size)] == [a(b(i)) for i in range(b.size)]


@pytest.mark.parametrize(("outer", "inner"), ACROSS_DYNAMIC, ids=str)
def test_composition_across_dynamic_extents(outer: Layout, inner: Layout) -> None:
    """MoYe.jl and CuTe compute extents at run time; where they do not divide, theirs can be another function."""
    with pytest.raises(LayoutError, match="extent 0 of a is dynamic, and the result depends on its value"):
        L.composition(outer, inner)
    a, b = value_of(outer, VALUES), value_of(inner, VALUES)
    found = L.composition(a, b)
    assert [found(i) for i in range(b.size)] == [a(b(i)) for i in range(b.size)]


@pytest.mark.parametrize("layout", DYNAMIC_SHAPES, ids=str)
def test_coalesce_of_dynamic_layouts(layout: Layout) -> None:
    found, whole = value_of(L.coalesce(layout), VALUES), value_of(layout, VALUES)
    assert [found(i) for i in range(whole.size)] == [whole(i) for i in range(whole.size)]


def test_composition_gives_these() -> None:
    assert L.composition(Layout(20, 2), Layout((4, 5), (1, 4))) == Layout((4, 5), (2, 8))
    assert L.composition(Layout(20, 2), Layout((4, 5), (5, 1))) == Layout((4, 5), (10, 2))


COMPLEMENTED = [
    ("1:0", None), ("1:0", 2), ("1:1", None), ("1:1", 2), ("1:2", 1), ("1:2", 2), ("1:2", 8), ("4:0", 1), ("4:0", 2), ("4:0", 8),
    ("4:1", 1), ("4:1", 2), ("4:1", 8), ("4:2", 1), ("4:2", None), ("4:2", 16), ("4:4", 1), ("4:4", None), ("4:4", 17), ("2:4", None),
    ("2:3", None), ("(2,4):(1,4)", None), ("(2,4,8):(8,1,64)", None), ("(2,4,8):(8,1,0)", None), ("(2,4,8):(8,1,0)", 460),
    ("((2,2),(2,2)):((1,4),(8,32))", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "cotarget"), COMPLEMENTED)
def test_complement(text: str, cotarget: int | None) -> None:
    layout = Layout.from_text(text)
    target = layout.cosize if cotarget is None else cotarget
    found = L.complement(layout, target)
    kept = L.filter(layout).size
    assert found.size >= target // kept and found.cosize <= -(-target // layout.cosize) * layout.cosize
    together = L.make_layout(layout, found)
    assert together.cosize >= target
    reached = {layout(j) for j in range(layout.size)}
    offsets = [found(i) for i in range(found.size)]
    assert offsets == sorted(set(offsets)) and not reached & set(offsets[1:])
    assert found.size <= found.cosize and found.cosize >= target // kept
    assert together.cosize <= found.cosize + layout.cosize
    assert L.complement(together).size == 1


def test_complement_gives_these() -> None:
    assert L.complement(Layout(4, 1), 24) == Layout(6, 4)
    assert L.complement(Layout(6, 4), 24) == Layout(4, 1)


# --- products and divisions of layout.jl ------------------------------------------------------------------------------

TILE, OF_TILES = Layout((2, 2), (1, 2)), Layout((3, 4), (4, 1))
SUBTILE = Layout(2, 3), Layout(2, 4)


@facts(
    (lambda: L.logical_product(TILE, OF_TILES), "((2,2),(3,4)):((1,2),(16,4))"),
    (lambda: L.coalesce(L.blocked_product(TILE, OF_TILES), (1, 1)), "((2,3),8):((1,16),2)"),
    (lambda: L.coalesce(L.raked_product(TILE, OF_TILES), (1, 1)), "((3,2),(4,2)):((16,1),(4,2))"),
    (lambda: L.zipped_product(TILE, OF_TILES), "((2,2),(3,4)):((1,2),(16,4))"),
    (lambda: L.tiled_product(TILE, OF_TILES), "((2,2),3,4):((1,2),16,4)"),
    (lambda: L.logical_divide(Layout(16, 3), Layout(4, 1)), "(4,4):(3,12)"),
    (lambda: L.logical_divide(Layout(16, 3), Layout(4, 4)), "(4,4):(12,3)"),
    (lambda: L.logical_divide(Layout(16, 3), Layout(4, 2)), "(4,(2,2)):(6,(3,24))"),
    (lambda: L.logical_divide(Layout(16, 3), Layout((2, 2), (4, 1))), "((2,2),(2,2)):((12,3),(6,24))"),
    (lambda: L.logical_divide(L.raked_product(TILE, OF_TILES), SUBTILE), "((2,3),(2,4)):((1,16),(2,4))"),
    (lambda: L.zipped_divide(L.raked_product(TILE, OF_TILES), SUBTILE), "((2,2),(3,4)):((1,2),(16,4))"),
    (lambda: L.tiled_divide(L.raked_product(TILE, OF_TILES), SUBTILE), "((2,2),3,4):((1,2),16,4)"),
)
def test_products_and_divisions(call: Callable[[], Layout], value: str) -> None:
    assert str(call()) == value


def test_a_product_with_one() -> None:
    found = L.logical_product(Layout(1), Layout((2, 2)))
    assert found.shape == (1, (2, 2)) and [found(i) for i in range(4)] == [0, 1, 2, 3]


MULTIPLIED = [
    ("1:0", "1:0"), ("1:0", "1:1"), ("1:1", "1:1"), ("4:0", "3:1"), ("3:0", "4:0"), ("3:2", "4:1"), ("(3):(1)", "(2,4):(1,2)"),
    ("(8,(2,2)):(1,(8,16))", "4:2"), ("(2,2):(1,2)", "(3,3):(3,1)"), ("3:32", "(8,8):(1,8)"),
    ("((2,2),(2,2)):((1,4),(8,32))", "(2,2):(1,2)"), ("((2,2),(2,2)):((1,4),(8,32))", "(2,2):(2,1)"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), MULTIPLIED)
def test_logical_product(a: str, b: str) -> None:
    block, tiler = Layout.from_text(a), Layout.from_text(b)
    found = L.logical_product(block, tiler)
    assert found.rank == 2 and L.compatible(block.shape, found[0].shape)
    assert [found[0](i) for i in range(block.size)] == [block(i) for i in range(block.size)]


DIVIDED = [
    ("1:0", "1:0"), ("1:0", "1:1"), ("1:1", "1:0"), ("1:1", "1:1"), ("6:1", "2:1"), ("6:1", "2:3"), ("(6,6):(1,12)", "(6,3):(3,1)"),
    ("(6,6):(12,1)", "(6,3):(3,1)"), ("32:1", "(2,8):(1,2)"), ("(4,1):(1,1)", "2:1"), ("(4,1):(1,1)", "2:2"), ("(8,8):(1,8)", "(32,2):(1,32)"),
    ("(8,8):(8,1)", "(32,2):(1,32)"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b"), DIVIDED)
def test_logical_divide(a: str, b: str) -> None:
    layout, tiler = Layout.from_text(a), Layout.from_text(b)
    found = L.logical_divide(layout, tiler)
    assert found.rank == 2 and L.compatible(tiler.shape, found[0].shape)
    assert [found[0](i) for i in range(tiler.size)] == [layout(tiler(i)) for i in range(tiler.size)]


INVERTED = [
    "1:0", "1:1", "(4):(0)", "(4):(1)", "(4):(2)", "(1,1):(0,0)", "(3,7):(0,0)", "(1):(1)", "(2,4):(0,2)", "(8,4):(1,8)", "(8,4):(4,1)",
    "(2,4,6):(1,2,8)", "(2,4,6):(4,1,8)", "(2,4,4,6):(4,1,0,8)", "(4,2):(1,16)", "(4,2):(1,5)",
]  # fmt: skip


@pytest.mark.parametrize("text", INVERTED)
def test_right_inverse(text: str) -> None:
    layout = Layout.from_text(text)
    inverse = L.right_inverse(layout)
    assert [layout(inverse(i)) for i in range(inverse.size)] == [*range(inverse.size)]


# --- tuple_alg.jl ----------------------------------------------------------------------------------------------------


@facts(
    (lambda: L.unflatten((1, 2, 3), (0, 0, 0)), (1, 2, 3)),
    (lambda: L.unflatten((1, 2, 3, 4), (0, (0, (0, 0)))), (1, (2, (3, 4)))),
    (lambda: L.unflatten((1, 2, 3, 4), ((0, 0), (0, 0))), ((1, 2), (3, 4))),
    (lambda: L.unflatten((1, 2, 3, 4, 5, 6), (0, (0, (0, (0, (0, 0)))))), (1, (2, (3, (4, (5, 6)))))),
    (lambda: L.unflatten((), ()), ()),
    (lambda: L.front(((2, 3), 4)), 2),
    (lambda: L.back((2, (3, 4))), 4),
    (lambda: L.tuple_cat((1, 2), (3, 4)), (1, 2, 3, 4)),
    (lambda: L.insert((1, 2, 3), 1, 10), (1, 10, 2, 3)),
    (lambda: L.remove((1, 2, 3), 1), (1, 3)),
    (lambda: L.replace((1, 2, 3), 1, 10), (1, 10, 3)),
    (lambda: L.unwrap((1,)), 1),
    (lambda: L.append((1, 2), 3), (1, 2, 3)),
    (lambda: L.append((1, 2), 3, rank=4), (1, 2, 3, 3)),
    (lambda: L.prepend((1, 2), 3), (3, 1, 2)),
    (lambda: L.prepend((1, 2), 3, rank=4), (3, 3, 1, 2)),
    (lambda: L.escan((1, 2, 3, 4, 5), 10, lambda x, y: x * y), (10, 10, 20, 60, 240)),
    (
        lambda: L.zip2_by((("A", "a"), (("B", "b"), ("C", "c")), "d"), (0, (0, 0))),
        (("A", ("B", "C")), ("a", ("b", "c"), "d")),
    ),
)
def test_tuple_algorithms(call: Callable[[], Any], value: Any) -> None:
    assert call() == value


# --- where the library gives something else --------------------------------------------------------------------------

# What is called, MoYe.jl's value counted from 0, and the library's, or the words of its refusal.
DIFFERENT = {
    "increment goes on past the end": (lambda: L.increment((2, 3), (3, 4)), (0, 0), (0, 4)),
    "also of nested coordinates": (lambda: L.increment((1, (1, 2), 2), (2, (2, 3), 3)), (0, (0, 0), 0), (0, (0, 0), 3)),
    "no element is dropped": (
        lambda: L.unflatten((1, 2, 3, 4, 5), (0, (0, 0), 0)),
        (1, (2, 3), 4),
        "5 elements for 4 leaves of the profile",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_differences(name: str) -> None:
    call, of_moye, own = DIFFERENT[name]
    assert of_moye != own
    if isinstance(own, str):
        with pytest.raises(LayoutError, match=own):
            call()
    else:
        assert call() == own
