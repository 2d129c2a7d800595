"""Shuffles of every kind, width and type, and votes."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.harness import ALL, Array, Backend, assert_same_bits, edge_values

import tilewright as tw

LANES = np.arange(32)


@tw.kernel
def shuffle_all(out, x, lanes, width: tw.constexpr):
    i = tw.thread_idx.x
    value, lane = x[i], lanes[i]
    out[0, i] = tw.shuffle(value, lane, width)
    out[1, i] = tw.shuffle_up(value, 1, width)
    out[2, i] = tw.shuffle_down(value, 1, width)
    out[3, i] = tw.shuffle_xor(value, 1, width)
    out[4, i] = tw.shuffle_up(value, width // 2, width)
    out[5, i] = tw.shuffle_down(value, width // 2, width)
    out[6, i] = tw.shuffle_xor(value, width - 1, width)
    out[7, i] = tw.shuffle(value, 0, width)
    out[8, i] = tw.shuffle_xor(value, 5, width)


def sources(lanes: Array, width: int) -> list[Array]:
    """Return the lane that each lane reads: inside its group of `width`, or itself where that has no such lane."""
    group, place = LANES // width * width, LANES % width
    half = width // 2

    def up(delta: int) -> Array:
        return np.where(place >= delta, LANES - delta, LANES)

    def down(delta: int) -> Array:
        return np.where(place + delta < width, LANES + delta, LANES)

    def xor(mask: int) -> Array:
        # An earlier group may be read, a later one not (PTX shfl.sync.bfly compares with the group's last lane only).
        return np.where((LANES ^ mask) < group + width, LANES ^ mask, LANES)

    return [group + lanes % width, up(1), down(1), xor(1), up(half), down(half), xor(width - 1), group, xor(5)]


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("width", [32, 16, 8, 4, 2, 1])
@pytest.mark.spread(6)
def test_shuffles(backend: Backend, dtype: tw.DType, width: int) -> None:
    random = np.random.default_rng(width)
    x = random.choice(edge_values(dtype), 64)
    lanes = random.integers(0, 32, 32).astype(np.int32)
    out = backend.zeros((9, 64), dtype)
    shuffle_all[1, 64](out, backend.put(x), backend.put(np.tile(lanes, 2)), width)
    warps = x.reshape(2, 32)
    expected = np.stack([warps[:, s].ravel() for s in sources(lanes, width)])
    assert_same_bits(backend.get(out), expected)


@tw.kernel
def butterfly_sum(out, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    total = x[i]
    step = 16
    while step > 0:
        total = total + tw.shuffle_xor(total, step)
        step //= 2
    out[i] = total


@tw.kernel
def downward_sum(out, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    total = x[i]
    for step in (16, 8, 4, 2, 1):
        total += tw.shuffle_down(total, step)
    if tw.lane_id() == 0:
        out[i // 32] = total


@pytest.mark.parametrize("dtype", [tw.int32, tw.int64, tw.float16, tw.bfloat16, tw.float32, tw.float64], ids=str)
def test_sums_over_warps(backend: Backend, dtype: tw.DType) -> None:
    x = np.random.default_rng(0).integers(0, 8, 256).astype(dtype.numpy)
    sums = x.reshape(8, 32).astype(np.float64).sum(axis=1).astype(dtype.numpy)
    out = backend.zeros(256, dtype)
    butterfly_sum[2, 128](out, backend.put(x))
    assert_same_bits(backend.get(out), np.repeat(sums, 32))
    first = backend.zeros(8, dtype)
    downward_sum[2, 128](first, backend.put(x))
    assert_same_bits(backend.get(first), sums)


@tw.kernel
def votes(any_out, all_out, ballots, x):
    i = tw.thread_idx.x
    any_out[i] = tw.vote_any(x[i] > 90)
    all_out[i] = tw.vote_all(x[i] < 95)
    ballots[i] = tw.ballot(x[i] % 2 == 0)


def test_votes(backend: Backend) -> None:
    x = np.random.default_rng(0).integers(0, 100, 256).astype(np.int32)
    x[32:64] = 5
    outs = [backend.zeros(256, tw.bool_), backend.zeros(256, tw.bool_), backend.zeros(256, tw.uint32)]
    votes[1, 256](*outs, backend.put(x))
    warps = x.reshape(8, 32)
    assert np.array_equal(backend.get(outs[0]), np.repeat((warps > 90).any(axis=1), 32))
    assert np.array_equal(backend.get(outs[1]), np.repeat((warps < 95).all(axis=1), 32))
    words = [sum(1 << lane for lane in range(32) if row[lane] % 2 == 0) for row in warps]
    assert np.array_equal(backend.get(outs[2]), np.repeat(np.array(words, np.uint32), 32))


@tw.kernel
def compact(out, counts, x):
    """Keep what is positive: each thread finds its place from a ballot."""
    i = tw.thread_idx.x
    keep = tw.ballot(x[i] > 0)
    lane = tw.lane_id()
    below = keep & ((tw.uint32(1) << lane.to(tw.uint32)) - 1)
    if x[i] > 0:
        out[tw.warp_id() * 32 + tw.popcount(below)] = x[i]
    if lane == 0:
        counts[tw.warp_id()] = tw.popcount(keep)


def test_compaction(backend: Backend) -> None:
    x = np.random.default_rng(0).integers(-9, 9, 128).astype(np.int32)
    out, counts = backend.zeros(128, tw.int32), backend.zeros(4, tw.int32)
    compact[1, 128](out, counts, backend.put(x))
    expected = np.zeros((4, 32), np.int32)
    for w, row in enumerate(x.reshape(4, 32)):
        expected[w, : (row > 0).sum()] = row[row > 0]
    assert np.array_equal(backend.get(out), expected.ravel())
    assert np.array_equal(backend.get(counts), (x.reshape(4, 32) > 0).sum(axis=1))


@tw.kernel
def lanes_of_a_cube(lane, warp):
    """Threads fill warps with x fastest."""
    i = tw.thread_idx.x + 8 * (tw.thread_idx.y + 3 * tw.thread_idx.z)
    lane[i] = tw.lane_id()
    warp[i] = tw.warp_id()


def test_lanes_in_three_dimensions(backend: Backend) -> None:
    outs = [backend.zeros(96, tw.int32) for _ in range(2)]
    lanes_of_a_cube[1, (8, 3, 4)](*outs)
    assert np.array_equal(backend.get(outs[0]), np.arange(96) % 32)
    assert np.array_equal(backend.get(outs[1]), np.arange(96) // 32)
