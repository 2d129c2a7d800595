"""What tiles of matrix instructions refuse of factors that are computed, and of sparse ones, with whole texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.helpers.refusals import refused
from tests.unit.schedule.plans import fused_product

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.schedule import cast
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.caches import Location
from tilewright.schedule.mma_shapes import MMAShape
from tilewright.schedule.nest import Nest
from tilewright.schedule.plan import Plan
from tilewright.schedule.targets import Target

BF16, F32 = tw.bfloat16, tw.float32


def tiled(
    product: Callable[..., Any],
    types: tuple[tw.DType, tw.DType, tw.DType] = (tw.int8, BF16, F32),
    shape: Any = MMAShape.M64N64K16,
    depth: int = 64,
) -> tuple[Plan, Array]:
    """Return a plan of C += product(A, B, S, i, j, k), tensorized, with caches of B and C, and its array A."""
    A, B = Array(Role.INPUT, types[0], (64, 128), name="A"), Array(Role.INPUT, types[1], (128, 64), name="B")
    C, S = Array(Role.INPUT_OUTPUT, types[2], (64, 64), name="C"), Array(Role.INPUT, F32, (64,), name="S")
    nest = Nest((64, 64, 128))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _() -> None:
        C[i, j] += product(A, B, S, i, j, k)

    schedule = nest.create_schedule()
    rows, columns = (shape.m, shape.n) if isinstance(shape, MMAShape) else (64, 64)
    ii, jj, kk = schedule.tile({i: rows, j: columns, k: depth})
    schedule.reorder(i, j, k, ii, jj, kk)
    plan = schedule.create_plan(Target("H100"))
    plan.cache(B, index=ii)
    plan.cache(C, index=k, location=Location.MMA_FRAGMENT)
    plan.tensorize((ii, jj, kk), shape, depth // shape.k if isinstance(shape, MMAShape) else 1)
    return plan, A


@refused(
    ScheduleError,
    """
    A is float32(A[i + ii, k + kk]) * S[i + ii], which is not rounded before it is multiplied, and M64N64K16 multiplies bfloat16
      test_schedule_register_operands.py:39, in _:
        C[i, j] += product(A, B, S, i, j, k)
        ^^^^^^^
      help: say where it is rounded: cast(float32(A[i + ii, k + kk]) * S[i + ii], tw.bfloat16)
    """,
)
def test_a_is_not_rounded() -> None:
    tiled(lambda A, B, S, i, j, k: cast(A[i, k], F32) * S[i] * B[k, j])


@refused(
    ScheduleError,
    """
    M64N64K16 reads B from shared memory as it is there, and B is bfloat16(B[k + kk, j + jj] * S[j + jj])
      test_schedule_register_operands.py:39, in _:
        C[i, j] += product(A, B, S, i, j, k)
        ^^^^^^^
      help: a warpgroup takes A from registers, where it can be computed: let the rows of the sums move with this factor, and the columns with the other; or compute an array of it first
    """,
)
def test_b_is_computed() -> None:
    tiled(lambda A, B, S, i, j, k: A[i, k] * cast(B[k, j] * S[j], BF16), (BF16, tw.int8, F32))


@refused(
    ScheduleError,
    """
    A is of bfloat16 and B of int8; a matrix instruction multiplies one type
      test_schedule_register_operands.py:39, in _:
        C[i, j] += product(A, B, S, i, j, k)
        ^^^^^^^
      help: a warpgroup takes A from registers, where each thread converts it, and B from memory: let the rows of the sums move with B, and the columns with A
    """,
)
def test_only_b_is_of_bytes() -> None:
    tiled(lambda A, B, S, i, j, k: A[i, k] * B[k, j], (BF16, tw.int8, F32))


@refused(
    ScheduleError,
    """
    no matrix instruction can serve bfloat16(S[i + ii]): it does not move with kk, the loop of K
      test_schedule_register_operands.py:39, in _:
        C[i, j] += product(A, B, S, i, j, k)
        ^^^^^^^
      help: one factor has to move with ii and kk, the other with jj and kk
    """,
)
def test_a_moves_with_no_k() -> None:
    tiled(lambda A, B, S, i, j, k: cast(S[i], BF16) * B[k, j])


@refused(
    ScheduleError,
    """
    no matrix instruction can serve bfloat16(S[i + ii] * A[0, k + kk]): no element of it moves with both ii and kk
      test_schedule_register_operands.py:39, in _:
        C[i, j] += product(A, B, S, i, j, k)
        ^^^^^^^
      help: A is computed from an array that moves with ii and kk
    """,
)
def test_no_element_moves_with_rows_and_k() -> None:
    tiled(lambda A, B, S, i, j, k: cast(S[i] * A[0, k], BF16) * B[k, j])


@refused(
    ScheduleError,
    """
    no matrix instruction can serve A[i + ii, k + kk] * B[k + kk, j + jj]: it moves with both ii and jj
      test_schedule_register_operands.py:39, in _:
        C[i, j] += product(A, B, S, i, j, k)
        ^^^^^^^
      help: one factor has to move with ii and kk, the other with jj and kk
    """,
)
def test_one_value_of_both() -> None:
    tiled(lambda A, B, S, i, j, k: A[i, k] * B[k, j] * S[i], (BF16, BF16, F32))


@refused(
    ScheduleError,
    """
    A is held in fragments, which have A[i + ii, k + kk], and the factor is computed from A[i + ii, -k - kk + 127] too
      test_schedule_register_operands.py:39, in _:
        C[i, j] += product(A, B, S, i, j, k)
        ^^^^^^^
      help: cache A in shared memory, or not at all
    """,
)
def test_a_is_computed_of_elements_that_are_not_held() -> None:
    plan, A = tiled(lambda A, B, S, i, j, k: cast(A[i, k] + A[i, 127 - k], BF16) * B[k, j], (BF16, BF16, F32))
    plan.cache(A, index=plan.nest.order[0], location=Location.MMA_FRAGMENT)
    plan.build().lower()


@refused(
    ScheduleError,
    """
    rA is read ahead, and M64N64K16 takes A from its registers until its products are waited for
      test_schedule_register_operands.py:39, in _:
        C[i, j] += product(A, B, S, i, j, k)
        ^^^^^^^
      help: leave double_buffer and pipeline_stages out, or give them to a cache in shared memory
    """,
)
def test_registers_that_are_read_ahead() -> None:
    plan, A = tiled(lambda A, B, S, i, j, k: A[i, k] * B[k, j], (BF16, BF16, F32))
    plan.cache(A, index=plan.nest.order[3], location=Location.MMA_FRAGMENT, double_buffer=True)
    plan.build()


@refused(
    ScheduleError,
    """
    P is computed in the kernel whose M64N64K16 multiplies it, and is not TEMP and kept in fragments alone
      plans.py:184, in _:
        C[x, y] += P[x, z] * B[z, y]
        ^^^^^^^
      help: declare P as TEMP, of the type that is multiplied, and keep it in registers: plan.cache(P, index=..., location=Location.MMA_FRAGMENT); or compute it in a kernel of its own
    """,
)
def test_a_that_is_computed_and_stored() -> None:
    plan, _ = fused_product((64, 64, 64), 64, role=Role.INPUT_OUTPUT)
    plan.build()


@refused(
    ScheduleError,
    """
    P is computed in the kernel whose M64N64K16 multiplies it, and is not TEMP and kept in fragments alone
      plans.py:184, in _:
        C[x, y] += P[x, z] * B[z, y]
        ^^^^^^^
      help: declare P as TEMP, of the type that is multiplied, and keep it in registers: plan.cache(P, index=..., location=Location.MMA_FRAGMENT); or compute it in a kernel of its own
    """,
)
def test_a_that_is_computed_in_shared_memory() -> None:
    plan, _ = fused_product((64, 64, 64), 64, producer=False, stages=1, location=Location.SHARED)
    plan.build()


@pytest.mark.parametrize(
    ("types", "product"),
    [
        ((tw.uint8, tw.int8, tw.int32), lambda A, B, S, i, j, k: cast(A[i, k], tw.int8) * B[k, j]),
        ((tw.int8, tw.int8, tw.int32), lambda A, B, S, i, j, k: cast(A[i, k] * B[k, j], tw.int8)),
        ((tw.float16, tw.float16, F32), lambda A, B, S, i, j, k: cast(A[i, k] * B[k, j], tw.float16)),
        ((F32, tw.float16, F32), lambda A, B, S, i, j, k: cast(A[i, k], tw.float16) * B[k, j]),
    ],
    ids=["bytes seen as others", "products of bytes", "rounded products", "rounded elements"],
)
def test_conversions_that_a_warp_would_leave_out(types: Any, product: Any) -> None:
    """What the nest rounds, or wraps, the instructions of a warp would not."""
    with pytest.raises(ScheduleError, match="no matrix instruction computes C") as caught:
        tiled(product, types, MMAShape.M16N16K16)
    assert "a warpgroup (sm_90a) takes an A that is converted" in str(caught.value.help)


@pytest.mark.parametrize(
    ("types", "product"),
    [
        ((tw.int8, tw.int8, tw.int32), lambda A, B, S, i, j, k: cast(A[i, k], tw.int32) * cast(B[k, j], tw.int32)),
        ((tw.int8, tw.int8, tw.int8), lambda A, B, S, i, j, k: cast(A[i, k] * B[k, j], tw.int8)),
        ((tw.float16, tw.float16, F32), lambda A, B, S, i, j, k: cast(cast(A[i, k], F32) * B[k, j], F32)),
    ],
    ids=["wide bytes", "bytes of C", "wide floats"],
)
def test_conversions_that_change_nothing(types: Any, product: Any) -> None:
    tiled(product, types, MMAShape.M16N16K16)


# --- sparse products -------------------------------------------------------------------------------------


@refused(
    ScheduleError,
    """
    GMMA_64x64x32_F32BF16BF16_SS is an atom, of a sparse A, and not an MMAShape
      help: a sparse A has half of its elements, at places along K that metadata says, and a nest says of each element which one it reads: write the product in a kernel, tw.gemm(mma, a, b, c, metadata=fragment) with the atom
    """,
)
def test_the_atom_of_a_sparse_product() -> None:
    tiled(lambda A, B, S, i, j, k: A[i, k] * B[k, j], (BF16, BF16, F32), tw.atoms.GMMA_64x64x32_F32BF16BF16_SS)


@refused(
    ScheduleError,
    """
    SM90_64x64x16_F32BF16BF16_RS is an atom and not an MMAShape
      help: tensorize takes the extents of a shape, MMAShape.M64N64K16, and chooses the atom
    """,
)
def test_an_atom() -> None:
    tiled(lambda A, B, S, i, j, k: A[i, k] * B[k, j], (BF16, BF16, F32), tw.atoms.SM90_64x64x16_F32BF16BF16_RS)


def test_the_extents_of_a_sparse_product() -> None:
    with pytest.raises(ScheduleError) as caught:
        tiled(lambda A, B, S, i, j, k: A[i, k] * B[k, j], (BF16, BF16, F32), MMAShape.M64N64K32)
    assert caught.value.summary == (
        "sm_90a has no M64N64K32 of bfloat16 with float32 accumulators; GMMA_64x64x32_F32BF16BF16_SS has these "
        "extents, and takes a sparse A"
    )
    assert str(caught.value.help).startswith("a sparse A has half of its elements")
