"""The report of a deadlock: who waits for what, since which line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.values import Array, Frame, Lanes, at_least_2d
from tilewright.ir.core import Op


@dataclass
class Waiting:
    """Threads of one block, a mask, that wait for the same thing since the line of an op."""

    op: Op
    threads: Array
    what: str


def groups_of(number: Lanes, row: int, threads: Array) -> list[tuple[int, Array]]:
    """Return each number that threads of a block of the chunk have, with the threads, of a mask, that have it."""
    array = at_least_2d(number)
    own = np.broadcast_to(array[row if array.shape[0] > 1 else 0], threads.shape)
    return [(int(n), threads & (own == n)) for n in np.unique(own[threads])]


def report_deadlock(
    machine: Machine, agents: Sequence[tuple[Frame, Callable[[Frame, int, Array], list[Waiting]]]]
) -> None:
    """Report the first block of the chunk in which threads wait; the run cannot go on for them."""
    shape = machine.blocks, machine.threads
    masks = [np.broadcast_to(True if f.mask is None else f.mask, shape) for f, _ in agents]
    stuck: Array = np.asarray(np.stack(masks).any(axis=0))
    row = int(np.argmax(stuck.any(axis=1)))
    found = [w for (frame, tell), mask in zip(agents, masks, strict=True) for w in tell(frame, row, mask[row])]
    notes: list[str] = []
    for waiting in found:
        one = int(waiting.threads.sum()) == 1 or _is_one_warp(waiting.threads, machine.warp)
        notes.append(f"{name_threads(waiting.threads, machine.warp)} wait{'s' if one else ''} for {waiting.what}")
        if waiting.op.location is not None:
            place = waiting.op.location
            notes += [f"  since {place}", f"    {place.text.strip()}"]
    done = machine.threads - int(stuck[row].sum())
    if done:
        notes.append(f"the other {done} threads of the block have run to their end")
    others = int(stuck.any(axis=1).sum()) - 1
    if others:
        notes.append(f"so do threads of {others} more block{'s' if others > 1 else ''}")
    first = found[0]
    fault = Fault(
        first.op,
        "deadlock",
        f"deadlock: {_waiters(int(stuck[row].sum()))} for what no thread will do",
        machine.block_coordinate(row),
        machine.thread_coordinate(int(np.argmax(first.threads))),
        notes=notes,
        help="count the arrivals that each phase takes and the threads that make them, and follow the parity of each "
        "wait: phase n has parity n % 2",
        count=int(stuck.sum()),
    )
    machine.collector.report(fault)


def _waiters(number: int) -> str:
    return "a thread waits" if number == 1 else f"{number} threads of a block wait"


def _is_one_warp(threads: Array, warp: int) -> bool:
    numbers = np.nonzero(threads)[0] // warp
    return bool(_is_whole(threads, warp)) and len(set(numbers.tolist())) == 1


def _is_whole(threads: Array, warp: int) -> bool:
    """Return whether the threads are whole warps."""
    warps = np.unique(np.nonzero(threads)[0] // warp)
    return all(bool(threads[w * warp : (w + 1) * warp].all()) for w in warps)


def name_threads(threads: Array, warp: int = 32) -> str:
    """Return the threads of a mask in words.

    >>> import numpy as np
    >>> name_threads(np.arange(96) >= 32), name_threads(np.arange(96) == 7), name_threads(np.arange(96) // 32 == 2)
    ('warps 1 to 2', 'thread 7', 'warp 2')
    >>> name_threads(np.arange(96) % 40 < 3)
    'threads 0 to 2, 40 to 42, 80 to 82'
    """
    numbers = np.nonzero(threads)[0]
    unit = "thread"
    if len(numbers) > 1 and _is_whole(threads, warp):
        numbers, unit = np.unique(numbers // warp), "warp"
    breaks = np.nonzero(np.diff(numbers) > 1)[0]
    starts, ends = [0, *(breaks + 1).tolist()], [*breaks.tolist(), len(numbers) - 1]
    parts = [f"{numbers[a]}" if a == b else f"{numbers[a]} to {numbers[b]}" for a, b in zip(starts, ends, strict=True)]
    most = 4
    text = ", ".join(parts[:most]) + (f" and {len(parts) - most} more groups" if len(parts) > most else "")
    return f"{unit}{'s' if len(numbers) > 1 else ''} {text}"
