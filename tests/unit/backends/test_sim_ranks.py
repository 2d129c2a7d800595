"""Several ranks in the simulator: what they share, what each has for itself, and programs that it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.backends.sim import Rank


@tw.kernel
def fill(x, number):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.shape[0]:
        x[i] = number + i


@tw.kernel
def await_flag(flag):
    while tw.load(flag, 0, sem="acquire", scope="sys") == 0:
        pass


@tw.kernel
def set_flag(flag):
    tw.store(flag, 0, 1, sem="release", scope="sys")


@tw.kernel
def box_copy(y, x, tile: tw.constexpr):
    smem = tw.shared(x.dtype, tw.Layout(tile, (tile[1], 1)))
    full = tw.mbarrier(1)
    tw.sync_threads()
    where = tw.block_idx.x, 0
    if tw.thread_idx.x == 0:
        full.arrive_expect_tx(tile[0] * tile[1] * x.dtype.bytes)
        tw.copy(tw.atoms.SM90_TMA_LOAD, tw.local_tile(x, tile, where, guard=True), smem, barrier=full)
        full.wait(0)
        tw.fence_proxy_async()
        tw.copy(tw.atoms.SM90_TMA_STORE, smem, tw.local_tile(y, tile, where, guard=True))
        tw.tma_store_commit()
        tw.tma_store_wait(0)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_each_rank_has_its_own_arrays_and_numbers(ranks: int) -> None:
    def main(rank: Rank) -> np.ndarray:
        x = np.zeros(40 + rank.rank, np.int32)  # an extent for each rank
        fill[2, 32](x, 1000 * rank.rank)
        return x

    for rank, x in enumerate(tw.simulate(ranks=ranks).run(main)):
        np.testing.assert_array_equal(x, 1000 * rank + np.arange(40 + rank))


def test_tensor_maps_describe_the_arrays_of_each_rank() -> None:
    def main(rank: Rank) -> tuple[np.ndarray, np.ndarray]:
        x = np.random.default_rng(rank.rank).random((24 + rank.rank, 16), np.float32)
        y = np.zeros_like(x)
        box_copy[4, 32](y, x, (8, 16))
        return x, y

    for x, y in tw.simulate(ranks=3).run(main):
        np.testing.assert_array_equal(x, y)


@tw.kernel
def copy_words(y, x):
    words, i = x.recast(tw.uint32), tw.thread_idx.x
    if i < words.shape[0]:
        y.recast(tw.uint32)[i] = words[i]


def test_arrays_of_each_rank_are_seen_as_other_elements() -> None:
    def main(rank: Rank) -> bool:
        x, y = np.arange(8, dtype=np.float16) + rank.rank, np.zeros(8, np.float16)
        copy_words[1, 8](y, x)
        return np.array_equal(x, y)

    assert all(tw.simulate(ranks=2).run(main))


def test_symmetric_buffers_are_the_same_arrays_on_all_ranks() -> None:
    def main(rank: Rank) -> Any:
        buffer = rank.symmetric((2, 3), tw.float16)
        buffer.local[...] = rank.rank
        rank.barrier()
        assert buffer.at(rank.rank) is buffer.local
        with pytest.raises(tw.errors.ArgumentError, match="rank is at most 1, got 2"):
            buffer.at(2)
        return [int(peer[0, 0]) for peer in buffer.peers]

    assert tw.simulate(ranks=2).run(main) == [[0, 1], [0, 1]]


def test_a_kernel_that_waits_runs_behind_one_of_another_rank_that_does_not() -> None:
    def main(rank: Rank) -> None:
        flag = rank.symmetric(1, tw.int32)
        if rank.rank == 1:
            set_flag[1, 1](flag.at(0))
            set_flag[1, 1](flag.at(1))
        await_flag[1, 1](flag.local)

    tw.simulate(ranks=2).run(main)


@pytest.mark.parametrize("meets", [False, True])
@pytest.mark.parametrize("tells", [False, True])
def test_some_ranks_wait_for_others_that_have_ended_or_wait_to_meet(meets: bool, tells: bool) -> None:
    def main(rank: Rank) -> None:
        flag = rank.symmetric(1, tw.int32)
        if rank.rank == 2:
            for other in range(2 if tells else 1):
                set_flag[1, 1](flag.at(other))
        else:
            await_flag[1, 1](flag.local)
        if meets:
            rank.barrier()

    with tw.simulate(ranks=3, raise_errors=False) as run:
        run.run(main)
    assert [(found.kind, found.rank) for found in run.findings] == ([] if tells else [("deadlock", 1)])


def test_an_access_beyond_the_array_of_a_rank_is_out_of_bounds_though_memory_is_there() -> None:
    @tw.kernel
    def beyond(x):
        x[tw.thread_idx.x] = 1

    def main(rank: Rank) -> None:
        buffer = rank.symmetric(64, tw.int32)
        beyond[1, 32](buffer.local[: 32 - rank.rank])

    with tw.simulate(ranks=2, raise_errors=False) as run:
        run.run(main)
    (found,) = run.findings
    assert (found.kind, found.rank, found.count) == ("out-of-bounds", 1, 1)
    assert found.to_dict()["rank"] == 1
    assert "which lies beyond the array of its rank" in found.message


def refused(main: Any, match: str, ranks: int = 2, error: type[Exception] = tw.errors.ArgumentError) -> str:
    with pytest.raises(error, match=match) as info:
        tw.simulate(ranks=ranks).run(main)
    return str(info.value)


def test_symmetric_buffers_of_different_shapes_are_refused() -> None:
    message = refused(lambda rank: rank.symmetric(4 + rank.rank, tw.int32), "the ranks do not come to the same place")
    assert "rank 0 makes a symmetric buffer of shape (4,) of int32" in message
    assert "rank 1 makes a symmetric buffer of shape (5,) of int32" in message


def test_a_rank_that_has_ended_is_named_to_those_that_wait_for_it() -> None:
    message = refused(lambda rank: None if rank.rank else rank.barrier(), "do not come to the same place")
    assert "rank 0 waits at rank.barrier()" in message
    assert "rank 1 has ended" in message


def test_a_rank_that_fails_ends_the_others_with_its_error() -> None:
    ended = []

    def main(rank: Rank) -> None:
        try:
            if rank.rank == 1:
                raise KeyError("of rank 1")
            rank.barrier()
        finally:
            ended.append(rank.rank)

    refused(main, "of rank 1", error=KeyError)
    assert sorted(ended) == [0, 1]


@pytest.mark.timeout(20)  # it waited for ever
def test_a_rank_that_cleans_up_after_another_has_failed_ends_too() -> None:
    def main(rank: Rank) -> None:
        if rank.rank == 1:
            raise KeyError("of rank 1")
        try:
            rank.barrier()
        finally:
            rank.barrier()

    refused(main, "of rank 1", error=KeyError)


@pytest.mark.timeout(20)
def test_a_rank_is_not_used_after_its_function_has_ended() -> None:
    rank = tw.simulate(ranks=2).run(lambda rank: rank)[1]
    for use in (rank.barrier, lambda: rank.symmetric(4, tw.int32)):
        with pytest.raises(tw.errors.ArgumentError, match="<rank 1 of 2> is used after its function has ended"):
            use()


def test_extents_of_symmetric_buffers_are_any_integers() -> None:
    shapes = tw.simulate(ranks=1).run(lambda rank: rank.symmetric(np.int64(3), tw.int32).local.shape)
    assert shapes == [(3,)]
    refused(lambda rank: rank.symmetric(2.5, tw.int32), "symmetric: an extent is an integer, got float 2.5")  # type: ignore[arg-type]


def test_different_grids_of_one_kernel_are_refused() -> None:
    message = refused(lambda rank: fill[1 + rank.rank, 32](np.zeros(8, np.int32), 0), "the same grid|a grid of")
    assert "rank 1 with (2, 1, 1)" in message


def test_what_is_not_a_number_of_ranks_is_refused() -> None:
    for ranks in (0, -1, 1.0, True, 65):
        with pytest.raises(tw.errors.ArgumentError, match=r"tw\.simulate: ranks is"):
            tw.simulate(ranks=ranks)  # type: ignore[arg-type]
    with pytest.raises(tw.errors.ArgumentError, match="profile=True measures launches of one GPU"):
        tw.simulate(ranks=2, profile=True)


def test_a_finding_is_raised_from_run() -> None:
    @tw.kernel
    def all_write(x):
        x[0][0] = 1

    refused(
        lambda rank: all_write[1, 1](rank.symmetric(1, tw.int32).peers),
        "overlapping writes",
        error=tw.errors.CheckError,
    )
