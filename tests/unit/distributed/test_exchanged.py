"""Products whose rows or sums travel between ranks while they are computed: values, what each wait is for, limits."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.slow import examples, rest_is_slow
from tests.unit.test_hopper_examples import without
from tests.unit.test_hopper_products import SYNCHRONISATIONS

import tilewright as tw
from tilewright.arch import Arch
from tilewright.backends.sim import Rank
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.bulk_groups import BulkWait
from tilewright.instructions.ordered_access import OrderedLoad, OrderedStore
from tilewright.instructions.wgmma import WgmmaWait
from tilewright.ir.effects import Scope
from tilewright.kernels import exchanged
from tilewright.kernels._gathered_kernel import matmul_gathered
from tilewright.kernels._scattered_kernel import matmul_scattered
from tilewright.kernels.exchanged import RingFamily, parts_of
from tilewright.kernels.hopper_plan import HopperConfiguration
from tilewright.kernels.model import Machine
from tilewright.kernels.problem import Operand, Problem

H200 = Machine.of(Arch.parse("sm_90a"))
COOPERATIVE = HopperConfiguration((128, 64, 64), (8, 1), 2, 2, blocks=2)
PING_PONG = HopperConfiguration((64, 64, 64), (8, 1), 2, 2, is_ping_pong=True, blocks=2)
DEEP = HopperConfiguration((64, 32, 128), (8, 1), 2, 2, is_ping_pong=True, blocks=2)  # K of two parts
CLUSTERS = HopperConfiguration((128, 128, 64), (8, 1), 2, 1, 2, blocks=4)


class One(RingFamily):
    """One of the kernels with one configuration, in the simulator too."""

    is_simulated = True

    def __init__(self, kernel: tw.Kernel, configuration: HopperConfiguration) -> None:
        super().__init__(kernel, stores_boxes=kernel is matmul_scattered)
        self.configuration = configuration
        self.launched = 0

    def choose(self, problem: Problem, machine: Machine) -> HopperConfiguration | None:
        return self.configuration if super().choose(problem, machine) else None

    def launch(self, problem: Problem, c: HopperConfiguration, machine: Machine) -> Any:
        self.launched += 1
        return super().launch(problem, c, machine)


@contextmanager
def only(configuration: HopperConfiguration, name: str = "GATHERED") -> Iterator[One]:
    """Have `tw.distributed` take one of the kernels with one configuration."""
    with pytest.MonkeyPatch.context() as patch:
        one = One(matmul_gathered if name == "GATHERED" else matmul_scattered, configuration)
        patch.setattr(exchanged, name, one)
        patch.setattr(exchanged, "_LEAST_PART", 1)  # bytes of a part: these matrices are sent in several
        yield one


def program(
    rank: Rank, m: int, n: int, k: int, calls: int = 1, dtype: Any = ml_dtypes.bfloat16, major: str = "N"
) -> bool:
    """Say whether calls of a rank compute what NumPy does, of numbers whose sums are exact."""
    buffer = tw.distributed.ExchangeBuffer(rank, (m, k), dtype)
    is_right = True
    for call in range(calls):
        random = np.random.default_rng(call)
        x, w = random.integers(-3, 4, (rank.size, m, k)), random.integers(-3, 4, (k, n))
        out = np.full((rank.size * m, n), np.nan, np.float32)
        columns = w.astype(dtype) if major == "N" else np.ascontiguousarray(w.T.astype(dtype)).T
        bias = None if call % 2 == 0 else random.integers(-3, 4, n).astype(np.float32)
        tw.distributed.all_gather_matmul(x[rank.rank].astype(dtype), columns, out, buffer, bias)
        is_right = is_right and np.array_equal(out, x.reshape(-1, k) @ w + (0 if bias is None else bias))
    return is_right


def scatters(
    rank: Rank,
    m: int,
    n: int,
    k: int,
    calls: int = 1,
    dtype: Any = ml_dtypes.bfloat16,
    major: str = "N",
    *,
    all: bool = False,
) -> bool:
    """Say the same of products whose K is divided, of which each rank gets its rows of the sum, or all."""
    buffer = tw.distributed.ExchangeBuffer(rank, (m, n), np.float32)
    results = tw.distributed.ExchangeBuffer(rank, (m, n), np.float32)
    is_right = True
    for call in range(calls):
        random = np.random.default_rng(call)
        x, w = random.integers(-3, 4, (rank.size, rank.size * m, k)), random.integers(-3, 4, (rank.size, k, n))
        own = w[rank.rank].astype(dtype)
        columns = own if major == "N" else np.ascontiguousarray(own.T).T
        given, expected = x[rank.rank].astype(dtype), (x @ w).sum(0)
        if all:
            out = np.full((rank.size * m, n), np.nan, np.float32)
            tw.distributed.matmul_all_reduce(given, columns, out, buffer, results)
        else:
            out, expected = np.full((m, n), np.nan, np.float32), expected[rank.rank * m : (rank.rank + 1) * m]
            residual = None if call % 2 == 0 else random.integers(-3, 4, (m, n)).astype(np.float32) + rank.rank
            bias = None if call % 3 < 2 else np.arange(n, dtype=np.float32) + rank.rank
            tw.distributed.matmul_reduce_scatter(given, columns, out, buffer, residual, bias)
            expected = expected + (0 if residual is None else residual)
            expected = expected + (0 if bias is None else rank.size * np.arange(n) + rank.size * (rank.size - 1) // 2)
        is_right = is_right and np.array_equal(out, expected)
    return is_right


# --- what they compute ----------------------------------------------------------------------------------------

slow = pytest.mark.slow
CASES = {
    "cooperative": (COOPERATIVE, 2, (130, 72, 200), {"calls": 3}, slow),
    "ping-pong": (PING_PONG, 2, (70, 72, 72), {"calls": 2}, ()),
    "twice the K": (DEEP, 2, (16, 32, 72), {}, ()),
    "twice the K, a rest of it": (DEEP, 2, (129, 72, 264), {"major": "K"}, slow),
    "clusters": (CLUSTERS, 2, (130, 136, 136), {}, slow),
    "three ranks": (PING_PONG, 3, (70, 72, 136), {"calls": 3}, slow),
    "four ranks, odd columns": (COOPERATIVE, 4, (20, 65, 72), {"major": "K"}, slow),
    "float16, w along K": (COOPERATIVE, 2, (129, 64, 128), {"dtype": np.float16, "major": "K"}, slow),
    "8 bits": (replace(COOPERATIVE, tile=(128, 64, 128)), 2, (70, 64, 272), {"dtype": ml_dtypes.float8_e4m3fn, "major": "K"}, slow),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=case[4], id=name) for name, case in CASES.items()])
def test_ranks_compute_the_whole_product_in_one_launch(name: str) -> None:
    configuration, ranks, extents, more, _ = CASES[name]
    with only(configuration) as kernel:
        assert all(tw.simulate(ranks=ranks).run(lambda rank: program(rank, *extents, **more)))  # type: ignore[arg-type]
    assert kernel.launched


SCATTERED = {
    "cooperative": (COOPERATIVE, 2, (130, 72, 136), {"calls": 3}, slow),
    "ping-pong": (PING_PONG, 2, (70, 72, 72), {"calls": 2}, ()),
    "all of the sum": (COOPERATIVE, 2, (130, 72, 72), {"calls": 2, "all": True}, slow),
    "clusters": (CLUSTERS, 2, (130, 136, 136), {}, slow),
    "three ranks": (PING_PONG, 3, (70, 72, 136), {"calls": 3}, slow),
    "four ranks": (COOPERATIVE, 4, (20, 64, 72), {"major": "K"}, slow),
    "twice the K": (DEEP, 2, (16, 32, 200), {}, slow),
    "turns, ping-pong": (replace(PING_PONG, tile=(128, 64, 64)), 2, (140, 72, 72), {"major": "K"}, slow),
    "float16, w along K": (COOPERATIVE, 2, (129, 64, 128), {"dtype": np.float16, "major": "K"}, slow),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=case[4], id=name) for name, case in SCATTERED.items()])
def test_ranks_compute_their_rows_of_the_sum_in_one_launch(name: str) -> None:
    configuration, ranks, extents, more, _ = SCATTERED[name]
    with only(configuration, "SCATTERED") as kernel:
        assert all(tw.simulate(ranks=ranks).run(lambda rank: scatters(rank, *extents, **more)))  # type: ignore[arg-type]
    assert kernel.launched


RING = {
    "cooperative": (COOPERATIVE, 3, (130, 72, 72), {"calls": 3}, slow),
    "ping-pong, parts along rows": (PING_PONG, 3, (40, 192, 72), {}, ()),
    "tiles over two parts": (PING_PONG, 3, (40, 192, 72), {}, slow),
    "four ranks": (replace(PING_PONG, blocks=3), 4, (40, 192, 72), {}, slow),
    "all of the sum": (PING_PONG, 3, (40, 72, 72), {"calls": 2, "all": True}, slow),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=case[4], id=name) for name, case in RING.items()])
def test_sums_pass_from_rank_to_rank(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel, and by launches where it does not take a product."""
    configuration, ranks, extents, more, _ = RING[name]
    for limit, value in (("RING_BYTES", 1), ("_PART_ROWS", 64), ("_TILE", 96 if name.startswith("tiles") else 64)):
        monkeypatch.setattr(exchanged, limit, value)
    parts = exchanged.parts_of_sums(*extents[:2], 4, ranks)
    assert (parts[1] < extents[1]) is (extents[1] > 128)
    with only(configuration, "SCATTERED") as kernel:
        assert all(tw.simulate(ranks=ranks).run(lambda rank: scatters(rank, *extents, **more)))  # type: ignore[arg-type]
    assert kernel.launched


@pytest.mark.slow
@pytest.mark.parametrize(("calls", "all_of_it"), [(3, False), (2, True)])
def test_sums_pass_from_rank_to_rank_by_launches(calls: int, all_of_it: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanged, "RING_BYTES", 1)
    more: dict[str, Any] = {"all": True} if all_of_it else {}
    assert all(tw.simulate(ranks=3).run(lambda rank: scatters(rank, 16, 16, 16, calls, dtype=np.float32, **more)))


def test_tiles_of_each_depth_are_simulated() -> None:
    """Those that are taken may cover a part along K, or a multiple of parts."""
    operand, result = Operand(tw.bfloat16, "K", 16), Operand(tw.bfloat16, "MN", 16)
    problem = Problem(129, 264, 200, 2, operand, operand, result, tw.bfloat16, tw.float32)
    for family, cases in ((exchanged.GATHERED, CASES), (exchanged.SCATTERED, SCATTERED)):
        simulated = {configuration.tile[2] for configuration, *_ in cases.values()}
        assert {c.tile[2] for c in family.configurations(problem, H200)} <= simulated


@pytest.mark.slow
def test_rows_are_sent_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanged, "_PART_ROWS", 128)
    with only(COOPERATIVE):
        assert all(tw.simulate(ranks=2, schedules=2).run(lambda rank: program(rank, 300, 64, 72, 2)))


def test_what_the_kernel_does_not_take_is_computed_by_launches() -> None:
    with only(COOPERATIVE) as kernel:
        assert all(tw.simulate(ranks=2).run(lambda rank: program(rank, 16, 16, 20)))  # rows of 40 bytes
        assert all(tw.simulate(ranks=2).run(lambda rank: program(rank, 16, 16, 16, dtype=np.float32)))
    assert not kernel.launched
    with only(COOPERATIVE, "SCATTERED") as kernel:
        assert all(tw.simulate(ranks=2).run(lambda rank: scatters(rank, 16, 15, 24, 2)))  # sums of odd rows
        assert all(tw.simulate(ranks=2).run(lambda rank: scatters(rank, 16, 16, 16, dtype=np.float32)))
    assert not kernel.launched


@pytest.mark.parametrize(
    ("name", "extents", "tile"),
    [
        ("GATHERED", (512, 4096, 8192), (128, 128, 64)),
        ("SCATTERED", (512, 8192, 4096), (128, 128, 64)),
        ("GATHERED", (4096, 4096, 8192), (128, 256, 64)),
    ],
)
def test_tiles_are_those_that_two_gpus_were_fastest_with(
    name: str, extents: tuple[int, int, int], tile: tuple[int, int, int]
) -> None:
    """1024 x 8192 x 8192 over two ranks, and 8192 cubed.

    The tiles of few rows of the rank's own keep all blocks until the others come, and sums leave in ping-pong.
    """
    a, b = Operand(tw.bfloat16, "K", 16), Operand(tw.bfloat16, "MN", 16)
    problem = Problem(*extents, 2, a, b, b, tw.bfloat16, tw.float32)
    family: RingFamily = getattr(exchanged, name)
    found = family.choose(problem, H200)
    assert found is not None and (found.tile, found.is_ping_pong) == (tile, name == "SCATTERED")
    with_bias = family.configurations(replace(problem, bias=tw.bfloat16), H200)
    is_there = any(c.is_ping_pong and c.tile[:2] == (128, 192) for c in with_bias)
    assert with_bias and is_there == (name == "GATHERED")


def test_stores_to_other_gpus_rest_while_others_multiply() -> None:
    """All pauses of a tile take half of its time; where a block has one tile, nothing is multiplied meanwhile."""
    a, b = Operand(tw.bfloat16, "K", 16), Operand(tw.bfloat16, "MN", 16)

    def chosen(family: RingFamily, m: int, n: int, k: int) -> Any:
        return exchanged._chosen(family, Problem(m, n, k, 2, a, b, b, tw.bfloat16, tw.float32), H200)

    large, small = chosen(exchanged.SCATTERED, 512, 8192, 4096), chosen(exchanged.SCATTERED, 256, 4096, 4096)
    assert 16 * large.pause_of_tiles() == pytest.approx(500 * large.tile_us, rel=0.01) and large.tile_us > 20
    assert small.rounds < 1 and small.pause_of_tiles() is None
    large, small = chosen(exchanged.GATHERED, 512, 4096, 8192), chosen(exchanged.GATHERED, 512, 2048, 8192)
    one, parts = large.pause_of_senders(1, 8 << 20, 2), large.pause_of_senders(8, 8 << 20, 2)
    assert parts <= one <= 500 * large.tile_us and 8 * 2 * parts == pytest.approx(400 * large.tile_us, rel=0.01)
    assert small.pause_of_senders(8, 8 << 20, 2) is None


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.sampled_from([1, 2, 4, 8]), st.integers(2, 4))
@examples(50, 500)
def test_parts_are_few_and_made_of_whole_tiles(rows: int, columns: int, bytes: int, ranks: int) -> None:
    for parts, multiple in ((parts_of, 128), (exchanged.parts_of_sums, 256 * bytes)):
        height, width = parts(rows, columns, bytes, ranks)
        assert -(-rows // height) * -(-columns // width) <= exchanged.MOST_PARTS
        assert height == rows or height % 256 == 0  # the tallest tile, of which a cluster has two
        assert width == columns or width * bytes % multiple == 0
    assert columns % width == 0 or columns % width >= 256  # the widest tile: one begins in each part of sums


# --- what is left out is found -------------------------------------------------------------------------------

KERNELS = {"GATHERED": program, "SCATTERED": scatters}


def kernel_of(name: str, extents: tuple[int, int, int]) -> Any:
    """Return the kernel that ranks launch."""
    launched: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        launch = Rank.launch
        patch.setattr(Rank, "launch", lambda self, each: (launched.append(each.kernel), launch(self, each)))
        tw.simulate(ranks=2).run(lambda rank: KERNELS[name](rank, *extents))
    assert len(launched) == 2 and launched[0] is launched[1]
    return launched[0]


def kinds(name: str, extents: tuple[int, int, int]) -> set[str]:
    with tw.simulate(ranks=2, raise_errors=False) as run:
        is_right = run.run(lambda rank: KERNELS[name](rank, *extents, 2))
    return {finding.kind for finding in run.findings} | ({"wrong"} if not all(is_right) else set())


@pytest.mark.parametrize(
    "word", [(op, *weaker) for op in ("waits", "tells") for weaker in (("sem", "relaxed"), ("scope", "gpu"))], ids=str
)
@pytest.mark.parametrize("name", rest_is_slow(KERNELS, "SCATTERED"))
@pytest.mark.spread(4)
def test_each_word_between_ranks_is_needed(name: str, word: tuple[str, str, str]) -> None:
    extents, (which, field, weaker) = (64, 64, 8), word
    with only(COOPERATIVE, name):
        kernel = kernel_of(name, extents)
        (load,) = [op for op in kernel.body.walk() if isinstance(op, OrderedLoad)]
        tell = [op for op in kernel.body.walk() if isinstance(op, OrderedStore)][-1]
        assert kinds(name, extents) == set()
        op = load if which == "waits" else tell
        strong = getattr(op, field)
        object.__setattr__(op, field, weaker)
        try:
            assert "race" in kinds(name, extents), (op, field)
        finally:
            object.__setattr__(op, field, strong)


@pytest.mark.parametrize(
    ("configuration", "place", "extents"),
    [
        pytest.param(COOPERATIVE, 0, (130, 72, 72), id="next", marks=slow),
        pytest.param(COOPERATIVE, 1, (64, 64, 72), id="last"),
        pytest.param(PING_PONG, 0, (200, 72, 72), id="next, ping-pong", marks=slow),
    ],
)
def test_a_tile_is_told_of_when_its_stores_are_complete(
    configuration: HopperConfiguration, place: int, extents: tuple[int, int, int]
) -> None:
    """With the block's next tile, in ping-pong before its products, and behind its last one."""
    with only(configuration, "SCATTERED"):
        kernel = kernel_of("SCATTERED", extents)
        ops = list(kernel.body.walk())
        first = next(n for n, op in enumerate(ops) if isinstance(op, BulkWait) and not op.read)
        products = next(n for n, op in enumerate(ops) if isinstance(op, WgmmaWait))
        assert (first < products) is configuration.is_ping_pong
        blocks = [kernel.body, *(b for op in kernel.body.walk() for b in op.blocks)]
        places = [(b, op) for b in blocks for op in b.ops if isinstance(op, BulkWait) and not op.read]
        assert len(places) == 2
        block, op = places[place]
        with without(block, op):
            assert "missing-wait" in kinds("SCATTERED", extents)


@pytest.mark.slow
def test_each_synchronisation_is_needed_and_missed() -> None:
    name, extents = "GATHERED", (130, 64, 136)  # the own rows too take more tiles of K than there are stages
    with only(COOPERATIVE, name):
        kernel = kernel_of(name, extents)
        blocks = [kernel.body, *(b for op in kernel.body.walk() for b in op.blocks)]
        places = [(b, op) for b in blocks for op in b.ops if isinstance(op, (*SYNCHRONISATIONS, OrderedStore))]
        assert len(places) > 15
        # A ring lets a warp meet before it hands a stage back. Only products read it, and their wait is enough.
        spare = [op for _, op in places if isinstance(op, Barrier) and op.effects.together is Scope.WARP]
        del spare[0]  # the first is that of the warps that copy
        wrong = []
        for block, op in places:
            needed = not any(op is each for each in spare)
            with without(block, op):
                if bool(kinds(name, extents)) is not needed:
                    wrong.append((type(op).__name__, op.location))
    assert not wrong, wrong


# --- what is compiled ----------------------------------------------------------------------------------------


def compiled() -> Iterator[object]:
    """Yield each configuration of each kernel."""
    for dtype, majors in ((tw.bfloat16, "KK"), (tw.bfloat16, "KM"), (tw.float8_e4m3fn, "KK")):
        a, b = (Operand(dtype, "K" if major == "K" else "MN", 16) for major in majors)
        for family in (exchanged.GATHERED, exchanged.SCATTERED):
            for aligned in (16, 2):
                d = Operand(tw.bfloat16, "MN", aligned)
                problem = Problem(4096, 4096, 8192, 2, a, b, d, dtype, tw.float32)
                if problem.promotes and family is exchanged.SCATTERED:
                    continue
                for c in family.configurations(problem, H200):
                    words = f"{family.kernel.__name__}, {dtype}, {majors}, {aligned}, {c}"
                    yield pytest.param(family, problem, c, False, id=words)
                    if family is exchanged.SCATTERED and majors == "KM" and dtype is tw.bfloat16:
                        yield pytest.param(family, problem, c, True, id=f"{words}, in a ring")


def matrix(dtype: tw.DType, rows: int, columns: int, matrices: int = 0, major: str = "K", row: int = 0) -> object:
    """Return the description of a matrix, or of several that lie one after another."""
    row = row or (columns if major == "K" else rows)
    stride = (row, 1) if major == "K" else (1, row)
    if not matrices:
        return tw.spec(dtype, (rows, columns), stride=stride)
    step = 0 if matrices == 1 else row * (rows if major == "K" else columns)
    return tw.spec(dtype, (rows, columns, matrices), stride=(*stride, step))


@pytest.mark.parametrize(("family", "problem", "configuration", "in_ring"), list(compiled()))
@pytest.mark.spread(50)
def test_nothing_spills(
    family: RingFamily, problem: Problem, configuration: HopperConfiguration, in_ring: bool
) -> None:
    """At least not in the loop of the products. Neither do these wait for each other, which ptxas would tell."""
    m, n, k = problem.m, problem.n, problem.k
    row = n if problem.d.alignment == 16 else n + 1
    d = matrix(tw.bfloat16, m, n, 1 if family is exchanged.SCATTERED else 2, row=row)
    b = matrix(problem.b.dtype, n, k, 1, problem.b.major)
    flag, zero, own = tw.spec(tw.int32, (2, 8)), np.int32(0), matrix(problem.a.dtype, m, k)
    several, come = matrix(problem.a.dtype, m, k, 2), matrix(tw.bfloat16, m, n, 2, row=row) if in_ring else d
    exchange = [flag], flag, tw.spec(tw.int32, (1, 8)), zero
    launcher, plan = family.launch(problem, configuration, H200)
    if family is exchanged.SCATTERED:
        arguments: tuple[Any, ...] = (
            d,
            several,
            b,
            [],
            [],
            [d],
            [come],
            *exchange,
            (1024, n),
            zero if plan.is_ping_pong else None,
            zero,
            False,
            in_ring,
            plan,
        )
    else:
        arguments = (d, own, b, [], several, [own], *exchange, (1024, k), zero, zero, plan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = launcher.resources(*arguments, arch="sm_90a")
        if found.spills:  # what is needed from tile to tile lies in local memory while one is multiplied
            code = launcher.sass(*arguments, arch="sm_90a").splitlines()
            products = [n for n, line in enumerate(code) if "HGMMA" in line]
            assert configuration.tile[:2] == (128, 192) and configuration.is_ping_pong and products
            assert not any(x in line for line in code[products[0] : products[-1]] for x in ("STL", "LDL"))
        else:
            assert found.local_bytes == 0, found
