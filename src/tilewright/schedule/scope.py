"""What is known at one point of a kernel that is built: where its loops stand, and where the elements of arrays are.

A `Scope` has the values of indices and sizes, their bounds, and the `Storage` of each array: the array itself, or the
cache that holds its elements at the moment. It emits what needs no more than that: loops, conditions and statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import reduce
from typing import Any

from tilewright.dtypes import DType, bool_, float32, int32, int64, promote
from tilewright.errors import ScheduleError
from tilewright.instructions.barrier import named_barrier, sync_threads
from tilewright.layout import Layout
from tilewright.schedule.affine import Affine, Dimension, Index, Position
from tilewright.schedule.arrays import Array, Load, Store, View
from tilewright.schedule.binding import WARPGROUP
from tilewright.schedule.caches import Cache
from tilewright.schedule.conditions import Case, cases, truth_of
from tilewright.schedule.elements import READ
from tilewright.schedule.loop_nest import Condition, Loop, Part, Statement, at_places, grouped
from tilewright.schedule.plan_state import PlanState, sizes_of
from tilewright.schedule.values import Apply, Convert, Decision, Expression, Guard, Number
from tilewright.schedule.views import Derived, plain, product, value_of
from tilewright.source import SourceLocation
from tilewright.tensors import Tensor
from tilewright.trace.carry import rename
from tilewright.trace.control import branch
from tilewright.trace.control import loop as emit_loop
from tilewright.trace.scalar import Scalar, as_scalar, select
from tilewright.trace.threads import linear_thread
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
        self.array = array
        self.tensor = tensor
        self.origin = origin
        self.steps = steps

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


class StageState:
    """Which stage of a ring is next, and the parity of its phase; loops of the kernel carry both."""

    def __init__(self, stages: int, *, has_phase: bool = True) -> None:
        self.stages = stages
        self.has_phase = has_phase
        self.stage: Any = 0  # Any: a number of host or device
        self.phase: Any = 0

    def advance(self, when: Any = True) -> None:  # Any: a condition of host or device
        """Go on to the next stage, where `when` holds."""
        following: dict[str, Any] = {}  # Any: numbers of the device
        if self.stages == 1:
            following["phase"] = self.phase ^ 1
        else:
            stage = as_scalar(self.stage + 1)
            is_over = stage == self.stages
            following["stage"] = select(is_over, 0, stage)
            if self.has_phase:
                following["phase"] = select(is_over, self.phase ^ 1, self.phase)
        for name in self.leaves:
            value = following[name]
            setattr(self, name, value if when is True else select(as_scalar(when), value, getattr(self, name)))

    @property
    def leaves(self) -> tuple[str, ...]:
        """The names of what a loop carries."""
        return (*(("stage",) if self.stages > 1 else ()), *(("phase",) if self.has_phase else ()))


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
        cache_memory: Mapping[Cache, Tensor] | None = None,
    ) -> None:
        self.plan = plan
        self.cache_memory: Mapping[Cache, Tensor] = cache_memory or {}  # of those in global memory, of all blocks
        self.loops: tuple[Loop, ...] = tuple(plan.nest.loop(index) for index in plan.serial)
        self.carried: tuple[Index, ...] = plan.carried
        self.values: dict[Any, Any] = _sizes(plan, arguments)  # Any: symbols to numbers of host or device
        self.values[READ] = self._place_read
        self.ranges: dict[Index, tuple[int, int | None]] = {loop.index: (0, loop.last) for loop in plan.nest.loops}
        self.k_indices: set[Any] = set()  # Any: values of the IR
        self.parts: Parts = ()
        self.ring_states: list[Any] = []  # Any: states of rings, whose `leaves` the loops carry
        self.storage: dict[Array, Storage] = {}
        for array in plan.arrays:
            found = storage_among(array, arguments, self.values)
            if found is not None:
                self.storage[array] = found

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
        """Whether what a cache is filled from is needed: of a TEMP array, by the parts of the moment.

        They need it where one reads the array, and where none writes the whole box, all of which is written back.
        """
        plan = self.plan
        if not plan.is_temporary(cache.array):
            return plan.is_read(cache)
        if plan.is_new(cache):
            return False
        reads = any(not access.is_write for access in plan.accesses(cache.array, self.parts))
        return reads or not any(plan.is_overwritten(cache, part) for part in self.parts)

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
        """The threads of a block, without those of a producer."""
        x, y, z = self.plan.block
        return x * y * z - (WARPGROUP if self.plan.producer else 0)

    @property
    def thread(self) -> Any:  # Any: a device number
        """The number of the thread among `threads`: a producer comes before them."""
        return linear_thread() - WARPGROUP if self.plan.producer else linear_thread()

    def meet(self) -> None:
        """Let the threads of the block wait for one another, but for a producer."""
        if self.plan.producer:
            named_barrier(1, self.threads).sync()
        elif self.threads > 1:
            sync_threads()

    def _place_read(self, load: Load, values: Mapping[Any, Any]) -> Scalar:  # Any: symbols; device numbers
        """Return an element that says where another one is, in a type that does not wrap where places are computed."""
        value = as_scalar(self.storage[load.array].load(load.place, values))
        if load.element_type is not load.array.element_type:
            value = value.to(load.array.element_type).bitcast(load.element_type)
        fits = load.element_type.bits < 32 or load.element_type is int32
        return value.to(int32 if fits else int64)

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
        self.repeat(low, stop, loop.step, iteration, loop.index.name, unroll)

    def repeat(
        self,
        start: Any,  # Any: numbers of host or device
        stop: Any,
        step: Any,
        body: Callable[[Any], None],
        name: str,
        unroll: bool | None = None,
    ) -> None:
        """Emit a loop of the device, which carries the states of rings."""
        leaves = [(state, leaf) for state in self.ring_states for leaf in state.leaves]

        def iteration(value: Scalar, *carried: Scalar) -> list[Any]:  # Any: numbers of host or device
            for (state, leaf), number in zip(leaves, carried, strict=True):
                rename(leaf, number)
                setattr(state, leaf, number)
            body(value)
            return [getattr(state, leaf) for state, leaf in leaves]

        init = [getattr(state, leaf) for state, leaf in leaves]
        after = emit_loop(start, stop, step, iteration, init, unroll=unroll, name=name)
        for (state, leaf), number in zip(leaves, after, strict=True):
            setattr(state, leaf, number)

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
        return value.bounds(lambda symbol: self.ranges[symbol] if isinstance(symbol, Index) else (0, None))

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
        return all(symbol in self.values for symbol in value.symbols())

    def when(self, conditions: tuple[Condition, ...], body: Callable[[], None]) -> None:
        """Emit something under conditions of the loops, in which no stage of a ring is filled or read.

        Loops inside carry the states of rings as all loops do; behind the branch these are what they were before.
        """
        before = [(state, leaf, getattr(state, leaf)) for state in self.ring_states for leaf in state.leaves]
        branch(self.holds(conditions), body)
        for state, leaf, number in before:
            setattr(state, leaf, number)

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
        self._grouped([at_places(s, part.places, self.plan.nest.loops) for s in part.statements], 0)

    def _is_impossible(self, case: Case) -> bool:
        for value, is_equality in case:
            low, high = self.bounds(value)
            if (high is not None and high < 0) or (is_equality and low is not None and low > 0):
                return True
        return False

    def _grouped(self, statements: list[Statement], depth: int) -> None:
        """Emit statements that have `depth` conditions in common, those of each further condition in a branch."""
        for group in grouped(statements, depth):
            if isinstance(group, Statement):
                self._statement(group)
                continue
            test, then, orelse = group
            with located((then or orelse)[0].location):
                branch(
                    self.test(test),
                    lambda then=then: self._grouped(then, depth + 1),  # type: ignore[misc]  # bound now
                    (lambda orelse=orelse: self._grouped(orelse, depth + 1)) if orelse else None,  # type: ignore[misc]
                )

    def _statement(self, statement: Statement) -> None:
        with located(statement.location):
            store = statement.store
            value = self._evaluate(store.value, compute_type(statement))
            target = self.storage[store.array]
            target.store(store.place, self.values, stored(store, value, target.tensor.dtype))

    def _evaluate(self, x: Expression, type: DType) -> Any:  # Any: device numbers
        return evaluate(
            x,
            type,
            lambda load: self.storage[load.array].load(load.place, self.values),
            lambda place: place.evaluate(self.values),
        )

    def test(self, x: Expression) -> Any:  # Any: a condition of host or device
        """Return whether a condition of the logic holds at the present values of the loops."""
        for holds in (True, False):
            if all(map(self._is_impossible, cases([Guard(Decision(), x, holds)]))):
                return not holds
        return truth_of(self._evaluate(x, type_of(x.types())))


# --- values ----------------------------------------------------------------------------------------------


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
    return type_of([statement.store.element_type, *statement.store.value.types()])


def type_of(types: Iterable[DType]) -> DType:
    """Return the type that values of some types are computed in: the widest of them, float32 or int32 at least."""
    type = reduce(promote, types, bool_)
    if type.is_float:
        return type if type.bits >= 32 else float32
    return promote(type, int32) if type.bits < 32 else type


def evaluate(
    x: Expression, type: DType, load: Callable[[Load], Any], affine: Callable[[Affine], Any]
) -> Any:  # Any: device numbers
    """Return an expression's value: `load` reads elements, which are converted to `type`, `affine` gives indices."""
    if isinstance(x, Load):
        value = as_scalar(load(x))
        if x.element_type is not x.array.element_type:  # a view of another type: the bits, as they are in the array
            value = value.to(x.array.element_type).bitcast(x.element_type)
        return value if value.dtype.kind == "bool" else value.to(type)
    if isinstance(x, Number):
        return x.value
    if isinstance(x, Position):
        place = as_scalar(affine(x.place))
        return place.to(type) if type.is_float else place
    if isinstance(x, Convert) or (isinstance(x, Apply) and x.is_comparison):
        own = type_of([t for part in (x, *x.operands) for t in part.types()])  # integers among floats stay integers
        type = promote(own, type) if own.is_float is type.is_float else own
    if isinstance(x, Convert):
        return as_scalar(evaluate(x.value, type, load, affine)).to(x.dtype)
    if isinstance(x, Apply):
        return x.function(*(evaluate(part, type, load, affine) for part in x.arguments))
    raise ScheduleError(f"{x} is not an expression")


def stored(store: Store, value: Any, type: DType) -> Scalar:  # Any: a number of host or device
    """Return a value as memory of a type holds it: converted to that of the element that the logic writes.

    A view of another type writes the bits of its own.
    """
    if store.element_type is store.array.element_type:
        return as_scalar(value, None).to(type)
    return as_scalar(value, None).to(store.element_type).bitcast(store.array.element_type).to(type)


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


def _sizes(plan: PlanState, arguments: Mapping[Array, Any]) -> dict[Any, Any]:  # Any: tensors; device numbers
    """Return the size of each dimension: the extent of the first array that has it, or an argument of its own."""
    sizes: dict[Any, Any] = {}
    for array, tensor in arguments.items():
        for mode, extent in enumerate(array.shape):
            if isinstance(extent, Dimension) and not isinstance(extent, Derived) and extent not in sizes:
                sizes[extent] = tensor.shape[mode]
    for array, number in arguments.items():
        if array.stands_for is not None:
            sizes.setdefault(array.stands_for, number)
    for size in sizes_of(plan):
        if isinstance(size, Derived):
            sizes[size] = size.value(sizes)
    return sizes


def storage_among(
    array: Array, arguments: Mapping[Array, Any], sizes: Mapping[Any, Any]
) -> Storage | None:  # Any: tensors and device numbers
    """Return where the elements of an array are among a kernel's arguments: in itself, in a part, or in its memory."""
    zero = Affine((), 0)
    if array in arguments:
        return Storage(array, declared(array, arguments[array]), (zero,) * array.rank)
    for given, tensor in arguments.items():
        if given.base is array and isinstance(given, View):
            return _storage_of_part(array, given, declared(given, tensor))
    if array.memory not in arguments:
        return None
    return Storage(array, seen_as(array, declared(array.memory, arguments[array.memory]), sizes), (zero,) * array.rank)


def _storage_of_part(array: Array, part: View, tensor: Tensor) -> Storage:
    """Return the storage of an array of which the launch gives a part, whose first element is the part's offset."""
    strides = tuple(plain(step) for step in array.steps)
    shape = tuple(
        extent - offset.constant if isinstance(extent, int) and offset.is_constant else 1
        for extent, offset in zip(array.shape, part.projection.offsets, strict=True)
    )
    engine = tensor.engine if part.element_type is array.element_type else tensor.engine.recast(array.element_type)
    return Storage(array, Tensor(engine, Layout(shape, strides)), part.projection.offsets)


def seen_as(form: Array, tensor: Tensor, sizes: Mapping[Any, Any]) -> Tensor:  # Any: numbers of host or device
    """Return the memory in a tensor with the coordinates of a form."""
    engine = tensor.engine if form.element_type is form.memory.element_type else tensor.engine.recast(form.element_type)
    if form.start:
        engine = engine.offset(form.start)
    shape = tuple(value_of(n, sizes) if isinstance(n, Dimension) else n for n in form.shape)
    strides = tuple(product(step, sizes) for step in form.steps)
    return Tensor(engine, Layout(shape, strides) if form.rank > 1 else Layout(shape[0], strides[0]))


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
