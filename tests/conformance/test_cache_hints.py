"""Copies with cache hints move the same data, on every size of access and with predicates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Backend, assert_same_bits

import tilewright as tw
from tilewright.atoms import CpAsync, UniversalCopy
from tilewright.atoms.copy import LOADS, POLICIES, STORES

N = 64


@tw.kernel
def through_registers(y, x, load: tw.constexpr, store: tw.constexpr, width: tw.constexpr, limit):
    i = tw.thread_idx.x
    fragment = tw.registers(x.dtype, (width,))
    tw.copy(load, tw.local_tile(x, (width,), (i,)), fragment, pred=i < limit)
    tw.copy(store, fragment, tw.local_tile(y, (width,), (i,)))


def check(backend: Backend, dtype: tw.DType, bits: int, load: dict[str, Any], store: dict[str, Any]) -> None:
    width = bits // dtype.bits
    x = np.arange(N * width).astype(dtype.numpy)
    y = backend.zeros(N * width, dtype)
    atoms = UniversalCopy(bits, **load), UniversalCopy(bits, **store)
    through_registers[1, N](tw.static(y), tw.static(backend.put(x)), *atoms, width, N - 3)
    x[(N - 3) * width :] = 0
    assert_same_bits(backend.get(y), x)


@pytest.mark.parametrize("cache", LOADS)
def test_loads(backend: Backend, cache: str) -> None:
    check(backend, tw.float32, 128, {"cache": cache}, {})


@pytest.mark.parametrize("cache", STORES)
def test_stores(backend: Backend, cache: str) -> None:
    check(backend, tw.float32, 128, {}, {"cache": cache})


@pytest.mark.parametrize("policy", POLICIES)
def test_policies(backend: Backend, policy: str) -> None:
    check(backend, tw.float16, 64, {"cache": "cg", "policy": policy, "prefetch": 256}, {"policy": policy})


@pytest.mark.parametrize(
    ("dtype", "bits"), [(tw.int8, 8), (tw.bfloat16, 16), (tw.float64, 64), (tw.uint8, 128), (tw.int32, 32)], ids=str
)
def test_sizes(backend: Backend, dtype: tw.DType, bits: int) -> None:
    check(backend, dtype, bits, {"cache": "cs", "prefetch": 64}, {"cache": "L1::no_allocate"})


@tw.kernel
def in_place(x, load: tw.constexpr):
    """A load that other threads' stores are ordered with: no read-only way."""
    i = tw.thread_idx.x
    fragment = tw.registers(x.dtype, (1,))
    for _ in range(3):
        tw.copy(load, tw.local_tile(x, (1,), (tw.block_dim.x - 1 - i,)), fragment)
        tw.sync_threads()
        x[i] = fragment[0] + 1
        tw.sync_threads()


def test_what_the_kernel_writes_is_read_in_order(backend: Backend) -> None:
    x = np.arange(N, dtype=np.int32)
    array = backend.put(x)
    in_place[1, N](array, UniversalCopy(cache="cg"))
    assert np.array_equal(backend.get(array), x[::-1] + 3)


@tw.kernel
def asynchronously(y, x, atom: tw.constexpr, valid):
    smem = tw.shared(x.dtype, (4 * tw.block_dim.x,))
    part = (tw.thread_idx.x,)
    tw.copy(atom, tw.local_tile(x, (4,), part), tw.local_tile(smem, (4,), part), pred=tw.thread_idx.x < valid)
    tw.cp_async_wait()
    tw.copy(tw.local_tile(smem, (4,), part), tw.local_tile(y, (4,), part))


@pytest.mark.parametrize("cache", ["always", "global"])
@pytest.mark.parametrize(("policy", "prefetch"), [(None, 64), ("evict_first", None), ("evict_last", 128), (None, 256)])
def test_asynchronous_copies(backend: Backend, cache: Any, policy: str | None, prefetch: int | None) -> None:
    x = np.random.default_rng(0).standard_normal(4 * N).astype(np.float32)
    y = backend.zeros(4 * N, tw.float32)
    atom = CpAsync(128, cache, policy=policy, prefetch=prefetch)
    asynchronously[1, N](tw.static(y), tw.static(backend.put(x)), atom, N - 5)
    x[4 * (N - 5) :] = 0
    assert_same_bits(backend.get(y), x)
