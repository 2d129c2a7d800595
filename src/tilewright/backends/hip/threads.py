"""What the 64 lanes of a wave do together: shuffles, votes, elections; and assertions."""

from __future__ import annotations

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import Expression, call, negated
from tilewright.backends.cpp.literals import literal
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.cpp.text import line_comment
from tilewright.dtypes import DType, bool_, int32, uint64
from tilewright.ir.ops import Assert, Elect, Vote

_SHUFFLES = {"idx": "__shfl", "up": "__shfl_up", "down": "__shfl_down", "xor": "__shfl_xor"}


def shuffle(kind: str, value: Expression, lane: Expression, width: int, type: DType) -> Expression:
    """Return the call that reads a value of 32 or 64 bits of another lane."""
    arguments = [value, lane]
    if width != 64:
        arguments.append(literal(width, int32))
    return call(_SHUFFLES[kind], tuple(arguments), type)


def vote(printer: Printer, op: Vote) -> Expression:
    """Return the call that gathers the wave's predicates."""
    if op.kind == "ballot" and op.result.type is not uint64:
        raise printer.refuse(
            op,
            f"a ballot of the 64 lanes of {printer.arch} has 64 bits, and its result is {op.result.type}",
            "use tw.vote_any or tw.vote_all",
        )
    return call(f"__{op.kind}", (exact(printer, op.predicate),), uint64 if op.kind == "ballot" else bool_)


def elect(printer: Printer, op: Elect) -> Expression:
    """Return the call that elects a thread of the wave."""
    return call("__elect", (), bool_)


def check(printer: Printer, op: Assert) -> None:
    """Print the test of an assertion; there is no printf, so the message stands beside it."""
    message = line_comment(" ".join(op.message.split()))
    printer.statement(f"if ({negated(exact(printer, op.condition)).text}) __builtin_trap();  {message}", op)
