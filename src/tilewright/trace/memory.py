"""Storage of a kernel: shared memory and registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.arch import VECTOR_BYTES
from tilewright.arguments import instance, integer
from tilewright.dtypes import DType, dtype, int32, int64
from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Buffer, LaunchSized, Space, Value
from tilewright.ir.ops import AllocateAt, Binary, constant
from tilewright.layout import ComposedLayout, Layout, cosize, make_layout_like
from tilewright.layout import make_fragment_like as layout_of_fragment
from tilewright.layout.tuples import map_leaves
from tilewright.tensors import GuardedTensor, Tensor
from tilewright.trace.engine import BufferEngine, allocate, demand_storage
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import Tracer, current, known_to_host
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
        return Tensor(_allocate_sized(dtype(element), static, alignment), static)
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


def _allocate_sized(kind: DType, layout: Layout | ComposedLayout, alignment: int) -> BufferEngine:
    """Begin a shared buffer for a layout that the launch knows, behind those of static sizes, and return its engine.

        tile = tw.shared(tw.float32, (n,))            tile at 0
        rows = tw.shared(tw.bfloat16, (m, 8))         rows at the end of tile, rounded up to the alignment

    The host computes sizes and places in 64 bits before the launch, and asks for so much; the kernel computes the
    places, which then fit into 32. Raises `LanguageError` for a layout that only the device knows, and inside of loops
    and branches.
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
