"""What is no barrier in the Hopper examples, taken out or weakened: bytes, waits for one group less, registers, mbarriers.

That each barrier, fence and wait is needed is asked beside the examples' own tests (`tests.unit.test_hopper_products`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.unit import test_hopper_attention as attention
from tests.unit.test_hopper_examples import RUNS as COPIES
from tests.unit.test_hopper_examples import findings, without
from tests.unit.test_hopper_products import RUNS as PRODUCTS

from tilewright.backends import sim
from tilewright.instructions.bulk_groups import BulkWait
from tilewright.instructions.mbarrier import MbarrierExpect, MbarrierInit
from tilewright.instructions.register_budget import SetRegisters
from tilewright.instructions.wgmma import WgmmaWait
from tilewright.ir.core import Op
from tilewright.ir.ops import Constant


def attend() -> None:
    q, k, v = attention.normal((1, 1, 300, 128), (1, 1, 60, 128), (1, 1, 60, 128))
    attention.MODULE.launch(np.full_like(q, np.nan), q, k, v, True, blocks=1, keys_of_tile=16)


RUNS: dict[str, Callable[[], None]] = {**COPIES, **{n: run for n, (run, _) in PRODUCTS.items()}, "attention": attend}
FAST = ("copy", "transpose", "wgmma_tile")


@contextmanager
def changed(op: Any, name: str, value: Any) -> Iterator[None]:
    """Let an op have another value of a field for a while."""
    before = getattr(op, name)
    setattr(op, name, value)
    try:
        yield
    finally:
        setattr(op, name, before)


def weakened(op: Op) -> Iterator[Any]:
    """Yield ways in which less is waited for, or other bytes are announced."""
    if isinstance(op, (WgmmaWait, BulkWait)):
        yield changed(op, "pending", op.pending + 1)
    if isinstance(op, MbarrierExpect) and isinstance(op.bytes.definition, Constant):
        number = op.bytes.definition
        yield from (changed(number, "value", int(number.value) + more) for more in (16, -16))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in FAST)) for n in RUNS])
def test_each_is_needed_and_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[tuple[tuple[Any, ...], Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(sim, "execute", lambda *given, **more: launches.append((given, more)))
        RUNS[name]()
    ((launched, more),) = launches
    kernel = launched[0]
    blocks = [kernel.body, *(b for op in kernel.body.walk() for b in op.blocks)]
    tried = 0
    for block, op in [(b, op) for b in blocks for op in b.ops]:
        for way in weakened(op):
            with way:
                assert findings(launched, more), (type(op).__name__, op.location)
            tried += 1
        if isinstance(op, (MbarrierInit, SetRegisters)):
            with without(block, op):
                found = set(findings(launched, more))
            if isinstance(op, MbarrierInit):
                assert "uninitialised-mbarrier" in found, op.location
            else:  # registers that nobody takes are no mistake; those that nobody gives are missed
                assert found == ({"too-many-registers"} if op.count < op.first else set()), op.location
            tried += 1
    assert tried
