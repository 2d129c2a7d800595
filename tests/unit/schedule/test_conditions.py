"""`If` in the logic of a nest: when statements run, which orders that allows, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.schedule import (
    Array,
    Dimension,
    GridUnit,
    If,
    Index,
    Location,
    MMAShape,
    Nest,
    Role,
    Target,
    logical_and,
    logical_not,
    logical_or,
)

TARGET = Target("NVIDIA A100")


def _nest(*shape: Any) -> tuple[Nest, tuple[Index, ...]]:
    nest = Nest(shape)
    for index, name in zip(nest.indices, "ijk", strict=False):
        index.name = name
    return nest, nest.indices


def test_a_condition_is_computed_once() -> None:
    a = Array(Role.INPUT_OUTPUT, tw.float32, (8,), name="A")
    b = Array(Role.OUTPUT, tw.int32, (8,), name="B")
    nest, (i,) = _nest(8)

    def negative() -> None:
        a[i] = -a[i]
        b[i] = 1

    def positive() -> None:
        b[i] = 2
        a[i] = -1.0

    @nest.iteration_logic
    def _() -> None:
        If(a[i] < 0, negative).ElseIf(a[i] > 2, positive).Else(lambda: b.__setitem__(i, 3))

    given, out = np.array([-2, 1, 0, 5, 3, -1, 2, 7], np.float32), np.zeros(8, np.int32)
    nest.create_plan(TARGET).build("kernel", (a, b))(given, out)
    assert given.tolist() == [2, 1, 0, -1, -1, 1, 2, -1]
    assert out.tolist() == [1, 3, 3, 2, 2, 1, 3, 2]


def test_conditions_print_as_python_would_have_them() -> None:
    a = Array(Role.INPUT_OUTPUT, tw.float32, (8, 8), name="A")
    n = Dimension("N")
    nest, (i, j) = _nest(8, 8)

    @nest.iteration_logic
    def _() -> None:
        def inner() -> None:
            a[i, j] += 1.0
            If(logical_not(i == j), lambda: a.__setitem__((i, j), 0.0))

        If(i < n, inner).ElseIf((i > 2) | (a[i, j] > 0), lambda: a.__setitem__((i, j), 1.0)).Else(
            lambda: a.__setitem__((i, j), 2.0)
        )

    lines = str(nest).splitlines()[2:]
    assert [line[8:] for line in lines] == [
        "if i < N:",
        "    A[i, j] += 1.0",
        "    if logical_not(i == j):",
        "        A[i, j] = 0.0",
        "elif (i > 2) | (A[i, j] > 0):",
        "    A[i, j] = 1.0",
        "else:",
        "    A[i, j] = 2.0",
    ]
    assert str(pickle.loads(pickle.dumps(nest))) == str(nest)


@pytest.mark.parametrize(
    ("condition", "is_valid"),
    [
        (lambda i, j: i == 3, True),  # one row writes: nothing that it reads is written
        (lambda i, j: i % 2 == 0, True),  # even rows read odd ones
        (lambda i, j: i % 2 == 1, True),
        (lambda i, j: i % 3 != 0, False),
        (lambda i, j: (i < 3) | (i == 5), False),
        (lambda i, j: (i == 2) | (i == 5), True),
        (lambda i, j: logical_or(i == 2, i == 3), False),
        (lambda i, j: logical_and(i > 1, i < 3), True),
        (lambda i, j: (i > 1) & ~(i >= 4), False),
        (lambda i, j: j == 4, True),  # reads column 5
        (lambda i, j: i + j == 8, False),  # the diagonal reads itself, the other way
        (lambda i, j: i - j == 1, True),
    ],
)
def test_orders_follow_from_conditions(condition: Any, is_valid: bool) -> None:
    a = Array(Role.INPUT_OUTPUT, tw.float32, (9, 9), name="A")
    nest, (i, j) = _nest(8, 8)

    @nest.iteration_logic
    def _() -> None:
        If(condition(i, j), lambda: a.__setitem__((i + 1, j), a[i, j + 1] * 2.0))

    assert nest.create_schedule().is_valid_loop_order(j, i) is is_valid


def test_conditions_on_values_count_as_met() -> None:
    a = Array(Role.INPUT_OUTPUT, tw.float32, (9, 9), name="A")
    flag = Array(Role.INPUT, tw.float32, (8,), name="F")
    nest, (i, j) = _nest(8, 8)

    @nest.iteration_logic
    def _() -> None:
        If(flag[i] > 0, lambda: a.__setitem__((i + 1, j), a[i, j + 1] * 2.0))

    with pytest.raises(ScheduleError, match=r"the order \(j, i\) lets two accesses of A"):
        nest.create_schedule().reorder(j, i)


def test_what_a_condition_reads_is_an_access() -> None:
    a = Array(Role.INPUT_OUTPUT, tw.float32, (9,), name="A")
    b = Array(Role.INPUT_OUTPUT, tw.float32, (9,), name="B")
    nest, (i,) = _nest(8)

    @nest.iteration_logic
    def _() -> None:
        If(a[i + 1] > 0, lambda: b.__setitem__(i, 1.0))
        a[i] = 2.0

    plan = nest.create_plan(TARGET)
    with pytest.raises(ScheduleError, match=r"i cannot be bound to THREAD_X: .* read of A\[i \+ 1\]"):
        plan.bind({i: GridUnit.THREAD_X})


def test_a_sum_under_a_condition_on_it_is_not_a_reduction() -> None:
    a = Array(Role.INPUT, tw.float32, (8, 8), name="A")
    b = Array(Role.INPUT_OUTPUT, tw.float32, (8,), name="B")
    for on_itself in (False, True):
        nest, (i, j) = _nest(8, 8)

        @nest.iteration_logic
        def _(i: Any = i, j: Any = j, on_itself: bool = on_itself) -> None:
            If((b[i] if on_itself else a[i, j]) < 4, lambda: b.__setitem__(i, b[i] + a[i, j]))

        schedule = nest.create_schedule()
        schedule.split(j, 4)
        i_, jo, ji = schedule.get_indices()
        plan = schedule.create_plan(TARGET)
        assert (plan.nest.parts[0].statements[0].reduction is None) is on_itself
        assert schedule.is_valid_loop_order(jo, i_, ji)


@pytest.mark.parametrize("location", [Location.SHARED, Location.PRIVATE])
def test_a_cache_keeps_what_is_not_written(location: Location) -> None:
    b = Array(Role.INPUT_OUTPUT, tw.float32, (8, 8), name="B")
    nest, (i, j) = _nest(8, 8)

    @nest.iteration_logic
    def _() -> None:
        If(i < j, lambda: b.__setitem__((i, j), 1.0))

    plan = nest.create_plan(TARGET)
    plan.bind({i: GridUnit.THREAD_X} if location is Location.PRIVATE else {i: GridUnit.BLOCK_X})
    plan.cache(b, index=j, location=location)
    held = np.random.default_rng(0).random((8, 8), np.float32)
    expected = np.where(np.arange(8)[:, None] < np.arange(8), np.float32(1), held)
    plan.build()(held)
    np.testing.assert_array_equal(held, expected)


@pytest.mark.parametrize("extent", [3, 5, 8])
def test_masks_of_vectors(extent: int) -> None:
    n = Dimension("N")
    a, b = Array(Role.INPUT, tw.int32, (n,), name="A"), Array(Role.OUTPUT, tw.int32, (8,), name="B")
    nest, (i,) = _nest(8)

    @nest.iteration_logic
    def _() -> None:
        If(i < n, lambda: b.__setitem__(i, a[i])).Else(lambda: b.__setitem__(i, 0))

    plan = nest.create_plan(TARGET)
    plan.vectorize(i)
    out = np.full(8, -1, np.int32)
    plan.build("kernel", (a, b))(np.arange(1, extent + 1, dtype=np.int32), out)
    assert out.tolist() == [*range(1, extent + 1), *[0] * (8 - extent)]


def test_what_is_refused() -> None:
    a = Array(Role.INPUT_OUTPUT, tw.float32, (8,), name="A")
    i = Index("i")

    def store() -> None:
        a[i] = 1.0

    with pytest.raises(ScheduleError, match="If stands outside of a nest's logic"):
        If(i < 5, store)

    def refuse(logic: Any, message: str) -> None:
        nest, _ = _nest(8)
        with pytest.raises(ScheduleError, match=message):
            nest.iteration_logic(lambda: logic(nest.indices[0]))

    def late(j: Any) -> None:
        chain = If(j < 5, lambda: a.__setitem__(j, 1.0))
        a[j] = 2.0
        chain.Else(lambda: a.__setitem__(j, 3.0))

    def twice(j: Any) -> None:
        chain = If(j < 5, lambda: a.__setitem__(j, 1.0))
        chain.Else(lambda: a.__setitem__(j, 3.0))
        chain.Else(lambda: a.__setitem__(j, 3.0))

    def many(j: Any) -> None:
        test = j != 0
        for n in range(1, 20):
            test = test & ((n * j % 7 == 1) | (n * j % 11 == 2))
        If(test, lambda: a.__setitem__(j, 1.0))

    refuse(late, "Else does not follow its If")
    refuse(twice, "Else does not follow its If")
    refuse(many, "have [0-9]+ cases, and at most 256")
    refuse(lambda j: If("i < 5", lambda: a.__setitem__(j, 1.0)), "'i < 5' is not a condition")
    refuse(lambda j: If(i < 5, lambda: a.__setitem__(j, 1.0)), "uses i, which is not an index of this nest")
    refuse(lambda j: If(j < 5 and j > 2, lambda: a.__setitem__(j, 1.0)), "cannot branch on")
    refuse(lambda j: If(j < 5, lambda: None), "the logic of the nest stores nothing")


def test_no_matrix_instruction_runs_under_a_condition() -> None:
    a, b = (Array(Role.INPUT, tw.float16, (16, 16), name=name) for name in "AB")
    c = Array(Role.INPUT_OUTPUT, tw.float32, (16, 16), name="C")
    nest, (i, j, k) = _nest(16, 16, 16)

    @nest.iteration_logic
    def _() -> None:
        If(i < 5, lambda: c.__setitem__((i, j), c[i, j] + a[i, k] * b[k, j]))

    with pytest.raises(ScheduleError, match="no matrix instruction runs under a condition: if i < 5: C"):
        nest.create_plan(TARGET).tensorize((i, j, k), MMAShape.M16N16K16)
