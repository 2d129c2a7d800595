"""Fold what is known: constants, facts, branches that are decided, loops that run never or once.

    4 + i % 1                                  ->  4
    tid / 8           with 0 <= tid < 8        ->  0
    if (true) { A } else { B }                 ->  A
    for (i = 0; i < 0; i += 1) { A }           ->
    for (i = 3; i < 4; i += 1) { A(i) }        ->  A(3)
    while (false) { A }                        ->
    assert(true)                               ->

Folding while building sees only what came before: a loop's index, a launch's block size and whatever other
passes found are known better now. Facts are inferred again on the way and only ever get sharper.
"""

from __future__ import annotations

from tilewright.dtypes import DType
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Kernel, Op, Value
from tilewright.ir.evaluate import facts_of, index_facts, infer, special_facts
from tilewright.ir.facts import Facts
from tilewright.ir.fold import constant_of, simplify
from tilewright.ir.ops import Assert, For, If, Special, While, constant
from tilewright.passes.structured_ops import take_over_name, trip_count, yield_of


def fold_constants(kernel: Kernel) -> None:
    """Simplify every op of the kernel once, in order, with everything known about its operands."""
    _Folder(kernel).block(kernel.body)


class _Folder:
    def __init__(self, kernel: Kernel) -> None:
        self.threads = kernel.block
        self.replaced: dict[Value, Value] = {}
        self.builder = Builder(kernel.body)

    def block(self, block: Block) -> None:
        ops, block.ops = block.ops, []
        with self.builder.inside(block):
            self.ops(ops)

    def ops(self, ops: list[Op]) -> None:
        for op in ops:
            op.substitute(self.replaced)
            if op.is_pure and len(op.results) == 1:
                self.pure(op)
            elif isinstance(op, For):
                self.for_loop(op)
            elif isinstance(op, While):
                self.while_loop(op)
            elif isinstance(op, If):
                self.branch(op)
            elif not (isinstance(op, Assert) and constant_of(op.condition)):
                self.keep(op)

    def keep(self, op: Op) -> None:
        self.builder.block.ops.append(op)

    def replace(self, old: Value, new: Value) -> None:
        take_over_name(new, old)
        self.replaced[old] = new

    def pure(self, op: Op) -> None:
        result = op.result
        type = result.type
        simpler = simplify(op, type)
        if simpler is None:
            self.sharpen(op)
            if result.facts is None or result.facts.constant is None:
                self.keep(op)
                return
            simpler = result.facts.low
        if isinstance(simpler, Op):
            simpler.location = op.location
            simpler = self.builder.pure(simpler, type)
        if not isinstance(simpler, Value):
            assert isinstance(type, DType), op
            simpler = constant(simpler, type)
        self.replace(result, simpler)

    def sharpen(self, op: Op) -> None:
        """Infer the facts of an op's result again, and keep what was known besides."""
        result = op.result
        facts = special_facts(op.name, self.threads) if isinstance(op, Special) else infer(op, result.type)
        result.facts = _both(facts, result.facts)

    def for_loop(self, op: For) -> None:
        index, *arguments = op.body.arguments
        trips = trip_count(op)
        if trips == 0:
            self.forward(op.results, op.init)
        elif trips == 1:
            self.forward((index, *arguments), (op.start, *op.init))
            self.inline(op.body, op.results)
        else:
            index.facts = _both(index_facts(op.start, op.stop, op.step), index.facts)
            self.block(op.body)
            _join_facts(op.results, op.init, yield_of(op.body).values)
            self.keep(op)

    def while_loop(self, op: While) -> None:
        self.block(op.condition)
        if constant_of(yield_of(op.condition).values[0]) == 0:
            # The condition is still computed once, for what it does besides.
            self.forward(op.condition.arguments, op.init)
            self.ops(op.condition.ops[:-1])
            self.forward(op.results, op.init)
            return
        self.block(op.body)
        self.keep(op)

    def branch(self, op: If) -> None:
        chosen = constant_of(op.condition)
        if chosen is not None:
            self.inline(op.then if chosen else op.otherwise, op.results)
            return
        self.block(op.then)
        self.block(op.otherwise)
        _join_facts(op.results, yield_of(op.then).values, yield_of(op.otherwise).values)
        self.keep(op)

    def inline(self, block: Block, results: tuple[Value, ...]) -> None:
        """Put a nested block's ops where the enclosing op is."""
        end = yield_of(block)
        self.ops(block.ops[:-1])
        end.substitute(self.replaced)
        self.forward(results, end.values)

    def forward(self, old: tuple[Value, ...], new: tuple[Value, ...]) -> None:
        for a, b in zip(old, new, strict=True):
            self.replace(a, b)


def _both(a: Facts | None, b: Facts | None) -> Facts | None:
    return a if b is None or a is None else a.meet(b)


def _join_facts(results: tuple[Value, ...], *sources: tuple[Value, ...]) -> None:
    """Give results that are one of several values the facts that these have in common."""
    for result, one, other in zip(results, *sources, strict=True):
        if isinstance(result.type, DType) and not result.type.is_float:
            result.facts = _both(facts_of(one).join(facts_of(other)), result.facts)
