"""Handlers of allocation, loads and stores. `storage` and `registers` hold what memory is."""

from __future__ import annotations

import numpy as np

from tilewright.backends.sim.compiler import Compiler, Step
from tilewright.backends.sim.observers import Access, AccessKind
from tilewright.backends.sim.registers import RegisterStorage
from tilewright.backends.sim.values import Frame, Lanes, at_least_2d, both, merge, without
from tilewright.ir.core import Buffer, lanes_of
from tilewright.ir.ops import Allocate, Inside, Load, Store


def allocate(op: Allocate, compiler: Compiler) -> Step:
    """Begin a buffer's life: its contents are undefined from here on."""
    machine, storage = compiler.machine, compiler.machine.storages[op.buffer]

    def run(frame: Frame) -> None:
        if isinstance(storage, RegisterStorage):
            storage.allocate(frame.mask)
        for observer in machine.observers:
            observer.allocate(op, storage, frame.mask)

    return run


def inside(op: Inside, compiler: Compiler) -> Step:
    """Tell the observers of threads whose coordinate lies outside of a tensor."""
    machine = compiler.machine
    coordinate, extent = compiler.slots((op.coordinate, op.extent))

    def run(frame: Frame) -> None:
        at, limit = frame.values[coordinate], frame.values[extent]
        bad = np.asarray((at < 0) | (at >= limit))
        if bad.any():
            found = both(frame.mask, at_least_2d(bad))
            assert found is not None
            if found.any():
                for observer in machine.observers:
                    observer.leave(op, found, at, limit)

    return run if machine.observers else _nothing


def _nothing(frame: Frame) -> None:
    pass


def load(op: Load, compiler: Compiler) -> Step:
    """Read an element or an aligned vector."""
    machine, storage = compiler.machine, compiler.machine.storages[op.buffer]
    index, result, lanes = compiler.slot(op.index), compiler.slot(op.result), lanes_of(op.result)
    zero = _zero(op.buffer, lanes)

    def run(frame: Frame) -> None:
        values = frame.values
        try:
            values[result] = storage.load(values[index], lanes, frame.mask)
        except IndexError as error:
            raise machine.outside(op, op.buffer, error) from None

    def run_observed(frame: Frame) -> None:
        values = frame.values
        at = values[index]
        refused = machine.observe(Access(op, AccessKind.LOAD, storage, at, lanes, frame.mask))
        if refused is None:
            values[result] = storage.load(at, lanes, frame.mask)
            return
        allowed = without(frame.mask, refused)
        found = storage.load(at, lanes, allowed) if allowed.any() else zero
        values[result] = merge(refused, zero, found)

    return run_observed if machine.observers else run


def store(op: Store, compiler: Compiler) -> Step:
    """Write an element or an aligned vector."""
    machine, storage = compiler.machine, compiler.machine.storages[op.buffer]
    index, value, lanes = compiler.slot(op.index), compiler.slot(op.value), lanes_of(op.value)

    def run(frame: Frame) -> None:
        values = frame.values
        try:
            storage.store(values[index], values[value], lanes, frame.mask)
        except IndexError as error:
            raise machine.outside(op, op.buffer, error) from None

    def run_observed(frame: Frame) -> None:
        values, mask = frame.values, frame.mask
        at = values[index]
        refused = machine.observe(Access(op, AccessKind.STORE, storage, at, lanes, mask))
        if refused is not None:
            mask = without(mask, refused)
            if not mask.any():
                return
        storage.store(at, values[value], lanes, mask)

    return run_observed if machine.observers else run


def _zero(buffer: Buffer, lanes: int) -> Lanes:
    """Return what a refused load gives."""
    kind = buffer.dtype.numpy
    return kind.type(0) if lanes == 1 else np.zeros((1, 1, lanes), kind)
