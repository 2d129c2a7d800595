"""What rewritten branches and logical operators do: decide now in Python, or build device control flow.

The rewriter makes each branch a call of `if_statement`, with its two sides as Python functions that assign the
variables of the function around them (`variables`). Both sides start from the same variables and objects (`heap`), and
what they leave is merged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tilewright.dtypes import DType, bool_, float64
from tilewright.freezing import same
from tilewright.ir.core import Block, Op
from tilewright.ir.evaluate import facts_of
from tilewright.ir.fold import constant_of
from tilewright.ir.ops import Binary
from tilewright.trace.aliases import aliased, note_copies
from tilewright.trace.carry import (
    CHOICE,
    RESULT,
    Names,
    Undefined,
    flatten,
    joined_facts,
    merge_types,
    placeholder,
    unwrap,
)
from tilewright.trace.control import emit_branch, record, truth
from tilewright.trace.heap import BRANCH, Heap, Place, iterators_in, replaced, snapshot
from tilewright.trace.holders import same_value
from tilewright.trace.scalar import Scalar, Unrounded, are_untyped, as_scalar, select, unary, unrounded_choice
from tilewright.trace.tracer import Tracer, current
from tilewright.trace.variables import Variables

Body = Callable[..., Any]

# --- branches ------------------------------------------------------------------------------------------


def if_statement(condition: Any, then: Body, otherwise: Body, parameters: Names, results: Names) -> None:
    """Run `if condition: then; else: otherwise`; a condition that Python knows chooses while tracing.

    `parameters` are the variables that the sides may read or leave as they are, `results` those that are read later.
    """
    variables = Variables(parameters, (then, otherwise))
    condition = truth(condition)
    if not isinstance(condition, Scalar):
        (then if condition else otherwise)()
        return
    merged = Variables(results, (then, otherwise))
    sides = _Sides(current("a branch"), (then, otherwise), (variables, merged))
    blocks, _ = sides.trace((then, otherwise))
    sides.join(condition, blocks)


def branch_of(
    condition: Scalar,
    then: Callable[[], Any],
    variables: Variables,
    functions: Sequence[Body],
    advancing: Any = None,  # Any: an iterator
) -> None:
    """Run `then` where a device condition holds, with variables that it may assign and an iterator that it may read."""
    sides = _Sides(current("a branch"), functions, (variables, variables))
    sides.heap.leave_out(iterators_in(sides.tracer, advancing))
    blocks, _ = sides.trace((then, _nothing))
    sides.join(condition, blocks)


def _nothing() -> None:
    pass


class _Sides:
    """The two sides of a branch: `variables` are those that they start from, and those that are merged after them."""

    def __init__(
        self, tracer: Tracer, functions: Sequence[Body], variables: tuple[Variables, Variables] | None = None
    ) -> None:
        self.tracer = tracer
        self.start, self.merged = variables or (Variables((), ()), Variables((), ()))
        self.heap: Heap = snapshot(tracer, functions, (*self.start.cells, *self.merged.cells))
        self.initial = self.start.read()
        self.values: list[list[Any]] = []
        self.contents: list[dict[int, Any]] = []  # of the objects that each side changed, by their number

    def trace(self, bodies: Sequence[Callable[[], Any]]) -> tuple[tuple[Block, Block], list[Any]]:
        """Trace both sides from the same start; return their blocks and what they return."""
        blocks: list[Block] = []
        returned: list[Any] = []
        for body in bodies:
            block, result = record(body, is_branch=True)
            blocks.append(block)
            returned.append(result)
            self.values.append(self.merged.read())
            with self.tracer.inside(block, branch=True):
                changes = self.heap.changes(BRANCH)
            numbers = {id(found): n for n, found in enumerate(self.heap.found)}
            self.contents.append({numbers[id(c.found)]: c.after for c in changes})
            if changes:
                self.heap.restore()
            self.start.write(self.initial)
        return (blocks[0], blocks[1]), returned

    def swapped(self) -> _Sides:
        """Return the sides in the other order."""
        self.values.reverse()
        self.contents.reverse()
        return self

    @property
    def changed(self) -> bool:
        """Whether a side changed an object."""
        return any(self.contents)

    def join(self, condition: Scalar, blocks: tuple[Block, Block], results: Sequence[Any] = ()) -> list[Any]:
        """Build the If, and set variables and objects to what they are after it. Returns the merged results."""
        names, sides = list(self.merged.names), [list(values) for values in self.values]
        places: list[Place] = []
        for n in sorted({*self.contents[0], *self.contents[1]}):
            found, before = self.heap.found[n], self.heap.before[n]
            left, right = found.holder.completed(found.object, *(c.get(n, before) for c in self.contents))
            self.heap.refuse_different(n, left, right)
            for content, kept in zip(self.contents, (left, right), strict=True):
                content[n] = kept
            if found.holder.has_places:
                keys = [key for key, value in left.items() if not same_value(value, right[key])]
                places += [Place(found, key, found.holder.path(found.path, key), before.get(key)) for key in keys]
                for side, content in zip(sides, (left, right), strict=True):
                    side += [content[key] for key in keys]
        names += [place.name for place in places]
        if results:
            names.append(CHOICE)
            for side, result in zip(sides, results, strict=True):
                side.append(result)
        copied = self._replace(sides, places)
        changed = [(self.heap.found[n], [c[n] for c in self.contents]) for n in self.contents[0]]

        def show(side: int) -> None:
            for found, contents in changed:
                found.holder.write(found.object, contents[side])

        values = _join_sides(self.tracer, condition, blocks, sides, tuple(names), self.heap, show)
        count, end = len(self.merged.names), len(self.merged.names) + len(places)
        self.merged.write(values[:count])
        self.heap.write(places, values[count:end])
        if copied:
            for name, value, left, right in zip(names, values, *sides, strict=True):
                for before in (left, right):
                    note_copies(self.tracer, name, before, value, copied)
        return values[end:]

    def _replace(self, sides: Sequence[Sequence[Any]], places: Sequence[Place]) -> set[int]:
        """Merge objects by what they hold, where the sides leave different ones; return those that others hold too."""
        both = list(zip(*sides, strict=True))
        objects = [value for left, right in both for value in replaced(left, right, self.heap)]
        if not objects:
            return set()
        moved = [left is not right for left, right in both]
        count = len(self.merged.names)
        cells = zip(self.merged.names, self.merged.cells, moved, strict=False)
        variables = {name: cell for name, cell, is_moved in cells if is_moved}
        places = [place for place, is_moved in zip(places, moved[count:], strict=False) if is_moved]
        copied = aliased(self.tracer, objects, self.heap, variables, places)
        self.heap.release(objects)
        return copied


def _join_sides(
    tracer: Tracer,
    condition: Scalar,
    blocks: tuple[Block, Block],
    sides: list[list[Any]],
    names: Names,
    heap: Heap,
    show: Callable[[int], None],
) -> list[Any]:
    """Build the If and merge, variable by variable, what the two sides assigned."""
    merged: list[Any] = []
    differing: list[int] = []
    for n, (name, a, b) in enumerate(zip(names, *sides, strict=True)):
        if a is b or (_plain(a) and _plain(b) and same(a, b)):
            merged.append(a)
        elif name == RESULT and isinstance(a, Undefined) != isinstance(b, Undefined):
            # The side without a value did not return yet, and its value is never read.
            side = sides[0] if isinstance(a, Undefined) else sides[1]
            side[n] = placeholder(b if isinstance(a, Undefined) else a)
            merged.append(None)
            differing.append(n)
        elif isinstance(a, Undefined) or isinstance(b, Undefined):
            merged.append(Undefined(name, "it is assigned in only one branch of an if"))
        else:
            merged.append(None)
            differing.append(n)
    # What is computed of Python floats alone is also joined in float64, for what may take it so.
    pairs = {n: (sides[0][n], sides[1][n]) for n in differing}
    untyped = [n for n, pair in pairs.items() if are_untyped(*pair) and any(type(x) is Unrounded for x in pair)]
    chosen = (*(names[n] for n in differing), *(f"{names[n]}_exact" for n in untyped))
    taken_apart = []
    for number, (block, side, other) in enumerate(zip(blocks, sides, sides[::-1], strict=True)):
        show(number)  # objects hold what the side leaves in them
        with tracer.inside(block, branch=True):
            values = [_as_met(side[n], other[n]) for n in differing]
            values += [as_scalar(side[n], float64) for n in untyped]
            taken_apart.append(flatten(values, chosen, holds=heap.holds))
    first, second = taken_apart
    wider = merge_types(first, second, both=True) or first
    yields = []
    for block, taken in zip(blocks, (first, second), strict=True):
        with tracer.inside(block, branch=True):
            yields.append(unwrap(taken, wider))
    results = emit_branch(condition, blocks, yields)
    for result, a, b, name in zip(results, *yields, wider.leaf_names, strict=True):
        result.facts = joined_facts(a.facts, b.facts)
        result.name = name
    rebuilt = wider.rebuild(list(results))
    exact = dict(zip(untyped, rebuilt[len(differing) :], strict=True))
    for n, value in zip(differing, rebuilt, strict=False):
        if n in exact:
            merged[n] = Unrounded(value.value, partial(_itself, exact[n]))
        elif isinstance(value, Scalar):
            merged[n] = unrounded_choice(condition, sides[0][n], sides[1][n], value)
        else:
            merged[n] = value
    return merged


def _as_met(x: Any, other: Any) -> Any:
    """Return one side's number: a Python float meets float64 as it is, not rounded to the float32 of its own."""
    is_met = isinstance(other, Scalar) and other.number is None and other.dtype is float64
    return as_scalar(x, float64) if is_met and (type(x) is float or type(x) is Unrounded) else x


def _itself(x: Any) -> Any:
    return x


def _plain(x: object) -> bool:
    return isinstance(x, (int, float, str)) or x is None or isinstance(x, DType)


def if_expression(condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Return `then() if condition else otherwise()`: a select where both sides are pure, else a branch."""
    condition = truth(condition)
    if not isinstance(condition, Scalar):
        return then() if condition else otherwise()
    tracer = current("a conditional expression")
    sides = _Sides(tracer, (then, otherwise))
    (first, second), (a, b) = sides.trace((then, otherwise))
    numbers = all(isinstance(x, (Scalar, int, float)) for x in (a, b))
    if numbers and not sides.changed and _is_pure(first) and _is_pure(second):
        tracer.builder.block.ops.extend(first.ops + second.ops)
        return select(condition, a, b)
    return sides.join(condition, (first, second), (a, b))[0]


def _is_pure(block: Block) -> bool:
    """Say whether a side may be computed where it is not taken: a C++ compiler takes what divides for not 0."""
    return all(op.is_pure and not _may_divide_by_zero(op) for op in block.ops)


def _may_divide_by_zero(op: Op) -> bool:
    if not isinstance(op, Binary) or op.kind not in ("div", "rem") or op.rhs.dtype.is_float:
        return False
    divisor = facts_of(op.rhs)
    return divisor.low <= 0 <= divisor.high


# --- logic ---------------------------------------------------------------------------------------------


def and_(a: Any, b: Callable[[], Any], advancing: Any = None) -> Any:
    """Return `a and b()`; the right side is not run on the device where the left is false."""
    return _logical("and", a, b, advancing)


def or_(a: Any, b: Callable[[], Any], advancing: Any = None) -> Any:
    """Return `a or b()`; the right side is not run on the device where the left is true."""
    return _logical("or", a, b, advancing)


def _logical(kind: str, a: Any, b: Callable[[], Any], advancing: Any) -> Any:  # Any: an iterator that b reads
    a = truth(a)
    if not isinstance(a, Scalar):
        return (a and b()) if kind == "and" else (a or b())
    known = constant_of(a.value)
    if known is not None and bool(known) != (kind == "and"):
        return a
    tracer = current("a condition")
    sides = _Sides(tracer, (b,))
    sides.heap.leave_out(iterators_in(tracer, advancing))
    (block, other), (right, short) = sides.trace((lambda: as_scalar(truth(b()), bool_), lambda: kind == "or"))
    if not sides.changed and _is_pure(block):
        tracer.builder.block.ops.extend(block.ops)
        return Scalar(tracer.pure(Binary(kind, a.value, right.value), bool_))
    blocks, values = ((block, other), (right, short)) if kind == "and" else ((other, block), (short, right))
    if not sides.changed:
        return Scalar(emit_branch(a, blocks, [[as_scalar(value).value] for value in values])[0])
    return (sides if kind == "and" else sides.swapped()).join(a, blocks, values)[0]


def not_(x: Any) -> Any:
    """Return `not x`."""
    return unary("not", truth(x)) if isinstance(x, Scalar) else not x


def compare_chain(left: Any, links: list[tuple[Callable[[Any, Any], Any], Callable[[], Any]]]) -> Any:
    """Return `a < b < c ...`, each operand computed once."""
    operator, operand = links[0]
    right = operand()
    holds = operator(left, right)
    return holds if len(links) == 1 else and_(holds, lambda: compare_chain(right, links[1:]))
