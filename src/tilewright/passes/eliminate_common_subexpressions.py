"""Compute once what is computed twice.

    x = i * 4 + j                       x = i * 4 + j
    y = i * 4 + j                  ->   ... x stands for y

    x = smem[i]                         x = smem[i]
    ... no write, no barrier ...        ...
    y = smem[i]                    ->   ... x stands for y

A value is reused only where it is surely computed before: later in its block, and in blocks nested there.
Pure ops need no more than that. A load is reused while no op that may change what it reads lies between:

- a write to the same buffer, or to one that shows the same bytes; for global memory a write to any global buffer,
  because two arguments may be the same array, and an address may reach any (other shared and register buffers never
  overlap while both are in use);
- an op that acquires: a barrier or a wait for asynchronous copies, after which other threads' writes are visible.

A loop's body begins with no loads at hand, because its end runs before its beginning. Writes of other threads
without a barrier between are races, which no order of the loads fixes.
"""

from __future__ import annotations

from collections.abc import Hashable

from tilewright.ir.core import Block, Buffer, Kernel, Op, Space, Value
from tilewright.ir.effects import Order, roles_of
from tilewright.ir.ops import Binary, If, Load
from tilewright.passes.structured_ops import identity, take_over_name

_COMMUTATIVE = frozenset({"add", "mul", "and", "or", "xor"})  # also of floats; min and max of floats are not

_Results = tuple[Value, ...]
_Table = dict[Hashable, _Results]
_Loads = dict[tuple[Buffer, Hashable, Hashable], _Results]


def eliminate_common_subexpressions(kernel: Kernel) -> None:
    """Replace every pure op and load that repeats a visible one by the earlier value."""
    _block(kernel.body, {}, {}, {})


def _block(block: Block, table: _Table, loads: _Loads, replaced: dict[Value, Value]) -> None:
    """Go through a block; `table` and `loads` are this block's own and grow with it."""
    kept: list[Op] = []
    for op in block.ops:
        op.substitute(replaced)
        earlier = _earlier(op, table, loads)
        if earlier is not None:
            for first, repeated in zip(earlier, op.results, strict=True):
                take_over_name(first, repeated)
                replaced[repeated] = first
            continue
        kept.append(op)
        for inner in op.blocks:
            _block(inner, dict(table), dict(loads) if isinstance(op, If) else {}, replaced)
        _forget(op, loads)
        for inner in op.blocks:
            for nested in inner.walk():
                _forget(nested, loads)
    block.ops = kept


def _earlier(op: Op, table: _Table, loads: _Loads) -> _Results | None:
    """Return the earlier results of the same computation, or note that this is the first."""
    if op.is_pure:
        first = table.setdefault(_key(op), op.results)
    elif isinstance(op, Load):
        first = loads.setdefault((op.buffer, op.result.type, identity(op.index)), op.results)
    else:
        return None
    return first if first is not op.results else None


def _key(op: Op) -> Hashable:
    operands: Hashable
    if isinstance(op, Binary):
        operands = (identity(op.lhs), identity(op.rhs))
        if op.kind in _COMMUTATIVE:
            operands = frozenset(operands)
        return (op.kind, op.approximate, operands)  # the operands' type is the result's
    operands = tuple([identity(v) for v in op.operands])
    # By their text too: 0.0 and -0.0 are equal, as are 1 and True.
    attributes = tuple([(x := getattr(op, name), repr(x)) for name in roles_of(type(op)).attribute])
    return (type(op), tuple([value.type for value in op.results]), attributes, operands)


def _forget(op: Op, loads: _Loads) -> None:
    """Drop the loads whose memory an op may change (nested blocks not included)."""
    if not loads:
        return
    if Order.ACQUIRE in op.effects.order:
        loads.clear()
        return
    for written in op.buffers_written:
        everywhere = written.space is Space.GLOBAL
        for key in [k for k in loads if k[0].root is written.root or (everywhere and k[0].space is Space.GLOBAL)]:
            del loads[key]
