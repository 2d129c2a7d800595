"""Plans of the scheduling layer: the same kernels in the simulator and on the GPU, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Backend
from tests.unit.schedule.plans import register_product, warpgroup_product

import tilewright as tw
from tilewright.schedule import (
    Array,
    Dimension,
    Location,
    MMAFragmentOp,
    MMASchedulingPolicy,
    MMAShape,
    Nest,
    Plan,
    Role,
    Strategy,
    Target,
    cast,
    fuse,
)

UNIT = Target().GridUnit


def product(
    m: Any, n: Any, k: Any, dtype: Any = tw.float32, sums: Any = tw.float32, role: Role = Role.INPUT_OUTPUT
) -> tuple[Nest, Array, Array, Array]:
    """Return the nest of C += A B and its arrays; B lies by columns."""
    A = Array(Role.INPUT, dtype, (m, k))
    B = Array(Role.INPUT, dtype, (k, n), Array.Layout.LAST_MAJOR)
    C = Array(role, sums, (m, n))
    nest = Nest((m, n, k))
    i, j, kk = nest.indices

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += A[i, kk] * B[kk, j]

    return nest, A, B, C


def on_threads(m: Any, n: Any, k: Any, options: dict[str, Any]) -> Plan:
    """Return a product on 16 x 16 threads, with caches in shared memory and sums in registers."""
    nest, A, B, C = product(m, n, k)
    i, j, kk = nest.indices
    schedule = nest.create_schedule()
    ii, jj, steps = schedule.tile({i: 16, j: 16, kk: 8})
    schedule.reorder(i, j, kk, ii, jj, steps)
    plan = schedule.create_plan(Target())
    plan.bind({i: UNIT.BLOCK_Y, j: UNIT.BLOCK_X, ii: UNIT.THREAD_Y, jj: UNIT.THREAD_X})
    plan.cache(C, index=kk, location=Location.PRIVATE)
    for operand in (A, B):
        plan.cache(operand, index=ii, **options)
    return plan


OPTIONS = {
    "one buffer": {},
    "double": {"double_buffer": True},
    "through registers": {"double_buffer": True, "double_buffer_location": Location.PRIVATE},
    "three stages": {"pipeline_stages": 3},
    "blocked": {"strategy": Strategy.BLOCKED, "vectorize": 2},
    "single elements": {"vectorize": False},
}


def check(
    backend: Backend, plan: Plan, arrays: list[np.ndarray[Any, Any]], expected: Any, bound: float, args: Any = None
) -> None:
    """Run a plan whose last argument is the result, and compare."""
    kernel = plan.build(args=args)
    given = []
    for array, values in zip(kernel.parameters, arrays, strict=True):
        by_columns = array.layout is Array.Layout.LAST_MAJOR
        held = backend.put(np.ascontiguousarray(values.T if by_columns else values))
        given.append(held.T if by_columns else held)
    kernel(*given)
    found = backend.get(given[-1]).astype(np.float64)
    assert np.abs(found - expected).max() <= bound


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("extents", [(64, 48, 40), (61, 45, 37)], ids=str)
@pytest.mark.spread(4)
def test_products_on_threads(backend: Backend, options: dict[str, Any], extents: tuple[int, int, int]) -> None:
    m, n, k = extents
    random = np.random.default_rng(0)
    a, b, c = (random.standard_normal(shape, np.float32) for shape in ((m, k), (k, n), (m, n)))
    exact = c + a.astype(np.float64) @ b.astype(np.float64)
    check(backend, on_threads(m, n, k, options), [a, b, c], exact, 1e-4)


def test_sizes_of_the_launch(backend: Backend) -> None:
    M, N, K = Dimension("M"), Dimension("N"), Dimension("K")
    plan = on_threads(M, N, K, {"pipeline_stages": 2})
    random = np.random.default_rng(1)
    for m, n, k in ((64, 64, 32), (61, 45, 37), (5, 100, 1)):
        a, b, c = (random.standard_normal(shape, np.float32) for shape in ((m, k), (k, n), (m, n)))
        check(backend, plan, [a, b, c], c + a.astype(np.float64) @ b.astype(np.float64), 1e-4)


def on_tensor_cores(extents: tuple[int, int, int], dtype: Any, out: Any, stages: int, staged: bool) -> Plan:
    """Return a product by warps: 64 x 128 of C a block, 32 x 64 a warp, fragments a step ahead."""
    nest, A, B, C = product(*extents, dtype, out, Role.OUTPUT)
    i, j, k = nest.indices
    schedule, target = nest.create_schedule(), Target()
    m, n, depth = target.tensor_core_info.compute_tensor_splits(MMAShape.M16N16K16)
    i_warp, j_warp, steps = schedule.tile({i: 64, j: 128, k: 64})
    i_tile, j_tile = schedule.tile({i_warp: 32, j_warp: 64})
    ii, jj, kk = schedule.tile({i_tile: m, j_tile: n, steps: depth})
    schedule.reorder(i, j, k, i_warp, j_warp, steps, i_tile, j_tile, ii, jj, kk)
    plan = schedule.create_plan(target)
    plan.bind({(i, j): UNIT.BLOCK_X, i_warp: UNIT.WARP_Y, j_warp: UNIT.WARP_X})
    for operand in (A, B):
        plan.cache(operand, index=i_warp, pipeline_stages=stages)
        plan.cache(operand, index=i_tile, location=Location.MMA_FRAGMENT, double_buffer=True)
    sums: Any = plan.cache(C, index=k) if staged else C
    plan.cache(sums, index=k, location=Location.MMA_FRAGMENT)
    plan.tensorize((ii, jj, kk), MMAShape.M16N16K16, prologue_op=MMAFragmentOp.SET, prologue_arg=0.0)
    return plan


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("dtype", [tw.float16, tw.bfloat16], ids=str)
@pytest.mark.spread(4)
def test_pipelined_products_on_tensor_cores(backend: Backend, dtype: Any, stages: int, staged: bool) -> None:
    m, n, k = 128, 256, 192
    random = np.random.default_rng(2)
    a, b = (random.standard_normal(shape).astype(dtype.numpy) for shape in ((m, k), (k, n)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    out = np.full((m, n), np.nan, dtype.numpy)
    bound = 64 * (2.0**-11 if dtype is tw.float16 else 2.0**-8)
    check(backend, on_tensor_cores((m, n, k), dtype, dtype, stages, staged), [a, b, out], exact, bound)


@pytest.mark.parametrize("policy", MMASchedulingPolicy)
@pytest.mark.parametrize(("passes", "fused"), [(1, 1), (4, 4), (4, 2), (8, 1)])
@pytest.mark.spread(4)
def test_passes(backend: Backend, passes: int, fused: int, policy: MMASchedulingPolicy) -> None:
    m, n, k = 64, 48, 256
    nest, A, _, C = product(m, n, k, tw.float16)
    i, j, kk = nest.indices
    schedule, target = nest.create_schedule(), Target()
    ii, jj, steps = schedule.tile(
        dict(zip((i, j, kk), target.tensor_core_info.compute_tensor_splits(MMAShape.M16N16K16, passes), strict=True))
    )
    schedule.reorder(i, j, kk, ii, jj, steps)
    plan = schedule.create_plan(target)
    plan.bind({i: UNIT.BLOCK_Y, j: UNIT.BLOCK_X})
    plan.cache(A, index=ii)
    plan.cache(C, index=kk, location=Location.MMA_FRAGMENT)
    plan.tensorize(
        (ii, jj, steps),
        MMAShape.M16N16K16,
        num_total_passes=passes,
        num_fused_passes=fused,
        scheduling_policy=policy,
        epilogue_op=MMAFragmentOp.ReLU,
    )
    random = np.random.default_rng(3)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    c = random.standard_normal((m, n), np.float32)
    exact = np.maximum(c + a.astype(np.float64) @ b.astype(np.float64), 0)
    check(backend, plan, [a, b, c], exact, 1e-3)


def test_a_fused_nest_on_fragments(backend: Backend) -> None:
    m, n, k = 64, 96, 64
    nest, A, B, _ = product(m, n, k, tw.float16)
    C = Array(Role.TEMP, tw.float32, (m, n))
    bias, D = Array(Role.INPUT, tw.float32, (n,)), Array(Role.OUTPUT, tw.float32, (m, n))
    nest = Nest((m, n, k))
    i, j, kk = nest.indices

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += A[i, kk] * B[kk, j]

    after = Nest((m, n))
    row, column = after.indices

    @after.iteration_logic
    def _() -> None:
        D[row, column] = tw.maximum(C[row, column] + bias[column], 0.0)

    schedule = fuse(nest.create_schedule(), after.create_schedule(), partial=2)
    i, j, fusing, kk = schedule.get_indices()
    ii, jj, steps = schedule.tile({i: 16, j: 16, kk: 32})
    schedule.reorder(i, j, fusing, kk, ii, jj, steps)
    plan = schedule.create_plan(Target())
    plan.bind({i: UNIT.BLOCK_Y, j: UNIT.BLOCK_X})
    plan.cache(C, index=fusing, location=Location.MMA_FRAGMENT)
    plan.tensorize(
        (ii, jj, steps), MMAShape.M16N16K16, 2, prologue_op=MMAFragmentOp.SET, prologue_arg=0.0
    )  # fmt: skip
    random = np.random.default_rng(4)
    a, b = (random.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    beside = random.standard_normal(n, np.float32)
    exact = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + beside, 0)
    check(backend, plan, [a, b, beside, np.full((m, n), np.nan, np.float32)], exact, 1e-3)


def test_a_stencil_by_vectors(backend: Backend) -> None:
    rows, columns = 30, 64
    A = Array(Role.INPUT, tw.float32, (rows, columns))
    B = Array(Role.OUTPUT, tw.float32, (rows - 2, columns))
    scale = Array(Role.CONST, data=np.array([0.25, 0.5, 0.25], np.float32))
    nest = Nest((rows - 2, columns))
    i, j = nest.indices

    @nest.iteration_logic
    def _() -> None:
        B[i, j] = tw.exp(scale[0] * A[i, j] + scale[1] * A[i + 1, j] + scale[2] * A[i + 2, j])

    schedule = nest.create_schedule()
    jj = schedule.split(j, 4)
    plan = schedule.create_plan(Target())
    plan.bind({i: UNIT.BLOCK_X, j: UNIT.THREAD_X})
    plan.vectorize(jj)
    a = np.random.default_rng(5).standard_normal((rows, columns), np.float32)
    wide = a.astype(np.float64)
    exact = np.exp(0.25 * wide[:-2] + 0.5 * wide[1:-1] + 0.25 * wide[2:])
    check(backend, plan, [a, np.zeros((rows - 2, columns), np.float32)], exact, 1e-4)


MATRIX_TYPES: dict[str, tuple[Any, Any, MMAShape, Callable[..., Any]]] = {
    "int8": (tw.int8, tw.int32, MMAShape.M16N16K16, lambda r, s: r.integers(-128, 128, s)),
    "uint8": (tw.uint8, tw.int32, MMAShape.M32N8K16, lambda r, s: r.integers(0, 256, s)),
    "tf32": (tw.float32, tw.float32, MMAShape.M16N16K8, lambda r, s: r.integers(-8, 8, s)),
    "wide": (tw.float16, tw.float32, MMAShape.M8N32K16, lambda r, s: r.integers(-8, 8, s)),
}


@pytest.mark.parametrize("name", MATRIX_TYPES)
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.spread(4)
def test_types_and_shapes(backend: Backend, name: str, cached: bool) -> None:
    dtype, out, shape, draw = MATRIX_TYPES[name]
    m, n, k = 64, 64, 64
    nest, A, B, _ = product(m, n, k, dtype, out)
    i, j, kk = nest.indices
    schedule, target = nest.create_schedule(), Target()
    splits = target.tensor_core_info.compute_tensor_splits(shape, 2)
    ii, jj, steps = schedule.tile(dict(zip((i, j, kk), splits, strict=True)))
    schedule.reorder(i, j, kk, ii, jj, steps)
    plan = schedule.create_plan(target)
    plan.bind({i: UNIT.BLOCK_Y, j: UNIT.BLOCK_X})
    if cached:
        plan.cache(A, index=ii)
        plan.cache(B, index=ii)
    plan.tensorize((ii, jj, steps), shape, 2)
    random = np.random.default_rng(6)
    a, b = (draw(random, size).astype(dtype.numpy) for size in ((m, k), (k, n)))
    c = random.integers(-8, 8, (m, n)).astype(out.numpy)
    check(backend, plan, [a, b, c], c + a.astype(np.float64) @ b.astype(np.float64), 0)


def test_fused_nests_with_a_buffer_ahead(backend: Backend) -> None:
    """Three iterations, each asked for by number, that ask whether there is another: NVRTC 13.0 and 13.5 stop after one."""
    A = Array(Role.INPUT, tw.int32, (1, 3), Array.Layout.LAST_MAJOR)
    B = Array(Role.INPUT, tw.int32, (3, 5))
    C = Array(Role.INPUT_OUTPUT, tw.int32, (1, 5))
    D, E = Array(Role.OUTPUT, tw.int32, (1, 5)), Array(Role.OUTPUT, tw.int32, (7, 7))
    product, finish, apart = Nest((1, 5, 3)), Nest((1, 5)), Nest((7, 7))
    i, j, x = product.indices
    r, s = finish.indices
    u, v = apart.indices

    @product.iteration_logic
    def _() -> None:
        C[i, j] += A[i, x] * B[x, j]

    @finish.iteration_logic
    def _() -> None:
        D[r, s] = tw.maximum(C[r, s], 0) + A[r, 0]

    @apart.iteration_logic
    def _() -> None:
        E[u, v] = 2 * u + v

    schedule = fuse(product.create_schedule(), finish.create_schedule(), apart.create_schedule(), partial=2)
    i, j, f, *rest = schedule.get_indices()
    schedule.reorder(j, f, *rest, i)
    schedule.unroll(i)
    plan = schedule.create_plan(Target())
    plan.bind({j: UNIT.THREAD_Z})
    plan.cache(A, index=rest[0], double_buffer=True)
    a, b, c = (np.arange(n, dtype=np.int32) - 2 for n in (3, 15, 5))
    sums = c + a @ b.reshape(3, 5)
    values = [a[:, None], b.reshape(3, 5), c[None], np.full((1, 5), -99, np.int32), np.zeros((7, 7), np.int32)]
    held = [backend.put(np.ascontiguousarray(y)) for y in values]
    plan.build("fused", (A, B, C, D, E))(held[0].T, *held[1:])
    assert (backend.get(held[2])[0] == sums).all()
    assert (backend.get(held[3])[0] == np.maximum(sums, 0) + a[0]).all()
    assert (backend.get(held[4]) == 2 * np.arange(7)[:, None] + np.arange(7)).all()


BY_WARPGROUPS: dict[str, dict[str, Any]] = {
    "a producer": {"stages": 3},
    "blocks that stay, results by TMA": {"stages": 4, "blocks": 3, "stores": True, "tile": (128, 128, 64)},
    "without a producer": {"producer": False, "stages": 3, "stores": True},
    "filled by threads": {"producer": False, "tma": False},
    "B by rows": {"layouts": "NN", "shape": MMAShape.M64N48K16, "tile": (128, 48, 64)},
    "A by columns": {"layouts": "TT"},
}


@pytest.mark.parametrize("options", BY_WARPGROUPS.values(), ids=BY_WARPGROUPS)
@pytest.mark.spread(4)
def test_products_of_warpgroups(backend: Backend, options: dict[str, Any]) -> None:
    """Tiles that overhang: wgmma, TMA and mbarriers as plans emit them."""
    if backend.name == "cuda" and Target().arch.name != "sm_90a":
        pytest.skip("needs a GPU of sm_90a")
    m, n, k = 200, 144, 264
    plan, arrays = warpgroup_product((m, n, k), types=(tw.float16, tw.float16, tw.float32), **options)
    random = np.random.default_rng(3)
    a, b = (random.integers(-4, 5, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, np.float32)
    check(backend, plan, [a, b, c], a.astype(np.float64) @ b.astype(np.float64), 0.0, arrays)


def scaled(a: Any, s: Any, i: Any, k: Any) -> Any:
    return cast(a * s, tw.bfloat16)


IN_REGISTERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "int8 weights, a producer": (scaled, {"stages": 3}),
    "int8 weights, blocks that stay": (scaled, {"blocks": 3, "stores": True, "tile": (128, 128, 64)}),
    "int8 weights, no producer": (scaled, {"producer": False, "stages": 3}),
    "int8 weights, kept": (scaled, {"keeps_a": "tile", "layout": "N"}),
    "nothing beyond the end of K": (
        lambda a, s, i, k: cast(tw.log2(a), tw.bfloat16), {"types": (tw.uint8, tw.bfloat16, tw.float32)}
    ),
    "as they are": (None, {"types": (tw.bfloat16, tw.bfloat16, tw.float32), "keeps_a": "tile"}),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_REGISTERS)
@pytest.mark.spread(4)
def test_products_of_registers(backend: Backend, name: str) -> None:
    """A computed, or kept, in the registers from which a warpgroup multiplies; all products and sums are exact."""
    if backend.name == "cuda" and Target().arch.name != "sm_90a":
        pytest.skip("needs a GPU of sm_90a")
    value, options = IN_REGISTERS[name]
    m, n, k = 200, 144, 272
    plan, arrays = register_product((m, n, k), value, **options)
    random = np.random.default_rng(6)
    a = (2 ** random.integers(0, 7, (m, k))).astype(arrays[0].element_type.numpy)
    s, b = 2.0 ** random.integers(-3, 3, m), random.integers(-4, 5, (k, n)).astype(tw.bfloat16.numpy)
    factor = a.astype(np.float64)
    factor = factor if value is None else np.log2(factor) if value is not scaled else factor * s[:, None]
    given = [a, b] if value is None else [a, s.astype(np.float32), b]
    c = np.full((m, n), np.nan, np.float32)
    check(backend, plan, [*given, c], factor @ b.astype(np.float64), 0.0, arrays)


@pytest.mark.parametrize(
    ("dtype", "precision", "extents"),
    [
        (tw.bfloat16, "ieee", (200, 144, 264)),
        (tw.float16, "ieee", (60, 200, 96)),
        (tw.float32, "tf32", (136, 72, 68)),
        (tw.float8_e4m3fn, "ieee", (72, 64, 144)),
    ],
    ids=str,
)
@pytest.mark.spread(3)
def test_products_that_auto_gives_to_warpgroups(
    backend: Backend, dtype: tw.DType, precision: str, extents: tuple[int, int, int]
) -> None:
    """The tile that the model puts first, where C is added to and tiles overhang."""
    if backend.name == "cuda" and Target().arch.name != "sm_90a":
        pytest.skip("needs a GPU of sm_90a")
    nest, A, B, C = product(*extents, dtype)
    plan = nest.create_plan(Target("sm_90a")).auto(precision=precision)
    assert plan.tensorization is not None and plan.tensorization.shape.is_of_warpgroup
    random = np.random.default_rng(5)
    a, b = (random.integers(-4, 5, array.shape).astype(dtype.numpy) for array in (A, B))
    c = random.integers(-4, 5, C.shape).astype(np.float32)
    check(backend, plan, [a, np.asfortranarray(b), c], c + a.astype(np.float64) @ b.astype(np.float64), 0.0, (A, B, C))
