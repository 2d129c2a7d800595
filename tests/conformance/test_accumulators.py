"""Accumulators reduced along rows, and as operands of a second product, on both backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Backend, assert_same_bits

import tilewright as tw

# Small integers, so that products and sums are exact in every type.
ATOMS = [
    "SM75_16x8x8_F16F16F16F16_TN",
    "SM80_16x8x16_F32F16F16F32_TN",
    "SM80_16x8x16_F32BF16BF16F32_TN",
    "SM80_16x8x8_F32TF32TF32F32_TN",
    "SM80_16x8x32_S32S8S8S32_TN",
    "SM80_8x8x4_F64F64F64F64_TN",
    "SM70_8x8x4_F32F16F16F32_TN",
    "SM70_8x8x4_F16F16F16F16_TN",
]


def tiled(name: str, layout: tuple[int, int, int]) -> Any:
    if name.startswith("SM70"):  # four of its groups of eight threads make a warp
        layout = (4, 1, 1)
    return tw.make_tiled_mma(getattr(tw.atoms, name), layout)


def ordered(a, b):  # type: ignore[no-untyped-def]  # numbers of host or device
    """The greater one, as a function of the user."""
    return tw.maximum(a, b)


@tw.kernel
def row_statistics(sums, greatest, same, c, mma: tw.constexpr):
    """Every row's sum and maximum, written by each thread that has values of the row, and what a row is a view of."""
    thread = mma.get_slice(tw.thread_idx.x)
    part = thread.partition_C(c)
    acc = thread.make_fragment_C(part)
    tw.copy(part, acc)
    rows, places = tw.accumulator_rows(mma, acc), tw.accumulator_rows(mma, thread.partition_C(same))
    total, most, again = (tw.reduce_rows(mma, acc, op) for op in ("add", "max", ordered))
    for r in tw.static_range(rows.layout[0].size):
        for column in tw.static_range(rows.layout[1].size):
            places[r, column] = rows[r, column] - total[r, 0]
    view = tw.accumulator_rows(mma, thread.partition_C(sums))
    most_of = tw.accumulator_rows(mma, thread.partition_C(greatest))
    for r in tw.static_range(rows.layout[0].size):
        for column in tw.static_range(rows.layout[1].size):
            view[r, column] = total[r, 0]
            most_of[r, column] = most[r, 0] + (again[r, 0] - most[r, 0])


@pytest.mark.parametrize(
    ("name", "layout"),
    [(name, (1, 1, 1)) for name in ATOMS] + [(ATOMS[1], layout) for layout in ((4, 1, 1), (1, 2, 1), (2, 4, 1))],
)
@pytest.mark.spread(4)
def test_row_statistics(backend: Backend, name: str, layout: tuple[int, int, int]) -> None:
    mma = tiled(name, layout)
    type = mma.atom.dtype_c
    shape = (2 * mma.tile_size(0), 3 * mma.tile_size(1))
    c = np.random.default_rng(0).integers(-9, 10, shape).astype(type.numpy)
    sums, greatest, centred = (backend.zeros(shape, type) for _ in range(3))
    row_statistics[1, mma.size](sums, greatest, centred, tw.static(backend.put(c)), mma)
    total = c.sum(axis=1, keepdims=True, dtype=c.dtype)
    assert_same_bits(backend.get(sums), np.broadcast_to(total, shape))
    assert_same_bits(backend.get(greatest), np.broadcast_to(c.max(axis=1, keepdims=True), shape))
    assert_same_bits(backend.get(centred), c - total)


@tw.kernel
def two_products(out, a, b, v, mma: tw.constexpr):
    """out = (A B^T) V^T, the first product handed on in registers."""
    thread = mma.get_slice(tw.thread_idx.x)
    t_a, t_b, t_v, t_out = thread.partition_A(a), thread.partition_B(b), thread.partition_B(v), thread.partition_C(out)
    r_a, r_b, r_v = thread.make_fragment_A(t_a), thread.make_fragment_B(t_b), thread.make_fragment_B(t_v)
    tw.copy(t_a, r_a)
    tw.copy(t_b, r_b)
    tw.copy(t_v, r_v)
    s = tw.registers(mma.atom.dtype_c, tw.Layout(mma.partition_shape((a.shape[0], b.shape[0]), "C")))
    tw.clear(s)
    tw.gemm(mma, s, r_a, r_b, s)
    acc = thread.make_fragment_C(t_out)
    tw.clear(acc)
    tw.gemm(mma, acc, tw.as_operand_a(mma, s), r_v, acc)
    tw.copy(acc, t_out)


@pytest.mark.parametrize(
    ("name", "warps"),
    [
        ("SM75_16x8x8_F16F16F16F16_TN", 1),
        ("SM80_16x8x16_F32F16F16F32_TN", 4),
        ("SM80_16x8x16_F32BF16BF16F32_TN", 2),
        ("SM80_16x8x16_F16F16F16F16_TN", 1),
        ("SM70_8x8x4_F16F16F16F16_TN", 1),
    ],
)
@pytest.mark.spread(3)
def test_the_accumulator_as_operand(backend: Backend, name: str, warps: int) -> None:
    layout = (4, 1, 1) if name.startswith("SM70") else (warps, 1, 1)
    mma = tw.make_tiled_mma(getattr(tw.atoms, name), layout)
    type, narrow = mma.atom.dtype_c, mma.atom.dtype_a
    m, n, k, width = mma.tile_size(0), 32, 16, 16
    random = np.random.default_rng(0)
    a, b, v = (random.integers(-2, 3, s).astype(narrow.numpy) for s in ((m, k), (n, k), (width, n)))
    b[:, 4:], v[:, 5:17] = 0, 0  # so that sums are exact in 16 bits
    out = backend.zeros((m, width), type)
    two_products[1, mma.size](
        *(tw.static(backend.put(x)) if x is not out else tw.static(out) for x in (out, a, b, v)), mma
    )
    wide = [x.astype(np.float64) for x in (a, b, v)]
    assert_same_bits(backend.get(out), (wide[0] @ wide[1].T @ wide[2].T).astype(type.numpy))


@tw.kernel
def attention(out, q, k, v, mma: tw.constexpr):
    """out = softmax(Q K^T) V for 64 queries and 64 keys, in registers from the first product to the last."""
    thread = mma.get_slice(tw.thread_idx.x)
    t_q, t_k, t_v, t_out = thread.partition_A(q), thread.partition_B(k), thread.partition_B(v), thread.partition_C(out)
    r_q, r_k, r_v = thread.make_fragment_A(t_q), thread.make_fragment_B(t_k), thread.make_fragment_B(t_v)
    tw.copy(t_q, r_q)
    tw.copy(t_k, r_k)
    tw.copy(t_v, r_v)
    s = tw.registers(tw.float32, tw.Layout(mma.partition_shape((64, 64), "C")))
    tw.clear(s)
    tw.gemm(mma, s, r_q, r_k, s)
    rows = tw.accumulator_rows(mma, s)
    most = tw.reduce_rows(mma, s, "max")
    for r in tw.static_range(rows.layout[0].size):
        for c in tw.static_range(rows.layout[1].size):
            rows[r, c] = tw.exp2(rows[r, c] - most[r, 0])
    total = tw.reduce_rows(mma, s, "add")
    acc = thread.make_fragment_C(t_out)
    tw.clear(acc)
    tw.gemm(mma, acc, tw.as_operand_a(mma, s), r_v, acc)
    result = tw.accumulator_rows(mma, acc)
    for r in tw.static_range(result.layout[0].size):
        for c in tw.static_range(result.layout[1].size):
            result[r, c] = result[r, c] / total[r, 0]
    tw.copy(acc, t_out)


def test_attention(backend: Backend) -> None:
    mma = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN, (4, 1, 1))
    random = np.random.default_rng(0)
    q, k, v = (random.normal(size=(64, 64)).astype(np.float16) for _ in range(3))
    out = backend.zeros((64, 64), tw.float32)
    arguments = [tw.static(x) for x in (out, *(backend.put(x) for x in (q, k, v.T)))]
    attention[1, 128](*arguments, mma)
    scores = q.astype(np.float64) @ k.astype(np.float64).T
    weights = np.exp2(scores - scores.max(axis=1, keepdims=True))
    expected = weights.astype(np.float16).astype(np.float64) @ v.astype(np.float64) / weights.sum(axis=1, keepdims=True)
    assert np.allclose(backend.get(out), expected, atol=2e-3)
