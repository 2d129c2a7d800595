"""The loop over registers in which operations on tensors are computed, one after the other while nothing else happens.

What a loop holds of a buffer is known by how the loop goes through it. An operation may join if its indices step as the
loop's do, and every buffer that the loop writes is read and written at one index in each iteration. The loop is then
moved to the end of its block: it touches registers only, and what came since is arithmetic, or loads from elsewhere.

A sum whose operand is a product joins the loop of the product, so that both are one multiply-add wherever they stand:

    x * s - x.reduce("max")         the loop of x * s goes behind that of the maximum, which reads x and writes nothing
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tilewright.dtypes import DType
from tilewright.ir.core import Block, Buffer, Op, Space, Value, VectorType
from tilewright.ir.ops import Allocate, Binary, Extract, For, If, Inside, Load, Pack, Store, Yield
from tilewright.layout import ComposedLayout
from tilewright.source import SourceLocation
from tilewright.tensors import Tensor
from tilewright.trace.control import loop
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import Tracer
from tilewright.trace.walks import INDEX_NAMES, UNROLL_LIMIT, Walk, place, vector_limit

_MOST_LOOPS = 8  # that are remembered
Function: TypeAlias = "Callable[..., Any]"  # Any: of numbers of host or device
Key: TypeAlias = "tuple[Any, ...]"  # how a loop goes through a buffer: start, strides, swizzles


@dataclass(frozen=True)
class Computation:
    """What a loop computes of elements: a function, the type it gives, and the kind of `Binary` that does two at once.

    `name` is that of the operation: sums and products are known by it. `operands` are register tensors and numbers, and
    the loop steps through them and the target by `walk`.
    """

    name: str
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

    def ways(self, extents: tuple[int, ...], width: int) -> list[tuple[Buffer, Key]]:
        """Return how a loop goes through the buffers of the operands, and of the target."""
        fitted = _fit(self.walk, extents, width)
        assert fitted is not None, (self.walk, extents)
        return [(t.engine.buffer, way_through(t, s)) for t, s in zip(self.tensors, fitted.strides, strict=True)]

    @property
    def is_sum(self) -> bool:
        """Whether it and a product that is an operand may be one multiply-add."""
        return self.name in ("add", "sub")

    def is_product(self, loop: ElementLoop) -> bool:
        """Return whether the elements are products, as those that a loop holds may be, with either sign."""
        if self.name == "neg":
            return any(t.engine.buffer in loop.products for t in self.tensors[:-1])
        return self.name == "mul"

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
    products: set[Buffer] = field(default_factory=set)  # whose elements are products, or these with the other sign
    # With the line of each, and whether it is computed approximately.
    computations: list[tuple[Computation, SourceLocation | None, bool]] = field(default_factory=list)
    stores: dict[Key, list[Op]] = field(default_factory=dict)  # what writes an element in an iteration
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

    def taking(self, computation: Computation) -> ElementLoop | None:
        """Return the loop in which an operation may be computed, moved to the end of its block; None where it may not.

        That is this loop, or for the sum of a product one with more indices that computes the same.
        """
        paired = computation.goes_in_pairs
        extents = self._extents_for(computation)
        if self.width == 1 and paired:
            return None
        if extents is None or self.tracer.builder.block is not self.block or self.loop not in self.block.ops:
            return None
        buffers = [t.engine.buffer for t in computation.tensors]
        if self.width == 2 and not paired and not any(b in self.uses for b in buffers):
            return None  # nothing is gained by two elements at once
        if not self._agrees(computation, extents):
            return None
        is_related = any(buffer in self.written for buffer in buffers[:-1])
        after = itertools.takewhile(lambda op: op is not self.loop, reversed(self.block.ops))
        if not all(self._may_come_before(op, is_related, self._contracts(computation)) for op in after):
            return None
        assert self.loop is not None
        self.block.ops.remove(self.loop)
        if extents != self.extents:
            return self._with_indices(extents)
        self.block.ops.append(self.loop)  # what was computed since may be an operand; the loop has no results
        return self

    def _extents_for(self, computation: Computation) -> tuple[int, ...] | None:
        """Return the loop's extents where an operation steps so too, or more where the sum of a product needs them."""
        if _fit(computation.walk, self.extents, self.width) is not None:
            return self.extents
        if self.width > 1 or not self._contracts(computation):
            return None
        return _common_extents(self.extents, computation.walk.extents)

    def _contracts(self, computation: Computation) -> bool:
        """Say whether an operation adds to a product of this loop."""
        return computation.is_sum and any(t.engine.buffer in self.products for t in computation.tensors)

    def _agrees(self, computation: Computation, extents: tuple[int, ...]) -> bool:
        """Say whether an operation goes through what the loop writes as the loop does."""
        uses = self.uses
        if extents != self.extents:
            uses = {}
            for one, *_ in self.computations:
                for buffer, key in one.ways(extents, self.width):
                    uses.setdefault(buffer, set()).add(key)
        *reads, (target, way) = computation.ways(extents, self.width)
        for buffer, key in reads:
            if (buffer in self.written and uses[buffer] != {key}) or _other_view(buffer, self.written):
                return False
        return uses.get(target, {way}) == {way} and not _other_view(target, self.uses)

    def _with_indices(self, extents: tuple[int, ...]) -> ElementLoop:
        """Return a new loop over more indices that computes what this one, which has been taken out, computed."""
        place = self.tracer.place
        try:
            assert self.loop is not None
            self.tracer.place = self.loop.location
            new = ElementLoop.begin(self.tracer, extents, self.width)
            for computation, line, fastmath in self.computations:
                self.tracer.place = line
                with self.tracer.computing(fastmath=fastmath):
                    new.append(computation)
        finally:
            self.tracer.place = place
        new.passed = self.passed
        return new

    def _may_come_before(self, op: Op, is_related: bool, contracts: bool) -> bool:
        """Say whether the loop may come after an op instead of before it.

        It touches registers only, and nobody can tell, if the op does not touch them. But the text keeps the order of
        the kernel: the loop comes after loops and branches, of a reduction say, only where the operation that is to
        join needs its results, and after barriers, shuffles and stores only where a product and a sum become one.
        """
        if op in self.passed:
            return True
        if op.blocks and not is_related:
            return False
        return all((contracts or _is_arithmetic(inner)) and self._is_apart(inner) for inner in op.walk())

    def _is_apart(self, op: Op) -> bool:
        """Say whether an op shares no registers with the loop that either of them writes."""
        written = {buffer.family for buffer in self.written}
        used = {buffer.family for buffer in self.uses}
        return not any(b.family in written for b in op.buffers_read) and not any(
            b.family in used for b in op.buffers_written
        )

    def append(self, computation: Computation) -> None:
        """Add an operation to the loop's body."""
        self.computations.append((computation, self.tracer.location(), self.tracer.fastmath))
        walk, target = computation.walk, computation.target
        fitted = _fit(walk, self.extents, self.width)
        assert fitted is not None, (walk, self.extents)
        end = self.inner.ops.pop() if self.loop is not None else None
        steps = list(zip(fitted.strides, walk.strides, strict=True))
        of_operands = iter(steps)
        with self.tracer.inside(self.inner):
            taken = [self._load(x, *next(of_operands)) if isinstance(x, Tensor) else x for x in computation.operands]
            self._store(target, *steps[-1], self._apply(computation, taken))
        if computation.is_product(self):
            self.products.add(target.engine.buffer)
        else:
            self.products.discard(target.engine.buffer)
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
        key, before = way_through(tensor, steps), len(self.inner.ops)
        for op in self.stores.pop(key, ()):  # what an iteration writes twice is read from the loop between
            self.inner.ops.remove(op)
            before -= 1
        if self.width == 2 and value.vector is not None and _in_pairs(tensor, strides):
            tensor.engine.store_value(place(tensor, at), value.vector)
        else:
            for n, single in enumerate(value.lanes()):
                tensor.engine.store_value(place(tensor, at + n * step), single)
        self.stores[key] = [op for op in self.inner.ops[before:] if isinstance(op, Store)]
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
    """Return the loop in which an operation is computed: that of an operand or of the last operation, or a new one."""
    for candidate in _candidates(tracer, computation):
        taking = candidate.taking(computation)
        if taking is not None:
            tracer.elements.remove(candidate)
            tracer.elements.append(taking)
            return taking
    extents, width = computation.walk.extents, 2 if computation.goes_in_pairs else 1
    if extents:
        extents = (extents[0] // width, *extents[1:])
    new = ElementLoop.begin(tracer, extents, width)
    tracer.elements[: 1 - _MOST_LOOPS] = []
    tracer.elements.append(new)
    return new


def _candidates(tracer: Tracer, computation: Computation) -> list[ElementLoop]:
    """Return the loops that an operation may join: of a product that it adds to, the last one, those of operands."""
    loops: list[ElementLoop] = tracer.elements
    operands = [t.engine.buffer for t in computation.tensors[:-1]]
    products = [one for b in operands for one in loops if b in one.products] if computation.is_sum else []
    makers = [one for b in operands for one in reversed(loops) if b in one.written]
    return list(dict.fromkeys([*products, *loops[-1:], *makers]))


def _common_extents(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the fewest extents into which both split, innermost first: (32,) and (8, 4) into (8, 4)."""
    first, second = list(a), list(b)
    found = []
    while first and second:
        extent = min(first[0], second[0])
        if first[0] % extent or second[0] % extent:
            return None
        found.append(extent)
        for extents in (first, second):
            extents[0] //= extent
            if extents[0] == 1:
                extents.pop(0)
    return None if first or second else tuple(found)


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


def _is_arithmetic(op: Op) -> bool:
    """Say whether an op does nothing but compute, load, and write registers."""
    if isinstance(op, Store):
        return op.buffer.space is Space.REGISTER
    return op.is_pure or isinstance(op, (Load, Inside, Allocate, For, If, Yield))


def _other_view(buffer: Buffer, others: Iterable[Buffer]) -> bool:
    """Say whether one of several buffers shows the bytes of a buffer as another type."""
    return any(other.family is buffer.family and other is not buffer for other in others)


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
