"""Which values share one C++ variable: the way back from values defined once to variables that change.

A carried value of a loop is a variable that the loop's body assigns; so is a result of an `if`. Each would be
a new variable, with copies in and out. Here they are put together where that is right::

    x0 = ...                                    int x = ...;
    x3 = for k (x1 = x0):          ->           for (...)
        x2 = x1 + k                                 x += k;
        yield x2

Values may share a variable when none of them is read after another one has been assigned. Only values of one
name, or without one, do: the reader's names stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.backends.cpp.inlining import Position, Structure, is_bound
from tilewright.ir.core import Block, Op, Type, Value
from tilewright.ir.ops import Constant, For, If, While, yielded


@dataclass(eq=False)
class Variable:
    """A C++ variable that is assigned more than once, and the values that it holds one after another."""

    type: Type
    values: list[Value] = field(default_factory=list)
    hint: str | None = None
    text: str | None = None  # its name in the text, once declared

    def hold(self, *values: Value) -> None:
        for value in values:
            self.values.append(value)
            self.hint = self.hint or value.name


def assign_variables(structure: Structure, inlined: frozenset[Value]) -> dict[Value, Variable]:
    """Return the variable of every value that lives in one; the others are constants or inlined."""
    assigner = _Assigner(structure, inlined)
    assigner.block(structure.kernel.body, {})
    return assigner.variables


@dataclass(frozen=True)
class _Reading:
    """A statement that reads a value; `every_round` of a loop's bound, which C++ computes again and again."""

    statement: Op
    every_round: bool


class _Assigner:
    def __init__(self, structure: Structure, inlined: frozenset[Value]) -> None:
        self.structure = structure
        self.inlined = inlined
        self.variables: dict[Value, Variable] = {}
        self.readings: dict[Value, frozenset[_Reading]] = {}

    def block(self, block: Block, candidates: dict[Value, Variable]) -> None:
        """Assign variables in a block; `candidates` are those that the op around it would have for its yields."""
        for op in block.ops:
            if isinstance(op, For):
                self._loop(op, op.init, (op.body.arguments[1:],), op.body)
            elif isinstance(op, While):
                self._loop(op, op.init, (op.condition.arguments, op.body.arguments), op.body)
                self.block(op.condition, {})
            elif isinstance(op, If):
                self._branch(op, candidates)

    def _loop(
        self, op: For | While, init: tuple[Value, ...], arguments: tuple[tuple[Value, ...], ...], body: Block
    ) -> None:
        targets = []
        for i, start in enumerate(init):
            held = [group[i] for group in arguments if group] + [op.results[i]]
            variable = self._taken_over(start, op, held) if op.operands.count(start) == 1 else None
            targets.append(self._hold(variable or Variable(start.type), held))
        self._body(body, targets)

    def _branch(self, op: If, candidates: dict[Value, Variable]) -> None:
        targets: list[Variable] = []
        for i, result in enumerate(op.results):
            variable = None
            candidate = candidates.get(result)
            if candidate is not None and self._fits([result], candidate) and self._is_clear(candidate, op):
                variable = candidate
            for block in (op.otherwise, op.then):
                variable = variable or self._taken_over(yielded(block)[i], op, [result])
            if variable is None or variable in targets:
                variable = Variable(result.type)
            targets.append(self._hold(variable, [result]))
        for block in op.blocks:
            self._body(block, targets)

    def _body(self, body: Block, targets: list[Variable]) -> None:
        values = yielded(body)
        pairs = [(v, t) for v, t in zip(values, targets, strict=True) if values.count(v) == 1]
        here = {v: t for v, t in pairs if v.definition is not None and self._stands_in(v.definition, body)}
        self.block(body, {v: t for v, t in here.items() if isinstance(v.definition, If)})
        for value, variable in here.items():
            op = value.definition
            assert op is not None
            free = value not in self.variables and value not in self.inlined and not op.blocks
            if free and self._fits([value], variable) and self._is_clear(variable, op):
                self._hold(variable, [value])

    def _stands_in(self, op: Op, block: Block) -> bool:
        return not isinstance(op, Constant) and self.structure.places[op][0] is block

    def _hold(self, variable: Variable, values: list[Value]) -> Variable:
        variable.hold(*values)
        for value in values:
            self.variables[value] = variable
        return variable

    def _taken_over(self, value: Value, op: Op, held: list[Value]) -> Variable | None:
        """Return the variable of `value` for `op` to go on with, if `op` is the last that reads the value."""
        if not self._has_storage(value) or not self.structure.is_live(op):
            return None
        defined = self.structure.block_of(value)
        place = self.structure.places[op][0]
        if not self._is_visible(defined, place) or self.structure.crosses_loop(place, defined):
            return None
        variable = self.variables.get(value)
        if variable is None:
            variable = Variable(value.type)
            variable.hold(value)
        if not self._fits(held, variable) or not self._is_clear(variable, op):
            return None
        self.variables[value] = variable
        return variable

    def _has_storage(self, value: Value) -> bool:
        op = value.definition
        if isinstance(op, Constant) or value in self.inlined:
            return False
        block = self.structure.argument_blocks.get(value)
        owner = self.structure.owners.get(block) if block is not None else None
        return not (isinstance(owner, For) and value is owner.body.arguments[0])

    def _is_visible(self, defined: Block, place: Block) -> bool:
        while place is not defined and place in self.structure.owners:
            place = self.structure.places[self.structure.owners[place]][0]
        return place is defined

    def _fits(self, values: list[Value], variable: Variable) -> bool:
        name = next((v.name for v in values if v.name is not None), None)
        return name is None or variable.hint is None or name == variable.hint

    def _is_clear(self, variable: Variable, op: Op) -> bool:
        """Return whether no value in the variable is read once `op` may have assigned it.

        A branch assigns at the end of its blocks, so it may read inside; a loop may not. The results of the ops
        around `op` are read after these have ended, and what they hold is assigned last.
        """
        fine = {Position.BEFORE, Position.NEVER_BOTH} | ({Position.INSIDE} if isinstance(op, If) else set())
        once = fine | {Position.SAME, Position.AROUND}  # for an operand that is read before anything is assigned
        return all(
            self.structure.order(reading.statement, op) in (fine if reading.every_round else once)
            for value in variable.values
            if value.definition is None or not self.structure.encloses(value.definition, op)
            for reading in self._readings_of(value)
        )

    def _readings_of(self, value: Value) -> frozenset[_Reading]:
        """Return the statements whose text reads a value, directly or through inlined values."""
        if value not in self.readings:
            found: set[_Reading] = set()
            for reader in self.structure.readers.get(value, []):
                inner = [r for r in reader.results if r in self.inlined]
                found |= self._readings_of(inner[0]) if inner else {_Reading(reader, is_bound(value, reader))}
            self.readings[value] = frozenset(found)
        return self.readings[value]
