"""Groups of passes: written one after another, with a fence for the compiler before each, or as a loop of the kernel."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.helpers.compilers import needs_nvrtc
from tests.helpers.products import FIRST, LAST, Product

from tilewright.runtime.clang import compile_hip, find_clang
from tilewright.runtime.nvrtc import compile_cuda

FENCED = Product(passes=8, fused=2, keep=True, layouts=(FIRST, LAST, FIRST))
AMD = replace(FENCED, target="gfx908", dtype="float32", shape="M16N16K4")
needs_clang = pytest.mark.skipif(find_clang() is None, reason="needs clang")


def fences(product: Product) -> int:
    return len(re.findall(r"^ +compiler_fence\(", product.plan.build().source(), re.MULTILINE))


@pytest.mark.parametrize(("fused", "count"), [(8, 0), (4, 2), (2, 4), (1, 8)])
@pytest.mark.parametrize("product", [FENCED, AMD, replace(FENCED, keep=False), replace(FENCED, shared=True)])
@pytest.mark.spread(4)
def test_a_fence_before_each_group(product: Product, fused: int, count: int) -> None:
    assert fences(replace(product, fused=fused)) == count


def test_groups_of_each_block_where_blocks_come_one_after_another() -> None:
    blocks = replace(AMD, shape="M64N64K1_B2", passes=4, fused=2, keep=False)
    assert fences(blocks) == 4, "two blocks are computed up to each fence"
    assert fences(replace(blocks, policy="BLOCK_ORDER")) == 4, "each block has two groups of its own"


def test_a_loop_needs_no_fence_and_neither_do_fragments_that_are_held() -> None:
    assert fences(replace(FENCED, static=False)) == 0
    assert "int group = 0; group < 4" in replace(FENCED, static=False).plan.build().source()
    assert fences(replace(FENCED, shared=True, fragments=True)) == 0


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("product", [FENCED, AMD, replace(AMD, shape="M64N64K1_B4", policy="BLOCK_ORDER", keep=False)])
@pytest.mark.spread(2)
def test_results_are_those_of_one_group(product: Product, static: bool) -> None:
    replace(product, static=static).check()


def test_reads_of_a_fenced_kernel_promise_nothing() -> None:
    """What nobody writes is read ahead across any fence, where the pointer says so."""
    assert "__restrict__" not in FENCED.plan.build().source()
    assert "__restrict__" in replace(FENCED, fused=8).plan.build().source()


@needs_nvrtc
@pytest.mark.parametrize("arch", [pytest.param("sm_80", marks=pytest.mark.slow), "sm_90a"])
def test_ptxas_keeps_groups_apart(arch: str) -> None:
    """Registers fall by those of the fragments; without the fence they do not."""
    big = replace(FENCED, target=arch, warps=(2, 2), size=(4, 4, 4))
    counts = [replace(big, fused=fused).plan.build("product").resources().registers for fused in (8, 4, 2, 1)]
    assert [counts[0] - n >= fragments for n, fragments in zip(counts, (0, 32, 48, 56), strict=True)] == [True] * 4
    source = replace(big, fused=1).plan.build("product").source()
    for fence in ('asm volatile("" ::: "memory");', ""):
        emptied = re.sub(r"asm volatile\(\"bar.warp.*\n", f"{fence}\n", source)
        assert emptied != source
        assert compile_cuda(emptied, name="product", arch=arch).resources.registers > counts[3] + 20


@needs_clang
@pytest.mark.parametrize("arch", ["gfx908", pytest.param("gfx90a", marks=pytest.mark.slow)])
def test_clang_keeps_groups_apart(arch: str) -> None:
    big = replace(AMD, target=arch, warps=(2, 2), size=(4, 4, 4))
    counts = [replace(big, fused=fused).plan.build("product").resources().registers for fused in (8, 4, 2, 1)]
    assert counts[0] - counts[1] > 4 and counts == sorted(counts, reverse=True)
    source = replace(big, fused=1).plan.build("product").source()
    emptied = re.sub(r"^ +compiler_fence\(.*\n", "", source, flags=re.MULTILINE)
    assert emptied != source
    assert compile_hip(emptied, name="product", arch=arch).resources.registers > counts[3]
