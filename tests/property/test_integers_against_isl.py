"""Systems over the integers against isl, an independent solver, and within a bounded amount of work.

What is bounded is steps and not seconds, so that no load of the machine fails a test; `python -m
tests.property.test_integers_against_isl` measures seconds.
"""

from __future__ import annotations

import statistics
import sys
import time
import tracemalloc

import islpy as isl
import pytest
from tests.helpers.slow import scaled
from tests.property.random_systems import CLASSES, Maker, random_system

from tilewright.schedule.integers import LIMIT, System
from tilewright.schedule.sides import Work


def has_points(system: System[str]) -> bool:
    """Ask isl."""
    names = system.variables()
    space = isl.Space.create_from_names(isl.DEFAULT_CONTEXT, set=list(names))
    points = isl.BasicSet.universe(space)
    for make, conditions in (
        (isl.Constraint.eq_from_names, system.equalities),
        (isl.Constraint.ineq_from_names, system.inequalities),
    ):
        for terms, constant in conditions:
            points = points.add_constraint(make(space, {**dict(terms), 1: constant}))
    return not points.is_empty()


def check(system: System[str], seed: int) -> int:
    """Compare one answer, and return the steps that it took."""
    work = Work(LIMIT)
    values = system.solve(work)
    assert (values is not None) == has_points(system), f"seed {seed}:\n{system}"
    assert values is None or system.holds(values), f"seed {seed}:\n{system}"
    return work.done


def check_all(seeds: range) -> None:
    steps = sorted((check(random_system(seed), seed), seed) for seed in seeds)
    assert statistics.median(count for count, _ in steps) < 2_000, steps[len(steps) // 2]
    assert steps[-1][0] < LIMIT // 4, f"seed {steps[-1][1]} took {steps[-1][0]} steps"


@pytest.mark.parametrize("block", range(4))
@pytest.mark.spread(2)
def test_two_thousand(block: int):
    check_all(range(500 * block, 500 * (block + 1)))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_a_hundred_thousand(block: int):
    start = 1_000_000 + 5_000 * block
    check_all(range(start, start + scaled(5_000)))


@pytest.mark.parametrize("make", CLASSES, ids=lambda make: make.__name__)
@pytest.mark.spread(3)
def test_memory_stays_small(make):
    """No system of a class takes more than a megabyte while it is solved."""
    systems = [make(Maker(seed)) for seed in range(30)]
    tracemalloc.start()
    try:
        for system in systems:
            system.solve()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20, peak


def _measure(seeds: range) -> None:
    """Print how long the systems of the seeds take, in seconds of the processor."""
    seconds, steps = [], []
    for seed in seeds:
        system, work = random_system(seed), Work(LIMIT)
        start = time.process_time()
        values = system.solve(work)
        seconds.append((time.process_time() - start, seed))
        steps.append((work.done, seed))
        assert (values is not None) == has_points(system), seed
    for name, figures in (("seconds", sorted(seconds)), ("steps", sorted(steps))):
        middle, last = figures[len(figures) // 2], figures[len(figures) * 999 // 1000]
        print(f"{len(figures)} systems, {name} (seed): median {middle}, 99.9 % {last}, longest {figures[-3:]}")


if __name__ == "__main__":
    first, number = (int(argument) for argument in (*sys.argv[1:], "1000000", "100000")[:2])
    _measure(range(first, first + number))
