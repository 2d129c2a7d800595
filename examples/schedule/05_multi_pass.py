"""Multiply in several passes, all fused: float32 on AMD's gfx908, M = 2048, N = 1024, K = 2048, M16N16K4, 8 passes.

One instruction of the shape M16N16K4 takes 4 of K. With `num_total_passes=8` a tensorized tile has 8 times as much of
it, 16 x 16 x 32: `compute_tensor_splits(shape, 8)` says so. Pass p reads A at column 4p of the tile, and B at row 4p.

All passes are fused unless `num_fused_passes` says otherwise: 8 fragments of A and 8 of B are loaded, and 8
instructions multiply them::

    for i in range(0, 2048, 16):              # BLOCK_Y
        for j in range(0, 1024, 16):          # BLOCK_X
            for k in range(0, 2048, 32):      # 2048 / (4 * 8) = 64 iterations
                load 8 of A, load 8 of B, load C, 8 times mma, store C

More passes are more loads under way at once and fewer iterations, for more registers; the next example fuses fewer of
them. `plan.report()` counts all this in the kernel that is made, and `cases` asserts it.

A wave of AMD's GPUs has 64 lanes, which is what a warp is here. These plans have HIP C++ and, with clang, machine code;
they run in the simulator on every machine, because Tilewright launches nothing on AMD's GPUs.

Run it: `python examples/schedule/05_multi_pass.py`
"""

import tilewright as tw
from tilewright.demo import Backend, Case, main, scheduled_case
from tilewright.schedule import Array, MMAShape, Nest, Plan, Role, Target

EXTENTS = 2048, 1024, 2048
SHAPE, PASSES = MMAShape.M16N16K4, 8


def multi_pass(M: int, N: int, K: int) -> Plan:
    """Return the plan of C += A B with 8 passes a tile of 16 x 16 x 32."""
    A = Array(Role.INPUT, tw.float32, (M, K))
    B = Array(Role.INPUT, tw.float32, (K, N))
    C = Array(Role.INPUT_OUTPUT, tw.float32, (M, N))
    nest = Nest((M, N, K))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _():
        C[i, j] += A[i, k] * B[k, j]

    target = Target("AMD MI100")
    m, n, depth = target.tensor_core_info.compute_tensor_splits(SHAPE, PASSES)  # 16, 16, 32
    schedule = nest.create_schedule()
    ii, jj, kk = schedule.tile({i: m, j: n, k: depth})
    schedule.reorder(i, j, k, ii, jj, kk)
    plan = schedule.create_plan(target)
    plan.bind({i: target.GridUnit.BLOCK_Y, j: target.GridUnit.BLOCK_X})  # blocks of one wave
    plan.tensorize((ii, jj, kk), SHAPE, PASSES)
    return plan


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the case, after a look at the whole kernel; the simulator runs a part of it, 8 iterations of k."""
    report = multi_pass(*EXTENTS).report()
    assert (report.fragments_a, report.fragments_b, report.mma, report.k_trips) == (8, 8, 8, 64), report
    kernel = multi_pass(64, 48, 256).build("multi_pass")
    return [scheduled_case("8 passes, fused", kernel, backend)]


if __name__ == "__main__":
    main(cases)
