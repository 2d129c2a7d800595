"""Random kernels for tests of passes: every construct of the IR, always defined, always ending."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tilewright.dtypes import bool_, float32, int32
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cp_async import AsyncCommit, AsyncCopy, AsyncWait
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Buffer, Kernel, Op, Parameter, Space, Type, Value
from tilewright.ir.evaluate import index_facts
from tilewright.ir.facts import Facts
from tilewright.ir.ops import (
    Allocate,
    Assert,
    Atomic,
    Binary,
    Compare,
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
    constant,
)

SIZE = 8  # elements of every buffer


@dataclass
class Case:
    """A kernel and what to run it with."""

    kernel: Kernel
    inputs: dict[str, int]
    memory: dict[str, list[int]]


@dataclass
class _Scope:
    """The values that are visible."""

    integers: list[Value] = field(default_factory=list)
    bools: list[Value] = field(default_factory=list)
    floats: list[Value] = field(default_factory=list)
    loaded: list[Value] = field(default_factory=list)  # small floats, which may be multiplied

    def copy(self) -> _Scope:
        return _Scope(list(self.integers), list(self.bools), list(self.floats), list(self.loaded))


@st.composite
def kernels(draw: st.DrawFn) -> Case:
    """Return a random kernel over two integer and two float arrays."""
    generator = _Generator(draw)
    kernel = generator.kernel()
    number = st.integers(-9, 9)
    inputs = {"n": draw(st.integers(0, 8)), "m": draw(number), "thread_idx.x": draw(st.integers(0, 31))}
    memory = {name: draw(st.lists(number, min_size=SIZE, max_size=SIZE)) for name in ("a", "b", "f", "g")}
    return Case(kernel, inputs, memory)


class _Generator:
    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.builder = Builder(Block())
        self.scope = _Scope()
        self.a, self.b = (Buffer(name, int32, Space.GLOBAL, None, 16) for name in "ab")
        self.f, self.g = (Buffer(name, float32, Space.GLOBAL, None, 16) for name in "fg")
        self.n, self.m = Value(int32, "n", Facts(0, 8)), Value(int32, "m")
        self.registers = [Buffer(f"r{n}", int32, Space.REGISTER, SIZE, 16) for n in range(2)]
        self.shared = [Buffer(f"s{n}", float32, Space.SHARED, SIZE, 16) for n in range(3)]

    def kernel(self) -> Kernel:
        build = self.builder
        parameters = tuple(
            Parameter(target.name or "", "value" if isinstance(target, Value) else "pointer", target)
            for target in (self.a, self.b, self.f, self.g, self.n, self.m)
        )
        self.scope.integers += [self.n, self.m, self.pure(Special("thread_idx.x"), int32)]
        self.scope.bools.append(self.pure(Compare("lt", self.m, self.n), bool_))
        self.scope.floats.append(constant(2.0, float32))
        self.scope.loaded.append(constant(3.0, float32))
        for buffer in (*self.registers, *self.shared):
            build.emit(Allocate(buffer))
        self.clear(self.registers, 0)
        for n, buffer in enumerate(self.shared):
            self.statements(2, top=True)
            self.clear([buffer], n)
        self.statements(2, top=True)
        self.report()
        return Kernel("random", parameters, build.block, (32, 1, 1))

    def clear(self, buffers: list[Buffer], number: int) -> None:
        with self.loop(constant(0, int32), constant(SIZE, int32)) as index:
            for buffer in buffers:
                self.builder.emit(Store(buffer, index, constant(number, buffer.dtype)))

    @contextmanager
    def loop(self, start: Value, stop: Value):
        body = Block(arguments=(Value(int32, "i", index_facts(start, stop, constant(1, int32))),))
        with self.builder.inside(body):
            yield body.arguments[0]
            self.builder.emit(Yield(()))
        self.builder.emit(For(start, stop, constant(1, int32), (), body))

    def report(self) -> None:
        """Let the end depend on much of what was computed."""
        for value in self.scope.integers[-8:]:
            self.builder.emit(Store(self.a, constant(0, int32), value))
        for value in self.scope.floats[-5:]:
            self.builder.emit(Store(self.f, constant(0, int32), value))
        self.builder.emit(Print(("", ""), (self.load(self.registers[0], int32),)))

    # --- pieces ----------------------------------------------------------------------------------------

    def chance(self) -> bool:
        return self.draw(st.booleans())

    def pick(self, values: list[Value]) -> Value:
        # The newest values more often, so that expressions grow.
        return values[-1 - min(self.draw(st.integers(0, len(values) - 1)), self.draw(st.integers(0, len(values) - 1)))]

    def pure(self, op: Op, type: Type) -> Value:
        """Sometimes without folding, so that work is left for the passes."""
        return self.builder.pure(op, type) if self.chance() else self.builder.emit(op, type)[0]

    def integer(self) -> Value:
        if self.draw(st.integers(0, 2)) == 0:
            return constant(self.draw(st.sampled_from([0, 1, 2, 3, 4, 8, -1, 7])), int32)
        return self.pick(self.scope.integers)

    def index(self) -> Value:
        if self.chance():
            return constant(self.draw(st.integers(0, 1)), int32)  # so that accesses meet
        return self.pure(Binary("and", self.integer(), constant(SIZE - 1, int32)), int32)

    def load(self, buffer: Buffer, type: Type) -> Value:
        return self.builder.emit(Load(buffer, self.index()), type)[0]

    # --- statements ------------------------------------------------------------------------------------

    def statements(self, depth: int, top: bool = False) -> None:
        kinds: list[Callable[[int], None]] = [self.arithmetic, self.arithmetic, self.comparison, self.selection]
        kinds += [self.integer_access, self.integer_access, self.float_access, self.float_arithmetic, self.effect]
        if depth:
            kinds += [self.for_loop, self.for_loop, self.while_loop, self.branch]
        if top:
            kinds.append(lambda _: self.builder.emit(Barrier("block")) and None)
        for _ in range(self.draw(st.integers(1, 6))):
            self.draw(st.sampled_from(kinds))(depth)

    def arithmetic(self, _: int) -> None:
        kind = self.draw(st.sampled_from(["add", "sub", "mul", "min", "max", "xor", "div", "rem", "shl", "neg"]))
        x, y = self.integer(), self.integer()
        if kind == "neg":
            self.scope.integers.append(self.pure(Unary("neg", x), int32))
            return
        if kind in ("div", "rem"):
            masked = self.pure(Binary("and", y, constant(7, int32)), int32)
            y = self.pure(Binary("add", masked, constant(1, int32)), int32)
        elif kind == "shl":
            y = constant(self.draw(st.integers(0, 4)), int32)
        self.scope.integers.append(self.pure(Binary(kind, x, y), int32))

    def comparison(self, _: int) -> None:
        kind = self.draw(st.sampled_from(["lt", "le", "eq", "ne"]))
        value = self.pure(Compare(kind, self.integer(), self.integer()), bool_)
        self.scope.bools.append(self.pure(Unary("not", value), bool_) if self.chance() else value)

    def selection(self, _: int) -> None:
        op = Select(self.pick(self.scope.bools), self.integer(), self.integer())
        self.scope.integers.append(self.pure(op, int32))

    def integer_access(self, _: int) -> None:
        buffer = self.draw(st.sampled_from([self.a, self.b, *self.registers]))
        match self.draw(st.sampled_from(["load", "load", "store", "atomic"])):
            case "load":
                self.scope.integers.append(self.load(buffer, int32))
            case "store":
                self.builder.emit(Store(buffer, self.index(), self.integer()))
            case "atomic":
                target = self.draw(st.sampled_from([self.a, self.b]))
                op = Atomic(self.draw(st.sampled_from(["add", "min", "max"])), target, self.index(), self.integer())
                self.scope.integers += self.builder.emit(op, int32)

    def float_access(self, _: int) -> None:
        buffer = self.draw(st.sampled_from([self.f, self.g, *self.shared]))
        match self.draw(st.sampled_from(["load", "load", "store", "copy"])):
            case "store":
                self.builder.emit(Store(buffer, self.index(), self.pick(self.scope.floats)))
            case "copy":
                target = self.draw(st.sampled_from(self.shared))
                valid = self.pick(self.scope.bools)
                self.builder.emit(AsyncCopy(target, self.f, 1, "ca", self.index(), self.index(), valid))
                self.builder.emit(AsyncCommit())
                self.builder.emit(AsyncWait(self.draw(st.sampled_from([0, 1, None]))))
            case _:
                if buffer in self.shared:  # may not have been cleared yet
                    self.builder.emit(Store(buffer, constant(1, int32), self.pick(self.scope.floats)))
                    value = self.builder.emit(Load(buffer, constant(1, int32)), float32)[0]
                else:
                    value = self.load(buffer, float32)
                self.scope.floats.append(value)
                self.scope.loaded.append(value)

    def float_arithmetic(self, _: int) -> None:
        product = self.pure(Binary("mul", self.pick(self.scope.loaded), self.pick(self.scope.loaded)), float32)
        if self.chance():
            product = self.pure(Unary("neg", product), float32)
        other = self.pick(self.scope.floats)
        sides = (product, other) if self.chance() else (other, product)
        self.scope.floats.append(self.pure(Binary(self.draw(st.sampled_from(["add", "sub"])), *sides), float32))
        if self.chance():
            self.scope.floats.append(product)

    def effect(self, _: int) -> None:
        if self.chance():
            self.builder.emit(Print(("x=", ""), (self.integer(),)))
        else:
            condition = self.pure(Compare("le", self.n, constant(8, int32)), bool_)
            self.builder.emit(Assert(condition, "n is too large"))

    def nested(self, arguments: tuple[Value, ...], yields: int, depth: int, own: tuple[Value, ...] = ()) -> Block:
        """Return a block that computes something and yields so many integers."""
        outer, self.scope = self.scope, self.scope.copy()
        self.scope.integers += arguments
        block = Block(arguments=arguments)
        with self.builder.inside(block):
            self.statements(depth - 1)
            results = tuple(
                self.integer() if self.chance() else self.pick(list(own or outer.integers)) for _ in range(yields)
            )
            self.builder.emit(Yield(results))
        self.scope = outer
        return block

    def for_loop(self, depth: int) -> None:
        small = [constant(n, int32) for n in (0, 0, 1, 2, 3, 4)]
        start, stop = (self.draw(st.sampled_from([*small, self.n, self.index()])) for _ in range(2))
        step = constant(self.draw(st.sampled_from([1, 1, 1, 2, 4, -1, -3])), int32)
        init = tuple(self.integer() for _ in range(self.draw(st.integers(0, 2))))
        carried = tuple(Value(int32, "c") for _ in init)
        index = Value(int32, "i", index_facts(start, stop, step) if self.chance() else None)
        body = self.nested((index, *carried), len(init), depth, carried)
        self.scope.integers += self.builder.emit(For(start, stop, step, init, body), *(v.type for v in init))

    def while_loop(self, depth: int) -> None:
        """Count a carried value down to zero; the other carried values are free."""
        limit = self.draw(st.integers(0, 3))
        init = (constant(limit, int32), self.integer(), self.integer())
        tests, carried = (tuple(Value(int32, "w") for _ in init) for _ in range(2))
        condition = Block(arguments=tests)
        with self.builder.inside(condition):
            self.builder.emit(Yield((self.pure(Compare("gt", tests[0], constant(0, int32)), bool_),)))
        body = self.nested(carried, 2, depth, carried[1:])
        end = body.ops.pop()
        with self.builder.inside(body):
            less = self.pure(Binary("sub", carried[0], constant(1, int32)), int32)
            self.builder.emit(Yield((less, *end.operands)))
        self.scope.integers += self.builder.emit(While(init, condition, body), int32, int32, int32)[1:]

    def branch(self, depth: int) -> None:
        condition = self.pick([*self.scope.bools, constant(self.chance(), bool_)])
        results = self.draw(st.integers(0, 2))
        then, otherwise = self.nested((), results, depth), self.nested((), results, depth)
        self.scope.integers += self.builder.emit(If(condition, then, otherwise), *[int32] * results)
