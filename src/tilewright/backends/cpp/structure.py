"""Where each op of a kernel stands and which live ops read each value: what the choices of text rest on."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from tilewright.ir.core import Block, Kernel, Op, Value
from tilewright.ir.ops import If


class Order(enum.Enum):
    """How one op runs relative to another."""

    BEFORE = "before"
    SAME = "same"
    AROUND = "around"  # the other stands in a block of it
    INSIDE = "inside"  # in a block nested in the other
    AFTER = "after"  # or perhaps after: also in the next round of a loop
    NEVER_BOTH = "never both"  # in the two branches of one `if`


@dataclass
class Structure:
    """The places of all ops, and the readers of all values: one entry an operand, by live ops only.

    An op is live when it does something besides computing, or when a live op reads a result of it.
    """

    kernel: Kernel
    places: dict[Op, tuple[Block, int]] = field(default_factory=dict)
    owners: dict[Block, Op] = field(default_factory=dict)
    argument_blocks: dict[Value, Block] = field(default_factory=dict)
    readers: dict[Value, list[Op]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._enter(self.kernel.body)
        self._read(self.kernel.body)

    def _enter(self, block: Block) -> None:
        self.argument_blocks.update((a, block) for a in block.arguments)
        for index, op in enumerate(block.ops):
            self.places[op] = (block, index)
            for inner in op.blocks:
                self.owners[inner] = op
                self._enter(inner)

    def _read(self, block: Block) -> None:
        for op in reversed(block.ops):
            if not self.is_live(op):
                continue
            for operand in op.operands:
                self.readers.setdefault(operand, []).append(op)
            for inner in op.blocks:
                self._read(inner)

    def is_live(self, op: Op) -> bool:
        return not op.is_removable or any(r in self.readers for r in op.results)

    def live_ops(self) -> Iterator[Op]:
        """Yield the live ops in the order of the text."""
        return (op for op in self.kernel.body.walk() if self.is_live(op))

    def block_of(self, value: Value) -> Block:
        """Return the block that defines a value; a parameter of the kernel belongs to its body."""
        if value.definition is not None:
            return self.places[value.definition][0]
        return self.argument_blocks.get(value, self.kernel.body)

    def crosses_loop(self, block: Block, outer: Block) -> bool:
        """Return whether a loop lies between a block and one that encloses it."""
        while block is not outer:
            owner = self.owners[block]
            if not isinstance(owner, If):
                return True
            block = self.places[owner][0]
        return False

    def encloses(self, outer: Op | None, op: Op) -> bool:
        """Return whether `op` stands in a block of `outer`."""
        block = self.places[op][0]
        while block in self.owners:
            owner = self.owners[block]
            if owner is outer:
                return True
            block = self.places[owner][0]
        return False

    def order(self, op: Op, other: Op) -> Order:
        """Return how `op` runs relative to `other`."""
        if op is other:
            return Order.SAME
        path, other_path = self._path(op), self._path(other)
        for (block, index), (other_block, other_index) in zip(path, other_path, strict=False):
            if block is not other_block:
                return Order.NEVER_BOTH if isinstance(self.owners[block], If) else Order.AFTER
            if index != other_index:
                return Order.BEFORE if index < other_index else Order.AFTER
        return Order.INSIDE if len(path) > len(other_path) else Order.AROUND

    def _path(self, op: Op) -> list[tuple[Block, int]]:
        path = [self.places[op]]
        while path[-1][0] in self.owners:
            path.append(self.places[self.owners[path[-1][0]]])
        return path[::-1]
