"""What rewritten loops do: run now in Python, or build loops of the device.

The rewriter makes each loop a call of a function here, with its body as a Python function from the carried
variables to the carried variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.arguments import given
from tilewright.dtypes import bool_
from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Value
from tilewright.ir.facts import Facts, unknown
from tilewright.ir.fold import constant_of
from tilewright.trace.branches import Body, and_, not_
from tilewright.trace.carry import (
    RESULT,
    Carried,
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
from tilewright.trace.control import MAX_UNROLLED, Counter, DeviceRange, emit_loop, emit_while, end, record, truth
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import Tracer, current

# The inferred facts of carried integers settle after a few traces of the body; then the widest are taken.
_MAX_TRACES = 8
_EXACT_TRACES = 2


def for_loop(
    iterable: Any, body: Body, names: Names, variables: Mapping[str, Any], stop_flag: str | None = None
) -> State:
    """Run `for target in iterable: body`. `stop_flag` names the carried variable that a break sets."""
    state = read_state(names, variables)
    if stop_flag is not None:
        state[names.index(stop_flag)] = False
    if not isinstance(iterable, DeviceRange):
        return _python_loop(iterable, body, state, names, stop_flag)
    if stop_flag is not None:
        return _loop_with_break(iterable, body, state, names, stop_flag)
    tracer, counter = current("a loop over range"), Counter.of(iterable)

    def trace(leaves: list[Value], carried: Carried) -> tuple[Block, State]:
        index = counter.index()
        return record(lambda: body(counter.number(index), *carried.rebuild(leaves)), index, *leaves)

    block, carried, init = _settle(tracer, state, names, trace)
    return _after(carried, list(emit_loop(counter, init, block)), names)


def _python_loop(iterable: Any, body: Body, state: list[Any], names: Names, stop_flag: str | None) -> State:
    try:
        items = iter(iterable)
    except TypeError:
        raise LanguageError(f"a for statement loops over a range, a list or the like, got {given(iterable)}") from None
    iterations = 0
    for item in items:
        state = list(body(item, *state))
        if stop_flag is not None:
            stopped = state[names.index(stop_flag)]
            if isinstance(stopped, Scalar):
                raise LanguageError(
                    "a break or return that a device value decides cannot leave a loop that is unrolled while tracing",
                    help="loop over range(...), which is a loop on the device",
                )
            if stopped:
                break
        iterations = _counted(iterations)
    return tuple(state)


def _counted(iterations: int) -> int:
    if iterations == MAX_UNROLLED:
        raise LanguageError(
            f"a loop that runs while tracing has not ended after {iterations} iterations",
            help="loop over range(...), or let a device value decide, for a loop on the device",
        )
    return iterations + 1


def _loop_with_break(loop: DeviceRange, body: Body, state: list[Any], names: Names, stop_flag: str) -> State:
    """Build `for i in range(a, b, c)` with a break: a while loop that counts by itself."""
    flag = names.index(stop_flag)
    state[flag] = as_scalar(False)
    step = constant_of(as_scalar(loop.step).value)
    if step is None:
        raise LanguageError(
            "a range that break or return may leave needs a step that is known while tracing",
            help="write a while loop, or make the step a tw.constexpr parameter",
        )

    def condition(i: Any, *values: Any) -> Any:
        inside = i < loop.stop if step > 0 else i > loop.stop
        return and_(not_(values[flag]), lambda: inside)

    def iteration(i: Any, *values: Any) -> State:
        return (i + loop.step, *body(i, *values))

    start = as_scalar(loop.start, loop.dtype)
    result = _device_while(condition, iteration, [start, *state], ("index", *names))
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

    iterations = 0
    holds = _probed(tracer, condition, state)
    while not isinstance(holds, Scalar):
        if not holds:
            return tuple(state)
        requirements = dict(tracer.requirements)
        iteration, returned = record(lambda: body(*state))  # noqa: B023  # called at once
        after = list(returned)
        holds = _probed(tracer, condition, after)
        if isinstance(holds, Scalar) and iterations == 0:
            # `while True` with a break that the device decides: a loop on the device from the first iteration on.
            tracer.requirements = requirements
            break
        tracer.builder.block.ops.extend(iteration.ops)
        state = after
        iterations = _counted(iterations)
    if stop_flag is not None:
        state[flag] = as_scalar(state[flag], bool_)
    return _device_while(condition, body, state, names)


def _probed(tracer: Tracer, condition: Callable[..., Any], state: list[Any]) -> Any:
    """Return the condition, without the ops that compute it."""
    with tracer.inside(Block()):
        return truth(condition(*state))


def _device_while(condition: Callable[..., Any], body: Body, state: list[Any], names: Names) -> State:
    tests: list[Block] = []

    def trace(leaves: list[Value], carried: Carried) -> tuple[Block, State]:
        arguments = [Value(v.type, v.name, v.facts) for v in leaves]

        def test() -> None:
            holds = truth(condition(*carried.rebuild(arguments)))
            end([as_scalar(holds, bool_).value])

        tests.append(record(test, *arguments)[0])
        return record(lambda: body(*carried.rebuild(leaves)), *leaves)

    block, carried, init = _settle(current("a loop"), state, names, trace)
    return _after(carried, list(emit_while(init, tests[-1], block)), names)


def _settle(
    tracer: Tracer, state: list[Any], names: Names, trace: Callable[[list[Value], Carried], tuple[Block, State]]
) -> tuple[Block, Carried, tuple[Value, ...]]:
    """Trace a loop's body until what it assumes of the carried variables holds after an iteration.

    The types of Python numbers (`acc = 0.0`) and the facts of integers are assumed from the initial values;
    where they are wider after an iteration, the body is traced again with that.
    """
    carried = flatten(state, names)
    assumed: list[Facts | None] = [v.facts for v in carried.leaves]
    for attempt in range(_MAX_TRACES):
        leaves = [Value(v.type, n, f) for v, n, f in zip(carried.leaves, carried.leaf_names, assumed, strict=True)]
        requirements = dict(tracer.requirements)
        block, result = trace(leaves, carried)
        with tracer.inside(block):
            if _returned_first_time(state, result, names):
                carried = flatten(state, names)
                assumed = [v.facts for v in carried.leaves]
                tracer.requirements = requirements
                continue
            after = flatten(result, names, like=carried)
            wider = merge_types(carried, after)
            if wider is None:
                next_values = tuple(unwrap(after, carried))
                needed = [joined_facts(a, v.facts) for a, v in zip(assumed, next_values, strict=True)]
                if needed == assumed:
                    end(next_values)
                    return block, carried, tuple(carried.leaves)
                assumed = [_widened(a, f, v, attempt) for a, f, v in zip(assumed, needed, carried.leaves, strict=True)]
        tracer.requirements = requirements
        if wider is not None:
            carried = wider
            assumed = [v.facts for v in carried.leaves]
    raise LanguageError(f"the types of the loop's variables change with each iteration: {', '.join(names)}")


def _returned_first_time(state: list[Any], result: State, names: Names) -> bool:
    """Give the value that a return inside the loop assigns a stand-in before the loop; say whether it had none."""
    if RESULT not in names:
        return False
    n = names.index(RESULT)
    if not isinstance(state[n], Undefined) or isinstance(result[n], Undefined):
        return False
    state[n] = placeholder(result[n])
    return True


def _widened(assumed: Facts | None, needed: Facts | None, value: Value, attempt: int) -> Facts | None:
    """Return the facts to assume next: the join at first, then bounds that still grow go to the type's."""
    if assumed is None or needed is None or needed == assumed or attempt < _EXACT_TRACES - 1:
        return needed
    if attempt >= _MAX_TRACES - 3:
        return unknown(value.dtype)
    low = needed.low if needed.low >= assumed.low else value.dtype.lowest
    high = needed.high if needed.high <= assumed.high else value.dtype.highest
    return Facts(low, high, needed.divisor)


def _after(carried: Carried, results: list[Value], names: Names) -> State:
    """Return the variables after a loop; one without a value before it has none after it: the loop may not run."""
    values = carried.rebuild(results)
    for result, name in zip(results, carried.leaf_names, strict=True):
        result.name = name
    return tuple(
        Undefined(name, "it is assigned only inside a loop, which may not run at all")
        if isinstance(value, Undefined)
        else value
        for name, value in zip(names, values, strict=True)
    )
