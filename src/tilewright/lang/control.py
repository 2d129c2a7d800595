"""What rewritten loops, branches and logical operators do: decide now in Python, or build device control flow.

The rewriter (`rewrite.py`) turns each statement into a call of a function here, with the statement's blocks as
Python functions from the carried variables to the carried variables.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.dtypes import DType, bool_, dtype, int32, promote
from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Effect, Value
from tilewright.ir.facts import Facts
from tilewright.ir.fold import constant_of
from tilewright.ir.infer import facts_of
from tilewright.ir.ops import Binary, For, If, Select, While, Yield, constant
from tilewright.lang.carry import NO_VALUE, Carried, Undefined, flatten, merge_types, rename, unwrap
from tilewright.lang.ranges import DeviceRange
from tilewright.lang.scalar import Scalar, as_scalar, convert, unary
from tilewright.lang.tracer import Tracer, current

Names = tuple[str, ...]
State = tuple[Any, ...]  # Any: what the user's variables hold
Body = Callable[..., State]

# The inferred facts of carried integers settle after a few traces of the body; then the widest are taken.
_MAX_TRACES = 6


def read_state(names: Names, variables: Mapping[str, Any]) -> list[Any]:
    """Return the current values of variables, `Undefined` for those not assigned yet."""
    return [variables.get(name, Undefined(name, "it is not assigned before this point")) for name in names]


# --- loops ---------------------------------------------------------------------------------------------


def for_loop(iterable: Any, body: Body, names: Names, variables: Mapping[str, Any], stop_flag: str | None = None) -> State:
    """Run `for target in iterable: body`. `stop_flag` names the carried variable that a break sets."""
    state = read_state(names, variables)
    if not isinstance(iterable, DeviceRange):
        return _python_loop(iterable, body, state, names, stop_flag)
    if stop_flag is not None:
        return _loop_with_break(iterable, body, state, names, stop_flag)
    tracer = current("a loop over range")
    type = iterable.dtype
    start, stop, step = (as_scalar(x, type).value for x in (iterable.start, iterable.stop, iterable.step))

    def trace(leaves: list[Value], carried: Carried) -> tuple[Block, State]:
        index = Value(type, facts=_index_facts(start, stop, step))
        block = Block(arguments=(index, *leaves))
        with tracer.inside(block):
            result = body(Scalar(index), *carried.rebuild(leaves))
        return block, result

    block, carried, init = _settle(tracer, state, names, trace)
    op = For(start, stop, step, init, block, iterable.unroll)
    results = tracer.emit(op, *[v.type for v in init])
    return _after(carried, list(results), names, "the loop may run no time")


def _python_loop(iterable: Any, body: Body, state: list[Any], names: Names, stop_flag: str | None) -> State:
    for item in iterable:
        state = list(body(item, *state))
        if stop_flag is not None:
            stopped = state[names.index(stop_flag)]
            if isinstance(stopped, Scalar):
                raise LanguageError(
                    "a break that a device value decides cannot leave a loop that is unrolled while tracing",
                    help="loop over range(...), which is a loop on the device",
                )
            if stopped:
                break
    return tuple(state)


def _loop_with_break(loop: DeviceRange, body: Body, state: list[Any], names: Names, stop_flag: str) -> State:
    """for i in range(a, b, c) with a break: a while loop that counts by itself."""
    flag = names.index(stop_flag)
    state[flag] = as_scalar(False)
    step = constant_of(as_scalar(loop.step).value)
    if step is None:
        raise LanguageError("a range with a break needs a step that is known while tracing")

    def condition(i: Any, *values: Any) -> Any:
        inside = i < loop.stop if step > 0 else i > loop.stop
        return and_(inside, lambda: not_(values[flag]))

    def turn(i: Any, *values: Any) -> State:
        return (i + loop.step, *body(i, *values))

    start = as_scalar(loop.start, loop.dtype)
    result = while_loop(condition, turn, ("index", *names), {"index": start, **dict(zip(names, state, strict=True))})
    return result[1:]


def while_loop(
    condition: Callable[..., Any], body: Body, names: Names, variables: Mapping[str, Any], stop_flag: str | None = None
) -> State:
    """Run `while condition: body`; a condition that Python knows runs the loop while tracing."""
    state = read_state(names, variables)
    tracer = current("a loop")
    if stop_flag is not None:
        flag, inner = names.index(stop_flag), condition
        state[flag] = False

        def condition(*values: Any) -> Any:
            return and_(not_(values[flag]), lambda: inner(*values))

    probe = Block()
    with tracer.inside(probe):
        first = condition(*state)
    if not isinstance(first, Scalar):
        while first:
            state = list(body(*state))
            first = condition(*state)
            if isinstance(first, Scalar):
                raise LanguageError("the condition of a loop that began while tracing became a device value")
        return tuple(state)
    if stop_flag is not None:
        state[flag] = as_scalar(False)

    tests: list[Block] = []

    def trace(leaves: list[Value], carried: Carried) -> tuple[Block, State]:
        arguments = [Value(v.type, v.name, v.facts) for v in leaves]
        test = Block(arguments=tuple(arguments))
        with tracer.inside(test):
            holds = truth(condition(*carried.rebuild(arguments)))
            tracer.emit(Yield((as_scalar(holds, bool_).value,)))
        tests.append(test)
        block = Block(arguments=tuple(leaves))
        with tracer.inside(block):
            return block, body(*carried.rebuild(leaves))

    block, carried, init = _settle(tracer, state, names, trace)
    results = tracer.emit(While(init, tests[-1], block), *[v.type for v in init])
    return _after(carried, list(results), names, "the loop may run no time")


def _settle(
    tracer: Tracer, state: list[Any], names: Names, trace: Callable[[list[Value], Carried], tuple[Block, State]]
) -> tuple[Block, Carried, tuple[Value, ...]]:
    """Trace a loop's body until what it assumes of the carried variables is what it hands on.

    The types of Python numbers (`acc = 0.0`) and the facts of integers are assumed from the initial values;
    where the body hands on something wider, it is traced again with that.
    """
    carried = flatten(state, names)
    assumed: list[Facts | None] = [v.facts for v in carried.leaves]
    for attempt in range(_MAX_TRACES):
        leaves = [Value(v.type, n, f) for v, n, f in zip(carried.leaves, carried.leaf_names, assumed, strict=True)]
        requirements = dict(tracer.requirements)
        block, result = trace(leaves, carried)
        with tracer.inside(block):
            after = flatten(result, names, like=carried)
            wider = merge_types(carried, after)
            if wider is None:
                next_values = tuple(unwrap(after, carried))
                needed = [_join(a, v.facts) for a, v in zip(assumed, next_values, strict=True)]
                if needed == assumed:
                    tracer.emit(Yield(next_values))
                    return block, carried, tuple(carried.leaves)
                last = attempt >= _MAX_TRACES - 3
                assumed = [Facts(v.dtype.lowest, v.dtype.highest, f.divisor) if last and f and f != a else f
                           for f, a, v in zip(needed, assumed, carried.leaves, strict=True)]  # fmt: skip
        tracer.requirements = requirements
        if wider is not None:
            carried = wider
            assumed = [v.facts for v in carried.leaves]
    raise LanguageError(f"the types of the loop's variables do not settle: {', '.join(names)}")


def _join(a: Facts | None, b: Facts | None) -> Facts | None:
    return a.join(b) if a is not None and b is not None else None


def _index_facts(start: Value, stop: Value, step: Value) -> Facts:
    first, last, by = facts_of(start), facts_of(stop), facts_of(step)
    multiple = math.gcd(first.divisor, by.divisor)
    if by.low > 0:
        return Facts(first.low, max(last.high - 1, first.low), multiple)
    return Facts(min(last.low + 1, first.high), first.high, multiple) if by.high < 0 else Facts(
        min(first.low, last.low), max(first.high, last.high), multiple)  # fmt: skip



def _after(carried: Carried, results: list[Value], names: Names, why: str) -> State:
    values = carried.rebuild(results)
    for result, name in zip(results, carried.leaf_names, strict=True):
        result.name = name
    return tuple(
        Undefined(name, f"it is assigned only inside a loop, and {why}") if value is NO_VALUE else value
        for name, value in zip(names, values, strict=True)
    )


# --- branches ------------------------------------------------------------------------------------------


def if_statement(condition: Any, then: Body, otherwise: Body, names: Names, variables: Mapping[str, Any]) -> State:
    """Run `if condition: then; else: otherwise`; a condition that Python knows chooses while tracing."""
    state = read_state(names, variables)
    condition = truth(condition)
    if not isinstance(condition, Scalar):
        return (then if condition else otherwise)(*state)
    tracer = current("a branch")
    blocks = Block(), Block()
    sides = []
    for block, body in zip(blocks, (then, otherwise), strict=True):
        with tracer.inside(block, branch=True):
            sides.append(list(body(*state)))
    return _join_sides(tracer, condition, blocks, sides, names)


def _join_sides(
    tracer: Tracer, condition: Scalar, blocks: tuple[Block, Block], sides: list[list[Any]], names: Names
) -> State:
    """Build the If and merge, variable by variable, what the two sides assigned."""
    merged: list[Any] = []
    differing: list[int] = []
    for n, (name, a, b) in enumerate(zip(names, *sides, strict=True)):
        if a is b or (_plain(a) and _plain(b) and type(a) is type(b) and a == b):
            merged.append(a)
        elif isinstance(a, Undefined) or isinstance(b, Undefined):
            merged.append(Undefined(name, "it is assigned in only one branch of an if"))
        else:
            merged.append(None)
            differing.append(n)
    chosen = tuple(names[n] for n in differing)
    with tracer.inside(blocks[0], branch=True):
        first = flatten([sides[0][n] for n in differing], chosen, typed=False)
    with tracer.inside(blocks[1], branch=True):
        second = flatten([sides[1][n] for n in differing], chosen, typed=False)
    wider = merge_types(first, second, both=True) or first
    yields = []
    for block, side in zip(blocks, (first, second), strict=True):
        with tracer.inside(block, branch=True):
            values = unwrap(side, wider)
            tracer.emit(Yield(tuple(values)))
            yields.append(values)
    results = tracer.emit(If(condition.value, *blocks), *[v.type for v in yields[0]])
    for result, a, b, name in zip(results, *yields, wider.leaf_names, strict=True):
        result.facts = _join(a.facts, b.facts)
        result.name = name
    for n, value in zip(differing, wider.rebuild(list(results)), strict=True):
        merged[n] = value
    return tuple(merged)


def _plain(x: object) -> bool:
    return isinstance(x, (int, float, str)) or x is None or isinstance(x, DType)


def if_expression(condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Return `then() if condition else otherwise()`: a select where both sides are pure, else a branch."""
    condition = truth(condition)
    if not isinstance(condition, Scalar):
        return then() if condition else otherwise()
    tracer = current("a conditional expression")
    blocks = Block(), Block()
    sides = []
    for block, side in zip(blocks, (then, otherwise), strict=True):
        with tracer.inside(block, branch=True):
            sides.append([side()])
    a, b = sides[0][0], sides[1][0]
    numbers = all(isinstance(x, (Scalar, int, float)) for x in (a, b))
    if numbers and all(_is_pure(block) for block in blocks):
        tracer.builder.block.ops.extend(blocks[0].ops + blocks[1].ops)
        return select(condition, a, b)
    return _join_sides(tracer, condition, blocks, sides, ("the value of a conditional expression",))[0]


def select(condition: Scalar, a: Any, b: Any) -> Scalar:
    """Return `a` where the condition holds and `b` elsewhere, both computed."""
    type = _common(a, b)
    x, y = as_scalar(a, type), as_scalar(b, type)
    return Scalar(current("a selection").pure(Select(condition.value, x.value, y.value), type))


def _common(a: Any, b: Any) -> DType:
    if isinstance(a, Scalar) or isinstance(b, Scalar):
        from tilewright.lang.scalar import common_type

        return common_type(a, b)
    return promote(as_scalar(a).dtype, as_scalar(b).dtype)


def _is_pure(block: Block) -> bool:
    return all(op.effect is Effect.NONE for op in block.ops)


# --- logic ---------------------------------------------------------------------------------------------


def truth(x: Any) -> Any:
    """Return a device bool of a device number (not zero), and anything else as it is."""
    return convert(x, bool_) if isinstance(x, Scalar) else x


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
    block = Block()
    with tracer.inside(block, branch=True):
        right = as_scalar(truth(b()), bool_)
        if _is_pure(block):
            ops, block.ops = block.ops, []
        else:
            ops = []
            tracer.emit(Yield((right.value,)))
    if not block.ops:
        tracer.builder.block.ops.extend(ops)
        return Scalar(tracer.pure(Binary(kind, a.value, right.value), bool_))
    other = Block()
    with tracer.inside(other, branch=True):
        tracer.emit(Yield((constant(kind == "or", bool_),)))
    blocks = (block, other) if kind == "and" else (other, block)
    return Scalar(tracer.emit(If(a.value, *blocks), bool_)[0])


def not_(x: Any) -> Any:
    """Return `not x`."""
    return unary("not", truth(x)) if isinstance(x, Scalar) else not x


def compare_chain(left: Any, links: list[tuple[Callable[[Any, Any], Any], Callable[[], Any]]]) -> Any:
    """Return `a < b < c ...`, each operand computed once."""
    operator, operand = links[0]
    right = operand()
    holds = operator(left, right)
    return holds if len(links) == 1 else and_(holds, lambda: compare_chain(right, links[1:]))


# --- names and builtins --------------------------------------------------------------------------------


def named(name: str, value: Any) -> Any:
    """Give a fresh device value the name of the variable that it is assigned to."""
    rename(name, value)
    return value


def named_all(names: tuple[str | None, ...], value: Any) -> Any:
    """Give the parts of a tuple the names of the variables they are unpacked into."""
    if isinstance(value, (Scalar, str)) or not hasattr(value, "__iter__"):
        return value
    parts = value if isinstance(value, (tuple, list)) else tuple(value)
    if len(parts) == len(names):
        for name, part in zip(names, parts, strict=True):
            if name is not None:
                rename(name, part)
    return parts


def annotated(name: str, value: Any, annotation: Any) -> Any:
    """Return the value of `name: annotation = value`: converted where the annotation is an element type."""
    if isinstance(annotation, DType):
        value = as_scalar(value, annotation)
    return named(name, value)


def assertion(condition: Any, message: Callable[[], Any]) -> None:
    """Run an assert statement: now where Python knows the condition, on the device otherwise."""
    if isinstance(condition, Scalar):
        from tilewright.lang.debug import device_assert

        device_assert(condition, str(message()))
    elif not condition:
        raise AssertionError(message())


def builtin(function: Any) -> Any:
    """Return what a Python builtin means in a kernel; any other function as it is."""
    try:
        return _BUILTINS.get(function, function)
    except TypeError:  # not hashable
        return function


def _device_minimum(kind: str, python: Callable[..., Any]) -> Callable[..., Any]:
    def choose(*values: Any, **options: Any) -> Any:
        items = values[0] if len(values) == 1 and not options and isinstance(values[0], (tuple, list)) else values
        if not any(isinstance(v, Scalar) for v in items):
            return python(*values, **options)
        from tilewright.lang.scalar import arithmetic

        result = items[0]
        for item in items[1:]:
            both = isinstance(result, Scalar) or isinstance(item, Scalar)
            result = arithmetic(kind, result, item) if both else python(result, item)
        return result

    return choose


def _conversion(python: type, target: DType) -> Callable[..., Any]:
    def convert_to(*values: Any) -> Any:
        if len(values) == 1 and isinstance(values[0], Scalar):
            return values[0].to(target)
        return python(*values)

    return convert_to


_BUILTINS: dict[Any, Any] = {
    builtins.range: DeviceRange,
    builtins.min: _device_minimum("min", builtins.min),
    builtins.max: _device_minimum("max", builtins.max),
    builtins.int: _conversion(int, int32),
    builtins.float: _conversion(float, dtype("float32")),
    builtins.bool: _conversion(bool, bool_),
}
