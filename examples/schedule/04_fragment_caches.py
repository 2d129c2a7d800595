"""Keep tensor cores busy: C = A B with tiles in shared memory and fragments in registers, both ahead of their use.

A and B are float16, A by rows and B by columns. A block of 8 warps computes 128 x 256 of C, each warp 64 x 64 of these.
The plan keeps data at each level of memory, and every cache is one line:

- A and B in shared memory, 64 of K at a time, three stages of which two are under way: cp.async fills them. The tiles
  lie swizzled, so that neither the copies, which write along rows, nor ldmatrix, which reads down columns, meet in a
  bank.
- A and B in fragments, double-buffered: ldmatrix reads those of the next 16 of K while this one's are multiplied.
- C in fragments while k runs, 128 registers a thread, and in the end staged in shared memory, where the threads find
  neighbours of a row together and write 16 bytes at a time: a cache of C in shared memory is the source of that in
  fragments::

    plan.cache(plan.cache(C, index=k), index=k, location=Location.MMA_FRAGMENT)

Three loops are bound to BLOCK_X as a tuple, the last of which varies fastest: `group` tiles along M come before the
next one along N, so that blocks that run at the same time share rows of A and columns of B in the L2 cache.

Run it: `python examples/schedule/04_fragment_caches.py`
"""

import tilewright as tw
from tilewright.demo import Backend, Case, main, scheduled_case
from tilewright.schedule import Array, Location, MMAFragmentOp, MMAShape, Nest, Plan, Role, Target

SHAPE = MMAShape.M16N16K16
TILE, WARP = (128, 256, 64), (64, 64)


def fast(M: int, N: int, K: int, group: int = 32, stages: int = 3) -> Plan:
    """Return the plan; it is fast where M, N and K are multiples of the tile."""
    A = Array(Role.INPUT, tw.float16, (M, K))
    B = Array(Role.INPUT, tw.float16, (K, N), Array.Layout.LAST_MAJOR)
    C = Array(Role.OUTPUT, tw.float16, (M, N))
    nest = Nest((M, N, K))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _():
        C[i, j] += A[i, k] * B[k, j]

    target = Target()
    unit = target.GridUnit
    m, n, depth = target.tensor_core_info.compute_tensor_splits(SHAPE)
    schedule = nest.create_schedule()
    i_warp, j_warp, k_step = schedule.tile(dict(zip((i, j, k), TILE, strict=True)))
    i_tile, j_tile = schedule.tile({i_warp: WARP[0], j_warp: WARP[1]})
    ii, jj, kk = schedule.tile({i_tile: m, j_tile: n, k_step: depth})
    i_group = schedule.split(i, group)
    schedule.reorder(i, j, i_group, k, i_warp, j_warp, k_step, i_tile, j_tile, ii, jj, kk)

    plan = schedule.create_plan(target)
    plan.bind({(i, j, i_group): unit.BLOCK_X, i_warp: unit.WARP_Y, j_warp: unit.WARP_X})
    for operand in (A, B):
        tile = plan.cache(operand, index=i_warp, pipeline_stages=stages)
        plan.cache(tile, index=i_tile, location=Location.MMA_FRAGMENT, double_buffer=True)
    staged = plan.cache(C, index=k)
    plan.cache(staged, index=k, location=Location.MMA_FRAGMENT)
    plan.tensorize((ii, jj, kk), SHAPE, prologue_op=MMAFragmentOp.SET, prologue_arg=0.0)
    return plan


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the case: a few tiles, or 4096 cubed."""
    plan = fast(256, 256, 256, group=2) if quick else fast(4096, 4096, 4096)
    return [scheduled_case("tensor cores, pipelined", plan.build("fast"), backend)]


if __name__ == "__main__":
    main(cases)
