"""Refuses block-wide barriers that only some threads of the block may reach, and named ones that split a warp.

Each value has a class: the same in the whole block, certainly dependent on the thread's index, or not known (the
contents of memory, the values of other lanes). A barrier in a branch or loop that depends on the thread's index
is refused; what is not known is left to the simulator, which checks each barrier as threads arrive.

Whole warps arrive at named barriers, in any branch: one is refused where the condition differs within a warp, and so
for instructions of a warpgroup, unless the threads that come there are known, and are whole ones. A value
that depends on the thread's index alone is computed for every thread of the block to learn that; one that depends
on other things too differs where a part of it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Kernel, Op, Value
from tilewright.ir.effects import WARPS_OF, Scope
from tilewright.ir.evaluate import evaluate, facts_of
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import For, If, Special, While, yielded
from tilewright.ir.thread_sets import Threads, ThreadSets, are_whole_groups
from tilewright.source import SourceLocation


@dataclass(frozen=True)
class _Control:
    """A branch or loop at which the threads of a `group` diverge."""

    kind: str
    location: SourceLocation | None
    group: Scope
    is_exact: bool = False  # it is known for each thread whether it takes the branch


def refuse_divergent_barriers(kernel: Kernel, sets: ThreadSets) -> None:
    """Raise `LanguageError` at a barrier in a branch or loop at which the threads that must meet diverge."""
    if not any(_group_of(op) for op in kernel.body.walk()):
        return
    analysis = _Analysis()
    while analysis.grows:  # a carried value takes its class to the next iteration
        analysis.grows = False
        analysis.block(kernel.body)
    groups = {group: _Groups(kernel, group, sets) for group in WARPS_OF}
    _check(kernel.body, analysis.divergent, groups, {}, sets, sets.everybody)


def _group_of(op: Op) -> Scope | None:
    """Return which threads must arrive at a barrier together, None for other ops."""
    if not op.effects.refused_apart:
        return None
    return min(max(op.effects.together, Scope.WARP), Scope.BLOCK)


class _Groups:
    """Says which values surely differ between the threads of a warp, or of a warpgroup."""

    def __init__(self, kernel: Kernel, group: Scope, sets: ThreadSets) -> None:
        self._sets = sets
        self._block, self.size = kernel.block, kernel.warp_size * WARPS_OF[group]
        self._answers: dict[Value, bool] = {}

    def divides(self, op: For | While | If) -> bool:
        """Say whether threads of one group diverge at a branch or loop."""
        if isinstance(op, If):
            taken = self._sets.where(op.condition)
            return self.differs(op.condition) if taken is None else not are_whole_groups(taken, self.size)
        if isinstance(op, While):
            return self.differs(yielded(op.condition)[0])
        return any(self.differs(v) for v in (op.start, op.stop, op.step)) and not _same_number_of_iterations(op)

    def differs(self, value: Value) -> bool:
        """Say whether a value surely differs between threads of some group."""
        if value not in self._answers:
            self._answers[value] = self._differs(value)
        return self._answers[value]

    def _differs(self, value: Value) -> bool:
        op = value.definition
        if op is not None and op.effects.varies:
            return True
        if op is None or not op.is_pure or self._block is None:
            return False
        try:
            numbers = [evaluate(value, known) for known in self._threads()]
        except KeyError:  # more than the index of the thread is in it
            return any(self.differs(v) for v in op.operands)
        return any(len(set(numbers[n : n + self.size])) > 1 for n in range(0, len(numbers), self.size))

    def _threads(self) -> Iterator[dict[Value, int]]:
        """Yield the index of each thread of the block, as the values that stand for it."""
        assert self._block is not None
        x, y, z = self._block
        for thread in range(x * y * z):
            index = thread % x, thread // x % y, thread // (x * y)
            yield {value: index[axis] for value, axis in self._sets.axes.items()}


class _Analysis:
    """Collects the values that depend on the thread's index."""

    def __init__(self) -> None:
        self.divergent: set[Value] = set()
        self.grows = True

    def block(self, block: Block) -> tuple[Value, ...]:
        """Class the values of a block and return what it yields."""
        for op in block.ops:
            self._op(op)
        return yielded(block)

    def _mark(self, value: Value) -> None:
        if value not in self.divergent:
            self.divergent.add(value)
            self.grows = True

    def _op(self, op: Op) -> None:
        if isinstance(op, Special):
            if op.name.startswith("thread_idx"):
                self._mark(op.result)
        elif op.effects.varies:
            for result in op.results:
                self._mark(result)
        elif isinstance(op, For):
            self._carry(op, op.body.arguments[1:], self.block(op.body), depends_on_thread(op, self.divergent))
            if op.start in self.divergent or op.step in self.divergent:
                self._mark(op.body.arguments[0])
        elif isinstance(op, While):
            for carried, tested in zip(op.body.arguments, op.condition.arguments, strict=True):
                if carried in self.divergent:
                    self._mark(tested)
            self.block(op.condition)
            self._carry(op, op.body.arguments, self.block(op.body), depends_on_thread(op, self.divergent))
        elif isinstance(op, If):
            sides = zip(op.results, self.block(op.then), self.block(op.otherwise), strict=True)
            for result, one, other in sides:
                chosen = op.condition in self.divergent and one is not other
                if chosen or one in self.divergent or other in self.divergent:
                    self._mark(result)
        elif op.is_pure and any(v in self.divergent for v in op.operands):
            for result in op.results:
                self._mark(result)

    def _carry(self, op: For | While, carried: tuple[Value, ...], after: tuple[Value, ...], diverges: bool) -> None:
        for result, argument, first, value in zip(op.results, carried, op.init, after, strict=True):
            if first in self.divergent or value in self.divergent:
                self._mark(argument)
            if argument in self.divergent or (diverges and value is not argument):
                self._mark(result)


def depends_on_thread(op: For | While | If, divergent: set[Value]) -> bool:
    """Say whether the threads of a block may diverge at a branch or loop, as far as is known."""
    if isinstance(op, If):
        return op.condition in divergent
    if isinstance(op, While):
        return yielded(op.condition)[0] in divergent
    return any(v in divergent for v in (op.start, op.stop, op.step)) and not _same_number_of_iterations(op)


def _same_number_of_iterations(op: For) -> bool:
    """Say whether the ranges of the bounds leave one number of iterations: `range(thread, 256, 32)` of 32 threads."""
    start, stop, step = facts_of(op.start), facts_of(op.stop), facts_of(op.step)
    if step.constant is None or step.low == 0:
        return False
    counts = {len(range(a, b, step.low)) for a in (start.low, start.high) for b in (stop.low, stop.high)}
    return len(counts) == 1


def _check(
    block: Block,
    divergent: set[Value],
    groups: dict[Scope, _Groups],
    controls: dict[Scope, _Control],
    sets: ThreadSets,
    threads: Threads | None,
) -> None:
    """Check a block inside of branches and loops; `controls` has one for each kind of group that they divide.

    `threads` may come here, no others do; None: nothing is known.
    """
    for op in block.ops:
        group = _group_of(op)
        if group is not None and group in controls:
            known = group in groups and controls[group].is_exact and threads is not None
            if not (known and threads is not None and are_whole_groups(threads, groups[group].size)):
                raise _refusal(op, controls[group])
        inner = controls
        if isinstance(op, (For, While, If)) and depends_on_thread(op, divergent):
            kind = "branch" if isinstance(op, If) else "loop"
            inner = {**controls, Scope.BLOCK: _Control(kind, op.location, Scope.BLOCK)}
            meeting = {_group_of(o) for b in op.blocks for o in b.walk()}
            for size, group_of_size in groups.items():
                if size in meeting and group_of_size.divides(op):
                    is_exact = isinstance(op, If) and sets.where(op.condition) is not None
                    before = controls.get(size)
                    inner[size] = _Control(kind, op.location, size, is_exact and (before is None or before.is_exact))
        taken = sets.where(op.condition) if inner is not controls and isinstance(op, If) else None
        for n, nested in enumerate(op.blocks):
            here = threads if threads is None or taken is None else threads & (~taken if n else taken)
            _check(nested, divergent, groups, inner, sets, here)


def _refusal(barrier: Op, control: _Control) -> LanguageError:
    details = []
    if control.location is not None:
        details = [
            f"the {control.kind} at {control.location} {_reason(control)}:",
            f"  {control.location.text.strip()}",
        ]
    name = barrier.CALLED if isinstance(barrier, Instruction) and barrier.CALLED else type(barrier).__name__
    if control.group is not Scope.BLOCK:
        group = control.group.name.lower()
        by = "warpgroup" if control.group is Scope.WARPGROUP else "warp"
        return LanguageError(
            f"{name} is in a {control.kind} that only some threads of a {group} run",
            details=details,
            location=barrier.location,
            help=f"whole {group}s arrive at {name}: let the condition depend on tw.{by}_id(), or move the barrier "
            "out; a single thread can arrive at a tw.mbarrier",
        )
    return LanguageError(
        f"{name} is in a {control.kind} that only some threads of the block may run",
        details=details,
        location=barrier.location,
        help="move the barrier out, so that every thread of the block reaches it; what follows an early return, "
        "break or continue counts as a branch too",
    )


def _reason(control: _Control) -> str:
    if control.group is Scope.BLOCK:
        return "depends on tw.thread_idx"
    return f"differs between the threads of a {control.group.name.lower()}"
