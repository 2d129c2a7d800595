"""Transforms as they print, and which orders of loops they leave possible."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Dimension, Index
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.nest import Nest
from tilewright.schedule.parameters import DelayedParameter
from tilewright.schedule.schedule import Schedule, fuse
from tilewright.schedule.targets import Target


def copy_of(rows: int = 16, columns: int = 10, name: str = "B") -> tuple[Schedule, Index, Index]:
    a, b = Array(Role.INPUT, "float32", (64, 64), name="A"), Array(Role.OUTPUT, "float32", (64, 64), name=name)
    nest = Nest((rows, columns))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        b[i, j] = a[i, j]

    return nest.create_schedule(), i, j


def text(expected: str) -> str:
    return textwrap.dedent(expected).strip()


def test_pad_in_front_and_behind() -> None:
    schedule, i, j = copy_of()
    schedule.pad(i, 2)
    schedule.pad(j, 3, front=False)
    assert str(schedule) == text("""
        for i in range(18):
            for j in range(13):
                if i >= 2 and j < 10:
                    B[i - 2, j] = A[i - 2, j]
    """)


def test_skew() -> None:
    schedule, i, j = copy_of()
    schedule.skew(j, i)
    assert str(schedule) == text("""
        for i in range(16):
            for j in range(25):
                if j - i >= 0 and j - i < 10:
                    B[i, j - i] = A[i, j - i]
    """)


def test_skew_after_split_is_refused() -> None:
    schedule, i, j = copy_of()
    schedule.split(j, 5)
    with pytest.raises(ScheduleError, match="skew before splitting"):
        schedule.skew(j, i)


def test_fuse_of_three_with_different_extents_has_the_fusing_index_inside() -> None:
    fused = fuse(copy_of(4, 8)[0], copy_of(6, 8, "C")[0], copy_of(4, 5, "D")[0])
    i, j, f = fused.get_indices()
    assert f is fused.get_fusing_index()
    assert fused.get_fused_indices() == (i, j) and fused.get_unfused_indices() == ()
    assert str(fused) == text("""
        for i in range(6):
            for j in range(8):
                for f in range(3):
                    if f == 0 and i < 4:
                        B[i, j] = A[i, j]
                    if f == 1:
                        C[i, j] = A[i, j]
                    if f == 2 and i < 4 and j < 5:
                        D[i, j] = A[i, j]
    """)


def test_partial_fuse_keeps_the_fusing_index_outside_of_the_other_loops() -> None:
    fused = fuse(schedule for schedule in (copy_of(4, 8)[0], copy_of(4, 6, "C")[0]))
    assert fused.nest.fused == fused.get_indices()[:2]
    fused = fuse(copy_of(4, 8)[0], copy_of(4, 6, "C")[0], partial=1)
    i, f, j, jj = fused.get_indices()
    assert f is fused.get_fusing_index()
    assert fused.get_fused_indices() == (i,) and fused.get_unfused_indices() == (j, jj)
    assert fused.is_valid_loop_order(f, i, j, jj)
    assert not fused.is_valid_loop_order(i, j, f, jj)
    fused.reorder(order=(f, i, jj, j))
    assert fused.get_indices() == (f, i, jj, j) and fused.get_fused_indices() == (i,)


def test_fuse_of_fused() -> None:
    inner = fuse(copy_of(4, 8)[0], copy_of(4, 8, "C")[0])
    outer = fuse(inner, copy_of(4, 8, "D")[0], partial=0)
    assert len(outer.nest.parts) == 3 and len(outer.nest.fusing) == 2
    g, _, _, f, _, _ = outer.get_indices()
    assert (g, f) == outer.nest.fusing and f is inner.get_fusing_index()
    outer = fuse((copy_of(4, 8, "D")[0], inner), partial=1)
    _, g, j, j2, f = outer.get_indices()
    assert (g, f) == outer.nest.fusing and outer.get_unfused_indices() == (j, j2, f)


def mirrored(rows: int = 8) -> tuple[Schedule, Array]:
    """The second schedule reads what the first one wrote at its other end: only with f outermost is that done."""
    x, y, z = (Array(role, "float32", (rows,), name=n) for role, n in zip(Role, "xyz", strict=False))
    first, second = Nest((rows,)), Nest((rows,))
    i, p = first.indices + second.indices
    first.iteration_logic(lambda: y.__setitem__(i, x[i] * 2))
    second.iteration_logic(lambda: z.__setitem__(p, y[rows - 1 - p]))
    return fuse(first.create_schedule(), second.create_schedule()), z


def test_an_order_of_fuse_that_a_dependence_forbids_is_refused_by_the_plan() -> None:
    schedule, _ = mirrored()
    i, f = schedule.get_indices()
    assert not schedule.is_valid_loop_order(i, f) and schedule.is_valid_loop_order(f, i)
    for change in (lambda: None, lambda: schedule.split(i, 4), lambda: schedule.pad(i, 2), lambda: schedule.unroll(f)):
        change()
        with pytest.raises(ScheduleError, match=r"the order \(.*f\) lets two accesses of y") as caught:
            schedule.create_plan(Target("sm_80"))
        assert "schedule.reorder(f, i" in str(caught.value)
    with pytest.raises(ScheduleError, match="change places"):
        schedule.reorder(*schedule.get_indices())
    i, ii, f = schedule.get_indices()
    schedule.reorder(f, i, ii)
    assert schedule.create_plan(Target("sm_80")).nest.order == (f, i, ii)


def test_an_order_of_fuse_that_waits_for_a_parameter_is_checked_when_it_has_a_value() -> None:
    schedule, _ = mirrored()
    size = DelayedParameter("size")
    schedule.split(schedule.get_indices()[0], size)
    plan = schedule.create_plan(Target("sm_80"))
    with pytest.raises(ScheduleError, match=r"the order \(i0, i00?, f\) lets"):
        plan.with_parameters({size: 4})


def test_a_skew_makes_the_order_of_fuse_legal() -> None:
    """What is fused may be skewed before its order is settled: only the order that a plan gets counts."""
    schedule, _ = mirrored(4)
    i, f = schedule.get_indices()
    schedule.pad(i, 1)
    schedule.skew(i, f)
    with pytest.raises(ScheduleError, match="change places"):
        schedule.create_plan(Target("sm_80"))
    schedule.reorder(f, i)
    assert schedule.create_plan(Target("sm_80")).nest.order == (f, i)


def test_fuse_keeps_what_is_padded() -> None:
    padded, _, j = copy_of(8, 8)
    padded.pad(j, 2, front=False)
    fused = fuse(padded, copy_of(8, 10, "C")[0])
    assert fused.nest.padded == {fused.get_indices()[1]}


def test_only_fused_schedules_have_fused_indices() -> None:
    schedule, *_ = copy_of()
    for ask in (schedule.get_fusing_index, schedule.get_fused_indices, schedule.get_unfused_indices):
        with pytest.raises(ScheduleError, match="not made by fuse"):
            ask()


def test_skew_unrolls_both_loops_that_are_short() -> None:
    schedule, i, j = copy_of(3, 2)
    schedule.skew(j, i, unroll_loops_smaller_than=4)
    assert schedule.nest.unrolled == {i}
    schedule, i, j = copy_of(3, 2)
    schedule.skew(j, i, unroll_loops_smaller_than=5)
    assert schedule.nest.unrolled == {i, j}


def test_sizes_of_the_launch_fuse_with_themselves_only() -> None:
    def of(size: Dimension) -> Schedule:
        b = Array(Role.OUTPUT, "float32", (size,), name=f"b{size}")
        nest = Nest((size,))
        i = nest.get_indices()

        @nest.iteration_logic
        def _() -> None:
            b[i] = 1.0

        return nest.create_schedule()

    m, n = Dimension("M"), Dimension("N")
    assert fuse(of(m), of(m)).get_indices()
    with pytest.raises(ScheduleError, match="run to"):
        fuse(of(m), of(n))


def test_tile_puts_each_inner_loop_right_inside_of_its_outer_one() -> None:
    schedule, i, j = copy_of(16, 10)
    ii, jj = schedule.tile({i: 4, j: 5})
    assert schedule.get_indices() == (i, ii, j, jj) and (ii.name, jj.name) == ("ii", "jj")
    assert str(schedule) == text("""
        for i in range(0, 16, 4):
            for ii in range(4):
                for j in range(0, 10, 5):
                    for jj in range(5):
                        B[i + ii, j + jj] = A[i + ii, j + jj]
    """)


def test_tile_returns_the_inner_indices_in_the_order_of_its_dict() -> None:
    schedule, i, j = copy_of(16, 10)
    jj, ii = schedule.tile({j: 5, i: 4})
    assert schedule.get_indices() == (i, ii, j, jj)
    assert [schedule.nest.loop(x).stop.constant for x in (ii, jj)] == [4, 5]
    (iii,) = schedule.tile({ii: 2})
    assert schedule.get_indices() == (i, ii, iii, j, jj)


def test_tile_keeps_the_order_of_what_depends_on_other_points() -> None:
    """Each inner loop runs inside of its outer one, as a split does: no dependence can forbid it."""
    s = Array(Role.INPUT_OUTPUT, "float32", (9, 9), name="S")
    nest = Nest((8, 8))
    i, j = nest.indices

    @nest.iteration_logic
    def _() -> None:
        s[i + 1, j] = s[i, j + 1] * 0.5

    schedule = nest.create_schedule()
    ii, jj = schedule.tile({i: 4, j: 4})
    with pytest.raises(ScheduleError, match="change places"):
        schedule.reorder(i, j, ii, jj)
    assert schedule.get_indices() == (i, ii, j, jj)


def test_a_second_tile_runs_around_the_inner_loops_of_the_first() -> None:
    schedule, i, j = copy_of(64, 64)
    schedule.tile({i: 4, j: 4})
    schedule.tile({i: 2, j: 2})
    assert [loop.step for loop in schedule.nest.loops] == [8, 4, 1, 8, 4, 1]


def test_a_fusing_index_that_was_split_runs_each_nest_once() -> None:
    total = Array(Role.INPUT_OUTPUT, "int32", (4,), name="total")

    def adding(amount: int) -> Schedule:
        nest = Nest((4,))
        i = nest.get_indices()

        @nest.iteration_logic
        def _() -> None:
            total[i] = total[i] * 2 + amount

        return nest.create_schedule()

    fused = fuse(adding(1), adding(2), adding(3))
    fused.split(fused.get_fusing_index(), 2)
    held = np.zeros(4, np.int32)
    fused.create_plan(Target("NVIDIA A100")).build()(held)
    np.testing.assert_array_equal(held, (1 * 2 + 2) * 2 + 3)


def test_inner_loops_of_two_splits_of_one_loop_may_change_places() -> None:
    """Each stays inside of the loop that was split; whatever order of theirs is legal, every point is visited once."""
    schedule, i, j = copy_of(10, 2)
    ii = schedule.split(i, 2)
    iii = schedule.split(i, 2)
    assert schedule.get_indices() == (i, iii, ii, j)
    schedule.reorder(i, ii, iii, j)
    assert schedule.get_indices() == (i, ii, iii, j)
    visited = [
        a + b + c for a in range(0, 10, 4) for b in range(2) for c in range(0, 4, 2) if a + b + c < 10
    ]  # fmt: skip
    assert sorted(visited) == list(range(10))
    with pytest.raises(ScheduleError, match="keep i before iii"):
        schedule.reorder(iii, i, ii, j)
    x, y = np.arange(64 * 64, dtype=np.float32).reshape(64, 64), np.zeros((64, 64), np.float32)
    schedule.create_plan(Target("sm_80")).build()(x, y)
    np.testing.assert_array_equal(y[:10, :2], x[:10, :2])


def test_loops_of_one_schedule_stay_inside_of_both_halves_of_the_fusing_loop() -> None:
    fused = fuse(copy_of(4, 8)[0], copy_of(4, 6, "C")[0], copy_of(4, 6, "D")[0], partial=1)
    i, f, j, jj, jjj = fused.get_indices()
    ff = fused.split(f, 2)
    assert fused.is_valid_loop_order(f, ff, i, j, jj, jjj)
    assert not fused.is_valid_loop_order(f, i, j, ff, jj, jjj)
