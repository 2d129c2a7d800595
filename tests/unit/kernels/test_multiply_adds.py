"""Float32 by multiply-adds of single threads: each tiling that a call can choose, whole tiles and edges, with splits."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.arch import Arch
from tilewright.kernels.multistage import _STEPS_US, Multistage, _kernel
from tilewright.kernels.multistage_plan import plan_for
from tilewright.kernels.problem import Configuration, Operand, Problem
from tilewright.kernels.split_k import sums_problem

ARCH = Arch.parse("sm_90a")
WARPS = {(tile, warps): stages for tile, warps, stages in _STEPS_US[tw.float32]}


def product(extents: tuple[int, int, int], majors: str, configuration: Configuration) -> None:
    """Compute sums of splits in the simulator, and compare their sum with float64."""
    m, n, k = extents
    random = np.random.default_rng(0)

    def operand(rows: int, major: str) -> tuple[Operand, np.ndarray]:
        x = random.standard_normal((rows, k)).astype(np.float32)
        x = x if major == "K" else np.asfortranarray(x)
        aligned = (k if major == "K" else rows) % 4 == 0
        return Operand(tw.float32, "K" if major == "K" else "MN", 16 if aligned else 4), x

    (a, A), (b, B) = operand(m, majors[0]), operand(n, majors[1])
    problem = Problem(m, n, k, 1, a, b, Operand(tw.float32, "MN", 16 if n % 4 == 0 else 4), tw.float32, tw.float32)
    plan = plan_for(sums_problem(problem) if configuration.splits > 1 else problem, configuration, ARCH)
    row = -(-n // 4) * 4
    sums = np.full((configuration.splits, m, row), np.nan, np.float32).transpose(1, 2, 0)[:, :n]
    tile_m, tile_n, _ = configuration.tile
    blocks = -(-m // tile_m) * -(-n // tile_n) * configuration.splits
    one, zero = np.float32(1), np.float32(0)
    _kernel(0)[blocks, plan.threads](sums, A[:, :, None], B[:, :, None], one, zero, plan)
    wide_a, wide_b = A.astype(np.float64), B.astype(np.float64)
    error = np.abs(sums.sum(axis=2) - wide_a @ wide_b.T) / (np.abs(wide_a) @ np.abs(wide_b).T)
    assert error.max() < 5e-7


@pytest.mark.parametrize(
    ("tile", "warps"),
    [
        ((100, 100, 25), (1, 4)),
        ((64, 256, 8), (1, 4)),
        ((64, 64, 8), (1, 2)),
        pytest.param((128, 256, 8), (2, 4), marks=pytest.mark.slow),
        pytest.param((128, 128, 8), (2, 4), marks=pytest.mark.slow),
        pytest.param((64, 128, 8), (1, 4), marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize("majors", ["KM", pytest.param("MK", marks=pytest.mark.slow)])
def test_tilings_multiply(tile: tuple[int, int, int], warps: tuple[int, int], majors: str) -> None:
    m, n, k = tile
    configuration = Configuration(tile, warps, WARPS[tile, warps], splits=2)
    product((m, n, 10 * k), majors, configuration)  # whole tiles only
    product((m - 3, n - 1, 9 * k + 3), majors, configuration)


def test_threads_that_share_a_tile_evenly() -> None:
    """A tile of 100 x 100 is 5 x 25 parts of 20 x 4, and 125 threads copy both operands without a rest."""
    operand = Operand(tw.float32, "MN", 16)
    problem = Problem(100, 100, 4000, 1, operand, operand, operand, tw.float32, tw.float32)
    plan = plan_for(problem, Configuration((100, 100, 25), (1, 4), 3), ARCH)
    assert plan.threads == 125
    assert plan.mma.partition_shape((100, 100), "C") == (1, (4, 5), (4, 1))
    assert plan.a.copy.atom.values(tw.float32) == plan.b.copy.atom.values(tw.float32) == 4


def test_epilogues_have_whole_warps() -> None:
    """Threads that are no whole warps, as those of 100 x 100, make sums of splits alone: epilogues are another kernel's."""
    operand = Operand(tw.float32, "MN", 16)
    problem = Problem(100, 100, 100000, 1, operand, operand, operand, tw.float32, tw.float32)
    tiles: dict[bool, set[tuple[tuple[int, int, int], bool]]] = {}
    for c in Multistage().configurations(problem, ARCH):
        plan = plan_for(sums_problem(problem) if c.splits > 1 else problem, c, ARCH)
        tiles.setdefault(plan.threads % 32 == 0, set()).add((c.tile, c.splits > 1))
    assert tiles[False] == {((100, 100, 25), True)}
