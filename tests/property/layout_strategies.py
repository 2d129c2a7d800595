"""Generated layouts, and brute-force function tables to check laws against."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from tilewright.layout import Layout

EXTENTS = st.sampled_from([1, 1, 2, 2, 2, 3, 4, 4, 5, 6, 8])
STRIDES = st.one_of(st.sampled_from([0, 1, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32]), st.integers(0, 20))


def nested(leaf: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[Any]:
    """Nested tuples to depth 3 with few leaves."""
    flat = st.lists(leaf, min_size=1, max_size=most).map(tuple)
    deeper = st.lists(st.one_of(leaf, flat), min_size=1, max_size=2).map(tuple)
    return st.one_of(leaf, flat, deeper, st.tuples(deeper, leaf))


SHAPES = nested(EXTENTS).filter(lambda s: size_of(s) <= 512)


def size_of(shape: Any) -> int:
    result = 1
    for v in flat(shape):
        result *= v
    return result


def flat(x: Any) -> list[Any]:
    return [x] if not isinstance(x, tuple) else [leaf for v in x for leaf in flat(v)]


def like(shape: Any, values: Iterator[Any]) -> Any:
    return tuple(like(v, values) for v in shape) if isinstance(shape, tuple) else next(values)


@st.composite
def layouts(draw: Any, most: int = 512, shapes: Any = SHAPES, strides: Any = STRIDES) -> Layout:
    shape = draw(shapes.filter(lambda s: size_of(s) <= most))
    leaves = flat(shape)
    steps = draw(st.lists(strides, min_size=len(leaves), max_size=len(leaves)))
    return Layout(shape, like(shape, iter(steps)))


@st.composite
def compact_layouts(draw: Any, most: int = 512, gaps: bool = False) -> Layout:
    """Injective layouts: a permutation of compact modes, with gaps between them where asked for."""
    shape = draw(SHAPES.filter(lambda s: size_of(s) <= most))
    leaves = flat(shape)
    order = draw(st.permutations(range(len(leaves))))
    strides = [0] * len(leaves)
    current = 1
    for i in order:
        if gaps:
            current *= draw(st.sampled_from([1, 1, 2, 3]))
        strides[i] = current
        current *= leaves[i]
    return Layout(shape, like(shape, iter(strides)))


@st.composite
def cuttable(draw: Any) -> tuple[Layout, Any]:
    """A layout with two modes and a tile for each."""
    shape = draw(st.tuples(nested(EXTENTS, 2), nested(EXTENTS, 2)).filter(lambda s: size_of(s) <= 512))
    leaves = flat(shape)
    steps = draw(st.lists(STRIDES, min_size=len(leaves), max_size=len(leaves)))
    tile = draw(st.tuples(st.integers(1, 8), st.integers(1, 8)))
    return Layout(shape, like(shape, iter(steps))), tile


def table(layout: Any, count: int | None = None) -> list[int]:
    """Compute a layout's offsets on its own: digit by digit, with no help of the code under test."""
    extents, strides = flat(layout.shape), flat(layout.stride)
    total = size_of(layout.shape) if count is None else count
    return [value_at(extents, strides, i) for i in range(total)]


def value_at(extents: list[int], strides: list[int], index: int) -> int:
    result = 0
    for k, (s, d) in enumerate(zip(extents, strides, strict=False)):
        last = k == len(extents) - 1
        result += (index if last else index % s) * d
        index //= s
    return result


def mixed_radix_layouts(n: int) -> Iterator[tuple[int, ...]]:
    """Every flat shape without extents 1 of size n."""
    if n == 1:
        yield ()
    for first in range(2, n + 1):
        if n % first == 0:
            for rest in mixed_radix_layouts(n // first):
                yield (first, *rest)


def some_layout_has(values: list[int]) -> bool:
    """Say by trying all shapes whether any layout has this function table."""
    if values[0] != 0:
        return False
    for shape in mixed_radix_layouts(len(values)):
        steps, place = [], 1
        for s in shape:
            steps.append(values[place])
            place *= s
        if all(value_at(list(shape), steps, i) == v for i, v in enumerate(values)):
            return True
    return False


def all_digits(extents: list[int]) -> Iterator[tuple[int, ...]]:
    return itertools.product(*[range(s) for s in extents])
