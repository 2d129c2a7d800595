"""Whether every access lies within its array: decided when a kernel is built, or at a launch where sizes decide it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

from tilewright.errors import ArgumentError, ScheduleError
from tilewright.schedule.affine import Affine, Dimension, Position, Size, affine_or_none
from tilewright.schedule.arrays import Array, View
from tilewright.schedule.dependences import Instance, Side, Variable
from tilewright.schedule.elements import Load, Store, element_text, index_loads
from tilewright.schedule.integers import LIMIT, System, UndecidedError
from tilewright.schedule.loop_nest import Access, LoopNest, Part, Statement, settled
from tilewright.schedule.places import BySize, as_index, divisors
from tilewright.schedule.plan_state import PlanState
from tilewright.schedule.sides import Work
from tilewright.schedule.values import Expression
from tilewright.schedule.views import Derived, value_of


@dataclass(frozen=True, eq=False)
class SizeCondition:
    """value >= 0 has to hold of the sizes of a launch; `what` says what does not where it fails.

    `extents` are those of the nest, which accesses nothing where one of them is 0.
    """

    value: Affine
    what: str
    extents: tuple[Dimension, ...]

    def check(self, sizes: Mapping[Dimension, int], name: str) -> None:
        """Raise `ArgumentError` where the sizes of a launch do not meet the condition."""
        if any(value_of(extent, sizes) == 0 for extent in self.extents):
            return
        known = sorted((s for s in self.value.symbols() if isinstance(s, Dimension)), key=lambda size: size.number)
        values = {size: value_of(size, sizes) for size in known}
        if self.value.evaluate(values) < 0:
            raise ArgumentError(
                f"kernel {name!r}: {self.what}, where {_named(values, sizes)}",
                help="pass arrays that hold all that the kernel accesses",
            )


@dataclass(frozen=True, eq=False)
class CaseCondition:
    """A system must have no solution for the sizes of a launch: its solutions are accesses outside of an array."""

    system: System[Variable]
    what: str
    nest: LoopNest

    def check(self, sizes: Mapping[Dimension, int], name: str) -> None:
        """Raise `ArgumentError` where an access of the launch lies outside."""
        system, values, divided = self.system, {}, []
        for variable in system.variables():
            if isinstance(variable, Dimension):
                values[variable] = value_of(variable, sizes)
                system = system.equal({variable: 1}, -values[variable])
            elif isinstance(variable[0], BySize):
                divided.append(variable[0])
        for term in divided:  # by what is a number now
            size = term.size.evaluate({s: value_of(s, sizes) for s in term.size.symbols() if isinstance(s, Dimension)})
            if size < 1:
                return  # another condition says that
            system = Side(self.nest, 0).divided(system, term, size)
        try:
            found = system.solve(Work(LIMIT))
        except UndecidedError:
            return  # the simulator has the last word
        if found is not None:
            raise ArgumentError(
                f"kernel {name!r}: {self.what}, where {_named(values, sizes)}",
                help="pass arrays that hold all that the kernel accesses",
            )


@dataclass(frozen=True, eq=False)
class Wholeness:
    """A size has to be made up of whole rows."""

    size: Derived

    def check(self, sizes: Mapping[Dimension, int], name: str) -> None:
        """Raise `ArgumentError` where something is left over."""
        if self.size.divisors and not self.size.divides(sizes):
            texts = ", ".join(f"{size}={sizes[size]}" for size in self.size.roots())
            raise ArgumentError(
                f"kernel {name!r}: {self.size} is not a whole number, where {texts}",
                help="an array that is split or reinterpreted takes extents that its rows or elements make up",
            )


def _named(values: Mapping[Dimension, int], sizes: Mapping[Dimension, int]) -> str:
    """Return sizes with their values, in the order of the launch, what is derived of them last and by name."""
    places = {size: place for place, size in enumerate(sizes)}
    ordered = sorted(values, key=lambda size: (places.get(size, len(places)), str(size)))
    return ", ".join(f"{size}={values[size]}" for size in ordered)


Condition: TypeAlias = Union[SizeCondition, CaseCondition, Wholeness]


def conditions_of(plan: PlanState, given: Sequence[Array]) -> tuple[Condition, ...]:
    """Return what the sizes of a launch have to meet so that every access lies within its array.

    `given` are the arrays that the launch gives: of a view only its own elements are there. Raises `ScheduleError` for
    an access that lies outside whatever the sizes are, by name.
    """
    found: list[Condition] = []
    parts_given = {view.base: view for view in given if isinstance(view, View)}
    sizes: dict[Derived, None] = {}
    for number, part in enumerate(plan.nest.parts):
        for statement in part.statements:
            elements: tuple[Load | Store, ...] = (*statement.elements, statement.store)
            for element in elements:
                for lower, what in _requirements(element, parts_given):
                    condition = _decided(plan, number, statement, element, lower, what)
                    if condition is not None:
                        found.append(condition)
                for array in _chain(element.named):
                    sizes.update((extent, None) for extent in array.shape if isinstance(extent, Derived))
    return (*(Wholeness(size) for size in sizes), *_divisors(plan), *found)


def _divisors(plan: PlanState) -> Iterator[SizeCondition]:
    """Yield that what indices are divided by has to be at least 1."""
    found: dict[tuple[Any, int], SizeCondition] = {}  # Any: terms
    for part in plan.nest.parts:
        extents = tuple(n for n in part.shape if isinstance(n, Dimension))
        for statement in part.statements:
            places = [place for access in statement.accesses for place in access.place]
            tests = [guard.test for guard in statement.store.guards]
            values: list[Expression] = [*map(Position, places), statement.store.value, *tests]
            for size in (size for value in values for size in divisors(value)):
                what = f"an index is divided by {size}, which is below 1"
                found[size.terms, size.constant] = SizeCondition(size - 1, what, extents)
    yield from found.values()


def _chain(array: Array) -> Iterator[Array]:
    while isinstance(array, View):
        yield array
        array = array.parent
    yield array


def _requirements(element: Load | Store, given: Mapping[Array, View]) -> Iterator[tuple[Affine, str]]:
    """Yield what has to be at least 0 for an element to be in its array, and what it means where it is not."""
    named, base = element.named, element.array
    text = f"{'write' if isinstance(element, Store) else 'read'} of {element_text(named, element.indices)}"
    shown = [(named, element.indices)] if named is not base else []
    for array, place in (*shown, (base, element.place)):
        for mode, (at, extent) in enumerate(zip(place, array.shape, strict=True)):
            yield at.as_affine(), f"the {text} is below 0 in mode {mode} of {array.name}"
            end = None if extent is None else affine_or_none(extent)
            if end is not None:
                yield end - 1 - at, f"the {text} is beyond mode {mode} of {array.name}, which has {extent}"
    part = given.get(base)
    if part is not None:
        for mode, (at, offset) in enumerate(zip(element.place, part.projection.offsets, strict=True)):
            outside = f"the {text} is outside of mode {mode} of {part.name}, the part that the kernel takes"
            yield at - offset, outside
            last = offset
            for mine, factor in part.projection.modes[mode]:
                end = affine_or_none(part.shape[mine])
                last = last + factor * (end - 1) if end is not None else last
            yield last - at, outside
    for view in _chain(named):
        if isinstance(view, View) and view.method == "sub_array":
            yield from _part_within(view)


def _part_within(view: View) -> Iterator[tuple[Affine, str]]:
    offsets, _, strides = view.arguments
    for mode, extent in enumerate(view.shape):
        start = as_index(offsets[mode])
        many, whole = (None if x is None else affine_or_none(x) for x in (extent, view.parent.shape[mode]))
        if start is None:
            continue
        yield start, f"{view.name} begins at {start} in mode {mode} of {view.parent.name}"
        if many is not None and whole is not None:
            step = strides[mode] if strides else 1
            last = start + (many - 1) * step
            yield (
                whole - 1 - last,
                f"{view.name} ends at {last} in mode {mode} of {view.parent.name}, which has {whole}",
            )


def _decided(
    plan: PlanState, number: int, statement: Statement, element: Load | Store, value: Affine, what: str
) -> Condition | None:
    """Return what sizes have to meet for value >= 0 at all points of a part, None where it holds for all sizes."""
    if next(index_loads([value]), None) is not None:
        return None  # the simulator has the last word
    part = plan.nest.parts[number]
    under = _guards_around(statement, element)
    worst = None if under else _least(value, part)
    if worst is not None and all(factor > 0 for _, factor in worst.terms) and _at_ones(worst) >= 0:
        return None
    if worst is not None and worst.terms:
        return SizeCondition(worst, what, tuple(n for n in part.shape if isinstance(n, Dimension)))
    access = Access(statement, element.array, element.place, isinstance(element, Store), under)
    moved = settled(value.substitute(part.places), plan.nest.loops)
    cases = [x for case in statement.cases[under] for x in Instance(plan.nest, number, access, case=case).chosen(moved)]
    try:
        for instance in cases:
            system = _outside(plan, instance, moved)
            values = system.solve(Work(LIMIT))
            if values is None:
                continue
            if any(isinstance(variable, Dimension) for variable in system.variables()):
                return CaseCondition(system, what, plan.nest)
            raise ScheduleError(
                f"{what}: {instance.at(values)}",
                location=statement.location,
                help="declare the array as large as the nest needs, or let the nest run over its elements only",
            )
    except UndecidedError:
        pass  # the simulator has the last word
    return None


def _at_ones(value: Affine) -> int:
    return value.constant + sum(factor for _, factor in value.terms)


def _guards_around(statement: Statement, element: Load | Store) -> int:
    """Return how many conditions of a statement hold where it accesses an element."""
    guards = statement.store.guards
    if element is statement.store or _is_within(element, statement.store.value):
        return len(guards)
    return next(n for n, guard in enumerate(guards) if _is_within(element, guard.test))


def _is_within(element: Load | Store, value: Expression) -> bool:
    return any(element is x for load in value.loads() for x in (load, *index_loads(load.indices)))


def _least(value: Affine, part: Part) -> Affine | None:
    """Return the least value over a nest's own box, an expression of sizes; None where its indices say more."""
    extents: dict[Any, Size | Affine | None] = dict(zip(part.indices, part.shape, strict=True))  # Any: symbols
    least = Affine((), value.constant)
    for symbol, factor in value.terms:
        extent = extents.get(symbol)
        if isinstance(symbol, Dimension):
            least = least + factor * symbol
        elif extent is not None and not isinstance(extent, Affine):
            least = least + (factor * (extent - 1) if factor < 0 else 0)
        else:
            return None
    return least


def _outside(plan: PlanState, instance: Instance, value: Affine) -> System[Variable]:
    """Return the points of the loops at which an access happens and value < 0."""
    system = instance.runs().and_(Side(plan.nest, 0).runs((value,), instance.part.fixed))
    terms, constant = instance.terms(value)
    system = system.at_least_zero({variable: -factor for variable, factor in terms.items()}, -constant - 1)
    for variable in system.variables():
        if isinstance(variable, Dimension):
            system = system.at_least_zero({variable: 1}, -1)
    return system
