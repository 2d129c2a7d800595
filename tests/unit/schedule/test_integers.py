"""Systems over the integers: known hard cases, unbounded variables, and systems of loop nests, short at any extent."""

from __future__ import annotations

import random

import pytest

from tilewright.errors import ArgumentError
from tilewright.schedule.integers import LIMIT, System, UndecidedError
from tilewright.schedule.sides import Work


def band(system: System, low: int, terms: dict, high: int) -> System:
    return system.at_least_zero(terms, -low).at_least_zero({v: -c for v, c in terms.items()}, high)


def box(system: System, extents: dict) -> System:
    for variable, extent in extents.items():
        system = band(system, 0, {variable: 1}, extent - 1)
    return system


def check(system: System) -> dict:
    values = system.solve()
    assert values is not None and system.holds(values)
    return values


def test_pugh_has_fractions_only():
    """The real shadow of x is not empty, the dark shadow is, and no splinter has a point (Pugh 1991)."""
    bands = band(band(System(), 27, {"x": 11, "y": 13}, 45), -10, {"x": 7, "y": -9}, 4)
    assert bands.solve() is None
    assert check(band(band(System(), 24, {"x": 11, "y": 13}, 45), -10, {"x": 7, "y": -9}, 4)) == {"x": 1, "y": 1}


@pytest.mark.parametrize(
    ("bands", "point"),
    [
        ([(13, (-6, -10), 24), (5, (-13, -6), 10)], (1, -3)),
        ([(19, (13, -14), 30), (20, (-1, 4), 25)], (12, 9)),
        ([(17, (14, -11), 23), (2, (-6, 5), 3)], (37, 45)),
        ([(9, (14, -8), 12), (-14, (-5, 4), -5)], (-2, -5)),
    ],
)
def test_points_outside_of_the_dark_shadow_are_found(bands, point):
    system = System()
    for low, (x, y), high in bands:
        system = band(system, low, {"x": x, "y": y}, high)
    assert system.holds(dict(zip("xy", point, strict=True)))
    check(system)


def test_points_near_upper_sides_are_found():
    """The upper sides of a variable need fewer splinters than its lower ones."""
    steep = System().at_least_zero({"x": 12, "w": 4}, 8).at_least_zero({"x": -8, "w": 12}, -2)
    steep = steep.at_least_zero({"x": -14, "w": 15}, 18).at_least_zero({"w": 8, "x": 5}, -1)
    check(steep.at_least_zero({"w": -6, "x": -3}, 3))


@pytest.mark.parametrize(
    ("bands", "extents", "point"),
    [
        ([(-9, {"x": 12, "y": -10}, -2), (-3, {"y": -5, "w": 13}, -1)], {"w": 30, "x": 4, "y": 4}, (1, 2, 3)),
        ([(0, {"w": 11, "x": -15}, 8), (-8, {"w": -15, "y": 18, "x": 19}, -1)], {"w": 4, "x": 4, "y": 4}, (3, 2, 0)),
        ([(8, {"y": -17, "w": 8}, 12), (-15, {"x": 4, "y": -11}, -6)], {"w": 8, "x": 8, "y": 8}, None),
    ],
)
def test_every_value_of_a_short_loop_is_tried(bands, extents, point):
    """A variable of few values is tried value by value; a solution of the real shadows need not be one."""
    system = box(System(), extents)
    for low, terms, high in bands:
        system = band(system, low, terms, high)
    if point is None:
        assert system.solve() is None
    else:
        assert system.holds(dict(zip("wxy", point, strict=True)))
        check(system)


@pytest.mark.parametrize("extent", [7, 2**20, 2**70])
def test_gcd_rules_out_at_any_extent(extent):
    odd = box(System(), {"i": extent, "j": extent}).equal({"i": 6, "j": -4}, 1)
    assert odd.solve() is None
    assert check(box(System(), {"i": extent, "j": extent}).equal({"i": 6, "j": -9}, 3)) == {"i": 1, "j": 1}


def test_coefficients_without_a_unit():
    """7x + 12y + 31z == 17 and 3x + 5y + 14z == 7, the equations that Pugh works through."""
    system = System().equal({"x": 7, "y": 12, "z": 31}, -17).equal({"x": 3, "y": 5, "z": 14}, -7)
    check(system)
    values = check(band(system, -40, {"x": 1}, 50).at_least_zero({"z": 1}, -2))
    assert -40 <= values["x"] <= 50 and values["z"] >= 2


@pytest.mark.parametrize(
    ("first", "second", "point"),
    [
        ((13, -16, 12), (19, -3, -5), None),
        ((13, -16, 12), (19, -3, 65), (-4, -2.5)),
        ((13, -16, -6), (19, -3, -67), None),
        ((13, -16, 35), (19, -3, 29), (-1.36, 1.08)),
        ((13, -16, 3 * 16 - 13 * 5), (19, -3, 3 * 3 - 19 * 5), (5, 3)),
        ((10**30 + 57, -(10**29) - 31, -1), (10**30 + 61, -(10**29) - 33, -2), None),
    ],
)
def test_two_equations_with_one_rational_point(first, second, point):
    """Each equation has integer points; to solve one by parts, and then the other, and the first again, may not end."""
    work = Work(LIMIT)
    system = System()
    for x, y, constant in (first, second):
        system = system.equal({"x": x, "y": y}, constant)
    values = system.solve(work)
    expected = point is not None and all(float(v).is_integer() for v in point)
    assert (values is not None) == expected and (values is None or values == dict(zip("xy", point, strict=True)))
    assert work.done < 100


@pytest.mark.parametrize("size", [20, 10**6, 10**30])
@pytest.mark.parametrize("variables", [2, 6, 12, 18])
@pytest.mark.spread(4)
def test_as_many_equations_as_variables(variables, size):
    """Numbers grow while equations are solved one after the other, and stay within the limit of work."""
    draw = random.Random(variables + size)
    point = {n: draw.randint(-size, size) for n in range(variables)}
    system = System()
    for _ in range(variables):
        terms = {n: draw.randint(-size, size) for n in range(variables)}
        system = system.equal(terms, -sum(c * point[n] for n, c in terms.items()))
    assert system.solve() == point
    assert system.equal({0: 1}, 1 - point[0]).solve() is None


def test_what_is_too_much_is_refused():
    """A market split problem, 30 numbers of 0 or 1 and four sums of them, is beyond any limit; a wrong answer is worse."""
    draw = random.Random(1)
    system = box(System(), dict.fromkeys(range(30), 2))
    for _ in range(4):
        terms = {n: draw.randrange(100) for n in range(30)}
        system = system.equal(terms, -(sum(terms.values()) // 2))
    work = Work(LIMIT)
    with pytest.raises(UndecidedError, match="4 equations and 60 inequalities of 30 variables .* 2,000,000 steps"):
        system.solve(work)
    assert LIMIT < work.done < 1.1 * LIMIT
    with pytest.raises(UndecidedError):
        System().equal({"x": 3, "y": 5}, 1).solve(work)  # the same work has no steps left


def test_a_size_known_at_launch_only():
    """Loops up to N, N anything from 1 up: 16 * o + r < N never keeps two iterations from being the same."""
    nest = System().at_least_zero({"N": 1}, -1)
    for o, r in (("o1", "r1"), ("o2", "r2")):
        nest = box(nest.at_least_zero({o: 1}), {r: 16}).at_least_zero({"N": 1, o: -16, r: -1}, -1)
    same = nest.equal({"o1": 16, "r1": 1, "o2": -16, "r2": -1})
    assert check(same) == {"N": 1, "o1": 0, "r1": 0, "o2": 0, "r2": 0}
    assert same.at_least_zero({"o2": 1, "o1": -1}, -1).solve() is None
    below = nest.at_least_zero({"o1": 1}, -1000).at_least_zero({"r1": 1}, -5)
    assert check(below)["N"] >= 16 * 1000 + 6
    assert below.at_least_zero({"N": -1}, 16005).solve() is None


def test_opposite_bounds_make_an_equation():
    system = band(System(), 5, {"a": 3, "b": 3}, 7)  # a + b == 2
    assert check(system.equal({"a": 1, "b": -1}, 2)) == {"a": 0, "b": 2}
    assert system.equal({"a": 1, "b": -1}, 1).solve() is None


def test_a_system_is_a_value():
    start = System().at_least_zero({"i": 1})
    longer = start.equal({"i": 1}, 3)
    assert longer.solve() is None and start.solve() == {"i": 0}
    assert start.and_(System().equal({"i": 1}, -3)).solve() == {"i": 3}
    assert start == System().at_least_zero({"i": 1, "j": 0}) and hash(start) == hash(System().at_least_zero({"i": 1}))
    assert (
        System().solve() == {}
        and System().equal({}, 1).solve() is None
        and System().at_least_zero({}, -1).solve() is None
    )
    assert str(longer) == "i + 3 == 0\ni >= 0" and str(System()) == "true" and str(System().equal({})) == "0 == 0"


@pytest.mark.parametrize(("terms", "constant"), [({"i": 0.5}, 0), ({"i": 1}, 1.0), ({"i": "j"}, 0)])
def test_numbers_other_than_integers_are_refused(terms, constant):
    with pytest.raises(ArgumentError, match="takes integers as coefficients"):
        System().equal(terms, constant)


def matmul(extents: tuple[int, int, int]) -> System:
    """Return two iterations of i, j, k, each loop split by 64 and by 16, that reach the same element of C[i, j]."""
    system = System()
    for dimension, extent in zip("ijk", extents, strict=True):
        for time_ in (1, 2):
            a, b, c = ((dimension, part, time_) for part in "abc")
            system = box(system, {a: -(-extent // 64), b: 4, c: 16})
            system = system.at_least_zero({a: -64, b: -16, c: -1}, extent - 1)
    for dimension in "ij":
        parts = {(dimension, "a"): 64, (dimension, "b"): 16, (dimension, "c"): 1}
        system = system.equal({(*part, t): s * n for part, n in parts.items() for t, s in ((1, 1), (2, -1))})
    return system


@pytest.mark.parametrize("extents", [(2**20, 2**20, 2**20), (1000003, 999983, 12345)])
def test_split_matmul_depends_on_itself_along_k_only(extents):
    """Iterations that differ in a part of i or of j reach other elements; 18 variables, and few steps at any extent."""
    same = matmul(extents)
    for part in "abc":
        for dimension in "ijk":
            later = same.at_least_zero({(dimension, part, 2): 1, (dimension, part, 1): -1}, -1)
            work = Work(LIMIT)
            values = later.solve(work)
            assert (values is not None) == (dimension == "k")
            assert values is None or later.holds(values)
            assert work.done < 2_000


@pytest.mark.parametrize(("stride", "dilation"), [(2, 1), (2, 3), (3, 5), (7, 4)])
def test_convolution_reaches_an_input_twice_as_its_window_allows(stride, dilation):
    """stride * o1 + dilation * k1 == stride * o2 + dilation * k2 needs o2 - o1 a multiple of `dilation`."""
    reach = System()
    for t in "12":
        reach = box(reach, {"out" + t: 32, "in" + t: 7, "k" + t: 8}).equal({"o" + t: 1, "out" + t: -7, "in" + t: -1})
    reach = reach.equal({"o1": stride, "k1": dilation, "o2": -stride, "k2": -dilation})
    for distance in range(1, 30):
        expected = distance % dilation == 0 and distance // dilation * stride < 8
        assert (reach.equal({"o2": 1, "o1": -1}, -distance).solve() is not None) == expected, distance
