"""Fragments where loops around their tiles end early, and loops that no fragments can be kept over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.errors import ScheduleError
from tilewright.schedule import Array, Dimension, Location, MMAFragmentOp, MMAShape, Nest, Plan, Role, Target, fuse


def batched(batch: Any, order: str, cached: str, *, stages: int = 0, finish: bool = False) -> Plan:
    """Return the plan of a batch of 32 x 16 x 32 products, 4 of them a block, with C in fragments.

    `order` names the loop over the 4 among the others: a warp each, or one after the other outside or inside of K.
    `cached` is where A and B are kept in fragments, `stages` the buffers that they have in shared memory.
    """
    A = Array(Role.INPUT, "float16", (batch, 32, 32), name="A")
    B = Array(Role.INPUT, "float16", (batch, 32, 16), name="B")
    C = Array(Role.OUTPUT if finish else Role.INPUT_OUTPUT, "float32", (batch, 32, 16), name="C")
    nest, double = Nest((batch, 32, 16, 32)), Nest((batch, 32, 16))
    b, i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        C[b, i, j] += A[b, i, k] * B[b, k, j]

    b, i, j = double.get_indices()

    @double.iteration_logic
    def _() -> None:
        C[b, i, j] = C[b, i, j] * 2.0

    schedule = nest.create_schedule()
    f: list[Any] = []
    if finish:
        schedule = fuse(schedule, double.create_schedule(), partial=3)
        f = [schedule.get_fusing_index()]
    b, i, j, k = (index for index in schedule.get_indices() if index not in f)
    b1 = schedule.split(b, 4)
    i1 = schedule.split(i, 16)
    k1 = schedule.split(k, 16)
    schedule.reorder(b, *([*f, k, b1] if order == "inside" else [b1, *f, k]), i, i1, j, k1)
    plan = schedule.create_plan(Target("sm_80"))
    unit = plan.target.GridUnit
    plan.bind({b: unit.BLOCK_X})
    if order == "warps":
        plan.bind({b1: unit.WARP_Y})
    setting = {"prologue_op": MMAFragmentOp.SET, "prologue_arg": 0.0} if finish else {}
    plan.tensorize((i1, j, k1), MMAShape.M16N16K16, **setting)
    for array in (A, B):
        if stages:
            plan.cache(array, index=i, pipeline_stages=stages)
        if cached:
            plan.cache(array, index=k if cached == "k" else i, location=Location.MMA_FRAGMENT)
    plan.cache(C, index=f[0] if f else k, location=Location.MMA_FRAGMENT)
    return plan


def check(plan: Plan, batch: int, *, finish: bool = False) -> None:
    """Run a plan on small whole numbers, and compare exactly."""
    random = np.random.default_rng(batch)
    a, b, c = (random.integers(-3, 4, (batch, *shape)) for shape in ((32, 32), (32, 16), (32, 16)))
    found = np.full(c.shape, np.nan, np.float32) if finish else c.astype(np.float32)
    plan.build()(a.astype(np.float16), b.astype(np.float16), found)
    np.testing.assert_array_equal(found, 2 * (a @ b) if finish else c + a @ b)


@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize(("cached", "stages"), [("", 0), ("", 1), ("i", 0), ("i", 2), ("k", 0)])
@pytest.mark.parametrize("order", ["warps", "outside"])
@pytest.mark.parametrize("batch", [3, 6])
@pytest.mark.spread(4)
def test_a_batch_that_ends_within_a_block(batch: int, order: str, cached: str, stages: int, finish: bool) -> None:
    check(batched(batch, order, cached, stages=stages, finish=finish), batch, finish=finish)


@pytest.mark.parametrize("order", ["warps", "outside"])
def test_a_batch_whose_size_the_launch_knows(order: str) -> None:
    plan = batched(Dimension("batch"), order, "i")
    for batch in (1, 4, 7):
        check(plan, batch)


def test_sums_are_not_kept_over_a_loop_to_other_sums() -> None:
    with pytest.raises(ScheduleError, match=r"C\[b \+ b1, i \+ i1, j\] cannot be cached in fragments while b1 runs"):
        batched(4, "inside", "").report()


@pytest.mark.parametrize("taps", [3, 17])
def test_operands_are_not_kept_over_a_loop_by_parts_of_tiles(taps: int) -> None:
    """X moves by single columns with the tap; 17 of them reach over whole tiles, and still begin within some."""
    X = Array(Role.INPUT, "float16", (16 + taps - 1, 16), name="X")
    W = Array(Role.INPUT, "float16", (taps, 16, 16), name="W")
    Y = Array(Role.INPUT_OUTPUT, "float32", (16, 16), name="Y")
    nest = Nest((taps, 16, 16, 16))
    t, x, o, c = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        Y[x, o] += X[x + t, c] * W[t, c, o]

    plan = nest.create_schedule().create_plan(Target("sm_80"))
    plan.tensorize((x, o, c), MMAShape.M16N16K16)
    plan.cache(Y, index=t, location=Location.MMA_FRAGMENT)
    random = np.random.default_rng(0)
    a, w, y = (random.integers(-2, 3, array.shape) for array in (X, W, Y))
    found = y.astype(np.float32)
    plan.build()(a.astype(np.float16), w.astype(np.float16), found)
    np.testing.assert_array_equal(found, y + sum(a[n : n + 16] @ w[n] for n in range(taps)))
    plan.cache(X, index=t, location=Location.MMA_FRAGMENT)
    with pytest.raises(ScheduleError, match="cannot be cached in fragments while t runs"):
        plan.report()
