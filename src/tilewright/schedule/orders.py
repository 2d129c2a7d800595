"""What an order of loops and a vector may not break: accesses of one element keep the order they were declared in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Index
from tilewright.schedule.arrays import Array
from tilewright.schedule.dependences import (
    Instance,
    Pair,
    Values,
    Variable,
    difference,
    is_before,
    iterations,
    pairs,
)
from tilewright.schedule.integers import LIMIT, System, UndecidedError
from tilewright.schedule.loop_nest import LoopNest
from tilewright.schedule.memory_spaces import Role
from tilewright.schedule.private import private_points
from tilewright.schedule.sides import Work


def refuse_violations(before: LoopNest, after: LoopNest, what: str, seen: Collection[Array] = ()) -> None:
    """Raise `ScheduleError` where two accesses of an element, one of which writes, would change places.

    `what` names the transform that made `after` of `before`. The order to keep is that in which the nests were
    declared: one part after the other, the points of each in lexicographic order of its own indices. Accesses of one
    reduction to its target may change places with each other, and so may points that have a TEMP array for themselves
    (`private_points`), unless the caller sees what is left in it: `seen` has such arrays. Two accesses for which the
    question takes too much work are refused too, by an error that says so.
    """
    if before.loops == after.loops and not before.is_unchecked:
        return
    private: Mapping[Array, tuple[Index, ...]] | None = None
    for pair in pairs(after):
        if pair.is_of_one_reduction:
            continue
        try:
            memory = pair.write.array.memory
            same: tuple[Index, ...] = ()
            if memory.role is Role.TEMP and memory not in seen:
                private = private_points(after) if private is None else private
                same = private.get(memory, ())
            found = _violation_of(pair, after, same)
        except UndecidedError:
            raise pair.undecided(f"{what} is refused", "would change places") from None
        if found is not None:
            raise pair.unknown() or _error(pair, *found, what)


def _violation_of(pair: Pair, nest: LoopNest, same: tuple[Index, ...] = ()) -> tuple[Instance, Instance, Values] | None:
    """Return the accesses of a pair in an order in which they were declared to run and do not, and where that is.

    Looked at are those in the `same` iterations of some loops.
    """
    work = Work(LIMIT)
    meets = pair.meets()
    for index in same:
        meets = meets.equal(*difference(*iterations(nest.loop(index))))
    if meets.solve(work) is None:
        return None
    directions = [(pair.first, pair.second)]
    is_of_one_part = pair.first.number == pair.second.number
    is_within = pair.first.part.group is not None and pair.first.part.group == pair.second.part.group
    if (is_of_one_part or is_within) and not pair.is_of_one_case:
        directions.append((pair.second, pair.first))
    for first, second in directions:
        values = _violation(nest, meets, first, second, work)
        if values is not None:
            return first, second, values
    return None


def _violation(nest: LoopNest, meets: System[Variable], first: Instance, second: Instance, work: Work) -> Values | None:
    """Return where the first access was declared to run before the second one, and runs after it; None for nowhere.

    At one point of the loops, parts and statements run in the order in which they were declared. So only accesses at
    different points can have changed places: they differ in one of the loops, and agree in those outside of it.
    """
    for system in _declared_before(meets, first, second, work):
        for loop in nest.loops:
            mine, other = iterations(loop) if first.side == 0 else iterations(loop)[::-1]
            if loop.trips != 1:
                values = is_before(system, other, mine).solve(work)
                if values is not None:
                    return values
            system = system.equal(*difference(mine, other))
    return None


def _declared_before(
    meets: System[Variable], first: Instance, second: Instance, work: Work
) -> Iterator[System[Variable]]:
    """Yield the ways in which the first access was declared to run before the second one, at different points."""
    sequences = first.nest.sequence(first.number), second.nest.sequence(second.number)
    for one, another in zip(*sequences, strict=False):
        if isinstance(one, int) or isinstance(another, int):
            assert isinstance(one, int) and isinstance(another, int), sequences
            if one < another:
                yield meets
            if one != another:
                return
            continue
        mine, other = first.iteration(one), second.iteration(another)
        found = is_before(meets, mine, other)
        if found.solve(work) is not None:
            yield found
        meets = meets.equal(*difference(mine, other))


def _error(pair: Pair, first: Instance, second: Instance, values: Values, what: str) -> ScheduleError:
    return ScheduleError(
        f"{what} lets two accesses of {first.element(values)} change places: the {first.at(values)} comes before the "
        f"{second.at(values)} and would come after it{pair.sizes(values)}",
        location=pair.write.statement.location,
        help="keep an order in which what depends on another iteration runs after it; "
        "skewing a loop by another one can make such an order possible",
    )


def refuse_recurrences(nest: LoopNest, lanes: tuple[Index, ...]) -> None:
    """Raise `ScheduleError` where the iterations of some loops, which run at once, would access an element in disorder.

    `lanes` are the innermost loops, outermost first. At each point of the other loops a statement runs in all lanes
    before the next one does: it reads in all of them and then writes, in their order. Two accesses change places where
    the one that is earlier in a lane belongs to a later lane. Those of one reduction may.
    """
    loops = tuple(nest.loop(index) for index in lanes)
    for pair in pairs(nest):
        first, second = _stage(pair.first), _stage(pair.second)
        if pair.is_of_one_reduction or first == second:
            continue
        system = pair.meets()
        for loop in nest.loops:
            if loop.index not in lanes:
                system = system.equal(*difference(*iterations(loop)))
        for loop in loops:
            mine, other = iterations(loop) if first < second else iterations(loop)[::-1]
            try:
                found = None if loop.trips == 1 else is_before(system, other, mine).solve()
            except UndecidedError:
                raise pair.undecided(f"{loop.index} cannot be vectorized", "access one element") from None
            if found is not None:
                raise pair.unknown() or _recurrence(pair, loop.index)
            system = system.equal(*difference(mine, other))


def _stage(instance: Instance) -> tuple[int, int, bool]:
    """Return when an access runs among those of one point of the loops."""
    numbers = [statement.number for statement in instance.part.statements]
    return instance.number, numbers.index(instance.access.statement.number), instance.access.is_write


def _recurrence(pair: Pair, index: Index) -> ScheduleError:
    instances = (pair.first, pair.second) if pair.first.access.is_write else (pair.second, pair.first)
    write, other = (
        replace(x.access, place=tuple(mode.substitute(x.part.places) for mode in x.access.place)) for x in instances
    )
    return ScheduleError(
        f"{index} cannot be vectorized: {write} and {other} are of the same element in different iterations",
        location=pair.write.statement.location,
        help="vectorize a loop whose iterations are independent of one another",
    )
