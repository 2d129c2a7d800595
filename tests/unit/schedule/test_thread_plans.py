"""Plans on threads: what they compute, print, and cost."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.nvrtc import compile_cuda, nvrtc_version
from tilewright.schedule.affine import Dimension
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location
from tilewright.schedule.nest import Nest
from tilewright.schedule.plan import Plan
from tilewright.schedule.schedule import fuse
from tilewright.schedule.targets import Target


def product(m: Any, n: Any, k: Any, target: str = "NVIDIA A100") -> tuple[Plan, tuple[Array, ...], dict[str, Any]]:
    """Return the plan of a matrix product: blocks of 16 x 16 threads, one element of C each."""
    a, b = Array(Role.INPUT, "float32", (m, k), name="A"), Array(Role.INPUT, "float32", (k, n), name="B")
    c = Array(Role.INPUT_OUTPUT, "float32", (m, n), name="C")
    nest = Nest((m, n, k))
    i, j, p = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        c[i, j] += a[i, p] * b[p, j]

    schedule = nest.create_schedule()
    ii, jj = schedule.tile({i: 16, j: 16})
    pp = schedule.split(p, 8)
    schedule.reorder(i, j, p, ii, jj, pp)
    plan = schedule.create_plan(Target(target))
    unit = plan.target.GridUnit
    plan.bind({i: unit.BLOCK_Y, j: unit.BLOCK_X, ii: unit.THREAD_Y, jj: unit.THREAD_X})
    return plan, (a, b, c), {"i": i, "j": j, "p": p, "ii": ii, "jj": jj, "pp": pp}


def cached(m: Any, n: Any, k: Any, stages: int = 1, target: str = "NVIDIA A100") -> Plan:
    plan, (a, b, c), index = product(m, n, k, target)
    plan.cache(c, index=index["p"], location=Location.PRIVATE)
    for array in (a, b):
        plan.cache(array, index=index["ii"], pipeline_stages=stages)
    return plan


def arguments(m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    a, b, c = (random.integers(-8, 8, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    return a, b, c


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("target", ["NVIDIA A100", "sm_75"])
@pytest.mark.spread(3)
def test_cached_products_with_edges_and_sizes_of_the_launch(stages: int, target: str) -> None:
    m, n, k = Dimension("M"), Dimension("N"), Dimension("K")
    a, b, c = arguments(33, 18, 21)
    expected = c + a @ b
    cached(m, n, k, stages, target).build()(a, b, c)
    np.testing.assert_array_equal(c, expected)


def test_the_standard_product_has_no_bank_conflicts() -> None:
    a, b, c = arguments(32, 32, 32)
    with tw.simulate(profile=True) as run:
        cached(32, 32, 32).build()(a, b, c)
    assert run.profile.shared_wavefronts == run.profile.shared_wavefronts_ideal


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("stages", [1, 3])
def test_sources_compile(arch: str, stages: int) -> None:
    try:
        nvrtc_version()
    except tw.TilewrightError:
        pytest.skip("needs NVRTC")
    source = cached(Dimension("M"), 64, 48, stages).build("product").source(arch)
    assert compile_cuda(source, name="product", arch=arch)


def test_names_in_the_source_are_the_users() -> None:
    source = cached(60, 64, 40).build("product").source()
    for text in ("const int ii = threadIdx.y;", "for (int p = 0; p < 40; p += 8)", "float rC[1];", "sA[ii * 8 + pp]"):
        assert text in source


def test_print_and_json_say_the_same() -> None:
    plan = cached(Dimension("M"), 64, 40, 3)
    assert str(plan) == (
        "# NVIDIA A100: 4 x ceil(M / 16) blocks of 16 x 16 threads\n"
        "for i in range(0, M, 16):                      # BLOCK_Y\n"
        "    for j in range(0, 64, 16):                 # BLOCK_X\n"
        "        for ii in range(16):                   # THREAD_Y\n"
        "            for jj in range(16):               # THREAD_X\n"
        "                rC = C[i + ii, j + jj]         # registers, 1 x 1 float32\n"
        "                for p in range(0, 40, 8):\n"
        "                    sA = A[i:i + 16, p:p + 8]  # shared memory, 16 x 8 float32, 3 buffers\n"
        "                    sB = B[p:p + 8, j:j + 16]  # shared memory, 8 x 16 float32, 3 buffers\n"
        "                    for pp in range(8):\n"
        "                        if i + ii < M:\n"
        "                            C[i + ii, j + jj] += A[i + ii, p + pp] * B[p + pp, j + jj]\n"
        "                C[i + ii, j + jj] = rC         # written back"
    )
    data = json.loads(plan.to_json())
    assert data["grid"] == [4, "ceil(M / 16)", 1] and data["block"] == [16, 16, 1]
    assert [loop["bound_to"] for loop in data["loops"]] == ["BLOCK_Y", "BLOCK_X", None, "THREAD_Y", "THREAD_X", None]
    assert [(cache["array"], cache["buffers"], cache["shape"]) for cache in data["caches"]] == [
        ("C", 1, [1, 1]),
        ("A", 3, [16, 8]),
        ("B", 3, [8, 16]),
    ]


def scaled(n: int, width: int) -> Plan:
    """Return y = x * alpha + row with vectors of `width` iterations."""
    x, y = Array(Role.INPUT, "float32", (4, n), name="x"), Array(Role.OUTPUT, "float32", (4, n), name="y")
    row, alpha = Array(Role.INPUT, "float32", (4,), name="row"), Array(Role.INPUT, "float32", (), name="alpha")
    nest = Nest((4, n))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        y[i, j] = x[i, j] * alpha + row[i]

    schedule = nest.create_schedule()
    v = schedule.split(j, width)
    plan = schedule.create_plan(Target("NVIDIA A100"))
    plan.bind({i: plan.target.GridUnit.BLOCK_X, j: plan.target.GridUnit.THREAD_X})
    plan.vectorize(v)
    return plan


@pytest.mark.parametrize(
    ("n", "width", "access"), [(32, 4, "float4"), (32, 8, "float4"), (36, 8, "float4"), (30, 2, "float2")]
)
def test_vectorized_loops_read_and_write_wide(n: int, width: int, access: str) -> None:
    kernel = scaled(n, width).build()
    source = kernel.source()
    assert f"*(const {access}*)&x[" in source and f"*({access}*)&y[" in source
    x, row = np.arange(4 * n, dtype=np.float32).reshape(4, n), np.arange(4, dtype=np.float32)
    y = np.zeros_like(x)
    kernel(x, y, row, 3.0)
    np.testing.assert_array_equal(y, x * 3 + row[:, None])


def test_vectors_are_as_narrow_as_alignment_asks() -> None:
    assert "float4" not in scaled(31, 4).build().source()


def test_interleaved_tiles_in_registers() -> None:
    """A thread's elements lie 8 apart, and those of other threads between them: each writes back its own."""
    a = Array(Role.INPUT_OUTPUT, "int32", (64,), name="a")
    nest = Nest((64,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        a[i] += i

    schedule = nest.create_schedule()
    thread = schedule.split(i, 8)
    plan = schedule.create_plan(Target("NVIDIA A100"))
    plan.bind({thread: plan.target.GridUnit.THREAD_X})
    assert plan.region(plan.cache(a, index=i, location=Location.PRIVATE)).shape == (8,)
    held = np.arange(64, dtype=np.int32)
    plan.build()(held)
    np.testing.assert_array_equal(held, 2 * np.arange(64))


def test_constants_temporaries_and_numbers() -> None:
    weights = Array(Role.CONST, "float32", layout=Array.Layout.LAST_MAJOR, data=np.arange(12).reshape(3, 4), name="w")
    a, b = Array(Role.INPUT, "float32", (3, 4), name="a"), Array(Role.OUTPUT, "float32", (3, 4), name="b")
    alpha, t = Array(Role.INPUT, "float32", (), name="alpha"), Array(Role.TEMP, "float32", (3, 4), name="t")
    nest = Nest((3, 4))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        t[i, j] = tw.maximum(a[i, j], 0) * weights[i, j]
        b[i, j] = tw.where(i < 2, t[i, j] + j / 2, alpha) * alpha

    kernel = nest.create_plan(Target("NVIDIA A100")).build("mixed")
    held = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
    result = np.zeros_like(held)
    kernel(held, result, np.float32(2))
    rows, columns = np.indices((3, 4))
    expected = np.where(rows < 2, np.maximum(held, 0) * np.arange(12).reshape(3, 4) + columns / 2, 2) * 2
    np.testing.assert_array_equal(result, expected)
    assert "float alpha" in kernel.source()


def test_functions_of_the_language_are_recorded() -> None:
    a, b = Array(Role.INPUT, "float32", (8,), name="a"), Array(Role.OUTPUT, "float32", (8,), name="b")
    nest = Nest((8,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        b[i] = tw.exp(a[i]) + tw.fma(a[i], 2.0, tw.sqrt(a[i])) + tw.minimum(tw.pow(a[i], 2.0), tw.abs(-a[i]))

    held = np.linspace(0, 1, 8, dtype=np.float32)
    result = np.zeros_like(held)
    nest.create_plan(Target("NVIDIA A100")).build()(held, result)
    np.testing.assert_allclose(
        result, np.exp(held) + held * 2 + np.sqrt(held) + np.minimum(held**2, held), rtol=1e-6
    )  # fmt: skip


def test_maxima_are_reductions() -> None:
    a, most = Array(Role.INPUT, "float32", (8,), name="a"), Array(Role.INPUT_OUTPUT, "float32", (1,), name="m")
    nest = Nest((8,))
    i = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        most[0] = tw.maximum(most[0], a[i])

    found = nest.statements[0].reduction
    assert found is not None and found[0] == "maximum"


@pytest.mark.parametrize("location", [Location.PRIVATE, Location.SHARED])
def test_what_a_written_box_has_between_the_writes_stays(location: Location) -> None:
    """2 i + 3 j reaches 0, 2, 3 and 5 of a box of 6: elements 1 and 4 are written back as they were."""
    a = Array(Role.OUTPUT, "int32", (6,), name="a")
    nest = Nest((2, 2))
    i, j = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        a[2 * i + 3 * j] = 7

    plan = nest.create_plan(Target("NVIDIA A100"))
    plan.cache(a, index=i, location=location)
    held = np.arange(6, dtype=np.int32)
    plan.build()(held)
    np.testing.assert_array_equal(held, [7, 1, 7, 7, 4, 7])


@pytest.mark.parametrize("length", [67, 97])
def test_boxes_that_do_not_divide_among_the_threads(length: int) -> None:
    """Each thread copies as many elements as any other or one less: none is left with the whole box."""
    a, b = Array(Role.INPUT, "int32", (length,), name="a"), Array(Role.INPUT_OUTPUT, "int32", (32,), name="b")
    nest = Nest((32, length - 31))
    i, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        b[i] = tw.maximum(b[i], a[i + k])

    plan = nest.create_plan(Target("NVIDIA A100"))
    plan.bind({i: plan.target.GridUnit.THREAD_X})
    plan.cache(a, index=k)
    held = np.random.default_rng(1).integers(0, 1000, length).astype(np.int32)
    result = np.zeros(32, np.int32)
    plan.build()(held, result)
    np.testing.assert_array_equal(result, [held[n : n + length - 31].max() for n in range(32)])
    assert f"< {-(-length // 32)}; " in plan.build().source()


def test_vectors_of_a_column_with_odd_gaps() -> None:
    """Two threads share three vectors of the only column, whose gap to the next one does not matter."""
    a, b = Array(Role.INPUT, "int32", (6, 1), Array.Layout.LAST_MAJOR), Array(Role.OUTPUT, "int32", (2, 6))
    nest = Nest((2, 6))
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: b.__setitem__((i, j), 2 * a[j, 0]))
    plan = nest.create_schedule().create_plan(Target("sm_80"))
    plan.bind({i: plan.target.GridUnit.THREAD_X})
    plan.cache(a, index=j, layout=tw.Layout((6, 1), (1, 7)))
    values, found = np.arange(6, dtype=np.int32)[:, None], np.zeros((2, 6), np.int32)
    kernel = plan.build()
    kernel(np.asfortranarray(values), found)
    np.testing.assert_array_equal(found, np.stack([2 * values[:, 0]] * 2))
    assert "cp_async_ca_8" in kernel.source()


def test_sums_that_begin_with_what_is_in_an_output_are_warned_of() -> None:
    a, b = Array(Role.INPUT, "int32", (4, 8), name="a"), Array(Role.OUTPUT, "int32", (4,), name="b")

    def plan_of(*starts: str) -> Plan:
        add = Nest((4, 8))
        i, k = add.get_indices()
        add.iteration_logic(lambda: b.__setitem__(i, b[i] + a[i, k]))
        schedule = add.create_schedule()
        for _ in starts:
            begin = Nest((4,))
            n = begin.get_indices()
            begin.iteration_logic(lambda n=n: b.__setitem__(n, 0))
            schedule = fuse(begin.create_schedule(), schedule, partial=1)
        return schedule.create_plan(Target("sm_80"))

    with pytest.warns(tw.TilewrightWarning, match="b is OUTPUT and is read, and nothing is written to it before"):
        plan_of().build()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values, sums = np.arange(32, dtype=np.int32).reshape(4, 8), np.full(4, -99, np.int32)
        plan_of("zero").build()(values, sums)
    np.testing.assert_array_equal(sums, values.sum(1))
