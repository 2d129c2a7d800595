"""The tensor-core examples: right on the simulator, without spills, and free of bank conflicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers.declared_effects import declared_effects
from tests.helpers.slow import covering, rest_is_slow

import tilewright as tw
from tilewright.demo import Case, collect_cases, example_files, run_case, runner
from tilewright.demo.examples import examples_folder, load_example
from tilewright.draw import traffic
from tilewright.runtime import libraries

FILES = example_files(examples_folder() / "tensorcore")
MODULES = {path.stem: load_example(path) for path in FILES}
CASES = collect_cases(FILES, "sim", quick=True)
TARGETS = ("sm_80", "sm_90a")


def test_every_file_has_cases() -> None:
    for path in FILES:
        assert collect_cases([path], "sim", quick=True), path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.spread(3)
def test_case(case: Case) -> None:
    with declared_effects():
        report = run_case(case, "sim")
    assert report.passed, report.failure
    assert report.error is not None and report.error <= (report.limit or 0.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.spread(4)
def test_case_checks_its_kernel(case: Case) -> None:
    """The output holds no right answer before the launch."""
    trial = case.prepare()
    assert runner.greatest_difference(trial.result(), trial.expected) > trial.limit


KERNELS = [(stem, name) for stem, module in MODULES.items() for name, value in vars(module).items()
           if isinstance(value, tw.Kernel)]  # fmt: skip


@pytest.mark.parametrize(("stem", "name"), KERNELS)
@pytest.mark.parametrize("arch", rest_is_slow(TARGETS, "sm_90a"))
@pytest.mark.spread(3)
def test_kernels_compile_without_spills(stem: str, name: str, arch: str) -> None:
    module = MODULES[stem]
    grid, block, args = getattr(module, f"example_{name}")()
    resources = getattr(module, name)[grid, block].resources(*args, arch=arch)
    assert not resources.spills and resources.local_bytes == 0, resources


@pytest.mark.parametrize(("stem", "name"), KERNELS)
@pytest.mark.spread(2)
def test_kernels_use_the_instructions(stem: str, name: str) -> None:
    module = MODULES[stem]
    grid, block, args = getattr(module, f"example_{name}")()
    ptx = getattr(module, name)[grid, block].ptx(*args, arch="sm_80")
    assert "mma.sync" in ptx
    assert ("ldmatrix" in ptx) == ("cp.async" in ptx) == (name not in ("single_tile", "matmul_8x8x4"))


@pytest.mark.parametrize("k", rest_is_slow([32, 64, 96, 128, 160], 32, 96, 160))
def test_few_tiles_of_k(k: int) -> None:
    """Fewer tiles than stages, as many, and one more; whole numbers, so that sums are exact."""
    random = np.random.default_rng(k)
    a, b = (random.integers(-4, 5, (rows, k)).astype(np.float16) for rows in (128, 256))
    c = np.full((128, 256), np.nan, np.float32)
    MODULES["03_multistage"].matmul(c, a, b, stages=4)
    assert np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


@pytest.mark.parametrize("k", rest_is_slow([32, 64, 96, 160], 32, 160))
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.spread(2)
def test_few_tiles_of_k_for_specialised_warps(k: int, stages: int) -> None:
    """A ring that is never full, one that is filled again, and one of a single stage."""
    random = np.random.default_rng(k)
    a, b = (random.integers(-4, 5, (rows, k)).astype(np.float16) for rows in (256, 128))
    c = np.full((256, 128), np.nan, np.float32)
    MODULES["05_warp_specialised"].matmul(c, a, b, stages=stages)
    assert np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


@pytest.mark.parametrize("arch", rest_is_slow(TARGETS, "sm_90a"))
def test_instructions_of_specialised_warps(arch: str) -> None:
    if libraries.find_program("nvdisasm") is None:
        pytest.skip("needs nvdisasm")
    module = MODULES["05_warp_specialised"]
    grid, block, args = module.example_matmul_warp_specialised()
    sass = module.matmul_warp_specialised[grid, block].sass(*args, arch=arch)
    assert sass.count("BAR.SYNC") == 1  # after the mbarriers are made; the loops hold none of the whole block
    assert "ARRIVES.LDGSTSBAR" in sass  # the arrival that follows the copies
    assert ("SYNCS.PHASECHK.TRANS64.TRYWAIT" in sass) == (arch == "sm_90a")


@pytest.mark.parametrize(
    ("extents", "majors"), covering([(127, 257, 63), (130, 9, 65), (1, 1, 1)], ["KK", "MK", "KM", "MM"], of=1), ids=str
)
@pytest.mark.spread(2)
def test_any_extents(extents: tuple[int, int, int], majors: str) -> None:
    """Rows begin at multiples of 16 bytes; what lies between them is not a number, and stays as it is."""
    m, n, k = extents
    module, random = MODULES["03_multistage"], np.random.default_rng(k)

    def padded(rows: int, columns: int, major: str, dtype: Any) -> Any:
        memory = np.full((rows, -(-columns // 8) * 8) if major == "K" else (columns, -(-rows // 8) * 8), np.nan, dtype)
        matrix = (memory if major == "K" else memory.T)[:rows, :columns]
        matrix[...] = random.integers(-4, 5, (rows, columns))
        return matrix

    a, b = padded(m, k, majors[0], np.float16), padded(n, k, majors[1], np.float16)
    c, d = padded(m, n, "K", np.float32), padded(m, n, "K", np.float32)
    bias = random.integers(-4, 5, n).astype(np.float16)
    module.matmul(d, a, b, c, bias, alpha=2.0, beta=-1.0, activation=module.relu)
    expected = 2 * (a.astype(np.float32) @ b.astype(np.float32).T) - c + bias
    assert np.array_equal(d, np.maximum(expected, 0))
    assert np.isnan(d.base[:, n:]).all()


# --- bank conflicts ------------------------------------------------------------------------------------


def offsets(smem: Any, dtype: tw.DType) -> tw.Tensor:
    """Return a tensor, as wide as its elements will be, that holds the offset of each."""
    return tw.tensor(np.arange(smem.cosize, dtype=f"uint{dtype.bits}"), smem)


def conflicts(partition: Callable[[int, tw.Tensor], tw.Tensor], tile: tw.Tensor, threads: int, width: int) -> list[str]:
    """Return what is wrong with the accesses of all warps to a tile of offsets, `width` bytes a lane and access.

    `partition(thread, tile)` gives what one thread accesses, neighbours first.
    """
    element = tile.dtype.bytes
    parts = [partition(thread, tile) for thread in range(threads)]
    starts = [[element * int(part[n]) for n in range(0, tw.size(part), width // element)] for part in parts]
    warps = [starts[first : first + 32] for first in range(0, threads, 32)]
    found = [traffic(addresses, width) for warp in warps for addresses in zip(*warp, strict=True)]
    assert found
    return [str(t) for t in found if not t.is_free]


def reads(copy: tw.TiledCopy) -> Callable[[int, tw.Tensor], tw.Tensor]:
    return lambda thread, tile: copy.get_slice(thread).partition_S(tile)


def writes(copy: tw.TiledCopy) -> Callable[[int, tw.Tensor], tw.Tensor]:
    return lambda thread, tile: copy.get_slice(thread).partition_D(tile)


def test_the_model_finds_conflicts() -> None:
    """Without the swizzle, four of the eight rows of a matrix begin in the same bank."""
    plan = MODULES["03_multistage"].plan_for(tw.float16, tw.float16, (128, 256, 32), 4)
    plain = offsets(tw.row_major(plan.tile[::2]), tw.float16)
    assert "4 words at once" in conflicts(reads(plan.load_a), plain, 32, 16)[0]


def test_single_tile_has_no_conflicts() -> None:
    module = MODULES["01_single_tile"]
    a, b = (offsets(smem, tw.float32) for smem in (module.SMEM_A, module.SMEM_B))
    for copy, tile, width in ((module.COPY_A, a, 16), (module.COPY_B, b, 8)):
        assert not conflicts(writes(copy), tile, 32, width)
    for copy, tile in ((module.LOAD_A, a), (module.LOAD_B, b)):
        assert not conflicts(reads(copy), tile, 32, 16)


def test_double_buffered_has_no_conflicts() -> None:
    module = MODULES["02_tf32_double_buffered"]
    a, b = (offsets(smem, tw.float32)[:, :, 1] for smem in (module.SMEM_A, module.SMEM_B))
    threads = module.MMA.size
    assert not conflicts(writes(module.COPY_A), a, threads, 16)
    assert not conflicts(writes(module.COPY_B), b, threads, 16)
    assert not conflicts(lambda thread, tile: module.MMA.get_slice(thread).partition_A(tile), a, threads, 4)
    assert not conflicts(reads(module.LOAD_B), b, threads, 16)


def test_8x8x4_has_no_conflicts() -> None:
    module = MODULES["06_f16_8x8x4"]
    tile, threads = offsets(module.SMEM, tw.float16), module.MMA.size
    assert not conflicts(writes(module.COPY), tile, threads, 16)
    for operand in ("partition_A", "partition_B"):
        assert not conflicts(
            lambda thread, t, o=operand: getattr(module.MMA.get_slice(thread), o)(t), tile, threads, 16
        )
    plain = offsets(tw.col_major((module.TILE_M, module.TILE_K)), tw.float16)
    assert conflicts(lambda thread, t: module.MMA.get_slice(thread).partition_A(t), plain, threads, 16)


def test_8x8x4_reads_vectors_and_runs_before_ampere() -> None:
    module = MODULES["06_f16_8x8x4"]
    grid, block, args = module.example_matmul_8x8x4()
    launcher = module.matmul_8x8x4[grid, block]
    assert not launcher.resources(*args, arch="sm_75").spills
    source = launcher.source(*args, arch="sm_70")
    assert source.count("mma_m8n8k4") and "cp_async" not in source
    shared = [line for line in launcher.ptx(*args, arch="sm_75").splitlines() if "ld.shared" in line]
    assert shared and all("ld.shared.v4" in line for line in shared)


@pytest.mark.parametrize(
    ("tile", "majors"),
    covering([(128, 256, 32), (128, 256, 64), (128, 128, 32)], ["KK", "MK", "KM", "MM"], of=1),
    ids=str,
)
@pytest.mark.spread(2)
def test_multistage_has_no_conflicts(tile: tuple[int, int, int], majors: str) -> None:
    module = MODULES["03_multistage"]
    plan = module.plan_for(tw.float16, tw.float16, tile, 2, majors)
    a, b = (offsets(smem, tw.float16)[:, :, 1] for smem in (plan.smem_a, plan.smem_b))
    for operand, copy, load in ((a, plan.copy_a, plan.load_a), (b, plan.copy_b, plan.load_b)):
        assert not conflicts(writes(copy), operand, module.THREADS, 16)
        assert not conflicts(reads(load), operand, module.THREADS, 16)


@pytest.mark.parametrize("out", [tw.float16, tw.float32], ids=str)
@pytest.mark.parametrize("tile", [(128, 256, 32), (128, 128, 32)], ids=str)
@pytest.mark.spread(2)
def test_epilogue_has_no_conflicts(tile: tuple[int, int, int], out: tw.DType) -> None:
    """Sums leave the registers in pairs, and shared memory in vectors of 16 bytes."""
    module = MODULES["03_multistage"]
    plan = module.plan_for(tw.float16, out, tile)
    sums = offsets(plan.smem_d, tw.float32)
    assert not conflicts(lambda thread, t: plan.mma.get_slice(thread).partition_C(t), sums, module.THREADS, 8)
    assert not conflicts(reads(plan.store), sums, module.THREADS, 16)


SPILLS = [
    *(((128, 256, 64), majors, True, "sm_90a") for majors in ("KM", "MM", "KK", "MK")),
    *(((128, 256, 64), majors, False, "sm_90a") for majors in ("KK", "MM")),
    ((128, 256, 32), "KK", True, "sm_80"),
    ((128, 128, 32), "MK", False, "sm_80"),
]


@pytest.mark.parametrize(
    ("tile", "majors", "has_edges", "arch"),
    [pytest.param(*case, marks=pytest.mark.slow if n in (2, 3, 5) else ()) for n, case in enumerate(SPILLS)],
)
@pytest.mark.spread(2)
def test_multistage_compiles_without_spills(
    tile: tuple[int, int, int], majors: str, has_edges: bool, arch: str
) -> None:
    module, dtype = MODULES["03_multistage"], tw.float16
    plan = module.plan_for(dtype, dtype, tile, 3, majors, has_edges=has_edges)
    a, b = (tw.spec(dtype, (4096, 4096), stride=None if major == "K" else (1, 4096)) for major in majors)
    d, bias, one = tw.spec(dtype, (4096, 4096)), tw.spec(dtype, (4096,)), np.float32(1)
    resources = module.matmul_multistage[512, module.THREADS].resources(d, a, b, d, bias, one, one, plan, arch=arch)
    assert not resources.spills and resources.local_bytes == 0, resources


@pytest.mark.parametrize("name", ["INT8", "FP64", "FP64_HOPPER"])
def test_planned_has_no_conflicts(name: str) -> None:
    module = MODULES["04_int8_fp64"]
    plan = getattr(module, name)
    dtype = plan.mma.atom.dtype_a
    for smem, load in ((plan.smem_a, plan.load_a), (plan.smem_b, plan.load_b)):
        operand = offsets(smem, dtype)[:, :, 1]
        assert not conflicts(writes(plan.copy_ab), operand, module.THREADS, 16)
        assert not conflicts(reads(load), operand, module.THREADS, load.atom.bits // 8)


@pytest.mark.parametrize(
    ("name", "arch"), [("FP64", "sm_80"), ("FP64", "sm_90a"), ("FP64_HOPPER", "sm_90a")], ids=lambda x: x
)
def test_fp64_compiles_without_spills(name: str, arch: str) -> None:
    module = MODULES["04_int8_fp64"]
    matrix = tw.spec(tw.float64, (4096, 4096))
    launcher = module.matmul_planned[(32, 32), module.THREADS]
    resources = launcher.resources(matrix, matrix, matrix, getattr(module, name), arch=arch)
    assert not resources.spills and resources.local_bytes == 0, resources
