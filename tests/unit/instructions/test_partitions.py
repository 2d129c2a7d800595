"""Partitions among other threads than the block has are refused, as tiled copies are."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw


@tw.kernel
def copy_tile(y, x, threads: tw.constexpr, shift: tw.constexpr, guarded: tw.constexpr):
    thread = tw.thread_idx.x + shift
    if guarded:
        if thread < threads.size:
            tw.copy(tw.local_partition(x, threads, thread), tw.local_partition(y, threads, thread))
    else:
        tw.copy(tw.local_partition(x, threads, thread), tw.local_partition(y, threads, thread))


def run(block: int, threads: tw.Layout, shift: int = 0, guarded: bool = False) -> bool:
    x, y = np.arange(256, dtype=np.float32).reshape(8, 32), np.zeros((8, 32), np.float32)
    copy_tile[1, block](y, x, threads, shift, guarded)
    return np.array_equal(x, y)


def test_as_many_threads_as_the_block_has() -> None:
    assert run(256, tw.Layout((8, 32)))
    assert run(128, tw.Layout((4, 32)))
    assert run(128, tw.Layout((4, 32), (32, 1)))


def test_more_than_the_block_has() -> None:
    with pytest.raises(tw.LanguageError, match="of 256 threads is used in a block of 128 threads: no thread takes"):
        run(128, tw.Layout((8, 32)))


def test_fewer_than_the_block_has() -> None:
    with pytest.raises(tw.LanguageError, match="some of them take slices that do not exist") as raised:
        run(256, tw.Layout((4, 32)))
    assert "tw.local_partition of 128 threads" in str(raised.value)
    assert run(256, tw.Layout((4, 32)), guarded=True)


def test_a_shifted_number() -> None:
    with pytest.raises(tw.LanguageError, match="the threads here take 8 to 135"):
        run(128, tw.Layout((4, 32)), shift=8)
    with pytest.raises(tw.LanguageError, match="no thread takes some"):
        run(128, tw.Layout((4, 32)), shift=8, guarded=True)


@tw.kernel
def by_warps(y, x):
    """Each warp takes the tile of its number, which is one slice a thread of each warp."""
    mine = tw.local_tile(y, (32,), (tw.warp_id(),))
    theirs = tw.local_tile(x, (32,), (tw.warp_id(),))
    tw.copy(tw.local_partition(theirs, (32,), tw.lane_id()), tw.local_partition(mine, (32,), tw.lane_id()))


def test_partitions_of_warps() -> None:
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    by_warps[1, 128](y, x)
    assert np.array_equal(x, y)
