"""Memory between blocks on both backends: every atomic operation, ordered accesses, waits, and the grid's barrier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.checkers.test_between_blocks import fix_up, last_block_sums, locked_sums, look_back, split_k
from tests.checkers.test_grid_barrier import rounds
from tests.conformance.harness import Array, Backend, assert_same_bits

import tilewright as tw

INTEGERS = (tw.int16, tw.uint16, tw.int32, tw.uint32, tw.int64, tw.uint64)
FLOATS = (tw.float16, tw.bfloat16, tw.float32, tw.float64)
ORDERS = [("relaxed", "gpu"), ("acq_rel", "gpu"), ("acquire", "sys"), ("release", "gpu"), ("relaxed", "cta")]
OPERATIONS = {
    "add": (tw.atomic_add, np.add),
    "min": (tw.atomic_min, np.minimum),
    "max": (tw.atomic_max, np.maximum),
    "exch": (tw.atomic_exch, lambda old, value: value),
    "and": (tw.atomic_and, np.bitwise_and),
    "or": (tw.atomic_or, np.bitwise_or),
    "xor": (tw.atomic_xor, np.bitwise_xor),
}


def numbers(dtype: tw.DType, seed: int) -> Array:
    random = np.random.default_rng(seed)
    if dtype.is_float:
        return (random.integers(-64, 64, 256) / 4).astype(dtype.numpy)
    low, high = max(dtype.lowest // 2, -(2**62)), min(dtype.highest // 2, 2**62)
    return random.integers(low, high, 256).astype(dtype.numpy)


@tw.kernel
def update(target, old, x, operation: tw.constexpr, sem: tw.constexpr, scope: tw.constexpr):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    old[i] = operation(target, i, x[i], sem=sem, scope=scope)


@tw.kernel
def update_shared(target, old, x, operation: tw.constexpr, sem: tw.constexpr, scope: tw.constexpr):
    thread = tw.thread_idx.x
    i = tw.block_idx.x * tw.block_dim.x + thread
    tile = tw.shared(x.dtype, 64)
    tile[thread] = target[i]
    tw.sync_threads()
    old[i] = operation(tile, thread, x[i], sem=sem, scope=scope)
    target[i] = tile[thread]


@pytest.mark.parametrize("kernel", [update, update_shared], ids=["global", "shared"])
@pytest.mark.parametrize(("sem", "scope"), ORDERS)
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
@pytest.mark.spread(6)
def test_updates(backend: Backend, dtype: tw.DType, sem: str, scope: str, kernel: Any) -> None:
    names = [n for n in OPERATIONS if dtype.is_integer or n not in ("and", "or", "xor")]
    for name in names:
        operation, expected = OPERATIONS[name]
        before, x = numbers(dtype, 0), numbers(dtype, 1)
        target, old = backend.put(before), backend.zeros(256, dtype)
        kernel[4, 64](target, old, backend.put(x), operation, sem, scope)
        assert_same_bits(backend.get(old), before)
        assert_same_bits(backend.get(target), expected(before, x).astype(dtype.numpy))


@tw.kernel
def swap(target, old, compare, x, sem: tw.constexpr):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    old[i] = tw.atomic_cas(target, i, compare[i], x[i], sem=sem)


@pytest.mark.parametrize("sem", ["relaxed", "acq_rel"])
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_compare_and_swap(backend: Backend, dtype: tw.DType, sem: str) -> None:
    before, x = numbers(dtype, 0), numbers(dtype, 1)
    compare = np.where(np.arange(256) % 3 == 0, x, before)
    target, old = backend.put(before), backend.zeros(256, dtype)
    swap[4, 64](target, old, backend.put(compare), backend.put(x), sem)
    assert_same_bits(backend.get(old), before)
    assert_same_bits(backend.get(target), np.where(compare == before, x, before))


@tw.kernel
def add_pairs(target, old, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    old[2 * i], old[2 * i + 1] = tw.atomic_add(target, 2 * i, (x[2 * i], x[2 * i + 1]))


@pytest.mark.parametrize("dtype", [tw.float16, tw.bfloat16], ids=str)
def test_pairs_of_halves(backend: Backend, dtype: tw.DType) -> None:
    before, x = numbers(dtype, 0), numbers(dtype, 1)
    target, old = backend.put(before), backend.zeros(256, dtype)
    add_pairs[2, 64](target, old, backend.put(x))
    assert_same_bits(backend.get(old), before)
    assert_same_bits(backend.get(target), (before + x).astype(dtype.numpy))


@tw.kernel
def move(out, x, reading: tw.constexpr, writing: tw.constexpr, scope: tw.constexpr):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    value = tw.load(x, i, sem=reading, scope=scope)
    tw.threadfence(scope)
    tw.store(out, i, value, sem=writing, scope=scope)


@pytest.mark.parametrize("scope", ["cta", "gpu", "sys"])
@pytest.mark.parametrize(
    ("reading", "writing"), [("relaxed", "relaxed"), ("acquire", "release"), ("volatile", "volatile")]
)
@pytest.mark.parametrize("dtype", [tw.int8, tw.uint8, *INTEGERS, *FLOATS], ids=str)
@pytest.mark.spread(6)
def test_loads_and_stores(backend: Backend, dtype: tw.DType, reading: str, writing: str, scope: str) -> None:
    x = numbers(dtype, 3)
    out = backend.zeros(256, dtype)
    move[4, 64](out, backend.put(x), reading, writing, scope)
    assert_same_bits(backend.get(out), x)


ON = dict.fromkeys(("acquire", "enter", "leave", "release"), True)
FENCED = dict.fromkeys(("leave", "before", "behind", "enter"), True)
WHOLE = {"part": True, "whole": True, "acquire": True}


def test_a_lock(backend: Backend) -> None:
    x = np.random.default_rng(0).integers(0, 99, (96, 64)).astype(np.int32)
    sums, locks = backend.zeros((2, 64), tw.int32), backend.zeros(2, tw.int32)
    locked_sums[96, 64](sums, locks, backend.put(x), **ON)
    assert np.array_equal(backend.get(sums), np.stack([x[0::2].sum(0), x[1::2].sum(0)]))


def test_a_scan_by_look_back(backend: Backend) -> None:
    x = np.random.default_rng(1).integers(0, 99, 64 * 32).astype(np.int32)
    out = backend.zeros(x.size, tw.int32)
    published = [backend.zeros(64, tw.int32) for _ in range(3)]
    look_back[64, 32](out, *published, backend.put(x), **WHOLE)
    assert np.array_equal(backend.get(out), x.cumsum())


def test_split_k_in_turns(backend: Backend) -> None:
    random = np.random.default_rng(2)
    a, b = random.integers(0, 9, (256, 32)).astype(np.int32), random.integers(0, 9, 32).astype(np.int32)
    c = backend.zeros(256, tw.int32)
    split_k[(4, 8), 64](c, backend.zeros(4, tw.int32), backend.put(a), backend.put(b), **ON)
    assert np.array_equal(backend.get(c), a @ b)


def test_a_fix_up(backend: Backend) -> None:
    x = np.random.default_rng(3).integers(0, 99, (16, 3, 64)).astype(np.int32)
    out, workspace = backend.zeros((16, 64), tw.int32), backend.zeros((48, 64), tw.int32)
    fix_up[48, 64](out, workspace, backend.zeros(48, tw.int32), backend.put(x), **FENCED)
    assert np.array_equal(backend.get(out), x.sum(1))


def test_the_last_block(backend: Backend) -> None:
    x = np.random.default_rng(4).integers(0, 99, 128 * 64).astype(np.int32)
    out, partial = backend.zeros(64, tw.int32), backend.zeros(x.size, tw.int32)
    last_block_sums[128, 64](out, partial, backend.zeros(1, tw.int32), backend.put(x), **FENCED)
    assert np.array_equal(backend.get(out), x.reshape(128, 64).sum(0))


@tw.kernel
def lanes_take_a_lock(total, lock):
    """The section is in the loop, so that it matters nowhere when the lanes of a warp come together again."""
    done = 0
    while done == 0:
        if tw.atomic_cas(lock, 0, 0, 1, sem="acquire") == 0:
            total[0] += 1
            tw.atomic_exch(lock, 0, 0, sem="release")
            done = 1


def test_lanes_of_one_warp_take_a_lock(backend: Backend) -> None:
    total = backend.zeros(1, tw.int32)
    lanes_take_a_lock[3, 32](total, backend.zeros(1, tw.int32))
    assert backend.get(total)[0] == 96


@pytest.mark.parametrize(("blocks", "threads"), [(1, 32), (24, 96), (8, 256)])
def test_a_barrier_of_the_grid(backend: Backend, blocks: int, threads: int) -> None:
    """Several barriers in one launch, and several launches of the same code."""
    x = np.arange(blocks * threads, dtype=np.int32) % 7
    expected = x.copy()
    data, other = backend.put(x), backend.zeros(x.size, tw.int32)
    for _ in range(3):
        rounds[blocks, threads](data, other, 3, True, True)
    for _ in range(9):
        expected = expected + np.roll(expected, -1)
    assert np.array_equal(backend.get(data), expected)


def test_a_grid_that_does_not_fit_is_refused(backend: Backend) -> None:
    n = 1 << 20
    data, other = backend.zeros(n, tw.int32), backend.zeros(n, tw.int32)
    with pytest.raises((tw.ArgumentError, tw.DeviceError), match="grid of 4096 blocks does not fit"):
        rounds[4096, 256](data, other, 1, True, True)
