"""The places where threads wait for others: named barriers, the barrier of a block, and mbarriers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.backends.sim.agents import Agent, Crew, Pause
from tilewright.backends.sim.compiler import Compiler
from tilewright.backends.sim.deadlocks import Waiting
from tilewright.backends.sim.named_barriers import BLOCK_BARRIER
from tilewright.backends.sim.observers import Signal
from tilewright.backends.sim.values import Array, Frame, Lanes, at_least_2d
from tilewright.ir.ops import Barrier, MbarrierWait, NamedBarrier


class NamedWait(Pause):
    """A wait at a named barrier, for the phase in which the thread has arrived."""

    op: NamedBarrier

    def __init__(self, op: NamedBarrier, compiler: Compiler, live: Sequence[int]) -> None:
        self._given = compiler.slot(op.id)
        # The barrier and the phase that each thread has arrived at.
        self._number, self._phase = compiler.hidden_slot(), compiler.hidden_slot()
        super().__init__((*live, self._number, self._phase))
        self.op, self._named, self._machine = op, compiler.named_barriers, compiler.machine

    def arrive(self, frame: Frame) -> None:
        """Let the threads arrive."""
        values = frame.values
        values[self._number], values[self._phase] = self._named.arrive(
            self.op, values[self._given], self.op.threads, frame.mask
        )

    def ready(self, agent: Agent, crew: Crew) -> Lanes:
        values = agent.frame.values
        return self._named.phase_of(values[self._number]) > values[self._phase]

    def passed(self, agent: Agent) -> None:
        values = agent.frame.values
        for observer in self._machine.observers:
            observer.acquire(Signal(self.op, None, values[self._number], values[self._phase], agent.frame.mask))

    def waiting(self, frame: Frame, row: int, threads: Array) -> list[Waiting]:
        found = []
        for number, those in _groups(frame.values[self._number], row, threads):
            arrived, expected, phase = (
                int(state[row, number]) for state in (self._named.arrived, self._named.expected, self._named.phase)
            )
            what = f"named barrier {number}, phase {phase}: {arrived} of {expected} threads have arrived"
            found.append(Waiting(self.op, those, what))
        return found


class BlockWait(Pause):
    """A wait for all threads of the block, which is the block's barrier 0."""

    op: Barrier

    def __init__(self, op: Barrier, compiler: Compiler, live: Sequence[int]) -> None:
        self._phase = compiler.hidden_slot()
        super().__init__((*live, self._phase))
        self.op, self._named, self._machine = op, compiler.named_barriers, compiler.machine
        self._number = np.full((1, 1), BLOCK_BARRIER)

    def arrive(self, frame: Frame) -> None:
        """Let the threads arrive."""
        warp = self._machine.warp
        threads = -(-self._machine.threads // warp) * warp
        frame.values[self._phase] = self._named.arrive(self.op, self._number, threads, frame.mask)[1]

    def ready(self, agent: Agent, crew: Crew) -> Lanes:
        return self._named.phase_of(self._number) > agent.frame.values[self._phase]

    def passed(self, agent: Agent) -> None:
        for observer in self._machine.observers:
            observer.barrier(self.op, agent.frame.mask)

    def waiting(self, frame: Frame, row: int, threads: Array) -> list[Waiting]:
        arrived, expected = (int(a[row, BLOCK_BARRIER]) for a in (self._named.arrived, self._named.expected))
        return [Waiting(self.op, threads, f"all threads of the block: {arrived} of {expected} have arrived")]


class MbarrierPause(Pause):
    """A wait for a phase of an mbarrier."""

    op: MbarrierWait

    def __init__(self, op: MbarrierWait, compiler: Compiler, live: Sequence[int]) -> None:
        self._index, self._parity = compiler.slots((op.index, op.parity))
        self._allowed = compiler.hidden_slot()  # the threads whose use of it is right
        super().__init__((*live, self._index, self._parity, self._allowed))
        self.op, self._mbarriers = op, compiler.mbarriers(op.buffer)

    def begin(self, frame: Frame) -> None:
        """Check the wait; threads whose use is wrong go on at once."""
        values = frame.values
        allowed = self._mbarriers.begin_wait(self.op, values[self._index], values[self._parity], frame.mask)
        values[self._allowed] = np.True_ if allowed is None or allowed is frame.mask else allowed

    def ready(self, agent: Agent, crew: Crew) -> Lanes:
        values = agent.frame.values
        over = self._mbarriers.over(values[self._index], values[self._parity], agent.frame.mask)
        return over | ~values[self._allowed]

    def passed(self, agent: Agent) -> None:
        self._mbarriers.passed(self.op, agent.frame.values[self._index], agent.frame.mask)

    def waiting(self, frame: Frame, row: int, threads: Array) -> list[Waiting]:
        found, barriers = [], self._mbarriers
        for element, those in _groups(frame.values[self._index], row, threads):
            at = row, element
            phase, count = int(barriers.phase[at]), int(barriers.count[at])
            what = (
                f"mbarrier {barriers.name(element)}, phase {phase} (parity {phase % 2}): "
                f"{count - int(barriers.pending[at])} of {count} arrivals have come"
            )
            found.append(Waiting(self.op, those, what))
        return found


def _groups(number: Lanes, row: int, threads: Array) -> list[tuple[int, Array]]:
    """Return each number that threads of a block have, with the threads that have it."""
    array = at_least_2d(number)
    own = np.broadcast_to(array[row if array.shape[0] > 1 else 0], threads.shape)
    return [(int(n), threads & (own == n)) for n in np.unique(own[threads])]
