"""Operations on all elements of tensors: one loop over registers for an expression, in pairs where they fit two.

    d = (x - m) * s          for (i = 0; i < 8; i += 1)
                                 d[i] = (x[i] - m) * s[i];

Each operation makes a fragment, computed in the loop of the operation before it where that may be (`element_loops`).
A value that the loop holds is then used as it is, and a fragment that nothing else reads goes with the dead code.

Operands in global and shared memory are loaded into fragments first, by the widest accesses that layout and alignment
allow, and results are stored to memory likewise. Guarded tiles are copied as by `tw.copy`: what is outside reads as the
fill, and is not written.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from tilewright.dtypes import FLOAT8, DType, bfloat16, float16
from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Space, Value, VectorType
from tilewright.ir.fold import identity_of
from tilewright.ir.ops import Pack
from tilewright.layout import ComposedLayout, Layout, make_layout_like
from tilewright.layout.layouts import flat_modes
from tilewright.layout.tuples import map_leaves, show
from tilewright.tensors import GuardedTensor, Tensor
from tilewright.tensors.broadcasting import broadcast_layout, broadcast_shapes
from tilewright.trace.edges import copy_guarded, fill_guarded
from tilewright.trace.element_loops import Computation, Function, loop_for, way_through
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import current
from tilewright.trace.walks import common_walk, convert_float8, each_step, place, widest

# Operations of two operands that have an instruction for two 16-bit floats at once.
_PAIRED = {"add": "add", "sub": "sub", "mul": "mul", "minimum": "min", "maximum": "max"}


# --- what tensors ask for ------------------------------------------------------------------------------


def compute(name: str, function: Function, operands: tuple[Any, ...]) -> Tensor:
    """Return a fragment of `function` of the operands' elements, with the shapes broadcast."""
    if name == "pos" and not _is_fragment(operands[0]):
        return in_registers(operands[0], keep_repeats=False)
    return _Operation(name, function, operands).into(None)


def update(target: Tensor, name: str, function: Function, other: Any) -> None:
    """Write `function` of the elements of a tensor and of another operand back to the tensor."""
    _refuse_repeats(target, name)
    if _is_fragment(target):
        _Operation(name, function, (target, other)).into(target)
    else:
        assign(target, compute(name, function, (target, other)))


def assign(target: Tensor, value: Any) -> None:
    """Write a number to all elements, or the elements of a tensor, broadcast, to those of another."""
    if not isinstance(value, Tensor):
        _fill(target, value)
        return
    if not hasattr(value.engine, "buffer"):
        raise LanguageError(
            f"a tensor of a kernel is assigned from {value.title}",
            help="pass the array to the kernel as an argument",
        )
    if _is_same(target, value):
        return  # `x[i:j] += 1` assigns what it has updated
    if isinstance(target, GuardedTensor):
        _demand_static(target)
    if not _is_fragment(value) and (_is_static(value.shape) or isinstance(value, GuardedTensor)):
        value = in_registers(value)  # all elements are read before the first is written
    shape = broadcast_shapes("an assignment", [target.shape, value.shape], [target.title, value.title])
    _demand_extents(shape, target, value)
    _demand_conversion(value.dtype, target)
    _refuse_repeats(target, "an assignment")
    source = Tensor(value.engine, broadcast_layout(value.layout, shape))
    if _is_fragment(target):
        _Operation("an assignment", _itself, (source,)).into(target)
        return
    if source.engine.buffer is target.engine.buffer:
        _demand_static(target)
    if source.dtype is not target.dtype or not _moves_directly(source, target):
        _demand_static(target)
        source = _Operation("an assignment", lambda x: x.to(target.dtype), (source,)).into(None, target.layout)
    move(source, target)


def _moves_directly(source: Tensor, target: Tensor) -> bool:
    """Say whether the source's order of registers prevents no wide access of the target."""
    if source.engine.buffer.space is not Space.REGISTER:
        return True
    best = widest(common_walk((target,), "an assignment"), (target,))[0]
    return widest(common_walk((source, target), "an assignment"), (source, target))[0] == best


def convert_fragment(source: Tensor, target: Tensor, element: DType) -> None:
    """Write target[c] = source[c].to(element) for every coordinate c, to registers."""
    if isinstance(source, GuardedTensor):
        source = in_registers(source)
    if element in FLOAT8 or source.dtype in FLOAT8:
        convert_float8(source, target, element)
    else:
        _Operation("tensor.to", lambda x: x.to(element), (source,)).into(target)


def in_registers(tensor: Tensor, *, keep_repeats: bool = True) -> Tensor:
    """Return a tensor of registers with the elements of one in any memory.

    Elements that repeat, at stride 0, are loaded once, and stay one where `keep_repeats` says so.
    """
    if _is_fragment(tensor):
        return tensor
    _demand_static(tensor)
    tracer = current("reading a tensor")
    before = len(tracer.builder.block.ops)
    order = tensor.order if isinstance(tensor, GuardedTensor) else tensor.layout
    fragment = _fragment(tensor.engine, tensor.dtype, order, tensor.shape, keep_repeats=keep_repeats)
    if tensor.engine.name:
        fragment.engine.buffer.name = f"{tensor.engine.name}_values"
    move(tensor, fragment)
    if tensor.engine.buffer.space is not Space.REGISTER:
        for loop in tracer.elements:
            loop.passed.update(tracer.builder.block.ops[before:])
    return fragment


def _is_fragment(tensor: Tensor) -> bool:
    """Say whether all elements of a tensor are registers, which an operation takes as they are."""
    return tensor.engine.buffer.space is Space.REGISTER and not isinstance(tensor, GuardedTensor)


def move(source: Tensor, target: Tensor) -> None:
    """Copy elements by the widest accesses that both tensors allow."""
    if isinstance(source, GuardedTensor) or isinstance(target, GuardedTensor):
        copy_guarded(source, target)
        return
    source.engine.demand_whole(source.layout)
    target.engine.demand_whole(target.layout)
    walk = common_walk((source, target), "an assignment")
    width, walk = widest(walk, (source, target))
    type = source.dtype if width == 1 else VectorType(source.dtype, width)

    def step(steps: tuple[Any, ...]) -> None:
        value = source.engine.load_value(place(source, steps[0]), type)
        target.engine.store_value(place(target, steps[1]), value)

    each_step(walk, step)


def _fill(target: Tensor, value: Any) -> None:
    """Write one number to all elements, in vectors where the layout allows them."""
    scalar = as_scalar(value) if hasattr(value, "dtype") else as_scalar(value, target.dtype)
    _demand_conversion(scalar.dtype, target)
    if _is_fragment(target):
        _Operation("an assignment", _itself, (scalar.to(target.dtype),)).into(target)
        return
    if isinstance(target, GuardedTensor):
        if not _is_static(target.shape):
            fill_guarded(target, scalar)
            return
        fragment = _fragment(target.engine, target.dtype, target.layout, target.shape)
        _fill(fragment, scalar)
        move(fragment, target)
        return
    target.engine.demand_whole(target.layout)
    width, walk = widest(common_walk((target,), "an assignment"), (target,))
    held = scalar.to(target.dtype).value
    if width > 1:
        held = current("an assignment").pure(Pack((held,) * width), VectorType(target.dtype, width))
    each_step(walk, lambda steps: target.engine.store_value(place(target, steps[0]), held))


def _fragment(
    engine: Any,  # Any: see `Tensor.engine`
    dtype: DType,
    order: Layout | ComposedLayout | None,
    shape: Any,
    *,
    keep_repeats: bool = False,
) -> Tensor:
    """Make compact registers of a shape, whose modes run in the order of a layout's strides where it is congruent."""
    layout = Layout(shape)
    if order is not None and order.shape == shape:
        behind = itertools.count(1 << 40)  # above every static stride of what fits into registers

        def key(step: Any) -> int:
            if type(step) is int and (step != 0 or keep_repeats):
                return abs(step)
            return next(behind)

        layout = make_layout_like(Layout(shape, map_leaves(key, order.stride)))
    return Tensor(engine.fragment(layout, dtype), layout)


# --- what is refused -----------------------------------------------------------------------------------


def stores_implicitly(source: DType, target: DType) -> bool:
    """Say whether a store converts: NumPy's same-kind rule, bool to anything."""
    if source is target or source.kind == "bool":
        return True
    return target.is_float or (source.is_integer and target.is_integer)


def demand_conversion(source: DType, target: DType, name: str) -> None:
    """Refuse to store a type in a tensor to which it is not converted implicitly."""
    if not stores_implicitly(source, target):
        article = "an" if source.name.startswith("int") else "a"
        raise LanguageError(
            f"{name or 'the tensor'} is {target}, and {article} {source} is not converted to it implicitly",
            help=f"write value.to({target!r})",
        )


def _demand_conversion(source: DType, target: Tensor) -> None:
    demand_conversion(source, target.dtype, target.engine.name)


def _demand_static(tensor: Tensor) -> None:
    if not _is_static(tensor.shape):
        raise LanguageError(
            f"the elements of {tensor.title} would be held in registers, which needs a static shape",
            help="tile it by static extents first (tw.local_tile), or take one element: t[i]",
        )


def _is_static(shape: Any) -> bool:
    return all(type(extent) is int for extent in flat_modes(Layout(shape))[0])


def _size(shape: Any) -> Any:
    return Layout(shape).size


def _demand_extents(shape: Any, target: Tensor, value: Tensor) -> None:
    """Refuse to write to a tensor whose shape the value's would widen."""
    pairs = zip(_extents(shape), _extents(target.shape), strict=True)
    if any(type(a) is not type(b) or (type(a) is int and a != b) for a, b in pairs):
        raise LanguageError(
            f"values of shape {show(value.shape)} do not fit a tensor of shape {show(target.shape)}",
            details=[value.title, target.title],
            help="extents have to be equal, or 1 in the values",
        )


def _extents(shape: Any) -> list[Any]:
    return [Layout(mode).size for mode in (shape if type(shape) is tuple else (shape,))]


def _refuse_repeats(target: Tensor, name: str) -> None:
    layout = target.layout
    while isinstance(layout, ComposedLayout):
        layout = layout.inner
    for extent, stride in zip(*flat_modes(layout), strict=True):
        if type(stride) is int and stride == 0 and not (type(extent) is int and extent == 1):
            raise LanguageError(
                f"{name}: {target.title} holds elements several times",
                help="make a new fragment, as in r = r + s, or write to a tensor without strides of 0",
            )


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Say whether two tensors are certain to be the same elements in the same places."""
    if not _have_same_edge(a, b):
        return False
    if a.engine.buffer is not b.engine.buffer or not _same_number(a.engine.start, b.engine.start):
        return False
    x, y = a.layout, b.layout
    while isinstance(x, ComposedLayout) and isinstance(y, ComposedLayout):
        if x.outer != y.outer or not _same_number(x.offset, y.offset):
            return False
        x, y = x.inner, y.inner
    if not (isinstance(x, Layout) and isinstance(y, Layout)):
        return False
    first, second = flat_modes(x), flat_modes(y)
    pairs = [*zip(first[0], second[0], strict=False), *zip(first[1], second[1], strict=False)]
    return len(first[0]) == len(second[0]) and all(_same_number(m, n) for m, n in pairs)


def _have_same_edge(a: Tensor, b: Tensor) -> bool:
    """Say whether the same elements of two views are certain to be inside."""
    if not (isinstance(a, GuardedTensor) and isinstance(b, GuardedTensor)):
        return isinstance(a, GuardedTensor) == isinstance(b, GuardedTensor)
    x, y = a.edge, b.edge
    pairs = [(x.begin, y.begin), (x.end, y.end), (x.base, y.base), (x.own, y.own)]
    return a.where == b.where and all(_same_number(m, n) for p, q in pairs for m, n in zip(p, q, strict=True))


def _same_number(a: Any, b: Any) -> bool:
    if isinstance(a, Scalar) and isinstance(b, Scalar):
        return a.value is b.value or bool(identity_of(a.value) == identity_of(b.value))
    return type(a) is type(b) is int and a == b


# --- one operation -------------------------------------------------------------------------------------


class _Operation:
    """A function of elements, about to be computed into registers."""

    def __init__(self, name: str, function: Function, operands: tuple[Any, ...]) -> None:
        self.name, self.function = name, function
        self.tracer = current(name)
        for x in operands:
            if isinstance(x, Tensor) and not hasattr(x.engine, "buffer"):
                raise LanguageError(
                    f"{name}: {x.title} is not memory of the kernel",
                    help="pass an array to the kernel as an argument; of an identity tensor, take its elements",
                )
        tensors = [x for x in operands if isinstance(x, Tensor)]
        for t in tensors:
            _demand_static(t)
        self.shape = broadcast_shapes(name, [t.shape for t in tensors], [t.title for t in tensors]) if tensors else 1
        self.operands = [in_registers(x) if isinstance(x, Tensor) else x for x in operands]
        loaded = [x for x in self.operands if isinstance(x, Tensor)]
        self.order = next((t.layout for t in loaded if t.size == _size(self.shape)), None)
        self.dtype = self._result_type()

    def _result_type(self) -> DType:
        """Return the element type that the function gives, by tracing it on stand-ins."""
        with self.tracer.inside(Block()):
            values = [Scalar(Value(x.dtype)) if isinstance(x, Tensor) else x for x in self.operands]
            return as_scalar(self.function(*values)).dtype

    def into(self, target: Tensor | None, order: Layout | ComposedLayout | None = None) -> Tensor:
        """Compute into a register tensor, by default a new fragment in the order of a layout or of an operand."""
        if target is None:
            engine = next(x.engine for x in self.operands if isinstance(x, Tensor))
            target = _fragment(engine, self.dtype, order or self.order, self.shape)
        else:
            _demand_conversion(self.dtype, target)
            self._demand_shape(target)
        operands = [
            Tensor(x.engine, broadcast_layout(x.layout, target.shape)) if isinstance(x, Tensor) else x
            for x in self.operands
        ]
        tensors = [x for x in operands if isinstance(x, Tensor)]
        walk = common_walk((*tensors, target), self.name)
        keys = [way_through(t, s) for t, s in zip((*tensors, target), walk.strides, strict=True)]
        others = [k for t, k in zip(tensors, keys, strict=False) if t.engine.buffer is target.engine.buffer]
        if any(key != keys[-1] for key in others):
            assign(target, self.into(None))  # all elements are read before the first is written
            return target
        pair = self._pair_kind(operands, target)
        computation = Computation(self.name, self.function, self.dtype, pair, tuple(operands), target, walk)
        loop_for(self.tracer, computation).append(computation)
        return target

    def _demand_shape(self, target: Tensor) -> None:
        tensors = [x for x in self.operands if isinstance(x, Tensor)]
        if tensors:
            shape = broadcast_shapes(self.name, [target.shape, self.shape], [target.title, *(t.title for t in tensors)])
            _demand_extents(shape, target, tensors[0])

    def _pair_kind(self, operands: Sequence[Any], target: Tensor) -> str | None:
        """Return the kind of the instruction that computes two elements at once, where there is one."""
        kind = _PAIRED.get(self.name)
        same = all(x.dtype is self.dtype for x in operands if isinstance(x, Tensor))
        if kind is None or len(operands) != 2 or not same or target.dtype is not self.dtype:
            return None
        return kind if self.dtype in (float16, bfloat16) else None


def _itself(x: Any) -> Any:
    return x
