"""Each synchronisation of the kernel of norms' gradients taken out, where a cluster shares rows: always found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.unit.test_hopper_examples import findings, without
from tests.unit.test_hopper_products import SYNCHRONISATIONS

import tilewright as tw
from tilewright.backends import sim
from tilewright.instructions.cp_async import AsyncCommit, AsyncWait
from tilewright.kernels._row_gradient_kernels import PLACES


@pytest.mark.slow
def test_each_synchronisation_is_needed_and_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns = 2 * PLACES + 3, 4600  # of float64: two blocks, and all places twice
    x, grad = (np.random.default_rng(n).standard_normal((rows, columns)) for n in range(2))
    numbers, w = np.ones(rows), np.ones(columns)
    launches: list[tuple[tuple[Any, ...], Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(sim, "execute", lambda *given, **more: launches.append((given, more)))
        tw.layer_norm_backward(grad, x, numbers, numbers, w)
    launched, more = launches[0]
    kernel = launched[0]
    assert findings(launched, more) == []
    blocks = [kernel.body, *(b for op in kernel.body.walk() for b in op.blocks)]
    kinds = (*SYNCHRONISATIONS, AsyncCommit, AsyncWait)
    places = [(b, op) for b in blocks for op in b.ops if isinstance(op, kinds)]
    wrong = []
    for block, op in places:
        with without(block, op):
            if not findings(launched, more):
                wrong.append((type(op).__name__, op.location))
    assert not wrong and len(places) == 13, wrong
