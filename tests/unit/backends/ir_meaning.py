"""The meaning of IR on integers in one thread, in the plainest way: what printed text is compared with."""

from __future__ import annotations

from tests.unit.backends.c_text import Undefined

from tilewright.ir import evaluate, ops
from tilewright.ir.core import Block, Op, Value


class Meaning:
    def __init__(self, given: dict[Value, int], arrays: dict[str, list[int]], registers: dict[str, int]) -> None:
        self.values, self.arrays, self.registers = dict(given), arrays, registers

    def of(self, value: Value) -> int:
        if isinstance(value.definition, ops.Constant):
            return int(value.definition.value)
        return self.values[value]

    def block(self, block: Block, arguments: tuple[int, ...] = ()) -> tuple[int, ...]:
        self.values.update(zip(block.arguments, arguments, strict=True))
        for op in block.ops:
            if isinstance(op, ops.Yield):
                return tuple(self.of(v) for v in op.values)
            self.values.update(zip(op.results, self.run(op), strict=True))
        return ()

    def run(self, op: Op) -> tuple[int, ...]:
        match op:
            case ops.Allocate(buffer=b):
                self.arrays[b.name] = [0] * (b.size or 0)
            case ops.Store(buffer=b):
                self.arrays[b.name][self.of(op.index)] = self.of(op.value)
            case ops.Load(buffer=b):
                return (self.arrays[b.name][self.of(op.index)],)
            case ops.For():
                return self.loop(op)
            case ops.While():
                state = tuple(self.of(v) for v in op.init)
                while self.block(op.condition, state)[0]:
                    state = self.block(op.body, state)
                return state
            case ops.If():
                return self.block(op.then if self.of(op.condition) else op.otherwise)
            case _:
                return (self.pure(op),)
        return ()

    def loop(self, op: ops.For) -> tuple[int, ...]:
        state = tuple(self.of(v) for v in op.init)
        for i in range(self.of(op.start), self.of(op.stop), self.of(op.step)):
            state = self.block(op.body, (i, *state))
        return state

    def pure(self, op: Op) -> int:
        type = op.result.dtype
        result: int | None = None
        match op:
            case ops.Special(name=name):
                result = self.registers[name]
            case ops.Binary():
                result = evaluate.binary(op.kind, self.of(op.lhs), self.of(op.rhs), type)
            case ops.Unary():
                result = evaluate.unary(op.kind, self.of(op.x), op.x.dtype)
            case ops.Compare():
                result = int(evaluate.COMPARE[op.kind](self.of(op.lhs), self.of(op.rhs)))
            case ops.Select():
                result = self.of(op.on_true if self.of(op.condition) else op.on_false)
            case ops.Cast():
                result = evaluate.reduce_to(self.of(op.x), type)
        if result is None:
            raise Undefined(op)
        return result
