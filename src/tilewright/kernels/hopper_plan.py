"""Everything that the Hopper kernel knows at compile time: instruction, layouts of shared memory, epilogue, order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import ClassVar

from tilewright import atoms
from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.atoms import MMAAtom, UniversalCopy
from tilewright.dtypes import (
    DType,
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    int8,
    tfloat32,
    uint8,
)
from tilewright.errors import LayoutError
from tilewright.kernels.blocks import ScaleReads, scale_reads
from tilewright.kernels.epilogue import ElementEpilogue
from tilewright.kernels.problem import Configuration, Operand, Problem
from tilewright.layout import ComposedLayout, Layout, tile_to_shape
from tilewright.pickling import hashed_once
from tilewright.schedulers import Grouped, Scheduler
from tilewright.tiled import TiledCopy, TiledMMA, make_tiled_copy, make_tiled_copy_C, make_tiled_mma
from tilewright.transactions import ROW

WARPGROUP = 128
CONSUMERS = 2  # warpgroups
THREADS = WARPGROUP * (1 + CONSUMERS)
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232
ROWS = 64  # of an instruction
KEPT_OF = 16
PAIRED_ROWS = 8  # a thread that has a row of an instruction has the one that is so many rows further
SPARE_BYTES = 1024  # of shared memory, for the barriers and what lies between buffers

# CuTe's names of the types, and of the instructions: its K and what it sums up in.
_NAMES = {
    float16: "F16", bfloat16: "BF16", tfloat32: "TF32", int8: "S8", uint8: "U8", float8_e4m3fn: "E4M3",
    float8_e5m2: "E5M2",
}  # fmt: skip
_MOST_OVERLAPPED = 200  # registers of a thread for accumulators, and for sums and scales of two tiles of K
_PART_BYTES = 256  # of a row of results that pass through shared memory at once
# Columns of a tile of D^T beyond which results are transposed: 8 take 1.6 % longer so on an H200, 64 as long.
_TRANSPOSED = 64
_PART_COLUMNS = 64  # of results that need operands beside them in registers, or are stored from there

# Plans that are compared have these parts in common.
_tiled_mma = lru_cache(maxsize=1024)(make_tiled_mma)
_tiled_copy = lru_cache(maxsize=1024)(make_tiled_copy_C)
_tiled_layout = lru_cache(maxsize=4096)(tile_to_shape)


@dataclass(frozen=True)
class HopperConfiguration(Configuration):
    """How the Hopper kernel is cut up.

    `warps` are those that multiply. Of a tile in ping-pong all rows are one warpgroup's. `cluster` blocks of a cluster,
    one above the other, share their columns, and `cluster_n` blocks side by side their rows. `splits` blocks share the
    K of a tile: they are a cluster, whose blocks add up the sums of a part each (`adds_in_cluster`), or write them to a
    workspace. With `is_swapped` the instruction's rows are columns of D: its 64 rows would stand empty where D has few.
    At most so many `blocks` are launched, one for each multiprocessor. One that `follows` is launched behind a packing
    of its operands.
    """

    cluster: int = 1
    is_ping_pong: bool = False
    adds_in_cluster: bool = False
    is_swapped: bool = False
    blocks: int = 132
    cluster_n: int = 1
    follows: bool = field(default=False, repr=False)  # the name of a find does without it
    streams: ClassVar[bool] = False

    @property
    def consumers(self) -> int:
        """The warpgroups that multiply."""
        return self.warps[0] * self.warps[1] // 4

    @property
    def threads(self) -> int:
        return WARPGROUP * (1 + self.consumers)

    @property
    def cluster_size(self) -> int:
        """The blocks that are launched together."""
        return self.splits if self.adds_in_cluster else self.cluster * self.cluster_n

    @property
    def own_tile(self) -> tuple[int, int, int]:
        """The tile as the kernel sees it: rows are those of the instruction."""
        m, n, k = self.tile
        return (n, m, k) if self.is_swapped else self.tile

    def __str__(self) -> str:
        m, n, k = self.tile
        words = [f"{m}x{n}x{k}", "ping-pong" if self.is_ping_pong else "cooperative", f"{self.stages} stages"]
        splits = f"{self.splits} splits{' in a cluster' if self.adds_in_cluster else ''}"
        cluster = f"clusters of {self.cluster}{f' x {self.cluster_n}' if self.cluster_n > 1 else ''}"
        words += [cluster] * (self.cluster * self.cluster_n > 1) + [splits] * (self.splits > 1)
        return ", ".join(words + ["D^T"] * self.is_swapped + ["stream-K"] * self.streams)


class StreamConfiguration(HopperConfiguration):
    """One whose blocks share the K of the tiles behind whole waves. By its name, for finds are kept by their text."""

    streams = True


@hashed_once
@dataclass(frozen=True)
class HopperPlan:
    """The tiles of a kernel, how they are copied and multiplied, and how results are written.

    `tile` is the kernel's own. `part` is the tile of registers of which results are finished at a time; where they
    leave by TMA (`stores_boxes`) or by `rows`, which a TMA cannot write, `smem_d` has so many such `buffers` for each
    consumer; those in ping-pong share them where each has not its own.
    `splits` parts of K go to a workspace;
    `peers` blocks of a cluster have parts of K; the first `owners` of them add up the sums of as many parts of the
    tile's columns. Of `KEPT_OF` tiles along K of A and of
    B, so many are `kept` in L2 from launch to launch where that cannot hold the whole matrix; None where it can.
    """

    tile: tuple[int, int, int]
    stages: int
    cluster: int
    splits: int
    peers: int
    is_ping_pong: bool
    is_swapped: bool
    promotes: bool  # partial sums of each tile of K are added up in float32
    batched: bool
    stores_boxes: bool
    scheduler: Scheduler
    smem_a: ComposedLayout  # (M, K, stages)
    smem_b: ComposedLayout  # (N, K, stages)
    buffers: int  # for the results of a consumer
    own_buffers: bool
    smem_d: ComposedLayout | Layout  # (M, N, buffers of all consumers)
    mma: TiledMMA
    part: TiledMMA
    write: TiledCopy  # fragments of results to `smem_d`
    rows: TiledCopy | None  # `smem_d` to rows of results
    epilogue: ElementEpilogue
    bytes_of: tuple[int, int]  # of an element of A, and of D
    blocks: tuple[ScaleReads, ...] = ()
    owners: int = 1
    kept: tuple[int | None, int | None] = (None, None)
    follows: bool = False
    streams: bool = False  # blocks share the K of the tiles behind whole waves
    cluster_n: int = 1  # blocks of a cluster that share their rows; `cluster` of them share their columns
    lends: ClassVar[bool] = False  # stages to sums that come from other blocks

    @property
    def sharers(self) -> int:
        """The blocks of a cluster that bring each other tiles."""
        return self.cluster * self.cluster_n

    @property
    def results(self) -> tuple[int, int]:
        """The extents of a tile of D: half as many columns as the instructions compute where they are pairs."""
        return results_of(self.tile, self.epilogue.is_gated, self.is_swapped)

    @property
    def alternates(self) -> bool:
        """Whether the rows of D^T's tile alternate, 8 of each matrix of pairs: partners are in one instruction."""
        return self.epilogue.is_gated and self.is_swapped and self.tile[0] == self.mma.tiler_mn[0]

    @property
    def stage_bytes(self) -> int:
        """The bytes of A, B and scales in a stage."""
        m, n, k = self.tile
        return (m + n) * k * self.bytes_of[0] + sum(4 * self.tile[x.mode] for x in self.blocks if x.boxed)

    @property
    def smem_scales(self) -> tuple[Layout | None, ...]:
        """The layouts of the scales that TMA brings: (rows or columns, 1, stages); None for other arrays."""
        extents = [self.tile[x.mode] if x.boxed else 0 for x in self.blocks]
        return tuple(Layout((e, 1, self.stages), (1, 0, -(-e // 32) * 32)) if e else None for e in extents)

    @cached_property
    def shared_bytes(self) -> int:
        """The bytes of shared memory, with two mbarriers for each stage and four for ping-pong."""
        size = self.smem_d.cosize
        assert isinstance(size, int)
        results = size * self.bytes_of[1] if self.stores_boxes or self.rows is not None else 0
        barriers = 16 * self.stages + 32 * self.is_ping_pong + 24 * (self.peers > 1)
        boxes = sum(-(-4 * self.tile[x.mode] // ROW) * ROW - 4 * self.tile[x.mode] for x in self.blocks if x.boxed)
        return (
            self.stages * (self.stage_bytes + boxes)
            + results
            + (self.peers - 1) * self.tile_bytes // self.owners
            + (self.sent_bytes if self.lender is None else 0)
            + barriers
        )

    @property
    def tile_bytes(self) -> int:
        """The bytes of the sums of a tile."""
        m, n, _ = self.tile
        return m * n * self.mma.atom.dtype_c.bytes

    @property
    def sent_bytes(self) -> int:
        """The bytes of sums that a block sends to others at most."""
        return min(self.owners, self.peers - 1) * self.tile_bytes // self.owners

    @property
    def lender(self) -> int | None:
        """The operand, 0 or 1, whose stages hold these until they are sent; None where neither's are large enough."""
        sizes = [self.stages * extent * self.tile[2] * self.bytes_of[0] for extent in self.tile[:2]]
        return sizes.index(max(sizes)) if max(sizes) >= self.sent_bytes else None

    @cached_property
    def accumulators(self) -> int:
        """The registers of a thread that hold sums."""
        m, n, _ = self.tile
        rows, _ = self.mma.tiler_mn  # promoted sums are added for so many at a time
        return (m + rows * self.promotes * (1 + self.overlaps)) * n // self.mma.size

    @property
    def consumers(self) -> int:
        """The warpgroups that multiply."""
        return CONSUMERS if self.is_ping_pong else self.mma.size // WARPGROUP

    @property
    def registers(self) -> tuple[int, int]:
        """The registers of a thread of the producer and of a consumer: with all threads those of a multiprocessor."""
        return (PRODUCER_REGISTERS, CONSUMER_REGISTERS) if self.consumers <= CONSUMERS else (32, 160)

    @property
    def takes_turns(self) -> bool:
        """Whether consumers in ping-pong store alternately, because they share the buffers of results."""
        return self.is_ping_pong and not self.own_buffers and (self.stores_boxes or self.rows is not None)

    @property
    def begins_early(self) -> bool:
        """Whether a launch begins while the one before it ends.

        Clusters that add up their sums take a microsecond to begin: 1 x 576 x 7168 5.9 us without it on an H100, and
        4.8 with it. Others gain nothing on average, as their blocks no longer find what their multiprocessor has read
        in the part of L2 near it: 128 x 14336 x 4096 49 us without it, and 52 with it. Behind a packing there is
        nothing that a block could find again.
        """
        return self.peers > 1 or self.follows

    @property
    def overlaps(self) -> bool:
        """Whether promoted sums of a tile of K are added while the next one is multiplied."""
        m, n, _ = self.tile
        sums, scales = m * n // self.mma.size, sum(len(x.firsts) for x in self.blocks)
        is_one = m == self.mma.tiler_mn[0]  # the sums of one instruction's rows
        is_held = self.consumers == CONSUMERS and sums + 2 * (sums + scales) <= _MOST_OVERLAPPED
        return self.promotes and is_one and is_held

    @property
    def behind(self) -> int:
        """The tiles of K by which the second consumer begins later, to multiply while the first finishes results.

        It stays behind by them, as far as there are stages, and multiplies alone at the end of a tile.
        """
        return min(2, self.stages // 2 - 1) if self.overlaps and not self.streams else 0


def plan_for(problem: Problem, configuration: HopperConfiguration, arch: Arch) -> HopperPlan:
    """Plan a kernel; problems that differ in extents only have one plan, or two where rows of D end between 16 bytes.

    Raises `LayoutError` where the configuration does not fit the instruction.
    """
    return _plan(_without_extents(problem), configuration, arch)


@lru_cache(maxsize=64)
def _without_extents(problem: Problem) -> Problem:
    n = VECTOR_BYTES // problem.d.dtype.bytes if problem.is_whole_vectors else 1
    if problem.is_gated and problem.n % PAIRED_ROWS == 0:
        n = PAIRED_ROWS
    return replace(problem, m=1, n=n, k=1, batch=min(problem.batch, 2))


@lru_cache(maxsize=4096)
def _plan(problem: Problem, configuration: HopperConfiguration, arch: Arch) -> HopperPlan:
    swapped, in_cluster = configuration.is_swapped, configuration.adds_in_cluster
    splits = 1 if in_cluster else configuration.splits
    a, b = (problem.b, problem.a) if swapped else (problem.a, problem.b)
    m, n, k = configuration.own_tile
    groups = 1 if configuration.is_ping_pong else configuration.consumers
    height, width = results_of((m, n, k), problem.is_gated, swapped)
    alternates = problem.is_gated and swapped and m == ROWS * groups
    if alternates and not may_alternate(problem):
        raise LayoutError(
            f"rows of pairs alternate by {PAIRED_ROWS}, where K is contiguous and N a multiple of {PAIRED_ROWS}"
        )
    if height % (ROWS // (1 + alternates) * groups):
        raise LayoutError(f"a tile of {height} rows is not divided by {groups} x {ROWS} rows of instructions")
    if width % 8:
        raise LayoutError(f"a tile has {width} pairs of columns, and threads have those of 8 at a time")
    atom = instruction_for(a.dtype, b.dtype, n, (a.major, b.major), problem.compute)
    d = problem.accumulator if splits > 1 else problem.d.dtype
    beside = max(bool(problem.operands or problem.places), len(problem.further)) if splits == 1 else 0
    transposes = transposes_results(problem, configuration)
    boxes = transposes or (not swapped and (splits > 1 or problem.is_whole_vectors))
    owners = owners_of(problem, configuration)
    share = width // owners
    columns = _part_columns(share, d.bytes, transposes or (not swapped and d.bytes in (2, 4)), beside, transposes)
    boxes = boxes and d.bytes in (2, 4) and (transposes or columns * d.bytes % 32 == 0)
    rows = None if boxes or swapped else _rows(problem.d, columns)
    part = _tiled_mma(instruction_for(a.dtype, b.dtype, columns, ("K", "K"), problem.compute))
    if alternates:  # of 16 rows that a warp has, 8 are results: those of this instruction's fragments
        part = _tiled_mma(atoms.SM80_8x8x4_F64F64F64F64_TN, (4, 1, 1), (ROWS // 2, columns, 4))
    stages = boxes or rows is not None
    if transposes:
        rows_of, write = atoms.GMMA_MN_SW128(d), atoms.SM90_U16x4_STSM_T if columns % 16 else atoms.SM90_U16x8_STSM_T
    else:
        rows_of = _k_major(d, columns) if stages else Layout((8, columns), (columns, 1))
        write = atoms.SM90_U32x4_STSM_N if stages and d.bytes == 2 and columns % 16 == 0 else UniversalCopy(2 * d.bits)
    mma = _tiled_mma(atom, (groups, 1, 1))
    made = HopperPlan(
        (m, n, k),
        configuration.stages,
        configuration.cluster,
        splits,
        configuration.splits if in_cluster else 1,
        configuration.is_ping_pong,
        swapped,
        problem.promotes,
        problem.batch != 1,
        boxes,
        Grouped(configuration.group),
        _operand_layout(a, (m, k), configuration.stages, 1 if alternates else configuration.cluster_n * m // height),
        _operand_layout(b, (n, k), configuration.stages, configuration.cluster * n // width),
        1,
        groups > 1,
        _tiled_layout(rows_of, (ROWS, columns, groups)),
        mma,
        part,
        _tiled_copy(write, part),
        rows,
        _epilogue(problem, swapped) if splits == 1 else ElementEpilogue(False, False, None),
        (a.dtype.bytes, d.bytes),
        _boxed(problem, configuration, scale_reads(problem, mma, (m, n), swapped)),
        owners,
        streams=configuration.streams,
        cluster_n=configuration.cluster_n,
    )
    twice = replace(made, smem_d=_tiled_layout(rows_of, (ROWS, columns, 2 * groups)))
    several = height * share > ROWS * columns * groups
    if (boxes and several) or (stages and not several and groups == 1):
        twice = replace(twice, buffers=2) if several else replace(twice, own_buffers=True)
        return twice if twice.shared_bytes + SPARE_BYTES <= arch.shared_bytes_optin else made
    return made


def results_of(tile: tuple[int, int, int], is_gated: bool, is_swapped: bool) -> tuple[int, int]:
    """Return the extents of a tile of D as the kernel sees it: of pairs it has one row or column for two."""
    m, n, _ = tile
    halves = 1 + is_gated
    return (m // halves, n) if is_swapped else (m, n // halves)


def transposes_results(problem: Problem, configuration: HopperConfiguration) -> bool:
    """Return whether results of D^T, of 16 bits, are transposed on their way through shared memory, to leave by TMA.

    Those of 32 bits leave registers by whole sectors: 1576 x 768 x 768 takes 5.3 us so, and 5.6 transposed.
    """
    c = configuration
    is_whole = problem.is_whole_vectors and problem.d.dtype.bytes == 2 and (c.splits == 1 or c.adds_in_cluster)
    return c.is_swapped and c.own_tile[1] > _TRANSPOSED and is_whole and not problem.is_gated


def owners_of(problem: Problem, configuration: HopperConfiguration) -> int:
    """Return how many blocks of a cluster that share the K of a tile finish a part of its columns each.

    One alone gets the sums of all others: 64 KiB of 64 x 128 in clusters of three, beside which its tile takes 96.
    """
    _, n, _ = configuration.own_tile
    if not configuration.adds_in_cluster or problem.quantises or (problem.is_gated and not configuration.is_swapped):
        return 1
    least = 8 if configuration.is_swapped else 32  # columns, which leave as whole sectors
    return next(owners for owners in range(configuration.splits, 0, -1) if n % (least * owners) == 0 or owners == 1)


def takes_boxes(problem: Problem, c: HopperConfiguration) -> bool:
    """Return whether TMA brings scales to the stages: to three consumers, and where each column has its own.

    Elsewhere quads of lanes load them: on an H200 4096 x 7168 x 2048 takes 3 % less so, and 128 x 7168 x 2048 4 %. In
    a cluster, blocks that share columns hand stages back before registers have what was read from there.
    """
    are_of_quads = not any(x.rows == 1 and (x.of == "B") is not c.is_swapped for x in problem.blocks)
    has_boxes = c.cluster == 1 and any(x.boxed for x in problem.blocks)
    return has_boxes and (c.consumers != CONSUMERS or not are_of_quads)


def _boxed(problem: Problem, c: HopperConfiguration, reads: tuple[ScaleReads, ...]) -> tuple[ScaleReads, ...]:
    """Return the reads of scales, by stages where TMA can bring all that differ from row to row.

    Of 128 rows a tile then has one scale.
    """
    pairs = list(zip(problem.blocks, reads, strict=True))
    can = all(x.boxed if x.rows == 1 else len(read.firsts) == read.held == 1 for x, read in pairs)
    if not can or not takes_boxes(problem, c):
        return reads
    return tuple(replace(read, boxed=x.rows == 1) for x, read in pairs)


def may_alternate(problem: Problem) -> bool:
    """Return whether a tensor map can have alternating rows of both matrices of pairs."""
    return problem.b.major == "K" and problem.n % PAIRED_ROWS == 0


def _epilogue(problem: Problem, swapped: bool) -> ElementEpilogue:
    """Return the epilogue of a problem for a kernel that may compute the transpose."""
    found = ElementEpilogue.of(problem)
    return found.transposed if swapped else found


def instruction_for(a: DType, b: DType, n: int, majors: tuple[str, str], compute: DType) -> MMAAtom:
    """Return the instruction for element types and N; raise `LayoutError` where there is none."""
    names = [_NAMES[tfloat32 if compute is tfloat32 else x] for x in (a, b)]
    sums = "S32" if a in (int8, uint8) else "F32"
    k, end = 32 // a.bytes, "" if a.bits == 16 else "_TN"
    name = f"SM90_64x{n}x{k}_{sums}{''.join(names)}_SS{end}"
    found = getattr(atoms, name, None)
    if found is None:
        raise LayoutError(f"wgmma has no form with N = {n} for {a} and {b}")
    made: MMAAtom = found.with_majors(*majors) if majors != ("K", "K") else found
    return made


def _part_columns(n: int, bytes: int, boxes: bool, beside: int, transposes: bool) -> int:
    """Return how many columns of a tile are finished at a time: whole swizzled rows where results pass by TMA.

    Where they are transposed, columns are rows of what passes, and any number will do.

    So many operands or further results as `beside` are in registers too; all operands count for one.
    """
    most = _PART_BYTES // bytes if boxes and not beside else _PART_COLUMNS
    most = max(most >> max(beside.bit_length() - 1, 0), 8)
    sizes = [c for c in range(8, min(most, n) + 1, 8) if n % c == 0 and (c <= 32 or c % 16 == 0 or transposes)]
    whole = [c for c in sizes if c * bytes % ROW == 0] if boxes and not transposes else []
    return max(whole or sizes)


def _rows(d: Operand, columns: int) -> TiledCopy | None:
    """Return how a warpgroup writes rows of results: lanes side by side, by as many bytes as rows are aligned to.

    From registers a warp would write parts of eight rows at once, in eight sectors of memory: 17 us more at 2047 cubed.
    """
    if d.major != "MN" or d.dtype.bytes not in (2, 4) or columns * d.dtype.bytes % 32:
        return None
    width = max(min(d.alignment, VECTOR_BYTES) // d.dtype.bytes, 1)
    beside = min(columns // width, 32)
    lanes = 1 << beside.bit_length() - 1
    while columns // width % lanes:
        lanes //= 2
    threads = Layout((WARPGROUP // lanes, lanes), (lanes, 1))
    return make_tiled_copy(UniversalCopy(width * d.dtype.bits), threads, Layout((1, width)))


@lru_cache(maxsize=256)
def _k_major(dtype: DType, columns: int) -> ComposedLayout:
    """Return the atom of the widest swizzle whose rows divide so many contiguous elements."""
    for bytes, make in ((128, atoms.GMMA_K_SW128), (64, atoms.GMMA_K_SW64), (32, atoms.GMMA_K_SW32)):
        if columns * dtype.bytes % bytes == 0:
            found: ComposedLayout = make(dtype)
            return found
    raise LayoutError(f"{columns} elements of {dtype} do not fill whole rows of a swizzle")


def _operand_layout(operand: Operand, tile: tuple[int, int], stages: int, parts: int) -> ComposedLayout:
    """Return the layout of an operand's stages, as TMA writes and wgmma reads it; a cluster brings it in parts."""
    rows, depth = tile
    if rows % (8 * parts):
        raise LayoutError(f"{parts} blocks cannot share a tile of {rows} columns")
    if operand.major == "K":
        along_k: ComposedLayout = _tiled_layout(_k_major(operand.dtype, depth), (rows, depth, stages))
        return along_k
    for bytes, make in ((128, atoms.GMMA_MN_SW128), (64, atoms.GMMA_MN_SW64), (32, atoms.GMMA_MN_SW32)):
        if rows // parts * operand.dtype.bytes % bytes == 0:
            # Along K first: then a copy fills all k of a swizzled row at once, and not 8 of them.
            found: ComposedLayout = _tiled_layout(make(operand.dtype), (rows, depth, stages), (2, 1, 3))
            return found
    raise LayoutError(f"{rows // parts} contiguous {operand.dtype} do not fill whole rows of a swizzle")
