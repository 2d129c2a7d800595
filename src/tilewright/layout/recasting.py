"""Layouts of the same bytes in wider or narrower elements."""

from __future__ import annotations

from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.ints import Basis, DynamicInt, Int, Leaf, as_int, floordiv, mul, need_static
from tilewright.layout.layouts import Layout, as_layout, flat_modes, raw_layout
from tilewright.layout.tuples import unflatten


def recast(layout: Any, old_bits: int, new_bits: int) -> Any:  # Any: a layout or composed layout gives the same
    """Return the layout of the same bytes seen in elements of `new_bits` instead of `old_bits`.

    Law: recast(layout, b, n * b) == upcast(layout, n) and recast(layout, n * b, b) == downcast(layout, n).

    >>> print(recast(Layout((8, 4), (1, 8)), 16, 64)), print(recast(Layout((2, 4), (1, 2)), 64, 16))
    (2,4):(1,2)
    (8,4):(1,8)
    (None, None)

    Raises `LayoutError` when neither width divides the other, and as `upcast` and `downcast` do. Source: CuTe
    `recast_layout`.
    """
    for bits in (old_bits, new_bits):
        as_int(bits, "a width in bits")
    if old_bits < 1 or new_bits < 1 or (new_bits % old_bits and old_bits % new_bits):
        raise LayoutError(f"recast from {old_bits} to {new_bits} bits: neither width divides the other")
    return upcast(layout, new_bits // old_bits) if new_bits >= old_bits else downcast(layout, old_bits // new_bits)


def upcast(layout: Any, n: int) -> Any:  # Any: a layout or composed layout gives the same
    """Return the layout of groups of n neighbouring elements, each group one wider element.

    Law: upcast(layout, n)(c // g) == layout(c) // n, where g = shape(layout) / shape(upcast(layout, n)) leaf by leaf.

    >>> print(upcast(Layout((8, 4), (1, 8)), 4)), print(upcast(Layout((4, 8), (8, 1)), 2))
    (2,4):(1,2)
    (4,4):(4,1)
    (None, None)

    A dynamic stride is taken as a multiple of n, and a dynamic extent as a multiple of its group
    (`DynamicInt.assume_multiple`); in a kernel the launch checks it. Swizzles are shifted too. Raises `LayoutError`
    when groups would be cut: a stride and n do not divide one another, or an extent does not fill whole groups. Source:
    CuTe `upcast` (which does not check the last).
    """
    _check_factor("upcast", n)
    if not isinstance(layout, Layout):
        recast_by = getattr(layout, "recast_by", None)
        return upcast(as_layout(layout), n) if recast_by is None else recast_by(n, wider=True)
    if n == 1:
        return layout
    shape, stride = flat_modes(layout)
    pairs = []
    inside = 0  # the largest offset within a group
    for s, d in zip(shape, stride, strict=True):
        pair, residue = _upcast_leaf(layout, s, d, n)
        pairs.append(pair)
        inside += residue
    if inside >= n:
        raise LayoutError(f"upcast({layout}, {n}): modes overlap inside a group of {n} elements")
    return raw_layout(unflatten([p[0] for p in pairs], layout.shape), unflatten([p[1] for p in pairs], layout.shape))


def demand_whole_groups(layout: Any, n: int) -> None:  # Any: a layout or composed layout
    """Raise `LayoutError` where a group of n neighbouring elements, as `upcast` forms them, has others than these.

    >>> demand_whole_groups(Layout((2, 3), (1, 2)), 2)
    >>> demand_whole_groups(Layout(4, 2), 2)
    Traceback (most recent call last):
    tilewright.LayoutError: 4:2 has one of every 2 neighbouring elements, and a wider element takes all of them
      help: recast before the slice
    """
    while not isinstance(layout, Layout):
        layout = layout.inner if hasattr(layout, "inner") else as_layout(layout)
    inside = 0
    for s, d in zip(*flat_modes(layout), strict=True):
        if type(d) is int and d > 0 and d < n:
            share = n // d
            inside += (share if isinstance(s, DynamicInt) else min(s, share)) * d - d
    if inside < n - 1:
        held = {0: "one"}.get(inside, "some")
        raise LayoutError(
            f"{layout} has {held} of every {n} neighbouring elements, and a wider element takes all of them",
            help="recast before the slice",
        )


def _upcast_leaf(layout: Layout, s: Int, d: Leaf, n: int) -> tuple[tuple[Int, Leaf], int]:
    if isinstance(d, Basis):
        raise LayoutError(f"upcast({layout}, {n}): a layout with basis strides has no elements to group")
    if isinstance(d, DynamicInt):
        d.assume_multiple(n, f"upcast of a layout by {n}")
        return (s, floordiv(d, n)), 0
    if d % n == 0:
        return (s, d // n), 0
    if d > 0 and n % d == 0:
        share = n // d
        if isinstance(s, DynamicInt):
            s.assume_multiple(share, f"upcast of a layout by {n}")
            return (floordiv(s, share), 1), (share - 1) * d
        if s % share == 0:
            return (s // share, 1), (share - 1) * d
        if share % s == 0:
            return (1, 1), (s - 1) * d
    raise LayoutError(
        f"upcast({layout}, {n}): mode {s}:{d} does not fall into groups of {n} elements",
        help=f"strides have to divide {n} or be multiples of it, and extents fill whole groups",
    )


def downcast(layout: Any, n: int) -> Any:  # Any: a layout or composed layout gives the same
    """Return the layout of the n parts of each element, contiguous in the mode of stride 1.

    Law: downcast(layout, n)(c with n * c_k + t in the mode k of stride 1) == n * layout(c) + t for 0 <= t < n.

    >>> print(downcast(Layout((2, 4), (1, 2)), 4)), print(downcast(Layout((4, 4), (4, 1)), 2))
    (8,4):(1,8)
    (4,8):(8,1)
    (None, None)

    Raises `LayoutError` when not exactly one mode has stride 1. Source: CuTe `downcast`.
    """
    _check_factor("downcast", n)
    if not isinstance(layout, Layout):
        recast_by = getattr(layout, "recast_by", None)
        return downcast(as_layout(layout), n) if recast_by is None else recast_by(n, wider=False)
    if n == 1:
        return layout
    shape, stride = flat_modes(layout)
    if any(isinstance(d, Basis) for d in stride):
        raise LayoutError(f"downcast({layout}, {n}): a layout with basis strides has no elements to split")
    unit = [i for i, d in enumerate(stride) if type(d) is int and d == 1]
    wide = [i for i in unit if not (type(shape[i]) is int and shape[i] == 1)]
    if len(wide) > 1 or not unit:
        raise LayoutError(
            f"downcast({layout}, {n}): exactly one mode needs stride 1, to hold the parts of an element",
            help="downcast where elements lie side by side",
        )
    chosen = wide[0] if wide else unit[0]
    new_shape = [mul(s, n) if i == chosen else s for i, s in enumerate(shape)]
    new_stride = [d if i == chosen else mul(d, n) for i, d in enumerate(stride)]  # type: ignore[arg-type]
    return raw_layout(unflatten(new_shape, layout.shape), unflatten(new_stride, layout.shape))


def _check_factor(name: str, n: object) -> None:
    if need_static(n, name, "the factor") < 1:
        raise LayoutError(f"{name} by {n}: the factor is at least 1")
