"""The examples of products by warpgroups: right on the simulator, and compiled for sm_90a without spills or serialised products."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.helpers.declared_effects import declared_effects
from tests.unit.test_hopper_examples import findings, without

import tilewright as tw
from tilewright.backends import sim
from tilewright.demo import Case, collect_cases, example_files, run_case, runner
from tilewright.demo.examples import examples_folder, load_example
from tilewright.instructions.barrier import Barrier, NamedBarrier
from tilewright.instructions.bulk_groups import BulkCommit, BulkWait
from tilewright.instructions.cluster import ClusterArrive, ClusterWait
from tilewright.instructions.cp_async import AsyncWait
from tilewright.instructions.mbarrier import MbarrierArrive, MbarrierExpect, MbarrierWait
from tilewright.instructions.ordered_access import OrderedLoad, OrderedStore
from tilewright.instructions.proxy_fence import ProxyFence
from tilewright.instructions.wgmma import WgmmaCommit, WgmmaFence, WgmmaWait
from tilewright.ir.effects import Scope
from tilewright.runtime import libraries

FILES = [
    path
    for path in example_files(examples_folder() / "hopper")
    if path.stem[:2] in ("02", "04", "05", "06", "07", "08", "09")
]
MODULES = {path.stem: load_example(path) for path in FILES}
CASES = collect_cases(FILES, "sim", quick=True)
KERNELS = [(stem, name, ()) for stem, module in MODULES.items() for name, value in vars(module).items()
           if isinstance(value, tw.Kernel)]  # fmt: skip
KERNELS += [("05_persistent", "matmul_persistent", (dtype,)) for dtype in (tw.float32, tw.float8_e4m3fn)]
every_kernel = pytest.mark.parametrize(("stem", "name", "given"), KERNELS, ids=str)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.spread(6)
def test_case(case: Case) -> None:
    with declared_effects():
        report = run_case(case, "sim")
    assert report.passed, report.failure
    trial = case.prepare()
    assert runner.greatest_difference(trial.result(), trial.expected) > trial.limit  # no right answer before the launch


@pytest.mark.gpu
@pytest.mark.parametrize("case", collect_cases(FILES, "cuda", quick=True), ids=lambda case: case.name)
def test_case_on_gpu(case: Case) -> None:
    if pytest.importorskip("torch").cuda.get_device_capability() != (9, 0):
        pytest.skip("needs sm_90a")
    report = run_case(case, "cuda")
    assert report.passed, report.failure


@cache
def lower(stem: str, name: str, given: tuple[Any, ...]) -> Any:
    _, block, args = getattr(MODULES[stem], f"example_{name}")(*given)
    return getattr(MODULES[stem], name).lower(*args, arch="sm_90a", block=block)


@every_kernel
@pytest.mark.spread(2)
def test_kernels_compile_cleanly(stem: str, name: str, given: tuple[Any, ...]) -> None:
    module = lower(stem, name, given).module
    assert not module.resources.spills and not module.resources.stack_bytes, module.resources
    assert not re.search(r"C75\d\d", module.log), module.log


@pytest.mark.parametrize("k", [64, 128, 256, 448])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.spread(3)
def test_few_tiles_of_k(k: int, stages: int) -> None:
    """A ring that is never full, and one that is filled again."""
    random = np.random.default_rng(k)
    a, b = (random.integers(-4, 5, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (128, 256))
    c = np.full((128, 256), np.nan, np.float32)
    MODULES["04_producer_consumers"].matmul(c, a, b, stages=stages)
    assert np.array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)


@every_kernel
@pytest.mark.spread(3)
def test_accumulators_stay_in_their_registers(stem: str, name: str, given: tuple[Any, ...]) -> None:
    """Each product reads and writes the same registers, without moves in between, and waits for no other."""
    if libraries.find_program("nvdisasm") is None:
        pytest.skip("needs nvdisasm")
    grid, block, args = getattr(MODULES[stem], f"example_{name}")(*given)
    sass = getattr(MODULES[stem], name)[grid, block].sass(*args, arch="sm_90a")
    products = re.findall(r"[HQ]GMMA\.\S+ (R\d+), gdesc\[\w+\], (R\d+|!UPT|RZ)", sass)
    rows = 2 if stem in ("07_ping_pong", "09_fp8_promoted") else 1  # of products of 64 rows in a consumer's tile
    fences = 2 if stem == "09_fp8_promoted" else 1  # there, they are in the same registers by turns
    assert len(products) == 4 * rows, sass
    registers = {register for each in products for register in each if register.startswith("R")} - {"RZ"}
    assert len(registers) == rows // fences
    assert sass.count("WARPGROUP.ARRIVE") == fences


def test_what_the_examples_refuse() -> None:
    persistent, ping_pong, promoted = (MODULES[n] for n in ("05_persistent", "07_ping_pong", "09_fp8_promoted"))
    bytes_, ones = np.zeros((256, 128), ml_dtypes.float8_e4m3fn), np.ones((1, 256), np.float32)
    with pytest.raises(ValueError, match="multiplies bfloat16, .*, not int8"):
        persistent.matmul(np.zeros((128, 256), np.int32), np.zeros((128, 128), np.int8), np.zeros((256, 128), np.int8))
    with pytest.raises(ValueError, match="is not a multiple of the tile"):
        ping_pong.matmul(bf16(128, 192), bf16(128, 64), bf16(192, 64))
    with pytest.raises(ValueError, match=r"scales are \(1, 256\) and \(2, 1\), not"):
        promoted.matmul(bf16(256, 256), bytes_, bytes_, ones, ones)


def test_a_scale_belongs_to_its_block() -> None:
    """Of powers of two, so that all but the rounding of results is exact: each block, row and step of K by itself."""
    module, rng = MODULES["09_fp8_promoted"], np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(ml_dtypes.float8_e4m3fn) for shape in ((512, 384), (256, 384)))
    of_a = np.exp2(rng.integers(-2, 3, (512, 3))).astype(np.float32)
    of_b = np.exp2(rng.integers(-2, 3, (2, 3))).astype(np.float32)
    c = np.zeros((512, 256), ml_dtypes.bfloat16)
    module.matmul(c, a, b, np.ascontiguousarray(of_a.T), of_b, stages=2, blocks=3)
    exact = module.dequantize(a, of_a, 1).astype(np.float64) @ module.dequantize(b, of_b, 128).T.astype(np.float64)
    assert np.array_equal(c, exact.astype(np.float32).astype(ml_dtypes.bfloat16))


@every_kernel
def test_descriptors_of_steps_differ_by_one_addition(stem: str, name: str, given: tuple[Any, ...]) -> None:
    """What an unrolled loop adds to a descriptor comes last, behind what all its steps have in common."""
    source = lower(stem, name, given).source.text
    moving = set(re.findall(r"#pragma unroll\n *for \(int (\w+) =", source))
    moving |= {name for name, value in re.findall(r"const int (\w+) = (.*);", source) if moving & words(value)}
    found = re.findall(r" shared_descriptor\((.*), (.*), 0x\w+\)", source)
    assert len(found) == 2 * source.count(" wgmma_m") - source.count("void wgmma_m") * 2, source
    for address, chunks in found:
        assert not moving & words(address), address
        assert moving & words(chunks), chunks


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


SYNCHRONISATIONS = (
    Barrier, AsyncWait, MbarrierArrive, MbarrierExpect, MbarrierWait, NamedBarrier, ProxyFence, BulkCommit, BulkWait,
    WgmmaCommit, WgmmaFence, WgmmaWait, ClusterArrive, ClusterWait,
)  # fmt: skip


def bf16(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-4, 5, shape).astype(ml_dtypes.bfloat16)


RUNS: dict[str, tuple[Callable[[], None], int]] = {
    "wgmma_tile": (
        lambda: MODULES["02_wgmma_tile"].multiply(np.zeros((64, 128), np.float32), bf16(64, 64), bf16(128, 64)), 6
    ),
    "producer_consumers": (
        lambda: MODULES["04_producer_consumers"].matmul(
            np.zeros((128, 256), np.float32), bf16(128, 320), bf16(256, 320), stages=2
        ),
        9,
    ),
    "persistent": (
        lambda: MODULES["05_persistent"].matmul(
            np.zeros((256, 256), ml_dtypes.bfloat16), bf16(256, 128), bf16(256, 128), stages=2, blocks=1
        ),
        23,
    ),
    "ping_pong": (
        lambda: MODULES["07_ping_pong"].matmul(
            np.zeros((512, 128), ml_dtypes.bfloat16), bf16(512, 256), bf16(128, 256), stages=2, blocks=1
        ),
        20,
    ),
    "promoted": (
        lambda: MODULES["09_fp8_promoted"].matmul(
            np.zeros((256, 256), ml_dtypes.bfloat16), *(bf16(256, 384).astype(ml_dtypes.float8_e4m3fn),) * 2,
            np.ones((3, 256), np.float32), np.ones((2, 3), np.float32), stages=2, blocks=1,
        ),
        33,
    ),
    "cluster": (
        lambda: MODULES["06_cluster_multicast"].matmul(
            np.zeros((256, 512), ml_dtypes.bfloat16), bf16(256, 128), bf16(512, 128), stages=2, blocks=2
        ),
        25,
    ),
    "stream_k": (lambda: stream_k(np.zeros((384, 256), ml_dtypes.bfloat16), 192), 25),
}  # fmt: skip
SLOW = ("persistent", "ping_pong", "promoted", "cluster", "stream_k")


def stream_k(c: np.ndarray, k: int, blocks: int = 2) -> np.ndarray:
    """Launch example 08, and return its flags."""
    module = MODULES["08_stream_k"]
    space = module.workspace("sim", blocks)
    (m, n), module.LEAST = c.shape, 1
    module.matmul(c, bf16(m, k), bf16(n, k), space, stages=2, blocks=blocks)
    return space[1]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in RUNS])
def test_each_synchronisation_is_needed_and_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, count = RUNS[name]
    launches: list[tuple[tuple[Any, ...], Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(sim, "execute", lambda *given, **more: launches.append((given, more)))
        run()
    ((launched, more),) = launches
    kernel = launched[0]
    assert findings(launched, more) == []
    blocks = [kernel.body, *(b for op in kernel.body.walk() for b in op.blocks)]
    places = [(b, op) for b in blocks for op in b.ops if isinstance(op, SYNCHRONISATIONS)]
    assert len(places) == count
    for block, op in places:
        # A ring lets a warp meet before it hands a stage back. Where only products read it, their wait is enough for
        # that; the scales of 8-bit floats are read by each lane for itself.
        needed = name == "promoted" or not (isinstance(op, Barrier) and op.effects.together is Scope.WARP)
        with without(block, op):
            assert bool(findings(launched, more)) is needed, (type(op).__name__, op.location)


def test_stream_k_order_between_blocks_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag without release or acquire, or none at all, is found; and launches leave zeros for the next one."""
    flags = stream_k(np.zeros((384, 256), ml_dtypes.bfloat16), 192)
    assert not flags.any()
    launches: list[tuple[tuple[Any, ...], Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(sim, "execute", lambda *given, **more: launches.append((given, more)))
        stream_k(np.zeros((384, 256), ml_dtypes.bfloat16), 192)
    ((launched, more),) = launches
    blocks = [launched[0].body, *(b for op in launched[0].body.walk() for b in op.blocks)]
    ordered = [
        op for b in blocks for op in b.ops if isinstance(op, (OrderedLoad, OrderedStore)) and op.sem != "relaxed"
    ]
    assert [type(op) for op in ordered] == [OrderedStore, OrderedLoad]
    for op in ordered:
        with monkeypatch.context() as patch:
            patch.setattr(op, "sem", "relaxed")
            assert "race" in findings(launched, more), op
    (block,) = (b for b in blocks if any(op is ordered[0] for op in b.ops))
    with without(block, ordered[0]):
        assert "deadlock" in findings(launched, more)
