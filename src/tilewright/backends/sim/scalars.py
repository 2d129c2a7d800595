"""Handlers of the pure ops on scalars and short vectors. What they compute is in `integers` and `floats`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.atoms.arithmetic import round_tf32
from tilewright.backends.sim import floats, integers
from tilewright.backends.sim.compiler import Compiler, Step
from tilewright.backends.sim.floats import bitcast, convert
from tilewright.backends.sim.values import Frame, Lanes, extract, merge, pack
from tilewright.ir.core import VectorType
from tilewright.ir.evaluate import COMPARE
from tilewright.ir.ops import (
    Binary,
    Bitcast,
    Cast,
    CastPair,
    Compare,
    Extract,
    Fma,
    Pack,
    RoundToTfloat32,
    Select,
    Special,
    Unary,
)


def special(op: Special, compiler: Compiler) -> Step:
    """Read a special register."""
    machine, name, result = compiler.machine, op.name, compiler.slot(op.result)

    def run(frame: Frame) -> None:
        frame.values[result] = machine.special[name]

    return run


def unary(op: Unary, compiler: Compiler) -> Step:
    """Compute a function of one scalar."""
    dtype = op.x.dtype
    function = (floats if dtype.is_float else integers).unary(op.kind, dtype)
    if function is None:
        raise compiler.missing(op, f"{op.kind} of {dtype}")
    x, result = compiler.slot(op.x), compiler.slot(op.result)
    compute, type = function, op.result.dtype.numpy

    def run(frame: Frame) -> None:
        values = frame.values
        values[result] = compute(values[x])

    def run_counting(frame: Frame) -> None:
        values = frame.values
        values[result] = compute(values[x]).astype(type)

    return run_counting if op.kind in ("popcount", "clz") else run


def binary(op: Binary, compiler: Compiler) -> Step:
    """Compute a function of two scalars."""
    dtype = op.lhs.dtype
    function = (floats if dtype.is_float else integers).binary(op.kind, dtype)
    if function is None:
        raise compiler.missing(op, f"{op.kind} of {dtype}")
    return _two(compiler, op, floats.approximate(op.kind) if op.approximate else function)


def compare(op: Compare, compiler: Compiler) -> Step:
    """Compare two scalars."""
    return _two(compiler, op, COMPARE[op.kind])


def _two(compiler: Compiler, op: Binary | Compare, function: Callable[[Lanes, Lanes], Lanes]) -> Step:
    a, b, result = compiler.slot(op.lhs), compiler.slot(op.rhs), compiler.slot(op.result)

    def run(frame: Frame) -> None:
        values = frame.values
        values[result] = function(values[a], values[b])

    return run


def fma(op: Fma, compiler: Compiler) -> Step:
    """Compute a * b + c with one rounding."""
    a, b, c, result = compiler.slots((op.a, op.b, op.c, op.result))
    function = floats.fma(op.a.dtype)

    def run(frame: Frame) -> None:
        values = frame.values
        values[result] = function(values[a], values[b], values[c])

    return run


def select(op: Select, compiler: Compiler) -> Step:
    """Choose one of two values in each thread."""
    condition, yes, no, result = compiler.slots((op.condition, op.on_true, op.on_false, op.result))

    def run(frame: Frame) -> None:
        values = frame.values
        chosen = values[condition]
        if isinstance(chosen, np.ndarray):
            values[result] = merge(chosen, values[yes], values[no])
        else:
            values[result] = values[yes] if chosen else values[no]

    return run


def cast(op: Cast | CastPair, compiler: Compiler) -> Step:
    """Convert a scalar, or both lanes of a pair."""
    function = convert(op.x.dtype, op.result.dtype)
    x, result = compiler.slot(op.x), compiler.slot(op.result)

    def run(frame: Frame) -> None:
        values = frame.values
        values[result] = function(values[x])

    return run


def round_to_tfloat32(op: RoundToTfloat32, compiler: Compiler) -> Step:
    """Round to the bits that a tensor core reads."""
    x, result = compiler.slot(op.x), compiler.slot(op.result)

    def run(frame: Frame) -> None:
        given = frame.values[x]
        frame.values[result] = round_tf32(given).reshape(np.shape(given))[()]

    return run


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
