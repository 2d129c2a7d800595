"""Unroll loops that index registers fully, because registers have no addresses.

    for (i = 0; i < 4; i += 1)                 #pragma unroll
        sum += registers[i]                ->  for (i = 0; i < 4; i += 1)
                                                   sum += registers[i]

An index must be a number once everything is unrolled. It is followed backwards through arithmetic, through
carried values and branches to the loops whose index or trips it depends on; each is marked, unless the user
chose how to unroll it. Where the way ends at something that only the run knows (a thread's number, a loaded
value, a loop that cannot be unrolled), the GPU would keep the whole array in local memory, which is off-chip:
right, but slow, and worth a warning.
"""

from __future__ import annotations

from tilewright.frames import warn_at
from tilewright.ir.core import Buffer, Kernel, Op, Space, Value
from tilewright.ir.fold import constant_of
from tilewright.ir.ops import For, If, Special, While
from tilewright.passes.structured_ops import Structured, carried, trip_bounds, yield_of

# No loop over registers is longer: a thread has at most 255 of them, and four narrow elements fit into one.
MAX_TRIPS = 1024


def unroll_register_loops(kernel: Kernel) -> None:
    """Mark the loops that reach an index of a register buffer, and warn of indices that stay dynamic."""
    ops = list(kernel.body.walk())
    sources = _Sources(ops)
    warned: set[object] = set()
    for op in ops:
        for use in op.uses:
            if use.buffer.space is not Space.REGISTER or use.index is None:
                continue
            reason = sources.unroll_behind(use.index)
            place = (op.location.file, op.location.line) if op.location is not None else use.buffer
            if reason is not None and place not in warned:
                warned.add(place)
                _warn(op, use.buffer, reason)


class _Sources:
    """Where values come from: the op that a loop's index, a carried value or a branch's result belongs to."""

    def __init__(self, ops: list[Op]) -> None:
        self.slots: dict[Value, tuple[Structured, int | None]] = {}
        for op in ops:
            if not isinstance(op, (For, While, If)):
                continue
            groups = [op.results]
            if isinstance(op, For):
                self.slots[op.body.arguments[0]] = (op, None)
            if isinstance(op, (For, While)):
                groups.append(carried(op))
            for group in groups:
                self.slots.update((value, (op, n)) for n, value in enumerate(group))

    def unroll_behind(self, index: Value) -> str | None:
        """Mark the loops that an index depends on; or mark nothing and return why it stays dynamic."""
        loops: dict[For, None] = {}
        seen: set[Value] = set()
        pending = [index]
        while pending:
            value = pending.pop()
            if value in seen or constant_of(value) is not None:
                continue
            seen.add(value)
            owner = self.slots.get(value)
            if owner is not None and isinstance(owner[0], For):
                loops[owner[0]] = None
            sources = _sources_in(*owner) if owner is not None else _operands(value)
            if sources is None:
                return f"{_describe(value)} is known only when the kernel runs"
            pending += sources
        for loop in loops:
            reason = _refusal(loop)
            if reason is not None:
                return reason
        for loop in loops:
            loop.unroll = 0
        return None


def _sources_in(op: Structured, n: int | None) -> list[Value] | None:
    """Return what a loop's index (n is None), a carried value or a branch's result depends on."""
    if isinstance(op, While):
        return None
    if isinstance(op, If):
        return [op.condition, yield_of(op.then).values[n or 0], yield_of(op.otherwise).values[n or 0]]
    bounds = [op.start, op.stop, op.step]
    return bounds if n is None else [*bounds, op.init[n], yield_of(op.body).values[n]]


def _operands(value: Value) -> list[Value] | None:
    op = value.definition
    if op is None or not op.is_pure or isinstance(op, Special):
        return None
    return list(op.operands)


def _refusal(loop: For) -> str | None:
    """Return why a loop that an index depends on cannot be unrolled fully, or None."""
    place = f" at {loop.location}" if loop.location is not None else ""
    if loop.unroll:
        return f"the loop{place} asks for unroll={loop.unroll}, which keeps its index dynamic"
    bounds = trip_bounds(loop)
    if bounds is None or bounds[1] > MAX_TRIPS:
        return f"the loop{place} may run more than {MAX_TRIPS} times, too often to be unrolled fully"
    return None


def _describe(value: Value) -> str:
    op = value.definition
    if value.name is not None:
        return f"'{value.name}'"
    return op.name if isinstance(op, Special) else "the index"


def _warn(op: Op, buffer: Buffer, reason: str) -> None:
    message = (
        f"'{buffer.name}' lives in registers, which cannot be indexed at run time: {reason}. On a GPU the whole "
        "array moves to local memory, which is slow. Index it by constants and by loops over compile-time ranges, "
        "or keep it in shared memory."
    )
    warn_at(message, op.location)
