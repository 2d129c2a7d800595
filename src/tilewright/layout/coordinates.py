"""Coordinates and indices: the maps between a linear index, a coordinate of a shape, and an offset.

All are colexicographic: the first mode runs fastest, and indices start at 0. An index past the end continues
along the last mode, as in CuTe; that is what lets a tile overhang. A static index below 0 leads as far back as its
opposite leads forward, A(-x) == -A(x), which is what division in C++ makes of it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tilewright.errors import LayoutError
from tilewright.layout.ints import (
    Basis,
    Coord,
    DynamicInt,
    Int,
    IntTuple,
    Shape,
    Stride,
    add,
    as_int,
    floordiv,
    mod,
    mul,
)
from tilewright.layout.tuples import checked_stride, compact_strides, congruent_tuples, show, tuple_size

Offset: TypeAlias = IntTuple
"""Where a layout points: an integer, or a nested tuple for a layout with basis strides."""


def add_offsets(a: Offset, b: Offset) -> Offset:
    """Add two offsets; a shorter coordinate counts as continued with zeros."""
    if isinstance(a, tuple) or isinstance(b, tuple):
        if not isinstance(a, tuple):
            if type(a) is int and a == 0:
                return b
            a = (a,)
        if not isinstance(b, tuple):
            if type(b) is int and b == 0:
                return a
            b = (b,)
        n = min(len(a), len(b))
        return tuple([add_offsets(x, y) for x, y in zip(a, b, strict=False)]) + a[n:] + b[n:]
    return add(a, b)


def _times(index: Int, stride: Int | Basis) -> Offset:
    if isinstance(stride, Basis):
        value: Offset = mul(index, stride.value)
        for m in reversed(stride.modes):
            value = (*([0] * m), value)
        return value
    return mul(index, stride)


def has_kept(coord: Coord) -> bool:
    """Say whether a coordinate keeps a mode (holds None)."""
    if type(coord) is tuple:
        return any(has_kept(c) for c in coord)
    return coord is None


def collect_modes(
    coord: Coord, shape: Shape, stride: Stride, keep: bool, shapes: list[Shape], strides: list[Stride]
) -> None:
    """Append the modes at which a coordinate is None (`keep`), or is not, to `shapes` and `strides`."""
    if type(coord) is tuple:
        if type(shape) is not tuple or len(shape) != len(coord):
            raise LayoutError(f"coordinate {show(coord)} does not fit shape {show(shape)}")
        for c, s, d in zip(coord, shape, stride, strict=True):  # type: ignore[arg-type]  # congruent with shape
            collect_modes(c, s, d, keep, shapes, strides)
    elif (coord is None) == keep:
        shapes.append(shape)
        strides.append(stride)


def offset_of(coord: Coord, shape: Shape, stride: Stride) -> Offset:
    """Return the inner product of a coordinate with strides; a kept mode (None) counts 0. No checks."""
    if type(shape) is tuple:
        if type(coord) is tuple:
            if len(coord) != len(shape):
                raise LayoutError(
                    f"coordinate {show(coord)} does not fit shape {show(shape)}: {len(coord)} and {len(shape)} modes"
                )
            result: Offset = 0
            for c, s, d in zip(coord, shape, stride, strict=True):  # type: ignore[arg-type]  # congruent with shape
                part = c * d if type(c) is int and type(d) is int and type(s) is not tuple else offset_of(c, s, d)
                result = result + part if type(result) is int and type(part) is int else add_offsets(result, part)
            return result
        if coord is None:
            return 0
        return _offset_of_index(coord, shape, stride)  # type: ignore[arg-type]
    if coord is None:
        return 0
    if type(coord) is tuple:
        raise LayoutError(
            f"coordinate {show(coord)} does not fit shape {show(shape)}: a tuple where the shape has one extent"
        )
    if type(coord) is int and type(stride) is int:
        return coord * stride
    return _times(as_int(coord, "a coordinate"), stride)  # type: ignore[arg-type]


def negated(offset: Offset) -> Offset:
    """Return the offset that, added to the given one, makes 0."""
    if isinstance(offset, tuple):
        return tuple([negated(x) for x in offset])
    return mul(offset, -1)


def _offset_of_index(index: Int, shape: tuple[Shape, ...], stride: tuple[Stride, ...]) -> Offset:
    if type(index) is int and index < 0:
        return negated(_offset_of_index(-index, shape, stride))
    result: Offset = 0
    last = len(shape) - 1
    for i, (s, d) in enumerate(zip(shape, stride, strict=True)):
        if i == last:
            return add_offsets(result, offset_of(index, s, d))
        extent = tuple_size(s) if type(s) is tuple else s
        if type(index) is int and type(extent) is int:
            index, here = divmod(index, extent)
            part = here * d if type(d) is int and type(s) is int else offset_of(here, s, d)
        else:
            part = offset_of(mod(index, extent), s, d)  # type: ignore[arg-type]
            index = floordiv(index, extent)  # type: ignore[arg-type]
        result = result + part if type(result) is int and type(part) is int else add_offsets(result, part)
    return result


def checked_coord(coord: object) -> Coord:
    """Return a coordinate with sequences as tuples and integers checked; `:` becomes None, as `_` in CuTe."""
    if coord is None or type(coord) is int or isinstance(coord, DynamicInt):
        return coord
    if isinstance(coord, (tuple, list)):
        return tuple([checked_coord(c) for c in coord])
    if isinstance(coord, slice):
        if coord.start is None and coord.stop is None and coord.step is None:
            return None
        raise LayoutError(
            f"a part of a mode cannot be sliced: {coord.start}:{coord.stop}",
            help="`:` keeps a whole mode; local_tile(x, tile, coord) or composition takes a part of one",
        )
    return as_int(coord, "a coordinate")


def crd2idx(coord: Any, shape: Any, stride: Any = None) -> Offset:  # Any: integers or nested tuples
    """Map a coordinate of `shape` to its offset under `stride`, by default to its linear index.

    Law: crd2idx(c, shape, stride) == sum(c_k * stride_k) over the leaves of the hierarchical coordinate; of the linear
    index, stride_k is the product of all extents before.

    >>> crd2idx((1, 2), (4, 8)), crd2idx((1, 2), (4, 8), (8, 1)), crd2idx(9, (4, 8), (8, 1))
    (9, 10, 10)

    Raises `LayoutError` when the nesting of the coordinate or of the stride does not fit the shape. Source: CuTe
    `crd2idx`.
    """
    place = checked_coord(coord)
    shape = _checked_extents(shape)
    if stride is not None:
        steps = checked_stride(stride)
        if not congruent_tuples(shape, steps):
            raise LayoutError(f"crd2idx: shape {show(shape)} and stride {show(steps)} are nested differently")
        return offset_of(place, shape, steps)
    return place if isinstance(place, (int, DynamicInt)) else offset_of(place, shape, _running(shape, 1)[0])


def _running(shape: Shape, current: Int) -> tuple[Stride, Int]:
    """Return the product of the extents before each, which of extents 1 is not 0 as it is in a compact layout."""
    if type(shape) is not tuple:
        return current, mul(current, shape)  # type: ignore[arg-type]  # an integer here
    strides: list[Stride] = []
    for extent in shape:
        stride, current = _running(extent, current)
        strides.append(stride)
    return tuple(strides), current


def idx2crd(index: Any, shape: Any, stride: Any = None) -> Any:  # Any: integers or nested tuples
    """Map a linear index to the coordinate of `shape`; further nesting in `index` is followed.

    With a `stride`, `index` is an offset of the layout of that shape and stride, whose modes may not overlap; an
    integer stride is that of the first mode, from which the others run on in column-major order.

    Law: crd2idx(idx2crd(i, shape), shape) == i for 0 <= i < size(shape), and crd2idx(idx2crd(x, s, d), s, d) == x for
    every offset x of a layout s:d that is injective and compact.

    >>> idx2crd(9, (4, 8)), idx2crd(9, ((2, 2), 8)), idx2crd(10, (4, 8), (8, 1))
    ((1, 2), ((1, 0), 2), (1, 2))

    Raises `LayoutError` when a tuple meets one extent, or a stride is 0. Source: CuTe `idx2crd`.
    """
    coord = checked_coord(index)
    shape = _checked_extents(shape)
    if stride is None:
        return _to_coord(coord, shape)
    stride = checked_stride(stride)
    if type(shape) is tuple and type(stride) is not tuple:
        stride = compact_strides(shape, stride)[0]
    return _by_strides(coord, shape, stride)


def _checked_extents(shape: Any) -> Shape:
    if isinstance(shape, (tuple, list)):
        return tuple([_checked_extents(extent) for extent in shape])
    extent = as_int(shape, "an extent")
    if not isinstance(extent, DynamicInt) and extent < 1:
        raise LayoutError(f"an extent is {shape}", help="extents are at least 1")
    return extent


def _by_strides(index: Coord, shape: Shape, stride: Any) -> Coord:
    """Return index // stride % extent for each leaf; a static extent 1 has only the coordinate 0."""
    if type(shape) is tuple:
        if type(stride) is not tuple or len(stride) != len(shape):
            raise LayoutError(f"idx2crd: shape {show(shape)} and stride {show(stride)} are nested differently")
        if type(index) is tuple and len(index) != len(shape):
            raise LayoutError(f"coordinate {show(index)} does not fit shape {show(shape)}")
        places = index if type(index) is tuple else (index,) * len(shape)
        return tuple([_by_strides(i, s, d) for i, s, d in zip(places, shape, stride, strict=True)])
    if type(index) is tuple or type(stride) is tuple:
        raise LayoutError(f"idx2crd: {show(index)}, {show(shape)} and {show(stride)} are nested differently")
    if index is None or (type(shape) is int and shape == 1):
        return None if index is None else 0
    if isinstance(stride, Basis) or (type(stride) is int and stride <= 0):
        raise LayoutError(f"idx2crd: an offset does not tell the coordinate of a mode of stride {stride}")
    return mod(floordiv(index, stride), shape)  # type: ignore[arg-type]  # an integer here


def _to_coord(coord: Coord, shape: Shape) -> Coord:
    if type(shape) is tuple:
        if type(coord) is tuple:
            if len(coord) != len(shape):
                raise LayoutError(f"coordinate {show(coord)} does not fit shape {show(shape)}")
            return tuple([_to_coord(c, s) for c, s in zip(coord, shape, strict=True)])
        if coord is None:
            return tuple([_to_coord(None, s) for s in shape])
        result: list[Coord] = []
        last = len(shape) - 1
        for i, s in enumerate(shape):
            if i == last:
                result.append(_to_coord(coord, s))
            else:
                extent = tuple_size(s)
                result.append(_to_coord(mod(coord, extent), s))  # type: ignore[arg-type]  # an integer here
                coord = floordiv(coord, extent)  # type: ignore[arg-type]
        return tuple(result)
    if type(coord) is tuple:
        raise LayoutError(f"coordinate {show(coord)} does not fit shape {show(shape)}")
    return coord


def crd2crd(coord: Any, source: Any, target: Any) -> Any:  # Any: integers or nested tuples
    """Map a coordinate of shape `source` to the coordinate of shape `target` with the same linear index.

    Law: crd2idx(crd2crd(c, source, target), target) == crd2idx(c, source).

    >>> crd2crd((1, 2), (4, 8), (2, 16))
    (1, 4)

    Raises `LayoutError` when the coordinate does not fit `source`. Source: CuTe `crd2crd`.
    """
    return idx2crd(crd2idx(coord, source), target)
