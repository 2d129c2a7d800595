"""Machine code of finished operators: whole vectors, no spills, and enough loads under way."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.backends import sim
from tilewright.backends.sim import machine
from tilewright.kernels import _permute_kernels, _row_gradient_kernels, _row_kernels, permute, row_gradients, rows

ROWS = 8192
SIZES = [(tw.bfloat16, 4096), (tw.bfloat16, 131072), (tw.float32, 16384), (tw.float64, 8192), (tw.bfloat16, 128)]
QUICK = (("softmax", tw.bfloat16, 4096),)
CASES = [
    pytest.param(
        name, *size, marks=() if (name, *size) in QUICK else pytest.mark.slow, id=f"{name}-{size[0]}-{size[1]}"
    )
    for name in ("softmax", "rms_norm", "layer_norm")
    for size in SIZES
]


def arguments(name: str, dtype: tw.DType, columns: int, plan: rows.RowPlan) -> tuple[Any, ...]:
    x, row = tw.spec(dtype, (ROWS, columns)), tw.spec(dtype, (columns,))
    number = tw.spec(tw.float64 if dtype is tw.float64 else tw.float32, (ROWS,))
    eps = number.info.dtype.numpy.type(1e-5)
    if name == "softmax":
        return x, x, plan.tiles, plan.held, False
    if name == "rms_norm":
        return x, None, number, x, row, None, eps, plan.tiles, plan.held, False, columns % 8 == 0
    return x, number, number, x, row, row, eps, plan.tiles, plan.held, True, columns % 8 == 0


@pytest.mark.parametrize(("name", "dtype", "columns"), CASES)
def test_rows_are_whole_vectors_without_spills(name: str, dtype: tw.DType, columns: int) -> None:
    plan = rows.plan_rows(dtype.bits, columns, 16)
    family = "softmax" if name == "softmax" else "norm"
    kernel = getattr(_row_kernels, f"{family}_{'long' if plan.is_long else 'held'}")
    launch = kernel.configure(min_blocks=plan.min_blocks)[plan.grid(ROWS), plan.block]
    args = arguments(name, dtype, columns, plan)
    found = launch.resources(*args, arch="sm_90a")
    threads = int(np.prod(plan.block))
    assert not found.spills and found.local_bytes == 0
    resident = 65536 // (-(-found.registers // 8) * 8) // threads * threads
    assert resident * rows.BYTES >= 32768, (resident, found.registers)  # bytes of x under way on a multiprocessor
    code = str(launch.sass(*args, arch="sm_90a"))
    assert "LDG.E.128" in code and "STG.E.128" in code
    narrow = [line for line in code.splitlines() if "LDG" in line and ".128" not in line]
    assert not narrow, narrow[:3]
    if name == "layer_norm" and dtype is not tw.float64:  # one comparison for a vector, not for each element
        assert code.count("FSEL") <= 8


def test_a_row_has_as_many_threads_as_it_needs() -> None:
    for bits in (16, 32, 64):
        for columns in (1, 7, 8, 33, 1000, 4096, 16384, 32768, 32769, 10**6):
            for vector in (16, 8, bits // 8):
                plan = rows.plan_rows(bits, columns, vector)
                threads, beside = plan.block
                assert threads * beside >= 128 and threads <= 1024 and plan.held % threads == 0
                assert plan.is_long == (columns > 1024 * 512 // bits)
                assert plan.is_long or columns <= plan.held <= max(2 * columns + 16 * threads, 16 * threads)
                assert plan.held * bits <= threads * 512, "registers"


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)])
def test_tiles_are_whole_vectors(size: int) -> None:
    plan, dtype = permute.tile_plan(size, 256, 8192), {1: tw.uint8, 2: tw.uint16, 4: tw.uint32}[size]
    x, y = tw.spec(dtype, (64, 256, 8192)), tw.spec(dtype, (64, 8192, 256))
    args = y, x, plan
    launch = _permute_kernels.transpose_tiles[32768, plan.threads]
    found, code = launch.resources(*args, arch="sm_90a"), str(launch.sass(*args, arch="sm_90a"))
    tile_bytes = tw.size(plan.smem.shape) * size
    resident = min(2048, 65536 // (-(-found.registers // 8) * 8)) // plan.threads
    assert not found.spills and resident * tile_bytes >= 65536
    assert "LDGSTS.E.BYPASS.128" in code and "STG.E.128" in code


@pytest.mark.parametrize(("size", "count"), [(1, 3), (1, 16), (2, 4), (2, 12), (4, 6), (4, 8), (8, 2), (8, 7)])
@pytest.mark.spread(4)
def test_what_is_interleaved_has_no_bank_conflicts(size: int, count: int) -> None:
    smem, tiles = permute.interleaving_plan(size, count)
    together, rows_ = np.zeros(2048 // size * count, f"u{size}"), np.zeros((count, 2048 // size), f"u{size}")
    for y, x in ((together, rows_), (rows_, together)):
        profile = _permute_kernels.copy_interleaved[1, 128].analyze(y, x, count, smem, tiles)
        assert profile.shared_wavefronts == profile.shared_wavefronts_ideal


@pytest.mark.parametrize("run", [(32, None), (None, 16), (8, 8)], ids=str)
def test_tiles_of_several_runs_have_no_bank_conflicts(run: tuple[int | None, int | None]) -> None:
    plan = permute.tile_plan(2, 512, 512, run)
    (tall, wide), (down, across) = plan.smem.shape, plan.runs
    assert plan.runs == (128 // (run[0] or 128), 128 // (run[1] or 128))
    x, y = (
        np.zeros((a // n, n, b) if n > 1 else (a, b), np.uint16)
        for a, n, b in ((tall, down, wide), (wide, across, tall))
    )
    profile = _permute_kernels.transpose_tiles[1, plan.threads].analyze(y, x, plan)
    assert profile.shared_wavefronts == profile.shared_wavefronts_ideal


@pytest.mark.parametrize("is_read", [False, True])
def test_what_is_interleaved_is_whole_vectors(is_read: bool) -> None:
    smem, tiles = permute.interleaving_plan(2, 3)
    arrays = tw.spec(tw.uint16, (3 << 20,)), tw.spec(tw.uint16, (3, 1 << 20))
    args = (*(arrays[::-1] if is_read else arrays), 3, smem, tiles)
    launch = _permute_kernels.copy_interleaved[1024, 128]
    code = str(launch.sass(*args, arch="sm_90a"))
    assert not launch.resources(*args, arch="sm_90a").spills
    assert ("LDGSTS.E.BYPASS.128" if is_read else "LDG.E.128") in code and "STG.E.128" in code
    assert not re.search(r"(LDG|STG|LDS|STS)[.A-Z]*\.U?(8|16) ", code)


def test_tiles_are_for_all_threads() -> None:
    for size in (1, 2, 4, 8):
        for rows_, columns in ((1, 1), (2, 5000), (5000, 3), (64, 64), (10**6, 10**6)):
            for run in ((None, None), (8, None), (None, 4), (2, 16)):
                for is_far in (False, True):
                    extents = (n * (r or 1) for n, r in zip((rows_, columns), run, strict=True))
                    plan = permute.tile_plan(size, *extents, run, is_far)
                    tall, wide = plan.smem.shape
                    each = 16 // size
                    assert tall * wide * size <= 65536 and tall * wide // each % plan.threads == 0
                    assert all(
                        extent // (r or extent) == n for extent, r, n in zip((tall, wide), run, plan.runs, strict=True)
                    )
                    for copy in (plan.load, plan.store):
                        assert copy.size == plan.threads


GRADIENTS = [(tw.bfloat16, 1024), (tw.bfloat16, 4096), (tw.bfloat16, 16384), (tw.bfloat16, 131072)]
GRADIENTS += [(tw.float32, 4096), (tw.float32, 16384), (tw.float64, 4096)]


@pytest.mark.parametrize(
    ("dtype", "columns"),
    [
        pytest.param(*size, marks=() if size == (tw.bfloat16, 131072) else pytest.mark.slow, id=str(size))
        for size in GRADIENTS
    ],
)
def test_gradients_of_norms_do_not_spill(dtype: tw.DType, columns: int) -> None:
    plan = row_gradients.plan_gradient(dtype.bits, columns, 16, 232448, 8)
    kind = tw.float64 if dtype is tw.float64 else tw.float32
    x, w, n = tw.spec(dtype, (ROWS, columns)), tw.spec(dtype, (columns,)), tw.spec(kind, (ROWS,))
    parts, (threads, beside), cluster = tw.spec(kind, (264, columns)), plan.block, -(-columns // plan.held)
    kernel = _row_gradient_kernels.norm_gradient_held
    kernel = kernel if cluster == 1 else kernel.configure(cluster=cluster)
    launch = kernel.configure(min_blocks=max(1, rows.RESIDENT // (threads * beside)))[128, plan.block]
    args = (x, parts, parts, x, x, n, n, w, plan.tiles, plan.held, beside, row_gradients.stages_of(plan))
    found, code = launch.resources(*args, arch="sm_90a"), str(launch.sass(*args, arch="sm_90a"))
    assert not found.spills and found.local_bytes == 0 and found.registers * threads * beside <= 65536
    assert "LDGSTS.E.BYPASS.128" in code and "STG.E.128" in code and "LDS.128" in code
    assert threads * beside * plan.held // threads * dtype.bytes * 2 >= 32768  # bytes of a stage


def test_gradients_of_norms_fit_the_shared_memory() -> None:
    for shared, blocks in ((232448, 8), (166912, 1), (101376, 1), (65536, 1)):
        for bits, columns in itertools.product((16, 32, 64), (1, 40, 1000, 4096, 16384, 16400, 131072, 10**6)):
            plan = row_gradients.plan_gradient(bits, columns, 16, shared, blocks)
            if plan.is_long:
                assert columns * bits > 8 * 256 * row_gradients.PAIR_BYTES * blocks
                continue
            cluster, (threads, beside) = -(-columns // plan.held), plan.block
            assert cluster <= blocks and threads * beside <= 1024 and (cluster == 1 or beside == 1)
            bytes_of_rows = plan.held * bits // 8 * (2 * row_gradients.stages_of(plan) * beside + 1)
            assert bytes_of_rows <= shared and plan.held % threads == 0


def test_no_more_clusters_are_launched_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[tuple[Any, ...]] = []
    monkeypatch.setattr(sim, "execute", lambda *given, **more: launches.append(given))
    monkeypatch.setattr(row_gradients, "_SIMULATED", (12, 232448, True))
    x, numbers, w = np.ones((40, 4104)), np.ones(40), np.ones(4104)  # of float64: two blocks of 1024 threads
    for places, clusters in ((12, 6), (11, 5), (1, 1)):
        monkeypatch.setattr(machine, "RESIDENT_THREADS", places * 1024)
        tw.layer_norm_backward(x, x, numbers, numbers, w)
        _, grid, _, arguments = launches[-2]  # the sums over parts of the rows come last
        assert grid[0] == 2 * clusters
        assert [np.shape(a) for a in arguments.values()].count((clusters, 4104)) == 2
