"""Division: the tiles of a layout, in one mode the positions inside a tile, in another the tiles."""

from __future__ import annotations

from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.compose import composition
from tilewright.layout.ints import Int, Leaf, ceildiv, mul, need_static, scale
from tilewright.layout.inverses import complement
from tilewright.layout.layouts import Layout, Tiler, flat_modes, from_modes, lift, modes_of, raw_layout
from tilewright.layout.modes import ONE
from tilewright.layout.simplify import layout_of_flat
from tilewright.layout.tuples import ceil_div, merge_flat, shape_of, show, tuple_size


def logical_divide(layout: Any, tiler: Any) -> Any:  # Any: a layout or tensor gives the same; see Tiler
    """Split a layout into tiles: mode 0 goes through a tile, mode 1 from tile to tile.

    A tuple divides mode by mode, and each mode of the result is such a pair; None leaves its mode as it is.
    A tile that does not divide rounds up: the last tile overhangs, and its accesses need a predicate.

    Law: logical_divide(a, b) == composition(a, make_layout(b, complement(b, size(a)))) for a layout b.

    >>> print(logical_divide(Layout((4, 2, 3), (2, 1, 8)), Layout(4, 2)))
    ((2,2),(2,3)):((4,1),(2,8))
    >>> print(logical_divide(Layout((9, 8), (1, 9)), (3, 4)))
    ((3,3),(4,2)):((1,3),(9,36))

    Raises `LayoutError` when the tiles do not fit the modes of the layout. Source: CuTe `logical_divide`.
    """
    if type(layout) is not Layout:
        return lift(logical_divide, layout, tiler)
    if type(tiler) is tuple or isinstance(tiler, list):
        modes = modes_of(layout)
        _check_rank("logical_divide", layout, tuple(tiler))
        return from_modes([*[logical_divide(m, t) for m, t in zip(modes, tiler, strict=False)], *modes[len(tiler) :]])
    if tiler is None:
        return layout
    if isinstance(tiler, Layout):
        if type(tiler.shape) is not tuple and type(tiler.stride) is int and tiler.stride == 1:
            tiler = tiler.shape
        else:
            size = tuple_size(layout.shape)
            return composition(layout, from_modes((tiler, complement(tiler, size))))
    tile, rest = _split(layout, tiler)
    return from_modes((tile, rest))


def _check_rank(name: str, layout: Layout, tiler: tuple[Tiler, ...]) -> None:
    if len(tiler) > layout.rank:
        raise LayoutError(
            f"{name}({layout}, {show(tiler)}): the tiler has {len(tiler)} modes, the layout {layout.rank}",
            help="a tuple divides mode by mode; leave out or group what the layout has not",
        )


def _split(layout: Layout, tile: Any) -> tuple[Layout, Layout]:
    """Divide by the first `tile` elements: composition with `tile:1` and with `ceil(size / tile):tile`."""
    extent = tile if type(tile) is int else Layout(tile).shape
    if isinstance(extent, tuple):
        extent = tuple_size(extent)
    if type(extent) is int and extent < 1:
        raise LayoutError(f"a tile has extent {extent}", help="extents are at least 1")
    if type(layout.shape) is not tuple:
        return _split_mode(extent, layout.shape, layout.stride)  # type: ignore[arg-type]
    flat_shape, flat_stride = flat_modes(layout)
    shape, stride = merge_flat(flat_shape, flat_stride, keep_last=True, keep_static=True)
    if not shape:
        return _split_mode(extent, 1, 0)
    inside: list[tuple[Int, Leaf]] = []
    for k, (s, d) in enumerate(zip(shape, stride, strict=True)):
        if k == len(shape) - 1 or _divides(extent, s):
            tile_part, rest_part = _split_mode(extent, s, d)
            rest = [(rest_part.shape, rest_part.stride)] if rest_part is not ONE else []
            rest += list(zip(shape[k + 1 :], stride[k + 1 :], strict=True))
            if type(extent) is not int or extent != 1 or not inside:
                inside.append((tile_part.shape, tile_part.stride))  # type: ignore[arg-type]
            return _joined(inside), _joined(rest)
        if extent is s or (type(s) is int and type(extent) is int and extent % s == 0):
            inside.append((s, d))
            extent = 1 if extent is s else extent // s
        else:
            break
    # No even split: let composition decide.
    size = tuple_size(layout.shape)
    inner, outer = modes_of(composition(layout, raw_layout((tile, ceildiv(size, tile)), (1, tile))))
    return inner, outer


def _divides(tile: Int, extent: Int) -> bool:
    if type(tile) is int and tile == 1:
        return True
    return type(tile) is int and type(extent) is int and extent % tile == 0


def _split_mode(tile: Int, extent: Int, stride: Leaf) -> tuple[Layout, Layout]:
    inner = raw_layout(tile, stride if not (type(tile) is int and tile == 1) else 0)
    count = ceildiv(extent, tile)
    if type(count) is int and count == 1:
        return inner, ONE
    return inner, raw_layout(count, scale(stride, tile))


def _joined(modes: list[tuple[Any, Any]]) -> Layout:
    return layout_of_flat([m[0] for m in modes], [m[1] for m in modes])


def zipped_divide(layout: Any, tiler: Any) -> Any:  # Any: a layout or tensor gives the same; see Tiler
    """Split a layout into tiles, with all tile modes gathered in mode 0 and all others in mode 1.

    A None in the tiler stands for a mode that is a pair (tile, rest) already.

    Law: zipped_divide(a, (b0, b1))((i0, i1), (j0, j1)) == logical_divide(a, (b0, b1))((i0, j0), (i1, j1)).

    >>> print(zipped_divide(Layout((9, 8), (1, 9)), (3, 4)))
    ((3,4),(3,2)):((1,9),(3,36))

    Raises `LayoutError` as `logical_divide` does. Source: CuTe `zipped_divide`.
    """
    if type(layout) is not Layout:
        return lift(zipped_divide, layout, tiler)
    tile, rest = divide_modes(layout, tiler)
    return from_modes((tile, rest))


def divide_modes(layout: Layout, tiler: Any) -> tuple[Layout, Layout]:
    """Return the tile and the rest of a zipped divide."""
    if isinstance(tiler, (tuple, list)):
        modes = modes_of(layout)
        _check_rank("zipped_divide", layout, tuple(tiler))
        pairs = [divide_modes(m, t) for m, t in zip(modes, tiler, strict=False)]
        rest = [p[1] for p in pairs]
        return from_modes([p[0] for p in pairs]), from_modes([*rest, *modes[len(tiler) :]])
    if tiler is None and layout.rank != 2:
        raise LayoutError(
            f"zipped_divide: a None in the tiler stands for a mode that is a pair (tile, rest) already, not {layout}",
            help="give the size of a tile of that mode, or group the modes first",
        )
    tile, rest_mode = modes_of(logical_divide(layout, tiler))
    return tile, rest_mode


def tiled_divide(layout: Any, tiler: Any) -> Any:  # Any: a layout or tensor gives the same; see Tiler
    """Split a layout into tiles, the tile modes gathered in mode 0, the others each a mode: (tile, rest0, rest1, ...).

    Law: tiled_divide(a, b)(i, j0, j1) == zipped_divide(a, b)(i, (j0, j1)).

    >>> print(tiled_divide(Layout((9, 8), (1, 9)), (3, 4)))
    ((3,4),3,2):((1,9),3,36)

    Raises `LayoutError` as `logical_divide` does. Source: CuTe `tiled_divide`.
    """
    if type(layout) is not Layout:
        return lift(tiled_divide, layout, tiler)
    tile, rest = divide_modes(layout, tiler)
    return from_modes((tile, *modes_of(rest)))


def flat_divide(layout: Any, tiler: Any) -> Any:  # Any: a layout or tensor gives the same; see Tiler
    """Split a layout into tiles, every mode by itself: (tile0, tile1, ..., rest0, rest1, ...).

    Law: flat_divide(a, b)(i0, i1, j0, j1) == zipped_divide(a, b)((i0, i1), (j0, j1)).

    >>> print(flat_divide(Layout((9, 8), (1, 9)), (3, 4)))
    (3,4,3,2):(1,9,3,36)

    Raises `LayoutError` as `logical_divide` does. Source: CuTe `flat_divide`.
    """
    if type(layout) is not Layout:
        return lift(flat_divide, layout, tiler)
    tile, rest = divide_modes(layout, tiler)
    return from_modes((*modes_of(tile), *modes_of(rest)))


def evenly_divides(a: Any, b: Any) -> bool:  # Any: a shape or what has one; a tiler
    """Say whether tiles fill a shape without overhang; the modes of a tuple of tilers go with the modes of the shape.

    A tiler is an integer, a layout, None for a mode that stays whole, or a tuple of those, which may not be nested
    deeper than the shape.

    Law: evenly_divides(a, b)  =>  size(logical_divide(Layout(a), b)) == size(a).

    >>> evenly_divides((128, 64), (32, 16)), evenly_divides((128, 65), (32, 16)), evenly_divides(16, (16,))
    (True, False, True)
    >>> evenly_divides((2, 8), (2, (2, 4))), evenly_divides((32, 64), (Layout(8, 2), 32))
    (False, True)

    Raises `LayoutError` for dynamic extents, and for a layout whose tiles overlap. Source: CuTe `evenly_divides` (its
    order: target, tile).
    """
    target = shape_of(a)
    if isinstance(b, (tuple, list)):
        modes = target if isinstance(target, tuple) else (target,)
        return len(b) <= len(modes) and all(evenly_divides(x, y) for x, y in zip(modes, b, strict=False))
    if b is None:
        return True
    whole = need_static(tuple_size(target), "evenly_divides", "the size of the target")
    if isinstance(b, Layout):
        covered = mul(b.size, complement(b, whole).size)
    else:
        tile = shape_of(b)
        covered = mul(tuple_size(tile), tuple_size(ceil_div(target, tile)))
    return whole == need_static(covered, "evenly_divides", "the size of the tile")
