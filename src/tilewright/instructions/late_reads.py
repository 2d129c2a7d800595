"""Reads of shared memory that come late: while products of warpgroups read the same banks.

    wgmma; commit; s = smem[stage]; wait; arrive(empty)  ->  ...; wait; fence.acq_rel.cta; arrive(empty)

An arrival orders what the thread has read before, and machine code has no more for it than the order of its
instructions. Products leave the banks no time for others, though, and an arrival takes another way: on an H200 reads
that were issued behind products came after it, when a bulk copy had filled the stage again, in 8 of 100 launches of a
kernel with packed weights. A fence waits for them: it is `MEMBAR.ALL.CTA`, and takes 1 to 3 % or nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.values import Frame
from tilewright.instructions.ordered_access import Fence
from tilewright.ir.core import Block, Buffer, Kernel, Op, Space
from tilewright.ir.effects import Completion, Effects, Order, Proxy, Use
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import For, If
from tilewright.passes.structured_ops import trip_bounds

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

_MOST = 8  # groups of products behind a read that are counted: more than a thread keeps under way


@dataclass(eq=False)
class ReadFence(Instruction):
    """Wait for what the thread has read of shared memory.

    In machine code `tw.threadfence("cta")`; but that says something to other threads, which the simulator would follow.
    """

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False)
    COUNTED: ClassVar[str | None] = "fence"
    RESERVED: ClassVar[str] = "fence_reads"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("wgmma", "take a MFMA atom of tw.atoms")

    def simulate(self, compiler: Compiler) -> Step:
        def run(frame: Frame) -> None:
            """Do nothing: the simulator reads at once."""

        return run

    def cuda(self, printer: Printer) -> None:
        printer.prelude.need(f"""\
// Behind it this thread's reads of shared memory are over, which products of warpgroups may hold up.
{FUNCTION} void fence_reads() {{
    asm volatile("fence.acq_rel.cta;" ::: "memory");
}}""")
        printer.statement("fence_reads();", self)


def fence_late_reads(kernel: Kernel) -> None:
    """Put a fence before what tells others that a stage was read, where products may have held up the reads."""
    ops = list(kernel.body.walk())
    if any(op.effects.asynchronous is Completion.WARPGROUP for op in ops):
        uses = [use for op in ops if op.effects.proxy is Proxy.ASYNC for use in op.uses]
        # The mbarriers of bulk copies are updated, and those who wait for them need no fence.
        filled = {use.buffer.root for use in uses if use.use is Use.WRITE and use.buffer.root.space is Space.SHARED}
        _Walk(filled).block(kernel.body, _NOTHING, inserts=True)


# Whether products were begun and not committed, both where that depends on the way to here; and for each read that may
# be late how many groups were begun since, for which the machine reads behind it: -1 where one was begun before.
_State = tuple[frozenset[bool], frozenset[int]]
_NOTHING: _State = frozenset({False}), frozenset()


def _either(one: _State, other: _State) -> _State:
    return one[0] | other[0], one[1] | other[1]


def _tells(op: Op) -> bool:
    """Whether an op lets others know of what was done before; of a loop with such an op the fence is needed once."""
    if isinstance(op, Fence):
        return False  # it waits for reads itself
    inside = () if isinstance(op, If) else (inner for block in op.blocks for inner in block.walk())
    return any(Order.RELEASE in each.effects.order for each in (op, *inside))


class _Walk:
    """A walk over what threads may do, in order; `filled` is the shared memory that bulk copies write.

    Reads may be late whether or not the thread's own products are under way: other warpgroups have theirs.
    """

    def __init__(self, filled: set[Buffer]) -> None:
        self.filled = filled

    def block(self, block: Block, state: _State, *, inserts: bool) -> _State:
        """Return the state behind a block; insert fences, or only look."""
        ops: list[Op] = []
        for op in block.ops:
            if state[1] and _tells(op):
                state = state[0], frozenset()
                if inserts:
                    ops.append(ReadFence(location=op.location))
            ops.append(op)
            state = self.nested(op, state, inserts) if op.blocks else self.behind(op, state)
        if inserts:
            block.ops = ops
        return state

    def nested(self, op: Op, state: _State, inserts: bool) -> _State:
        """Return the state behind a branch or a loop, whose iterations follow each other."""
        if isinstance(op, If):
            return _either(*(self.block(inner, state, inserts=inserts) for inner in op.blocks))
        before = None
        while before != state:
            before = state
            state = _either(state, self.once(op, state, inserts=False))
        behind = self.once(op, state, inserts=inserts)
        bounds = trip_bounds(op) if isinstance(op, For) else None
        return behind if bounds is not None and bounds[0] > 0 else _either(state, behind)

    def once(self, op: Op, state: _State, *, inserts: bool) -> _State:
        for inner in op.blocks:
            state = self.block(inner, state, inserts=inserts)
        return state

    def behind(self, op: Op, state: _State) -> _State:
        """Return the state behind an op without blocks."""
        begun, reads = state
        effects = op.effects
        if effects.asynchronous is Completion.WARPGROUP:
            begun = frozenset({True})
        elif effects.commits is Completion.WARPGROUP:
            if False not in begun:
                reads = frozenset(min(age + 1, _MOST) for age in reads)
            begun = frozenset({False})
        elif effects.completes is Completion.WARPGROUP:
            reads = frozenset(age for age in reads if age <= (effects.pending or 0))
        elif effects.fences_proxy == "shared" or isinstance(op, Fence):
            reads = frozenset()
        elif effects.proxy is Proxy.GENERIC and any(b.root in self.filled for b in op.buffers_read):
            reads |= {-1 if True in begun else 0}
        return begun, reads
