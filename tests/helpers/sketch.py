"""A short way to write a kernel's IR in a test. Nothing is folded: a test says exactly what a pass gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.dtypes import DType, bool_, float32, int32
from tilewright.instructions.barrier import Barrier
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Buffer, Kernel, Op, Parameter, Space, Value
from tilewright.ir.facts import Facts
from tilewright.ir.ops import Allocate, Binary, Compare, For, If, Load, Special, Store, Unary, While, Yield, constant
from tilewright.ir.printer import to_text
from tilewright.source import SourceLocation

Operand = Value | int | float


@dataclass
class Loop:
    """An open loop: its index, its carried values, and what it will yield."""

    index: Value
    carried: tuple[Value, ...]
    yields: tuple[Operand, ...] = ()
    op: For | While | None = None

    @property
    def results(self) -> tuple[Value, ...]:
        assert self.op is not None
        return self.op.results


class Sketch:
    """A kernel under construction, with one global buffer `out` of int32 and one `fout` of float32."""

    def __init__(self, block: tuple[int, int, int] | None = None) -> None:
        self.builder = Builder(Block())
        self.parameters: list[Parameter] = []
        self.threads = block
        self.out = self.argument("out", int32)
        self.fout = self.argument("fout", float32)

    @property
    def ops(self) -> list[Op]:
        return self.builder.block.ops

    def kernel(self) -> Kernel:
        return Kernel("sketch", tuple(self.parameters), self.builder.block, self.threads)

    # --- values and buffers ----------------------------------------------------------------------------

    def scalar(self, name: str, dtype: DType = int32, facts: Facts | None = None) -> Value:
        value = Value(dtype, name, facts)
        self.parameters.append(Parameter(name, "value", value))
        return value

    def argument(self, name: str, dtype: DType) -> Buffer:
        buffer = Buffer(name, dtype, Space.GLOBAL, None, 16)
        self.parameters.append(Parameter(name, "pointer", buffer))
        return buffer

    def shared(self, name: str, size: int, dtype: DType = int32, alignment: int = 16) -> Buffer:
        return self.allocated(Buffer(name, dtype, Space.SHARED, size, alignment))

    def registers(self, name: str, size: int, dtype: DType = int32) -> Buffer:
        return self.allocated(Buffer(name, dtype, Space.REGISTER, size, 16))

    def allocated(self, buffer: Buffer) -> Buffer:
        self.builder.emit(Allocate(buffer))
        return buffer

    # --- ops -------------------------------------------------------------------------------------------

    def binary(self, kind: str, lhs: Operand, rhs: Operand) -> Value:
        type = next(v.dtype for v in (lhs, rhs) if isinstance(v, Value))
        return self.builder.emit(Binary(kind, _value(lhs, type), _value(rhs, type)), type)[0]

    def unary(self, kind: str, x: Value) -> Value:
        return self.builder.emit(Unary(kind, x), x.type)[0]

    def compare(self, kind: str, lhs: Value, rhs: Operand) -> Value:
        return self.builder.emit(Compare(kind, lhs, _value(rhs, lhs.dtype)), bool_)[0]

    def special(self, name: str) -> Value:
        return self.builder.emit(Special(name), int32)[0]

    def load(self, buffer: Buffer, index: Operand) -> Value:
        return self.builder.emit(Load(buffer, _value(index, int32)), buffer.dtype)[0]

    def store(self, buffer: Buffer, index: Operand, value: Operand, location: SourceLocation | None = None) -> None:
        op = Store(buffer, _value(index, int32), _value(value, buffer.dtype), location=location)
        self.builder.emit(op)

    def barrier(self, scope: str = "block") -> None:
        self.builder.emit(Barrier(scope))

    # --- control ---------------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, start: Operand, stop: Operand, step: Operand = 1, init: Sequence[Operand] = (), unroll: int | None = None
    ) -> Iterator[Loop]:
        first = [_value(v, int32) for v in init]
        loop = Loop(Value(int32, "i"), tuple(Value(v.type) for v in first))
        body = Block(arguments=(loop.index, *loop.carried))
        with self.builder.inside(body):
            yield loop
            ends = zip(loop.yields, first, strict=True)
            self.builder.emit(Yield(tuple(_value(v, v0.dtype) for v, v0 in ends)))
        bounds = [_value(v, int32) for v in (start, stop, step)]
        loop.op = For(*bounds, tuple(first), body, unroll)
        self.builder.emit(loop.op, *(v.type for v in first))

    @contextmanager
    def while_loop(self, init: Sequence[Operand], kind: str, limit: Operand) -> Iterator[Loop]:
        """Run while the first carried value compares so with the limit."""
        first = tuple(_value(v, int32) for v in init)
        condition = Block(arguments=tuple(Value(v.type) for v in first))
        body = Block(arguments=tuple(Value(v.type) for v in first))
        with self.builder.inside(condition):
            self.builder.emit(Yield((self.compare(kind, condition.arguments[0], limit),)))
        loop = Loop(body.arguments[0], body.arguments)
        with self.builder.inside(body):
            yield loop
            self.builder.emit(Yield(tuple(_value(v, int32) for v in loop.yields)))
        loop.op = While(first, condition, body)
        self.builder.emit(loop.op, *(v.type for v in first))

    @contextmanager
    def branch(self, condition: Value | bool) -> Iterator[None]:
        """An if without an else and without results."""
        then = Block()
        with self.builder.inside(then):
            yield
            self.builder.emit(Yield(()))
        self.builder.emit(If(_value(condition, bool_), then, Block([Yield(())])))

    def choice(self, condition: Value | bool, then: Operand, otherwise: Operand) -> Value:
        """An if whose blocks only yield."""
        blocks = [Block([Yield((_value(v, int32),))]) for v in (then, otherwise)]
        return self.builder.emit(If(_value(condition, bool_), *blocks), int32)[0]


def _value(x: Operand, type: DType) -> Value:
    return x if isinstance(x, Value) else constant(x, type)


def lines(kernel: Kernel) -> list[str]:
    """Return the IR's text without the kernel's first and last line. Parameters are numbered first."""
    return [line[2:] for line in to_text(kernel).splitlines()[1:-1]]
