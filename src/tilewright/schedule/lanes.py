"""Vectorized loops: which of their iterations run at once, and the loops in the order that this makes of them.

Iterations that run at once are lanes. A statement runs for all lanes before the next one does, so that lanes stand
inside of all other loops: a vectorized loop with loops inside is unrolled and jammed.
"""

from __future__ import annotations

import copy
from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.schedule import transforms
from tilewright.schedule.affine import Index
from tilewright.schedule.arrays import Array
from tilewright.schedule.caches import Cache
from tilewright.schedule.crossings import crossings
from tilewright.schedule.loop_nest import Loop, LoopNest
from tilewright.schedule.orders import refuse_recurrences, refuse_violations
from tilewright.schedule.plan_state import PlanState

MAX_LANES = 64  # each takes registers for every operand of a statement
_VECTOR_BYTES = 16


def lowered(plan: PlanState) -> PlanState:
    """Return a plan in which the vectorized loops are the innermost ones and have no more than `MAX_LANES` lanes.

    before: for jj in range(8):  # vectorized        after: for k in range(n):
                for k in range(n):                              for jj in range(8):  # vectorized

    From the innermost vectorized loop outwards each gives as many lanes as are left of `MAX_LANES`. A longer loop, and
    one whose length only the launch knows, is split, and its blocks stay a loop in its place. What caches keep that
    were filled inside of a vectorized loop is then kept for all lanes.

    Raises `ScheduleError` where that lets accesses of one element change places: it names them.
    """
    chosen = [index for index in plan.nest.order if index in plan.vectorized]
    if not chosen:
        return plan
    _refuse_units(plan, chosen)
    nest, lanes, blocks = _lanes(plan, chosen)
    order = [index for index in nest.order if index not in lanes]
    after = replace(nest, loops=tuple(nest.loop(index) for index in (*order, *lanes)))
    names = ", ".join(map(str, chosen))
    refuse_violations(nest, after, f"vectorizing {names}")
    refuse_recurrences(after, tuple(lanes))
    made = copy.copy(plan)
    made.nest, made.vectorized = after, frozenset(lanes)
    if plan.crossings:
        made.crossings = crossings(after, plan.bindings)
    for crossing in made.crossings:
        if crossing.index in lanes:
            raise ScheduleError(
                f"{crossing.index} is vectorized, and threads wait for one another between its iterations, because of "
                f"the {crossing.pair.first.access} and the {crossing.pair.second.access}",
                location=crossing.pair.write.statement.location,
                help="vectorize a loop inside of it",
            )
    made.caches = _moved(plan.caches, nest.order, lanes, blocks)
    return made


def refuse_vector(plan: PlanState, index: Index) -> None:
    """Raise `ScheduleError` for a loop of a plan that cannot be vectorized, whatever loops inside of it are too.

    Alone a loop may be refused that is legal together with those inside: they then keep their order as lanes.
    """
    trial = copy.copy(plan)
    trial.vectorized = plan.vectorized | {index}
    try:
        lowered(trial)
    except ScheduleError as error:
        inside = plan.serial[plan.serial.index(index) + 1 :] if index in plan.serial else ()
        trial.vectorized |= {other for other in inside if other not in plan.nest.fusing}
        try:
            lowered(trial)
        except ScheduleError:
            raise error from None


def _refuse_units(plan: PlanState, chosen: list[Index]) -> None:
    for index in chosen:
        if index in plan.bound:
            raise ScheduleError(f"{index} is vectorized and bound", help="vectorize a loop that each thread runs")
        if index in plan.nest.fusing:
            raise ScheduleError(
                f"{index} numbers fused schedules and is vectorized", help="vectorize a loop of the schedules"
            )
        if plan.tensorization is not None:
            raise ScheduleError(
                f"{index} is vectorized in a plan that is tensorized, whose tile is computed by a warp together",
                help="leave vectorize out: fragments and caches are moved by wide accesses where they can be",
            )


def _lanes(plan: PlanState, chosen: list[Index]) -> tuple[LoopNest, list[Index], dict[Index, Index]]:
    """Return the nest with long loops split, the lanes' loops outermost first, and the lanes of each split loop."""
    nest, left = plan.nest, MAX_LANES
    lanes: list[Index] = []
    blocks: dict[Index, Index] = {}
    for index in reversed(chosen):
        loop = nest.loop(index)
        count = _count(plan, loop, left)
        if count < 2 and loop.trips != 1:
            continue
        if count != loop.trips:
            inner = Index(f"{index.name}_lane")
            nest = transforms.split(nest, index, count, inner)
            blocks[index] = inner
        lanes.insert(0, blocks.get(index, index))
        left //= count
    return nest, lanes, blocks


def _count(plan: PlanState, loop: Loop, left: int) -> int:
    """Return how many lanes a loop gives where so many are left."""
    power = 1 << (left.bit_length() - 1)
    if loop.trips is None:
        return min(power, _width(plan, loop.index))
    if loop.trips <= left:
        return loop.trips
    divisors = [n for n in range(left, left // 2, -1) if loop.trips % n == 0]
    return divisors[0] if divisors else power


def _width(plan: PlanState, index: Index) -> int:
    """Return how many elements an access of 16 bytes holds, of the smallest that move with the loop."""
    moving: set[Array] = set()
    for part in plan.nest.parts:
        for statement in part.statements:
            for access in statement.accesses:
                if any(mode.substitute(part.places).factor(index) for mode in access.place):
                    moving.add(access.array)
    bits = min((array.element_type.bits for array in moving), default=32)
    return max(2, min(16, _VECTOR_BYTES * 8 // max(bits, 8)))


def _moved(
    caches: list[Cache], order: tuple[Index, ...], lanes: list[Index], blocks: dict[Index, Index]
) -> list[Cache]:
    """Return caches at their places among the loops once the lanes are innermost."""

    def place(index: Index | None) -> Index | None:
        behind = () if index is None else order[order.index(index) :]
        return next((other for other in behind if other not in lanes), lanes[0] if lanes else None)

    made: dict[Cache, Cache] = {}
    for cache in caches:
        source = made.get(cache.source, cache.source) if isinstance(cache.source, Cache) else cache.source
        made[cache] = replace(
            cache,
            source=source,
            at=place(cache.at),
            trigger=place(cache.trigger),
            inside=frozenset((*cache.inside, *blocks.values(), *lanes)),
        )
    return list(made.values())
