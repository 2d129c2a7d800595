"""Each synchronisation of the Hopper kernel of `tw.grouped_matmul` taken out: found if and only if it was needed."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.helpers.one_family import only_grouped
from tests.unit.test_hopper_examples import findings, without
from tests.unit.test_hopper_products import SYNCHRONISATIONS

import tilewright as tw
from tilewright.backends import sim
from tilewright.instructions.barrier import Barrier
from tilewright.ir.effects import Scope
from tilewright.kernels.hopper_plan import HopperConfiguration

# Several tiles for each block, and groups that end between tiles. The last tile is stored by TMA.
COOPERATIVE = HopperConfiguration((128, 64, 64), (8, 1), 2, 2, blocks=1)
PING_PONG = HopperConfiguration((64, 64, 64), (8, 1), 2, 2, is_ping_pong=True, blocks=1)
CASES = {
    "rows, cooperative": ("M", COOPERATIVE, (406, 136, 200), [150, 406]),
    "rows, ping-pong": ("M", PING_PONG, (268, 136, 104), [140, 268]),
    "rows, results of odd rows": ("M", COOPERATIVE, (406, 135, 104), [150, 406]),
    "rows, results of odd rows, ping-pong": (
        "M",
        HopperConfiguration((128, 64, 64), (8, 1), 2, 2, is_ping_pong=True, blocks=1),
        (406, 135, 104),
        [150, 406],
    ),
    "K, cooperative": ("K", COOPERATIVE, (450, 136, 72), [190, 440]),
    "K, ping-pong": ("K", PING_PONG, (230, 136, 72), [100, 220]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_each_synchronisation_is_needed_and_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mode, configuration, (total, m, k), ends = CASES[name]
    random = np.random.default_rng(0)
    shapes = ((total, k), (len(ends), k, m)) if mode == "M" else ((total, m), (total, k))
    a, b = (random.integers(-4, 5, shape).astype(ml_dtypes.bfloat16) for shape in shapes)
    a = a if mode == "M" else a.T
    if mode == "M" and m % 8:  # then TMA reads the weights along K
        b = np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2)
    launches: list[tuple[tuple[Any, ...], Any]] = []
    with monkeypatch.context() as patch, only_grouped(configuration):
        patch.setattr(sim, "execute", lambda *given, **more: launches.append((given, more)))
        tw.grouped_matmul(a, b, np.array(ends, np.int32))
    launched, more = launches[0]
    kernel = launched[0]
    assert findings(launched, more) == []
    blocks = [kernel.body, *(b for op in kernel.body.walk() for b in op.blocks)]
    places = [(b, op) for b in blocks for op in b.ops if isinstance(op, SYNCHRONISATIONS)]
    assert len(places) > 13
    # A ring lets a warp meet before it hands a stage back. Only products read it, and their wait is enough.
    spare = [op for _, op in places if isinstance(op, Barrier) and op.effects.together is Scope.WARP]
    wrong = []
    for block, op in places:
        needed = not any(op is each for each in spare)
        with without(block, op):
            if bool(findings(launched, more)) is not needed:
                wrong.append((type(op).__name__, op.location))
    assert not wrong, wrong
