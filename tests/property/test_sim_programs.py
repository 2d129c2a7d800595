"""Random integer programs: the simulator, vectorised over all threads, against one Python loop a thread.

A program is made of arithmetic, divergent branches and loops, register buffers, shared memory and stores. The
reference walks the same IR once a thread with Python ints; it shares no code with the simulator.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.slow import examples
from tests.unit.backends.sim_kernels import Sketch

from tilewright.dtypes import DType, bool_, int8, int16, int32, int64, uint8, uint32
from tilewright.ir.core import Block, Buffer, Value
from tilewright.ir.ops import (
    Allocate,
    Binary,
    Cast,
    Compare,
    Constant,
    For,
    If,
    Load,
    Select,
    Special,
    Store,
    Unary,
    While,
    Yield,
)

GRID, BLOCK, REGISTERS = (2, 2, 1), (5, 3, 2), 4
THREADS = 30
TYPES = [int32, int32, uint32, int64, int8, int16, uint8]


# --- the reference -------------------------------------------------------------------------------------


def wrap(x: int, dtype: DType) -> int:
    if dtype is bool_:
        return int(bool(x))
    x %= 1 << dtype.bits
    return x - (1 << dtype.bits) if dtype.kind == "int" and x >> (dtype.bits - 1) else x


def truncated(a: int, b: int) -> int:
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


def binary(kind: str, a: int, b: int, dtype: DType) -> int:
    far = not 0 <= b < dtype.bits
    match kind:
        case "add" | "sub" | "mul":
            return {"add": a + b, "sub": a - b, "mul": a * b}[kind]
        case "div":
            return truncated(a, b) if b else -1
        case "rem":
            return a - b * truncated(a, b) if b else a
        case "min" | "max":
            return min(a, b) if kind == "min" else max(a, b)
        case "and" | "or" | "xor":
            return {"and": a & b, "or": a | b, "xor": a ^ b}[kind]
        case "shl":
            return 0 if far else a << b
        case _:
            return (-1 if a < 0 else 0) if far else a >> b


class Thread:
    """One thread, run from the start to the end with Python ints."""

    def __init__(self, special: dict[str, int], memory: dict[Buffer, list[int]]) -> None:
        self.special = special
        self.memory = memory  # by buffer; register buffers are the thread's own
        self.values: dict[Value, int] = {}

    def get(self, value: Value) -> int:
        op = value.definition
        return int(op.value) if isinstance(op, Constant) else self.values[value]

    def block(self, block: Block, *arguments: int) -> list[int]:
        self.values.update(zip(block.arguments, arguments, strict=True))
        for op in block.ops:
            if isinstance(op, Yield):
                return [self.get(v) for v in op.values]
            found = getattr(self, f"do_{type(op).__name__.lower()}")(op)
            self.values.update(zip(op.results, found or (), strict=True))
        return []

    def do_special(self, op: Special) -> list[int]:
        return [self.special[op.name]]

    def do_binary(self, op: Binary) -> list[int]:
        return [wrap(binary(op.kind, self.get(op.lhs), self.get(op.rhs), op.result.dtype), op.result.dtype)]

    def do_unary(self, op: Unary) -> list[int]:
        x = self.get(op.x)
        return [wrap({"neg": -x, "abs": abs(x), "bit_not": ~x}[op.kind], op.result.dtype)]

    def do_compare(self, op: Compare) -> list[int]:
        a, b = self.get(op.lhs), self.get(op.rhs)
        return [{"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[op.kind]]

    def do_cast(self, op: Cast) -> list[int]:
        return [wrap(self.get(op.x), op.result.dtype)]

    def do_select(self, op: Select) -> list[int]:
        return [self.get(op.on_true if self.get(op.condition) else op.on_false)]

    def do_allocate(self, op: Allocate) -> None:
        self.memory[op.buffer] = [0] * op.buffer.size

    def do_load(self, op: Load) -> list[int]:
        return [self.memory[op.buffer][self.get(op.index)]]

    def do_store(self, op: Store) -> None:
        self.memory[op.buffer][self.get(op.index)] = self.get(op.value)

    def do_if(self, op: If) -> list[int]:
        return self.block(op.then if self.get(op.condition) else op.otherwise)

    def do_for(self, op: For) -> list[int]:
        carried = [self.get(v) for v in op.init]
        for i in range(self.get(op.start), self.get(op.stop), self.get(op.step)):
            carried = self.block(op.body, i, *carried)
        return carried

    def do_while(self, op: While) -> list[int]:
        carried = [self.get(v) for v in op.init]
        while self.block(op.condition, *carried)[0]:
            carried = self.block(op.body, *carried)
        return carried


# --- random programs -----------------------------------------------------------------------------------


@dataclass
class Writer:
    """Draws statements; `known` are the values that may be used where the cursor stands."""

    draw: st.DrawFn
    sketch: Sketch
    registers: Buffer
    out: Buffer
    slot: Value
    stores: int = 0

    def number(self, known: list[Value], dtype: DType = int32) -> Value:
        same = [v for v in known if v.dtype is dtype]
        if same and self.draw(st.integers(0, 3)):
            return self.draw(st.sampled_from(same))
        edges = [0, 1, 2, 5, 31, 32, dtype.highest, dtype.lowest]
        limits = st.integers(dtype.lowest, dtype.highest)
        return self.sketch.value(self.draw(st.one_of(st.sampled_from(edges), limits)), dtype)

    def small(self, known: list[Value], bound: int) -> Value:
        """Return a number from 0 below a bound, which may differ by thread."""
        positive = self.sketch.binary("and", self.number(known), 2**31 - 1)
        return self.sketch.binary("rem", positive, bound)

    def condition(self, known: list[Value]) -> Value:
        kind = self.draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]))
        return self.sketch.emit(Compare(kind, self.number(known), self.number(known)), bool_)

    def expression(self, known: list[Value]) -> Value:
        dtype = self.draw(st.sampled_from(TYPES))
        what = self.draw(st.integers(0, 9))
        sketch = self.sketch
        if what == 0:
            kind = self.draw(st.sampled_from(["neg", "abs", "bit_not"]))
            return sketch.emit(Unary(kind, self.number(known, dtype)), dtype)
        if what == 1:
            source = self.draw(st.sampled_from(known))
            return sketch.emit(Cast(source), dtype)
        if what == 2:
            return sketch.emit(
                Select(self.condition(known), self.number(known, dtype), self.number(known, dtype)), dtype
            )
        if what == 3:
            return sketch.load(self.registers, self.small(known, REGISTERS))
        kinds = ["add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr"]
        kind = self.draw(st.sampled_from(kinds))
        return sketch.emit(Binary(kind, self.number(known, dtype), self.number(known, dtype)), dtype)

    def statements(self, known: list[Value], depth: int) -> list[Value]:
        known = list(known)
        for _ in range(self.draw(st.integers(1, 5))):
            what = self.draw(st.integers(0, 9)) if depth else self.draw(st.integers(0, 6))
            if what == 7:
                known += self.branch(known, depth)
            elif what == 8:
                known += self.loop(known, depth)
            elif what == 9:
                known += self.countdown(known, depth)
            elif what == 6:
                self.sketch.store(self.registers, self.small(known, REGISTERS), self.number(known))
            else:
                known.append(self.expression(known))
        return known

    def branch(self, known: list[Value], depth: int) -> list[Value]:
        then, otherwise = Block(), Block()
        results = self.sketch.builder.emit(If(self.condition(known), then, otherwise), int32, int32)
        for side in (then, otherwise):
            with self.sketch.builder.inside(side):
                inner = self.statements(known, depth - 1)
                self.sketch.do(Yield((self.number(inner), self.number(inner))))
        return list(results)

    def loop(self, known: list[Value], depth: int) -> list[Value]:
        step = self.draw(st.sampled_from([1, 2, -1, -3]))
        start, stop = self.small(known, 5), self.small(known, 5)
        with self.sketch.loop(stop, [self.number(known)], start, step) as loop:
            inner = self.statements([*known, loop.index, *loop.carried], depth - 1)
            loop.next = [self.number(inner)]
        return list(loop.results)

    def countdown(self, known: list[Value], depth: int) -> list[Value]:
        with self.sketch.repeat([self.small(known, 4), self.number(known)]) as loop:
            with loop.test(self.sketch) as (left, _):
                self.sketch.do(Yield((self.sketch.compare("gt", left, 0),)))
            inner = self.statements([*known, *loop.carried], depth - 1)
            loop.next = [self.sketch.binary("sub", loop.carried[0], 1), self.number(inner)]
        return list(loop.results)


OUTPUTS = 4


@st.composite
def programs(draw: st.DrawFn) -> Sketch:
    sketch = Sketch()
    count = GRID[0] * GRID[1] * THREADS
    out = sketch.array("out", np.zeros((count, OUTPUTS), np.int64), int64)
    known = [sketch.special(f"{g}.{a}") for g in ("thread_idx", "block_idx") for a in "xyz"]
    known.append(sketch.scalar("n", draw(st.integers(-(2**31), 2**31 - 1)), int32))
    registers = sketch.registers("part", int32, REGISTERS)
    for i in range(REGISTERS):
        sketch.store(registers, i, known[i])
    tx, ty, tz, bx, by, _ = known[:6]
    thread = sketch.add(tx, sketch.mul(sketch.add(ty, sketch.mul(tz, BLOCK[1])), BLOCK[0]))
    slot = sketch.add(thread, sketch.mul(sketch.add(bx, sketch.mul(by, GRID[0])), THREADS))
    final = Writer(draw, sketch, registers, out, slot).statements(known, 3)
    for i in range(OUTPUTS):
        value = sketch.emit(Cast(final[-1 - i]), int64)
        sketch.store(out, sketch.add(sketch.mul(slot, OUTPUTS), i), value)
    return sketch


def reference(sketch: Sketch) -> np.ndarray:
    """Return what the program writes, thread by thread."""
    out = np.zeros_like(sketch.arguments[0])
    flat: list[int] = [0] * out.size
    buffer = sketch.parameters[0].target
    for bx, by, bz in np.ndindex(GRID):
        for tx, ty, tz in np.ndindex(BLOCK):
            special = {
                f"{group}.{axis}": n
                for group, at in (("thread_idx", (tx, ty, tz)), ("block_idx", (bx, by, bz)))
                for axis, n in zip("xyz", at, strict=True)
            }
            thread = Thread(special, {buffer: flat})
            thread.values[sketch.parameters[1].target] = int(sketch.arguments[1])
            thread.block(sketch.body)
    out.ravel()[:] = flat
    return out


@examples(20, 120)
@given(programs())
def test_programs_agree_with_one_thread_at_a_time(sketch: Sketch) -> None:
    wanted = reference(sketch)
    for check in (True, False):
        copied = copy.copy(sketch)
        copied.arguments = [np.zeros_like(wanted), *sketch.arguments[1:]]
        copied.run(GRID, BLOCK, check=check)
        np.testing.assert_array_equal(copied.arguments[0], wanted)
