"""Let matrix instructions compute a product: C = A B in half precision, with float32 sums.

`tensorize` takes the three innermost loops, of M, N and K, for a warp together: it loads fragments of A, B and C into
the registers of the warp's lanes, multiplies them by the target's instructions, and stores C. The loops have to have
the extents that `compute_tensor_splits` gives for a shape, here 16 x 16 x 16; other extents are refused, like element
types that the shape does not take and accesses that no instruction can serve. A warp has one tile of C::

    for i in range(0, 1024, 16):                  # BLOCK_Y
        for j in range(0, 1024, 16):              # BLOCK_X
            for k in range(0, 1024, 16):
                for ii in range(16):              # tensorized, M16N16K16, 1 pass
                    for jj in range(16):          # tensorized
                        for kk in range(16):      # tensorized

As they stand, these loops load C, multiply and store C in each iteration of k. With `kept`, C is cached in fragments
outside of the loop over k, so that its loads and stores leave it. The prologue SET makes these fragments zero in place
of the load: C is only written. (Inside of the loop SET would drop the sum in each iteration of k; that is refused.)

`kernel.report()` counts fragments, loads, stores and multiplications in the kernel that was made.

Run it: `python examples/schedule/03_tensor_single_pass.py`
"""

import tilewright as tw
from tilewright.demo import Backend, Case, main, scheduled_case
from tilewright.schedule import Array, Location, MMAFragmentOp, MMAShape, Nest, Plan, Role, Target

SHAPE = MMAShape.M16N16K16


def plan_for(M: int, N: int, K: int, kept: bool) -> Plan:
    """Return the plan of C = A B with C kept in fragments, or that of C += A B with C loaded in each iteration of k."""
    A = Array(Role.INPUT, tw.float16, (M, K))
    B = Array(Role.INPUT, tw.float16, (K, N))
    C = Array(Role.OUTPUT if kept else Role.INPUT_OUTPUT, tw.float32, (M, N))
    nest = Nest((M, N, K))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _():
        C[i, j] += A[i, k] * B[k, j]

    target = Target()
    m, n, depth = target.tensor_core_info.compute_tensor_splits(SHAPE)  # 16, 16, 16
    schedule = nest.create_schedule()
    ii, jj, kk = schedule.tile({i: m, j: n, k: depth})
    schedule.reorder(i, j, k, ii, jj, kk)
    plan = schedule.create_plan(target)
    plan.bind({i: target.GridUnit.BLOCK_Y, j: target.GridUnit.BLOCK_X})  # blocks of one warp
    if kept:
        plan.tensorize((ii, jj, kk), SHAPE, prologue_op=MMAFragmentOp.SET, prologue_arg=0.0)
        plan.cache(C, index=k, location=Location.MMA_FRAGMENT)
    else:
        plan.tensorize((ii, jj, kk), SHAPE)
    return plan


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the two cases."""
    extents = (64, 96, 128) if quick else (1024, 1024, 1024)
    return [
        scheduled_case("tensor cores, one pass", plan_for(*extents, kept=False).build("single"), backend),
        scheduled_case("tensor cores, C kept", plan_for(*extents, kept=True).build("kept"), backend),
    ]


if __name__ == "__main__":
    main(cases)
