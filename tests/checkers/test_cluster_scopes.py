"""Scopes of flags, fences and atomic updates between the blocks of a cluster, told apart by the checker."""

from __future__ import annotations

import numpy as np
import pytest
from tests.checkers.test_clusters import THREADS, kinds

import tilewright as tw


def handed_over_by(store: str, load: str, at: str, fences: tuple[str, str] | None = None) -> set[str]:
    """Return what is found where a block of a cluster sets a flag for another one, by these scopes, in some memory.

    Elsewhere in the kernel both narrow scopes are used, rightly. With `fences` the flag is relaxed.
    """
    sems = ("release", "acquire") if fences is None else ("relaxed", "relaxed")

    @tw.kernel(cluster=2)
    def hand_over(out, data, flags):
        shared, own, i = tw.shared(tw.int32, 1), tw.shared(tw.int32, 2), tw.thread_idx.x
        rank = tw.block_rank_in_cluster()
        if i == 0:
            shared[0] = 0
            own[0] = 0
            own[1] = 0
        tw.cluster_sync()
        tw.atomic_add(own, 0, 1, scope="cta")
        tw.atomic_add(own.at_rank(0), 1, 1, scope="cluster")
        flag = shared.at_rank(1) if at == "shared" else flags
        if i == 0:
            if rank == 0:
                data[0] = 7
                if fences is not None:
                    tw.threadfence(fences[0])
                tw.store(flag, 0, 1, sem=sems[0], scope=store)
            else:
                while tw.load(flag, 0, sem=sems[1], scope=load) == 0:
                    pass
                if fences is not None:
                    tw.threadfence(fences[1])
                out[0] = data[0]
        tw.cluster_sync()

    return kinds(hand_over, *[np.zeros(1, np.int32) for _ in range(3)])


@pytest.mark.parametrize("at", ["global", "shared"])
def test_scopes_of_one_kernel_are_told_apart(at: str) -> None:
    """Two accesses reach each other where the narrower of their scopes does."""
    scopes = ("cta", "cluster", "gpu")
    for store in scopes:
        for load in scopes:
            found = handed_over_by(store, load, at)
            assert found == ({"race"} if "cta" in (store, load) else set()), (store, load)


@pytest.mark.parametrize("at", ["global", "shared"])
@pytest.mark.parametrize("fence", ["cta", "cluster", "gpu"])
def test_fences_reach_as_far_as_their_scope(at: str, fence: str) -> None:
    for fences in ((fence, "gpu"), ("cluster", fence)):
        found = handed_over_by("cluster", "cluster", at, fences)
        assert found == ({"race"} if fence == "cta" else set()), fences


@pytest.mark.parametrize(("other", "found"), [("cta", {"race"}), ("cluster", set()), ("gpu", set())])
def test_atomic_updates_of_shared_memory_of_another_block_by_scope(other: str, found: set[str]) -> None:
    @tw.kernel(cluster=2)
    def update(out):
        count = tw.shared(tw.int32, 1)
        if tw.thread_idx.x == 0:
            count[0] = 0
        tw.cluster_sync()
        if tw.block_rank_in_cluster() == 0:
            tw.atomic_add(count, 0, 1, scope="cluster")
        else:
            tw.atomic_add(count.at_rank(0), 0, 1, scope=other)
        tw.cluster_sync()
        if tw.thread_idx.x == 0:
            out[tw.block_idx.x] = count[0]

    out = np.zeros(4, np.int32)
    assert kinds(update, out, grid=4) == found
    assert out[0] == out[2] == 2 * THREADS


def test_clusters_that_meet_by_scopes_of_clusters() -> None:
    """Of two clusters the scope "cluster" says nothing, whatever else the kernel has."""

    @tw.kernel(cluster=2)
    def update(count, mine):
        tw.atomic_add(count, 0, 1, scope="cluster")
        tw.atomic_add(mine, tw.block_idx.x, 1, scope="cta")

    given = np.zeros(1, np.int32), np.zeros(4, np.int32)
    assert kinds(update, *given, grid=2) == set()
    assert kinds(update, *given, grid=4) == {"race"}
