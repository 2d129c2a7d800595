"""Whole kernels as the benchmark builds them: right, and without a finding."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.simulate import matmul, transpose

from tilewright.backends.sim import Options, execute
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cp_async import AsyncWait
from tilewright.ir.core import Kernel
from tilewright.ir.verify import verify
from tilewright.profile import simulate


def run(kernel: Kernel, grid: tuple[int, int, int], *arrays: np.ndarray, check: bool) -> None:
    verify(kernel)
    assert kernel.block is not None
    arguments = dict(zip(kernel.parameters, arrays, strict=True))
    execute(kernel, grid, kernel.block, arguments, options=Options(check=check))


@pytest.mark.parametrize("check", [False, True])
def test_transpose(check: bool) -> None:
    src = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
    dst = np.zeros_like(src)
    run(*transpose(128), src, dst, check=check)
    np.testing.assert_array_equal(dst, src.T)


@pytest.mark.parametrize("check", [False, True])
def test_double_buffered_matmul(check: bool) -> None:
    random = np.random.default_rng(0)
    a, b = (random.integers(-9, 9, (24, 256)).astype(np.float32) for _ in range(2))
    c = np.zeros((256, 256), np.float32)
    run(*matmul(256, 256, 24), a, b, c, check=check)
    np.testing.assert_array_equal(c.T, a.T @ b)


def test_a_matmul_without_its_wait_is_wrong_and_found() -> None:
    kernel, grid = matmul(128, 128, 16)
    for op in kernel.body.walk():
        for block in op.blocks:
            block.ops[:] = [o for o in block.ops if not isinstance(o, (AsyncWait, Barrier))]
    a = np.ones((16, 128), np.float32)
    c = np.zeros((128, 128), np.float32)
    with simulate(raise_errors=False) as found:
        assert kernel.block is not None
        execute(kernel, grid, kernel.block, dict(zip(kernel.parameters, (a, a, c), strict=True)))
    assert {(f.kind, f.buffer) for f in found.findings} == {
        (kind, buffer) for kind in ("missing-wait", "race") for buffer in ("sA", "sB")
    }
    assert not np.array_equal(c, np.full_like(c, 16))
