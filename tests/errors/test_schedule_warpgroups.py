"""What plans for warpgroups, TMA and a producer refuse, with whole texts."""

from __future__ import annotations

from tests.helpers.refusals import refused
from tests.unit.schedule.plans import warpgroup_product

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location
from tilewright.schedule.mma_shapes import MMAShape
from tilewright.schedule.nest import Nest
from tilewright.schedule.package import Package
from tilewright.schedule.plan import Plan
from tilewright.schedule.targets import Target


def unbound(shape: MMAShape = MMAShape.M64N64K16, target: str = "H100") -> Plan:
    """Return a plan of a product in which a tile is tensorized, and nothing is bound."""
    A, B = (Array(Role.INPUT, tw.bfloat16, (64, 64), name=name) for name in "AB")
    C = Array(Role.INPUT_OUTPUT, tw.float32, (64, 64), name="C")
    nest = Nest((64, 64, 64))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += A[i, k] * B[k, j]

    schedule = nest.create_schedule()
    ii, jj, kk = schedule.tile({i: shape.m, j: shape.n, k: shape.k})
    schedule.reorder(i, j, k, ii, jj, kk)
    plan = schedule.create_plan(Target(target))
    plan.tensorize((ii, jj, kk), shape)
    return plan


def test_the_target_has_none() -> None:
    @refused(
        ScheduleError,
        """
        sm_80 has no M64N64K16 of bfloat16 with float32 accumulators
          help: sm_80 has M16N16K16, M32N8K16, M8N32K16 of float16 with float32 accumulators; M16N16K16, M32N8K16, M8N32K16 of float16 with float16 accumulators; M16N16K16, M32N8K16, M8N32K16 of bfloat16 with float32 accumulators; M16N16K8 of tfloat32 with float32 accumulators; M16N16K8 of float32 with float32 accumulators; M16N16K16, M32N8K16, M8N32K16 of int8 with int32 accumulators; M16N16K16, M32N8K16, M8N32K16 of uint8 with int32 accumulators
        """,
    )
    def body() -> None:
        unbound(target="A100")

    body()


@refused(
    ScheduleError,
    """
    bind to WARPGROUP: sm_80 has no matrix instructions of warpgroups; they need sm_90a
      help: plan for Target('NVIDIA H100'), or bind to WARP_X and WARP_Y
    """,
)
def test_the_target_has_no_warpgroups() -> None:
    plan = unbound(MMAShape.M16N16K16, "A100")
    plan.bind({plan.nest.order[0]: plan.target.GridUnit.WARPGROUP})


@refused(
    ScheduleError,
    """
    M64N64K16 reads A from shared memory, and it has no cache there
      plans.py:71, in _:
        C[i, j] += A[i, kk] * B[kk, j]
        ^^^^^^^
      help: plan.cache(A, index=..., location=Location.SHARED), at a loop outside of the tile
    """,
)
def test_a_factor_in_global_memory() -> None:
    plan, _ = warpgroup_product((64, 64, 64), producer=False)
    plan.caches.clear()
    plan.build()


@refused(
    ScheduleError,
    """
    M64N64K16 reads B from shared memory, and rB keeps it in MMA_FRAGMENT
      plans.py:71, in _:
        C[i, j] += A[i, kk] * B[kk, j]
        ^^^^^^^
      help: plan.cache(B, index=..., location=Location.SHARED); of its factors a warpgroup takes A alone from registers
    """,
)
def test_b_in_fragments() -> None:
    plan, (_, B, _) = warpgroup_product((64, 64, 64), producer=False)
    plan.cache(B, index=plan.caches[0].at, location=Location.MMA_FRAGMENT)
    plan.build()


@refused(
    ScheduleError,
    """
    WARP_X is bound in a plan whose tile is M64N64K16: a whole warpgroup runs it
      help: bind to WARPGROUP, which counts warpgroups
    """,
)
def test_warps_are_bound() -> None:
    plan = unbound()
    plan.bind({plan.nest.order[0]: plan.target.GridUnit.WARP_X})
    plan.build()


@refused(
    ScheduleError,
    """
    WARPGROUP is bound, and the tile is M16N16K16, which a warp runs
      help: tensorize by a shape of a warpgroup, such as MMAShape.M64N256K16; or bind to WARP_X and WARP_Y
    """,
)
def test_a_tile_of_warps() -> None:
    plan = unbound(MMAShape.M16N16K16)
    plan.bind({plan.nest.order[0]: plan.target.GridUnit.WARPGROUP})
    plan.build()


@refused(
    ScheduleError,
    """
    loops are bound to THREAD_X or THREAD_Y, and warpgroups are bound as well
      help: WARPGROUP counts whole warpgroups, of four warps each: bind to it alone
    """,
)
def test_threads_are_bound_as_well() -> None:
    plan = unbound()
    i, j, *_ = plan.nest.order
    plan.bind({i: plan.target.GridUnit.WARPGROUP, j: plan.target.GridUnit.THREAD_X})


@refused(
    ScheduleError,
    """
    M64N64K32 takes int8 with K contiguous, and in sB mode 1 is, which moves with column, j, jj
      plans.py:71, in _:
        C[i, j] += A[i, kk] * B[kk, j]
        ^^^^^^^
      help: let threads transpose it: plan.cache(B, ..., layout=Array.Layout.LAST_MAJOR); or store B so
    """,
)
def test_bytes_that_are_not_transposed() -> None:
    types = (tw.int8, tw.int8, tw.int32)
    plan, _ = warpgroup_product((64, 64, 64), MMAShape.M64N64K32, types=types, layouts="NN", producer=False)
    plan.build()


@refused(
    ScheduleError,
    """
    a producer fills caches by TMA, and sA is filled otherwise: mode 0 of A has a stride of 140 bytes, and TMA takes multiples of 16
      help: pad the rows of A: layout=strides that are multiples of 8; or leave producer out: all threads then fill caches
    """,
)
def test_rows_that_no_tensor_map_has() -> None:
    plan, _ = warpgroup_product((64, 64, 70))
    plan.build()


@refused(
    ScheduleError,
    """
    TMA cannot fill sA: mode 0 is contiguous in it, and has stride 64 in A: TMA does not transpose
      help: leave layout out, or leave tma out: threads then transpose it
    """,
)
def test_tma_does_not_transpose() -> None:
    plan, _ = warpgroup_product((64, 64, 64), tma=True, options={"layout": Array.Layout.LAST_MAJOR}, layouts="NN")
    plan.build()


@refused(
    ScheduleError,
    """
    num_fused_passes=2 says how many fragments of A and B are held, and M64N64K16 holds none: a warpgroup takes all passes of a tile at once
      help: leave num_fused_passes out
    """,
)
def test_fused_passes() -> None:
    plan, _ = warpgroup_product((64, 64, 64))
    indices, plan.tensorization = plan.tensorization.indices, None  # type: ignore[union-attr]
    plan.tensorize(indices, MMAShape.M64N64K16, 4, num_fused_passes=2)


@refused(
    ScheduleError,
    """
    M64N64K16 cannot read its factors: no descriptor of SM90_64x64x16_F32BF16BF16_SS.with_majors('K', 'MN') describes B: eight k must be 8 elements apart (16 bytes, a line), and they are 72 apart
      B: sB, shared bfloat16 ((64,16),1,4):((1,72),0,1152)
      a tile of 64 x 16, MN-major
      plans.py:71, in _:
        C[i, j] += A[i, kk] * B[kk, j]
        ^^^^^^^
      help: leave layout= of the cache out, or give FIRST_MAJOR or LAST_MAJOR: the plan then swizzles it
    """,
)
def test_a_layout_that_no_descriptor_describes() -> None:
    plan, _ = warpgroup_product(
        (64, 64, 64), tile=(64, 64, 64), producer=False, tma=False, stages=1, options={"layout": (72, 1)}
    )
    plan.build().source()


@refused(
    ScheduleError,
    """
    a tile of M64N64K16 would cross the boundary at which k + kk < 48, where A does not end: a warpgroup reads all of the tile
      test_schedule_warpgroups.py:71, in _:
        C[i, j] += A[i, k] * B[k, j]
        ^^^^^^^
      help: let K run to the end of the array, beyond which a cache has zeros, or in whole tiles
    """,
)
def test_k_ends_before_the_array() -> None:
    A, B = (Array(Role.INPUT, tw.bfloat16, (64, 64), name=name) for name in "AB")
    C = Array(Role.INPUT_OUTPUT, tw.float32, (64, 64), name="C")
    nest = Nest((64, 64, 48))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += A[i, k] * B[k, j]

    schedule = nest.create_schedule()
    ii, jj, kk = schedule.tile({i: 64, j: 64, k: 64})
    schedule.reorder(i, j, k, ii, jj, kk)
    plan = schedule.create_plan(Target("H100"))
    for array in (A, B):
        plan.cache(array, index=ii)
    plan.tensorize((ii, jj, kk), MMAShape.M64N64K16, 4)
    plan.build().source()


@refused(
    ScheduleError,
    """
    blocks=2, and no loop is bound to blocks
      help: bind one to BLOCK_X
    """,
)
def test_blocks_that_stay_for_no_loop() -> None:
    plan = unbound()
    plan.bind({}, blocks=2)
    plan.build()


@refused(
    ScheduleError,
    """
    TMA cannot store rC: mode 0 of C has a stride of 280 bytes, and TMA takes multiples of 16
      help: leave tma out: each thread stores its own results
    """,
)
def test_results_that_no_tensor_map_has() -> None:
    plan, _ = warpgroup_product((64, 70, 64), stores=True)
    plan.build()


@refused(
    ScheduleError,
    """
    function product copies by TMA, with tensor maps that the loader of a package does not make
      plans.py:71, in _:
        C[i, j] += A[i, kk] * B[kk, j]
        ^^^^^^^
      help: tma=False for its caches, or call the kernel from Python: plan.build()
    """,
)
def test_a_package_makes_no_tensor_maps() -> None:
    plan, arrays = warpgroup_product((64, 64, 64))
    package = Package()
    package.add(plan, args=arrays, base_name="product")
    package.build("packed", output_dir="/nowhere/packed")
