"""Generated nests, schedules and plans, and an interpreter of nests in plain Python to compare kernels with."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, Dimension, Index, Position
from tilewright.schedule.arrays import Array, Load, Role
from tilewright.schedule.caches import Location, Strategy
from tilewright.schedule.conditions import If, logical_not, logical_or
from tilewright.schedule.elements import READ
from tilewright.schedule.loop_nest import LoopNest, Part
from tilewright.schedule.nest import Nest
from tilewright.schedule.package import Package
from tilewright.schedule.places import minimum
from tilewright.schedule.plan import Plan
from tilewright.schedule.schedule import Schedule, fuse
from tilewright.schedule.targets import Target
from tilewright.schedule.values import Apply, Expression, Guard, Number

EXTENT = st.integers(1, 7)
LAYOUT = st.sampled_from([Array.Layout.FIRST_MAJOR, Array.Layout.LAST_MAJOR])


@dataclass
class Case:
    """A schedule, its arrays in the order of a call, and the loops whose iterations touch elements of their own."""

    schedule: Schedule
    arrays: tuple[Array, ...]
    free: set[Index]
    sizes: Mapping[Dimension, int] = field(default_factory=dict)
    # The nests as they were declared, to run one after the other.
    before: tuple[LoopNest, ...] = field(default=(), repr=False)
    temporary: tuple[Array, ...] = ()  # TEMP arrays, which begin with zeros
    reach: Mapping[Array, int] = field(default_factory=dict)  # of arrays that say where others are read

    def __post_init__(self) -> None:
        self.before = self.before or (self.schedule.nest,)


# --- the interpreter ---------------------------------------------------------------------------------------


def visits(nest: LoopNest, sizes: Mapping[Any, int]) -> Iterator[tuple[Part, dict[Any, int]]]:
    """Yield each part and the values of its own indices, in the order in which it runs."""
    ranges = [range(0, loop.stop.evaluate(sizes), loop.step) for loop in nest.loops]
    for point in itertools.product(*ranges):
        values = dict(zip(nest.order, point, strict=True)) | dict(sizes)
        for part in nest.parts:
            tests = [(condition.value.evaluate(values), condition.is_equality) for condition in part.conditions]
            if all(value == 0 if is_equality else value >= 0 for value, is_equality in tests):
                yield part, {index: place.evaluate(values) for index, place in part.places.items()} | dict(sizes)


def interpret(nest: LoopNest, memory: Mapping[Array, Any], sizes: Mapping[Any, int]) -> None:
    """Run a nest on NumPy arrays, element by element."""
    with np.errstate(over="ignore", invalid="ignore"):
        for part, values in visits(nest, sizes):
            decided: dict[Any, bool] = {}
            values[READ] = lambda load, values: int(memory[load.array][_at(load.place, values)])
            for statement in part.statements:
                store = statement.store
                if not _runs(store.guards, decided, values, memory):
                    continue
                kind = memory[store.array].dtype.type
                memory[store.array][_at(store.place, values)] = _value(store.value, memory, values, kind)


def _runs(
    guards: tuple[Guard, ...], decided: dict[Any, bool], values: Mapping[Any, int], memory: Mapping[Array, Any]
) -> bool:
    """Whether all guards hold; each condition is computed once at a point, where its first statement stands."""
    for guard in guards:
        if guard.decision not in decided:
            decided[guard.decision] = holds(guard.test, values, memory)
        if decided[guard.decision] is not guard.holds:
            return False
    return True


def _at(place: tuple[Affine, ...], values: Mapping[Any, int]) -> tuple[int, ...]:
    found = tuple(mode.evaluate(values) for mode in place)
    assert all(index >= 0 for index in found), (place, found)
    return found


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul,
    "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip


def _value(x: Expression, memory: Mapping[Array, Any], values: Mapping[Any, int], kind: Any) -> Any:
    if isinstance(x, Load):
        return memory[x.array][_at(x.place, values)]
    if isinstance(x, Number):
        return kind(x.value)
    if isinstance(x, Position):
        return kind(x.place.evaluate(values))
    assert isinstance(x, Apply), x
    return kind(_FUNCTIONS[x.name](*(_value(part, memory, values, kind) for part in x.arguments)))


def holds(x: Expression, values: Mapping[Any, int], memory: Mapping[Array, Any] | None = None) -> bool:
    """Compute a condition of the logic."""

    def number(x: Any) -> Any:
        if isinstance(x, Load):
            assert memory is not None
            return memory[x.array][_at(x.place, values)]
        return x.value if isinstance(x, Number) else x.place.evaluate(values)

    assert isinstance(x, Apply), x
    if x.name in _JOINED:
        return bool(_JOINED[x.name](*(holds(part, values, memory) for part in x.arguments)))
    return bool(_COMPARED[x.name](*map(number, x.arguments)))


_COMPARED: dict[str, Any] = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
                             "==": operator.eq, "!=": operator.ne}  # fmt: skip
_JOINED: dict[str, Any] = {"&": operator.and_, "|": operator.or_, "~": operator.not_, "logical_and": operator.and_,
                           "logical_or": operator.or_, "logical_not": operator.not_}  # fmt: skip


def condition(draw: Any, indices: tuple[Index, ...], depth: int = 1) -> Any:
    """Draw a condition on indices."""
    kind = draw(st.sampled_from(["compare", "compare", "&", "|", "~"])) if depth else "compare"
    if kind == "compare":
        value = Affine.of({index: draw(st.integers(-1, 2)) for index in indices}, draw(st.integers(-3, 3)))
        if draw(st.integers(0, 3)) == 0:
            value = value // 2 if draw(st.booleans()) else value % 3
        elif draw(st.integers(0, 3)) == 0:
            value = minimum(value, draw(st.sampled_from(indices)) + draw(st.integers(-1, 2))) * draw(
                st.sampled_from([1, -1])
            )
        return _COMPARED[draw(st.sampled_from(sorted(_COMPARED)))](draw(st.sampled_from(indices)), value)
    first = condition(draw, indices, depth - 1)
    if kind == "~":
        return ~first if draw(st.booleans()) else logical_not(first)
    return (operator.and_ if kind == "&" else logical_or)(first, condition(draw, indices, depth - 1))


def guarded(draw: Any, indices: tuple[Index, ...], *stores: Callable[[], None]) -> None:
    """Store under conditions on indices, or elsewhere."""
    chain = If(condition(draw, indices), stores[0])
    if len(stores) == 1:
        if draw(st.booleans()):
            chain.Else(stores[0])
        return
    if draw(st.booleans()):
        chain = chain.ElseIf(condition(draw, indices), stores[0])
    chain.Else(lambda: [store() for store in stores[1:]] and None)


# --- nests -------------------------------------------------------------------------------------------------


def _size(draw: Any, name: str, sizes: dict[Dimension, int], extent: int) -> Any:
    """Return an extent as a number, or as a size of the launch."""
    if draw(st.integers(0, 3)):
        return extent
    dimension = Dimension(name)
    sizes[dimension] = extent
    return dimension


@st.composite
def cases(draw: Any) -> Case:
    """An untransformed nest of one of several kinds."""
    kinds = [_matmul, _elementwise, _stencil, _convolution, _row_reduction, _fused, _wave]
    kind = draw(st.sampled_from([*kinds, _packed, _gathered, _clamped, _called, _guarded, _read_at]))
    type = draw(st.sampled_from(["int32", "float32"]))
    case: Case = kind(draw, type)
    return case


def _array(draw: Any, name: str, role: Role, type: str, *shape: Any) -> Array:
    return Array(role, type, shape, draw(LAYOUT), name=name)


def _nest(shape: tuple[Any, ...], names: str) -> tuple[Nest, tuple[Index, ...]]:
    nest = Nest(shape)
    for index, name in zip(nest.indices, names, strict=True):
        index.name = name
    return nest, nest.indices


def _matmul(draw: Any, type: str) -> Case:
    sizes: dict[Dimension, int] = {}
    m, n, k = (_size(draw, name, sizes, draw(EXTENT)) for name in "MNK")
    a, b = _array(draw, "A", Role.INPUT, type, m, k), _array(draw, "B", Role.INPUT, type, k, n)
    c = _array(draw, "C", Role.INPUT_OUTPUT, type, m, n)
    nest, (i, j, p) = _nest((m, n, k), "ijk")

    @nest.iteration_logic
    def _() -> None:
        c[i, j] += a[i, p] * b[p, j]

    return Case(nest.create_schedule(), (a, b, c), {i, j}, sizes)


def _elementwise(draw: Any, type: str) -> Case:
    sizes: dict[Dimension, int] = {}
    m, n = (_size(draw, name, sizes, draw(EXTENT)) for name in "MN")
    a, b = _array(draw, "A", Role.INPUT, type, m, n), _array(draw, "B", Role.INPUT_OUTPUT, type, m, n)
    d = _array(draw, "D", Role.OUTPUT, type, m, n)
    nest, (i, j) = _nest((m, n), "ij")

    @nest.iteration_logic
    def _() -> None:
        b[i, j] = a[i, j] * 3 + b[i, j]
        d[i, j] = b[i, j] - a[i, j] + i

    return Case(nest.create_schedule(), (a, b, d), {i, j}, sizes)


def _stencil(draw: Any, type: str) -> Case:
    m, n = draw(EXTENT), draw(EXTENT)
    a = _array(draw, "A", Role.INPUT, type, m + 2, n + 1)
    b = _array(draw, "B", Role.OUTPUT, type, m, n)
    nest, (i, j) = _nest((m, n), "ij")

    @nest.iteration_logic
    def _() -> None:
        b[i, j] = a[i, j] + a[i + 1, j + 1] * 2 + a[i + 2, j]

    return Case(nest.create_schedule(), (a, b), {i, j})


def _wave(draw: Any, type: str) -> Case:
    """A recurrence in both directions: what does not depend on one another lies on diagonals."""
    m, n = draw(EXTENT), draw(EXTENT)
    a = _array(draw, "A", Role.INPUT_OUTPUT, type, m + 1, n + 2)
    b = _array(draw, "B", Role.INPUT_OUTPUT, type, m + n)
    nest, (i, j) = _nest((m, n), "ij")
    ahead, sums = draw(st.integers(0, 2)), draw(st.booleans())

    @nest.iteration_logic
    def _() -> None:
        a[i + 1, j + 1] = a[i, j + ahead] - a[i + 1, j]
        if sums:
            b[i + j] += a[i + 1, j + 1]

    return Case(nest.create_schedule(), (a, b) if sums else (a,), set())


def _convolution(draw: Any, type: str) -> Case:
    m, n, r, q = draw(EXTENT), draw(EXTENT), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    image = _array(draw, "I", Role.INPUT, type, m + r - 1, n + q - 1)
    weights = _array(draw, "W", Role.INPUT, type, r, q)
    out = _array(draw, "O", Role.INPUT_OUTPUT, type, m, n)
    nest, (i, j, u, v) = _nest((m, n, r, q), "ijuv")

    @nest.iteration_logic
    def _() -> None:
        out[i, j] += image[i + u, j + v] * weights[u, v]

    return Case(nest.create_schedule(), (image, weights, out), {i, j})


def _row_reduction(draw: Any, type: str) -> Case:
    sizes: dict[Dimension, int] = {}
    m, k = (_size(draw, name, sizes, draw(EXTENT)) for name in "MK")
    a = _array(draw, "A", Role.INPUT, type, m, k)
    total, most = _array(draw, "T", Role.INPUT_OUTPUT, type, m), _array(draw, "X", Role.INPUT_OUTPUT, type, m)
    nest, (i, p) = _nest((m, k), "ik")

    @nest.iteration_logic
    def _() -> None:
        total[i] = total[i] + a[i, p]
        most[i] = tw.maximum(most[i], a[i, p])

    return Case(nest.create_schedule(), (a, total, most), {i}, sizes)


def _packed(draw: Any, type: str) -> Case:
    """A matrix written in blocks, whose numbers and insides are quotients and remainders."""
    sizes: dict[Dimension, int] = {}
    p, q, shift = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(0, 3))
    extents = draw(EXTENT), draw(EXTENT)
    m, n = (_size(draw, name, sizes, extent) for name, extent in zip("MN", extents, strict=True))
    a = _array(draw, "A", Role.INPUT, type, m, n)
    blocks = [(extent - 1 + shift) // by + 1 for extent, by in zip(extents, (p, q), strict=True)]
    b = _array(draw, "B", Role.OUTPUT, type, blocks[0], blocks[1], p, q)
    nest, (i, j) = _nest((m, n), "ij")

    @nest.iteration_logic
    def _() -> None:
        b[(i + shift) // p, (j + shift) // q, (i + shift) % p, (j + shift) % q] = a[i, j] * 2 + i // 2 - j % 3

    return Case(nest.create_schedule(), (a, b), {i, j}, sizes)


def _gathered(draw: Any, type: str) -> Case:
    """Elements read at quotients of sums, backwards, and around the end, and summed up."""
    m, n, k = draw(EXTENT), draw(EXTENT), draw(EXTENT)
    p, q = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    a = _array(draw, "A", Role.INPUT, type, 2 * m + n, q)
    w = _array(draw, "W", Role.INPUT, type, k, m)
    b = _array(draw, "B", Role.INPUT_OUTPUT, type, m, n)
    nest, (i, j, x) = _nest((m, n, k), "ijk")

    @nest.iteration_logic
    def _() -> None:
        b[i, j] += a[(2 * i + j) // p, (i + j + x) // p % q] + w[x, (i - 2 * j) % m] - (j - 3 * i) // q

    return Case(nest.create_schedule(), (a, w, b), {i, j})


def _clamped(draw: Any, type: str) -> Case:
    """Elements read and written at minima and maxima of places, so that points at an edge meet."""
    sizes: dict[Dimension, int] = {}
    extents = draw(EXTENT), draw(EXTENT)
    m, n = (_size(draw, name, sizes, extent) for name, extent in zip("MN", extents, strict=True))
    edge, last = draw(st.integers(0, extents[0] - 1)), draw(st.integers(0, 6))
    a, b = _array(draw, "A", Role.INPUT, type, m, 7), _array(draw, "B", Role.INPUT_OUTPUT, type, m, n)
    nest, (i, j) = _nest((m, n), "ij")
    is_sum = draw(st.booleans())

    @nest.iteration_logic
    def _() -> None:
        value = a[tw.maximum(i - 2, 0), tw.minimum(j, tw.minimum(last, 2 * i))] + tw.minimum(i, j)
        target = tw.minimum(edge, i), j
        b[target] = b[target] + value if is_sum else value * 2

    return Case(nest.create_schedule(), (a, b), set() if is_sum else {j}, sizes)


def _called(draw: Any, type: str) -> Case:
    """A function called for parts that are shorter at the end, by a nest with statements of its own around it."""
    package = Package()
    extent, tile = draw(EXTENT), draw(st.integers(1, 4))
    n, o = Dimension("n"), Dimension("o")
    x, y = _array(draw, "X", Role.INPUT, type, extent), _array(draw, "Y", Role.INPUT_OUTPUT, type, extent)
    inner, (p,) = _nest((n,), "p")
    backwards = draw(st.booleans())

    @inner.iteration_logic
    def _() -> None:
        y[o + (n - 1 - p if backwards else p)] = x[o + p] + y[o + p] * 2

    schedule = inner.create_schedule()
    if draw(st.booleans()):
        schedule.split(p, draw(st.integers(1, 3)))
    function = package.add(schedule, (n, x, y, o), "inner")
    a, b = _array(draw, "A", Role.INPUT, type, extent), _array(draw, "B", Role.INPUT_OUTPUT, type, extent)
    nest, (i,) = _nest((extent,), "i")
    step = draw(st.integers(0, 1))

    @nest.iteration_logic
    def _() -> None:
        if draw(st.booleans()):
            b[i] += a[extent - 1 - i]
        function(tw.minimum(tile, extent - i), a, b, i) if step else function(tw.maximum(i - 1, 1), a, b, 0)

    schedule = nest.create_schedule()
    if draw(st.booleans()):
        schedule.erase_loops([schedule.split(i, tile)])
    return Case(schedule, (a, b), set())


def _guarded(draw: Any, type: str) -> Case:
    """Statements under conditions on indices, sizes and values, one of which the statements change."""
    sizes: dict[Dimension, int] = {}
    m, n = (_size(draw, name, sizes, draw(EXTENT)) for name in "MN")
    a, b = _array(draw, "A", Role.INPUT, type, m, n), _array(draw, "B", Role.INPUT_OUTPUT, type, m, n)
    d = _array(draw, "D", Role.INPUT_OUTPUT, type, m, n)
    nest, (i, j) = _nest((m, n), "ij")

    def add() -> None:
        b[i, j] = a[i, j] * 3 + b[i, j]

    def swap() -> None:
        d[i, j] = b[i, j] - i
        b[i, j] = a[i, j] + j

    @nest.iteration_logic
    def _() -> None:
        guarded(draw, (i, j), add, swap)
        d[i, j] += 1
        If(b[i, j] > a[i, j], swap).ElseIf(i < n, lambda: guarded(draw, (i, j), swap)).Else(add)

    return Case(nest.create_schedule(), (a, b, d), {i, j}, sizes)


def _fused(draw: Any, type: str) -> Case:
    """Two or three nests that share their first loops: a product, what is made of it, and something apart."""
    m, n, k = (draw(EXTENT) for _ in range(3))
    a, b = _array(draw, "A", Role.INPUT, type, m, k), _array(draw, "B", Role.INPUT, type, k, n)
    c = _array(draw, "C", draw(st.sampled_from([Role.INPUT_OUTPUT, Role.TEMP])), type, m, n)
    d = _array(draw, "D", Role.OUTPUT, type, m, n)
    p, q = draw(EXTENT), draw(EXTENT)
    e = _array(draw, "E", Role.OUTPUT, type, p, q)
    first, (i, j, x) = _nest((m, n, k), "ijk")
    second, (r, s) = _nest((m, n), "rs")
    third, (u, v) = _nest((p, q), "uv")

    @first.iteration_logic
    def _() -> None:
        c[i, j] += a[i, x] * b[x, j]

    @second.iteration_logic
    def _() -> None:
        d[r, s] = tw.maximum(c[r, s], 0) + a[r, 0]

    @third.iteration_logic
    def _() -> None:
        e[u, v] = u * 2 + v

    before = tuple(nest.loop_nest() for nest in (first, second, third))
    if draw(st.booleans()):
        fused = fuse(fuse(Schedule(before[0]), Schedule(before[1]), partial=2), Schedule(before[2]), partial=0)
        shared = fused.get_indices()[1:3]
    else:
        fused = fuse(*(Schedule(nest) for nest in before), partial=2)
        shared = fused.get_indices()[0:2]
    held = (c,) if c.role is Role.TEMP else ()
    given = tuple(array for array in (a, b, c, d, e) if array not in held)
    return Case(fused, given, set(shared), {}, before, held)


def _read_at(draw: Any, type: str) -> Case:
    """Rows that another array names, of one that is only read, and of one that is written too."""
    m, n, k = draw(EXTENT), draw(EXTENT), draw(EXTENT)
    a, b = _array(draw, "A", Role.INPUT, type, k, n), _array(draw, "B", Role.INPUT_OUTPUT, type, m, n)
    where = _array(draw, "W", Role.INPUT, "int32", m)
    nest, (i, j) = _nest((m, n), "ij")
    other = b[m - 1 - where[i], j] if draw(st.booleans()) else a[k - 1, j]

    @nest.iteration_logic
    def _() -> None:
        b[i, j] = a[where[i], j] + other

    return Case(nest.create_schedule(), (a, where, b), {j}, reach={where: min(m, k)})


# --- transforms --------------------------------------------------------------------------------------------


def transform(draw: Any, case: Case, note: Callable[[str], None]) -> None:
    """Apply a few transforms that are legal for the nests above: their accumulations may change places."""
    schedule = case.schedule
    for _ in range(draw(st.integers(0, 4))):
        what = draw(st.sampled_from(["split", "split", "tile", "reorder", "reorder", "pad", "skew", "unroll"]))
        indices = schedule.get_indices()
        index = draw(st.sampled_from(indices))
        if what == "split":
            size = draw(st.integers(1, 8))
            inner = schedule.split(index, size)
            note(f"{inner} = split({index}, {size})")
            case.free |= {inner} if index in case.free else set()
        elif what == "tile" and len(indices) <= 4:
            chosen = (
                draw(st.lists(st.sampled_from(indices), min_size=2, max_size=2, unique=True)) if indices[1:] else []
            )
            sizes = {index: draw(st.integers(1, 5)) for index in chosen}
            related = [pair for pair in schedule.nest.precedences if set(pair) <= set(chosen)]
            if chosen and not related and case.free:
                for outer, inner in zip(chosen, schedule.tile(sizes), strict=True):
                    case.free |= {inner} if outer in case.free else set()
                note(f"tile({sizes})")
        elif what == "reorder":
            order = draw(st.permutations(indices))
            order = keeping(order, schedule.nest.precedences)
            is_ordered = case.free == set() and len(case.before) == 1  # a recurrence, which some orders would break
            if is_ordered and not schedule.is_valid_loop_order(*order):
                continue
            assert schedule.is_valid_loop_order(*order)
            schedule.reorder(*order)
            note(f"reorder({order})")
        elif what == "pad":
            size, front = draw(st.integers(0, 3)), draw(st.booleans())
            schedule.pad(index, size, front)
            note(f"pad({index}, {size}, front={front})")
        elif what == "skew":
            reference = draw(st.sampled_from(indices))
            steps = {schedule.nest.loop(x).step for x in (index, reference)}
            # What one nest writes and the next one reads lies on other diagonals of loops that not both have.
            is_apart = len(case.before) > 1 and not {index, reference} <= case.free
            if reference is index or steps != {1} or is_apart:
                continue
            try:
                schedule.skew(index, reference)
            except ScheduleError:
                continue
            note(f"skew({index}, {reference})")
            if reference not in case.free:
                case.free -= {index}
        elif what == "unroll" and schedule.nest.loop(index).trips is not None:
            schedule.unroll(index)
            note(f"unroll({index})")


def keeping(order: list[Index], precedences: tuple[tuple[Index, Index], ...]) -> list[Index]:
    """Move indices back until what has to be outside is."""
    left, found = list(order), []
    while left:
        ready = next(x for x in left if not any(b is x and a in left for a, b in precedences))
        left.remove(ready)
        found.append(ready)
    return found


# --- plans -------------------------------------------------------------------------------------------------

TARGETS = ("NVIDIA A100", "sm_75", "sm_90a")


def plan_of(draw: Any, case: Case, note: Callable[[str], None]) -> Plan:
    """Bind some of the free loops, and cache some arrays."""
    target = Target(draw(st.sampled_from(TARGETS)))
    plan = case.schedule.create_plan(target)
    units = target.GridUnit
    names = [units.BLOCK_X, units.BLOCK_Y, units.THREAD_X, units.THREAD_Y, units.THREAD_Z, units.BLOCK_Z]
    for index in case.schedule.get_indices():
        unit = draw(st.sampled_from([None, *names]))
        if unit is None or (not unit.name.startswith("BLOCK") and plan.nest.loop(index).trips is None):
            continue
        try:
            plan.bind({index: unit})
            names.remove(unit)
            note(f"bind({index}: {unit.name})")
        except ScheduleError:
            assert index not in case.free
    for array in (*case.arrays, *case.temporary):
        if draw(st.integers(0, 2)):
            _cache(draw, plan, array, note)
    for index in plan.serial:
        if draw(st.integers(0, 3)) == 0:
            try:
                plan.vectorize(index)
                note(f"vectorize({index})")
            except ScheduleError as error:
                note(f"refused: {error}")
    return plan


def _cache(draw: Any, plan: Plan, array: Array, note: Callable[[str], None]) -> None:
    order = plan.nest.order
    at = draw(st.integers(0, len(order) - 1))
    trigger = order[draw(st.integers(0, at))] if draw(st.integers(0, 3)) == 0 else None
    location = draw(st.sampled_from([Location.SHARED, Location.SHARED, Location.PRIVATE, Location.GLOBAL, None]))
    options: dict[str, Any] = {"location": location, "index": order[at], "trigger_index": trigger}
    if draw(st.integers(0, 3)) == 0:
        options |= {"index": None, "trigger_index": None, "max_elements": draw(st.sampled_from([1, 2, 3, 6, 20, 300]))}
    options["thrifty"] = draw(st.integers(0, 3)) == 0
    if draw(st.integers(0, 2)) == 0:
        options["layout"] = draw(LAYOUT)
    if location is not Location.PRIVATE:
        options["strategy"] = draw(st.sampled_from(list(Strategy)))
        options["vectorize"] = draw(st.sampled_from([True, True, False, 2]))
    if array.element_type.is_float and draw(st.integers(0, 3)) == 0:
        options["element_type"] = "float64"
    way = draw(st.sampled_from(["once", "once", "double", "private", "stages"]))
    if way == "double":
        options["double_buffer"] = True
    elif way == "private":
        options |= {"double_buffer": True, "double_buffer_location": Location.PRIVATE}
    elif way == "stages":
        options["pipeline_stages"] = draw(st.integers(2, 4))
    try:
        made = plan.cache(array, **options)
        if draw(st.integers(0, 3)) == 0:
            plan.caches.remove(made)
            shape = plan.region(made).shape
            steps = itertools.accumulate((extent + 1 for extent in shape[:-1]), operator.mul, initial=1)
            options["layout"] = tw.Layout(shape, tuple(steps))
            made = plan.cache(array, **options)
        note(f"cache({array.name}, {options})")
        if draw(st.integers(0, 3)) == 0:
            inner = order[draw(st.integers(at, len(order) - 1))]
            places = [Location.SHARED, Location.PRIVATE, Location.GLOBAL]
            made = plan.cache(made, index=inner, location=draw(st.sampled_from(places)), layout=draw(LAYOUT))
            note(f"cache({made}, {inner})")
            if draw(st.integers(0, 1)):
                made = plan.cache(made, max_elements=draw(st.integers(1, 9)), location=draw(st.sampled_from(places)))
                note(f"cache({made})")
    except ScheduleError as error:
        note(f"refused: cache({array.name}, {options}): {error}")
