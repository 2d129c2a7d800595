"""Shared memory of a size that the launch knows: tensors one after another, behind those of static sizes.

    tile = tw.shared(tw.float32, (n,))            tile at 0
    rows = tw.shared(tw.bfloat16, (m, 8))         rows at the end of tile, rounded up to the alignment

The host computes sizes and places in 64 bits before the launch, and asks for so much; the kernel computes the places,
which then fit into 32.
"""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import DType, int32, int64
from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Buffer, LaunchSized, Space, Value
from tilewright.ir.ops import AllocateAt, Binary, constant
from tilewright.layout import ComposedLayout, Layout, cosize
from tilewright.layout.tuples import map_leaves
from tilewright.trace.engine import BufferEngine, demand_storage
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import Tracer, current, known_to_host


def allocate_sized(kind: DType, layout: Layout | ComposedLayout, alignment: int) -> BufferEngine:
    """Begin a shared buffer for a layout that the launch knows, and return its engine.

    Raises `LanguageError` for a layout that only the device knows, and inside of loops and branches.
    """
    tracer = current("an allocation")
    demand_storage(kind, Space.SHARED)
    if not isinstance(layout, Layout):
        raise LanguageError(
            "shared memory of a size that the launch knows has a plain layout, and this one is composed",
            help="make the swizzled layout a tw.constexpr parameter",
        )
    for leaf in _dynamic(layout):
        if not known_to_host(leaf.value, tracer):
            raise LanguageError(
                "shared memory needs a size that is known before the launch, and the layout depends on what only the "
                "device knows",
                help="compute it from extents of arrays and from number arguments, or make it a tw.constexpr parameter",
            )
    if tracer.builder.block is not tracer.body:
        raise LanguageError(
            "shared memory of a size that the launch knows is taken inside of a loop or branch",
            help="take it at the beginning of the kernel, outside of loops and branches",
        )
    alignment = max(alignment, kind.bytes)
    buffer = Buffer("", kind, Space.SHARED, None, alignment, tracer.location())
    with tracer.builder.inside(Block()):  # the host computes it, not the kernel
        elements = _elements(layout, int64)
        place = _place(tracer, alignment, int64)
    start = _place(tracer, alignment, int32)
    tracer.emit(AllocateAt(buffer, start))
    tracer.placed.append((layout, start))
    tracer.launch_sized.append(LaunchSized(buffer, elements, place))
    return BufferEngine(buffer)


def _dynamic(layout: Layout) -> list[Scalar]:
    found: list[Scalar] = []

    def look(leaf: Any) -> Any:  # Any: an extent or a stride
        if isinstance(leaf, Scalar):
            found.append(leaf)
        return leaf

    map_leaves(look, layout.shape)
    map_leaves(look, layout.stride)
    return found


def _elements(layout: Layout, type: DType) -> Value:
    """Return how many elements a layout reaches, computed in a type."""

    def converted(leaf: Any) -> Any:  # Any: an extent or a stride
        return leaf.to(type) if isinstance(leaf, Scalar) else leaf

    wide = Layout(map_leaves(converted, layout.shape), map_leaves(converted, layout.stride))
    return as_scalar(cosize(wide), type).value


def _place(tracer: Tracer, alignment: int, type: DType) -> Value:
    """Return where the next tensor begins, in bytes from the end of what has a static size."""
    if not tracer.launch_sized:
        return constant(0, type)
    last, (layout, start) = tracer.launch_sized[-1], tracer.placed[-1]
    before = last.place if type is int64 else start
    width = constant(last.buffer.dtype.bytes, type)
    reach = tracer.pure(Binary("mul", _elements(layout, type), width), type)
    end = tracer.pure(Binary("add", before, reach), type)
    up = tracer.pure(Binary("add", end, constant(alignment - 1, type)), type)
    rows = tracer.pure(Binary("div", up, constant(alignment, type)), type)
    return tracer.pure(Binary("mul", rows, constant(alignment, type)), type)
