"""Agreement with `tensor-layouts`, an independent implementation, on 500 generated cases an operation, 2,000 with `pytest -m slow`.

Results are compared as functions, over all indices. Where the two disagree, the operation's law decides: each test
names the law, and ours has to fulfil it on that case. Where one side refuses, the case does not count.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import tensor_layouts as T
import tensor_layouts.layout_utils as U
from tests.helpers.slow import slow
from tests.property.layout_strategies import flat, like, size_of, table, value_at

import tilewright.layout as L
from tilewright.errors import LayoutError

Draw = random.Random


def shape(draw: Draw, leaves: int = 4, depth: int = 2) -> Any:
    count = draw.randint(1, leaves)
    extents = [draw.choice([1, 2, 2, 2, 3, 4, 4, 5, 6, 8]) for _ in range(count)]
    if depth > 1 and count > 2 and draw.random() < 0.5:
        cut = draw.randint(1, count - 1)
        return (tuple(extents[:cut]), *extents[cut:])
    return tuple(extents) if count > 1 or draw.random() < 0.3 else extents[0]


def small(draw: Draw, most: int, leaves: int = 4) -> Any:
    while True:
        found = shape(draw, leaves)
        if size_of(found) <= most:
            return found


def any_layout(draw: Draw, most: int = 256, leaves: int = 4) -> L.Layout:
    s = small(draw, most, leaves)
    strides = [draw.choice([0, 1, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]) for _ in flat(s)]
    return L.Layout(s, like(s, iter(strides)))


def compact(draw: Draw, most: int = 64, leaves: int = 4, gaps: bool = False) -> L.Layout:
    s = small(draw, most, leaves)
    extents = flat(s)
    order = list(range(len(extents)))
    draw.shuffle(order)
    strides, current = [0] * len(extents), 1
    for i in order:
        current *= draw.choice([1, 1, 2, 3]) if gaps else 1
        strides[i] = current
        current *= extents[i]
    return L.Layout(s, like(s, iter(strides)))


def theirs(x: Any) -> Any:
    if isinstance(x, L.Layout):
        return T.Layout(x.shape, x.stride)
    if isinstance(x, L.Swizzle):
        return T.Swizzle(x.bits, x.base, x.shift)
    return x


def offsets(layout: Any) -> Any:
    """Return the function table of a layout of either side, or a plain value."""
    if isinstance(layout, (int, bool, tuple)):
        return layout
    if isinstance(layout, T.Layout):
        return table(layout) if layout.shape != () else [0]
    if isinstance(layout, T.ComposedLayout):
        return [layout(i) for i in range(T.size(layout))]
    return [layout(i) for i in range(L.size(layout))]


def at(layout: L.Layout, index: int) -> int:
    return value_at(flat(layout.shape), flat(layout.stride), index)


def by_law_of_composition(args: Any, result: Any) -> bool:
    a, b = args
    return offsets(result) == [at(a, x) for x in table(b)]


def by_law_of_divide(args: Any, result: Any) -> bool:
    a, b = args
    rest = L.complement(b, a.size)
    return offsets(result) == [at(a, x + y) for y in table(rest) for x in table(b)]


def by_law_of_product(args: Any, result: Any) -> bool:
    a, b = args
    free = L.complement(a, a.size * b.cosize)
    return offsets(result) == [x + at(free, k) for k in table(b) for x in table(a)]


def by_law_of_right_inverse(args: Any, result: Any) -> bool:
    return [args[0](i) for i in table(result)] == list(range(L.size(result)))


def by_law_of_left_inverse(args: Any, result: Any) -> bool:
    values = table(args[0])
    return [values[at(result, x)] for x in values] == values


def by_law_of_complement(args: Any, result: Any) -> bool:
    together = [x + y for x in table(L.filter(args[0])) for y in table(result)]
    return len(set(together)) == len(together)


def by_law_of_common(args: Any, result: Any) -> bool:
    if isinstance(result, int):  # the vector: every run of it continues both
        result = L.max_common_layout(*args)
    return all(args[0](k) == i == args[1](k) for i, k in enumerate(table(result)))


def by_law_of_blocks(args: Any, result: Any) -> bool:
    return sorted(offsets(result)) == sorted(offsets(L.logical_product(*args)))


def by_law_of_upcast(args: Any, result: Any) -> bool:
    layout, n = args
    return {x // n for x in table(layout)} == set(table(result))


def by_law_of_tiles(args: Any, result: Any) -> bool:
    """Element (i0, i1) of tile (j0, j1) is element (j * tile + i) of each mode.

    The other side divides the first leaf of a nested mode, not the mode, and gathers the pieces differently.
    """
    layout, (t0, t1) = args
    n0, n1 = size_of(layout.shape[0]) // t0, size_of(layout.shape[1]) // t1
    first, second = layout[0], layout[1]
    expected = [
        at(first, j0 * t0 + i0) + at(second, j1 * t1 + i1)
        for j1 in range(n1)
        for j0 in range(n0)
        for i1 in range(t1)
        for i0 in range(t0)
    ]
    return offsets(result) == expected


def by_law_of_downcast(args: Any, result: Any) -> bool:
    """Each element becomes n neighbours; modes of extent 1 must not grow, which the other side lets them."""
    layout, n = args
    return sorted(table(result)) == sorted(n * x + t for x in table(layout) for t in range(n))


def by_law_of_compatible(args: Any, result: Any) -> bool:
    """Each leaf of the first is the size of the mode in its place; the other side also regroups modes."""
    a, b = args
    if isinstance(a, tuple):
        fits = isinstance(b, tuple) and len(a) == len(b)
        return result is (fits and all(L.compatible(x, y) for x, y in zip(a, b, strict=True)))
    return result is (a == size_of(b))


def never(args: Any, result: Any) -> bool:
    """No disagreement is allowed."""
    return False


def tile_of(draw: Draw, layout: L.Layout) -> tuple[int, ...]:
    return tuple(draw.choice([1, 2, 3, 4]) for _ in range(layout.rank))


def rank_two(draw: Draw) -> L.Layout:
    layout = any_layout(draw)
    return layout if layout.rank == 2 else rank_two(draw)


def even_tile(draw: Draw, layout: L.Layout) -> tuple[int, ...]:
    """A tile that divides each mode: past the end the two sides continue a layout differently."""
    return tuple(draw.choice([d for d in (1, 2, 3, 4) if size_of(m) % d == 0]) for m in layout.shape)


def with_tile(draw: Draw) -> tuple[Any, ...]:
    layout = rank_two(draw)
    return layout, even_tile(draw, layout)


Case = tuple[Callable[[Draw], tuple[Any, ...]], Callable[..., Any], Callable[..., Any], Callable[[Any, Any], bool]]
# Divides by a layout: the two sides agree on the function where the tile and its complement stay inside.
OPERATIONS: dict[str, Case] = {
    "size": (lambda d: (any_layout(d),), L.size, T.size, never),
    "cosize": (lambda d: (any_layout(d),), L.cosize, T.cosize, never),
    "coalesce": (lambda d: (any_layout(d),), L.coalesce, T.coalesce, never),
    "flatten": (lambda d: (any_layout(d),), L.flatten, T.flatten, never),
    "composition": (lambda d: (any_layout(d), any_layout(d, 24, 2)), L.composition, T.compose, by_law_of_composition),
    "complement": (
        lambda d: (compact(d, gaps=d.random() < 0.5), d.randint(1, 200)),
        L.complement,
        T.complement,
        by_law_of_complement,
    ),
    "right_inverse": (lambda d: (any_layout(d),), L.right_inverse, T.right_inverse, by_law_of_right_inverse),
    "left_inverse": (
        lambda d: (compact(d, gaps=d.random() < 0.5),),
        L.left_inverse,
        T.left_inverse,
        by_law_of_left_inverse,
    ),
    "nullspace": (lambda d: (any_layout(d),), L.nullspace, T.nullspace, never),
    "max_common_layout": (
        lambda d: (compact(d), compact(d)),
        L.max_common_layout,
        T.max_common_layout,
        by_law_of_common,
    ),
    "max_common_vector": (
        lambda d: (compact(d), compact(d)),
        L.max_common_vector,
        T.max_common_vector,
        by_law_of_common,
    ),
    "logical_divide by a layout": (
        lambda d: (any_layout(d), compact(d, 12, 2, gaps=True)),
        L.logical_divide,
        T.logical_divide,
        by_law_of_divide,
    ),
    "logical_divide": (with_tile, L.logical_divide, T.logical_divide, never),
    "zipped_divide": (with_tile, L.zipped_divide, T.zipped_divide, by_law_of_tiles),
    "tiled_divide": (with_tile, L.tiled_divide, T.tiled_divide, by_law_of_tiles),
    "flat_divide": (with_tile, L.flat_divide, T.flat_divide, by_law_of_tiles),
    "logical_product": (
        lambda d: (compact(d, 24), compact(d, 16)),
        L.logical_product,
        T.logical_product,
        by_law_of_product,
    ),
    "zipped_product": (lambda d: (compact(d, 24), compact(d, 16)), L.zipped_product, T.zipped_product, never),
    "blocked_product": (
        lambda d: (compact(d, 24), compact(d, 16)),
        L.blocked_product,
        T.blocked_product,
        by_law_of_blocks,
    ),
    "raked_product": (lambda d: (compact(d, 24), compact(d, 16)), L.raked_product, T.raked_product, by_law_of_blocks),
    "upcast": (lambda d: (compact(d, 128), d.choice([2, 4])), L.upcast, T.upcast, by_law_of_upcast),
    "downcast": (lambda d: (compact(d, 128), d.choice([2, 4])), L.downcast, T.downcast, by_law_of_downcast),
    "swizzle": (
        lambda d: (L.Swizzle(d.randint(0, 2), d.randint(0, 2), d.choice([-3, -2, 2, 3])), any_layout(d)),
        L.composition,
        T.compose,
        never,
    ),
    "compatible": (lambda d: (shape(d), shape(d)), L.compatible, T.compatible, by_law_of_compatible),
    "congruent": (lambda d: (shape(d), shape(d)), L.congruent, T.congruent, never),
    "tile_to_shape": (
        lambda d: (compact(d, 16, 2), tuple(d.choice([8, 12, 16, 24]) for _ in range(2))),
        L.tile_to_shape,
        U.tile_to_shape,
        lambda args, result: sorted(offsets(result)) == list(range(L.size(result))),
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("cases", [500, slow(2000)])
@pytest.mark.spread(3)
def test_agreement(name: str, cases: int) -> None:
    generate, ours, other, law = OPERATIONS[name]
    draw = random.Random(name)
    compared = explained = 0
    for _ in range(40 * cases):
        args = generate(draw)
        try:
            mine = ours(*args)
            its = other(*[theirs(x) for x in args])
        except Exception as error:
            if isinstance(error, (LayoutError, ValueError, TypeError, AssertionError, NotImplementedError)):
                continue
            raise
        compared += 1
        if offsets(mine) != offsets(its):
            explained += 1
            assert law(args, mine), (name, args, mine, its)
            if ours is L.composition:  # a law that leaves no choice: the other side breaks it
                assert not law(args, its), (name, args, mine, its)
        if compared == cases:
            break
    assert compared == cases, f"{name}: only {compared} cases were defined on both sides"
