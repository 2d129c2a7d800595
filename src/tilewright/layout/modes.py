"""Making layouts, and rearranging their modes: no offset changes here, only which coordinate leads to it."""

from __future__ import annotations

import builtins
from typing import Any

from tilewright.arguments import integer
from tilewright.errors import LayoutError
from tilewright.layout.coordinates import Offset, checked_coord, offset_of
from tilewright.layout.ints import Coord, DynamicInt, Int, Shape, Stride, is_static, mul, need_static
from tilewright.layout.layouts import Layout, as_layout, from_modes, lift, modes_of, pick, raw_layout
from tilewright.layout.tuples import basis_strides, leaves, show, unflatten

ONE = raw_layout(1, 0, True)
"""The layout of one element, 1:0."""


def make_layout(*layouts: Any) -> Layout:  # Any: layouts, or one shape or shape and stride as for Layout
    """Join layouts as the modes of one; of a shape (and stride), make the layout itself.

    Law: make_layout(a, b)(i, j) == a(i) + b(j).

    >>> print(make_layout(Layout(4, 1), Layout((2, 3), (4, 8))))
    (4,(2,3)):(1,(4,8))

    Raises `LayoutError` when layouts and shapes are mixed. Source: CuTe `make_layout`.
    """
    if layouts and all(isinstance(x, Layout) for x in layouts):
        return from_modes(layouts)
    if any(isinstance(x, Layout) for x in layouts) or not 1 <= len(layouts) <= 2:
        raise LayoutError(
            f"make_layout takes layouts, or one shape and stride; got {', '.join(map(show, layouts))}",
            help="wrap a shape as Layout(shape) to join it with layouts",
        )
    return Layout(*layouts)


def col_major(shape: Any) -> Layout:  # Any: integers or a nested sequence
    """Make the compact layout whose first mode runs fastest.

    Law: col_major(shape)(i) == i.

    >>> print(col_major((4, 8)))
    (4,8):(1,4)

    Source: CuTe `LayoutLeft`.
    """
    return Layout(shape)


def row_major(shape: Any) -> Layout:  # Any: integers or a nested sequence
    """Make the compact layout whose last mode runs fastest (within nested modes too).

    Law: row_major((m, n))(i, j) == i * n + j.

    >>> print(row_major((4, 8)))
    (4,8):(8,1)

    Source: CuTe `LayoutRight`.
    """
    layout = Layout(shape)
    flat = leaves(layout.shape)
    strides: list[Int] = []
    current: Int = 1
    for extent in reversed(flat):
        strides.append(0 if type(extent) is int and extent == 1 else current)
        current = mul(current, extent)
    return raw_layout(layout.shape, unflatten(strides[::-1], layout.shape))


def make_ordered_layout(shape: Any, order: Any) -> Layout:  # Any: integers or nested sequences
    """Make the compact layout whose modes run in the order of the keys `order`, the least key fastest.

    `order` is nested like `shape` or less deep: one key orders all leaves under it, in column-major order.
    Equal keys are taken from left to right.

    Law: the layout is compact, and stride(a) <= stride(b) where key(a) < key(b), extents 1 aside.

    >>> print(make_ordered_layout((2, 3, 4), (1, 2, 0)))
    (2,3,4):(4,8,1)

    Raises `LayoutError` when the keys do not fit the shape. Source: CuTe `make_ordered_layout`.
    """
    layout = Layout(shape)
    keys = _spread(checked_coord(order), layout.shape)
    flat = leaves(layout.shape)
    return raw_layout(layout.shape, unflatten(_in_order(flat, keys, range(len(flat)))[0], layout.shape))


def _spread(order: Coord, shape: Shape) -> list[int]:
    if type(order) is tuple:
        if type(shape) is not tuple or len(shape) != len(order):
            raise LayoutError(f"order {show(order)} does not fit shape {show(shape)}")
        return [key for o, s in builtins.zip(order, shape, strict=True) for key in _spread(o, s)]
    key = need_static(order, "make_ordered_layout", "the order")
    return [key] * len(leaves(shape))


def make_layout_like(layout: Layout) -> Layout:
    """Make a compact layout of the same shape, its modes in the order of the given strides; stride 0 stays 0.

    Modes of dynamic strides follow the others, from left to right, and so do basis strides.

    Law: size(filter(result)) == cosize(result), and strides keep their order.

    >>> print(make_layout_like(Layout((4, 8, 2), (100, 1, 0))))
    (4,8,2):(8,1,0)

    Source: CuTe `make_layout_like`.
    """
    if not hasattr(layout, "stride"):
        raise LayoutError(f"make_layout_like takes a layout, got {show(layout)}")
    flat = leaves(layout.shape)
    keys = _keys(layout.stride)
    result = _in_order(flat, keys, [i for i in range(len(flat)) if keys[i] > (0, 0)])[0]
    return raw_layout(layout.shape, unflatten(result, layout.shape))


def make_fragment_like(layout: Any) -> Layout:  # Any: a layout, or a shape that stands for its compact layout
    """Make the compact layout of a fragment of that shape: mode 0 column-major, the others in the order of strides.

    Mode 0 holds the values of one instruction, so the operands of an instruction are contiguous in the fragment; its
    modes of stride 0 stay at stride 0. Other modes of stride 0 get elements of their own, and are fastest. A layout of
    one mode, or of a dynamic shape, becomes column-major.

    Law: with f the result, f[0] is column-major compact except for strides 0, and strides of the other modes keep their
    order.

    >>> print(make_fragment_like(Layout(((2, 2), 4, 8), ((8, 1), 64, 2))))
    ((2,2),4,8):((1,2),32,4)

    Source: CuTe `make_fragment_like`.
    """
    given = layout if isinstance(layout, Layout) else as_layout(layout)
    if given.rank < 2 or not is_static(given.shape):
        return Layout(given.shape)
    first, *others = modes_of(given)
    rest = from_modes(others)
    flat, keys = leaves(first.shape), _keys(first.stride)
    inner, reach = _in_order(flat, [(1, 0)] * len(flat), [i for i in range(len(flat)) if keys[i] > (0, 0)])
    flat = leaves(rest.shape)
    outer, _ = _in_order(flat, _keys(rest.stride), range(len(flat)), reach)
    stride = unflatten(outer, rest.shape)
    return raw_layout(given.shape, (unflatten(inner, first.shape), *stride))


def _keys(stride: Stride) -> list[tuple[int, int]]:
    """Return what modes are ordered by: static strides by size, the others behind them; (0, 0) of stride 0."""
    return [(0, abs(d)) if type(d) is int else (1, 0) for d in leaves(stride)]


def _in_order(flat: list[Int], keys: Any, kept: Any, current: Int = 1) -> tuple[list[Int], Int]:
    """Return compact strides of the kept modes, the least key first, and where they end; other strides are 0."""
    result: list[Int] = [0] * len(flat)
    for i in sorted(kept, key=lambda k: keys[k]):
        if not (type(flat[i]) is int and flat[i] == 1):
            result[i] = current
            current = mul(current, flat[i])
    return result, current


def identity_layout(shape: Any) -> Layout:  # Any: integers or a nested sequence
    """Make the layout that maps each coordinate to itself, with basis vectors as strides.

    Law: identity_layout(shape)(c) == c.

    >>> identity_layout((4, 8))(2, 3)
    (2, 3)

    Source: CuTe `make_identity_layout`.
    """
    layout = Layout(shape)
    return raw_layout(layout.shape, basis_strides(layout.shape))


def slice_(layout: Any, coord: Any) -> Any:  # Any: a layout, a tensor or a shape, and a coordinate with None
    """Keep the modes where `coord` is None (or `:`), as the top-level modes of the result.

    Law: slice_(layout, (None, j))(i) + layout(0, j) == layout(i, j).

    >>> print(slice_(Layout((4, (2, 3)), (1, (4, 8))), (None, (1, None))))
    (4,3):(1,8)

    Raises `LayoutError` when `coord` does not fit the shape. Source: CuTe `slice`.
    """
    if not isinstance(layout, Layout):
        if isinstance(layout, _TUPLES):
            return slice_(_as_modes(layout), coord).shape
        return lift(slice_, layout, coord)
    return pick(layout, checked_coord(coord), keep=True)


def dice(layout: Any, coord: Any) -> Any:  # Any: a layout or a shape, and a coordinate with None
    """Keep the modes where `coord` is not None: the complement of `slice_`.

    Law: dice(layout, (None, 0))(j) == layout(0, j).

    >>> print(dice(Layout((4, (2, 3)), (1, (4, 8))), (None, (1, None))))
    (2):(4)

    Raises `LayoutError` when `coord` does not fit the shape. Source: CuTe `dice`.
    """
    if not isinstance(layout, Layout):
        if isinstance(layout, _TUPLES):
            return dice(_as_modes(layout), coord).shape
        return lift(dice, layout, coord)
    return pick(layout, checked_coord(coord), keep=False)


def slice_and_offset(layout: Any, coord: Any) -> tuple[Any, Offset]:  # Any: plain and composed; a coordinate with None
    """Return `slice_(layout, coord)` and the offset of its first element.

    A composed layout keeps that offset inside, because its outer function takes it; the returned offset is then 0.

    >>> slice_and_offset(Layout((4, 8)), (None, 3))
    (Layout((4,), (1,)), 12)

    Raises `LayoutError` when `coord` does not fit the shape. Source: CuTe `slice_and_offset`.
    """
    checked = checked_coord(coord)
    if not isinstance(layout, Layout):
        composed = getattr(layout, "slice_and_offset", None)
        if composed is None:
            raise LayoutError(f"slice_and_offset takes a layout, got {show(layout)}")
        return composed(checked), 0
    return pick(layout, checked, keep=True), offset_of(checked, layout.shape, layout.stride)


def group(layout: Any, begin: int, end: int) -> Any:  # Any: a layout, tensor or shape gives the same
    """Gather the modes `begin` to `end` (excluded) into one mode.

    Law: group(layout, b, e)(..., (c_b, ..., c_e-1), ...) == layout(..., c_b, ..., c_e-1, ...).

    >>> print(group(Layout((2, 3, 5)), 1, 3))
    (2,(3,5)):(1,(2,6))

    Raises `LayoutError` when there are no such modes. Source: CuTe `group`.
    """
    if isinstance(layout, Layout):
        modes = modes_of(layout)
        _check_range("group", layout, begin, end)
        return from_modes([*modes[:begin], from_modes(modes[begin:end]), *modes[end:]])
    if isinstance(layout, _TUPLES):
        return group(_as_modes(layout), begin, end).shape
    return lift(group, layout, begin, end)


def take(layout: Any, begin: int, end: int) -> Any:  # Any: a layout, tensor or shape gives the same
    """Keep the modes `begin` to `end` (excluded); a single mode comes as it is, not wrapped.

    Law: take(layout, b, e)(c_b, ..., c_e-1) == layout(0, ..., c_b, ..., c_e-1, ..., 0).

    >>> print(take(Layout((2, 3, 5)), 1, 3)), print(take(Layout((2, 3, 5)), 1, 2))
    (3,5):(2,6)
    3:2
    (None, None)

    Raises `LayoutError` when there are no such modes. Source: CuTe `take`.
    """
    if isinstance(layout, Layout):
        _check_range("take", layout, begin, end)
        modes = modes_of(layout)[begin:end]
        return modes[0] if len(modes) == 1 else from_modes(modes)
    if isinstance(layout, _TUPLES):
        return take(_as_modes(layout), begin, end).shape
    return lift(take, layout, begin, end)


_TUPLES = (int, tuple, DynamicInt)


def _as_modes(x: Any) -> Layout:
    """Return a tuple of any leaves in a form that the functions of modes take; its .shape is the tuple again."""
    return raw_layout(x, x)


def _shown(layout: Layout) -> str:
    return show(layout.shape) if layout.shape is layout.stride else str(layout)


def _check_range(name: str, layout: Layout, begin: int, end: int) -> None:
    integer(name, "begin", begin)
    integer(name, "end", end)
    if not 0 <= begin <= end <= layout.rank:
        raise LayoutError(
            f"{name}(..., {begin}, {end}): {_shown(layout)} has {layout.rank} modes",
            help=f"0 <= begin <= end <= {layout.rank}",
        )


def select(layout: Any, *modes: int) -> Any:  # Any: a layout, tensor or shape gives the same
    """Keep the named modes, in the order named.

    Law: select(layout, 1, 0)(j, i) == layout(i, j).

    >>> print(select(Layout((2, 3, 5)), 2, 0))
    (5,2):(6,1)

    Raises `LayoutError` when a mode does not exist. Source: CuTe `select`.
    """
    if isinstance(layout, Layout):
        parts = modes_of(layout)
        for m in modes:
            integer("select", "a mode", m)
            if not 0 <= m < len(parts):
                raise LayoutError(f"select: {_shown(layout)} has no mode {m}", help=f"modes are 0 to {len(parts) - 1}")
        return from_modes([parts[m] for m in modes])
    if isinstance(layout, _TUPLES):
        return select(_as_modes(layout), *modes).shape
    return lift(select, layout, *modes)


def append(layout: Any, mode: Any = None, *, rank: int | None = None) -> Any:  # Any: layouts or shapes
    """Add a mode at the end; with `rank`, add it until there are that many modes. Without a mode, add 1:0.

    Law: append(layout, m)(c, k) == layout(c) + m(k).

    >>> print(append(Layout((2, 3)), Layout(5, 7))), print(append(Layout(4), rank=3))
    (2,3,5):(1,2,7)
    (4,1,1):(1,0,0)
    (None, None)

    Source: CuTe `append`.
    """
    return _extend(layout, mode, rank, at_end=True)


def prepend(layout: Any, mode: Any = None, *, rank: int | None = None) -> Any:  # Any: layouts or shapes
    """Add a mode at the front; with `rank`, add it until there are that many modes. Without a mode, add 1:0.

    Law: prepend(layout, m)(k, c) == m(k) + layout(c).

    >>> print(prepend(Layout((2, 3)), Layout(5, 7)))
    (5,2,3):(7,1,2)

    Source: CuTe `prepend`.
    """
    return _extend(layout, mode, rank, at_end=False)


def _extend(x: Any, mode: Any, rank: int | None, at_end: bool) -> Any:
    if isinstance(x, _TUPLES):
        parts: tuple[Any, ...] = x if isinstance(x, tuple) else (x,)
        extra = 1 if mode is None else mode
    elif isinstance(x, Layout):
        parts = modes_of(x)
        extra = ONE if mode is None else as_layout(mode)
    else:
        return lift(_extend, x, mode, rank, at_end)
    added = (extra,) * (1 if rank is None else max(rank - len(parts), 0))
    if rank is not None and not added:
        return x
    joined = parts + added if at_end else added + parts
    return joined if isinstance(x, _TUPLES) else from_modes(joined)


def replace(layout: Any, index: int, mode: Any) -> Any:  # Any: layouts or shapes
    """Replace the mode `index` by `mode`.

    Law: replace(layout, 1, m)(i, j) == layout(i, 0) + m(j).

    >>> print(replace(Layout((2, 3)), 1, Layout(5, 7)))
    (2,5):(1,7)

    Raises `LayoutError` when a mode does not exist. Source: CuTe `replace`.
    """
    integer("replace", "index", index)
    if isinstance(layout, Layout):
        _check_range("replace", layout, index, index + 1)
        parts = list(modes_of(layout))
        parts[index] = as_layout(mode)
        return from_modes(parts)
    if isinstance(layout, _TUPLES):
        parts = list(layout if isinstance(layout, tuple) else (layout,))
        _check_range("replace", _as_modes(layout), index, index + 1)
        parts[index] = mode
        return tuple(parts) if isinstance(layout, tuple) else mode
    return lift(replace, layout, index, mode)


def zip(*parts: Any) -> Any:  # Any: layouts or nested tuples give the same
    """Turn a pair of tuples into a tuple of pairs; one argument is taken as that pair itself.

    Law: zip(a, b)((i0, j0), (i1, j1)) == a(i0, i1) + b(j0, j1).

    >>> zip(((1, 2), (3, 4)))
    ((1, 3), (2, 4))
    >>> print(zip(Layout((2, 3)), Layout((5, 7), (10, 50))))
    ((2,5),(3,7)):((1,10),(2,50))

    Raises `LayoutError` when the parts have different ranks. Source: CuTe `zip`.
    """
    whole = parts[0] if len(parts) == 1 else parts
    if isinstance(whole, Layout):
        return raw_layout(zip(whole.shape), zip(whole.stride))
    if isinstance(whole, tuple) and any(isinstance(part, Layout) for part in whole):
        if not all(isinstance(part, Layout) for part in whole):
            raise LayoutError(f"zip takes layouts or tuples, not both: {show(whole)}")
        return zip(from_modes(whole))
    if not isinstance(whole, tuple):
        raise LayoutError(f"zip needs a tuple of tuples, not {show(whole)}")
    rows = [x if isinstance(x, tuple) else (x,) for x in whole]
    if len({len(r) for r in rows}) > 1:
        raise LayoutError(f"zip: the parts have different ranks: {show(whole)}")
    return tuple(builtins.zip(*rows, strict=True))


def unzip(pairs: Any) -> Any:  # Any: a layout or nested tuple gives the same
    """Turn a tuple of pairs into a pair of tuples: the inverse of `zip`.

    Law: unzip(zip(a, b)) == (a, b).

    >>> unzip(((1, 3), (2, 4)))
    ((1, 2), (3, 4))

    Raises `LayoutError` when the pairs have different ranks. Source: CuTe `unzip`.
    """
    return zip(pairs)
