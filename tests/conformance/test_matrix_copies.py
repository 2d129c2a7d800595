"""ldmatrix, stmatrix and movmatrix: fragments through shared memory in every layout that they take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Backend, assert_same_bits
from tests.conformance.test_mma_atoms import assert_near, random_tile, skip_without

import tilewright as tw

ROWS = tw.Layout((64, 32), (40, 1))  # K contiguous, padded by 16 bytes
COLUMNS = tw.Layout((64, 32), (1, 72))  # M or N contiguous
SWIZZLED = tw.tile_to_shape(tw.ComposedLayout(tw.Swizzle(2, 3, 3), 0, tw.Layout((8, 32), (32, 1))), (64, 32))


@tw.kernel
def through_matrices(
    C, A, B, copy_a: tw.constexpr, copy_b: tw.constexpr, smem_a: tw.constexpr, smem_b: tw.constexpr, mma: tw.constexpr
):
    """C = A B^T for one tile, its fragments read from shared memory by ldmatrix."""
    sA, sB = tw.shared(A.dtype, smem_a), tw.shared(B.dtype, smem_b)
    tid = tw.thread_idx.x
    for t_from, t_to in ((A, sA), (B, sB)):
        tw.copy(tw.local_partition(t_from, (32, 4), tid), tw.local_partition(t_to, (32, 4), tid))
    tw.cp_async_wait()
    tw.sync_threads()
    thread, thread_a, thread_b = mma.get_slice(tid), copy_a.get_slice(tid), copy_b.get_slice(tid)
    rA, rB = thread.partition_fragment_A(sA), thread.partition_fragment_B(sB)
    tw.copy(copy_a, thread_a.partition_S(sA), thread_a.retile_D(rA))
    tw.copy(copy_b, thread_b.partition_S(sB), thread_b.retile_D(rB))
    tCgC = thread.partition_C(C)
    acc = thread.make_fragment_C(tCgC)
    tw.clear(acc)
    tw.gemm(mma, acc, rA, rB, acc)
    tw.copy(acc, tCgC)


CASES: list[tuple[str, Any, str, Any]] = [
    ("SM75_U32x4_LDSM_N", ROWS, "SM75_U32x4_LDSM_N", SWIZZLED),
    ("SM75_U32x2_LDSM_N", SWIZZLED, "SM75_U32x1_LDSM_N", ROWS),
    ("SM75_U16x8_LDSM_T", COLUMNS, "SM75_U16x8_LDSM_T", COLUMNS),
    ("SM75_U16x4_LDSM_T", COLUMNS, "SM75_U16x2_LDSM_T", COLUMNS),
    ("SM75_U32x4_LDSM_N", SWIZZLED, "SM75_U16x4_LDSM_T", COLUMNS),
]


@pytest.mark.parametrize(("name_a", "smem_a", "name_b", "smem_b"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_operands_by_ldmatrix(backend: Backend, name_a: str, smem_a: Any, name_b: str, smem_b: Any) -> None:
    atom = tw.atoms.SM80_16x8x16_F32F16F16F32_TN
    skip_without(backend, atom.arch)
    mma = tw.make_tiled_mma(atom, (2, 2, 1), (32, 32, 16))
    rng = np.random.default_rng(0)
    a, b = (random_tile(rng, (64, 32), tw.float16) for _ in range(2))
    C = backend.zeros((64, 64), tw.float32)
    copies = tw.make_tiled_copy_A(getattr(tw.atoms, name_a), mma), tw.make_tiled_copy_B(getattr(tw.atoms, name_b), mma)
    arrays = (tw.static(x) for x in (C, backend.put(a), backend.put(b)))
    through_matrices[1, 128](*arrays, *copies, smem_a, smem_b, mma)
    zeros = np.zeros((64, 64), np.float32)
    assert_near(backend.get(C), atom.reference(a, b, zeros), atom.error_bound(a, b, zeros), name_a)


@pytest.mark.parametrize("name", ["SM80_16x8x8_F32TF32TF32F32_TN", "SM80_16x8x32_S32S8S8S32_TN"])
def test_other_widths_by_ldmatrix(backend: Backend, name: str) -> None:
    """Words of 32 bits, and bytes, ride in the matrices' 16-bit elements."""
    atom = getattr(tw.atoms, name)
    skip_without(backend, atom.arch)
    mma = tw.make_tiled_mma(atom, (2, 2, 1))
    rng = np.random.default_rng(1)
    dtype = atom.dtype_a.storage
    a, b = (random_tile(rng, (64, 32), dtype) for _ in range(2))
    C = backend.zeros((64, 64), atom.dtype_d)
    copies = (
        tw.make_tiled_copy_A(tw.atoms.SM75_U32x4_LDSM_N, mma),
        tw.make_tiled_copy_B(tw.atoms.SM75_U32x2_LDSM_N, mma),
    )
    padded = tw.Layout((64, 32), (32 + 16 // dtype.bytes, 1))
    arrays = (tw.static(x) for x in (C, backend.put(a), backend.put(b)))
    through_matrices[1, 128](*arrays, *copies, padded, padded, mma)
    zeros = np.zeros((64, 64), atom.dtype_c.numpy)
    assert_near(backend.get(C), atom.reference(a, b, zeros), atom.error_bound(a, b, zeros), name)


@tw.kernel
def store_fragment(D, C, copy: tw.constexpr, mma: tw.constexpr, smem: tw.constexpr):
    """A fragment of C to shared memory by stmatrix, and from there to D."""
    sD = tw.shared(C.dtype, smem)
    tid = tw.thread_idx.x
    part = mma.get_slice(tid).partition_C(C)
    fragment = mma.get_slice(tid).make_fragment_C(part)
    tw.copy(part, fragment)
    thread = copy.get_slice(tid)
    tw.copy(copy, thread.retile_S(fragment), thread.partition_D(sD))
    tw.sync_threads()
    tw.copy(tw.local_partition(sD, (8, 4), tid), tw.local_partition(D, (8, 4), tid))


@pytest.mark.parametrize(
    ("name", "smem"),
    [
        *((f"SM90_U32x{n}_STSM_N", tw.Layout((32, 16), (24, 1))) for n in (1, 2, 4)),
        *((f"SM90_U16x{n}_STSM_T", tw.Layout((32, 16), (1, 40))) for n in (2, 4, 8)),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_fragments_by_stmatrix(backend: Backend, name: str, smem: tw.Layout) -> None:
    skip_without(backend, "sm_90")
    mma = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F16F16F16F16_TN, (1, 1, 1), (32, 16, 16))
    c = random_tile(np.random.default_rng(2), (32, 16), tw.float16)
    D = backend.zeros((32, 16), tw.float16)
    copy = tw.make_tiled_copy_C(getattr(tw.atoms, name), mma)
    store_fragment[1, 32](tw.static(D), tw.static(backend.put(c)), copy, mma, smem)
    assert_same_bits(backend.get(D), c)


@tw.kernel
def transpose_matrix(D, C):
    """Lane l holds row l / 4, columns 2 * (l % 4) and the next, before and after."""
    tid = tw.thread_idx.x
    row, column = tid // 4, 2 * (tid % 4)
    before, after = tw.registers(D.dtype, (2,)), tw.registers(D.dtype, (2,))
    for i in tw.static_range(2):
        before[i] = C[row, column + i]
    tw.copy(tw.atoms.SM75_U32x1_MOVM_T, before, after)
    for i in tw.static_range(2):
        D[row, column + i] = after[i]


def test_movmatrix(backend: Backend) -> None:
    c = random_tile(np.random.default_rng(3), (8, 8), tw.float16)
    D = backend.zeros((8, 8), tw.float16)
    transpose_matrix[1, 32](D, backend.put(c))
    assert_same_bits(backend.get(D), c.T.copy())
