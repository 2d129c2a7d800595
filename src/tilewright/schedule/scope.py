"""What is known at one point of a kernel that is built: where its loops stand, and where the elements of arrays are.

A `Scope` has the values of indices and sizes, their bounds, and the `Storage` of each array: the array itself, or the
cache that holds its elements at the moment. It emits what needs no more than that: loops, conditions and statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from tilewright.dtypes import DType, float32, int32, promote
from tilewright.errors import ScheduleError
from tilewright.layout import Layout
from tilewright.schedule.affine import Affine, Apply, Convert, Dimension, Expression, Index, Number, Position
from tilewright.schedule.arrays import Array, Load, Role
from tilewright.schedule.caches import Cache
from tilewright.schedule.loop_nest import Condition, Loop, Part, Statement, at_places
from tilewright.schedule.plan_state import PlanState
from tilewright.source import SourceLocation
from tilewright.tensors import Tensor
from tilewright.trace.control import branch
from tilewright.trace.control import loop as emit_loop
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import current

Parts = tuple[Part, ...]


class Storage:
    """A tensor that holds the elements of an array from `origin` on, those that lie `steps` apart.

    `tensor` has the modes of the array. A number of the launch (an array without modes) is held as it is.
    """

    def __init__(
        self,
        array: Array,
        tensor: Any,  # Any: a Tensor, or a device number for an array without modes
        origin: tuple[Affine, ...],
        steps: tuple[int, ...] = (),  # 1 in each mode where none are given
    ) -> None:
        self.array, self.tensor, self.origin, self.steps = array, tensor, origin, steps

    def place(self, place: tuple[Affine, ...]) -> tuple[Affine, ...]:
        """Return how far from the origin an element stands in the array."""
        return tuple(mode - start for mode, start in zip(place, self.origin, strict=True))

    def load(self, place: tuple[Affine, ...], values: Mapping[Any, Any]) -> Any:  # Any: symbols; device numbers
        """Return an element."""
        if not place:
            return self.tensor
        return self.tensor[self.coordinates(place, values)]

    def store(self, place: tuple[Affine, ...], values: Mapping[Any, Any], value: Any) -> None:  # Any: as in load
        """Write an element, converted to the tensor's type."""
        self.tensor[self.coordinates(place, values)] = value

    def coordinates(self, place: tuple[Affine, ...], values: Mapping[Any, Any]) -> Any:  # Any: as in load
        """Return the coordinates of an element in the tensor."""
        place_in_tensor = tuple(
            _quotient(mode, step, values)
            for mode, step in zip(self.place(place), self.steps or (1,) * len(place), strict=True)
        )
        return place_in_tensor if len(place_in_tensor) != 1 else place_in_tensor[0]


class Scope:
    """One point of a kernel that is built.

    `values` are the indices and sizes that are known so far, `ranges` their bounds. `storage` says where accesses
    of each array go at this point, `parts` what is emitted at the moment. For counting, `k_indices` has the indices of
    the loops over K that were emitted.
    """

    def __init__(
        self,
        plan: PlanState,
        arguments: Mapping[Array, Any],  # Any: tensors and device numbers
        scratch: Mapping[Cache, Tensor] | None = None,
    ) -> None:
        self.plan = plan
        self.scratch: Mapping[Cache, Tensor] = scratch or {}  # the memory of caches in global memory, of all blocks
        self.loops: tuple[Loop, ...] = tuple(plan.nest.loop(index) for index in plan.serial)
        self.carried = plan.carried
        self.values: dict[Any, Any] = _sizes(arguments)  # Any: symbols to numbers of host or device
        self.ranges: dict[Index, tuple[int, int | None]] = {loop.index: (0, loop.last) for loop in plan.nest.loops}
        self.k_indices: set[Any] = set()  # Any: values of the IR
        zero = Affine((), 0)
        self.parts: Parts = ()
        self.storage: dict[Array, Storage] = {
            array: Storage(array, declared(array, tensor), (zero,) * array.rank) for array, tensor in arguments.items()
        }

    @contextmanager
    def knowing(self, values: Mapping[Index, Any], lasts: Mapping[Index, int] | None = None) -> Iterator[None]:
        """Let indices have values for a while, whose greatest ones are known."""  # Any: numbers of host or device
        with ExitStack() as stack:
            for index, value in values.items():
                last = (lasts or {}).get(index)
                stack.enter_context(self.at(index, value, (0, last if last is not None else 0)))
            yield

    @contextmanager
    def at(self, index: Index, value: Any, span: tuple[int, int | None]) -> Iterator[None]:  # Any: device numbers
        """Let an index have a value for a while."""
        outer, known = self.ranges[index], dict(self.values)
        self.values = {**known, index: value}
        self.ranges[index] = (value, value) if isinstance(value, int) else span
        try:
            yield
        finally:
            self.ranges[index], self.values = outer, known

    def caches(self, depth: int, parts: Parts) -> list[Cache]:
        """Return the caches that are filled inside of so many serial loops and that some part uses."""
        used = {access.array for part in parts for statement in part.statements for access in statement.accesses}
        return [cache for cache in self.plan.caches_at(depth) if cache.array in used]

    def is_filled(self, cache: Cache) -> bool:
        """Whether what a cache is filled from is needed: of a TEMP array, where some part of the moment reads it."""
        if cache.array.role is not Role.TEMP:
            return self.plan.is_read(cache)
        statements = [statement for part in self.parts for statement in part.statements]
        reads = any(x.array is cache.array and not x.is_write for s in statements for x in s.accesses)
        return reads and not self.plan.is_new(cache)

    @contextmanager
    def holding(self, storage: Mapping[Array, Storage]) -> Iterator[None]:
        """Let accesses of arrays go to other storage for a while."""
        outer = dict(self.storage)
        self.storage.update(storage)
        try:
            yield
        finally:
            self.storage = outer

    @property
    def threads(self) -> int:
        """The threads of a block."""
        x, y, z = self.plan.block
        return x * y * z

    # --- loops and conditions ----------------------------------------------------------------------------

    def run(self, loop: Loop, low: int, high: int | None, body: Callable[[Any], None]) -> None:  # Any: device numbers
        """Emit a loop of the device."""
        is_whole = high is None or high == loop.last
        stop = loop.stop.evaluate(self.values) if is_whole else high + 1  # type: ignore[operator]  # a number here

        def iteration(value: Scalar) -> None:
            if loop.index in self.carried:
                self.k_indices.add(value.value)
            body(value)

        unroll = True if loop.index in self.plan.nest.unrolled else None
        emit_loop(low, stop, loop.step, iteration, unroll=unroll, name=loop.index.name)

    def span(self, loop: Loop, parts: Parts) -> tuple[int, int | None]:
        """Return the least and greatest value of a loop's index at which any part may run."""
        spans = [self._span_of(loop, part) for part in parts]
        whole = loop.last
        lows = [low for low, _ in spans]
        highs = [whole if high is None else high for _, high in spans]
        low = max(min(lows, default=0), 0)
        low += -low % loop.step
        if any(high is None for high in highs):
            return low, None
        high = max((high for high in highs if high is not None), default=0)
        return low, high - high % loop.step

    def _span_of(self, loop: Loop, part: Part) -> tuple[int, int | None]:
        low, high = 0, loop.last
        for condition in part.conditions:
            factor = condition.value.factor(loop.index)
            if factor == 0:
                continue
            # factor * index + rest >= 0 (or == 0), where the rest lies between `least` and `most`.
            least, most = self.bounds(condition.value - factor * loop.index)
            for sign, end in ((1, most), (-1, least)) if condition.is_equality else ((1, most),):
                if end is None:
                    continue
                if sign * factor > 0:
                    low = max(low, -((sign * end) // (sign * factor)))
                else:
                    edge = (sign * end) // -(sign * factor)
                    high = edge if high is None else min(high, edge)
        return low, high

    def bounds(self, value: Affine) -> tuple[int | None, int | None]:
        """Return the least and greatest value of an expression as far as they are known, None where they are not."""
        low: int | None = value.constant
        high: int | None = value.constant
        for symbol, factor in value.terms:
            least, most = self.ranges[symbol] if isinstance(symbol, Index) else (0, None)
            ends = (least, most) if factor > 0 else (most, least)
            low = None if low is None or ends[0] is None else low + factor * ends[0]
            high = None if high is None or ends[1] is None else high + factor * ends[1]
        return low, high

    def decided(self, part: Part) -> Part | None:
        """Return the part without the conditions that hold here for certain, None where one fails for certain."""
        kept = []
        for condition in part.conditions:
            low, high = self.bounds(condition.value)
            if (high is not None and high < 0) or (condition.is_equality and low is not None and low > 0):
                return None
            holds = low == high == 0 if condition.is_equality else low is not None and low >= 0
            if not holds:
                kept.append(condition)
        return replace(part, conditions=tuple(kept))

    def is_known(self, value: Affine) -> bool:
        return all(symbol in self.values for symbol, _ in value.terms)

    def when(self, conditions: tuple[Condition, ...], body: Callable[[], None]) -> None:
        """Emit something under conditions of the loops."""
        branch(self.holds(conditions), body)

    def holds(self, conditions: tuple[Condition, ...]) -> Any:  # Any: a condition of host or device
        """Return whether conditions hold at the present values of the loops."""
        holds: Any = True
        for condition in conditions:
            value = condition.value
            this = (_is_zero if condition.is_equality else _not_negative)(value, self.values)
            holds = this if holds is True else holds & this
        return holds

    # --- statements --------------------------------------------------------------------------------------

    def statements(self, parts: Parts) -> None:
        """Emit the statements of the parts, in order."""
        for part in parts:
            alive = self.decided(part)
            if alive is not None:
                self.when(alive.conditions, lambda part=alive: self._run(part))  # type: ignore[misc]  # bound now

    def _run(self, part: Part) -> None:
        for statement in part.statements:
            with located(statement.location):
                moved = at_places(statement, part.places).store
                type = compute_type(statement)
                value = evaluate(
                    moved.value,
                    type,
                    lambda load: self.storage[load.array].load(load.place, self.values),
                    lambda place: place.evaluate(self.values),
                )
                target = self.storage[moved.array]
                target.store(moved.place, self.values, as_scalar(value, None).to(target.tensor.dtype))


# --- values ----------------------------------------------------------------------------------------------


_COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!="})


def compute_type(statement: Statement) -> DType:
    """Return the type that a statement computes in: that of its widest array, float32 or int32 at least.

    >>> from tilewright.schedule import Array, Nest, Role
    >>> A, C = Array(Role.INPUT, "float16", (4,), name="A"), Array(Role.OUTPUT, "float16", (4,), name="C")
    >>> nest = Nest((4,))
    >>> i = nest.get_indices()
    >>> @nest.iteration_logic
    ... def _(): C[i] = A[i] * 2.0
    >>> compute_type(nest.statements[0])
    tw.float32
    """
    type = statement.store.array.element_type
    for load in statement.store.value.loads():
        type = promote(type, load.array.element_type)
    if type.is_float:
        return type if type.bits >= 32 else float32
    return promote(type, int32) if type.bits < 32 else type


def evaluate(
    x: Expression, type: DType, load: Callable[[Load], Any], affine: Callable[[Affine], Any]
) -> Any:  # Any: device numbers
    """Return an expression's value: `load` reads elements, which are converted to `type`, `affine` gives indices."""
    if isinstance(x, Load):
        value = as_scalar(load(x))
        return value if value.dtype.kind == "bool" else value.to(type)
    if isinstance(x, Number):
        return x.value
    if isinstance(x, Position):
        place = as_scalar(affine(x.place))
        return place.to(type) if type.is_float else place
    if isinstance(x, Convert):
        return as_scalar(evaluate(x.value, type, load, affine)).to(x.dtype)
    if isinstance(x, Apply):
        # Indices are compared with one another as the integers that they are.
        is_test_of_indices = x.name in _COMPARISONS and next(iter(x.loads()), None) is None
        operands = [evaluate(part, int32 if is_test_of_indices else type, load, affine) for part in x.arguments]
        return x.function(*operands)
    raise ScheduleError(f"{x} is not an expression")


def _quotient(place: Affine, step: int, values: Mapping[Any, Any]) -> Any:  # Any: symbols; device numbers
    """Return place / step, which is a whole number."""
    if all(factor % step == 0 for _, factor in place.terms) and place.constant % step == 0:
        return Affine.of({s: factor // step for s, factor in place.terms}, place.constant // step).evaluate(values)
    return place.evaluate(values) // step


def _not_negative(value: Affine, values: Mapping[Any, Any]) -> Any:  # Any: symbols; numbers of host or device
    """Return value >= 0, written as a bound: what is taken off stands on the left, and all else on the right."""
    small = Affine.of({s: -c for s, c in value.terms if c < 0})
    large = Affine.of({s: c for s, c in value.terms if c > 0})
    if not small.terms:
        return large.evaluate(values) >= -value.constant
    if not large.terms:
        return small.evaluate(values) < value.constant + 1
    if value.constant >= 0:
        return small.evaluate(values) <= (large + value.constant).evaluate(values)
    return (small - (value.constant + 1)).evaluate(values) < large.evaluate(values)


def _is_zero(value: Affine, values: Mapping[Any, Any]) -> Any:  # Any: symbols; numbers of host or device
    """Return value == 0, written as indices that are equal to others and a number."""
    left = Affine.of({s: c for s, c in value.terms if c > 0})
    right = left - value
    if not left.terms:
        left, right = right - right.constant, Affine((), -right.constant)
    return left.evaluate(values) == right.evaluate(values)


def _sizes(arguments: Mapping[Array, Any]) -> dict[Any, Any]:  # Any: tensors; dimensions to device numbers
    """Return the size of each dimension: the extent of the first array that has it."""
    sizes: dict[Any, Any] = {}
    for array, tensor in arguments.items():
        for mode, extent in enumerate(array.shape):
            if isinstance(extent, Dimension) and extent not in sizes:
                sizes[extent] = tensor.shape[mode]
    return sizes


def declared(array: Array, tensor: Any) -> Any:  # Any: a tensor, or a number for an array without modes
    """Return an argument with the extents and strides that were declared; calls are checked to have them."""
    if not array.rank:
        return tensor
    shape = tensor.layout.shape if array.rank > 1 else (tensor.layout.shape[0],)
    shape = tuple(n if isinstance(n, int) else given for n, given in zip(array.shape, shape, strict=True))
    steps = zip(array.strides, tensor.layout.stride, strict=True)
    return Tensor(tensor.engine, Layout(shape, tuple(given if step is None else step for step, given in steps)))


@contextmanager
def located(location: SourceLocation | None) -> Iterator[None]:
    """Let what is built for a while stand at a line of the user's."""
    tracer = current("a statement")
    outer, tracer.place = tracer.place, location or tracer.place
    try:
        yield
    finally:
        tracer.place = outer
