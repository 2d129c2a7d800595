"""From a kernel's IR to C++ that reads as if a person had written it, in a vendor's dialect.

`EXPRESSIONS` and `STATEMENTS` are the handlers that all dialects share, by the op that each prints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tilewright.arch import Arch
from tilewright.backends.cpp import arithmetic, atomics, control, conversions, memory, prelude
from tilewright.backends.cpp.dialect import Dialect, ExpressionHandler, StatementHandler
from tilewright.backends.cpp.expression import Expression, Rank
from tilewright.backends.cpp.names import entry_name
from tilewright.backends.cpp.prelude import defined_names
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.cpp.writer import line_comment
from tilewright.dtypes import uint32
from tilewright.ir import ops
from tilewright.ir.core import Buffer, Kernel, Op, Parameter, VectorType
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import Inside, Special
from tilewright.source import SourceLocation


def special(printer: Printer, op: Special) -> Expression:
    """Return a special register: `thread_idx.x` is threadIdx.x, which is unsigned in C++."""
    group, axis = op.name.split(".")
    head, _, tail = group.partition("_")
    return Expression(f"{head}{tail.capitalize()}.{axis}", Rank.POSTFIX, uint32)


def nothing(printer: Printer, op: Inside) -> None:
    """Print nothing: the op is there for the simulator."""


def _pack(printer: Printer, op: ops.Pack) -> Expression:
    type = op.result.type
    assert isinstance(type, VectorType), op
    printer.type_name(type)
    return prelude.packed(tuple(arithmetic.exact(printer, e) for e in op.elements), type)


def _bitcast(printer: Printer, op: ops.Bitcast) -> Expression:
    load, type = op.x.definition, op.result.type
    if isinstance(load, ops.Load) and op.x in printer.inlined and isinstance(op.x.type, VectorType):
        return memory.load_as(printer, load, type)
    return conversions.bitcast(printer, op)


def _extract(printer: Printer, op: ops.Extract) -> Expression:
    return prelude.lane_of(printer.expression(op.vector), op.lane)


EXPRESSIONS: Mapping[type[Op], ExpressionHandler] = {
    ops.Constant: arithmetic.constant,
    ops.Special: special,
    ops.Unary: arithmetic.unary,
    ops.Binary: arithmetic.binary_op,
    ops.Compare: arithmetic.compare,
    ops.Fma: arithmetic.fma,
    ops.Select: arithmetic.select,
    ops.Cast: conversions.cast,
    ops.Bitcast: _bitcast,
    ops.Pack: _pack,
    ops.Extract: _extract,
    ops.Load: memory.load,
    ops.AddressOf: memory.address_of,
    ops.Atomic: atomics.atomic,
}

STATEMENTS: Mapping[type[Op], StatementHandler] = {
    ops.Allocate: memory.allocate,
    ops.AllocateAt: memory.allocate_at,
    ops.Point: memory.point,
    ops.AtRank: memory.at_rank,
    ops.Store: memory.store,
    ops.For: control.for_loop,
    ops.While: control.while_loop,
    ops.If: control.branch,
    ops.Inside: nothing,
}


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

    def __repr__(self) -> str:
        return f"<source of {self.name}, {len(self.text.splitlines())} lines>"

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
            memory.declare_arena(printer)
            for parameter in kernel.parameters:
                if isinstance(parameter.target, Buffer):
                    memory.declare_views(printer, parameter.target)
            _prefetch_maps(printer)
            printer.block(kernel.body)
        above = _above(printer, signature)
        # Which functions are above the kernel is known once it is printed. A variable of such a name would hide the
        # function: then the text is printed anew, with these names taken.
        hidden = printer.names.given & defined_names(above)
        if not hidden:
            break
        reserved |= hidden
    lines = [*above, *signature, *printer.writer.lines, "}"]
    start = len(above) + len(signature)
    places = {line + start: place for line, place in printer.writer.places.items()}
    dynamic = memory.dynamic_shared_bytes(kernel, arch)
    return _source("\n".join(lines) + "\n", name, places, dynamic)


def _above(printer: Printer, signature: list[str]) -> list[str]:
    """Return what comes above the kernel: helper functions, and where it comes from."""
    lines: list[str] = []
    for definition in printer.prelude.texts():
        lines += [*definition.split("\n"), ""]
    if printer.kernel.location is not None:
        lines.append(line_comment(f"{printer.kernel.name}, from {printer.kernel.location}"))
    return [*printer.dialect.above([*lines, *signature, *printer.writer.lines]), *lines]


def _signature(printer: Printer, name: str, *, restrict: bool) -> list[str]:
    parameters = [_parameter(printer, p, restrict=restrict) for p in printer.kernel.parameters]
    for map in printer.kernel.tensor_maps:
        printer.prelude.need(prelude.TENSOR_MAP)
        name_of_map = printer.map_names[map] = printer.names.declare(map.name)
        parameters.append(f"const __grid_constant__ CUtensorMap {name_of_map}")
    attributes = printer.dialect.attributes(printer.kernel)
    head = f'extern "C" __global__ void {attributes}{name}('
    joined = ", ".join(parameters)
    if len(head) + len(joined) <= 116:
        return [f"{head}{joined}) {{"]
    if len(joined) <= 112:
        return [head, f"    {joined}) {{"]
    return [head, *(f"    {p}," for p in parameters[:-1]), f"    {parameters[-1]}) {{"]


def _prefetch_maps(printer: Printer) -> None:
    """Let one thread bring tensor maps near, so that the first copies need not wait for them."""
    own = {op.fetched_map() for op in printer.structure.places if isinstance(op, Instruction)}
    maps = [map for map in printer.kernel.tensor_maps if map not in own]
    if maps:
        printer.prelude.need(prelude.PREFETCH_TENSOR_MAP)
        printer.writer.text("if (threadIdx.x == 0) {")
        for map in maps:
            printer.writer.text(f"    prefetch_tensor_map(&{printer.map_names[map]});")
        printer.writer.text("}")


def _parameter(printer: Printer, parameter: Parameter, *, restrict: bool) -> str:
    target, part = parameter.target, parameter.part
    named = target.name or "_".join([parameter.argument, *(map(str, part) if isinstance(part, tuple) else ())])
    name = printer.names.declare(named)
    if isinstance(target, Buffer):
        printer.buffer_names[target] = name
        return f"{memory.pointer(printer, target, restrict=restrict)} {name}"
    printer.hold(target, name)
    variable = printer.variables.get(target)
    if variable is not None:
        variable.text = name
    return f"{printer.type_name(target.type)} {name}"
