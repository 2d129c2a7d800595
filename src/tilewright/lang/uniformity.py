"""Refuses block-wide barriers that only some threads of the block may reach.

Each value is classed by what it depends on: the same in the whole block, certainly on the thread's index, or not
known (what memory holds, what other lanes have). A barrier in a branch or loop that depends on the thread's index
is refused; what is not known is left to the simulator, which watches the barriers as they are met.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Effect, Kernel, Op, Value
from tilewright.ir.infer import facts_of
from tilewright.ir.ops import Barrier, For, If, Special, While, Yield
from tilewright.source import SourceLocation


@dataclass(frozen=True)
class _Control:
    """A branch or loop that depends on the thread's index."""

    kind: str
    location: SourceLocation | None


def refuse_divergent_barriers(kernel: Kernel) -> None:
    """Raise `LanguageError` at a block-wide barrier under a condition or loop that depends on the thread's index."""
    if not any(isinstance(op, Barrier) and op.scope == "block" for op in kernel.body.walk()):
        return
    analysis = _Analysis()
    while analysis.grows:  # carried values hand a class on from turn to turn
        analysis.grows = False
        analysis.block(kernel.body)
    _check(kernel.body, analysis.divergent, None)


class _Analysis:
    """Collects the values that depend on the thread's index."""

    def __init__(self) -> None:
        self.divergent: set[Value] = set()
        self.grows = True

    def block(self, block: Block) -> tuple[Value, ...]:
        """Class the values of a block and return what it yields."""
        for op in block.ops:
            self._op(op)
        last = block.ops[-1] if block.ops else None
        return last.values if isinstance(last, Yield) else ()

    def _mark(self, value: Value) -> None:
        if value not in self.divergent:
            self.divergent.add(value)
            self.grows = True

    def _op(self, op: Op) -> None:
        if isinstance(op, Special):
            if op.name.startswith("thread_idx"):
                self._mark(op.result)
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
        elif op.effect is Effect.NONE and any(v in self.divergent for v in op.operands):
            self._mark(op.result)

    def _carry(self, op: For | While, carried: tuple[Value, ...], after: tuple[Value, ...], diverges: bool) -> None:
        for result, argument, first, value in zip(op.results, carried, op.init, after, strict=True):
            if first in self.divergent or value in self.divergent:
                self._mark(argument)
            if argument in self.divergent or (diverges and value is not argument):
                self._mark(result)


def depends_on_thread(op: For | While | If, divergent: set[Value]) -> bool:
    """Say whether the threads of a block may take different ways through a branch or loop, for all that is known."""
    if isinstance(op, If):
        return op.condition in divergent
    if isinstance(op, While):
        last = op.condition.ops[-1]
        assert isinstance(last, Yield), last
        return last.values[0] in divergent
    return any(v in divergent for v in (op.start, op.stop, op.step)) and not _same_number_of_turns(op)


def _same_number_of_turns(op: For) -> bool:
    """Say whether the ranges of the bounds leave one number of turns: `range(thread, 256, 32)` of 32 threads."""
    start, stop, step = facts_of(op.start), facts_of(op.stop), facts_of(op.step)
    if step.constant is None or step.low == 0:
        return False
    turns = {len(range(a, b, step.low)) for a in (start.low, start.high) for b in (stop.low, stop.high)}
    return len(turns) == 1


def _check(block: Block, divergent: set[Value], control: _Control | None) -> None:
    for op in block.ops:
        if isinstance(op, Barrier) and op.scope == "block" and control is not None:
            raise _refusal(op, control)
        inner = control
        if isinstance(op, (For, While, If)) and depends_on_thread(op, divergent):
            inner = _Control("branch" if isinstance(op, If) else "loop", op.location)
        for nested in op.blocks:
            _check(nested, divergent, inner)


def _refusal(barrier: Barrier, control: _Control) -> LanguageError:
    details = []
    if control.location is not None:
        details = [
            f"the {control.kind} at {control.location} depends on tw.thread_idx:",
            f"  {control.location.text.strip()}",
        ]
    return LanguageError(
        f"tw.sync_threads stands in a {control.kind} that only some threads of the block may run",
        details=details,
        location=barrier.location,
        help="move the barrier out, so that every thread of the block comes to it; what follows an early return, "
        "break or continue counts as a branch too",
    )
