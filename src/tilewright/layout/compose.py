"""Composition, of whatever can be composed: layouts, swizzles, and what carries a layout."""

from __future__ import annotations

from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.composer import compose_strides
from tilewright.layout.layouts import Layout, as_layout, raw_layout
from tilewright.layout.swizzle import ComposedLayout, Swizzle


def composition(a: Any, b: Any) -> Any:  # Any: layouts, swizzles, composed layouts, tensors; b may be a tiler
    """Return the layout that applies `b` first and then `a` to the result.

    `b` is a layout, or a tiler: an integer n counts as `n:1`, and a tuple goes mode by mode, None leaving its mode
    as it is, further modes of `a` staying too. `a` may be a swizzle or carry one. Past its size `a` continues along its
    last mode; below 0, where a negative stride of `b` leads, a(-x) == -a(x). A `b` of basis strides gives coordinates
    of `a`, modes that it does not name being 0.

    Law: composition(a, b)(i) == a(b(i)) for 0 <= i < size(b), and compatible(shape(b), shape(result)).

    >>> print(composition(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1))))
    ((2,2),3):((24,2),8)
    >>> print(composition(Layout((5, 4), (1, 8)), Layout(4, 3)))
    (2,2):(3,9)
    >>> print(composition(Layout((12, (4, 8)), (59, (13, 1))), (Layout(3, 4), 8)))
    (3,(4,2)):(236,(13,1))

    Raises `LayoutError` when no layout fulfils the law, or a value that decides is dynamic. Source: CuTe
    `composition`; C++ CuTe and pycute return wrong layouts for some strides that do not step evenly through a mode.
    """
    if type(a) is Layout:
        if type(b) is Layout:  # hot
            return raw_layout(*compose_strides(a.shape, a.stride, b.shape, b.stride))
        return a.compose(b)
    if isinstance(a, Swizzle):
        return ComposedLayout(a, 0, b) if isinstance(b, Layout) and a.bits else _compose_swizzle(a, b)
    mapper = getattr(a, "map_layout", None)
    if mapper is not None:
        return mapper(lambda inner: composition(inner, b))
    return as_layout(a).compose(b)


def _compose_swizzle(a: Swizzle, b: Any) -> Any:
    if isinstance(b, Swizzle):
        raise LayoutError(
            f"composition({a}, {b}): a swizzle has no shape",
            help="compose with a layout: composition(swizzle, layout)",
        )
    return ComposedLayout.of(a, 0, as_layout(b) if isinstance(b, (int, tuple)) else b)
