"""Tensors at addresses: arrays of addresses, orders through aliases, vectors, atomics; on both backends."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw


@tw.kernel
def totals(out, addresses, sizes):
    g = tw.block_idx.x
    x = tw.make_tensor(tw.pointer(addresses[g], tw.float32), sizes[g])
    acc = tw.float32(0)
    for i in range(sizes[g]):
        acc += x[i]
    out[g] = acc


@pytest.mark.parametrize("count", [1, 2, 7])
def test_arrays_of_any_number_and_size(backend, count):
    host = [np.arange(1, 4 * k + 6, dtype=np.float32) for k in range(count)]
    given = [backend.put(x) for x in host]
    out = backend.zeros(count, tw.float32)
    sizes = backend.put(np.array([x.size for x in host], np.int32))
    totals[count, 1](out, tw.addresses(given), sizes)
    np.testing.assert_array_equal(backend.get(out), [x.sum() for x in host])


def test_some_threads_of_the_last_blocks(monkeypatch):
    """Those are fewer in the simulator than the blocks before, whose addresses are forgotten."""

    @tw.kernel
    def some(out, addresses):
        i, block = tw.thread_idx.x, tw.block_idx.x
        if i < 5:
            x = tw.make_tensor(tw.pointer(addresses[block], tw.int32), tw.Layout(32))
            out[block, i] = x[i]

    monkeypatch.setattr("tilewright.backends.sim.machine.CHUNK_THREADS", 4 * 32)
    x, out = np.arange(6 * 32, dtype=np.int32).reshape(6, 32), np.zeros((6, 32), np.int32)
    some[6, 32](out, tw.addresses(list(x)))
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 5, x, 0))


@tw.kernel
def grouped(addresses_a, addresses_b, addresses_c, rows, n: tw.constexpr, k: tw.constexpr):
    """C[g] = A[g] B[g], each of its own number of rows: a thread an element."""
    g = tw.block_idx.x
    a = tw.make_tensor(tw.pointer(addresses_a[g], tw.bfloat16), tw.Layout((rows[g], k), (k, 1)))
    b = tw.make_tensor(tw.pointer(addresses_b[g], tw.bfloat16), tw.Layout((k, n), (n, 1)))
    c = tw.make_tensor(tw.pointer(addresses_c[g], tw.float32), tw.Layout((rows[g], n), (n, 1)))
    j = tw.thread_idx.x
    for i in range(rows[g]):
        acc = tw.float32(0)
        for step in range(k):
            acc += a[i, step].to(tw.float32) * b[step, j].to(tw.float32)
        c[i, j] = acc


def test_a_grouped_product(backend):
    rng = np.random.default_rng(0)
    rows, n, k = [3, 1, 8, 5], 16, 12
    bf16 = tw.bfloat16.numpy
    a = [rng.integers(-3, 4, (m, k)).astype(bf16) for m in rows]
    b = [rng.integers(-3, 4, (k, n)).astype(bf16) for _ in rows]
    c = [backend.zeros((m, n), tw.float32) for m in rows]
    lists = [tw.addresses([backend.put(x) for x in xs]) for xs in (a, b)]
    grouped[len(rows), n](*lists, tw.addresses(c), backend.put(np.array(rows, np.int32)), n, k)
    for found, x, y in zip(c, a, b, strict=True):
        np.testing.assert_array_equal(backend.get(found), x.astype(np.float32) @ y.astype(np.float32))


@tw.kernel
def through_both(out, x, addresses):
    """The load after the store has to see what the store through the address wrote."""
    p = tw.make_tensor(tw.pointer(addresses[0], tw.float32), tw.Layout(64))
    i = tw.thread_idx.x
    before = x[i]
    p[i] = before + 1
    after = x[i]
    x[i] = after * 2
    out[i] = before + after * 100 + p[i] * 10000


def test_a_store_through_an_address_is_seen_through_the_argument_and_back(backend):
    host = np.arange(64, dtype=np.float32)
    x, out = backend.put(host), backend.zeros(64, tw.float32)
    through_both[1, 64](out, x, tw.addresses([x]))
    np.testing.assert_array_equal(backend.get(out), host + (host + 1) * 100 + (host + 1) * 2 * 10000)


@tw.kernel
def read_only_argument(out, x, addresses):
    """The argument is only read by its name: nothing may promise the compiler that it does not change."""
    p = tw.make_tensor(tw.pointer(addresses[0], tw.float32), tw.Layout(64))
    i = tw.thread_idx.x
    acc = tw.float32(0)
    for k in range(4):
        acc += x[i]
        p[i] = acc
    out[i] = acc


def test_loads_of_a_read_only_argument_are_not_moved_across_stores_through_addresses(backend):
    host = np.arange(1, 65, dtype=np.float32)
    x, out = backend.put(host), backend.zeros(64, tw.float32)
    read_only_argument[1, 64](out, x, tw.addresses([x]))
    np.testing.assert_array_equal(backend.get(out), host * 8)


@tw.kernel
def two_pointers(out, addresses):
    """Two tensors at one address, of different types."""
    i = tw.thread_idx.x
    p = tw.make_tensor(tw.pointer(addresses[0], tw.float32), tw.Layout(32))
    q = tw.make_tensor(tw.pointer(addresses[0], tw.int32), tw.Layout(32))
    first = q[i]
    p[i] = 2.0
    out[i] = q[i] - first


def test_pointers_of_different_types_to_one_array(backend):
    x, out = backend.zeros(32, tw.float32), backend.zeros(32, tw.int32)
    two_pointers[1, 32](out, tw.addresses([x]))
    assert (backend.get(out) == np.float32(2).view(np.int32)).all()


@tw.kernel
def vectors(addresses, n: tw.constexpr):
    source = tw.make_tensor(tw.pointer(addresses[0], tw.float32, align=16), tw.Layout(n))
    target = tw.make_tensor(tw.pointer(addresses[1], tw.float32, align=16), tw.Layout(n))
    i = tw.thread_idx.x
    tw.copy(tw.local_tile(source, (4,), (i,)), tw.local_tile(target, (4,), (i,)))


def test_wide_copies_at_the_promised_alignment(backend):
    x = backend.put(np.arange(128, dtype=np.float32))
    y = backend.zeros(128, tw.float32)
    vectors[1, 32](tw.addresses([x, y]), 128)
    np.testing.assert_array_equal(backend.get(y), np.arange(128, dtype=np.float32))
    assert "float4" in vectors[1, 32].source(tw.spec(tw.uint64, (2,)), 128)


@tw.kernel
def counted(addresses, ids):
    counters = tw.make_tensor(tw.pointer(addresses[1], tw.int32), tw.Layout(4))
    tw.atomic_add(counters, ids[tw.thread_idx.x], 1)


def test_atomic_updates(backend):
    a, b = backend.zeros(4, tw.int32), backend.zeros(4, tw.int32)
    counted[2, 64](tw.addresses([a, b]), backend.put((np.arange(64) % 4).astype(np.int32)))
    assert (backend.get(b) == 32).all()
    assert (backend.get(a) == 0).all()


@tw.kernel
def asynchronous(out, addresses):
    source = tw.make_tensor(tw.pointer(addresses[0], tw.float32, align=16), tw.Layout(128))
    stage = tw.shared(tw.float32, 128)
    i = tw.thread_idx.x
    tw.copy(tw.local_tile(source, (4,), (i,)), tw.local_tile(stage, (4,), (i,)))
    tw.cp_async_commit()
    tw.cp_async_wait(0)
    tw.sync_threads()
    out[i] = stage[127 - i]


def test_asynchronous_copies_from_an_address(backend):
    x, out = backend.put(np.arange(128, dtype=np.float32)), backend.zeros(32, tw.float32)
    asynchronous[1, 32](out, tw.addresses([x]))
    np.testing.assert_array_equal(backend.get(out), 127 - np.arange(32, dtype=np.float32))


@tw.kernel
def number(out, address):
    x = tw.make_tensor(tw.pointer(address, tw.float32), tw.Layout(8))
    out[tw.thread_idx.x] = x[tw.thread_idx.x]


def test_an_address_as_a_number(backend):
    x, out = backend.put(np.arange(8, dtype=np.float32)), backend.zeros(8, tw.float32)
    held = tw.addresses([x])
    address = x.data_ptr() if hasattr(x, "data_ptr") else x.ctypes.data
    number[1, 8](out, np.uint64(address))
    np.testing.assert_array_equal(backend.get(out), np.arange(8))
    del held


@tw.kernel
def nested(out, tables, n: tw.constexpr):
    table = tw.make_tensor(tw.pointer(tables[tw.block_idx.x], tw.uint64), tw.Layout(n))
    x = tw.make_tensor(tw.pointer(table[tw.thread_idx.x], tw.float32), tw.Layout(1))
    out[tw.block_idx.x, tw.thread_idx.x] = x[0]


def test_addresses_of_addresses(backend):
    arrays = [[backend.put(np.full(1, 10 * i + j, np.float32)) for j in range(3)] for i in range(2)]
    out = backend.zeros((2, 3), tw.float32)
    nested[2, 3](out, tw.addresses([tw.addresses(row) for row in arrays]), 3)
    np.testing.assert_array_equal(backend.get(out), [[0, 1, 2], [10, 11, 12]])


@tw.kernel
def chosen_in_a_loop(out, addresses, n):
    """The pointer of each iteration is another one; threads differ in it."""
    acc = tw.float32(0)
    for k in range(n):
        x = tw.make_tensor(tw.pointer(addresses[(k + tw.thread_idx.x) % 3], tw.float32), tw.Layout(4))
        if tw.thread_idx.x % 2 == 0:
            acc += x[k]
        else:
            acc += x[0]
    out[tw.thread_idx.x] = acc


def test_pointers_that_differ_by_thread_and_iteration(backend):
    host = [np.arange(4, dtype=np.float32) + 100 * k for k in range(3)]
    out = backend.zeros(32, tw.float32)
    chosen_in_a_loop[1, 32](out, tw.addresses([backend.put(x) for x in host]), 4)
    expected = [sum(host[(k + t) % 3][k if t % 2 == 0 else 0] for k in range(4)) for t in range(32)]
    np.testing.assert_array_equal(backend.get(out), expected)
