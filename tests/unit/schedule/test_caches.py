"""Caches of plans: where they are kept, what is left out, what moves to global memory, and that all compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Dimension
from tilewright.schedule.arrays import AllocateFlags, Array, Role
from tilewright.schedule.caches import Location, Strategy
from tilewright.schedule.nest import Nest
from tilewright.schedule.plan import Plan
from tilewright.schedule.schedule import fuse
from tilewright.schedule.targets import Target

FIRST, LAST = Array.Layout.FIRST_MAJOR, Array.Layout.LAST_MAJOR
PLACES = [None, Location.SHARED, Location.GLOBAL, Location.PRIVATE]


def product(
    shape: tuple[Any, Any, Any], splits: dict[str, list[int]], order: str, dtype: Any = tw.float32
) -> tuple[Plan, dict[str, Any], dict[str, Any]]:
    """Return the plan of C += A B with loops that are split, by names: k, kk, kkk."""
    m, n, k = shape
    A, B = Array(Role.INPUT, dtype, (m, k), name="A"), Array(Role.INPUT, dtype, (k, n), name="B")
    C = Array(Role.INPUT_OUTPUT, tw.float32, (m, n), name="C")
    nest = Nest((m, n, k))
    loops = dict(zip("ijk", nest.get_indices(), strict=True))

    @nest.iteration_logic
    def _() -> None:
        C[loops["i"], loops["j"]] += A[loops["i"], loops["k"]] * B[loops["k"], loops["j"]]

    schedule = nest.create_schedule()
    for name, sizes in splits.items():
        at = name
        for size in sizes:
            loops[at + name] = schedule.split(loops[at], size)
            at += name
    schedule.reorder(*(loops[name] for name in order.split()))
    return schedule.create_plan(Target("NVIDIA A100")), {"A": A, "B": B, "C": C}, loops


SMALL = {"i": [3], "j": [4, 2], "k": [5, 2]}
ORDER = "j k i jj kk kkk ii jjj"


def is_right(plan: Plan, m: int, n: int, k: int, dtype: Any = np.float32) -> bool:
    """Run a plan of `product` on whole numbers, whose sums are exact."""
    random = np.random.default_rng(m * n * k)
    a, b = random.integers(-4, 5, (m, k)).astype(dtype), random.integers(-4, 5, (k, n)).astype(dtype)
    c = random.integers(-4, 5, (m, n)).astype(np.float32)
    expected = c + a.astype(np.float32) @ b.astype(np.float32)
    plan.build("product")(a, b, c)
    return np.array_equal(c, expected)


# --- boxes that one thread fills --------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", [(3, 4, 10), (4, 5, 6)])
@pytest.mark.spread(3)
def test_caches_of_caches(place: Location | None, shape: tuple[int, int, int]) -> None:
    plan, arrays, _ = product(shape, SMALL, ORDER)
    a = plan.cache(arrays["A"], level=5, trigger_level=6, layout=FIRST, location=place)
    a = plan.cache(a, level=4, trigger_level=5, layout=LAST, location=place)
    plan.cache(a, level=3, layout=FIRST, location=place)
    b = plan.cache(arrays["B"], level=5, trigger_level=7, layout=LAST, location=place)
    plan.cache(b, level=2, trigger_level=4, layout=FIRST, location=place)
    c = plan.cache(arrays["C"], level=7, layout=LAST, location=place)
    c = plan.cache(c, level=5, layout=FIRST, location=place)
    plan.cache(c, level=2, layout=LAST, location=place)
    assert is_right(plan, *shape)


@pytest.mark.parametrize("outer", PLACES)
@pytest.mark.parametrize("inner", PLACES)
@pytest.mark.spread(4)
def test_written_caches_of_caches_in_other_memory(outer: Location | None, inner: Location | None) -> None:
    plan, arrays, _ = product((7, 9, 5), SMALL, ORDER)
    for name in "AC":
        cache = plan.cache(arrays[name], level=8, layout=LAST, location=outer)
        plan.cache(cache, level=4, location=inner)
    if outer is Location.PRIVATE and inner is not Location.PRIVATE:
        with pytest.raises(ScheduleError, match="would be filled from registers"):
            plan.build().source()
        return
    assert is_right(plan, 7, 9, 5)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("most", [1, 5, 24, 10**6])
@pytest.mark.spread(4)
def test_caches_of_so_many_elements(place: Location | None, most: int) -> None:
    plan, arrays, _ = product((4, 5, 7), SMALL, ORDER)
    for array in arrays.values():
        cache = plan.cache(array, max_elements=most, location=place)
        assert (cache.index, cache.max_elements) == (None, most)
        plan.cache(cache, max_elements=max(most // 3, 1), location=place)
    regions = [plan.region(cache).size for cache in plan.snapshot().caches]
    assert max(regions) <= most
    assert is_right(plan, 4, 5, 7)


def test_single_elements_in_a_vectorized_loop() -> None:
    plan, arrays, loops = product((6, 8, 4), {"j": [4]}, "i k j jj")
    plan.cache(arrays["A"], max_elements=1)
    plan.cache(arrays["C"], max_elements=1)
    plan.vectorize(loops["jj"])
    assert all(name in plan.build().source() for name in ("sA[", "sC["))
    assert is_right(plan, 6, 8, 4)


@pytest.mark.parametrize("place", PLACES)
def test_a_cache_is_filled_from_the_one_at_the_same_loop(place: Location | None) -> None:
    x, y = Array(Role.INPUT, tw.float32, (6,), name="X"), Array(Role.OUTPUT, tw.float32, (6,), name="Y")
    nest = Nest((6,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        y[i] = x[i]

    plan = nest.create_plan(Target("NVIDIA A100"))
    for array in (x, y):
        outer = plan.cache(array, index=i, location=place, element_type=tw.float16)
        plan.cache(outer, index=i, location=place, element_type=tw.float32)
    a, b = np.arange(6, dtype=np.float32) / 3, np.zeros(6, np.float32)
    plan.build()(a, b)
    assert np.array_equal(b, a.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("place", [Location.SHARED, Location.GLOBAL, Location.PRIVATE])
def test_most_elements_hold_however_loops_are_bound_later(place: Location) -> None:
    plan, arrays, loops = product((16, 16, 16), {"i": [4], "j": [4], "k": [4]}, "i j k ii jj kk")
    caches = [plan.cache(array, max_elements=32, location=place) for array in arrays.values()]
    assert [plan.region(cache).shape for cache in caches] == [(4, 4), (4, 4), (4, 4)]
    unit = plan.target.GridUnit
    plan.bind({loops["i"]: unit.BLOCK_X, loops["j"]: unit.THREAD_Y, loops["ii"]: unit.THREAD_X})
    boxes = [cache["shape"] for cache in plan.to_dict()["caches"]]
    # All threads of j and ii share a cache of the block; in registers these loops count as outside.
    assert boxes == ([[1, 16], [4, 4], [1, 4]] if place is Location.PRIVATE else [[4, 4]] * 3)


# --- boxes that are copied by loops ----------------------------------------------------------------------


@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("place", [Location.SHARED, Location.GLOBAL])
@pytest.mark.parametrize("shape", [(20, 24, 12), (19, 23, 13)])
@pytest.mark.spread(3)
def test_many_vectors_a_thread(strategy: Strategy, place: Location, shape: tuple[int, int, int]) -> None:
    plan, arrays, loops = product(shape, {"i": [20], "j": [3], "k": [12]}, "i k ii j jj kk", tw.float16)
    plan.bind({loops["jj"]: plan.target.GridUnit.THREAD_X})
    plan.cache(arrays["A"], index=loops["ii"], location=place, strategy=strategy, element_type=tw.float32, vectorize=2)
    plan.cache(arrays["B"], index=loops["ii"], location=place, strategy=strategy, vectorize=False)
    outer = plan.cache(arrays["C"], index=loops["k"], location=place, strategy=strategy, element_type=tw.float64)
    plan.cache(outer, index=loops["ii"], location=place, strategy=strategy, layout=LAST)
    assert is_right(plan, *shape, dtype=np.float16)


@pytest.mark.parametrize("vectorize", ["a", 2.0, 3, 0])
def test_a_width_is_a_power_of_two(vectorize: Any) -> None:
    plan, arrays, loops = product((6, 8, 10), {}, "i j k")
    with pytest.raises(ScheduleError, match="vectorize="):
        plan.cache(arrays["A"], index=loops["j"], vectorize=vectorize)


def test_code_does_not_grow_with_a_box() -> None:
    def lines(size: int) -> int:
        plan, arrays, _ = product((size, size, size), {"i": [6], "j": [8], "k": [4]}, "j k i jj kk ii")
        for array in arrays.values():
            outer = plan.cache(array, level=6, layout=LAST)
            plan.cache(outer, level=4, layout=FIRST)
        return plan.build().source().count("\n")

    assert lines(1020) < 200


def test_too_much_shared_memory_is_refused_before_anything_is_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    def emitted(*_: Any) -> None:
        raise AssertionError("the kernel was emitted")

    monkeypatch.setattr("tilewright.schedule.scheduled.Emission", emitted)
    for index, stages, others in (("k", 1, ""), ("kk", 6, ""), ("kk", 4, "B")):
        plan, arrays, loops = product((1024, 1024, 1024), {"k": [8]}, "k kk i j")
        plan.cache(arrays["A"], index=loops[index], location=Location.SHARED, pipeline_stages=stages)
        for name in others:
            plan.cache(arrays[name], index=loops["kk"], location=Location.SHARED, pipeline_stages=2)
        with pytest.raises(ScheduleError, match="bytes of shared memory"):
            plan.build()


def test_caches_that_follow_one_another_share_memory() -> None:
    a, b = (Array(Role.INPUT, tw.float32, (128, 200), name=name) for name in "AB")
    x, y = (Array(Role.OUTPUT, tw.float32, (128, 200), name=name) for name in "XY")
    nests = [Nest((128, 200)) for _ in range(2)]
    for nest, source, result in zip(nests, (a, b), (x, y), strict=True):
        i, j = nest.get_indices()

        def copied(i: Any = i, j: Any = j, source: Array = source, result: Array = result) -> None:
            result[i, j] = source[i, j]

        nest.iteration_logic(copied)
    schedule = fuse(*(nest.create_schedule() for nest in nests))
    numbering = schedule.nest.fusing[0]
    schedule.reorder(numbering, *(index for index in schedule.get_indices() if index is not numbering))
    plan = schedule.create_plan(Target("NVIDIA A100"))
    plan.bind({index: plan.target.GridUnit.THREAD_X for index in schedule.get_indices() if index.name.startswith("j")})
    for array in (a, b):
        plan.cache(array, index=plan.serial[1])
    # Each takes 102400 bytes, and a block has 166912.
    assert plan.build().lower().kernel.shared_bytes == 102400


# --- thrifty caches --------------------------------------------------------------------------------------


def kept(plan: Plan) -> list[str]:
    return [f"{cache['array']}{cache['shape']}" for cache in plan.to_dict()["caches"]]


@pytest.mark.parametrize(
    ("splits", "order", "cached", "expected"),
    [
        # contiguous rows of A; of B a part of each row
        ({"i": [4], "j": [16]}, "i j k ii jj", [("A", "ii", FIRST)], ["A[4, 1]"]),
        ({"i": [4], "j": [16], "k": [32]}, "i j k ii jj kk", [("A", "ii", FIRST)], []),
        ({"i": [4], "j": [16], "k": [32]}, "i j k ii jj kk", [("B", "k", FIRST)], ["B[32, 16]"]),
        ({"i": [4], "j": [32], "k": [8]}, "i j k ii jj kk", [("C", "ii", FIRST)], []),
        ({"i": [4], "j": [8], "k": [8]}, "i j k ii jj kk", [("C", "ii", FIRST)], ["C[4, 8]"]),
        # other strides, and a row that has the same in both orders
        ({"i": [4], "j": [8], "k": [32]}, "i j k ii jj kk", [("A", "ii", LAST)], ["A[4, 32]"]),
        ({"i": [1], "j": [8], "k": [32]}, "i j k ii jj kk", [("A", "ii", LAST)], []),
        ({"i": [4], "k": [32, 8]}, "i k j kk ii kkk", [("A", "kk", (32, 1))], []),
        ({"i": [4], "k": [32, 8]}, "i k j kk ii kkk", [("A", "kk", (34, 1))], ["A[4, 32]"]),
        ({"i": [4], "k": [32, 8]}, "i k j kk ii kkk", [("A", 4 * 32, FIRST)], []),
        ({"i": [4], "k": [32, 8]}, "i k j kk ii kkk", [("A", 4 * 32 - 1, FIRST)], ["A[4, 8]"]),
        # caches of caches: the outer, the inner, the middle one
        ({"i": [4], "k": [8]}, "i j k ii kk", [("A", "k", FIRST), ("A", "ii", FIRST)], ["A[4, 8]"]),
        ({"i": [4], "k": [8]}, "i j k ii kk", [("A", "ii", FIRST), ("A", "kk", FIRST)], ["A[4, 8]"]),
        (
            {"i": [8, 2], "k": [16, 4]},
            "i j k ii kk iii kkk",
            [("A", "ii", FIRST), ("A", "kk", FIRST), ("A", "iii", FIRST)],
            ["A[8, 16]", "A[2, 4]"],
        ),
    ],
)
def test_thrifty_caches(
    splits: dict[str, list[int]], order: str, cached: list[tuple[str, Any, Any]], expected: list[str]
) -> None:
    plan, arrays, loops = product((32, 32, 32), splits, order)
    source: Any = arrays[cached[0][0]]
    for _, at, layout in cached:
        where = {"index": loops[at]} if isinstance(at, str) else {"max_elements": at}
        source = plan.cache(source, layout=layout, thrifty=True, **where)
    assert kept(plan) == expected


def test_thrifty_caches_in_other_memory_or_types_are_kept() -> None:
    def plan_of(*options: dict[str, Any]) -> list[str]:
        plan, arrays, loops = product((32, 32, 32), {"i": [4], "k": [32]}, "i j k ii kk")
        source: Any = arrays["A"]
        for index, option in zip(("ii", "kk"), options, strict=False):
            source = plan.cache(source, index=loops[index], layout=FIRST, thrifty=True, **option)
        return kept(plan)

    shared, private = {"location": Location.SHARED}, {"location": Location.PRIVATE}
    assert plan_of(shared, private) == ["A[4, 32]", "A[1, 32]"]
    assert plan_of(shared, shared) == ["A[4, 32]"]
    assert plan_of({"location": Location.GLOBAL}) == []
    assert plan_of({"element_type": tw.float64}) == ["A[4, 32]"]


@pytest.mark.parametrize("shape", [(6, 4, 10), (7, 5, 9)])
def test_what_thrifty_caches_write_arrives(shape: tuple[int, int, int]) -> None:
    plan, arrays, _ = product(shape, {"i": [3], "j": [4, 2], "k": [5]}, "i j k ii jj kk jjj")
    c = plan.cache(arrays["C"], level=7, thrifty=True)  # the whole array: left out
    c = plan.cache(c, level=5, thrifty=True, layout=LAST)
    c = plan.cache(c, level=3, thrifty=True, layout=LAST)
    plan.cache(c, level=1, thrifty=True)
    assert len(kept(plan)) < 4
    assert is_right(plan, *shape)


def test_a_thrifty_cache_of_an_array_that_lives_in_caches_is_kept() -> None:
    x, y = Array(Role.INPUT, tw.float32, (12,), name="X"), Array(Role.OUTPUT, tw.float32, (12,), name="Y")
    t = Array(Role.TEMP, tw.float32, (12,), name="T")
    nest = Nest((12,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        t[i] = x[i] * 2
        y[i] = t[i] + 1

    plan = nest.create_plan(Target("NVIDIA A100"))
    plan.cache(t, index=i, thrifty=True)
    assert kept(plan) == ["T[12]"]
    a, b = np.arange(12, dtype=np.float32), np.zeros(12, np.float32)
    plan.build()(a, b)
    assert np.array_equal(b, a * 2 + 1)


# --- global memory ---------------------------------------------------------------------------------------


def test_caches_without_a_location_go_to_global_memory_where_one_thread_fills_too_much() -> None:
    def places(bound: bool, location: Location | None) -> list[str]:
        plan, arrays, loops = product((512, 512, 16), {"k": [8]}, "i j k kk")
        if bound:
            plan.bind({loops["j"]: plan.target.GridUnit.THREAD_X})
        for name in "BC":
            plan.cache(arrays[name], index=loops["i"], location=location)
        return [cache["location"] for cache in plan.to_dict()["caches"]]

    assert places(False, None) == ["SHARED", "GLOBAL"]
    assert places(False, Location.SHARED) == ["SHARED", "SHARED"]
    assert places(True, None) == ["SHARED", "SHARED"]


@pytest.mark.parametrize("sizes", [(12, 10, 8), (13, 11, 9)])
@pytest.mark.parametrize("stages", [1, 3])
def test_each_block_has_memory_of_its_own(sizes: tuple[int, int, int], stages: int) -> None:
    dimensions = tuple(Dimension(name) for name in "MNK")
    plan, arrays, loops = product(dimensions, {"i": [4], "j": [5], "k": [4]}, "i j k ii jj kk")
    unit = plan.target.GridUnit
    plan.bind(
        {loops["i"]: unit.BLOCK_Z, loops["j"]: unit.BLOCK_X, loops["ii"]: unit.THREAD_Y, loops["jj"]: unit.THREAD_X}
    )
    for name in "AB":
        plan.cache(arrays[name], index=loops["ii"], location=Location.GLOBAL, pipeline_stages=stages, layout=LAST)
    plan.cache(arrays["C"], index=loops["k"], location=Location.GLOBAL)
    kernel = plan.build("product")
    assert [memory.name for memory in kernel.cache_memory] == ["gA_memory0", "gB_memory1", "gC_memory2"]
    assert "gC_memory2" in kernel.source()
    assert is_right(plan, *sizes)


# --- registers that are read ahead -----------------------------------------------------------------------


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("shape", [(8, 12, 12), (7, 11, 10), (8, 12, 3)])
@pytest.mark.spread(3)
def test_registers_read_ahead(stages: int, shape: tuple[int, int, int]) -> None:
    plan, arrays, loops = product(shape, {"i": [4], "j": [4], "k": [4]}, "i j k ii jj kk")
    unit = plan.target.GridUnit
    plan.bind(
        {loops["i"]: unit.BLOCK_Y, loops["j"]: unit.BLOCK_X, loops["ii"]: unit.THREAD_Y, loops["jj"]: unit.THREAD_X}
    )
    options = {"double_buffer": True} if stages == 2 else {"pipeline_stages": stages}
    plan.cache(arrays["A"], index=loops["kk"], location=Location.PRIVATE, **options)
    plan.cache(arrays["B"], index=loops["kk"], location=Location.PRIVATE, pipeline_stages=2)
    assert is_right(plan, *shape)


@pytest.mark.parametrize("through", [None, Location.SHARED, Location.PRIVATE])
def test_registers_and_shared_memory_ahead_in_one_loop(through: Location | None) -> None:
    plan, arrays, loops = product((8, 8, 11), {"i": [4], "j": [4], "k": [4]}, "i j k ii jj kk")
    plan.bind({loops["ii"]: plan.target.GridUnit.THREAD_Y, loops["jj"]: plan.target.GridUnit.THREAD_X})
    plan.cache(arrays["A"], index=loops["kk"], double_buffer=True, double_buffer_location=through)
    plan.cache(arrays["B"], index=loops["kk"], location=Location.PRIVATE, pipeline_stages=3)
    assert is_right(plan, 8, 8, 11)


# --- caches beside vectors, views and memory of the launch -----------------------------------------------


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("elements", [1, 2, 8, 1000])
@pytest.mark.parametrize("vectors", ["jjj", "jjj ii", "i"])
@pytest.mark.spread(8)
def test_caches_inside_of_vectorized_loops(place: Location | None, elements: int, vectors: str) -> None:
    plan, arrays, loops = product((6, 10, 11), SMALL, ORDER)
    for name in vectors.split():
        plan.vectorize(loops[name])
    for name in "AC":
        outer = plan.cache(arrays[name], index=loops["j"], location=place)
        plan.cache(outer, max_elements=elements, location=place)
    plan.cache(arrays["B"], max_elements=elements, location=place, thrifty=True)
    assert is_right(plan, 6, 10, 11)


@pytest.mark.parametrize("place", PLACES)
def test_caches_of_views(place: Location | None) -> None:
    """Two views of one array, one of them with gaps, are kept in one cache of it; another cache is of quotients."""
    a = Array(Role.INPUT, tw.int32, (8, 16), name="A")
    out = Array(Role.INPUT_OUTPUT, tw.int32, (8, 8), name="out")
    even, rest = a.sub_array((0, 0), (8, 8), (1, 2)), a.sub_array((0, 4), (8, 8))
    nest = Nest((8, 8))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        out[i, j] += even[i, j] + rest[i, j // 3]

    schedule = nest.create_schedule()
    ii = schedule.split(i, 3)
    schedule.reorder(i, ii, j)
    plan = schedule.create_plan(Target("NVIDIA A100"))
    plan.bind({ii: plan.target.GridUnit.THREAD_X})
    outer = plan.cache(even, index=j, location=place)
    plan.cache(outer, max_elements=16 if place is Location.PRIVATE else 64, location=place, thrifty=True)
    plan.cache(out, index=j, location=place)
    x = np.random.default_rng(3).integers(-9, 10, (8, 16)).astype(np.int32)
    held = np.ones((8, 8), np.int32)
    expected = held + x[:, 0:16:2] + x[:, 4 + np.arange(8) // 3]
    plan.build()(x, held)
    assert np.array_equal(held, expected)


@pytest.mark.parametrize("sizes", [(6, 5), (7, 9)])
def test_memory_of_caches_comes_behind_constants_and_temporary_arrays(sizes: tuple[int, int]) -> None:
    m, n = Dimension("M"), Dimension("N")
    a = Array(Role.INPUT, tw.float32, (m, n), name="A")
    factors = np.arange(4, dtype=np.float32)
    weights = Array(Role.CONST, data=factors, name="W")
    kept = Array(Role.TEMP, tw.float32, (m, n), name="T", flags=AllocateFlags.HEAP)
    b = Array(Role.OUTPUT, tw.float32, (m, n), name="B")
    nest = Nest((m, n))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        kept[i, j] = a[i, j] * weights[i % 4]
        b[i, j] = kept[i, j] + 1

    schedule = nest.create_schedule()
    ii, jj = schedule.tile({i: 3, j: 4})
    schedule.reorder(i, j, ii, jj)
    plan = schedule.create_plan(Target("NVIDIA A100"))
    plan.bind({i: plan.target.GridUnit.BLOCK_X, ii: plan.target.GridUnit.THREAD_X})
    plan.cache(a, index=jj, location=Location.GLOBAL)
    plan.cache(b, index=jj, location=Location.GLOBAL)
    kernel = plan.build("scaled")
    names = ["A", "B", "W", "T", "gA_memory0", "gB_memory1"]
    signature = kernel.source().partition("scaled(")[2].partition(")")[0]
    places = [signature.index(f" {name}") for name in names]
    assert places == sorted(places)
    x = np.random.default_rng(1).integers(-4, 5, sizes).astype(np.float32)
    y = np.zeros(sizes, np.float32)
    kernel(x, y)
    assert np.array_equal(y, x * factors[np.arange(sizes[0]) % 4, None] + 1)


@pytest.mark.parametrize("target", ["sm_80", "sm_70", "gfx90a"])
@pytest.mark.parametrize(("dtype", "row", "step"), [(tw.float32, 10, 2), (tw.float16, 12, 4), (tw.int8, 9, 2)])
def test_a_box_of_some_rows_may_begin_at_any(dtype: Any, row: int, step: int, target: str) -> None:
    a = np.arange((4 + 8 * step) * row).reshape(-1, row).astype(dtype.name)
    A = Array(Role.INPUT, dtype, a.shape, name="A")
    B = Array(Role.OUTPUT, dtype, (4, 8), name="B")
    nest = Nest((4, 8))
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: B.__setitem__((i, j), A[i + step * j, j]))
    plan = nest.create_schedule().create_plan(Target(target))
    plan.cache(A, index=j, location=Location.SHARED)
    b = np.zeros((4, 8), a.dtype)
    plan.build(args=(A, B))(a, b)
    assert np.array_equal(b, [[a[x + step * y, y] for y in range(8)] for x in range(4)])


@pytest.mark.parametrize("outer", [Location.SHARED, Location.GLOBAL])
@pytest.mark.parametrize("step", [2, 4])
def test_a_cache_begins_between_the_elements_that_its_source_left_out(outer: Location, step: int) -> None:
    A = Array(Role.OUTPUT, "float32", (4, 8), name="A")
    B = Array(Role.INPUT, "float32", (12 * step,), name="B")
    nest = Nest((4, 8))
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: A.__setitem__((i, j), B[step * i + step * j]))
    plan = nest.create_schedule().create_plan(Target("sm_80"))
    around = plan.cache(B, index=i, location=outer)
    plan.cache(around, index=j, location=Location.SHARED)
    a, b = np.zeros((4, 8), np.float32), np.arange(12 * step, dtype=np.float32)
    plan.build(args=(A, B))(a, b)
    assert np.array_equal(a, [[step * (x + y) for y in range(8)] for x in range(4)])
