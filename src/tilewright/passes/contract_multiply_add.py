"""Contract a product that feeds one sum into a fused multiply-add, which rounds once.

    a * b + c    ->  fma(a, b, c)            c + a * b    ->  fma(a, b, c)
    a * b - c    ->  fma(a, b, -c)           c - a * b    ->  fma(-a, b, c)
    -(a * b) + c ->  fma(-a, b, c)           c + -(a * b) ->  fma(-a, b, c)
    a * b + c * d  ->  fma(a, b, c * d)      the left product, as NVIDIA's compiler does with -fmad=true

CUDA code is compiled with -fmad=false and the simulator executes op for op, so both compute the same bits and
neither fuses anything by itself; this pass makes the fused op explicit, without which a matmul would run at half
the speed. Only float32 and float64 are contracted: narrower floats are computed in float32 between casts.
The product must have no other use, or it would be computed twice, and be in the same block as the sum, or
a product made once before a loop would be made in each of its iterations.
"""

from __future__ import annotations

from collections import Counter

from tilewright.dtypes import float32, float64
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Kernel, Op, Value
from tilewright.ir.ops import Binary, Fma, Unary


def contract_multiply_add(kernel: Kernel) -> None:
    """Replace sums of a product and something else by fused multiply-adds."""
    _contract(kernel.body, Counter(value for op in kernel.body.walk() for value in op.operands))


def _contract(block: Block, uses: Counter[Value]) -> None:
    available: set[Op] = set()  # products and negations of this block that one op uses
    consumed: set[Op] = set()
    builder = Builder(Block())
    for op in block.ops:
        for inner in op.blocks:
            _contract(inner, uses)
        if not isinstance(op, (Binary, Unary)) or op.result.type not in (float32, float64):
            builder.block.ops.append(op)
        elif op.kind in ("add", "sub") and isinstance(op, Binary):
            consumed.update(_fuse(op, available, builder))
        else:
            builder.block.ops.append(op)
            if op.kind in ("mul", "neg") and uses[op.result] == 1:
                available.add(op)
    block.ops = [op for op in builder.block.ops if op not in consumed]


def _fuse(op: Binary, available: set[Op], builder: Builder) -> list[Op]:
    """Append the sum, fused if one side is a product, and return the ops that are thereby of no more use."""
    for value, addend in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
        product, negative, consumed = _product(value, available)
        if product is None:
            continue
        if op.kind == "sub" and value is op.rhs:
            negative = not negative
        a = _negated(product.lhs, op, builder) if negative else product.lhs
        c = _negated(addend, op, builder) if op.kind == "sub" and value is op.lhs else addend
        builder.block.ops.append(Fma(a, product.rhs, c, results=op.results, location=op.location))
        return consumed
    builder.block.ops.append(op)
    return []


def _product(value: Value, available: set[Op]) -> tuple[Binary | None, bool, list[Op]]:
    """Return the product that a value is, whether it is that with the other sign, and the ops that make it."""
    op = value.definition
    if op not in available:
        return None, False, []
    if isinstance(op, Unary):
        product, negative, consumed = _product(op.x, available)
        return product, not negative, [op, *consumed]
    assert isinstance(op, Binary), op
    return op, False, [op]


def _negated(value: Value, op: Op, builder: Builder) -> Value:
    return builder.pure(Unary("neg", value, location=op.location), value.type)
