"""Fewer modes for the same function: flatten, coalesce, filter."""

from __future__ import annotations

import builtins
from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.ints import Int, Leaf, Shape
from tilewright.layout.layouts import Layout, flat_modes, from_modes, lift, modes_of, raw_layout
from tilewright.layout.tuples import leaves, map_leaves, merge_flat, show


def flatten(layout: Any) -> Any:  # Any: a layout, tensor or nested tuple gives the same
    """Remove the nesting: every leaf becomes a top-level mode.

    Law: flatten(layout)(i) == layout(i).

    >>> print(flatten(Layout(((2, 2), 8), ((1, 16), 2)))), flatten(((1, 2), 3))
    (2,2,8):(1,16,2)
    (None, (1, 2, 3))

    Source: CuTe `flatten`.
    """
    if isinstance(layout, Layout):
        if type(layout.shape) is not tuple:
            return layout
        return raw_layout(tuple(leaves(layout.shape)), tuple(leaves(layout.stride)), layout._static)
    if isinstance(layout, tuple):
        return tuple(leaves(layout))
    if isinstance(layout, int):
        return layout
    return lift(flatten, layout)


def layout_of_flat(shape: list[Int], stride: list[Leaf], static: bool | None = None) -> Layout:
    """Make a layout of flat modes: none gives 1:0, one is written without a tuple."""
    if len(shape) == 1:
        return raw_layout(shape[0], stride[0], static)
    if not shape:
        return raw_layout(1, 0, True)
    return raw_layout(tuple(shape), tuple(stride), static)


def coalesce(
    layout: Any, profile: Any = None
) -> Any:  # Any: a layout or tensor gives the same; profile is a nested tuple
    """Write the same function with as few modes as possible.

    With a `profile` (a nested tuple), each mode that corresponds to a leaf of it is coalesced by itself, and
    the profile's nesting is kept.

    Law: coalesce(layout)(i) == layout(i) for 0 <= i < size(layout), and depth(coalesce(layout)) <= 1.

    >>> print(coalesce(Layout((2, (1, 6)), (1, (6, 2)))))
    12:1
    >>> print(coalesce(Layout((2, (1, 6)), (1, (6, 2))), (1, 1)))
    (2,6):(1,2)

    Dynamic modes are joined where they are known to continue each other, and modes with basis strides where these step
    through the same mode of the coordinate. Raises `LayoutError` when the profile does not fit. Source: CuTe
    `coalesce`.

    >>> from tilewright.layout import E
    >>> print(coalesce(Layout((2, 4, 3), (E(1), 2 * E(1), E(0)))))
    (8,3):(1@1,1@0)
    """
    if not isinstance(layout, Layout):
        return lift(coalesce, layout, profile)
    if isinstance(profile, tuple):
        modes = modes_of(layout)
        if type(layout.shape) is not tuple or len(profile) > len(modes):
            raise LayoutError(f"coalesce({layout}, {show(profile)}): the profile has more modes than the layout")
        kept = [coalesce(m, p) for m, p in builtins.zip(modes, profile, strict=False)]
        return from_modes([*kept, *modes[len(profile) :]])
    if type(layout.shape) is not tuple:
        return layout if layout.shape != 1 or type(layout.shape) is not int else raw_layout(1, 0, True)
    shape, stride = flat_modes(layout)
    return layout_of_flat(*merge_flat(shape, stride), True if layout._static else None)


def filter_zeros(layout: Any, profile: Any = None) -> Any:  # Any: a layout or tensor gives the same
    """Give every mode of stride 0 the extent 1, because it adds no offsets.

    With a `profile`, the modes whose entry in it is 0 get the extent 1 instead, whatever their strides; an entry of a
    nested mode is one for all its leaves, and modes past the last entry stay.

    Law: the image of filter_zeros(layout) is the image of layout.

    >>> print(filter_zeros(Layout((4, 8), (0, 1))))
    (1,8):(0,1)

    Raises `LayoutError` when the profile does not fit. Source: CuTe `filter_zeros`.
    """
    if not isinstance(layout, Layout):
        return lift(filter_zeros, layout, profile)
    return raw_layout(_without_zeros(layout.shape, layout.stride if profile is None else profile), layout.stride)


def _without_zeros(shape: Shape, stride: Any) -> Shape:
    if type(stride) is not tuple:
        return map_leaves(lambda _: 1, shape) if type(stride) is int and stride == 0 else shape
    n = len(stride)
    if type(shape) is not tuple or n > len(shape):
        raise LayoutError(f"filter_zeros: the profile {show(stride)} has more modes than the shape {show(shape)}")
    return tuple([_without_zeros(s, d) for s, d in builtins.zip(shape, stride, strict=False)]) + shape[n:]


def filter(layout: Any, profile: Any = None) -> Any:  # Any: a layout or tensor gives the same
    """Drop modes of stride 0 and extent 1, and coalesce what is left.

    Law: the image of filter(layout) is the image of layout, and no mode of it has stride 0 (but 1:0 itself).

    >>> print(filter(Layout((4, 2, 8), (0, 1, 2))))
    16:1

    Raises `LayoutError` when the profile does not fit. Source: CuTe `filter`.
    """
    if not isinstance(layout, Layout):
        return lift(filter, layout, profile)
    return coalesce(filter_zeros(layout), profile)
