"""The loop over registers in which operations on tensors are computed, one after the other while nothing else happens.

What a loop holds of a buffer is known by how the loop goes through it. An operation may join if its indices step as the
loop's do, and every buffer that the loop writes is read and written at one index in each iteration. The loop is then
moved to the end of its block: it touches registers only, and what came since is arithmetic, or loads from elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tilewright.dtypes import DType
from tilewright.ir.core import Block, Buffer, Op, Value, VectorType
from tilewright.ir.ops import Allocate, Binary, Extract, For, Inside, Load, Pack
from tilewright.layout import ComposedLayout
from tilewright.tensors import Tensor
from tilewright.trace.control import loop
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import Tracer
from tilewright.trace.walks import INDEX_NAMES, UNROLL_LIMIT, Walk, place, vector_limit

Function: TypeAlias = "Callable[..., Any]"  # Any: of numbers of host or device
Key: TypeAlias = "tuple[Any, ...]"  # how a loop goes through a buffer: start, strides, swizzles


@dataclass(frozen=True)
class Computation:
    """What a loop computes of elements: a function, the type it gives, and the kind of `Binary` that does two at once.

    `operands` are register tensors and numbers, and the loop steps through them and the target by `walk`.
    """

    function: Function
    dtype: DType
    pair: str | None
    operands: tuple[Any, ...]
    target: Tensor
    walk: Walk

    @property
    def tensors(self) -> list[Tensor]:
        """The operands that are tensors, and the target: in the order of the walk's strides."""
        return [*(x for x in self.operands if isinstance(x, Tensor)), self.target]

    @property
    def goes_in_pairs(self) -> bool:
        """Whether two elements are computed at once: all operands have them as neighbours, or one for both."""
        extents = self.walk.extents
        if self.pair is None or not extents or extents[0] % 2:
            return False
        return all(_in_pairs(t, s) or s[0] == 0 for t, s in zip(self.tensors, self.walk.strides, strict=True))


@dataclass(eq=False)
class _Elements:
    """What one iteration holds of a tensor: its elements one by one, or two of them as a vector, or both."""

    tracer: Tracer
    single: tuple[Value, ...] | None = None
    vector: Value | None = None

    def lanes(self) -> tuple[Value, ...]:
        if self.single is None:
            assert self.vector is not None
            self.single = tuple(self.tracer.pure(Extract(self.vector, n), self.vector.dtype) for n in range(2))
        return self.single

    def pair(self) -> Value:
        if self.vector is None:
            assert self.single is not None
            self.vector = self.tracer.pure(Pack(self.single), VectorType(self.single[0].dtype, 2))
        return self.vector


@dataclass(eq=False)
class ElementLoop:
    """A loop nest over registers, to which operations are added while nothing else has happened since.

    `extents` are those of its indices, innermost first, `width` is the number of elements in one iteration. `held` has
    what was read or written in the iteration, `uses` how each buffer was gone through.
    """

    tracer: Tracer
    block: Block
    inner: Block
    loop: For | None
    extents: tuple[int, ...]
    width: int
    indices: tuple[Any, ...]
    held: dict[Key, _Elements] = field(default_factory=dict)
    uses: dict[Buffer, set[Key]] = field(default_factory=dict)
    written: set[Buffer] = field(default_factory=set)
    passed: set[Op] = field(default_factory=set)  # loads into fragments of their own: they may come before the loop

    @staticmethod
    def begin(tracer: Tracer, extents: tuple[int, ...], width: int) -> ElementLoop:
        """Emit a nest of loops without a body."""
        block = tracer.builder.block
        count = len(block.ops)
        indices: list[Any] = [0] * len(extents)
        inner: list[Block] = []
        size = 1
        for extent in extents:
            size *= extent
        names = iter(INDEX_NAMES)

        def level(mode: int) -> None:
            if mode < 0:
                inner.append(tracer.builder.block)
            elif extents[mode] == 1:
                level(mode - 1)
            else:

                def at(index: Scalar) -> None:
                    indices[mode] = index
                    level(mode - 1)

                loop(0, extents[mode], 1, at, unroll=True if size <= UNROLL_LIMIT else None, name=next(names))

        level(len(extents) - 1)
        outer = block.ops[-1] if len(block.ops) > count else None
        assert outer is None or isinstance(outer, For), outer
        return ElementLoop(tracer, block, inner[0], outer, extents, width, tuple(indices))

    def takes(self, computation: Computation) -> bool:
        """Say whether an operation may be computed in this loop, and move the loop to the end of its block."""
        paired = computation.goes_in_pairs
        fitted = _fit(computation.walk, self.extents, self.width)
        if self.width == 1 and paired:
            return False
        if fitted is None or self.tracer.builder.block is not self.block or self.loop not in self.block.ops:
            return False
        buffers = [t.engine.buffer for t in computation.tensors]
        keys = [way_through(t, s) for t, s in zip(computation.tensors, fitted.strides, strict=True)]
        if self.width == 2 and not paired and not any(b in self.uses for b in buffers):
            return False  # nothing is gained by two elements at once
        for buffer, key in zip(buffers[:-1], keys, strict=False):
            if buffer in self.written and self.uses[buffer] != {key}:
                return False
        if self.uses.get(buffers[-1], {keys[-1]}) != {keys[-1]}:
            return False
        after = itertools.takewhile(lambda op: op is not self.loop, reversed(self.block.ops))
        if not all(self._may_come_before(op) for op in after):
            return False
        assert self.loop is not None
        self.block.ops.remove(self.loop)
        self.block.ops.append(self.loop)  # what was computed since may be an operand; the loop has no results
        return True

    def _may_come_before(self, op: Op) -> bool:
        """Say whether the loop, which only touches registers, may come after an op instead of before it."""
        if isinstance(op, (Load, Inside)):
            return op.buffer not in self.uses
        return op.is_pure or isinstance(op, Allocate) or op in self.passed

    def append(self, computation: Computation) -> None:
        """Add an operation to the loop's body."""
        walk, target = computation.walk, computation.target
        fitted = _fit(walk, self.extents, self.width)
        assert fitted is not None, (walk, self.extents)
        end = self.inner.ops.pop() if self.loop is not None else None
        steps = list(zip(fitted.strides, walk.strides, strict=True))
        of_operands = iter(steps)
        with self.tracer.inside(self.inner):
            taken = [self._load(x, *next(of_operands)) if isinstance(x, Tensor) else x for x in computation.operands]
            self._store(target, *steps[-1], self._apply(computation, taken))
        if end is not None:
            self.inner.ops.append(end)

    def _apply(self, computation: Computation, taken: list[Any]) -> _Elements:
        dtype = computation.dtype
        if self.width == 2 and computation.pair is not None:
            pairs = [(x if isinstance(x, _Elements) else self._repeated(x, dtype)).pair() for x in taken]
            return _Elements(
                self.tracer, vector=self.tracer.pure(Binary(computation.pair, pairs[0], pairs[1]), VectorType(dtype, 2))
            )
        results = []
        for lane in range(self.width):
            values = [Scalar(x.lanes()[lane]) if isinstance(x, _Elements) else x for x in taken]
            results.append(as_scalar(computation.function(*values)).to(computation.target.dtype).value)
        return _Elements(self.tracer, single=tuple(results))

    def _repeated(self, number: Any, dtype: DType) -> _Elements:
        return _Elements(self.tracer, single=(as_scalar(number, dtype).value,) * 2)

    def _load(self, tensor: Tensor, steps: tuple[Any, ...], strides: tuple[Any, ...]) -> _Elements:
        key = way_through(tensor, steps)
        held = self.held.get(key)
        if held is not None:
            return held
        at, step = self._offset(steps), self._lane_step(strides)
        if self.width == 2 and _in_pairs(tensor, strides):
            loaded = tensor.engine.load_value(place(tensor, at), VectorType(tensor.dtype, 2))
            elements = _Elements(self.tracer, vector=loaded)
        else:
            lanes = 1 if step == 0 else self.width
            singles = [tensor.engine.load_value(place(tensor, at + n * step), tensor.dtype) for n in range(lanes)]
            elements = _Elements(self.tracer, single=tuple(singles * (self.width // lanes)))
        self.held[key] = elements
        self.uses.setdefault(tensor.engine.buffer, set()).add(key)
        return elements

    def _store(self, tensor: Tensor, steps: tuple[Any, ...], strides: tuple[Any, ...], value: _Elements) -> None:
        at, step = self._offset(steps), self._lane_step(strides)
        if self.width == 2 and value.vector is not None and _in_pairs(tensor, strides):
            tensor.engine.store_value(place(tensor, at), value.vector)
        else:
            for n, single in enumerate(value.lanes()):
                tensor.engine.store_value(place(tensor, at + n * step), single)
        key = way_through(tensor, steps)
        self.held[key] = value
        self.uses.setdefault(tensor.engine.buffer, set()).add(key)
        self.written.add(tensor.engine.buffer)

    def _offset(self, strides: Sequence[Any]) -> Any:
        total: Any = 0
        for index, stride in zip(self.indices, strides, strict=True):
            if not (type(stride) is int and stride == 0) and not (type(index) is int and index == 0):
                total = total + index * stride
        return total

    def _lane_step(self, strides: tuple[Any, ...]) -> Any:
        return strides[0] if strides else 0


def loop_for(tracer: Tracer, computation: Computation) -> ElementLoop:
    """Return the loop in which an operation is computed: that of the one before it, or a new one."""
    last = tracer.elements
    if isinstance(last, ElementLoop) and last.takes(computation):
        return last
    extents, width = computation.walk.extents, 2 if computation.goes_in_pairs else 1
    if extents:
        extents = (extents[0] // width, *extents[1:])
    tracer.elements = new = ElementLoop.begin(tracer, extents, width)
    return new


def _fit(walk: Walk, extents: tuple[int, ...], width: int) -> Walk | None:
    """Return a walk in the steps of a loop: `width` elements of the first mode at once, modes split where it splits."""
    if not walk.extents or not extents:
        return walk if walk.extents == extents else None
    wanted = [extents[0] * width, *extents[1:]]
    pending = list(zip(walk.extents, zip(*walk.strides, strict=True), strict=True))
    columns: list[tuple[Any, ...]] = []
    for extent in wanted:
        if not pending or pending[0][0] % extent:
            return None
        size, strides = pending.pop(0)
        columns.append(strides)
        if size != extent:
            pending.insert(0, (size // extent, tuple(d * extent for d in strides)))
    if pending:
        return None
    columns[0] = tuple(d * width for d in columns[0])
    return Walk(extents, tuple(zip(*columns, strict=True)))


def _in_pairs(tensor: Tensor, strides: tuple[Any, ...]) -> bool:
    """Say whether two neighbours along the first mode are one aligned vector in every iteration."""
    return bool(strides) and strides[0] == 1 and vector_limit(tensor, strides) % 2 == 0


def way_through(tensor: Tensor, strides: tuple[Any, ...]) -> Key:
    """Return what tells apart two ways of going through a buffer."""
    start, layout = tensor.engine.start, tensor.layout
    outer: list[Any] = []
    while isinstance(layout, ComposedLayout):
        outer += [layout.outer, layout.offset]
        layout = layout.inner
    parts = (start, *strides, *outer)
    return (tensor.engine.buffer, *(p.value if isinstance(p, Scalar) else p for p in parts))
