"""What layouts have in common: how many elements lie side by side, and on what boundaries."""

from __future__ import annotations

from math import gcd
from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.carries import leaves_add_up
from tilewright.layout.inverses import right_inverse
from tilewright.layout.layouts import Layout, as_layout, flat_modes
from tilewright.layout.modes import ONE
from tilewright.layout.simplify import coalesce, layout_of_flat
from tilewright.layout.swizzle import ComposedLayout, Swizzle
from tilewright.layout.tuples import leaves, merge_flat, prefix_products, shape_of, show


def max_common_layout(a: Any, b: Any) -> Layout:  # Any: layouts or composed layouts
    """Return the longest layout of indices whose elements are contiguous in both layouts.

    Law: a(k(i)) == i and b(k(i)) == i for k = max_common_layout(a, b) and 0 <= i < size(k).

    >>> print(max_common_layout(Layout((4, 8), (8, 1)), Layout((4, 8), (8, 1))))
    (8,4):(4,1)

    Leaves that are dynamic end the search. A swizzle keeps runs of `2**base` elements; its offset is taken as a
    multiple of the run, like the alignment of a pointer. Source: CuTe `max_common_layout`.
    """
    plain_a, limit_a = _plain_part(a)
    plain_b, limit_b = _plain_part(b)
    inverse = right_inverse(plain_b)
    shape, stride = merge_flat(*flat_modes(coalesce(plain_a)))
    found: list[tuple[int, int, int]] = []
    current, limit = 1, min(limit_a, limit_b)
    for extent, place in zip(*flat_modes(inverse), strict=True):
        if type(extent) is not int or type(place) is not int or extent == 1:
            break
        run = min(_run(shape, stride, place, extent, current), limit // current)
        known = all(type(s) is int for s in shape[:-1])
        if run <= 1 or (found and not (known and leaves_add_up(shape, stride, [*found, (run, place, current)]))):
            break
        found.append((run, place, current))
        current *= run
        if run < extent:
            break
    if not found:
        return ONE
    return layout_of_flat(*merge_flat([f[0] for f in found], [f[1] for f in found]))


def _plain_part(x: Any) -> tuple[Layout, int]:
    """Return the affine layout inside, and the longest run that what is around it leaves together."""
    if isinstance(x, Layout):
        return x, 1 << 62
    if isinstance(x, ComposedLayout):
        inner, limit = _plain_part(x.inner)
        if not isinstance(x.outer, Swizzle):
            return inner, 1
        if type(x.offset) is int and x.offset:
            limit = min(limit, x.offset & -x.offset)
        return inner, min(limit, 1 << x.outer.base)
    return as_layout(x), 1 << 62


def _run(shape: list[Any], stride: list[Any], place: int, extent: int, expected: int) -> int:
    """Return how many steps of `place` through flat modes add exactly `expected` each time."""
    for k, domain in enumerate(prefix_products(shape)):
        s, d = shape[k], stride[k]
        if type(domain) is not int or type(s) is not int or place % domain:
            return 1
        if place < domain * s:
            step = place // domain
            if type(d) is not int or d * step != expected:
                return 1
            return min(extent, -(-s // step))
    return 1


def max_common_vector(a: Any, b: Any) -> int:  # Any: layouts or composed layouts
    """Return the number of elements that are contiguous in both layouts: the widest common vector.

    Law: max_common_vector(a, b) == size(max_common_layout(a, b)).

    >>> a = Layout((4, 8))
    >>> max_common_vector(a, Layout((4, 8), (1, 10))), max_common_vector(a, Layout((4, 8), (8, 1)))
    (4, 1)

    Dynamic leaves end the vector. Source: CuTe `max_common_vector`.
    """
    size = max_common_layout(a, b).size
    return size if type(size) is int else 1


def max_alignment(layout: Any) -> int:  # Any: a layout or shape
    """Return the widest vector in which every access of the layout is aligned, taking offset 0 as aligned.

    Law: with n = max_alignment(layout), the layout covers whole vectors: it runs through n contiguous elements from
    every multiple of n that it touches, and upcast(layout, n) is defined.

    >>> max_alignment(Layout((8, 4), (1, 12))), max_alignment(Layout((8, 4), (1, 6)))
    (4, 2)

    Dynamic strides count as multiples of any vector, as in `upcast`. Source: CuTe `max_alignment`.
    """
    plain, limit = _plain_part(layout)
    shape, stride = merge_flat(*flat_modes(plain))
    modes = [(d, s) for s, d in zip(shape, stride, strict=True) if type(d) is int and type(s) is int and d != 0]
    others = [d for s, d in zip(shape, stride, strict=True) if type(d) is int and type(s) is not int]
    block = 1
    while (found := next((m for m in modes if m[0] == block and m[1] > 1), None)) is not None:
        modes.remove(found)
        block *= found[1]
    return gcd(block, *[d for d, _ in modes], *others, limit if limit < 1 << 62 else 0)


def domain_distribute(shape: Any, count: int) -> Layout:  # Any: a shape or layout
    """Spread `count` elements over a shape: take what divides from the first extent, then from the next.

    Law: the result r is increasing, r(i) < size(shape), size(r) divides count, and each mode divides its extent.

    >>> print(domain_distribute((15, 14), 6))
    (3,2):(1,15)

    Raises `LayoutError` for a count below 1. Source: CuTe `domain_distribute`.
    """
    flat = leaves(shape_of(shape))
    if type(count) is not int or count < 1 or not all(type(s) is int for s in flat):
        raise LayoutError(f"domain_distribute({show(shape)}, {count}): needs a static shape and a count of at least 1")
    taken = []
    for extent in flat:
        part = gcd(extent, count)
        taken.append(part)
        count //= part
    result: Layout = coalesce(Layout(tuple(taken), tuple(prefix_products(flat))))
    return result
