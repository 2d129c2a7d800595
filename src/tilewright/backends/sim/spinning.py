"""Loops that wait for memory: which may, and how their threads let others run.

A `while` whose condition depends on memory that the kernel writes, or on a strong read, may be a wait for other
threads. Its threads stop at each iteration (see `agents`), and what an iteration did decides what follows:

- it changed what the loop carries, or memory: progress like any other. Others run now and then;
- it changed nothing, and memory is as it was: the next one would do the same, so others run first, and the loop is
  tried again when memory has changed. Where all threads are in such loops or wait elsewhere, none of them can ever go
  on, which is a deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from tilewright.backends.sim.agents import Agent, Pause, Scheduler, Waiting
from tilewright.backends.sim.compiler import Compiler
from tilewright.backends.sim.ranked import RankedStorage
from tilewright.backends.sim.storage import FlatStorage
from tilewright.backends.sim.values import Array, Frame, Lanes, fill, same_bits
from tilewright.ir.core import Block, Buffer, Kernel, Op, Space, Value
from tilewright.ir.ops import For, If, Load, Store, While, yielded

_UNINTERRUPTED = 64  # iterations that make progress before others run


def find_spins(kernel: Kernel) -> frozenset[Op]:
    """Return the loops that may wait for memory; found once a kernel."""
    known = _known.get(kernel)
    if known is None:
        known = _known[kernel] = _find(kernel)
    return known


_known: WeakKeyDictionary[Kernel, frozenset[Op]] = WeakKeyDictionary()


def _find(kernel: Kernel) -> frozenset[Op]:
    loops = [op for op in kernel.body.walk() if isinstance(op, While)]
    if not loops:
        return frozenset()
    changing = {buffer for op in kernel.body.walk() for buffer in op.buffers_written}
    return frozenset(loop for loop in loops if _Dependence(loop, changing).spins)


def reads_of(loop: While, changing: set[Buffer] | None = None) -> list[Op]:
    """Return the ops of a loop that read what other threads may write."""
    ops = [op for block in (loop.condition, loop.body) for op in block.walk()]
    return [op for op in ops if _reads(op, changing)]


def _reads(op: Op, changing: set[Buffer] | None) -> bool:
    read = [use.buffer for use in op.uses if use.use.is_read and use.buffer.space is not Space.REGISTER]
    if op.effects.scope is not None:
        return bool(read)
    return isinstance(op, Load) and bool(read) and (changing is None or read[0] in changing)


class _Dependence:
    """Which values of a loop depend on memory that other threads may write."""

    def __init__(self, loop: While, changing: set[Buffer]) -> None:
        self._changing = changing
        self._values: set[Value] = set()
        self._registers: set[Buffer] = set()
        size = -1
        while size != len(self._values) + len(self._registers):  # what is carried goes to the next iteration
            size = len(self._values) + len(self._registers)
            self._loop(loop)
        (condition,) = yielded(loop.condition)
        self.spins = condition in self._values

    def _loop(self, loop: While) -> None:
        self._block(loop.condition)
        self._block(loop.body)
        for n, value in enumerate(yielded(loop.body)):
            if value in self._values:
                self._values |= {loop.body.arguments[n], loop.results[n]}
                if loop.condition.arguments:
                    self._values.add(loop.condition.arguments[n])

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, (If, For, While)):
                self._structured(op)
            elif any(v in self._values for v in op.operands) or _reads(op, self._changing):
                self._values.update(op.results)
                if isinstance(op, Store) and op.value in self._values and op.buffer.space is Space.REGISTER:
                    self._registers.add(op.buffer)
            elif isinstance(op, Load) and op.buffer in self._registers:
                self._values.update(op.results)

    def _structured(self, op: If | For | While) -> None:
        for inner in op.blocks:
            self._block(inner)
        ends = [v for inner in op.blocks for v in yielded(inner)]
        if any(v in self._values for v in (*op.operands, *ends)):
            self._values.update(op.results)
            for inner in op.blocks:
                self._values.update(inner.arguments)


class Spin(Pause):
    """The place before an iteration of a loop that may wait for memory; `carried` are the slots of what it carries."""

    op: While

    def __init__(self, live: Sequence[int], op: While, carried: Sequence[int], compiler: Compiler) -> None:
        super().__init__(live)
        self.op, self._carried, self._compiler = op, carried, compiler
        self._looks = [(each, _index(each)) for each in reads_of(op)]
        self._found = compiler.slots([v for each, (_, index) in self._looks for v in (index, *each.results)])

    def arrive(self, agent: Agent, scheduler: Scheduler) -> None:
        """Find out what the last iteration has changed."""
        values, mask = agent.frame.values, agent.frame.mask
        state, version = tuple([values[c] for c in (*self._carried, *self._found)]), scheduler.version
        before, agent.spun = agent.spun, (self, state, version)
        count = agent.loops[-1]
        if count == 0 or before is None or before[0] is not self:
            agent.is_futile, agent.iterations = False, 0
            return
        same_state = [same_bits(a, b, mask) for a, b in zip(before[1], state, strict=True)]
        if not all(same_state[len(self._carried) :]):
            scheduler.note_progress()
        same = before[2] == version and all(same_state[: len(self._carried)])
        agent.is_futile, agent.iterations = same, agent.iterations + 1
        if same:  # it does not count, so that those who wait for the same thing come together
            agent.loops = (*agent.loops[:-1], count - 1)

    def ready(self, agent: Agent, scheduler: Scheduler) -> Lanes:
        """Return whether the loop goes on before others run."""
        return np.asarray(not agent.is_futile and agent.iterations < _UNINTERRUPTED)

    def waiting(self, frame: Frame, row: int, threads: Array) -> list[Waiting]:
        machine = self._compiler.machine
        thread = int(np.argmax(threads))
        for op, (buffer, index) in self._looks:
            place = frame.values[self._compiler.slot(index)]
            storage = machine.storages[buffer]
            if place is None or not isinstance(storage, FlatStorage):
                continue
            at = np.full((1, 1), int(fill(place, machine.blocks, machine.threads)[row, thread]))
            position = np.broadcast_to(storage.locate(at), (machine.blocks, 1))[row]
            value = storage.flat.take(position, mode="clip")[0]
            name = f"{buffer.name or 'shared memory'}[{int(at[0, 0])}]"
            if isinstance(storage, RankedStorage):
                name = storage.name_at(row, int(at[0, 0])) or name
            what = f"{name} to change, in a loop that finds {value} there"
            return [Waiting(op if op.location is not None else self.op, threads, what, _HELP)]
        return [Waiting(self.op, threads, "memory to change, in a loop that reads it again and again", _HELP)]


_HELP = (
    "let some thread write what the loop waits for; where a later block does, it may never start: blocks that run "
    "now may wait for earlier ones only, unless the whole grid fits on the GPU"
)


def _index(op: Op) -> tuple[Buffer, Value]:
    use = next(use for use in op.uses if use.use.is_read)
    assert use.index is not None, op
    return use.buffer, use.index
