"""The matrix products of examples/kernels with one synchronisation left out, or one order made weaker: always found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.checkers.programs import RACES
from tests.checkers.test_examples_without import Launch, without

import tilewright as tw
from tilewright.backends import sim
from tilewright.backends.sim import Finding
from tilewright.demo.examples import examples_folder, load_example
from tilewright.instructions.cp_async import AsyncWait
from tilewright.instructions.ordered_access import OrderedLoad, OrderedStore
from tilewright.ir.core import Op

INT4, GROUPED, SPLITK = (
    load_example(examples_folder() / "kernels" / f"{name}_matmul.py") for name in ("int4", "grouped", "splitk")
)


def bf16(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-3, 4, shape).astype(ml_dtypes.bfloat16)


def int4() -> None:
    """Enough of K that all stages are filled again."""
    k = 128 * 8 * 4
    weights, scales, zeros = INT4.random_weights(np.random.default_rng(0), 64, k)
    INT4.launch(np.zeros((8, 64), np.float32), bf16(8, k), INT4.pack(weights), scales, zeros)


ROWS = (3, 64)
XS, WEIGHTS = [bf16(m, 64 * 5) for m in ROWS], [bf16(128, 64 * 5) for _ in ROWS]  # held: kernels see addresses
OUTS = [np.zeros((m, 128), np.float32) for m in ROWS]
PRODUCTS = GROUPED.Products(OUTS, XS, WEIGHTS)


def splitk(tiles: int = 1) -> None:
    """Three parts, of which the last adds two; with five tiles of K for each, all stages are filled again."""
    k = 64 * tiles * 3
    SPLITK.launch(np.zeros((128, 128), np.float32), bf16(128, k), bf16(128, k), 3)


FOUND = {*RACES, "missing-wait"}
CASES: dict[str, Callable[[], None]] = {
    "int4_matmul": int4,
    "grouped_matmul": PRODUCTS.launch,
    "splitk_matmul": lambda: splitk(5),
}
# The last iteration has waited for all copies; this wait lets sums lie where the stages were.
UNNEEDED = {"int4_matmul": [AsyncWait]}


def launch_of(run: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> tuple[Launch, Callable[[], list[Finding]]]:
    """Return what a call launches, and what runs it, with whatever was taken out of it, and returns the findings."""
    found: list[tuple[Launch, dict[str, Any]]] = []
    with monkeypatch.context() as patch:
        patch.setattr(sim, "execute", lambda k, g, b, a, **more: found.append((Launch(k, g, b, a), more)))
        run()
    ((launch, more),) = found  # more: the arrays that addresses reach

    def findings() -> list[Finding]:
        with tw.simulate(raise_errors=False) as recorded:
            sim.execute(launch.kernel, launch.grid, launch.block, launch.arguments, **more)
        return list(recorded.findings)

    return launch, findings


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_removing_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, findings = launch_of(CASES[name], monkeypatch)
    assert launch.kernel.name == name
    assert findings() == []
    unneeded = []
    for block, op in launch.places():
        with without(block, op):
            if not {f.kind for f in findings()} & FOUND:
                unneeded.append(type(op))
    assert unneeded == UNNEEDED.get(name, [])


# --- the semaphores of split-K -----------------------------------------------------------------------------


@contextmanager
def weaker(op: OrderedLoad | OrderedStore) -> Iterator[None]:
    """Make an acquire or a release relaxed for a while."""
    sem, op.sem = op.sem, "relaxed"
    try:
        yield
    finally:
        op.sem = sem


def orders(launch: Launch) -> list[Op]:
    return [op for op in launch.kernel.body.walk() if isinstance(op, (OrderedLoad, OrderedStore))]


@pytest.mark.parametrize("sem", ["acquire", "release"])
def test_an_order_that_is_left_out_is_found(sem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, findings = launch_of(splitk, monkeypatch)
    (op,) = [op for op in orders(launch) if op.sem == sem]
    with weaker(op):
        found = findings()
    assert any(f.kind in RACES and "sums" in f.message for f in found), found
    assert findings() == []


def test_a_semaphore_that_is_not_cleared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next launch with the workspace does not wait, and reads sums that are not there yet."""
    launch, findings = launch_of(splitk, monkeypatch)
    blocks = [launch.kernel.body, *(b for op in launch.kernel.body.walk() for b in op.blocks)]
    ((block, op),) = [(b, op) for b in blocks for op in b.ops if isinstance(op, OrderedStore) and op.sem == "relaxed"]
    with without(block, op):
        assert findings() == []
        found = findings()
    assert any(f.kind in RACES and "sums" in f.message for f in found), found


def test_semaphores_that_were_set_before_are_found() -> None:
    """A workspace that is not cleared: nothing is waited for, and sums are read that are not there yet."""
    workspace = SPLITK.make_workspace(np.zeros((128, 128), np.float32), 3)
    workspace[1][...] = 1
    a = bf16(128, 64 * 3)
    with tw.simulate(raise_errors=False) as run:
        SPLITK.launch(np.zeros((128, 128), np.float32), a, a, 3, workspace=workspace)
    assert any(f.kind in RACES and "sums" in f.message for f in run.findings)
