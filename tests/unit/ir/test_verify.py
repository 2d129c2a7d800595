"""Each rule of the verifier, broken once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.helpers.sketch import Sketch

from tilewright.dtypes import DType, bool_, float16, float32, float64, int32, uint32
from tilewright.errors import InternalError
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cp_async import AsyncCopy
from tilewright.instructions.shuffle import Shuffle
from tilewright.instructions.vote import Vote
from tilewright.ir.core import Block, Buffer, Kernel, Op, Requirement, Space, Type, Value, VectorType
from tilewright.ir.facts import Facts
from tilewright.ir.ops import (
    Allocate,
    Assert,
    Atomic,
    Binary,
    Bitcast,
    Cast,
    Compare,
    Constant,
    Extract,
    Fma,
    For,
    If,
    Load,
    Pack,
    Print,
    Select,
    Special,
    Store,
    Unary,
    While,
    Yield,
    constant,
)
from tilewright.ir.verify import verify

ONE, REAL = constant(1, int32), constant(1.0, float32)
YES = constant(True, bool_)
GLOBAL = Buffer("g", float32, Space.GLOBAL, None, 16)
SHARED = Buffer("s", float32, Space.SHARED, 8, 16)
TWO = VectorType(float32, 2)


def one(op: Op, *types: Type) -> Callable[[Sketch], None]:
    """Append an op as it is: the builder would already stumble over some of them."""

    def build(s: Sketch) -> None:
        op.results = tuple(Value(type) for type in types)
        for result in op.results:
            result.definition = op
        s.ops.append(op)

    return build


def empty(*values: Value, arguments: tuple[Value, ...] = ()) -> Block:
    return Block([Yield(values)], arguments)


def index() -> Value:
    return Value(int32, "i")


def vector(s: Sketch, element: DType, lanes: int) -> Value:
    elements = (constant(0.0, element),) * lanes
    return s.builder.emit(Pack(elements), VectorType(element, lanes))[0]


def async_copy(**changes: object) -> Callable[[Sketch], None]:
    copy = AsyncCopy(SHARED, GLOBAL, 1, "ca", destination_index=ONE, source_index=ONE, valid=YES)
    return one(replace(copy, **changes))


def used_before(s: Sketch) -> None:
    x = s.scalar("x")
    y = s.binary("add", x, 1)
    s.store(s.out, 0, y)
    s.ops.reverse()


def used_outside_its_block(s: Sketch) -> None:
    with s.branch(YES):
        x = s.binary("add", s.scalar("x"), 1)
    s.store(s.out, 0, x)


def twice(s: Sketch) -> None:
    s.store(s.out, 0, 1)
    s.ops.append(s.ops[-1])


def foreign_result(s: Sketch) -> None:
    s.binary("add", s.scalar("x"), 1)
    s.ops[-1].result.definition = None


def contradiction(s: Sketch) -> None:
    s.binary("add", s.scalar("x"), 1).facts = Facts(3, 2)


def used_before_allocated(s: Sketch) -> None:
    s.store(s.shared("late", 4), 0, 1)
    s.ops.reverse()


def allocated_inside(s: Sketch) -> None:
    with s.branch(YES):
        inner = s.shared("inner", 4)
    s.store(inner, 0, 1)


def wide_access(s: Sketch) -> None:
    s.builder.emit(Store(s.argument("d", float64), ONE, vector(s, float64, 4)))


def extract_from(lane: int) -> Callable[[Sketch], None]:
    return lambda s: s.builder.emit(Extract(vector(s, float32, 2), lane), float32) and None


def requirement_on(s: Sketch) -> None:
    s.special("thread_idx.x")


BROKEN: dict[str, tuple[Callable[[Sketch], object], str]] = {
    "use before definition": (used_before, "is used before it is defined"),
    "use out of scope": (used_outside_its_block, "is used before it is defined"),
    "an op twice": (twice, "appears twice"),
    "a foreign result": (foreign_result, "names another op"),
    "facts": (contradiction, "contradictory facts"),
    "a yield at the top": (one(Yield(())), "a yield ends each nested block"),
    "no yield": (one(If(YES, Block(), empty())), "does not end with a yield"),
    "no yield at the end": (one(If(YES, Block([Barrier("block")]), empty())), "a yield ends each nested block"),
    "a constant in a block": (one(Constant(1), int32), "a constant stands in a block"),
    "too many results": (one(Special("thread_idx.x"), int32, int32), "2 results instead of 1"),
    "a result too many": (one(Barrier("block"), int32), "1 results instead of 0"),
    "no buffer": (used_before_allocated, "neither a parameter nor allocated"),
    "buffer out of scope": (allocated_inside, "neither a parameter nor allocated"),
    "allocated twice": (one(Allocate(SHARED)), "allocated twice"),
    "a global allocation": (one(Allocate(Buffer("x", int32, Space.GLOBAL, 4, 16))), "is global"),
    "no size": (one(Allocate(Buffer("x", int32, Space.SHARED, None, 16))), "has no size"),
    "alignment": (one(Allocate(Buffer("x", int32, Space.SHARED, 4, 2))), "aligned to 2 bytes only"),
    "a register that is none": (one(Special("lane"), int32), "no special register lane"),
    "a special register's type": (one(Special("thread_idx.x"), uint32), "is int32"),
    "unary kind": (one(Unary("square", REAL), float32), "no unary kind square"),
    "unary type": (one(Unary("neg", REAL), int32), "types differ"),
    "a test's type": (one(Unary("isnan", REAL), float32), "isnan gives bool"),
    "binary kind": (one(Binary("plus", ONE, ONE), int32), "no binary kind plus"),
    "binary types": (one(Binary("add", ONE, REAL), int32), "types differ"),
    "sum of bools": (one(Binary("add", YES, YES), bool_), "no add of bools"),
    "comparison kind": (one(Compare("<", ONE, ONE), bool_), "no comparison <"),
    "comparison types": (one(Compare("lt", ONE, REAL), bool_), "types differ"),
    "comparison result": (one(Compare("lt", ONE, ONE), int32), "gives bool"),
    "fma types": (one(Fma(REAL, REAL, ONE), float32), "types differ"),
    "fma of integers": (one(Fma(ONE, ONE, ONE), int32), "multiplies and adds floats"),
    "select condition": (one(Select(ONE, ONE, ONE), int32), "condition must be bool"),
    "select types": (one(Select(YES, ONE, REAL), int32), "types differ"),
    "cast": (one(Cast(ONE), VectorType(int32, 2)), "converts scalars"),
    "bitcast": (one(Bitcast(ONE), float16), "sizes differ"),
    "pack to a scalar": (one(Pack((REAL, REAL)), float32), "gives a vector"),
    "pack of others": (one(Pack((REAL, ONE)), TWO), "wrong elements"),
    "pack of too few": (one(Pack((REAL,)), TWO), "wrong elements"),
    "extract from a scalar": (one(Extract(REAL, 0), float32), "takes a vector"),
    "extract beyond": (extract_from(2), "wrong lane"),
    "load of another type": (one(Load(GLOBAL, ONE), int32), "g holds float32, not int32"),
    "store of another type": (one(Store(GLOBAL, ONE, ONE)), "g holds float32, not int32"),
    "float index": (one(Load(GLOBAL, REAL), float32), "index must be an integer"),
    "wide access": (wide_access, "at most 16 bytes"),
    "copy to global": (async_copy(destination=GLOBAL), "from global to shared"),
    "copy of others": (async_copy(source=Buffer("h", int32, Space.GLOBAL, None, 16)), "neither a parameter"),
    "copy size": (async_copy(elements=3), "no instruction of that size"),
    "cg size": (async_copy(elements=2, cache="cg"), "no instruction of that size"),
    "cache": (async_copy(cache="l2"), "no cache operator l2"),
    "copy index": (async_copy(source_index=REAL), "index must be an integer"),
    "copy predicate": (async_copy(valid=REAL), "predicate must be bool, or int32"),
    "atomic kind": (one(Atomic("mul", GLOBAL, ONE, REAL), float32), "no atomic operation mul"),
    "atomic result": (one(Atomic("add", GLOBAL, ONE, REAL), int32), "types differ"),
    "loop without index": (one(For(ONE, ONE, ONE, (), empty())), "takes the index"),
    "float loop": (one(For(REAL, REAL, REAL, (), empty(arguments=(Value(float32),)))), "index must be an integer"),
    "loop bounds": (one(For(ONE, REAL, ONE, (), empty(arguments=(index(),)))), "types differ"),
    "carried": (one(For(ONE, ONE, ONE, (ONE,), empty(arguments=(index(),))), int32), "types differ"),
    "step 0": (one(For(ONE, ONE, constant(0, int32), (), empty(arguments=(index(),)))), "the step is 0"),
    "unroll": (one(For(ONE, ONE, ONE, (), empty(arguments=(index(),)), -1)), "no loop unrolls -1"),
    "while condition": (one(While((), empty(ONE), empty())), "must yield one bool"),
    "while carried": (one(While((ONE,), empty(YES), empty()), int32), "types differ"),
    "if condition": (one(If(ONE, empty(), empty())), "condition must be bool"),
    "if arguments": (one(If(YES, empty(arguments=(index(),)), empty())), "no arguments"),
    "if results": (one(If(YES, empty(ONE), empty(REAL)), int32), "types differ"),
    "barrier": (one(Barrier("grid")), "no barrier of scope grid"),
    "shuffle kind": (one(Shuffle("left", ONE, ONE), int32), "no shuffle left"),
    "shuffle width": (one(Shuffle("up", ONE, ONE, 12), int32), "no group of 12 lanes"),
    "shuffle type": (one(Shuffle("up", REAL, ONE), int32), "types differ"),
    "vote": (one(Vote("any", ONE), bool_), "takes a bool"),
    "ballot": (one(Vote("ballot", YES), bool_), "wrong type"),
    "print": (one(Print(("x",), (ONE, ONE))), "texts and values"),
    "assert": (one(Assert(ONE, "")), "condition must be bool"),
}


def sketch() -> Sketch:
    s = Sketch()
    s.argument("unused", int32)
    s.parameters.append(type(s.parameters[0])("g", "pointer", GLOBAL))
    s.allocated(SHARED)
    return s


@pytest.mark.parametrize(("build", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_rules_are_found(build: Callable[[Sketch], object], message: str) -> None:
    s = sketch()
    verify(s.kernel())
    build(s)
    with pytest.raises(InternalError, match="is not well formed") as caught:
        verify(s.kernel())
    assert message in caught.value.summary
    assert "kernel sketch(" in str(caught.value), "the IR is attached"


def test_requirements_are_for_the_host() -> None:
    s = sketch()
    n = s.scalar("n")
    kernel: Kernel = s.kernel()
    good = s.compare("le", s.binary("add", n, 1), 8)
    kernel.requirements = (Requirement(good, "n is small", "", None),)
    verify(kernel)
    bad = s.compare("le", s.special("thread_idx.x"), 8)
    kernel.requirements = (Requirement(bad, "x", "", None),)
    with pytest.raises(InternalError, match="only the device knows"):
        verify(kernel)
