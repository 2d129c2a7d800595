"""Storage of a kernel: shared memory and registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.arch import VECTOR_BYTES
from tilewright.arguments import instance, integer
from tilewright.dtypes import dtype
from tilewright.errors import LanguageError
from tilewright.ir.core import Space
from tilewright.layout import ComposedLayout, Layout, cosize, make_layout_like
from tilewright.layout import make_fragment_like as layout_of_fragment
from tilewright.tensors import GuardedTensor, Tensor
from tilewright.trace.engine import allocate
from tilewright.trace.shared_sizes import allocate_sized
from tilewright.transactions import ROW

SHARED_ALIGNMENT = ROW  # a shared-memory row of all 32 banks; wide enough for every vector access


def _as_layout(layout: Any) -> Layout | ComposedLayout:
    return layout if isinstance(layout, (Layout, ComposedLayout)) else Layout(layout)


def shared(element: Any, layout: Any, *, alignment: int = SHARED_ALIGNMENT) -> Tensor:
    """Make a tensor in the block's shared memory, with undefined contents.

    `layout` is a Layout or a shape (then column-major). Tensors whose uses are separated by a block-wide barrier may
    share bytes. A layout whose extents the launch computes from parameters gets bytes of its own, and must be made
    outside of loops and branches. The launch raises an error if a block cannot have that much.

    Raises `LanguageError` for a layout that depends on device values.
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

    Its indices must be known once loops are unrolled; a dynamic index moves the tensor to local memory. Raises
    `LanguageError` for a dynamic layout.
    """
    static = _as_layout(layout)
    return Tensor(allocate(Space.REGISTER, dtype(element), cosize(static), VECTOR_BYTES), static)


def fragment_like(tensor: Any, element: Any = None) -> Tensor:
    """Make a register tensor with the shape of another tensor or layout, compact.

    The modes keep the order of the source's strides, so that contiguous elements stay contiguous in registers; modes
    with dynamic strides follow in their own order, and modes of stride 0 keep stride 0. The element type is that of the
    tensor unless given. `make_tensor_like` is CuTe's name for it.

    Raises `LanguageError` for a layout without an element type, `LayoutError` for a dynamic shape. Source: CuTe
    `make_tensor_like`.
    """
    return _like("fragment_like", tensor, element, make_layout_like)


make_tensor_like = fragment_like


def make_fragment_like(tensor: Any, element: Any = None) -> Tensor:
    """Make a register tensor with the shape of another tensor or layout, compact, its mode 0 column-major.

    Mode 0 of a partition holds the values of one instruction, which are contiguous in the fragment whatever their
    layout in memory. The other modes keep the order of the source's strides, and modes of stride 0 get elements of
    their own.

    Raises as `fragment_like`. Source: CuTe `make_fragment_like`.
    """
    return _like("make_fragment_like", tensor, element, layout_of_fragment)


def _like(name: str, tensor: Any, element: Any, arrange: Callable[[Layout], Layout]) -> Tensor:
    instance(f"tw.{name}", "tensor", tensor, (Tensor, Layout, ComposedLayout), "a tensor or a layout")
    layout = tensor.layout if isinstance(tensor, Tensor) else tensor
    if element is None and not isinstance(tensor, Tensor):
        raise LanguageError(
            f"tw.{name} of a layout needs an element type", help=f"pass one: {name}(layout, tw.float32)"
        )
    order = tensor.order if isinstance(tensor, GuardedTensor) else layout
    while isinstance(order, ComposedLayout):
        order = order.inner
    return registers(tensor.dtype if element is None else element, arrange(Layout(layout.shape, order.stride)))
