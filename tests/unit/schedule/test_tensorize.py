"""Tensorized plans: what they compute, and what they are made of."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.helpers.products import FIRST, LAST, Product
from tests.helpers.slow import covering

import tilewright as tw
from tilewright.dtypes import FLOAT8_AMD, int4
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location, Strategy
from tilewright.schedule.mma_shapes import MMAFragmentOp as Op

POLICIES = ["PASS_ORDER", "BLOCK_ORDER"]
HALVES = [("M16N16K16", t) for t in ("float16", "bfloat16")] + [("M32N8K16", "float16"), ("M8N32K16", "bfloat16")]
BYTES = [(s, t) for s in ("M16N16K16", "M32N8K16", "M8N32K16") for t in ("int8", "uint8")]
CDNA = [
    *((s, "float32") for s in ("M16N16K4_B1", "M32N32K2_B1", "M64N64K1_B2", "M64N64K1_B4")),
    *((s, t) for s in ("M16N16K16_B1", "M32N32K8_B1", "M64N64K4_B2", "M64N64K4_B4") for t in ("float16", "int8")),
    *((s, "bfloat16") for s in ("M16N16K8_B1", "M32N32K4_B1", "M64N64K2_B2", "M64N64K2_B4")),
]
SHAPES = [
    *(("sm_80", s, t) for s, t in (*HALVES, *BYTES, ("M16N16K8", "float32"))),
    *(("sm_90a", s, t) for s, t in (HALVES[0], HALVES[3], BYTES[0], ("M16N16K8", "float32"))),
    *(("sm_75", s, "float16") for s in ("M16N16K16", "M32N8K16", "M8N32K16")),
    ("sm_70", "M16N16K16", "float16"),
    *(("gfx908", s, t) for s, t in CDNA),
    *(("gfx90a", s, t) for s, t in CDNA[:4]),
    *(("gfx90a", s, "bfloat16") for s in ("M16N16K16_B1", "M32N32K8_B1", "M64N64K4_B2")),
    ("gfx90a", "M16N16K4_B1", "float64"),
    *(
        ("gfx942", s, t)
        for t, s in (("float32", "M16N16K8_B1"), ("float32", "M32N32K4_B1"), ("float64", "M16N16K4_B1"))
    ),
    *(("gfx942", s, "int8") for s in ("M16N16K32_B1", "M32N32K16_B1", "M64N64K4_B4")),
    *(("gfx942", s, "bfloat16") for s in ("M16N16K16_B1", "M64N64K4_B4")),
]


def sums_of(dtype: str) -> str:
    return {"int8": "int32", "uint8": "int32", "float64": "float64"}.get(dtype, "float32")


@pytest.mark.parametrize(
    ("instruction", "policy"),
    [  # one policy of each shape in the suite, and each of the two with every other shape
        pytest.param(shape, policy, marks=pytest.mark.slow if n % 2 != m else ())
        for n, shape in enumerate(SHAPES)
        for m, policy in enumerate(POLICIES)
    ],
)
@pytest.mark.spread(8)
def test_every_shape(instruction: tuple[str, str, str], policy: str) -> None:
    """From global memory in two groups, and from shared memory in one."""
    target, shape, dtype = instruction
    product = Product(target, shape, dtype, sums_of(dtype), passes=2, fused=1, policy=policy)
    product.check()
    product.refuse_other_counts(product.plan.report())
    product = replace(product, passes=1, fused=None, shared=True, layouts=(LAST, LAST, FIRST))
    product.check()


@pytest.mark.parametrize("shape", ["M16N16K32_B1", "M32N32K16_B1"])
@pytest.mark.parametrize("types", [*itertools.product(FLOAT8_AMD, repeat=2)], ids=lambda t: f"{t[0]}-{t[1]}")
@pytest.mark.spread(3)
def test_eight_bit_floats_of_amd(shape: str, types: tuple[tw.DType, tw.DType]) -> None:
    a, b = map(str, types)
    product = Product("gfx942", shape, a, dtype_b=b, passes=2, fused=1, keep=True)
    product.check()
    product.refuse_other_counts(product.plan.report())
    replace(product, shared=True, layouts=(LAST, LAST, FIRST), keep=False).check()
    replace(product, output="float16", transposed=(True, False), short=(3, 5, 7)).check()


@pytest.mark.parametrize(
    ("groups", "instruction", "policy"),
    covering(
        [(p, f) for p in (1, 4, 6) for f in range(1, p + 1) if p % f == 0],
        [("sm_80", "M16N16K16", "float16"), ("gfx908", "M64N64K1_B2", "float32")],
        POLICIES,
    ),
)
@pytest.mark.spread(4)
def test_passes_and_groups(groups: tuple[int, int], instruction: tuple[str, str, str], policy: str) -> None:
    (passes, fused), (target, shape, dtype) = groups, instruction
    product = Product(target, shape, dtype, passes=passes, fused=fused, policy=policy, keep=passes % 2 == 0)
    product.check()
    product.refuse_other_counts(product.plan.report())


@pytest.mark.parametrize("keep", [False, True])
def test_a_single_turn_of_k_is_counted_once(keep: bool) -> None:
    product = Product(passes=2, size=(1, 1, 1), keep=keep)
    product.check()
    product.refuse_other_counts(product.plan.report())


def test_turns_of_other_loops_are_not_counted_as_turns_of_k() -> None:
    """Sums that are not kept: the loops over a warp's tiles run around the instructions, inside of that over K."""
    product = Product(tiles=(3, 2), size=(1, 1, 5))
    product.check()
    assert product.plan.report().k_trips == 5


def test_a_kernel_that_ran_is_counted_as_before() -> None:
    product = Product(passes=2, size=(2, 2, 2), keep=True)
    kernel = product.plan.build()
    before = kernel.report()
    kernel(*(x.copy() for x in product.values))
    assert kernel.report() == before == product.plan.report()


@pytest.mark.parametrize(("a", "b", "c", "shared"), covering(*[(FIRST, LAST)] * 3, [False, True]))
@pytest.mark.spread(2)
def test_layouts(a: Array.Layout, b: Array.Layout, c: Array.Layout, shared: bool) -> None:
    Product(layouts=(a, b, c), shared=shared, keep=True, staged=shared, tiles=(2, 2)).check()


@pytest.mark.parametrize(
    ("transposed", "shared", "layouts"),
    covering([(True, False), (False, True), (True, True)], [False, True], [(FIRST, FIRST, FIRST), (LAST, LAST, LAST)]),
)
@pytest.mark.spread(2)
def test_transposed_accesses(transposed: tuple, shared: bool, layouts: tuple) -> None:
    Product(transposed=transposed, shared=shared, layouts=layouts, keep=True, tiles=(1, 2)).check()


@pytest.mark.parametrize(
    ("stages", "kind", "fragments"),
    covering([1, 2, 3, 4], [("sm_80", "float16"), ("sm_80", "int8"), ("sm_75", "float16")], [False, True]),
)
@pytest.mark.spread(4)
def test_pipelines(kind: tuple[str, str], stages: int, fragments: bool) -> None:
    target, dtype = kind
    Product(
        target, dtype=dtype, output=sums_of(dtype), shared=True, stages=stages, fragments=fragments, keep=True,
        warps=(2, 2), tiles=(2, 2), steps=2, size=(2, 1, 5), layouts=(FIRST, LAST, FIRST),
    ).check()  # fmt: skip


@pytest.mark.parametrize("passes", [1, 2])
def test_fragments_ahead_of_global_memory(passes: int) -> None:
    Product(fragments=True, keep=True, tiles=(2, 1), steps=3, passes=passes).check()


@pytest.mark.parametrize("output", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.spread(2)
def test_c_of_another_type(output: str, keep: bool) -> None:
    product = Product(output=output, keep=keep, staged=keep, warps=(1, 2), layouts=(FIRST, FIRST, LAST))
    product.check()


def test_batches() -> None:
    Product(batch=3, shared=True, keep=True, warps=(2, 1)).check()
    Product("gfx90a", "M32N32K2_B1", "float32", batch=2, keep=True).check()


OPERATIONS: dict[str, Any] = {
    "relu": ((Op.SET, 0.0), (Op.ReLU, None)),
    "relu without a branch": ((Op.SET, 2.0), (Op.ReLU_NoConditional, None)),
    "scale": ((Op.SCALE, 2.0), (Op.SCALE, 0.5)),
    "functions": ((lambda x: x * x, None), (lambda x: x + 1.0, None)),
}


@pytest.mark.parametrize(
    ("operations", "target", "policy", "static"), covering(OPERATIONS, ["sm_80", "gfx908"], POLICIES, [False, True])
)
@pytest.mark.spread(3)
def test_operations(operations: str, target: str, policy: str, static: bool) -> None:
    prologue, epilogue = OPERATIONS[operations]
    shape = "M16N16K16" if target == "sm_80" else "M64N64K4_B2"
    product = Product(
        target, shape, prologue=prologue, epilogue=epilogue, policy=policy, keep=True, passes=2, fused=1, static=static
    )
    product.check()
    product.refuse_other_counts(product.plan.report())


@pytest.mark.parametrize("policy", POLICIES)
def test_operations_without_a_loop_over_k(policy: str) -> None:
    Product(prologue=(Op.SET, 0.0), epilogue=(Op.ReLU, None), policy=policy, size=(2, 2, 1), passes=3).check()


@pytest.mark.parametrize(("fused", "groups"), [(8, 1), (2, 4)])
def test_the_reference_case(fused: int, groups: int) -> None:
    """2048 x 1024 x 2048 in float32 on gfx908 with eight passes of 16 x 16 x 4: counts at full size, values at small."""
    product = Product("gfx908", "M16N16K4_B1", "float32", passes=8, fused=fused, keep=True, size=(128, 64, 64))
    assert product.extents == (2048, 1024, 2048)
    report = product.plan.report()
    assert (report.fragments_a, report.fragments_b, report.mma, report.k_trips) == (fused, fused, 8, 64)
    assert report.loads_a == report.loads_b == fused * groups == 8
    assert (report.grid, report.block) == ((64, 128, 1), (64, 1, 1))
    replace(product, size=(2, 2, 2)).check()


def test_random_floats_are_within_the_bound_of_their_sums() -> None:
    product = Product(shared=True, keep=True, tiles=(2, 2), size=(1, 1, 4), prologue=(Op.SET, 0.0))
    random = np.random.default_rng(3)
    a, b, c = (random.standard_normal(x.shape).astype(x.dtype) for x in product.values)
    product.plan.build()(a, b, c)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = a.shape[1] * 2.0**-23 * (abs(a.astype(np.float64)) @ abs(b.astype(np.float64)))
    assert (abs(c - exact) <= bound).all()


@pytest.mark.parametrize("stages", [2, 3])
def test_a_single_step_of_each_tile_of_shared_memory(stages: int) -> None:
    """There is one set of fragments: it is multiplied before the next tile is read into it."""
    Product(shared=True, stages=stages, fragments=True, keep=True, size=(1, 1, 4), tiles=(2, 2)).check()


@pytest.mark.parametrize("steps", [1, 3])
def test_fragments_of_several_steps(steps: int) -> None:
    """Fragments that are held for more of K than one tile takes: each tile multiplies its own."""
    product = Product(keep=True, steps=steps, size=(1, 1, 2), tiles=(2, 2))
    plan = product.plan
    a, b, _ = product.arrays
    step = plan.serial[1]  # behind the loop over K of the whole block
    for array in (a, b):
        plan.cache(array, index=step, location=Location.MMA_FRAGMENT)
    product.check()


def test_a_box_that_does_not_divide_among_the_threads() -> None:
    Product(shared=True, stages=2, keep=True, passes=3, steps=4, size=(1, 1, 2)).check()


@pytest.mark.parametrize("policy", POLICIES)
def test_whole_sums_take_whole_numbers(policy: str) -> None:
    product = Product(dtype="int8", output="int32", keep=True, policy=policy, prologue=(Op.SET, 3.0))
    product.check()
    replace(product, prologue=(Op.SCALE, 2.0), epilogue=(Op.SCALE, 3.0)).check()


def test_counts_are_items_too() -> None:
    report = Product(passes=2).plan.report()
    assert dict(report) == {**report.as_json(), "grid": report.grid, "block": report.block}
    assert report["mma"] == report.mma == 2
    with pytest.raises(KeyError, match="multiplications"):
        report["multiplications"]


@pytest.mark.parametrize(
    ("fragments", "steps", "ring", "target"),
    covering(["A", "B"], [1, 2], ["none", "one", "both"], ["sm_80", "gfx908"]),
)
@pytest.mark.spread(2)
def test_fragments_ahead_of_one_operand(fragments: str, steps: int, ring: str, target: str) -> None:
    """The other operand is read by each tile: from its buffers, or from global memory."""
    product = Product(target, steps=steps, keep=True, warps=(2, 2), size=(1, 1, 4))
    plan, order = product.plan, product.plan.nest.order
    for array in product.arrays[:2]:
        if ring == "both" or (ring == "one" and array.name != fragments):
            plan.cache(array, index=order[5], pipeline_stages=3)
        if array.name == fragments:
            plan.cache(array, index=order[6], location=Location.MMA_FRAGMENT, double_buffer=True)
    product.check()


def test_arrays_of_tfloat32_are_of_float32() -> None:
    product = Product(dtype=tw.tfloat32, shape="M16N16K8", shared=True, keep=True)  # type: ignore[arg-type]
    assert product.arrays[0].element_type is tw.float32
    product.check()
    with pytest.raises(tw.ScheduleError, match="array A is of int4, whose elements have no places of their own"):
        Array(Role.INPUT, int4, (8, 8), name="A")


@pytest.mark.parametrize(
    ("strategy", "vectorize", "stages", "warps"),
    covering(Strategy, [True, 2, False], [1, 2], [(1, 1), (1, 2), (1, 3)]),
)
@pytest.mark.spread(3)
def test_deep_boxes_divide_among_threads_or_not(strategy: Strategy, vectorize: bool, stages: int, warps: tuple) -> None:
    """192 elements along K: the swizzled layout cuts them into 3 x 64, and threads may take runs across the cuts."""
    product = Product(passes=4, steps=3, size=(1, 1, 2), warps=warps, layouts=(FIRST, LAST, FIRST), keep=True)
    for array in product.arrays[:2]:
        product.plan.cache(array, level=6, pipeline_stages=stages, strategy=strategy, vectorize=vectorize)
    product.check()
