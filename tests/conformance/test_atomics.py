"""Atomic operations in every type that has them, without and with contention."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend, assert_same_bits

import tilewright as tw

WORDS = (tw.int32, tw.uint32, tw.int64, tw.uint64, tw.float32, tw.float64)
ADDABLE = (*WORDS, tw.float16, tw.bfloat16)
EXTREMES = {"max": tw.atomic_max, "min": tw.atomic_min}


@tw.kernel
def update(target, old, x, operation: tw.constexpr):
    """Each thread updates an element of its own."""
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    old[i] = operation(target, i, x[i])


def numbers(dtype: tw.DType, count: int, seed: int) -> Array:
    random = np.random.default_rng(seed)
    if dtype.is_float:
        return (random.integers(-64, 64, count) / 4).astype(dtype.numpy)
    low, high = max(dtype.lowest // 2, -(2**62)), min(dtype.highest // 2, 2**62)
    return random.integers(low, high, count).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", ADDABLE, ids=str)
def test_add_returns_what_was_there(backend: Backend, dtype: tw.DType) -> None:
    before, x = numbers(dtype, 256, 0), numbers(dtype, 256, 1)
    target, old = backend.put(before), backend.zeros(256, dtype)
    update[4, 64](target, old, backend.put(x), tw.atomic_add)
    assert_same_bits(backend.get(old), before)
    assert_same_bits(backend.get(target), before + x)


@pytest.mark.parametrize("dtype", WORDS, ids=str)
@pytest.mark.parametrize("kind", EXTREMES)
def test_extremes_return_what_was_there(backend: Backend, dtype: tw.DType, kind: str) -> None:
    before, x = numbers(dtype, 256, 0), numbers(dtype, 256, 1)
    target, old = backend.put(before), backend.zeros(256, dtype)
    update[4, 64](target, old, backend.put(x), EXTREMES[kind])
    assert_same_bits(backend.get(old), before)
    assert_same_bits(backend.get(target), getattr(np, f"{kind}imum")(before, x))


@tw.kernel
def contend(target, x, operation: tw.constexpr):
    """All threads update a few elements."""
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    operation(target, i % target.size, x[i])


@pytest.mark.parametrize("dtype", ADDABLE, ids=str)
@pytest.mark.parametrize("targets", [1, 7])
@pytest.mark.spread(4)
def test_contended_sums(backend: Backend, dtype: tw.DType, targets: int) -> None:
    """Small integers, so that the order does not matter in any type."""
    x = np.random.default_rng(0).integers(0, 2 if dtype.bits == 16 else 9, 16 * 64).astype(dtype.numpy)
    if dtype is tw.bfloat16:
        x[200 * targets :] = 0  # it counts to 256
    target = backend.zeros(targets, dtype)
    contend[16, 64](target, backend.put(x), tw.atomic_add)
    sums = np.zeros(targets)
    np.add.at(sums, np.arange(x.size) % targets, x.astype(np.float64))
    assert_same_bits(backend.get(target), sums.astype(dtype.numpy))


@pytest.mark.parametrize("dtype", WORDS, ids=str)
@pytest.mark.parametrize("kind", EXTREMES)
def test_contended_extremes(backend: Backend, dtype: tw.DType, kind: str) -> None:
    x = numbers(dtype, 16 * 64, 5)
    function = getattr(np, f"{kind}imum")
    target = backend.put(x[:3].copy())
    contend[16, 64](target, backend.put(x), EXTREMES[kind])
    expected = np.array([function.reduce(x[k::3]) for k in range(3)])
    assert_same_bits(backend.get(target), expected)


def test_extremes_of_negative_floats(backend: Backend) -> None:
    """The bits of a negative float order the other way round than the number."""
    x = np.array([-1.0, -2.5, -0.25, 3.0, -1e30, 1e-30, 0.5, -7.0], np.float32)
    for kind, operation in EXTREMES.items():
        target = backend.put(np.full(1, -1.0 if kind == "max" else 1.0, np.float32))
        contend[1, 8](target, backend.put(x), operation)
        assert backend.get(target)[0] == (x.max() if kind == "max" else x.min())


@tw.kernel
def histogram(out, x, bins: tw.constexpr):
    """First in shared memory, then in global memory."""
    smem = tw.shared(tw.int32, (bins,))
    tid = tw.thread_idx.x
    for i in range(tid, bins, tw.block_dim.x):
        smem[i] = 0
    tw.sync_threads()
    for i in range(tw.block_idx.x * tw.block_dim.x + tid, x.size, tw.grid_dim.x * tw.block_dim.x):
        tw.atomic_add(smem, x[i], 1)
    tw.sync_threads()
    for i in range(tid, bins, tw.block_dim.x):
        if smem[i] > 0:
            tw.atomic_add(out, i, smem[i])


def test_histogram(backend: Backend) -> None:
    x = np.random.default_rng(0).integers(0, 100, 5000).astype(np.int32)
    out = backend.zeros(100, tw.int32)
    histogram[3, 96](out, backend.put(x), 100)
    assert np.array_equal(backend.get(out), np.bincount(x, minlength=100))


@tw.kernel
def shared_extremes(out, x):
    smem = tw.shared(x.dtype, (2,))
    tid = tw.thread_idx.x
    if tid < 2:
        smem[tid] = x[0]
    tw.sync_threads()
    tw.atomic_min(smem, 0, x[tid])
    tw.atomic_max(smem, 1, x[tid])
    tw.sync_threads()
    if tid < 2:
        out[tid] = smem[tid]


@pytest.mark.parametrize("dtype", WORDS, ids=str)
def test_extremes_in_shared_memory(backend: Backend, dtype: tw.DType) -> None:
    x = numbers(dtype, 256, 8)
    out = backend.zeros(2, dtype)
    shared_extremes[1, 256](out, backend.put(x))
    assert_same_bits(backend.get(out), np.array([x.min(), x.max()]))


@tw.kernel
def tickets(out, counter):
    """Every thread draws a number; each is drawn once."""
    ticket = tw.atomic_add(counter, 0, 1)
    out[ticket] = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x


def test_every_ticket_is_drawn_once(backend: Backend) -> None:
    out, counter = backend.put(np.full(1024, -1, np.int32)), backend.zeros(1, tw.int32)
    tickets[8, 128](out, counter)
    assert backend.get(counter)[0] == 1024
    assert np.array_equal(np.sort(backend.get(out)), np.arange(1024))


@tw.kernel
def atomics_in_branches(out, x):
    i = tw.thread_idx.x
    for k in range(x[i] % 4):
        if x[i] > 50:
            tw.atomic_add(out, (k, 0), 1)
        else:
            tw.atomic_max(out, (k, 1), x[i])


def test_atomics_under_divergence(backend: Backend) -> None:
    x = np.random.default_rng(0).integers(0, 100, 200).astype(np.int32)
    out = backend.zeros((4, 2), tw.int32)
    atomics_in_branches[1, 200](out, backend.put(x))
    expected = np.zeros((4, 2), np.int32)
    for v in x:
        for k in range(v % 4):
            if v > 50:
                expected[k, 0] += 1
            else:
                expected[k, 1] = max(expected[k, 1], v)
    assert np.array_equal(backend.get(out), expected)
