"""Handlers of allocation, loads, stores and atomic updates. `storage` holds what memory is.

Atomic updates are made one after the other, by increasing block and thread. A GPU does them in any order. This fixed
one makes runs repeatable; integer results do not depend on it, and float sums do so in their last bits only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.backends.sim import floats
from tilewright.backends.sim.aliases import PointedStorage
from tilewright.backends.sim.compiler import Compiler, Step
from tilewright.backends.sim.machine import Access, AccessKind, Machine, Synchronisation, check_ranks
from tilewright.backends.sim.storage import FlatStorage, GlobalStorage, RegisterStorage, RemoteStorage
from tilewright.backends.sim.values import Array, Frame, Lanes, Mask, at_least_2d, both, merge, without
from tilewright.ir.core import Buffer, Op, Value, lanes_of
from tilewright.ir.ops import AddressOf, Allocate, AllocateAt, Atomic, AtRank, Inside, Point


def allocate(op: Allocate | AllocateAt, compiler: Compiler) -> Step:
    """Begin a buffer's life: its contents are undefined from here on."""
    machine, storage = compiler.machine, compiler.machine.storages[op.buffer]
    visits: dict[int, Array] = {}  # how often each thread has come by, of the chunk that begins with a block

    def run(frame: Frame) -> None:
        mask = frame.mask
        if isinstance(storage, RegisterStorage):
            storage.allocate(mask)
        elif machine.interleaving is not None:
            # Parts of a block come one after another, and shared memory begins its life with the first of them.
            shape = machine.blocks, machine.threads
            known = visits.get(machine.first_block)
            if known is None:
                visits.clear()
                known = visits[machine.first_block] = np.zeros(shape, np.int64)
            here = np.broadcast_to(np.True_ if mask is None else mask, shape)
            before = known.max(axis=1)
            known += here
            mask = here & (known.max(axis=1) > before)[:, None]
            if not mask.any():
                return
        for observer in machine.observers:
            observer.allocate(op, storage, mask)

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


def at_rank(op: AtRank, compiler: Compiler) -> Step:
    """Let a buffer be that of another block of the cluster."""
    machine, storage, rank = compiler.machine, compiler.machine.storages[op.buffer], compiler.slot(op.rank)
    assert isinstance(storage, RemoteStorage), op.buffer

    def run(frame: Frame) -> None:
        check_ranks(op, op.buffer, frame.values[rank], frame.mask, machine)  # others reach the nearest that is there
        storage.point(frame.values[rank], frame.mask)

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


def load(op: Any, compiler: Compiler) -> Step:  # Any: a Load, or what has its fields
    """Read an element or an aligned vector; `op` is a load of the core, or an instruction with its fields."""
    machine, storage = compiler.machine, compiler.machine.storages[op.buffer]
    index, result, lanes = compiler.slot(op.index), compiler.slot(op.result), lanes_of(op.result)
    zero = _zero(op.buffer, lanes)
    synchronises = machine.orders and _synchronises(op, machine)

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
            if synchronises:
                synchronise(machine, Synchronisation(op, storage, at, frame.mask, None))
            return
        allowed = without(frame.mask, refused)
        found = storage.load(at, lanes, allowed) if allowed.any() else zero
        values[result] = merge(refused, zero, found)
        if synchronises:
            synchronise(machine, Synchronisation(op, storage, at, allowed, None))

    return run_observed if machine.observers else run


def store(op: Any, compiler: Compiler) -> Step:  # Any: a Store, or what has its fields
    """Write an element or an aligned vector; `op` is a store of the core, or an instruction with its fields."""
    machine, storage = compiler.machine, compiler.machine.storages[op.buffer]
    index, value, lanes = compiler.slot(op.index), compiler.slot(op.value), lanes_of(op.value)
    synchronises = machine.orders and _synchronises(op, machine)

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
        if synchronises:
            synchronise(machine, Synchronisation(op, storage, at, mask, None))

    return run_observed if machine.observers else run


def _zero(buffer: Buffer, lanes: int) -> Lanes:
    """Return what a refused load gives."""
    kind = buffer.dtype.numpy
    return kind.type(0) if lanes == 1 else np.zeros((1, 1, lanes), kind)


class Update:
    """What an atomic operation makes of elements and its operands."""

    def __init__(self, function: Callable[..., Lanes]) -> None:
        self.function = function

    def wrote(self, old: Array, *operands: Array) -> Array | None:
        """Return in which threads the operation wrote, None for all."""
        return None


class Swap(Update):
    """Compare-and-swap: the operands are the number expected, by its bits, and the new one."""

    def __init__(self) -> None:
        super().__init__(lambda old, expected, new: np.where(_bits(old) == _bits(expected), new, old))

    def wrote(self, old: Array, *operands: Array) -> Array | None:
        return np.asarray(_bits(old) == _bits(operands[0]))


def _bits(value: Lanes) -> Lanes:
    array = np.asarray(value)
    return array.view(f"u{array.itemsize}")


def atomic(op: Atomic, compiler: Compiler) -> Step:
    """Update elements of memory and return what was there before."""
    return update_memory(op, compiler, op.buffer, op.index, (op.value,), _update(op.kind, op.buffer.dtype.is_float))


def update_memory(
    op: Op, compiler: Compiler, buffer: Buffer, index: Value, operands: Sequence[Value], update: Update
) -> Step:
    """Return the step of an atomic operation on one element a thread."""
    machine = compiler.machine
    storage = _flat(machine, buffer)
    at_slot, given = compiler.slot(index), compiler.slots(operands)
    result, wanted = compiler.slot(op.result), compiler.is_used(op.result)
    synchronises = machine.orders and _synchronises(op, machine)
    wanted_at_all = wanted or (synchronises and isinstance(update, Swap))

    def run(frame: Frame) -> None:
        values, mask = frame.values, frame.mask
        at = values[at_slot]
        if machine.observers:
            refused = machine.observe(Access(op, AccessKind.ATOMIC, storage, at, 1, mask))
            if refused is not None:
                mask = without(mask, refused)
        shape = (machine.blocks, machine.threads)
        position, numbers, active = _active(storage.locate(at), [values[g] for g in given], mask, shape)
        before = storage.flat.take(position, mode="clip") if storage.tracks else None
        try:
            flat, at_flat = storage.window(position)
            old = _apply(flat, at_flat, numbers, update, wanted_at_all)
            storage.put_window(flat, position, at_flat)
        except IndexError as error:
            raise machine.outside(op, buffer, error) from None
        if before is not None and before.tobytes() != storage.flat.take(position, mode="clip").tobytes():
            storage.version += 1
        if wanted:
            everywhere = np.zeros(shape, storage.flat.dtype)
            everywhere[active] = old
            values[result] = everywhere
        if synchronises:
            written = None if old is None else update.wrote(old, *numbers)
            if written is not None:
                full = np.zeros(shape, np.bool_)
                full[active] = written
                written = full
            synchronise(machine, Synchronisation(op, storage, at, mask, written))

    return run


def update_pair(op: Op, compiler: Compiler, buffer: Buffer, index: Value, value: Value) -> Step:
    """Return the step of an atomic addition to two neighbouring elements."""
    machine = compiler.machine
    storage = _flat(machine, buffer)
    at_slot, given, result = compiler.slot(index), compiler.slot(value), compiler.slot(op.result)
    update = Update(operator.add)
    synchronises = machine.orders and _synchronises(op, machine)

    def run(frame: Frame) -> None:
        values, mask = frame.values, frame.mask
        at = values[at_slot]
        if machine.observers:
            refused = machine.observe(Access(op, AccessKind.ATOMIC, storage, at, 2, mask))
            if refused is not None:
                mask = without(mask, refused)
        shape = (machine.blocks, machine.threads)
        old = np.zeros((*shape, 2), storage.flat.dtype)
        for lane in range(2):
            addend = values[given][..., lane]
            position, numbers, active = _active(storage.locate(at + at.dtype.type(lane)), [addend], mask, shape)
            try:
                flat, at_flat = storage.window(position)
                old[..., lane][active] = _apply(flat, at_flat, numbers, update, True)
                storage.put_window(flat, position, at_flat)
            except IndexError as error:
                raise machine.outside(op, buffer, error) from None
        storage.version += 1
        values[result] = old
        if synchronises:
            synchronise(machine, Synchronisation(op, storage, at, mask, None))

    return run


def _flat(machine: Machine, buffer: Buffer) -> FlatStorage:
    storage = machine.storages[buffer]
    assert isinstance(storage, FlatStorage), "atomics reach global and shared memory only"
    return storage


def _synchronises(op: Op, machine: Machine) -> bool:
    """Return whether observers are told of what an op may order."""
    return bool(machine.observers) and op.effects.scope is not None


def synchronise(machine: Machine, done: Synchronisation) -> None:
    """Tell the observers of a strong access that has been made."""
    for observer in machine.observers:
        observer.synchronise(done)


def _update(kind: str, is_float: bool) -> Update:
    if kind == "exch":
        return Update(lambda old, value: value)
    if is_float and kind in ("min", "max"):
        return Update(floats.minimum if kind == "min" else floats.maximum)
    return Update(_FUNCTIONS[kind])


_FUNCTIONS: dict[str, Callable[..., Lanes]] = {
    "add": operator.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}


def _active(
    position: Lanes, values: Sequence[Lanes], mask: Mask, shape: tuple[int, int]
) -> tuple[Array, list[Array], Array]:
    """Return positions and operands of the active threads in order, and which threads those are."""
    active = np.broadcast_to(np.True_ if mask is None else mask, shape)
    position = np.broadcast_to(at_least_2d(position), shape)
    operands = [np.broadcast_to(at_least_2d(value), shape)[active] for value in values]
    return position[active], operands, active


def _apply(flat: Array, position: Array, operands: list[Array], update: Update, wanted: bool) -> Array | None:
    """Update flat[position] by the operands in order; return the old values, or None where they are not read."""
    function = update.function
    if not wanted and function is operator.add:
        np.add.at(flat, position, operands[0])
        return None
    order = np.argsort(position, kind="stable")
    position, operands = position[order], [value[order] for value in operands]
    first = np.flatnonzero(np.r_[True, position[1:] != position[:-1]]) if position.size else position
    sizes = np.diff(np.r_[first, position.size])
    old = np.empty(position.size, flat.dtype)
    # In passes: the k-th update of every address at once, in as many passes as the busiest address has updates.
    # A few busy addresses are walked through one by one instead.
    if len(first) and len(first) < sizes.max():
        for begin, size in zip(first, sizes, strict=True):
            piece = slice(begin, begin + size)
            _one_address(flat, position[begin], [value[piece] for value in operands], function, old[piece])
    else:
        for k in range(int(sizes.max(initial=0))):
            now = first[sizes > k] + k
            at = position[now]
            old[now] = flat[at]
            flat[at] = function(flat[at], *[value[now] for value in operands])
    unsorted = np.empty_like(old)
    unsorted[order] = old
    return unsorted


def _one_address(flat: Array, at: int, operands: list[Array], function: Callable[..., Lanes], old: Array) -> None:
    """Apply many updates of one address in order."""
    if function is operator.add:
        running = np.add.accumulate(np.r_[flat[at : at + 1], operands[0]], dtype=flat.dtype)
    else:
        running = np.empty(len(operands[0]) + 1, flat.dtype)
        running[0] = flat[at]
        for k, values in enumerate(zip(*operands, strict=True)):
            running[k + 1] = function(running[k], *values)
    old[:] = running[:-1]
    flat[at] = running[-1]
