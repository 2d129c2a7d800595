"""The complement of a layout: what is left of the codomain between and beyond its elements."""

from __future__ import annotations

from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.ints import Basis, Int, Leaf, ceildiv, floordiv, mul, need_static
from tilewright.layout.layouts import Layout, cosize, flat_modes
from tilewright.layout.lift import as_layout
from tilewright.layout.simplify import layout_of_flat, merge_flat
from tilewright.layout.tuples import shape_of, tuple_size


def complement(layout: Any, cotarget: Any = None) -> Layout:  # Any: a layout or shape; an integer or shape
    """Return the layout that repeats `layout` so that together they reach `cotarget` offsets without meeting.

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
