"""Shared memory's accesses as the IR alone gives them: what follows from the thread's index, for one block.

The IR is walked once with the values of all threads where they are known: thread indices, constants and what is
computed of them. Everything else (arguments, block indices, what memory holds) is unknown, and an access at an unknown
place is left out. Loops with known bounds run as long as the budget lasts, others once with their first index; of
a branch on something unknown both sides are walked.
"""

from __future__ import annotations

import numpy as np

from tilewright.backends.sim import program
from tilewright.backends.sim.compiler import Compiler, Step
from tilewright.backends.sim.findings import Collector
from tilewright.backends.sim.machine import Access, AccessKind, Machine
from tilewright.backends.sim.measure import Meter
from tilewright.backends.sim.values import Array, Frame, Lanes, Mask, at_least_2d, both, merge, without
from tilewright.figures import SharedBuffer
from tilewright.ir import ops
from tilewright.ir.core import Block, Buffer, Kernel, Op, Space, Value
from tilewright.ir.effects import Use
from tilewright.ir.instruction import Instruction, ScalarInstruction

_BUDGET = 20_000  # ops that are walked; after that every loop's body is walked once
_KINDS = {Use.READ: AccessKind.LOAD, Use.WRITE: AccessKind.STORE, Use.UPDATE: AccessKind.ATOMIC}


def predict(kernel: Kernel) -> list[SharedBuffer]:
    """Return the buffers in shared memory with the accesses of one block that are known without a run.

    A kernel that was traced without its block is walked for one warp, along x.
    """
    block = kernel.block or (kernel.warp_size, 1, 1)
    arrays: dict[Buffer, Array] = {b: np.zeros(1, b.dtype.numpy) for b in kernel.buffers() if b.space is Space.GLOBAL}
    machine = Machine(kernel, (1, 1, 1), block, arrays, Collector(raise_errors=False))
    meter = Meter(machine, kernel, None)
    machine.observers = (meter,)
    machine.begin(0, 1)
    with np.errstate(all="ignore"):
        _Walk(kernel, machine).block(kernel.body, None)
    return meter.launch("", None).buffers


class _Walk:
    """One walk over the IR. A slot that holds None is a value that is not known."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        self._machine = machine
        self._compiler = Compiler(machine, program.meaning, kernel)
        self._knows_block = kernel.block is not None
        self._steps: dict[Op, Step] = {}
        self._frame = Frame([])
        self._left = _BUDGET

    def block(self, block: Block, mask: Mask) -> None:
        """Walk the ops of a block."""
        for op in block.ops:
            self._left -= 1
            self._op(op, mask)

    def get(self, value: Value) -> Lanes:
        """Return a value, None where it is not known."""
        slot, values = self._compiler.slot(value), self._frame.values
        values.extend(self._compiler.initial[len(values) :])
        return values[slot]

    def put(self, value: Value, known: Lanes) -> None:
        """Set a value."""
        self.get(value)
        self._frame.values[self._compiler.slot(value)] = known

    def _op(self, op: Op, mask: Mask) -> None:
        if isinstance(op, ops.Special):
            group = op.name.partition(".")[0]
            is_known = group == "thread_idx" or (group == "block_dim" and self._knows_block)
            self.put(op.result, self._machine.special[op.name] if is_known else None)
        elif op.is_pure:
            self._pure(op)
        elif isinstance(op, ops.For):
            self._for(op, mask)
        elif isinstance(op, ops.While):
            self._while(op, mask)
        elif isinstance(op, ops.If):
            self._if(op, mask)
        else:
            self._memory(op, mask)
            for result in op.results:
                self.put(result, None)

    def _pure(self, op: Op) -> None:
        # What a user says that his PTX computes is not run on lanes that might not come there.
        is_plain = not isinstance(op, Instruction) or isinstance(op, ScalarInstruction)
        known = is_plain and all(self.get(v) is not None for v in op.operands)
        for result in op.results:
            self.get(result)
            if not known:
                self.put(result, None)
        if not known:
            return
        step = self._steps.get(op)
        if step is None:
            step = self._steps[op] = program.meaning(op, self._compiler)
        step(self._frame)

    def _memory(self, op: Op, mask: Mask) -> None:
        for use in op.uses:
            kind = _KINDS.get(use.use)
            if kind is None or use.index is None or use.buffer.space is not Space.SHARED:
                continue
            if op.effects.asynchronous is not None:
                kind = AccessKind.COPY_READ if kind is AccessKind.LOAD else AccessKind.COPY_WRITE
            at = self.get(use.index)
            if at is None:
                continue
            active = both(mask, self._machine.leading_lanes(use.lanes))
            self._machine.observe(Access(op, kind, self._machine.storages[use.buffer], at, use.elements, active))

    def _for(self, op: ops.For, mask: Mask) -> None:
        index, *carried = op.body.arguments
        for argument, value in zip(carried, op.init, strict=True):
            self.put(argument, self.get(value))
        start, stop, step = (self.get(v) for v in (op.start, op.stop, op.step))
        if any(bound is None or isinstance(bound, np.ndarray) for bound in (start, stop, step)):
            self.put(index, start)
            self.block(op.body, mask)
            self._leave(op.results, (None,) * len(op.results))
            return
        kind = op.start.dtype.numpy.type
        for i in range(int(start), int(stop), int(step)):
            self.put(index, kind(i))
            self.block(op.body, mask)
            self._advance(carried, op.body)
            if self._left < 0:
                self._leave(op.results, (None,) * len(op.results))
                return
        self._leave(op.results, [self.get(argument) for argument in carried])

    def _while(self, op: ops.While, mask: Mask) -> None:
        for arguments, block in ((op.condition.arguments, op.condition), (op.body.arguments, op.body)):
            for argument, value in zip(arguments, op.init, strict=False):
                self.put(argument, self.get(value))
            self.block(block, mask)
        self._leave(op.results, (None,) * len(op.results))

    def _if(self, op: ops.If, mask: Mask) -> None:
        chosen = self.get(op.condition)
        if chosen is not None and not isinstance(chosen, np.ndarray):
            side = op.then if chosen else op.otherwise
            self.block(side, mask)
            self._leave(op.results, [self.get(v) for v in ops.yielded(side)])
            return
        yes, no = (mask, mask) if chosen is None else (both(mask, chosen), without(mask, chosen))
        for side, active in ((op.then, yes), (op.otherwise, no)):
            if active is None or active.any():
                self.block(side, active)
            else:
                self._leave(ops.yielded(side), (None,) * len(op.results))
        for result, a, b in zip(op.results, ops.yielded(op.then), ops.yielded(op.otherwise), strict=True):
            known, other = self.get(a), self.get(b)
            if chosen is None or known is None or other is None:
                self.put(result, None)
            else:
                self.put(result, merge(at_least_2d(chosen), known, other))

    def _advance(self, carried: list[Value], body: Block) -> None:
        for argument, value in zip(carried, [self.get(v) for v in ops.yielded(body)], strict=True):
            self.put(argument, value)

    def _leave(self, results: tuple[Value, ...], known: Lanes) -> None:
        for result, value in zip(results, known, strict=True):
            self.put(result, value)
