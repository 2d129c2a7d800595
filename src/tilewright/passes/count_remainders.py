"""Count the remainders of a loop's iterations instead of dividing in each of them.

    for (k = 0; k < n; k += 64)              stage = 0
        use(k / 64 % 3)                  ->  for (k = 0; k < n; k += 64)
                                                 use(stage)
                                                 stage = stage == 2 ? 0 : stage + 1

Rings of buffers number their stages so. A remainder by a constant is some ten instructions, each of them in the way of
the addresses that wait for it: on an H200 a multistage matrix product of bf16 ran 3 % longer with them. Powers of two
are left alone, their remainder is one instruction.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType, bool_
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Kernel, Op, Value
from tilewright.ir.facts import Facts
from tilewright.ir.fold import constant_of
from tilewright.ir.ops import Binary, Compare, For, Select, constant
from tilewright.passes.structured_ops import add_slot, trip_count


@dataclass(frozen=True)
class _Line:
    """An integer of iteration t = 0, 1, ... of a loop: factor * t + start."""

    factor: int
    start: int


def count_remainders(kernel: Kernel) -> None:
    """Replace remainders of what grows evenly in a loop by values that the loop carries."""
    _block(kernel.body)


def _block(block: Block) -> None:
    for op in block.ops:
        for inner in op.blocks:
            _block(inner)
        if isinstance(op, For) and op.unroll != 0 and trip_count(op) != 1:
            _count(op)


def _count(loop: For) -> None:
    index = loop.body.arguments[0]
    start, step = constant_of(loop.start), constant_of(loop.step)
    if not isinstance(start, int) or not isinstance(step, int) or start < 0 or step <= 0:
        return
    lines = {index: _Line(step, start)}
    counters: dict[tuple[int, int, int, DType], Value] = {}
    replaced: dict[Value, Value] = {}
    for op in list(loop.body.walk()):
        if not isinstance(op, Binary):
            continue
        line = _line_of(op, lines)
        if line is not None:
            lines[op.result] = line
            continue
        key = _remainder_of(op, lines)
        if key is None:
            continue
        if key not in counters:
            counters[key] = _counter(loop, key, op)
        counters[key].name = counters[key].name or op.result.name or "stage"
        replaced[op.result] = counters[key]
    if replaced:
        loop.body.substitute(replaced)


def _line_of(op: Binary, lines: dict[Value, _Line]) -> _Line | None:
    """Return how an integer grows by iteration, if it does so by a sum, product or exact quotient of constants."""
    for value, other in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        line, number = lines.get(value), constant_of(other)
        if line is None or type(number) is not int or number <= 0:
            continue
        if op.kind == "add":
            return _Line(line.factor, line.start + number)
        if op.kind == "mul":
            return _Line(line.factor * number, line.start * number)
        if op.kind == "div" and value is op.lhs and line.factor % number == line.start % number == 0:
            return _Line(line.factor // number, line.start // number)
    return None


def _remainder_of(op: Binary, lines: dict[Value, _Line]) -> tuple[int, int, int, DType] | None:
    """Return (value in iteration 0, growth, divisor, type) of a remainder that is worth counting."""
    line, divisor = lines.get(op.lhs), constant_of(op.rhs)
    if op.kind != "rem" or line is None or type(divisor) is not int or divisor <= 2 or divisor & (divisor - 1) == 0:
        return None
    growth = line.factor % divisor
    assert isinstance(op.result.type, DType), op
    return (line.start % divisor, growth, divisor, op.result.type) if growth else None


def _counter(loop: For, key: tuple[int, int, int, DType], op: Op) -> Value:
    """Add a carried value that counts modulo a divisor, and return it as the body sees it."""
    first, growth, divisor, type = key
    argument = Value(type, facts=Facts(0, divisor - 1))
    body = loop.body
    end = body.ops.pop()
    builder = Builder(body, lambda: op.location)
    grown = builder.pure(Binary("add", argument, constant(growth, type)), type)
    if growth == 1:
        is_over = builder.pure(Compare("eq", grown, constant(divisor, type)), bool_)
        wrapped = constant(0, type)
    else:
        is_over = builder.pure(Compare("ge", grown, constant(divisor, type)), bool_)
        wrapped = builder.pure(Binary("sub", grown, constant(divisor, type)), type)
    following = builder.pure(Select(is_over, wrapped, grown), type)
    body.ops.append(end)
    add_slot(loop, constant(first, type), argument, following)
    return argument
