"""Handlers of the pure ops that make vectors, take them apart, or read bits as another type."""

from __future__ import annotations

from tilewright.backends.sim.compiler import Compiler, Step
from tilewright.backends.sim.conversions import bitcast
from tilewright.backends.sim.values import Frame, extract, pack
from tilewright.ir.core import VectorType
from tilewright.ir.ops import Bitcast, Extract, Pack


def pack_op(op: Pack, compiler: Compiler) -> Step:
    """Make a vector of scalars."""
    elements, result = compiler.slots(op.elements), compiler.slot(op.result)

    def run(frame: Frame) -> None:
        values = frame.values
        values[result] = pack([values[e] for e in elements])

    return run


def extract_op(op: Extract, compiler: Compiler) -> Step:
    """Take one lane of a vector."""
    vector, result, lane = compiler.slot(op.vector), compiler.slot(op.result), op.lane

    def run(frame: Frame) -> None:
        values = frame.values
        values[result] = extract(values[vector], lane)

    return run


def bitcast_op(op: Bitcast, compiler: Compiler) -> Step:
    """Read the bits of a scalar or vector as another type of the same size."""
    x, result, target = compiler.slot(op.x), compiler.slot(op.result), op.result.dtype
    lanes = op.result.type.lanes if isinstance(op.result.type, VectorType) else 1

    def run(frame: Frame) -> None:
        values = frame.values
        values[result] = bitcast(values[x], target, lanes)

    return run
