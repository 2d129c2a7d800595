"""TEMP arrays that each point of a nest writes before it reads: points change places, and only where that is so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, ScheduleError
from tilewright.schedule import (
    AllocateFlags,
    Array,
    Dimension,
    If,
    Location,
    Nest,
    Package,
    Role,
    Target,
    fuse,
    transforms,
)
from tilewright.schedule.orders import refuse_violations
from tilewright.schedule.private import private_points

TARGET = Target("NVIDIA A100")


def _array(name: str, *shape: Any, role: Role = Role.INPUT_OUTPUT, type: Any = tw.float32) -> Array:
    return Array(role, type, shape, name=name)


def _statements(kind: str) -> tuple[Nest, Array, tuple[Array, ...]]:
    """Return a nest whose points write a TEMP array and read it, with the array and the arguments."""
    a, b, t = _array("A", 6, 8, role=Role.INPUT), _array("B", 6, 8), _array("T", 2, role=Role.TEMP)
    nest = Nest((6, 8))
    i, j = nest.get_indices()  # type: ignore[misc]

    @nest.iteration_logic
    def _() -> None:
        if kind == "behind":
            b[i, j] = t[0]
        if kind == "guarded":
            If(a[i, j] > 0, lambda: t.__setitem__(0, a[i, j] * 2))
        elif kind == "other":
            t[1] = a[i, j] * 2
        elif kind == "both":
            t[0] = a[i, j]
            t[1] = t[0] * 2
        else:
            t[0] = a[i, j] * 2
        if kind == "under":
            If(a[i, j] > 0, lambda: t.__setitem__(1, t[0]))
        if kind != "behind":
            b[i, j] = b[i, j] + t[1 if kind == "both" else 0]

    return nest, t, (a, b)


@pytest.mark.parametrize(
    ("kind", "is_private"),
    [("plain", True), ("both", True), ("under", True), ("guarded", False), ("other", False), ("behind", False)],
)
def test_what_is_written_before_it_is_read(kind: str, is_private: bool) -> None:
    nest, t, arguments = _statements(kind)
    schedule = nest.create_schedule()
    i, j = schedule.get_indices()
    jj = schedule.split(j, 3)
    assert (t in private_points(schedule.nest)) is is_private
    if not is_private:
        with pytest.raises(ScheduleError, match=r"the order .* lets two accesses of T\[.\] change places"):
            schedule.reorder(j, jj, i)
        return
    schedule.reorder(j, jj, i)
    x, y = np.random.default_rng(0).random((6, 8), np.float32), np.ones((6, 8), np.float32)
    schedule.create_plan(TARGET).build(args=arguments)(x, y)
    np.testing.assert_array_equal(y, 1 + 2 * x)
    with pytest.raises(ScheduleError, match=r"the order \(j, jj, i\) lets two accesses of T\[.\] change places"):
        schedule.create_plan(TARGET).build(args=(*arguments, t))  # where the caller sees what is left


def _called(package: Package, packed: Any, read: Any, size: Any, places: str = "own") -> tuple[Nest, Array, Any]:
    """Return a nest that calls a function which packs `packed` elements and one that reads `read` of them."""
    n, m, o = Dimension("n"), Dimension("m"), Dimension("o")
    x, t, y = _array("X", size, role=Role.INPUT), _array("P", 8), _array("Y", size)
    first, second = Nest((n,)), Nest((m,))
    p, q = first.get_indices(), second.get_indices()
    if places == "own":
        first.iteration_logic(lambda: t.__setitem__(p, x[o + p]))
    elif places == "even":
        first.iteration_logic(lambda: t.__setitem__(2 * p, x[o + p]))
    else:
        first.iteration_logic(lambda: t.__setitem__(p + 1, x[o + p]))
    second.iteration_logic(lambda: y.__setitem__(o + q, y[o + q] * 2 + t[q]))
    schedule = first.create_schedule()
    schedule.split(p, 3)
    pack, use = package.add(schedule, (n, x, t, o), "pack"), package.add(second, (m, y, t, o), "use")
    a, b, temporary = _array("A", size, role=Role.INPUT), _array("B", size), _array("T", 8, role=Role.TEMP)
    nest = Nest((2, size))
    _, i = nest.get_indices()  # type: ignore[misc]

    @nest.iteration_logic
    def _() -> None:
        pack(packed(i), a, temporary, i)
        use(read(i), b, temporary, i)

    return nest, temporary, (a, b)


@pytest.mark.parametrize(
    ("packed", "read", "places", "is_private"),
    [
        (lambda i: tw.minimum(4, 18 - i), lambda i: tw.minimum(4, 18 - i), "own", True),
        (lambda i: tw.minimum(5, 18 - i), lambda i: tw.minimum(4, 18 - i), "own", True),
        (lambda i: tw.minimum(4, 18 - i), lambda i: tw.minimum(4, 17 - i), "own", True),
        (lambda i: tw.minimum(4, 18 - i), lambda i: tw.minimum(5, 18 - i), "own", False),
        (lambda i: tw.minimum(4, 17 - i), lambda i: tw.minimum(4, 18 - i), "own", False),
        (lambda i: tw.minimum(3, 18 - i), lambda i: tw.minimum(3, 18 - i), "even", False),
        (lambda i: tw.minimum(4, 18 - i), lambda i: tw.minimum(4, 18 - i), "shifted", False),
        (lambda i: 4, lambda i: tw.minimum(4, 18 - i), "own", True),
    ],
)
def test_functions_that_pack_and_read(packed: Any, read: Any, places: str, is_private: bool) -> None:
    """Whether all is written that is read is asked of the sizes, tails included."""
    nest, t, _ = _called(Package(), packed, read, 18, places)
    found = private_points(nest.loop_nest())
    assert (t in found) is is_private
    if is_private:
        assert found[t] == nest.indices


def test_points_change_places() -> None:
    nest, _, arguments = _called(Package(), lambda i: tw.minimum(4, 18 - i), lambda i: tw.minimum(4, 18 - i), 18)
    j, i = nest.indices
    schedule = nest.create_schedule()
    jj, ii = schedule.tile({j: 2, i: 4})
    schedule.reorder(j, i, jj, ii)  # legal once ii is erased
    plan = schedule.create_plan(TARGET)
    plan.erase_loops([ii])
    x, y = np.random.default_rng(0).random(18, np.float32), np.ones(18, np.float32)
    plan.build(args=arguments)(x, y)
    np.testing.assert_allclose(y, (2 + x) * 2 + x)
    inner = nest.create_schedule()
    jj, ii = inner.tile({j: 2, i: 4})
    calls = [index for index in inner.get_indices() if index not in (j, i, jj, ii)]
    inner.erase_loops([ii])
    with pytest.raises(ScheduleError, match=r"two accesses of T\[.\] change places"):
        inner.reorder(j, calls[0], i, jj, ii, *calls[1:])  # the points would run into one another


def test_fused_schedules_have_no_point_in_common() -> None:
    a, b, t = _array("A", 6, role=Role.INPUT), _array("B", 6), _array("T", 6, role=Role.TEMP)
    first, second = Nest((6,)), Nest((6,))
    i, j = first.get_indices(), second.get_indices()
    first.iteration_logic(lambda: t.__setitem__(0, a[i]))
    second.iteration_logic(lambda: b.__setitem__(j, t[0]))
    schedule = fuse(first.create_schedule(), second.create_schedule())
    assert not private_points(schedule.nest)
    with pytest.raises(ScheduleError, match=r"two accesses of T\[0\] change places"):
        schedule.create_plan(TARGET)
    refuse_violations(first.loop_nest(), first.loop_nest(), "nothing")


def test_a_loop_that_points_share_is_no_point() -> None:
    """Skewed by a loop of a call, a point runs among others, and what it packed is overwritten."""
    nest, t, _ = _called(Package(), lambda i: 4, lambda i: 4, 18)
    schedule = nest.create_schedule()
    *_, q = schedule.get_indices()
    assert t in private_points(schedule.nest)
    with pytest.raises(ScheduleError, match=r"skewing i by i0 lets two accesses of T\[.\] change places"):
        schedule.skew(nest.indices[1], q)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.spread(4)
def test_orders_that_are_taken_change_no_result(seed: int) -> None:
    """Writes under random conditions and at random places, in random orders: what is not refused computes the same."""
    random = np.random.default_rng(seed)
    a, b, t = _array("A", 6, 8, role=Role.INPUT), _array("B", 6, 8), _array("T", 6, role=Role.TEMP)
    nest = Nest((6, 8))
    i, j = nest.get_indices()  # type: ignore[misc]
    first, second, width = (int(x) for x in random.integers(0, 3, 3))
    places = [0, i % 2, j % 3, (i + j) % 2, tw.minimum(i, 2)]
    at, where = places[random.integers(0, 5)], places[random.integers(0, 5)]
    is_guarded = bool(random.integers(0, 2))

    @nest.iteration_logic
    def _() -> None:
        If((i == 0) & (j == 0), lambda: [t.__setitem__(n, 1.0) for n in range(6)] and None)
        if is_guarded:
            If((i + first * j) % (second + 1) == 0, lambda: t.__setitem__(at, a[i, j]))
        else:
            t[at] = a[i, j]
        b[i, j] = t[at if width else where] + a[i, j] * 2

    x = random.random((6, 8), np.float32)
    wanted = np.zeros((6, 8), np.float32)
    nest.create_plan(TARGET).build(args=(a, b))(x, wanted)
    schedule = nest.create_schedule()
    for index in (i, j):
        if random.integers(0, 2):
            schedule.split(index, int(random.integers(2, 5)))
    for _ in range(4):
        order = list(schedule.get_indices())
        random.shuffle(order)
        if not schedule.is_valid_loop_order(*order):
            continue
        schedule.reorder(*order)
        found = np.zeros((6, 8), np.float32)
        schedule.create_plan(TARGET).build(args=(a, b))(x, found)
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("location", [Location.SHARED, Location.PRIVATE])
@pytest.mark.parametrize(("step", "start"), [(1, 0), (2, 1), (3, 2)])
def test_a_box_ends_where_its_array_does(location: Location, step: int, start: int) -> None:
    """A loop that runs to a size of the launch reaches no further than its array, and keeps what it does not write."""
    n = Dimension("N")
    a, b = _array("A", 16), _array("B", n, role=Role.INPUT)
    nest = Nest((n,))
    i = nest.get_indices()
    nest.iteration_logic(lambda: a.__setitem__(step * i + start, b[i] + 1.0))
    plan = nest.create_plan(TARGET)
    plan.cache(a, index=i, location=location)
    kernel = plan.build(args=(a, b))
    for size in (1, 3, (16 - start - 1) // step + 1):
        held, given = np.arange(16, dtype=np.float32), np.full(size, 50, np.float32)
        expected = held.copy()
        expected[start : start + step * size : step] = 51
        kernel(held, given)
        np.testing.assert_array_equal(held, expected)
    back = Nest((n,))
    i = back.get_indices()
    back.iteration_logic(lambda: a.__setitem__(15 - i, b[i]))
    with pytest.raises(ScheduleError, match="has a size that only the launch knows"):
        back.create_plan(TARGET).cache(a, index=i, location=location)


def test_registers_for_sizes_of_the_launch() -> None:
    """A TEMP array of a known shape is kept by each thread whole, where only the launch knows how much of it is used."""
    n, package = Dimension("n"), Package()
    x, t, y = _array("X", n, role=Role.INPUT), _array("P", 8), _array("Y", n)
    first, second = Nest((n,)), Nest((n,))
    p, q = first.get_indices(), second.get_indices()
    first.iteration_logic(lambda: t.__setitem__(p, x[p] * 2))
    second.iteration_logic(lambda: y.__setitem__(n - 1 - q, t[q]))
    pack, use = package.add(first, (x, t), "pack"), package.add(second, (y, t), "use")
    size = Dimension("N")
    a, b = _array("A", size, role=Role.INPUT), _array("B", size)
    temporary = Array(Role.TEMP, tw.float32, (8,), name="T", flags=AllocateFlags.STACK)
    nest = Nest((1,))

    @nest.iteration_logic
    def _() -> None:
        pack(a, temporary)
        use(b, temporary)

    kernel = nest.create_plan(TARGET).build(args=(a, b))
    assert not kernel.scratch
    for extent in (1, 5, 8):
        given, found = np.arange(extent, dtype=np.float32), np.zeros(extent, np.float32)
        kernel(given, found)
        np.testing.assert_array_equal(found, 2 * given[::-1])
    with pytest.raises(ArgumentError, match="beyond mode 0 of T"):
        kernel(np.zeros(9, np.float32), np.zeros(9, np.float32))


def test_a_point_keeps_its_own_order() -> None:
    package = Package()
    t, y, o = _array("P", 5, 5), _array("Y", 6), Dimension("o")
    fill, move, use = Nest((5, 5)), Nest((4, 4)), Nest((5,))
    p, q = fill.get_indices()  # type: ignore[misc]
    u, v = move.get_indices()  # type: ignore[misc]
    w = use.get_indices()
    fill.iteration_logic(lambda: t.__setitem__((p, q), 3 * p + q + o))
    move.iteration_logic(lambda: t.__setitem__((u + 1, v), t[u, v + 1]))
    use.iteration_logic(lambda: y.__setitem__(o, y[o] + t[w, 4 - w]))
    functions = [package.add(*x) for x in ((fill, (t, o), "fill"), (move, (t,), "move"), (use, (y, t, o), "use"))]
    b, temporary = _array("B", 6), _array("T", 5, 5, role=Role.TEMP)
    nest = Nest((2, 3))
    i, j = nest.get_indices()  # type: ignore[misc]

    @nest.iteration_logic
    def _() -> None:
        functions[0](temporary, 3 * i + j)
        functions[1](temporary)
        functions[2](b, temporary, 3 * i + j)

    wanted, found = np.zeros(6, np.float32), np.zeros(6, np.float32)
    nest.create_plan(TARGET).build(args=(b,))(wanted)
    schedule = nest.create_schedule()
    _, _, call, p, q, u, v, w = schedule.get_indices()
    assert temporary in private_points(schedule.nest)
    schedule.reorder(j, i, call, p, q, u, v, w)
    schedule.create_plan(TARGET).build(args=(b,))(found)
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(ScheduleError, match=r"two accesses of T\[1, .\] change places"):
        schedule.reorder(j, i, call, p, q, v, u, w)


@pytest.mark.parametrize("seen", ["neither", "first", "second"])
def test_an_array_that_is_seen_keeps_its_order_beside_one_that_is_not(seen: str) -> None:
    a = Array(Role.INPUT, tw.int32, (4, 4), name="A")
    out = Array(Role.INPUT_OUTPUT, tw.int32, (4, 4), name="C")
    first, second = (Array(Role.TEMP, tw.int32, (1,), name=name) for name in "TU")
    nest = Nest((4, 4))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        first[0] = a[i, j]
        second[0] = first[0] * 2
        out[i, j] = second[0]

    before = nest.create_schedule().nest
    after = transforms.reorder(before, [j, i])
    what_is_seen = {"neither": (), "first": (first,), "second": (second,)}[seen]
    if seen == "neither":
        refuse_violations(before, after, "it", what_is_seen)
    else:
        with pytest.raises(ScheduleError):
            refuse_violations(before, after, "it", what_is_seen)
