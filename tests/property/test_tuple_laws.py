"""Laws of functions over nested tuples, against enumeration."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.helpers.slow import examples
from tests.property.layout_strategies import EXTENTS, SHAPES, flat, layouts, like, nested, size_of, table

import tilewright.layout as L
from tilewright.errors import LayoutError
from tilewright.layout import Layout

law = examples(18, 100)
NUMBERS = nested(st.integers(-3, 5))


def coordinates(shape: Any) -> list[Any]:
    """All coordinates of a shape, the first leaf fastest, found without the code under test."""
    digits = itertools.product(*[range(e) for e in reversed(flat(shape))])
    return [like(shape, iter(d[::-1])) for d in digits]


@law
@given(SHAPES.filter(lambda s: size_of(s) <= 64))
def test_orders_are_those_of_compact_layouts(shape: Any) -> None:
    coords = coordinates(shape)
    left, right = L.col_major(shape), L.row_major(shape)
    for a, b in itertools.product(coords[::3], coords):
        x, y = flat(a), flat(b)
        assert L.colex_less(a, b) == (left(a) < left(b)) == L.colex_gtr(b, a)
        assert L.lex_less(a, b) == (right(a) < right(b)) == L.lex_gtr(b, a)
        assert L.elem_less(a, b) == all(map(operator.lt, x, y)) == L.elem_gtr(b, a)
        assert L.colex_leq(a, b) == (left(a) <= left(b)) == L.colex_geq(b, a)
        assert L.lex_leq(a, b) == (right(a) <= right(b)) == L.lex_geq(b, a)
        assert L.elem_leq(a, b) == (not L.elem_less(b, a)) == L.elem_geq(b, a)
        assert L.elem_less(a, shape)


@law
@given(SHAPES)
def test_walks_through_coordinates(shape: Any) -> None:
    coords = coordinates(shape)
    assert list(L.make_coord_iterator(shape)) == coords
    assert list(L.make_coord_iterator(shape, coords[len(coords) // 2])) == coords[len(coords) // 2 :]
    for number, (coord, following) in enumerate(itertools.pairwise(coords)):
        assert L.increment(coord, shape) == following
        assert L.crd2idx(following, shape) == number + 1
    assert L.crd2idx(L.increment(coords[-1], shape), shape) == size_of(shape)


@law
@given(NUMBERS, st.integers(-3, 3))
def test_algorithms_over_leaves(t: Any, x: int) -> None:
    leaves = flat(t)
    assert L.flatten_to_tuple(t) == tuple(leaves)
    assert L.unflatten(L.flatten_to_tuple(t), t) == t
    assert L.repeat_like(t, x) == like(t, itertools.repeat(x))
    assert flat(L.transform_leaf(t, lambda v: v * x)) == [v * x for v in leaves]
    assert L.transform_leaf(lambda v, w: v - w, t, t) == L.repeat_like(t, 0)
    seen: list[int] = []
    L.for_each_leaf(t, seen.append)
    assert seen == leaves
    assert (L.front(t), L.back(t)) == (leaves[0], leaves[-1])
    assert (L.max(t), L.min(t), L.sum(t), L.product(t)) == (max(leaves), min(leaves), sum(leaves), math.prod(leaves))
    assert L.max(t, x, t) == max(*leaves, x)
    assert L.gcd(t, x) == math.gcd(*leaves, x)
    assert L.inner_product(t, t) == sum(v * v for v in leaves)
    assert L.product_like(t, 0) == math.prod(leaves)
    assert L.product_like(t, t) == t
    assert L.elem_scale(t, t) == L.transform_leaf(t, lambda v: v * v)
    assert L.unwrap(((t,),)) == L.unwrap(t)


@law
@given(st.lists(NUMBERS, min_size=1, max_size=5), st.integers(-3, 3), st.data())
def test_algorithms_over_elements(elements: list[Any], x: int, data: st.DataObject) -> None:
    t = tuple(elements)
    index = data.draw(st.integers(0, len(t) - 1))
    assert L.remove(L.insert(t, index, x), index) == t
    assert L.insert(t, len(t), x) == L.append(t, x) == (*t, x)
    assert L.prepend(t, x) == L.insert(t, 0, x)
    assert L.replace(t, index, x) == (*t[:index], x, *t[index + 1 :])
    assert L.replace_front(t, x) == L.replace(t, 0, x)
    assert L.replace_back(t, x) == L.replace(t, len(t) - 1, x)
    assert L.reverse(L.reverse(t)) == t
    assert L.reverse(t)[0] == t[-1]
    assert L.select(t, *range(len(t))) == t
    assert L.group(t, 0, index + 1) == (t[: index + 1], *t[index + 1 :])
    assert L.take(t, index, index) == ()
    assert L.transform(t, flat) == tuple(flat(e) for e in t)
    assert L.transform_apply(t, L.sum, lambda *v: sum(v)) == L.sum(t)
    assert L.filter_tuple(t, lambda e: (e, x) if isinstance(e, int) else ()) == tuple(
        v for e in t if isinstance(e, int) for v in (e, x)
    )
    assert L.tuple_cat(t, x, t) == (*t, x, *t)
    counts = tuple(len(flat(e)) for e in t)
    steps = list(itertools.accumulate(counts, operator.sub, initial=x))
    assert L.fold(t, x, lambda v, e: v - len(flat(e))) == steps[-1] == L.fold(lambda v, e: v - len(flat(e)), t, x)
    assert L.iscan(counts, x, operator.sub) == tuple(steps[1:])
    assert L.escan(counts, x, operator.sub) == L.escan(operator.sub, counts, x) == tuple(steps[:-1])
    assert L.fold_first(counts, operator.sub) == functools.reduce(operator.sub, counts)
    assert L.find(t, t[index]) == t.index(t[index])
    assert L.find_if(t, lambda e: e is None) == len(t)
    assert L.any_of(t, L.wrap) == L.all_of(t, L.wrap) != L.none_of(t, L.wrap)


@law
@given(nested(st.tuples(st.integers(), st.integers()).map(list)))
def test_zip2_by_undoes_pairing(pairs: Any) -> None:
    paired = L.transform_leaf(pairs, tuple)
    firsts, seconds = L.transform_leaf(pairs, lambda p: p[0]), L.transform_leaf(pairs, lambda p: p[1])
    assert L.zip2_by(paired, L.repeat_like(pairs, 0)) == (firsts, seconds)
    if isinstance(pairs, tuple):
        found = L.zip2_by((*paired, 7, (8, 9)), L.repeat_like(pairs, 0))
        assert found == (firsts, (*seconds, 7, (8, 9)))


@law
@given(SHAPES, st.integers(1, 7))
def test_compact_strides_from_a_start(shape: Any, start: int) -> None:
    """The offsets are those of the compact layout, times the start; extents 1 have stride 0."""
    for strides, layout in ((L.compact_col_major, L.col_major), (L.compact_row_major, L.row_major)):
        found = Layout(shape, strides(shape, start))
        assert table(found) == [start * offset for offset in table(layout(shape))]
        assert all(d == 0 for s, d in zip(flat(shape), flat(found.stride), strict=True) if s == 1)
    products = flat(L.prefix_product(shape, start))
    assert products == [start * math.prod(flat(shape)[:k]) for k in range(len(flat(shape)))]
    products = flat(L.suffix_product(shape, start))
    assert products == [start * math.prod(flat(shape)[k + 1 :]) for k in range(len(flat(shape)))]
    pair = (shape, shape)
    assert L.compact_col_major(pair, (start, 1)) == (L.compact_col_major(shape, start), L.compact_col_major(shape))
    assert L.compact_order(pair, (1, 0)) == L.make_ordered_layout(pair, (1, 0)).stride


@law
@given(SHAPES)
def test_offsets_to_coordinates(shape: Any) -> None:
    for layout in (L.col_major(shape), L.row_major(shape)):
        for coord in coordinates(shape):
            assert L.idx2crd(layout(coord), shape, layout.stride) == coord
    for coord in coordinates(shape):
        assert L.idx2crd(3 * L.crd2idx(coord, shape), shape, 3) == coord


TILERS = nested(st.one_of(EXTENTS, st.builds(Layout, EXTENTS, st.integers(1, 4))))


@law
@given(SHAPES, TILERS)
@example(16, (16,))
@example((2, 8), (2, (2, 4)))
@example((4, 6), ((2, 2), 6))
@example((32, 64), (Layout(8, 2), 32))
@example((32, 64), (Layout(8, 3), 32))
@example(((2, (4, 2)),), ((2, 8),))
def test_tiles_that_divide_evenly(shape: Any, tiler: Any) -> None:
    """Then the divided layout reaches the elements of the shape, each once, and the tiler is not nested deeper."""
    even = L.evenly_divides(shape, tiler)
    if not _nested_within(tiler, shape):
        assert not even
        return
    pairs = _modes(shape, tiler)
    assert even == all(
        size_of(s) == len(_image(t, size_of(s))) * math.prod(_rounds(s, t)) if t is not None else True for s, t in pairs
    )
    if even:
        try:
            divided = L.logical_divide(Layout(shape), tiler)
        except LayoutError:
            assume(False)
        assert divided.size == size_of(shape)
        assert sorted(table(divided)) == list(range(size_of(shape)))


def _nested_within(tiler: Any, shape: Any) -> bool:
    if not isinstance(tiler, tuple):
        return True
    modes = shape if isinstance(shape, tuple) else (shape,)
    return len(tiler) <= len(modes) and all(_nested_within(t, s) for t, s in zip(tiler, modes, strict=False))


def _modes(shape: Any, tiler: Any) -> list[tuple[Any, Any]]:
    if not isinstance(tiler, tuple):
        return [(shape, tiler)]
    modes = shape if isinstance(shape, tuple) else (shape,)
    return [pair for s, t in zip(modes, tiler, strict=False) for pair in _modes(s, t)]


def _image(tiler: Any, whole: int) -> list[int]:
    return list(range(tiler)) if isinstance(tiler, int) else table(tiler)


def _rounds(shape: Any, tiler: Any) -> list[int]:
    """How many tiles there are, found by laying tiles over the line until every element of the shape is reached."""
    if isinstance(tiler, int):
        rounds, left = [], tiler
        for extent in flat(shape):
            rounds.append(-(-extent // left))
            left = -(-left // extent)
        return rounds
    extent, stride = (1, 1) if tiler.shape == 1 else (tiler.shape, tiler.stride)
    return [stride, -(-size_of(shape) // (extent * stride))]


@law
@given(layouts())
def test_layouts_of_fragments(layout: Layout) -> None:
    """Mode 0 is column-major; behind it what was nearer in memory is nearer in the fragment; no two elements meet."""
    found = L.make_fragment_like(layout)
    assert found.shape == layout.shape
    offsets = table(found)
    if layout.rank == 1 or not isinstance(layout.shape, tuple):
        assert offsets == list(range(len(offsets)))
        return
    zeros = [s for s, d in zip(flat(layout.shape[0]), flat(layout.stride[0]), strict=True) if d == 0]
    assert sorted(set(offsets)) == list(range(len(offsets) // math.prod(zeros)))
    kept = [(s, d) for s, d in zip(flat(layout.shape[0]), flat(layout.stride[0]), strict=True) if d and s > 1]
    steps = [d for d in flat(found.stride[0]) if d]
    assert steps == [math.prod([s for s, _ in kept[:k]]) for k in range(len(kept))]
    rest = list(zip(flat(layout.shape[1:]), flat(layout.stride[1:]), flat(found.stride[1:]), strict=True))
    rest = [(old, new) for extent, old, new in rest if extent > 1]
    for (old, new), (old2, new2) in itertools.combinations(rest, 2):
        assert new != new2
        assert (new < new2) == (old <= old2)
