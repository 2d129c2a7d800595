"""Whole generated HIP files, as they were when somebody last read it: `pytest tests/golden --update-golden`."""

from __future__ import annotations

import difflib
from pathlib import Path

import numpy as np
import pytest
from tests.conformance.harness import Array
from tests.golden.test_golden import GOLDEN, HERE

import tilewright as tw
from tilewright.runtime.clang import compile_hip, find_clang
from tilewright.runtime.compiler_log import AmdResources

ARCHES = ("gfx908", "gfx90a")
STEPS = next(golden for golden in GOLDEN if golden.kernel == "histogram_of_steps")
PATH = HERE / "histogram_of_steps.hip"


def compare_or_update(text: str, path: Path, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        path.write_text(text, newline="\n")
        return
    kept = path.read_text() if path.exists() else ""
    difference = "".join(difflib.unified_diff(kept.splitlines(True), text.splitlines(True), path.name, "generated now"))
    assert not difference, f"where that is meant: pytest tests/golden --update-golden\n{difference}"


def test_text(request: pytest.FixtureRequest) -> None:
    compare_or_update(STEPS.source("gfx908"), PATH, request)


def test_both_targets_have_one_text() -> None:
    assert STEPS.source("gfx908") == STEPS.source("gfx90a")


@pytest.mark.skipif(find_clang() is None, reason="needs clang")
@pytest.mark.parametrize("arch", ARCHES)
def test_compiles_without_spills(arch: str) -> None:
    found = compile_hip(STEPS.source(arch), name=STEPS.kernel, arch=arch).resources
    assert isinstance(found, AmdResources)
    assert not found.spills and found.stack_bytes == 0, found
    assert 0 < found.registers <= 32 and found.static_shared_bytes == 256, found  # 32: all waves that a SIMD can hold


# --- 8-bit floats of gfx942 ------------------------------------------------------------------------------

PRODUCT = HERE / "product_of_bytes.hip"
MMA = tw.make_tiled_mma(tw.atoms.GFX942_16x16x32_F32FP8BF8F32_MFMA)


@tw.kernel
def product_of_bytes(c, a, b, scale):
    """C = (A B^T) * scale, rounded to an 8-bit float, of one 16 x 16 tile by a wave."""
    thread = MMA.get_slice(tw.thread_idx.x)
    part = thread.partition_C(c)
    sums = thread.make_fragment_C(part)
    tw.clear(sums)
    for k in range(a.shape[1] // 32):
        tile_a, tile_b = (tw.local_tile(x, (16, 32), (0, k)) for x in (a, b))
        tw.gemm(MMA, sums, thread.partition_A(tile_a), thread.partition_B(tile_b), sums)
    for i in tw.static_range(4):
        sums[i] = sums[i] * scale
    tw.copy(sums.to(c.dtype), part)


def product_arguments() -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(2)
    a = rng.integers(-4, 5, (16, 96)).astype(tw.float8_e4m3fnuz.numpy)
    b = rng.integers(-4, 5, (16, 96)).astype(tw.float8_e5m2fnuz.numpy)
    return np.zeros((16, 16), tw.float8_e4m3fnuz.numpy), a, b


def test_a_product_of_two_formats() -> None:
    c, a, b = product_arguments()
    product_of_bytes.configure(arch="gfx942")[1, 64](*map(tw.static, (c, a, b)), 0.5)
    exact = (a.astype(np.float32) @ b.astype(np.float32).T) * np.float32(0.5)
    assert np.array_equal(c.astype(np.float32), np.clip(exact, -240, 240).astype(c.dtype).astype(np.float32))
    assert np.abs(c.astype(np.float32)).max() > 8


def test_the_text_of_the_product(request: pytest.FixtureRequest) -> None:
    text = product_of_bytes.source(*map(tw.static, product_arguments()), 0.5, block=64, arch="gfx942")
    compare_or_update(text, PRODUCT, request)


@pytest.mark.skipif(find_clang("gfx942") is None, reason="needs clang 17 or later")
def test_the_machine_code_of_the_product() -> None:
    arguments = (*map(tw.static, product_arguments()), 0.5)
    code = product_of_bytes.sass(*arguments, block=64, arch="gfx942")
    assert "v_mfma_f32_16x16x32_fp8_bf8" in code and "v_cvt_pk_fp8_f32" in code
    found = product_of_bytes.resources(*arguments, block=64, arch="gfx942")
    assert not found.spills and found.stack_bytes == 0
