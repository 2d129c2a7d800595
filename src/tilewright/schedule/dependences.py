"""Dependences: which accesses of the same element keep their order."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.errors import ScheduleError
from tilewright.schedule.instances import Instance, Pair, Values, Variable, difference, is_before, pairs, turns
from tilewright.schedule.integers import LIMIT, System, UndecidedError
from tilewright.schedule.loop_nest import LoopNest
from tilewright.schedule.sides import Work


def refuse_violations(before: LoopNest, after: LoopNest, what: str) -> None:
    """Raise `ScheduleError` where two accesses of an element, one of which writes, would change places.

    `what` names the transform that made `after` of `before`. The order to keep is that in which the nests were
    declared: one part after the other, the points of each in lexicographic order of its own indices. Accesses of one
    reduction to its target may change places with each other. Two accesses for which the question takes too much work
    are refused too, by an error that says so.
    """
    if before.loops == after.loops:
        return
    for pair in pairs(after):
        if pair.is_of_one_reduction:
            continue
        try:
            found = _violation_of(pair, after)
        except UndecidedError:
            raise pair.undecided(f"{what} is refused", "would change places") from None
        if found is not None:
            raise _error(pair, *found, what)


def _violation_of(pair: Pair, nest: LoopNest) -> tuple[Instance, Instance, Values] | None:
    """Return the accesses of a pair in an order in which they were declared to run and do not, and where that is."""
    work = Work(LIMIT)
    meets = pair.meets()
    if meets.solve(work) is None:
        return None
    directions = [(pair.first, pair.second)]
    if pair.first.number == pair.second.number and pair.first.access is not pair.second.access:
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
            mine, other = turns(loop) if first.side == 0 else turns(loop)[::-1]
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
    if first.number != second.number:
        yield meets  # the pair's first access is of the earlier part
        return
    for index in first.part.indices:
        mine, other = first.turn(index), second.turn(index)
        found = is_before(meets, mine, other)
        if found.solve(work) is not None:
            yield found
        meets = meets.equal(*difference(mine, other))


def _error(pair: Pair, first: Instance, second: Instance, values: Values, what: str) -> ScheduleError:
    return ScheduleError(
        f"{what} lets two accesses of {first.element(values)} change places: the {first.at(values)} comes before the "
        f"{second.at(values)} and would come after it{pair.sizes(values)}",
        location=pair.write.statement.location,
        help="keep an order in which what depends on another turn runs after it; "
        "skewing a loop by another one can make such an order possible",
    )
