"""Inverses and complements: from an offset back to an index, and what is left of the codomain beside the elements."""

from __future__ import annotations

from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.ints import Basis, Int, Leaf, ceildiv, floordiv, mul, need_static, product
from tilewright.layout.layouts import Layout, as_layout, cosize, flat_modes, raw_layout, static_flat
from tilewright.layout.simplify import layout_of_flat
from tilewright.layout.tuples import map_leaves, merge_flat, prefix_products, shape_of, tuple_size


def complement(layout: Any, cotarget: Any = None) -> Layout:  # Any: a layout or shape; an integer or shape
    """Return the layout that repeats `layout` so that together they cover `cotarget` offsets without overlap.

    `cotarget` is an integer or a shape, whose size counts; by default the layout's own cosize.

    Law: with r = complement(layout, m), make_layout(filter(layout), r) is injective, r(i) < r(i + 1), and one more
    repetition would begin at m or later.

    >>> print(complement(Layout(4, 2), 24)), print(complement(Layout((2, 4), (1, 6)), 24))
    (2,3):(1,8)
    3:2
    (None, None)

    Raises `LayoutError` when modes of the layout overlap (it is not injective, or its modes interleave), or a
    stride among several is dynamic. Source: CuTe `complement`.
    """
    plain = layout if isinstance(layout, Layout) else _plain(layout)
    target = cosize(plain) if cotarget is None else tuple_size(shape_of(cotarget))
    shape, stride = flat_modes(plain)
    if plain.is_static and type(target) is int:
        return _static_complement(plain, shape, stride, target)
    return _dynamic_complement(plain, *_filtered(plain, shape, stride), target)


def _static_complement(layout: Layout, shape: list[Any], stride: list[Any], target: int) -> Layout:
    modes = []
    for s, d in zip(shape, stride, strict=True):  # hot, and of one length
        if type(d) is not int or d < 0:
            _filtered(layout, shape, stride)  # raises
        if s != 1 and d != 0:
            modes.append((d, s))
    modes.sort()
    gaps: list[Int] = []
    steps: list[Leaf] = []
    current = 1
    for d, s in modes:
        if d < current:
            raise _overlap(layout, d, current)
        if d >= 2 * current:
            gaps.append(d // current)
            steps.append(current)
        current = d * s
    if target > current:
        gaps.append(-(-target // current))
        steps.append(current)
    return layout_of_flat(*merge_flat(gaps, steps), True)


def _dynamic_complement(layout: Layout, shape: list[Int], stride: list[Int], target: Int) -> Layout:
    gaps: list[Int] = []
    steps: list[Leaf] = []
    current: Int = 1
    for extent, step in _by_stride(layout, shape, stride):
        if type(step) is int and type(current) is int and step < current:
            raise _overlap(layout, step, current)
        gaps.append(floordiv(step, current))
        steps.append(current)
        current = mul(step, extent)
    gaps.append(ceildiv(target, current))
    steps.append(current)
    return layout_of_flat(*merge_flat(gaps, steps))


def _overlap(layout: Layout, step: int, current: int) -> LayoutError:
    return LayoutError(
        f"complement({layout}): its modes overlap: stride {step} lies inside a span of {current}",
        help="a complement needs modes that do not reach into each other",
    )


def _plain(x: Any) -> Layout:
    if getattr(x, "map_layout", None) is not None:
        raise LayoutError(
            f"complement({x}): only a plain layout has one", help="take the complement of its inner layout"
        )
    return as_layout(x)


def _filtered(layout: Layout, shape: list[Int], stride: list[Leaf]) -> tuple[list[Int], list[Int]]:
    """Return the flat coalesced modes that lead somewhere: no stride 0, no extent 1."""
    for d in stride:
        if isinstance(d, Basis):
            raise LayoutError(f"complement({layout}): a layout with basis strides has no complement")
        if type(d) is int and d < 0:
            raise LayoutError(f"complement({layout}): stride {d} is negative", help="use strides that are not negative")
    kept = [(s, d) for s, d in zip(shape, stride, strict=True) if not (type(d) is int and d == 0)]
    return merge_flat([s for s, _ in kept], [d for _, d in kept])  # type: ignore[return-value]


def _by_stride(layout: Layout, shape: list[Int], stride: list[Int]) -> list[tuple[Int, Int]]:
    """Return the modes, the least stride first; several modes need static strides for that."""
    modes = list(zip(shape, stride, strict=True))
    if len(modes) <= 1:
        return modes
    for d in stride:
        need_static(d, f"complement({layout})", "every stride of a layout with several modes")
    modes.sort(key=lambda mode: (mode[1], mode[0] if type(mode[0]) is int else 0))
    for extent, _ in modes[:-1]:
        need_static(extent, f"complement({layout})", "every extent but that of the largest stride")
    return modes


def right_inverse(layout: Any) -> Any:  # Any: a layout, or a composed layout
    """Return the longest layout r with layout(r(i)) == i: it gives the index at which `layout` has offset i.

    Law: layout(right_inverse(layout)(i)) == i for 0 <= i < size(right_inverse(layout)).

    >>> print(right_inverse(Layout((4, 8), (8, 1)))), print(right_inverse(Layout((4, 8), (1, 5))))
    (8,4):(4,1)
    4:1
    (None, None)

    Modes with dynamic strides or extents are skipped, because their offsets are unknown; the law holds. Source: CuTe
    `right_inverse`.
    """
    if type(layout) is not Layout:
        inverse_by = getattr(layout, "inverse_by", None)
        return right_inverse(as_layout(layout)) if inverse_by is None else inverse_by(right_inverse)
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

    A layout of negative strides leads to offsets below 0, and so does its inverse from them: A(-x) == -A(x).

    Raises `LayoutError` when modes overlap, some lead forward and others back, or strides do not divide one another, so
    that no layout leads back, or when the layout is dynamic. Source: CuTe `left_inverse` (which takes injective layouts
    only).
    """
    if type(layout) is not Layout:
        inverse_by = getattr(layout, "inverse_by", None)
        return left_inverse(as_layout(layout)) if inverse_by is None else inverse_by(left_inverse)
    shape, stride = static_flat(layout, "left_inverse", "the layout")
    steps = [d for s, d in zip(shape, stride, strict=True) if s > 1 and d != 0]
    if steps and all(d < 0 for d in steps):  # the layout leads back from 0, and its inverse from there forward
        forward = left_inverse(layout_of_flat(list(shape), [-d for d in stride]))
        return raw_layout(forward.shape, map_leaves(lambda d: -d, forward.stride))
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
