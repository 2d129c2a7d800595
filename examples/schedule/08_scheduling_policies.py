"""Choose what runs innermost where a matrix shape has several blocks: the passes, or the blocks.

AMD's M64N64K1_B2, M64N64K4_B4 and their like compute 64 x 64 of C in B blocks, each by instructions of its own. A tile
of P passes along K, of which F are fused (G = P / F groups), therefore has B * P multiplications, in one of two orders:

- PASS_ORDER holds a fragment of C for each block. Each group loads F fragments of A and F of B once, and multiplies
  them for all blocks.
- BLOCK_ORDER holds one fragment of C at a time: a block is loaded, runs through all passes, and is stored before the
  next one. Fewer registers; but with more than one group, each block loads A and B anew.

C += A B is computed here for a K that one tile covers, as in the updates of a blocked factorization. Over a longer K
one caches C in MMA_FRAGMENT, so that it is not loaded and stored in each iteration: all its fragments are then held, in
either order.

`counts` says what the method promises, and `cases` asserts that it is what `report()` counts in the kernel's IR. Run as
a program this prints these counts, and the registers that clang takes for gfx908 where it is installed. The kernels run
in the simulator on every machine: for AMD's GPUs they were compiled, and never run on one.

Run it: `python examples/schedule/08_scheduling_policies.py`
"""

from rich.console import Console
from rich.table import Table

import tilewright as tw
from tilewright.demo import Backend, Case, main, scheduled_case
from tilewright.schedule import Array, MMASchedulingPolicy, MMAShape, Nest, Plan, Role, Target

M, N, PASSES = 64, 128, 8
SHAPES = {MMAShape.M64N64K1_B2: tw.float32, MMAShape.M64N64K4_B4: tw.float16}
VARIANTS = [
    (shape, policy, fused)
    for shape in SHAPES
    for policy in (MMASchedulingPolicy.PASS_ORDER, MMASchedulingPolicy.BLOCK_ORDER)
    for fused in (PASSES, 2)
]


def update(shape: MMAShape, policy: MMASchedulingPolicy, fused: int) -> Plan:
    """Return the plan of C += A B, one warp of 64 lanes for each 64 x 64 of C."""
    target = Target("AMD MI100")
    m, n, depth = target.tensor_core_info.compute_tensor_splits(shape, PASSES)
    A = Array(Role.INPUT, SHAPES[shape], (M, depth))
    B = Array(Role.INPUT, SHAPES[shape], (depth, N))
    C = Array(Role.INPUT_OUTPUT, tw.float32, (M, N))
    nest = Nest((M, N, depth))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _():
        C[i, j] += A[i, k] * B[k, j]

    schedule = nest.create_schedule()
    ii, jj = schedule.tile({i: m, j: n})
    schedule.reorder(i, j, ii, jj, k)
    plan = schedule.create_plan(target)
    plan.bind({i: target.GridUnit.BLOCK_Y, j: target.GridUnit.BLOCK_X})
    plan.tensorize((ii, jj, k), shape, PASSES, num_fused_passes=fused, scheduling_policy=policy)
    return plan


def counts(shape: MMAShape, policy: MMASchedulingPolicy, fused: int) -> dict[str, int]:
    """Return the fragments, loads, stores and multiplications of a tile, by the names of the report."""
    blocks = shape.num_blocks
    in_block_order = policy is MMASchedulingPolicy.BLOCK_ORDER
    times = blocks if in_block_order and fused < PASSES else 1  # that A and B are loaded
    return {
        "fragments_a": fused,
        "fragments_b": fused,
        "fragments_c": 1 if in_block_order else blocks,
        "loads_a": times * PASSES,
        "loads_b": times * PASSES,
        "loads_c": blocks,
        "stores_c": blocks,
        "mma": blocks * PASSES,
    }


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return a case for each policy and number of fused passes, of one shape where it has to be quick."""
    found = []
    for shape, policy, fused in VARIANTS:
        if quick and shape is not MMAShape.M64N64K4_B4:
            continue
        kernel = update(shape, policy, fused).build("update")
        report, promised = kernel.report(), counts(shape, policy, fused)
        assert {name: getattr(report, name) for name in promised} == promised, report
        found.append(scheduled_case(f"{shape.name}, {policy.name}, {fused} fused", kernel, backend))
    return found


def table() -> Table:
    """Return the counts of all variants, from their reports."""
    names = [*counts(*VARIANTS[0]), "registers"]
    result = Table("shape", "policy", "fused", *names, title=f"C += A B on gfx908, {PASSES} passes")
    for shape, policy, fused in VARIANTS:
        report = update(shape, policy, fused).report()
        result.add_row(shape.name, policy.name, str(fused), *(str(getattr(report, name)) for name in names))
    return result


if __name__ == "__main__":
    Console(width=140).print(table())
    main(cases)
