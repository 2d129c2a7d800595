"""How threads exchange values and speak in CUDA C++: shuffles, votes, printing, assertions."""

from __future__ import annotations

from itertools import zip_longest

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.conversions import is_half, to_float
from tilewright.backends.cpp.expression import Rank, negated
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.cuda import prelude
from tilewright.dtypes import bool_, uint64
from tilewright.ir.core import Value, VectorType
from tilewright.ir.ops import Assert, Print

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "?": "\\?"}


def print_values(printer: Printer, op: Print) -> None:
    """Print a call of printf."""
    pieces, arguments = [], []
    for text, value in zip_longest(op.texts, op.values):
        pieces.append(_format(text or ""))
        if value is not None:
            directive, argument = _printed(printer, op, value)
            pieces.append(directive)
            arguments.append(argument)
    text = "".join(pieces) + "\\n"
    printer.statement(f"printf({', '.join([_quote(text), *arguments])});", op)


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


def _format(text: str) -> str:
    return _escape(text).replace("%", "%%")


def _escape(text: str) -> str:
    """Return text as the inside of a C++ string literal."""
    return "".join(_ESCAPES.get(c, c if c.isprintable() else "".join(f"\\{b:03o}" for b in c.encode())) for c in text)


def _quote(escaped: str) -> str:
    """Return a string literal of text that is escaped already."""
    return f'"{escaped}"'


def check(printer: Printer, op: Assert) -> None:
    """Print the test of an assertion."""
    printer.prelude.need(prelude.ASSERTION_FAILED)
    place = f"{op.location}: " if op.location is not None else ""
    condition = exact(printer, op.condition)
    message = _quote(_escape(f"{place}{op.message}"))
    printer.statement(f"if ({negated(condition).text}) assertion_failed({message});", op)
