"""The meaning of the IR for one thread, in plain Python: what a pass must not change.

Integers are two's complement. Floats are computed without rounding, so that a fused multiply-add and the
two ops that it replaces agree; whether rounding is right is not this interpreter's question.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tilewright.dtypes import DType
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cp_async import AsyncCommit, AsyncCopy, AsyncWait
from tilewright.ir.core import Block, Buffer, Kernel, Op, Space, Value
from tilewright.ir.ops import (
    Allocate,
    Assert,
    Atomic,
    Binary,
    Cast,
    Compare,
    Constant,
    Fma,
    For,
    If,
    Load,
    Print,
    Select,
    Special,
    Store,
    Unary,
    While,
    Yield,
)

Number = int
COMPARE: dict[str, Callable[[Number, Number], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
LIMIT = 20_000


class Failure(Exception):
    """The kernel does something undefined."""


@dataclass
class Run:
    """What a run did: the contents of global memory, and everything observable in order."""

    memory: dict[str, dict[int, Number]] = field(default_factory=dict)
    events: list[tuple[object, ...]] = field(default_factory=list)


def run(kernel: Kernel, inputs: Mapping[str, Number], memory: Mapping[str, list[Number]]) -> Run:
    """Run one thread: `inputs` gives parameters and special registers, `memory` global buffers, by name."""
    return _Thread(kernel, inputs, memory).go()


def wrapped(x: int, dtype: DType) -> int:
    """Reduce an integer to its type."""
    if dtype.kind == "bool":
        return int(bool(x))
    if dtype.is_float:
        return x
    x &= (1 << dtype.bits) - 1
    return x - (1 << dtype.bits) if dtype.kind == "int" and x >> (dtype.bits - 1) else x


class _Thread:
    def __init__(self, kernel: Kernel, inputs: Mapping[str, Number], memory: Mapping[str, list[Number]]) -> None:
        self.kernel = kernel
        self.inputs = inputs
        self.values: dict[Value, Number] = {}
        self.memory: dict[Buffer, dict[int, Number]] = {}
        self.result = Run()
        self.steps = 0
        for parameter in kernel.parameters:
            if isinstance(parameter.target, Value):
                self.values[parameter.target] = inputs[parameter.name]
            else:
                contents = dict(enumerate(memory[parameter.name]))
                self.memory[parameter.target] = self.result.memory[parameter.name] = contents

    def go(self) -> Run:
        self.block(self.kernel.body)
        return self.result

    def get(self, value: Value) -> Number:
        if isinstance(value.definition, Constant):
            return int(value.definition.value)
        number = self.values[value]
        facts = value.facts
        if facts is not None:
            assert facts.low <= number <= facts.high, (value, number, facts)
            assert number % facts.divisor == 0 if facts.divisor else number == 0, (value, number, facts)
        return number

    def block(self, block: Block) -> list[Number]:
        for op in block.ops:
            self.steps += 1
            if self.steps > LIMIT:
                raise Failure("too many steps")
            if isinstance(op, Yield):
                return [self.get(v) for v in op.values]
            self.op(op)
        return []

    def bind(self, values: tuple[Value, ...], numbers: list[Number]) -> None:
        self.values.update(zip(values, numbers, strict=True))

    def op(self, op: Op) -> None:
        match op:
            case For():
                self.for_loop(op)
            case While():
                self.while_loop(op)
            case If():
                self.bind(op.results, self.block(op.then if self.get(op.condition) else op.otherwise))
            case Load() | Store() | Atomic() | AsyncCopy() | Allocate():
                self.access(op)
            case Barrier(scope=scope):
                self.result.events.append(("barrier", scope))
            case AsyncCommit():
                self.result.events.append(("commit",))
            case AsyncWait(pending=pending):
                self.result.events.append(("wait", pending))
            case Print():
                self.result.events.append(("print", op.texts, *(self.get(v) for v in op.values)))
            case Assert():
                if not self.get(op.condition):
                    raise Failure(op.message)
            case _:
                self.values[op.result] = self.pure(op)

    def for_loop(self, op: For) -> None:
        carried = [self.get(v) for v in op.init]
        for index in range(self.get(op.start), self.get(op.stop), self.get(op.step)):
            self.bind(op.body.arguments, [index, *carried])
            carried = self.block(op.body)
        self.bind(op.results, carried)

    def while_loop(self, op: While) -> None:
        carried = [self.get(v) for v in op.init]
        while True:
            self.bind(op.condition.arguments, carried)
            if not self.block(op.condition)[0]:
                break
            self.bind(op.body.arguments, carried)
            carried = self.block(op.body)
        self.bind(op.results, carried)

    def access(self, op: Op) -> None:
        match op:
            case Allocate(buffer=buffer):
                self.memory[buffer] = {}
            case Load(buffer=buffer, index=index):
                self.values[op.result] = self.read(buffer, self.get(index))
            case Store(buffer=buffer, index=index, value=value):
                self.write(buffer, self.get(index), self.get(value))
            case Atomic(buffer=buffer, index=index, value=value):
                old = self.read(buffer, self.get(index))
                new = {"add": old + self.get(value), "min": min(old, self.get(value)), "max": max(old, self.get(value))}
                self.write(buffer, self.get(index), wrapped(new[op.kind], buffer.dtype))
                self.values[op.result] = old
            case AsyncCopy():
                for n in range(op.elements):
                    number = self.read(op.source, self.get(op.source_index) + n) if self.get(op.valid) else 0
                    self.write(op.destination, self.get(op.destination_index) + n, number)

    def read(self, buffer: Buffer, index: int) -> Number:
        if index not in self.memory[buffer]:
            raise Failure(f"{buffer.name}[{index}] is undefined")
        return self.memory[buffer][index]

    def write(self, buffer: Buffer, index: int, number: Number) -> None:
        self.memory[buffer][index] = number
        if buffer.space is Space.GLOBAL:
            self.result.events.append(("store", buffer.name, index, number))

    def pure(self, op: Op) -> Number:
        operands = [self.get(v) for v in op.operands]
        type = op.result.type
        assert isinstance(type, DType)
        match op:
            case Special(name=name):
                return self.inputs[name]
            case Binary(kind=kind):
                return wrapped(_binary(kind, *operands, type), type)
            case Compare(kind=kind):
                return int(COMPARE[kind](*operands))
            case Fma():
                return operands[0] * operands[1] + operands[2]
            case Select():
                return operands[1] if operands[0] else operands[2]
            case Cast():
                return wrapped(operands[0], type)
            case Unary(kind=kind):
                x = operands[0]
                return wrapped({"neg": -x, "abs": abs(x), "not": 1 - x, "bit_not": ~x}[kind], type)
        raise NotImplementedError(op)


def _binary(kind: str, x: int, y: int, dtype: DType) -> int:
    if kind in ("div", "rem"):
        if y == 0:
            raise Failure("division by zero")
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return quotient if kind == "div" else x - quotient * y
    if kind in ("shl", "shr") and not 0 <= y < dtype.bits:
        raise Failure("shift out of range")
    match kind:
        case "add" | "sub" | "mul" | "and" | "or" | "xor":
            functions = {"and": operator.and_, "or": operator.or_}
            function: Callable[[int, int], int] = functions.get(kind) or getattr(operator, kind)
            return function(x, y)
        case "shl" | "shr":
            return x << y if kind == "shl" else x >> y
        case "min" | "max":
            return min(x, y) if kind == "min" else max(x, y)
    raise NotImplementedError(kind)
