"""Calls of functions with several results: the variables that take these, and lines that are not too long."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.backends.cpp.printer import Printer
from tilewright.ir.core import Op

_LONGEST_CALL = 100


def declare_results(printer: Printer, op: Op, wish: str) -> list[str]:
    """Declare variables for the results on one line, and return their names."""
    several = len(op.results) > 1
    names = [
        printer.names.declare(value.name or (f"{wish}{number}" if several else wish))
        for number, value in enumerate(op.results)
    ]
    printer.statement(f"{printer.type_name(op.results[0].type)} {', '.join(names)};", op)
    return names


def print_call(printer: Printer, op: Op, name: str, groups: Sequence[Sequence[str]]) -> None:
    """Print a call; where one line would be too long, each group of arguments begins a line."""
    text = f"{name}({', '.join(a for group in groups for a in group)});"
    if len(text) > _LONGEST_CALL:
        lines = [line for group in groups for line in filled(group)]
        text = f"{name}(\n    " + ",\n    ".join(lines) + ");"
    printer.statement(text, op)


def filled(arguments: Sequence[str]) -> list[str]:
    """Return arguments as lines that are not too long."""
    lines: list[str] = []
    for argument in arguments:
        if lines and len(lines[-1]) + len(argument) < _LONGEST_CALL:
            lines[-1] += f", {argument}"
        else:
            lines.append(argument)
    return lines


def hand_on(printer: Printer, op: Op, names: Sequence[str]) -> None:
    """Let the results be known by their names, or assign them to the variables that they share with other values."""
    for value, name in zip(op.results, names, strict=True):
        variable = printer.variables.get(value)
        if variable is None:
            printer.hold(value, name)
        elif variable.text is None:
            variable.text = name
        else:
            printer.statement(f"{variable.text} = {name};", op)
