"""A of warpgroups' tiles in registers: computed by each thread, or kept there by a cache, against float64."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from tests.helpers.compilers import needs_nvrtc
from tests.unit.schedule.plans import fused_product, register_product
from tests.unit.test_hopper_examples import findings, without
from tests.unit.test_hopper_products import SYNCHRONISATIONS

import tilewright as tw
from tilewright import dtypes
from tilewright.arch import Arch
from tilewright.backends import sim
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.warpgroup_atoms import NAMES
from tilewright.instructions.wgmma import WgmmaWait
from tilewright.ir.effects import Scope
from tilewright.schedule import MMAFragmentOp, Nest, Role, Target, cast, where
from tilewright.schedule.arrays import Array
from tilewright.schedule.factors import is_exact
from tilewright.schedule.mma_shapes import MMAShape
from tilewright.schedule.plan import Plan
from tilewright.schedule.recipes import find_recipe

BF16, F16, F32, E4M3 = tw.bfloat16, tw.float16, tw.float32, tw.float8_e4m3fn


def scaled(dtype: tw.DType) -> Any:
    return lambda a, s, i, k: cast(a * s, dtype)


def weight(a: Any, s: Any, i: Any, k: Any) -> Any:
    """The weights of a softmax."""
    return cast(tw.exp(a - s), BF16)


# What A is, the types of A and B, and what the plan has.
COMPUTED: dict[str, tuple[Any, dict[str, Any]]] = {
    "int8 weights, scaled": (scaled(BF16), {}),
    "one stage": (scaled(BF16), {"stages": 1}),
    "no producer": (scaled(BF16), {"producer": False, "stages": 3}),
    "filled by threads": (scaled(BF16), {"producer": False, "tma": False, "stages": 1}),
    "from global memory": (scaled(BF16), {"caches_a": False}),
    "scales by TMA": (scaled(BF16), {"caches_s": True}),
    "two tiles a warpgroup": (scaled(BF16), {"shape": MMAShape.M64N32K16, "is_beside": False}),
    "blocks that stay, stored by TMA": (
        scaled(BF16), {"blocks": 1, "stores": True, "types": (tw.int8, BF16, BF16), "stages": 3}
    ),
    "C not held": (scaled(BF16), {"holds": False}),
    "B by rows": (scaled(BF16), {"layout": "N"}),
    "uint8, converted": (lambda a, s, i, k: a, {"types": (tw.uint8, F16, F32)}),
    "float32, rounded": (lambda a, s, i, k: cast(a, BF16), {"types": (F32, BF16, F32)}),
    "weights of a softmax": (weight, {"types": (F32, BF16, F32)}),
    "no number beyond the end of K": (lambda a, s, i, k: cast(tw.log(a) + s, BF16), {"types": (tw.uint8, BF16, F32)}),
    "a triangle": (lambda a, s, i, k: cast(where(k <= i, a, 0), BF16), {"types": (BF16, BF16, F32)}),
    "tf32": (lambda a, s, i, k: a * s, {"types": (F32, F32, F32), "shape": MMAShape.M64N64K8, "tile": (64, 64, 32)}),
    "fp8": (scaled(E4M3), {"types": (BF16, E4M3, F32), "shape": MMAShape.M64N64K32}),
    "low bits of bytes": (
        lambda a, s, i, k: cast(cast(a, tw.int32) & 15, tw.int8),
        {"types": (tw.uint8, tw.int8, tw.int32), "shape": MMAShape.M64N64K32, "tile": (64, 64, 64)},
    ),
    "kept as bytes": (scaled(BF16), {"keeps_a": "tile"}),
    "kept as bytes, all of K": (scaled(BF16), {"keeps_a": "columns", "caches_a": False, "extents": (136, 80, 128)}),
}  # fmt: skip
KEPT: dict[str, dict[str, Any]] = {
    "from shared memory": {"keeps_a": "tile"},
    "from global memory": {"keeps_a": "tile", "caches_a": False},
    "no producer": {"keeps_a": "tile", "producer": False},
    "all of K": {"keeps_a": "columns", "caches_a": False, "extents": (136, 80, 128)},
    "all of K, no producer": {"keeps_a": "columns", "caches_a": False, "producer": False, "extents": (72, 80, 128)},
    "tf32": {"keeps_a": "tile", "types": (F32, F32, F32), "shape": MMAShape.M64N64K8, "tile": (64, 64, 32)},
}


def numbers(array: Array, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return numbers for an array: of a byte's size in A, where they may be rounded, and small in B."""
    name, dtype = array.name, array.element_type
    if name == "C":
        return np.zeros(array.shape, dtype.numpy)
    if dtype.is_float and name == "A":
        return random.uniform(-2, 2, array.shape).astype(dtype.numpy)
    if name == "S":
        return random.uniform(0.5, 1.5, array.shape).astype(np.float32)
    values = random.integers(1 if dtype is tw.uint8 else -3, 200 if dtype is tw.uint8 else 4, array.shape)
    return values.astype(dtype.numpy)


def run(plan: Plan, arrays: tuple[Array, ...], expected_a: Any, *, is_rounded: bool = False) -> None:
    """Run a plan, and compare with the sums in float64 of A as `expected_a` computes it.

    `is_rounded`: a function computes A, whose values another library may round to the neighbours of these.
    """
    random = np.random.default_rng(0)
    held = {}
    for array in arrays:
        values = numbers(array, random)
        held[array.name] = np.asfortranarray(values) if array.layout is Array.Layout.LAST_MAJOR else values
    plan.build("product", args=arrays)(*held.values())
    a, b, c = held["A"], held["B"].astype(np.float64), held["C"]
    factor = expected_a(a, held["S"]) if "S" in held else a.astype(np.float64)
    exact = factor.astype(np.float64) @ b
    # Products are exact but of tf32, which has 11 bits; sums are those of float32, and C may be bfloat16.
    bits = 8 if is_rounded or c.dtype == BF16.numpy else 10 if arrays[-2].element_type is F32 else 20
    bound = (np.abs(factor.astype(np.float64)) @ np.abs(b)).max() * 2.0**-bits
    assert np.abs(c.astype(np.float64) - exact).max() <= bound


def on_host(name: str, b: tw.DType) -> Any:
    """Return A of a case, computed in float32 by NumPy and rounded once."""
    rounded = {F32: np.float32}.get(b, b.numpy)
    by_name: dict[str, Any] = {
        "uint8, converted": lambda a, s: a,
        "float32, rounded": lambda a, s: a,
        "weights of a softmax": lambda a, s: np.exp(a - s),
        "no number beyond the end of K": lambda a, s: np.log(a) + s,
        "a triangle": lambda a, s: np.tril(a),
        "low bits of bytes": lambda a, s: a.astype(np.int32) & 15,
    }
    value = by_name.get(name, lambda a, s: a * s)
    return lambda a, s: (
        value(a.astype(np.float32), s[:, None]).astype(rounded)
        if name != "low bits of bytes"
        else (value(a, s).astype(rounded))
    )


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.spread(4)
def test_computed(name: str) -> None:
    """Sizes that no tile divides: A is zero beyond the end of K, whatever it would be there."""
    value, options = COMPUTED[name]
    given = {"extents": (136, 80, 144), **options}
    plan, arrays = register_product(value=value, **given)
    assert "A computed in registers" in str(plan)
    is_rounded = name in ("weights of a softmax", "no number beyond the end of K")
    run(plan, arrays, on_host(name, arrays[-2].element_type), is_rounded=is_rounded)


@pytest.mark.parametrize("options", KEPT.values(), ids=KEPT)
@pytest.mark.spread(2)
def test_kept(options: dict[str, Any]) -> None:
    given = {"extents": (136, 80, 144), "types": (BF16, BF16, F32), **options}
    plan, arrays = register_product(value=None, **given)
    assert "A from registers" in str(plan)
    run(plan, arrays, None)


def test_elements_whose_places_are_read() -> None:
    """Rows of a table of int8: no box holds them, and each thread reads its own."""
    T, at = Array(Role.INPUT, tw.int8, (50, 64), name="T"), Array(Role.INPUT, tw.int32, (64,), name="at")
    B, C = Array(Role.INPUT, BF16, (64, 64), name="B"), Array(Role.OUTPUT, F32, (64, 64), name="C")
    nest = Nest((64, 64, 64))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += cast(T[at[i], k], BF16) * B[k, j]

    schedule = nest.create_schedule()
    ii, jj, kk = schedule.tile({i: 64, j: 64, k: 32})
    schedule.reorder(i, j, k, ii, jj, kk)
    plan = schedule.create_plan(Target("H100"))
    plan.cache(B, index=ii)
    plan.cache(C, index=k, location=plan.target.MemorySpace.MMA_FRAGMENT)
    plan.tensorize((ii, jj, kk), MMAShape.M64N64K16, 2, prologue_op=MMAFragmentOp.SET)
    random = np.random.default_rng(1)
    t, rows = random.integers(-9, 9, (50, 64)).astype(np.int8), random.integers(0, 50, 64).astype(np.int32)
    b, c = random.integers(-3, 4, (64, 64)).astype(BF16.numpy), np.zeros((64, 64), np.float32)
    plan.build(args=(T, at, B, C))(t, rows, b, c)
    assert np.array_equal(c, t[rows].astype(np.float32) @ b.astype(np.float32))


def test_a_cache_that_converts() -> None:
    """Threads fill a cache with A in another type, and compute A of what it keeps."""
    plan, arrays = register_product((64, 64, 128), scaled(BF16), producer=False, tile=(64, 64, 64))
    at = plan.caches.pop(0).at
    plan.cache(arrays[0], index=at, pipeline_stages=2, element_type=F16)
    run(plan, arrays, on_host("", BF16))


def test_elements_at_quotients() -> None:
    """Two weights of 4 bits a byte, and a scale for each group of 32 along K."""
    P, S = Array(Role.INPUT, tw.uint8, (64, 32), name="P"), Array(Role.INPUT, F32, (64, 2), name="S")
    B, C = Array(Role.INPUT, BF16, (64, 64), name="B"), Array(Role.OUTPUT, F32, (64, 64), name="C")
    nest = Nest((64, 64, 64))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        bits = (cast(P[i, k // 2], tw.int32) >> cast(k % 2, tw.int32) * 4) & 15
        C[i, j] += cast(cast(bits - 8, F32) * S[i, k // 32], BF16) * B[k, j]

    schedule = nest.create_schedule()
    ii, jj, kk = schedule.tile({i: 64, j: 64, k: 32})
    schedule.reorder(i, j, k, ii, jj, kk)
    plan = schedule.create_plan(Target("H100"))
    for operand in (P, B):
        plan.cache(operand, index=ii)
    plan.cache(C, index=k, location=plan.target.MemorySpace.MMA_FRAGMENT)
    plan.tensorize((ii, jj, kk), MMAShape.M64N64K16, 2, prologue_op=MMAFragmentOp.SET)
    random = np.random.default_rng(1)
    p, s = random.integers(0, 256, (64, 32)).astype(np.uint8), np.exp2(random.integers(-3, 3, (64, 2))).astype("f4")
    b, c = random.integers(-3, 4, (64, 64)).astype(BF16.numpy), np.zeros((64, 64), np.float32)
    plan.build(args=(P, S, B, C))(p, s, b, c)
    weights = (np.stack([p & 15, p >> 4], 2).reshape(64, 64).astype(np.float32) - 8) * np.repeat(s, 32, axis=1)
    assert np.array_equal(c, weights @ b.astype(np.float32))


@pytest.mark.parametrize(
    ("extents", "columns", "options"),
    [
        ((136, 80, 144), 16, {}),
        ((136, 80, 144), 80, {"producer": False, "stages": 3}),
        ((64, 128, 128), 64, {"stages": 1}),
    ],
    ids=str,
)
def test_another_nest_computes(extents: tuple[int, int, int], columns: int, options: dict[str, Any]) -> None:
    """Weights of a softmax that never reach memory, for one tile of columns and for several."""
    plan, arrays = fused_product(extents, columns, **options)
    (m, n, k), random = extents, np.random.default_rng(2)
    s, b = random.standard_normal((m, k)).astype(np.float32), random.standard_normal((k, n)).astype(BF16.numpy)
    top, c = s.max(1), np.full((m, n), np.nan, np.float32)
    plan.build("fused", args=arrays)(s, top, b, c)
    weights = np.exp(s - top[:, None]).astype(BF16.numpy).astype(np.float64)
    exact = weights @ b.astype(np.float64)
    # Another exponential function may round a weight to a neighbour.
    assert np.abs(c - exact).max() <= 2.0**-9 * (weights @ np.abs(b.astype(np.float64))).max()


def test_every_product_of_registers_is_a_shape() -> None:
    """Each RS atom that wraps belongs to one shape and its types, and no shape has another one."""
    arch = Arch.parse("sm_90a")
    types = (F16, BF16, tw.tfloat32, E4M3, tw.float8_e5m2, tw.int8, tw.uint8)
    shapes = [shape for shape in MMAShape if shape.is_of_warpgroup]
    cases = itertools.product(shapes, types, types, (F16, F32, tw.int32))
    found = [r.mmas[0].atom.name for s, a, b, c in cases if (r := find_recipe(arch, s, (a, b), c, True))]
    wanted = {x for x in NAMES if "_RS" in x and "SATURATE" not in x and not re.search(r"_F16E\dM\d", x)}
    assert len(found) == len(set(found))
    assert set(found) == wanted


SMALL = [x for x in vars(dtypes).values() if isinstance(x, tw.DType) and x.kind != "bool" and 8 <= x.bits <= 16]


def test_conversions_are_exact_where_no_number_changes() -> None:
    """All numbers of each type of up to 16 bits, there and back, against what `is_exact` says."""
    assert len(SMALL) >= 10
    for type in SMALL:
        for other in (*SMALL, tw.int32, F32):
            with np.errstate(all="ignore"):
                every = np.arange(1 << type.bits).astype(f"u{type.bytes}").view(type.numpy)
                every = every[np.isfinite(every.astype(np.float64))] if type.is_float else every
                same = np.array_equal(every.astype(other.numpy).astype(np.float64), every.astype(np.float64))
            if type.is_float and not other.is_float:
                same = False  # conversions of floats to integers are not asked for
            assert is_exact(type, other) == same, (type, other)


def test_each_synchronisation_is_needed_and_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """While A is computed, the products of the stage before run: waits, fences and barriers of such a loop."""
    plan, arrays = register_product((64, 64, 320), scaled(BF16), tile=(64, 64, 64))
    launches: list[tuple[tuple[Any, ...], Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(sim, "execute", lambda *given, **more: launches.append((given, more)))
        plan.build("product", args=arrays)(
            np.ones((64, 320), np.int8), np.ones(64, "f4"), np.ones((64, 320), BF16.numpy).T, np.zeros((64, 64), "f4")
        )
    ((launched, more),) = launches
    assert findings(launched, more) == []
    kernel = launched[0]
    blocks = [kernel.body, *(b for op in kernel.body.walk() for b in op.blocks)]
    places = [(b, op) for b in blocks for op in b.ops if isinstance(op, SYNCHRONISATIONS)]
    kept = []
    for block, op in places:
        with without(block, op):
            if not findings(launched, more):
                kept.append(op)
    # The wait that leaves one group open has nothing to wait for: that before the registers are written was for all,
    # and lets the warps meet. Nobody waits for the last stage.
    assert sorted(type(op).__name__ for op in kept) == ["Barrier", "MbarrierArrive", "WgmmaWait"], kept
    assert [op.pending for op in kept if isinstance(op, WgmmaWait)] == [1]
    assert [op.effects.together for op in kept if isinstance(op, Barrier)] == [Scope.WARP]


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"producer": False}, {"blocks": 132, "stores": True}], ids=str)
def test_the_kernel_compiles_cleanly(options: dict[str, Any]) -> None:
    """The largest tile: no spills, no product that waits for another; conversions come before the wait."""
    plan, arrays = register_product(
        (4096, 4096, 4096), scaled(BF16), MMAShape.M64N256K16, (128, 256, 64), (tw.int8, BF16, BF16), stages=4,
        **options,
    )  # fmt: skip
    module = plan.build("product", args=arrays).lower().module
    assert not module.resources.spills and not module.resources.stack_bytes, module.resources
    assert not re.search(r"C75\d\d", module.log), module.log
    report = plan.report()
    assert (report.mma, report.instructions, report.k_trips, report.fragments_b) == (4, 4, 64, 0)
