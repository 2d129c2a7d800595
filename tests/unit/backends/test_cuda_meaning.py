"""Random IR, printed: the text, read by C++'s rules, computes what the IR says."""

from __future__ import annotations

import random

from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.helpers.slow import examples
from tests.unit.backends.c_text import Number, Undefined, run
from tests.unit.backends.ir_meaning import Meaning
from tests.unit.backends.kernels import Draft, named

from tilewright import dtypes as t
from tilewright.ir import ops
from tilewright.ir.core import Block, Buffer, Space, Value
from tilewright.ir.facts import Facts
from tilewright.ir.ops import constant

INTEGERS = (t.int32, t.int32, t.int32, t.uint32, t.int64, t.uint64, t.int8, t.uint8, t.int16)
SPECIALS = {"thread_idx.x": 5, "block_idx.x": 7, "block_dim.x": 128}
NAMES = (None, None, "x", "y", "acc", "min", "int")


class Author:
    """Writes a random program with a Draft."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        self.draft = Draft("random")
        self.builder = self.draft.builder
        self.given: dict[Value, int] = {}
        for i, dtype in enumerate((t.int32, t.int32, t.uint32, t.int64, t.int8)):
            small = choose.random() < 0.5
            value = self.draft.scalar(f"p{i}", dtype, Facts(0, 100) if small else None)
            self.given[value] = choose.randrange(0, 100) if small else choose.randint(dtype.lowest, dtype.highest)
        self.out = self.draft.pointer("out", t.int64)
        self.stored = 0

    # --- expressions -----------------------------------------------------------------------------------------

    def emit(self, op: ops.Op, type: t.DType, name: str | None = None) -> Value:  # without folding
        return named(self.builder.emit(op, type)[0], name)

    def leaf(self, dtype: t.DType, seen: list[Value]) -> Value:
        fitting = [v for v in (*self.given, *seen) if v.type is dtype]
        kind = self.choose.random()
        if kind < 0.25 and dtype is t.int32:
            return self.emit(ops.Special(self.choose.choice(sorted(SPECIALS))), t.int32)
        if kind < 0.75 and fitting:
            return self.choose.choice(fitting)
        near = self.choose.choice((0, 1, 2, -1, 7, dtype.lowest, dtype.highest, self.choose.randrange(1000)))
        return constant(max(dtype.lowest, min(dtype.highest, near)), dtype)

    def tree(self, dtype: t.DType, depth: int, seen: list[Value]) -> Value:
        if depth == 0:
            return self.leaf(dtype, seen) if dtype is not t.bool_ else constant(self.choose.random() < 0.5, dtype)
        if dtype is t.bool_:
            return self.truth(depth, seen)
        pick = self.choose.randrange(10)
        if pick == 0:
            return self.emit(
                ops.Unary(self.choose.choice(("neg", "bit_not", "abs")), self.tree(dtype, depth - 1, seen)), dtype
            )
        if pick == 1:
            sides = [self.tree(d, depth - 1, seen) for d in (t.bool_, dtype, dtype)]
            return self.emit(ops.Select(*sides), dtype)
        if pick == 2:
            return self.emit(ops.Cast(self.tree(self.choose.choice(INTEGERS), depth - 1, seen)), dtype)
        if pick == 3:
            kind, amount = self.choose.choice(("shl", "shr")), constant(self.choose.randrange(dtype.bits), dtype)
            return self.emit(ops.Binary(kind, self.tree(dtype, depth - 1, seen), amount), dtype)
        kinds = ("add", "sub", "mul", "add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor")
        sides = [self.tree(dtype, self.choose.randrange(depth), seen) for _ in range(2)]
        return self.emit(ops.Binary(self.choose.choice(kinds), *sides), dtype)

    def truth(self, depth: int, seen: list[Value]) -> Value:
        if self.choose.random() < 0.3:
            kind = self.choose.choice(("and", "or", "xor"))
            return (
                self.emit(ops.Binary(kind, *(self.truth(depth - 1, seen) for _ in range(2))), t.bool_)
                if depth > 1
                else constant(True, t.bool_)
            )
        dtype = self.choose.choice(INTEGERS)
        sides = [self.tree(dtype, depth - 1, seen) for _ in range(2)]
        return self.emit(ops.Compare(self.choose.choice(sorted(ops.COMPARE_KINDS)), *sides), t.bool_)

    # --- statements ------------------------------------------------------------------------------------------

    def name(self) -> str | None:
        return self.choose.choice(NAMES)

    def store(self, value: Value) -> None:
        if value.type is not t.int64:
            value = self.emit(ops.Cast(value), t.int64)
        self.draft.store(self.out, self.stored, value)
        self.stored += 1

    def body(self, depth: int, seen: list[Value], memory: Buffer) -> list[Value]:
        """Write some statements; return the values that may be used after them."""
        seen = list(seen)
        for _ in range(self.choose.randrange(1, 5)):
            pick = self.choose.random()
            if pick < 0.2 and depth:
                seen += self.loop(depth, seen, memory)
            elif pick < 0.5 and depth:
                seen += self.branch(depth, seen, memory)
            elif pick < 0.55 and depth:
                seen += self.countdown(depth, seen, memory)
            elif pick < 0.65:
                self.draft.store(memory, self.choose.randrange(4), self.pick(seen))
            elif pick < 0.75:
                seen.append(self.draft.load(memory, self.choose.randrange(4), name=self.name()))
            else:
                kind = self.choose.choice(("add", "sub", "mul", "xor"))
                other = constant(self.choose.randrange(9), t.int32) if pick < 0.85 else self.pick(seen)
                seen.append(self.emit(ops.Binary(kind, self.pick(seen), other), t.int32, self.name()))
        return seen

    def pick(self, seen: list[Value]) -> Value:
        if self.choose.random() < 0.6:
            return seen[-1 - self.choose.randrange(min(3, len(seen)))]
        return self.choose.choice(seen)

    def carried(self, init: list[Value]) -> list[Value]:
        return [Value(v.type, v.name if v.name and self.choose.random() < 0.7 else self.name()) for v in init]

    def results(self, op: ops.Op, arguments: list[Value]) -> list[Value]:
        results = self.builder.emit(op, *(a.type for a in arguments))
        return [named(r, a.name) for r, a in zip(results, arguments, strict=True)]

    def inside(self, block: Block, depth: int, seen: list[Value], memory: Buffer, count: int) -> None:
        with self.builder.inside(block):
            after = self.body(depth - 1, seen, memory)
            if self.choose.random() < 0.3:
                self.store(self.pick(after))
            self.builder.emit(ops.Yield(tuple(self.pick(after) for _ in range(count))))

    def loop(self, depth: int, seen: list[Value], memory: Buffer) -> list[Value]:
        init = [self.pick(seen) for _ in range(self.choose.randrange(4))]
        arguments, index = self.carried(init), Value(t.int32, self.name())
        body = Block(arguments=(index, *arguments))
        self.inside(body, depth, [*seen, index, *arguments], memory, len(init))
        step = self.choose.choice((1, 1, 2, -1))
        bound = self.choose.choice(
            (constant(3, t.int32), self.emit(ops.Binary("rem", self.pick(seen), constant(4, t.int32)), t.int32))
        )
        start, stop = (constant(0, t.int32), bound) if step > 0 else (bound, constant(0, t.int32))
        return self.results(ops.For(start, stop, constant(step, t.int32), tuple(init), body), arguments)

    def countdown(self, depth: int, seen: list[Value], memory: Buffer) -> list[Value]:
        init = [constant(3, t.int32), *(self.pick(seen) for _ in range(self.choose.randrange(3)))]
        groups = self.carried(init), self.carried(init)
        condition, body = Block(arguments=tuple(groups[0])), Block(arguments=tuple(groups[1]))
        with self.builder.inside(condition):
            if self.choose.random() < 0.5:
                self.draft.store(memory, 0, self.pick([*seen, *groups[0]]))
            self.builder.emit(ops.Yield((self.emit(ops.Compare("gt", groups[0][0], constant(0, t.int32)), t.bool_),)))
        with self.builder.inside(body):
            after = self.body(depth - 1, [*seen, *groups[1]], memory)
            less = self.emit(ops.Binary("sub", groups[1][0], constant(1, t.int32)), t.int32)
            self.builder.emit(ops.Yield((less, *(self.pick(after) for _ in init[1:]))))
        return self.results(ops.While(tuple(init), condition, body), groups[1])

    def branch(self, depth: int, seen: list[Value], memory: Buffer) -> list[Value]:
        count, condition = self.choose.randrange(3), self.truth(1, seen)
        then, otherwise = Block(), Block()
        self.inside(then, depth, seen, memory, count)
        if self.choose.random() < 0.5:
            self.inside(otherwise, depth, seen, memory, count)
        else:
            values = [v if self.choose.random() < 0.3 else self.pick(seen) for v in then.ops[-1].operands]
            values = [v if v in seen else self.pick(seen) for v in values]
            otherwise.ops.append(ops.Yield(tuple(values)))
        names = [Value(t.int32, self.choose.choice((self.name(), v.name))) for v in otherwise.ops[-1].operands]
        return self.results(ops.If(condition, then, otherwise), names)


def agree(author: Author) -> None:
    """Run the IR and its text, and compare all that they stored."""
    draft = author.draft
    text = draft.body()
    expected: dict[str, list[int]] = {"out": [0] * author.stored}
    actual: dict[str, tuple[str, list[int]]] = {"out": ("long long", [0] * author.stored)}
    registers = {f"{n.split('_')[0]}{n.split('_')[1][:-2].capitalize()}.x": v for n, v in SPECIALS.items()}
    known = {n: Number("unsigned int", v) for n, v in registers.items()}
    known |= {v.name or "": Number(v.dtype.c_name, n) for v, n in author.given.items()}
    try:
        Meaning(author.given, expected, SPECIALS).block(draft.kernel.body)
    except Undefined:
        assume(False)
    run(text, known, actual)
    assert actual["out"][1] == expected["out"], text


@examples(25, 150)
@given(st.integers(0, 2**32))
@example(0)
def test_expressions_mean_what_the_ir_says(seed: int) -> None:
    author = Author(random.Random(seed))
    for _ in range(3):
        author.store(author.tree(author.choose.choice(INTEGERS), 4, []))
    agree(author)


@examples(25, 150)
@given(st.integers(0, 2**32))
@example(0)
def test_control_flow_means_what_the_ir_says(seed: int) -> None:
    author = Author(random.Random(seed))
    memory = Buffer("memory", t.int32, Space.REGISTER, 4, 16)
    author.builder.emit(ops.Allocate(memory))
    for i in range(4):
        author.draft.store(memory, i, i)
    seen = author.body(3, [v for v in author.given if v.type is t.int32], memory)
    for value in seen[-4:]:
        author.store(value)
    agree(author)
