"""Which values are written inside the expression that uses them, and which get a line of their own.

A value that the user named keeps its line: the reader looks for it. An unnamed value that is used once goes
into its user's expression, unless that would compute it again in every iteration of a loop or make the expression
long. A load, a shuffle or a vote does so only within its block, where nothing lies between that could change
what it gives.

`Structure` says where each op of a kernel is and which live ops read each value; variables and names rest on it too.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field

from tilewright.ir.core import Block, Buffer, Kernel, Op, Value
from tilewright.ir.effects import Order, Scope, Use
from tilewright.ir.evaluate import facts_of
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import (
    Binary,
    Cast,
    Constant,
    Extract,
    For,
    If,
    Load,
    Select,
    Special,
    Store,
    Unary,
    Yield,
)


class Position(enum.Enum):
    """How one op runs relative to another."""

    BEFORE = "before"
    SAME = "same"
    AROUND = "around"  # the other is in a block of it
    INSIDE = "inside"  # in a block nested in the other
    AFTER = "after"  # or perhaps after: also in the next iteration of a loop
    NEVER_BOTH = "never both"  # in the two branches of one `if`


@dataclass
class Structure:
    """The places of all ops, the ops that use each buffer, and the readers of all values.

    `places` and `users` are in the order of the text. `readers` has one entry an operand, by live ops only.

    An op is live when it does something besides computing, or when a live op reads a result of it.
    """

    kernel: Kernel
    places: dict[Op, tuple[Block, int]] = field(default_factory=dict)
    owners: dict[Block, Op] = field(default_factory=dict)
    users: dict[Buffer, list[Op]] = field(default_factory=dict)
    argument_blocks: dict[Value, Block] = field(default_factory=dict)
    readers: dict[Value, list[Op]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.users.update((p.target, []) for p in self.kernel.parameters if isinstance(p.target, Buffer))
        self._enter(self.kernel.body)
        self._read(self.kernel.body)

    def _enter(self, block: Block) -> None:
        self.argument_blocks.update((a, block) for a in block.arguments)
        for index, op in enumerate(block.ops):
            self.places[op] = (block, index)
            for buffer in op.buffers:
                self.users.setdefault(buffer, []).append(op)
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
        return (op for op in self.places if self.is_live(op))

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
        """Return whether `op` is in a block of `outer`."""
        block = self.places[op][0]
        while block in self.owners:
            owner = self.owners[block]
            if owner is outer:
                return True
            block = self.places[owner][0]
        return False

    def order(self, op: Op, other: Op) -> Position:
        """Return how `op` runs relative to `other`."""
        if op is other:
            return Position.SAME
        path, other_path = self._path(op), self._path(other)
        for (block, index), (other_block, other_index) in zip(path, other_path, strict=False):
            if block is not other_block:
                return Position.NEVER_BOTH if isinstance(self.owners[block], If) else Position.AFTER
            if index != other_index:
                return Position.BEFORE if index < other_index else Position.AFTER
        return Position.INSIDE if len(path) > len(other_path) else Position.AROUND

    def _path(self, op: Op) -> list[tuple[Block, int]]:
        path = [self.places[op]]
        while path[-1][0] in self.owners:
            path.append(self.places[self.owners[path[-1][0]]])
        return path[::-1]


# Kinds whose result's low bits depend on the operands' low bits alone, and those that are functions in C++.
MODULAR_KINDS = frozenset({"add", "sub", "mul", "and", "or", "xor", "neg", "bit_not"})
_CALLED_KINDS = frozenset({"min", "max", "abs"})

_MOST_REPEATED = 4  # times that `k + 1` or `i * 8` is written out before it gets a name
_LONGEST = 12  # ops in one expression
_LONGEST_BOUND = 4  # ops in the bound of a loop, which C++ computes in every iteration


def choose_inlined(structure: Structure) -> frozenset[Value]:
    """Return the values that are printed where they are used."""
    return _Chooser(structure).chosen()


class _Chooser:
    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self.inlined: set[Value] = set()
        self.weights: dict[Value, int] = {}
        self.changing: dict[Op, bool] = {}

    def chosen(self) -> frozenset[Value]:
        ops = [op for op in self.structure.live_ops() if len(op.results) == 1]
        for op in ops:
            if op.is_pure and (not isinstance(op, Instruction) or op.STANDS_IN_EXPRESSIONS):
                self._pure(op)
        for op in reversed(ops):
            if _waits(op) and self._may_wait(op):
                self.inlined.add(op.result)
        for op in ops:
            if isinstance(op, Special) and op.result in self.inlined and not self._is_safe_unsigned(op.result):
                self.inlined.discard(op.result)
        return frozenset(self.inlined)

    def _is_safe_unsigned(self, value: Value) -> bool:
        """Return whether a special register, unsigned in C++, can be used in all expressions that it is part of.

        Where only the low bits matter it can; where the value does, it must be known not to be negative. A
        register that cannot gets a name, and with it the type int.
        """
        return all(self._is_safe_in(reader, value) for reader in self.structure.readers.get(value, []))

    def _is_safe_in(self, reader: Op, value: Value) -> bool:
        if isinstance(reader, (Binary, Unary)) and reader.kind in MODULAR_KINDS:
            return reader.result not in self.inlined or self._is_safe_unsigned(reader.result)
        if isinstance(reader, (Binary, Unary)) and reader.kind in _CALLED_KINDS:
            return False
        return _takes_low_bits(reader, value) or facts_of(value).non_negative

    def _pure(self, op: Op) -> None:
        value = op.result
        self.weights[value] = 1 + sum(self.weights.get(o, 1) if o in self.inlined else 0 for o in op.operands)
        if value.name is not None:
            return
        if self._is_atom(op) or self._has_one_reader_near(op):
            self.inlined.add(value)

    def _is_atom(self, op: Op) -> bool:
        """Return whether the text is as short as a name, so that it may be repeated."""
        if isinstance(op, (Special, Extract)):
            return True
        if isinstance(op, Binary) and op.kind in ("add", "sub", "mul") and isinstance(op.rhs.definition, Constant):
            few = len(self.structure.readers[op.result]) <= _MOST_REPEATED
            return few and op.result.dtype.is_integer and op.lhs not in self.inlined and not _waits(op.lhs.definition)
        widens = isinstance(op, Cast) and op.result.dtype.is_integer and op.x.dtype.kind in ("int", "uint", "bool")
        if not (widens and isinstance(op, Cast) and op.result.dtype.bits >= op.x.dtype.bits):
            return False
        return op.x not in self.inlined and not _waits(op.x.definition)

    def _has_one_reader_near(self, op: Op) -> bool:
        value = op.result
        readers = self.structure.readers[value]
        if len(readers) != 1 or isinstance(readers[0], Extract):
            return False
        reader = readers[0]
        place, user_place = self.structure.places[op][0], self.structure.places[reader][0]
        if self.structure.crosses_loop(user_place, place):
            return False
        return self.weights[value] <= (_LONGEST_BOUND if is_bound(value, reader) else _LONGEST)

    def _may_wait(self, op: Op) -> bool:
        """Return whether a load, shuffle or vote may run where the statement runs that uses it."""
        value = op.result
        if value.name is not None:
            return False
        careful = isinstance(op, Instruction)
        while True:
            readers = self.structure.readers.get(value, [])
            if len(readers) != 1:
                return False
            reader = readers[0]
            if isinstance(reader, Extract) or is_bound(value, reader) or (careful and _may_skip(reader)):
                return False
            if not (reader.results and reader.results[0] in self.inlined):
                break
            value = reader.results[0]
        block, index = self.structure.places[op]
        user_block, user_index = self.structure.places[reader]
        between = block.ops[index + 1 : user_index]
        stops = self._meets_warp if careful else self._changes_memory
        return block is user_block and not any(stops(o) for o in between)

    def _changes_memory(self, op: Op) -> bool:
        if op not in self.changing:
            own = not op.blocks and _changes_memory(op)
            inner = (self._changes_memory(o) for b in op.blocks for o in b.ops if o is not b.ops[-1])
            self.changing[op] = own or any(inner)
        return self.changing[op]

    def _meets_warp(self, op: Op) -> bool:
        return self._changes_memory(op) or bool(op.blocks) or (isinstance(op, Instruction) and _waits(op))


def _changes_memory(op: Op) -> bool:
    """Return whether what memory holds for the thread, or what it has shown, is another after an op."""
    writes = any(use.use.is_write and use.use is not Use.BEGIN for use in op.uses)
    acts = not op.effects.removable and op.effects.together is Scope.THREAD
    return writes or acts or op.effects.order is not Order.NONE


def is_bound(value: Value, reader: Op) -> bool:
    """Return whether an op is a loop that reads the value in every iteration."""
    return isinstance(reader, For) and (value is reader.stop or value is reader.step)


def _waits(op: Op | None) -> bool:
    """Return whether a result may be printed where it is used although it depends on more than the operands."""
    return isinstance(op, Load) or (isinstance(op, Instruction) and op.STANDS_IN_EXPRESSIONS and not op.is_pure)


def _takes_low_bits(reader: Op, value: Value) -> bool:
    """Return whether an op assigns the value to something of its own type, so that C++ converts it."""
    return isinstance(reader, Yield) or (isinstance(reader, Store) and value is not reader.index)


def _may_skip(op: Op) -> bool:
    """Return whether C++ leaves an operand of the op uncomputed, or might: `?:`, `&&` and `||`."""
    return isinstance(op, Select) or (isinstance(op, Binary) and op.result.dtype.kind == "bool")
