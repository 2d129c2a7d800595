"""The family for many rows times weights of 4 or 8 bits: tiles through a ring of stages, dequantised in registers.

The kernel is `_weights_kernel.multiply_weights`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from tilewright import atoms
from tilewright.arch import Arch
from tilewright.atoms import CopyAtom, CpAsync, UniversalCopy
from tilewright.kernels._weights_kernel import multiply_weights
from tilewright.kernels.epilogue import ElementEpilogue
from tilewright.kernels.family import KernelLaunch, Resources
from tilewright.kernels.model import Machine, Prediction, blocks_with, lack_of_products, lack_of_shared, predict_waves
from tilewright.kernels.problem import Configuration, Problem
from tilewright.kernels.weight_plan import WeightFamily, WeightPlan, instruction_of, launch_plan
from tilewright.kernels.weights import CHUNK, TILE, WeightFormat
from tilewright.launch import Kernel
from tilewright.layout import ComposedLayout, Layout, Swizzle
from tilewright.tiled import TiledCopy, make_tiled_copy, make_tiled_copy_B, make_tiled_mma

# What the prediction takes: the share of their peak that matrix instructions of warps reach beside the conversions, and
# in microseconds what a step of K takes beside its arithmetic, and a launch. With it six configurations, of 20 to 116
# us for 16 rows of 8192 x 8192 weights of 4 bits on an H200, are predicted within a tenth.
_SHARE, _STEP_US, _START_US = 0.43, 0.35, 7.0

# Rows of x, columns of the weights; warps along columns, along rows, and those that divide K; stages.
_TILES = (
    ((16, 64), (2, 1, 4), 3),
    ((32, 64), (2, 1, 4), 3),
    ((64, 64), (2, 2, 2), 4),
    ((64, 128), (4, 1, 2), 3),
    ((128, 64), (2, 4, 1), 4),
    ((128, 128), (4, 2, 1), 4),
)


@dataclass(frozen=True)
class TileConfiguration(Configuration):
    """`tile` = (rows of x, columns, K of a stage), `warps` = (along columns, along rows), and `shares` of K."""

    shares: int = 1

    @property
    def threads(self) -> int:
        return 32 * self.warps[0] * self.warps[1] * self.shares

    def __str__(self) -> str:
        return f"{super().__str__()}, K in {self.shares}"


@dataclass(frozen=True)
class TilePlan(WeightPlan):
    """A plan for a ring of `stages`; `warps` are those along columns and along rows."""

    warps: tuple[int, int]
    stages: int
    fill: TiledCopy  # x from global to shared memory

    def __hash__(self) -> int:  # a dataclass does not inherit one
        return super().__hash__()

    @property
    def copy_words(self) -> CopyAtom:
        found: CopyAtom = CpAsync(128, cache="global")
        return found

    @property
    def vectors_of_block(self) -> int:
        """The vectors of 16 bytes of a chunk of a tile."""
        return 64 * self.vectors

    @property
    def word_vectors(self) -> int:
        """Those of a stage."""
        return self.vectors_of_block * self.shares * self.block_tiles

    @property
    def smem_w(self) -> Layout:
        """Weights lie as in global memory, tile after tile: ((word, vector), chunk, tile, stage)."""
        block = 4 * self.vectors_of_block
        shape = ((4, self.vectors_of_block), self.shares, self.block_tiles, self.stages)
        tile = block * self.shares
        return Layout(shape, ((1, 4), block, tile, tile * self.block_tiles))

    @property
    def smem_x(self) -> ComposedLayout:
        """x: (row, (element, chunk), stage), with 256 bytes of a row of a chunk.

        The swizzle puts the 16 bytes of eight rows, which ldmatrix reads at once, into different banks.
        """
        chunk = self.tokens * CHUNK
        shape = (self.tokens, (CHUNK, self.shares), self.stages)
        return ComposedLayout(Swizzle(3, 3, 4), 0, Layout(shape, (CHUNK, (1, chunk), chunk * self.shares)))

    @property
    def load_x(self) -> TiledCopy:
        """Loads fragments of x: two instructions' of a step at once."""
        return make_tiled_copy_B(atoms.SM75_U32x4_LDSM_N, self.mma)

    @property
    def shared_bytes(self) -> int:
        stage = self.shares * (self.tokens * CHUNK * 2 + self.block_tiles * 16 * self.vectors_of_block)
        return max(self.stages * stage, self.shares * self.tokens * (self.columns + 4) * 4)


class WeightTiles(WeightFamily):
    """Tiles of x and of packed weights in shared memory, multiplied by warps that convert what they read."""

    name = "weight tiles"

    def configurations(self, problem: Problem, arch: Arch) -> Sequence[Configuration]:
        """Return the tiles of 16 to 128 rows by 64 or 128 columns."""
        if problem.weights is None:
            return []
        return [
            TileConfiguration((*tile, CHUNK * shares), (across, down), stages, 1, shares)
            for tile, (across, down, shares), stages in _TILES
        ]

    def resources(self, problem: Problem, configuration: Configuration, arch: Arch) -> Resources:
        rows, columns, _ = configuration.tile
        across, down = configuration.warps
        accumulators = rows * columns // (32 * across * down)
        if arch.number < 80:
            return Resources(0, accumulators, lack_of_products(problem, arch))
        shared = tile_plan(problem, configuration).shared_bytes
        registers, limit = _registers(problem, configuration), arch.registers_per_thread - 10
        rejection = None
        if shared > arch.shared_bytes_optin:
            rejection = lack_of_shared(shared, arch)
        elif registers > limit:
            rejection = f"about {registers} registers a thread; there are {limit}"
        return Resources(shared, accumulators, rejection)

    def predict(
        self, problem: Problem, configuration: Configuration, resources: Resources, machine: Machine
    ) -> Prediction:
        """Return the waves of steps of K, each its arithmetic at a share of the peak rate, and a latency."""
        m, n, k = configuration.tile
        registers = _registers(problem, configuration)
        blocks = blocks_with(configuration.threads, registers, resources.shared_bytes, machine.arch)
        rate = machine.rate(problem.compute) or machine.rate(problem.accumulator)
        assert rate is not None, machine.gpu.name
        step_us = 2 * m * n * k / (_SHARE * rate)
        steps = tuple(_STEP_US + held * step_us for held in range(1, blocks + 1))
        found = predict_waves(problem, configuration, blocks, steps, machine)
        return replace(found, compute_us=found.compute_us + _START_US)

    def launch(self, problem: Problem, configuration: Configuration, arch: Arch) -> KernelLaunch:
        return launch_plan(problem, tile_plan(problem, configuration), arch, _kernel)


def _registers(problem: Problem, configuration: Configuration) -> int:
    """Return about how many registers a thread takes: weights, x, sums of a group and of all."""
    weights: WeightFormat | None = problem.weights
    assert weights is not None
    rows, columns, _ = configuration.tile
    across, down = configuration.warps
    tiles, of_x = columns // TILE // across, rows // (8 * down)
    groups = 3 * tiles * weights.groups_in_chunk
    return 2 * weights.bits * tiles + 4 * of_x + 8 * tiles * of_x + 4 * tiles + groups + 50


@cache
def _kernel(further: int) -> Kernel:
    return multiply_weights.numbered(further).configure(min_blocks=1)


@lru_cache(maxsize=1024)
def tile_plan(problem: Problem, configuration: Configuration) -> TilePlan:
    """Plan a kernel; problems that differ in extents only have equal plans."""
    assert problem.weights is not None and isinstance(configuration, TileConfiguration)
    rows, columns, _ = configuration.tile
    (across, down), shares = configuration.warps, configuration.shares
    beside = 16 * shares  # threads along a row of x
    threads = configuration.threads
    # Two instructions along the rows for each warp, whose operand B is one ldmatrix.
    mma = make_tiled_mma(instruction_of(problem), (across, down, 1), (16 * across, 16 * down, 16))
    atom = CpAsync(128, cache="global") if problem.a.alignment % 16 == 0 else UniversalCopy(16)
    return TilePlan(
        problem.weights.without_extents(),
        columns // TILE // across,
        columns // TILE,
        rows,
        shares,
        mma,
        ElementEpilogue.of(problem),
        (across, down),
        configuration.stages,
        make_tiled_copy(atom, Layout((threads // beside, beside), (beside, 1)), Layout((1, 8))),
    )
