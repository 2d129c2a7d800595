"""What rewritten branches and logical operators do: decide now in Python, or build device control flow.

The rewriter makes each branch a call of `if_statement`, with its two sides as Python functions from the variables
that they read or may leave alone to the variables that are read afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilewright.dtypes import DType, bool_, float64
from tilewright.freezing import same
from tilewright.ir.core import Block
from tilewright.ir.fold import constant_of
from tilewright.ir.ops import Binary, constant
from tilewright.trace.carry import (
    CHOICE,
    RESULT,
    Names,
    State,
    Undefined,
    flatten,
    joined_facts,
    merge_types,
    placeholder,
    read_state,
    unwrap,
)
from tilewright.trace.control import emit_branch, record, truth
from tilewright.trace.scalar import Scalar, Unrounded, are_untyped, as_scalar, select, unary, unrounded_choice
from tilewright.trace.tracer import Tracer, current

Body = Callable[..., State]

# --- branches ------------------------------------------------------------------------------------------


def if_statement(
    condition: Any, then: Body, otherwise: Body, parameters: Names, results: Names, variables: Mapping[str, Any]
) -> State:
    """Run `if condition: then; else: otherwise`; a condition that Python knows chooses while tracing."""
    state = read_state(parameters, variables)
    condition = truth(condition)
    if not isinstance(condition, Scalar):
        return (then if condition else otherwise)(*state)
    first, second = (record(partial(body, *state), is_branch=True) for body in (then, otherwise))
    sides = [list(first[1]), list(second[1])]
    return _join_sides(current("a branch"), condition, (first[0], second[0]), sides, results)


def _join_sides(
    tracer: Tracer, condition: Scalar, blocks: tuple[Block, Block], sides: list[list[Any]], names: Names
) -> State:
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
    for block, side, other in zip(blocks, sides, sides[::-1], strict=True):
        with tracer.inside(block, branch=True):
            values = [_as_met(side[n], other[n]) for n in differing]
            taken_apart.append(flatten([*values, *(as_scalar(side[n], float64) for n in untyped)], chosen))
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
    return tuple(merged)


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
    (first, a), (second, b) = (record(side, is_branch=True) for side in (then, otherwise))
    numbers = all(isinstance(x, (Scalar, int, float)) for x in (a, b))
    if numbers and _is_pure(first) and _is_pure(second):
        tracer.builder.block.ops.extend(first.ops + second.ops)
        return select(condition, a, b)
    return _join_sides(tracer, condition, (first, second), [[a], [b]], (CHOICE,))[0]


def _is_pure(block: Block) -> bool:
    return all(op.is_pure for op in block.ops)


# --- logic ---------------------------------------------------------------------------------------------


def and_(a: Any, b: Callable[[], Any]) -> Any:
    """Return `a and b()`; the right side is not run on the device where the left is false."""
    return _logical("and", a, b)


def or_(a: Any, b: Callable[[], Any]) -> Any:
    """Return `a or b()`; the right side is not run on the device where the left is true."""
    return _logical("or", a, b)


def _logical(kind: str, a: Any, b: Callable[[], Any]) -> Any:
    a = truth(a)
    if not isinstance(a, Scalar):
        return (a and b()) if kind == "and" else (a or b())
    known = constant_of(a.value)
    if known is not None and bool(known) != (kind == "and"):
        return a
    tracer = current("a condition")
    block, right = record(lambda: as_scalar(truth(b()), bool_), is_branch=True)
    if _is_pure(block):
        tracer.builder.block.ops.extend(block.ops)
        return Scalar(tracer.pure(Binary(kind, a.value, right.value), bool_))
    sides = [(block, [right.value]), (Block(), [constant(kind == "or", bool_)])]
    (then, held), (otherwise, else_held) = sides if kind == "and" else sides[::-1]
    return Scalar(emit_branch(a, (then, otherwise), (held, else_held))[0])


def not_(x: Any) -> Any:
    """Return `not x`."""
    return unary("not", truth(x)) if isinstance(x, Scalar) else not x


def compare_chain(left: Any, links: list[tuple[Callable[[Any, Any], Any], Callable[[], Any]]]) -> Any:
    """Return `a < b < c ...`, each operand computed once."""
    operator, operand = links[0]
    right = operand()
    holds = operator(left, right)
    return holds if len(links) == 1 else and_(holds, lambda: compare_chain(right, links[1:]))
