"""Plans for warpgroups: wgmma shapes, caches that TMA fills, mbarriers and a producer, against NumPy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.helpers.compilers import needs_nvrtc
from tests.helpers.slow import rest_is_slow
from tests.unit.schedule.plans import product, warpgroup_product
from tests.unit.test_hopper_examples import findings, without
from tests.unit.test_hopper_products import SYNCHRONISATIONS

import tilewright as tw
from tilewright.arch import Arch
from tilewright.backends import sim
from tilewright.errors import ScheduleError
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.mbarrier import MbarrierArrive
from tilewright.instructions.warpgroup_atoms import NAMES
from tilewright.ir.effects import Scope
from tilewright.runtime import libraries
from tilewright.schedule.affine import create_dimensions
from tilewright.schedule.arrays import Array, Role
from tilewright.schedule.mma_shapes import MMAShape
from tilewright.schedule.nest import Nest
from tilewright.schedule.plan import Plan
from tilewright.schedule.recipes import find_recipe
from tilewright.schedule.targets import Target

E4M3, E5M2, BF16 = tw.float8_e4m3fn, tw.float8_e5m2, tw.bfloat16
PRODUCTS: dict[str, dict[str, Any]] = {
    "produced": {},
    "one stage": {"stages": 1},
    "three warpgroups, three stages": {"tile": (192, 64, 64), "stages": 3},
    "beside each other": {"tile": (128, 128, 32), "stages": 4},
    "one warpgroup": {"tile": (64, 64, 64)},
    "no producer": {"producer": False, "stages": 3},
    "no producer, one stage": {"producer": False, "stages": 1},
    "filled by threads": {"producer": False, "tma": False, "stages": 3},
    "filled by threads, one stage": {"producer": False, "tma": False, "stages": 1},
    "B by rows": {"layouts": "NN"},
    "A by columns": {"layouts": "TT", "shape": MMAShape.M64N24K16, "tile": (64, 48, 64)},
    "by rows and columns, by threads": {"layouts": "TN", "producer": False, "tma": False},
    "two lines of K": {"tile": (64, 64, 128)},
    "C not held": {"holds": False},
    "C not held, no producer": {"holds": False, "producer": False},
    "results by TMA": {"stores": True},
    "results of 16 bits by TMA, in parts": {
        "stores": True, "types": (BF16, BF16, BF16), "shape": MMAShape.M64N144K16, "tile": (128, 144, 64)
    },
    "results of bytes by TMA": {
        "types": (tw.int8, tw.int8, tw.int8), "shape": MMAShape.M64N48K32, "tile": (64, 48, 64), "stores": True
    },
    "blocks that stay": {"blocks": 2},
    "blocks that stay, results by TMA": {"blocks": 1, "stores": True, "types": (BF16, BF16, BF16), "stages": 3},
    "blocks that stay, no producer": {"blocks": 1, "producer": False, "stores": True},
    "blocks that stay, filled by threads": {"blocks": 1, "producer": False, "tma": False, "stages": 1},
    "float16": {"types": (tw.float16, tw.float16, tw.float16)},
    "tf32": {"types": (tw.float32, tw.float32, tw.float32), "shape": MMAShape.M64N64K8, "tile": (64, 64, 32)},
    "int8": {"types": (tw.int8, tw.int8, tw.int32), "shape": MMAShape.M64N64K32, "tile": (64, 64, 64)},
    "two kinds of bytes": {"types": (tw.uint8, tw.int8, tw.int32), "shape": MMAShape.M64N32K32, "tile": (64, 64, 64)},
    "fp8": {"types": (E4M3, E5M2, tw.float32), "shape": MMAShape.M64N64K32, "tile": (64, 64, 64)},
    "bytes that threads transpose": {
        "types": (tw.int8, tw.int8, tw.int32), "shape": MMAShape.M64N64K32, "tile": (64, 64, 64), "layouts": "NN",
        "producer": False, "options": {"layout": None},
    },
}  # fmt: skip


def run(plan: Plan, arrays: tuple[Array, ...]) -> None:
    """Run a plan on small whole numbers, and compare with NumPy exactly."""
    random = np.random.default_rng(0)
    low = 0 if arrays[0].element_type is tw.uint8 else -3
    held = []
    for array in arrays:
        values = random.integers(low, 4, array.shape).astype(array.element_type.numpy)
        held.append(np.asfortranarray(values) if array.layout is Array.Layout.LAST_MAJOR else values)
    a, b, c = held
    is_set = plan.tensorization is not None and plan.tensorization.prologue[0].name == "SET"
    exact = a.astype(np.float64) @ b.astype(np.float64) + (0 if is_set else c.astype(np.float64))
    plan.build("product", args=arrays)(a, b, c)
    expected = exact.astype(np.int64).astype(c.dtype) if c.dtype == np.int8 else exact.astype(c.dtype)
    assert np.array_equal(c, expected)


@pytest.mark.parametrize("options", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.spread(4)
def test_product(options: dict[str, Any]) -> None:
    """Sizes that no tile divides: what is beyond the end is zero and is not stored."""
    given, extents = dict(options), (136, 80, 144)
    transposed = given.pop("options", None) is not None
    plan, arrays = warpgroup_product(extents, **given) if not transposed else _transposing(extents, **given)
    run(plan, arrays)


def test_whole_tiles() -> None:
    run(*warpgroup_product((128, 128, 192)))


def _transposing(extents: tuple[int, int, int], **given: Any) -> tuple[Plan, tuple[Array, Array, Array]]:
    """Return a plan that caches B, which lies by rows, by columns."""
    plan, arrays = warpgroup_product(extents, **given)
    at = plan.caches[1].at
    plan.caches.pop(1)
    plan.cache(arrays[1], index=at, pipeline_stages=2, layout=Array.Layout.LAST_MAJOR)
    return plan, arrays


def test_sizes_of_the_launch() -> None:
    """Strides that only the launch knows may be none of a tensor map: TMA is asked for, and the launch refuses them."""
    plan, arrays = warpgroup_product(create_dimensions("M", "N", "K"), tma=True, stores=True, blocks=2)
    kernel = plan.build("product", args=arrays)
    random = np.random.default_rng(4)
    for m, n, k in ((136, 72, 144), (64, 64, 64)):
        a, b = (random.integers(-3, 4, shape).astype(BF16.numpy) for shape in ((m, k), (n, k)))
        c = np.full((m, n), np.nan, np.float32)
        kernel(a, b.T, c)
        assert np.array_equal(c, a.astype(np.float32) @ b.T.astype(np.float32))
    with pytest.raises(tw.ArgumentError, match="TMA takes strides that are multiples of 16 bytes"):
        kernel(np.zeros((64, 60), BF16.numpy), np.zeros((64, 60), BF16.numpy).T, np.zeros((64, 64), np.float32))


@pytest.mark.parametrize("n", [136, 132, 131])
def test_rows_that_end_between_16_bytes_leave_by_threads(n: int) -> None:
    """By TMA the padding behind them would be written: what plans choose does not, and what asks for it is refused."""
    A, B, C = (
        Array(role, BF16, shape, (136, 1), name=name)
        for role, shape, name in (
            (Role.INPUT, (128, 128), "A"), (Role.INPUT, (128, n), "B"), (Role.INPUT_OUTPUT, (128, n), "C")
        )
    )  # fmt: skip
    nest = Nest(shape=(128, n, 128))
    i, j, k = nest.get_indices()
    nest.iteration_logic(lambda: C.__setitem__((i, j), C[i, j] + A[i, k] * B[k, j]))
    plan = nest.create_schedule().create_plan(Target("NVIDIA H100")).auto()
    kernel = plan.build("product", args=(A, B, C))
    random = np.random.default_rng(n)
    a, b, c = (np.full((128, 136), 77, BF16.numpy) for _ in range(3))
    for x, columns in ((a, 128), (b, n), (c, n)):
        x[:, :columns] = random.integers(-3, 4, (128, columns))
    expected = c[:, :n].astype(np.float64) + a[:, :128].astype(np.float64) @ b[:, :n].astype(np.float64)
    kernel(a[:, :128], b[:, :n], c[:, :n])
    assert np.array_equal(c[:, :n], expected.astype(BF16.numpy)) and (c[:, n:] == 77).all()
    assert ("tma_store" in kernel.source()) == (n == 136)


def test_a_row_that_tma_cannot_store() -> None:
    plan, arrays = warpgroup_product((128, 130, 128), stores=True)
    arrays[2].layout = (132, 1)
    with pytest.raises(ScheduleError, match="TMA cannot store .*: a row of 130 float32 is not a multiple of 16 bytes"):
        plan.build("product", args=arrays)
    plan, arrays = warpgroup_product(create_dimensions("M", "N", "K"), tma=True, stores=True)
    a, b, c = np.zeros((1, 64), BF16.numpy), np.zeros((62, 64), BF16.numpy), np.zeros((1, 62), np.float32)
    with pytest.raises(tw.ArgumentError, match="'C': a store by TMA writes whole 16 bytes .* rows have 62 elements"):
        plan.build("product", args=arrays)(a, b.T, c)


@pytest.mark.parametrize("stages", [1, 3])
def test_tma_fills_what_threads_read(stages: int) -> None:
    """A by TMA beside B, which threads fill in one buffer."""
    plan, (C, A, B) = product(20, 24, 28, stages=stages, target=Target("NVIDIA H100"), tma=True)
    kernel = plan.build(args=(C, A, B))
    random = np.random.default_rng(2)
    a, b, c = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((20, 28), (28, 24), (20, 24)))
    expected = c + a @ b
    kernel(c, a, b)
    assert np.array_equal(c, expected)
    assert kernel.source().count("tma_load_2d(sA") + kernel.source().count("tma_load_2d(&sA") >= 1


@pytest.mark.parametrize("width", [4, 8, 12, 32])
def test_each_stage_begins_where_tma_puts_boxes(width: int) -> None:
    """At multiples of 128 bytes, however short the box is."""
    A, B = Array(Role.OUTPUT, tw.float32, (96,), name="A"), Array(Role.INPUT, tw.float32, (96,), name="B")
    nest = Nest((96,))
    i = nest.get_indices()
    nest.iteration_logic(lambda: A.__setitem__(i, B[i]))
    schedule = nest.create_schedule()
    inner = schedule.split(i, width)
    plan = schedule.create_plan(Target("sm_90a"))
    plan.cache(B, index=inner, tma=True, pipeline_stages=3)
    a, b = np.zeros(96, np.float32), np.arange(96, dtype=np.float32)
    plan.build(args=(A, B))(a, b)
    assert np.array_equal(a, b)


@pytest.mark.parametrize("stages", [1, 2])
def test_loops_under_a_condition_leave_the_stages_of_tma_as_they_are(stages: int) -> None:
    A, B = Array(Role.OUTPUT, tw.float32, (7, 8), name="A"), Array(Role.INPUT, tw.float32, (7, 8), name="B")
    nest = Nest((7, 8))
    i, j = nest.get_indices()
    nest.iteration_logic(lambda: A.__setitem__((i, j), B[i, j]))
    schedule = nest.create_schedule()
    inner = schedule.split(i, 4)
    plan = schedule.create_plan(Target("sm_90a"))
    plan.cache(B, index=inner, tma=True, pipeline_stages=stages)
    a, b = np.zeros((7, 8), np.float32), np.arange(56, dtype=np.float32).reshape(7, 8)
    plan.build(args=(A, B))(a, b)
    assert np.array_equal(a, b)


def test_every_dense_product_of_a_warpgroup_is_a_shape() -> None:
    """Each SS atom that wraps belongs to one shape and its types, and no shape has another one."""
    arch = Arch.parse("sm_90a")
    types = [
        (a, b, sums)
        for a in (tw.float16, tw.bfloat16, tw.tfloat32, E4M3, E5M2, tw.int8, tw.uint8)
        for b in (tw.float16, tw.bfloat16, tw.tfloat32, E4M3, E5M2, tw.int8, tw.uint8)
        for sums in (tw.float16, tw.float32, tw.int32)
    ]
    shapes = [shape for shape in MMAShape if shape.is_of_warpgroup]
    found = [r.mmas[0].atom.name for s in shapes for a, b, c in types if (r := find_recipe(arch, s, (a, b), c))]
    # Sums in float16 of 8-bit floats are not among those that plans know: they sum up in float32.
    wanted = {x for x in NAMES if "_SS" in x and "SATURATE" not in x and not re.search(r"_F16E\dM\d", x)}
    assert len(found) == len(set(found))
    assert set(found) == wanted
    assert all(find_recipe(Arch.parse(x), shapes[0], tw.float16, tw.float32) is None for x in ("sm_80", "gfx90a"))


@pytest.mark.parametrize("producer", rest_is_slow([True, False, None], True))
def test_each_synchronisation_is_needed_and_missed(producer: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a producer, without one, and with a producer in a block that stays for two tiles, stored by TMA."""
    stays = producer is None
    rows = 64 if producer else 128  # the block's barrier matters to several warpgroups
    plan, arrays = warpgroup_product(
        (rows, 64, 320), tile=(64 if stays else rows, 64, 64), producer=producer is not False,
        blocks=1 if stays else None, stores=stays,
    )  # fmt: skip
    launches: list[tuple[tuple[Any, ...], Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(sim, "execute", lambda *given, **more: launches.append((given, more)))
        plan.build("product", args=arrays)(
            np.ones((rows, 320), BF16.numpy), np.ones((64, 320), BF16.numpy).T, np.zeros((rows, 64), "f4")
        )
    ((launched, more),) = launches
    assert findings(launched, more) == []
    kernel = launched[0]
    blocks = [kernel.body, *(b for op in kernel.body.walk() for b in op.blocks)]
    places = [(b, op) for b in blocks for op in b.ops if isinstance(op, SYNCHRONISATIONS)]
    assert len(places) == {True: 12, False: 9, None: 18}[producer]
    kept = []
    for block, op in places:
        with without(block, op):
            if not findings(launched, more):
                kept.append(op)
    # A ring lets a warp meet before it hands a stage back; the wait for products of a warpgroup is enough for that.
    # Nobody waits for the last stage. Without a producer the block meets at the loop's beginning, before it waits for
    # the first stage, and behind it, where nobody fills any more.
    scopes = [Scope.BLOCK, Scope.BLOCK] if producer is False else [Scope.WARP, Scope.WARP]
    assert [op.effects.together for op in kept if isinstance(op, Barrier)] == scopes, kept
    assert [type(op) for op in kept if not isinstance(op, Barrier)] == [MbarrierArrive] * (producer is True), kept


@needs_nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("blocks", [None, 132])
@pytest.mark.parametrize("producer", [True, False])
def test_the_kernel_compiles_cleanly(producer: bool, blocks: int | None) -> None:
    """The largest tile: no spills, no product that waits for another, sums that stay in their registers."""
    stores = blocks is not None or producer
    plan, arrays = warpgroup_product(
        (4096, 4096, 4096), MMAShape.M64N256K16, (128, 256, 64), (BF16, BF16, BF16), stages=4, producer=producer,
        stores=stores, blocks=blocks,
    )  # fmt: skip
    kernel = plan.build("product", args=arrays)
    module = kernel.lower().module
    assert not module.resources.spills and not module.resources.stack_bytes, module.resources
    assert not re.search(r"C75\d\d", module.log), module.log
    report = plan.report()
    assert (report.mma, report.instructions, report.k_trips) == (4, 4, 64)
    if libraries.find_program("nvdisasm") is None:
        return
    sass = kernel.sass()
    products = re.findall(r"HGMMA\.\S+ (R\d+), gdesc\[\w+\], (R\d+|!UPT|RZ)", sass)
    assert len(products) == 4, sass
    assert len({register for each in products for register in each if register.startswith("R")} - {"RZ"}) == 1
    assert sass.count("WARPGROUP.ARRIVE") == 1
