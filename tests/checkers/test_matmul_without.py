"""Each barrier that `tw.matmul` takes to mend sums and to add splits, taken out: its absence is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.test_hopper_examples import findings, without

import tilewright as tw
from tilewright.backends import sim
from tilewright.instructions.barrier import Barrier
from tilewright.ir.ops import For
from tilewright.kernels.matmul import _signature
from tilewright.kernels.multistage import Multistage


def launches_of(monkeypatch: pytest.MonkeyPatch, splits: int, **options: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Return what a product with infinities launches."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(shape).astype(np.float32) for shape in ((40, 70), (70, 33)))
    a[3, 5], a[33, 60] = np.inf, np.inf
    launches: list[tuple[tuple[Any, ...], Any]] = []
    configurations = Multistage.configurations
    with monkeypatch.context() as patch:
        patch.setattr(sim, "execute", lambda *given, **more: launches.append((given, more)))
        patch.setattr(
            Multistage,
            "configurations",
            lambda *args: [replace(min(configurations(*args), key=lambda c: (c.tile, c.splits)), splits=splits)],
        )
        _signature.cache_clear()
        tw.matmul(a, b, **options)
    _signature.cache_clear()
    return launches


@pytest.mark.parametrize(
    ("splits", "options", "expected"),
    [
        # The ring's own barrier comes first: mending has one before it writes where stages were, but for a flag. Results
        # of another type than the sums lie in other places of the memory that both take.
        pytest.param(
            1,
            {"precision": "tf32x3", "out_dtype": np.float16},
            [False, True, True, True, True, True, True],
            marks=pytest.mark.slow,
        ),
        (2, {}, [True, True, True]),
    ],
    ids=["parts", "splits"],
)
def test_each_barrier_is_needed_and_missed(
    splits: int, options: dict[str, Any], expected: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the loops over K."""
    found = []
    for launched, more in launches_of(monkeypatch, splits, **options):
        assert findings(launched, more) == []
        body = launched[0].body
        loops = [op for op in body.ops if isinstance(op, For) and any(isinstance(x, Barrier) for x in op.walk())]
        behind = body.ops[body.ops.index(loops[-1]) + 1 :] if loops else body.ops
        blocks = [body, *(b for outer in behind for op in outer.walk() for b in op.blocks)]
        for block, op in [(b, op) for b in blocks for op in b.ops if isinstance(op, Barrier)]:
            if block is not body or op in behind:
                with without(block, op):
                    found.append(bool(findings(launched, more)))
    assert found == expected
