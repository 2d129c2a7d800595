"""Assertions."""

from __future__ import annotations

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import negated
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.cpp.text import line_comment
from tilewright.ir.ops import Assert


def check(printer: Printer, op: Assert) -> None:
    """Print the test of an assertion; there is no printf, so the message stands beside it."""
    message = line_comment(" ".join(op.message.split()))
    printer.statement(f"if ({negated(exact(printer, op.condition)).text}) __builtin_trap();  {message}", op)
