"""Reads of shared memory that come late: while products of warpgroups read the same banks.

    wgmma; commit; s = smem[stage]; wait; arrive(empty)  ->  ...; wait; fence.proxy.async; arrive(empty)

An arrival orders what the thread has read before, and machine code has no more for it than the order of its
instructions. Products leave the banks no time for others, though, and an arrival takes another way: on an H200 reads
that were issued behind products came after it, when a bulk copy had filled the stage again, in 8 of 100 launches of a
kernel with packed weights. A fence between the generic and the async proxy waits for them; it takes 0 to 2 % there.

Source: PTX ISA, "Async proxy": what one proxy reads and another writes next is ordered by a fence between the two.
"""

from __future__ import annotations

from tilewright.instructions.proxy_fence import ProxyFence
from tilewright.ir.core import Block, Buffer, Kernel, Op, Space
from tilewright.ir.effects import Completion, Order, Proxy, Use
from tilewright.ir.ops import If

_MOST = 8  # more groups of products than a thread keeps under way: behind so many a read is over


def fence_late_reads(kernel: Kernel) -> None:
    """Put a fence before what tells others that a stage was read, where products may have held up the reads."""
    ops = list(kernel.body.walk())
    if any(op.effects.asynchronous is Completion.WARPGROUP for op in ops):
        uses = [use for op in ops if op.effects.proxy is Proxy.ASYNC for use in op.uses]
        # The mbarriers of bulk copies are updated, and those who wait for them need no fence.
        filled = {use.buffer.root for use in uses if use.use is Use.WRITE and use.buffer.root.space is Space.SHARED}
        _Walk(filled).block(kernel.body, _NOTHING, inserts=True)


# Groups of products that may be under way, and for each read behind them how many groups were committed since.
_State = tuple[int, frozenset[int]]
_NOTHING: _State = 0, frozenset()


def _either(one: _State, other: _State) -> _State:
    return max(one[0], other[0]), one[1] | other[1]


class _Walk:
    """A walk over what threads may do, in order; `filled` is the shared memory that bulk copies write."""

    def __init__(self, filled: set[Buffer]) -> None:
        self.filled = filled

    def block(self, block: Block, state: _State, *, inserts: bool) -> _State:
        """Return the state behind a block; insert fences, or only look."""
        ops: list[Op] = []
        for op in block.ops:
            if state[1] and Order.RELEASE in op.effects.order and op.effects.fences_proxy is None:
                state = state[0], frozenset()
                if inserts:
                    ops.append(ProxyFence("shared", location=op.location))
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
        return _either(state, self.once(op, state, inserts=inserts))

    def once(self, op: Op, state: _State, *, inserts: bool) -> _State:
        for inner in op.blocks:
            state = self.block(inner, state, inserts=inserts)
        return state

    def behind(self, op: Op, state: _State) -> _State:
        """Return the state behind an op without blocks."""
        groups, reads = state
        effects = op.effects
        if effects.asynchronous is Completion.WARPGROUP:
            groups = max(groups, 1)
        elif effects.commits is Completion.WARPGROUP:
            groups = min(groups + 1, _MOST)
            reads = frozenset(age + 1 for age in reads if age < _MOST)
        elif effects.completes is Completion.WARPGROUP:
            pending = effects.pending or 0
            groups, reads = min(groups, pending), frozenset(age for age in reads if age <= pending)
        elif effects.fences_proxy == "shared":
            reads = frozenset()
        elif groups and effects.proxy is Proxy.GENERIC and any(b.root in self.filled for b in op.buffers_read):
            reads |= {0}
        return groups, reads
