"""Operations on dynamic leaves: the result after substitution is the result of the substituted arguments."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.layout.symbols import Symbol, value_of

import tilewright.layout as L
from tilewright.errors import LayoutError
from tilewright.layout import Layout, Swizzle

M, N, LD, X, J = (Symbol(name) for name in ("m", "n", "ld", "i", "j"))
VALUES = [
    {"m": 128, "n": 64, "ld": 130, "i": 3, "j": 7},
    {"m": 96, "n": 32, "ld": 96, "i": 0, "j": 1},
    {"m": 100, "n": 40, "ld": 104, "i": 5, "j": 2},
]
COL, ROW = Layout((M, N), (1, LD)), Layout((M, N), (LD, 1))
STRIDED = Layout((M, N), (J, LD))
TILES = Layout(((32, M), (8, N)), ((1, 32), (LD, J)))
ONE = Layout(M, LD)


def offsets(layout: Any) -> list[Any]:
    return [layout(i) for i in range(L.size(layout))]


CASES: list[tuple[str, Any, tuple[Any, ...]]] = [
    ("size", L.size, (COL,)),
    ("cosize", L.cosize, (COL,)),
    ("call a layout", lambda layout, i, j: layout(i, j), (ROW, X, J)),
    ("call with a linear index", lambda layout, i: layout(i), (COL, X)),
    ("coalesce", L.coalesce, (Layout((M, 4, 1), (1, LD, 7)),)),
    ("coalesce joins what is known to continue", L.coalesce, (Layout((M, N), (1, M)),)),
    ("flatten", L.flatten, (TILES,)),
    ("filter", L.filter, (Layout((M, N), (0, LD)),)),
    ("col_major", L.col_major, ((M, 4),)),
    ("row_major", L.row_major, ((4, M),)),
    ("composition with a shape of tiles", L.composition, (COL, (32, 8))),
    ("composition with tilers", L.composition, (COL, (Layout(4, 2), None))),
    ("composition of one mode", L.composition, (ONE, Layout((4, 8), (8, 1)))),
    ("composition inside the first extent", L.composition, (Layout((32, M), (LD, 1)), Layout(8, 4))),
    ("composition past a static extent", L.composition, (Layout((8, M), (LD, 1)), Layout(16, 4))),
    ("composition with its own shape", L.composition, (COL, Layout((M, N)))),
    ("complement", L.complement, (Layout(4, 2), M)),
    ("complement of a dynamic mode", L.complement, (Layout(8, LD), 2000)),
    ("logical_divide", L.logical_divide, (COL, (32, 8))),
    ("zipped_divide", L.zipped_divide, (ROW, (32, 8))),
    ("tiled_divide", L.tiled_divide, (STRIDED, (32, 8))),
    ("flat_divide", L.flat_divide, (STRIDED, (32, 8))),
    ("divide nested modes", L.zipped_divide, (TILES, (16, 4))),
    ("divide nested modes by the tile", L.zipped_divide, (TILES, (32, 8))),
    ("divide by a dynamic tile", L.logical_divide, (Layout(M, LD), N)),
    ("logical_product", L.logical_product, (Layout(4, 1), Layout(M, 1))),
    ("blocked_product", L.blocked_product, (Layout((4, 8)), Layout((M, N)))),
    ("right_inverse", L.right_inverse, (Layout((8, 4, M), (1, LD, J)),)),
    ("nullspace", L.nullspace, (Layout((4, M), (0, 1)),)),
    ("upcast", L.upcast, (Layout((8, N), (1, M)), 4)),
    ("downcast", L.downcast, (Layout((8, N), (1, LD)), 4)),
    ("group", L.group, (TILES, 0, 2)),
    ("select", L.select, (COL, 1, 0)),
    ("slice_", L.slice_, (TILES, ((None, X), 3))),
    ("append", L.append, (COL, Layout(3, M))),
    ("ceil_div", L.ceil_div, ((M, N), (32, 8))),
    ("swizzle", lambda s, layout, i: L.composition(s, layout)(i, 3), (Swizzle(2, 0, 3), Layout((8, 8), (8, 1)), J)),
    ("idx2crd", L.idx2crd, (X, (4, M))),
    ("crd2idx", L.crd2idx, ((X, J), (M, N))),
    ("get_flat_coord", lambda layout, i: layout.get_flat_coord(i), (Layout((8, 4), (4, 1)), X)),
]


@pytest.mark.parametrize("values", VALUES, ids=str)
@pytest.mark.parametrize(("name", "operation", "arguments"), CASES, ids=[c[0] for c in CASES])
@pytest.mark.spread(6)
def test_substitution(name: str, operation: Any, arguments: tuple[Any, ...], values: dict[str, int]) -> None:
    dynamic = value_of(operation(*arguments), values)
    static = operation(*[value_of(a, values) for a in arguments])
    if not isinstance(dynamic, Layout):
        assert dynamic == static
        return
    # A dynamic result may keep modes that values show to be joined, or stop where they are unknown.
    if operation is L.right_inverse:
        whole = value_of(arguments[0], values)
        assert [whole(i) for i in offsets(dynamic)] == list(range(dynamic.size))
        return
    # Layouts add up digit by digit: the first indices and every 61st behind them meet each digit in all its values.
    assert dynamic.size == static.size, (dynamic, static)
    indices = [*range(min(static.size, 64)), *range(64, static.size, 61), static.size - 1]
    assert [dynamic(i) for i in indices] == [static(i) for i in indices], (dynamic, static)
    assert dynamic.rank == static.rank or operation in (L.coalesce, L.composition, L.complement)


REFUSED: list[tuple[str, Any, str]] = [
    ("a dynamic extent passed", lambda: L.composition(COL, Layout(16, 4)), "extent 0 of a is dynamic"),
    (
        "a dynamic extent of b",
        lambda: L.composition(Layout((4, 8), (LD, 1)), Layout(M, 1)),
        "the extent of b is dynamic",
    ),
    (
        "a dynamic stride of b",
        lambda: L.composition(Layout((4, 8), (9, 1)), Layout(2, M)),
        "the stride of b is",
    ),
    ("sorting dynamic strides", lambda: L.complement(Layout((4, 8), (1, LD)), 100), "every stride"),
    ("inverting a dynamic layout", lambda: L.left_inverse(COL), "the shape of the layout"),
    ("comparing dynamic extents", lambda: L.compatible(M, (4, 8)), "an extent of the first shape"),
    ("exact division of dynamic extents", lambda: L.shape_div(M, 4), "the dividend"),
]


@pytest.mark.parametrize(("operation", "words"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_what_needs_a_value_says_so(operation: Any, words: str) -> None:
    with pytest.raises(LayoutError) as caught:
        operation()
    assert words in str(caught.value)
    assert "make" in str(caught.value)


def test_arithmetic_is_folded() -> None:
    """No operation writes `x * 1`, `x + 0`, `0 // x` or `x % x` into a kernel."""
    assert Layout((M, N), (1, LD))(0, X) is not None
    assert str(COL(X, 0)) == "i"
    assert COL(0, 0) == 0
    assert str(COL(X, J)) == "(i + (j * ld))"
    assert str(L.zipped_divide(Layout(M, 1), 32)) == "(32,((m + 31) // 32)):(1,32)"
    assert str(L.zipped_divide(Layout(M, LD), 1)) == "(1,m):(0,ld)"
    assert str(Layout((32, 8))(X)) == "((i % 32) + ((i // 32) * 32))"


def test_equality_and_hash_go_by_identity() -> None:
    same = Layout((M, 4), (1, LD))
    assert same == Layout((M, 4), (1, LD))
    assert hash(same) == hash(Layout((M, 4), (1, LD)))
    assert same != Layout((N, 4), (1, LD))
    assert same != Layout((8, 4), (1, 8))
    assert not same.is_static
