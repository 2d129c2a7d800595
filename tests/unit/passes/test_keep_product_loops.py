"""Loops around products with 16-bit sums: ptxas would run the products one after the other if NVRTC unrolled them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.ops import For

STEPS = 3


def product(atom: str, *, doubled: bool, unroll: int | None = None):
    mma = tw.make_tiled_mma(getattr(tw.atoms, atom))
    a_type, b_type, out = (mma.atom.dtype_a, mma.atom.dtype_b, mma.atom.dtype_d)
    n, k = mma.atom.shape_mnk[1], 2 * mma.atom.shape_mnk[2]
    layout_a, layout_b = (
        tw.tile_to_shape(tw.atoms.GMMA_K_SW32(kind), (rows, k, STEPS)) for kind, rows in ((a_type, 64), (b_type, n))
    )

    @tw.kernel
    def kernel(C, A, B):
        sA, sB = tw.shared(a_type, layout_a), tw.shared(b_type, layout_b)
        tid = tw.thread_idx.x
        for step in tw.static_range(STEPS):
            for i in range(tid, 64 * k, 128):
                sA[i // k, i % k, step] = A[i // k, i % k + k * step]
            for i in range(tid, n * k, 128):
                sB[i // k, i % k, step] = B[i // k, i % k + k * step]
        tw.fence_proxy_async()
        tw.sync_threads()
        thread = mma.get_slice(tid)
        tA, tB = thread.partition_A(sA), thread.partition_B(sB)
        acc = tw.registers(out, mma.partition_shape((64, n), "C"))
        for step in tw.range(STEPS, unroll=unroll):
            tw.wgmma_fence()
            tw.gemm(mma, tA[:, :, :, step], tB[:, :, :, step], acc, accumulate=step > 0)
            tw.wgmma_commit()
            tw.wgmma_wait(0)
        found = thread.partition_C(C)
        for i in tw.static_range(tw.size(acc.shape)):
            found[i] = acc[i] * 2 if doubled else acc[i]

    shapes = ((64, n), out), ((64, STEPS * k), a_type), ((n, STEPS * k), b_type)
    return kernel, [np.ones(shape, kind.storage.numpy) for shape, kind in shapes]


HALVES = ["SM90_64x16x16_F16F16F16_SS", "SM90_64x48x16_F16F16F16_SS", "SM90_64x40x32_F16E5M2E5M2_SS_TN"]


def unrolled(kernel, arguments) -> list[int | None]:
    lowered = kernel[1, 128].lower(*arguments, arch="sm_90a")
    return [op.unroll for op in lowered.kernel.body.walk() if isinstance(op, For) and "wgmma" in text_of(op)]


def text_of(op: For) -> str:
    return " ".join(type(each).__name__.lower() for each in op.body.walk())


@pytest.mark.parametrize("atom", HALVES)
def test_nothing_runs_one_after_the_other(atom: str) -> None:
    kernel, arguments = product(atom, doubled=True)
    module = kernel[1, 128].lower(*arguments, arch="sm_90a").module
    assert not re.search(r"C75\d\d", module.log), module.log


def test_loops_of_16_bit_sums_alone_are_kept() -> None:
    assert 1 in unrolled(*product(HALVES[0], doubled=True))
    assert 1 not in unrolled(*product("SM90_64x16x16_F32F16F16_SS", doubled=True))


def test_what_the_user_chose_stays() -> None:
    assert 2 in unrolled(*product(HALVES[0], doubled=False, unroll=2))


def test_results() -> None:
    kernel, (out, a, b) = product(HALVES[0], doubled=True)
    random = np.random.default_rng(0)
    a[:], b[:] = (random.integers(-2, 3, x.shape).astype(x.dtype) for x in (a, b))
    kernel[1, 128](out, a, b)
    assert np.array_equal(out, (2 * (a.astype(np.float64) @ b.astype(np.float64).T)).astype(out.dtype))
