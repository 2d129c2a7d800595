"""How threads are told apart and meet: special registers, barriers, and shuffles of every type."""

from __future__ import annotations

from tilewright.backends.cpp.expression import Expression, Rank
from tilewright.backends.cpp.printer import Printer
from tilewright.dtypes import uint32
from tilewright.ir.ops import Inside, Special


def special(printer: Printer, op: Special) -> Expression:
    """Return a special register: `thread_idx.x` is threadIdx.x, which is unsigned in C++."""
    group, axis = op.name.split(".")
    head, _, tail = group.partition("_")
    return Expression(f"{head}{tail.capitalize()}.{axis}", Rank.POSTFIX, uint32)


def nothing(printer: Printer, op: Inside) -> None:
    """Print nothing: the op is there for the simulator."""
