"""Slices of modes: `x[1:5]`, `x[::2, 0]`, `x[i : i + 4]`. A slice is a view: other strides, another start.

Law: x[a:b:c][i] == x[a + c * i], for every i below the extent of the slice.

Bounds that are known while tracing mean what they mean in Python, negative ones too, and an end past a static extent is
the extent. What only the device knows counts from the front and is taken as it is: no bound is clamped. The extent is
static wherever stop - start is, as in x[i : i + 4].

A mode of several leaves is sliced along its flattened index, where strides can say so:

    (4,2):(1,8) [2:6]      indices 2 3 4 5, offsets 2 3 8 9, so (2,2):(1,6) from offset 2
    (4,2):(1,8) [1:4]      indices 1 2 3, so 3:1 from offset 1
    (4,2):(1,8) [1:6]      offsets 1 2 3 8 9, which no strides give: refused
"""

from __future__ import annotations

from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.coordinates import Offset, idx2crd
from tilewright.layout.ints import DynamicInt, Int, add, as_int, ceildiv, mul, scale, sub
from tilewright.layout.layouts import Layout, flat_modes, raw_layout
from tilewright.layout.simplify import coalesce
from tilewright.layout.tuples import tuple_size

_MOST_LISTED = 1 << 16  # elements of a slice through several leaves, which are gone through one by one


def is_part(index: object) -> bool:
    """Say whether an index is a slice, other than `:`."""
    return isinstance(index, slice) and not (index.start is None and index.stop is None and index.step is None)


def resolve(part: slice, extent: Int, title: str) -> tuple[Int, Int, int]:
    """Return (start, extent, step) of a slice of a mode.

    Raises `LayoutError` for a slice without elements, and for a step that is 0 or not known.
    """
    step = 1 if part.step is None else as_int(part.step, "the step of a slice")
    if type(step) is not int:
        raise LayoutError("the step of a slice is not known while tracing", help="make it a tw.constexpr parameter")
    if step == 0:
        raise LayoutError(f"the step of a slice is 0: {_text(part)}")
    given = [None if x is None else as_int(x, "a bound of a slice") for x in (part.start, part.stop)]
    if type(extent) is int and not any(isinstance(x, DynamicInt) for x in given):
        indices = range(*slice(given[0], given[1], step).indices(extent))
        start: Int = indices.start
        count: Int = len(indices)
    else:
        first, last = [add(extent, x) if type(x) is int and x < 0 else x for x in given]
        if first is None:
            first = 0 if step > 0 else sub(extent, 1)
        span = difference(sub(extent, 0) if step > 0 else -1, first) if last is None else difference(last, first)
        start, count = first, ceildiv(span if step > 0 else mul(span, -1), abs(step))
    if type(count) is int and count < 1:
        raise LayoutError(
            f"the slice {_text(part)} of an extent of {extent} has no elements",
            details=[f"tensor: {title}"],
            help="extents are at least 1",
        )
    return start, count, step


def difference(a: Int, b: Int) -> Int:
    """Return a - b: static where it is known, as that of i + 4 and i."""
    if isinstance(a, DynamicInt):
        return a.difference(b)
    return sub(a, b) if type(b) is int else mul(b.difference(a), -1)  # type: ignore[union-attr]


def _text(part: slice) -> str:
    bounds = ["" if x is None else str(x) for x in (part.start, part.stop)]
    return ":".join([*bounds, *([] if part.step is None else [str(part.step)])])


def slice_mode(mode: Layout, start: Int, count: Int, step: int, title: str) -> tuple[Layout, Offset]:
    """Return the layout of a slice of a mode, and the offset of its first element."""
    flat = mode if type(mode.shape) is not tuple else coalesce(mode)
    if type(flat.shape) is not tuple:
        return raw_layout(count, scale(flat.stride, step)), _at(flat, start)  # type: ignore[arg-type]
    if type(start) is int and type(count) is int and all(type(s) is int for s in flat_modes(mode)[0]):
        found = _through_leaves(mode, start, count, step)
        if found is not None:
            return found, mode(start)
        what = f"the elements {start}, {start + step}, ... of {mode} do not lie at regular steps"
    else:
        first, stride = (leaf[0] for leaf in flat_modes(flat))
        width = mul(count, step)
        if type(width) is int and type(first) is int and width > 0 and first % width == 0 and _divides(width, start):
            return raw_layout(count, scale(stride, step)), mode(start)
        what = f"{mode} has several leaves, and the start of the slice is not known while tracing"
    raise LayoutError(
        f"a slice of {count} elements is not a view: {what}",
        details=[f"tensor: {title}"],
        help="slice at multiples of the inner extents, or take elements one by one",
    )


def _at(flat: Layout, start: Int) -> Offset:
    offset: Offset = flat(start)
    return offset


def _divides(width: int, start: Int) -> bool:
    if type(start) is int:
        return start % width == 0
    assert isinstance(start, DynamicInt), start
    rest = start.split_multiple(width)[0]
    return type(rest) is int and rest == 0


def _through_leaves(mode: Layout, start: int, count: int, step: int) -> Layout | None:
    """Return the layout with offsets mode(start + step * i) - mode(start), None where no strides give them.

    The first stride is the difference of the first two elements, and reaches as far as differences repeat; the next one
    is the difference from there, and so on. Dynamic strides are told apart by the leaf that they belong to.
    """
    shape, strides = flat_modes(mode)
    last = start + step * (count - 1)
    if count > _MOST_LISTED or min(start, last) < 0 or max(start, last) >= tuple_size(mode.shape):  # type: ignore[operator]
        return None
    is_known = all(type(d) is int for d in strides)
    profile = tuple(shape)
    points: list[tuple[int, ...]] = []
    origin: tuple[int, ...] | None = None
    for i in range(count):
        coord = idx2crd(start + step * i, profile)
        point = (sum(c * d for c, d in zip(coord, strides, strict=True)),) if is_known else coord
        origin = origin or point
        points.append(tuple(a - b for a, b in zip(point, origin, strict=True)))
    extents: list[int] = []
    moves: list[tuple[int, ...]] = []
    size = 1
    while size < count:
        move, run = points[size], 2
        while size * run < count and points[size * run] == tuple(run * m for m in move):
            run += 1
        while count % (size * run):
            run -= 1
        if run == 1:
            return None
        extents.append(run)
        moves.append(move)
        size *= run
    if any(p != _reached(i, extents, moves, len(points[0])) for i, p in enumerate(points)):
        return None
    steps = [move[0] if is_known else _combined(move, strides) for move in moves]
    if len(extents) <= 1:
        return raw_layout(extents[0] if extents else 1, steps[0] if steps else 0)
    return raw_layout(tuple(extents), tuple(steps))


def _reached(index: int, extents: list[int], moves: list[tuple[int, ...]], width: int) -> tuple[int, ...]:
    total = [0] * width
    for c, move in zip(idx2crd(index, tuple(extents)) if extents else (), moves, strict=True):
        total = [t + c * m for t, m in zip(total, move, strict=True)]
    return tuple(total)


def _combined(move: tuple[int, ...], strides: list[Any]) -> Any:  # Any: strides of any kind
    """Return the stride of a move by so many steps along each leaf."""
    total: Any = 0
    for n, stride in zip(move, strides, strict=True):
        if n:
            step = scale(stride, n)
            total = step if type(total) is int and total == 0 else add(total, step)  # type: ignore[arg-type]
    return total
