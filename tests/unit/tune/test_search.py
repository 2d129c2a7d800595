"""The search: everything of a small space, reproducible by its seed, and better than chance on a large one."""

from __future__ import annotations

import math
import random

import pytest

import tilewright as tw
from tilewright.tune.configs import Config
from tilewright.tune.space import listed, searched


def walk(space: tw.Space, cost, seed: int, limit: int) -> dict[Config, float | None]:
    times: dict[Config, float | None] = {}
    for batch in searched(space, space.names, times, seed=seed, limit=limit):
        assert batch
        for config in batch:
            assert config not in times, "tried twice"
            times[config] = cost(**config.values)
    return times


LARGE = tw.Space({name: tuple(range(16)) for name in "abcde"}).where(lambda a, b: (a + b) % 3 != 1, "not 1 of 3")


def bowl(a: int, b: int, c: int, d: int, e: int) -> float | None:
    if c == 7:
        return None  # fails
    return 1 + (a - 11) ** 2 + (b - 3) ** 2 + (c - 9) ** 2 + (d - 2) ** 2 + (e - 14) ** 2


def test_all_of_a_small_space_is_tried_once() -> None:
    space = tw.Space(a=range(5), b=range(7)).where(lambda a, b: a != b, "apart")
    times = walk(space, lambda a, b: a + b, 0, 200)
    assert {(c.values["a"], c.values["b"]) for c in times} == set(space)


def test_the_limit_holds() -> None:
    assert len(walk(LARGE, bowl, 0, 77)) == 77


def test_the_same_seed_tries_the_same() -> None:
    assert list(walk(LARGE, bowl, 3, 100)) == list(walk(LARGE, bowl, 3, 100))
    assert list(walk(LARGE, bowl, 3, 100)) != list(walk(LARGE, bowl, 4, 100))


def test_it_is_far_better_than_chance() -> None:
    found, chance = [], []
    for seed in range(5):
        found.append(min(t for t in walk(LARGE, bowl, seed, 150).values() if t is not None))
        points = LARGE.sample(random.Random(seed), 150, set())
        chance.append(min(t for p in points if (t := bowl(*p)) is not None))
    assert math.fsum(found) < math.fsum(chance) / 2


def test_nothing_works_and_the_search_still_ends() -> None:
    assert len(walk(LARGE, lambda **_: None, 0, 40)) == 40


def test_lists_keep_their_order() -> None:
    configs = [tw.Config(n=n) for n in range(19)]
    assert [c for batch in listed(configs) for c in batch] == configs


def test_axes_that_the_function_does_not_take_are_launch_options() -> None:
    space = tw.Space(BM=(64,), min_blocks=(1, 2))
    configs = [c for batch in searched(space, ["C", "BM"], {}, seed=0, limit=9) for c in batch]
    assert sorted(c.options["min_blocks"] for c in configs) == [1, 2] and all(c.values == {"BM": 64} for c in configs)
    own = [c for batch in searched(space, ["BM", "min_blocks"], {}, seed=0, limit=9) for c in batch]
    assert all(not c.options and "min_blocks" in c.values for c in own)


@pytest.mark.parametrize("limit", [1, 3])
def test_few_trials(limit: int) -> None:
    assert len(walk(LARGE, bowl, 0, limit)) == limit
