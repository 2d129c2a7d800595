"""Conditions of a launch: what must hold of extents, strides and numbers for a kernel to be right."""

from __future__ import annotations

from tilewright.dtypes import bool_
from tilewright.ir.core import Block, Requirement, Value
from tilewright.ir.ops import Binary, Compare, Special, constant
from tilewright.lang.tracer import Tracer
from tilewright.source import SourceLocation


def known_to_host(value: Value, tracer: Tracer) -> bool:
    """Say whether a launch can compute a value: from parameters and constants, by pure ops."""
    op = value.definition
    if op is None:
        return any(parameter.target is value for parameter in tracer.parameters)
    if not op.is_pure or isinstance(op, Special):
        return False
    return all(known_to_host(operand, tracer) for operand in op.operands)


def require_multiple(
    tracer: Tracer, value: Value, divisor: int, message: str, help: str, location: SourceLocation | None
) -> None:
    """Make it a condition of the launch that `divisor` divides a value; `{value}` in the message stands for it.

    A value that only a thread knows is left to the simulator, which checks each access.
    """
    if not known_to_host(value, tracer):
        return
    with tracer.builder.inside(Block()):  # the host computes it, not the kernel
        rest = tracer.pure(Binary("rem", value, constant(divisor, value.dtype)), value.dtype)
        condition = tracer.pure(Compare("eq", rest, constant(0, value.dtype)), bool_)
    tracer.require(Requirement(condition, message, help, location, value), (message, id(value)))


def require_equal(tracer: Tracer, a: Value, b: Value, message: str, help: str) -> None:
    """Make it a condition of the launch that two values of one type are equal; `{value}` stands for the first."""
    if a is b or not (known_to_host(a, tracer) and known_to_host(b, tracer)):
        return
    with tracer.builder.inside(Block()):
        condition = tracer.pure(Compare("eq", a, b), bool_)
    tracer.require(Requirement(condition, message, help, tracer.location(), a), (message, id(a)))
