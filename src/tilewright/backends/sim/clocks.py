"""What threads learn of threads of other blocks: by releases and acquires on elements of memory, and by fences.

`order` knows what happens before what within a block, by its barriers. Beyond that a thread learns from another where
it acquires what the other released: a strong read sees a value of a strong write, and

- the write is a release, or a fence of its thread (or of threads that a barrier ordered before it) lies before it;
- the read is an acquire, or such a fence follows;
- both sides reach each other: by their scopes, or because they are in one block;
- updates in between, by any thread, hand on what was released before them; any other write ends it.

That is the synchronisation of the PTX memory model (release and acquire patterns, with causality through barriers). A
fence counts for what its own thread did before, and a barrier of the block hands that on.

A clock says for each thread the first of its events that cannot be relied on. Few threads learn anything, and of few
others, so that a clock is kept as a sorted list: of floors, each for all threads of a block, and of numbers of single
threads above them. What a thread learns is added to what it knows; at a barrier those who meet share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from tilewright.backends.sim.order import AGENT, Moment, Order
from tilewright.backends.sim.values import Array, Mask


class Clock:
    """For threads the first event that is not known, as a sorted list of keys (see `Clocks.key`); all others: 0."""

    __slots__ = ("events", "keys")

    def __init__(self, keys: Array, events: Array) -> None:
        self.keys: Array = keys
        self.events: Array = events

    def at(self, keys: Array) -> Array:
        """Return the numbers of some keys."""
        if not self.keys.size:
            return np.zeros(keys.shape, np.int64)
        places = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        return np.where(self.keys[places] == keys, self.events[places], 0)


def joined(clocks: Iterable[Clock | None], width: int) -> Clock | None:
    """Return what several clocks know together; a block has `width` keys, the first of them its floor."""
    known = list({id(c): c for c in clocks if c is not None}.values())
    if len(known) < 2:
        return known[0] if known else None
    keys = np.concatenate([c.keys for c in known])
    events = np.concatenate([c.events for c in known])
    order = np.argsort(keys, kind="stable")
    keys, events = keys[order], events[order]
    first = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    both = Clock(keys[first], np.maximum.reduceat(events, first))
    floors = both.at(both.keys // width * width)
    needed = (both.keys % width == 0) | (both.events > floors)
    return both if needed.all() else Clock(both.keys[needed], both.events[needed])


class Joiner:
    """Joins pairs of clocks, and gives threads that know the same one clock: few objects, and few joins."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._found: dict[tuple[int, int], tuple[Clock, Clock, Clock]] = {}  # by identity, with what has it

    def __call__(self, a: Clock | None, b: Clock | None) -> Clock | None:
        if a is None or b is None or a is b:
            return b if a is None else a
        known = self._found.get((id(a), id(b)))
        if known is None:
            both = joined((a, b), self._width)
            assert both is not None
            for one in (a, b):
                if both.keys.size == one.keys.size and (both.events == one.events).all():
                    both = one
                    break
            if len(self._found) >= _MOST_KEPT:
                self._found.clear()
            known = self._found[id(a), id(b)] = (a, b, both)
        return known[2]


_MOST_KEPT = 1024  # pairs


@dataclass(slots=True)
class Fence:
    """What a thread knew when it made a fence; computed when it is asked for."""

    clocks: Clocks
    block: int
    thread: int
    moment: Moment
    known: Clock | None
    found: Clock | None = None

    def clock(self) -> Clock:
        if self.found is None:
            self.found = self.clocks.snapshot(self.block, self.thread, self.moment, self.known)
        return self.found


class Knowledge:
    """A clock of each thread: one of all threads of a block, and more of some of them since their last barrier."""

    def __init__(self, join: Joiner, width: int) -> None:
        self._join, self._width = join, width
        self._common: dict[int, Clock] = {}
        self._own: dict[int, dict[int, Clock | Fence]] = {}

    def __bool__(self) -> bool:
        return bool(self._common or self._own)

    def clear(self) -> None:
        self._common.clear()
        self._own.clear()

    def get(self, block: int, thread: int) -> Clock | None:
        """Return what a thread knows, None for nothing."""
        own = self._own.get(block)
        found = None if own is None else own.get(thread)
        if isinstance(found, Fence):
            return found.clock()
        return self._common.get(block) if found is None else found

    def add(self, block: int, thread: int, clock: Clock | None) -> None:
        """Add to what a thread knows."""
        if clock is not None:
            found = self._join(self.get(block, thread), clock)
            assert found is not None
            self._own.setdefault(block, {})[thread] = found

    def put(self, block: int, thread: int, fence: Fence) -> None:
        """Replace what a thread knows by more than that."""
        self._own.setdefault(block, {})[thread] = fence

    def meet(self, block: int, threads: Array | None = None) -> None:
        """Share what threads of a block know among them, None: among all."""
        own = self._own.get(block)
        if not own:
            return
        if threads is None:
            found = self._of(block, own)
            if found is not None:
                self._common[block] = found
            del self._own[block]
            return
        met = {t: own[t] for t in threads.tolist() if t in own}
        if met:
            found = self._of(block, met)
            assert found is not None
            own.update(dict.fromkeys(threads.tolist(), found))

    def of(self, block: int, threads: Array) -> Clock | None:
        """Return what some threads of a block know together."""
        own = self._own.get(block, {})
        return self._of(block, {t: own[t] for t in threads.tolist() if t in own})

    def _of(self, block: int, own: dict[int, Clock | Fence]) -> Clock | None:
        clocks = [self._common.get(block)]
        pending: dict[tuple[int, int], list[Fence]] = {}
        for each in own.values():
            if isinstance(each, Fence) and each.found is None:
                pending.setdefault((each.moment.event, id(each.known)), []).append(each)
            else:
                clocks.append(each.clock() if isinstance(each, Fence) else each)
        for fences in pending.values():  # of one fence all threads at once
            first = fences[0]
            threads = np.array([f.thread for f in fences])
            clocks.append(first.clocks.snapshot(block, threads, first.moment, first.known))
        return joined(clocks, self._width)

    @property
    def blocks(self) -> list[int]:
        """The blocks of which single threads know more than the others."""
        return list(self._own)


@dataclass(slots=True)
class Cell:
    """What the value of an element hands on, to groups of threads: by the level of a scope, and which group it is."""

    groups: dict[tuple[int, int, int], Clock] = field(default_factory=dict)


class Clocks:
    """Releases, acquires and fences of a launch.

    `order` says what happens before what within blocks. Scopes have levels, from the narrowest on. So many neighbours
    of the threads that `order` knows, `reaches[level]`, are in one group by the scope of a level; by that of the last
    level, which is not in `reaches`, all threads are. Two accesses reach each other where their threads are in one
    group by the narrower of their scopes. So a write hands on what it does to its groups of all levels up to its own,
    and a read looks into these.
    """

    def __init__(self, order: Order, reaches: tuple[int, ...]) -> None:
        self._order, self._reaches = order, reaches
        levels = range(len(reaches) + 1)
        self.width: int = order.columns + 1
        self._first_block = 0
        self._join = Joiner(self.width)
        self._known: Knowledge = Knowledge(self._join, self.width)
        # By level: what was read without acquiring it, and what a fence of that scope has made ready to be handed on.
        self._seen, self._fenced = ([Knowledge(self._join, self.width) for _ in levels] for _ in range(2))
        self._brought: dict[tuple[object, int, int], _Brought] = {}

    def begin(self, first_block: int) -> None:
        """Start a chunk of blocks."""
        self._first_block = first_block
        self._brought.clear()
        for each in self._all():
            each.clear()

    def _all(self) -> tuple[Knowledge, ...]:
        return self._known, *self._seen, *self._fenced

    def _groups(self, level: int, block: int, thread: int) -> list[tuple[int, int, int]]:
        """Return the groups of a thread by the scopes up to that of a level."""
        number = block * self._order.threads + thread
        narrow = [(n, 0, number // reach) for n, reach in enumerate(self._reaches[: level + 1])]
        return narrow if level < len(self._reaches) else [*narrow, (level, 0, 0)]

    def __bool__(self) -> bool:
        """Return whether some thread knows of others by memory."""
        return bool(self._known)

    def covers(self, rows: Array, threads: Array, blocks: Array, others: Array, events: Array) -> Array:
        """Say which events of threads `others` of some blocks are known to threads of the rows of the chunk."""
        found = np.zeros(rows.shape, np.bool_)
        if not self._known:
            return found
        readers = rows * self._order.threads + threads
        by_clock: dict[int, tuple[Clock, list[int]]] = {}
        unique, inverse = np.unique(readers, return_inverse=True)
        group = np.full(unique.size, -1)
        for n, reader in enumerate(unique.tolist()):
            row, thread = divmod(reader, self._order.threads)
            clock = self._known.get(self._first_block + row, thread)
            if clock is not None:
                by_clock.setdefault(id(clock), (clock, []))[1].append(n)
                group[n] = id(clock)
        is_agent = others >= AGENT
        keys = blocks * self.width
        own = keys + 1 + np.where(is_agent, others - AGENT + self._order.threads, others)
        group_of = group[inverse]
        for number, (clock, _) in by_clock.items():
            at = np.flatnonzero(group_of == number)
            found[at] = events[at] < np.maximum(clock.at(keys[at]), clock.at(own[at]))
        return found

    def covered_by(self, clock: Clock | None, blocks: Array, others: Array, events: Array) -> Array:
        """Say which events of threads `others` of some blocks are known to who knows as much as a clock."""
        if clock is None:
            return np.zeros(events.shape, np.bool_)
        keys = blocks * self.width
        own = keys + 1 + np.where(others >= AGENT, others - AGENT + self._order.threads, others)
        found: Array = events < np.maximum(clock.at(keys), clock.at(own))
        return found

    def known_to(self, block: int, thread: int) -> Clock | None:
        """Return what a thread of a block of the grid knows of other blocks."""
        return self._known.get(block, thread)

    def known_to_blocks(self, blocks: range) -> Clock | None:
        """Return what the threads of blocks know together of other blocks."""
        threads = np.arange(self._order.threads)
        return joined([self._known.of(block, threads) for block in blocks], self.width)

    def beyond(self, block: int) -> Clock:
        """Return what hands on that something was heard from a block behind all that run."""
        return Clock(np.array([block * self.width]), np.array([self._order.start + 1]))

    @property
    def everybody(self) -> tuple[int, int, int]:
        """The group of all threads."""
        return len(self._reaches), 0, 0

    def heard_of(self, clock: Clock | None) -> Array:
        """Return the blocks that have told something to who knows as much as a clock."""
        if clock is None:
            return np.zeros(0, np.int64)
        return np.asarray(np.unique(clock.keys[clock.events > self._order.start] // self.width))

    # --- within a block --------------------------------------------------------------------------------------

    def meet_block(self, mask: Mask) -> None:
        """Share what the threads of the blocks of a mask know."""
        for each in self._all():
            for block in each.blocks:
                row = block - self._first_block
                if mask is None or mask[row if len(mask) > 1 else 0].any():
                    each.meet(block)

    def meet_warps(self, mask: Mask, warps: int = 1) -> None:
        """Share what the threads of a mask know within their groups of so many warps."""
        size = warps * self._order.warp
        for each in self._all():
            for block in each.blocks:
                here = self._threads(mask, block - self._first_block)
                for group in np.unique(here // size).tolist():
                    each.meet(block, here[here // size == group])

    def arrive(self, barrier: object, phase: Array, mask: Mask) -> None:
        """Let threads bring what they know to the phase, one number a block (rows, 1), of a barrier."""
        for kind, each in enumerate(self._all()):
            for block in each.blocks:
                row = block - self._first_block
                clock = each.of(block, self._threads(mask, row))
                if clock is not None:
                    brought = self._brought.setdefault((barrier, kind, block), _Brought())
                    brought.bring(int(phase[row if len(phase) > 1 else 0, 0]), clock, self.width)

    def acquire(self, barrier: object, phase: Array, mask: Mask) -> None:
        """Let threads know what was brought to the phases of a barrier up to one."""
        for (_, kind, block), brought in [(k, b) for k, b in self._brought.items() if k[0] == barrier]:
            row = block - self._first_block
            clock = brought.offered(int(phase[row if len(phase) > 1 else 0, 0]))
            if clock is not None:
                for thread in self._threads(mask, row).tolist():
                    self._all()[kind].add(block, thread, clock)

    def _threads(self, mask: Mask, row: int) -> Array:
        if mask is None:
            return np.arange(self._order.threads)
        own = mask[row if len(mask) > 1 else 0]
        return np.flatnonzero(np.broadcast_to(own, (self._order.threads,)))

    # --- accesses and fences ---------------------------------------------------------------------------------

    def snapshot(self, block: int, threads: int | Array, moment: Moment, known: Clock | None) -> Clock:
        """Return what threads knew at a moment, of their own block and, `known`, of others."""
        floor, numbers, events = moment.known_to(block - self._first_block, threads)
        first = block * self.width
        own = Clock(np.r_[first, first + 1 + numbers], np.r_[floor, events])
        found = joined((own, known), self.width)
        assert found is not None
        return found

    def fence(self, row: int, thread: int, moment: Moment, level: int) -> None:
        """Make a fence: what was seen before is known, and what is known can be released by what follows."""
        block = self._first_block + row
        for seen in self._seen[: level + 1]:
            if seen:
                self._known.add(block, thread, seen.get(block, thread))
        self._fenced[level].put(block, thread, Fence(self, block, thread, moment, self._known.get(block, thread)))

    def read(self, cell: Cell, row: int, thread: int, level: int, acquires: bool) -> None:
        """Read an element: know what its value hands on, or keep it for a fence that follows."""
        block = self._first_block + row
        for group in self._groups(level, block, thread):
            (self._known if acquires else self._seen[group[0]]).add(block, thread, cell.groups.get(group))

    def write(self, cell: Cell, row: int, thread: int, moment: Moment, level: int, how: str) -> None:
        """Write an element: hand on what the thread knows, as a release, or what it or others fenced.

        `how` is "release" or "relaxed", with "update " before it where what was handed on before stays.
        """
        block = self._first_block + row
        if not how.startswith("update"):
            cell.groups.clear()
        ready: list[Clock | None]
        if how.endswith("release"):
            ready = [self.snapshot(block, thread, moment, self._known.get(block, thread))] * len(self._fenced)
        else:  # what a fence made ready reaches as far as the fence and the write both do
            ready = [fenced.get(block, thread) if fenced else None for fenced in self._fenced]
            for n in range(len(ready) - 2, -1, -1):
                ready[n] = self._join(ready[n], ready[n + 1])
        for group in self._groups(level, block, thread):
            found = self._join(cell.groups.get(group), ready[group[0]])
            if found is not None:
                cell.groups[group] = found

    @property
    def has_fences(self) -> bool:
        """True where a thread made a fence, so that relaxed writes hand something on."""
        return any(map(bool, self._fenced))


@dataclass(slots=True)
class _Brought:
    """What was brought to the last phase of a barrier that anybody arrived in, and to those before it."""

    phase: int = -1
    here: Clock | None = None
    earlier: Clock | None = None

    def bring(self, phase: int, clock: Clock, width: int) -> None:
        if phase > self.phase:
            self.phase, self.earlier = phase, self.here
        self.here = joined((self.here, clock), width)

    def offered(self, phase: int) -> Clock | None:
        return self.here if phase >= self.phase else self.earlier
