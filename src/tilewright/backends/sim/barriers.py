"""Handlers of what threads do at named barriers and mbarriers without waiting, and the barriers' state.

What waits is in `waiting`, because a thread that waits lets others run meanwhile.
"""

from __future__ import annotations

from tilewright.backends.sim.compiler import Compiler, Step
from tilewright.backends.sim.values import Frame
from tilewright.ir.ops import (
    MbarrierArrive,
    MbarrierCopies,
    MbarrierInit,
    NamedBarrier,
)


def arrive_named(op: NamedBarrier, compiler: Compiler) -> Step:
    """Arrive at a named barrier and go on."""
    number, threads, named = compiler.slot(op.id), op.threads, compiler.named_barriers

    def run(frame: Frame) -> None:
        named.arrive(op, frame.values[number], threads, frame.mask)

    return run


def initialise(op: MbarrierInit, compiler: Compiler) -> Step:
    """Make memory an mbarrier."""
    index, count, mbarriers = compiler.slot(op.index), compiler.slot(op.count), compiler.mbarriers(op.buffer)

    def run(frame: Frame) -> None:
        mbarriers.initialise(op, frame.values[index], frame.values[count], frame.mask)

    return run


def arrive(op: MbarrierArrive, compiler: Compiler) -> Step:
    """Arrive at an mbarrier."""
    index, count, mbarriers = compiler.slot(op.index), compiler.slot(op.count), compiler.mbarriers(op.buffer)

    def run(frame: Frame) -> None:
        mbarriers.arrive(op, frame.values[index], frame.values[count], frame.mask)

    return run


def follow_copies(op: MbarrierCopies, compiler: Compiler) -> Step:
    """Arrive when the copies so far have landed."""
    index, mbarriers = compiler.slot(op.index), compiler.mbarriers(op.buffer)

    def run(frame: Frame) -> None:
        mbarriers.follow_copies(op, frame.values[index], frame.mask)

    return run
