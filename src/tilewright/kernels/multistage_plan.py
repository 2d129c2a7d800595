"""Everything that the multistage kernel knows at compile time: its instruction, and how tiles of A and B travel.

Tiles of an operand pass from global to shared memory, and from there to the fragments of the matrix instruction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

from tilewright import atoms
from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.atoms import CopyAtom, MMAAtom, UniversalCopy, UniversalFMA
from tilewright.dtypes import (
    DType,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    tfloat32,
    uint8,
)
from tilewright.errors import LayoutError
from tilewright.instructions import cp_async
from tilewright.kernels.blocks import ScaleReads, scale_reads
from tilewright.kernels.epilogue import EpiloguePlan, plan_epilogue
from tilewright.kernels.precision import CHUNK, Parts
from tilewright.kernels.problem import Configuration, Operand, Problem
from tilewright.layout import ComposedLayout, Layout, Swizzle, tile_to_shape
from tilewright.pickling import changed, hashed_once
from tilewright.tiled import TiledCopy, TiledMMA, make_tiled_copy, make_tiled_copy_A, make_tiled_copy_B, make_tiled_mma
from tilewright.transactions import ROW


@dataclass(frozen=True)
class OperandPlan:
    """Tiles of `rows` (of M or N) by `depth` (of K) of one operand, and how they are copied.

    `copy` takes them in `parts` along the rows, of a matrix each. `along_k` says that its vectors lie along K. Guards
    say what may reach beyond the matrix: rows, K, and a vector by a part of its elements.
    """

    dtype: DType
    rows: int
    depth: int
    smem: Layout | ComposedLayout  # (rows, depth, stages)
    copy: TiledCopy  # global to shared memory
    load: TiledCopy  # shared memory to fragments
    along_k: bool
    guard_rows: bool
    guard_k: bool
    guard_parts: bool
    parts: int = 1

    @property
    def copied_rows(self) -> int:
        """The rows that are copied from one matrix."""
        return self.rows // self.parts


@hashed_once
@dataclass(frozen=True)
class Plan:
    """The tiles of a kernel, how they are copied and multiplied, and the epilogue."""

    tile: tuple[int, int, int]
    stages: int
    group: int  # blocks along M that are computed before the next along N
    a: OperandPlan
    b: OperandPlan
    mma: TiledMMA
    epilogue: EpiloguePlan
    batched: bool
    parts: Parts | None = None
    is_split: bool = False  # whether a block takes one split of K, and D has a matrix for each split
    blocks: tuple[ScaleReads, ...] = ()

    @property
    def threads(self) -> int:
        return self.mma.size

    @property
    def results(self) -> tuple[int, int]:
        """The extents of a block's part of D: of pairs of columns, half of the tile's."""
        m, n, _ = self.tile
        return m, n // self.b.parts

    @property
    def is_scalar(self) -> bool:
        """Whether single threads multiply, instead of warps."""
        return self.mma.atom.threads == 1

    @property
    def step_of_b(self) -> int:
        """The step of K in which copies of B begin; those of A do in the first.

        Copies take the unit that reads fragments: in one step both would hold up reads which few multiply-adds hide.
        """
        return int(self.is_scalar)

    @property
    def held_steps(self) -> int:
        """The steps of K whose fragments have names of their own; only two are alive at a time.

        All of a tile's, which the compiler schedules a little better, but for multiply-adds, of which a tile has many,
        and for fragments that become parts, which take the registers: then as few as come out even over a tile.
        """
        if not self.is_scalar and self.parts is None:
            return self.steps
        return next((held for held in range(2, self.steps) if self.steps % held == 0), self.steps)

    @property
    def steps(self) -> int:
        """The steps of K of a tile."""
        return self.tile[2] // self.mma.tile_size(2)

    @property
    def chunk(self) -> int:
        """The steps of K whose products are summed from 0, before they are added to the accumulators; 0 for all."""
        if self.blocks:
            return self.steps
        return CHUNK // self.mma.tile_size(2) if self.parts is not None else 0

    @property
    def has_edges(self) -> bool:
        """Whether tiles may reach beyond A or B."""
        return any(part.guard_rows or part.guard_k for part in (self.a, self.b))

    @property
    def sums(self) -> Layout:
        """The layout of the tile of accumulators in shared memory, where some have to be computed again."""
        rows, columns, _ = self.tile
        return Layout((rows, columns), (columns + 8, 1))

    @cached_property
    def shared_bytes(self) -> int:
        """The bytes of shared memory: the stages, or D's tile, which takes their place at the end."""
        stages = sum(_bytes(part.smem, part.dtype) for part in (self.a, self.b))
        # What is mended lies at multiples of 128 bytes, and a flag behind it.
        mended = 0 if self.parts is None else -(-_bytes(self.sums, self.mma.atom.dtype_c) // 128) * 128 + 4
        return max(stages, self.epilogue.buffers * _bytes(self.epilogue.smem, self.epilogue.staged), mended)


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
        for extent, tile in zip((problem.m, problem.n, problem.k), _own_tile(problem, configuration), strict=True)
    )
    problem = changed(problem, m=m, n=n, k=k, batch=min(problem.batch, 2))
    return _plan(problem, changed(configuration, splits=min(configuration.splits, 2)), arch)


def _own_tile(problem: Problem, configuration: Configuration) -> tuple[int, int, int]:
    """Return what a block has of D and of K: of pairs of columns, half as many columns as the instructions compute."""
    m, n, k = configuration.tile
    return m, n // (1 + problem.is_gated), k


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
    own_tile = _own_tile(problem, configuration)
    for extent, covered, mode in zip(own_tile, mma.shape_mnk, "MNK", strict=True):
        if extent % covered:
            raise LayoutError(f"a tile of {extent} along {mode} holds no whole instructions of the warps, {covered}")
    return Plan(
        configuration.tile,
        configuration.stages,
        configuration.group,
        plan_operand(problem.a, "A", (problem.m, problem.k), (tile_m, tile_k), configuration.stages, mma, arch),
        plan_operand(
            problem.b,
            "B",
            (problem.n, problem.k),
            (tile_n, tile_k),
            configuration.stages,
            mma,
            arch,
            1 + problem.is_gated,
        ),
        mma,
        plan_epilogue(problem, own_tile[:2], mma.size),
        problem.batch != 1 or configuration.splits > 1,
        problem.parts,
        configuration.splits > 1,
        scale_reads(problem, mma, (tile_m, tile_n)),
    )


def tiled_mma_for(problem: Problem, configuration: Configuration, arch: Arch) -> TiledMMA:
    """Return the instruction spread over the warps.

    Each warp takes two atoms of 8 columns at a time, as many as one ldmatrix of four matrices fills. Without a matrix
    instruction single threads multiply, with four neighbouring rows and columns each, read by 16 bytes.
    """
    one = changed(configuration, stages=1, group=1, splits=1)
    return _tiled_mma(problem.compute, problem.a.dtype, problem.b.dtype, one, arch)


@lru_cache(maxsize=256)
def _tiled_mma(compute: DType, a: DType, b: DType, configuration: Configuration, arch: Arch) -> TiledMMA:
    atom = instruction_for(compute, a, b, arch)
    if atom is None:
        raise LayoutError(f"{arch.name} has no instruction for {compute}")
    along_m, along_n = configuration.warps
    if atom.threads == 1:
        wide = VECTOR_BYTES // a.bytes
        threads = _threads_for(configuration, wide)
        quads = tuple(Layout((threads[mode].size, wide), (wide, 1)) for mode in (0, 1))
        return make_tiled_mma(atom, threads, (*quads, None))
    m, _, k = atom.shape_mnk
    if m == 8:  # 8 x 8 x 4, read by ordinary loads
        return make_tiled_mma(atom, (along_m, along_n, 1))
    # ldmatrix fills 16 x 16 elements of 16 bits of A at a time, which is two instructions of sm_75.
    depth = max(k, 256 // a.bits) if a.bits < 64 else k
    order: int | Layout = depth
    if a.bytes * k > 32:
        # Parts of 16 bits: of elements of 4 bytes, ldmatrix gives a thread one of every four, and the instruction takes
        # pairs of neighbours. The order in which it counts K does not matter: its pairs are elements 4 apart.
        order = Layout((2, 4, k // 8), (4, 1, 8))
    return make_tiled_mma(atom, (along_m, along_n, 1), (16 * along_m, 16 * along_n, order))


def _threads_for(configuration: Configuration, wide: int) -> Layout:
    """Return the threads (M, N, 1) that multiply, each of them `wide` neighbours along both modes at a time.

    Warps are 4 x 8 or 8 x 4 threads, whichever read fewer elements, 4 x 8 where both read the same; eight neighbours,
    which shared memory serves at a time, are 4 x 2 or 2 x 4. Where no whole warps share the tile evenly, as many
    threads as do, at most those of the warps: 5 x 25 of 128 for 100 x 100, so that the last warp has less than 32. Of
    these, neighbours read the same of the operand of which a thread reads more, which shared memory serves at once.
    """
    along_m, along_n = configuration.warps
    counts = [extent // wide for extent in configuration.tile[:2]]
    reads = {
        counts[0] // (m * along_m) + counts[1] // (n * along_n): (m, n)
        for m, n in ((8, 4), (4, 8))
        if counts[0] % (m * along_m) == counts[1] % (n * along_n) == 0
    }
    if reads:
        m, n = reads[min(reads)]
        lanes = (1, m) if m < n else (n, 1)
        return Layout(((m, along_m), (n, along_n), 1), ((lanes[0], 32), (lanes[1], 32 * along_m), 0))
    shares = ([own for own in range(1, count + 1) if count % own == 0] for count in counts)
    m, n = max((x for x in product(*shares) if math.prod(x) <= configuration.threads), key=math.prod)
    return Layout((m, n, 1), (n, 1, 0) if counts[0] // m > counts[1] // n else (1, m, 0))


# How CuTe's names spell the element types.
_NAMES = {int8: "S8", uint8: "U8", float8_e4m3fn: "E4M3", float8_e5m2: "E5M2"}


def instruction_for(compute: DType, a: DType, b: DType, arch: Arch) -> MMAAtom | None:
    """Return the widest matrix instruction for the element types that a target has, or None if it has none.

    `compute` is the type that the instruction takes; where A and B differ (int8 with uint8, the two fp8 types) their
    own types decide. float32 is multiplied by fused multiply-adds, and float64 too where no instruction does it.

    >>> from tilewright.arch import Arch
    >>> from tilewright.dtypes import bfloat16, float64
    >>> print(instruction_for(bfloat16, bfloat16, bfloat16, Arch.parse("sm_90a")))
    SM80_16x8x16_F32BF16BF16F32_TN
    >>> instruction_for(bfloat16, bfloat16, bfloat16, Arch.parse("sm_75")) is None
    True
    """
    found: MMAAtom | None = None
    capability = arch.number
    if compute is float32:
        found = UniversalFMA(float32)
    elif compute is float64:
        if capability >= 90:
            found = atoms.SM90_16x8x8_F64F64F64F64_TN
        else:
            found = atoms.SM80_8x8x4_F64F64F64F64_TN if capability >= 80 else UniversalFMA(float64)
    elif compute is float16 and capability >= 75:
        found = atoms.SM80_16x8x16_F32F16F16F32_TN if capability >= 80 else atoms.SM75_16x8x8_F32F16F16F32_TN
    elif compute is bfloat16 and capability >= 80:
        found = atoms.SM80_16x8x16_F32BF16BF16F32_TN
    elif compute is tfloat32 and capability >= 80:
        found = atoms.SM80_16x8x8_F32TF32TF32F32_TN
    elif compute in (int8, uint8) and capability >= 80:
        found = getattr(atoms, f"SM80_16x8x32_S32{_NAMES[a]}{_NAMES[b]}S32_TN")
    elif compute in (float8_e4m3fn, float8_e5m2) and capability >= 89:
        found = getattr(atoms, f"SM89_16x8x32_F32{_NAMES[a]}{_NAMES[b]}F32_TN")
    return found


def plan_operand(
    operand: Operand,
    name: str,
    extents: tuple[int, int],
    tile: tuple[int, int],
    stages: int,
    mma: TiledMMA,
    arch: Arch,
    parts: int = 1,
) -> OperandPlan:
    """Plan operand `name` ("A" or "B") of `extents` (rows, K), taken in tiles of (rows, K), of `parts` matrices each.

    Raises `LayoutError` when the threads of `mma` cannot share the copying of a tile evenly.
    """
    copy_along_k = operand.major != "MN"
    smem, copy, load = _copies(operand, name, tile, stages, mma, arch, parts)
    width = copy.atom.values(operand.dtype)
    return OperandPlan(
        operand.dtype,
        *tile,
        smem,
        copy,
        load,
        copy_along_k,
        guard_rows=extents[0] % (tile[0] // parts) != 0,
        guard_k=extents[1] % tile[1] != 0,
        guard_parts=extents[1 if copy_along_k else 0] % width != 0,
        parts=parts,
    )


@lru_cache(maxsize=1024)
def _copies(
    operand: Operand, name: str, tile: tuple[int, int], stages: int, mma: TiledMMA, arch: Arch, parts: int
) -> tuple[Layout | ComposedLayout, TiledCopy, TiledCopy]:
    """Return an operand's layout in shared memory, the copy to there, and that of its fragments."""
    is_fma = mma.atom.threads == 1
    smem_along_k = not is_fma and (operand.major != "MN" or operand.dtype.bits == 8)
    in_place = smem_along_k == (operand.major != "MN")
    copy = _copy_in(operand, (tile[0] // parts, tile[1]), mma.size, arch, in_place=in_place)
    atom = _fragment_load(operand.dtype, smem_along_k, is_fma)
    swizzled = None if is_fma else _swizzled(operand.dtype, tile, stages, smem_along_k)
    smem = swizzled or _padded(operand.dtype, tile, stages, is_fma=is_fma)
    return smem, copy, make_tiled_copy_A(atom, mma) if name == "A" else make_tiled_copy_B(atom, mma)


def _copy_in(operand: Operand, tile: tuple[int, int], threads: int, arch: Arch, *, in_place: bool) -> TiledCopy:
    """Return the copy of a tile into shared memory: as wide as alignment, tile and threads allow.

    Without cp.async, or for elements that it cannot move alone, the copy goes through registers. `in_place` says that
    shared memory is contiguous along the same mode; otherwise elements go one by one.
    """
    element = operand.dtype.bytes
    width = operand.alignment // element if operand.major != "none" and in_place else 1
    width = max(width, 1)
    along, across = (tile[1], tile[0]) if operand.major != "MN" else tile
    while True:
        beside = min(along // width, threads)  # threads along the contiguous mode
        if threads % beside:
            beside = math.gcd(along // width, threads)
        if threads % beside == 0 and across % (threads // beside) == 0 and along % (beside * width) == 0:
            break
        if width == 1:
            raise LayoutError(f"{threads} threads cannot share a tile of {tile[0]} x {tile[1]} elements evenly")
        width //= 2
    bits = width * operand.dtype.bits
    atom = cp_async.atom_for(bits, arch) or UniversalCopy(bits)
    if operand.major == "MN":
        return make_tiled_copy(atom, Layout((beside, threads // beside)), Layout((width, 1)))
    return make_tiled_copy(atom, Layout((threads // beside, beside), (beside, 1)), Layout((1, width)))


def _fragment_load(dtype: DType, along_k: bool, is_fma: bool) -> CopyAtom:
    """Return what reads fragments: ldmatrix where it can deal out the elements, ordinary loads elsewhere."""
    if is_fma:
        return UniversalCopy(8 * VECTOR_BYTES)
    if dtype.bits == 64 or (dtype.bits == 32 and not along_k):
        return UniversalCopy(dtype.bits)
    found: CopyAtom = atoms.SM75_U32x4_LDSM_N if along_k else atoms.SM75_U16x8_LDSM_T
    return found


def _swizzled(dtype: DType, tile: tuple[int, int], stages: int, along_k: bool) -> ComposedLayout | None:
    """Return the layout of a tile whose 16-byte parts (float64: 32 bytes) change places with the row's number.

    A row is what is contiguous, up to 128 bytes. Rows of 64 bytes are half of the banks, so that two share one order.
    None for what is read by ordinary loads across its rows, which padding serves.
    """
    rows, depth = tile
    row = min(ROW // dtype.bytes, depth if along_k else rows)
    part = 32 if dtype.bits == 64 else VECTOR_BYTES
    if dtype.bits >= 32 and not along_k:
        return None
    base = (part // dtype.bytes).bit_length() - 1
    bits = (row * dtype.bytes // part).bit_length() - 1
    shift = (ROW // part).bit_length() - 1
    block = Layout((8, row), (row, 1)) if along_k else Layout((row, 8), (1, row))
    found: ComposedLayout = tile_to_shape(ComposedLayout(Swizzle(bits, base, shift), 0, block), (rows, depth, stages))
    return found


def _padded(dtype: DType, tile: tuple[int, int], stages: int, *, is_fma: bool) -> Layout:
    """Return the layout of a tile contiguous along its rows, whose columns begin in different banks.

    Matrix instructions read four columns of K at once, eight elements of 4 bytes of each, or four of 8: padding by 8
    (or 4) puts them side by side in the banks. Multiply-adds read along one column, and an odd number of 16 bytes in a
    column serves the copies: eight elements of a row of K go to eight columns, four rows at once.
    """
    rows, depth = tile
    column = rows + (4 if dtype.bits == 64 else 8)
    if is_fma:
        wide = VECTOR_BYTES // dtype.bytes
        column = (rows // wide | 1) * wide
    return Layout((rows, depth, stages), (1, column, column * depth))
