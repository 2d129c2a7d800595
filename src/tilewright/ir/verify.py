"""The IR's verifier: every value is defined before its use, and every op's types fit. Runs after every pass in tests.

A failure is a fault of Tilewright, never of the user, so it raises `InternalError` with the IR attached.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.arch import VECTOR_BYTES
from tilewright.dtypes import bool_, float32, int32, uint64
from tilewright.errors import InternalError
from tilewright.ir.core import Block, Buffer, Kernel, Op, Space, Value, VectorType
from tilewright.ir.effects import MEMORY_SCOPES
from tilewright.ir.evaluate import COMPUTED
from tilewright.ir.ops import (
    APPROXIMATE_KINDS,
    ATOMIC_KINDS,
    BINARY_KINDS,
    COMPARE_KINDS,
    SPECIAL_NAMES,
    UNARY_KINDS,
    AddressOf,
    Allocate,
    AllocateAt,
    Assert,
    Atomic,
    AtRank,
    Binary,
    Bitcast,
    Cast,
    CastPair,
    Compare,
    Constant,
    Extract,
    Fma,
    For,
    If,
    Inside,
    Load,
    Pack,
    Point,
    Print,
    RoundToTfloat32,
    Select,
    Special,
    Store,
    Unary,
    While,
    Yield,
    yielded,
)
from tilewright.ir.printer import to_text


def verify(kernel: Kernel) -> None:
    """Raise `InternalError` unless the kernel's IR is well formed."""
    parameters: set[Value | Buffer] = {p.target for p in kernel.parameters}
    try:
        _Verifier().block(kernel.body, parameters, terminator=False)
        for requirement in kernel.requirements:
            _requirement(requirement.condition, parameters)
        for map in kernel.tensor_maps:
            for value in map.values:
                _requirement(value, parameters)
    except _Fault as fault:
        summary = f"the IR of {kernel.name} is not well formed: {fault}"
        raise InternalError(summary, details=[to_text(kernel)]) from fault


class _Fault(Exception):
    pass


def _expect(condition: bool, op: Op, what: str) -> None:
    if not condition:
        raise _Fault(f"{type(op).__name__} at {op.location}: {what}")


class _Verifier:
    """Walks the kernel with the values and buffers that are visible at each op."""

    def __init__(self) -> None:
        self.seen: set[Op] = set()

    def block(self, block: Block, outer: set[Value | Buffer], *, terminator: bool) -> None:
        visible = outer | set(block.arguments)
        for position, op in enumerate(block.ops):
            last = position == len(block.ops) - 1
            _expect(isinstance(op, Yield) == (terminator and last), op, "a yield ends each nested block, and only that")
            self.op(op, visible)
            for inner in op.blocks:
                self.block(inner, visible, terminator=True)
            visible |= set(op.results)
        if terminator and not block.ops:
            raise _Fault("a nested block does not end with a yield")

    def op(self, op: Op, visible: set[Value | Buffer]) -> None:
        _expect(op not in self.seen, op, "appears twice in the kernel")
        self.seen.add(op)
        _expect(not isinstance(op, Constant), op, "a constant stands in a block")
        for value in op.operands:
            defined = value in visible or isinstance(value.definition, Constant)
            _expect(defined, op, f"{value} is used before it is defined")
        _expect(all(r.definition is op for r in op.results), op, "a result names another op as its definition")
        for result in op.results:
            known = result.facts
            _expect(known is None or known.low <= known.high, op, f"contradictory facts {known}")
        if isinstance(op, (Allocate, AllocateAt)):
            _expect(op.buffer not in visible, op, f"{op.buffer.name} is allocated twice")
            visible.add(op.buffer)
        for use in op.uses:
            if isinstance(op, Point) and use.buffer is op.buffer:
                _expect(use.buffer.space is Space.GLOBAL and use.buffer.is_pointed, op, "points a global buffer")
                visible.add(use.buffer)
            _expect(use.buffer.root in visible, op, f"{use.buffer.name} is neither a parameter nor allocated before")
            if use.index is not None:
                _index(op, use.index)
        if op.RESULTS is not None:
            _expect(len(op.results) == op.RESULTS, op, f"has {len(op.results)} results instead of {op.RESULTS}")
        op.verify(lambda holds, what: _expect(holds, op, what))
        check = _RULES.get(type(op))
        if check is not None:
            check(op)


def _requirement(value: Value, parameters: set[Value | Buffer]) -> None:
    """Check that the host can compute a value: pure ops over parameters and constants."""
    op = value.definition
    if value in parameters or isinstance(op, Constant):
        return
    if not isinstance(op, COMPUTED):
        raise _Fault(f"a requirement depends on {value}, which only the device knows")
    for operand in op.operands:
        _requirement(operand, parameters)


def _same_types(op: Op, *groups: tuple[Value, ...]) -> None:
    types = [tuple(v.type for v in group) for group in groups]
    _expect(all(t == types[0] for t in types), op, f"types differ: {types}")


# --- control -------------------------------------------------------------------------------------------


def _for(op: For) -> None:
    _expect(len(op.body.arguments) >= 1, op, "the body takes the index")
    index, *carried = op.body.arguments
    _expect(not isinstance(index.type, VectorType) and index.type.is_integer, op, "the index must be an integer")
    _same_types(op, (index,), (op.start,), (op.stop,), (op.step,))
    _same_types(op, op.init, tuple(carried), yielded(op.body), op.results)
    _expect(op.unroll is None or op.unroll >= 0, op, f"no loop unrolls {op.unroll} by {op.unroll}")
    if isinstance(op.step.definition, Constant):
        _expect(op.step.definition.value != 0, op, "the step is 0")


def _while(op: While) -> None:
    _same_types(op, op.init, op.condition.arguments, op.body.arguments, yielded(op.body), op.results)
    condition = yielded(op.condition)
    _expect(len(condition) == 1 and condition[0].type is bool_, op, "the condition must yield one bool")


def _if(op: If) -> None:
    _expect(op.condition.type is bool_, op, "the condition must be bool")
    _expect(op.then.arguments == op.otherwise.arguments == (), op, "branches take no arguments")
    _same_types(op, yielded(op.then), yielded(op.otherwise), op.results)


# --- memory --------------------------------------------------------------------------------------------


def _allocate(op: Allocate) -> None:
    buffer = op.buffer
    _expect(buffer.space is not Space.GLOBAL, op, f"{buffer.name} is global")
    _expect(buffer.size is not None and buffer.size > 0, op, f"{buffer.name} has no size")
    aligned = buffer.alignment > 0 and buffer.alignment % buffer.dtype.bytes == 0
    _expect(aligned, op, f"{buffer.name} is aligned to {buffer.alignment} bytes only")


def _access(op: Op, buffer: Buffer, value: Value) -> None:
    _expect(value.dtype is buffer.dtype, op, f"{buffer.name} holds {buffer.dtype}, not {value.dtype}")
    if isinstance(value.type, VectorType):
        _expect(value.type.bytes <= VECTOR_BYTES, op, f"an access is at most {VECTOR_BYTES} bytes wide")


def _index(op: Op, index: Value) -> None:
    _expect(not isinstance(index.type, VectorType) and index.dtype.is_integer, op, "the index must be an integer")


def _atomic(op: Atomic) -> None:
    _access(op, op.buffer, op.value)
    _same_types(op, (op.value,), op.results)
    _expect(op.kind in ATOMIC_KINDS, op, f"no atomic operation {op.kind}")
    _expect(op.kind not in ("and", "or", "xor") or op.value.dtype.is_integer, op, f"{op.kind} takes integers")
    _expect(op.scope in MEMORY_SCOPES, op, f"no scope {op.scope}")


# --- scalars and vectors -------------------------------------------------------------------------------


def _at_rank(op: AtRank) -> None:
    shared = op.source.space is Space.SHARED and not op.source.is_remote
    _expect(shared and op.buffer.is_remote and op.buffer.base is op.source, op, "reaches shared memory of a block")
    _expect(op.rank.type is int32, op, "a rank is int32")


def _special(op: Special) -> None:
    _expect(op.name in SPECIAL_NAMES, op, f"no special register {op.name}")
    _expect(op.result.type is int32, op, "a special register is int32")


_TESTS = frozenset({"isnan", "isinf", "isfinite", "not"})


def _approximate(op: Unary | Binary) -> None:
    fits = op.kind in APPROXIMATE_KINDS and op.result.type is float32
    _expect(fits or not op.approximate, op, f"no approximate {op.kind} of {op.result.type}")


def _unary(op: Unary) -> None:
    _expect(op.kind in UNARY_KINDS, op, f"no unary kind {op.kind}")
    _approximate(op)
    if op.kind in _TESTS:
        _expect(op.result.type is bool_, op, f"{op.kind} gives bool")
    elif op.kind not in ("popcount", "clz"):
        _same_types(op, (op.x,), op.results)


def _binary(op: Binary) -> None:
    _expect(op.kind in BINARY_KINDS, op, f"no binary kind {op.kind}")
    _approximate(op)
    _same_types(op, (op.lhs,), (op.rhs,), op.results)
    _expect(op.lhs.type is not bool_ or op.kind in ("and", "or", "xor"), op, f"no {op.kind} of bools")


def _compare(op: Compare) -> None:
    _expect(op.kind in COMPARE_KINDS, op, f"no comparison {op.kind}")
    _same_types(op, (op.lhs,), (op.rhs,))
    _expect(op.result.type is bool_, op, "a comparison gives bool")


def _fma(op: Fma) -> None:
    _same_types(op, (op.a,), (op.b,), (op.c,), op.results)
    _expect(op.a.dtype.is_float, op, "multiplies and adds floats")


def _select(op: Select) -> None:
    _expect(op.condition.type is bool_, op, "the condition must be bool")
    _same_types(op, (op.on_true,), (op.on_false,), op.results)


def _cast(op: Cast) -> None:
    scalars = not isinstance(op.x.type, VectorType) and not isinstance(op.result.type, VectorType)
    _expect(scalars, op, "converts scalars")


def _cast_pair(op: CastPair) -> None:
    pairs = all(isinstance(t, VectorType) and t.lanes == 2 for t in (op.x.type, op.result.type))
    _expect(pairs, op, "converts two lanes")
    _expect(op.x.dtype.is_float and op.result.dtype.is_float, op, "converts floats")


def _bitcast(op: Bitcast) -> None:
    sizes = [t.bytes for t in (op.x.type, op.result.type)]
    _expect(sizes[0] == sizes[1], op, f"sizes differ: {sizes}")


def _pack(op: Pack) -> None:
    type = op.result.type
    if not isinstance(type, VectorType):
        raise _Fault(f"Pack at {op.location}: gives a vector")
    _expect(all(e.type is type.element for e in op.elements) and len(op.elements) == type.lanes, op, "wrong elements")


def _extract(op: Extract) -> None:
    type = op.vector.type
    if not isinstance(type, VectorType):
        raise _Fault(f"Extract at {op.location}: takes a vector")
    _expect(0 <= op.lane < type.lanes and op.result.type is type.element, op, "wrong lane")


# --- threads together ----------------------------------------------------------------------------------


def _print(op: Print) -> None:
    _expect(len(op.texts) - len(op.values) in (0, 1), op, "texts and values alternate")


_RULES: dict[type[Op], Callable[..., None]] = {
    Special: _special,
    Unary: _unary,
    Binary: _binary,
    Compare: _compare,
    Fma: _fma,
    Select: _select,
    Cast: _cast,
    CastPair: _cast_pair,
    Bitcast: _bitcast,
    Pack: _pack,
    Extract: _extract,
    Allocate: _allocate,
    AllocateAt: lambda op: _expect(
        op.buffer.space is Space.SHARED and op.place.type is int32, op, "shared memory at an int32 place"
    ),
    AtRank: _at_rank,
    Point: lambda op: _expect(op.address.type is uint64, op, "an address is uint64"),
    AddressOf: lambda op: _expect(op.result.type is uint64, op, "an address is uint64"),
    Load: lambda op: _access(op, op.buffer, op.result),
    Store: lambda op: _access(op, op.buffer, op.value),
    Atomic: _atomic,
    For: _for,
    While: _while,
    If: _if,
    RoundToTfloat32: lambda op: _expect(op.x.type is op.result.type is float32, op, "rounds float32"),
    Print: _print,
    Inside: lambda op: _expect(
        all(not isinstance(v.type, VectorType) and v.dtype.is_integer for v in (op.coordinate, op.extent)),
        op,
        "a coordinate and an extent are integers",
    ),
    Assert: lambda op: _expect(op.condition.type is bool_, op, "the condition must be bool"),
}
