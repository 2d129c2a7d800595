"""From a kernel's IR to C++ that reads as if a person had written it, in a vendor's dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tilewright.arch import Arch
from tilewright.backends.cpp import buffers
from tilewright.backends.cpp.dialect import Dialect
from tilewright.backends.cpp.names import entry_name
from tilewright.backends.cpp.prelude import defined_names
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.cpp.text import line_comment
from tilewright.ir.core import Buffer, Kernel, Parameter
from tilewright.source import SourceLocation


@dataclass(frozen=True)
class DeviceSource:
    """A kernel as C++ for a device.

    `name` is its entry point, `line_map` gives the Python place of a line of the text (counted from 1), and
    `dynamic_shared_bytes` is the shared memory that a launch must ask for.
    """

    text: str
    name: str
    line_map: Mapping[int, SourceLocation]
    dynamic_shared_bytes: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _source, (self.text, self.name, dict(self.line_map), self.dynamic_shared_bytes)


def _source(text: str, name: str, line_map: dict[int, SourceLocation], dynamic_shared_bytes: int) -> DeviceSource:
    return DeviceSource(text, name, MappingProxyType(line_map), dynamic_shared_bytes)


def generate(
    kernel: Kernel, arch: Arch, dialect: Dialect, *, line_directives: bool = False, restrict: bool = True
) -> DeviceSource:
    """Return a kernel as freestanding C++ for one architecture; the same IR gives the same text.

    `line_directives` adds `#line`, so that profilers show the Python lines. `restrict=False` leaves the promise
    away that arrays which are only read share no memory with those that are written: for calls where they do.

    Raises `LanguageError` at the line of an op that the target cannot do.
    """
    reserved: frozenset[str] = frozenset()
    while True:
        printer = Printer(kernel, arch, dialect, reserved, line_directives=line_directives, restrict=restrict)
        name = entry_name(kernel.name, reserved)
        printer.names.reserve(name)
        signature = _signature(printer, name, restrict=restrict)
        with printer.writer.indented(), printer.names.scope():
            buffers.declare_arena(printer)
            printer.block(kernel.body)
        above = _above(printer, signature)
        # Which functions stand above the kernel is known once it is printed. A variable of such a name would hide the
        # function: then the text is printed anew, with these names taken.
        hidden = printer.names.given & defined_names(above)
        if not hidden:
            break
        reserved |= hidden
    lines = [*above, *signature, *printer.writer.lines, "}"]
    start = len(above) + len(signature)
    places = {line + start: place for line, place in printer.writer.places.items()}
    dynamic = buffers.dynamic_shared_bytes(kernel, arch)
    return _source("\n".join(lines) + "\n", name, places, dynamic)


def _above(printer: Printer, signature: list[str]) -> list[str]:
    """Return what stands above the kernel: helper functions, and where it comes from."""
    lines: list[str] = []
    for definition in printer.prelude.texts():
        lines += [*definition.split("\n"), ""]
    if printer.kernel.location is not None:
        lines.append(line_comment(f"{printer.kernel.name}, from {printer.kernel.location}"))
    return [*printer.dialect.above([*lines, *signature, *printer.writer.lines]), *lines]


def _signature(printer: Printer, name: str, *, restrict: bool) -> list[str]:
    parameters = [_parameter(printer, p, restrict=restrict) for p in printer.kernel.parameters]
    attributes = printer.dialect.attributes(printer.kernel)
    head = f'extern "C" __global__ void {attributes}{name}('
    joined = ", ".join(parameters)
    if len(head) + len(joined) <= 116:
        return [f"{head}{joined}) {{"]
    if len(joined) <= 112:
        return [head, f"    {joined}) {{"]
    return [head, *(f"    {p}," for p in parameters[:-1]), f"    {parameters[-1]}) {{"]


def _parameter(printer: Printer, parameter: Parameter, *, restrict: bool) -> str:
    target, part = parameter.target, parameter.part
    named = target.name or "_".join([parameter.argument, *(map(str, part) if isinstance(part, tuple) else ())])
    name = printer.names.declare(named)
    if isinstance(target, Buffer):
        printer.buffer_names[target] = name
        return f"{buffers.pointer(printer, target, restrict=restrict)} {name}"
    printer.hold(target, name)
    variable = printer.variables.get(target)
    if variable is not None:
        variable.text = name
    return f"{printer.type_name(target.type)} {name}"
