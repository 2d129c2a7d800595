"""What caches, vectors and numbers of a schedule's plan refuse, with whole texts."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.helpers.refusals import refused

import tilewright as tw
from tilewright.errors import ArgumentError, ScheduleError
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location
from tilewright.schedule.nest import Nest
from tilewright.schedule.plan import Plan
from tilewright.schedule.schedule import Schedule, fuse
from tilewright.schedule.targets import Target


def product(m: int = 64, n: int = 64) -> tuple[Plan, tuple[Array, ...], tuple[Any, ...]]:
    a, b = Array(Role.INPUT, "float32", (m, 32), name="A"), Array(Role.INPUT, "float32", (32, n), name="B")
    c = Array(Role.INPUT_OUTPUT, "float32", (m, n), name="C")
    nest = Nest((m, n, 32))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        c[i, j] += a[i, k] * b[k, j]

    schedule = nest.create_schedule()
    ii, jj = schedule.tile({i: 16, j: 16})
    schedule.reorder(i, j, k, ii, jj)
    return schedule.create_plan(Target("NVIDIA A100")), (a, b, c), (i, j, k, ii, jj)


@refused(
    ScheduleError,
    """
    sC is double-buffered and written: the next iteration would be fetched before this one is stored
      help: double-buffer arrays that are only read
    """,
)
def test_written_and_double_buffered():
    plan, (_, _, c), (_, _, k, *_) = product()
    plan.cache(c, index=k, double_buffer=True)


@refused(
    ScheduleError,
    """
    a cache in Location.PRIVATE would wait in Location.SHARED for the next iteration
      help: double_buffer_location=Location.PRIVATE
    """,
)
def test_registers_double_buffered_in_shared_memory():
    plan, (a, *_), (*_, ii, _) = product()
    plan.cache(a, index=ii, location=Location.PRIVATE, double_buffer=True, double_buffer_location=Location.SHARED)


@refused(
    ScheduleError,
    """
    double_buffer_location=Location.PRIVATE, and nothing is double-buffered
      help: double_buffer=True, or leave it out
    """,
)
def test_place_of_a_second_buffer_that_there_is_not():
    plan, (a, *_), (*_, ii, _) = product()
    plan.cache(a, index=ii, double_buffer_location=Location.PRIVATE)


@refused(
    ScheduleError,
    """
    the caches of C[i + ii, j + jj] += A[i + ii, k] * B[k, j + jj] take 196608 bytes of shared memory (sA 131072, sC 65536), and a block of sm_80 has 166912
      test_schedule_caches.py:N, in _:
        c[i, j] += a[i, k] * b[k, j]
        ^^^^^^^
      help: cache A, of which a box of 1024 x 32 is kept, at an inner index, with fewer buffers, or with location=Location.GLOBAL
    """,
)
def test_more_shared_memory_than_a_block_has():
    plan, (a, _, c), (i, *_) = product(1024, 16)
    plan.cache(a, index=i, location=Location.SHARED)
    plan.cache(c, index=i, location=Location.SHARED)
    plan.build()


@refused(
    ScheduleError,
    """
    rA takes 1048576 bytes of each thread, whose local memory has 524288
      help: cache at an inner index, or with location=Location.GLOBAL
    """,
)
def test_more_than_the_local_memory_of_a_thread():
    plan, (a, *_), (i, *_) = product(8192)
    plan.cache(a, index=i, location=Location.PRIVATE)
    plan.build()


@refused(
    ScheduleError,
    """
    one iteration touches 2 elements of X that lie in one box, and max_elements=1
      help: allow as many, or give an index
    """,
)
def test_more_elements_in_one_iteration_than_a_cache_may_hold():
    x, y = Array(Role.INPUT, "float32", (9,), name="X"), Array(Role.OUTPUT, "float32", (8,), name="Y")
    nest = Nest((8,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        y[i] = x[i] + x[i + 1]

    nest.create_plan(Target("NVIDIA A100")).cache(x, max_elements=1)


@refused(
    ScheduleError,
    """
    a cache takes one of trigger_index and trigger_level
    """,
)
def test_two_triggers():
    plan, (a, *_), (_, _, k, ii, _) = product()
    plan.cache(a, index=ii, trigger_index=k, trigger_level=3)


@refused(
    ArgumentError,
    """
    Plan.cache: thrifty is True or False, got str 'no'
    """,
)
def test_thrifty_that_is_not_a_bool():
    plan, (a, *_), (*_, ii, _) = product()
    plan.cache(a, index=ii, thrifty="no")


@refused(
    ScheduleError,
    """
    sA is double-buffered, and no loop runs around it
      help: give an index inside of the loop whose next iteration shall be fetched ahead
    """,
)
def test_no_loop_around_a_pipeline():
    plan, (a, *_), (i, *_) = product()
    plan.cache(a, index=i, pipeline_stages=3)


@refused(
    ScheduleError,
    """
    ra holds a box of 8 elements of a from [p], and the boxes that threads (THREAD_X) write back overlap
      test_schedule_caches.py:N, in _:
        a[p + 2 * q + 5 * r] = 1.0
        ^^^^^^^^^^^^^^^^^^^^
      help: cache at an inner index, or bind the loops so that each has a box of its own
    """,
)
def test_written_back_by_several_threads():
    a = Array(Role.INPUT_OUTPUT, "float32", (80,), name="a")
    nest = Nest((2, 2, 2))
    p, q, r = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        a[p + 2 * q + 5 * r] = 1.0

    rows = nest.create_plan(Target("NVIDIA A100"))
    rows.bind({p: rows.target.GridUnit.THREAD_X})
    rows.cache(a, index=q, location=Location.PRIVATE)
    rows.build()


@refused(
    ScheduleError,
    """
    the layout (16,1):(0,1) of sA puts two elements in one place
      help: give each element of the box a place of its own
    """,
)
def test_layout_with_two_elements_in_one_place():
    plan, (a, *_), (*_, ii, _) = product()
    plan.cache(a, index=ii, layout=(0, 1))


@refused(
    ScheduleError,
    """
    sA holds a box of (16, 1), and its layout is (8,8):(1,8)
      help: give a layout of the shape (16, 1)
    """,
)
def test_layout_of_another_shape():
    plan, (a, *_), (*_, ii, _) = product()
    plan.cache(a, index=ii, layout=tw.Layout((8, 8)))


@refused(
    ScheduleError,
    """
    Cache(A, SHARED, index=ii) would be filled from registers, which each thread has of its own
      test_schedule_caches.py:N, in scheduled:
        c[i, j] += a[i, k] * b[k, j]
        ^^^^^^^
      help: cache in shared memory outside, and in registers inside of it
    """,
)
def test_shared_cache_of_registers():
    plan, (a, *_), (_, _, k, ii, _) = product()
    plan.cache(plan.cache(a, index=k, location=Location.PRIVATE), index=ii)
    plan.build().source()


@refused(
    ScheduleError,
    """
    sA is filled at ii and at ii, between which no loop runs
      help: cache the array once there
    """,
)
def test_the_same_cache_twice():
    plan, (a, *_), (*_, ii, _) = product()
    plan.cache(a, index=ii)
    plan.cache(a, index=ii)
    plan.build()


@refused(
    ScheduleError,
    """
    k cannot be vectorized: write of c[i] and read of c[i] are of the same element in different iterations
      test_schedule_caches.py:N, in _:
        c[i] = a[i, k] - c[i]
        ^^^^
      help: vectorize a loop whose iterations are independent of one another
    """,
)
def test_vectorizing_what_accumulates_and_is_no_reduction():
    a, c = Array(Role.INPUT, "float32", (8, 8), name="a"), Array(Role.INPUT_OUTPUT, "float32", (8,), name="c")
    nest = Nest((8, 8))
    i, k = nest.get_indices()
    i.name, k.name = "i", "k"

    @nest.iteration_logic
    def _() -> None:
        c[i] = a[i, k] - c[i]

    nest.create_plan(Target("NVIDIA A100")).vectorize(k)


@refused(
    ScheduleError,
    """
    i cannot be vectorized: write of a[i + 1] and read of a[i] are of the same element in different iterations
      test_schedule_caches.py:N, in _:
        a[i + 1] = a[i] * 2
        ^^^^^^^^
      help: vectorize a loop whose iterations are independent of one another
    """,
)
def test_vectorizing_a_recurrence():
    a = Array(Role.INPUT_OUTPUT, "float32", (65,), name="a")
    nest = Nest((64,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        a[i + 1] = a[i] * 2

    nest.create_plan(Target("NVIDIA A100")).vectorize(i)


@refused(
    ScheduleError,
    """
    vectorizing u lets two accesses of s[1, 1] change places: the write of s[u + 1, v] at u=0, v=1 comes before the read of s[u, v + 1] at u=1, v=0 and would come after it
      test_schedule_caches.py:N, in _:
        s[u + 1, v] = s[u, v + 1] * 0.5
        ^^^^^^^^^^^
      help: keep an order in which what depends on another iteration runs after it; skewing a loop by another one can make such an order possible
    """,
)
def test_vectorizing_a_loop_that_cannot_be_the_innermost_one():
    s = Array(Role.INPUT_OUTPUT, "float32", (9, 9), name="s")
    nest = Nest((8, 8))
    u, v = nest.get_indices()
    u.name, v.name = "u", "v"

    @nest.iteration_logic
    def _() -> None:
        s[u + 1, v] = s[u, v + 1] * 0.5

    nest.create_plan(Target("NVIDIA A100")).vectorize(u)


@refused(
    ScheduleError,
    """
    f numbers fused schedules and is vectorized
      help: vectorize a loop of the schedules
    """,
)
def test_vectorizing_the_loop_that_numbers_fused_schedules():
    schedules = [product()[0].nest for _ in range(2)]
    fused = fuse(*(Schedule(nest) for nest in schedules))
    (f,) = fused.nest.fusing
    f.name = "f"
    fused.create_plan(Target("NVIDIA A100")).vectorize(f)


@refused(
    ScheduleError,
    """
    the logic of a nest cannot branch on a[i] < 0.0, a value that only the kernel knows
      help: tw.where(condition, a, b) computes both and takes one; in place of Python's max and min, tw.maximum and tw.minimum
    """,
)
def test_branching_on_a_value():
    a = Array(Role.INPUT_OUTPUT, "float32", (64,), name="a")
    nest = Nest((64,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        a[i] = max(a[i], 0.0)


@refused(
    tw.ArgumentError,
    """
    argument 'alpha' is a ndarray, and a number is needed
      help: pass a Python or NumPy number
    """,
)
def test_an_array_for_a_number():
    alpha, a = Array(Role.INPUT, "float32", (), name="alpha"), Array(Role.OUTPUT, "float32", (4,), name="a")
    nest = Nest((4,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        a[i] = 1.0 + alpha

    nest.create_plan(Target("NVIDIA A100")).build()(np.zeros(4, np.float32), np.zeros(4, np.float32))


@refused(
    ScheduleError,
    """
    sT is double-buffered, and T is TEMP and begins in it: nothing fills it ahead
      test_schedule_caches.py:N, in _:
        d[i, j] = t[i, j]
        ^^^^^^^
      help: leave double_buffer and pipeline_stages out
    """,
)
def test_a_temporary_array_that_nothing_fills_ahead():
    t, d = Array(Role.TEMP, "float32", (8, 4), name="T"), Array(Role.OUTPUT, "float32", (8, 4), name="D")
    nest = Nest((8, 4))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        d[i, j] = t[i, j]

    plan = nest.create_plan(Target("sm_80"))
    plan.cache(t, index=j, double_buffer=True)
    plan.build()
