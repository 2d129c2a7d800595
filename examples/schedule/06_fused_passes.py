"""Fuse fewer passes, for fewer registers: the product of example 5 with 2 of its 8 passes fused.

With P passes of which F are fused, a tile is computed in G = P / F groups. There are F fragments of A and F of B, which
each group loads again. P = 8 and F = 2::

    for k in range(0, 2048, 32):          # 64 iterations
        load C
        for group in range(4):
            load 2 of A, load 2 of B, 2 times mma
        store C

F trades registers against loads that are under way at once. Nothing else changes: not what is loaded and multiplied,
nor the iterations of k, nor the result in its last bit, because the passes are added in the same order.

| F | groups | fragments of A | of B | loads of A | of B | mma | iterations |
|---|--------|----------------|------|------------|------|-----|------------|
| 8 | 1      | 8              | 8    | 8          | 8    | 8   | 64         |
| 4 | 2      | 4              | 4    | 8          | 8    | 8   | 64         |
| 2 | 4      | 2              | 2    | 8          | 8    | 8   | 64         |
| 1 | 8      | 1              | 1    | 8          | 8    | 8   | 64         |

The counts are those of `plan.report()`, taken from the kernel that was made; `cases` asserts them. F has to divide P.

The plan for gfx908 runs in the simulator on every machine, because Tilewright launches nothing on AMD's GPUs. The same
method on NVIDIA's tensor cores, in float16 with 16 of K a pass, is the last case.

Run it: `python examples/schedule/06_fused_passes.py`
"""

import tilewright as tw
from tilewright.demo import Backend, Case, main, scheduled_case
from tilewright.schedule import Array, MMAShape, Nest, Plan, Role, Target
from tilewright.schedule.report import Report

EXTENTS = 2048, 1024, 2048
PASSES = 8


def fused_passes(extents: tuple[int, int, int], fused: int, target: Target, shape: MMAShape, dtype: tw.DType) -> Plan:
    """Return the plan of C += A B in 8 passes a tile, so many of which are fused."""
    M, N, K = extents
    A = Array(Role.INPUT, dtype, (M, K))
    B = Array(Role.INPUT, dtype, (K, N))
    C = Array(Role.INPUT_OUTPUT, tw.float32, (M, N))
    nest = Nest((M, N, K))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _():
        C[i, j] += A[i, k] * B[k, j]

    m, n, depth = target.tensor_core_info.compute_tensor_splits(shape, PASSES)
    schedule = nest.create_schedule()
    ii, jj, kk = schedule.tile({i: m, j: n, k: depth})
    schedule.reorder(i, j, k, ii, jj, kk)
    plan = schedule.create_plan(target)
    plan.bind({i: target.GridUnit.BLOCK_Y, j: target.GridUnit.BLOCK_X})
    plan.tensorize((ii, jj, kk), shape, PASSES, num_fused_passes=fused)
    return plan


def on_amd(extents: tuple[int, int, int], fused: int) -> Plan:
    """Return the plan for gfx908, in float32 with 4 of K a pass."""
    return fused_passes(extents, fused, Target("AMD MI100"), MMAShape.M16N16K4, tw.float32)


def on_nvidia(extents: tuple[int, int, int], fused: int) -> Plan:
    """Return the plan for this machine's GPU, in float16 with 16 of K a pass."""
    return fused_passes(extents, fused, Target(), MMAShape.M16N16K16, tw.float16)


def check_counts(report: Report, fused: int) -> None:
    """Assert a row of the table."""
    assert report.fragments_a == report.fragments_b == fused, report
    assert report.loads_a == report.loads_b == report.mma == PASSES, report
    assert report.loads_c == report.stores_c == report.fragments_c == 1, report
    assert report.k_trips == EXTENTS[2] // (4 * PASSES) == 64, report


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return a case for each number of fused passes; the simulator runs a part of the product for gfx908."""
    found = []
    for fused in (8, 4, 2, 1):
        check_counts(on_amd(EXTENTS, fused).report(), fused)
        kernel = on_amd((64, 48, 256), fused).build("fused_passes")
        found.append(scheduled_case(f"8 passes, {fused} fused", kernel, backend))
    kernel = on_nvidia((64, 48, 256) if quick else EXTENTS, 2).build("fused_passes")
    return [*found, scheduled_case("8 passes, 2 fused, tensor cores", kernel, backend)]


if __name__ == "__main__":
    main(cases)
