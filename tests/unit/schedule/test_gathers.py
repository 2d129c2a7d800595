"""Elements that are read at places which other elements say."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import CheckError, ScheduleError
from tilewright.schedule import (
    Array,
    Dimension,
    GridUnit,
    If,
    Location,
    MMAShape,
    Nest,
    Package,
    Role,
    Schedule,
    Target,
    cast,
    create_dimensions,
    create_parameters,
    fuse,
)

A100 = Target("NVIDIA A100")
Logic = Callable[..., None]


def _arrays(rows: Any, columns: Any, count: Any, dtype: Any = tw.int32) -> tuple[Array, Array, Array]:
    return (
        Array(Role.INPUT, tw.float32, (rows, columns), name="X"),
        Array(Role.INPUT, dtype, (count,), name="at"),
        Array(Role.OUTPUT, tw.float32, (count, columns), name="Y"),
    )


def _gather(X: Array, at: Array, Y: Array) -> Schedule:
    nest = Nest(Y.shape)
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: Y.__setitem__((i, j), X[at[i], j] * 2.0))
    return nest.create_schedule()


@pytest.mark.parametrize("dtype", [tw.int8, tw.uint8, tw.int32, tw.int64])
@pytest.mark.parametrize("kind", ["as it is", "vectors", "blocks", "threads", "lanes of indices", "cached indices"])
@pytest.mark.spread(4)
def test_rows_of_a_matrix(kind: str, dtype: Any) -> None:
    sizes = create_dimensions("rows", "columns", "count") if kind != "as it is" else (9, 10, 13)
    X, at, Y = _arrays(*sizes, dtype)
    schedule = _gather(X, at, Y)
    i, j = schedule.get_indices()
    ii, jj = schedule.tile({i: 4, j: 8})
    schedule.reorder(j, i, jj, ii) if kind == "lanes of indices" else schedule.reorder(j, i, ii, jj)
    plan = schedule.create_plan(A100)
    if kind == "vectors":
        plan.vectorize(jj)
    if kind == "lanes of indices":
        plan.vectorize(ii)
    if kind in ("blocks", "threads", "cached indices"):
        plan.bind({j: GridUnit.BLOCK_X, i: GridUnit.BLOCK_Y})
    if kind in ("threads", "cached indices"):
        plan.bind({jj: GridUnit.THREAD_X, ii: GridUnit.THREAD_Y})
    if kind == "cached indices":
        plan.cache(at, index=ii)
    random = np.random.default_rng(1)
    x, indices = random.random((9, 10), np.float32), random.integers(0, 9, 13).astype(dtype.numpy)
    y = np.zeros((13, 10), np.float32)
    plan.build(args=(X, at, Y))(x, indices, y)
    np.testing.assert_array_equal(y, 2 * x[indices])


def test_places_that_are_computed_and_nested() -> None:
    X, at = Array(Role.INPUT, tw.float32, (40,), name="X"), Array(Role.INPUT, tw.int64, (6,), name="at")
    Y = Array(Role.OUTPUT, tw.float32, (6, 3), name="Y")
    nest = Nest((6, 3))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        Y[i, j] = X[2 * at[at[i]] + j] + X[cast(at[5 - i], tw.int32) - 1 + i * 2]

    assert "X[2 * at[at[i]] + j]" in str(nest)
    schedule = nest.create_schedule()
    schedule.reorder(j, i)
    indices, x = np.array([3, 1, 5, 2, 4, 1]), np.arange(40, dtype=np.float32) ** 2
    y = np.zeros((6, 3), np.float32)
    schedule.create_plan(A100).build(args=(X, at, Y))(x, indices, y)
    rows, columns = np.arange(6)[:, None], np.arange(3)
    np.testing.assert_array_equal(y, x[2 * indices[indices][:, None] + columns] + x[indices[5 - rows] - 1 + rows * 2])


@pytest.mark.parametrize("dtype", [tw.int8, tw.uint8, tw.int16, tw.uint32, tw.int64])
def test_places_do_not_wrap_as_their_elements_do(dtype: Any) -> None:
    X, at = Array(Role.INPUT, tw.float32, (600,), name="X"), Array(Role.INPUT, dtype, (4,), name="at")
    Y = Array(Role.OUTPUT, tw.float32, (4,), name="Y")
    nest = Nest((4,))
    i = nest.get_indices()
    nest.iteration_logic(lambda: Y.__setitem__(i, X[3 * at[i] + at[3 - i]]))
    indices = np.array([127, 100, 3, 90]).astype(dtype.numpy)
    y = np.zeros(4, np.float32)
    nest.create_plan(A100).build(args=(X, at, Y))(np.arange(600, dtype=np.float32), indices, y)
    np.testing.assert_array_equal(y, 3.0 * indices + indices[::-1])


def test_indices_that_are_seen_in_another_type() -> None:
    X, raw = Array(Role.INPUT, tw.float32, (9,), name="X"), Array(Role.INPUT, tw.float32, (5,), name="raw")
    Y, at = Array(Role.OUTPUT, tw.float32, (5,), name="Y"), raw.reinterpret_cast(tw.int32)
    nest = Nest((5,))
    i = nest.get_indices()
    nest.iteration_logic(lambda: Y.__setitem__(i, X[at[i]]))
    indices, y = np.array([8, 1, 0, 5, 5], np.int32), np.zeros(5, np.float32)
    nest.create_plan(A100).build(args=(X, raw, Y))(np.arange(9, dtype=np.float32), indices.view(np.float32), y)
    np.testing.assert_array_equal(y, indices)


def test_a_view_and_a_condition() -> None:
    X, at, Y = _arrays(8, 8, 5)
    part = X.sub_array((2, 1), (4, 6), (1, 1))
    nest = Nest((5, 6))
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: If(at[i] < 4, lambda: Y.__setitem__((i, j), part[at[i], j])))
    x, y = np.arange(64, dtype=np.float32).reshape(8, 8), np.full((5, 8), -1, np.float32)
    indices = np.array([3, 9, 0, 5, 1], np.int32)
    nest.create_plan(A100).build(args=(X, at, Y))(x, indices, y)
    wanted = np.full((5, 8), -1, np.float32)
    for row, index in enumerate(indices):
        if index < 4:
            wanted[row, :6] = x[2 + index, 1:7]
    np.testing.assert_array_equal(y, wanted)


def test_packages_and_copies_of_nests() -> None:
    X, at, Y = _arrays(4, 4, 4)
    schedule = pickle.loads(pickle.dumps(_gather(X, at, Y)))
    assert "X[at[i], j]" in str(schedule)
    function = Package().add(_gather(X, at, Y), args=(X, at, Y), base_name="gather")
    x, y = np.arange(16, dtype=np.float32).reshape(4, 4), np.zeros((4, 4), np.float32)
    function(x, np.array([3, 2, 1, 0], np.int32), y)
    np.testing.assert_array_equal(y, 2 * x[::-1])


def test_arrays_that_parameters_make_anew() -> None:
    P, size, by = create_parameters(3)
    X, at = Array(Role.INPUT, tw.float32, (6,), name="X"), Array(Role.INPUT, tw.int32, (P,), name="at")
    Y = Array(Role.OUTPUT, tw.float32, (P,), name="Y")
    nest = Nest((P,))
    i = nest.get_indices()
    nest.iteration_logic(lambda: Y.__setitem__(i, X[at[i]] + X[i // by]))
    schedule = nest.create_schedule()
    schedule.split(i, size)
    plan = schedule.create_plan(A100).with_parameters({P: 5, size: 2, by: 2})
    y = np.zeros(5, np.float32)
    plan.build()(np.arange(6, dtype=np.float32), np.array([5, 4, 0, 1, 1], np.int32), y)
    assert y.tolist() == [5, 4, 1, 2, 3]


def test_calls_give_the_indices_too() -> None:
    X, at, Y = _arrays(6, 5, 4)
    package = Package()
    take = package.add(_gather(X, at, Y), args=(X, at, Y), base_name="take")
    here, there = (Array(Role.INPUT, tw.int32, (4,), name=name) for name in ("here", "there"))
    Z = Array(Role.OUTPUT, tw.float32, (2, 4, 5), name="Z")
    nest = Nest((1,))

    @nest.iteration_logic
    def _() -> None:
        take(X, here, Z.slice((0,), (0,)))
        take(X, there, Z.slice((0,), (1,)))

    x, z = np.arange(30, dtype=np.float32).reshape(6, 5), np.zeros((2, 4, 5), np.float32)
    first, second = np.array([5, 1, 2, 0], np.int32), np.array([3, 3, 4, 5], np.int32)
    nest.create_plan(A100).build(args=(X, here, there, Z))(x, first, second, z)
    np.testing.assert_array_equal(z, 2 * x[np.stack([first, second])])


# --- legality --------------------------------------------------------------------------------------------


def _in_place() -> tuple[Schedule, tuple[Array, Array]]:
    """X[i, j] += X[at[i], j]: each row may be one that another iteration writes."""
    X = Array(Role.INPUT_OUTPUT, tw.float32, (6, 5), name="X")
    at = Array(Role.INPUT, tw.int32, (6,), name="at")
    nest = Nest((6, 5))
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: X.__setitem__((i, j), X[i, j] + X[at[i], j]))
    return nest.create_schedule(), (X, at)


def test_what_is_written_too_counts_as_any_element() -> None:
    schedule, (X, at) = _in_place()
    i, j = schedule.get_indices()
    plan = schedule.create_plan(A100)
    with pytest.raises(ScheduleError, match=r"i cannot be bound to BLOCK_X: different iterations of it access X\["):
        plan.bind({i: GridUnit.BLOCK_X})
    plan.bind({j: GridUnit.THREAD_X})  # no row meets another column
    schedule.reorder(j, i)
    x, indices = np.arange(30, dtype=np.float32).reshape(6, 5), np.array([1, 5, 2, 0, 0, 3], np.int32)
    wanted = x.copy()
    for row, index in enumerate(indices):
        wanted[row] += wanted[index]
    for made in (plan, schedule.create_plan(A100)):
        given = x.copy()
        made.build(args=(X, at))(given, indices)
        np.testing.assert_array_equal(given, wanted)


def test_an_order_that_any_element_may_break() -> None:
    X, at = Array(Role.INPUT_OUTPUT, tw.float32, (6, 6), name="X"), Array(Role.INPUT, tw.int32, (6,), name="at")
    nest = Nest((6, 6))
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: X.__setitem__((i, j), X[at[i], at[j]]))
    with pytest.raises(ScheduleError, match=r"the order \(j, i\) lets two accesses of X.* change places"):
        nest.create_schedule().reorder(j, i)


def test_indices_that_are_written_are_read_in_order() -> None:
    at = Array(Role.INPUT_OUTPUT, tw.int32, (6,), name="at")
    X, Y = Array(Role.INPUT, tw.float32, (9,), name="X"), Array(Role.OUTPUT, tw.float32, (6,), name="Y")
    first, second = Nest((6,)), Nest((6,))
    i, k = first.get_indices(), second.get_indices()
    first.iteration_logic(lambda: at.__setitem__(i, at[i] + 1))
    second.iteration_logic(lambda: Y.__setitem__(k, X[at[5 - k]]))
    fused = fuse(first.create_schedule(), second.create_schedule())
    with pytest.raises(ScheduleError, match=r"lets two accesses of at\[5\] change places: the write of at\["):
        fused.create_plan(A100)


@pytest.mark.parametrize("location", [Location.SHARED, Location.PRIVATE])
def test_no_cache_holds_what_only_the_kernel_knows(location: Location) -> None:
    X, at, Y = _arrays(6, 5, 4)
    schedule = _gather(X, at, Y)
    plan = schedule.create_plan(A100)
    with pytest.raises(ScheduleError, match=r"a cache of X: which elements the read of X\[at\[i\], j\] touches only"):
        plan.cache(X, index=schedule.get_indices()[1], location=location)


def test_no_matrix_instruction_reads_it() -> None:
    A, at = Array(Role.INPUT, tw.float16, (16, 16), name="A"), Array(Role.INPUT, tw.int32, (16,), name="at")
    B, C = Array(Role.INPUT, tw.float16, (16, 16), name="B"), Array(Role.INPUT_OUTPUT, tw.float32, (16, 16), name="C")
    nest = Nest((16, 16, 16))
    i, j, k = nest.get_indices()
    nest.iteration_logic(lambda: C.__setitem__((i, j), C[i, j] + A[at[i], k] * B[k, j]))
    with pytest.raises(ScheduleError, match=r"no matrix instruction can serve the read of A\[at\[i\], k\]"):
        nest.create_plan(A100).tensorize((i, j, k), MMAShape.M16N16K16)


def test_a_scatter_is_refused() -> None:
    X, at, Y = _arrays(6, 5, 4)
    nest = Nest((4, 5))
    i, j = nest.get_indices()
    with pytest.raises(
        ScheduleError, match="mode 0 of array Y is indexed by a value that is read, which is not affine"
    ):
        nest.iteration_logic(lambda: Y.__setitem__((at[i], j), X[i, j]))


def test_a_float_is_no_place() -> None:
    X, _, Y = _arrays(6, 5, 4)
    nest = Nest((4, 5))
    i, j = nest.get_indices()
    with pytest.raises(ScheduleError, match="mode 0 of array X is indexed by a value that is read"):
        nest.iteration_logic(lambda: Y.__setitem__((i, j), X[X[i, j], j]))


def test_the_indices_have_to_lie_in_their_array() -> None:
    X, at, Y = _arrays(6, 5, 4)
    nest = Nest((4, 5))
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: Y.__setitem__((i, j), X[at[i + 1], j]))
    with pytest.raises(ScheduleError, match=r"the read of at\[i \+ 1\] is beyond mode 0 of at, which has 4"):
        nest.create_plan(A100).build()


def test_the_simulator_finds_a_place_outside() -> None:
    X, at, Y = _arrays(6, 5, 4)
    x, y = np.zeros((6, 5), np.float32), np.zeros((4, 5), np.float32)
    with pytest.raises(CheckError):
        _gather(X, at, Y).create_plan(A100).build(args=(X, at, Y))(x, np.array([0, 7, 1, 2], np.int32), y)


def test_sizes_are_asked_of_the_other_modes() -> None:
    N = Dimension("N")
    X, at = Array(Role.INPUT, tw.float32, (6, N), name="X"), Array(Role.INPUT, tw.int32, (4,), name="at")
    Y = Array(Role.OUTPUT, tw.float32, (4, 8), name="Y")
    nest = Nest((4, 8))
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: Y.__setitem__((i, j), X[at[i], j]))
    kernel = nest.create_plan(A100).build(args=(X, at, Y))
    with pytest.raises(tw.ArgumentError, match="beyond mode 1 of X"):
        kernel(np.zeros((6, 7), np.float32), np.zeros(4, np.int32), np.zeros((4, 8), np.float32))
