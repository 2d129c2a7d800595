"""What the suite runs of much, and what `pytest -m slow` runs: repetitions, random examples, products of choices.

The slow tests repeat in full by default, and a fraction of it where TILEWRIGHT_SLOW_FACTOR says so.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import settings

FACTOR = float(os.environ.get("TILEWRIGHT_SLOW_FACTOR") or 1)
if not (math.isfinite(FACTOR) and FACTOR > 0):
    raise pytest.UsageError(f"TILEWRIGHT_SLOW_FACTOR is a number above 0, got {FACTOR}")


def scaled(count: int) -> int:
    """Return the repetitions of a slow test that has `count` in full; at least one."""
    return max(1, round(count * FACTOR))


def slow(amount: float) -> Any:
    """Return a parameter of a slow test: a number of repetitions, or of seconds, times the factor."""
    return pytest.param(scaled(amount) if isinstance(amount, int) else amount * FACTOR, marks=pytest.mark.slow)


class Random:
    """Whether random examples are drawn in full: `pytest -m slow` says so before the tests are imported."""

    in_full = False


def examples(few: int, full: int, **options: Any) -> Callable[[Any], Any]:
    """Draw `few` random examples in the suite; with `pytest -m slow`, run the same test with `full` of them.

    `options` are those of `hypothesis.settings`. The factor does not count: the full number takes a minute at most.
    """
    assert few < full, (few, full)
    count = full if Random.in_full else few

    def decorate(test: Any) -> Any:
        test = settings(max_examples=count, deadline=None, **options)(test)
        return pytest.mark.slow(test) if Random.in_full else test

    return decorate


def covering(*choices: Iterable[Any], of: int = 2) -> list[Any]:
    """Return the product of some choices as parameters of a test, most of them slow.

    The suite runs so many that every `of` of the choices meet in each combination of theirs: with 2, what goes wrong
    because of two choices together is found, whatever the others are. The rest of the product is slow.
    """
    product = list(itertools.product(*choices))
    missing = {part for row in product for part in _parts(row, of)}
    kept: set[int] = set()
    while missing:
        best = max(range(len(product)), key=lambda n: (len(missing & _parts(product[n], of)), -n))
        kept.add(best)
        missing -= _parts(product[best], of)
    return [pytest.param(*row, marks=() if n in kept else pytest.mark.slow) for n, row in enumerate(product)]


def spread(cases: Sequence[Mapping[str, int]], every: int) -> set[int]:
    """Return which cases of a test the suite runs where one of `every` is enough; the rest is slow.

    A case is given by which value of each parameter it has. Of each `every` neighbours one is kept, each time a place
    further on, so that what repeats within them is met at every place, and the last of more than `every`. To these come
    cases until each value that several cases share is there, so that every class of case is represented.
    """
    count = len(cases)
    kept = {min(start + start // every % every, count - 1) for start in range(0, count, every)}
    if count > every:
        kept.add(count - 1)
    shared = {value for value, times in Counter(value for case in cases for value in case.items()).items() if times > 1}
    missing = shared - {value for n in kept for value in cases[n].items()}
    while missing:
        best = max(range(count), key=lambda n: (len(missing & cases[n].items()), -n))
        kept.add(best)
        missing -= cases[best].items()
    return kept


def share(cases: Sequence[Any]) -> Sequence[Any]:
    """Return the cases of a spread that the slow tests run of those that it leaves out: with a factor of 1/4 a quarter."""
    return cases[:: max(1, round(1 / FACTOR))]


def _parts(row: Sequence[Any], of: int) -> set[Any]:
    """Return which values stand where, for each `of` of the choices; by `repr`, since values need not be hashable."""
    return set(itertools.combinations([(n, repr(value)) for n, value in enumerate(row)], of))


def rest_is_slow(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Return values as parameters of a test; all but those `kept` are slow."""
    found = [value if value in kept else pytest.param(value, marks=pytest.mark.slow) for value in values]
    assert sum(value in kept for value in found) == len(kept), "each that is kept is one of the values"
    return found
