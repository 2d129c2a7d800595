"""`plan.auto`: what it chooses for products, element-wise nests, reductions, stencils; and random nests, run."""

from __future__ import annotations

from random import Random
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.helpers.compilers import needs_nvrtc

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.schedule import (
    Array,
    Location,
    Nest,
    Package,
    Plan,
    Role,
    Target,
    algorithms,
    create_dimensions,
    create_parameters,
    fuse,
)


def product(
    m: Any, n: Any, k: Any, dtype: str = "float32", target: str = "sm_80", result: str = "float32"
) -> tuple[Plan, tuple[Array, ...]]:
    A, B = Array(Role.INPUT, dtype, (m, k), name="A"), Array(Role.INPUT, dtype, (k, n), name="B")
    C = Array(Role.INPUT_OUTPUT, result, (m, n), name="C")
    nest = Nest((m, n, k))
    i, j, p = nest.indices
    nest.iteration_logic(lambda: C.__setitem__((i, j), C[i, j] + A[i, p] * B[p, j]))
    return nest.create_schedule().create_plan(Target(target)).auto(), (A, B, C)


def check_product(plan: Plan, arrays: tuple[Array, ...], m: int, n: int, k: int) -> None:
    random = np.random.default_rng(0)
    types = [array.element_type.numpy for array in arrays]
    a, b = (random.integers(0, 4, shape).astype(t) for shape, t in zip(((m, k), (k, n)), types, strict=False))
    c = np.ones((m, n), types[2])
    plan.build("product", arrays)(a, b, c)
    np.testing.assert_array_equal(c, 1 + a.astype(types[2]) @ b.astype(types[2]))


@pytest.mark.parametrize(
    ("extents", "dtype", "target", "warps"),
    [
        ((128, 64, 64), "float16", "sm_80", 4),
        ((64, 64, 64), "float16", "sm_75", 4),
        ((48, 16, 48), "float16", "sm_80", 1),
        ((128, 64, 64), "float32", "gfx908", 4),
        ((64, 64, 64), "int8", "sm_80", 4),
    ],
)
@pytest.mark.spread(2)
def test_products_run_on_matrix_instructions(
    extents: tuple[int, int, int], dtype: str, target: str, warps: int
) -> None:
    plan, arrays = product(*extents, dtype, target, "int32" if dtype == "int8" else "float32")
    assert plan.tensorization is not None
    assert plan.block[0] * plan.block[1] == warps * Target(target).warp_size
    check_product(plan, arrays, *extents)


@pytest.mark.parametrize(("extents", "dtype"), [((64, 64, 64), "float32"), ((40, 36, 50), "float16")])
def test_products_that_instructions_would_round_or_not_tile_run_on_threads(
    extents: tuple[int, int, int], dtype: str
) -> None:
    plan, arrays = product(*extents, dtype)
    assert plan.tensorization is None and plan.block == (16, 16, 1)
    kept = {(cache.array.name, cache.location) for cache in plan.caches}
    assert kept == {("A", Location.SHARED), ("B", Location.SHARED), ("C", Location.PRIVATE)}
    check_product(plan, arrays, *extents)


# --- products of warpgroups --------------------------------------------------------------------------------------

BF16, F16, F32, I8, I32 = tw.bfloat16, tw.float16, tw.float32, tw.int8, tw.int32
E4M3, E5M2 = tw.float8_e4m3fn, tw.float8_e5m2
Extents = tuple[int, int, int]
# Extents, types of A, B and C, and how they lie: N by rows, T by columns.
BY_WARPGROUPS: dict[str, tuple[Extents, tuple[tw.DType, tw.DType, tw.DType], str]] = {
    "bf16 NT": ((72, 40, 144), (BF16, BF16, F32), "NTN"),
    "bf16 NN": ((72, 40, 144), (BF16, BF16, BF16), "NNN"),
    "bf16 TN": ((72, 40, 144), (BF16, BF16, BF16), "TNN"),
    "bf16 TT": ((72, 80, 40), (BF16, BF16, F32), "TTN"),
    "f16, C by columns": ((72, 40, 64), (F16, F16, F16), "NTT"),
    "tf32": ((72, 40, 64), (F32, F32, F32), "NTN"),
    "tf32 that threads transpose": ((72, 40, 64), (F32, F32, F32), "NNN"),
    "fp8": ((64, 48, 128), (E4M3, E4M3, F32), "NTN"),
    "fp8 of two kinds, transposed": ((64, 48, 128), (E4M3, E5M2, BF16), "TNN"),
    "int8": ((64, 48, 128), (I8, I8, I32), "NTN"),
    "few rows": ((16, 136, 80), (BF16, BF16, BF16), "NTN"),
    "one row": ((1, 64, 64), (BF16, BF16, F32), "NTN"),
    "one column": ((64, 1, 64), (BF16, BF16, BF16), "NTN"),
    "less than a step": ((8, 8, 8), (BF16, BF16, BF16), "NTN"),
    "rows of C that TMA cannot store": ((60, 50, 48), (BF16, BF16, BF16), "NTN"),
}
_BY = {"N": Array.Layout.FIRST_MAJOR, "T": Array.Layout.LAST_MAJOR}


def plan_of(
    extents: Extents, types: tuple[tw.DType, tw.DType, tw.DType], layouts: str, target: str = "NVIDIA H200"
) -> tuple[Plan, tuple[Array, Array, Array]]:
    """Return a plan on which nothing was called, and its arrays."""
    m, n, k = extents
    A = Array(Role.INPUT, types[0], (m, k), _BY[layouts[0]], name="A")
    B = Array(Role.INPUT, types[1], (k, n), _BY[layouts[1]], name="B")
    C = Array(Role.INPUT_OUTPUT, types[2], (m, n), _BY[layouts[2]], name="C")
    nest = Nest(extents)
    i, j, p = nest.indices
    nest.iteration_logic(lambda: C.__setitem__((i, j), C[i, j] + A[i, p] * B[p, j]))
    return nest.create_plan(Target(target)), (A, B, C)


def check_exactly(plan: Plan, arrays: tuple[Array, Array, Array]) -> None:
    """Run a product of small whole numbers, and compare with NumPy."""
    drawn = np.random.default_rng(0)
    held = [
        np.array(
            drawn.integers(-3, 4, x.shape).astype(x.element_type.numpy), order="F" if x.layout is _BY["T"] else "C"
        )
        for x in arrays
    ]
    a, b, c = held
    expected = (c.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)).astype(c.dtype)
    plan.build("product", arrays)(a, b, c)
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("name", BY_WARPGROUPS)
@pytest.mark.spread(4)
def test_products_run_on_warpgroups_where_a_tensor_map_describes_the_factors(name: str) -> None:
    """C is added to, tiles overhang, and all checks of the simulator are on."""
    plan, arrays = plan_of(*BY_WARPGROUPS[name])
    plan.auto(precision="tf32" if name.startswith("tf32") else "ieee")
    assert plan.tensorization is not None and plan.tensorization.shape.is_of_warpgroup
    assert plan.producer == ("transpose" not in name)
    check_exactly(plan, arrays)


@pytest.mark.parametrize(
    ("extents", "type"),
    [((48, 40, 33), BF16), ((40, 36, 44), F16), ((64, 64, 64), F32), ((64, 64, 64), tw.float64), ((64, 64, 56), I8)],
    ids=str,
)
@pytest.mark.spread(2)
def test_products_that_warpgroups_cannot_serve_are_planned_as_before(extents: Extents, type: tw.DType) -> None:
    """Rows that are not multiples of 16 bytes, float32 that is not to be rounded, and float64."""
    plans = [plan_of(extents, (type, type, type), "NTN", target) for target in ("sm_90a", "sm_90")]
    texts = [str(plan.auto()).partition("\n")[2] for plan, _ in plans]
    assert texts[0] == texts[1]
    check_exactly(*plans[0])


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("layouts", ["NTN", "NNN", "TNN", "TTT"])
@pytest.mark.parametrize(
    "types", [(BF16, BF16, BF16), (F16, F16, F32), (F32, F32, F32), (E4M3, E4M3, BF16), (I8, I8, I32)]
)
def test_large_plans_compile_without_spills(types: tuple[tw.DType, tw.DType, tw.DType], layouts: str) -> None:
    plan, arrays = plan_of((4096, 4096, 4096), types, layouts)
    module = plan.auto(precision="tf32").build("product", arrays).lower().module
    assert plan.tensorization is not None and plan.tensorization.shape.is_of_warpgroup
    assert not module.resources.spills and not module.resources.stack_bytes, module.resources
    assert "C75" not in module.log, module.log


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
def test_drawn_products_are_exact_and_compile_cleanly(seed: int) -> None:
    """Types, sizes and layouts as they come: each has a plan that is right under all checks, and holds its sums."""
    draw = Random(seed)
    given = draw.choice([BF16, F16, F32, E4M3, I8])
    few = 16 // given.bytes
    extents = (draw.choice([1, 3, few, 40, 136]), draw.choice([1, few, 64, 200]), draw.choice([3, few, 2 * few, 72]))
    plan, arrays = plan_of(extents, (given, given, I32 if given is I8 else F32), "".join(draw.choices("NT", k=3)))
    plan.auto(precision=draw.choice(["ieee", "tf32"]))
    check_exactly(plan, arrays)
    module = plan.build("product", arrays).lower().module
    assert not module.resources.spills and "C75" not in module.log, module.log


def test_float32_may_be_rounded_on_other_targets() -> None:
    plan, arrays = plan_of((64, 64, 64), (F32, F32, F32), "NTN", "sm_80")
    plan.auto(precision="tf32")
    assert plan.tensorization is not None and plan.tensorization.shape.name == "M16N16K8"
    check_exactly(plan, arrays)


def test_the_plan_of_a_large_product_is_the_one_of_the_example() -> None:
    """Tiles of 128 x 256, four stages, a producer, results by TMA, and blocks that stay, in groups of eight rows."""
    plan, _ = plan_of((4096, 4096, 4096), (BF16, BF16, BF16), "NTN")
    plan.auto()
    assert plan.tensorization is not None
    assert (plan.tensorization.shape.name, plan.tensorization.passes) == ("M64N256K16", 4)
    assert (plan.producer, plan.blocks, plan.block) == (True, 132, (384, 1, 1))
    assert [(cache.stages, cache.tma) for cache in plan.caches] == [(4, None), (4, None), (1, True)]
    assert [loop.trips for loop in plan.nest.loops[:3]] == [4, 16, 8]


def test_a_precision_that_is_none_is_refused() -> None:
    plan, _ = plan_of((64, 64, 64), (F32, F32, F32), "NTN")
    with pytest.raises(ScheduleError, match="auto: precision='fp32'"):
        plan.auto(precision="fp32")


def test_a_product_of_sizes_that_the_launch_knows() -> None:
    m, n, k = create_dimensions("m", "n", "k")
    plan, arrays = product(m, n, k, "float16")
    assert plan.tensorization is None
    for extents in ((33, 20, 40), (16, 16, 16)):
        check_product(plan, arrays, *extents)


def test_neighbours_in_memory_are_neighbouring_threads() -> None:
    x = Array(Role.INPUT, "float32", (40, 70), Array.Layout.LAST_MAJOR, name="x")
    y = Array(Role.OUTPUT, "float32", (40, 70), Array.Layout.LAST_MAJOR, name="y")
    nest = Nest((40, 70))
    i, j = nest.indices
    nest.iteration_logic(lambda: y.__setitem__((i, j), x[i, j] * 2))
    plan = nest.create_plan(Target("sm_80")).auto()
    unit = plan.target.GridUnit
    (inner,) = next(binding.indices for binding in plan.bindings if binding.unit is unit.THREAD_X)
    assert inner.name.startswith("i0")
    assert plan.block == (32, 8, 1) and plan.build().grid == (2 * 9, 1, 1)
    a, b = np.asfortranarray(np.arange(2800, dtype=np.float32).reshape(40, 70)), np.zeros((40, 70), np.float32, "F")
    plan.build()(a, b)
    np.testing.assert_array_equal(b, 2 * a)


def test_a_stencil_keeps_its_neighbourhood_in_shared_memory() -> None:
    x, y = Array(Role.INPUT, "float32", (66, 66), name="x"), Array(Role.OUTPUT, "float32", (64, 64), name="y")
    nest = Nest((64, 64))
    i, j = nest.indices
    nest.iteration_logic(lambda: y.__setitem__((i, j), x[i, j + 1] + x[i + 2, j + 1] + x[i + 1, j] + x[i + 1, j + 2]))
    plan = nest.create_plan(Target("sm_80")).auto()
    assert [(cache.array, cache.location) for cache in plan.caches] == [(x, Location.SHARED)]
    a, b = np.arange(66 * 66, dtype=np.float32).reshape(66, 66) % 97, np.zeros((64, 64), np.float32)
    plan.build()(a, b)
    np.testing.assert_array_equal(b, a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:])


def test_a_sum_to_one_element_and_a_recurrence_stay_serial() -> None:
    x, s = Array(Role.INPUT, "int32", (40,), name="x"), Array(Role.INPUT_OUTPUT, "int32", (1,), name="s")
    p = Array(Role.INPUT_OUTPUT, "int32", (41,), name="p")
    total, prefix = Nest((40,)), Nest((40,))
    i, j = total.indices + prefix.indices
    total.iteration_logic(lambda: s.__setitem__(0, s[0] + x[i]))
    prefix.iteration_logic(lambda: p.__setitem__(j + 1, p[j] + p[j + 1]))
    a, b, c = np.arange(40, dtype=np.int32), np.zeros(1, np.int32), np.ones(41, np.int32)
    total.create_plan(Target("sm_80")).auto().build(args=(x, s))(a, b)
    prefix.create_plan(Target("sm_80")).auto().build()(c)
    assert b[0] == a.sum() and (c == np.arange(1, 42)).all()


def test_row_sums_and_what_is_made_of_them() -> None:
    x, y = Array(Role.INPUT, "int32", (70, 33), name="x"), Array(Role.OUTPUT, "int32", (70,), name="y")
    t = Array(Role.TEMP, "int32", (70,), name="t")
    zero, add, use = Nest((70,)), Nest((70, 33)), Nest((70,))
    (z,), (i, c), (u,) = zero.indices, add.indices, use.indices
    zero.iteration_logic(lambda: t.__setitem__(z, 0))
    add.iteration_logic(lambda: t.__setitem__(i, t[i] + x[i, c]))
    use.iteration_logic(lambda: y.__setitem__(u, t[u] * 2))
    plan = fuse([nest.create_schedule() for nest in (zero, add, use)], partial=1).create_plan(Target("sm_80")).auto()
    assert plan.block == (70, 1, 1)
    a, b = np.arange(70 * 33, dtype=np.int32).reshape(70, 33), np.zeros(70, np.int32)
    plan.build()(a, b)
    np.testing.assert_array_equal(b, 2 * a.sum(1))


def test_auto_is_refused_where_something_was_chosen() -> None:
    plan, _ = product(32, 32, 32)
    with pytest.raises(ScheduleError, match="call it on a new plan"):
        plan.auto()
    with pytest.raises(ScheduleError, match="auto takes heuristics, got 'LRU'"):
        plan.auto("LRU")  # type: ignore[arg-type]
    nest, size = Nest((32,)), create_parameters(1)
    (i,) = nest.indices
    y = Array(Role.OUTPUT, "float32", (32,), name="y")
    nest.iteration_logic(lambda: y.__setitem__(i, 1.0))
    schedule = nest.create_schedule()
    schedule.split(i, size)
    with pytest.raises(ScheduleError, match="waits for parameters"):
        schedule.create_plan(Target("sm_80")).auto()


def test_heuristics_of_caches_make_a_function_of_each_choice() -> None:
    A, B = (Array(Role.INPUT, "float32", (6, 6), name=name) for name in "AB")
    C = Array(Role.INPUT_OUTPUT, "float32", (6, 6), name="C")
    nest = Nest((6, 6, 6))
    i, j, k = nest.indices
    nest.iteration_logic(lambda: C.__setitem__((i, j), C[i, j] + A[i, k] * B[k, j]))
    random = np.random.default_rng(0)
    a, b = (random.integers(-3, 4, (6, 6)).astype(np.float32) for _ in range(2))
    counts = []
    for options in ({"index": j}, {"layout": Array.Layout.FIRST_MAJOR}, {}):
        plan = nest.create_plan(Target("sm_80"))
        assert plan.auto(algorithms.NoneCacheHeuristics(source=B, **options)) is plan
        functions = Package().add(plan, (A, B, C), base_name="auto")
        counts.append(len(functions))
        for function in functions:
            c = np.zeros((6, 6), np.float32)
            function.kernel(a, b, c)
            np.testing.assert_array_equal(c, a @ b)
    assert counts == [2, 3, 6]
    plan = nest.create_plan(Target("sm_80")).auto(
        algorithms.NoneCacheHeuristics(B, j), algorithms.NoneCacheHeuristics(B, layout=Array.Layout.FIRST_MAJOR)
    )
    functions = Package().add(plan, (A, B, C), base_name="twice")
    assert [len(function.kernel.plan.caches) for function in functions] == [2, 1, 2, 2, 1, 2]


# --- random nests --------------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data())
def test_random_nests_compute_what_they_say(data: Any) -> None:
    """Statements of affine accesses, dependences among them: the chosen plan gives what Python's loops give."""
    rank = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(1, 20)) for _ in range(rank))
    x, y = Array(Role.INPUT, "int32", (64, 64), name="x"), Array(Role.INPUT_OUTPUT, "int32", (64, 64), name="y")
    nest = Nest(shape)

    def place() -> tuple[Any, Any]:
        chosen = [data.draw(st.sampled_from([*nest.indices, 0])) for _ in range(2)]
        return chosen[0] + data.draw(st.integers(0, 2)), chosen[1] + data.draw(st.integers(0, 2))

    statements = [(place(), place(), place(), data.draw(st.booleans())) for _ in range(data.draw(st.integers(1, 2)))]

    @nest.iteration_logic
    def _() -> None:
        for to, one, other, adds in statements:
            value = x[one] + y[other] * 3
            y[to] = y[to] + x[one] if adds else value

    random = np.random.default_rng(1)
    a, b = (random.integers(-9, 10, (64, 64)).astype(np.int32) for _ in range(2))
    expected = b.copy()
    with np.errstate(over="ignore"):
        for point in np.ndindex(*shape):
            at = dict(zip(nest.indices, point, strict=True))

            def value_of(mode: Any, at: dict[Any, int] = at) -> int:
                return mode if isinstance(mode, int) else int(mode.as_affine().evaluate(at))

            for to, one, other, adds in statements:
                (t, p, q) = (tuple(map(value_of, modes)) for modes in (to, one, other))
                expected[t] = expected[t] + a[p] if adds else a[p] + expected[q] * np.int32(3)
    plan = nest.create_plan(Target("sm_80")).auto()
    arrays = (x, y) if x in plan.arguments else (y,)
    plan.build("random", arrays)(*([a, b] if len(arrays) == 2 else [b]))
    np.testing.assert_array_equal(b, expected)
