"""Give every shared buffer its bytes, and let buffers that are never in use together share them.

    A = shared 4096 bytes             A at 0
    ... A ...                         ...
    barrier of the block          ->  barrier
    B = shared 2048 bytes             B at 0
    ... B ...                         ...

Two buffers share bytes only if a barrier of the whole block separates the last access to one from the first
access to the other. Only barriers outside of loops and branches count: all threads pass each exactly once. An
access inside a loop or branch counts for all of it, because the next iteration comes back to it. The destination of
an asynchronous copy is in use until a wait outside all loops and branches that surely covers the copy. Memory that
has become an mbarrier stays one. What the async proxy reaches shares no bytes with buffers that were used before, and
what other blocks of a cluster reach with none.
Buffers that show the bytes of one base are that base here.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.core import Block, Buffer, Kernel, Op, Space
from tilewright.ir.effects import Completion, Order, Proxy, Scope, Use


def place_shared_memory(kernel: Kernel) -> None:
    """Set the offset of every shared buffer and the kernel's number of shared bytes."""
    lives = _lives(kernel)
    barriers = [n for n, op in enumerate(kernel.body.ops) if _meets_block(op)]
    placed: list[_Life] = []
    # The largest first, each as low as it fits; the sort is stable, so equal ones keep their order of use.
    for life in sorted(lives, key=lambda life: -life.buffer.bytes):
        rivals = [other for other in placed if not _separated(life, other, barriers)]
        life.buffer.offset = _lowest_fit(life.buffer, [other.buffer for other in rivals])
        placed.append(life)
    for buffer in kernel.buffers():
        if buffer.space is Space.SHARED:
            buffer.offset = buffer.root.offset
    kernel.shared_bytes = max((_end(life.buffer) for life in placed), default=0)


def _meets_block(op: Op) -> bool:
    return op.effects.together >= Scope.BLOCK and op.effects.order is Order.BOTH


@dataclass
class _Life:
    """A buffer with the positions, among the ops of the kernel's body, of its first and last use."""

    buffer: Buffer
    first: int
    last: int


def _separated(a: _Life, b: _Life, barriers: list[int]) -> bool:
    early, late = (a, b) if a.last < b.first else (b, a)
    return any(early.last < barrier < late.first for barrier in barriers)


def _lowest_fit(buffer: Buffer, rivals: list[Buffer]) -> int:
    """Return the lowest aligned offset at which a buffer overlaps no rival."""
    offset = 0
    for rival in sorted(rivals, key=_start):
        if offset + buffer.bytes <= _start(rival):
            break
        beyond = max(offset, _end(rival))
        offset = -(-beyond // buffer.alignment) * buffer.alignment
    return offset


def _start(buffer: Buffer) -> int:
    assert buffer.offset is not None, buffer.name
    return buffer.offset


def _end(buffer: Buffer) -> int:
    return _start(buffer) + buffer.bytes


def _lives(kernel: Kernel) -> list[_Life]:
    """Return the lives of all shared buffers in order of first mention."""
    lives: dict[Buffer, _Life] = {}
    unborn: dict[Buffer, int] = {}  # allocated and not accessed so far
    lasting: list[Buffer] = []
    flight = _Flight()
    for position, op in enumerate(kernel.body.ops):
        for use in (use for inner in op.walk() for use in inner.uses):
            buffer = use.buffer.root
            if buffer.space is not Space.SHARED or buffer.size is None:  # the launch places what it knows the size of
                continue
            if use.use is Use.BEGIN:
                unborn.setdefault(buffer, position)
            else:
                lives.setdefault(buffer, _Life(buffer, position, position)).last = position
            if use.declaration.is_lasting:
                lasting.append(buffer)
        for buffer in flight.landed_after(op):
            lives[buffer].last = position
    for op in kernel.body.walk():
        if op.effects.proxy is Proxy.ASYNC:
            # No barrier orders it behind ordinary writes to bytes that another buffer had before: that takes a fence.
            for use in op.uses:
                if use.buffer.root in lives:
                    lives[use.buffer.root].first = 0
        for use in op.uses:
            if use.buffer.is_remote and use.buffer.root in lives:  # other blocks reach it, wherever this one is
                lives[use.buffer.root].first = 0
                lasting.append(use.buffer.root)
    for buffer in (*flight.under_way, *lasting):
        lives[buffer].last = len(kernel.body.ops)
    # A buffer without any access still needs a place of its own kind.
    lives.update((buffer, _Life(buffer, n, n)) for buffer, n in unborn.items() if buffer not in lives)
    return list(lives.values())


class _Flight:
    """The shared buffers of asynchronous ops that may still be under way, in the order of the kernel's body.

    Only work that completes by groups of the thread is ever known to be over here; other work goes on to the end.
    """

    def __init__(self) -> None:
        self.under_way: dict[Buffer, None] = {}
        self.uncommitted: set[Buffer] = set()
        self._endless: set[Buffer] = set()  # what completes otherwise than by groups

    def landed_after(self, op: Op) -> list[Buffer]:
        """Take in the next op of the kernel's body, and return the buffers whose copies it completes."""
        self.under_way.update((buffer, None) for inner in op.walk() for buffer in _under_way_after(inner))
        effects = op.effects
        if effects.completes is Completion.GROUP and not effects.pending:
            waits_for_all = effects.pending is None
            ending = [b for b in self.under_way if b not in self._endless]
            landed = [b for b in ending if waits_for_all or b not in self.uncommitted]
            for buffer in landed:
                del self.under_way[buffer]
            return landed
        for inner in op.walk():
            if inner.effects.asynchronous not in (None, Completion.GROUP):
                self._endless.update(_under_way_after(inner))
        _advance(op, self.uncommitted)
        return []


def _under_way_after(op: Op) -> list[Buffer]:
    """Return the shared buffers that an asynchronous op goes on to reach (nested blocks not included)."""
    if op.effects.asynchronous is None:
        return []
    roots = [use.buffer.root for use in op.uses if use.buffer.space is Space.SHARED]
    return [root for root in roots if root.size is not None]


def _advance(op: Op, uncommitted: set[Buffer]) -> None:
    """Update the buffers of asynchronous ops that may not belong to a committed group, past one op."""
    uncommitted.update(_under_way_after(op))
    if op.effects.commits is Completion.GROUP:
        uncommitted.clear()
    for block in op.blocks:
        uncommitted |= _uncommitted(block)


def _uncommitted(block: Block) -> set[Buffer]:
    """Return the buffers of asynchronous ops that may still be uncommitted when a nested block ends."""
    found: set[Buffer] = set()
    for op in block.ops:
        _advance(op, found)
    return found
