"""Words to write small kernels in IR by hand, and to run them on the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tilewright.backends.sim import Options, execute
from tilewright.dtypes import DType, bool_, int32
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Buffer, Kernel, Op, Parameter, Space, Type, Value, VectorType
from tilewright.ir.ops import (
    Allocate,
    Binary,
    Compare,
    For,
    If,
    Load,
    Special,
    Store,
    While,
    Yield,
    constant,
)
from tilewright.ir.verify import verify
from tilewright.source import SourceLocation

Number = int | float | bool


class Sketch:
    """A kernel in the making. `line` is the source line that the next ops get."""

    def __init__(self) -> None:
        self.body = Block()
        self.line = 1
        self.builder = Builder(self.body, lambda: SourceLocation("sketch.py", self.line, "kernel"))
        self.parameters: list[Parameter] = []
        self.arguments: list[np.ndarray | Number] = []

    # parameters and memory

    def array(self, name: str, array: np.ndarray, dtype: DType) -> Buffer:
        buffer = Buffer(name, dtype, Space.GLOBAL, None, 16)
        self.parameters.append(Parameter(name, "pointer", buffer))
        self.arguments.append(array)
        return buffer

    def scalar(self, name: str, value: Number, dtype: DType) -> Value:
        result = Value(dtype, name)
        self.parameters.append(Parameter(name, "value", result))
        self.arguments.append(value)
        return result

    def shared(self, name: str, dtype: DType, size: int, offset: int | None = None) -> Buffer:
        return self._allocated(Buffer(name, dtype, Space.SHARED, size, 16, offset=offset))

    def registers(self, name: str, dtype: DType, size: int) -> Buffer:
        return self._allocated(Buffer(name, dtype, Space.REGISTER, size, 16))

    def _allocated(self, buffer: Buffer) -> Buffer:
        self.do(Allocate(buffer))
        return buffer

    def load(self, buffer: Buffer, index: Value | int, lanes: int = 1) -> Value:
        type = buffer.dtype if lanes == 1 else VectorType(buffer.dtype, lanes)
        return self.emit(Load(buffer, self.value(index)), type)

    def store(self, buffer: Buffer, index: Value | int, value: Value | Number) -> None:
        self.do(Store(buffer, self.value(index), self.value(value, buffer.dtype)))

    # values

    def value(self, x: Value | Number, dtype: DType = int32) -> Value:
        return x if isinstance(x, Value) else constant(x, dtype)

    def emit(self, op: Op, type: Type) -> Value:
        """Append an op without folding, so that the simulator computes it."""
        return self.builder.emit(op, type)[0]

    def do(self, op: Op) -> None:
        self.builder.emit(op)

    def special(self, name: str) -> Value:
        return self.emit(Special(name), int32)

    def binary(self, kind: str, a: Value | Number, b: Value | Number) -> Value:
        dtype = next((x.dtype for x in (a, b) if isinstance(x, Value)), int32)
        return self.emit(Binary(kind, self.value(a, dtype), self.value(b, dtype)), dtype)

    def add(self, a: Value | Number, b: Value | Number) -> Value:
        return self.binary("add", a, b)

    def mul(self, a: Value | Number, b: Value | Number) -> Value:
        return self.binary("mul", a, b)

    def compare(self, kind: str, a: Value | Number, b: Value | Number) -> Value:
        dtype = next((x.dtype for x in (a, b) if isinstance(x, Value)), int32)
        return self.emit(Compare(kind, self.value(a, dtype), self.value(b, dtype)), bool_)

    def thread(self) -> Value:
        return self.special("thread_idx.x")

    def global_thread(self) -> Value:
        block = self.mul(self.special("block_idx.x"), self.special("block_dim.x"))
        return self.add(block, self.thread())

    # control

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        then, otherwise = Block(), Block()
        self.do(If(condition, then, otherwise))
        with self.builder.inside(then):
            yield
            self.do(Yield(()))
        with self.builder.inside(otherwise):
            self.do(Yield(()))

    def choose(self, condition: Value, then: Value, otherwise: Value) -> Value:
        """Return the result of a branch whose sides only yield."""
        blocks = Block([Yield((then,))]), Block([Yield((otherwise,))])
        return self.emit(If(condition, *blocks), then.type)

    @contextmanager
    def loop(
        self, stop: Value | int, init: Sequence[Value] = (), start: Value | int = 0, step: Value | int = 1
    ) -> Iterator[Loop]:
        bounds = [self.value(x) for x in (start, stop, step)]
        index = Value(bounds[0].type)
        body = Block(arguments=(index, *[Value(v.type) for v in init]))
        loop = Loop(index, body.arguments[1:])
        loop.results = self.builder.emit(For(*bounds, tuple(init), body), *[v.type for v in init])
        with self.builder.inside(body):
            yield loop
            self.do(Yield(tuple(loop.next)))

    @contextmanager
    def repeat(self, init: Sequence[Value]) -> Iterator[Loop]:
        """Write a while loop: set `condition` inside `loop.test()`, then the body, then `next`."""
        condition, body = (Block(arguments=tuple(Value(v.type) for v in init)) for _ in range(2))
        loop = Loop(None, body.arguments)
        loop.tested = condition
        loop.results = self.builder.emit(While(tuple(init), condition, body), *[v.type for v in init])
        with self.builder.inside(body):
            yield loop
            self.do(Yield(tuple(loop.next)))

    # running

    def kernel(self, block: tuple[int, int, int] | None = None, shared_bytes: int = 0) -> Kernel:
        kernel = Kernel("kernel", tuple(self.parameters), self.body, block, shared_bytes=shared_bytes)
        verify(kernel)
        return kernel

    def run(
        self,
        grid: int | tuple[int, int, int] = 1,
        block: int | tuple[int, int, int] = 32,
        *,
        check: bool = True,
        shared_bytes: int = 0,
    ) -> None:
        grid, block = ((x, 1, 1) if isinstance(x, int) else x for x in (grid, block))
        kernel = self.kernel(block, shared_bytes)
        execute(
            kernel, grid, block, dict(zip(self.parameters, self.arguments, strict=True)), options=Options(check=check)
        )

    def run_inside(self, grid: int | tuple[int, int, int] = 1, block: int | tuple[int, int, int] = 32) -> None:
        """Run with the options of the `simulate` statement around the call."""
        grid, block = ((x, 1, 1) if isinstance(x, int) else x for x in (grid, block))
        execute(self.kernel(block), grid, block, dict(zip(self.parameters, self.arguments, strict=True)))


class Loop:
    """A loop being written: its index, carried values, and what the next iteration gets."""

    def __init__(self, index: Value | None, carried: tuple[Value, ...]) -> None:
        self.index = index
        self.carried = carried
        self.next: Sequence[Value] = carried
        self.results: tuple[Value, ...] = ()
        self.tested = Block()

    @contextmanager
    def test(self, sketch: Sketch) -> Iterator[tuple[Value, ...]]:
        """Write a while loop's condition; end with `sketch.do(Yield((condition,)))`."""
        with sketch.builder.inside(self.tested):
            yield self.tested.arguments


def compute(op_of: object, dtype: DType, result: DType, *operands: Sequence[Number], check: bool = True) -> np.ndarray:
    """Run one pure op over arrays of operands, a thread an element, and return the results."""
    sketch = Sketch()
    count = len(operands[0])
    arrays = [np.array(x, dtype.numpy) for x in operands]
    out = np.zeros(count, result.numpy)
    buffers = [sketch.array(f"x{n}", a, dtype) for n, a in enumerate(arrays)]
    target = sketch.array("out", out, result)
    thread = sketch.global_thread()
    with sketch.when(sketch.compare("lt", thread, count)):
        values = [sketch.load(b, thread) for b in buffers]
        sketch.store(target, thread, sketch.emit(op_of(*values), result))  # type: ignore[operator]
    sketch.run(-(-count // 32), 32, check=check)
    return out
