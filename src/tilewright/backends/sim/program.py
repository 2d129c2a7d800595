"""A kernel as a list of steps: each op compiled once, by the one handler for its class, to a Python closure.

A step takes a frame, reads the slots of its operands and fills those of its results. Slots are numbered once, so
that running an op costs a list access an operand besides its NumPy calls.
"""

from __future__ import annotations

from tilewright.backends.sim import (
    control,
    memory,
    scalars,
)
from tilewright.backends.sim.agents import Scheduler
from tilewright.backends.sim.compiler import Compiler, Handlers, Meaning, Step
from tilewright.backends.sim.interleaving import is_crossing
from tilewright.backends.sim.linearisation import lay_out, waits
from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.spinning import find_spins, reads_of
from tilewright.backends.sim.values import Frame, Lanes
from tilewright.errors import InternalError
from tilewright.ir import ops
from tilewright.ir.core import Kernel, Op, Space, Value
from tilewright.ir.instruction import Instruction

HANDLERS: Handlers = {
    ops.Special: scalars.special,
    ops.Unary: scalars.unary,
    ops.Binary: scalars.binary,
    ops.Compare: scalars.compare,
    ops.Fma: scalars.fma,
    ops.Select: scalars.select,
    ops.Cast: scalars.cast,
    ops.CastPair: scalars.cast,
    ops.Bitcast: scalars.bitcast_op,
    ops.Pack: scalars.pack_op,
    ops.Extract: scalars.extract_op,
    ops.Allocate: memory.allocate,
    ops.AllocateAt: memory.allocate,
    ops.Point: memory.point,
    ops.AtRank: memory.at_rank,
    ops.AddressOf: memory.address_of,
    ops.Inside: memory.inside,
    ops.Load: memory.load,
    ops.Store: memory.store,
    ops.Atomic: memory.atomic,
    ops.For: control.for_loop,
    ops.While: control.while_loop,
    ops.If: control.branch,
    ops.RoundToTfloat32: scalars.round_to_tfloat32,
    ops.Print: control.print_values,
    ops.Assert: control.check,
}


def meaning(op: Op, compiler: Compiler) -> Step:
    """Return the step of an op: an instruction answers for itself, all other ops have one handler for their class."""
    if isinstance(op, Instruction):
        return op.simulate(compiler)
    handler = HANDLERS.get(type(op))
    if handler is None:
        raise InternalError(f"the simulator has no handler for {type(op).__name__}", location=op.location)
    return handler(op, compiler)


def _is_global(loop: Op) -> bool:
    """Return whether a loop may wait for other blocks."""
    assert isinstance(loop, ops.While), loop
    return any(buffer.space is Space.GLOBAL for op in reads_of(loop) for buffer in op.buffers_read)


class Program:
    """A kernel compiled for one machine and one set of scalar arguments."""

    def __init__(
        self, kernel: Kernel, machine: Machine, scalars_given: dict[Value, Lanes], meaning: Meaning = meaning
    ) -> None:
        self._compiler = Compiler(machine, meaning, kernel)
        for value, number in scalars_given.items():
            self._compiler.initial[self._compiler.slot(value)] = number
        # Threads that wait for one another cannot run in step.
        spins = find_spins(kernel)
        if spins:
            machine.watch_memory(resident=any(_is_global(op) for op in spins))
        is_apart = bool(spins) or waits(kernel.body)
        is_apart |= machine.interleaving is not None and any(is_crossing(op) for op in kernel.body.walk())
        self._scheduler = (
            Scheduler(lay_out(kernel, self._compiler, spins), self._compiler, kernel) if is_apart else None
        )
        self._steps = () if self._scheduler else self._compiler.block(kernel.body).steps

    def run(self) -> None:
        """Run the machine's current chunk of blocks."""
        self._compiler.begin()
        frame = Frame(list(self._compiler.initial))
        if self._scheduler is not None and not self._scheduler.run(frame):
            return  # a deadlock, which says what has not come
        for step in self._steps:
            step(frame)
        self._compiler.finish()
        for observer in self._compiler.machine.observers:
            observer.finish()
