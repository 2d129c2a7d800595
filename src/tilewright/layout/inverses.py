"""Inverses of layouts: from an offset back to an index, and the indices that lead nowhere."""

from __future__ import annotations

from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.ints import Int, Leaf, mul, need_static, product
from tilewright.layout.layouts import Layout, flat_modes, static_flat
from tilewright.layout.lift import as_layout
from tilewright.layout.simplify import layout_of_flat, merge_flat
from tilewright.layout.tuples import prefix_products


def right_inverse(layout: Any) -> Any:  # Any: a layout, or a composed layout
    """Return the longest layout that the given one takes back: index i of it leads to offset i.

    Law: layout(right_inverse(layout)(i)) == i for 0 <= i < size(right_inverse(layout)).

    >>> print(right_inverse(Layout((4, 8), (8, 1)))), print(right_inverse(Layout((4, 8), (1, 5))))
    (8,4):(4,1)
    4:1
    (None, None)

    Modes with dynamic strides or extents are passed over, since what they reach is not known; the law holds.
    Source: CuTe `right_inverse`.
    """
    if type(layout) is not Layout:
        from tilewright.layout.swizzle import ComposedLayout, inverse_of_composed

        if isinstance(layout, ComposedLayout):
            return inverse_of_composed(layout, right_inverse)
        return right_inverse(as_layout(layout))
    flat_shape, flat_stride = flat_modes(layout)
    shape, stride = merge_flat(flat_shape, flat_stride)
    places = prefix_products(shape)
    found_shape: list[Int] = []
    found_stride: list[Leaf] = []
    by_stride: dict[int, int] = {}
    for i in range(len(shape) - 1, -1, -1):  # of equal strides the first is taken
        d = stride[i]
        if type(d) is int and type(shape[i]) is int:
            by_stride[d] = i
    current = 1
    while current in by_stride:
        i = by_stride[current]
        found_shape.append(shape[i])
        found_stride.append(places[i])
        current *= need_static(shape[i], "right_inverse", "an extent")
    return layout_of_flat(*merge_flat(found_shape, found_stride))


def left_inverse(layout: Any) -> Any:  # Any: a layout, or a composed layout
    """Return the layout that leads back from an offset to its index.

    Where the layout is not injective (modes of stride 0) it leads back to the first index: a quasi-inverse.

    Law: left_inverse(layout)(layout(i)) == i for an injective layout; for every layout that has one,
    layout(left_inverse(layout)(layout(i))) == layout(i).

    >>> print(left_inverse(Layout((4, 8), (1, 5))))
    (5,8):(1,4)

    Raises `LayoutError` when modes overlap, or strides do not divide one another, so that no layout leads back, or
    when the layout is dynamic. Source: CuTe `left_inverse` (which takes injective layouts only).
    """
    if type(layout) is not Layout:
        from tilewright.layout.swizzle import ComposedLayout, inverse_of_composed

        if isinstance(layout, ComposedLayout):
            return inverse_of_composed(layout, left_inverse)
        return left_inverse(as_layout(layout))
    shape, stride = static_flat(layout, "left_inverse", "the layout")
    places = prefix_products(list(shape))
    modes = sorted([(d, s, p) for s, d, p in zip(shape, stride, places, strict=True) if s > 1 and d != 0])
    free = product(shape)  # the first index past the layout
    found_shape: list[Int] = []
    found_stride: list[Leaf] = []
    span = before = 1  # the offsets covered so far, and the stride of the mode before
    for d, extent, place in modes:
        if d < span or (d % span and d % before):
            raise LayoutError(
                f"left_inverse({layout}): stride {d} does not step over whole spans of {span} offsets",
                help="an inverse needs strides that are multiples of one another, with no modes overlapping",
            )
        if d % span:  # padding inside a step: the mode before runs on through it
            found_shape[-1] = d // before
        elif d > span:  # a gap of whole spans: its offsets lead past the layout
            found_shape.append(d // span)
            found_stride.append(free)
            free = mul(free, d // span)
        found_shape.append(extent)
        found_stride.append(place)
        before, span = d, d * extent
    return layout_of_flat(*merge_flat(found_shape, found_stride))


def nullspace(layout: Any) -> Layout:  # Any: a layout or shape
    """Return the layout of the indices that lead to offset 0 through modes of stride 0.

    Law: layout(nullspace(layout)(i)) == 0, and size(nullspace(layout)) == size(layout) / size(filter_zeros(layout)).

    >>> print(nullspace(Layout((4, 2, 8), (1, 0, 0))))
    16:4

    Source: CuTe `nullspace`.
    """
    plain = as_layout(layout)
    shape, stride = flat_modes(plain)
    places = prefix_products(shape)
    kept = [i for i, d in enumerate(stride) if type(d) is int and d == 0]
    return layout_of_flat(*merge_flat([shape[i] for i in kept], [places[i] for i in kept]))
