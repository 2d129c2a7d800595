"""Loops along diagonals bound to threads: serial loops keep the threads of a block in order, by a barrier."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Index
from tilewright.schedule.arrays import AllocateFlags, Array, Role
from tilewright.schedule.caches import Location
from tilewright.schedule.nest import Nest
from tilewright.schedule.schedule import Schedule, fuse
from tilewright.schedule.targets import GridUnit, Target

A100 = Target("NVIDIA A100")
M, N = 8, 12


def recurrence() -> tuple[Schedule, Array, Index, Index]:
    """Return X[i + 1, j + 1] = X[i, j + 1] + X[i + 1, j], whose diagonals are computed one after the other."""
    x = Array(Role.INPUT_OUTPUT, "float32", (M + 1, N + 1), name="X")
    nest = Nest((M, N))
    i, j = nest.get_indices()
    i.name, j.name = "i", "j"

    @nest.iteration_logic
    def _() -> None:
        x[i + 1, j + 1] = x[i, j + 1] + x[i + 1, j]

    return nest.create_schedule(), x, i, j


def computed(x: np.ndarray) -> np.ndarray:
    y = x.copy()
    for i in range(M):
        for j in range(N):
            y[i + 1, j + 1] = y[i, j + 1] + y[i + 1, j]
    return y


def values() -> np.ndarray:
    return np.random.default_rng(1).integers(-3, 4, (M + 1, N + 1)).astype(np.float32)


@pytest.mark.parametrize("diagonal_outside", [True, False])
@pytest.mark.parametrize("split", [None, 4, 3])
def test_the_loop_along_a_diagonal_is_bound(diagonal_outside: bool, split: int | None) -> None:
    """The bound loop may be a block of it, then serial blocks of threads follow one another in each diagonal."""
    schedule, _, i, j = recurrence()
    schedule.skew(j, i)
    if diagonal_outside:
        schedule.reorder(j, i)
    thread = i if split is None else schedule.split(i, split)
    plan = schedule.create_plan(A100)
    plan.bind({thread: GridUnit.THREAD_X})
    assert j in plan.waiting and "a barrier behind each iteration" in str(plan)
    x = values()
    expected = computed(x)
    kernel = plan.build()
    kernel(x)
    np.testing.assert_array_equal(x, expected)
    assert "__syncthreads();" in kernel.source()


def test_memory_of_the_block_around_the_diagonals_and_none_of_registers() -> None:
    for location in (Location.SHARED, Location.GLOBAL, Location.PRIVATE):
        schedule, x, i, j = recurrence()
        schedule.skew(j, i)
        schedule.reorder(j, i)
        plan = schedule.create_plan(A100)
        plan.bind({i: GridUnit.THREAD_X})
        plan.cache(x, index=j, location=location)
        if location is Location.PRIVATE:
            with pytest.raises(ScheduleError, match="rX keeps X in the registers of each thread while j runs"):
                plan.build()
            continue
        held = values()
        expected = computed(held)
        plan.build()(held)
        np.testing.assert_array_equal(held, expected)


@pytest.mark.parametrize(("bound", "unit", "message"), [
    ("i", "BLOCK_X", "i cannot be bound to BLOCK_X: different iterations of it access X[1, 1] at the same time"),
    ("j", "THREAD_X", "j cannot be bound to THREAD_X: different iterations of it access X["),
])  # fmt: skip
def test_what_is_not_ordered_is_refused(bound: str, unit: str, message: str) -> None:
    schedule, _, i, j = recurrence()
    schedule.skew(j, i)
    schedule.reorder(j, i)
    with pytest.raises(ScheduleError, match=re.escape(message)):
        schedule.create_plan(A100).bind({{"i": i, "j": j}[bound]: GridUnit[unit]})


def test_threads_outside_of_what_orders_them() -> None:
    """Without the skew each thread would wait in j for a row that another computes only afterwards."""
    x = Array(Role.INPUT_OUTPUT, "float32", (9, 10), name="X")
    nest = Nest((8, 8))
    i, j = nest.get_indices()
    i.name, j.name = "i", "j"

    @nest.iteration_logic
    def _() -> None:
        x[i + 1, j] = x[i, j + 2] * 2

    message = r"i cannot be bound to THREAD_X: its iterations wait for one another in j alone, which has the .* in another order"
    with pytest.raises(ScheduleError, match=message):
        nest.create_plan(A100).bind({i: GridUnit.THREAD_X})


def test_a_sum_whose_threads_take_turns() -> None:
    """y[t + k] is added to by several threads, in different iterations of k: no addition is lost."""
    x, y = Array(Role.INPUT, "float32", (8, 5), name="x"), Array(Role.INPUT_OUTPUT, "float32", (12,), name="y")
    nest = Nest((8, 5))
    t, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        y[t + k] += x[t, k]

    plan = nest.create_plan(A100)
    plan.bind({t: GridUnit.THREAD_X})
    a, out = np.random.default_rng(2).integers(-9, 9, (8, 5)).astype("f"), np.zeros(12, "f")
    expected = np.zeros(12, "f")
    for n in range(8):
        expected[n : n + 5] += a[n]
    plan.build()(a, out)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("flags", [AllocateFlags.NONE, AllocateFlags.STACK])
def test_fused_parts_hand_elements_to_other_threads(flags: AllocateFlags) -> None:
    a, c = Array(Role.INPUT, "float32", (16,), name="a"), Array(Role.TEMP, "float32", (16,), name="c", flags=flags)
    d = Array(Role.OUTPUT, "float32", (16,), name="d")
    first, second = Nest((16,)), Nest((16,))
    i, p = first.get_indices(), second.get_indices()

    @first.iteration_logic
    def _() -> None:
        c[i] = a[i] * 2

    @second.iteration_logic
    def _() -> None:
        d[p] = c[15 - p]

    schedule = fuse(first.create_schedule(), second.create_schedule(), partial=1)
    (f,) = schedule.nest.fusing
    shared = next(index for index in schedule.get_indices() if index is not f)
    schedule.reorder(f, shared)
    plan = schedule.create_plan(A100)
    plan.bind({shared: GridUnit.THREAD_X})
    x, out = np.arange(16, dtype="f"), np.zeros(16, "f")
    if flags is AllocateFlags.STACK:
        with pytest.raises(ScheduleError, match="c is TEMP and lives in the registers of each thread"):
            plan.build(args=(a, d))
        plan.cache(c, index=f)
    kernel = plan.build(args=(a, d))
    assert kernel.scratch == (() if flags is AllocateFlags.STACK else (c,))  # memory that all threads see
    kernel(x, out)
    np.testing.assert_array_equal(out, 2 * x[::-1])


def test_the_loop_that_orders_threads_is_not_vectorized() -> None:
    schedule, _, i, j = recurrence()
    schedule.skew(j, i)
    schedule.reorder(j, i)
    plan = schedule.create_plan(A100)
    plan.bind({i: GridUnit.THREAD_X})
    with pytest.raises(ScheduleError, match="j cannot be vectorized|j is vectorized, and threads wait"):
        plan.vectorize(j)
