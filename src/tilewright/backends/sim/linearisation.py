"""Laying out a kernel whose threads wait for one another, as a list of instructions for agents (see `agents`).

Blocks of ops that can wait become instructions with jumps, one after another in the order of the program; all others
stay steps, as everywhere else. What an agent needs to know of a loop is in its slots and in its path.
"""

from __future__ import annotations

from collections.abc import Callable, Container

import numpy as np

from tilewright.backends.sim.agents import Agent, Command, Crossing, Gather, Pause, Scheduler
from tilewright.backends.sim.compiler import Compiler, Step
from tilewright.backends.sim.control import index_check, move, trip_counts
from tilewright.backends.sim.endless import Watch
from tilewright.backends.sim.interleaving import is_crossing
from tilewright.backends.sim.spinning import Spin
from tilewright.backends.sim.values import Frame, Mask, both, without
from tilewright.ir.core import Block, Kernel, Op, Value
from tilewright.ir.effects import WARPS_OF, Scope, Waits
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import For, If, While, Yield


def waits(block: Block) -> bool:
    """Return whether threads wait for one another in a block, other than all of a block or of a warp in step."""
    return any(op.effects.waits is Waits.SOME for op in block.walk())


def _warps_needed(op: Op) -> int:
    """Return how many warps run ops of an op together, at most: 1, or the 4 of a warpgroup; 0 where none do."""
    together = [o.effects.together for o in op.walk()]
    return max([WARPS_OF.get(scope, 1) for scope in together if scope >= Scope.WARP], default=0)


def lay_out(kernel: Kernel, compiler: Compiler, spins: Container[Op] = ()) -> list[Command]:
    """Return the instructions of a kernel; `spins` are its loops that may wait for memory."""
    writer = _Writer(compiler, spins)
    writer.block(kernel.body)
    writer.flush()
    return writer.code


class _Writer:
    """Appends instructions. `visible` are the slots of the values that ops further on may read."""

    def __init__(self, compiler: Compiler, spins: Container[Op]) -> None:
        self.compiler, self._spins = compiler, spins
        self._is_varied = compiler.machine.interleaving is not None
        self.code: list[Command] = []
        self.visible: list[int] = []
        self._steps: list[Step] = []
        self._gathered = 0  # warps of the groups that nothing since the last gathering can have divided

    def block(self, block: Block) -> tuple[int, ...]:
        """Append the ops of a block and return the slots of what it yields."""
        for op in block.ops:
            if isinstance(op, Yield):
                return self.compiler.slots(op.values)
            self._op(op)
            self._show(*op.results)
        return ()

    def flush(self) -> int:
        """Make an instruction of the steps so far; return the number of the next one."""
        if self._steps:
            self.code.append(_run(tuple(self._steps)))
            self._steps.clear()
        return len(self.code)

    def _show(self, *values: Value) -> None:
        self.visible += [self.compiler.slot(v) for v in values if self.compiler.is_used(v)]

    def _pauses(self, op: Op) -> bool:
        """Return whether an agent may have to stop inside an op."""
        return any(
            o.effects.waits is not Waits.NOBODY or o in self._spins or (self._is_varied and is_crossing(o))
            for o in op.walk()
        )

    def _op(self, op: Op) -> None:
        warps = _warps_needed(op)
        if self._is_varied and not op.blocks and is_crossing(op):
            self._pause(Crossing(self.visible))
        if warps and not (op.blocks and self._pauses(op)):
            self._gather(op, warps)
        if isinstance(op, If) and self._pauses(op):
            self._branch(op)
        elif isinstance(op, For) and self._pauses(op):
            self._for(op)
        elif isinstance(op, While) and self._pauses(op):
            self._while(op)
        elif op.effects.waits is not Waits.NOBODY:
            self._wait(op)
        else:
            self._steps.append(self.compiler.step(op))

    def _pause(self, pause: Pause) -> None:
        self.flush()
        self.code.append(pause)
        self._gathered = pause.warps if isinstance(pause, Gather) else 0

    def _wait(self, op: Op) -> None:
        assert isinstance(op, Instruction), op
        pause = op.pause(self.compiler, self.visible)
        self._steps.append(self.compiler.announced(op, pause.begin))
        self._pause(pause)
        self.code.append(_finish(pause))

    def _gather(self, op: Op, warps: int) -> None:
        if self._gathered < warps:
            self._pause(Gather(self.visible, op, warps))

    def _moves(self, sources: tuple[int, ...], targets: tuple[int, ...]) -> None:
        if targets:
            self._steps.append(lambda frame: move(frame.values, sources, targets))

    # --- branches and loops -----------------------------------------------------------------------------

    def _branch(self, op: If) -> None:
        condition, results = self.compiler.slot(op.condition), self.compiler.slots(op.results)
        start, depth = self._reserve(), len(self.visible)
        places, ends = [], []
        for side in (op.then, op.otherwise):
            places.append(len(self.code))
            self._gathered = 0
            self._moves(self.block(side), results)
            del self.visible[depth:]
            ends.append(self._reserve())
        end = len(self.code)
        self.code[start] = _fork(condition, *places)
        for place in ends:
            self.code[place] = _jump(end)
        self._pause(Pause((*self.visible, *results)))

    def _for(self, op: For) -> None:
        compiler = self.compiler
        bounds, counts = compiler.slots((op.start, op.stop, op.step)), compiler.hidden_slot()
        index, *carried = compiler.slots(op.body.arguments)
        kind = op.start.dtype.numpy.type

        def enter(frame: Frame) -> None:
            frame.values[counts] = trip_counts(*(frame.values[b] for b in bounds))

        def begin_iteration(agent: Agent) -> None:
            values = agent.frame.values
            values[index] = values[bounds[0]] + values[bounds[2]] * kind(agent.loops[-1])

        def more(agent: Agent) -> np.ndarray:
            return np.asarray(agent.frame.values[counts] > agent.loops[-1])

        check = index_check(op, compiler)
        self._steps += [enter] if check is None else [check, enter]
        self._moves(compiler.slots(op.init), tuple(carried))
        head, depth = self._begin_loop(), len(self.visible)
        self.visible += [*carried, counts]
        self._pause(Pause(self.visible))
        test = self._reserve()
        self.code.append(_then(begin_iteration))
        self.visible.append(index)
        self._moves(self.block(op.body), tuple(carried))
        self._end_loop(head, test, more, depth, tuple(carried), compiler.slots(op.results))

    def _while(self, op: While) -> None:
        compiler = self.compiler
        carried, tested = compiler.slots(op.body.arguments), compiler.slots(op.condition.arguments)
        self._moves(compiler.slots(op.init), carried)
        is_spin = op in self._spins
        watch = None if is_spin else Watch(op, compiler)
        if watch is not None:
            self._steps.append(watch.begin)
        head, depth = self._begin_loop(), len(self.visible)
        self.visible += (*carried, *(() if watch is None else watch.live))
        self._pause(Spin(self.visible, op, carried, compiler) if is_spin else Pause(self.visible))
        self._moves(carried, tested)
        inside = len(self.visible)
        self.visible += tested
        (goes_on,) = self.block(op.condition)
        del self.visible[inside:]

        def more(agent: Agent) -> np.ndarray:
            going, frame = np.asarray(agent.frame.values[goes_on]), agent.frame
            stuck = None if watch is None else watch.stuck(agent.loops[-1], frame, both(frame.mask, going))
            return going if stuck is None else going & ~stuck

        test = self._reserve()
        self._moves(self.block(op.body), carried)
        self._end_loop(head, test, more, depth, carried, compiler.slots(op.results))

    def _begin_loop(self) -> int:
        """Append the start of a loop, and return the number of the instruction that its iterations begin with."""
        number = self.flush()

        def enter(agent: Agent, scheduler: Scheduler) -> None:
            agent.loops += (number, 0)
            agent.pc += 1

        self.code.append(enter)
        self._gathered = 0
        return number + 1

    def _end_loop(
        self, head: int, test: int, more: Callable[[Agent], np.ndarray], depth: int,
        carried: tuple[int, ...], results: tuple[int, ...],
    ) -> None:  # fmt: skip
        """Append the way back, and let those leave at the test who do not go on."""

        def back(agent: Agent, scheduler: Scheduler) -> None:
            agent.loops = (*agent.loops[:-1], agent.loops[-1] + 1)
            agent.pc = head

        self.flush()
        self.code.append(back)
        del self.visible[depth:]
        end = len(self.code)

        def leave(agent: Agent) -> None:
            agent.loops, agent.pc = agent.loops[:-2], end

        def choose(agent: Agent, scheduler: Scheduler) -> None:
            going, staying = _parts(agent.frame.mask, more(agent))
            if going is not None and staying is not None:
                leave(scheduler.split(agent, staying))
            elif staying is not None:
                leave(agent)
                return
            agent.pc += 1

        self.code[test] = choose
        self._moves(carried, results)
        self._pause(Pause((*self.visible, *results)))

    def _reserve(self) -> int:
        """Leave room for an instruction that is known later, and return its number."""
        number = self.flush()
        self.code.append(_unknown)
        return number


def _parts(mask: Mask, holds: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the threads of a mask in which a condition holds and those in which it does not, None for none."""
    yes, no = both(mask, holds), without(mask, holds)
    assert yes is not None
    return (yes if yes.any() else None), (no if no.any() else None)


def _run(steps: tuple[Step, ...]) -> Command:
    def run(agent: Agent, scheduler: Scheduler) -> None:
        frame = agent.frame
        for step in steps:
            step(frame)
        agent.pc += 1

    return run


def _then(act: Callable[[Agent], None]) -> Command:
    def run(agent: Agent, scheduler: Scheduler) -> None:
        act(agent)
        agent.pc += 1

    return run


def _finish(pause: Pause) -> Command:
    def run(agent: Agent, scheduler: Scheduler) -> None:
        pause.finish(agent, scheduler)
        agent.pc += 1

    return run


def _jump(target: int) -> Command:
    def run(agent: Agent, scheduler: Scheduler) -> None:
        agent.pc = target

    return run


def _fork(condition: int, then: int, otherwise: int) -> Command:
    """Go to one of two places; threads that differ become two agents."""

    def run(agent: Agent, scheduler: Scheduler) -> None:
        yes, no = _parts(agent.frame.mask, np.asarray(agent.frame.values[condition]))
        if yes is not None and no is not None:
            scheduler.split(agent, no).pc = otherwise
        agent.pc = then if yes is not None else otherwise

    return run


def _unknown(agent: Agent, scheduler: Scheduler) -> None:
    raise AssertionError("an instruction was left out")
