"""Tiles of matrix instructions across the ends of loops, of sizes known and not, and of padded loops; results of bytes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.schedule import (
    Array,
    Location,
    MMAFragmentOp,
    MMASchedulingPolicy,
    MMAShape,
    Nest,
    Plan,
    Role,
    Target,
    create_dimensions,
    fuse,
)

# What reaches beyond a nest that is smaller than its arrays is not written, which is meant here.
pytestmark = pytest.mark.filterwarnings("ignore:unwritten output")
INSTRUCTIONS = [
    ("sm_80", "M16N16K16", "float16", "float32"),
    ("sm_80", "M8N32K16", "float16", "float16"),
    ("sm_80", "M16N16K8", "float32", "float32"),
    ("sm_80", "M32N8K16", "int8", "int32"),
    ("sm_75", "M16N16K16", "uint8", "int16"),
    ("sm_70", "M16N16K16", "float16", "float32"),
    ("gfx908", "M16N16K4", "float32", "float32"),
    ("gfx908", "M64N64K1_B2", "float32", "float32"),
    ("gfx908", "M32N32K8_B1", "int8", "int8"),
    ("gfx90a", "M64N64K4_B4", "float16", "float32"),
]
LAYOUTS = (Array.Layout.FIRST_MAJOR, Array.Layout.LAST_MAJOR)


@dataclass
class Edged:
    """C += A * B of any size. `around` is how far arrays reach beyond the nest, `padding` what its loops are padded by."""

    size: tuple[int, int, int]
    instruction: tuple[str, str, str, str] = INSTRUCTIONS[0]
    passes: int = 1
    fused: int | None = None
    policy: str = "PASS_ORDER"
    warps: tuple[int, int] = (1, 1)
    tiles: tuple[int, int] = (1, 1)
    steps: int = 1
    shared: dict[str, Any] | None = None
    fragments: dict[str, Any] | None = None
    keep: bool = False
    staged: bool = False
    at_launch: bool = False
    static: bool = True
    saturating: bool = False
    layouts: tuple[int, int, int] = (0, 0, 0)
    around: tuple[int, int, int] = (0, 0, 0)
    padding: tuple[int, int, int] = (0, 0, 0)
    operations: dict[str, Any] = field(default_factory=dict)

    def plan(self) -> tuple[Plan, tuple[Array, Array, Array]]:
        name, shape, dtype, output = self.instruction
        target, mma = Target(name), MMAShape[shape]
        extents: Any = create_dimensions("M", "N", "K") if self.at_launch else self.size
        m, n, k = extents if self.at_launch else (x + y for x, y in zip(self.size, self.around, strict=True))
        a, b, c = (LAYOUTS[x] for x in self.layouts)
        A, B = Array(Role.INPUT, dtype, (m, k), a, name="A"), Array(Role.INPUT, dtype, (k, n), b, name="B")
        C = Array(Role.INPUT_OUTPUT, output, (m, n), c, name="C")
        nest = Nest(extents)
        i, j, k = nest.get_indices()

        @nest.iteration_logic
        def _() -> None:
            C[i, j] += A[i, k] * B[k, j]

        schedule = nest.create_schedule()
        for index, size in zip((i, j, k), self.padding, strict=True):
            if size:
                schedule.pad(index, size)
        rows, columns, depth = target.tensor_core_info.compute_tensor_splits(mma, self.passes)
        of_warp = rows * self.tiles[0], columns * self.tiles[1]
        i1 = schedule.split(i, of_warp[0] * self.warps[0])
        j1, k1 = schedule.split(j, of_warp[1] * self.warps[1]), schedule.split(k, depth * self.steps)
        i2, j2 = schedule.split(i1, of_warp[0]), schedule.split(j1, of_warp[1])
        i3, j3, k3 = schedule.split(i2, rows), schedule.split(j2, columns), schedule.split(k1, depth)
        schedule.reorder(i, j, k, i1, j1, k1, i2, j2, i3, j3, k3)
        plan, unit = schedule.create_plan(target), target.GridUnit
        plan.bind({i: unit.BLOCK_Y, j: unit.BLOCK_X, i1: unit.WARP_Y, j1: unit.WARP_X})
        plan.tensorize(
            (i3, j3, k3), mma, self.passes, use_static_offsets=self.static, num_fused_passes=self.fused,
            scheduling_policy=MMASchedulingPolicy[self.policy], saturating=self.saturating, **self.operations,
        )  # fmt: skip
        for array in (A, B):
            if self.shared is not None:
                plan.cache(array, index=k1, **self.shared)
            if self.fragments is not None:
                plan.cache(array, index=i2, location=Location.MMA_FRAGMENT, **self.fragments)
        if self.keep:
            plan.cache(plan.cache(C, index=k) if self.staged else C, index=k, location=Location.MMA_FRAGMENT)
        return plan, (A, B, C)

    def arrays(self, largest: int = 3) -> list[np.ndarray]:
        """Whole numbers, whose sums every type holds exactly; what no iteration touches is not a number."""
        generator = np.random.default_rng(3)
        m, n, k = self.size
        *_, dtype, output = self.instruction
        made = []
        for shape, kind, order in zip(((m, k), (k, n), (m, n)), (dtype, dtype, output), self.layouts, strict=True):
            numbers = generator.integers(0 if kind.startswith("u") else -largest, largest + 1, shape)
            made.append(np.array(numbers, tw.dtype(kind).numpy, order="FC"[order == 0]))  # type: ignore[call-overload]
        m, n, k = self.around
        for number, more in enumerate(((m, k), (k, n), (m, n))):
            array = made[number]
            outside = np.nan if array.dtype.kind == "f" else 7
            whole = np.full([x + y for x, y in zip(array.shape, more, strict=True)], outside, array.dtype)
            whole[tuple(slice(0, x) for x in array.shape)] = array
            made[number] = np.array(whole, order="FC"[self.layouts[number] == 0])  # type: ignore[call-overload]
        return made

    def check(self, largest: int = 3) -> None:
        """Compare with NumPy, exactly."""
        a, b, c = self.arrays(largest)
        m, n, k = self.size
        wide = np.float64 if c.dtype.kind == "f" else np.int64
        begun = np.full((m, n), 1) if "prologue_op" in self.operations else c[:m, :n].astype(wide)
        sums = begun + a[:m, :k].astype(wide) @ b[:k, :n].astype(wide)
        if "epilogue_op" in self.operations:
            sums = np.maximum(sums, 0)
        if self.saturating:
            sums = np.clip(sums, np.iinfo(c.dtype).min, np.iinfo(c.dtype).max)
        expected = c.copy()
        expected[:m, :n] = sums.astype(c.dtype)
        plan, _ = self.plan()
        plan.build("product")(a, b, c)
        np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda x: f"{x[0]}-{x[1]}-{x[2]}")
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.spread(4)
def test_every_shape_across_all_three_edges(instruction: tuple[str, str, str, str], kept: bool) -> None:
    shape = MMAShape[instruction[1]]
    size = shape.m * 3 // 2 + 1, shape.n + 1, shape.k * 3 + 1
    Edged(size, instruction, passes=2, fused=1, keep=kept, policy="PASS_ORDER" if kept else "BLOCK_ORDER").check()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.spread(3)
def test_random_plans(seed: int) -> None:
    """Sizes, padding, arrays beyond the nest, caches, passes, orders and operations, of all instructions."""
    choose = random.Random(seed)
    shape = MMAShape[(instruction := INSTRUCTIONS[seed % len(INSTRUCTIONS)])[1]]
    passes, steps = choose.choice([1, 2, 4]), choose.choice([1, 2])
    warps, tiles = ((choose.choice([1, 2]), choose.choice([1, 2])) for _ in range(2))
    blocks = shape.m * warps[0] * tiles[0], shape.n * warps[1] * tiles[1], shape.k * passes * steps
    size = tuple(choose.choice([choose.randint(1, 2 * x + 1), x + choose.randint(0, x)]) for x in blocks)
    keep, at_launch = choose.random() < 0.7, choose.random() < 0.3
    operations: dict[str, Any] = {}
    if keep and choose.random() < 0.5:
        operations = {"prologue_op": MMAFragmentOp.SET, "prologue_arg": 1, "epilogue_op": MMAFragmentOp.ReLU}
    Edged(
        size,  # type: ignore[arg-type]  # three of them
        instruction, passes, choose.choice([x for x in (1, 2, 4) if passes % x == 0]),
        choose.choice(["PASS_ORDER", "BLOCK_ORDER"]), warps, tiles, steps,
        choose.choice([None, {}, {"pipeline_stages": 3}]), choose.choice([None, {}, {"double_buffer": True}]),
        keep, False, at_launch, choose.random() < 0.7, False, tuple(choose.choice([0, 1]) for _ in range(3)),  # type: ignore[arg-type]
        (0, 0, 0) if at_launch else tuple(choose.choice([0, 3, 20]) for _ in range(3)),  # type: ignore[arg-type]
        (0, 0, 0) if at_launch else tuple(choose.choice([0, 0, 5]) for _ in range(3)),  # type: ignore[arg-type]
        operations,
    ).check()  # fmt: skip


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("around", [(0, 0, 0), (5, 5, 5)])
def test_shared_memory_beyond_the_nest_adds_nothing(staged: bool, around: tuple[int, int, int]) -> None:
    """A cache holds what the array has beyond the nest, here no numbers: neither multiplied nor written back."""
    Edged((20, 18, 17), shared={}, keep=True, staged=staged, around=around).check()
    setting = {"prologue_op": MMAFragmentOp.SET, "prologue_arg": 1}
    Edged((20, 18, 17), shared={}, keep=True, staged=staged, around=around, operations=setting).check()


def test_shared_memory_is_read_by_ldmatrix_where_zeros_lie_beyond_the_array() -> None:
    source = Edged((20, 40, 24), shared={}, keep=True).plan()[0].build().source()
    assert "ldmatrix_x4" in source
    assert "ldmatrix" not in Edged((20, 40, 24), shared={}, keep=True, around=(0, 0, 8)).plan()[0].build().source()


def test_whole_tiles_are_read_and_stored_without_masks() -> None:
    """Where the splits divide the sizes nothing is asked; where they may not, once for each tile."""
    even = Edged((32, 32, 32), keep=True).plan()[0].build().source()
    assert "if (" not in even
    odd = Edged((40, 32, 32), keep=True).plan()[0].build().source()
    assert odd.count("} else {") > 0 and "float2" in odd


def test_counts_are_those_of_one_side() -> None:
    even, odd = (Edged(size, passes=2, keep=True).plan()[0].report() for size in ((32, 32, 64), (40, 40, 40)))
    names = ("loads_a", "loads_b", "loads_c", "stores_c", "mma", "fragments_a", "fragments_c")
    assert [odd[name] for name in names] == [even[name] for name in names]


def test_a_fused_part_beyond_the_edges() -> None:
    M, N, K = 37, 21, 19
    A, B = Array(Role.INPUT, "float16", (M, K), name="A"), Array(Role.INPUT, "float16", (K, N), name="B")
    C, bias = Array(Role.TEMP, "float32", (M, N), name="C"), Array(Role.INPUT, "float32", (N,), name="bias")
    D = Array(Role.OUTPUT, "float32", (M, N), name="D")
    main, end = Nest((M, N, K)), Nest((M, N))
    i, j, k = main.get_indices()
    x, y = end.get_indices()

    @main.iteration_logic
    def _() -> None:
        C[i, j] += A[i, k] * B[k, j]

    @end.iteration_logic
    def _() -> None:
        D[x, y] = tw.maximum(C[x, y] + bias[y], 0)

    schedule = fuse(main.create_schedule(), end.create_schedule(), partial=2)
    indices = schedule.get_indices()  # the fusing one among them, in front or behind
    f = next(index for index in indices if index.name == "f")
    i, j, k = (index for index in indices if index is not f)
    ii, jj, kk = schedule.split(i, 16), schedule.split(j, 16), schedule.split(k, 16)
    schedule.reorder(i, j, f, k, ii, jj, kk)
    plan = schedule.create_plan(Target("sm_80"))
    plan.bind({i: plan.target.GridUnit.BLOCK_Y, j: plan.target.GridUnit.BLOCK_X})
    plan.tensorize((ii, jj, kk), MMAShape.M16N16K16, prologue_op=MMAFragmentOp.SET, prologue_arg=0.0)
    plan.cache(C, index=f, location=Location.MMA_FRAGMENT)
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-3, 4, shape).astype(np.float16) for shape in ((M, K), (K, N)))
    added, d = generator.integers(-3, 4, N).astype(np.float32), np.zeros((M, N), np.float32)
    plan.build(args=(A, B, bias, D))(a, b, added, d)
    np.testing.assert_array_equal(d, np.maximum(a.astype(np.float32) @ b.astype(np.float32) + added, 0))


# --- results of bytes ------------------------------------------------------------------------------------

BYTES = [
    ("sm_80", "M16N16K16", "int8"), ("sm_80", "M8N32K16", "uint8"), ("sm_75", "M32N8K16", "int8"),
    ("gfx908", "M16N16K16_B1", "int8"), ("gfx908", "M64N64K4_B2", "int8"), ("gfx90a", "M32N32K8_B1", "int8"),
]  # fmt: skip


@pytest.mark.parametrize("output", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("instruction", BYTES, ids="-".join)
@pytest.mark.spread(4)
def test_narrow_sums_wrap(instruction: tuple[str, str, str], output: str) -> None:
    """Modulo 2 to the bits of C, whether C is stored in each iteration of K or once."""
    shape = MMAShape[instruction[1]]
    for keep in (False, True):
        Edged((shape.m, shape.n, shape.k * 4), (*instruction, output), passes=2, keep=keep).check(largest=127)


@pytest.mark.parametrize("output", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("instruction", BYTES, ids="-".join)
@pytest.mark.spread(4)
def test_narrow_sums_saturate_on_request(instruction: tuple[str, str, str], output: str) -> None:
    shape = MMAShape[instruction[1]]
    size = shape.m + 3, shape.n, shape.k * 4
    Edged(size, (*instruction, output), passes=2, keep=True, saturating=True).check(largest=127)


def test_a_fused_part_reads_what_the_array_would_hold() -> None:
    A, B = Array(Role.INPUT, "int8", (16, 16), name="A"), Array(Role.INPUT, "int8", (16, 16), name="B")
    C, D = Array(Role.TEMP, "int8", (16, 16), name="C"), Array(Role.OUTPUT, "int32", (16, 16), name="D")
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-128, 128, (16, 16)).astype(np.int8) for _ in range(2))
    sums = a.astype(np.int32) @ b.astype(np.int32)
    for saturating, expected in ((False, sums.astype(np.int8)), (True, np.clip(sums, -128, 127))):
        main, end = Nest((16, 16, 16)), Nest((16, 16))
        i, j, k = main.get_indices()
        x, y = end.get_indices()
        main.iteration_logic(lambda i=i, j=j, k=k: C.__setitem__((i, j), C[i, j] + A[i, k] * B[k, j]))
        end.iteration_logic(lambda x=x, y=y: D.__setitem__((x, y), C[x, y] + 0))
        schedule = fuse(main.create_schedule(), end.create_schedule(), partial=2)
        indices = schedule.get_indices()
        f = next(index for index in indices if index.name == "f")
        i, j, k = (index for index in indices if index is not f)
        ii, jj, kk = schedule.split(i, 16), schedule.split(j, 16), schedule.split(k, 16)
        schedule.reorder(i, j, f, k, ii, jj, kk)
        plan = schedule.create_plan(Target("sm_80"))
        operations = {"prologue_op": MMAFragmentOp.SET, "prologue_arg": 0}
        plan.tensorize((ii, jj, kk), MMAShape.M16N16K16, saturating=saturating, **operations)  # type: ignore[arg-type]
        plan.cache(C, index=f, location=Location.MMA_FRAGMENT)
        d = np.zeros((16, 16), np.int32)
        plan.build(args=(A, B, D))(a, b, d)
        np.testing.assert_array_equal(d, expected)
