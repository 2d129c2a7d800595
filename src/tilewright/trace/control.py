"""Control flow of the device, emitted: branches, loops, and nests of loops.

    branch(condition, then, orelse)             if condition: then()
                                                else: orelse()
    loop(start, stop, step, body)               for i in range(start, stop, step): body(i)
    nest((m, n), body)                          for i in range(m): for j in range(n): body(i, j)

The bodies are Python functions. Each is called once, while the kernel is traced, and what it emits becomes a side of
the branch or the body of the loop. No other module makes these ops: whoever builds a kernel by calls,
such as `tw.copy` or a plan, uses the three functions above. Rewritten Python code (`branches`, `loops`) has
users' variables to carry, whose types are known only when all bodies have been traced. It uses the two halves that the
functions are made of: `record` traces a body into a block, and `emit_branch`, `emit_loop` and `emit_while` end blocks
and emit the op.
"""

from __future__ import annotations

import builtins
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.arguments import given, integer, shown
from tilewright.dtypes import DType, bool_, int32, int64, promote, uint64
from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Value
from tilewright.ir.evaluate import index_facts
from tilewright.ir.ops import For, If, While, Yield
from tilewright.trace.scalar import Scalar, as_scalar, convert, default_type
from tilewright.trace.tracer import current

MAX_UNROLLED = 100_000  # iterations that are traced one by one


def truth(x: Any) -> Any:  # Any: a number of host or device
    """Return a device bool of a device number (not zero), and anything else as it is."""
    return convert(x, bool_) if isinstance(x, Scalar) else x


def branch(
    condition: Any,  # Any: a condition of host or device
    then: Callable[[], Any],  # Any: None, or a sequence of numbers
    orelse: Callable[[], Any] | None = None,
) -> tuple[Any, ...]:
    """Emit `then` where a condition holds, and `orelse` elsewhere; return what the side that runs returns.

    A condition that Python knows chooses while tracing, and no branch is emitted. The sides return no values, or
    equally many numbers of the same types. Raises `LanguageError` where they differ.
    """
    condition = truth(condition)
    sides = then, orelse if orelse is not None else _nothing
    if not isinstance(condition, Scalar):
        return tuple(sides[0 if condition else 1]() or ())
    (first, second) = (record(side, is_branch=True) for side in sides)
    values = []
    for block, returned in (first, second):
        with current("a branch").inside(block, branch=True):
            values.append([as_scalar(x).value for x in returned or ()])
    types = [[value.type for value in side] for side in values]
    if types[0] != types[1]:
        raise _disagreement("the sides of a branch return", types)
    return tuple(map(Scalar, emit_branch(condition, (first[0], second[0]), values)))


def loop(
    start: Any,  # Any: integers of host or device
    stop: Any,
    step: Any,
    body: Callable[..., Any],  # Any: None, or a sequence of numbers
    carried: Sequence[Any] = (),
    *,
    unroll: bool | int | None = None,
    name: str | None = None,
) -> tuple[Scalar, ...]:
    """Emit a loop over start, start + step, ... up to but not including stop, and return what it carries at its end.

    `body(index, *carried)` is called with the index and with the numbers that the iteration before left, `carried` in
    the first one, and returns those that it leaves. Of carried integers nothing but the type is assumed. `unroll` is
    that of `range` in kernels; `name` is the index's in the generated code. Raises `LanguageError` for a step of 0,
    bounds that are not integers, and a body that returns other types than it was given.
    """
    counter = Counter.of(DeviceRange(start, stop, step, unroll=unroll))
    index = counter.index(name)
    init = [as_scalar(x).value for x in carried]
    arguments = [Value(value.type) for value in init]
    block, returned = record(lambda: body(counter.number(index), *map(Scalar, arguments)), index, *arguments)
    with current("a loop").inside(block):
        after = [as_scalar(x).value for x in returned or ()]
        types = [[value.type for value in values] for values in (init, after)]
        if types[0] != types[1]:
            raise _disagreement("a loop carries", types)
        end(after)
    return tuple(map(Scalar, emit_loop(counter, init, block)))


def nest(
    extents: Sequence[Any],  # Any: integers of host or device
    body: Callable[..., object],
    *,
    unroll: bool | int | None = None,
    names: Sequence[str] = (),
) -> None:
    """Emit a loop for each extent, the first outermost, and `body(*indices)` inside of all.

    An extent of 1 gets no loop: its index is the number 0.
    """

    def level(indices: tuple[Any, ...]) -> None:
        depth = len(indices)
        if depth == len(extents):
            body(*indices)
        elif isinstance(extents[depth], int) and extents[depth] == 1:
            level((*indices, 0))
        else:
            name = names[depth] if names else None
            loop(0, extents[depth], 1, lambda index: level((*indices, index)), unroll=unroll, name=name)

    level(())


# --- the halves ----------------------------------------------------------------------------------------


def record(
    body: Callable[[], Any], *arguments: Value, is_branch: bool = False
) -> tuple[Block, Any]:  # Any: what the body returns
    """Call a body, and return the block of all that it emitted and what it returned.

    `arguments` are those of the block; `is_branch` says that threads may skip it. The block is not ended yet.
    """
    block = Block(arguments=arguments)
    with current("control flow").inside(block, branch=is_branch):
        return block, body()


def end(values: Sequence[Value]) -> None:
    """End the block that is built at the moment: what it yields to the op around it."""
    current("control flow").emit(Yield(tuple(values)))


def emit_branch(condition: Scalar, blocks: tuple[Block, Block], yields: Sequence[Sequence[Value]]) -> tuple[Value, ...]:
    """End the two sides of a branch with what each yields, emit it after them, and return its results."""
    tracer = current("a branch")
    for block, values in zip(blocks, yields, strict=True):
        with tracer.inside(block, branch=True):
            end(values)
    return tracer.emit(If(condition.value, *blocks), *[value.type for value in yields[0]])


@dataclass(frozen=True, eq=False)
class Counter:
    """What counts a loop: the values that its index starts from, stops before and steps by.

    The index that the body sees has the type `dtype`. It is the loop's own, unless the step behind its last value
    leaves the type: then the loop counts in 64 bits, or where these do not hold it either, its iterations; `origin`
    is then the first number and the step.
    """

    start: Value
    stop: Value
    step: Value
    unroll: int | None
    dtype: DType
    origin: tuple[int, int] | None = None

    @staticmethod
    def of(span: DeviceRange) -> Counter:
        """Return what counts a loop over a range; bounds of other types than the index's are converted here."""
        dtype, bounds = span.dtype, (span.start, span.stop, span.step)
        origin = None
        if span.ends_outside(dtype):
            if isinstance(span.start, int) and span.ends_outside(int64):
                origin = span.start, span.step
                bounds = (0, _count(builtins.range(*bounds)), 1)
            start, stop, step = (as_scalar(x, int64).value for x in bounds)
        else:
            start, stop, step = (as_scalar(x, dtype).value for x in bounds)
        return Counter(start, stop, step, span.unroll, dtype, origin)

    def index(self, name: str | None = None) -> Value:
        """Return an index for the loop's body to take, with what is known of it."""
        return Value(self.start.type, name, index_facts(self.start, self.stop, self.step))

    def number(self, index: Value) -> Scalar:
        """Return the number of the range that an index stands for."""
        if self.origin is None:
            return convert(Scalar(index), self.dtype)
        first, step = (as_scalar(x % 2**64, uint64) for x in self.origin)
        return convert(convert(Scalar(index), uint64) * step + first, self.dtype)  # modulo 2**64, so exact


def emit_loop(counter: Counter, init: Sequence[Value], block: Block) -> tuple[Value, ...]:
    """Emit a loop whose body has been recorded and ended, and return what it carries at its end."""
    op = For(counter.start, counter.stop, counter.step, tuple(init), block, counter.unroll)
    return _with_facts(current("a loop").emit(op, *[value.type for value in init]), block.arguments[1:])


def emit_while(init: Sequence[Value], test: Block, block: Block) -> tuple[Value, ...]:
    """Emit a loop that runs while a test yields true; both blocks have been recorded and ended."""
    results = current("a loop").emit(While(tuple(init), test, block), *[value.type for value in init])
    return _with_facts(results, block.arguments)


def _with_facts(results: tuple[Value, ...], arguments: Sequence[Value]) -> tuple[Value, ...]:
    """Note that what holds of a carried value in every iteration holds of the last one."""
    for result, argument in zip(results, arguments, strict=True):
        result.facts = argument.facts
    return results


def _nothing() -> None:
    pass


def _disagreement(what: str, types: Sequence[Sequence[object]]) -> LanguageError:
    first, second = (", ".join(map(str, side)) or "nothing" for side in types)
    return LanguageError(f"{what} {first} and {second}", help="return equally many numbers of the same types")


# --- ranges --------------------------------------------------------------------------------------------


class DeviceRange:
    """A loop on the device over start, start + step, ... up to but not including stop.

    Inside a kernel `range` means this. `unroll=True` makes the compiler unroll the loop, `unroll=n` n times,
    `unroll=False` or 1 not at all; by default the compiler decides.

    Raises `LanguageError` for a step of 0 and for bounds that are not integers.
    """

    def __init__(self, start: Any, stop: Any = None, step: Any = 1, *, unroll: bool | int | None = None) -> None:
        if stop is None:
            start, stop = 0, start
        self.start: Any = _bound(start)
        self.stop: Any = _bound(stop)
        self.step: Any = _bound(step)
        if isinstance(self.step, int) and self.step == 0:
            raise LanguageError("the step of a range is 0")
        self.unroll: int | None = _unroll_count(unroll)

    @property
    def dtype(self) -> DType:
        """The type of the index: int32, or a wider type if a bound has one."""
        types = [x.dtype if isinstance(x, Scalar) else default_type(x) for x in (self.start, self.stop, self.step)]
        return promote(promote(types[0], types[1]), promote(types[2], int32))

    def ends_outside(self, dtype: DType) -> bool:
        """Return whether the index after the last overflows a type, where stop and step are known while tracing."""
        if not (isinstance(self.stop, int) and isinstance(self.step, int)):
            return False
        if isinstance(self.start, int):
            numbers = builtins.range(self.start, self.stop, self.step)
            behind = self.start + _count(numbers) * self.step
        else:
            behind = self.stop + self.step + (-1 if self.step > 0 else 1)
        return not dtype.lowest <= behind <= dtype.highest

    def enter(self) -> Callable[[Any], Any]:
        """Return the loop variable for the number that counts the iterations: the number itself."""
        return lambda number: number

    def __iter__(self) -> Iterator[int]:
        """Iterate in Python, as a comprehension does; only bounds that are known while tracing can."""
        return iter(_unrollable(self._known()))

    def __len__(self) -> int:
        known = self._known()
        if _count(known) > sys.maxsize:
            raise LanguageError(f"{shown(known)} has more than {sys.maxsize} numbers, the most that len() can say")
        return _count(known)

    def __getitem__(self, index: int | slice) -> int | builtins.range:
        known = self._known()
        try:
            item = known[index]
        except (IndexError, TypeError) as error:
            raise LanguageError(f"item {shown(index)} of {shown(known)}: {error}") from None
        return _unrollable(item) if isinstance(item, builtins.range) else item

    def _known(self) -> builtins.range:
        """Return Python's range of the same numbers."""
        for bound in (self.start, self.stop, self.step):
            if isinstance(bound, Scalar):
                raise LanguageError(
                    "this range has bounds that only the device knows, so only a for statement can loop over it",
                    help="write a for loop, or make the bound a tw.constexpr parameter",
                )
        return builtins.range(self.start, self.stop, self.step)

    def contains(self, x: Any) -> Any:
        """Return whether the range contains `x`: `x in range(...)` on device values."""
        low, high = (
            (self.start, self.stop)
            if not isinstance(self.step, int) or self.step > 0
            else (self.stop + 1, self.start + 1)
        )
        if isinstance(low, int) and isinstance(high, int) and high - low > int32.highest and x.dtype.is_integer:
            x = convert(x, promote(x.dtype, int64))  # x - start may not fit into 32 bits
        inside = (low <= x) & (x < high)
        return (
            inside
            if isinstance(self.step, int) and self.step in (1, -1)
            else inside & ((x - self.start) % self.step == 0)
        )


def _count(numbers: builtins.range) -> int:
    """Return how many numbers a range has, which `len` says only up to 2**63."""
    return max(-((numbers.start - numbers.stop) // numbers.step), 0)


def _unrollable(numbers: builtins.range) -> builtins.range:
    """Return a range that is iterated while tracing; one that would take minutes and all memory is refused."""
    if _count(numbers) > MAX_UNROLLED:
        raise LanguageError(
            f"{shown(numbers)} has more than {MAX_UNROLLED} numbers, and is to be iterated while the kernel is traced",
            help="write a for statement over range(...), which is a loop on the device",
        )
    return numbers


def _bound(x: Any) -> Any:
    if isinstance(x, Scalar):
        if not x.dtype.is_integer:
            raise LanguageError(
                f"a bound of a range is {x.dtype}, and it must be an integer", help="convert it: int(x), or tw.int32(x)"
            )
        return x
    try:
        return operator.index(x)
    except TypeError:
        raise LanguageError(
            f"a bound of a range is {given(x)}, and it must be an integer",
            help="divide integers by //, or convert it: int(x)" if isinstance(x, float) else None,
        ) from None


def _unroll_count(unroll: bool | int | None) -> int | None:
    if unroll is None:
        return None
    if unroll is True:
        return 0
    try:
        count = operator.index(unroll)
    except TypeError:
        count = -1
    if not 0 <= count <= int32.highest:
        raise LanguageError(f"unroll is {unroll!r}; expected True, False or how many times, an int from 1")
    return max(count, 1)


def static_range(start: int, stop: int | None = None, step: int = 1) -> builtins.range:
    """Return a range that is unrolled while tracing: its index is a Python int in the body.

    Raises `LanguageError` for a bound that is a device value.
    """
    for bound in (start, stop, step):
        if isinstance(bound, Scalar):
            raise LanguageError(
                "tw.static_range needs bounds that are known while tracing, and one is a device value",
                help="use range(...) for a loop on the device, or a tw.constexpr parameter for the bound",
            )
    integer("tw.static_range", "stop" if stop is None else "start", start)
    if stop is not None:
        integer("tw.static_range", "stop", stop)
        if integer("tw.static_range", "step", step) == 0:
            raise LanguageError("the step of tw.static_range is 0")
    return _unrollable(builtins.range(start) if stop is None else builtins.range(start, stop, step))
