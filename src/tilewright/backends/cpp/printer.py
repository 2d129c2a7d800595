"""The state of printing one kernel, and the few operations that all handlers are made of.

For calls of functions with several results: the variables that take these, and lines that are not too long.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arch import Arch
from tilewright.backends.cpp.dialect import Dialect
from tilewright.backends.cpp.expression import Expression, Rank
from tilewright.backends.cpp.inlining import Structure, choose_inlined
from tilewright.backends.cpp.names import Names, suggest
from tilewright.backends.cpp.prelude import Prelude, built_in, c_type
from tilewright.backends.cpp.variables import Variable, assign_variables
from tilewright.backends.cpp.writer import Writer
from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Buffer, Kernel, Op, Space, TensorMap, Type, Value, VectorType
from tilewright.ir.effects import Order
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import Yield

_COMPOUND = ("+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^")


class Printer:
    """Prints the ops of one kernel.

    An op with a result has a handler that gives its expression; the printer puts it where it is used, or on a
    line of its own under a name. Every other op has a handler that writes statements.
    """

    def __init__(
        self,
        kernel: Kernel,
        arch: Arch,
        dialect: Dialect,
        reserved: frozenset[str] = frozenset(),  # names that no variable may have
        *,
        line_directives: bool = False,
        restrict: bool = True,
    ) -> None:
        self.kernel = kernel
        self.arch = arch
        self.restrict = restrict  # arrays that are only read share no memory with those that are written
        self.dialect = dialect
        self.structure: Structure = Structure(kernel)
        self.written: frozenset[Buffer] = _written(self.structure)
        self.read_in_order: frozenset[Buffer] = _read_in_order(self.structure, self.written)
        self.inlined: frozenset[Value] = choose_inlined(self.structure)
        self.variables: dict[Value, Variable] = assign_variables(self.structure, self.inlined)
        self.names: Names = Names(reserved, _defined_by(self.structure))
        self.prelude: Prelude = Prelude()
        self.writer: Writer = Writer(line_directives=line_directives)
        self.buffer_names: dict[Buffer, str] = {}
        self.map_names: dict[TensorMap, str] = {}
        self.arena: str | None = None  # the array that shared buffers are places of, where they are
        self.started: set[tuple[Block, Variable]] = set()  # yields that the variable's declaration has made already
        self._held: dict[Value, Expression] = {}

    # --- values ----------------------------------------------------------------------------------------

    def expression(self, value: Value) -> Expression:
        """Return the text of a value: its name, or the expression that computes it."""
        variable = self.variables.get(value)
        if variable is not None and variable.text is not None:
            return Expression(variable.text, Rank.ATOM, value.type, frozenset({variable.text}))
        if value in self._held:
            return self._held[value]
        op = value.definition
        assert op is not None and variable is None, value
        if isinstance(op, Instruction):
            written = self.dialect.instruction(self, op)
            assert written is not None, op
            return written
        return self.dialect.expressions[type(op)](self, op)

    def hold(self, value: Value, name: str) -> None:
        """Let a value be known by a name from now on."""
        self._held[value] = Expression(name, Rank.ATOM, value.type)

    def type_name(self, type: Type) -> str:
        """Return a type's C++ name, and see to its definition."""
        self.prelude.need_type(type if not isinstance(type, VectorType) else type.element)
        if isinstance(type, VectorType) and built_in(type) is None:
            self.prelude.need_vectors()
        return c_type(type)

    # --- statements ------------------------------------------------------------------------------------

    def statement(self, text: str, op: Op) -> None:
        self.writer.text(text, op.location)

    def block(self, block: Block) -> None:
        """Print the statements of a block, without its yield."""
        for op in block.ops:
            if not self.is_silent(op):
                self.writer.comment(op.location)
                self._op(op)

    def is_silent(self, op: Op) -> bool:
        """Return whether an op writes nothing where it is: it is unused, or printed where it is used."""
        return isinstance(op, Yield) or not self.structure.is_live(op) or any(r in self.inlined for r in op.results)

    def _op(self, op: Op) -> None:
        if type(op) in self.dialect.statements:
            self.dialect.statements[type(op)](self, op)
            return
        if isinstance(op, Instruction):
            written = self.dialect.instruction(self, op)
            if written is None:
                return
            expression = written
        else:
            expression = self.dialect.expressions[type(op)](self, op)
        if op.result in self.structure.readers:
            self._define(op, expression)
        else:
            self.statement(f"{expression.text};", op)

    def _define(self, op: Op, expression: Expression) -> None:
        value = op.result
        variable = self.variables.get(value)
        if variable is None:
            name = self.names.declare(suggest(value, self.structure))
            self.statement(f"const {self.type_name(value.type)} {name} = {self.initial(expression, value.type)};", op)
            self.hold(value, name)
        elif variable.text is None:
            self.declare_variable(variable, expression, op)
        else:
            self.assign(variable.text, expression, op)

    def declare_variable(self, variable: Variable, start: Expression | None, op: Op) -> None:
        """Declare a variable that will change."""
        name = self.names.declare(variable.hint or suggest(variable.values[0], self.structure))
        initial = "" if start is None else f" = {self.initial(start, variable.type)}"
        self.statement(f"{self.type_name(variable.type)} {name}{initial};", op)
        variable.text = name

    def assign(self, target: str, expression: Expression, op: Op) -> None:
        """Print `target = expression;`, or `target += ...;` where the expression begins with the target."""
        parts = expression.parts
        if parts is not None and parts[0] == target and parts[1] in _COMPOUND:
            self.statement(f"{target} {parts[1]}= {parts[2].text};", op)
            return
        self.statement(f"{target} = {self.initial(expression, expression.type)};", op)

    def initial(self, expression: Expression, type: Type) -> str:
        """Return the text for the right side of `=`, where C++ converts integers to a wider type by itself."""
        inner = expression.unconverted
        short = inner is not None and inner.rank >= Rank.UNARY and type == expression.type
        return inner.text if inner is not None and short else expression.text

    # --- errors ----------------------------------------------------------------------------------------

    def refuse(self, op: Op, summary: str, help: str | None = None) -> LanguageError:
        """Return the error for something that the target cannot do, at the op's place."""
        return LanguageError(summary, location=op.location, help=help)


def _read_in_order(structure: Structure, written: frozenset[Buffer]) -> frozenset[Buffer]:
    """Return the buffers whose reads are to stay where they are, although the kernel writes nothing of what they read.

    Those are all of global memory where a thread may learn from outside of the grid that something was written there.
    """
    keeping = [op for op in structure.places if op.effects.keeps_reads]
    if any(not op.uses for op in keeping) or _learns_from_outside(structure, written):
        return frozenset(buffer for buffer in structure.users if buffer.space is Space.GLOBAL)
    return frozenset(use.buffer for op in keeping for use in op.uses)


def _learns_from_outside(structure: Structure, written: frozenset[Buffer]) -> bool:
    """Say whether strong reads of global memory order what others wrote that are not threads of the grid.

    Those of a scope that other GPUs belong to may. Of a scope within the GPU, those of what the kernel itself writes
    are taken to hear from its own threads, which write nothing that is only read here.
    """
    strong = [op for op in structure.places if op.effects.scope is not None]
    heard = {  # scopes in which words may come from outside
        use.buffer: ("sys",) if use.buffer in written else ("gpu", "sys")
        for op in strong
        for use in op.uses
        if use.buffer.space is Space.GLOBAL and use.use.is_read
    }
    return any(
        op.effects.scope in scopes
        for op in strong
        if op.effects.order & Order.ACQUIRE
        for scopes in ([heard.get(use.buffer, ()) for use in op.uses] if op.uses else heard.values())
    )


def _written(structure: Structure) -> frozenset[Buffer]:
    """Return the buffers whose memory may change: those that ops write, and those that show the same memory.

    A write through an address may reach any global memory.
    """
    roots = {buffer.root for op in structure.places for buffer in op.buffers_written}
    everywhere = any(root.is_pointed for root in roots)
    return frozenset(
        buffer
        for buffer in structure.users
        if buffer.root in roots or (everywhere and buffer.space is Space.GLOBAL and not buffer.root.is_pointed)
    )


def _defined_by(structure: Structure) -> str:
    """Return the names, as a regular expression, that the functions of the kernel's instructions take."""
    taken = {op.RESERVED for op in structure.places if isinstance(op, Instruction) and op.RESERVED}
    return "|".join(sorted(taken))


_LONGEST_CALL = 100


def declare_results(printer: Printer, op: Op, stem: str) -> list[str]:
    """Declare variables for the results, those of a type on one line, and return their names."""
    several = len(op.results) > 1
    names = [
        printer.names.declare(value.name or (f"{stem}{number}" if several else stem))
        for number, value in enumerate(op.results)
    ]
    by_type: dict[Type, list[str]] = {}
    for value, name in zip(op.results, names, strict=True):
        by_type.setdefault(value.type, []).append(name)
    for type, alike in by_type.items():
        printer.statement(f"{printer.type_name(type)} {', '.join(alike)};", op)
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


def bind_results(printer: Printer, op: Op, names: Sequence[str]) -> None:
    """Bind the results to the names that hold them, or assign these to the variables that the results share."""
    for value, name in zip(op.results, names, strict=True):
        variable = printer.variables.get(value)
        if variable is None:
            printer.hold(value, name)
        elif variable.text is None:
            variable.text = name
        else:
            printer.statement(f"{variable.text} = {name};", op)
