"""What the texts of the examples of schedules say of fused parts, policies, batches, convolutions and reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers.compilers import needs_nvrtc
from tests.helpers.slow import rest_is_slow

from tilewright.demo import example_files
from tilewright.demo.examples import examples_folder, load_example
from tilewright.runtime.clang import find_clang
from tilewright.schedule import Dimension, MMASchedulingPolicy, MMAShape, Plan

MODULES: dict[int, Any] = {  # Any: modules, by number
    int(path.name[:2]): load_example(path) for path in example_files(examples_folder() / "schedule")
}
FULL: dict[str, Callable[[], Plan]] = {
    "fused": lambda: MODULES[7].fused(2048, 2048, 2048),
    "function of the fragment": lambda: MODULES[7].by_function(2048, 2048, 2048),
    "batch": lambda: MODULES[9].batched(Dimension("batch"), 1024, 1024, 128),
    "shared weights": lambda: MODULES[9].shared_weights(Dimension("batch"), 1024, 1024, 128),
    "heads": lambda: MODULES[9].by_heads(Dimension("batch"), 1024, 1024, 128),
    "convolution on tensor cores": lambda: MODULES[10].on_tensor_cores(32, 55, 64, 128, 128),
    "convolution on threads": lambda: MODULES[10].on_threads(8, 55, 57, 61, 67),
    "sums": lambda: MODULES[11].sums(65536, 1, 1024),
    "sums of parts": lambda: MODULES[11].sums(512, 128, 1024),
    "softmax": lambda: MODULES[11].softmax(65536, 128),
}


@needs_nvrtc
@pytest.mark.parametrize("arch", rest_is_slow(["sm_80", "sm_90a"], "sm_90a"))
@pytest.mark.parametrize("make", FULL.values(), ids=FULL)
@pytest.mark.spread(2)
def test_full_extents_compile_without_spills(make: Callable[[], Plan], arch: str) -> None:
    resources = make().build().resources(arch)
    assert not resources.spills and resources.local_bytes == 0, resources


def test_fused_sums_are_in_no_memory() -> None:
    """The kernel takes no C, and has no more shared memory than the one that stores its sums at once."""
    fused, plain = (FULL[name]().build() for name in ("fused", "function of the fragment"))
    assert [array.name for array in fused.parameters] == ["A", "B", "bias", "D"]
    assert fused.report().shared_bytes == plain.report().shared_bytes == 2 * (64 * 32 + 32 * 64) * 2
    assert (fused.report().loads_c, plain.report().loads_c) == (0, 0)


@pytest.mark.skipif(find_clang() is None, reason="needs clang")
@pytest.mark.spread(2)
@pytest.mark.parametrize("fused", [pytest.param(8, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("shape", MODULES[8].SHAPES, ids=lambda shape: shape.name)
def test_block_order_takes_fewer_registers(shape: MMAShape, fused: int) -> None:
    in_passes, in_blocks = (
        MODULES[8].update(shape, policy, fused).report().registers
        for policy in (MMASchedulingPolicy.PASS_ORDER, MMASchedulingPolicy.BLOCK_ORDER)
    )
    assert in_blocks < in_passes


def test_one_kernel_serves_all_batches() -> None:
    kernel = MODULES[9].batched(Dimension("batch"), 64, 64, 32).build()
    random = np.random.default_rng(0)
    for batch in (1, 4):
        a, b = (random.integers(-3, 4, (batch, *shape)).astype(np.float16) for shape in ((64, 32), (32, 64)))
        c = np.full((batch, 64, 64), np.nan, np.float32)
        kernel(a, b, c)
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32))


@pytest.mark.parametrize(
    "extents", [(1, 5, 33, 16, 32), (1, 4, 32, 17, 32), (1, 4, 7, 16, 33), (2, 3, 35, 5, 34)], ids=str
)
@pytest.mark.spread(2)
def test_convolution_on_tensor_cores_takes_any_extents(extents: tuple[int, ...]) -> None:
    batch, rows, columns, inputs, outputs = extents
    random, taps = np.random.default_rng(0), MODULES[10].TAPS
    shapes = (batch, rows + taps - 1, columns + taps - 1, inputs), (taps, taps, inputs, outputs)
    x, w = (random.integers(-3, 4, shape).astype(np.float16) for shape in shapes)
    results = [np.full((batch, rows, columns, outputs), np.nan, np.float32) for _ in range(2)]
    for make, result in zip((MODULES[10].on_tensor_cores, MODULES[10].on_threads), results, strict=True):
        make(*extents).build()(x, w, result)
    np.testing.assert_array_equal(*results)


def test_fragments_of_images_are_read_without_conflicts() -> None:
    kernel = MODULES[10].on_tensor_cores(1, 4, 32, 16, 32).build()
    costs = [cost for buffer in kernel.analyze().launches[0].buffers for cost in buffer.each_cost()]
    reads = [(took, least) for pattern, took, least in costs if pattern.kind == "matrix"]
    assert reads and all(took == least for took, least in reads)


@pytest.mark.parametrize("rows", [3, 5])
def test_convolution_on_tensor_cores_takes_any_rows(rows: int) -> None:
    random = np.random.default_rng(0)
    x, w = (random.integers(-2, 3, shape).astype(np.float16) for shape in ((1, rows + 2, 34, 16), (3, 3, 16, 32)))
    y = np.full((1, rows, 32, 32), np.nan, np.float32)
    MODULES[10].on_tensor_cores(1, rows, 32, 16, 32).build()(x, w, y)
    taps = [
        x[:, i : i + rows, j : j + 32].astype(np.float32) @ w[i, j].astype(np.float32)
        for i in range(3)
        for j in range(3)
    ]
    np.testing.assert_array_equal(y, sum(taps))


@pytest.mark.parametrize("make", [lambda: MODULES[11].sums(64, 2, 64), lambda: MODULES[11].softmax(64, 128)])
def test_reductions_have_no_conflicts(make: Callable[[], Plan]) -> None:
    profile = make().build().analyze()
    assert profile.shared_wavefronts == profile.shared_wavefronts_ideal > 0


def test_softmax_of_large_numbers() -> None:
    x = np.random.default_rng(0).standard_normal((33, 5)).astype(np.float32) * 50
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    MODULES[11].softmax(33, 5).build()(x)
    np.testing.assert_allclose(x, powers / powers.sum(1, keepdims=True), rtol=1e-5, atol=1e-30)
