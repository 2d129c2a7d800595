"""Crossings: elements that several threads of a block access, and the loops whose iterations keep them in order.

Iterations of bound loops run at the same time. Where a serial loop separates two accesses, a barrier behind each of its
iterations orders them between the threads of a block; so the loop over the diagonals of a skewed nest runs one after
the other, and the loop along a diagonal is bound. Nothing orders two blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Index
from tilewright.schedule.binding import Binding
from tilewright.schedule.dependences import Pair, Values, Variable, difference, is_before, iterations, pairs
from tilewright.schedule.integers import LIMIT, System, UndecidedError
from tilewright.schedule.loop_nest import Loop, LoopNest
from tilewright.schedule.sides import Work
from tilewright.schedule.targets import GridUnit


@dataclass(frozen=True, eq=False)
class Crossing:
    """Two accesses of one element by two threads, in different iterations of a serial loop, `index`."""

    pair: Pair
    index: Index


@dataclass(frozen=True, eq=False)
class _Bound:
    """A loop that is bound, and its unit."""

    loop: Loop
    unit: GridUnit

    @property
    def is_ordered(self) -> bool:
        """Whether a barrier can order what different iterations do: those of threads."""
        return self.unit.name.startswith("THREAD")


class _Known:
    """Answers of one question: accesses of the same elements by several statements ask for the same systems.

    `work` is what the questions about a pair share; an answer that is known costs none of it.
    """

    def __init__(self) -> None:
        self.work = Work(LIMIT)
        self._answers: dict[System[Variable], Values | None] = {}

    def solve(self, system: System[Variable]) -> Values | None:
        """Return integers that meet a system's conditions, or None. Raises `UndecidedError`."""
        if system not in self._answers:
            self._answers[system] = system.solve(self.work)
        return self._answers[system]


def crossings(nest: LoopNest, bindings: tuple[Binding, ...]) -> tuple[Crossing, ...]:
    """Return what two threads of a block access in different iterations of a serial loop.

    Raises `ScheduleError` where two threads or blocks would access one element at the same time, and one of them
    writes, or in another order than was declared. Reductions are no exception: threads that add to one element at the
    same time lose sums. Two accesses for which the question takes too much work are refused too, by an error that says
    so.
    """
    bound = [_Bound(loop, binding.unit) for binding in bindings for loop in binding.loops if loop.trips != 1]
    found: list[Crossing] = []
    known = _Known()
    for pair in pairs(nest) if bound else ():
        indices: dict[Index, None] = {}
        meets, known.work = pair.meets(), Work(LIMIT)
        for one in bound:
            try:
                indices.update((index, None) for index in _separating(nest, bound, one, pair, meets, known))
            except UndecidedError:
                raise pair.undecided(
                    f"{one.loop.index} cannot be bound to {one.unit.name}", "access one element at the same time"
                ) from None
        found += [Crossing(pair, index) for index in indices]
    return tuple(found)


def _separating(
    nest: LoopNest, bound: list[_Bound], one: _Bound, pair: Pair, meets: System[Variable], known: _Known
) -> Iterator[Index]:
    """Yield the serial loops that separate the accesses of a pair by different iterations of a bound loop."""
    low, high = iterations(one.loop)
    for mine, other in [(low, high)] if pair.is_of_one_case else [(low, high), (high, low)]:
        system = is_before(meets, mine, other)
        values = known.solve(system)
        if values is None:
            continue
        if not one.is_ordered:
            raise pair.unknown() or _at_the_same_time(pair, one, values)
        for rigid in bound:
            if not rigid.is_ordered:
                system = system.equal(*difference(*iterations(rigid.loop)))
        taken = {x.loop.index for x in bound}
        for loop in nest.loops:
            if loop.index in taken:
                continue
            first, second = iterations(loop)
            for before, after, is_first in ((first, second, True), (second, first, False)):
                apart = is_before(system, before, after)
                if loop.trips == 1 or known.solve(apart) is None:
                    continue
                values = None if pair.is_of_one_reduction else _reversed(nest, bound, loop, apart, is_first, known)
                if values is not None:
                    raise pair.unknown() or _in_another_order(pair, one, loop, values)
                yield loop.index
            system = system.equal(*difference(first, second))
        values = known.solve(system)
        if values is not None:
            raise pair.unknown() or _at_the_same_time(pair, one, values)


def _reversed(
    nest: LoopNest, bound: list[_Bound], serial: Loop, system: System[Variable], is_first: bool, known: _Known
) -> Values | None:
    """Return where threads outside of a serial loop had the accesses declared in another order than it has them.

    `is_first` says that the loop has the first access before the second one.
    """
    outside = nest.loops[: nest.position(serial.index)]
    threads = [x.loop for x in bound if x.is_ordered]
    for loop in outside:
        if loop not in threads:
            continue
        first, second = iterations(loop)
        values = known.solve(is_before(system, second, first) if is_first else is_before(system, first, second))
        if values is not None:
            return values
        system = system.equal(*difference(first, second))
    return None


def _at_the_same_time(pair: Pair, one: _Bound, values: Values) -> ScheduleError:
    return ScheduleError(
        f"{one.loop.index} cannot be bound to {one.unit.name}: different iterations of it access "
        f"{pair.first.element(values)} at the same time, the {pair.first.at(values)} and the "
        f"{pair.second.at(values)}{pair.sizes(values)}",
        location=pair.write.statement.location,
        help="a loop of a reduction cannot be bound; bind loops the written element moves with"
        if pair.is_of_one_reduction
        else "bind loops whose iterations are independent of one another",
    )


def _in_another_order(pair: Pair, one: _Bound, serial: Loop, values: Values) -> ScheduleError:
    return ScheduleError(
        f"{one.loop.index} cannot be bound to {one.unit.name}: its iterations wait for one another in {serial.index} "
        f"alone, which has the {pair.first.at(values)} and the {pair.second.at(values)}, both of "
        f"{pair.first.element(values)}, in another order than they were declared in{pair.sizes(values)}",
        location=pair.write.statement.location,
        help=f"reorder the schedule so that {serial.index} runs outside of {one.loop.index}",
    )
