"""Which threads of a block take a branch, where that follows from the thread's index alone; and roles.

A role is a side of such a branch in which threads meet others at a barrier, as producers and consumers do. Threads that
take none of the roles at a barrier never come there: roles that do not cover a block are one cause of waits without an
end.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tilewright.ir.core import Block, Kernel, Value
from tilewright.ir.evaluate import evaluate
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import If, Special
from tilewright.source import SourceLocation

WARPGROUP = 128  # threads, of which roles are mostly made
Threads = npt.NDArray[np.bool_]


class ThreadSets:
    """The threads of a kernel's block for which conditions hold; `everybody` is None where the block is not known."""

    def __init__(self, kernel: Kernel) -> None:
        self._block = kernel.block
        specials = (op for op in kernel.body.walk() if isinstance(op, Special) and op.name.startswith("thread_idx"))
        self.axes: dict[Value, int] = {op.result: "xyz".index(op.name[-1]) for op in specials}
        self._found: dict[Value, Threads | None] = {}

    @property
    def everybody(self) -> Threads | None:
        """All threads of the block."""
        return None if self._block is None else np.ones(self._block[0] * self._block[1] * self._block[2], np.bool_)

    def where(self, condition: Value) -> Threads | None:
        """Return for which threads a condition holds, None where more than the index of the thread is in it."""
        if condition not in self._found:
            self._found[condition] = self._evaluate(condition)
        return self._found[condition]

    def _evaluate(self, condition: Value) -> Threads | None:
        found = self.everybody
        if found is None or self._block is None:
            return None
        x, y, _ = self._block
        try:
            for thread in range(len(found)):
                index = thread % x, thread // x % y, thread // (x * y)
                found[thread] = bool(evaluate(condition, {axis: index[n] for axis, n in self.axes.items()}))
        except KeyError:
            return None
        return found


def are_whole_groups(threads: Threads, size: int) -> bool:
    """Say whether threads are whole groups of so many neighbours; the last group of a block may have fewer."""
    starts = np.arange(0, len(threads), size)
    return bool((np.logical_or.reduceat(threads, starts) == np.logical_and.reduceat(threads, starts)).all())


# --- roles -----------------------------------------------------------------------------------------------


@dataclass
class Roles:
    """The roles at a barrier: the branches, and threads that take no side of them in which others meet there.

    `untaken` are the places of those in which threads would meet there, on a side that no thread takes.
    """

    branches: list[If] = field(default_factory=list)
    untaken: list[SourceLocation | None] = field(default_factory=list)
    without: Threads = field(default_factory=lambda: np.zeros(0, np.bool_))


def roles_at(kernel: Kernel, sets: ThreadSets, barrier: Hashable, group: int) -> Roles | None:
    """Return the roles at a barrier, None where no branch on the thread's index has one.

    Branches that divide groups of so many threads, as that of a warp's first thread does, are within a role.
    """
    everybody = sets.everybody
    if everybody is None:
        return None
    roles = Roles()
    taking = _taking(kernel.body, everybody, sets, barrier, group, roles)
    roles.without = everybody & ~taking
    return roles if roles.branches else None


def is_role(op: If, side: Block) -> bool:
    """Return whether a side of a branch is a role of its own, and not an `elif`, which has further branches."""
    return side is op.then or not any(isinstance(o, If) for o in side.ops)


def roles_in_words(roles: Roles, idle: Threads) -> tuple[list[str], str]:
    """Return which threads no role at a barrier takes, and which roles nobody takes, as lines; and how to mend it.

    `idle` are the threads to name.
    """
    lines, ways = [], []
    if idle.any():
        lines = [f"no role takes {name_threads(idle)}; these branches leave them out:"]
        lines += _places([op.location for op in roles.branches])
        ways = ["give them a role, or launch blocks without them and count those that come"]
    if roles.untaken:
        lines += [f"none of the {len(idle)} threads of a block takes this role:", *_places(roles.untaken)]
        ways += ["launch blocks with threads for each role, or count without those that do not come"]
    return lines, "; ".join([*ways, "roles cover the block where the last one is an `else`"])


def _places(branches: list[SourceLocation | None]) -> list[str]:
    """Return the places of branches, once each."""
    lines: dict[str, None] = {}
    for location in branches:
        if location is not None:
            lines[f"  {location}"] = None
            lines[f"    {location.text.strip()}"] = None
    return list(lines)


def name_threads(threads: Threads, warp: int = 32) -> str:
    """Return the threads of a mask in words.

    >>> name_threads(np.arange(96) >= 32), name_threads(np.arange(96) == 7), name_threads(np.arange(96) // 32 == 2)
    ('warps 1 to 2', 'thread 7', 'warp 2')
    >>> name_threads(np.arange(96) % 40 < 3)
    'threads 0 to 2, 40 to 42, 80 to 82'
    """
    numbers = np.nonzero(threads)[0]
    unit = "thread"
    if len(numbers) > 1 and _are_whole(threads, warp):
        numbers, unit = np.unique(numbers // warp), "warp"
    breaks = np.nonzero(np.diff(numbers) > 1)[0]
    starts, ends = [0, *(breaks + 1).tolist()], [*breaks.tolist(), len(numbers) - 1]
    parts = [f"{numbers[a]}" if a == b else f"{numbers[a]} to {numbers[b]}" for a, b in zip(starts, ends, strict=True)]
    most = 4
    text = ", ".join(parts[:most]) + (f" and {len(parts) - most} more groups" if len(parts) > most else "")
    return f"{unit}{'s' if len(numbers) > 1 else ''} {text}"


def _are_whole(threads: Threads, warp: int) -> bool:
    """Return whether the threads are whole warps."""
    warps = np.unique(np.nonzero(threads)[0] // warp)
    return all(bool(threads[w * warp : (w + 1) * warp].all()) for w in warps)


def _taking(block: Block, threads: Threads, sets: ThreadSets, barrier: Hashable, group: int, roles: Roles) -> Threads:
    """Return which of the threads that come to a block may meet others at a barrier there, and note its roles."""
    taking = np.zeros_like(threads)
    for op in block.ops:
        if _meets(op, barrier):
            taking |= threads
        if not any(_meets(o, barrier) for nested in op.blocks for o in nested.walk()):
            continue
        taken = sets.where(op.condition) if isinstance(op, If) else None
        if not isinstance(op, If) or taken is None or not are_whole_groups(threads & taken, group):
            taking |= threads
            continue
        roles.branches.append(op)
        for inside, here in ((op.then, threads & taken), (op.otherwise, threads & ~taken)):
            if not any(_meets(o, barrier) for o in inside.walk()):
                continue
            if not here.any() and is_role(op, inside):
                roles.untaken.append(op.location)
                continue
            taking |= _taking(inside, here, sets, barrier, group, roles)
    return taking


def _meets(op: object, barrier: Hashable) -> bool:
    """Whether an op arrives at a barrier, or waits there."""
    meeting = op.meeting() if isinstance(op, Instruction) else None
    if meeting is None or meeting.barrier != barrier:
        return False
    return meeting.takes is None or bool(meeting.brings or meeting.waits)  # and does not only make it
