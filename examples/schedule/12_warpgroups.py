"""Multiply by warpgroups that a producer feeds: float16, 128 x 256 of C a block, for GPUs of sm_90a.

Four warps multiply together by wgmma, 64 x 256 of C, and read A and B from shared memory. So a plan says of them::

    plan.tensorize((ii, jj, kk), MMAShape.M64N256K16, 4)        # 64 of K at once, in 4 passes
    plan.bind({row: WARPGROUP, ...}, producer=True)             # two warpgroups multiply, a third fills caches
    plan.cache(A, index=ii, pipeline_stages=4)                  # by TMA, 4 stages ahead of the products

The producer is one thread: it waits until a stage is empty, tells an mbarrier how many bytes will come, and starts two
bulk copies. The other two warpgroups wait for the bytes, start their products, and hand the stage before back. Nothing
of this is written here, and all of it is in the kernel: `plan.build().source()`.

C leaves by TMA too (`tma=True` for its fragments): rounded, through a buffer of shared memory for half of the columns.
With `blocks=132` a block stays for several tiles, and while it stores one, its producer already brings the next one's
factors. The tuple that is bound to BLOCK_X lets groups of eight rows of tiles come one after the other, so that blocks
that run at the same time share rows of A and columns of B in the second-level cache.

The kernel is the one of `examples/hopper/05_persistent.py`, which says the same in the language.

Run it: `python examples/schedule/12_warpgroups.py`
"""

import tilewright as tw
from tilewright.demo import Backend, Case, main, scheduled_case
from tilewright.schedule import Array, Location, MMAFragmentOp, MMAShape, Nest, Plan, Role, Target

SHAPE, PASSES = MMAShape.M64N256K16, 4
GROUP = 8  # rows of tiles


def by_warpgroups(M: int, N: int, K: int, shape: MMAShape = SHAPE, stages: int = 4, blocks: int = 132) -> Plan:
    """Return the plan of C = A B, where B lies by columns, by at most so many blocks."""
    A = Array(Role.INPUT, tw.float16, (M, K))
    B = Array(Role.INPUT, tw.float16, (K, N), Array.Layout.LAST_MAJOR)
    C = Array(Role.OUTPUT, tw.float16, (M, N))
    nest = Nest((M, N, K))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _():
        C[i, j] += A[i, k] * B[k, j]

    target = Target("NVIDIA H200")
    m, n, depth = target.tensor_core_info.compute_tensor_splits(shape, PASSES)  # 64, 256, 64
    schedule = nest.create_schedule()
    row, jj, kk = schedule.tile({i: 2 * m, j: n, k: depth})
    tiles = -(-M // (2 * m))  # of rows
    ii = schedule.split(row, m)
    group = schedule.split(i, min(GROUP, tiles) * 2 * m)
    schedule.reorder(i, j, group, k, row, ii, jj, kk)
    plan = schedule.create_plan(target)
    unit = target.GridUnit
    plan.bind({(i, j, group): unit.BLOCK_X, row: unit.WARPGROUP}, producer=True, blocks=blocks)
    for operand in (A, B):
        plan.cache(operand, index=ii, pipeline_stages=stages)
    plan.cache(C, index=k, location=Location.MMA_FRAGMENT, tma=True)
    plan.tensorize((ii, jj, kk), shape, PASSES, prologue_op=MMAFragmentOp.SET)
    return plan


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases: a tile for each block, and blocks that stay, for sizes that tiles do not divide."""
    report = by_warpgroups(4096, 4096, 4096).report()
    assert (report.mma, report.k_trips, report.grid, report.block) == (4, 64, (132, 1, 1), (384, 1, 1)), report
    if backend == "cuda" and Target().arch.name != "sm_90a":
        return []
    if quick:
        narrow = MMAShape.M64N64K16  # less for the simulator to do
        whole = by_warpgroups(128, 64, 192, narrow, stages=2).build("by_warpgroups")
        staying = by_warpgroups(136, 56, 136, narrow, stages=2, blocks=1).build("by_warpgroups")
        names = "warpgroups, a tile a block", "warpgroups, a block that stays, tiles that overhang"
        return [scheduled_case(name, kernel, backend) for name, kernel in zip(names, (whole, staying), strict=True)]
    kernel = by_warpgroups(4096, 4096, 4096).build("by_warpgroups")
    return [scheduled_case("warpgroups", kernel, backend)]


if __name__ == "__main__":
    main(cases)
