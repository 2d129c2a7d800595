"""Collectives against NumPy in the documented order, to the bit: all groups, types, shapes of blocks and operations."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend, assert_same_bits
from tests.helpers import collectives as expected

import tilewright as tw

BLOCKS: list[Any] = [1, 2, 20, 32, 40, 100, 128, 256, 288, 300, 512, (4, 8), (8, 4, 3), 1000, 1024]
GROUPS: list[Any] = ["block", "warp", 1, 2, 4, 8, 16, 32]
NAMED: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "mul": operator.mul,
    "min": np.fmin,
    "max": np.fmax,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
}


def threads_of(block: Any) -> int:
    return int(np.prod(block))


def numbers(type: tw.DType, count: int, seed: int = 0) -> Array:
    """Return numbers of which sums and products neither overflow nor are exact in every order."""
    random = np.random.default_rng(seed)
    if type.is_float:
        return random.uniform(0.9, 1.1, count).astype(type.numpy)
    if type is tw.bool_:
        return random.integers(0, 2, count).astype(np.bool_)
    return random.integers(1 if type.kind == "uint" else -3, 4, count).astype(type.numpy)


def wrapping(op: Callable[[Any, Any], Any], type: tw.DType) -> Callable[[Any, Any], Any]:
    """Return a NumPy operation in a type; of 16-bit floats, in float32 and rounded."""

    def compute(a: Any, b: Any) -> Any:
        with np.errstate(over="ignore"):
            if type.is_narrow_float:
                return type.numpy.type(op(np.float32(a), np.float32(b)))
            return type.numpy.type(op(a, b))

    return compute


@tw.kernel
def reduce_one(out, x, op: tw.constexpr, group: tw.constexpr):
    i = tw.thread_idx.x + tw.block_dim.x * (tw.thread_idx.y + tw.block_dim.y * tw.thread_idx.z)
    out[i] = tw.reduce(x[i], op, group)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.spread(4)
def test_sums(backend: Backend, block: Any) -> None:
    threads = threads_of(block)
    x = numbers(tw.float32, threads)
    for group in GROUPS:
        out = backend.zeros(threads, tw.float32)
        reduce_one[1, block](out, backend.put(x), "add", group)
        found = expected.reduced([[v] for v in x], operator.add, group)
        assert_same_bits(backend.get(out), np.array(found, np.float32), group)


@pytest.mark.parametrize("block", [96, 416, 1024])
@pytest.mark.parametrize(
    ("type", "op"),
    [
        (type, op)
        for type in (tw.float32, tw.float16, tw.bfloat16, tw.float64, tw.int8, tw.int32, tw.uint32, tw.int64)
        for op in NAMED
        if not (type.is_float and op in ("and", "or", "xor"))
    ],
    ids=str,
)
@pytest.mark.spread(6)
def test_names_and_types(backend: Backend, type: tw.DType, op: str, block: int) -> None:
    x = numbers(type, block)
    if op == "mul" and not type.is_float:
        x = np.ones_like(x)
        x[block // 3] = 3
    if op == "add" and type is tw.int8:
        x = x // 3
    out = backend.zeros(block, type)
    reduce_one[1, block](out, backend.put(x), op, "block")
    found = expected.reduced([[v] for v in x], wrapping(NAMED[op], type), "block")
    assert_same_bits(backend.get(out), np.array(found, type.numpy))


@pytest.mark.parametrize("group", ["warpgroup", 64, 128, 256])
def test_groups_of_warps(backend: Backend, group: Any) -> None:
    x = numbers(tw.float32, 512)
    out = backend.zeros(512, tw.float32)
    reduce_one[1, 512](out, backend.put(x), "add", group)
    assert_same_bits(backend.get(out), np.array(expected.reduced([[v] for v in x], operator.add, group), np.float32))


@tw.kernel
def reduce_matrices(out, x, group: tw.constexpr):
    """Multiply 2 x 2 matrices, which do not commute."""
    i = tw.thread_idx.x
    product = tw.reduce((x[i, 0], x[i, 1], x[i, 2], x[i, 3]), multiplied, group)
    for k, value in enumerate(product):
        out[i, k] = value


def multiplied(a, b):  # type: ignore[no-untyped-def]  # numbers of host or device
    return (
        a[0] * b[0] + a[1] * b[2],
        a[0] * b[1] + a[1] * b[3],
        a[2] * b[0] + a[3] * b[2],
        a[2] * b[1] + a[3] * b[3],
    )


def matrices(count: int) -> Array:
    """Return matrices of which products modulo 2^32 are exact and depend on the order."""
    return np.random.default_rng(5).integers(0, 2**32, (count, 4), dtype=np.uint32)


@pytest.mark.parametrize("block", [3, 32, 40, 128, 300, 320, 1000, 1024])
@pytest.mark.parametrize("group", ["block", "warp", 4])
@pytest.mark.spread(4)
def test_reduction_keeps_the_order(backend: Backend, block: int, group: Any) -> None:
    x = matrices(block)
    out = backend.zeros((block, 4), tw.uint32)
    reduce_matrices[1, block](out, backend.put(x), group)
    with np.errstate(over="ignore"):
        found = expected.reduced([[tuple(m)] for m in x], multiplied, group)
    assert_same_bits(backend.get(out), np.array(found, np.uint32))


@tw.kernel
def scan_matrices(out, total, x, group: tw.constexpr, exclusive: tw.constexpr):
    i = tw.thread_idx.x
    one = (tw.uint32(1), tw.uint32(0), tw.uint32(0), tw.uint32(1))
    matrix = (x[i, 0], x[i, 1], x[i, 2], x[i, 3])
    if exclusive:
        product, whole = tw.scan(matrix, multiplied, group, exclusive=True, initial=one, with_total=True)
    else:
        product, whole = tw.scan(matrix, multiplied, group, with_total=True)
    for k in tw.static_range(4):
        out[i, k] = product[k]
        total[i, k] = whole[k]


@pytest.mark.parametrize("block", [3, 32, 40, 128, 300, 320, 1000, 1024])
@pytest.mark.parametrize("group", ["block", "warp", 4])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.spread(6)
def test_scan_keeps_the_order(backend: Backend, block: int, group: Any, exclusive: bool) -> None:
    x = matrices(block)
    out, total = backend.zeros((block, 4), tw.uint32), backend.zeros((block, 4), tw.uint32)
    scan_matrices[1, block](out, total, backend.put(x), group, exclusive)
    one = tuple(np.uint32(n) for n in (1, 0, 0, 1))
    with np.errstate(over="ignore"):
        found, totals = expected.scanned(
            [[tuple(m)] for m in x],
            multiplied,
            group,
            exclusive=exclusive,
            initial=one if exclusive else None,
            is_named=False,
        )
    assert_same_bits(backend.get(out), np.array([m for (m,) in found], np.uint32))
    assert_same_bits(backend.get(total), np.array(totals, np.uint32))


@tw.kernel
def scan_fragment(out, x, count: tw.constexpr, op: tw.constexpr, group: tw.constexpr, exclusive: tw.constexpr):
    i = tw.thread_idx.x
    own = tw.registers(x.dtype, count)
    for k in tw.static_range(count):
        own[k] = x[i * count + k]
    found = tw.scan(own, op, group, exclusive=exclusive)
    for k in tw.static_range(count):
        out[i * count + k] = found[k]


@pytest.mark.parametrize("block", [1, 20, 32, 40, 96, 256, 288, 300, 1024])
@pytest.mark.parametrize(("group", "count"), [("block", 1), ("block", 3), ("warp", 4), (8, 1)])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.spread(6)
def test_scans(backend: Backend, block: int, group: Any, count: int, exclusive: bool) -> None:
    for op, neutral in (("add", 0), ("max", -np.inf)):
        x = numbers(tw.float32, block * count, seed=block)
        out = backend.zeros(block * count, tw.float32)
        scan_fragment[1, block](out, backend.put(x), count, op, group, exclusive)
        values = [list(row) for row in x.reshape(block, count)]
        found, _ = expected.scanned(values, NAMED[op], group, exclusive=exclusive, neutral=np.float32(neutral))
        assert_same_bits(backend.get(out), np.array(found, np.float32).ravel(), (op,))


@tw.kernel
def statistics(out, x):
    """Count, mean and sum of squared differences of a row, by Welford's merge."""
    i = tw.thread_idx.x
    triple = (tw.float32(1), x[i], tw.float32(0))

    def merged(a, b):
        count = a[0] + b[0]
        delta = b[1] - a[1]
        return count, a[1] + delta * (b[0] / count), a[2] + b[2] + delta * delta * (a[0] * b[0] / count)

    count, mean, squares = tw.reduce(triple, merged)
    out[i, 0], out[i, 1], out[i, 2] = count, mean, squares


@pytest.mark.parametrize("block", [7, 64, 300])
def test_welford(backend: Backend, block: int) -> None:
    x = np.random.default_rng(1).normal(5, 2, block).astype(np.float32)
    out = backend.zeros((block, 3), tw.float32)
    statistics[1, block](out, backend.put(x))
    found = backend.get(out)
    assert (found == found[0]).all()
    wide = x.astype(np.float64)
    assert np.allclose(found[0], [block, wide.mean(), ((wide - wide.mean()) ** 2).sum()], rtol=1e-5)


@tw.kernel
def repeated(out, x, rounds):
    """Collectives in loops and branches, with one, two and three barriers an iteration, on memory of their own."""
    i = tw.thread_idx.x
    total = tw.float32(0)
    for k in range(rounds):
        total += tw.reduce(x[k * 128 + i], "max")
    for k in range(rounds):
        least = tw.reduce(x[k * 128 + i], "min")
        total += tw.scan(x[k * 128 + i] - least)
    for k in range(rounds):
        if k % 2 == 0:
            total += tw.broadcast(x[k * 128 + i], 77)
        total += tw.reduce(x[k * 128 + i], "max", group=64)
        total += tw.sort(x[k * 128 + i])
    out[i] = total


def test_in_loops(backend: Backend) -> None:
    x = np.random.default_rng(0).integers(-9, 10, (5, 128)).astype(np.float32)
    out = backend.zeros(128, tw.float32)
    repeated[1, 128](out, backend.put(x.reshape(-1)), 5)
    total = np.zeros(128, np.float32)
    for k, row in enumerate(x):
        total += row.max() + np.cumsum(row - row.min()) + (row[77] if k % 2 == 0 else 0)
        total += row.reshape(2, 64).max(axis=1).repeat(64) + np.sort(row)
    assert_same_bits(backend.get(out), total)


# --- extremes, sorting -----------------------------------------------------------------------------------


@tw.kernel
def extremes(values, places, x, count: tw.constexpr, group: tw.constexpr):
    i = tw.thread_idx.x
    own = tw.registers(x.dtype, count)
    for k in tw.static_range(count):
        own[k] = x[i * count + k]
    values[0, i], places[0, i] = tw.argmax(own, group=group)
    values[1, i], places[1, i] = tw.argmin(own, group=group)


@pytest.mark.parametrize("block", [1, 20, 32, 40, 96, 288, 300, 1024])
@pytest.mark.parametrize("group", ["block", "warp", 8])
@pytest.mark.spread(4)
def test_extremes(backend: Backend, block: int, group: Any) -> None:
    random = np.random.default_rng(block)
    for type, count in ((tw.float32, 1), (tw.float32, 4), (tw.float16, 1), (tw.int32, 1), (tw.uint32, 4)):
        x = random.integers(0, 9, (block, count)).astype(type.numpy)
        if type.is_float:
            x[random.random(x.shape) < 0.2] = np.nan
            x[8:16] = np.nan
        values, places = backend.zeros((2, block), type), backend.zeros((2, block), tw.int32)
        extremes[1, block](values, places, backend.put(x.reshape(-1)), count, group)
        best = [[], []]
        where = [[], []]
        for members in expected.groups(list(x), group):
            flat = np.concatenate(members)
            for n, (function, lost) in enumerate(((np.argmax, -1), (np.argmin, 99))):
                place = int(function(np.where(np.isnan(flat), lost, flat) if type.is_float else flat))
                best[n] += [flat[place]] * len(members)
                where[n] += [place] * len(members)
        assert_same_bits(backend.get(values), np.array(best, type.numpy))
        assert_same_bits(backend.get(places), np.array(where, np.int32))


@tw.kernel
def sort_all(out, carried, x, count: tw.constexpr, group: tw.constexpr, descending: tw.constexpr):
    i = tw.thread_idx.x
    own, numbers = tw.registers(x.dtype, count), tw.registers(tw.int32, count)
    for k in tw.static_range(count):
        own[k] = x[i * count + k]
        numbers[k] = i * count + k
    keys = tw.sort(own, group=group, descending=descending)
    again, order = tw.sort(own, group=group, descending=descending, values=numbers)
    for k in tw.static_range(count):
        out[0, i * count + k], out[1, i * count + k] = keys[k], again[k]
        carried[i * count + k] = order[k]


SORTED: list[Any] = [(1, "block"), (20, "block"), (40, "warp"), (20, 8), (64, 8), (96, "block"), (100, "block")]
KEYS = [(tw.float32, 1), (tw.int32, 4), (tw.uint32, 1), (tw.float16, 1), (tw.int64, 1)]


@pytest.mark.parametrize(
    ("shape", "kind"),
    [  # what is compared does not depend on who exchanges with whom: every shape with one type, every type with two
        pytest.param(
            shape, kind, marks=() if kind is KEYS[0] or shape in ((20, 8), (96, "block")) else pytest.mark.slow
        )
        for shape in SORTED
        for kind in KEYS
    ],
    ids=str,
)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.spread(6)
def test_sort(backend: Backend, shape: tuple[int, Any], kind: tuple[tw.DType, int], descending: bool) -> None:
    (block, group), (type, count) = shape, kind
    random = np.random.default_rng(block)
    x = random.integers(0, 20, (block, count)).astype(type.numpy)
    if type.is_float:
        x = x - type.numpy.type(9.5)
        x[random.random(x.shape) < 0.1] = np.nan
        x[random.random(x.shape) < 0.1] = -np.inf
    elif type.kind == "int":
        x -= 9
        x[0, 0] = type.lowest
    out, carried = backend.zeros((2, block * count), type), backend.zeros(block * count, tw.int32)
    sort_all[1, block](out, carried, backend.put(x.reshape(-1)), count, group, descending)
    keys, order, first = [], [], 0
    for members in expected.groups(list(x), group):
        flat = np.concatenate(members)
        wide = flat.astype(np.float64 if type.is_float else object)
        found = np.argsort(-wide if descending else wide, kind="stable")
        keys.append(flat[found])
        order.append(found + first)
        first += len(flat)
    assert_same_bits(backend.get(out), np.stack([np.concatenate(keys)] * 2))
    assert_same_bits(backend.get(carried), np.concatenate(order).astype(np.int32))


@tw.kernel
def top(values, places, x, k: tw.constexpr, count: tw.constexpr, group: tw.constexpr, largest: tw.constexpr):
    i = tw.thread_idx.x
    own = tw.registers(x.dtype, count)
    for n in tw.static_range(count):
        own[n] = x[i * count + n]
    best, where = tw.topk(own, k, group=group, largest=largest)
    for n in tw.static_range(k):
        values[i, n], places[i, n] = best[n], where[n]


@pytest.mark.parametrize(("block", "group"), [(20, "block"), (64, "warp"), (64, 8), (300, "block"), (320, "block")])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.spread(4)
def test_topk(backend: Backend, block: int, group: Any, largest: bool) -> None:
    x = np.random.default_rng(3).integers(0, 30, (block, 2)).astype(np.float32)
    x[::5, 0], x[3, 1] = np.nan, -np.inf
    values, places = backend.zeros((block, 6), tw.float32), backend.zeros((block, 6), tw.int32)
    top[1, block](values, places, backend.put(x.reshape(-1)), 6, 2, group, largest)
    keys, order = [], []
    for members in expected.groups(list(x), group):
        flat = np.concatenate(members)
        found = np.argsort(-flat if largest else flat, kind="stable")[:6]
        keys += [flat[found]] * len(members)
        order += [found] * len(members)
    assert_same_bits(backend.get(values), np.array(keys))
    assert_same_bits(backend.get(places), np.array(order, np.int32))


@tw.kernel
def hand_on(out, x, source, group: tw.constexpr):
    i = tw.thread_idx.x
    out[0, i] = tw.broadcast(x[i], 3, group)
    out[1, i] = tw.broadcast(x[i], source, group)


@pytest.mark.parametrize("block", [5, 32, 40, 256, 300])
@pytest.mark.parametrize("group", ["block", "warp", 4])
def test_broadcast(backend: Backend, block: int, group: Any) -> None:
    x = np.arange(block, dtype=np.int64)
    out = backend.zeros((2, block), tw.int64)
    if block == 5 and group == 4:
        pytest.skip("the last group has no thread 3")
    hand_on[1, block](out, backend.put(x), 1, group)
    found = [[m[n] for m in expected.groups(list(x), group) for _ in m] for n in (3, 1)]
    assert_same_bits(backend.get(out), np.array(found))


# --- redux -----------------------------------------------------------------------------------------------


@tw.kernel
def by_redux(out, x, op: tw.constexpr):
    i = tw.thread_idx.x
    out[i] = tw.redux(x[i], op)


@pytest.mark.parametrize("op", ["add", "min", "max", "and", "or", "xor"])
@pytest.mark.parametrize("type", [tw.int32, tw.uint32], ids=str)
def test_redux(backend: Backend, op: str, type: tw.DType) -> None:
    x = np.random.default_rng(1).integers(-(2**31), 2**31, 64, np.int64).astype(type.numpy)
    out = backend.zeros(64, type)
    by_redux[1, 64](out, backend.put(x), op)
    found = expected.reduced([[v] for v in x], wrapping(NAMED[op], type), "warp")
    assert_same_bits(backend.get(out), np.array(found, type.numpy))
