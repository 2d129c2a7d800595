from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.helpers.sketch import Sketch

from tilewright.dtypes import DType, bfloat16, float16, float32, float64, int32
from tilewright.ir.core import Kernel, Value
from tilewright.ir.ops import Binary, Constant, Fma, Store, Unary
from tilewright.ir.verify import verify
from tilewright.passes.contract_multiply_add import contract_multiply_add


class Terms:
    """A sketch with four floats, and the text of what it stores."""

    def __init__(self, dtype: DType = float32) -> None:
        self.s = Sketch()
        self.a, self.b, self.c, self.d = (self.s.scalar(name, dtype) for name in "abcd")
        self.ab = self.s.binary("mul", self.a, self.b)
        self.buffer = self.s.argument("to", dtype)

    def contracted(self, value: Value) -> str:
        self.s.store(self.buffer, 0, value)
        kernel = self.s.kernel()
        contract_multiply_add(kernel)
        verify(kernel)
        return stored(kernel)


def stored(kernel: Kernel) -> str:
    return "; ".join(text(op.value) for op in kernel.body.walk() if isinstance(op, Store))


def text(value: Value) -> str:
    op = value.definition
    match op:
        case Constant():
            return str(op.value)
        case Binary():
            return f"({text(op.lhs)} {op.kind} {text(op.rhs)})"
        case Unary():
            return f"-{text(op.x)}"
        case Fma():
            return f"fma({text(op.a)}, {text(op.b)}, {text(op.c)})"
        case _:
            return value.name or "?"


RULES: dict[str, tuple[Callable[[Terms], Value], str]] = {
    "a*b + c": (lambda t: t.s.binary("add", t.ab, t.c), "fma(a, b, c)"),
    "c + a*b": (lambda t: t.s.binary("add", t.c, t.ab), "fma(a, b, c)"),
    "a*b - c": (lambda t: t.s.binary("sub", t.ab, t.c), "fma(a, b, -c)"),
    "c - a*b": (lambda t: t.s.binary("sub", t.c, t.ab), "fma(-a, b, c)"),
    "-(a*b) + c": (lambda t: t.s.binary("add", t.s.unary("neg", t.ab), t.c), "fma(-a, b, c)"),
    "c - -(a*b)": (lambda t: t.s.binary("sub", t.c, t.s.unary("neg", t.ab)), "fma(a, b, c)"),
    "a*b - 1": (lambda t: t.s.binary("sub", t.ab, 1.0), "fma(a, b, -1.0)"),
    "a*b + c*d": (lambda t: t.s.binary("add", t.ab, t.s.binary("mul", t.c, t.d)), "fma(a, b, (c mul d))"),
    "c*d - a*b": (lambda t: t.s.binary("sub", t.s.binary("mul", t.c, t.d), t.ab), "fma(c, d, -(a mul b))"),
    "(a*b + c) * d + c": (
        lambda t: t.s.binary("add", t.s.binary("mul", t.s.binary("add", t.ab, t.c), t.d), t.c),
        "fma(fma(a, b, c), d, c)",
    ),
    "a*b + a*b": (lambda t: t.s.binary("add", t.ab, t.ab), "((a mul b) add (a mul b))"),
    "a*b * c": (lambda t: t.s.binary("mul", t.ab, t.c), "((a mul b) mul c)"),
}


@pytest.mark.parametrize(("build", "expected"), RULES.values(), ids=RULES)
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_rules(build: Callable[[Terms], Value], expected: str, dtype: DType) -> None:
    terms = Terms(dtype)
    assert terms.contracted(build(terms)) == expected


@pytest.mark.parametrize("dtype", [float16, bfloat16, int32], ids=str)
def test_other_types_are_left_alone(dtype: DType) -> None:
    terms = Terms(dtype)
    assert terms.contracted(terms.s.binary("add", terms.ab, terms.c)) == "((a mul b) add c)"


def test_a_product_with_another_use_stays() -> None:
    t = Terms()
    t.s.store(t.buffer, 1, t.ab)
    assert t.contracted(t.s.binary("add", t.ab, t.c)) == "(a mul b); ((a mul b) add c)"


def test_a_product_from_outside_a_loop_is_made_once() -> None:
    t = Terms()
    with t.s.loop(0, 8, init=[0]) as loop:
        loop.yields = (loop.index,)
        t.s.store(t.buffer, 1, t.s.binary("add", t.ab, t.c))
    assert t.contracted(t.c) == "((a mul b) add c); c"


def test_inside_a_loop_and_at_its_place() -> None:
    t = Terms()
    with t.s.loop(0, 8):
        total = t.s.binary("add", t.s.binary("mul", t.c, t.d), t.ab)
        total.name = "total"
        t.s.store(t.buffer, 1, total)
    assert t.contracted(t.a) == "fma(c, d, (a mul b)); a"
    assert total.definition is not None
    assert isinstance(total.definition, Fma)
