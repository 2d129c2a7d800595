"""Remove what nothing depends on: unused values, memory that is only written, empty branches and loops.

    x = a + b                   (x unused)                    ->
    x = smem[i]                 (x unused)                    ->
    registers[i] = x            (registers never read)        ->
    if (c) { } else { }                                       ->
    for (i = 0; i < n; i += 1) { }                            ->
    for (...; x = f(x)) { A }   (x used for the next x only)  ->  for (...) { A }

What is alive is found by marking, from the ops that act on the world (writes to global memory, barriers,
prints) backwards through operands, through what loops carry and branches yield, through the writes to
a buffer that something alive reads, and outwards to the enclosing ops. All else goes. A `while` stays, because
whether it ends is part of what it does.
"""

from __future__ import annotations

from collections import defaultdict

from tilewright.ir.core import Block, Buffer, Kernel, Op, Space, Value
from tilewright.ir.ops import Allocate, AllocateAt, For, If, Point, While, Yield
from tilewright.passes.structured_ops import Structured, carried, keep_slots, yield_of


def eliminate_dead_code(kernel: Kernel) -> None:
    """Remove all ops, loop-carried values and branch results that nothing alive depends on."""
    marker = _Marker()
    marker.survey(kernel.body, None)
    marker.mark()
    _sweep(kernel.body, marker)


class _Marker:
    def __init__(self) -> None:
        self.live: set[Op] = set()
        self.live_slots: dict[Op, set[int]] = defaultdict(set)
        self.parents: dict[Op, Op | None] = {}
        self.slots: dict[Value, tuple[Structured, int]] = {}
        self.inner_writers: dict[Buffer, list[Op]] = defaultdict(list)  # by root: writes that matter only if read
        self.allocations: dict[Buffer, Op] = {}
        self.pending: list[Op] = []

    def survey(self, block: Block, parent: Op | None) -> None:
        """Learn the structure of a block, and mark the ops that are alive by themselves."""
        for op in block.ops:
            self.parents[op] = parent
            if isinstance(op, (For, While, If)):
                self.survey_slots(op)
            elif isinstance(op, (Allocate, AllocateAt, Point)):
                self.allocations[op.buffer] = op
            elif not op.effects.removable:
                if not isinstance(op, Yield):
                    self.mark_op(op)
            else:
                self.survey_writes(op)

    def survey_writes(self, op: Op) -> None:
        written = op.buffers_written
        if any(buffer.space is Space.GLOBAL for buffer in written):
            self.mark_op(op)
        for buffer in written:
            self.inner_writers[buffer.root].append(op)

    def survey_slots(self, op: Structured) -> None:
        for inner in op.blocks:
            self.survey(inner, op)
        groups = [op.results]
        if isinstance(op, (For, While)):
            groups.append(carried(op))
        if isinstance(op, While):
            groups.append(op.condition.arguments)
            self.mark_op(op)
        for group in groups:
            self.slots.update((value, (op, n)) for n, value in enumerate(group))

    def mark(self) -> None:
        while self.pending:
            op = self.pending.pop()
            parent = self.parents[op]
            if parent is not None:
                self.mark_op(parent)
            for value in _needed(op):
                self.mark_value(value)
            for buffer in op.buffers:
                if buffer.root in self.allocations:
                    self.mark_op(self.allocations[buffer.root])
            for buffer in op.buffers_read:
                for writer in self.inner_writers.pop(buffer.root, ()):
                    self.mark_op(writer)

    def mark_op(self, op: Op) -> None:
        if op not in self.live:
            self.live.add(op)
            self.pending.append(op)

    def mark_value(self, value: Value) -> None:
        slot = self.slots.get(value)
        if slot is not None:
            self.mark_slot(*slot)
        elif value.definition is not None and value.definition in self.parents:
            self.mark_op(value.definition)

    def mark_slot(self, op: Structured, n: int) -> None:
        if n in self.live_slots[op]:
            return
        self.live_slots[op].add(n)
        self.mark_op(op)
        if isinstance(op, If):
            sources = [yield_of(op.then).values[n], yield_of(op.otherwise).values[n]]
        else:
            sources = [op.init[n], yield_of(op.body).values[n]]
        for value in sources:
            self.mark_value(value)


def _needed(op: Op) -> tuple[Value, ...]:
    """Return the values that an op needs whichever of its slots are alive."""
    if isinstance(op, For):
        return op.start, op.stop, op.step
    if isinstance(op, While):
        return yield_of(op.condition).values
    return op.operands


def _sweep(block: Block, marker: _Marker) -> None:
    block.ops = [op for op in block.ops if op in marker.live or isinstance(op, Yield)]
    for op in block.ops:
        if isinstance(op, (For, While, If)):
            keep_slots(op, sorted(marker.live_slots[op]))
            for inner in op.blocks:
                _sweep(inner, marker)
