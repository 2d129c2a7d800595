"""Launches that begin before the one before them has ended: rows of kernels give what they give one by one."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.harness import Backend

import tilewright as tw

COUNT = 64 * 256


@tw.kernel(dependent_launch=True)
def step(out, x, weights, rounds: tw.constexpr, by_one: tw.constexpr):
    """Write x + weights, the weights read and work done before the launch before this one has ended."""
    tw.launch_dependents()
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    weight = weights[i]
    for _ in range(rounds):
        weight = weight * 3 % 17
    if by_one:
        if tw.thread_idx.x == 0:
            tw.grid_dependency_wait()
        tw.sync_threads()
    else:
        tw.grid_dependency_wait()
    # The block reads what another block of the launch before wrote.
    out[i] = x[COUNT - 1 - i] + weight


@tw.kernel(dependent_launch=True)
def step_by_bulk(out, x):
    """Write x + 1 through shared memory; one thread waits, and loads by TMA."""
    smem, full = tw.shared(tw.int32, 256), tw.mbarrier(1)
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        tw.grid_dependency_wait()
        full.arrive_expect_tx(1024)
        tile = tw.local_tile(x, (256,), (tw.grid_dim.x - 1 - tw.block_idx.x,), guard=True)
        tw.copy(tw.atoms.SM90_TMA_LOAD, tile, smem, barrier=full)
    full.wait(0)
    tw.launch_dependents()
    out[tw.block_idx.x * 256 + tw.thread_idx.x] = smem[255 - tw.thread_idx.x] + 1


@pytest.mark.parametrize("by_one", [False, True])
def test_a_row_of_launches(backend: Backend, by_one: bool) -> None:
    x = np.arange(COUNT, dtype=np.int32)
    weights = (np.arange(COUNT) % 16 + 1).astype(np.int32)
    a, b, w = backend.put(x), backend.zeros(COUNT, tw.int32), backend.put(weights)
    added = weights.copy()
    for _ in range(6):
        added = added * 3 % 17
    expected = x
    for n in range(8):
        step[64, 256](b, a, w, 6, by_one)
        a, b = b, a
        expected = expected[::-1] + added
        if n % 3 == 1:
            step_by_bulk[64, 256](b, a)
            a, b = b, a
            expected = expected[::-1] + 1
    assert (backend.get(a) == expected).all()


def test_a_prepared_launch(backend: Backend) -> None:
    x = np.arange(COUNT, dtype=np.int32)
    a, b, w = backend.put(x), backend.zeros(COUNT, tw.int32), backend.put(np.ones(COUNT, np.int32))
    there, back = step[64, 256].prepare(b, a, w, 0, False), step[64, 256].prepare(a, b, w, 0, True)
    for _ in range(3):
        there()
        back()
    assert (backend.get(a) == x + 6).all()
