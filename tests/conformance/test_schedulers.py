"""Tile schedulers on both backends: the order of each block, a counter that blocks draw from, products by stream-K."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import Backend
from tests.conformance.test_wgmma_atoms import skip_elsewhere
from tests.unit.schedulers.test_orders import count_by_block, count_by_roles, list_parts, list_tiles, listed

import tilewright as tw
from tilewright.demo.examples import examples_folder, load_example
from tilewright.schedulers import Counter, Grouped, Hilbert, Linear, Scheduler, StreamK

STREAM_K = load_example(examples_folder() / "hopper" / "08_stream_k.py")


@pytest.mark.parametrize("scheduler", [Linear(), Grouped(3), Hilbert()], ids=repr)
@pytest.mark.spread(2)
def test_orders(backend: Backend, scheduler: Scheduler) -> None:
    for m, n, blocks in ((5, 7, 4), (13, 6, 9)):
        places = backend.put(np.full((blocks, 100, 2), -1, np.int32))
        list_tiles[blocks, 1](places, m, n, scheduler)
        assert listed(backend.get(places)) == scheduler.order(m, n, blocks)
        places = backend.put(np.full((blocks, 100, 4), -1, np.int32))
        list_parts[blocks, 1](places, m, n, 3, StreamK(scheduler))
        order = StreamK(scheduler).order(m, n, blocks, 3)
        assert listed(backend.get(places)) == [[(r, c, ks.start, ks.stop) for r, c, ks in each] for each in order]


def test_by_a_counter(backend: Backend) -> None:
    counter = backend.zeros(1, tw.int32)
    for blocks in (1, 7, 40):
        times, by_role = backend.zeros((6, 11), tw.int32), backend.zeros((3, 6, 11), tw.int32)
        count_by_block[blocks, 64](times, counter, Counter(Grouped(2)))
        count_by_roles[blocks, 96](by_role, counter, Counter(Grouped(2)))
        assert (backend.get(times) == 1).all() and (backend.get(by_role) == 1).all()
        assert backend.get(counter)[0] == 0


def test_products_by_stream_k(backend: Backend) -> None:
    """Sums of small integers are exact, however blocks share tiles; and a launch leaves zeros for the next one."""
    skip_elsewhere(backend)
    random, blocks = np.random.default_rng(0), 2
    a, b = (random.integers(-2, 3, (rows, 192)).astype(ml_dtypes.bfloat16) for rows in (384, 256))
    expected = (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.bfloat16)
    partials, flags = STREAM_K.plan_for().scheduler.workspace(blocks, 2, 128, 128)
    space = backend.zeros(partials, tw.float32), backend.zeros(flags, tw.int32)
    for whole_waves in (True, False):
        out = backend.zeros(expected.shape, tw.bfloat16)
        STREAM_K.matmul(out, backend.put(a), backend.put(b), space, stages=3, blocks=blocks, whole_waves=whole_waves)
        assert (backend.get(out) == expected).all()
        assert not backend.get(space[1]).any()
