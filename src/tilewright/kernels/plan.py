"""Everything that a kernel for a matrix product knows at compile time."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache

from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.dtypes import DType
from tilewright.errors import LayoutError
from tilewright.kernels.configuration import Configuration
from tilewright.kernels.epilogue import EpiloguePlan, plan_epilogue
from tilewright.kernels.instructions import instruction_for
from tilewright.kernels.operands import OperandPlan, plan_operand
from tilewright.kernels.problem import Problem
from tilewright.layout import ComposedLayout, Layout
from tilewright.tiled import TiledMMA, make_tiled_mma


@dataclass(frozen=True)
class Plan:
    """The tiles of a kernel, how they are copied and multiplied, and what becomes of the sums."""

    tile: tuple[int, int, int]
    stages: int
    group: int  # blocks along M that are computed before the next along N
    a: OperandPlan
    b: OperandPlan
    mma: TiledMMA
    epilogue: EpiloguePlan
    batched: bool

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # every launch looks its plan up
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    @property
    def threads(self) -> int:
        return self.mma.size

    @property
    def held_steps(self) -> int:
        """The steps of K whose fragments have names of their own; only two are alive at a time.

        All of a tile's, which the compiler schedules a little better, but for multiply-adds, of which a tile has many.
        """
        return self.tile[2] // self.mma.tile_size(2) if self.mma.atom.threads > 1 else 2

    @property
    def has_edges(self) -> bool:
        """Whether tiles may reach beyond A or B."""
        return any(part.guard_rows or part.guard_k for part in (self.a, self.b))

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory: the stages, or D's tile, which takes their place at the end."""
        stages = sum(_bytes(part.smem, part.dtype) for part in (self.a, self.b))
        return max(stages, _bytes(self.epilogue.smem, self.epilogue.staged))


def _bytes(layout: Layout | ComposedLayout, dtype: DType) -> int:
    count = layout.cosize
    assert isinstance(count, int), layout
    return count * dtype.bytes


def plan_for(problem: Problem, configuration: Configuration, arch: Arch) -> Plan:
    """Plan a kernel. Plans of problems that differ only in extents are one where the same guards are needed.

    Raises `LayoutError` where the configuration does not fit: a tile that the warps' instructions do not divide, or
    that the threads cannot share evenly.
    """
    # An extent counts only by what divides it: whole tiles, whole vectors, or neither.
    m, n, k = (
        _representative(extent, tile)
        for extent, tile in zip((problem.m, problem.n, problem.k), configuration.tile, strict=True)
    )
    return _plan(replace(problem, m=m, n=n, k=k, batch=min(problem.batch, 2)), configuration, arch)


def _representative(extent: int, tile: int) -> int:
    """Return the least extent with the same common divisors with the tile's powers of two."""
    whole = tile
    while extent % whole:
        whole = whole // 2 if whole % 2 == 0 else 1
    return whole if whole < tile else tile


@lru_cache(maxsize=1024)
def _plan(problem: Problem, configuration: Configuration, arch: Arch) -> Plan:
    tile_m, tile_n, tile_k = configuration.tile
    mma = tiled_mma_for(problem, configuration, arch)
    for extent, covered, mode in zip(configuration.tile, mma.shape_mnk, "MNK", strict=True):
        if extent % covered:
            raise LayoutError(f"a tile of {extent} along {mode} holds no whole instructions of the warps, {covered}")
    return Plan(
        configuration.tile,
        configuration.stages,
        configuration.group,
        plan_operand(problem.a, "A", (problem.m, problem.k), (tile_m, tile_k), configuration.stages, mma, arch),
        plan_operand(problem.b, "B", (problem.n, problem.k), (tile_n, tile_k), configuration.stages, mma, arch),
        mma,
        plan_epilogue(problem, (tile_m, tile_n), mma.size),
        problem.batch != 1,
    )


def tiled_mma_for(problem: Problem, configuration: Configuration, arch: Arch) -> TiledMMA:
    """Return the instruction spread over the warps.

    Each warp takes two atoms of 8 columns at a time, as many as one ldmatrix of four matrices fills. Without a matrix
    instruction a warp is 8 x 4 threads, with four neighbouring rows and columns each, read by 16 bytes.
    """
    atom = instruction_for(problem.compute, problem.a.dtype, problem.b.dtype, arch)
    if atom is None:
        raise LayoutError(f"{arch.name} has no instruction for {problem.compute}")
    along_m, along_n = configuration.warps
    if atom.threads == 1:
        threads, wide = (8 * along_m, 4 * along_n), VECTOR_BYTES // problem.a.dtype.bytes
        quads = tuple(Layout((count, wide), (wide, 1)) for count in threads)
        return make_tiled_mma(atom, (*threads, 1), (*quads, None))
    m, _, k = atom.shape_mnk
    if m == 8:  # 8 x 8 x 4, read by ordinary loads
        return make_tiled_mma(atom, (along_m, along_n, 1))
    # ldmatrix fills 16 x 16 elements of 16 bits of A at a time, which is two instructions of sm_75.
    depth = max(k, 256 // problem.a.dtype.bits) if problem.a.dtype.bits < 64 else k
    return make_tiled_mma(atom, (along_m, along_n, 1), (16 * along_m, 16 * along_n, depth))
