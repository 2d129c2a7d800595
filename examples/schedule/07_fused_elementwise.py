"""Finish a product while its sums are still in registers: D = swish(A B + bias), in one kernel.

Written as two nests, the product and what follows it, the sums would go to memory and come back. Two ways around that:

- `fused`: the two schedules are fused, and share their first two loops. With the fusing index f inside of the loops of
  a block, the block finishes what it has multiplied. The array between them is TEMP and cached in MMA_FRAGMENT outside
  of f, so it exists only as the fragments of the matrix instructions: each thread finishes the elements that it
  holds. The second nest is any logic: it may read other arrays, at any places.
- `by_function`: `epilogue_op` is applied to the fragments before they are stored. It is one of `MMAFragmentOp`, or a
  Python function of an element; the function knows no place, so it computes swish(A B) and no bias. It runs once for
  each element, behind the loop over K; without the cache of C it would run in each iteration of k, which is refused.

Run it: `python examples/schedule/07_fused_elementwise.py`
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.schedule import (
    Array,
    Index,
    Location,
    MMAFragmentOp,
    MMAShape,
    Nest,
    Plan,
    Role,
    Schedule,
    Target,
    fuse,
)


def swish(x):
    """Return x / (1 + exp(-x)), of a device number or of an element in a nest."""
    return x / (1.0 + tw.exp(-x))


def product(A: Array, B: Array, C: Array) -> Schedule:
    """Return the loops of C += A B."""
    nest = Nest((*C.shape, A.shape[1]))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _():
        C[i, j] += A[i, k] * B[k, j]

    return nest.create_schedule()


def fused(m: int, n: int, k: int) -> Plan:
    """Return the plan of D = swish(A B + bias)."""
    A = Array(Role.INPUT, tw.float16, (m, k))
    B = Array(Role.INPUT, tw.float16, (k, n))
    bias = Array(Role.INPUT, tw.float32, (n,))
    C = Array(Role.TEMP, tw.float32, (m, n))
    D = Array(Role.OUTPUT, tw.float16, (m, n))

    finish = Nest((m, n))
    row, column = finish.get_indices()

    @finish.iteration_logic
    def _():
        D[row, column] = swish(C[row, column] + bias[column])

    schedule = fuse(product(A, B, C), finish.create_schedule(), partial=2)
    i, j, f, kk = schedule.get_indices()
    return on_warps(schedule, (i, j, kk), (A, B, C), [f])


def by_function(m: int, n: int, k: int) -> Plan:
    """Return the plan of C = swish(A B)."""
    A = Array(Role.INPUT, tw.float16, (m, k))
    B = Array(Role.INPUT, tw.float16, (k, n))
    C = Array(Role.OUTPUT, tw.float16, (m, n))
    schedule = product(A, B, C)
    return on_warps(schedule, schedule.get_indices(), (A, B, C), [], epilogue_op=swish)


def on_warps(
    schedule: Schedule, loops: tuple[Index, ...], arrays: tuple[Array, ...], fusing: list[Index], **options: Any
) -> Plan:
    """Return the plan of both: 64 x 64 of C a block, 32 x 32 a warp, and two tiles of K under way in shared memory."""
    i, j, k = loops
    A, B, C = arrays
    target, shape = Target(), MMAShape.M16N16K16
    m, n, depth = target.tensor_core_info.compute_tensor_splits(shape)
    i_warp, j_warp, k_step = schedule.tile({i: 64, j: 64, k: 32})
    i_tile, j_tile = schedule.tile({i_warp: 32, j_warp: 32})
    ii, jj, kk = schedule.tile({i_tile: m, j_tile: n, k_step: depth})
    # f is inside of the blocks and warps, which both nests have, and outside of k, which only the product has.
    schedule.reorder(i, j, i_warp, j_warp, *fusing, k, k_step, i_tile, j_tile, ii, jj, kk)

    plan = schedule.create_plan(target)
    unit = target.GridUnit
    plan.bind({i: unit.BLOCK_Y, j: unit.BLOCK_X, i_warp: unit.WARP_Y, j_warp: unit.WARP_X})
    for operand in (A, B):
        plan.cache(operand, index=k_step, double_buffer=True)
        plan.cache(operand, index=i_tile, location=Location.MMA_FRAGMENT)
    plan.cache(C, index=fusing[0] if fusing else k, location=Location.MMA_FRAGMENT)
    plan.tensorize((ii, jj, kk), shape, prologue_op=MMAFragmentOp.SET, prologue_arg=0.0, **options)
    return plan


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return both ways."""
    extents = (128, 64, 96) if quick else (2048, 2048, 2048)
    return [
        _case("product, bias, swish: fused", fused, extents, backend),
        _case("product, swish: function of the fragment", by_function, extents, backend),
    ]


def _case(name: str, make: Callable[..., Plan], extents: tuple[int, int, int], backend: Backend) -> Case:
    m, n, k = extents

    def prepare() -> Trial:
        kernel = make(m, n, k).build(make.__name__)
        random = np.random.default_rng(0)
        a, b = (random.standard_normal(shape, np.float32).astype(np.float16) for shape in ((m, k), (k, n)))
        bias = random.standard_normal(n, np.float32) if make is fused else np.zeros(n, np.float32)
        A, B, result = put(a, backend), put(b, backend), put(np.full((m, n), np.nan, np.float16), backend)
        inputs = (A, B, put(bias, backend)) if make is fused else (A, B)
        x = a.astype(np.float64) @ b.astype(np.float64) + bias
        expected = x / (1 + np.exp(-x))
        limit = float(np.abs(expected).max()) * 2.0**-10  # half a unit of float16, and as much for the sums
        return Trial(lambda: kernel(*inputs, result), lambda: fetch(result), expected, limit)

    return Case(name, f"{m} x {n} x {k} float16", prepare, flops=2 * m * n * k)


if __name__ == "__main__":
    main(cases)
