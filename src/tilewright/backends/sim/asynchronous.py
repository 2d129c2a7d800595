"""Handlers of asynchronous copies. The source is read when the copy is issued; the copy lands when waited for."""

from __future__ import annotations

import numpy as np

from tilewright.backends.sim.compiler import Compiler, Step
from tilewright.backends.sim.observers import Access, AccessKind
from tilewright.backends.sim.values import Array, Frame, Lanes, Mask, both, merge, without
from tilewright.ir.ops import AsyncCommit, AsyncCopy, AsyncWait


def copy(op: AsyncCopy, compiler: Compiler) -> Step:
    """Start a copy; where it is not valid, zeros are under way and the source is not read."""
    machine, queue, lanes = compiler.machine, compiler.copies, op.elements
    source, destination = machine.storages[op.source], machine.storages[op.destination]
    source_slot, destination_slot, valid_slot = compiler.slots((op.source_index, op.destination_index, op.valid))
    shape = (1, 1) if lanes == 1 else (1, 1, lanes)
    zero: Array = np.zeros(shape, op.source.dtype.numpy)

    def read(index: Lanes, valid: Lanes, mask: Mask) -> Lanes:
        if not isinstance(valid, np.ndarray):
            if not valid:
                return zero
            reads: Mask = mask
        else:
            reads = both(mask, valid)
        invalid = ~valid if isinstance(valid, np.ndarray) else None
        if machine.observers:
            refused = machine.observe(Access(op, AccessKind.COPY_READ, source, index, lanes, reads))
            if refused is not None:
                reads = without(reads, refused)
                invalid = refused if invalid is None else invalid | refused
        found = source.load(index, lanes, reads)
        return found if invalid is None else merge(invalid, zero, found)

    def run(frame: Frame) -> None:
        values, mask = frame.values, frame.mask
        index = values[destination_slot]
        if machine.observers:
            refused = machine.observe(Access(op, AccessKind.COPY_WRITE, destination, index, lanes, mask))
            if refused is not None:
                mask = without(mask, refused)
        try:
            value = read(values[source_slot], values[valid_slot], mask)
        except IndexError as error:
            raise machine.outside(op, op.source, error) from None
        queue.issue(op, destination, index, value, lanes, mask)

    return run


def commit(op: AsyncCommit, compiler: Compiler) -> Step:
    """Close each active thread's group."""
    return compiler.copies.commit


def wait(op: AsyncWait, compiler: Compiler) -> Step:
    """Let copies land."""
    machine, queue, newest = compiler.machine, compiler.copies, op.pending

    def run(frame: Frame) -> None:
        queue.wait(newest, frame)
        for observer in machine.observers:
            observer.wait(op, frame.mask)

    return run
