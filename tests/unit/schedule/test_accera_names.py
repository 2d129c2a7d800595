"""Accera's names and spellings of arguments: each is what this layer calls otherwise, or refused with a reason."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, ScheduleError
from tilewright.schedule import (
    AUTO,
    Array,
    CacheStrategy,
    GridUnit,
    GridUnits,
    Location,
    LoopIndex,
    MemorySpace,
    MMAFragmentOp,
    MMAShape,
    Nest,
    Package,
    Plan,
    Role,
    ScalarType,
    Schedule,
    Strategy,
    Target,
    create_parameter_grid,
    create_parameters,
    get_parameters_from_grid,
)


def product(size: int = 32, dtype: Any = ScalarType.float32) -> tuple[Schedule, tuple[Array, ...], tuple[Any, ...]]:
    A, B = (Array(role=Role.INPUT, element_type=dtype, shape=(size, size), name=name) for name in "AB")
    C = Array(role=Array.Role.INPUT_OUTPUT, element_type=ScalarType.float32, shape=(size, size), name="C")
    nest = Nest(shape=(size, size, size))
    i, j, k = nest.get_indices()
    nest.iteration_logic(lambda: C.__setitem__((i, j), C[i, j] + A[i, k] * B[k, j]))
    return nest.create_schedule(), (A, B, C), (i, j, k)


def run(plan: Plan, args: tuple[Array, ...], size: int = 32, dtype: Any = np.float32) -> None:
    random = np.random.default_rng(0)
    a, b = (random.integers(-3, 4, (size, size)).astype(dtype) for _ in range(2))
    c = np.ones((size, size), np.float32)
    plan.build("product", args)(a, b, c)
    np.testing.assert_array_equal(c, 1 + a.astype(np.float32) @ b.astype(np.float32))


def test_every_shape_of_matrix_instructions_is_spelled_as_in_accera() -> None:
    for shape in (shape for shape in MMAShape if not shape.is_of_warpgroup):  # Accera has none of these
        blocks = shape.num_blocks
        assert MMAShape[f"M{shape.m}xN{shape.n}xK{shape.k}_B{blocks}"] is shape
        assert MMAShape[f"M{shape.m}N{shape.n}K{shape.k}_B{blocks}"] is shape
        assert Target("A100").tensor_core_info.mma_shape_to_tuple(shape) == (shape.m, shape.n, shape.k)


def test_scalar_types() -> None:
    for name, dtype in ScalarType.__members__.items():
        assert getattr(ScalarType, name) is dtype
        assert str(dtype) == {"index": "int64"}.get(name, name)
        assert Array(Role.INPUT, dtype, (4,), name="A").element_type is dtype


def test_other_names() -> None:
    assert (GridUnits, CacheStrategy, MemorySpace) == (GridUnit, Strategy, Location)
    target = Target(Target.Model.AMD_MI100)
    assert target.MemorySpace.SHARED is Location.SHARED and target.MemorySpace.MMA_FRAGMENT is Location.MMA_FRAGMENT
    assert target.GridUnit is GridUnit and target.max_static_shared_memory_per_block == 65536
    nest = Nest((4,))
    (i,) = nest.get_indices()
    assert isinstance(i, LoopIndex) and nest.get_indices() is i and list(i) == [i]


def test_targets_by_accera_arguments() -> None:
    gpu = Target.Category.GPU
    assert Target(Target.Model.NVIDIA_V100, category=gpu) == Target("NVidia V100") == Target(known_name="NVIDIA V100")
    assert Target(model=Target.Model.NVIDIA_TESLA_V100).arch.name == "sm_70"
    assert Target(Target.Model.AMD_MI200).arch.name == "gfx90a"
    assert Target(category=gpu, runtime=Target.Runtime.ROCM).arch.is_amd
    assert Target(category=gpu, runtime=Target.Runtime.CUDA).runtime == Target.Runtime.CUDA
    assert Target("A100").category == gpu
    with pytest.raises(ScheduleError, match="plans run on GPUs"):
        Target(category=Target.Category.CPU)
    with pytest.raises(ScheduleError, match="AMD MI100 is of the runtime ROCM, and CUDA is asked for"):
        Target("AMD MI100", runtime=Target.Runtime.CUDA)
    with pytest.raises(ScheduleError, match="VULKAN is asked for"):
        Target("NVIDIA A100", runtime="VULKAN")
    with pytest.raises(ScheduleError, match="one name"):
        Target("A100", known_name="V100")


def test_support_takes_the_names_of_arguments() -> None:
    info = Target(Target.Model.NVIDIA_A100).tensor_core_info
    assert info.supports(
        input_type=ScalarType.float16, output_type=ScalarType.float32, shape=MMAShape.M16xN16xK16_B1,
        num_total_passes=4, num_fused_passes=-1,
    )  # fmt: skip


def test_a_cache_by_accera_arguments() -> None:
    schedule, (A, B, C), (i, j, k) = product()
    ii, jj, kk = schedule.tile(shape={i: 8, j: 8, k: 8})
    schedule.reorder(order=(i, j, k, ii, jj, kk))
    target = Target(Target.Model.NVIDIA_A100)
    plan = schedule.create_plan(target=target)
    unit = target.GridUnit
    plan.bind(mapping={i: unit.BLOCK_Y, j: unit.BLOCK_X, ii: unit.THREAD_Y, jj: unit.THREAD_X})
    cache = plan.cache(
        source=A, index=ii, trigger_index=ii, layout=Array.Layout.FIRST_MAJOR, element_type=ScalarType.float32,
        location=target.MemorySpace.SHARED, double_buffer=True, double_buffer_location=AUTO, vectorize=AUTO,
        strategy=AUTO,
    )  # fmt: skip
    assert (cache.stages, cache.vectorize, cache.strategy) == (2, True, Strategy.STRIPED)
    assert plan.cache(B, index=ii, location=MemorySpace.NONE).location is Location.SHARED
    plan.cache(C, index=k, location=target.MemorySpace.PRIVATE)
    plan.unroll(index=kk)
    run(plan, (A, B, C))


def test_what_is_left_to_the_plan_is_as_if_left_out() -> None:
    schedule, (A, B, C), (_, _, k) = product(12)  # one thread computes all of it
    plan = schedule.create_plan(Target(Target.Model.NVIDIA_A100))
    chosen = plan.cache(
        A, index=k, location=AUTO, double_buffer_location=MemorySpace.NONE, vectorize=None, thrifty=AUTO
    )
    assert (chosen.location, chosen.location_is_given, chosen.thrifty) == (Location.SHARED, False, False)
    assert not plan.cache(B, index=k, location=MemorySpace.NONE, strategy=None, thrifty=None).location_is_given
    assert plan.cache(C, index=k, location=MemorySpace.GLOBAL).location is Location.GLOBAL
    run(plan, (A, B, C), 12)


def test_tensorize_by_accera_arguments() -> None:
    schedule, (A, B, C), (i, j, k) = product(32, ScalarType.float16)
    target = Target(Target.Model.NVIDIA_A100)
    m, n, depth = target.tensor_core_info.compute_tensor_splits(mma_shape=MMAShape.M16xN16xK16_B1, num_total_passes=2)
    ii, jj, kk = schedule.tile({i: m, j: n, k: depth})
    schedule.reorder(i, j, k, ii, jj, kk)
    plan = schedule.create_plan(target)
    plan.bind({i: target.GridUnit.BLOCK_Y, j: target.GridUnit.BLOCK_X})
    plan.tensorize(
        indices=(ii, jj, kk), mma_shape=MMAShape.M16xN16xK16_B1, num_total_passes=2, use_static_offsets=False,
        num_fused_passes=1, prologue_op=MMAFragmentOp.NONE, prologue_arg=0.0, epilogue_op=MMAFragmentOp.ReLU,
        epilogue_arg=0.0,
    )  # fmt: skip
    plan.cache(C, index=k, location=target.MemorySpace.MMA_FRAGMENT)
    random = np.random.default_rng(0)
    a, b = (random.integers(-3, 4, (32, 32)).astype(np.float16) for _ in range(2))
    c = np.ones((32, 32), np.float32)
    plan.build("product", (A, B, C))(a, b, c)
    np.testing.assert_array_equal(c, np.maximum(1 + a.astype(np.float32) @ b.astype(np.float32), 0))


def test_parallelize_gives_loops_to_blocks() -> None:
    schedule, args, (i, j, k) = product()
    plan = schedule.create_plan(Target("sm_80"))
    plan.parallelize(indices=i, policy="dynamic", max_threads=4)
    plan.parallelize((j,))
    assert plan.build().grid == (32, 32, 1)
    run(plan, args)
    with pytest.raises(ScheduleError, match=r"k cannot be bound to BLOCK_Z: .*C\[0, 0\] at the same time"):
        plan.parallelize(k)
    together = schedule.create_plan(Target("sm_80"))
    together.parallelize((i, j))
    assert together.build().grid == (1024, 1, 1)
    with pytest.raises(ScheduleError, match="policy='fast'"):
        together.parallelize(k, policy="fast")
    with pytest.raises(ScheduleError, match="max_threads=0"):
        together.parallelize(k, max_threads=0)


@pytest.mark.parametrize("twice", [True, False])
def test_a_unit_is_bound_to_loops_that_differ(twice: bool) -> None:
    schedule, _, (i, _, _) = product()
    plan = schedule.create_plan(Target("sm_80"))
    with pytest.raises(ScheduleError, match=r"BLOCK_X is bound to \((i, i)?\)"):
        plan.bind({(i, i) if twice else (): plan.target.GridUnit.BLOCK_X})


def test_parallelize_without_a_free_axis() -> None:
    x = Array(Role.OUTPUT, "float32", (2, 2, 2, 2), name="x")
    nest = Nest((2, 2, 2, 2))
    indices: Any = nest.get_indices()
    nest.iteration_logic(lambda: x.__setitem__(indices, 1.0))
    plan = nest.create_plan(Target("sm_80"))
    for index in indices[:3]:
        plan.parallelize(index)
    with pytest.raises(ScheduleError, match="BLOCK_X, BLOCK_Y and BLOCK_Z are bound already"):
        plan.parallelize(indices[3])


def test_parallelize_waits_for_a_parameter() -> None:
    schedule, args, (i, _, _) = product()
    size = create_parameters(1)
    schedule.split(i, size)
    plan = schedule.create_plan(Target("sm_80"))
    plan.parallelize(i)
    chosen = plan.with_parameters({size: 8})
    assert chosen.build().grid == (4, 1, 1)
    run(chosen, args)


@pytest.mark.parametrize("name", ["pack_and_embed_buffer", "emit_runtime_init_pack", "emit_runtime_init_packing"])
def test_packing_is_refused_with_a_reason(name: str) -> None:
    schedule, (A, *_), _ = product()
    with pytest.raises(ScheduleError, match=r"of A: .*pack"):
        getattr(schedule.create_plan(Target("sm_80")), name)(A, "pack_a", packed_buffer_name="a")


def test_a_grid_of_orders_and_of_single_values() -> None:
    schedule, _, (i, j, k) = product()
    size, order = create_parameters(2)
    grid = create_parameter_grid({size: 8, order: (i, j, k)})
    assert [point[order] for point in grid] == list(itertools.permutations((i, j, k)))
    assert {point[size] for point in grid} == {8}
    kept = create_parameter_grid({size: [4, 8], order: (i, j, k)}, lambda choice: choice[0] < 8 and choice[1][0] is k)
    assert [point[order] for point in kept] == [(k, i, j), (k, j, i)]
    assert create_parameter_grid({size: [4, 8]}, lambda value: value > 4) == [{size: 8}]
    with pytest.raises(ScheduleError, match="the orders of 10 loops"):
        create_parameter_grid({order: [LoopIndex(f"i{n}") for n in range(10)]})
    assert schedule.get_indices() == (i, j, k)


def test_combinations_of_choices() -> None:
    p, q = create_parameters(2)
    assert get_parameters_from_grid({p: [1, 2], q: [3]}) == [{p: 1, q: 3}, {p: 2, q: 3}]


def test_arithmetic_of_parameters() -> None:
    p, q = create_parameters(2)
    values = {p: 6, q: 4}
    exact = {p / q: 1.5, 12 / p: 2.0, p**2: 36, p << 1: 12, p >> 1: 3, p & q: 4, p | q: 6, p ^ q: 2, -p: -6}
    assert all(found.value_for(values) == wanted for found, wanted in exact.items())
    compared = {p < q: False, p <= 6: True, p > q: True, p >= 7: False}
    assert all(found.value_for(values) is wanted for found, wanted in compared.items())
    with pytest.raises(ScheduleError, match="before the parameter has a value"):
        assert p < q


def test_packages_by_accera_arguments(tmp_path: Any) -> None:
    schedule, (A, B, C), (i, _, _) = product()
    plan = schedule.create_plan(Target("sm_80"))
    plan.bind({i: GridUnit.THREAD_X})
    package = Package()
    package.add(source=plan, args=(A, B, C), base_name="product", parameters={}, function_opts={"no_inline": True})
    files = package.build(
        name="out", format=Package.Format.HAT_SOURCE | Package.Format.MLIR, mode=Package.Mode.DEBUG,
        platform=Package.Platform.HOST, tolerance=1e-5, output_dir=tmp_path,
    )  # fmt: skip
    assert {path.suffix for path in files.values()} == {".cu", ".h", ".json"}
    assert Package.Format.HAT_STATIC is Package.Format.HAT_DYNAMIC is Package.Format.DEFAULT
    for wrong in ({"mode": "Debug"}, {"platform": "linux"}, {"tolerance": "low"}, {"format": 3}):
        with pytest.raises(ArgumentError):
            package.build("other", output_dir=tmp_path, **wrong)


def test_dtypes_are_those_of_the_library() -> None:
    assert ScalarType.float32 is tw.float32 and ScalarType.bool is tw.dtype("bool")
