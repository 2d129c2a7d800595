"""Tensors over memory that is chosen otherwise than by a name: addresses, and bytes that several tensors share."""

from __future__ import annotations

from typing import Any

from tilewright.arguments import integer
from tilewright.dtypes import OPERANDS, DType, dtype, int64, uint8, uint64
from tilewright.errors import ArgumentError, LanguageError
from tilewright.ir.core import Buffer, Space
from tilewright.ir.ops import Cast
from tilewright.layout import ComposedLayout, Layout, cosize
from tilewright.tensors import Tensor
from tilewright.trace.chosen import point
from tilewright.trace.engine import BufferEngine, allocate
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import current
from tilewright.transactions import ROW

_WIDEST = 2**30  # bytes of an alignment


def pointer(address: Any, element: Any, *, align: int | None = None) -> BufferEngine:  # Any: a number, an element type
    """Return the memory at an address, as elements of a type: `tw.make_tensor(tw.pointer(address, dtype), layout)`.

    `address` is a device int64 or uint64: an element of an array of addresses (`tw.addresses`), or a number argument.
    The caller guarantees that it is a multiple of `align` bytes, by default of the element's size; `tw.copy` uses
    accesses of up to that width. The tensor's offsets are computed in int64 unless its layout is static.

    Raises `LanguageError` for an address of another type, `ArgumentError` for an alignment that is not a power of two
    or narrower than the element.
    """
    kind = dtype(element)
    current("tw.pointer")
    if kind in OPERANDS:
        raise LanguageError(f"tw.pointer: memory does not hold {kind}, an operand type of matrix instructions")
    least = kind.bytes if align is None else integer("tw.pointer", "align", align, minimum=1, maximum=_WIDEST)
    if least & (least - 1) or least % kind.bytes:
        raise ArgumentError(
            f"tw.pointer: align is a power of two and at least the {kind.bytes} bytes of {kind}, got {align}"
        )
    like = Buffer("", kind, Space.GLOBAL, None, least)
    return BufferEngine(point("", like, least, _address(address)))


def _address(address: Any) -> Any:  # Any: a value of the IR
    if isinstance(address, int) and not isinstance(address, bool):
        return as_scalar(address, uint64).value
    if not isinstance(address, Scalar) or address.dtype not in (int64, uint64):
        came = address.dtype if isinstance(address, Scalar) else repr(address)
        raise LanguageError(
            f"tw.pointer: an address is an int64 or a uint64, got {came}",
            help="take it from tw.addresses([...]), or pass the number as np.uint64(address)",
        )
    if address.dtype is uint64:
        return address.value
    return current("tw.pointer").pure(Cast(address.value), uint64)


def shared_union(*, alignment: int = ROW, **tensors: Any) -> tuple[Tensor, ...]:  # Any: (element type, layout)
    """Make tensors in shared memory that begin at the same byte, and return them in order.

        stage, out = tw.shared_union(stage=(tw.bfloat16, stages), out=(tw.float32, tile))

    Each is described by name as an element type and a static layout or shape. A write through one of them overwrites
    the others, so write each before it is read, after a barrier: the simulator reports reads of data written through
    another one (`uninitialised-read`), and accesses without a barrier between them (`race`). To read the same bits as
    another type, use `t.recast(dtype)`.

    Raises `LanguageError` for fewer than two tensors and for a dynamic layout, `ArgumentError` for other descriptions.
    """
    if len(tensors) < 2:
        raise LanguageError(
            f"tw.shared_union takes at least two tensors, got {len(tensors)}",
            help="one alone is tw.shared(dtype, layout)",
        )
    integer("tw.shared_union", "alignment", alignment, minimum=1)
    members: list[tuple[str, DType, Layout | ComposedLayout, int]] = []
    for name, description in tensors.items():
        if not isinstance(description, (tuple, list)) or len(description) != 2:
            raise ArgumentError(f"tw.shared_union: {name} is (element type, layout), got {description!r}")
        layout = description[1]
        layout = layout if isinstance(layout, (Layout, ComposedLayout)) else Layout(layout)
        reach = cosize(layout)
        if not isinstance(reach, int):
            raise LanguageError(
                f"tw.shared_union: {name} has a dynamic layout, {layout}",
                help="make the layout a tw.constexpr parameter",
            )
        members.append((name, dtype(description[0]), layout, reach))
    widest = max(alignment, *(kind.bytes for _, kind, _, _ in members))
    size = max(kind.bytes * reach for _, kind, _, reach in members)
    root = allocate(Space.SHARED, uint8, -(-size // widest) * widest, widest).buffer
    root.name = "_or_".join(tensors)
    place = current("tw.shared_union").location()
    result = []
    for name, kind, layout, reach in members:
        if kind in OPERANDS:
            raise LanguageError(f"tw.shared_union: shared memory does not hold {kind}, an operand type")
        member = Buffer(name, kind, Space.SHARED, reach, widest, place, layout=layout, base=root, is_member=True)
        result.append(Tensor(BufferEngine(member), layout))
    return tuple(result)
