"""Plans that the tests of packages share: a product of matrices with tiles, caches and a condition at the edges."""

from __future__ import annotations

from typing import Any

import tilewright as tw
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location
from tilewright.schedule.mma_shapes import MMAFragmentOp, MMAShape
from tilewright.schedule.nest import Nest
from tilewright.schedule.plan import Plan
from tilewright.schedule.schedule import fuse
from tilewright.schedule.targets import Target


def product(
    m: Any,
    n: Any,
    k: Any,
    tile: Any = 8,
    depth: Any = 8,
    stages: Any = 1,
    target: Target | None = None,
    tma: bool | None = None,
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
    plan.cache(A, index=ii, pipeline_stages=stages, tma=tma)
    plan.cache(B, index=ii)
    return plan, (C, A, B)


def warpgroup_product(
    extents: Any,
    shape: MMAShape = MMAShape.M64N64K16,
    tile: tuple[int, int, int] = (128, 64, 64),
    types: tuple[tw.DType, tw.DType, tw.DType] = (tw.bfloat16, tw.bfloat16, tw.float32),
    layouts: str = "NT",
    stages: int = 2,
    producer: bool = True,
    tma: bool | None = None,
    holds: bool = True,
    stores: bool | None = None,
    blocks: int | None = None,
    options: dict[str, Any] | None = None,
    target: str = "NVIDIA H100",
) -> tuple[Plan, tuple[Array, Array, Array]]:
    """Return the plan of C = A B (C += A B where C is not held) by warpgroups, and its arrays (A, B, C).

    `layouts` has N for a matrix by rows and T for one by columns, of A and of B; `stores` is C's `tma`.
    """
    m, n, k = extents
    by = {"N": Array.Layout.FIRST_MAJOR, "T": Array.Layout.LAST_MAJOR}
    A = Array(Role.INPUT, types[0], (m, k), by[layouts[0]], name="A")
    B = Array(Role.INPUT, types[1], (k, n), by[layouts[1]], name="B")
    C = Array(Role.INPUT_OUTPUT, types[2], (m, n), name="C")
    nest = Nest(shape=(m, n, k))
    i, j, kk = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += A[i, kk] * B[kk, j]

    schedule = nest.create_schedule()
    row, column, step = schedule.tile({i: tile[0], j: tile[1], kk: tile[2]})
    ii, jj = schedule.tile({row: shape.m, column: shape.n})
    schedule.reorder(i, j, kk, row, column, ii, jj, step)
    plan = schedule.create_plan(Target(target))
    unit = plan.target.GridUnit
    plan.bind({i: unit.BLOCK_Y, j: unit.BLOCK_X, (row, column): unit.WARPGROUP}, producer=producer, blocks=blocks)
    for operand in (A, B):
        plan.cache(operand, index=ii, pipeline_stages=stages, tma=tma, **(options or {}))
    if holds:
        plan.cache(C, index=kk, location=Location.MMA_FRAGMENT, tma=stores)
    begun = MMAFragmentOp.SET if holds else MMAFragmentOp.NONE
    plan.tensorize((ii, jj, step), shape, tile[2] // shape.k, prologue_op=begun)
    return plan, (A, B, C)


def register_product(
    extents: tuple[int, int, int],
    value: Any,  # of A[i, k], S[i], i and k; None: A as it is
    shape: MMAShape = MMAShape.M64N64K16,
    tile: tuple[int, int, int] = (128, 64, 64),
    types: tuple[tw.DType, tw.DType, tw.DType] = (tw.int8, tw.bfloat16, tw.float32),
    layout: str = "T",
    stages: int = 2,
    producer: bool = True,
    tma: bool | None = None,
    caches_a: bool = True,
    caches_s: bool = False,
    keeps_a: str | None = None,
    holds: bool = True,
    stores: bool | None = None,
    blocks: int | None = None,
    is_beside: bool = True,
) -> tuple[Plan, tuple[Array, ...]]:
    """Return the plan of C = value(A, S) B by warpgroups that take A from registers, and its arrays (A, S, B, C).

    `layout` is B's, N by rows and T by columns. `keeps_a` is the loop, "tile" or "columns", inside of which fragments
    keep A: inside of "columns" all of its rows. Without `is_beside` a warpgroup multiplies all columns of a block.
    """
    m, n, k = extents
    A = Array(Role.INPUT, types[0], (m, k), name="A")
    S = Array(Role.INPUT, tw.float32, (m,), name="S")
    B = Array(Role.INPUT, types[1], (k, n), getattr(Array.Layout, {"N": "FIRST", "T": "LAST"}[layout] + "_MAJOR"))
    C = Array(Role.INPUT_OUTPUT, types[2], (m, n), name="C")
    nest = Nest(shape=(m, n, k))
    i, j, kk = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += (A[i, kk] if value is None else value(A[i, kk], S[i], i, kk)) * B[kk, j]

    schedule = nest.create_schedule()
    row, column, step = schedule.tile({i: tile[0], j: tile[1], kk: tile[2]})
    ii, jj = schedule.tile({row: shape.m, column: shape.n})
    keeps_rows = keeps_a == "columns"
    units = (row, column) if is_beside else (row,)
    schedule.reorder(*((i, row, j, kk, column) if keeps_rows else (i, j, kk, row, column)), ii, jj, step)
    plan = schedule.create_plan(Target("NVIDIA H100"))
    unit = plan.target.GridUnit
    bound: Any = {row: unit.WARPGROUP} if keeps_rows else {j: unit.BLOCK_X, units: unit.WARPGROUP}
    plan.bind({i: unit.BLOCK_Y, **bound}, producer=producer, blocks=blocks)
    for operand in (A, B) if caches_a else (B,):
        plan.cache(operand, index=ii, pipeline_stages=stages, tma=tma)
    if caches_s:
        plan.cache(S, index=kk, tma=producer)
    if keeps_a is not None:
        plan.cache(A, index=j if keeps_rows else ii, location=Location.MMA_FRAGMENT)
    if holds:
        plan.cache(C, index=kk, location=Location.MMA_FRAGMENT, tma=stores)
    plan.tensorize(
        (ii, jj, step), shape, tile[2] // shape.k, prologue_op=MMAFragmentOp.SET if holds else MMAFragmentOp.NONE
    )
    return plan, (A, B, C) if value is None else (A, S, B, C)


def fused_product(
    extents: tuple[int, int, int],
    columns: int,
    producer: bool = True,
    stages: int = 2,
    role: Role = Role.TEMP,
    location: Location = Location.MMA_FRAGMENT,
) -> tuple[Plan, tuple[Array, ...]]:
    """Return the plan of C = exp(S - top) B, whose A another nest computes, and its arrays (S, top, B, C).

    Tiles of so many `columns` share an A, which is computed once for all of them.
    """
    m, n, k = extents
    S, top = Array(Role.INPUT, tw.float32, (m, k), name="S"), Array(Role.INPUT, tw.float32, (m,), name="top")
    P, B = Array(role, tw.bfloat16, (m, k), name="P"), Array(Role.INPUT, tw.bfloat16, (k, n), name="B")
    C = Array(Role.OUTPUT, tw.float32, (m, n), name="C")
    weigh, multiply = Nest((m, k)), Nest((m, k, n))
    u, v = weigh.get_indices()
    x, z, y = multiply.get_indices()

    @weigh.iteration_logic
    def _() -> None:
        P[u, v] = tw.exp(S[u, v] - top[u])

    @multiply.iteration_logic
    def _() -> None:
        C[x, y] += P[x, z] * B[z, y]

    schedule = fuse(weigh.create_schedule(), multiply.create_schedule(), partial=2)
    i, kk, f, j = schedule.get_indices()
    row, step, jj = schedule.tile({i: 128, kk: 64, j: columns})
    ii = schedule.split(row, 64)
    schedule.reorder(i, row, kk, f, j, ii, jj, step)
    plan = schedule.create_plan(Target("NVIDIA H100"))
    unit = plan.target.GridUnit
    plan.bind({i: unit.BLOCK_Y, row: unit.WARPGROUP}, producer=producer)
    for array in (S, B):
        plan.cache(array, index=f, pipeline_stages=stages, tma=producer or None)
    plan.cache(C, index=kk, location=Location.MMA_FRAGMENT)
    plan.cache(P, index=f, location=location)
    plan.tensorize((ii, jj, step), MMAShape[f"M64N{columns}K16"], 4, prologue_op=MMAFragmentOp.SET)
    return plan, (S, top, B, C)
