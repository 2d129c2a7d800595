"""Orders that break a dependence and bindings that race, with whole texts; and those that are legal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.helpers.refusals import refused

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Dimension
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.nest import Nest
from tilewright.schedule.schedule import Schedule, fuse
from tilewright.schedule.targets import Target


def array(name: str, *shape: Any) -> Array:
    return Array(Role.INPUT_OUTPUT, "float32", shape, name=name)


def schedule_of(logic: Callable[..., None], *shape: Any, names: str = "ijk") -> tuple[Schedule, tuple[Any, ...]]:
    nest = Nest(shape)
    for index, name in zip(nest.indices, names, strict=False):
        index.name = name
    nest.iteration_logic(lambda: logic(*nest.indices))
    return nest.create_schedule(), nest.indices


def stencil(m: Any = 8, n: Any = 8) -> tuple[Schedule, tuple[Any, ...]]:
    a = array("A", 100, 100)

    def logic(i: Any, j: Any) -> None:
        a[i + 1, j] = a[i, j + 1] * 0.5

    return schedule_of(logic, m, n)


@refused(
    ScheduleError,
    """
    the order (j, i) lets two accesses of A[1, 1] change places: the write of A[i + 1, j] at i=0, j=1 comes before the read of A[i, j + 1] at i=1, j=0 and would come after it
      test_schedule_dependences.py:N, in logic:
        a[i + 1, j] = a[i, j + 1] * 0.5
        ^^^^^^^^^^^
      help: keep an order in which what depends on another iteration runs after it; skewing a loop by another one can make such an order possible
    """,
)
def test_interchanged_stencil():
    schedule, (i, j) = stencil()
    schedule.reorder(j, i)


@refused(
    ScheduleError,
    """
    the order (j, i) lets two accesses of A[1, 1] change places: the write of A[i + 1, j] at i=0, j=1 comes before the read of A[i, j + 1] at i=1, j=0 and would come after it, where M=2, N=2
      test_schedule_dependences.py:N, in logic:
        a[i + 1, j] = a[i, j + 1] * 0.5
        ^^^^^^^^^^^
      help: keep an order in which what depends on another iteration runs after it; skewing a loop by another one can make such an order possible
    """,
)
def test_interchanged_stencil_of_sizes_of_the_launch():
    schedule, (i, j) = stencil(Dimension("M"), Dimension("N"))
    schedule.reorder(j, i)


@refused(
    ScheduleError,
    """
    skewing i by j lets two accesses of A[0] change places: the read of A[i] at i=0, j=2 comes before the write of A[0] at i=1, j=0 and would come after it
      test_schedule_dependences.py:N, in logic:
        a[0] = a[i] * j
        ^^^^
      help: keep an order in which what depends on another iteration runs after it; skewing a loop by another one can make such an order possible
    """,
)
def test_outer_loop_skewed_by_the_inner_one():
    a = array("A", 20)

    def logic(i: Any, j: Any) -> None:
        a[0] = a[i] * j

    schedule, (i, j) = schedule_of(logic, 8, 8)
    schedule.skew(i, j)


@refused(
    ScheduleError,
    """
    the order (i, f) lets two accesses of C[1] change places: the write of C[i] at i=1 comes before the write of C[i + 1] at i=0 and would come after it
      test_schedule_dependences.py:N, in <lambda>:
        later, _ = schedule_of(lambda i: c.__setitem__(i, 1.0), 8)
                                         ^^^^^^^^^^^^^^^^^^^^^
      help: keep an order in which what depends on another iteration runs after it; skewing a loop by another one can make such an order possible
    """,
)
def test_consumer_before_its_producer():
    c = array("C", 9)
    later, _ = schedule_of(lambda i: c.__setitem__(i, 1.0), 8)
    reader, _ = schedule_of(lambda i: c.__setitem__(i + 1, c[i] * 2), 8)
    wrong = fuse(later, reader)
    i, f = wrong.get_indices()
    wrong.reorder(i, f)


def row_sums() -> tuple[tuple[Schedule, Any], tuple[Schedule, Any]]:
    a, b, d = array("A", 8, 8), array("B", 8), array("D", 8)

    def add(i: Any, j: Any) -> None:
        b[i] += a[i, j]

    def use(i: Any) -> None:
        d[i] = b[i] * 2

    return schedule_of(add, 8, 8), schedule_of(use, 8)


@refused(
    ScheduleError,
    """
    i cannot be bound to THREAD_X: different iterations of it access A[1] at the same time, the read of A[i] at i=1 and the write of A[i + 1] at i=0
      test_schedule_dependences.py:N, in logic:
        a[i + 1] = a[i] + a[i + 1]
        ^^^^^^^^
      help: bind loops whose iterations are independent of one another
    """,
)
def test_bound_prefix_sums():
    a = array("A", 65)

    def logic(i: Any) -> None:
        a[i + 1] = a[i] + a[i + 1]

    schedule, (i,) = schedule_of(logic, 64)
    plan = schedule.create_plan(Target("NVIDIA A100"))
    plan.bind({i: plan.target.GridUnit.THREAD_X})


@refused(
    ScheduleError,
    """
    j cannot be bound to THREAD_X: different iterations of it access B[0] at the same time, the read of B[i] at i=0, j=0 and the write of B[i] at i=0, j=1
      test_schedule_dependences.py:N, in add:
        b[i] += a[i, j]
        ^^^^
      help: a loop of a reduction cannot be bound; bind loops the written element moves with
    """,
)
def test_bound_reduction():
    (schedule, (i, j)), _ = row_sums()
    plan = schedule.create_plan(Target("NVIDIA A100"))
    plan.bind({i: plan.target.GridUnit.BLOCK_X, j: plan.target.GridUnit.THREAD_X})


def involved() -> tuple[Schedule, tuple[Any, ...]]:
    """Twelve loops of two iterations, and two sums of them that decide which elements are the same."""
    a = array("A", 1000, 1000)
    factors = (18, 73, 98, 9, 33, 16, 64, 98, 58, 61, 84, 49), (27, 13, 63, 4, 50, 56, 78, 98, 99, 1, 90, 58)

    def logic(*indices: Any) -> None:
        place = [sum((f * i for f, i in zip(row, indices, strict=True)), 0) for row in factors]
        a[tuple(place)] = 1.0

    return schedule_of(logic, *[2] * 12, names="abcdefghijkl")


@refused(
    ScheduleError,
    """
    the order (l, k, j, i, h, g, f, e, d, c, b, a) is refused: whether the write of A[18 * a + 73 * b + 98 * c + 9 * d + 33 * e + 16 * f + 64 * g + 98 * h + 58 * i + 61 * j + 84 * k + 49 * l, 27 * a + 13 * b + 63 * c + 4 * d + 50 * e + 56 * f + 78 * g + 98 * h + 99 * i + j + 90 * k + 58 * l] and itself in another iteration would change places was not decided in 2,000,000 steps
      test_schedule_dependences.py:N, in logic:
        a[tuple(place)] = 1.0
        ^^^^^^^^^^^^^^^
      help: give A one dimension for each loop in place of a computed index, use smaller factors in its indices, or do this before loops are split and skewed
    """,
)
def test_an_order_that_is_not_decided():
    schedule, indices = involved()
    schedule.reorder(*indices[::-1])


def test_an_order_that_is_not_decided_is_no_valid_one():
    schedule, indices = involved()
    assert not schedule.is_valid_loop_order(*indices[::-1]) and schedule.is_valid_loop_order(*indices)


@refused(
    ScheduleError,
    """
    a cannot be bound to BLOCK_X: whether the write of A[18 * a + 73 * b + 98 * c + 9 * d + 33 * e + 16 * f + 64 * g + 98 * h + 58 * i + 61 * j + 84 * k + 49 * l, 27 * a + 13 * b + 63 * c + 4 * d + 50 * e + 56 * f + 78 * g + 98 * h + 99 * i + j + 90 * k + 58 * l] and itself in another iteration access one element at the same time was not decided in 2,000,000 steps
      test_schedule_dependences.py:N, in logic:
        a[tuple(place)] = 1.0
        ^^^^^^^^^^^^^^^
      help: give A one dimension for each loop in place of a computed index, use smaller factors in its indices, or do this before loops are split and skewed
    """,
)
def test_a_binding_that_is_not_decided():
    schedule, indices = involved()
    plan = schedule.create_plan(Target("NVIDIA A100"))
    plan.bind({indices[0]: plan.target.GridUnit.BLOCK_X})


def test_a_skewed_stencil_runs_by_diagonals():
    schedule, (i, j) = stencil()
    assert schedule.is_valid_loop_order(i, j) and not schedule.is_valid_loop_order(j, i)
    schedule.skew(j, i)
    assert schedule.is_valid_loop_order(j, i)
    schedule.reorder(j, i)


def test_a_consumer_row_by_row_behind_its_producer():
    (sums, _), (uses, _) = row_sums()
    fused = fuse(sums, uses, partial=1)
    i, f, j = fused.get_indices()
    assert fused.is_valid_loop_order(i, f, j)


def test_a_transpose_in_place_keeps_its_order():
    a = array("A", 8, 8)

    def logic(i: Any, j: Any) -> None:
        a[i, j] = a[j, i]

    schedule, (i, j) = schedule_of(logic, 8, 8)
    assert not schedule.is_valid_loop_order(j, i)


def test_turns_of_a_reduction_change_places():
    (schedule, (i, j)), _ = row_sums()
    schedule.split(j, 3)
    schedule.reorder(schedule.get_indices()[1], schedule.get_indices()[2], i)
    assert schedule.get_indices()[-1] is i


def test_a_statement_that_is_no_reduction_keeps_its_order():
    a, b = array("A", 8, 8), array("B", 8)

    def logic(i: Any, j: Any) -> None:
        b[i] = a[i, j]

    schedule, (i, j) = schedule_of(logic, 8, 8)
    assert schedule.is_valid_loop_order(j, i)  # the last one to write an element is the same
