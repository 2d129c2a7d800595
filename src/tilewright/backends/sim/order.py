"""What happens before what, among the threads of a block: the relation that a data race is the absence of.

Every access and every synchronisation of a chunk of blocks gets a number, its event, in the order in which the
simulator runs them. That order is one of many that a GPU could take, so it decides nothing by itself. What counts
is, for a thread t and a thread u of its block, the first event of u that t cannot rely on::

    known[t, u] = e    everything that u did before event e happens before what t does next

A barrier that threads S meet at event e makes known[s] the maximum of known[s'] over all s' in S, and then
known[s, s'] = e for all s' in S. That is a vector clock for each thread (Mattern 1989; Flanagan and Freund, FastTrack,
2009), with one clock for all, which the simulator can have because it runs threads in an order of its own.

Copies whose landing counts as an arrival at an mbarrier are made by an agent beside the thread that issued them.
`known` has a further column for each: who waits for the mbarrier knows of the agents, and the thread itself does not
before it waits. They land when a thread waits, which is at the next barrier of the block too, so that such a barrier
covers agents.

Bulk copies whose bytes arrive at an mbarrier are written by that mbarrier, which has a column of its own: whoever waits
for one of its phases knows all that arrived there, and nothing of what arrived elsewhere. So have the products of a
warpgroup: what they read is known to every thread of it that has waited for them, whichever warp that is.

A kernel that has barriers of whole blocks and whole warps only needs no matrix. After a barrier of the block all of
`known` is one number, the `floor`, and a barrier of a warp raises it among its lanes; nothing that one warp alone
learns reaches another before the next barrier of the block. Kernels with barriers of some threads use the matrix.

Blocks of one launch are not ordered here: what they learn from each other, through memory, is in `clocks`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tilewright.backends.sim.values import Array, Mask

AGENT = 1 << 19  # added to a thread's number: the agent that does its asynchronous copies
Number: TypeAlias = "int | Array"


class Order:
    """The happens-before relation of the blocks that run now.

    `next` is the number of the next event, `warp` how many threads a warp has. `partial` says that some threads of
    a block may meet without the others. The last columns are of so many `blocks` of a cluster: what each has written
    with a fence for the cluster.
    Rows are blocks of the chunk; an array of one row stands for all blocks, as long as they do the same.
    """

    def __init__(self, threads: int, warp: int, partial: bool, barriers: int = 0, blocks: int = 0) -> None:
        self.columns: int = 2 * threads + barriers + blocks
        self._fenced: int = 2 * threads + barriers  # the first column of blocks' fences
        self.threads = threads
        self.warp = warp
        self.partial = partial
        self.warps: int = -(-threads // warp)
        self.between: bool = False  # whether blocks learn of each other, see `clocks`
        self.next: int = 1
        self.start: int = 1
        self.blocks: int = 0
        self._floor: Number = 1
        self._warp_floor: Array | None = None  # (rows, warps)
        self._known: Array | None = None  # (rows, threads, threads and their agents and mbarriers)
        self._meetings: dict[Hashable, _Meeting] = {}

    def begin(self, blocks: int) -> None:
        """Start a chunk of blocks: what was before is before everything."""
        self.blocks = blocks
        self.start = self.next
        self._floor = self.next
        self._warp_floor = None
        self._known = self._all_known(self.next) if self.partial else None
        self._meetings.clear()
        self.next += 1  # so that who has met anybody knows of something after the start

    def tick(self) -> int:
        """Return the number of a new event."""
        event = self.next
        self.next = event + 1
        return event

    def now(self) -> Moment:
        """Return what threads of the chunk know now, at a new event."""
        known = None if self._known is None else self._known.copy()
        return Moment(self.tick(), self.threads, self.warp, self._floor, self._warp_floor, known)

    @property
    def known(self) -> Array:
        """What threads know of each other, (rows, threads, columns), in kernels with barriers of some threads."""
        assert self._known is not None
        return self._known

    @property
    def lowest_floor(self) -> int:
        """The event before which everything is ordered, in every block."""
        return self._floor if isinstance(self._floor, int) else int(self._floor.min())

    def floors(self, rows: Array) -> Number:
        """Return the floors of some blocks."""
        return self._floor if isinstance(self._floor, int) else self._floor[rows]

    def is_before(self, rows: Array, threads: Array, others: Array, events: Array) -> Array:
        """Say which `events` of threads `others` happen before what `threads` do now, in the same blocks."""
        before: Array = threads == others
        if self._known is not None:
            known = self._known
            others = np.where(others >= AGENT, others - AGENT + self.threads, others)
            return np.asarray(before | (events < known[rows if len(known) > 1 else 0, threads, others]))
        before |= events < self.floors(rows)
        if self._warp_floor is not None:
            warps = threads // self.warp
            floors = self._warp_floor[rows if len(self._warp_floor) > 1 else 0, warps]
            before |= (warps == others // self.warp) & (events < floors)
        return before

    # --- barriers of whole blocks and warps ------------------------------------------------------------------

    def meet_block(self, mask: Mask) -> bool:
        """Order all threads of the blocks of the mask; return whether these are all blocks."""
        event = self.tick()
        if mask is None or (mask.shape[0] == 1 and mask.any()) or mask.any(axis=1).all():
            self._floor = event
            self._warp_floor = None
            if self._known is not None:
                self._known = self._all_known(event)
            return True
        met = mask.any(axis=1)
        self._floor = np.where(met, event, self._floor)
        if self._known is not None:
            self._separate()
            self._known[met] = event
        return False

    def meet_warps(self, mask: Mask, warps: int = 1) -> None:
        """Order the threads of the mask with those of their group of so many warps; several need the matrix."""
        event = self.tick()
        if self._known is not None:
            self._meet_lanes(mask, event, warps * self.warp)
            return
        assert warps == 1, warps  # of a block of a cluster there are several
        rows = 1 if mask is None else mask.shape[0]
        floors = self._warp_floor
        if floors is None:
            floors = np.zeros((rows, self.warps), np.int64)
        elif len(floors) < rows:
            floors = np.repeat(floors, rows, axis=0)
        if mask is None:
            self._warp_floor = np.full_like(floors, event)
            return
        full = np.broadcast_to(mask, (rows, self.threads))
        met = np.logical_or.reduceat(full, np.arange(0, self.threads, self.warp), axis=1)
        self._warp_floor = np.where(met, event, floors)

    # --- barriers of some threads ----------------------------------------------------------------------------

    def arrive(self, barrier: Hashable, phase: Array, mask: Mask, lasts: bool = True, relaxed: bool = False) -> None:
        """Let threads bring what they know to the phase, one number a block (rows, 1), of a barrier.

        What is brought to an mbarrier lasts for its later phases; a named barrier orders those who meet in one phase.
        A `relaxed` arrival at an mbarrier brings what is known of those who work beside the threads; one at the barrier
        of a cluster what blocks have written with a fence for the cluster, and that they have begun.
        """
        event = self.tick()
        known, here, phase = self._rows_of(mask, phase)
        brought = _together(known, here)
        if relaxed and lasts:
            brought[:, : 2 * self.threads] = 0
        elif relaxed:
            brought[:, : self._fenced] = 0
            begun = (np.where(here[..., None], known[..., : self.threads], 0).max(axis=1) > self.start) | here
            brought[:, : self.threads] = np.where(begun, self.start + 1, 0)
        else:
            brought[:, : self.threads][here] = event
        self._bring(barrier, brought, here, phase, lasts)

    def defer_arrival(self, mask: Mask) -> DeferredArrival:
        """Note what threads know when they ask their copies so far to arrive for them."""
        event = self.tick()
        known, here = self._rows_of(mask)
        known = known.copy()
        own = np.arange(self.threads)
        known[:, own, own] = event
        return DeferredArrival(known, np.array(here))

    def arrive_deferred(self, arrival: DeferredArrival, barrier: Hashable, phase: Array, mask: Mask) -> Array:
        """Let the agents of threads arrive: their copies have landed, and they know what the threads did before.

        Return the threads of the mask for which the arrival that was asked for is another one.
        """
        event = self.tick()
        _, wanted, phase = self._rows_of(mask, phase)
        here = wanted & arrival.here
        if len(arrival.here) < len(here):
            arrival.here = np.repeat(arrival.here, len(here), axis=0)
        arrival.here &= ~here
        brought = _together(arrival.known, here)
        brought[:, self.threads : 2 * self.threads][here] = event
        self._bring(barrier, brought, here, phase)
        return np.asarray(wanted & ~here)

    def deliver(self, barrier: Hashable, phase: Array, number: int) -> None:
        """Let whoever waits for a phase of an mbarrier know what bulk copies wrote whose bytes have come to it.

        `phase` is one number a block (rows, 1), -1 where none have; `number` is the mbarrier's in the block.
        """
        event = self.tick()
        known, _, phase = self._rows_of(None, phase)
        brought = np.zeros((len(known), self.columns), np.int64)
        brought[phase[:, 0] >= 0, 2 * self.threads + number] = event
        self._meeting(barrier, len(known)).bring(brought, phase, lasts=True)

    def learn(self, mask: Mask, numbers: Array) -> None:
        """Let threads know all that was done so far by the one of a number, one for each thread; see `writer`."""
        event = self.tick()
        known, here = self._rows_of(mask)
        rows, threads = np.nonzero(here)
        whole = numbers[threads] < self.columns - 2 * self.threads  # a last partial group is in no product
        rows, threads = rows[whole], threads[whole]
        known[rows, threads, 2 * self.threads + numbers[threads]] = event

    def writer(self, number: int) -> int:
        """Return who works beside the threads, in words of shadow memory, by the number of an mbarrier or of more."""
        return AGENT + self.threads + number

    def _bring(self, barrier: Hashable, brought: Array, here: Array, phase: Array, lasts: bool = True) -> None:
        self._meeting(barrier, len(here)).bring(brought, np.where(here.any(axis=1, keepdims=True), phase, -1), lasts)

    def acquire(self, barrier: Hashable, phase: Array, mask: Mask) -> None:
        """Let threads know what was brought to the phases of a barrier up to one, a number a block (rows, 1)."""
        if barrier not in self._meetings:
            return
        if len(self._meetings[barrier].phase) > 1:
            self._separate()
        known, here, phase = self._rows_of(mask, phase)
        offered = self._meeting(barrier, len(known)).offered(phase)
        rows, threads = np.nonzero(here)
        if _FEW * rows.size < here.size:
            known[rows, threads] = np.maximum(known[rows, threads], offered[rows])
        else:
            np.maximum(known, offered[:, None, :], out=known, where=here[..., None])

    def _meeting(self, barrier: Hashable, rows: int) -> _Meeting:
        found = self._meetings.get(barrier)
        if found is None:
            found = self._meetings[barrier] = _Meeting(rows, self.columns)
        elif len(found.phase) < rows:
            found.separate(rows)
        return found

    def _all_known(self, event: int) -> Array:
        return np.full((1, self.threads, self.columns), event, np.int64)

    def _rows_of(self, mask: Mask, *others: Array) -> tuple[Array, ...]:
        """Return `known`, and the mask and other arrays in its rows."""
        assert self._known is not None, "a barrier of some threads in a kernel that has none"
        here: Array = np.ones((1, self.threads), np.bool_) if mask is None else same_rows(mask)
        others = tuple([same_rows(x) for x in others])
        if max(len(x) for x in (here, *others)) > 1:
            self._separate()
        rows = len(self._known)
        here = np.broadcast_to(here, (rows, self.threads))
        return (self._known, here, *[np.broadcast_to(x, (rows, x.shape[1])) for x in others])

    def _meet_lanes(self, mask: Mask, event: int, size: int) -> None:
        known, here = self._rows_of(mask)
        for first in range(0, self.threads, size):
            lanes = slice(first, first + size)
            there = here[:, lanes]
            if not there.any():
                continue
            joined = np.where(there[..., None], known[:, lanes], 0).max(axis=1)
            joined[:, lanes] = np.where(there, event, joined[:, lanes])
            known[:, lanes] = np.where(there[..., None], joined[:, None, :], known[:, lanes])

    def _separate(self) -> None:
        """Give each block a matrix of its own."""
        assert self._known is not None
        if len(self._known) != self.blocks:
            self._known = np.repeat(self._known, self.blocks, axis=0)


_FEW = 4  # of so many threads one: the others are then not looked at


def _together(known: Array, here: Array) -> Array:
    """Return what the threads of a mask know together, one row a block, 0 for those without."""
    rows, threads = np.nonzero(here)
    if _FEW * rows.size >= here.size:
        return np.asarray(np.where(here[..., None], known, 0).max(axis=1))
    found = np.zeros((len(here), known.shape[2]), known.dtype)
    if rows.size:
        starts = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
        found[rows[starts]] = np.maximum.reduceat(known[rows if len(known) > 1 else 0, threads], starts)
    return found


@dataclass(frozen=True)
class Moment:
    """What threads know of their own blocks at an event."""

    event: int
    threads: int
    warp: int
    floor: Number
    warp_floor: Array | None
    known: Array | None

    def known_to(self, row: int, threads: int | Array) -> tuple[int, Array, Array]:
        """Return what threads of a block know together: the event that is known of all threads of the block, others.

        The others are the threads of which more is known (their agents after all threads), and their events.
        """
        if self.known is not None:
            rows = self.known[row if len(self.known) > 1 else 0][threads]
            known = rows.copy() if rows.ndim == 1 else rows.max(axis=0)
            known[threads] = self.event
            floor = int(known.min())
        else:
            floor = self.floor if isinstance(self.floor, int) else int(self.floor[row])
            known = np.full(self.threads, floor, np.int64)
            if self.warp_floor is not None:
                floors = self.warp_floor[row if len(self.warp_floor) > 1 else 0]
                for warp in np.unique(np.atleast_1d(threads) // self.warp).tolist():
                    lanes = slice(warp * self.warp, (warp + 1) * self.warp)
                    known[lanes] = np.maximum(known[lanes], floors[warp])
            known[threads] = self.event
            floor = max(floor, int(known.min()))
        more = np.flatnonzero(known > floor)
        return floor, more, known[more]


@dataclass
class DeferredArrival:
    """Arrivals that come when the copies of threads have landed: what the threads knew when they asked for them.

    `here` are the threads whose copies have not landed so far.
    """

    known: Array
    here: Array


class _Meeting:
    """What threads brought to a barrier: to the last phase that anybody arrived in, and to those before it."""

    def __init__(self, rows: int, columns: int) -> None:
        self.phase = np.full((rows, 1), -1, np.int64)
        self._here, self._earlier = (np.zeros((rows, columns), np.int64) for _ in range(2))

    def separate(self, rows: int) -> None:
        """Tell blocks apart from now on."""
        self.phase, self._here, self._earlier = (
            np.repeat(x, rows, axis=0) for x in (self.phase, self._here, self._earlier)
        )

    def bring(self, brought: Array, phase: Array, lasts: bool) -> None:
        """Add to a phase; a new one ends those before it. Blocks in which no thread arrives have phase -1."""
        new = phase > self.phase
        self._earlier = np.where(new, self._here, self._earlier)
        self.phase = np.maximum(self.phase, phase)
        kept = self._here if lasts else np.where(new, 0, self._here)
        self._here = np.maximum(kept, np.where(phase >= 0, brought, 0))

    def offered(self, phase: Array) -> Array:
        """Return what was brought to the phases up to one."""
        return np.where(phase >= self.phase, self._here, self._earlier)


def same_rows(array: Array) -> Array:
    """Return one row of an array whose rows are all the same, else the array."""
    return array[:1] if len(array) > 1 and (array == array[:1]).all() else array
