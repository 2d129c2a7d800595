"""Loops that run in parallel: no two of their turns may depend on one another."""

from __future__ import annotations

from tilewright.errors import ScheduleError
from tilewright.schedule.binding import Binding
from tilewright.schedule.instances import is_before, pairs, turns
from tilewright.schedule.integers import LIMIT, UndecidedError
from tilewright.schedule.loop_nest import LoopNest
from tilewright.schedule.sides import Work


def refuse_crossings(nest: LoopNest, bindings: tuple[Binding, ...]) -> None:
    """Raise `ScheduleError` where two threads or blocks would access one element, and one of them writes.

    Reductions are no exception: threads that add to one element at the same time lose sums. Two accesses for which the
    question takes too much work are refused too, by an error that says so.
    """
    bound = [(loop, binding.unit) for binding in bindings for loop in binding.loops if loop.trips != 1]
    if not bound:
        return
    for pair in pairs(nest):
        meets, work = pair.meets(), Work(LIMIT)
        for loop, unit in bound:
            low, high = turns(loop)
            is_one = pair.first.access is pair.second.access and pair.first.number == pair.second.number
            for mine, other in [(low, high)] if is_one else [(low, high), (high, low)]:
                try:
                    values = is_before(meets, mine, other).solve(work)
                except UndecidedError:
                    raise pair.undecided(
                        f"{loop.index} cannot be bound to {unit.name}",
                        "access one element at the same time",
                    ) from None
                if values is not None:
                    raise ScheduleError(
                        f"{loop.index} cannot be bound to {unit.name}: different turns of it access "
                        f"{pair.first.element(values)} at the same time, the {pair.first.at(values)} and the "
                        f"{pair.second.at(values)}{pair.sizes(values)}",
                        location=pair.write.statement.location,
                        help="a loop of a reduction cannot be bound; bind loops the written element moves with"
                        if pair.is_of_one_reduction
                        else "bind loops whose turns are independent of one another",
                    )
