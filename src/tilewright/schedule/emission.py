"""Building a plan's kernel: its loops, conditions and statements become operations of the language."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.lang.branches import if_statement
from tilewright.lang.carry import rename
from tilewright.lang.loops import for_loop
from tilewright.lang.ranges import DeviceRange
from tilewright.lang.scalar import Scalar, as_scalar
from tilewright.lang.special import block_idx, thread_idx
from tilewright.lang.tracer import current
from tilewright.layout import Layout
from tilewright.schedule.affine import Affine, Dimension, Index
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.binding import Binding
from tilewright.schedule.caches import Cache, Location, caches_at
from tilewright.schedule.evaluation import compute_type, evaluate
from tilewright.schedule.filling import PrivateCache
from tilewright.schedule.loop_nest import Condition, Loop, Part
from tilewright.schedule.pipelines import is_ahead, pipelined_loop, with_caches
from tilewright.schedule.rewriting import at_places
from tilewright.schedule.storage import Storage
from tilewright.schedule.tiles import Tiles
from tilewright.schedule.vectors import vector_loop
from tilewright.source import SourceLocation
from tilewright.tensors import Tensor

if TYPE_CHECKING:
    from tilewright.schedule.plan import Plan

Parts = tuple[Part, ...]


class Emission:
    """One building of a kernel. `values` are the indices and sizes that are known so far, `ranges` their static bounds.

    `storage` says where accesses of each array go at this point.
    """

    def __init__(self, plan: Plan, arguments: Mapping[Array, Any]) -> None:  # Any: tensors and numbers of the device
        self.plan = plan
        self.loops: tuple[Loop, ...] = tuple(plan.nest.loop(index) for index in plan.serial)
        self.values: dict[Any, Any] = _sizes(arguments)  # Any: symbols to numbers of host or device
        self.ranges: dict[Index, tuple[int, int | None]] = {loop.index: (0, loop.last) for loop in plan.nest.loops}
        self.tensors = None if plan.tensorization is None else Tiles(self, plan.tensorization)
        zero = Affine((), 0)
        self.parts: Parts = ()  # what is emitted at the moment
        self.storage: dict[Array, Storage] = {
            array: Storage(array, declared(array, tensor), (zero,) * array.rank) for array, tensor in arguments.items()
        }

    def emit(self) -> None:
        """Emit the whole kernel."""
        for binding in self.plan.bindings:
            self._enter(binding)
        for array in self.plan.arrays:
            if array.role is Role.TEMP and not any(cache.array is array for cache in self.plan.caches):
                self._keep_in_registers(array)
        if self.tensors is not None:
            self.tensors.declare()
        self.guarded(0, self.plan.nest.parts)

    def _keep_in_registers(self, array: Array) -> None:
        """Give a TEMP array that has no cache its elements in registers: those that one thread touches."""
        serial = frozenset(self.plan.serial)
        first = self.plan.nest.order[0]
        cache = Cache(array, array, first, first, serial, location=Location.PRIVATE, element_type=array.element_type)
        private = PrivateCache(self, cache)
        self.storage[array] = private.storage(private.allocate())

    @contextmanager
    def knowing(self, values: Mapping[Index, Any], lasts: Mapping[Index, int] | None = None) -> Iterator[None]:
        """Let indices have values for a while, whose greatest ones are known."""  # Any: numbers of host or device
        with ExitStack() as stack:
            for index, value in values.items():
                last = (lasts or {}).get(index)
                stack.enter_context(self.at(index, value, (0, last if last is not None else 0)))
            yield

    def _enter(self, binding: Binding) -> None:
        special = block_idx if binding.kind == "BLOCK" else thread_idx
        number = (special.x, special.y, special.z)[binding.axis]
        if binding.kind == "WARP" and binding.axis == 0:
            number = number // self.plan.target.warp_size
        for index, value in binding.values(number, self.values).items():
            rename(index.name, value)
            self.values[index] = value
            if isinstance(value, int):
                self.ranges[index] = (value, value)

    # --- loops -------------------------------------------------------------------------------------------

    def region(self, depth: int, parts: Parts) -> None:
        """Emit what runs inside of `depth` serial loops: fill the caches of this place, run the loops, write back."""
        caches = [cache for cache in self.caches(depth, parts) if not (is_ahead(cache) and depth)]
        if caches:
            self.parts = parts
            with_caches(self, caches, depth > 0, lambda: self.loop(depth, parts))
        else:
            self.loop(depth, parts)

    def caches(self, depth: int, parts: Parts) -> list[Cache]:
        """Return the caches that are filled inside of so many serial loops and that some part uses."""
        used = {access.array for part in parts for statement in part.statements for access in statement.accesses}
        return [cache for cache in caches_at(self.plan, depth) if cache.array in used]

    def is_filled(self, cache: Cache) -> bool:
        """Whether what a cache is filled from is needed: of a TEMP array, where some part of the moment reads it."""
        if cache.array.role is not Role.TEMP:
            return cache.is_read(self.plan)
        statements = [statement for part in self.parts for statement in part.statements]
        reads = any(x.array is cache.array and not x.is_write for s in statements for x in s.accesses)
        return reads and not cache.is_new(self.plan)

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

    def loop(self, depth: int, parts: Parts) -> None:
        """Emit serial loop number `depth` and what is inside of it; behind the last loop, the statements."""
        if self.tensors is not None:
            if depth == len(self.loops) - 3:
                self.tensors.emit(parts)
                return
            if self.tensors.multiplies_at_once(depth, parts):
                self.tensors.within(parts, self.tensors.multiply_at_once)
                return
        if depth == len(self.loops):
            self.statements(parts)
            return
        loop = self.loops[depth]
        low, high = self.span(loop, parts)

        ahead = [cache for cache in self.caches(depth + 1, parts) if is_ahead(cache)]
        if ahead:
            pipelined_loop(self, loop, depth, parts, ahead)
            return

        def turn(value: Any, parts: Parts) -> None:  # Any: a number of host or device
            with self.at(loop.index, value, (low, high)):
                self.guarded(depth + 1, parts)

        if loop.index in self.plan.vectorized and depth + 1 == len(self.loops):
            assert high is not None, loop
            if low < high:
                vector_loop(self, loop, low, high, parts)
                return
        if high is not None and low == high:
            turn(low, parts)
        elif loop.index in self.plan.nest.fusing:
            assert high is not None, loop
            for number in range(low, high + 1, loop.step):
                turn(number, parts)
        else:
            self.run(loop, low, high, lambda value: turn(value, parts))

    def run(self, loop: Loop, low: int, high: int | None, body: Callable[[Any], None]) -> None:  # Any: device numbers
        """Emit a loop of the device."""
        is_whole = high is None or high == loop.last
        stop = loop.stop.evaluate(self.values) if is_whole else high + 1  # type: ignore[operator]  # a number here
        unroll = True if loop.index in self.plan.nest.unrolled else None

        def turn(value: Any) -> tuple[()]:  # Any: as above
            rename(loop.index.name, value)
            if self.tensors is not None and loop.index in self.tensors.carried:
                self.tensors.turns.add(value.value)
            body(value)
            return ()

        for_loop(DeviceRange(low, stop, loop.step, unroll=unroll), turn, (), {})

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

    # --- conditions --------------------------------------------------------------------------------------

    def guarded(self, depth: int, parts: Parts) -> None:
        """Emit what is inside of `depth` loops under the conditions that are decided there."""
        alive = tuple(decided for part in parts if (decided := self.decided(part)) is not None)
        if not alive:
            return
        if len(alive) == 1 and not self.synchronises(depth):
            known = tuple(c for c in alive[0].conditions if self.is_known(c.value))
            rest = replace(alive[0], conditions=tuple(c for c in alive[0].conditions if c not in known))
            self.when(known, lambda: self.region(depth, (rest,)))
            return
        self.region(depth, alive)

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

    def synchronises(self, depth: int) -> bool:
        """Whether threads meet inside of `depth` loops, so that none may be missing there."""
        if self.plan.tensorization is not None:
            return True
        return any(c.location is Location.SHARED and c.depth(self.plan) >= depth for c in self.plan.caches)

    def when(self, conditions: tuple[Condition, ...], body: Callable[[], None]) -> None:
        """Emit something under conditions of the loops."""
        self.choose(self.holds(conditions), body)

    def holds(self, conditions: tuple[Condition, ...]) -> Any:  # Any: a condition of host or device
        """Return whether conditions hold at the present values of the loops."""
        holds: Any = True
        for condition in conditions:
            value = condition.value
            this = (_is_zero if condition.is_equality else _not_negative)(value, self.values)
            holds = this if holds is True else holds & this
        return holds

    def choose(
        self, holds: Any, then: Callable[[], object], otherwise: Callable[[], object] | None = None
    ) -> None:  # Any: a condition of host or device
        """Emit one of two things: while tracing where the condition is known, else a branch of the device."""

        def side(body: Callable[[], object] | None) -> Callable[[], tuple[()]]:
            def run() -> tuple[()]:
                if body is not None:
                    body()
                return ()

            return run

        if isinstance(holds, Scalar):
            if_statement(holds, side(then), side(otherwise), (), (), {})
        else:
            side(then if holds else otherwise)()

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
    found: dict[Any, Any] = {}
    for array, tensor in arguments.items():
        for mode, extent in enumerate(array.shape):
            if isinstance(extent, Dimension) and extent not in found:
                found[extent] = tensor.shape[mode]
    return found


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
