"""Handlers of barriers and of the exchange between the threads of a warp.

A warp is 32 threads, on an AMD target 64, of consecutive linear number (x fastest); the last warp of a block may be
partial.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.backends.sim.compiler import Compiler, Step
from tilewright.backends.sim.divergence import demand_whole_warps
from tilewright.backends.sim.values import Array, Frame, Lanes, Mask, at_least_2d, over_warps
from tilewright.ir.ops import Barrier, Elect, Shuffle, Vote


def barrier(op: Barrier, compiler: Compiler) -> Step:
    """Wait for the block or warp. Threads run in step here, so there is nothing to do but to be seen."""
    machine = compiler.machine

    def run(frame: Frame) -> None:
        for observer in machine.observers:
            observer.barrier(op, frame.mask)

    return run


def elect(op: Elect, compiler: Compiler) -> Step:
    """Choose the lowest active thread of each warp."""
    result, threads, warp = compiler.slot(op.result), compiler.machine.threads, compiler.machine.warp
    own = np.arange(threads)[None, :]

    def run(frame: Frame) -> None:
        active = np.ones((1, threads), np.bool_) if frame.mask is None else _across(frame.mask, threads)
        padded = np.zeros((active.shape[0], -(-threads // warp) * warp), np.bool_)
        padded[:, :threads] = active
        lowest = padded.reshape(active.shape[0], -1, warp).argmax(axis=2)
        frame.values[result] = active & (over_warps(lowest, threads, warp) == own % warp)

    return run


# Each gives the lane read and whether it may be, as PTX's shfl does; amounts count modulo the warp's lanes.
_SOURCES: dict[str, Callable[[Array, Lanes, int], tuple[Array, Array]]] = {
    "up": lambda lane, by, width: (lane - by, lane - by >= lane & -width),
    "down": lambda lane, by, width: (lane + by, lane + by <= (lane & -width) + width - 1),
    "xor": lambda lane, by, width: (lane ^ by, lane ^ by <= (lane & -width) + width - 1),
    "idx": lambda lane, by, width: ((lane & -width) | (by & (width - 1)), np.ones_like(lane | by, np.bool_)),
}


def shuffle(op: Shuffle, compiler: Compiler) -> Step:
    """Read another lane's value; its own where that lane is out of the group, inactive or not there.

    All threads of the warp have to take part (the GPU's instruction names all of them, and waits for them).
    """
    value, lane, result = compiler.slots((op.value, op.lane, op.result))
    machine = compiler.machine
    find, width, threads, warp = _SOURCES[op.kind], op.width, machine.threads, machine.warp
    own = np.arange(threads, dtype=np.intp)[None, :]

    def run(frame: Frame) -> None:
        demand_whole_warps(op, "a shuffle", frame.mask, machine, full=False)
        values = frame.values
        given = values[value]
        if np.ndim(given) == 0 or given.shape[1] == 1:
            values[result] = given  # all lanes of a warp hold the same
            return
        amount = at_least_2d(values[lane]).astype(np.intp) & (warp - 1)
        source, allowed = find(own % warp, amount, width)
        source = source + own // warp * warp
        allowed = allowed & (source < threads)
        source = np.where(allowed, source, own)
        if frame.mask is not None:
            source = np.where(_take(_across(frame.mask, threads), source), source, own)
        values[result] = _take(given, source)

    return run


def _across(mask: Array, threads: int) -> Array:
    return np.broadcast_to(mask, (mask.shape[0], threads))


def _take(value: Array, source: Array) -> Array:
    """Return value[:, source], where either may be the same in all blocks."""
    if source.shape[0] == 1:
        taken: Array = value.take(source[0], axis=1)
        return taken
    return np.take_along_axis(np.broadcast_to(value, (source.shape[0], value.shape[1])), source, axis=1)


def vote(op: Vote, compiler: Compiler) -> Step:
    """Combine the predicates of the active threads of each warp, of which all have to take part."""
    predicate, result, kind = compiler.slot(op.predicate), compiler.slot(op.result), op.kind
    machine = compiler.machine
    threads, warp = machine.threads, machine.warp

    def run(frame: Frame) -> None:
        demand_whole_warps(op, "a vote", frame.mask, machine, full=False)
        found = _vote(kind, at_least_2d(frame.values[predicate]), frame.mask, threads, warp)
        frame.values[result] = np.repeat(found, warp, axis=1)[:, :threads]

    return run


def _vote(kind: str, predicate: Array, mask: Mask, threads: int, warp: int) -> Array:
    """Return the outcome of each warp: (blocks, warps)."""
    neutral = kind == "all"
    if mask is not None:
        predicate = np.where(mask, predicate, neutral)
    blocks, warps = predicate.shape[0], -(-threads // warp)
    padded = np.full((blocks, warps * warp), neutral)
    padded[:, :threads] = predicate
    lanes = padded.reshape(blocks, warps, warp)
    if kind == "ballot":
        kind_of_bits = np.uint64 if warp == 64 else np.uint32
        bits = kind_of_bits(1) << np.arange(warp, dtype=kind_of_bits)
        ballots: Array = np.where(lanes, bits, kind_of_bits(0)).sum(axis=2, dtype=kind_of_bits)
        return ballots
    found: Array = np.asarray(lanes.all(axis=2) if kind == "all" else lanes.any(axis=2))
    return found
