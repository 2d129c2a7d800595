"""How loops and branches are printed, and how the values they carry are assigned."""

from __future__ import annotations

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import Expression, Rank, negated
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.cpp.variables import Variable
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.evaluate import step_facts
from tilewright.ir.ops import Constant, For, If, While, yielded


def for_loop(printer: Printer, op: For) -> None:
    """Print `for (int i = start; i < stop; i += step) { ... }`."""
    index, *carried = op.body.arguments
    targets = _begin(printer, op, op.init, tuple(carried))
    start = printer.initial(exact(printer, op.start), index.type)
    with printer.names.scope():
        name = printer.names.declare(*_index_names(index))
        printer.hold(index, name)
        head = f"{printer.type_name(index.type)} {name} = {start}; {_condition(printer, op)}; {_increment(printer, op)}"
        if op.unroll is not None:
            printer.statement("#pragma unroll" + (f" {op.unroll}" if op.unroll else ""), op)
        printer.statement(f"for ({head}) {{", op)
        _body(printer, op, op.body, targets)
    printer.statement("}", op)


def _index_names(index: Value) -> tuple[str, ...]:
    """Return the names for a loop's index; a letter that is taken gives way to the next one."""
    name = index.name or "i"
    return (name, *"ijklmnpq", name) if name in "ijkl" else (name,)


def _condition(printer: Printer, op: For) -> str:
    name = printer.expression(op.body.arguments[0]).text
    stop = exact(printer, op.stop)
    limit = printer.initial(stop, stop.type) if stop.rank >= Rank.ATOM else stop.at_least(Rank.SHIFT)
    known = step_facts(op.step)
    if known.low > 0 or known.high < 0:
        return f"{name} {'<' if known.low > 0 else '>'} {limit}"
    step = exact(printer, op.step).at_least(Rank.SHIFT)
    return f"{step} > 0 ? {name} < {limit} : {name} > {limit}"


def _increment(printer: Printer, op: For) -> str:
    name = printer.expression(op.body.arguments[0]).text
    step = op.step.definition
    if isinstance(step, Constant):
        return f"{name} {'+' if step.value > 0 else '-'}= {abs(step.value)}"
    amount = exact(printer, op.step)
    return f"{name} += {printer.initial(amount, amount.type)}"


def while_loop(printer: Printer, op: While) -> None:
    """Print `while (condition) { ... }`, with a `break` inside where the condition takes statements."""
    targets = _begin(printer, op, op.init, op.body.arguments)
    (condition,) = yielded(op.condition)
    if all(printer.is_silent(o) for o in op.condition.ops):
        printer.statement(f"while ({exact(printer, condition).text}) {{", op)
        with printer.names.scope():
            _body(printer, op, op.body, targets)
    else:
        printer.statement("while (true) {", op)
        with printer.names.scope():
            with printer.writer.indented():
                printer.block(op.condition)
                printer.statement(f"if ({negated(exact(printer, condition)).text}) break;", op)
            _body(printer, op, op.body, targets)
    printer.statement("}", op)


def branch(printer: Printer, op: If) -> None:
    """Print `if (condition) { ... } else { ... }`, without what would be empty."""
    targets = [printer.variables[r] for r in op.results]
    _declare_results(printer, op, targets)
    condition = exact(printer, op.condition)
    then, otherwise = op.then, op.otherwise
    if _is_empty(printer, then, targets):
        condition, then, otherwise = negated(condition), otherwise, then
    printer.statement(f"if ({condition.text}) {{", op)
    _scoped(printer, op, then, targets)
    while (inner := _only_branch(printer, otherwise, targets)) is not None:
        printer.statement(f"}} else if ({exact(printer, inner.condition).text}) {{", inner)
        _scoped(printer, op, inner.then, targets)
        otherwise = inner.otherwise
    if not _is_empty(printer, otherwise, targets):
        printer.statement("} else {", op)
        _scoped(printer, op, otherwise, targets)
    printer.statement("}", op)


def _declare_results(printer: Printer, op: If, targets: list[Variable]) -> None:
    """Declare the variables that begin here; where `else` only chooses values, they begin with these."""
    starts = yielded(op.otherwise)
    simple = len(op.otherwise.ops) == 1
    for target, start in zip(targets, starts, strict=True):
        if target.text is None:
            expression = exact(printer, start) if simple else None
            printer.declare_variable(target, expression, op)
            if simple:
                printer.started.add((op.otherwise, target))


def _only_branch(printer: Printer, block: Block, targets: list[Variable]) -> If | None:
    """Return the `if` that is all a block prints, with the same variables as results: an `else if`."""
    loud = [o for o in block.ops if not printer.is_silent(o)]
    if len(loud) != 1 or not isinstance(loud[0], If) or not _moves_nothing(printer, block, targets):
        return None
    inner = loud[0]
    return inner if [printer.variables[r] for r in inner.results] == targets else None


def _is_empty(printer: Printer, block: Block, targets: list[Variable]) -> bool:
    return all(printer.is_silent(o) for o in block.ops) and _moves_nothing(printer, block, targets)


def _moves_nothing(printer: Printer, block: Block, targets: list[Variable]) -> bool:
    return all(
        printer.variables.get(v) is t or (block, t) in printer.started
        for v, t in zip(yielded(block), targets, strict=True)
    )


def _scoped(printer: Printer, op: Op, block: Block, targets: list[Variable]) -> None:
    with printer.names.scope():
        _body(printer, op, block, targets)


def _begin(printer: Printer, op: Op, init: tuple[Value, ...], arguments: tuple[Value, ...]) -> list[Variable]:
    """Declare the variables that a loop carries, where they are not there yet."""
    targets = [printer.variables[a] for a in arguments]
    for target, start in zip(targets, init, strict=True):
        if target.text is None:
            printer.declare_variable(target, exact(printer, start), op)
    return targets


def _body(printer: Printer, op: Op, block: Block, targets: list[Variable]) -> None:
    with printer.writer.indented():
        printer.block(block)
        _assign(printer, block, targets)


def _assign(printer: Printer, block: Block, targets: list[Variable]) -> None:
    """Assign a block's yields to their variables, all at once in effect.

    A variable is assigned when no other assignment still reads it. Where each waits for another, as in a swap,
    those that read one variable first put their new values into constants.
    """
    end = block.ops[-1]
    pending: list[tuple[Variable, Expression]] = [
        (target, exact(printer, value))
        for value, target in zip(yielded(block), targets, strict=True)
        if printer.variables.get(value) is not target and (block, target) not in printer.started
    ]
    if pending:
        printer.writer.comment(end.location)
    while pending:
        first = min(pending, key=lambda p: len(_waiting_for(p, pending)))
        for other in _waiting_for(first, pending):
            pending[pending.index(other)] = _kept(printer, *other, end)
        pending.remove(first)
        assert first[0].text is not None
        printer.assign(first[0].text, first[1], end)


def _waiting_for(
    own: tuple[Variable, Expression], pending: list[tuple[Variable, Expression]]
) -> list[tuple[Variable, Expression]]:
    """Return the other assignments that read the variable, and must do so before it changes."""
    return [p for p in pending if p is not own and own[0].text in p[1].reads]


def _kept(printer: Printer, target: Variable, expression: Expression, op: Op) -> tuple[Variable, Expression]:
    name = printer.names.declare(f"next_{target.text}")
    text = printer.initial(expression, target.type)
    printer.statement(f"const {printer.type_name(target.type)} {name} = {text};", op)
    return target, Expression(name, Rank.ATOM, target.type)
