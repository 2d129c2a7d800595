"""Plans that the tests of packages share: a product of matrices with tiles, caches and a condition at the edges."""

from __future__ import annotations

from typing import Any

import tilewright as tw
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location
from tilewright.schedule.nest import Nest
from tilewright.schedule.plan import Plan
from tilewright.schedule.targets import Target


def product(
    m: Any, n: Any, k: Any, tile: Any = 8, depth: Any = 8, stages: Any = 1, target: Target | None = None
) -> tuple[Plan, tuple[Array, ...]]:
    """Return the plan of C += A B and its arrays (C, A, B); sizes are numbers, dimensions or parameters."""
    A = Array(Role.INPUT, tw.float32, (m, k))
    B = Array(Role.INPUT, tw.float32, (k, n))
    C = Array(Role.INPUT_OUTPUT, tw.float32, (m, n))
    nest = Nest(shape=(m, n, k))
    i, j, kk = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += A[i, kk] * B[kk, j]

    schedule = nest.create_schedule()
    ii, jj = schedule.tile({i: tile, j: tile})
    inner = schedule.split(kk, depth)
    schedule.reorder(i, j, kk, ii, jj, inner)
    target = target or Target("NVIDIA A100")
    plan = schedule.create_plan(target)
    unit = target.GridUnit
    plan.bind({i: unit.BLOCK_Y, j: unit.BLOCK_X, ii: unit.THREAD_Y, jj: unit.THREAD_X})
    plan.cache(C, index=kk, location=Location.PRIVATE)
    plan.cache(A, index=ii, pipeline_stages=stages)
    plan.cache(B, index=ii)
    return plan, (C, A, B)
