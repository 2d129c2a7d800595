"""All ops of the IR. Each is a dataclass whose fields say which are operands, attributes and blocks.

What an op computes is written once as NumPy in `backends/sim`, how it is spelled in C++ once in `backends/cpp`,
or in the dialects `backends/cuda` and `backends/hip`, each as one handler for the op's class. Integer
arithmetic is that of C++ on the device: two's complement, division and remainder round towards zero. Floats are
IEEE, every op rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.atoms.copy import CacheHints
from tilewright.dtypes import DType
from tilewright.ir.core import Block, Buffer, Op, Value, lanes_of
from tilewright.ir.effects import (
    STAYS,
    Effects,
    attribute,
    begins,
    block,
    names,
    operand,
    operands,
    reads,
    strong,
    updates,
    writes,
)
from tilewright.ir.facts import exactly

# --- scalars -------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Constant(Op):
    """A number known at compile time, already of the result's type. Constants are in no block."""

    value: int | float | bool = attribute()


def constant(value: float | bool, type: DType) -> Value:
    """Return a constant of a type, which must be able to represent it."""
    assert type.is_float or type.lowest <= value <= type.highest, (value, type)
    result = Value(type, facts=None if type.is_float else exactly(int(value)))
    Constant(bool(value) if type.kind == "bool" else float(value) if type.is_float else int(value), results=(result,))
    return result


SPECIAL_GROUPS = ("thread_idx", "block_idx", "block_dim", "grid_dim")
SPECIAL_NAMES = tuple(f"{group}.{axis}" for group in SPECIAL_GROUPS for axis in "xyz")


@dataclass(eq=False)
class Special(Op):
    """A special register, int32: one of `SPECIAL_NAMES`."""

    name: str = attribute()
    RESULTS: ClassVar[int | None] = 1


# fmt: off
UNARY_KINDS = frozenset({
    "neg", "not", "bit_not", "abs",
    "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "erf",
    "floor", "ceil", "trunc", "round", "isnan", "isinf", "isfinite", "popcount", "clz",
})
BINARY_KINDS = frozenset({
    "add", "sub", "mul", "div", "rem", "min", "max", "pow", "atan2", "copysign", "fmod",
    "and", "or", "xor", "shl", "shr",
})
COMPARE_KINDS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
# The kinds of float32 that may be approximate.
APPROXIMATE_KINDS = frozenset({"sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "pow", "div"})
ATOMIC_KINDS = frozenset({"add", "min", "max", "and", "or", "xor", "exch"})
# fmt: on


@dataclass(eq=False)
class Unary(Op):
    """result = kind(x). `round` is to nearest even; `isnan` and its like and `not` give bool.

    An `approximate` function of float32 may be some units in the last place off, as CUDA's fast mathematics is.
    """

    kind: str = attribute()
    x: Value = operand()
    approximate: bool = attribute(False)
    RESULTS: ClassVar[int | None] = 1


@dataclass(eq=False)
class Binary(Op):
    """result = lhs kind rhs, both of the result's type (a shift's amount too). `and`/`or`/`xor` also on bool.

    add, sub, mul, min and max also of vectors of two 16-bit floats, lane by lane.
    `approximate` as in `Unary`: a quotient or a power.
    """

    kind: str = attribute()
    lhs: Value = operand()
    rhs: Value = operand()
    approximate: bool = attribute(False)
    RESULTS: ClassVar[int | None] = 1


@dataclass(eq=False)
class Compare(Op):
    """result: bool = lhs kind rhs; false where either is NaN, except `ne`."""

    kind: str = attribute()
    lhs: Value = operand()
    rhs: Value = operand()
    RESULTS: ClassVar[int | None] = 1


@dataclass(eq=False)
class Fma(Op):
    """result = a * b + c, rounded once. Floats only."""

    a: Value = operand()
    b: Value = operand()
    c: Value = operand()
    RESULTS: ClassVar[int | None] = 1


@dataclass(eq=False)
class Select(Op):
    """result = on_true if condition else on_false; both are computed."""

    condition: Value = operand()
    on_true: Value = operand()
    on_false: Value = operand()
    RESULTS: ClassVar[int | None] = 1


@dataclass(eq=False)
class Cast(Op):
    """result = x converted to the result's type: float to integer truncates and saturates, NaN gives 0."""

    x: Value = operand()
    RESULTS: ClassVar[int | None] = 1


@dataclass(eq=False)
class CastPair(Op):
    """result = the vector of both lanes of x, each converted as by `Cast`: float32 to 8-bit floats and back."""

    x: Value = operand()
    RESULTS: ClassVar[int | None] = 1


@dataclass(eq=False)
class RoundToTfloat32(Op):
    """result = a float32 rounded to nearest, ties away from zero, to what tensor cores read of it (cvt.rna.tf32)."""

    x: Value = operand()
    RESULTS: ClassVar[int | None] = 1


@dataclass(eq=False)
class Bitcast(Op):
    """result = the bits of x read as the result's type, of the same size."""

    x: Value = operand()
    RESULTS: ClassVar[int | None] = 1


@dataclass(eq=False)
class Pack(Op):
    """result = the vector of the given scalars."""

    elements: tuple[Value, ...] = operands()
    RESULTS: ClassVar[int | None] = 1


@dataclass(eq=False)
class Extract(Op):
    """result = lane number `lane` of a vector."""

    vector: Value = operand()
    lane: int = attribute()
    RESULTS: ClassVar[int | None] = 1


# --- memory --------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Allocate(Op):
    """Begin the life of a shared or register buffer, with undefined contents."""

    buffer: Buffer = begins()
    RESULTS: ClassVar[int | None] = 0


@dataclass(eq=False)
class AllocateAt(Op):
    """Begin the life of a shared buffer of a size that the launch knows, `place` bytes behind those of static sizes."""

    buffer: Buffer = begins()
    place: Value = operand()
    RESULTS: ClassVar[int | None] = 0


@dataclass(eq=False)
class Load(Op):
    """result = buffer[index], or for a vector type buffer[index : index + lanes], aligned to its size.

    `hints` are for the caches, of a global buffer.
    """

    buffer: Buffer = reads("index", elements=lambda op: lanes_of(op.result))
    index: Value = operand()
    hints: CacheHints | None = attribute(None)
    RESULTS: ClassVar[int | None] = 1


@dataclass(eq=False)
class Store(Op):
    """buffer[index] = value, or the lanes of a vector to buffer[index : index + lanes], aligned to its size."""

    buffer: Buffer = writes("index", elements=lambda op: lanes_of(op.value))
    index: Value = operand()
    value: Value = operand()
    hints: CacheHints | None = attribute(None)
    RESULTS: ClassVar[int | None] = 0


@dataclass(eq=False)
class Point(Op):
    """Let a global buffer begin at an address, a uint64: what it holds may be part of any other global buffer."""

    buffer: Buffer = names()
    address: Value = operand()
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = STAYS


@dataclass(eq=False)
class AtRank(Op):
    """Let a buffer be what `source`, a shared buffer, is in the block `rank` of the cluster, an int32."""

    buffer: Buffer = names()
    source: Buffer = names()
    rank: Value = operand()
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = STAYS


@dataclass(eq=False)
class AddressOf(Op):
    """result: uint64 = the address of the first element of a global buffer."""

    buffer: Buffer = names()
    RESULTS: ClassVar[int | None] = 1


@dataclass(eq=False)
class Inside(Op):
    """Check 0 <= coordinate < extent, in a mode of a tensor in `buffer`, for the access that follows.

    It is there for the simulator only; a launch on a GPU does without.
    """

    buffer: Buffer = names()
    mode: int = attribute()
    coordinate: Value = operand()
    extent: Value = operand()
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = STAYS


@dataclass(eq=False)
class Atomic(Op):
    """result = old = buffer[index]; buffer[index] = kind(old, value), indivisibly; `exch` puts the value there.

    `sem` is what it orders besides ("relaxed": nothing), `scope` for whom.
    """

    kind: str = attribute()
    buffer: Buffer = updates("index")
    index: Value = operand()
    value: Value = operand()
    sem: str = attribute("relaxed")
    scope: str = attribute("gpu")
    RESULTS: ClassVar[int | None] = 1

    @property
    def effects(self) -> Effects:
        return strong(self.sem, self.scope)


# --- control -------------------------------------------------------------------------------------------


@dataclass(eq=False)
class For(Op):
    """for index in start, start + step, ... < stop: results = body(index, carried).

    The body's arguments are the index and the carried values; it ends with a Yield of the next ones. The
    carried values begin as `init`. `step` is positive or negative, never 0. `unroll`: None leaves it to the
    compiler, 0 unrolls fully, n by n (1: not at all).
    """

    start: Value = operand()
    stop: Value = operand()
    step: Value = operand()
    init: tuple[Value, ...] = operands()
    body: Block = block()
    unroll: int | None = attribute(None)
    EFFECTS: ClassVar[Effects] = STAYS


@dataclass(eq=False)
class While(Op):
    """while condition(carried): carried = body(carried); the results are the last carried values.

    `condition` ends with a Yield of one bool, `body` with a Yield of the next carried values.
    """

    init: tuple[Value, ...] = operands()
    condition: Block = block()
    body: Block = block()
    EFFECTS: ClassVar[Effects] = STAYS


@dataclass(eq=False)
class If(Op):
    """results = then() if condition else otherwise(); only the chosen block runs. Each ends with a Yield."""

    condition: Value = operand()
    then: Block = block()
    otherwise: Block = block()
    EFFECTS: ClassVar[Effects] = STAYS


@dataclass(eq=False)
class Yield(Op):
    """End a block and hand its values to the enclosing op."""

    values: tuple[Value, ...] = operands()
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = STAYS


def yielded(block: Block) -> tuple[Value, ...]:
    """Return what a block hands to the op around it."""
    last = block.ops[-1] if block.ops else None
    return last.values if isinstance(last, Yield) else ()


# --- looking in ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class Print(Op):
    """Print `texts[0] values[0] texts[1] ...` and a line end, once a thread."""

    texts: tuple[str, ...] = attribute()
    values: tuple[Value, ...] = operands()
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = STAYS


@dataclass(eq=False)
class Assert(Op):
    """Stop the kernel with a message where the condition is false."""

    condition: Value = operand()
    message: str = attribute()
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = STAYS
