"""Take address arithmetic that does not change out of loops, where a person would have written it outside.

    for (k = 0; k < n; k += 1)                    base = bx * 128 + tx * 4
        a[k * stride + (bx * 128 + tx * 4)]   ->  for (k = 0; k < n; k += 1)
                                                      a[k * stride + base]

Only integers are taken, only whole expressions that the loop uses and that are worth a line of their own: two
additions or multiplications, or one division or remainder. A single `tx * 4` stays where it reads best; the
CUDA compiler moves it anyway. Nothing is moved that could fail where the loop does not run: no loads,
no division by what may be 0, no shift by what may be too far.
"""

from __future__ import annotations

from tilewright.dtypes import DType
from tilewright.ir.core import Block, Kernel, Op, Value
from tilewright.ir.evaluate import facts_of
from tilewright.ir.ops import Binary, Cast, For, Special, Unary, While

WORTH_A_LINE = 2


def hoist_invariants(kernel: Kernel) -> None:
    """Move invariant integer expressions in front of the outermost loop they do not depend on."""
    _block(kernel.body)


def _block(block: Block) -> None:
    ops: list[Op] = []
    for op in block.ops:
        for inner in op.blocks:
            _block(inner)  # what leaves an inner loop may leave this one too
            if isinstance(op, (For, While)):
                ops += _take_out(inner)
        ops.append(op)
    block.ops = ops


def _take_out(block: Block) -> list[Op]:
    """Remove the invariant expressions worth a line from a loop's block, and return them in order."""
    candidates = _candidates(block)
    if not candidates:
        return []
    taken: set[Op] = set()
    for root in _used_by_the_rest(block, candidates):
        expression = _expression(root, candidates)
        if sum(_weight(op) for op in expression) >= WORTH_A_LINE:
            taken |= expression
    if taken:
        block.ops = [op for op in block.ops if op not in taken]
    return [op for op in candidates.values() if op in taken]


def _candidates(block: Block) -> dict[Value, Op]:
    """Return the ops that could be outside, by their result, in order."""
    inside = set(block.arguments)
    found: dict[Value, Op] = {}
    for op in block.ops:
        if _movable(op) and inside.isdisjoint(op.operands):
            found[op.result] = op
        else:
            inside.update(op.results)
    return found


def _movable(op: Op) -> bool:
    if not isinstance(op, (Binary, Unary, Cast, Special)):
        return False
    type = op.result.type
    if not isinstance(type, DType) or not type.is_integer:
        return False
    if isinstance(op, (Unary, Cast)):
        return isinstance(op.x.type, DType) and op.x.type.is_integer
    if isinstance(op, Binary) and op.kind in ("div", "rem"):
        return facts_of(op.rhs).low > 0
    if isinstance(op, Binary) and op.kind in ("shl", "shr"):
        amount = facts_of(op.rhs)
        return amount.low >= 0 and amount.high < type.bits
    return True


def _used_by_the_rest(block: Block, candidates: dict[Value, Op]) -> list[Op]:
    """Return the candidates whose result an op that stays uses."""
    used: dict[Op, None] = {}
    for op in block.walk():
        if op.results and op.results[0] in candidates:
            continue
        for value in op.operands:
            if value in candidates:
                used[candidates[value]] = None
    return list(used)


def _expression(root: Op, candidates: dict[Value, Op]) -> set[Op]:
    """Return the candidates that a root is computed from, with itself."""
    found, pending = {root}, [root]
    while pending:
        for value in pending.pop().operands:
            op = candidates.get(value)
            if op is not None and op not in found:
                found.add(op)
                pending.append(op)
    return found


def _weight(op: Op) -> int:
    if isinstance(op, (Special, Cast)):
        return 0
    return 2 if isinstance(op, Binary) and op.kind in ("div", "rem") else 1
