"""What a thread says in CUDA C++: printf and assertions."""

from __future__ import annotations

from itertools import zip_longest

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.conversions import is_half, to_float
from tilewright.backends.cpp.expression import Rank, negated
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.cpp.writer import string
from tilewright.dtypes import bool_, uint64
from tilewright.ir.core import Value, VectorType
from tilewright.ir.ops import Assert, Print

ASSERTION_FAILED = """\
__device__ __noinline__ void assertion_failed(const char* message) {
    printf("%s: in block (%u, %u, %u), thread (%u, %u, %u)\\n", message, blockIdx.x, blockIdx.y, blockIdx.z,
           threadIdx.x, threadIdx.y, threadIdx.z);
    __trap();
}"""


def print_values(printer: Printer, op: Print) -> None:
    """Print a call of printf."""
    pieces, arguments = [], []
    for text, value in zip_longest(op.texts, op.values):
        pieces.append((text or "").replace("%", "%%"))
        if value is not None:
            directive, argument = _printed(printer, op, value)
            pieces.append(directive)
            arguments.append(argument)
    printer.statement(f"printf({', '.join([string(''.join(pieces) + chr(10)), *arguments])});", op)


def _printed(printer: Printer, op: Print, value: Value) -> tuple[str, str]:
    """Return printf's directive for a value and its argument; printf takes int, 64-bit integers and double."""
    if isinstance(value.type, VectorType):
        raise printer.refuse(op, "a vector cannot be printed as a whole", "print its lanes")
    x, dtype = exact(printer, value), value.type
    if dtype is bool_:
        return "%s", f'{x.at_least(Rank.OR)} ? "True" : "False"'
    if dtype.is_float:
        return "%g", (to_float(printer, x) if is_half(dtype) else x).text
    if dtype.bits == 64:
        return ("%llu" if dtype is uint64 else "%lld"), x.text
    return ("%u" if dtype.kind == "uint" else "%d"), x.text


def check(printer: Printer, op: Assert) -> None:
    """Print the test of an assertion."""
    printer.prelude.need(ASSERTION_FAILED)
    place = f"{op.location}: " if op.location is not None else ""
    condition = exact(printer, op.condition)
    message = string(f"{place}{op.message}")
    printer.statement(f"if ({negated(condition).text}) assertion_failed({message});", op)
