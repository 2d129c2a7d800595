"""What tensorized plans refuse, with whole texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.helpers.refusals import refused

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, Dimension
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location
from tilewright.schedule.loop_nest import Condition
from tilewright.schedule.mma_shapes import MMAFragmentOp, MMAShape
from tilewright.schedule.nest import Nest
from tilewright.schedule.targets import Target

Logic = Callable[..., None]


def multiply(A: Any, B: Any, C: Any, i: Any, j: Any, k: Any) -> None:
    C[i, j] += A[i, k] * B[k, j]


class Case:
    """A product of 64 x 64 x 64, a tile of it to a block, and its loops."""

    def __init__(
        self,
        logic: Logic = multiply,
        tile: tuple[int, int, int] = (16, 16, 16),
        types: tuple[str, str, str] = ("float16", "float16", "float32"),
        sizes: tuple[Any, Any, Any] = (64, 64, 64),
        target: str = "sm_80",
        padding: int = 0,
        role: Role = Role.INPUT_OUTPUT,
        columns: bool = True,
        columns_of_a: int | None = None,
    ) -> None:
        m, n, k = sizes
        shape_of_a = (m, k if columns_of_a is None else columns_of_a)
        a, b = Array(Role.INPUT, types[0], shape_of_a, name="A"), Array(Role.INPUT, types[1], (k, n), name="B")
        c = Array(role, types[2], (m, n), name="C")
        self.a, self.b, self.c = a, b, c
        nest = Nest(sizes)
        i, j, k = nest.get_indices()
        nest.iteration_logic(lambda: logic(a, b, c, i, j, k))
        schedule = nest.create_schedule()
        if padding:
            schedule.pad(i, padding)
        ii, jj, kk = schedule.tile({i: tile[0], j: tile[1], k: tile[2]})
        schedule.reorder(i, j, k, ii, jj, kk)
        self.plan, self.outer, self.inner = schedule.create_plan(Target(target)), (i, j, k), (ii, jj, kk)
        self.unit = self.plan.target.GridUnit
        self.plan.bind({i: self.unit.BLOCK_Y})
        if columns:
            self.plan.bind({j: self.unit.BLOCK_X})

    def tensorize(self, shape: Any = MMAShape.M16N16K16, passes: Any = 1, **options: Any) -> Case:
        self.plan.tensorize(self.inner, shape, passes, **options)
        return self


@refused(
    ScheduleError,
    """
    jj, the loop of N, is `for jj in range(8):` and M16N16K16 with 1 passes takes range(16)
      help: split by target.tensor_core_info.compute_tensor_splits: (16, 16, 16)
    """,
)
def test_tiles_of_another_width() -> None:
    Case(tile=(16, 8, 16)).tensorize()


@refused(
    ScheduleError,
    """
    kk, the loop of K, is `for kk in range(16):` and M16N16K16 with 2 passes takes range(32)
      help: split by target.tensor_core_info.compute_tensor_splits: (16, 16, 32)
    """,
)
def test_tiles_of_one_pass_for_two() -> None:
    Case().tensorize(passes=2)


@refused(
    ScheduleError,
    """
    num_fused_passes=3 does not divide num_total_passes=4
      help: groups of passes are equally long: use a divisor
    """,
)
def test_fused_passes_that_do_not_divide() -> None:
    Case(tile=(16, 16, 64)).tensorize(passes=4, num_fused_passes=3)


@refused(
    ScheduleError,
    """
    num_total_passes=0
      help: a whole number of passes, at least 1
    """,
)
def test_no_passes() -> None:
    Case().tensorize(passes=0)


@refused(
    ScheduleError,
    """
    'M16N16K16' is not an MMAShape
      help: such as MMAShape.M16N16K16
    """,
)
def test_something_else_than_a_shape() -> None:
    Case().tensorize("M16N16K16")


@refused(
    ScheduleError,
    """
    A is of float16 and B of bfloat16; a matrix instruction multiplies one type
      test_schedule_tensors.py:N, in multiply:
        C[i, j] += A[i, k] * B[k, j]
        ^^^^^^^
      help: two are multiplied by those of gfx942, float8_e4m3fnuz and float8_e5m2fnuz, and of warpgroups (sm_90a), float8_e4m3fn and float8_e5m2, or int8 and uint8
    """,
)
def test_factors_of_two_types() -> None:
    Case(types=("float16", "bfloat16", "float32")).tensorize()


@refused(
    ScheduleError,
    """
    sm_75 has no M16N16K8 of float16 with float32 accumulators
      help: sm_75 has M16N16K16, M32N8K16, M8N32K16 of float16 with float32 accumulators; M16N16K16, M32N8K16, M8N32K16 of float16 with float16 accumulators; M16N16K16, M32N8K16, M8N32K16 of int8 with int32 accumulators; M16N16K16, M32N8K16, M8N32K16 of uint8 with int32 accumulators
    """,
)
def test_a_type_that_the_shape_does_not_take() -> None:
    Case(types=("float16", "float16", "float32"), target="sm_75", tile=(16, 16, 8)).tensorize(MMAShape.M16N16K8)


@refused(
    ScheduleError,
    """
    sm_75 has no M16N16K16 of bfloat16 with float32 accumulators
      help: sm_75 has M16N16K16, M32N8K16, M8N32K16 of float16 with float32 accumulators; M16N16K16, M32N8K16, M8N32K16 of float16 with float16 accumulators; M16N16K16, M32N8K16, M8N32K16 of int8 with int32 accumulators; M16N16K16, M32N8K16, M8N32K16 of uint8 with int32 accumulators
    """,
)
def test_a_type_that_the_target_does_not_take() -> None:
    Case(types=("bfloat16", "bfloat16", "float32"), target="sm_75").tensorize()


@refused(
    ScheduleError,
    """
    sm_75 has no M16N16K16 of int8 with int64 accumulators
      help: sm_75 has M16N16K16, M32N8K16, M8N32K16 of float16 with float32 accumulators; M16N16K16, M32N8K16, M8N32K16 of float16 with float16 accumulators; M16N16K16, M32N8K16, M8N32K16 of int8 with int32 accumulators; M16N16K16, M32N8K16, M8N32K16 of uint8 with int32 accumulators
    """,
)
def test_sums_of_bytes_beyond_the_accumulators() -> None:
    Case(types=("int8", "int8", "int64"), target="sm_75").tensorize()


@refused(
    ScheduleError,
    """
    gfx908 has no M32N8K16 of float16 with float32 accumulators
      help: gfx908 has M16N16K16, M32N32K8_B1, M64N64K4_B2, M64N64K4_B4 of float16 with float32 accumulators; M16N16K8, M32N32K4_B1, M64N64K2_B2, M64N64K2_B4 of bfloat16 with float32 accumulators; M16N16K4_B1, M32N32K2_B1, M64N64K1_B2, M64N64K1_B4 of float32 with float32 accumulators; M16N16K16, M32N32K8_B1, M64N64K4_B2, M64N64K4_B4 of int8 with int32 accumulators
    """,
)
def test_a_shape_of_the_other_maker() -> None:
    Case(tile=(32, 8, 16), target="gfx908").tensorize(MMAShape.M32N8K16)


@refused(
    ScheduleError,
    """
    gfx908 has no M16N16K4_B1 of float16 with float32 accumulators
      help: gfx908 has M16N16K16, M32N32K8_B1, M64N64K4_B2, M64N64K4_B4 of float16 with float32 accumulators; M16N16K8, M32N32K4_B1, M64N64K2_B2, M64N64K2_B4 of bfloat16 with float32 accumulators; M16N16K4_B1, M32N32K2_B1, M64N64K1_B2, M64N64K1_B4 of float32 with float32 accumulators; M16N16K16, M32N32K8_B1, M64N64K4_B2, M64N64K4_B4 of int8 with int32 accumulators
    """,
)
def test_halves_by_the_shape_of_floats() -> None:
    Case(tile=(16, 16, 4), target="gfx908").tensorize(MMAShape.M16N16K4_B1)


@refused(
    ScheduleError,
    """
    the prologue operation SET would run in each iteration of k, which runs through K
      help: keep C in fragments: plan.cache(C, index=k, location=Location.MMA_FRAGMENT)
    """,
)
def test_setting_in_each_turn() -> None:
    case = Case().tensorize(prologue_op=MMAFragmentOp.SET, prologue_arg=0.0)
    case.plan.build()


@refused(
    ScheduleError,
    """
    the prologue operation SCALE would run in each iteration of k, which runs through K
      help: keep C in fragments: plan.cache(C, index=k, location=Location.MMA_FRAGMENT)
    """,
)
def test_scaling_in_each_turn() -> None:
    case = Case().tensorize(prologue_op=MMAFragmentOp.SCALE, prologue_arg=2.0)
    case.plan.build()


@refused(
    ScheduleError,
    """
    the epilogue operation ReLU would run in each iteration of k, which runs through K
      help: keep C in fragments: plan.cache(C, index=k, location=Location.MMA_FRAGMENT)
    """,
)
def test_relu_in_each_turn() -> None:
    case = Case().tensorize(epilogue_op=MMAFragmentOp.ReLU)
    case.plan.cache(case.c, index=case.inner[0], location=Location.MMA_FRAGMENT)
    case.plan.build()


@refused(
    ScheduleError,
    """
    the epilogue operation twice would run in each iteration of k, which runs through K
      help: keep C in fragments: plan.cache(C, index=k, location=Location.MMA_FRAGMENT)
    """,
)
def test_a_function_in_each_turn() -> None:
    def twice(x: Any) -> Any:
        return x + x

    Case().tensorize(epilogue_op=twice).plan.build()


@refused(
    ScheduleError,
    """
    SCALE needs an argument
      help: prologue_arg or epilogue_arg, a number
    """,
)
def test_scaling_by_nothing() -> None:
    Case().tensorize(prologue_op=MMAFragmentOp.SCALE)


def test_arguments_of_operations_that_take_none_are_ignored() -> None:
    case = Case().tensorize(
        prologue_op=MMAFragmentOp.SET, epilogue_op=MMAFragmentOp.ReLU, epilogue_arg=2.0
    )  # fmt: skip
    tile = case.plan.tensorization
    assert tile is not None
    assert (tile.prologue, tile.epilogue) == ((MMAFragmentOp.SET, 0.0), (MMAFragmentOp.ReLU, None))


@refused(
    ScheduleError,
    """
    a fragment operation is a MMAFragmentOp or a function, got 'relu'
    """,
)
def test_an_operation_by_name() -> None:
    Case().tensorize(epilogue_op="relu")


@refused(
    ScheduleError,
    """
    SCALE by 0.5, and the accumulators are int32
      help: give a whole number
    """,
)
def test_half_of_whole_sums() -> None:
    Case(types=("int8", "int8", "int32")).tensorize(prologue_op=MMAFragmentOp.SCALE, prologue_arg=0.5)


@refused(
    ScheduleError,
    """
    no matrix instruction computes C[i + ii, j + jj] += A[i + ii, k + kk] + B[k + kk, j + jj]
      test_schedule_tensors.py:N, in add:
        C[i, j] += A[i, k] + B[k, j]
        ^^^^^^^
      help: they compute C[..] += A[..] * B[..], of elements of three arrays
    """,
)
def test_a_sum_of_factors() -> None:
    def add(A: Any, B: Any, C: Any, i: Any, j: Any, k: Any) -> None:
        C[i, j] += A[i, k] + B[k, j]

    Case(add).tensorize()


@refused(
    ScheduleError,
    """
    no matrix instruction can serve the read of A[i + ii, 0]: it does not move with kk, the loop of K
      test_schedule_tensors.py:N, in column:
        C[i, j] += A[i, 0] * B[k, j]
        ^^^^^^^
      help: one factor has to move with ii and kk, the other with jj and kk
    """,
)
def test_a_factor_without_k() -> None:
    def column(A: Any, B: Any, C: Any, i: Any, j: Any, k: Any) -> None:
        C[i, j] += A[i, 0] * B[k, j]

    Case(column, columns=False).tensorize()


@refused(
    ScheduleError,
    """
    no matrix instruction can serve the read of A[0, k + kk]: it moves with neither ii nor jj
      test_schedule_tensors.py:N, in row:
        C[i, j] += A[0, k] * B[k, j]
        ^^^^^^^
      help: one factor has to move with ii and kk, the other with jj and kk
    """,
)
def test_a_factor_that_moves_with_neither() -> None:
    def row(A: Any, B: Any, C: Any, i: Any, j: Any, k: Any) -> None:
        C[i, j] += A[0, k] * B[k, j]

    Case(row).tensorize()


@refused(
    ScheduleError,
    """
    no matrix instruction can serve the read of A[i + ii, k + kk]: read of A[i + ii, k + kk] moves with ii as well
      test_schedule_tensors.py:N, in square:
        C[i, j] += A[i, k] * A[i, k]
        ^^^^^^^
      help: one factor has to move with ii and kk, the other with jj and kk
    """,
)
def test_two_factors_of_rows() -> None:
    def square(A: Any, B: Any, C: Any, i: Any, j: Any, k: Any) -> None:
        C[i, j] += A[i, k] * A[i, k]

    Case(square).tensorize()


@refused(
    ScheduleError,
    """
    no matrix instruction can serve the write of C[i + ii, 0]: it has to move with ii and jj, and not with kk
      test_schedule_tensors.py:N, in column:
        C[i, 0] += A[i, k] * B[k, j]
        ^^^^^^^
    """,
)
def test_sums_of_one_column() -> None:
    def column(A: Any, B: Any, C: Any, i: Any, j: Any, k: Any) -> None:
        C[i, 0] += A[i, k] * B[k, j]

    Case(column, columns=False).tensorize()


@refused(
    ScheduleError,
    """
    a tile of matrix instructions would cross the boundary at which i + ii - j - jj >= 0
      test_schedule_tensors.py:N, in multiply:
        C[i, j] += A[i, k] * B[k, j]
        ^^^^^^^
      help: a boundary of M, N or K alone is masked; one that moves with several indices of the tile, or in a quotient or remainder, is not
    """,
)
def test_tiles_that_cross_a_slanted_edge() -> None:
    case = Case()
    (part,), loops = case.plan.nest.parts, [*case.outer[:2], *case.inner[:2]]
    triangle = Condition(Affine.of(dict(zip(loops, (1, -1, 1, -1), strict=True))))
    case.plan.nest = replace(case.plan.nest, parts=(part.where(triangle),))
    case.tensorize()


@refused(
    ScheduleError,
    """
    saturating=True, and C is of float32
      test_schedule_tensors.py:N, in multiply:
        C[i, j] += A[i, k] * B[k, j]
        ^^^^^^^
      help: int32 accumulators saturate when they are stored as int8, uint8, int16 or uint16
    """,
)
def test_saturation_of_floats() -> None:
    Case().tensorize(saturating=True)


@refused(
    ScheduleError,
    """
    the saturation would run in each iteration of k, which runs through K
      help: keep C in fragments: plan.cache(C, index=k, location=Location.MMA_FRAGMENT)
    """,
)
def test_saturation_in_each_iteration() -> None:
    Case(types=("int8", "int8", "int16")).tensorize(saturating=True).plan.build()


@refused(
    ScheduleError,
    """
    tensorize of (ii, jj, k), and the innermost loops are (ii, jj, kk)
      help: reorder the schedule so that the loops of the tile are innermost
    """,
)
def test_loops_that_are_not_innermost() -> None:
    case = Case()
    case.plan.tensorize((*case.inner[:2], case.outer[2]), MMAShape.M16N16K16)


@refused(
    ScheduleError,
    """
    tensorize takes the indices of M, N and K, got 2
    """,
)
def test_two_loops() -> None:
    case = Case()
    case.plan.tensorize(case.inner[:2], MMAShape.M16N16K16)


@refused(
    ScheduleError,
    """
    the loops of the tile, (ii, jj, kk), have been bound since it was tensorized
      help: bind loops outside of the tile
    """,
)
def test_loops_bound_afterwards() -> None:
    case = Case().tensorize()
    case.plan.bind({case.inner[0]: case.unit.WARP_X})
    case.plan.build()


@refused(
    ScheduleError,
    """
    sA is filled inside of the tile
      help: give an index outside of its loops
    """,
)
def test_a_cache_inside_of_the_tile() -> None:
    case = Case().tensorize()
    case.plan.cache(case.a, index=case.inner[1])
    case.plan.build()


@refused(
    ScheduleError,
    """
    rC lives in the registers of each thread, and a warp multiplies C whole
      help: cache it in MMA_FRAGMENT or SHARED
    """,
)
def test_sums_in_registers_of_each_thread() -> None:
    case = Case().tensorize()
    case.plan.cache(case.c, index=case.outer[2], location=Location.PRIVATE)
    case.plan.build()


@refused(
    ScheduleError,
    """
    sA keeps A in float32, and the instructions take float16
      help: leave element_type out, or declare the array of the other type
    """,
)
def test_factors_cached_in_another_type() -> None:
    case = Case().tensorize()
    case.plan.cache(case.a, index=case.inner[0], element_type="float32")
    case.plan.build()


@refused(
    ScheduleError,
    """
    rC lives in fragments of matrix instructions, and nothing is tensorized
      help: location=Location.PRIVATE keeps elements in the registers of each thread
    """,
)
def test_fragments_without_instructions() -> None:
    case = Case()
    case.plan.cache(case.c, index=case.outer[2], location=Location.MMA_FRAGMENT)
    case.plan.build()


@refused(
    ScheduleError,
    """
    C is TEMP and without a cache lives in the registers of each thread; a warp multiplies it whole
      help: plan.cache(C, ..., location=Location.MMA_FRAGMENT), or SHARED
    """,
)
def test_temporary_sums_without_a_cache() -> None:
    Case(role=Role.TEMP).tensorize().plan.build()


@pytest.mark.parametrize("rows", [16, 40, 48, 81])
def test_any_size_of_the_launch(rows: int) -> None:
    m, n, k = Dimension("M"), Dimension("N"), Dimension("K")
    kernel = Case(sizes=(m, n, k)).tensorize().plan.build()
    random = np.random.default_rng(0)
    a, b, c = (random.integers(-3, 4, shape) for shape in ((rows, 32), (32, 64), (rows, 64)))
    given = c.astype(np.float32)
    kernel(a.astype(np.float16), b.astype(np.float16), given)
    np.testing.assert_array_equal(given, a @ b + c)


@refused(
    ScheduleError,
    """
    'BLOCK_ORDER' is not an MMASchedulingPolicy
      help: PASS_ORDER or BLOCK_ORDER
    """,
)
def test_the_name_of_a_policy() -> None:
    Case().tensorize(scheduling_policy="BLOCK_ORDER")


@refused(
    ScheduleError,
    """
    SCALE by '2'
      help: prologue_arg or epilogue_arg, a number
    """,
)
def test_an_operation_by_a_text() -> None:
    Case().tensorize(prologue_op=MMAFragmentOp.SCALE, prologue_arg="2")


def halved(x: Any) -> Any:
    return x / 2.0


@refused(
    ScheduleError,
    """
    halved is a function of the fragment's elements and takes no argument, got 2.0
      help: let the function hold the number: lambda x: x * number
    """,
)
def test_a_function_with_an_argument() -> None:
    Case().tensorize(prologue_op=halved, prologue_arg=2.0)


@refused(
    ScheduleError,
    """
    (ii, jj, kk) is tensorized already
      help: a plan has one tile of matrix instructions; make a kernel of each product, the second of which may compute its A of what the first has stored
    """,
)
def test_two_tiles() -> None:
    Case().tensorize().tensorize()


@refused(
    ScheduleError,
    """
    A[i + ii, 2 * k + 2 * kk] is cached with gaps, and no matrix instruction reads it
      test_schedule_tensors.py:N, in scheduled:
        C[i, j] += A[i, 2 * k] * B[k, j]
        ^^^^^^^
    """,
)
def test_an_error_of_the_build_marks_the_statement() -> None:
    def every_second(A: Any, B: Any, C: Any, i: Any, j: Any, k: Any) -> None:
        C[i, j] += A[i, 2 * k] * B[k, j]

    case = Case(every_second, columns_of_a=128).tensorize()
    case.plan.cache(case.a, index=case.inner[0])
    case.plan.build().lower()
