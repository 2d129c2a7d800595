"""What arguments may be: sizes, numbers that are read and written, TEMP arrays, layouts that are given later."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, ScheduleError, TilewrightWarning
from tilewright.schedule import (
    AllocateFlags,
    Array,
    Dimension,
    GridUnit,
    Location,
    Nest,
    Package,
    Role,
    Scalar,
    Target,
    cast,
    create_dimensions,
    fuse,
)
from tilewright.schedule.loading import load

A100 = Target("NVIDIA A100")


# --- sizes as arguments ---------------------------------------------------------------------------------------


def _shifted(extent: Any = None) -> tuple[Any, tuple[Any, ...]]:
    """Return the plan of B[i] = A[S + i] for i below K, both of which are arguments, and its arguments."""
    N, S, K = create_dimensions("N", "S", "K")
    A, B = Array(Role.INPUT, tw.float32, (N,), name="A"), Array(Role.OUTPUT, tw.float32, (N,), name="B")
    nest = Nest((K,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        B[i] = A[S + i] + cast(K, tw.float32)

    schedule = nest.create_schedule()
    ii = schedule.split(i, 4)
    plan = schedule.create_plan(A100)
    plan.bind({i: GridUnit.BLOCK_X, ii: GridUnit.THREAD_X})
    return plan, (N, S, K, A, B)


def test_sizes_are_arguments_of_their_own() -> None:
    plan, args = _shifted()
    kernel = plan.build(args=args)
    a, b = np.arange(9, dtype=np.float32), np.zeros(9, np.float32)
    kernel(np.int64(9), 2, np.int32(6), a, b)
    np.testing.assert_array_equal(b, [8, 9, 10, 11, 12, 13, 0, 0, 0])
    assert kernel.grid_for(9, 2, 6, a, b) == (2, 1, 1)
    assert "int" in kernel.source()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((8, 2, 6), "argument 'N' is 8, and by an array it is 9"),
        ((9, 4, 6), r"the read of A\[S \+ i\] is beyond mode 0 of A, which has N, where N=9, S=4, K=6"),
        ((9, -1, 6), "a size is a whole number from 0"),
        ((9, 2, 6.5), "a size is a whole number from 0"),
        ((9, 2, 2**40), "int32 does not hold it"),
        ((9, 2, np.zeros(2)), "a number is needed"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(numbers: tuple[Any, ...], message: str) -> None:
    plan, args = _shifted()
    with pytest.raises(ArgumentError, match=message):
        plan.build(args=args)(*numbers, np.zeros(9, np.float32), np.zeros(9, np.float32))


def test_a_size_that_no_argument_tells_is_refused() -> None:
    plan, (_, S, _, A, B) = _shifted()
    with pytest.raises(ScheduleError, match="S is the extent of no parameter"):
        plan.build(args=(A, B))
    with pytest.raises(ScheduleError, match="K is the extent of no parameter"):
        plan.build(args=(S, A, B))


def test_packaged_functions_take_sizes(tmp_path: Path) -> None:
    plan, (_, S, K, A, B) = _shifted()
    package = Package()
    function = package.add(plan, args=(S, K, A, B), base_name="shifted")
    package.build("sizes", Package.Format.MANIFEST | Package.Format.HEADER, tmp_path)
    loaded = load(tmp_path / "sizes.json")["shifted"]
    assert loaded.arguments == ("S", "K", "A", "B")
    assert loaded.manifest["sizes"] == ["S", "K", "N"]
    assert loaded.sizes({}, (3, 5)) == {"S": 3, "K": 5}
    assert function.grid == ("((K) + 3) // 4", 1, 1)
    with pytest.raises(ArgumentError, match="not a size"):
        loaded.sizes({}, (3, -5))
    header = (tmp_path / "sizes.h").read_text()
    assert "int32_t K;" in header and "shifted_grid_x(int64_t S, int64_t K, int64_t N)" in header


def test_arrays_that_a_nest_does_not_access_may_be_arguments() -> None:
    N = Dimension("N")
    A, B = Array(Role.INPUT, tw.float32, (N,), name="A"), Array(Role.OUTPUT, tw.int64, (1,), name="B")
    nest = Nest((1,))

    @nest.iteration_logic
    def _() -> None:
        B[0] = cast(N, tw.int64)

    b = np.zeros(1, np.int64)
    nest.create_plan(A100).build(args=(N, A, B))(12, np.zeros(12, np.float32), b)
    assert b[0] == 12


# --- numbers --------------------------------------------------------------------------------------------------


def test_numbers_are_read_and_written() -> None:
    N, count = Dimension("N"), Dimension("count", role=Role.OUTPUT)
    start, delta = Scalar(tw.float32, name="start"), Scalar(type=tw.float32, name="delta")
    position = Scalar(tw.float32, Role.INPUT_OUTPUT, name="position")
    values = Array(Role.OUTPUT, tw.float32, (N,), name="values")
    sizes = Nest((1,))

    @sizes.iteration_logic
    def _() -> None:
        count.set(cast(tw.floor((9.0 - start) / delta), tw.int64))

    nest = Nest([N])
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        values[i] = position
        position.set(position + delta)

    found = np.zeros(1, np.int64)
    sizes.create_plan(A100).build(args=(start, delta, count))(np.float32(1), 0.5, found)
    assert found.tolist() == [16]
    kernel = nest.create_plan(A100).build(args=(N, values, position, delta))
    for place in (np.full(1, 2, np.float32), np.full((), 2, np.float32)):
        out = np.zeros(4, np.float32)
        kernel(4, out, place, 0.5)
        assert out.tolist() == [2, 2.5, 3, 3.5] and float(place.item()) == 4
    with pytest.raises(ArgumentError, match="'position'"):
        kernel(4, out, 2.0, 0.5)
    with pytest.raises(ScheduleError, match="write of position"):
        schedule = nest.create_schedule()
        ii = schedule.split(i, 4)
        schedule.create_plan(A100).bind({ii: GridUnit.THREAD_X})


def test_a_number_that_lives_within_the_kernel() -> None:
    A, B = Array(Role.INPUT, tw.float32, (8,), name="A"), Array(Role.OUTPUT, tw.float32, (8,), name="B")
    running = Scalar(tw.float32, Role.TEMP, name="running")
    first, second = Nest((1,)), Nest((8,))
    i = second.get_indices()

    @first.iteration_logic
    def _() -> None:
        running.set(0.0)

    @second.iteration_logic
    def _() -> None:
        running.set(running + A[i])
        B[i] = running

    schedule = fuse(first.create_schedule(), second.create_schedule(), partial=0)
    a, b = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    schedule.create_plan(A100).build(args=(A, B))(a, b)
    np.testing.assert_array_equal(b, np.cumsum(a))


def test_numbers_that_cannot_be_are_refused() -> None:
    count, N = Dimension("count", role=Role.OUTPUT), Dimension("N")
    number = Scalar(tw.float32, name="number")
    for use, message in (
        (lambda: N.set(1), "a size that the launch gives"),
        (lambda: number.set(1), "not a number that is written"),
        (lambda: Array(Role.OUTPUT, shape=(count,), name="A")[count], "computed by the kernel"),
        (lambda: Scalar(tw.float32, Role.CONST), "role CONST"),
        (lambda: Dimension("x", role=Role.TEMP), "has the role"),
    ):
        with pytest.raises(ScheduleError, match=message):
            use()
    assert str(Scalar(0.25)) == "0.25"


# --- TEMP arrays ----------------------------------------------------------------------------------------------


def _through(temp: Any, shape: tuple[Any, ...]) -> tuple[Nest, tuple[Any, ...], tuple[Array, Array]]:
    A = Array(Role.INPUT, tw.float32, shape, name="A")
    C = Array(Role.OUTPUT, tw.float32, shape[::-1], name="C")
    nest = Nest(shape)
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        temp[i, j] = A[i, j] * 2
        C[j, i] = temp[i, j]

    return nest, (i, j), (A, C)


@pytest.mark.parametrize("flags", list(AllocateFlags))
@pytest.mark.parametrize("is_bound", [False, True])
def test_temporaries_of_sizes_of_the_launch(flags: AllocateFlags, is_bound: bool) -> None:
    M, N = create_dimensions("M", "N")
    T = Array(Role.TEMP, tw.float32, (M, N), name="T", flags=flags)
    nest, (i, j), (A, C) = _through(T, (M, N))
    schedule = nest.create_schedule()
    ii, jj = schedule.tile({i: 2, j: 4})
    schedule.reorder(i, j, ii, jj)
    plan = schedule.create_plan(A100)
    if is_bound:
        plan.bind({i: GridUnit.BLOCK_Y, j: GridUnit.BLOCK_X, ii: GridUnit.THREAD_Y, jj: GridUnit.THREAD_X})
    is_stack = flags in (AllocateFlags.STACK, AllocateFlags.THREAD_LOCAL)
    if is_stack and not is_bound:  # all of it in one thread, however much that is
        with pytest.raises(ScheduleError, match="only the launch knows"):
            plan.build(args=(A, C))
        return
    kernel = plan.build(args=(M, N, A, C))
    is_heap = flags in (AllocateFlags.HEAP, AllocateFlags.GLOBAL)
    assert kernel.scratch == ((T,) if is_heap or not is_bound else ())
    a, c = np.random.default_rng(0).random((5, 7), np.float32), np.zeros((7, 5), np.float32)
    kernel(5, 7, a, c)
    np.testing.assert_array_equal(c, 2 * a.T)


def test_what_a_thread_cannot_hold_is_memory_of_the_launch(tmp_path: Path) -> None:
    T = Array(Role.TEMP, tw.float32, (64, 64), name="T")
    nest, _, (A, C) = _through(T, (64, 64))
    kernel = nest.create_plan(A100).build(args=(A, C))
    assert kernel.scratch == (T,)
    a, c = np.random.default_rng(0).random((64, 64), np.float32), np.zeros((64, 64), np.float32)
    kernel(a, c)
    np.testing.assert_array_equal(c, 2 * a.T)
    package = Package()
    package.add(kernel, base_name="through")
    package.build("temp", Package.Format.MANIFEST | Package.Format.HEADER, tmp_path)
    loaded = load(tmp_path / "temp.json")["through"]
    assert loaded.arguments == ("A", "C")
    assert [array["name"] for array in loaded.manifest["scratch"]] == ["T"]


def test_a_small_temporary_stays_in_registers() -> None:
    T = Array(Role.TEMP, tw.float32, (8, 8), name="T")
    nest, _, (A, C) = _through(T, (8, 8))
    assert nest.create_plan(A100).build(args=(A, C)).scratch == ()


def test_memory_of_the_launch_is_seen_as_other_elements() -> None:
    T = Array(Role.TEMP, tw.int32, (32,), name="T", flags=AllocateFlags.HEAP)
    A, B = Array(Role.INPUT, tw.int32, (32,), name="A"), Array(Role.OUTPUT, tw.float32, (32,), name="B")
    floats = T.memory_buffer().reinterpret_cast(tw.float32)
    nest = Nest((32,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        T[i] = A[i]
        B[i] = floats[i]

    values, out = np.random.default_rng(0).random(32, np.float32), np.zeros(32, np.float32)
    nest.create_plan(A100).build(args=(A, B))(values.view(np.int32), out)
    np.testing.assert_array_equal(out, values)


def test_a_temporary_among_the_arguments_is_the_callers() -> None:
    T, B = Array(Role.TEMP, tw.float32, (8,), name="T"), Array(Role.OUTPUT, tw.float32, (8,), name="B")
    nest = Nest((8,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        B[i] = T[i]
        T[i] = 0.0

    plan = nest.create_plan(A100)
    t, b = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    plan.build(args=(T, B))(t, b)
    assert b.tolist() == list(range(8)) and not t.any()
    other = Nest((8,))
    k = other.get_indices()

    @other.iteration_logic
    def _() -> None:
        B[k] = T[k]

    other.create_plan(A100).build(args=(T, B))
    with pytest.warns(tw.TilewrightWarning, match="T is TEMP, and the read of T"):
        other.create_plan(A100).build(args=(B,))


# --- declarations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [Array.Layout.FIRST_MAJOR, Array.Layout.LAST_MAJOR, (16, 1), (1, 16)])
def test_a_constant_takes_the_layout_of_its_cache(layout: Any) -> None:
    matrix = np.random.default_rng(0).random((16, 16)).astype(np.float32)
    A = Array(Role.CONST, data=matrix, layout=Array.Layout.DEFERRED, name="A")
    B = Array(Role.INPUT_OUTPUT, tw.float32, matrix.shape, name="B")
    nest = Nest(matrix.shape)
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        B[i, j] += A[i, j]

    plan = nest.create_plan(A100)
    cache, other = plan.cache(A, i, layout=layout), nest.create_plan(A100).cache(B, i)
    for array, wrong in ((B, other), (A, other)):
        with pytest.raises(ValueError):
            array.deferred_layout(cache=wrong)
    A.deferred_layout(cache=cache)
    assert A.layout == cache.layout
    with pytest.raises(ValueError, match="has the layout"):
        A.deferred_layout(cache=cache)
    b = np.ones((16, 16), np.float32)
    plan.build(args=(B,))(b)
    np.testing.assert_array_equal(b, matrix + 1)


def test_a_layout_that_a_whole_array_cannot_have_is_refused() -> None:
    A = Array(Role.CONST, data=np.zeros((16, 16), np.float32), layout=Array.Layout.DEFERRED, name="A")
    B = Array(Role.INPUT_OUTPUT, tw.float32, (16, 16), name="B")
    nest = Nest((16, 16))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        B[i, j] += A[i, j]

    schedule = nest.create_schedule()
    ii, jj = schedule.tile({i: 4, j: 4})
    schedule.reorder(i, j, ii, jj)
    plan = schedule.create_plan(A100)
    with pytest.raises(ScheduleError, match="put two elements of A"):
        A.deferred_layout(plan.cache(A, ii, layout=(4, 1)))
    with pytest.raises(ScheduleError, match="the layout of sB is DEFERRED"):
        plan.cache(B, ii, layout=Array.Layout.DEFERRED)
    with pytest.raises(ScheduleError, match="its layout is deferred"):
        Array(Role.INPUT, tw.float32, (4,), Array.Layout.DEFERRED, name="C")


def test_an_open_extent_is_what_the_first_nest_accesses() -> None:
    A = Array(Role.INPUT_OUTPUT, tw.float32, (10, math.inf), name="A")  # type: ignore[arg-type]  # inf stands for it
    assert A.shape == (10, math.inf)
    nest = Nest((10, 16))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        A[i, j] += A[i, j]

    a = np.ones((10, 16), np.float32)
    nest.create_plan(A100).build()(a)
    assert A.shape == (10, 16) and (a == 2).all()
    with pytest.raises(ScheduleError, match="extent inf"):
        Array(Role.INPUT, tw.float32, (math.inf, math.inf), name="B")  # type: ignore[arg-type]  # refused


def test_writing_an_input_is_warned_of() -> None:
    A = Array(Role.INPUT, tw.float32, (8,), name="A")
    nest = Nest((8,))
    i = nest.get_indices()
    with pytest.warns(TilewrightWarning, match="array A is INPUT and is written"):

        @nest.iteration_logic
        def _() -> None:
            A[i] = 5.0

    a = np.zeros(8, np.float32)
    nest.create_plan(A100).build()(a)
    assert (a == 5).all()


@pytest.mark.parametrize(
    "type", [bool, int, float, tw.int8, tw.uint8, tw.int16, tw.uint32, tw.int64, tw.float16, tw.bfloat16, tw.float64]
)
@pytest.mark.parametrize("rank", [0, 1, 4])
@pytest.mark.spread(4)
def test_element_types_and_ranks(type: Any, rank: int) -> None:
    shape = (2, 3, 2, 2)[:rank]
    A, B = Array(Role.INPUT, type, shape, name="A"), Array(Role.OUTPUT, type, shape, name="B")
    nest = Nest(shape or (1,))
    indices = nest.get_indices()
    place = indices if rank else ()

    @nest.iteration_logic
    def _() -> None:
        if rank:
            B[place] = A[place]
        else:
            B.set(A)

    kernel = nest.create_plan(A100).build()
    values = np.random.default_rng(0).integers(0, 2, shape or (1,)).astype(A.element_type.numpy)
    out = np.zeros_like(values)
    kernel(values if rank else values[0], out)
    np.testing.assert_array_equal(out.view(np.uint8), values.view(np.uint8))
    assert A.element_type is tw.dtype({int: "int64", float: "float32", bool: "bool"}.get(type, type))


def test_an_offset_is_refused_with_what_to_do() -> None:
    with pytest.raises(ScheduleError, match=r"has the offset 4"):
        Array(Role.INPUT, tw.float32, (8,), offset=4, name="A")
    with pytest.raises(ScheduleError, match="flags="):
        Array(Role.TEMP, tw.float32, (8,), flags="stack", name="A")  # type: ignore[arg-type]  # refused


def test_private_caches_of_parts() -> None:
    A, B = Array(Role.INPUT, tw.float32, (20, 20), name="A"), Array(Role.OUTPUT, tw.float32, (16, 16), name="B")
    part = A.sub_array((2, 3), (16, 16))
    nest = Nest((16, 16))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        B[i, j] = part[i, j] + 1

    schedule = nest.create_schedule()
    ii, jj = schedule.tile({i: 4, j: 4})
    schedule.reorder(i, j, ii, jj)
    a = np.random.default_rng(0).random((20, 20), np.float32)
    for location in (Location.PRIVATE, Location.SHARED):
        plan = schedule.create_plan(A100)
        plan.cache(part, index=ii, location=location)
        b = np.zeros((16, 16), np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plan.build()(a, b)
        np.testing.assert_array_equal(b, a[2:18, 3:19] + 1)
