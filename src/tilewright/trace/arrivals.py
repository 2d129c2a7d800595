"""Refuses waits that can never end: barriers that count more threads than can come, and bytes that nothing brings.

What is counted is an upper bound. Of a branch whose condition follows from the thread's index alone it is known which
threads take it; of all others any thread may. An arrival inside of a loop may come as often as it likes. What is
not certain is left to the simulator, which finds the deadlock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Buffer, Kernel
from tilewright.ir.effects import Use
from tilewright.ir.instruction import Instruction, Meeting
from tilewright.ir.ops import If
from tilewright.ir.thread_sets import Threads, ThreadSets, is_role, roles_at, roles_in_words
from tilewright.source import SourceLocation


def refuse_endless_waits(kernel: Kernel, sets: ThreadSets) -> tuple[tuple[Hashable, SourceLocation | None], ...]:
    """Raise `LanguageError` at what announces bytes that no copy brings, and at a wait for more threads than come.

    Return the roles at barriers that no thread of the block takes: passes leave such branches out.
    """
    # What has no meeting of its own, copies and other instructions, may bring bytes and arrivals to what it reaches.
    others = [op for op in kernel.body.walk() if not (isinstance(op, Instruction) and op.meeting())]
    brought = {use.buffer.root for op in others for use in op.uses if use.use is not Use.BEGIN}
    found: dict[object, _Barrier] = {}
    untaken: dict[tuple[Hashable, SourceLocation | None], None] = {}
    for op, meeting, threads, in_loop, empty in _meetings(kernel, sets):
        if not threads.any():
            if empty is not None:
                untaken[meeting.barrier, empty.location] = None
            continue
        if meeting.announces and not brought & {buffer.root for buffer in op.buffers}:
            name = op.buffers[0].name or "the mbarrier"
            raise LanguageError(
                f"{name} is told to expect bytes of bulk copies, and no copy of the kernel brings bytes to it: a wait "
                "for that phase never ends",
                location=op.location,
                help=f"start the copy, and give it the mbarrier: tw.copy(atom, tile, smem, barrier={name}), or arrive "
                "without bytes",
            )
        found.setdefault(meeting.barrier, _Barrier()).add(op, meeting, threads, in_loop)
    for which, barrier in found.items():
        if isinstance(which, Buffer) and which.root in brought:
            continue
        if None not in found or not isinstance(which, int):  # who arrives at one of the block's may arrive at any
            barrier.refuse(kernel, sets, which)
    return tuple(untaken)


_HELP = (
    "let the other threads of the block arrive there, or count those that do; roles cover the block where the last one "
    "is an `else`"
)


@dataclass
class _Barrier:
    """What is known of one barrier: the arrivals that a phase takes, and at most how many come."""

    takes: int | None = None
    is_certain: bool = True
    bound: int = 0  # arrivals other than those of threads that wait for the same phase
    together: Threads | None = None  # threads that arrive and wait at once
    waits: list[Instruction] = field(default_factory=list)
    arrivals: list[Instruction] = field(default_factory=list)

    def add(self, op: Instruction, meeting: Meeting, threads: Threads, in_loop: bool) -> None:
        """Add what an op does, which these threads may come to."""
        if meeting.takes is not None:
            self.takes = meeting.takes if self.takes is None else min(self.takes, meeting.takes)
        self.is_certain &= meeting.is_known
        if meeting.waits:
            self.waits.append(op)
        if not meeting.brings:
            return
        self.arrivals.append(op)
        if meeting.waits:
            self.together = threads if self.together is None else self.together | threads
        else:
            self.is_certain &= not in_loop
            self.bound += int(threads.sum()) * meeting.brings

    def refuse(self, kernel: Kernel, sets: ThreadSets, which: Hashable) -> None:
        """Refuse the first wait where fewer arrivals can come than a phase takes."""
        warp = kernel.warp_size
        if not self.is_certain or self.takes is None or not self.waits:
            return
        waiting = 0
        if self.together is not None:  # whole warps arrive
            warps = np.add.reduceat(self.together, np.arange(0, len(self.together), warp))
            waiting = int((warps > 0).sum()) * warp
        if self.bound + waiting >= self.takes:
            return
        op = self.waits[0]
        meeting = op.meeting()
        assert meeting is not None, op
        details = [f"they arrive at {each.location}" for each in self.arrivals if each.location is not None]
        roles = roles_at(kernel, sets, which, 1)
        if roles is not None and (roles.without.any() or roles.untaken):
            about, way_out = roles_in_words(roles, roles.without)
            details, help = details + about, way_out
        else:
            help = _HELP
        raise LanguageError(
            f"{meeting.called} takes {self.takes} arrivals a phase, and at most {self.bound + waiting} come: this wait "
            "never ends",
            details=[*dict.fromkeys(details)],
            location=op.location,
            help=help,
        )


# What meets others at a barrier, the threads that may come to it, whether it is in a loop, and the branch, if any, on
# whose side it is and no thread.
_Met = tuple[Instruction, Meeting, Threads, bool, If | None]


def _meetings(kernel: Kernel, sets: ThreadSets) -> Iterator[_Met]:
    """Yield each op that meets others at a barrier."""
    if sets.everybody is not None:
        yield from _meetings_in(kernel.body, sets, sets.everybody, False, None)


def _meetings_in(block: Block, sets: ThreadSets, threads: Threads, in_loop: bool, empty: If | None) -> Iterator[_Met]:
    for op in block.ops:
        meeting = op.meeting() if isinstance(op, Instruction) else None
        if meeting is not None:
            assert isinstance(op, Instruction), op
            yield op, meeting, threads, in_loop, empty
        if not isinstance(op, If):
            for nested in op.blocks:
                yield from _meetings_in(nested, sets, threads, True, empty)
        elif any(isinstance(o, Instruction) and o.meeting() is not None for o in op.walk()):
            taken = sets.where(op.condition)
            for side, holds in ((op.then, True), (op.otherwise, False)):
                here = threads if taken is None else threads & taken if holds else threads & ~taken
                nobody = None if here.any() else op if is_role(op, side) else None
                yield from _meetings_in(side, sets, here, in_loop, empty or nobody)
