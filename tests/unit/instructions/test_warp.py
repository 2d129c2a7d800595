"""Shuffles and votes, and where a thread is."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.language import compiles, run, zeros

import tilewright as tw


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.float32, np.float64, np.float16])
@pytest.mark.spread(2)
def test_warp_sum(dtype):
    @tw.kernel
    def total(out, x):
        value = x[tw.thread_idx.x]
        for k in tw.static_range(5):
            value += tw.shuffle_xor(value, 16 >> k)
        out[tw.thread_idx.x] = value

    x = np.arange(64).astype(dtype)
    expected = np.repeat([x[:32].sum(), x[32:].sum()], 32)
    assert np.array_equal(run(total, zeros(64, dtype), x, block=64), expected)
    t = tw.dtype(np.dtype(dtype))
    compiles(total, tw.spec(t, 1), tw.spec(t, 1), block=64)


@pytest.mark.parametrize("width", [32, 8])
def test_shuffles(width):
    @tw.kernel
    def shuffles(out, width: tw.constexpr):
        i = tw.thread_idx.x
        out[0, i] = tw.shuffle(i * 10, 3, width)
        out[1, i] = tw.shuffle_up(i, 2, width)
        out[2, i] = tw.shuffle_down(i, 2, width)
        out[3, i] = tw.shuffle(i, (i + 1) % width, width)

    out = run(shuffles, np.zeros((4, 32), np.int32), width, block=32)
    i = np.arange(32)
    first, lane = i // width * width, i % width
    assert out[0].tolist() == (10 * (first + 3)).tolist()
    assert out[1].tolist() == np.where(lane >= 2, i - 2, i).tolist()
    assert out[2].tolist() == np.where(lane < width - 2, i + 2, i).tolist()
    assert out[3].tolist() == (first + (lane + 1) % width).tolist()
    compiles(shuffles, tw.spec("int32", 2), width, block=32)


def test_votes():
    @tw.kernel
    def votes(out):
        i = tw.thread_idx.x
        out[0, i] = tw.vote_any(i % 32 == 5)
        out[1, i] = tw.vote_all(i < 40)
        out[2, i] = tw.ballot(i % 3)

    out = run(votes, np.zeros((3, 64), np.uint32), block=64)
    assert out[0].tolist() == [1] * 64
    assert out[1].tolist() == [1] * 32 + [0] * 32
    for warp in (0, 1):
        bits = sum(1 << lane for lane in range(32) if (32 * warp + lane) % 3)
        assert set(out[2, 32 * warp : 32 * warp + 32].tolist()) == {bits}
    compiles(votes, tw.spec("uint32", 2), block=64)


def test_width_of_a_shuffle_is_checked():
    @tw.kernel
    def odd(out):
        out[0] = tw.shuffle(1, 0, 12)

    with pytest.raises(tw.LanguageError, match="width of a shuffle is a power of two up to 32, got 12"):
        run(odd, zeros(1))


def test_places():
    @tw.kernel
    def places(out):
        x, y, z = tw.thread_idx.x, tw.thread_idx.y, tw.thread_idx.z
        n = x + 4 * (y + 8 * z)
        out[0, n] = tw.lane_id()
        out[1, n] = tw.warp_id()
        out[2, n] = tw.block_idx.x + 10 * tw.block_idx.y + 100 * tw.grid_dim.x + 1000 * tw.grid_dim.z
        assert (tw.block_dim.x, tw.block_dim.y, tw.block_dim.z) == (4, 8, 2)

    out = run(places, np.zeros((3, 64), np.int32), grid=(1, 1, 1), block=(4, 8, 2))
    n = np.arange(64)
    assert np.array_equal(out, [n % 32, n // 32, np.full(64, 1100)])
    compiles(places, tw.spec("int32", 2), block=(4, 8, 2))


def test_block_extents_without_a_block_are_dynamic():
    @tw.kernel
    def extents(out):
        out[tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x] = tw.block_dim.y

    assert "blockDim.y" in extents.source(tw.spec("int32", 1))
    assert "blockDim" not in extents.source(tw.spec("int32", 1), block=(32, 2))
