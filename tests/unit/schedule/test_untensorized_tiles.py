"""`plan.tensorize` of a statement that adds nothing up: its loops stay loops, shared by the threads of each warp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError, TilewrightWarning
from tilewright.schedule import (
    Array,
    Dimension,
    GridUnit,
    Index,
    Location,
    MMAFragmentOp,
    MMAShape,
    Nest,
    Plan,
    Role,
    Target,
)

Logic = Callable[..., None]


def _last_wins(A: Any, B: Any, C: Any, D: Any, i: Any, j: Any, k: Any) -> None:
    C[i, j] = D[i, j] + A[i, k] * B[k, j]


def _rounded_sums(A: Any, B: Any, C: Any, D: Any, i: Any, j: Any, k: Any) -> None:
    C[i, j] = (C[i, j] + A[i, k] * B[k, j]) * 0.5 + D[i, j]


def _plan(
    logic: Logic, target: str, extents: tuple[Any, Any, Any], shape: MMAShape, passes: int, caches: bool = False
) -> tuple[Plan, tuple[Array, ...], tuple[Index, ...]]:
    M, N, K = extents
    A, B = Array(Role.INPUT, tw.float16, (M, K), name="A"), Array(Role.INPUT, tw.float16, (K, N), name="B")
    C, D = Array(Role.INPUT_OUTPUT, tw.float32, (M, N), name="C"), Array(Role.INPUT, tw.float32, (M, N), name="D")
    nest = Nest(extents)
    i, j, k = nest.get_indices()
    nest.iteration_logic(lambda: logic(A, B, C, D, i, j, k))
    schedule = nest.create_schedule()
    info = Target(target).tensor_core_info.compute_tensor_splits(shape, passes)
    ii, jj = schedule.tile({i: 2 * info[0], j: 2 * info[1]})
    iii, jjj, kk = schedule.tile({ii: info[0], jj: info[1], k: info[2]})
    schedule.reorder(i, j, ii, jj, k, iii, jjj, kk)
    plan = schedule.create_plan(Target(target))
    plan.bind({i: GridUnit.BLOCK_Y, j: GridUnit.BLOCK_X, ii: GridUnit.WARP_Y, jj: GridUnit.WARP_X})
    if caches:
        plan.cache(A, index=k)
        plan.cache(B, index=iii, location=Location.PRIVATE)
    return plan, (A, B, C, D), (iii, jjj, kk)


_SHAPES = [("sm_80", MMAShape.M16N16K16), ("sm_80", MMAShape.M32N8K16), ("sm_80", MMAShape.M8N32K16)]
_SHAPES += [("gfx908", MMAShape.M16N16K16), ("gfx908", MMAShape.M32N32K8), ("gfx908", MMAShape.M64N64K4_B2)]


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("logic", [_last_wins, _rounded_sums])
@pytest.mark.parametrize(("target", "shape"), _SHAPES)
@pytest.mark.spread(4)
def test_what_is_no_product_is_computed_as_the_loops_say(
    logic: Logic, target: str, shape: MMAShape, caches: bool
) -> None:
    random = np.random.default_rng(7)
    m, n, k = (int(x) for x in random.integers(3, 41, 3))
    plan, arrays, tile = _plan(logic, target, (m, n, k), shape, 1, caches)
    with pytest.warns(TilewrightWarning, match=r"no matrix instruction computes C\[.*stay loops, whose points the thr"):
        plan.tensorize(tile, shape)
    kernel = plan.build(args=arrays)
    assert kernel.block == (2 * plan.target.warp_size, 2, 1)
    assert "mma" not in kernel.source().lower() and "mfma" not in kernel.source().lower()
    a, b = (random.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (k, n)))
    c, d = (random.integers(-3, 4, (m, n)).astype(np.float32) for _ in range(2))
    wanted = c.copy()
    for step in range(k):
        product = a[:, step : step + 1].astype(np.float32) * b[step].astype(np.float32)
        wanted = d + product if logic is _last_wins else (wanted + product) * 0.5 + d
    kernel(a, b, c, d)
    np.testing.assert_allclose(c, wanted, rtol=1e-6)


def test_sizes_that_the_launch_knows() -> None:
    extents = Dimension("M"), Dimension("N"), Dimension("K")
    plan, arrays, tile = _plan(_last_wins, "sm_80", extents, MMAShape.M16N16K16, 2)
    with pytest.warns(TilewrightWarning, match="stay loops"):
        plan.tensorize(tile, MMAShape.M16N16K16, num_total_passes=2)
    kernel = plan.build(args=arrays)
    a, b = np.ones((19, 33), np.float16), np.full((33, 35), 2, np.float16)
    c, d = np.zeros((19, 35), np.float32), np.arange(19 * 35, dtype=np.float32).reshape(19, 35)
    kernel(a, b, c, d)
    np.testing.assert_array_equal(c, d + 2)


def test_points_that_depend_on_one_another_are_refused() -> None:
    def logic(A: Any, B: Any, C: Any, D: Any, i: Any, j: Any, k: Any) -> None:
        C[i, 0] = D[i, j] + A[i, k] * B[k, j]

    A, B = Array(Role.INPUT, tw.float16, (16, 16), name="A"), Array(Role.INPUT, tw.float16, (16, 16), name="B")
    C, D = Array(Role.INPUT_OUTPUT, tw.float32, (16, 16), name="C"), Array(Role.INPUT, tw.float32, (16, 16), name="D")
    nest = Nest((16, 16, 16))
    i, j, k = nest.get_indices()
    nest.iteration_logic(lambda: logic(A, B, C, D, i, j, k))
    made = nest.create_plan(Target("sm_80"))
    with pytest.raises(ScheduleError, match=r"j_lane cannot be bound to THREAD_X: .*C\[i, 0\]"):
        made.tensorize((i, j, k), MMAShape.M16N16K16)
    assert not made.bindings and made.tensorization is None


@pytest.mark.parametrize(
    "options",
    [
        {"prologue_op": MMAFragmentOp.SET},
        {"epilogue_op": MMAFragmentOp.ReLU},
        {"epilogue_op": MMAFragmentOp.SCALE, "epilogue_arg": 2.0},
        {"saturating": True},
    ],
)
def test_what_is_done_to_fragments_needs_fragments(options: dict[str, Any]) -> None:
    plan, _, tile = _plan(_last_wins, "sm_80", (32, 32, 32), MMAShape.M16N16K16, 1)
    with pytest.raises(ScheduleError, match="no matrix instruction computes C.*, which adds nothing up"):
        plan.tensorize(tile, MMAShape.M16N16K16, **options)


def test_fragments_of_what_is_no_product_are_refused() -> None:
    plan, arrays, tile = _plan(_last_wins, "sm_80", (32, 32, 32), MMAShape.M16N16K16, 1)
    plan.cache(arrays[2], index=tile[0], location=Location.MMA_FRAGMENT)
    with pytest.warns(TilewrightWarning, match="stay loops"):
        plan.tensorize(tile, MMAShape.M16N16K16)
    with pytest.raises(ScheduleError, match="rC lives in fragments of matrix instructions, and nothing is tensorized"):
        plan.build(args=arrays)
