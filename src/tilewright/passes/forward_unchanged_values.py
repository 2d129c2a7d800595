"""Forward values that a loop carries but never changes, and results that both branches agree on.

    x = x0                                            x0 stands for x, in the loop and after it
    for (i = 0; i < n; i += 1) { ...; x = x }     ->  for (i = 0; i < n; i += 1) { ... }

    if (c) { ...; r = x } else { ...; r = x }     ->  if (c) { ... } else { ... }     x stands for r

The front end carries every variable that is assigned in a loop or branch, and many turn out not to change.
"""

from __future__ import annotations

from tilewright.ir.core import Block, Kernel, Value
from tilewright.ir.ops import For, If, While
from tilewright.passes.structured_ops import carried, identity, keep_slots, take_over_name, yield_of


def forward_unchanged_values(kernel: Kernel) -> None:
    """Replace unchanged carried values and agreed results by what they equal, and drop their slots."""
    _block(kernel.body, {})


def _block(block: Block, replaced: dict[Value, Value]) -> None:
    for op in block.ops:
        op.substitute(replaced)
        if isinstance(op, (For, While)):
            _forward_carried(op, replaced)
            _blocks(op.blocks, replaced)
            # A value that passed through an inner loop unchanged shows only once that loop is done.
            if _forward_carried(op, replaced):
                _blocks(op.blocks, replaced)
        elif isinstance(op, If):
            _blocks(op.blocks, replaced)
            _forward_agreed(op, replaced)


def _blocks(blocks: tuple[Block, ...], replaced: dict[Value, Value]) -> None:
    for block in blocks:
        _block(block, replaced)


def _forward_carried(op: For | While, replaced: dict[Value, Value]) -> bool:
    kept = []
    for n, (init, argument, value) in enumerate(zip(op.init, carried(op), yield_of(op.body).values, strict=True)):
        if value is argument or identity(value) == identity(init):
            copies = [argument, op.results[n]]
            if isinstance(op, While):
                copies.append(op.condition.arguments[n])
            _replace(copies, init, replaced)
        else:
            kept.append(n)
    changed = len(kept) < len(op.init)
    keep_slots(op, kept)
    return changed


def _forward_agreed(op: If, replaced: dict[Value, Value]) -> None:
    kept = []
    for n, (one, other) in enumerate(zip(yield_of(op.then).values, yield_of(op.otherwise).values, strict=True)):
        if identity(one) == identity(other):
            _replace([op.results[n]], one, replaced)
        else:
            kept.append(n)
    keep_slots(op, kept)


def _replace(copies: list[Value], value: Value, replaced: dict[Value, Value]) -> None:
    for copy in copies:
        take_over_name(value, copy)
        replaced[copy] = value
