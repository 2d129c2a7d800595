"""Every operation's law against brute-force function tables."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.helpers.slow import examples
from tests.property.layout_strategies import (
    EXTENTS,
    SHAPES,
    all_digits,
    compact_layouts,
    cuttable,
    flat,
    layouts,
    mixed_radix_layouts,
    nested,
    size_of,
    some_layout_has,
    table,
    value_at,
)

import tilewright.layout as L
from tilewright.errors import LayoutError
from tilewright.layout import Layout, Swizzle

law = examples(35, 100)


def depth_of(x: Any) -> int:
    return 1 + max([depth_of(v) for v in x], default=0) if isinstance(x, tuple) else 0


@law
@given(layouts())
def test_calling_a_layout(layout: Layout) -> None:
    expected = table(layout)
    assert [layout(i) for i in range(layout.size)] == expected
    assert [layout(L.idx2crd(i, layout.shape)) for i in range(layout.size)] == expected
    assert layout.cosize == 1 + max(expected)
    assert layout.size == len(expected)
    assert layout.depth == depth_of(layout.shape)
    assert Layout.from_text(str(layout)) == layout
    assert eval(repr(layout)) == layout
    assert hash(eval(repr(layout))) == hash(layout)


@law
@given(SHAPES)
def test_compact_layouts_number_their_coordinates(shape: Any) -> None:
    count = size_of(shape)
    assert table(L.col_major(shape)) == list(range(count))
    assert sorted(table(L.row_major(shape))) == list(range(count))
    assert [L.crd2idx(L.idx2crd(i, shape), shape) for i in range(count)] == list(range(count))
    backwards = L.row_major(shape)
    reverse = lambda x: tuple(reverse(v) for v in reversed(x)) if isinstance(x, tuple) else x  # noqa: E731
    mirrored = L.col_major(reverse(shape))
    for i in range(count):
        coord = L.idx2crd(i, shape)
        assert backwards(coord) == mirrored(reverse(coord))


@law
@given(SHAPES, st.data())
def test_crd2crd_keeps_the_index(shape: Any, data: st.DataObject) -> None:
    count = size_of(shape)
    other = data.draw(st.sampled_from(list(mixed_radix_layouts(count)) or [(1,)]))
    for i in range(count):
        assert L.crd2idx(L.crd2crd(L.idx2crd(i, shape), shape, other), other) == i


@law
@given(compact_layouts(gaps=True))
def test_coordinates_of_offsets(layout: Layout) -> None:
    for i, offset in enumerate(table(layout)):
        assert layout(layout.get_hier_coord(offset)) == offset
        coord = layout.get_flat_coord(offset)
        assert layout(coord if layout.rank > 1 or isinstance(layout.shape, tuple) else coord[0]) == offset
        assert L.crd2idx(layout.get_flat_coord(offset), L.product_each(layout.shape)) == i


@law
@given(SHAPES, st.data())
def test_make_ordered_layout(shape: Any, data: st.DataObject) -> None:
    leaves = flat(shape)
    keys = data.draw(st.lists(st.integers(0, 3), min_size=len(leaves), max_size=len(leaves)))
    position = iter(keys)
    order = L.idx2crd(0, shape)
    nest = lambda x: tuple(nest(v) for v in x) if isinstance(x, tuple) else next(position)  # noqa: E731
    layout = L.make_ordered_layout(shape, nest(order))
    assert sorted(table(layout)) == list(range(size_of(shape)))
    steps = [(k, d) for k, d, s in zip(keys, flat(layout.stride), leaves, strict=False) if s > 1]
    assert all(d < e for k, d in steps for j, e in steps if k < j)


@law
@given(layouts())
def test_make_layout_like(layout: Layout) -> None:
    result = L.make_layout_like(layout)
    assert result.shape == layout.shape
    assert L.size(L.filter(result)) == result.cosize
    before, after = flat(layout.stride), flat(result.stride)
    wide = [i for i, s in enumerate(flat(layout.shape)) if s > 1]
    assert all(after[i] < after[j] for i in wide for j in wide if 0 < before[i] < before[j])
    assert all((after[i] == 0) == (before[i] == 0) for i in wide)


@law
@given(layouts())
def test_coalesce_flatten_filter(layout: Layout) -> None:
    expected = table(layout)
    merged = L.coalesce(layout)
    assert table(merged) == expected
    assert depth_of(merged.shape) <= 1
    shape, stride = flat(merged.shape), flat(merged.stride)
    assert merged.shape == 1 or 1 not in shape
    assert all(s * d != e for s, d, e in zip(shape, stride, stride[1:], strict=False))
    assert table(L.flatten(layout)) == expected
    assert depth_of(L.flatten(layout).shape) <= 1
    assert set(table(L.filter_zeros(layout))) == set(expected)
    filtered = L.filter(layout)
    assert set(table(filtered)) == set(expected)
    assert filtered.shape == 1 or 0 not in flat(filtered.stride)


@law
@given(cuttable(), st.tuples(st.integers(0, 1), st.integers(0, 1)))
def test_filter_zeros_with_a_profile(case: tuple[Layout, Any], profile: tuple[int, int]) -> None:
    """An entry 0 leaves one coordinate of its whole mode, however it is nested."""
    layout, _ = case
    result = L.filter_zeros(layout, profile)
    assert L.congruent(result, layout) and result.stride == layout.stride
    assert [result[k] for k in range(2) if profile[k]] == [layout[k] for k in range(2) if profile[k]]
    assert all(result[k].size == 1 for k in range(2) if not profile[k])
    assert table(L.filter_zeros(layout, 0)) == [0]


@law
@given(cuttable())
def test_coalesce_with_a_profile(case: tuple[Layout, Any]) -> None:
    layout, _ = case
    result = L.coalesce(layout, (1, 1))
    assert result.rank == 2
    assert table(result) == table(layout)
    assert [result[k] for k in range(2)] == [L.coalesce(layout[k]) for k in range(2)]


@examples(150, 400)
@given(layouts(most=256), layouts(most=24, shapes=nested(EXTENTS, 2)))
@example(Layout((5, 4), (1, 8)), Layout(4, 3))
@example(Layout((4, 2, 2), (1, 8, 12)), Layout(6, 3))
@example(Layout((4, 2, 2), (1, 8, 12)), Layout((2, 2), (3, 5)))
@example(Layout((4, 4), (1, 10)), Layout((2, 2), (3, 3)))
@example(Layout((2, 3), (1, 7)), Layout(5, 1))
@example(Layout((4, 1), (1, 7)), Layout(3, 3))
def test_composition_is_exact_or_refused(a: Layout, b: Layout) -> None:
    inner = table(b)
    expected = [value_at(flat(a.shape), flat(a.stride), x) for x in inner]
    try:
        result = L.composition(a, b)
    except LayoutError:
        # Refused: then no layout does it. Each mode of b alone has to become a layout, and they have to add up.
        extents, strides = flat(b.shape), flat(b.stride)
        parts = [
            [value_at(flat(a.shape), flat(a.stride), i * d) for i in range(s)]
            for s, d in zip(extents, strides, strict=False)
        ]
        adds_up = all(
            value_at(flat(a.shape), flat(a.stride), sum(i * d for i, d in zip(digits, strides, strict=False)))
            == sum(part[i] for part, i in zip(parts, digits, strict=False))
            for digits in all_digits(extents)
        )
        assert not (adds_up and all(some_layout_has(part) for part in parts)), (a, b)
        return
    assert table(result) == expected
    assert L.compatible(b.shape, result.shape)


@law
@given(layouts(most=128), st.data())
def test_composition_by_mode(layout: Layout, data: st.DataObject) -> None:
    assume(isinstance(layout.shape, tuple))
    tiler = data.draw(st.lists(st.one_of(st.none(), st.integers(1, 4)), min_size=1, max_size=layout.rank).map(tuple))
    try:
        result = L.composition(layout, tiler)
    except LayoutError:
        return
    for k in range(layout.rank):
        entry = tiler[k] if k < len(tiler) else None
        expected = table(layout[k]) if entry is None else table(layout[k], entry)
        assert table(result[k]) == expected


@law
@given(layouts(most=64), st.integers(1, 200))
def test_complement(layout: Layout, target: int) -> None:
    try:
        rest = L.complement(layout, target)
    except LayoutError:
        return
    own = sorted(set(table(layout)))
    other = table(rest)
    assert all(x < y for x, y in itertools.pairwise(other))
    together = [x + y for x in table(L.filter(layout)) for y in other]
    assert len(set(together)) == len(together)
    assert set(own) <= set(together)
    spans = [s * d for x in (layout, rest) for s, d in zip(flat(x.shape), flat(x.stride), strict=True)]
    assert max([*spans, 1]) >= target


@law
@given(compact_layouts(most=64, gaps=True), st.integers(1, 200))
def test_complement_of_injective_layouts_exists(layout: Layout, target: int) -> None:
    rest = L.complement(layout, target)
    together = [x + y for x in table(L.filter(layout)) for y in table(rest)]
    assert len(set(together)) == len(together)


@law
@given(layouts(most=128))
def test_right_inverse(layout: Layout) -> None:
    inverse = L.right_inverse(layout)
    values = table(layout)
    assert [values[i] for i in table(inverse)] == list(range(L.size(inverse)))


@law
@given(compact_layouts(most=128))
def test_right_inverse_of_compact_layouts_is_whole(layout: Layout) -> None:
    assert L.size(L.right_inverse(layout)) == layout.size
    assert L.size(L.left_inverse(layout)) >= layout.size


@law
@given(layouts(most=128))
@example(Layout((4, 8), (1, 5)))
@example(Layout((4, 8), (0, 3)))
def test_left_inverse(layout: Layout) -> None:
    try:
        inverse = L.left_inverse(layout)
    except LayoutError:
        return
    values = table(layout)
    back = [value_at(flat(inverse.shape), flat(inverse.stride), x) for x in values]
    assert [values[i] for i in back] == values
    if len(set(values)) == len(values):
        assert back == list(range(len(values)))


@law
@given(compact_layouts(most=128, gaps=True))
def test_left_inverse_of_injective_layouts_exists(layout: Layout) -> None:
    assert [L.left_inverse(layout)(x) for x in table(layout)] == list(range(layout.size))


@law
@given(layouts(most=128))
def test_nullspace(layout: Layout) -> None:
    kernel = L.nullspace(layout)
    values = table(layout)
    assert all(values[i] == 0 for i in table(kernel))
    assert L.size(kernel) * L.size(L.filter_zeros(layout)) == layout.size
    assert len(set(table(kernel))) == L.size(kernel)


@law
@given(cuttable())
def test_divides(case: tuple[Layout, Any]) -> None:
    layout, tile = case
    try:
        divided = L.logical_divide(layout, tile)
    except LayoutError:
        return
    zipped, tiled, flattened = (f(layout, tile) for f in (L.zipped_divide, L.tiled_divide, L.flat_divide))
    for k in range(2):
        count = size_of(layout[k].shape)
        inside, outside = divided[k][0], divided[k][1]
        assert L.size(inside) == tile[k]
        assert L.size(outside) == -(-count // tile[k])
        extents, strides = flat(layout[k].shape), flat(layout[k].stride)
        for j, start in enumerate(table(outside)):
            for i, step in enumerate(table(inside)):
                assert step + start == value_at(extents, strides, j * tile[k] + i)
    for i in all_digits(list(tile)):
        for j in all_digits([L.size(divided[0][1]), L.size(divided[1][1])]):
            expected = divided((i[0], j[0]), (i[1], j[1]))
            assert zipped(i, j) == tiled(i, *j) == flattened(*i, *j) == expected


@law
@given(layouts(most=64), compact_layouts(most=12))
def test_logical_divide_by_a_layout(layout: Layout, tiler: Layout) -> None:
    try:
        result = L.logical_divide(layout, tiler)
    except LayoutError:
        return
    rest = L.complement(tiler, layout.size)
    assert result.rank == 2
    extents, strides = flat(layout.shape), flat(layout.stride)
    for j, start in enumerate(table(rest)):
        for i, step in enumerate(table(tiler)):
            assert result(i, j) == value_at(extents, strides, start + step)


@law
@given(compact_layouts(most=24, gaps=True), layouts(most=12, strides=st.integers(0, 3)))
def test_logical_product(block: Layout, tiler: Layout) -> None:
    try:
        result = L.logical_product(block, tiler)
    except LayoutError:
        return
    free = L.complement(block, block.size * tiler.cosize)
    places = table(tiler)
    for j, k in enumerate(places):
        for i, x in enumerate(table(block)):
            assert result(i, j) == x + value_at(flat(free.shape), flat(free.stride), k)


@law
@given(compact_layouts(most=12, gaps=True), compact_layouts(most=12))
@example(Layout(4, 2), Layout(4))
@example(Layout(4, 2), Layout((4,)))
def test_products_are_arrangements_of_one_another(block: Layout, tiler: Layout) -> None:
    try:
        result = L.logical_product(block, tiler)
    except LayoutError:
        return
    assert len(set(table(result))) == block.size * tiler.size
    assert block.cosize > block.size or sorted(table(result)) == list(range(block.size * tiler.size))
    for other in (L.zipped_product, L.tiled_product, L.flat_product):
        assert sorted(table(other(block, tiler))) == sorted(table(result))
    rank = max(block.rank, tiler.rank)
    padded_block, padded_tiler = L.append(block, rank=rank), L.append(tiler, rank=rank)
    blocked, raked = L.blocked_product(block, tiler), L.raked_product(block, tiler)
    plain = L.logical_product(padded_block, padded_tiler)
    sizes = L.product_each(padded_block.shape)
    times = L.product_each(padded_tiler.shape)
    for i in range(block.size):
        for j in range(tiler.size):
            a, b = L.idx2crd(i, sizes), L.idx2crd(j, times)
            expected = plain(i, j)
            assert blocked(tuple(x + s * y for x, y, s in zip(a, b, sizes, strict=False))) == expected
            assert raked(tuple(y + t * x for x, y, t in zip(a, b, times, strict=False))) == expected


@law
@given(compact_layouts(most=16), st.lists(st.integers(1, 3), min_size=3, max_size=3), st.permutations(range(3)))
def test_tile_to_shape(block: Layout, times: list[int], order: list[int]) -> None:
    assume(block.rank <= 3)
    unit = L.product_each(L.append(block, rank=3).shape)
    shape = tuple(s * t for s, t in zip(unit, times, strict=False))
    result = L.tile_to_shape(block, shape, tuple(order))
    assert L.product_each(result.shape) == shape
    assert sorted(table(result)) == list(range(size_of(shape)))
    for i in range(block.size):
        assert result(L.idx2crd(i, unit)) == table(block)[i]


@law
@given(compact_layouts(most=64, gaps=True), compact_layouts(most=64))
def test_max_common(a: Layout, b: Layout) -> None:
    common = L.max_common_layout(a, b)
    for i, k in enumerate(table(common)):
        assert a(k) == i == b(k)
    assert L.max_common_vector(a, b) == L.size(common)
    first, second = table(a), table(b)
    if a.size == b.size and L.size(common) < a.size:
        # The next element: no single further index continues both, or the run would not be a layout's mode.
        n = L.size(common)
        both = [k for k in range(a.size) if first[k] == second[k] == n]
        if both:
            longer = [next((k for k in range(a.size) if first[k] == second[k] == i), -1) for i in range(2 * n)]
            assert -1 in longer or not some_layout_has(longer)


@law
@given(layouts(most=64))
def test_max_alignment(layout: Layout) -> None:
    n = L.max_alignment(layout)
    values = set(table(layout))
    assert all(x // n * n + i in values for x in values for i in range(n))


@law
@given(SHAPES, st.integers(1, 64))
def test_domain_distribute(shape: Any, count: int) -> None:
    result = L.domain_distribute(shape, count)
    values = table(result)
    assert count % len(values) == 0
    assert all(x < y for x, y in itertools.pairwise(values))
    assert max(values) < size_of(shape)


@law
@given(layouts(most=128), st.sampled_from([1, 2, 3, 4, 8]))
def test_upcast(layout: Layout, n: int) -> None:
    try:
        result = L.upcast(layout, n)
    except LayoutError:
        return
    groups = [s // t for s, t in zip(flat(layout.shape), flat(result.shape), strict=False)]
    for digits in all_digits(flat(layout.shape)):
        offset = sum(i * d for i, d in zip(digits, flat(layout.stride), strict=False))
        wide = sum(i // g * d for i, g, d in zip(digits, groups, flat(result.stride), strict=False))
        assert wide == offset // n


@law
@given(layouts(most=128), st.sampled_from([1, 2, 4, 8]))
def test_downcast(layout: Layout, n: int) -> None:
    try:
        result = L.downcast(layout, n)
    except LayoutError:
        return
    whole = set(table(layout))
    assert sorted(table(result)) == sorted(n * x + t for x in table(layout) for t in range(n))
    assert len(whole) * n == len(set(table(result)))
    if 1 in flat(layout.shape) and n > 1:
        return
    back = L.upcast(result, n)
    assert back == layout


@law
@given(layouts(), st.data())
def test_slices_and_dices(layout: Layout, data: st.DataObject) -> None:
    def choose(shape: Any) -> Any:
        if isinstance(shape, tuple) and data.draw(st.booleans()):
            return tuple(choose(s) for s in shape)
        return None if data.draw(st.booleans()) else data.draw(st.integers(0, size_of(shape) - 1))

    coord = choose(layout.shape)
    kept, offset = L.slice_and_offset(layout, coord)
    at_zero = lambda c: tuple(at_zero(v) for v in c) if isinstance(c, tuple) else (0 if c is None else c)  # noqa: E731
    assert offset == layout(at_zero(coord))

    def fill(c: Any, shape: Any) -> list[Any]:
        if isinstance(c, tuple):
            options = [fill(v, s) for v, s in zip(c, shape, strict=False)]
            return [tuple(choice) for choice in itertools.product(*options)]
        return list(range(size_of(shape))) if c is None else [c]

    image = sorted(layout(c) for c in fill(coord, layout.shape))
    assert sorted(x + offset for x in table(kept)) == image
    assert L.slice_(layout, coord) == kept
    assert L.size(L.dice(layout, coord)) * L.size(kept) == layout.size


@law
@given(layouts(), st.data())
def test_rearranging_modes(layout: Layout, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, layout.rank))
    end = data.draw(st.integers(begin, layout.rank))
    modes = [layout[k] for k in range(layout.rank)]
    assert table(L.group(layout, begin, end)) == table(layout)
    if end > begin:
        assert table(L.take(layout, begin, end)) == table(L.make_layout(*modes[begin:end]))
    order = data.draw(st.permutations(range(layout.rank)))
    picked = L.select(layout, *order)
    assert [picked[k] for k in range(layout.rank)] == [modes[k] for k in order]
    extra = Layout(3, 1000)
    assert [L.append(layout, extra)[k] for k in range(layout.rank + 1)] == [*modes, extra]
    assert [L.prepend(layout, extra)[k] for k in range(layout.rank + 1)] == [extra, *modes]
    replaced = L.replace(layout, begin, extra) if begin < layout.rank else None
    assert replaced is None or [replaced[k] for k in range(layout.rank)] == [*modes[:begin], extra, *modes[begin + 1 :]]


@law
@given(layouts(most=64), layouts(most=64))
def test_zip_and_unzip(a: Layout, b: Layout) -> None:
    assume(a.rank == b.rank and isinstance(a.shape, tuple) and isinstance(b.shape, tuple))
    both = L.zip(a, b)
    assert both.rank == a.rank
    again = L.unzip(both)
    assert (again[0], again[1]) == (a, b)


@law
@given(SHAPES, SHAPES)
def test_relations_of_shapes(a: Any, b: Any) -> None:
    if L.congruent(a, b):
        assert L.weakly_congruent(a, b)
        assert L.weakly_congruent(b, a)
    if L.compatible(a, b):
        assert size_of(a) == size_of(b)
        assert L.weakly_congruent(a, b)
        assert all(L.crd2idx(L.idx2crd(i, a), b) == i for i in range(size_of(a)))
    assert L.compatible(size_of(a), a)
    assert L.evenly_divides(a, 1)


@law
@given(st.integers(1, 100), st.integers(1, 100), SHAPES)
def test_divisions_of_shapes(a: int, b: int, shape: Any) -> None:
    assert L.ceil_div(a, b) == -(-a // b)
    assert L.ceil_div(shape, 1) == shape
    try:
        quotient = L.shape_div(a, b)
    except LayoutError:
        assert a % b and b % a
    else:
        assert quotient * b == a or (quotient == 1 and b % a == 0)
    divided = L.ceil_div(shape, b)
    assert all(x <= y for x, y in zip(flat(divided), flat(shape), strict=True))
    assert L.congruent(divided, shape)


@law
@given(st.integers(0, 3), st.integers(0, 4), st.integers(-4, 4), layouts(most=64))
def test_swizzles(bits: int, base: int, shift: int, layout: Layout) -> None:
    assume(abs(shift) >= bits)
    swizzle = Swizzle(bits, base, shift)
    block = swizzle.block
    images = [swizzle(i) for i in range(2 * block)]
    assert sorted(images) == list(range(2 * block))
    assert [swizzle(x) for x in images] == list(range(2 * block))
    assert all(x // (1 << base) * (1 << base) + i % (1 << base) == x for i, x in enumerate(images))
    composed = L.composition(swizzle, layout)
    expected = [swizzle(x) for x in table(layout)]
    assert [composed(i) for i in range(layout.size)] == expected
    assert L.cosize(composed) == 1 + max(expected)
    try:
        divided = L.logical_divide(composed, 2)
    except LayoutError:
        return
    plain = L.logical_divide(layout, 2)
    assert [divided(i) for i in range(L.size(plain))] == [swizzle(x) for x in table(plain)]


@law
@given(compact_layouts(most=64), st.integers(0, 2), st.integers(0, 2), st.integers(2, 3))
def test_inverses_of_swizzled_layouts(layout: Layout, bits: int, base: int, shift: int) -> None:
    composed = L.composition(Swizzle(bits, base, shift), layout)
    right = L.right_inverse(composed)
    assert [composed(right(i)) for i in range(L.size(right))] == list(range(L.size(right)))
    left = L.left_inverse(composed)
    assert [left(composed(i)) for i in range(layout.size)] == list(range(layout.size))


@law
@given(st.sampled_from([2, 4, 8]), st.integers(0, 3), st.integers(0, 2), st.integers(0, 3))
def test_recast_moves_swizzles_along(n: int, bits: int, base: int, more: int) -> None:
    log = n.bit_length() - 1
    composed = L.composition(Swizzle(bits, base + log, bits + more), Layout((8 * n, 16), (1, 8 * n)))
    wide = L.upcast(composed, n)
    assert [wide(i) for i in range(L.size(wide))] == [composed(n * i) // n for i in range(L.size(wide))]
    assert L.downcast(wide, n) == composed


@law
@given(layouts(most=64))
def test_identity_layouts_give_coordinates(layout: Layout) -> None:
    coordinates = L.identity_layout(layout.shape)
    for i in range(layout.size):
        coord = L.idx2crd(i, layout.shape)
        expected = coord if isinstance(coord, tuple) else (coord,)
        assert coordinates(i) == expected
