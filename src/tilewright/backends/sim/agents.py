"""Threads that wait for one another: agents, each with its own place in the program, run one at a time.

A kernel that waits at named barriers or mbarriers is laid out as a list of instructions (see `linearisation`), and runs
as agents. An agent is a set of threads, of any blocks of the chunk, that are at the same place: a mask, values of its
own, the number of the next instruction, and the iteration of each loop around it. Memory is shared. At the start all
threads are one agent, and run in step as everywhere else. Agents divide and unite:

- where threads take different sides of a branch, or leave a loop after different iterations, each part becomes an
  agent;
- agents that are at the same pause, in the same iteration of the same loops, become one again.

Pauses are the places where an agent may stop: waits, the ends of branches and loops, and places where whole warps are
needed. The rule by which the next agent is chosen, at a pause:

1. An agent all of whose threads may go on; of several the one that is behind in the program, so that others have
   the time to unite.
2. Else an agent some of whose warps may go on, in whichever block: they leave it as an agent of their own.
3. Else one some of whose threads may; lanes of a warp come apart only when nothing else is left.
4. Else one that tests an mbarrier, although nothing has changed since it last did.
5. Else one in a loop that waits for memory (see `spinning`), if memory has changed since it last looked; those that
   have waited longest first.

Waiting for all blocks of an agent costs nothing, because blocks do not wait for each other; and because 2 and 3 let go
whoever can, no agent waits for a thread that is not needed. So if none of the five is left, no thread of any block
can ever go on: that is a deadlock, and it is reported with what each of them waits for.

With a seed the choice among those who may go on is another (see `interleaving`), down to single lanes.

An instruction that the threads of a warp run together waits for those of them that are behind in the program, as the
GPU's does: shuffles, votes, elections, matrix instructions, `sync_warp`, and the arrival at a named barrier. So does
one of a warpgroup, for the threads of its four warps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tilewright.backends.sim.compiler import Compiler
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.interleaving import Interleaving
from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.values import Array, Frame, Lanes, Mask, at_least_2d, merge, over_warps, warps_of, without
from tilewright.ir.core import Kernel, Op
from tilewright.ir.instruction import Instruction
from tilewright.ir.thread_sets import WARPGROUP, Roles, ThreadSets, name_threads, roles_at, roles_in_words


@dataclass
class Waiting:
    """Threads of one block, a mask, that wait for the same thing since the line of an op.

    `kind` and `summary` are those of the finding where the wait has a name of its own; others are deadlocks. `other` is
    the op that announced the bytes for which alone it waits, `missing` how many arrivals the phase waits for.
    """

    op: Op
    threads: Array
    what: str
    help: str | None = None
    kind: str | None = None
    summary: str | None = None
    other: Op | None = None
    missing: int = 0


def groups_of(number: Lanes, row: int, threads: Array) -> list[tuple[int, Array]]:
    """Return each number that threads of a block of the chunk have, with the threads, of a mask, that have it."""
    array = at_least_2d(number)
    own = np.broadcast_to(array[row if array.shape[0] > 1 else 0], threads.shape)
    return [(int(n), threads & (own == n)) for n in np.unique(own[threads])]


def report_deadlock(
    machine: Machine,
    agents: Sequence[tuple[Frame, Callable[[Frame, int, Array], list[Waiting]]]],
    kernel: Kernel | None = None,
) -> None:
    """Report the first block of the chunk in which threads wait; the run cannot go on for them."""
    shape = machine.blocks, machine.threads
    masks = [np.broadcast_to(True if f.mask is None else f.mask, shape) for f, _ in agents]
    stuck: Array = np.asarray(np.stack(masks).any(axis=0))
    row, size = int(np.argmax(stuck.any(axis=1))), machine.cluster_size
    found: list[Waiting] = []
    notes: list[str] = []
    shown = list(range(row, row // size * size + size))  # the blocks of one cluster wait for each other
    if machine.ranks is not None:  # and so do ranks
        for start in range(0, machine.total_blocks, machine.blocks_of_rank):
            of_rank = stuck[start : start + machine.blocks_of_rank].any(axis=1)
            if of_rank.any() and not start <= row < start + machine.blocks_of_rank:
                shown.append(start + int(np.argmax(of_rank)))
    for each in shown:
        pairs = [(tell, frame, mask[each]) for (frame, tell), mask in zip(agents, masks, strict=True)]
        waits = [w for tell, frame, threads in pairs if threads.any() for w in tell(frame, each, threads)]
        found += waits
        notes += [f"block {machine.block_coordinate(each)}:"] if len(shown) > 1 and waits else []
        for waiting in waits:
            one = int(waiting.threads.sum()) == 1 or _is_one_warp(waiting.threads, machine.warp)
            notes.append(f"{name_threads(waiting.threads, machine.warp)} wait{'s' if one else ''} for {waiting.what}")
            if waiting.op.location is not None:
                place = waiting.op.location
                notes += [f"  since {place}", f"    {place.text.strip()}"]
            if waiting.other is not None and waiting.other.location is not None:
                place = waiting.other.location
                notes += [f"  its bytes were announced by {place}", f"    {place.text.strip()}"]
        done = machine.threads - int(stuck[each].sum())
        if done and waits:
            notes.append(f"the other {done} threads of the block have run to their end")
    others = int(stuck.any(axis=1).sum()) - int(stuck[shown].any(axis=1).sum())
    if others:
        notes.append(f"so do threads of {others} more block{'s' if others > 1 else ''}")
    later = machine.total_blocks - machine.first_block - machine.blocks
    if later:
        notes.append(f"{later} blocks of the grid have not started; {machine.blocks} are resident at once")
    first = next((waiting for waiting in found if waiting.kind or waiting.other), found[0])
    about_roles, way_out = _of_roles(kernel, found, ~stuck[row]) if kernel is not None else ([], None)
    notes += about_roles
    common = _COUNT_BYTES if first.other else _COUNT_ARRIVALS
    fault = Fault(
        first.op,
        first.kind or "deadlock",
        first.summary or f"deadlock: {_waiters(int(stuck[row].sum()))} for what no thread will do",
        machine.block_coordinate(row),
        machine.thread_coordinate(int(np.argmax(first.threads))),
        notes=notes,
        help=_BETWEEN_RANKS
        if machine.ranks is not None
        else first.help or way_out or next((w.help for w in found if w.help), common),
        other=first.other,
        count=int(stuck.sum()),
    )
    machine.collector.report(fault)


def _of_roles(kernel: Kernel, found: Sequence[Waiting], done: Array) -> tuple[list[str], str | None]:
    """Return what roles have to do with it: threads that no role takes, as many as are missing, and roles of nobody.

    Other threads that take no role have ended as they may.
    """
    sets = ThreadSets(kernel)
    for waiting in found:
        meeting = waiting.op.meeting() if isinstance(waiting.op, Instruction) and waiting.missing else None
        roles = (
            roles_at(kernel, sets, meeting.barrier, kernel.warp_size)
            if meeting is not None and meeting.barrier is not None
            else None
        )
        if meeting is None or (roles is None and not kernel.untaken_roles):
            continue
        roles = roles or Roles(without=np.zeros_like(done))
        roles.untaken += [place for barrier, place in kernel.untaken_roles if barrier == meeting.barrier]
        idle = roles.without & done
        count = int(idle.sum())
        if waiting.missing not in (count, count // kernel.warp_size, count // WARPGROUP):
            idle = np.zeros_like(idle)
        if idle.any() or roles.untaken:
            return roles_in_words(roles, idle)
    return [], None


_COUNT_BYTES = (
    "announce what the copies of the phase bring, tiles that overhang in full: arrive_expect_tx(bytes), and start all "
    "of them"
)
_COUNT_ARRIVALS = (
    "count the arrivals that each phase takes and the threads that make them, and follow the parity of each wait: "
    "phase n has parity n % 2"
)


_BETWEEN_RANKS = (
    "let each rank that others wait for write their flags, in every launch and with the number that they wait for, and "
    "let no two ranks wait for each other before they write"
)


def _waiters(number: int) -> str:
    return "a thread waits" if number == 1 else f"{number} threads of a block wait"


def _is_one_warp(threads: Array, warp: int) -> bool:
    numbers = np.nonzero(threads)[0] // warp
    return len(numbers) == warp and len(set(numbers.tolist())) == 1


# How often in a row agents may test an mbarrier without success, while no other agent can run and no barrier changes.
_MAX_IDLE_POLLS = 1 << 14
_LATE_POLLS = 8  # tests in a row that may find nothing because what is under way is late
# How often in a row loops that wait for memory may run a round of 64 iterations in which they change what they carry,
# and find in memory what they found before, while no memory changes and nobody else can run.
_MAX_QUIET_ROUNDS = 1 << 11


class Agent:
    """Threads that are at the same place. `loops` holds the number and the iteration of each loop around it."""

    __slots__ = ("frame", "is_futile", "iterations", "loops", "pc", "seen", "spun", "waited")

    def __init__(self, frame: Frame, pc: int = 0, loops: tuple[int, ...] = ()) -> None:
        self.frame: Frame = frame
        self.pc: int = pc
        self.loops: tuple[int, ...] = loops
        self.seen: int = -1  # the state of the barriers at its last test of one
        # At a loop that waits for memory: where, what the loop carried then, and the state of memory; whether the last
        # iteration changed nothing, how many iterations it went on by itself, and when it last did.
        self.spun: tuple[Pause, tuple[Lanes, ...], int] | None = None
        self.is_futile: bool = False
        self.iterations: int = 0
        self.waited: int = 0

    @property
    def path(self) -> tuple[int, ...]:
        """How far it has come: the agent with the smaller path is behind."""
        return (*self.loops, self.pc)


class Pause:
    """A place where an agent may stop. This kind never has to: those that took different ways meet again there.

    `live` are the slots of values that may be read later.
    """

    op: Op | None = None
    group = 0  # warps that leave it together where one of them does; -1: a block's

    def __init__(self, live: Sequence[int]) -> None:
        self.live: tuple[int, ...] = tuple(live)

    def begin(self, frame: Frame) -> None:
        """Do what threads do as they come to the pause: arrive, say."""

    def arrive(self, agent: Agent, scheduler: Scheduler) -> None:
        """Do what follows from an agent's coming to the pause, for the agent alone."""

    def ready(self, agent: Agent, scheduler: Scheduler) -> Lanes:
        """Return which threads may go on."""
        return np.True_

    def passed(self, agent: Agent) -> None:
        """Do what follows for those who watch: an agent goes on."""

    def finish(self, agent: Agent, scheduler: Scheduler) -> None:
        """Do what threads do once they may go on, before the next instruction."""

    def waiting(self, frame: Frame, row: int, threads: Array) -> list[Waiting]:
        """Return what the threads, a mask, of a block of the chunk wait for."""
        return []


class Gather(Pause):
    """A place before what groups of whole warps do: threads wait for the others of theirs that may still come."""

    def __init__(self, live: Sequence[int], op: Op, warps: int = 1) -> None:
        super().__init__(live)
        self.op: Op = op
        self.warps = warps
        self.group = warps

    def ready(self, agent: Agent, scheduler: Scheduler) -> Lanes:
        return np.asarray(~scheduler.stragglers(agent, self.warps))

    def waiting(self, frame: Frame, row: int, threads: Array) -> list[Waiting]:
        assert self.op is not None
        group = "warp" if self.warps == 1 else "warpgroup"
        return [Waiting(self.op, threads, f"the other threads of the {group}")]


class Crossing(Pause):
    """A place before an op at which the order of threads may matter, in runs whose order a seed gives."""


class Poll(Pause):
    """A place before a test of an mbarrier, which makes sense again when a barrier has changed."""

    def __init__(self, live: Sequence[int], op: Op) -> None:
        super().__init__(live)
        self.op: Op = op

    def ready(self, agent: Agent, scheduler: Scheduler) -> Lanes:
        return np.asarray(agent.seen != scheduler.compiler.barrier_version)

    def waiting(self, frame: Frame, row: int, threads: Array) -> list[Waiting]:
        assert self.op is not None
        return [Waiting(self.op, threads, "a test of an mbarrier to hold, again and again")]


Command: TypeAlias = "Callable[[Agent, Scheduler], None] | Pause"


class Scheduler:
    """Runs the agents of the chunk of blocks that runs now, one at a time, each to its next pause."""

    def __init__(self, code: Sequence[Command], compiler: Compiler, kernel: Kernel | None = None) -> None:
        self.code = code
        self._kernel = kernel
        self.compiler = compiler
        self.agents: list[Agent] = []
        self.idle_polls: int = 0
        self._interleaving = compiler.machine.interleaving
        self._step = 0
        self._quiet = (-1, 0)  # a state of memory, and how many rounds loops took in it that wait for memory

    @property
    def version(self) -> int:
        """A number that changes when memory does, or a barrier."""
        return self.compiler.machine.version + self.compiler.barrier_version

    def run(self, frame: Frame) -> bool:
        """Run all threads from the first instruction on until they are done; return whether they could be."""
        self.agents = [Agent(frame)]
        self.idle_polls = 0
        self._quiet = (-1, 0)
        while self.agents:
            agent = self._choose()
            if agent is None:
                self._report_deadlock()
                return False
            self._advance(agent)
        return True

    def note_progress(self) -> None:
        """Take note that a loop that may wait for memory has found something new there."""
        self._quiet = -1, 0

    def split(self, agent: Agent, part: Array) -> Agent:
        """Let the threads of the mask leave an agent, and return them as an agent of their own."""
        frame = agent.frame
        other = Agent(Frame(list(frame.values), part), agent.pc, agent.loops)
        other.seen, other.spun, other.iterations = agent.seen, agent.spun, agent.iterations
        frame.mask = without(frame.mask, part)
        self.agents.append(other)
        return other

    def stragglers(self, agent: Agent, warps: int) -> Array:
        """Return the threads of the agent for whose groups of warps others come that are behind it in the program."""
        mask = agent.frame.mask
        none = np.zeros((1, 1), np.bool_)
        if mask is None or len(self.agents) == 1:
            return none
        threads, size = self.compiler.machine.threads, warps * self.compiler.machine.warp
        active, split = warps_of(mask, threads, size)
        partial, path = active & split, agent.path
        if not partial.any():
            return none
        behind = [a.frame.mask for a in self.agents if a.path < path]
        missing = [partial & warps_of(other, threads, size)[0] for other in behind]
        missing = [m for m in missing if m.any()]
        if not missing:
            return none
        return over_warps(np.logical_or.reduce(np.broadcast_arrays(*missing)), threads, size)

    def _advance(self, agent: Agent) -> None:
        """Let an agent leave the pause where it is, and run it to the next."""
        code = self.code
        pause = self._pause(agent)
        if pause is not None:
            pause.passed(agent)
            agent.pc += 1
        while agent.pc < len(code):
            instruction = code[agent.pc]
            if not isinstance(instruction, Pause):
                instruction(agent, self)
            elif type(instruction) is Pause and len(self.agents) == 1:  # no agent to meet
                agent.pc += 1
            else:
                instruction.arrive(agent, self)
                return
        self.agents.remove(agent)
        self.compiler.cluster_barriers.leave(agent.frame.mask)

    def _choose(self) -> Agent | None:
        """Return the agent that runs next, by the rule above, or None if no thread can go on."""
        self._unite()
        if self._interleaving is not None:
            return self._draw(self._interleaving)
        partly: list[tuple[Agent, Array]] = []
        testing: list[Agent] = []
        spinning: list[Agent] = []
        for agent in self.agents:
            pause = self._pause(agent)
            ready = True if pause is None else pause.ready(agent, self)
            mask = agent.frame.mask
            going = np.asarray(ready) if mask is None else np.asarray(ready & mask)
            if (going if mask is None else going | ~mask).all():
                return agent
            if going.any():
                partly.append((agent, going))
            elif isinstance(pause, Poll):
                testing.append(agent)
            elif agent.spun is not None and agent.spun[0] is pause:
                spinning.append(agent)
        if partly:
            return self._divide(partly)
        found = self._next_spinning(spinning)
        if found is None and testing and self.idle_polls <= _MAX_IDLE_POLLS:
            return testing[self.idle_polls % len(testing)]
        return found

    def _draw(self, interleaving: Interleaving) -> Agent | None:
        """Return the agent that runs next where a seed gives the order, or None if no thread can go on."""
        machine = self.compiler.machine
        shape = machine.blocks, machine.threads
        candidates: list[tuple[Agent, Array]] = []
        testing: list[Agent] = []
        spinning: list[Agent] = []
        for agent in self.agents:
            pause, mask = self._pause(agent), agent.frame.mask
            ready = True if pause is None else pause.ready(agent, self)
            here: Array = np.ones(shape, np.bool_) if mask is None else np.broadcast_to(mask, shape)
            going = here & ready
            if going.any():
                candidates.append((agent, going))
            elif isinstance(pause, Poll):
                testing.append(agent)
            elif agent.spun is not None and agent.spun[0] is pause:
                spinning.append(agent)
                if not agent.is_futile or agent.spun[2] != self.version:
                    candidates.append((agent, here))
        if all(agent in spinning for agent, _ in candidates):
            found = self._next_spinning(spinning)
            if found is None and testing and self.idle_polls <= _MAX_IDLE_POLLS:
                return testing[self.idle_polls % len(testing)]
            return found
        agent, chosen = interleaving.choose(candidates)
        if agent in spinning:
            interleaving.give_way(chosen)
            return self._next_spinning([agent]) or next(a for a, _ in candidates if a not in spinning)
        pause = self._pause(agent)
        if isinstance(pause, Poll):
            interleaving.give_way(chosen)
        if pause is None:  # a place where an agent has come to by a jump, or the beginning
            return agent
        if pause.group:
            size = machine.threads if pause.group < 0 else pause.group * machine.warp
            chosen = over_warps(warps_of(chosen, machine.threads, size)[0], machine.threads, size)
        going = next(each for a, each in candidates if a is agent)
        chosen = chosen & going
        mask = agent.frame.mask
        if (chosen if mask is None else chosen | ~mask).all():
            return agent
        return self.split(agent, chosen)

    def is_late(self) -> bool:
        """Say whether a test of an mbarrier is to find that bytes and copies under way have not come yet."""
        return self._interleaving is not None and self.idle_polls < _LATE_POLLS and self._interleaving.is_late()

    def _next_spinning(self, spinning: list[Agent]) -> Agent | None:
        """Return the agent that looks at memory next, None where looking is of no use."""
        version = self.version if spinning else 0
        hopeful = [a for a in spinning if not a.is_futile or a.spun is None or a.spun[2] != version]
        if not hopeful:
            return None
        rounds = self._quiet[1] + 1 if self._quiet[0] == version else 0
        self._quiet = version, rounds
        if rounds > _MAX_QUIET_ROUNDS:
            return None
        agent = min(hopeful, key=lambda a: a.waited)
        self._step += 1
        agent.waited, agent.iterations = self._step, 0
        return agent

    def _divide(self, partly: list[tuple[Agent, Array]]) -> Agent:
        """Split off warps that can go on, or else threads."""
        threads, warp = self.compiler.machine.threads, self.compiler.machine.warp
        for agent, going in partly:
            mask = agent.frame.mask
            stuck = ~going if mask is None else mask & ~going
            free = going & ~over_warps(warps_of(stuck, threads, warp)[0], threads, warp)
            if free.any():
                return self.split(agent, free)
        agent, going = partly[0]
        return self.split(agent, going)

    def _pause(self, agent: Agent) -> Pause | None:
        found = self.code[agent.pc]
        return found if isinstance(found, Pause) else None

    def _unite(self) -> None:
        """Make one agent of those that are at the same pause."""
        if len(self.agents) == 1:
            return
        self.agents.sort(key=lambda agent: agent.path)
        united = self.agents[:1]
        for agent in self.agents[1:]:
            if agent.path == united[-1].path and self._pause(agent) is not None:
                self._absorb(united[-1], agent)
            else:
                united.append(agent)
        self.agents = united

    def _absorb(self, agent: Agent, other: Agent) -> None:
        values, more = agent.frame.values, other.frame.values
        mask, added = agent.frame.mask, other.frame.mask
        assert mask is not None and added is not None, (agent.path, other.path)
        pause = self._pause(agent)
        assert pause is not None, agent.path
        for slot in pause.live:
            values[slot] = _united(added, more[slot], values[slot])
        both: Mask = mask | added
        agent.frame.mask = None if both is not None and both.all() else both
        agent.seen = min(agent.seen, other.seen)
        agent.iterations = max(agent.iterations, other.iterations)
        agent.is_futile = agent.is_futile and other.is_futile
        mine, its = agent.spun, other.spun
        if mine is None or its is None or mine[0] is not its[0] or mine[2] != its[2]:
            agent.spun, agent.is_futile = (None if pause is not (mine and mine[0]) else mine), False
        else:
            agent.spun = (mine[0], tuple(_united(added, b, a) for a, b in zip(mine[1], its[1], strict=True)), mine[2])

    def _report_deadlock(self) -> None:
        found = []
        for agent in self.agents:
            pause = self._pause(agent)
            if pause is not None:
                found.append((agent.frame, pause.waiting))
        report_deadlock(self.compiler.machine, found, self._kernel)


def _united(added: Array, new: Lanes, old: Lanes) -> Lanes:
    """Return a value of two agents that become one; a number that is the same in both stays a number."""
    if new is old or new is None:
        return old
    if old is None:
        return new
    same = not isinstance(new, np.ndarray) and not isinstance(old, np.ndarray) and new.tobytes() == old.tobytes()
    return old if same else merge(added, new, old)
