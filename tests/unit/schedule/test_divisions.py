"""`//` and `%` of indices by numbers: what they are, which orders they allow, and what is kept of arrays so indexed."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.schedule import Affine, Array, Dimension, GridUnit, Index, Location, MMAShape, Nest, Role, Target, cast
from tilewright.schedule.affine import as_affine
from tilewright.schedule.loop_nest import Loop, settled

TARGET = Target("NVIDIA A100")


def _nest(*shape: Any) -> tuple[Nest, tuple[Index, ...]]:
    nest = Nest(shape)
    for index, name in zip(nest.indices, "ijk", strict=False):
        index.name = name
    return nest, nest.indices


@pytest.mark.parametrize("divisor", [1, 2, 3, 4, 6])
def test_quotients_and_remainders_are_those_of_python(divisor: int) -> None:
    i, j = Index("i"), Index("j")
    for a, b, c in itertools.product(range(-7, 8, 2), (-4, -1, 0, 3), (-9, -1, 0, 5)):
        whole: Affine = (a * i + b * j + c) // divisor
        rest: Affine = (a * i + b * j + c) % divisor
        twice: Affine = ((a * i + c) // divisor + b * j) % 3 // 2
        for x, y in itertools.product(range(4), (0, 5)):
            values = {i: x, j: y}
            assert as_affine(whole).evaluate(values) == (a * x + b * y + c) // divisor
            assert as_affine(rest).evaluate(values) == (a * x + b * y + c) % divisor
            assert as_affine(twice).evaluate(values) == ((a * x + c) // divisor + b * y) % 3 // 2


def test_equal_quotients_are_one_term() -> None:
    i, j = Index("i"), Index("j")
    assert str(i // 4 + 2 * (i // 4) - j // 4) == "3 * (i // 4) - j // 4"
    assert (i + 1) // 4 - (i + 5) // 4 == as_affine(-1)
    assert str(-(i % 4)) == "-(i % 4)"
    assert str((2 * i + j) // 3 % 5) == "((2 * i + j) // 3) % 5"
    held = pickle.loads(pickle.dumps(i // 4 - i % 4))
    (copied,) = held.symbols()
    assert held.evaluate({copied: 7}) == -2


def test_splits_settle_what_is_divided() -> None:
    i, ii, j = Index("i"), Index("ii"), Index("j")
    loops = Loop(i, as_affine(64), 8), Loop(ii, as_affine(8)), Loop(j, as_affine(5))
    assert str(settled((i + ii) // 8, loops)) == "i // 8"
    assert str(settled((i + ii) % 8, loops)) == "ii"
    assert str(settled((i + ii + 3) // 4, loops)) == "i // 4 + (ii + 3) // 4"
    assert str(settled((i + ii) % 16, loops)) == "(i + ii) % 16"
    assert str(settled((i + j) % 8 + (j + 4) // 8, loops)) == "j + (j + 4) // 8"
    for a, b, c, divisor in itertools.product((1, 3), (1, -2), (-3, 4), (2, 3, 8)):
        for value in ((a * i + b * ii + c) // divisor, (a * ii + b * j + c) % divisor // 2, (i % 16 + ii) // divisor):
            for x, y, z in itertools.product((0, 8, 56), range(8), range(5)):
                values = {i: x, ii: y, j: z}
                assert settled(value, loops).evaluate(values) == value.evaluate(values)


def _is_valid(place: Callable[[Any, Any], Any], source: Callable[[Any, Any], Any], m: int, n: int) -> bool:
    """Whether j may run outside of i in A[place] = A[source]."""
    a = Array(Role.INPUT_OUTPUT, tw.float32, (1000,), name="A")
    nest, (i, j) = _nest(m, n)

    @nest.iteration_logic
    def _() -> None:
        a[place(i, j)] = a[source(i, j)] * 2.0

    return nest.create_schedule().is_valid_loop_order(j, i)


def _is_kept(place: Callable[[Any, Any], Any], source: Callable[[Any, Any], Any], m: int, n: int) -> bool:
    """Whether no two accesses of an element, one of which writes, change places."""
    points = [
        (x, y, element, w) for x in range(m) for y in range(n) for w, element in enumerate((source(x, y), place(x, y)))
    ]
    return not any(
        a[2] == b[2] and (a[3] or b[3]) and a[0] < b[0] and a[1] > b[1] for a, b in itertools.product(points, points)
    )


@pytest.mark.parametrize(
    ("place", "source", "is_valid"),
    [
        (lambda i, j: i // 4 * 4 + i % 4, lambda i, j: i // 4 * 4 + i % 4, True),  # i, in its order of j
        (lambda i, j: 8 * i + j % 8, lambda i, j: 8 * i + j % 8, True),  # one element for each point
        (lambda i, j: 8 * i + j % 8, lambda i, j: 8 * i + (j + 1) % 8, True),  # a row waits for itself only
        (lambda i, j: 8 * i + j // 2, lambda i, j: 8 * i + j // 2 + 8, False),
        (lambda i, j: 8 * (i // 2) + j, lambda i, j: 8 * (i // 2) + j, True),
        (lambda i, j: 8 * (i // 2) + j, lambda i, j: 8 * (i // 2) + (j + 1) % 8, False),
        (lambda i, j: (i + j) // 8, lambda i, j: 500, False),
        (lambda i, j: (i + 8 * j) % 64, lambda i, j: 500 + i, True),
        (lambda i, j: (i + 8 * j) % 63, lambda i, j: 500 + i, True),
        (lambda i, j: (9 * i + j) % 56, lambda i, j: 500 + i, False),
    ],
)
def test_orders_are_decided_exactly(place: Any, source: Any, is_valid: bool) -> None:
    assert _is_valid(place, source, 8, 8) is _is_kept(place, source, 8, 8) is is_valid


def test_iterations_of_one_quotient_are_not_bound() -> None:
    b = Array(Role.OUTPUT, tw.float32, (16,), name="B")
    nest, (i, j) = _nest(4, 16)

    @nest.iteration_logic
    def _() -> None:
        b[i + j // 4 * 4] = 1.0

    plan = nest.create_plan(TARGET)
    plan.bind({i: GridUnit.THREAD_X})
    with pytest.raises(ScheduleError, match=r"j cannot be bound to THREAD_Y: .* write of B\[i \+ 4 \* \(j // 4\)\]"):
        plan.bind({j: GridUnit.THREAD_Y})


@pytest.mark.parametrize("location", [Location.SHARED, Location.PRIVATE])
@pytest.mark.parametrize(("split", "block"), [(4, 2), (8, 4), (8, 3), (6, 4)])
@pytest.mark.spread(3)
def test_caches_hold_what_quotients_reach(location: Location, split: int, block: int) -> None:
    n = 24
    a = Array(Role.INPUT, tw.float32, (n // block + 1, block), name="A")
    b = Array(Role.INPUT_OUTPUT, tw.float32, (n // block + 1, block), name="B")
    nest, (i,) = _nest(n)

    @nest.iteration_logic
    def _() -> None:
        b[i // block, i % block] += a[i // block, i % block]

    schedule = nest.create_schedule()
    ii = schedule.split(i, split)
    plan = schedule.create_plan(TARGET)
    cache = plan.cache(a, index=ii, location=location)
    reached = {
        (x + y) // block - plan.region(cache).origin[0].evaluate({i: x})
        for x in range(0, n, split)
        for y in range(split)
    }
    assert reached == set(range(plan.region(cache).shape[0]))
    plan.cache(b, index=ii, location=location)
    kernel = plan.build("kernel", (a, b))
    given, out = (np.random.default_rng(0).random((n // block + 1, block), np.float32) for _ in range(2))
    expected = out.copy()
    for x in range(n):
        expected[x // block, x % block] += given[x // block, x % block]
    kernel(given, out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("is_apart", [True, False])
def test_threads_whose_boxes_overlap_are_refused(is_apart: bool) -> None:
    b = Array(Role.INPUT_OUTPUT, tw.float32, (8, 8), name="B")
    nest, (i, j) = _nest(16, 4)

    @nest.iteration_logic
    def _() -> None:
        if is_apart:
            b[i // 2, j // 2 * 2 + i % 2] += 1.0  # even columns, or odd ones
        else:
            b[i // 2, j // 2 * 4 + j % 2 + i % 2 * 2] += 1.0  # columns 0 to 5 but 2 and 3, or 2 to 7 but 4 and 5

    plan = nest.create_plan(TARGET)
    plan.bind({i: GridUnit.THREAD_X})
    plan.cache(b, index=j, location=Location.PRIVATE)
    if not is_apart:
        with pytest.raises(ScheduleError, match=r"the boxes that threads \(THREAD_X\) write back overlap"):
            plan.build()
        return
    out = np.zeros((8, 8), np.float32)
    plan.build()(out)
    np.testing.assert_array_equal(out, np.array([[2] * 4 + [0] * 4] * 8, np.float32))


def test_vectors_need_neighbours() -> None:
    a = Array(Role.INPUT, tw.float32, (40,), name="A")
    b = Array(Role.OUTPUT, tw.float32, (40,), name="B")
    nest, (i, j) = _nest(4, 8)

    @nest.iteration_logic
    def _() -> None:
        b[8 * i + j % 8] = a[8 * i + (j + 3) % 8] + a[8 * i + j // 2] + a[j // 8]

    plan = nest.create_plan(TARGET)
    plan.vectorize(j)
    kernel = plan.build("kernel", (a, b))
    given, out = np.random.default_rng(0).random(40, np.float32), np.zeros(40, np.float32)
    kernel(given, out)
    expected = [given[8 * x + (y + 3) % 8] + given[8 * x + y // 2] + given[0] for x in range(4) for y in range(8)]
    np.testing.assert_array_equal(out[:32], np.array(expected, np.float32))
    assert "float4" in kernel.source()


@pytest.mark.parametrize("divisor", [3, 4])
def test_sums_below_zero_round_down_in_kernels(divisor: int) -> None:
    a, b = Array(Role.INPUT, tw.int32, (32,), name="A"), Array(Role.OUTPUT, tw.int32, (9, 8), name="B")
    nest, (i, j) = _nest(9, 8)

    @nest.iteration_logic
    def _() -> None:
        b[i, j] = a[(i - 3 * j) // divisor + 8] + 100 * ((2 * i - j) % divisor) + a[(i - j) % divisor]

    values, out = np.arange(32, dtype=np.int32) * 7, np.zeros((9, 8), np.int32)
    nest.create_plan(TARGET).build("kernel", (a, b))(values, out)
    x, y = np.mgrid[:9, :8]
    expected = values[(x - 3 * y) // divisor + 8] + 100 * ((2 * x - y) % divisor) + values[(x - y) % divisor]
    np.testing.assert_array_equal(out, expected)


def test_matrix_instructions_take_no_quotients() -> None:
    a = Array(Role.INPUT, tw.float16, (16, 16), name="A")
    b = Array(Role.INPUT, tw.float16, (16, 16), name="B")
    c = Array(Role.INPUT_OUTPUT, tw.float32, (16, 16), name="C")
    nest, (i, j, k) = _nest(16, 16, 16)

    @nest.iteration_logic
    def _() -> None:
        c[i, j] += a[i, k // 2] * b[k, j]

    plan = nest.create_plan(TARGET)
    with pytest.raises(ScheduleError, match=r"moves with k inside of a quotient"):
        plan.tensorize((i, j, k), MMAShape.M16N16K16)


def test_what_is_refused() -> None:
    i, j, n = Index("i"), Index("j"), Dimension("N")
    for make, message in (
        (lambda: i // 0, "i // 0 divides by a number below 1"),
        (lambda: (i + j) % -2, r"i \+ j % -2 divides by a number below 1"),
        (lambda: i // j, "i // j is not affine: it divides by what is not a number"),
        (lambda: 7 % (n + i), r"7 % i \+ N is not affine|7 % N \+ i is not affine"),
    ):
        with pytest.raises(ScheduleError, match=message):
            make()
    a = Array(Role.INPUT, tw.float32, (8, 8), name="A")
    for place in ((i / 2.5, 0), (i // 2.0, 0), (a[i, j], 0), (i * 1.0 % 2, 0)):
        with pytest.raises(ScheduleError, match="mode 0 of array A is indexed by .* not affine"):
            a[place]


def test_an_index_is_whole() -> None:
    a = Array(Role.INPUT, tw.float32, (8, 8), name="A")
    i = Index("i")
    assert str(a[(i / 8) % 2, cast(i, tw.int32) % 8]) == "A[(i // 8) % 2, i % 8]"
    assert str(a[i / 2 + 1, 2 * (i / 4) - 1]) == "A[i // 2 + 1, 2 * (i // 4) - 1]"
