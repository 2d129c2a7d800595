"""Layouts that lead back, and layouts of coordinates: composition and inverses against their laws by enumeration."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.helpers.slow import examples
from tests.property.layout_strategies import (
    EXTENTS,
    all_digits,
    compact_layouts,
    flat,
    layouts,
    like,
    nested,
    size_of,
    some_layout_has,
    table,
    value_at,
)

import tilewright.layout as L
from tilewright.errors import LayoutError
from tilewright.layout import ComposedLayout, E, Layout, Swizzle

law = examples(18, 100)
SIGNED = st.one_of(st.sampled_from([0, 1, -1, 2, -2, 4, -4, 8, -8]), st.integers(-20, 20))


def at(layout: Layout, x: int) -> int:
    """A(x), and A(-x) == -A(x), found without the code under test."""
    extents, strides = flat(layout.shape), flat(layout.stride)
    return value_at(extents, strides, x) if x >= 0 else -value_at(extents, strides, -x)


@law
@given(layouts(strides=SIGNED), st.integers(-600, 600))
def test_indices_below_zero(layout: Layout, index: int) -> None:
    assert layout(index) == at(layout, index)


@law
@given(layouts(64, strides=SIGNED), layouts(64, strides=SIGNED))
@example(Layout(4, -1), Layout(4, 1))
@example(Layout(4, 1), Layout(4, -1))
@example(Layout(4, -1), Layout(4, -1))
@example(Layout(4, 1), Layout(4, -2))
@example(Layout((4, 4), (-1, 1)), Layout((2, 4, 2)))
@example(Layout((4, 4), (-1, 1)), Layout((2, 4, 2), (1, 4, 2)))
@example(Layout((1, (2, 4)), (0, (-1, 512))), Layout(2, -1))
@example(Layout((1, (2, 4)), (0, (-1, 512))), Layout(4, -1))
@example(Layout((4, 8), (8, 1)), Layout((2, 2), (1, -1)))
def test_composition_is_exact_or_refused(a: Layout, b: Layout) -> None:
    expected = [at(a, x) for x in table(b)]
    try:
        result = L.composition(a, b)
    except LayoutError:
        if isinstance(b.shape, int):
            assert not some_layout_has(expected)
        return
    assert table(result) == expected
    assert L.compatible(b.shape, result.shape)


@law
@given(layouts(strides=SIGNED.filter(lambda d: d >= 0)), st.integers(1, 16), st.integers(1, 12))
def test_back_is_the_opposite_of_forward(a: Layout, n: int, r: int) -> None:
    try:
        forward = L.composition(a, Layout(n, r))
    except LayoutError:
        forward = None
    try:
        back = L.composition(a, Layout(n, -r))
    except LayoutError:
        back = None
    assert (forward is None) == (back is None)
    if forward is not None and back is not None:
        assert back.shape == forward.shape
        assert flat(back.stride) == [-d for d in flat(forward.stride)]


@law
@given(layouts(strides=SIGNED))
@example(Layout(4, -1))
@example(Layout((2, 4, 6), (-4, -1, -8)))
def test_left_inverse(layout: Layout) -> None:
    try:
        inverse = L.left_inverse(layout)
    except LayoutError:
        return
    for i, offset in enumerate(table(layout)):
        assert at(layout, inverse(offset)) == offset
        if len(set(table(layout))) == size_of(layout.shape):
            assert inverse(offset) == i


@law
@given(compact_layouts(gaps=True), st.integers(0, 2), st.integers(0, 2), st.integers(2, 3), st.integers(-40, 40))
@example(Layout(4), 2, 0, 2, 0)
@example(Layout(4), 0, 0, 2, 0)
@example(Layout(4), 1, 0, 2, -8)
def test_left_inverse_of_what_leads_back(layout: Layout, bits: int, base: int, shift: int, offset: int) -> None:
    """What has an inverse has one when all of it is turned round, and when it is swizzled too."""
    turned = Layout(layout.shape, like(layout.shape, iter([-d for d in flat(layout.stride)])))
    try:
        L.left_inverse(layout)
    except LayoutError:
        assume(False)
    inverse = L.left_inverse(turned)
    assert [inverse(x) for x in table(turned)] == list(range(size_of(layout.shape)))
    swizzle = Swizzle(bits, base, shift)
    for inner in (layout, turned):
        inverse = L.left_inverse(ComposedLayout(swizzle, offset, inner))
        assert [inverse(swizzle(offset + x)) for x in table(inner)] == list(range(size_of(layout.shape)))


@law
@given(layouts(64, strides=SIGNED))
@example(Layout(4, -1))
def test_coalesce_and_right_inverse(layout: Layout) -> None:
    found = L.coalesce(layout)
    assert table(found) == table(layout)
    assert [found(-i) for i in range(size_of(layout.shape))] == [-x for x in table(layout)]
    inverse = L.right_inverse(layout)
    assert [at(layout, inverse(i)) for i in range(inverse.size)] == list(range(inverse.size))


@st.composite
def coordinate_layouts(draw: Any) -> tuple[Layout, Layout]:
    """A layout, and one that gives coordinates of it."""
    a = draw(layouts(512, shapes=nested(EXTENTS, 2), strides=st.integers(0, 50)))
    paths = _paths(a.shape)
    shape = draw(nested(st.integers(1, 4), 2))
    steps = [draw(st.sampled_from([1, 1, 2])) * E(*draw(st.sampled_from(paths))) for _ in flat(shape)]
    return a, Layout(shape, like(shape, iter(steps)))


def _paths(shape: Any) -> list[tuple[int, ...]]:
    if not isinstance(shape, tuple):
        return [(0,)]
    return [
        p
        for i, s in enumerate(shape)
        for p in [(i,), *[(i, *rest) for rest in (_paths(s) if isinstance(s, tuple) else [])]]
    ]


@law
@given(coordinate_layouts())
@example((Layout((4, 4), (4, 1)), Layout((4, 4), (E(1), E(0)))))
@example((Layout((4, (2, 3)), (6, (3, 1))), Layout((2, 4), (E(1, 1), E(0)))))
def test_composition_with_coordinates(pair: tuple[Layout, Layout]) -> None:
    """Each mode of a is called with the sum of the steps through it."""
    a, b = pair
    try:
        result = L.composition(a, b)
    except LayoutError:
        return
    assert L.compatible(b.shape, result.shape)
    extents, steps = flat(b.shape), flat(b.stride)
    for i, digits in enumerate(all_digits(extents[::-1])):
        index: dict[tuple[int, ...], int] = {}
        for digit, step in zip(digits[::-1], steps, strict=True):
            index[step.modes] = index.get(step.modes, 0) + digit * step.value
        expected = 0
        for path, x in index.items():
            mode = a
            for place in path:
                mode = mode[place]
            expected += at(mode, x)
        assert result(i) == expected
