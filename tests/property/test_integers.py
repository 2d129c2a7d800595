"""Systems over the integers against trying every point of a box, and against points planted in them."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st
from tests.helpers.slow import examples

from tilewright.schedule.integers import System

Terms = tuple[dict[str, int], int]
NAMES = "abcd"


def sums(size: int) -> st.SearchStrategy[Terms]:
    return st.tuples(
        st.dictionaries(st.sampled_from(NAMES), st.integers(-size, size), max_size=4), st.integers(-20, 20)
    )


def boxed(extents: list[int]) -> System[str]:
    system = System[str]()
    for name, extent in zip(NAMES, extents, strict=True):
        system = system.at_least_zero({name: 1}).at_least_zero({name: -1}, extent - 1)
    return system


def stated(system: System[str], equalities: list[Terms], inequalities: list[Terms]) -> System[str]:
    for terms, constant in equalities:
        system = system.equal(terms, constant)
    for terms, constant in inequalities:
        system = system.at_least_zero(terms, constant)
    return system


@examples(100, 600)
@given(
    st.lists(st.integers(1, 6), min_size=4, max_size=4),
    st.lists(sums(7), max_size=2),
    st.lists(sums(7), max_size=5),
)
@example([6, 6, 6, 6], [], [({"a": 5, "b": -3}, -2), ({"a": -5, "b": 3}, 3), ({"c": 1}, -7)])
def test_answer_is_that_of_trying_every_point(extents, equalities, inequalities):
    system = stated(boxed(extents), equalities, inequalities)
    points = (dict(zip(NAMES, point, strict=True)) for point in itertools.product(*map(range, extents)))
    expected = any(system.holds(point) for point in points)
    values = system.solve()
    assert (values is not None) == expected
    assert values is None or system.holds(values)


@examples(50, 300)
@given(
    st.lists(st.sampled_from([2, 4, 8]), min_size=4, max_size=4),
    st.lists(st.tuples(st.permutations(NAMES), *[st.integers(-19, 19)] * 4, st.integers(0, 8)), min_size=2, max_size=3),
)
def test_narrow_bands_in_a_box(extents, bands):
    """Between sides that lie close, real and dark shadows differ: the points are those that trying all finds."""
    system = boxed(extents)
    for names, x, y, z, low, width in bands:
        terms = dict(zip(names, (x, y, z), strict=False))
        system = system.at_least_zero(terms, -low).at_least_zero({v: -c for v, c in terms.items()}, low + width)
    points = (dict(zip(NAMES, point, strict=True)) for point in itertools.product(*map(range, extents)))
    expected = any(system.holds(point) for point in points)
    values = system.solve()
    assert (values is not None) == expected
    assert values is None or system.holds(values)


@examples(50, 300)
@given(
    st.integers(-30, 30),
    st.integers(0, 40),
    st.integers(-30, 30),
    st.integers(0, 12),
    *[st.integers(-19, 19)] * 4,
)
def test_two_narrow_bands_without_a_box(first, width, second, height, a, b, c, d):
    """The points of two bands that are not parallel lie in a parallelogram: all of it is tried."""
    system = System[str]().at_least_zero({"x": a, "y": b}, -first).at_least_zero({"x": -a, "y": -b}, first + width)
    system = system.at_least_zero({"x": c, "y": d}, -second).at_least_zero({"x": -c, "y": -d}, second + height)
    determinant = a * d - b * c
    values = system.solve()
    assert values is None or system.holds(values)
    if determinant:
        # x = (d p - b q) / det and y = (a q - c p) / det for the values p and q of the two sums
        expected = any(
            (d * p - b * q) % determinant == 0 and (a * q - c * p) % determinant == 0
            for p in range(first, first + width + 1)
            for q in range(second, second + height + 1)
        )
        assert (values is not None) == expected


@examples(50, 300)
@given(st.data())
def test_a_planted_point_is_never_missed(data):
    """Conditions made true at a point of large numbers have a solution, bounded or not."""
    point = {name: data.draw(st.integers(-(2**20), 2**20)) for name in "abcdef"}
    terms = st.dictionaries(st.sampled_from("abcdef"), st.integers(-40, 40), min_size=1, max_size=4)
    system = System[str]()
    for each in data.draw(st.lists(terms, max_size=4)):
        system = system.equal(each, -sum(c * point[v] for v, c in each.items()))
    for each in data.draw(st.lists(terms, max_size=6)):
        slack = data.draw(st.integers(0, 5))
        system = system.at_least_zero(each, slack - sum(c * point[v] for v, c in each.items()))
    values = system.solve()
    assert values is not None and system.holds(values)


@examples(40, 200)
@given(st.lists(sums(9), max_size=3), st.lists(sums(9), max_size=4), st.randoms())
def test_answer_does_not_depend_on_order_or_scale(equalities, inequalities, random):
    """Shuffled conditions, each multiplied by a positive number, have a solution or none as before."""
    before = stated(System[str](), equalities, inequalities).solve()

    def changed(conditions: list[Terms]) -> list[Terms]:
        factors = [random.randint(1, 9) for _ in conditions]
        scaled = [({v: f * c for v, c in t.items()}, f * k) for f, (t, k) in zip(factors, conditions, strict=True)]
        return random.sample(scaled, len(scaled))

    after = stated(System[str](), changed(equalities), changed(inequalities)).solve()
    assert (before is None) == (after is None)
