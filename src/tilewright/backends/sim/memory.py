"""Handlers of allocation, loads, stores and atomic updates. `storage` holds what memory is.

Atomic updates are made one after the other, by increasing block and thread. A GPU does them in any order. This fixed
one makes runs repeatable; integer results do not depend on it, and float sums do so in their last bits only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from tilewright.backends.sim import floats
from tilewright.backends.sim.aliases import PointedStorage
from tilewright.backends.sim.compiler import Compiler, Step
from tilewright.backends.sim.machine import Access, AccessKind
from tilewright.backends.sim.storage import FlatStorage, GlobalStorage, RegisterStorage
from tilewright.backends.sim.values import Array, Frame, Lanes, Mask, at_least_2d, both, merge, without
from tilewright.ir.core import Buffer, lanes_of
from tilewright.ir.ops import AddressOf, Allocate, AllocateAt, Atomic, Inside, Load, Point, Store


def allocate(op: Allocate | AllocateAt, compiler: Compiler) -> Step:
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


def point(op: Point, compiler: Compiler) -> Step:
    """Let a buffer begin at an address."""
    storage, address = compiler.machine.storages[op.buffer], compiler.slot(op.address)
    assert isinstance(storage, PointedStorage), op.buffer

    def run(frame: Frame) -> None:
        storage.point(frame.values[address], frame.mask)

    return run


def address_of(op: AddressOf, compiler: Compiler) -> Step:
    """Give the address by which kernels know the memory of a buffer."""
    storage, result = compiler.machine.storages[op.buffer], compiler.slot(op.result)

    def run(frame: Frame) -> None:
        assert isinstance(storage, (PointedStorage, GlobalStorage)), op.buffer
        if isinstance(storage, PointedStorage):
            frame.values[result] = storage.addresses(np.int64(0)).astype(np.uint64)
        else:
            frame.values[result] = np.uint64(compiler.machine.addresses.address_of(storage))

    return run


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


Update = Callable[[Lanes, Lanes], Lanes]


def atomic(op: Atomic, compiler: Compiler) -> Step:
    """Update elements of memory and return what was there before."""
    machine, storage = compiler.machine, compiler.machine.storages[op.buffer]
    assert isinstance(storage, FlatStorage), "atomics reach global and shared memory only"
    memory = storage
    index, value = compiler.slots((op.index, op.value))
    result, wanted = compiler.slot(op.result), compiler.is_used(op.result)
    update = _update(op.kind, op.buffer.dtype.is_float)

    def run(frame: Frame) -> None:
        values, mask = frame.values, frame.mask
        at = values[index]
        if machine.observers:
            refused = machine.observe(Access(op, AccessKind.ATOMIC, storage, at, 1, mask))
            if refused is not None:
                mask = without(mask, refused)
        shape = (machine.blocks, machine.threads)
        position, operand, active = _active(memory.locate(at), values[value], mask, shape)
        try:
            flat, at_flat = memory.window(position)
            old = _apply(flat, at_flat, operand, update, wanted)
            memory.put_window(flat, position, at_flat)
        except IndexError as error:
            raise machine.outside(op, op.buffer, error) from None
        if wanted:
            everywhere = np.zeros(shape, memory.flat.dtype)
            everywhere[active] = old
            values[result] = everywhere

    return run


def _update(kind: str, is_float: bool) -> Update:
    if kind == "add":
        return operator.add
    if is_float:
        return floats.minimum if kind == "min" else floats.maximum
    return np.minimum if kind == "min" else np.maximum


def _active(position: Lanes, value: Lanes, mask: Mask, shape: tuple[int, int]) -> tuple[Array, Array, Array]:
    """Return positions and values of the active threads in order, and which threads those are."""
    active = np.broadcast_to(np.True_ if mask is None else mask, shape)
    position = np.broadcast_to(at_least_2d(position), shape)
    value = np.broadcast_to(at_least_2d(value), shape)
    return position[active], value[active], active


def _apply(flat: Array, position: Array, value: Array, update: Update, wanted: bool) -> Array | None:
    """Update flat[position] by value in order; return the old values, or None where they are not read."""
    if not wanted and update is operator.add:
        np.add.at(flat, position, value)
        return None
    order = np.argsort(position, kind="stable")
    position, value = position[order], value[order]
    first = np.flatnonzero(np.r_[True, position[1:] != position[:-1]]) if position.size else position
    sizes = np.diff(np.r_[first, position.size])
    old = np.empty(position.size, flat.dtype)
    # In passes: the k-th update of every address at once, in as many passes as the busiest address has updates.
    # A few busy addresses are walked through one by one instead.
    if len(first) and len(first) < sizes.max():
        for begin, size in zip(first, sizes, strict=True):
            _one_address(flat, position[begin], value[begin : begin + size], update, old[begin : begin + size])
    else:
        for k in range(int(sizes.max(initial=0))):
            now = first[sizes > k] + k
            at = position[now]
            old[now] = flat[at]
            flat[at] = update(flat[at], value[now])
    unsorted = np.empty_like(old)
    unsorted[order] = old
    return unsorted


def _one_address(flat: Array, at: int, values: Array, update: Update, old: Array) -> None:
    """Apply many updates of one address in order."""
    if update is operator.add:
        running = np.add.accumulate(np.r_[flat[at : at + 1], values], dtype=flat.dtype)
    else:
        running = np.empty(len(values) + 1, flat.dtype)
        running[0] = flat[at]
        for k, value in enumerate(values):
            running[k + 1] = update(running[k], value)
    old[:] = running[:-1]
    flat[at] = running[-1]
