"""Which values stand inside the expression that uses them, and which get a line of their own.

A value that the user named keeps its line: the reader looks for it. An unnamed value that is used once goes
into its user's expression, unless that would compute it again in every round of a loop or make the expression
long. A load, a shuffle or a vote does so only within its block, where nothing lies between that could change
what it gives.
"""

from __future__ import annotations

from tilewright.backends.cpp.structure import Structure
from tilewright.ir.core import Op, Value
from tilewright.ir.effects import Order, Scope, Use
from tilewright.ir.infer import facts_of
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import (
    Binary,
    Cast,
    Constant,
    Extract,
    For,
    Load,
    Select,
    Special,
    Store,
    Unary,
    Yield,
)

# Kinds whose result's low bits depend on the operands' low bits alone, and those that are functions in C++.
MODULAR_KINDS = frozenset({"add", "sub", "mul", "and", "or", "xor", "neg", "bit_not"})
_CALLED_KINDS = frozenset({"min", "max", "abs"})

_MOST_REPEATED = 4  # times that `k + 1` or `i * 8` is written out before it gets a name
_LONGEST = 12  # ops in one expression
_LONGEST_BOUND = 4  # ops in the bound of a loop, which C++ computes in every round


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
            if op.is_pure:
                self._pure(op)
        for op in reversed(ops):
            if _waits(op) and self._may_wait(op):
                self.inlined.add(op.result)
        for op in ops:
            if isinstance(op, Special) and op.result in self.inlined and not self._is_safe_unsigned(op.result):
                self.inlined.discard(op.result)
        return frozenset(self.inlined)

    def _is_safe_unsigned(self, value: Value) -> bool:
        """Return whether a special register, unsigned in C++, can stand in all expressions that it is part of.

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
        return self._changes_memory(op) or bool(op.blocks) or (isinstance(op, Instruction) and op.STANDS_IN_EXPRESSIONS)


def _changes_memory(op: Op) -> bool:
    """Return whether what memory holds for the thread, or what it has shown, is another after an op."""
    writes = any(use.use.is_write and use.use is not Use.BEGIN for use in op.uses)
    acts = not op.effects.removable and op.effects.together is Scope.THREAD
    return writes or acts or op.effects.order is not Order.NONE


def is_bound(value: Value, reader: Op) -> bool:
    """Return whether an op is a loop that reads the value in every round."""
    return isinstance(reader, For) and (value is reader.stop or value is reader.step)


def _waits(op: Op | None) -> bool:
    """Return whether a result may be printed where it is used although it depends on more than the operands."""
    return isinstance(op, Load) or (isinstance(op, Instruction) and op.STANDS_IN_EXPRESSIONS)


def _takes_low_bits(reader: Op, value: Value) -> bool:
    """Return whether an op assigns the value to something of its own type, so that C++ converts it."""
    return isinstance(reader, Yield) or (isinstance(reader, Store) and value is not reader.index)


def _may_skip(op: Op) -> bool:
    """Return whether C++ leaves an operand of the op uncomputed, or might: `?:`, `&&` and `||`."""
    return isinstance(op, Select) or (isinstance(op, Binary) and op.result.dtype.kind == "bool")
