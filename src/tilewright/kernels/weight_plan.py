"""What families of kernels for packed weights, and their plans, have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright import atoms
from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.atoms import CopyAtom, MMAAtom, UniversalCopy
from tilewright.dtypes import float16
from tilewright.kernels.epilogue import ElementEpilogue
from tilewright.kernels.family import Family, KernelLaunch, LayoutNeeds, Needs, launch_of, with_numbers
from tilewright.kernels.problem import Problem
from tilewright.kernels.weights import STEPS, TILE, WeightFormat
from tilewright.launch import Kernel
from tilewright.layout import Layout
from tilewright.pickling import hashed_once
from tilewright.tiled import TiledMMA


class WeightFamily(Family):
    """Products of x and packed weights."""

    takes_weights = True

    def needs(self, problem: Problem) -> Needs:
        """Return that rows of x are read by 16 bytes."""
        return Needs(a=LayoutNeeds(("K",), alignment=VECTOR_BYTES))


@hashed_once
@dataclass(frozen=True)
class WeightPlan:
    """What a kernel knows at compile time: a block has `tokens` rows of x and `block_tiles` tiles of 16 columns.

    A thread has parts of `tiles` of these in its fragments. `shares` groups of warps divide K.
    """

    weights: WeightFormat  # without extents
    tiles: int
    block_tiles: int
    tokens: int
    shares: int
    mma: TiledMMA  # of the warps that have one share of K
    epilogue: ElementEpilogue

    @property
    def threads(self) -> int:
        return self.mma.size * self.shares

    @property
    def columns(self) -> int:
        return TILE * self.block_tiles

    @property
    def steps(self) -> int:
        return STEPS

    @property
    def parts(self) -> int:
        """The groups in a chunk."""
        return self.weights.groups_in_chunk

    @property
    def arrays(self) -> int:
        """The arrays beside the packed weights: scales, and zeros where they are not all one."""
        return 1 if self.weights.zero is not None else 2

    @property
    def vectors(self) -> int:
        """The loads of 16 bytes for a column's share of a chunk."""
        return self.weights.bits // 4

    @property
    def word_layout(self) -> Layout:
        """Of a thread's words of a tile and a chunk."""
        return Layout((4, self.vectors, 2))

    @property
    def sums(self) -> Layout:
        """The sums of the shares of K: what half of a warp writes lies in different banks."""
        height = self.columns + 4
        return Layout((self.columns, self.tokens, self.shares), (1, height, height * self.tokens))

    @property
    def read(self) -> CopyAtom:
        return UniversalCopy(128)


def instruction_of(problem: Problem) -> MMAAtom:
    """Return the matrix instruction for x's type."""
    is_half = problem.compute is float16
    found: MMAAtom = atoms.SM80_16x8x16_F32F16F16F32_TN if is_half else atoms.SM80_16x8x16_F32BF16BF16F32_TN
    return found


def launch_plan(problem: Problem, plan: WeightPlan, arch: Arch, kernel_of: Callable[[int], Kernel]) -> KernelLaunch:
    """Return the launch of a plan, by the kernel that takes so many arrays and numbers further."""
    plan = with_numbers(plan, problem, arch)
    blocks = -(-problem.m // plan.tokens) * -(-problem.n // plan.columns) * problem.batch
    return launch_of(problem, plan, blocks, kernel_of, plan.arrays)
