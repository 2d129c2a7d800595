"""Mistakes between roles, blocks of a cluster and launches: rings, clusters, registers, launches that begin early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.bulk_copies import T, load_of, row_of, run_body, zeros

import tilewright as tw

LOAD, MULTICAST = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_LOAD_MULTICAST


def registers_never_given_back():
    @tw.kernel
    def kernel(out):
        if tw.warpgroup_id() == 0:
            tw.set_registers(168)
        else:
            tw.set_registers(240)
        out[tw.thread_idx.x] = 1

    kernel[1, 384](zeros(384))


def elect_in_lane_branch():
    @tw.kernel
    def kernel(out):
        if tw.lane_id() < 16:
            if tw.elect_one():
                out[0] = 1

    kernel[1, 32](zeros(1))


def launch_dependents_then_next_reads():
    @tw.kernel
    def write(y):
        tw.launch_dependents()
        y[tw.thread_idx.x] = 1

    @tw.kernel
    def read(out, y):
        out[tw.thread_idx.x] = y[tw.thread_idx.x]

    y, o = zeros(32), zeros(32)
    write[1, 32](y)
    read.configure(dependent_launch=True)[1, 32](o, y)


def grid_dependency_wait_one_thread_no_barrier():
    @tw.kernel
    def write(y):
        y[tw.thread_idx.x] = 1

    @tw.kernel
    def read(out, y):
        if tw.thread_idx.x == 0:
            tw.grid_dependency_wait()
        out[tw.thread_idx.x] = y[tw.thread_idx.x]

    y, o = zeros(32), zeros(32)
    write[1, 32](y)
    read.configure(dependent_launch=True)[1, 32](o, y)


def dependent_write_after_write():
    @tw.kernel
    def write(y):
        y[tw.thread_idx.x] = 1

    y = zeros(32)
    write[1, 32](y)
    write.configure(dependent_launch=True)[1, 32](y)


def dependent_launch_tma_load_before_wait():
    @tw.kernel
    def write(y):
        y[tw.thread_idx.x // 32, tw.thread_idx.x % 32] = 1

    @tw.kernel
    def read(out, y):
        s = tw.shared(tw.int32, tw.row_major((1, T)))
        f = tw.mbarrier(1)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            f.arrive_expect_tx(128)
            tw.copy(LOAD, load_of(y, 0), s, barrier=f)
        tw.grid_dependency_wait()
        f.wait(0)
        out[0, tw.thread_idx.x] = s[0, tw.thread_idx.x]

    y, o = zeros(1, 32), zeros(1, 32)
    write[1, 32](y)
    read.configure(dependent_launch=True)[1, 32](o, y)


def remote_rank_beyond():
    @tw.function
    def body(out, x, smem, full):
        tw.cluster_sync()
        smem.at_rank(tw.block_rank_in_cluster() + 1)[0, tw.thread_idx.x] = 1
        tw.cluster_sync()

    run_body(body, 32, 2, 2)


def remote_write_then_arrive_without_wait():
    @tw.function
    def body(out, x, smem, full):
        tw.cluster_sync()
        smem.at_rank(1 - tw.block_rank_in_cluster())[0, tw.thread_idx.x] = 1
        tw.cluster_arrive()
        out[tw.block_rank_in_cluster(), tw.thread_idx.x] = smem[0, tw.thread_idx.x]
        tw.cluster_wait()

    run_body(body, 32, 2, 2)


def cluster_arrive_by_one_warp():
    @tw.function
    def body(out, x, smem, full):
        if tw.warp_id() == 0:
            tw.cluster_arrive()
        tw.cluster_wait()

    run_body(body, 64, 2, 2)


def cluster_wait_without_arrive():
    @tw.function
    def body(out, x, smem, full):
        tw.cluster_wait()

    run_body(body, 64, 2, 2)


def remote_arrive_after_leaving():
    @tw.function
    def body(out, x, smem, full):
        tw.cluster_sync()
        if tw.block_rank_in_cluster() == 1 and tw.thread_idx.x == 0:
            full.at_rank(0).arrive()
        if tw.block_rank_in_cluster() == 0 and tw.thread_idx.x == 0:
            out[0, 0] = 1

    run_body(body, 32, 2, 2)


def cluster_multicast_unexpecting_rank():
    @tw.function
    def body(out, x, smem, full):
        tw.cluster_sync()
        if tw.thread_idx.x == 0 and tw.block_rank_in_cluster() == 0:
            full.arrive_expect_tx(128)
            tw.copy(MULTICAST, load_of(x, 0), row_of(smem, 0), barrier=full, mask=0b11)
        if tw.block_rank_in_cluster() == 0:
            full.wait(0)
        tw.cluster_sync()

    run_body(body, 32, 2, 2)


def producer_copies_half():
    @tw.function
    def body(out, x, smem, full):
        ring = tw.pipeline(2, consumers=1, bytes=256)
        tw.sync_threads()
        if tw.warp_id() == 1:
            if tw.elect_one():
                state = ring.producer()
                for k in range(4):
                    with state.fill() as (s, f):
                        tw.copy(LOAD, load_of(x, k), row_of(smem, s), barrier=f)
        else:
            state = ring.consumer()
            for k in range(4):
                with state.read() as s:
                    out[k, tw.lane_id()] = smem[s, tw.lane_id()]

    run_body(body, 64)


def consumer_reads_one_more():
    @tw.function
    def body(out, x, smem, full):
        ring = tw.pipeline(2, consumers=1, bytes=128)
        tw.sync_threads()
        if tw.warp_id() == 1:
            if tw.elect_one():
                state = ring.producer()
                for k in range(4):
                    with state.fill() as (s, f):
                        tw.copy(LOAD, load_of(x, k), row_of(smem, s), barrier=f)
        else:
            state = ring.consumer()
            for k in range(5):
                with state.read() as s:
                    out[k, tw.lane_id()] = smem[s, tw.lane_id()]

    run_body(body, 64)


def producer_fills_more_than_is_read():
    @tw.function
    def body(out, x, smem, full):
        ring = tw.pipeline(2, consumers=1, bytes=128)
        tw.sync_threads()
        if tw.warp_id() == 1:
            if tw.elect_one():
                state = ring.producer()
                for k in range(5):
                    with state.fill() as (s, f):
                        tw.copy(LOAD, load_of(x, k), row_of(smem, s), barrier=f)
        else:
            state = ring.consumer()
            for k in range(4):
                with state.read() as s:
                    out[k, tw.lane_id()] = smem[s, tw.lane_id()]

    run_body(body, 64)


def read_after_the_with():
    @tw.function
    def body(out, x, smem, full):
        ring = tw.pipeline(2, consumers=1, bytes=128)
        tw.sync_threads()
        if tw.warp_id() == 1:
            if tw.elect_one():
                state = ring.producer()
                for k in range(6):
                    with state.fill() as (s, f):
                        tw.copy(LOAD, load_of(x, k), row_of(smem, s), barrier=f)
        else:
            state = ring.consumer()
            for k in range(6):
                with state.read() as s:
                    pass
                out[k, tw.lane_id()] = smem[s, tw.lane_id()]

    run_body(body, 64)


def two_producers_of_one_ring():
    @tw.function
    def body(out, x, smem, full):
        ring = tw.pipeline(2, consumers=1, bytes=128)
        tw.sync_threads()
        if tw.warp_id() >= 1:
            if tw.elect_one():
                state = ring.producer()
                for k in range(4):
                    with state.fill() as (s, f):
                        tw.copy(LOAD, load_of(x, k), row_of(smem, s), barrier=f)
        else:
            state = ring.consumer()
            for k in range(4):
                with state.read() as s:
                    out[k, tw.lane_id()] = smem[s, tw.lane_id()]

    run_body(body, 96)


def mbarrier_reinitialised():
    @tw.kernel
    def kernel(out):
        for j in range(out.shape[0]):
            b = tw.mbarrier(1)
            tw.sync_threads()
            if tw.thread_idx.x == 0:
                b.arrive()
            b.wait(0)

    kernel[1, 64](zeros(3))


MISTAKES: dict[Callable[[], None], set[str]] = {
    registers_never_given_back: {"too-many-registers"},
    elect_in_lane_branch: {"warp-divergence"},
    launch_dependents_then_next_reads: {"missing-wait"},
    grid_dependency_wait_one_thread_no_barrier: {"missing-wait"},
    dependent_write_after_write: {"missing-wait"},
    dependent_launch_tma_load_before_wait: {"missing-wait"},
    remote_rank_beyond: {"out-of-bounds"},
    remote_write_then_arrive_without_wait: {"race"},
    cluster_arrive_by_one_warp: {"barrier-divergence"},
    cluster_wait_without_arrive: {"barrier-divergence"},
    remote_arrive_after_leaving: {"absent-block"},
    cluster_multicast_unexpecting_rank: {"missing-wait"},
    producer_copies_half: {"deadlock"},
    consumer_reads_one_more: {"deadlock"},
    producer_fills_more_than_is_read: {"missing-wait"},
    read_after_the_with: {"race"},
    two_producers_of_one_ring: {"barrier-divergence", "deadlock", "race"},
    mbarrier_reinitialised: {"race", "reinitialised-mbarrier"},
}


def findings(run: Callable[[], None]) -> list[Any]:
    with tw.simulate(raise_errors=False) as simulated:
        run()
    return list(simulated.findings)


@pytest.mark.parametrize(("run", "kinds"), MISTAKES.items(), ids=lambda x: getattr(x, "__name__", None))
def test_a_mistake_is_found(run: Callable[[], None], kinds: set[str]) -> None:
    found = findings(run)
    assert {finding.kind for finding in found} == kinds, [finding.message for finding in found]
    assert all(Path(__file__).name in finding.message for finding in found)
