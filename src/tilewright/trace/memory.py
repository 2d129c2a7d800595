"""Storage of a kernel, and atomics."""

from __future__ import annotations

import itertools
from typing import Any

from tilewright.arch import VECTOR_BYTES
from tilewright.arguments import instance, integer
from tilewright.dtypes import bfloat16, dtype, float16
from tilewright.errors import LanguageError
from tilewright.ir.core import Space
from tilewright.ir.ops import Atomic
from tilewright.layout import ComposedLayout, Layout, cosize, make_layout_like
from tilewright.layout.tuples import map_leaves
from tilewright.tensors import Tensor
from tilewright.trace.engine import BufferEngine, allocate
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.shared_sizes import allocate_sized
from tilewright.trace.tracer import current
from tilewright.transactions import ROW

SHARED_ALIGNMENT = ROW  # a shared-memory row of all 32 banks; wide enough for every vector access


def _as_layout(layout: Any) -> Layout | ComposedLayout:
    return layout if isinstance(layout, (Layout, ComposedLayout)) else Layout(layout)


def shared(element: Any, layout: Any, *, alignment: int = SHARED_ALIGNMENT) -> Tensor:
    """Make a tensor in the block's shared memory, with undefined contents.

    `layout` is a Layout or a shape (then column-major). Tensors whose uses a block-wide barrier separates may get the
    same bytes. A layout of extents that the launch knows, which it computes from parameters, takes its bytes by itself;
    it is taken outside of loops and branches. The launch is refused where a block cannot have so much.

    Raises `LanguageError` for a layout that only the device knows.
    """
    static = _as_layout(layout)
    integer("tw.shared", "alignment", alignment, minimum=1)
    if not static.is_static:
        return Tensor(allocate_sized(dtype(element), static, alignment), static)
    engine = allocate(Space.SHARED, dtype(element), cosize(static), alignment)
    engine.buffer.layout = static
    return Tensor(engine, static)


def registers(element: Any, layout: Any) -> Tensor:
    """Make a tensor in the thread's registers, with undefined contents.

    Its indices must be known when loops are unrolled; one that stays dynamic moves the tensor to local memory.
    Raises `LanguageError` for a dynamic layout.
    """
    static = _as_layout(layout)
    return Tensor(allocate(Space.REGISTER, dtype(element), cosize(static), VECTOR_BYTES), static)


def fragment_like(tensor: Any, element: Any = None) -> Tensor:
    """Make a register tensor with the shape of another tensor or layout, compact.

    The modes keep the order of the other's strides, so that what is contiguous there is contiguous in registers; modes
    with dynamic strides come behind in their own order, and modes of stride 0 stay at stride 0. The element type is the
    tensor's own unless given. Raises `LanguageError` for a layout without an element type, `LayoutError` for a
    dynamic shape. Source: CuTe `make_fragment_like`.
    """
    instance("tw.fragment_like", "tensor", tensor, (Tensor, Layout, ComposedLayout), "a tensor or a layout")
    layout = tensor.layout if isinstance(tensor, Tensor) else tensor
    if element is None and not isinstance(tensor, Tensor):
        raise LanguageError(
            "tw.fragment_like of a layout needs an element type", help="pass one: fragment_like(layout, tw.float32)"
        )
    behind = itertools.count(1 << 40)  # above every static stride of what fits into registers
    stride = map_leaves(lambda step: step if isinstance(step, int) else next(behind), layout.stride)
    return registers(tensor.dtype if element is None else element, make_layout_like(Layout(layout.shape, stride)))


def atomic_add(tensor: Tensor, coord: Any, value: Any) -> Any:
    """Add to an element indivisibly and return what it was: old = t[coord]; t[coord] = old + value."""
    return _atomic("add", tensor, coord, value)


def atomic_max(tensor: Tensor, coord: Any, value: Any) -> Any:
    """Raise an element to a value indivisibly and return what it was: old = t[coord]; t[coord] = max(old, value)."""
    return _atomic("max", tensor, coord, value)


def atomic_min(tensor: Tensor, coord: Any, value: Any) -> Any:
    """Lower an element to a value indivisibly and return what it was: old = t[coord]; t[coord] = min(old, value)."""
    return _atomic("min", tensor, coord, value)


def _atomic(kind: str, tensor: Tensor, coord: Any, value: Any) -> Any:
    instance(f"tw.atomic_{kind}", "tensor", tensor, Tensor, "a tensor")
    engine = tensor.engine
    if not isinstance(engine, BufferEngine) or engine.buffer.space is Space.REGISTER:
        raise LanguageError(f"tw.atomic_{kind} works on global and shared memory, not on a {tensor.space} tensor")
    element = tensor.dtype
    if element.bits < 32 and not (kind == "add" and element in (float16, bfloat16)):
        raise LanguageError(f"atomic {kind} does not exist for {element}", help="use a 32-bit or 64-bit type")
    engine.demand_guards()
    place = tensor.offset_of(coord)
    operand = as_scalar(value, element)
    old = current("an atomic operation").emit(Atomic(kind, engine.buffer, engine.index(place), operand.value), element)
    return Scalar(old[0])
