"""What rewritten loops do: run now in Python, or build loops of the device.

The rewriter makes each loop a call of a function here, with its body as a Python function that assigns the variables
of the function around it (`variables`). `settle` traces the body until what it assumes of them holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tilewright.arguments import given
from tilewright.dtypes import bool_
from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Value
from tilewright.ir.fold import constant_of
from tilewright.trace.aliases import aliased
from tilewright.trace.branches import Body, and_, branch_of, not_
from tilewright.trace.carry import Names
from tilewright.trace.control import MAX_UNROLLED, Counter, DeviceRange, emit_loop, emit_while, end, record, truth
from tilewright.trace.heap import CONDITION, Heap, snapshot
from tilewright.trace.iteration import DeviceCalls, functions_of, iterated
from tilewright.trace.scalar import Scalar, as_scalar, select
from tilewright.trace.settle import Loop
from tilewright.trace.tracer import Tracer, current
from tilewright.trace.variables import Variables

_MAX_PREDICATED = 1024  # iterations that are traced one by one, each of them under a branch


def for_loop(iterable: Any, body: Body, names: Names, stop_flag: str | None = None) -> None:
    """Run `for target in iterable: body`. `stop_flag` names the variable that a break sets."""
    variables = Variables(names, (body,))
    if stop_flag is not None:
        variables.set(stop_flag, False)
    iterable = iterated(iterable)
    if isinstance(iterable, DeviceCalls):
        return _loop_of_calls(iterable, body, variables, stop_flag)
    if not isinstance(iterable, DeviceRange):
        return _python_loop(iterable, body, variables, stop_flag)
    item, functions = iterable.enter(), (body, _reaching(functions_of(iterable)))
    if stop_flag is not None:
        return _loop_with_break(iterable, item, body, variables, stop_flag, functions)
    counter = Counter.of(iterable)
    loop = Loop(current("a loop over range"), variables, functions, runs=_runs(counter))

    def trace(leaves: list[Value]) -> Block:
        index = counter.index()

        def iteration() -> None:
            loop.put(leaves)
            body(item(counter.number(index)))

        return record(iteration, index, *leaves)[0]

    block, init = loop.settle(trace)
    loop.finish(emit_loop(counter, init, block))


def _runs(counter: Counter) -> bool:
    """Say whether a loop is known to run at least once."""
    start, stop, step = (constant_of(x) for x in (counter.start, counter.stop, counter.step))
    if start is None or stop is None or step is None:
        return False
    return start < stop if step > 0 else start > stop


def _python_loop(iterable: Any, body: Body, variables: Variables, stop_flag: str | None) -> None:
    """Run a loop while tracing; what follows a break that the device decides runs under its condition."""
    try:
        items = iter(iterable)
    except TypeError:
        raise LanguageError(f"a for statement loops over a range, a list or the like, got {given(iterable)}") from None
    iterations, predicated = 0, 0
    while True:
        stopped = False if stop_flag is None else variables.get(stop_flag)
        if isinstance(stopped, Scalar):
            if predicated == _MAX_PREDICATED:
                raise LanguageError(
                    f"a loop that is unrolled while tracing has not ended after {predicated} iterations, and a device "
                    "value decides whether break or return leaves it",
                    help="loop over range(...), which is a loop on the device",
                )
            if items is iterable and not predicated:
                _refuse_held(items)
            if not _iterate_unless(stopped, items, body, variables):
                break
            predicated += 1
        elif stopped or (item := next(items, _END)) is _END:
            break
        else:
            body(item)
        iterations = _counted(iterations)


_END = object()
_CONTAINERS: tuple[Any, ...] = (), [], "", {}, set(), range(0), range(2**70), deque()
_ITEMS_ARE_THERE = tuple({type(iter(each)) for each in _CONTAINERS})  # iterators whose next item was there before


def _refuse_held(items: Iterator[Any]) -> None:
    """Refuse an iterator that a variable holds: only the device knows how many items it has when the loop was left."""
    tracer = current("a loop")
    if aliased(tracer, [items], Heap([]), {}):
        raise LanguageError(
            f"the device decides how far a {type(items).__name__} is read, and a variable holds it",
            help="write the iterator in the for statement itself, or loop over a list",
        )


def _iterate_unless(stopped: Scalar, items: Iterator[Any], body: Body, variables: Variables) -> bool:
    """Run an iteration where the device has not left the loop before; say whether there was an item.

    Taking the item may change what the device sees, in a generator say, so it is a part of the iteration.
    """
    taken = [next(items, _END)] if isinstance(items, _ITEMS_ARE_THERE) else []

    def iteration() -> None:
        if not taken:
            taken.append(next(items, _END))
        if taken[0] is not _END:
            body(taken[0])

    if not taken or taken[0] is not _END:
        branch_of(not_(stopped), iteration, variables, (body, _reaching((items, *taken))), advancing=items)
    return taken[0] is not _END


def _counted(iterations: int) -> int:
    if iterations == MAX_UNROLLED:
        raise LanguageError(
            f"a loop that runs while tracing has not ended after {iterations} iterations",
            help="loop over range(...), or let a device value decide, for a loop on the device",
        )
    return iterations + 1


def _reaching(iterator: tuple[Any, ...]) -> Callable[[], Any]:
    """Return a function from whose closure one comes to what a loop calls."""
    return lambda: iterator


def _loop_with_break(
    loop: DeviceRange,
    item: Callable[[Any], Any],
    body: Body,
    variables: Variables,
    stop_flag: str,
    functions: tuple[Body, ...],
) -> None:
    """Build `for i in range(a, b, c)` with a break: a while loop that counts by itself."""
    variables.set(stop_flag, as_scalar(False))
    index = Variables.of(index=as_scalar(loop.start, loop.dtype))
    step = loop.step if isinstance(loop.step, int) else as_scalar(loop.step, loop.dtype)
    known = constant_of(as_scalar(step).value)

    def inside() -> Any:
        i = index.get("index")
        if known is None:
            return select(as_scalar(step) > 0, i < loop.stop, i > loop.stop)
        return i < loop.stop if known > 0 else i > loop.stop

    def condition() -> Any:
        within = inside()
        return and_(not_(variables.get(stop_flag)), lambda: within)

    def iteration() -> None:
        i = index.get("index")
        index.set("index", i + loop.step)
        body(item(i))

    _device_while(condition, iteration, index + variables, functions, runs=_runs(Counter.of(loop)))


def _loop_of_calls(calls: DeviceCalls, body: Body, variables: Variables, stop_flag: str | None) -> None:
    """Build `for x in iter(take, end)`: a while loop whose iterations end by taking the next number."""
    calls.enter()
    take, end, item = calls.take, calls.end, calls.item
    taken = Variables.of(number=take())

    def condition() -> Any:
        return not_(taken.get("number") == end)

    def take_next() -> None:
        taken.set("number", take())

    def iteration() -> None:
        body(item(taken.get("number")))
        stopped = False if stop_flag is None else variables.get(stop_flag)  # after a break Python takes no more
        if isinstance(stopped, Scalar):
            branch_of(not_(stopped), take_next, taken, (_reaching((take,)),))
        elif not stopped:
            take_next()

    functions = body, _reaching((take, *functions_of(calls)))
    _while(condition, iteration, taken + variables, functions, stop_flag)


def while_loop(condition: Callable[[], Any], body: Body, names: Names, stop_flag: str | None = None) -> None:
    """Run `while condition: body`; a condition that Python knows runs the loop while tracing."""
    variables = Variables(names, (body,))
    if stop_flag is not None:
        variables.set(stop_flag, False)
    _while(condition, body, variables, (condition, body), stop_flag)


def _while(
    condition: Callable[[], Any],
    body: Callable[[], None],
    variables: Variables,
    functions: tuple[Body, ...],
    stop_flag: str | None,
) -> None:
    """Run a while loop now, as long as Python knows the condition, and build a loop of the device from then on."""
    tracer = current("a loop")
    if stop_flag is not None:
        inner = condition

        def condition() -> Any:
            return and_(not_(variables.get(stop_flag)), inner)

    iterations, runs = 0, False
    values, heap = variables.read(), snapshot(tracer, functions, variables.cells)
    holds = _probed(tracer, condition)
    while not isinstance(holds, Scalar):
        if not holds:
            return
        requirements = dict(tracer.requirements)
        iteration, _ = record(body)
        after, heap_after = variables.read(), snapshot(tracer, functions, variables.cells)
        holds = _probed(tracer, condition)
        if isinstance(holds, Scalar) and iterations == 0:
            # `while True` with a break that the device decides: a loop on the device from the first iteration on.
            tracer.requirements, runs = requirements, True
            break
        tracer.builder.block.ops.extend(iteration.ops)
        values, heap = after, heap_after
        iterations = _counted(iterations)
    variables.write(values)
    heap.restore()
    if stop_flag is not None:
        variables.set(stop_flag, as_scalar(variables.get(stop_flag), bool_))
    _device_while(condition, body, variables, functions, runs=runs)


def _probed(tracer: Tracer, condition: Callable[[], Any]) -> Any:
    """Return the condition, without the ops that compute it."""
    with tracer.inside(Block()):
        return truth(condition())


def _device_while(
    condition: Callable[[], Any], body: Callable[[], Any], variables: Variables, functions: tuple[Body, ...], *,
    runs: bool,
) -> None:  # fmt: skip
    tracer = current("a loop")
    loop = Loop(tracer, variables, functions, runs=runs)
    tests: list[Block] = []

    def trace(leaves: list[Value]) -> Block:
        arguments = [Value(v.type, v.name, v.facts) for v in leaves]

        def test() -> None:
            loop.put(arguments)
            before = loop.values()
            holds = truth(condition())
            end([as_scalar(holds, bool_).value])
            loop.refuse_changes(before, CONDITION)

        tests.append(record(test, *arguments)[0])

        def iteration() -> None:
            loop.put(leaves)
            body()

        return record(iteration, *leaves)[0]

    block, init = loop.settle(trace)
    loop.finish(emit_while(init, tests[-1], block))
