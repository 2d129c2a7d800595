"""Transforms as they print, and which orders of loops they leave possible."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Dimension, Index
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.nest import Nest
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


def test_fuse_of_three_with_different_extents_and_the_fusing_index_inside() -> None:
    fused = fuse(copy_of(4, 8)[0], copy_of(6, 8, "C")[0], copy_of(4, 5, "D")[0])
    f, i, j = fused.get_indices()
    assert f is fused.get_fusing_index()
    fused.reorder(i, j, f)
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
    fused = fuse(copy_of(4, 8)[0], copy_of(4, 6, "C")[0], partial=1)
    f, i, j, jj = fused.get_indices()
    assert fused.is_valid_loop_order(i, f, j, jj)
    assert not fused.is_valid_loop_order(i, j, f, jj)


def test_fuse_of_fused() -> None:
    inner = fuse(copy_of(4, 8)[0], copy_of(4, 8, "C")[0])
    outer = fuse(inner, copy_of(4, 8, "D")[0], partial=0)
    assert len(outer.nest.parts) == 3 and len(outer.nest.fusing) == 2


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
