"""The Hopper family of `tw.grouped_matmul`: what it takes, that each configuration compiles well, what is chosen."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.one_family import only_grouped
from tests.helpers.slow import examples

import tilewright as tw
from tilewright.arch import ARCHES, GPUS, Arch
from tilewright.kernels.grouped_hopper import GroupedHopper, RaggedProblem
from tilewright.kernels.hopper import Hopper
from tilewright.kernels.hopper_plan import HopperConfiguration
from tilewright.kernels.model import Machine
from tilewright.kernels.problem import Operand, types_of

BF16 = ml_dtypes.bfloat16
H200, FAMILY = Machine.of(Arch.parse("sm_90a")), GroupedHopper()


def problem_of(
    ragged: Any, m: int, n: int, k: int, majors: str = "KK", dtype: tw.DType = tw.bfloat16, groups: int = 8
) -> RaggedProblem:
    a, b = (Operand(dtype, "K" if major == "K" else "MN", 16) for major in majors)
    return RaggedProblem(ragged, m, n, k, groups, a, b, Operand(dtype, "MN", 16), types_of(dtype, dtype, None, None))


def compiled() -> Iterator[Any]:
    """Yield each configuration for each form; most of them are slow."""
    for ragged, majors in (("M", "KK"), ("M", "KM"), ("K", "MM")):
        for odd in (False, True):
            for c in FAMILY.configurations(problem_of(ragged, 4096, 4096, 4096, majors), H200):
                for rows in (4096, 512)[: 1 + (ragged == "M" and not c.is_ping_pong and c.tile[0] == 128)]:
                    quick = majors in ("KM", "MM") and not odd and c.tile[:2] == (128, 256)
                    name = f"{ragged}, {majors}, {c}{', odd rows' * odd}{', few' * (rows < 4096)}"
                    yield pytest.param(ragged, majors, odd, rows, c, marks=() if quick else pytest.mark.slow, id=name)


def arguments_of(problem: RaggedProblem, odd: bool = False) -> list[Any]:
    """Return specifications of what a kernel takes: D, A, B and offsets."""
    m, n, k, groups = problem.m, problem.n, problem.k, problem.groups

    def matrix(rows: int, columns: int, major: str, count: int = 1, more: int = 0) -> Any:
        stride = (columns + more, 1) if major == "K" else (1, rows)
        return tw.spec(tw.bfloat16, (rows, columns, count), stride=(*stride, rows * columns * (count > 1)))

    per_d, per_b = (1, groups) if problem.ragged == "M" else (groups, 1)
    a, b = matrix(m, k, problem.a.major), matrix(n, k, problem.b.major, per_b)
    return [matrix(m, n, "K", per_d, odd), a, b, tw.spec(tw.int32, (groups,))]


@pytest.mark.parametrize(("ragged", "majors", "odd", "rows", "configuration"), list(compiled()))
def test_nothing_spills(ragged: Any, majors: str, odd: bool, rows: int, configuration: HopperConfiguration) -> None:
    """Neither do products wait for each other, which ptxas would tell."""
    problem = problem_of(ragged, rows, 4088, 4080, majors)
    if odd:
        problem = replace(problem, d=Operand(tw.bfloat16, "MN", 2))
    launcher, plan = FAMILY.launch(problem, configuration, H200.arch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = launcher.resources(*arguments_of(problem, odd), plan, arch="sm_90a")
    assert not found.spills and found.local_bytes == 0, found


@pytest.mark.parametrize("rows", [(20, 64, 65, 193), (20, 40, 140, 400)])
def test_rows_that_few_groups_have_are_all_that_is_read_and_multiplied(rows: tuple[int, ...]) -> None:
    """Of a tile with 64 rows or fewer the half that one consumer has; with more rows a group the tiles are whole."""
    total, (n, k), unit = sum(rows), (72, 72), 64 if sum(rows) <= 128 * len(rows) else 128
    a, b = np.ones((total, k), BF16), np.ones((len(rows), n, k), BF16).transpose(0, 2, 1)
    ends = np.cumsum(rows).astype(np.int32)
    with only_grouped(HopperConfiguration((128, 64, 64), (8, 1), 3, 2, blocks=2)), tw.simulate(profile=True) as run:
        tw.grouped_matmul(a, b, ends, out_dtype=tw.float32)
    found, whole, tiles = run.profile.total, [-(-r // unit) * unit for r in rows], sum(-(-r // 128) for r in rows)
    reached = [min(w, total - end + r) for w, r, end in zip(whole, rows, ends.tolist(), strict=True)]  # in the array
    assert found.bulk_moved["load"] == 2 * k * 2 * sum(reached) + tiles * n * k * 2
    assert found.products == 2 * 2 * 4 * sum(whole) // 64  # of two columns of tiles, two tiles of K with 4 of 16 each


@pytest.mark.parametrize("arch", [a for a in ARCHES if a != "sm_90a"])
def test_other_targets_have_no_configurations(arch: str) -> None:
    assert not FAMILY.configurations(problem_of("M", 512, 512, 512), Machine.of(Arch.parse(arch)))


@pytest.mark.parametrize(
    "change",
    [
        {"k": 0}, {"m": 0}, {"a": Operand(tw.bfloat16, "K", 8)}, {"b": Operand(tw.bfloat16, "none", 16)},
        {"types": types_of(tw.float32, tw.float32, None, "tf32")},
    ],
    ids=["no K", "no rows", "rows at 8 bytes", "no contiguous mode", "tf32"],
)  # fmt: skip
def test_what_no_tensor_map_or_instruction_takes(change: dict[str, Any]) -> None:
    problem = problem_of("M", 512, 512, 512)
    assert FAMILY.configurations(problem, H200) and not FAMILY.configurations(replace(problem, **change), H200)


def test_three_consumers_are_not_for_groups() -> None:
    """`tw.matmul` has them where one wave holds all tiles, as of 512 rows for 32 experts; groups are for two."""
    problem = problem_of("M", 512, 768, 7168, "KM", groups=32)
    for c in FAMILY.configurations(problem, H200):
        launcher, launched = FAMILY.launch(problem, c, H200.arch)
        assert launcher.block == 128 * (1 + launched.plan.consumers), c


def test_blocks_of_groups_share_nothing() -> None:
    """Those of `tw.matmul` do where rows begin between lines, above each other and side by side."""
    for m, n, k in ((512, 768, 7160), (6256, 976, 5792)):
        problem = problem_of("M", m, n, k)
        problem = replace(problem, a=replace(problem.a, line=16), b=replace(problem.b, line=16))
        assert any(c.configuration.cluster_n > 1 for c in Hopper().candidates(problem.alike(), H200))
        assert all(c.cluster_size == 1 for c in FAMILY.configurations(problem, H200))


@examples(10, 100)
@given(
    ragged=st.sampled_from("MK"),
    extents=st.tuples(*[st.integers(1, 40000)] * 3),
    groups=st.integers(1, 300),
    gpu=st.sampled_from([g for g in GPUS.values() if g.arch.name == "sm_90a"]),
)
def test_a_configuration_is_chosen(ragged: Any, extents: tuple[int, int, int], groups: int, gpu: Any) -> None:
    """It fits, it takes at least the time of its bytes, and more for more columns."""
    machine = Machine(gpu.arch, gpu)
    problem = problem_of(ragged, *extents, "MM" if ragged == "K" else "KK", groups=groups)
    c = FAMILY.choose(problem, machine)
    assert c is not None and c.blocks == machine.multiprocessors
    found = FAMILY.predict(problem, c, machine).us
    assert found >= problem.bytes / machine.bandwidth
    wider = replace(problem, n=4 * problem.n + 40000)
    assert FAMILY.predict(wider, c, machine).us > found
    launcher, _ = FAMILY.launch(problem, c, machine.arch)
    assert isinstance(launcher.grid, int) and 0 < launcher.grid <= machine.multiprocessors


@pytest.mark.parametrize(("ragged", "extents", "groups"), [("M", (400000, 14336, 64), 8), ("K", (4096, 14336, 64), 64)])
def test_results_of_more_than_2_to_the_31_elements(ragged: Any, extents: tuple[int, int, int], groups: int) -> None:
    """Places in D are 64 bits wide there; where groups begin is not."""
    problem = problem_of(ragged, *extents, "MM" if ragged == "K" else "KM", groups=groups)
    c = FAMILY.choose(problem, H200)
    assert c is not None
    launcher, plan = FAMILY.launch(problem, c, H200.arch)
    text = launcher.source(*arguments_of(problem), plan, arch="sm_90a")
    assert "long long D_shape0" in text and "int self_end = 0;" in text


def test_what_was_fastest_is_chosen() -> None:
    """Of 8 experts, 4096 -> 14336: consumers in ping-pong for many rows, the largest tile where memory is the bound."""
    for ragged, majors in (("M", "KK"), ("K", "MM")):
        m, k = (32768, 4096) if ragged == "M" else (4096, 32768)
        many = FAMILY.choose(problem_of(ragged, m, 14336, k, majors), H200)
        assert many is not None and many.is_ping_pong and many.tile[:2] == (128, 128)
    few = FAMILY.choose(problem_of("M", 512, 14336, 4096), H200)
    assert few is not None and not few.is_ping_pong and few.tile[:2] == (128, 256)
