"""Refuses waits that can never end: barriers that count more threads than can come, and bytes that nothing brings.

What is counted is an upper bound. Of a branch whose condition follows from the thread's index alone it is known which
threads take it; of all others any thread may. An arrival inside of a loop may come as often as it likes. What is
not certain is left to the simulator, which finds the deadlock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Buffer, Kernel
from tilewright.ir.effects import Use
from tilewright.ir.instruction import Instruction, Meeting
from tilewright.ir.ops import If
from tilewright.trace.thread_sets import Threads, ThreadSets


def refuse_endless_waits(kernel: Kernel, sets: ThreadSets) -> None:
    """Raise `LanguageError` at what announces bytes that no copy brings, and at a wait for more threads than come."""
    # What has no meeting of its own, copies and other instructions, may bring bytes and arrivals to what it reaches.
    others = [op for op in kernel.body.walk() if not (isinstance(op, Instruction) and op.meeting())]
    brought = {use.buffer.root for op in others for use in op.uses if use.use is not Use.BEGIN}
    found: dict[object, _Barrier] = {}
    for op, meeting, threads, in_loop in _meetings(kernel, sets):
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
            barrier.refuse(kernel.warp_size)


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

    def refuse(self, warp: int) -> None:
        """Refuse the first wait where fewer arrivals can come than a phase takes."""
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
        raise LanguageError(
            f"{meeting.called} takes {self.takes} arrivals a phase, and at most {self.bound + waiting} come: this wait "
            "never ends",
            details=[*dict.fromkeys(details)],
            location=op.location,
            help="let the other threads of the block arrive there, or count those that do; roles cover the block where "
            "the last one is an `else`",
        )


def _meetings(kernel: Kernel, sets: ThreadSets) -> Iterator[tuple[Instruction, Meeting, Threads, bool]]:
    """Yield each op that meets others at a barrier, the threads that may come to it, and whether it is in a loop."""
    if sets.everybody is not None:
        yield from _meetings_in(kernel.body, sets, sets.everybody, False)


def _meetings_in(
    block: Block, sets: ThreadSets, threads: Threads, in_loop: bool
) -> Iterator[tuple[Instruction, Meeting, Threads, bool]]:
    for op in block.ops:
        meeting = op.meeting() if isinstance(op, Instruction) else None
        if meeting is not None and threads.any():
            assert isinstance(op, Instruction), op
            yield op, meeting, threads, in_loop
        if not isinstance(op, If):
            for nested in op.blocks:
                yield from _meetings_in(nested, sets, threads, True)
        elif any(isinstance(o, Instruction) and o.meeting() is not None for o in op.walk()):
            taken = sets.where(op.condition)
            yield from _meetings_in(op.then, sets, threads if taken is None else threads & taken, in_loop)
            yield from _meetings_in(op.otherwise, sets, threads if taken is None else threads & ~taken, in_loop)
