"""What caches, vectors and numbers of a schedule's plan refuse, with whole texts."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.helpers.refusals import refused

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Dimension
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location
from tilewright.schedule.nest import Nest
from tilewright.schedule.plan import Plan
from tilewright.schedule.targets import Target


def product() -> tuple[Plan, tuple[Array, ...], tuple[Any, ...]]:
    a, b = Array(Role.INPUT, "float32", (64, 32), name="A"), Array(Role.INPUT, "float32", (32, 64), name="B")
    c = Array(Role.INPUT_OUTPUT, "float32", (64, 64), name="C")
    nest = Nest((64, 64, 32))
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
    rC is double-buffered and written: the next turn would be fetched before this one is stored
      help: double-buffer arrays that are only read
    """,
)
def test_written_and_double_buffered():
    plan, (_, _, c), (_, _, k, *_) = product()
    plan.cache(c, index=k, double_buffer=True)


@refused(ScheduleError, "")
def test_double_buffered_registers():
    plan, (a, *_), (*_, ii, _) = product()
    plan.cache(a, index=ii, location=Location.PRIVATE, double_buffer=True)


@refused(ScheduleError, "")
def test_no_loop_around_a_pipeline():
    plan, (a, *_), (i, *_) = product()
    plan.cache(a, index=i, pipeline_stages=3)


@refused(ScheduleError, "")
def test_written_back_by_several_threads():
    plan, (_, _, c), (i, j, k, ii, jj) = product()
    unit = plan.target.GridUnit
    plan.bind({i: unit.BLOCK_Y, j: unit.BLOCK_X, ii: unit.THREAD_Y})
    a = Array(Role.INPUT_OUTPUT, "float32", (80,), name="a")
    nest = Nest((4, 16))
    p, q = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        a[4 * p + q] = 1.0

    rows = nest.create_plan(Target("NVIDIA A100"))
    rows.bind({p: unit.THREAD_X})
    rows.cache(a, index=q, location=Location.PRIVATE)
    rows.build()


@refused(ScheduleError, "")
def test_layout_with_two_elements_in_one_place():
    plan, (a, *_), (*_, ii, _) = product()
    plan.cache(a, index=ii, layout=(0, 1))


@refused(ScheduleError, "")
def test_layout_of_another_shape():
    plan, (a, *_), (*_, ii, _) = product()
    plan.cache(a, index=ii, layout=tw.Layout((8, 8)))


@refused(ScheduleError, "")
def test_shared_cache_of_registers():
    plan, (a, *_), (_, _, k, ii, _) = product()
    plan.cache(plan.cache(a, index=k, location=Location.PRIVATE), index=ii)
    plan.build().source()


@refused(ScheduleError, "")
def test_the_same_cache_twice():
    plan, (a, *_), (*_, ii, _) = product()
    plan.cache(a, index=ii)
    plan.cache(a, index=ii)
    plan.build()


@refused(ScheduleError, "")
def test_vectorizing_an_accumulation():
    plan, _, (_, _, k, *_) = product()
    plan.vectorize(k)


@refused(ScheduleError, "")
def test_vectorizing_a_recurrence():
    a = Array(Role.INPUT_OUTPUT, "float32", (65,), name="a")
    nest = Nest((64,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        a[i + 1] = a[i] * 2

    nest.create_plan(Target("NVIDIA A100")).vectorize(i)


@refused(ScheduleError, "")
def test_vectorizing_a_loop_of_unknown_length():
    n = Dimension("N")
    a = Array(Role.OUTPUT, "float32", (n,), name="a")
    nest = Nest((n,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        a[i] = 1.0

    nest.create_plan(Target("NVIDIA A100")).vectorize(i)


@refused(ScheduleError, "")
def test_vectorizing_a_loop_that_is_not_innermost():
    plan, _, (_, _, _, ii, _) = product()
    plan.vectorize(ii)
    plan.build()


@refused(ScheduleError, "")
def test_branching_on_a_value():
    a = Array(Role.INPUT_OUTPUT, "float32", (64,), name="a")
    nest = Nest((64,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        a[i] = max(a[i], 0.0)


@refused(tw.ArgumentError, "")
def test_an_array_for_a_number():
    alpha, a = Array(Role.INPUT, "float32", (), name="alpha"), Array(Role.OUTPUT, "float32", (4,), name="a")
    nest = Nest((4,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        a[i] = 1.0 + alpha

    nest.create_plan(Target("NVIDIA A100")).build()(np.zeros(4, np.float32), np.zeros(4, np.float32))
