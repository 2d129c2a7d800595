"""Views of arrays: where their elements are, that overlaps are known, and what is refused."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from tilewright import float16, float32, int8, int16, int32, int64, uint8
from tilewright.errors import ArgumentError, ScheduleError
from tilewright.schedule import (
    Array,
    Dimension,
    GridUnit,
    Location,
    MMAShape,
    Nest,
    Role,
    Target,
    create_dimensions,
    create_parameters,
)
from tilewright.schedule.affine import Affine

A100 = Target("NVIDIA A100")


def _number(x: int) -> Affine:
    return Affine((), x)


def _random_view(rng: random.Random, array: Any, values: np.ndarray[Any, Any]) -> tuple[Any, np.ndarray[Any, Any]]:
    """Return a view of a view ..., and the same of NumPy."""
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice(["part", "part", "split", "slice", "order", "cast"])
        if kind == "part":
            steps = [rng.randint(1, 2) for _ in values.shape]
            counts = [rng.randint(1, -(-n // s)) for n, s in zip(values.shape, steps, strict=True)]
            starts = [rng.randint(0, n - 1 - (c - 1) * s) for n, c, s in zip(values.shape, counts, steps, strict=True)]
            array = array.sub_array(starts, counts, steps)
            cut = zip(starts, counts, steps, strict=True)
            values = values[tuple(slice(a, a + (c - 1) * s + 1, s) for a, c, s in cut)]
        elif kind == "split" and values.ndim < 5:
            mode = rng.randrange(values.ndim)
            size = rng.choice([d for d in range(1, values.shape[mode] + 1) if values.shape[mode] % d == 0])
            array = array.split_dimension(mode, size)
            step = values.strides[mode]
            values = np.lib.stride_tricks.as_strided(
                values,
                (*values.shape[:mode], values.shape[mode] // size, size, *values.shape[mode + 1 :]),
                (*values.strides[:mode], step * size, step, *values.strides[mode + 1 :]),
            )
        elif kind == "slice" and values.ndim > 1:
            mode = rng.randrange(values.ndim)
            at = rng.randrange(values.shape[mode])
            array, values = array.slice((mode,), (at,)), _taken(values, mode, at)
        elif kind == "order":
            order = list(range(values.ndim))
            rng.shuffle(order)
            array, values = array.reorder_dimensions(order), values.transpose(order)
        elif kind == "cast":
            array, values = array.reinterpret_cast(int32), values.view(np.int32)
    return array, values


def _taken(values: np.ndarray[Any, Any], mode: int, at: int) -> np.ndarray[Any, Any]:
    return values[tuple(at if m == mode else slice(None) for m in range(values.ndim))]


@pytest.mark.parametrize("seed", range(60))
def test_a_view_has_the_elements_that_numpy_has(seed: int) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.randint(1, 8) for _ in range(rng.randint(1, 3)))
    whole = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    view, values = _random_view(rng, Array(Role.INPUT, int32, shape, name="A"), whole)
    assert view.shape == values.shape
    assert view.base.name == "A"
    for place in np.ndindex(*values.shape):
        found = view.projection.place([_number(x) for x in place])
        assert whole[tuple(x.constant for x in found)] == values[place]
    for mode, step in enumerate(view.strides):
        assert values.shape[mode] == 1 or step == values.strides[mode] // 4


@pytest.mark.parametrize("seed", range(12))
def test_kernels_read_and_write_views(seed: int) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.randint(2, 8) for _ in range(2))
    held = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    wanted = held.copy()
    view, part = _random_view(rng, Array(Role.INPUT_OUTPUT, float32, shape, name="A"), wanted.view(np.int32))
    nest = Nest(view.shape)
    indices = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        view[indices] += 3

    schedule = nest.create_schedule()
    first = schedule.get_indices()[0]
    inner = schedule.split(first, 2)
    plan = schedule.create_plan(A100)
    plan.bind({first: GridUnit.BLOCK_X, inner: GridUnit.THREAD_X})
    part = part if view.element_type is int32 else part.view(np.float32)
    part += 3
    plan.build()(held)
    np.testing.assert_array_equal(held.view(np.int32), wanted.view(np.int32))


def _points(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, shape)))


@pytest.mark.parametrize("seed", range(40))
def test_the_legality_of_an_order_sees_that_views_overlap(seed: int) -> None:
    """Two views of one memory, one written and one read: `reorder` is refused exactly where two accesses swap."""
    rng = random.Random(seed)
    memory = Array(Role.INPUT_OUTPUT, int32, (6, 6), name="A")
    rows, columns = rng.randint(2, 3), rng.randint(2, 3)
    written, read = (memory.sub_array((rng.randint(0, 2), rng.randint(0, 2)), (rows, columns)) for _ in range(2))
    if rng.random() < 0.3:  # bytes of the same elements
        read = memory.memory_buffer().sub_array((rng.randrange(0, 60),), (rows * columns,)).split_dimension(0, columns)
    nest = Nest((rows, columns))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        written[i, j] = read[i, j] + 1

    def bytes_of(view: Any, point: tuple[int, ...]) -> set[int]:
        place = view.projection.place([_number(x) for x in point])
        first = view.base.address(place).constant
        return set(range(first, first + view.element_type.bytes))

    points = _points((rows, columns))
    swapped = any(
        (one < two) != (one[::-1] < two[::-1]) and (bytes_of(written, one) & bytes_of(read, two))
        for one in points
        for two in points
        if one != two
    )
    assert nest.create_schedule().is_valid_loop_order(j, i) is not swapped


def test_the_error_names_two_accesses_by_their_places_in_the_memory() -> None:
    A = Array(Role.INPUT_OUTPUT, float32, (8, 8), name="A")
    top, shifted = A.sub_array((1, 0), (7, 7)), A.sub_array((0, 1), (7, 7))
    nest = Nest((7, 7))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        top[i, j] = shifted[i, j] * 0.5

    with pytest.raises(ScheduleError, match=r"write of A\[i \+ 1, j\].*read of A\[i, j \+ 1\]"):
        nest.create_schedule().reorder(j, i)


def test_bindings_see_that_views_overlap() -> None:
    A = Array(Role.INPUT_OUTPUT, float32, (16,), name="A")
    low, high = A.sub_array((0,), (12,)), A.sub_array((4,), (12,))
    apart = A.sub_array((0,), (4,)), A.sub_array((12,), (4,))
    for (out, source), extent, is_legal in (((low, high), 12, False), (apart, 4, True)):
        nest = Nest((extent,))
        i = nest.get_indices()

        @nest.iteration_logic
        def _(out: Any = out, source: Any = source, i: Any = i) -> None:
            out[i] = source[i]

        plan = nest.create_plan(A100)
        if is_legal:
            plan.bind({i: GridUnit.THREAD_X})
        else:
            with pytest.raises(ScheduleError, match=r"read of A\[i \+ 4\].*write of A\[i\]"):
                plan.bind({i: GridUnit.THREAD_X})


# --- forms: elements of another size, rows of a length that the launch knows ---------------------------------


@pytest.mark.parametrize("type", [int8, uint8, int16, float16, int32, float32, int64])
def test_memory_is_seen_as_elements_of_any_size(type: Any) -> None:
    A = Array(Role.INPUT_OUTPUT, float32, (4, 6), name="A")
    seen = A.memory_buffer().reinterpret_cast(type)
    assert seen.shape == (96 // type.bytes,)
    nest = Nest(seen.shape)
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        seen[i] += 1

    values = np.random.default_rng(0).integers(0, 40, 24 * 4, np.uint8).view(np.float32).reshape(4, 6)
    wanted = values.copy()
    flat = wanted.reshape(-1).view(type.numpy)
    flat += 1
    nest.create_plan(A100).build()(values)
    np.testing.assert_array_equal(values.view(np.uint8), wanted.view(np.uint8))


def test_bytes_and_words_of_one_memory_are_ordered() -> None:
    A = Array(Role.INPUT_OUTPUT, int32, (8,), name="A")
    B = Array(Role.OUTPUT, uint8, (8,), name="B")
    buffer = A.memory_buffer()
    nest = Nest((8,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        B[i] = buffer[4 * i + 1]
        A[i] = 0

    schedule = nest.create_schedule()
    inner = schedule.split(i, 2)
    schedule.reorder(i, inner)
    plan = schedule.create_plan(A100)
    plan.bind({i: GridUnit.BLOCK_X, inner: GridUnit.THREAD_X})  # each thread's byte is of its own word
    a, b = np.arange(0, 8 * 256, 256, dtype=np.int32), np.zeros(8, np.uint8)
    plan.build()(a, b)
    assert b.tolist() == list(range(8)) and not a.any()

    other = Nest((8,))
    k = other.get_indices()

    @other.iteration_logic
    def _() -> None:
        B[k] = buffer[k]
        A[k] = 0

    with pytest.raises(ScheduleError, match="cannot be bound"):
        other.create_plan(A100).bind({k: GridUnit.THREAD_X})


def test_a_cache_of_memory_that_is_seen_in_two_ways_is_refused() -> None:
    A = Array(Role.INPUT_OUTPUT, int32, (8,), name="A")
    buffer = A.memory_buffer()
    nest = Nest((8,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        A[i] = buffer[4 * i] + 1

    plan = nest.create_plan(A100)
    plan.cache(A, index=i, location=Location.PRIVATE)
    with pytest.raises(ScheduleError, match="the same memory with other elements"):
        plan.build()


def test_a_mode_is_split_by_a_size_of_the_launch() -> None:
    M, N, K, L = create_dimensions("M", "N", "K", "L")
    flat, out = Array(Role.INPUT, float32, (L,), name="flat"), Array(Role.OUTPUT, float32, (M, N, K), name="out")
    nest = Nest((M, N, K))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        out[i, j, k] = flat.split_dimension(0, K).split_dimension(0, N)[i, j, k]

    schedule = nest.create_schedule()
    jj = schedule.split(j, 2)
    schedule.reorder(i, j, jj, k)
    plan = schedule.create_plan(A100)
    plan.bind({i: GridUnit.BLOCK_X, jj: GridUnit.THREAD_X})
    kernel = plan.build(args=(L, M, N, K, flat, out))
    values, found = np.arange(60, dtype=np.float32), np.zeros((4, 3, 5), np.float32)
    kernel(60, 4, 3, 5, values, found)
    np.testing.assert_array_equal(found, values.reshape(4, 3, 5))
    with pytest.raises(ArgumentError, match="not a whole number"):
        kernel(61, 4, 3, 5, np.zeros(61, np.float32), found)
    with pytest.raises(ArgumentError, match="beyond mode 0"):
        kernel(45, 4, 3, 5, values[:45].copy(), found)


def test_writes_in_two_forms_of_unknown_steps_are_not_reordered() -> None:
    M, N = create_dimensions("M", "N")
    A = Array(Role.INPUT_OUTPUT, float32, (M, N), name="A")
    rows = A.split_dimension(1, N)
    nest = Nest((M, N))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        A[i, j] = rows[i, 0, j] + 1

    with pytest.raises(ScheduleError, match="steps only the launch knows|cannot be decided"):
        nest.create_schedule().reorder(j, i)


# --- views that are parameters, or of parameters ---------------------------------------------------------------


def test_a_part_is_a_parameter_of_its_own() -> None:
    A = Array(Role.INPUT_OUTPUT, float32, (16, 16), name="A")
    part = A.sub_array((4, 2), (8, 8))
    nest = Nest(part.shape)
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        part[i, j] += 1

    kernel = nest.create_plan(A100).build(args=(part,))
    a = np.zeros((16, 16), np.float32)
    kernel(a[3:11, 1:9])
    assert a.sum() == 64 and (a[3:11, 1:9] == 1).all()
    with pytest.raises(ArgumentError, match="strides"):
        kernel(np.zeros((8, 8), np.float32))

    outer = Nest((8, 8))
    p, q = outer.get_indices()

    @outer.iteration_logic
    def _() -> None:
        A[p, q] += 1

    with pytest.raises(ScheduleError, match="outside of mode 0 of part"):
        outer.create_plan(A100).build(args=(part,))


def test_the_shape_of_a_part_may_wait_for_parameters() -> None:
    P, Q = create_parameters(2)
    A = Array(Role.INPUT_OUTPUT, float32, (16, 16), name="A")
    part = A.sub_array((0, 0), (P, Q))
    nest = Nest(part.shape)
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        part[i, j] += 1

    a = np.zeros((16, 16), np.float32)
    nest.create_plan(A100).with_parameters({P: 4, Q: 8}).build(args=(A,))(a)
    assert a[:4, :8].sum() == a.sum() == 32
    with pytest.raises(ScheduleError, match="takes elements 0 to 19"):
        nest.create_plan(A100).with_parameters({P: 20, Q: 8})


def test_offsets_may_be_indices() -> None:
    A, B = Array(Role.INPUT, float32, (16,), name="A"), Array(Role.OUTPUT, float32, (16,), name="B")
    nest = Nest((16,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        rest = A.sub_array((i,), (16 - i,))
        B[i] = rest[0]

    a, b = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    nest.create_plan(A100).build()(a, b)
    np.testing.assert_array_equal(a, b)


def test_parts_are_tensorized_as_the_arrays_are() -> None:
    A, B = (Array(Role.INPUT, float16, (64, 64), name=name) for name in "AB")
    C = Array(Role.INPUT_OUTPUT, float32, (64, 64), name="C")
    a, b, c = A.sub_array((16, 0), (32, 32)), B.sub_array((0, 8), (32, 32)), C.sub_array((32, 32), (32, 32))
    nest = Nest((32, 32, 32))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        c[i, j] += a[i, k] * b[k, j]

    schedule = nest.create_schedule()
    ii, jj, kk = schedule.tile({i: 16, j: 16, k: 16})
    schedule.reorder(i, j, k, ii, jj, kk)
    plan = schedule.create_plan(A100)
    plan.bind({i: GridUnit.BLOCK_Y, j: GridUnit.BLOCK_X})
    plan.tensorize((ii, jj, kk), MMAShape.M16N16K16)
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-3, 4, (64, 64)).astype(np.float16) for _ in range(2))
    z = np.zeros((64, 64), np.float32)
    plan.build()(x, y, z)
    wanted = np.zeros((64, 64), np.float32)
    wanted[32:, 32:] = x[16:48, :32].astype(np.float32) @ y[:32, 8:40].astype(np.float32)
    np.testing.assert_array_equal(z, wanted)


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (lambda A: A.sub_array((0, 0), (17, 8)), "takes elements 0 to 16 of mode 0, which has 16"),
        (lambda A: A.sub_array((-1, 0), (4, 8)), "takes elements -1 to 2 of mode 0"),
        (lambda A: A.sub_array((8, 0), (5, 8), (2, 1)), "takes elements 8 to 16 of mode 0"),
        (lambda A: A.sub_array((0, 0), (0, 8)), "has 0 elements"),
        (lambda A: A.sub_array((0,), (4,)), "give one for each mode"),
        (lambda A: A.sub_array((0, 0), (4, 4), (0, 1)), "has the stride 0"),
        (lambda A: A.split_dimension(0, 3), "rows of 3 do not make up"),
        (lambda A: A.split_dimension(2, 4), "no mode 2"),
        (lambda A: A.merge_dimensions(0, 0), "are not neighbours"),
        (lambda A: A.sub_array((0, 0), (16, 4)).merge_dimensions(0, 1), "do not follow one another"),
        (lambda A: A.slice((0,), (16,)), "takes elements 16 to 16 of mode 0"),
        (lambda A: A.reorder_dimensions((0, 0)), "is not an order"),
        (lambda A: A.reshape((4, 31)), "has 128 elements, and the shape (4, 31) 124"),
        (lambda A: A.sub_array((0, 0), (16, 4)).reshape((64,)), "are not contiguous"),
        (lambda A: A.sub_array((0, 1), (16, 2)).reinterpret_cast(int64), "whole elements of int64"),
        (lambda A: A.slice((1,), (0,)).reinterpret_cast(int64), "is not contiguous"),
    ],
)
def test_views_that_are_none_are_refused_by_name(view: Any, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        view(Array(Role.INPUT, float32, (16, 8), name="A"))
    assert message in str(caught.value)
    assert "A" in str(caught.value)


def test_accesses_outside_of_arrays_are_refused() -> None:
    A, B = Array(Role.INPUT, float32, (16,), name="A"), Array(Role.OUTPUT, float32, (16,), name="B")
    part = A.sub_array((4,), (8,))
    for read, message in (
        (lambda i: A[i + 1], r"the read of A\[i \+ 1\] is beyond mode 0 of A, which has 16: .* at i=15"),
        (lambda i: A[i - 2], r"the read of A\[i - 2\] is below 0 in mode 0 of A"),
        (lambda i: part[i], r"is beyond mode 0 of part, which has 8"),
    ):
        nest = Nest((16,))
        i = nest.get_indices()

        @nest.iteration_logic
        def _(read: Any = read, i: Any = i) -> None:
            B[i] = read(i)

        schedule = nest.create_schedule()
        schedule.split(i, 5)
        with pytest.raises(ScheduleError, match=message):
            schedule.create_plan(A100).build()


def test_accesses_that_a_launch_would_take_outside_are_refused_there() -> None:
    N, M = Dimension("N"), Dimension("M")
    A, B = Array(Role.INPUT, float32, (N,), name="A"), Array(Role.OUTPUT, float32, (M,), name="B")
    nest = Nest((M,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        B[i] = A[2 * i]

    kernel = nest.create_plan(A100).build()
    a, b = np.arange(9, dtype=np.float32), np.zeros(5, np.float32)
    kernel(a, b)
    assert b.tolist() == [0, 2, 4, 6, 8]
    with pytest.raises(ArgumentError, match="is beyond mode 0 of A, which has N, where N=8, M=5|where M=5, N=8"):
        kernel(a[:8].copy(), b)
    kernel(a[:0].copy(), b[:0].copy())  # nothing is accessed


def test_a_tile_of_reinterpreted_elements_is_refused() -> None:
    A, B = (Array(Role.INPUT, int16, (16, 16), name=name) for name in "AB")
    C = Array(Role.INPUT_OUTPUT, float32, (16, 16), name="C")
    a = A.reinterpret_cast(float16)
    b = B.reinterpret_cast(float16)
    nest = Nest((16, 16, 16))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += a[i, k] * b[k, j]

    with pytest.raises(ScheduleError, match="seen as float16, as no matrix instruction reads it"):
        nest.create_plan(A100).tensorize((i, j, k), next(iter(MMAShape)))
