"""The Hopper family: blocks that stay, TMA into a ring of stages, and warpgroups that multiply by wgmma; sm_90a only.

Consumers share a tile (cooperative), or each has its own and stores it while the other one multiplies (ping-pong).
Blocks of a cluster share columns of their tiles, one above the other, or rows, side by side. Where D has few rows, or
its tiles fill one wave better so, the transpose is computed: the 64 rows of an instruction are columns of D. Where D
has few tiles, several blocks share the K of each (`splits`), and where tiles do not fill the last wave, all blocks
share the K of those that are left (`stream_k`).

The kernel is `_hopper_kernel`, `hopper_plan` what it knows at compile time, and `hopper_tiles` which tiles there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from tilewright import dtypes as t
from tilewright.arch import VECTOR_BYTES, Arch, Gpu, gpu_of
from tilewright.dtypes import DType
from tilewright.errors import LayoutError
from tilewright.kernels._hopper_kernel import matmul_warpgroups, sharers_of
from tilewright.kernels.family import Candidate, Family, KernelLaunch, LayoutNeeds, Needs, Resources
from tilewright.kernels.functions import ElementFunction
from tilewright.kernels.further import Parts, launch_further
from tilewright.kernels.hopper_plan import (
    CONSUMERS,
    KEPT_OF,
    SPARE_BYTES,
    WARPGROUP,
    HopperConfiguration,
    owners_of,
    plan_for,
    transposes_results,
)
from tilewright.kernels.hopper_tiles import THREE, configurations_of, fitted_to, is_one_part, tiles_of
from tilewright.kernels.model import Machine, Prediction, lack_of_shared
from tilewright.kernels.problem import BLOCK, Configuration, Operand, Problem
from tilewright.kernels.split_k import launch_splits, workspace_bytes
from tilewright.kernels.stream_k import launch_stream, slots_of
from tilewright.launch import Kernel
from tilewright.pickling import changed
from tilewright.trace.host_numbers import NumberUse
from tilewright.transactions import ROW

# The share of the tensor cores' peak rate that a step's products reach on normal data with all multiprocessors at work,
# where power is the limit: so that a step of the first tile, with its bytes, takes what cuBLAS takes on an H200 at 4096
# and 8192 cubed (0.79 of the peak for bf16 and tf32, 0.76 for f16, 0.58 for 8-bit floats whose sums are promoted).
# Example 05 stands at 1.00 to 1.02 of that (benchmarks/results/hopper_h200.json). Nobody measured integers.
_POWER: Mapping[DType, float] = MappingProxyType(
    {
        t.float16: 0.85,
        t.bfloat16: 0.89,
        t.tfloat32: 0.89,
        t.float8_e4m3fn: 0.65,
        t.float8_e5m2: 0.65,
        t.int8: 0.65,
        t.uint8: 0.65,
    }
)
_ISSUED = 0.96  # of the peak rate, by wgmma on zeros: 728.5 of 757 TFLOP/s on an H800 (arXiv 2501.12084)
# Bytes of whole lines that come from L2 in a clock: to one multiprocessor, and to all. Of 390 candidates on an H200
# those with rows at whole lines took up to 140 GB/ms each and 18 TB/s in all; with rows between lines, of which each is
# read from two, 6.5 to 8 TB/s, 12 to 15 as lines.
# Bytes of rows behind a matrix's end, which TMA fills up with zeros, in a clock of all multiprocessors: if 128 blocks
# had tiles of 128 rows for 64 of a matrix, each row took 4.2 ns a step; for 8 blocks of 72 nothing was seen.
_ZEROS_PER_CLOCK = 2048
_L2_BYTES_PER_CLOCK, _L2_BYTES_PER_CLOCK_IN_ALL = 71, 8200
# Of the time that a step's bytes take, what is added to its products. What a cluster shares counts in full: on an H200
# pairs took as long as single blocks where L2 kept up.
_BESIDE = 0.05
# Operations from which on it is twice that: what a GPU draws sets its clock then, and bytes draw power. Taken in turns
# with others for 10 ms such products show none of it; a Llama block, of which they are most, takes 37.4 ms for 37.8.
_LONG = 5e11
# Of sums that are promoted in other tiles than 128 x 128, and 192 x 128 by three consumers: products wait for additions
# or for bytes there. 128 x 128 takes 0.87 of the time of 128 x 192 at 4096 cubed on an H200, 1.01 at 8192 cubed, and
# 0.91 for 4096 x 7168 x 2048.
_WAITS = 1.04
_LEAST_STEP_US = 0.14  # two barriers and an iteration of the producer's loop, measured on tiles of 64 x 64
# With scales of blocks, measured on an H200 with 128 x 7168 x 16384 in tiles of 128 x 64, and with 64 x 7168 x 2048 by
# D^T, whose threads multiply a scale for each of their columns: 8.6 us, and 6.9 by two splits in a cluster.
_LEAST_SCALED_US = 0.3
_TURN_US = 0.6  # from one consumer in ping-pong to the other
# Until the blocks of a cluster that share tiles run, and have ended; and for each step, in which all wait for the
# slowest, by the logarithm of their number: fitted to 18 products in eight shapes of clusters on an H200.
_CLUSTER_US, _CLUSTER_STEP_US = 0.65, 0.02
# In microseconds: until the first products, an estimate; a tile of 128 x 256 from its last product to the next tile's
# first, by which ping-pong in 128 x 128 takes 0.97 of it at 2048 and 4096 cubed on an H200, and 0.99 where K is 14336
# (and which TileLang's rates at K = 256 to 2048 show); and a second launch, an estimate.
_START_US, _TILE_US, _LAUNCH_US = 1.5, 3.0 / (128 * 256), 2.5
_ELEMENT_US = (
    0.042  # of a thread's results in rows of odd length: 2047 cubed in tiles of 128 x 256 takes 5.9 us more so
)
# Of the end of a tile of D^T whose rows leave from registers: an estimate, and what 1500 cubed took on an H200.
_FROM_REGISTERS, _BETWEEN_VECTORS = 2, 3.5
# Shares of L2: matrices that stay there as they are, and those of which a part is kept (on an H200 25 to 33 MB were
# best); and how often a launch may read these.
_FITS, _KEPT, _FEW = 0.8, 0.5, 4
_READ_AGAIN = 1.14  # of the time of bytes that two blocks read, of 16 and 32 x 4096 x 14336 on an H200
_APART = 1.15  # of a step in a stretch of stream-K, as fitted: blocks are at different K, and share less in L2
# Of the end of a tile whose rows threads store, as no TMA can: by two consumers, and by one in ping-pong. Fitted to 109
# products of any residue on an H200, where the choice takes 1.025 of the best candidate's time, and 1.045 without.
_BY_ROWS, _BY_ROWS_ALONE = 1.25, 1.5
# Sums that go to another block, an arrival there, and a wait; more for each further block, and for a second consumer;
# and the bytes of memory that a multiprocessor gets in a second: as fitted to 860 candidates for up to 128 rows on an
# H200, when sums were stored. Bulk copies take less, and with none of other constants the choice of 50 was better.
_GATHER_US, _PEER_US, _TWO_US, _MEMORY_OF_ONE = 1.0, 0.05, 0.6, 50e9


class Hopper(Family):
    """TMA, wgmma and roles, on GPUs of sm_90a."""

    name = "hopper"
    takes_further = True
    takes_pairs = True
    predicts_alone = True
    follows_packing = True
    fits = True  # tiles of any width to one wave
    is_simulated = False  # roles that wait for each other take the simulator longer than one thread after another

    def candidates(self, problem: Problem, machine: Machine, *, lazily: bool = False) -> list[Candidate]:
        """Return the candidates, which launch as many blocks as the GPU has multiprocessors.

        Where all tiles are computed at once, a product begins while its operands are packed: 1111 cubed takes 16.4 us
        so on an H200, and 17.2 otherwise. 4095 cubed takes 236 us, and 231 otherwise.
        """

        def on_all(candidate: Candidate) -> Candidate:
            c = candidate.configuration
            assert isinstance(c, HopperConfiguration), c
            blocks = machine.multiprocessors
            follows = any(candidate.packed) and tiles_of(problem, c) * c.splits <= blocks
            if (c.blocks, c.follows) == (blocks, follows):
                return candidate
            return changed(candidate, configuration=changed(c, blocks=blocks, follows=follows))

        return [on_all(candidate) for candidate in super().candidates(problem, machine, lazily=lazily)]

    def begins_early(self, configuration: Configuration) -> bool:
        assert isinstance(configuration, HopperConfiguration), configuration
        return configuration.follows

    def configurations(self, problem: Problem, arch: Arch) -> Sequence[Configuration]:
        """Return the tiles of the table, narrow ones where D is narrow, and splits of K where tiles are few.

        None for other targets, for element types that wgmma does not multiply, and for K = 0, which no tensor map has.
        """
        return configurations_of(problem, arch) if _takes(problem, arch) else ()

    def fitted(self, problem: Problem, machine: Machine) -> Sequence[Configuration]:
        """Return tiles of any width that fit one wave of the GPU's multiprocessors."""
        arch = machine.arch
        return fitted_to(problem, arch, machine.multiprocessors) if self.fits and _takes(problem, arch) else ()

    def needs(self, problem: Problem) -> Needs:
        """Return the layouts that TMA and wgmma read: rows at 16 bytes, K contiguous but for elements of 16 bits."""
        return Needs(a=_needs_of(problem.a), b=_needs_of(problem.b))

    def resources(self, problem: Problem, configuration: Configuration, arch: Arch) -> Resources:
        assert isinstance(configuration, HopperConfiguration), configuration
        try:
            plan = plan_for(problem, configuration, arch)
        except LayoutError as error:
            return Resources(0, 0, error.summary)
        rejection = None
        if plan.shared_bytes + SPARE_BYTES > arch.shared_bytes_optin or configuration.stages < CONSUMERS:
            rejection = lack_of_shared(plan.shared_bytes, arch)
        return Resources(plan.shared_bytes, plan.accumulators, rejection)

    def predict(
        self, problem: Problem, configuration: Configuration, resources: Resources, machine: Machine
    ) -> Prediction:
        """Return the time of the blocks' tiles one after another, each step bound by its products or its bytes."""
        assert isinstance(configuration, HopperConfiguration), configuration
        c = configuration
        m, n, k = c.own_tile
        rows, columns = (problem.columns, problem.m) if c.is_swapped else (problem.m, problem.columns)
        sides = (rows, m, c.cluster), (columns, n, c.cluster_n)
        high, wide = (-(-extent // (side * count)) * count for extent, side, count in sides)
        tiles = high * wide * problem.batch * c.splits
        waves = -(-tiles // machine.multiprocessors)
        steps = math.ceil(math.ceil(problem.k / k) / c.splits)
        busy = min(tiles, machine.multiprocessors)
        step = self.step_us(problem, c, busy, machine)
        owners = owners_of(problem, c)
        finish = m * n * _TILE_US / owners
        if c.is_swapped and problem.d.dtype.bytes < 4 and not transposes_results(problem, c):
            # rows leave from registers, an element at a time
            finish *= _FROM_REGISTERS if problem.is_whole_vectors else _BETWEEN_VECTORS
        if c.splits > 1 and not c.adds_in_cluster:  # sums leave as they are
            finish /= 2
        else:
            finish *= (1 + problem.d.dtype.bytes) / 3  # an estimate that orders tiles of float32 as they were measured
        if not (problem.is_whole_vectors or c.is_swapped or (c.splits > 1 and not c.adds_in_cluster)):
            finish *= _BY_ROWS_ALONE if c.is_ping_pong else _BY_ROWS
        if problem.d.alignment < VECTOR_BYTES:  # they leave an element at a time, and those behind D do not
            if not c.is_swapped:
                finish += m * n * _ELEMENT_US / (WARPGROUP if c.is_ping_pong else c.threads - WARPGROUP) / owners
            finish *= rows * columns * problem.batch * c.splits / (tiles * m * n)
        adding = 0.0
        if c.streams:
            clusters = machine.multiprocessors // c.cluster
            left, slots = slots_of(tiles // c.cluster, steps, clusters)
            stretch = -(-left * steps // sharers_of(left, steps, clusters))
            # A stretch has pieces of two tiles, whose sums are stored as they are.
            compute = _START_US + (waves - 1) * (steps * step + finish) + stretch * step * _APART + 2 * finish
            read = slots * c.cluster * m * n * problem.accumulator.bytes
            adding = _LAUNCH_US + _START_US + read / (machine.gpu.l2_bandwidth or machine.gpu.reached_bandwidth) * 1e6
        elif c.is_ping_pong:  # one consumer stores while the other one multiplies
            turn = _TURN_US / 2 if is_one_part(problem, c.own_tile, c.is_swapped) else _TURN_US  # half: an estimate
            compute = _START_US + waves * max(steps * step, finish) + (waves - 1) * turn + finish
        else:
            compute = _START_US + waves * (steps * step + finish)
        sharers = c.cluster * c.cluster_n
        compute += _CLUSTER_US * (sharers > 1) + _CLUSTER_STEP_US * steps * math.log2(sharers)
        memory = max(_memory_us(problem, c, machine.gpu), problem.bytes / (busy * _MEMORY_OF_ONE) * 1e6)
        if c.adds_in_cluster:
            sums = (c.splits - 1) * m * n * problem.accumulator.bytes // owners
            compute += _GATHER_US + _PEER_US * (c.splits - 1) + _TWO_US * (c.consumers > 1)
            compute += sums / _l2_bytes_per_us(machine, busy)
        elif c.splits > 1:
            space = workspace_bytes(problem, c.splits) / machine.bandwidth
            memory, adding = memory + space, _LAUNCH_US + _START_US + space
        return Prediction(tiles, 1, waves, compute, memory, adding_us=adding)

    def step_us(self, problem: Problem, c: HopperConfiguration, busy: int, machine: Machine) -> float:
        """Return the microseconds of a tile of K, with so many multiprocessors at work."""
        return step_us(problem, c, busy, machine)

    def launch(self, problem: Problem, configuration: Configuration, arch: Arch) -> KernelLaunch:
        assert isinstance(configuration, HopperConfiguration), configuration
        c = configuration
        plan = replace(plan_for(problem, c, arch), kept=_kept(problem, c, gpu_of(arch)), follows=c.follows)
        numbers: tuple[NumberUse, ...] = ()
        if isinstance(problem.epilogue, ElementFunction):
            numbers = problem.epilogue.uses(problem.accumulator, problem.elements, arch)
        m, n = plan.results
        rows, columns = (problem.n, problem.m) if c.is_swapped else (problem.m, problem.n)
        tiles = clusters = -(-rows // (m * c.cluster)) * -(-columns // (n * c.cluster_n)) * problem.batch * plan.splits
        if plan.streams and tiles % (c.blocks // c.cluster) == 0:  # of a part of the batch
            plan = replace(plan, streams=False)
        if plan.streams:
            clusters = c.blocks // c.cluster
        elif plan.peers == 1:  # those compute one tile each
            clusters = max(min(clusters, c.blocks // c.cluster_size), 1)
        blocks = clusters * c.cluster_size
        if plan.splits > 1:
            first = _kernel(len(problem.blocks), c.cluster_size, plan.begins_early)[blocks, c.threads]
            return launch_splits(problem, c.splits, arch, first, plan, numbers)
        plan = replace(plan, epilogue=replace(plan.epilogue, numbers=numbers))
        further = len(problem.blocks) + len(problem.operands) + len(problem.further) + len(numbers) + plan.streams
        launcher = _kernel(further, c.cluster_size, plan.begins_early)[blocks, c.threads]
        if plan.streams:
            return launch_stream(problem, tiles, clusters, launcher, plan)
        # A part of each row from a tile of registers, and of each column from each of its warps.
        height, width = plan.part.tiler_mn
        along, down = -(-columns // width), -(-rows // height) * WARPGROUP // 32
        parts = Parts(down, along) if c.is_swapped else Parts(along, down)
        return launch_further(problem, parts, launcher, plan, numbers)


HOPPER = Hopper()


@cache
def _kernel(further: int, cluster: int, begins_early: bool) -> Kernel:
    kernel = matmul_warpgroups.numbered(further).configure(min_blocks=1, dependent_launch=begins_early)
    return kernel.configure(cluster=cluster) if cluster > 1 else kernel


def _takes(problem: Problem, arch: Arch) -> bool:
    return arch.name == "sm_90a" and problem.compute in _POWER and problem.k > 0


def _needs_of(operand: Operand) -> LayoutNeeds:
    return LayoutNeeds(("K", "MN") if operand.dtype.bits == 16 else ("K",), alignment=VECTOR_BYTES)


def _kept(problem: Problem, c: HopperConfiguration, gpu: Gpu) -> tuple[int | None, int | None]:
    """Return of how many tiles in `KEPT_OF` the operands stay in L2, as the kernel has them; None for all.

    A matrix that is read once a launch, and is larger than L2, leaves nothing of itself there for the next launch: what
    comes last drives out what comes first. If most of it leaves first, the rest stays.
    """
    sizes = _bytes_of(problem, c)
    if gpu.l2_bytes is None or sum(sizes) <= _FITS * gpu.l2_bytes or c.cluster > 1:
        return None, None
    m, n, _ = c.own_tile
    rows, columns = (problem.columns, problem.m) if c.is_swapped else (problem.m, problem.columns)
    is_read_often = [-(-columns // n) > _FEW, -(-rows // m) > _FEW]  # at about the same time
    room = _KEPT * gpu.l2_bytes
    large = sum(size for size in sizes if size > room / 4)
    share = int(KEPT_OF * (room - sum(sizes) + large) / large)
    found = [None if often or size <= room / 4 else share for often, size in zip(is_read_often, sizes, strict=True)]
    return found[0], found[1]


def _bytes_of(problem: Problem, c: HopperConfiguration) -> list[int]:
    """Return the bytes of the operands, as the kernel has them."""
    operands = (problem.m, problem.a), (problem.columns, problem.b)
    sizes = [rows * problem.k * problem.batch * x.dtype.bytes for rows, x in operands]
    return sizes[::-1] if c.is_swapped else sizes


def _memory_us(problem: Problem, c: HopperConfiguration, gpu: Gpu) -> float:
    """Return what all bytes take that a launch reads and writes, if the one before it read the same."""
    if gpu.l2_bytes is not None and gpu.l2_bandwidth is not None and problem.bytes <= _FITS * gpu.l2_bytes:
        return problem.bytes / gpu.l2_bandwidth * 1e6
    pairs = zip(_bytes_of(problem, c), _kept(problem, c, gpu), strict=True)
    kept = sum(size * share / KEPT_OF for size, share in pairs if share is not None)
    columns = problem.m if c.is_swapped else problem.columns
    again = 1.0 if columns <= c.own_tile[1] else _READ_AGAIN
    return (problem.bytes - kept) / gpu.reached_bandwidth * 1e6 * again


def step_us(
    problem: Problem, c: HopperConfiguration, busy: int, machine: Machine, products: int = 1, tiles: int = 1
) -> float:
    """Return the microseconds of a step of K: of `tiles` tiles of A and of B, and of `products` of them."""
    m, n, k = c.own_tile
    rate = machine.rate(problem.compute)
    assert rate is not None, problem.compute
    share = min(_POWER[problem.compute] * machine.multiprocessors / busy, _ISSUED)
    # An instruction of N columns takes N/2 clocks of the tensor cores, and 16 + N/4 of shared memory, from which it
    # reads 64 rows of A and N of B.
    reads = max(1.0, (16 + n / 4) / (n / 2))
    multiplying = products * 2 * m * n * k / (rate * share) * reads
    if problem.promotes and (m, n) not in ((BLOCK, BLOCK), THREE):
        multiplying *= _WAITS
    a, b = (problem.b, problem.a) if c.is_swapped else (problem.a, problem.b)
    row = tiles * k * problem.a.dtype.bytes
    of_a, of_b, rate = m * row * _lines(a), n * row * _lines(b), _l2_bytes_per_us(machine, busy)
    filled = (of_a / c.cluster_n + of_b / c.cluster) / rate
    filled += _beyond(problem, c) * row * busy / (_ZEROS_PER_CLOCK * machine.gpu.clock / 1e6)
    scaled = _LEAST_SCALED_US * (n / 64 if c.is_swapped else 1) if problem.blocks else 0.0
    is_long = 2 * problem.m * problem.columns * problem.k * problem.batch > _LONG
    return max(multiplying + _BESIDE * (1 + is_long) * (of_a + of_b) / rate, filled, scaled, _LEAST_STEP_US)


def _beyond(problem: Problem, c: HopperConfiguration) -> float:
    """Return how many rows of a step TMA fills up with zeros, at the average of all tiles."""
    (high, wide, _), rows, columns = c.tile, problem.m, problem.columns
    return high - rows / -(-rows // high) + wide - columns / -(-columns // wide)


def _lines(operand: Operand) -> float:
    """Return from how many lines a row of a tile is read, at the average of where rows begin."""
    return 2.2 - 1.2 * operand.line / ROW


def _l2_bytes_per_us(machine: Machine, busy: int) -> float:
    """Return the bytes that come to each of so many multiprocessors in a microsecond."""
    return min(_L2_BYTES_PER_CLOCK, _L2_BYTES_PER_CLOCK_IN_ALL / busy) * machine.gpu.clock / 1e6
