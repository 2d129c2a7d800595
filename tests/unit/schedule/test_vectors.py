"""Vectorized loops: not innermost, several, of unknown length, with tails, and reductions; each against NumPy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Index, create_dimensions
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location
from tilewright.schedule.nest import Nest
from tilewright.schedule.plan import Plan
from tilewright.schedule.schedule import fuse
from tilewright.schedule.targets import GridUnit, Target

A100 = Target("NVIDIA A100")
RANDOM = np.random.default_rng(5)


def product(
    m: Any,
    n: Any,
    k: Any,
    splits: dict[str, int] | None = None,
    order: str = "",
    types: tuple[str, str] = ("float32",) * 2,
) -> tuple[Plan, dict[str, Index], tuple[Array, ...]]:
    """Return a plan of C += A B, its indices by name (ii is the inner loop of i), and its arrays."""
    a, b = Array(Role.INPUT, types[0], (m, k), name="A"), Array(Role.INPUT, types[0], (k, n), name="B")
    c = Array(Role.INPUT_OUTPUT, types[1], (m, n), name="C")
    nest = Nest((m, n, k))
    named = dict(zip("ijk", nest.get_indices(), strict=True))
    for name, index in named.items():
        index.name = name
    i, j, p = named.values()

    @nest.iteration_logic
    def _() -> None:
        c[i, j] += a[i, p] * b[p, j]

    schedule = nest.create_schedule()
    for name, size in (splits or {}).items():
        named[name * 2] = schedule.split(named[name], size)
    if order:
        schedule.reorder(*(named[name] for name in order.split()))
    return schedule.create_plan(A100), named, (a, b, c)


def run_product(plan: Plan, m: int, n: int, k: int, types: tuple[str, str] = ("float32",) * 2) -> str:
    """Run a product in the simulator, compare it exactly, and return its text."""
    kernel = plan.build()
    a, b = (RANDOM.integers(-50, 50, shape).astype(types[0]) for shape in ((m, k), (k, n)))
    c = RANDOM.integers(-50, 50, (m, n)).astype(types[1])
    wide = np.float64 if types[1].startswith("float") else np.int64
    expected = (c + a.astype(wide) @ b.astype(wide)).astype(types[1])
    kernel(a, b, c)
    np.testing.assert_array_equal(c, expected)
    return kernel.source()


ORDER = "i j k ii jj kk"


@pytest.mark.parametrize("size", [(8, 8, 8), (7, 10, 9)])
@pytest.mark.parametrize("vectors", ["jj", "ii", "kk", "ii jj", "jj kk", "ii kk", "ii jj kk", "j", "k", "i", "k jj"])
@pytest.mark.spread(4)
def test_any_loop_of_a_product(vectors: str, size: tuple[int, int, int]) -> None:
    plan, named, _ = product(*size, {"i": 4, "j": 4, "k": 3}, ORDER)
    for name in vectors.split():
        plan.vectorize(named[name])
    run_product(plan, *size)


@pytest.mark.parametrize("vectors", ["j", "k", "i", "i j", "j k", "i j k"])
@pytest.mark.parametrize("size", [(1, 1, 1), (5, 6, 7), (4, 16, 9)])
@pytest.mark.spread(4)
def test_loops_whose_length_the_launch_knows(vectors: str, size: tuple[int, int, int]) -> None:
    plan, named, _ = product(*create_dimensions("M", "N", "K"))
    for name in vectors.split():
        plan.vectorize(named[name])
    run_product(plan, *size)


@pytest.mark.parametrize(("n", "lanes"), [(64, 64), (96, 48), (128, 64), (67, 64), (130, 64)])
@pytest.mark.spread(2)
def test_long_loops_run_in_blocks(n: int, lanes: int) -> None:
    plan, named, _ = product(2, n, 3)
    plan.vectorize(named["j"])
    assert re.findall(r"float B_\w+\[(\d+)\]", run_product(plan, 2, n, 3))[0] == str(lanes)


def test_a_jammed_loop_reads_wide_and_what_it_does_not_move_once() -> None:
    plan, named, _ = product(8, 8, 8)
    plan.vectorize(named["j"])
    text = run_product(plan, 8, 8, 8)
    assert text.index("for (int k") < text.index("*(const float4*)&B[") and text.count("A[") == 1
    assert "*(float4*)&C[" in text


def test_bound_and_cached_around_vectors() -> None:
    plan, named, (a, b, c) = product(32, 32, 16, {"i": 4, "j": 8, "k": 4}, "i j ii jj k kk")
    plan.bind({named["i"]: GridUnit.THREAD_Y, named["j"]: GridUnit.THREAD_X})
    plan.cache(c, index=named["ii"], location=Location.PRIVATE)
    plan.cache(a, index=named["kk"])
    plan.cache(b, index=named["kk"], location=Location.PRIVATE)
    plan.vectorize(named["jj"])
    plan.vectorize(named["ii"])
    run_product(plan, 32, 32, 16)


def test_what_is_cached_inside_of_a_vectorized_loop_is_kept_for_all_lanes() -> None:
    plan, named, (a, b, _) = product(8, 12, 6, {"j": 4}, "i j jj k")
    plan.cache(b, index=named["k"], location=Location.PRIVATE)
    plan.cache(plan.cache(a, index=named["jj"]), index=named["k"], location=Location.PRIVATE)
    plan.vectorize(named["jj"])
    assert "float rB[24]" in run_product(plan, 8, 12, 6)


@pytest.mark.parametrize("types", [("int8", "int8"), ("int8", "int16"), ("uint8", "uint8"), ("int16", "int32"),
                                   ("uint8", "int32"), ("int16", "int16")])  # fmt: skip
@pytest.mark.parametrize("vectors", ["jj", "kk", "jj kk"])
@pytest.mark.spread(4)
def test_whole_numbers_wrap_as_without_vectors(types: tuple[str, str], vectors: str) -> None:
    size = (4, 24, 12)
    plan, named, (_, b, c) = product(*size, {"j": 8, "k": 2}, "j k i jj kk", types)
    plan.cache(b, index=named["jj"], trigger_index=named["i"], layout=Array.Layout.LAST_MAJOR, vectorize=False)
    plan.cache(c, index=named["i"])
    for name in vectors.split():
        plan.vectorize(named[name])
    kernel = plan.build()
    numbers = [RANDOM.integers(0 if t[0] == "u" else -100, 100, shape).astype(t)
               for t, shape in ((types[0], (4, 12)), (types[0], (12, 24)), (types[1], (4, 24)))]  # fmt: skip
    x, y, z = numbers
    expected = (z + x.astype(np.int64) @ y.astype(np.int64)).astype(types[1])
    kernel(x, y, z)
    np.testing.assert_array_equal(z, expected)


REDUCTIONS: dict[str, Any] = {
    "+": (lambda x, y: x + y, np.add), "*": (lambda x, y: x * y, np.multiply),
    "min": (tw.minimum, np.minimum), "max": (tw.maximum, np.maximum),
    "&": (lambda x, y: x & y, np.bitwise_and), "|": (lambda x, y: x | y, np.bitwise_or),
    "^": (lambda x, y: x ^ y, np.bitwise_xor),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("types", [("int32", "int32"), ("int8", "int8"), ("int16", "int8"), ("float32", "float32"),
                                   ("float32", "int32"), ("float16", "float32")])  # fmt: skip
@pytest.mark.spread(4)
def test_reductions_over_lanes(name: str, types: tuple[str, str]) -> None:
    """Where combining first would give another result (a maximum that is cut to 8 bits in each step) lanes wait."""
    function, exact = REDUCTIONS[name]
    if name in "&|^" and "float" in "".join(types):
        return
    x, y = Array(Role.INPUT, types[0], (5, 13), name="x"), Array(Role.INPUT_OUTPUT, types[1], (5,), name="y")
    nest = Nest((5, 13))
    i, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        y[i] = function(y[i], x[i, k])

    plan = nest.create_plan(A100)
    plan.vectorize(k)
    values = RANDOM.integers(-3 if name == "*" else -300, 4 if name == "*" else 300, (5, 13)).astype(types[0])
    start = RANDOM.integers(-5, 5, 5).astype(types[1])
    expected = start.copy()
    for column in values.T:  # in the order of the nest, cut to the type of y in each step
        wide = exact(expected.astype(np.int64), column.astype(np.int64))
        expected = wide.astype(types[1])
    kernel = plan.build()
    kernel(values, start)
    np.testing.assert_array_equal(start, expected)
    together = name not in ("min", "max") or types[1] != "int8" or types[0] == "int8"
    assert ("partial_y" in kernel.source()) == (together and types != ("float32", "int32"))


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_sum_whose_lanes_share_some_elements(step: int) -> None:
    """y[2 * i + k] is neither an element for each lane nor one for all lanes of a loop."""
    x, w = Array(Role.INPUT, "float32", (6,), name="x"), Array(Role.INPUT, "float32", (3,), name="w")
    y = Array(Role.INPUT_OUTPUT, "float32", (5 * step + 3,), name="y")
    nest = Nest((6, 3))
    i, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        y[i * step + k] += x[i] * w[k]

    for chosen in ((i,), (k,), (i, k)):
        plan = nest.create_plan(A100)
        for index in chosen:
            plan.vectorize(index)
        a, b = RANDOM.integers(-9, 9, 6).astype("f"), RANDOM.integers(-9, 9, 3).astype("f")
        out, expected = np.ones(5 * step + 3, np.float32), np.ones(5 * step + 3, np.float32)
        for n in range(6):
            expected[n * step : n * step + 3] += a[n] * b
        plan.build()(a, b, out)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("order", ["i k", "k i"])
def test_of_lanes_that_write_one_element_the_last_one_stays(order: str) -> None:
    x, y = Array(Role.INPUT, "float32", (8, 8), name="x"), Array(Role.OUTPUT, "float32", (22,), name="y")
    nest = Nest((8, 8))
    named = dict(zip(order.split(), nest.get_indices(), strict=True))
    i, k = named["i"], named["k"]

    @nest.iteration_logic
    def _() -> None:
        y[i * 2 + k] = x[i, k]

    plan = nest.create_plan(A100)
    plan.kernelize([], list(named.values()))
    a, out, expected = RANDOM.random((8, 8)).astype("f"), np.zeros(22, "f"), np.zeros(22, "f")
    for outer in range(8):
        for inner in range(8):
            u, v = (outer, inner) if order == "i k" else (inner, outer)
            expected[2 * u + v] = a[u, v]
    plan.build()(a, out)
    np.testing.assert_array_equal(out, expected)


def test_reads_that_lanes_of_two_loops_share() -> None:
    """x[i + k] is contiguous along both loops, and no wide access of one is aligned for all iterations of the other."""
    x, y = Array(Role.INPUT, "float32", (7,), name="x"), Array(Role.OUTPUT, "float32", (4, 4), name="y")
    nest = Nest((4, 4))
    i, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        y[i, k] = x[i + k]

    plan = nest.create_plan(A100)
    plan.kernelize([], [i, k])
    a, out = RANDOM.random(7).astype("f"), np.zeros((4, 4), "f")
    plan.build()(a, out)
    np.testing.assert_array_equal(out, np.lib.stride_tricks.sliding_window_view(a, 4))


@pytest.mark.parametrize("shape", [(8, 4), (31, 31), (32, 32)])
def test_transposing_in_registers(shape: tuple[int, int]) -> None:
    x, y = Array(Role.INPUT, "float32", shape, name="x"), Array(Role.OUTPUT, "float32", shape[::-1], name="y")
    nest = Nest(shape)
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        y[j, i] = x[i, j]

    schedule = nest.create_schedule()
    ii, jj = schedule.split(i, 8), schedule.split(j, 4)
    schedule.reorder(i, j, ii, jj)
    plan = schedule.create_plan(A100)
    plan.vectorize(ii)
    plan.vectorize(jj)
    a, b = RANDOM.random(shape).astype("f"), np.zeros(shape[::-1], "f")
    kernel = plan.build()
    kernel(a, b)
    np.testing.assert_array_equal(b, a.T)
    if shape != (31, 31):
        assert "(const float4*)&x[" in kernel.source() and "(float4*)&y[" in kernel.source()


@pytest.mark.parametrize("width", [1, 2])
def test_what_a_later_iteration_overwrites_is_read_before(width: int) -> None:
    """x[i] = x[i + 1]: legal, because all lanes read before any writes; also where no wide access reads them."""
    x = Array(Role.INPUT_OUTPUT, "float32", (66,), name="x")
    y = Array(Role.INPUT_OUTPUT, "float32", (66,), name="y")
    nest = Nest((32,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        x[i * width] = x[i * width + width] * 2
        y[i] = x[i * width]

    plan = nest.create_plan(A100)
    plan.vectorize(i)
    a, b = RANDOM.integers(0, 99, 66).astype("f"), np.zeros(66, "f")
    expected, seen = a.copy(), b.copy()
    for n in range(32):
        expected[n * width] = expected[n * width + width] * 2
        seen[n] = expected[n * width]
    plan.build()(a, b)
    np.testing.assert_array_equal(a, expected)
    np.testing.assert_array_equal(b, seen)


def test_statements_that_exchange_between_lanes_are_refused() -> None:
    """The second statement reads what the first one writes in a later lane: it would see it too early."""
    x, y = Array(Role.INPUT_OUTPUT, "float32", (9,), name="x"), Array(Role.OUTPUT, "float32", (8,), name="y")
    nest = Nest((8,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        x[i] = y[i] + 1
        y[i] = x[i + 1]

    with pytest.raises(ScheduleError, match=r"cannot be vectorized: write of x\[\w+\] and read of x\[\w+ \+ 1\]"):
        nest.create_plan(A100).vectorize(i)


def test_fused_schedules_have_vectors_of_their_own() -> None:
    a, c = Array(Role.INPUT, "float32", (12, 20), name="a"), Array(Role.TEMP, "float32", (12, 20), name="c")
    d = Array(Role.OUTPUT, "float32", (12,), name="d")
    first, second, third = Nest((12, 20)), Nest((12,)), Nest((12, 20))
    i, j = first.get_indices()
    p = second.get_indices()
    q, r = third.get_indices()

    @first.iteration_logic
    def _() -> None:
        c[i, j] = a[i, j] * 2

    @second.iteration_logic
    def _() -> None:
        d[p] = 0

    @third.iteration_logic
    def _() -> None:
        d[q] += c[q, r]

    schedule = fuse(*(nest.create_schedule() for nest in (first, second, third)), partial=1)
    plan = schedule.create_plan(A100)
    for index in schedule.get_indices():
        if index not in schedule.nest.fusing:
            plan.vectorize(index)
    x, y = RANDOM.integers(-9, 9, (12, 20)).astype("f"), np.full(12, np.nan, "f")
    plan.build(args=(a, d))(x, y)
    np.testing.assert_array_equal(y, 2 * x.sum(1))


@pytest.mark.parametrize("front", [True, False])
def test_padded_loops_are_kernelized(front: bool) -> None:
    x, y = Array(Role.INPUT, "float32", (5, 13), name="x"), Array(Role.OUTPUT, "float32", (5, 13), name="y")
    nest = Nest((5, 13))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        y[i, j] = x[i, j] + 1

    schedule = nest.create_schedule()
    schedule.pad(j, 3, front)
    schedule.pad(i, 2, front)
    jj = schedule.split(j, 4)
    plan = schedule.create_plan(A100)
    plan.kernelize(unroll_indices=(i, j), vectorize_indices=jj)
    a, b = RANDOM.random((5, 13)).astype("f"), np.zeros((5, 13), "f")
    plan.build()(a, b)
    np.testing.assert_array_equal(b, a + 1)


# --- parallelize -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["static", "dynamic"])
@pytest.mark.parametrize(("names", "grid"), [("i", 2), ("ii", 4), ("i ii j", 56), ("ii j", 28)])
def test_parallel_loops_are_bound_to_blocks(policy: str, names: str, grid: int) -> None:
    plan, named, _ = product(8, 7, 5, {"i": 4}, "i ii j k")
    plan.parallelize(indices=tuple(named[name] for name in names.split()), policy=policy, pin=None, max_threads=4)
    assert plan.build().grid == (grid, 1, 1)
    run_product(plan, 8, 7, 5)


def test_parallel_loops_are_neighbours_in_their_order() -> None:
    plan, named, _ = product(8, 8, 8, {"i": 4}, "i ii j k")
    for wrong in (("k", "ii"), ("i", "j"), ()):
        with pytest.raises(ValueError, match="name neighbours among"):
            plan.parallelize(tuple(named[name] for name in wrong))
    with pytest.raises(ScheduleError, match="k cannot be bound to BLOCK_X"):
        plan.parallelize(named["k"])
    with pytest.raises(ScheduleError, match="policy='guided'"):
        plan.parallelize(named["i"], policy="guided")
    with pytest.raises(ScheduleError, match="max_threads=0"):
        plan.parallelize(named["i"], max_threads=0)
    plan.parallelize(named["i"])
    plan.parallelize(named["ii"])
    plan.parallelize(named["j"])
    assert plan.build().grid == (2, 4, 8)
    with pytest.raises(ScheduleError, match="bound already"):
        plan.parallelize(named["k"])
