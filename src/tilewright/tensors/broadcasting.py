"""Shapes that meet in one operation on elements: mode by mode, where a mode of extent 1 stands for any extent.

    (4, 8) and (4, 8)        (4, 8)
    (4, 8) and (4, 1)        (4, 8)       the second is read at stride 0 along mode 1
    (4, 8) and ((2, 2), 8)   (4, 8)       modes of equal size match index by index
    (4, 8) and 8             refused      NumPy would match the last mode, CuTe the first

Scalars match every shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.ints import Shape
from tilewright.layout.layouts import Layout, raw_layout
from tilewright.layout.swizzle import ComposedLayout
from tilewright.layout.tuples import map_leaves, same, show, tuple_size


def broadcast_shapes(what: str, shapes: Sequence[Shape], titles: Sequence[str]) -> Shape:
    """Return the shape of what `what` computes of tensors of these shapes.

    Raises `LayoutError` where they do not match; `titles` describe the tensors in its message.
    """
    result = shapes[0]
    for shape in shapes[1:]:
        joined = _joined(result, shape, is_top=True)
        if joined is None:
            ranks = {len(modes_of_shape(s)) for s in shapes}
            help = "extents have to be equal, or 1"
            if len(ranks) > 1:
                help = (
                    "give all the same number of modes: tw.append(t) and tw.prepend(t) add a mode of extent 1 at the "
                    "end and at the front, and reduce(..., keep=True) leaves one"
                )
            raise LayoutError(f"{what}: the shapes {_list(shapes)} do not match", details=titles, help=help)
        result = joined
    return result


def _list(shapes: Sequence[Shape]) -> str:
    return " and ".join(show(s) for s in shapes)


def modes_of_shape(shape: Shape) -> tuple[Shape, ...]:
    """Return the top-level modes of a shape; an integer is its own one mode."""
    return shape if type(shape) is tuple else (shape,)


def _joined(a: Shape, b: Shape, *, is_top: bool = False) -> Shape | None:
    if is_top or (type(a) is tuple and type(b) is tuple and not _same_size(a, b)):
        first, second = modes_of_shape(a), modes_of_shape(b)
        if len(first) == len(second):
            modes = [_joined(x, y) for x, y in zip(first, second, strict=True)]
            if None not in modes:
                return tuple(modes) if type(a) is tuple or type(b) is tuple else modes[0]  # type: ignore[arg-type]
        if is_top:
            return None
    if _same_size(a, b):
        return a
    if _is_one(b):
        return a
    return b if _is_one(a) else None


def _same_size(a: Shape, b: Shape) -> bool:
    """Say whether extents are equal, as far as is known: of two dynamic ones, whoever walks them asks the launch."""
    x, y = tuple_size(a), tuple_size(b)
    return x == y if type(x) is type(y) is int else type(x) is not int and type(y) is not int


def _is_one(shape: Shape) -> bool:
    size = tuple_size(shape)
    return type(size) is int and size == 1


def broadcast_layout(layout: Layout | ComposedLayout, shape: Shape) -> Any:  # Any: a layout of the same kind
    """Return a layout seen in a shape that `broadcast_shapes` gave: stride 0 along modes that it repeats."""
    if same(layout.shape, shape):
        return layout
    if isinstance(layout, ComposedLayout):
        return layout.map_layout(lambda inner: broadcast_layout(inner, shape))
    own, strides = modes_of_shape(layout.shape), modes_of_shape(layout.stride)  # type: ignore[arg-type]
    modes = [_repeated(s, d, t) for s, d, t in zip(own, strides, modes_of_shape(shape), strict=True)]
    if type(layout.shape) is not tuple and type(shape) is not tuple:
        return raw_layout(*modes[0])
    return raw_layout(tuple([s for s, _ in modes]), tuple([d for _, d in modes]))


def _repeated(own: Shape, stride: Any, target: Shape) -> tuple[Shape, Any]:
    """Return shape and strides of one mode, repeated to a target."""
    if _same_size(own, target):
        return own, stride
    if _is_one(own):
        return target, map_leaves(lambda _: 0, target)
    parts = [_repeated(s, d, t) for s, d, t in zip(own, stride, target, strict=True)]  # type: ignore[arg-type]
    return tuple([s for s, _ in parts]), tuple([d for _, d in parts])
