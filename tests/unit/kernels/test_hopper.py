"""The Hopper family: which configurations it proposes, that each compiles well, what is predicted and chosen."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from benchmarks import matmul as benchmark
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.one_family import only
from tests.helpers.slow import examples

import tilewright as tw
from tilewright.arch import ARCHES, GPUS, Arch, Gpu
from tilewright.kernels._hopper_kernel import matmul_warpgroups
from tilewright.kernels.family import Candidate, Resources
from tilewright.kernels.further import Further
from tilewright.kernels.hopper import Hopper
from tilewright.kernels.hopper_plan import ROWS, THREADS, HopperConfiguration, plan_for
from tilewright.kernels.hopper_tiles import fitted_to
from tilewright.kernels.model import Machine
from tilewright.kernels.problem import BLOCK, Blocks, Operand, Problem
from tilewright.kernels.split_k import sums_problem
from tilewright.kernels.winners import text_of
from tilewright.runtime import libraries

H200, BF16 = Machine.of(Arch.parse("sm_90a")), tw.bfloat16
TYPES = {  # of A and B, of the instruction, of the accumulators, and of D and C
    "bf16": (tw.bfloat16, tw.bfloat16, tw.float32, tw.bfloat16),
    "f16": (tw.float16, tw.float16, tw.float32, tw.float32),
    "tf32": (tw.float32, tw.tfloat32, tw.float32, tw.float32),
    "s8": (tw.int8, tw.int8, tw.int32, tw.int32),
    "e4m3": (tw.float8_e4m3fn, tw.float8_e4m3fn, tw.float32, tw.bfloat16),
}


def problem_of(
    name: str, m: int, n: int, k: int, majors: str = "KK", batch: int = 1, *, adds: bool = False, aligned: bool = True
) -> Problem:
    stored, compute, accumulator, out = TYPES[name]
    a, b = (Operand(stored, "K" if major == "K" else "MN", 16) for major in majors)
    d = Operand(out, "MN", 16 if aligned else out.bytes)
    return Problem(m, n, k, batch, a, b, d, compute, accumulator, c=out if adds else None)


def legal(problem: Problem, machine: Machine = H200) -> list[Candidate]:
    return [c for c in Hopper().candidates(problem, machine) if c.rejection is None]


# --- what is compiled ----------------------------------------------------------------------------------------


EXTENTS = (4093, 4095), (5, 4095), (40, 4095), (4093, 12), (130, 250), (3001, 3000), (2112, 2304), (1576, 768)


def compiled() -> Iterator[object]:
    """Yield each configuration with each element type, with and without what is added; most of them are slow."""
    seen = set()
    for name in TYPES:
        for m, n in EXTENTS:
            for majors in ("KK", "MM") if TYPES[name][0].bits == 16 else ("KK",):
                is_main = (name, majors) == ("bf16", "KK")  # of the others, what takes most registers
                for adds, aligned in ((False, True), (True, True), (True, False)) if is_main else ((True, True),):
                    problem = problem_of(name, m, n, 8192, majors, adds=adds, aligned=aligned)
                    for c in legal(problem):
                        stages = min(c.configuration.stages, 4)
                        kind = replace(c.configuration, splits=min(c.configuration.splits, 2), stages=stages, group=8)
                        key = name, kind, majors, adds, aligned
                        if key not in seen:
                            seen.add(key)
                            quick = (kind.tile, kind.cluster) in (((128, 256, 64), 2), ((8, 64, 64), 1)) and (
                                majors,
                                adds,
                            ) == ("KK", True)
                            slow = () if name == "bf16" and quick and aligned else pytest.mark.slow
                            words = [name, majors, "with C"[: 6 * adds], "" if aligned else "odd rows", str(kind)]
                            yield pytest.param(
                                name, majors, adds, aligned, kind, marks=slow, id=", ".join(filter(None, words))
                            )


@pytest.mark.parametrize(("name", "majors", "adds", "aligned", "configuration"), list(compiled()))
def test_nothing_spills(name: str, majors: str, adds: bool, aligned: bool, configuration: HopperConfiguration) -> None:
    """Neither do products wait for each other, which ptxas would tell."""
    columns = 4096 if aligned else 4095
    problem = problem_of(name, 4093, columns, 4091, majors, adds=adds, aligned=aligned)
    stored, _, accumulator, out = TYPES[name]
    plan = plan_for(problem, configuration, H200.arch)

    def matrix(rows: int, columns: int, major: str, dtype: tw.DType) -> object:
        row = 4096 if aligned or dtype is stored else 4095
        return tw.spec(dtype, (rows, columns, 1), stride=(row, 1, 0) if major == "K" else (1, row, 0))

    is_whole = configuration.splits == 1 or configuration.adds_in_cluster
    adds = adds and is_whole
    d = matrix(4093, columns, "K", out if is_whole else accumulator)
    m, n, _ = configuration.tile
    sums = [tw.spec(accumulator, (m, n, 264), stride=(n, 1, m * n))] * configuration.streams
    kernel = matmul_warpgroups.numbered(adds + len(sums)).configure(min_blocks=1)
    if configuration.cluster_size > 1:
        kernel = kernel.configure(cluster=configuration.cluster_size)
    operands = (matrix(4093, 4091, majors[0], stored), matrix(columns, 4091, majors[1], stored))
    one = accumulator.numpy.type(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launcher = kernel[132, configuration.threads]
        found = launcher.resources(d, *operands, one, one, plan, *sums, *[d] * adds, arch="sm_90a")
    assert not found.spills and found.local_bytes == 0, found


@pytest.mark.parametrize(
    "configuration",
    [
        pytest.param(
            HopperConfiguration((128, 64, 64), (8, 1), 4, splits=4, adds_in_cluster=True), id="two of four finish"
        ),
        pytest.param(
            HopperConfiguration((40, 64, 64), (1, 4), 4, splits=5, adds_in_cluster=True, is_swapped=True),
            id="one consumer, five finish",
        ),
    ],
)
def test_sums_of_a_cluster_wait_for_no_fence_of_the_gpu(configuration: HopperConfiguration) -> None:
    """Bulk copies bring them, one to each other block that adds up sums, whose bytes an mbarrier counts."""
    if libraries.find_program("nvdisasm") is None:
        pytest.skip("needs nvdisasm")
    plan = plan_for(problem_of("bf16", 256, 768, 4096), configuration, H200.arch)
    kernel = matmul_warpgroups.numbered(0).configure(min_blocks=1, cluster=configuration.splits)
    a, b, d = (tw.spec(BF16, (m, n, 1), stride=(n, 1, 0)) for m, n in ((256, 4096), (768, 4096), (256, 768)))
    one = np.float32(1)
    sass = kernel[132, configuration.threads].sass(d, a, b, one, one, plan, arch="sm_90a")
    assert "MEMBAR.ALL.CTA" in sass and "MEMBAR.ALL.GPU" not in sass
    assert sass.count("UBLKCP.S.S") == plan.owners


def test_stages_hold_what_a_block_sends_to_others() -> None:
    """Where they do not, as no candidate's, there is memory for it beside them."""
    for extents in ((128, 7168, 16384), (40, 4096, 4096), (8, 8192, 8192), (130, 250, 8192), (1000, 300, 8192)):
        for name in ("bf16", "tf32", "e4m3"):
            plans = [plan_for(c.problem, c.configuration, H200.arch) for c in legal(problem_of(name, *extents))]
            sharing = [plan for plan in plans if plan.peers > 1]
            assert sharing
            for plan in sharing:
                m, n, _ = plan.tile
                sums, room = m * n * 4, [tw.cosize(x) * plan.bytes_of[0] for x in (plan.smem_a, plan.smem_b)]
                assert plan.sent_bytes == sums - (sums // plan.owners) * (plan.owners == plan.peers)
                assert plan.lender is not None and room[plan.lender] >= plan.sent_bytes
    few = HopperConfiguration((128, 96, 64), (8, 1), 2, splits=2, adds_in_cluster=True)
    small = plan_for(problem_of("bf16", 256, 768, 4096), few, H200.arch)
    assert small.lender is None and small.sent_bytes == 128 * 96 * 4
    stages = 2 * (128 + 96) * 64 * 2
    assert small.shared_bytes >= stages + 2 * small.sent_bytes


BLOCKS = {  # rows of A and columns of B that share a scale, of 128 elements of K
    "rows and blocks": (Blocks("A", 1), Blocks("B", BLOCK)),
    "rows and columns": (Blocks("A", 1), Blocks("B", 1)),
    "blocks and columns": (Blocks("A", BLOCK), Blocks("B", 1)),
    "rows by TMA and blocks": (Blocks("A", 1, boxed=True), Blocks("B", BLOCK)),
    "rows and columns by TMA": (Blocks("A", 1, boxed=True), Blocks("B", 1, boxed=True)),
    "none": (),
}


def scaled() -> Iterator[object]:
    """Yield each configuration of promoted sums with each kind of scales; most of them are slow."""
    seen = set()
    for name, blocks in BLOCKS.items():
        for m in (4093, 60):
            for c in legal(replace(problem_of("e4m3", m, 4095, 8192), blocks=blocks)):
                kind = replace(c.configuration, splits=min(c.configuration.splits, 2), stages=3, group=8)
                if (name, kind) not in seen and not kind.streams:  # those without scales are among the others
                    seen.add((name, kind))
                    is_quick = name.endswith("and blocks") and kind.tile == (128, 128, 128) and kind.splits == 1
                    marks = () if is_quick else pytest.mark.slow
                    yield pytest.param(name, kind, marks=marks, id=f"{name}, {kind}")


@pytest.mark.parametrize(("name", "configuration"), list(scaled()))
def test_nothing_spills_beside_scales_of_blocks(name: str, configuration: HopperConfiguration) -> None:
    """Neither do products wait for each other, of which two tiles of K are under way."""
    problem, blocks = problem_of("e4m3", 4093, 4095, 8192), BLOCKS[name]
    if configuration.splits > 1 and not configuration.adds_in_cluster:
        problem = sums_problem(problem)
    problem = replace(problem, blocks=blocks)
    a, b = (tw.spec(tw.float8_e4m3fn, (rows, 8192, 1), stride=(8192, 1, 0)) for rows in (4093, 4095))
    d = tw.spec(problem.d.dtype, (4093, 4095, 1), stride=(4096, 1, 0))
    rows = [-(-(4093 if x.of == "A" else 4095) // x.rows) for x in blocks]
    scales = [tw.spec(tw.float32, (count, 64, 1), stride=(1, count, 0)) for count in rows]
    kernel = matmul_warpgroups.numbered(len(scales)).configure(min_blocks=1)
    if configuration.cluster_size > 1:
        kernel = kernel.configure(cluster=configuration.cluster_size)
    plan, one = plan_for(problem, configuration, H200.arch), np.float32(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = kernel[132, THREADS].resources(d, a, b, one, one, plan, *scales, arch="sm_90a")
    if configuration.adds_in_cluster and found.spills:  # around the sums of other blocks, beside no product
        code = kernel[132, THREADS].sass(d, a, b, one, one, plan, *scales, arch="sm_90a").splitlines()
        products = [n for n, line in enumerate(code) if "QGMMA" in line]
        assert not any(x in line for line in code[products[0] : products[-1]] for x in ("STL", "LDL"))
    else:
        assert not found.spills and found.local_bytes == 0, found


@pytest.mark.parametrize(
    ("name", "tile", "stages", "reads"),
    [
        ("rows and blocks", (128, 128), 6, {"LDG": 2, "SHFL": 4, "LDS": 0}),
        ("rows by TMA and blocks", (64, 128), 9, {"LDG": 0, "SHFL": 2, "LDS": 16}),  # D^T: pairs of scales
    ],
)
@pytest.mark.spread(2)
def test_tiles_of_k_by_turns_in_machine_code(
    name: str, tile: tuple[int, int], stages: int, reads: dict[str, int]
) -> None:
    """In a step of two tiles of K the products of one begin before the sums of the other are added.

    Accumulators are nowhere moved, and descriptors are computed by the uniform unit alone. Scales that lanes hold for
    32 tiles of K are loaded between loops.
    """
    if libraries.find_program("nvdisasm") is None:
        pytest.skip("needs nvdisasm")
    problem = replace(problem_of("e4m3", 4096, 4096, 8192), blocks=BLOCKS[name])
    is_swapped = tile[0] < tile[1]
    configuration = HopperConfiguration((*tile, 128), (8, 1), stages, is_swapped=is_swapped)
    plan = plan_for(problem, configuration, H200.arch)
    assert plan.overlaps and plan.behind == 2
    a = tw.spec(tw.float8_e4m3fn, (4096, 8192, 1), stride=(8192, 1, 0))
    d = tw.spec(tw.bfloat16, (4096, 4096, 1), stride=(4096, 1, 0))
    scales = [tw.spec(tw.float32, (rows, 64, 1), stride=(1, rows, 0)) for rows in (4096, 32)]
    kernel, one = matmul_warpgroups.numbered(2).configure(min_blocks=1), np.float32(1)
    sass = kernel[132, THREADS].sass(d, a, a, one, one, plan, *scales, arch="sm_90a")
    lines = sass.splitlines()
    labels = {line.strip(" :"): n for n, line in enumerate(lines) if line.startswith(".L_x")}
    jumps = [
        (labels.get(found[1], n), n) for n, x in enumerate(lines) if (found := re.search(r"BRA `\((\.L_x_\d+)\)", x))
    ]
    step = min((lines[a:b] for a, b in jumps if a < b and any("QGMMA" in x for x in lines[a:b])), key=len)
    kinds = [found[1] for x in step if (found := re.search(r"\b(QGMMA|FFMA|R2UR|WARPGROUP\.\w+|LDG|SHFL|LDS)\b", x))]
    work = [kind for kind in kinds if kind not in reads]
    half = ["WARPGROUP.ARRIVE", *["QGMMA"] * 4, "WARPGROUP.DEPBAR", *["FFMA"] * (math.prod(tile) // 256)]
    assert work == 2 * half
    assert {kind: kinds.count(kind) for kind in reads} == reads


def test_promoted_sums_prefer_tiles_by_turns() -> None:
    """The choices are those that an H200 took least time for, with scales of blocks and without."""
    squares = (8192, 8192, 8192), (4096, 4096, 4096), (4096, 7168, 2048)
    for extents in (*squares, (128, 7168, 16384)):
        problem = replace(problem_of("e4m3", *extents), blocks=BLOCKS["rows and blocks"])
        best = min(legal(problem), key=lambda c: c.prediction.us if c.prediction else 0)
        assert best.configuration.tile == (128, 128, 128)
        assert not any(max(c.configuration.tile[:2]) > BLOCK for c in legal(problem))
    for extents, name in (
        (squares[0], "192x128x128, cooperative, 4 stages"),
        (squares[1], "128x128x128, cooperative, 6 stages"),
        (squares[2], "128x128x128, cooperative, 6 stages"),
        ((128, 7168, 16384), "128x128x128, cooperative, 5 stages, 2 splits in a cluster"),
        ((128, 7168, 2048), "128x64x128, cooperative, 8 stages"),
        ((128, 4096, 7168), "128x128x128, cooperative, 4 stages, 3 splits in a cluster"),
        ((64, 7168, 2048), "64x128x128, cooperative, 8 stages, 2 splits in a cluster, D^T"),
        ((16, 4096, 7168), "16x128x128, cooperative, 12 stages, 3 splits in a cluster, D^T"),
    ):
        problem = replace(problem_of("e4m3", *extents), blocks=BLOCKS["rows by TMA and blocks"])
        best = min(legal(problem), key=lambda c: c.prediction.us if c.prediction else 0)
        assert str(best.configuration) == name
        is_swapped, has_three = name.endswith("D^T"), name.startswith("192")
        plan = plan_for(problem, best.configuration, H200.arch)
        assert any(x.boxed for x in plan.blocks) == (is_swapped or has_three)
    best = min(legal(problem_of("e4m3", 4096, 7168, 2048)), key=lambda c: c.prediction.us if c.prediction else 0)
    assert best.configuration.tile == (128, 128, 128)


@pytest.mark.parametrize("tile", [pytest.param((128, 160, 64), marks=pytest.mark.slow), (128, 192, 64)], ids=str)
@pytest.mark.parametrize(("what", "dtype", "strides"), [("scales", tw.float32, (1, 0, 0)), ("bias", BF16, (0, 1, 0))])
@pytest.mark.spread(2)
def test_wide_tiles_of_one_consumer_have_registers_for_vectors(
    tile: tuple[int, int, int], what: str, dtype: tw.DType, strides: tuple[int, ...]
) -> None:
    """A scale for each row or a bias spills nothing; where matrices or further results are added, others are proposed.

    The bias is loaded by the lanes of a warp, each of which has every 32nd column.
    """
    problem = replace(problem_of("bf16", 4093, 4096, 4096), **{what: (dtype,) if what == "scales" else dtype})
    configuration = HopperConfiguration(tile, (8, 1), 4, is_ping_pong=True)
    assert tile in {c.configuration.tile for c in legal(problem)}
    plan = plan_for(problem, configuration, H200.arch)
    kernel, one = matmul_warpgroups.numbered(1).configure(min_blocks=1), np.float32(1)
    a, b = (tw.spec(tw.bfloat16, (rows, 4096, 1), stride=(4096, 1, 0)) for rows in (4093, 4096))
    d = tw.spec(tw.bfloat16, (4093, 4096, 1), stride=(4096, 1, 0))
    arguments = d, a, b, one, one, plan, tw.spec(dtype, (4093, 4096, 1), stride=strides)
    found = kernel[132, THREADS].resources(*arguments, arch="sm_90a")
    assert not found.spills and found.local_bytes == 0, found
    loads = sum("LDG.E" in line for line in kernel[132, THREADS].sass(*arguments, arch="sm_90a").splitlines())
    assert loads == (tile[0] if what == "scales" else tile[1]) // 32
    for more in ({"c": tw.bfloat16}, {"elements": (tw.bfloat16,)}, {"further": (Further(tw.float32, "sum", "M"),)}):
        others = [c.configuration for c in legal(replace(problem, **more))]
        assert not any(isinstance(c, HopperConfiguration) and c.is_ping_pong and c.tile == tile for c in others)


# --- what is proposed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", [a for a in ARCHES if a != "sm_90a" and not Arch.parse(a).is_amd])
def test_other_targets_have_no_candidates(arch: str) -> None:
    for name in TYPES:
        assert not Hopper().candidates(problem_of(name, 512, 512, 512), Machine.of(Arch.parse(arch)))


@examples(5, 100)
@given(
    name=st.sampled_from(sorted(TYPES)),
    extents=st.tuples(*[st.integers(1, 10000)] * 3, st.integers(1, 30)),
    gpu=st.sampled_from([g for g in GPUS.values() if g.arch.name == "sm_90a"]),
)
def test_candidates_fit_and_have_times(name: str, extents: tuple[int, int, int, int], gpu: Gpu) -> None:
    """Each has work for its splits, no more bytes than shared memory, and a time above that of what L2 cannot hold."""
    m, n, k, batch = extents
    machine, problem = Machine(gpu.arch, gpu), problem_of(name, m, n, k, batch=batch)
    found = Hopper().candidates(problem, machine)
    assert found and len({c.configuration for c in found}) == len(found)
    for c in found:
        assert c.rejection is None, c.rejection
        assert c.resources.shared_bytes <= machine.arch.shared_bytes_optin
        assert c.configuration.blocks == machine.multiprocessors
        assert c.configuration.splits <= -(-k // c.configuration.tile[2])
        from_memory = problem.bytes - (gpu.l2_bytes or 0)
        assert c.prediction is not None and c.prediction.us >= from_memory / machine.bandwidth
        later = Hopper().predict(replace(problem, k=4 * k + 8192), c.configuration, c.resources, machine)
        assert later.us > c.prediction.us


def test_unaligned_operands_are_packed_and_results_are_not() -> None:
    """TMA loads rows that begin at 16 bytes; results of any layout leave from registers."""
    problem = replace(
        problem_of("bf16", 1111, 1111, 1111), a=Operand(tw.bfloat16, "K", 2), d=Operand(tw.bfloat16, "none", 2)
    )
    found = legal(problem)
    assert found and all(c.packed == (True, False) for c in found)
    assert not plan_for(found[0].problem, found[0].configuration, H200.arch).stores_boxes


def test_products_begin_while_their_operands_are_packed() -> None:
    """Only those, where tiles are computed at once; a find has the same name whether they are or not."""
    aligned = problem_of("bf16", 1111, 1111, 1111)
    odd = replace(aligned, a=Operand(tw.bfloat16, "K", 2))
    for problem in (aligned, odd):
        for c in legal(problem):
            tiles = math.prod(-(-1111 // extent) for extent in c.configuration.tile[:2]) * c.configuration.splits
            follows = problem is odd and tiles <= H200.multiprocessors
            assert isinstance(c.configuration, HopperConfiguration) and c.configuration.follows == follows
            assert Hopper().begins_early(c.configuration) == follows
            plan = Hopper().launch(c.problem, c.configuration, H200.arch).plan
            assert plan.begins_early == (follows or c.configuration.adds_in_cluster), c
    assert {text_of(c) for c in legal(odd)} == {text_of(c) for c in legal(aligned)}


def test_bytes_and_floats_of_32_bits_are_read_along_k() -> None:
    for name in ("tf32", "s8", "e4m3"):
        found = legal(problem_of(name, 512, 512, 512, "MK"))
        assert found and all(c.packed == (True, False) for c in found)
    assert all(c.packed == (False, False) for c in legal(problem_of("f16", 512, 512, 512, "MM")))


def test_tma_stores_only_rows_that_end_at_16_bytes() -> None:
    """It writes whole 16 bytes at the end of a row: behind 67 columns there would be 5 more."""
    for n, is_whole in ((64, True), (67, False), (72, True), (68, False)):
        problem = problem_of("bf16", 256, n, 256)
        assert problem.d.alignment == 16 and problem.is_whole_vectors == is_whole
        whole = [c for c in legal(problem) if not (c.configuration.is_swapped or c.configuration.splits > 1)]
        plans = [plan_for(c.problem, c.configuration, H200.arch) for c in whole]
        assert any(plan.stores_boxes for plan in plans) == is_whole


# --- what is chosen ------------------------------------------------------------------------------------------


def chosen(m: int, n: int, k: int, dtype: tw.DType = tw.bfloat16) -> HopperConfiguration:
    found = tw.matmul.explain(tw.spec(dtype, (m, k)), tw.spec(dtype, (k, n))).choice
    assert found is not None and found.family.name == "hopper", found
    return found.configuration


@pytest.mark.parametrize("extents", [(1576, 768), (784, 2048), (300, 300), (2112, 2304), (70, 4096), (5000, 40)])
def test_tiles_are_as_narrow_as_one_wave_allows(extents: tuple[int, int]) -> None:
    """Of D and of D^T, where all are computed at once: were they narrower, there would be too many."""
    problem, sides = problem_of("bf16", *extents, 768), set()
    for c in fitted_to(problem, H200.arch, 132):
        height, width, _ = c.own_tile
        rows, columns = extents[::-1] if c.is_swapped else extents
        unit = 8 if c.is_swapped else 16
        high, wide = -(-rows // height), -(-columns // width)
        assert high * wide <= 132 and width % unit == 0
        assert width == unit or high * -(-columns // (width - unit)) > 132
        assert c.cluster == c.cluster_n == 1
        sides.add(c.is_swapped)
    assert sides == {False, True}
    assert not fitted_to(problem_of("e4m3", *extents, 768), H200.arch, 132)


@pytest.mark.parametrize("count", [78, 114])
def test_tiles_fit_one_wave_of_other_gpus(count: int) -> None:
    """Those of 78 multiprocessors (H20) and of 114 (H100 on PCIe) are wider than those of 132."""
    problem, machine = problem_of("bf16", 1576, 768, 768), replace(H200, gpu=replace(H200.gpu, multiprocessors=count))
    found = [c.configuration for c in legal(problem, machine) if c.configuration.is_swapped]
    tiles = [-(-768 // c.own_tile[0]) * -(-1576 // c.own_tile[1]) for c in found if c.own_tile[0] == 128]
    assert 0.8 * count < max(tiles) <= count
    assert {c.blocks for c in found} == {count}


def test_blocks_share_rows_where_these_begin_between_lines() -> None:
    """By clusters of two and four, all at once; a block of a cluster brings whole rows of a swizzle."""
    problem = problem_of("bf16", 336, 3064, 3096, "MK")
    problem = replace(problem, a=replace(problem.a, line=16))
    found = fitted_to(problem, H200.arch, 132)
    assert {c.cluster_n for c in found} == {1, 2, 4} and all(c.cluster == 1 for c in found)
    for c in found:
        height, width, _ = c.own_tile
        rows, columns = (3064, 336) if c.is_swapped else (336, 3064)
        blocks = -(-rows // height) * -(-columns // (width * c.cluster_n)) * c.cluster_n
        assert blocks <= (120 if c.cluster_n == 4 else 132), c
        assert c.is_swapped or height % (64 * c.cluster_n) == 0, "A is contiguous along M"
        assert Hopper().resources(problem, c, H200.arch).rejection is None or c.own_tile[0] == 256, c


@pytest.mark.parametrize("extents", [(200, 8192), (88, 16000), (300, 5000)])
def test_two_rows_of_instructions_beside_c_have_parts_of_16_columns(extents: tuple[int, int]) -> None:
    """104 x 128 of D^T in ping-pong, with C, finished 26 parts of 8 columns and spilled 264 bytes."""
    plain = replace(problem_of("bf16", *extents, 1024), d=Operand(tw.float32, "MN", 16))
    for problem in (plain, replace(plain, c=tw.float32)):
        widths = {
            c.own_tile[1] % 16
            for c in fitted_to(problem, H200.arch, 132)
            if c.own_tile[0] > ROWS * (1 if c.is_ping_pong else c.consumers)
        }
        assert widths <= ({0, 8} if problem is plain else {0}), widths


def test_neighbours_share_tiles_of_the_larger_matrix() -> None:
    """Where all tiles are computed at once; others go by groups of rows."""
    for extents, group in {(1024, 512): 1, (512, 1024): 8, (4096, 4096): 8}.items():
        found = [c.configuration for c in legal(problem_of("bf16", *extents, 4096))]
        assert {
            c.group for c in found if c.tile[:2] == (64, 64) and c.own_tile[:2] == (64, 64) and not c.is_swapped
        } == {group}, extents


def test_the_choice_fits_one_wave() -> None:
    """1576 x 768 has 132 tiles of 72 x 128, 784 x 512 112 of 56 x 64: those of D^T."""
    for extents, tile in {
        (1576, 768, 3072): (72, 128),
        (784, 512, 2048): (56, 64),
        (2308, 1024, 1024): (72, 256),
    }.items():
        choice = min(legal(problem_of("bf16", *extents)), key=lambda x: x.prediction.us).configuration
        assert choice.tile[:2] == tile and choice.is_swapped and choice.splits == 1, choice


def test_one_wave_of_large_tiles_is_multiplied_by_three_consumers() -> None:
    """6304 x 768 has 132 tiles of 192 x 192: 41.9 us for K = 3072 on an H200, and 46.4 by the best other of the table."""
    plain = problem_of("bf16", 6304, 768, 3072)
    choice = min(legal(plain), key=lambda x: x.prediction.us).configuration
    assert (choice.tile[:2], choice.consumers) == ((192, 192), 3)
    gated = replace(plain, is_gated=True, n=plain.n // 2)
    assert not any(c.configuration.tile[:2] == (192, 192) for c in legal(gated))


def test_large_products_take_what_was_fastest() -> None:
    """Ping-pong, which hides epilogues, where waves allow it; clusters where they fill waves."""
    fastest = {
        ("KK", 2048, 2048, 2048): ((128, 128), 1, True),
        ("MM", 4096, 4096, 4096): ((128, 128), 1, True),
        ("KK", 4096, 4096, 14336): ((128, 128), 1, True),
        ("MM", 4096, 14336, 4096): ((128, 128), 1, True),
        ("KK", 8192, 8192, 8192): ((128, 192), 1, True),
        ("KK", 8192, 28672, 8192): ((128, 192), 1, True),
        ("KK", 4096, 14336, 4096): ((128, 160), 2, True),
        ("KM", 8192, 8192, 8192): ((128, 192), 1, True),
    }
    for (majors, *extents), (tile, cluster, is_ping_pong) in fastest.items():
        choice = min(legal(problem_of("bf16", *extents, majors)), key=lambda x: x.prediction.us).configuration
        assert isinstance(choice, HopperConfiguration)
        assert (choice.tile[:2], choice.cluster, choice.is_ping_pong) == (tile, cluster, is_ping_pong), extents
    large = min(legal(problem_of("bf16", 16384, 16384, 16384, "KM")), key=lambda x: x.prediction.us).configuration
    assert large.tile[0] * large.tile[1] >= 128 * 192


def test_clusters_bring_whole_rows_of_a_swizzle() -> None:
    """Of B contiguous along N, a block of a pair brings 64 columns, or 128, but not 80 or 96."""
    for majors, narrow in (("KK", True), ("KM", False), ("MM", False)):
        pairs = {c.configuration.tile[1] for c in legal(problem_of("bf16", 8192, 8192, 4096, majors)) if paired(c)}
        assert {128, 256} <= pairs and ({160, 192} <= pairs) == narrow and (pairs <= {128, 256}) != narrow, majors
    assert not any(c.configuration.tile[1] == 160 for c in legal(problem_of("bf16", 8192, 8192, 4096, "KM")))


def paired(candidate: Candidate) -> bool:
    """Return whether two blocks share B."""
    assert isinstance(candidate.configuration, HopperConfiguration), candidate
    return candidate.configuration.cluster > 1


def test_boxes_have_two_buffers_where_they_fit() -> None:
    """A part of the results is written while the store of the part before reads; a single part needs no second."""
    problem = problem_of("bf16", 8192, 8192, 4096)
    for columns, is_ping_pong, buffers in ((192, False, 2), (192, True, 2), (128, False, 1), (256, False, 1)):
        configuration = HopperConfiguration((128, columns, 64), (8, 1), 4, is_ping_pong=is_ping_pong)
        plan = plan_for(problem, configuration, H200.arch)
        boxes = plan.buffers * plan.mma.size // 128 if not is_ping_pong else plan.buffers
        assert (plan.buffers, tw.size(plan.smem_d)) == (buffers, boxes * tw.size(plan.part.tiler_mn)), columns


def test_rows_between_lines_take_longer() -> None:
    """Each is read from two lines, and L2 bounds the step; a cluster, which reads fewer of them, loses less."""
    machine, configuration = H200, HopperConfiguration((128, 256, 64), (8, 1), 4)
    whole = problem_of("bf16", 4096, 4096, 6400)
    between = replace(whole, a=replace(whole.a, line=16), b=replace(whole.b, line=16))
    lost = []
    for one in (configuration, replace(configuration, cluster=2)):
        times = [Hopper().predict(x, one, Resources(0, 0, None), machine).us for x in (whole, between)]
        lost.append(times[1] / times[0])
    assert lost[0] > 1.2 > 1.1 > lost[1] >= 1


@pytest.mark.parametrize("m", [1, 8, 16, 30])
def test_few_rows_are_columns_of_the_instruction(m: int) -> None:
    found = chosen(m, 8192, 8192)
    assert found.is_swapped and m <= found.tile[0] <= max(2 * m, 8)


def test_few_contiguous_rows_fill_the_rows_of_a_swizzle() -> None:
    for majors, tile in (("MK", (16, 128)), ("KK", (8, 128))):
        assert tile in {c.configuration.tile[:2] for c in legal(problem_of("bf16", 5, 4096, 4096, majors))}
    assert (128, 16) in {c.configuration.tile[:2] for c in legal(problem_of("bf16", 4096, 7, 4096, "KM"))}


@pytest.mark.parametrize("shape", [(256, 256, 65536), (512, 512, 16384)])
def test_long_sums_of_few_tiles_are_split(shape: tuple[int, int, int]) -> None:
    assert chosen(*shape).splits > 1


def test_few_tiles_add_up_in_a_cluster() -> None:
    """In place of a second launch."""
    found = chosen(16, 576, 7168)
    assert found.adds_in_cluster and found.splits == 8


def test_small_epilogues_of_short_sums_are_hidden_by_ping_pong() -> None:
    assert chosen(8192, 8192, 256).is_ping_pong


@pytest.mark.parametrize(
    ("extents", "tile", "kept"),
    [
        ((8, 14336, 4096), (8, 128, 64), (3, None)),  # 112 MiB of weights: of L2's 50 MiB 25
        ((128, 4096, 14336), (128, 64, 64), (None, 3)),
        ((256, 256, 65536), (128, 128, 64), (6, 6)),
        ((64, 4096, 4096), (128, 64, 64), (None, None)),  # all of it stays
        ((4096, 14336, 4096), (128, 256, 64), (None, None)),  # 32 blocks read B, not at the same time
    ],
    ids=str,
)
def test_of_weights_larger_than_the_cache_a_part_stays(
    extents: tuple[int, int, int], tile: tuple[int, int, int], kept: tuple[int | None, int | None]
) -> None:
    problem, is_swapped = problem_of("bf16", *extents), tile[0] < 64
    c = HopperConfiguration(tile, (1, 8) if is_swapped else (8, 1), 3, is_swapped=is_swapped)
    assert Hopper().launch(problem, c, H200.arch).plan.kept == kept


def test_the_simulator_takes_the_family_that_it_runs_quickly() -> None:
    """Calls with arrays in host memory want a result; `explain` tells what a GPU would run."""
    a = np.ones((256, 1024), np.float16)
    with tw.simulate(profile=True) as run:
        tw.matmul(a, a.T)
    assert [launch.kernel for launch in run.launches] == ["matmul_tiles"]


def test_a_result_is_the_same_every_time() -> None:
    """Splits are added up in one order, whatever the blocks do."""
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((8, 520), np.float32).astype(np.float16) for _ in range(2))
    configuration = HopperConfiguration((8, 128, 64), (1, 8), 3, 2, splits=4, is_swapped=True)
    found = set()
    for each, blocks in ((configuration, 1), (configuration, 3), (replace(configuration, adds_in_cluster=True), 4)):
        with only(each, blocks):
            found.add(tw.matmul(a, b.T, out_dtype=tw.float32).tobytes())
    assert len(found) == 1


def test_the_drawn_shapes_are_those_that_were_drawn() -> None:
    shapes = benchmark.drawn()
    assert shapes == [tuple(each) for each in benchmark.draw()] and len(shapes) == 200
    assert all(128 <= extent <= 16384 for each in shapes for extent in each)
    assert all(len(list(group())) >= 3 for group in benchmark.GROUPS.values())
