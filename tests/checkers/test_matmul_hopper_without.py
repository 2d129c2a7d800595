"""Each synchronisation of the Hopper kernel of `tw.matmul` taken out: found if and only if it was needed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.helpers.one_family import only
from tests.unit.test_hopper_examples import findings, without
from tests.unit.test_hopper_products import SYNCHRONISATIONS

import tilewright as tw
from tilewright.backends import sim
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cluster import ClusterWait
from tilewright.ir.effects import Scope
from tilewright.kernels.hopper_plan import HopperConfiguration, StreamConfiguration

# Several tiles for each block, and more steps of K than stages.
CONFIGURATIONS = {
    "cooperative": (HopperConfiguration((128, 64, 64), (8, 1), 2, 2, blocks=1), (200, 72, 200)),
    "ping-pong": (HopperConfiguration((64, 64, 64), (8, 1), 2, 2, is_ping_pong=True, blocks=1), (200, 72, 200)),
    "ping-pong in parts": (
        HopperConfiguration((128, 64, 64), (8, 1), 2, 2, is_ping_pong=True, blocks=1),
        (400, 72, 200),
    ),
    "two buffers, an even number of parts": (
        HopperConfiguration((256, 64, 64), (8, 1), 2, 2, blocks=1),
        (300, 72, 104),
    ),
    "two buffers, an odd number of parts": (
        HopperConfiguration((128, 192, 64), (8, 1), 2, 2, blocks=1),
        (200, 200, 104),
    ),
    "two buffers, ping-pong": (
        HopperConfiguration((64, 192, 64), (8, 1), 2, 2, is_ping_pong=True, blocks=1),
        (200, 200, 200),
    ),
    # Of more steps than stages the ring itself tells that all warps have stored the rows of the tile before.
    "odd rows": (HopperConfiguration((128, 64, 64), (8, 1), 2, 2, blocks=1), (200, 71, 104)),
    "odd rows, ping-pong in parts": (
        HopperConfiguration((128, 64, 64), (8, 1), 2, 2, is_ping_pong=True, blocks=1),
        (400, 71, 200),
    ),
    "cluster": (HopperConfiguration((128, 64, 64), (8, 1), 2, 2, cluster=2, blocks=2), (200, 136, 200)),
    "splits in a cluster": (
        HopperConfiguration((128, 64, 64), (8, 1), 2, 2, splits=2, adds_in_cluster=True, blocks=2),
        (140, 72, 400),
    ),
    "splits": (HopperConfiguration((128, 64, 64), (8, 1), 2, 2, splits=2, blocks=1), (72, 72, 400)),
    # Two tiles for each block, and the fifth in a piece by each.
    "stream-K": (StreamConfiguration((128, 64, 64), (8, 1), 2, 2, blocks=2), (600, 64, 1032)),
    "promoted, by turns": (HopperConfiguration((128, 64, 128), (8, 1), 3, 2, blocks=1), (200, 72, 528)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_each_synchronisation_is_needed_and_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration, (m, n, k) = CONFIGURATIONS[name]
    random = np.random.default_rng(0)
    is_promoted = name.startswith("promoted")
    dtype = ml_dtypes.float8_e4m3fn if is_promoted else ml_dtypes.bfloat16
    a, b = (random.integers(-4, 5, (rows, k)).astype(dtype) for rows in (m, n))
    launches: list[tuple[tuple[Any, ...], Any]] = []
    with monkeypatch.context() as patch, only(configuration, configuration.blocks):
        patch.setattr(sim, "execute", lambda *given, **more: launches.append((given, more)))
        tw.matmul(a, b.T)
        if is_promoted:  # an even and an odd number of tiles of K end differently
            tw.matmul(a[:, :-128], b[:, :-128].T)
    launches = launches[: 1 + is_promoted]  # not the one that adds up splits
    kernel = launches[0][0][0]
    assert all(launched[0] is kernel for launched, _ in launches)
    assert not any(findings(*launch) for launch in launches)
    blocks = [kernel.body, *(b for op in kernel.body.walk() for b in op.blocks)]
    places = [(b, op) for b in blocks for op in b.ops if isinstance(op, SYNCHRONISATIONS)]
    assert len(places) > 13
    # A ring lets a warp meet before it hands a stage back. Only products read it, and their wait is enough. What a warp
    # leaves to be sent its lanes have written, so there it has to meet: that comes first.
    meetings: list[Any] = [op for _, op in places if isinstance(op, Barrier) and op.effects.together is Scope.WARP]
    spare = meetings[configuration.adds_in_cluster :]
    if configuration.adds_in_cluster:  # threads that send nothing wait because all of a cluster have to
        spare.append([op for _, op in places if isinstance(op, ClusterWait)][-1])
    wrong = []
    for block, op in places:
        needed = not any(op is each for each in spare)
        with without(block, op):
            if any(findings(*launch) for launch in launches) is not needed:
                wrong.append((type(op).__name__, op.location))
    assert not wrong, wrong
