"""Handlers of printing and of assertions: what a thread says to the person who wrote it.

Numbers are printed as the CUDA backend prints them: integers in decimal, floats as C's %g, bools as True and
False. Blocks and threads print in order; a GPU interleaves warps as it likes.
"""

from __future__ import annotations

import sys

import numpy as np

from tilewright.backends.sim.compiler import Compiler, Step
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.values import Frame, Lanes, both, fill
from tilewright.ir.ops import Assert, Print


def print_values(op: Print, compiler: Compiler) -> Step:
    """Print one line for each active thread."""
    machine, slots = compiler.machine, compiler.slots(op.values)

    def run(frame: Frame) -> None:
        shape = machine.blocks, machine.threads
        active = np.broadcast_to(True if frame.mask is None else frame.mask, shape)
        columns = [fill(frame.values[s], *shape)[active] for s in slots]
        for row in range(int(active.sum())):
            words = [_word(column[row]) for column in columns] + [""]
            texts = [*op.texts, *[""] * (len(words) - len(op.texts))]
            sys.stdout.write("".join(t + w for t, w in zip(texts, words, strict=True)) + "\n")

    return run


def _word(value: Lanes) -> str:
    if isinstance(value, np.bool_):
        return str(bool(value))
    return str(int(value)) if isinstance(value, np.integer) else f"{float(value):g}"


def check(op: Assert, compiler: Compiler) -> Step:
    """Report threads in which a condition does not hold."""
    machine, condition = compiler.machine, compiler.slot(op.condition)

    def run(frame: Frame) -> None:
        held = frame.values[condition]
        if np.all(held):
            return
        failed = both(frame.mask, np.logical_not(np.asarray(held).reshape(1, 1) if np.ndim(held) == 0 else held))
        assert failed is not None
        where = np.argwhere(np.broadcast_to(failed, (machine.blocks, machine.threads)))
        if len(where):
            block, thread = machine.block_coordinate(int(where[0][0])), machine.thread_coordinate(int(where[0][1]))
            summary = f"assertion failed: {op.message}"
            machine.collector.report(Fault(op, "assertion", summary, block, thread, count=len(where)))

    return run
