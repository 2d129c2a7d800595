"""The family for weights of 4 or 8 bits on Hopper: warpgroups that dequantise operand A of wgmma in registers.

The kernel is `_weights_warpgroup_kernel`. A tile has 64 to 256 columns of the weights, and 8 to 256 rows of x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial

from tilewright import atoms
from tilewright.arch import VECTOR_BYTES, Arch, gpu_of
from tilewright.atoms import MMAAtom
from tilewright.dtypes import DType, bfloat16, float16
from tilewright.kernels._weights_warpgroup_kernel import multiply_weights_by_warpgroups
from tilewright.kernels.epilogue import ElementEpilogue
from tilewright.kernels.family import Candidate, KernelLaunch, Resources, launch_of, with_numbers
from tilewright.kernels.hopper_plan import CONSUMER_REGISTERS, CONSUMERS, PRODUCER_REGISTERS, ROWS, THREADS
from tilewright.kernels.model import Machine, Prediction, lack_of_shared
from tilewright.kernels.problem import Configuration, Problem
from tilewright.kernels.weight_plan import WeightFamily, WeightPlan
from tilewright.kernels.weights import CHUNK, TILE, WeightFormat
from tilewright.launch import Kernel
from tilewright.layout import ComposedLayout, Layout, tile_to_shape
from tilewright.pickling import changed
from tilewright.schedulers import Grouped, Scheduler
from tilewright.tiled import TiledCopy, TiledMMA, make_tiled_copy_C, make_tiled_mma
from tilewright.transactions import ROW

_SPARE_BYTES = 1024  # of shared memory, for the barriers and what lies between buffers
_MOST_STAGES = 16
_GROUP = 8  # tiles along the columns of the weights before the next along the rows of x
_ROWS_OF_X = (8, 16, 32, 64, 128)
_ROUNDED_ROWS = 256  # of weights that are rounded: registers hold no sums of groups beside the total's
_ROUNDED_STAGES = 3  # at least: 4 bits in groups of 128 and more leave memory for them, and 8 bits never
_PEERS = (2, 4, 8)
_PAIRED_ROWS = 32  # of which each of two blocks adds up a half: an instruction stores 16 at least
_EARLY_ROWS = 64  # of x at most, in tiles whose blocks begin early: they last so short that the start counts

# What the prediction takes, in microseconds: a chunk's conversion for 128 columns by two consumers, with two items
# under way and with one, and the sums of a group; the share of their time at the peak that products add to that, and
# the share of the peak that they reach on all multiprocessors; the first stage, and what of it is over when blocks that
# begin early may read; a tile's results; and sums of others, those that come to stages, and others, as they took by
# stores behind a fence (they are bulk copies since, and not measured). Fitted to measurements on an H200 of 1 to 4096
# rows of 8192 x 8192 weights of 4 bits in groups of 128; bytes and other groups are estimates.
_CONVERT_US, _CONVERT_ONE_US, _GROUP_US, _BYTES_OF_BFLOAT16 = 0.23, 0.27, 0.03, 1.8
_BESIDE, _POWER, _ROUNDED_POWER, _ISSUED = 0.63, 0.72, 0.80, 0.96
_START_US, _EARLY_US, _TILE_US, _SENT_US, _SUMS_US = 3.5, 0.6, 1.5 / (128 * 128), 0.3, 0.9
_L2_BYTES_PER_CLOCK, _L2_BYTES_PER_CLOCK_IN_ALL = 71, 7300  # as in hopper.py


@dataclass(frozen=True)
class WarpgroupConfiguration(Configuration):
    """`tile` = (rows of x, columns of the weights, K of a stage); `splits` blocks of a cluster share the K of a tile.

    With 64 columns the consumers of a block share K instead of columns (`shares`). At most so many `blocks` are
    launched, one for each multiprocessor, where blocks compute several tiles.
    """

    blocks: int = 132

    @property
    def threads(self) -> int:
        return THREADS

    @property
    def shares(self) -> int:
        """How many consumers share the K of a block's tile."""
        return CONSUMERS if self.tile[1] == ROWS else 1

    def __str__(self) -> str:
        m, n, k = self.tile
        splits = f", {self.splits} splits in a cluster" if self.splits > 1 else ""
        return f"{m}x{n}x{k}, {self.stages} stages{splits}"


@dataclass(frozen=True)
class WarpgroupPlan(WeightPlan):
    """A plan for two consumers with `tiles` times 64 columns each; `peers` blocks of a cluster have parts of K."""

    stages: int
    peers: int
    batched: bool
    scheduler: Scheduler
    part: TiledMMA  # of the sums that are finished at once
    dtype: DType  # of x
    stores_boxes: bool  # results of 16 bits leave by TMA, transposed on their way to shared memory
    rounds: bool  # weights, times their scales, to the type of x

    def __hash__(self) -> int:  # a dataclass does not inherit one
        return super().__hash__()

    # What the Hopper kernel's parts ask of its plans.
    cluster = cluster_n = sharers = 1
    splits = 1
    consumers = CONSUMERS
    is_ping_pong = takes_turns = alternates = streams = False
    rows = None  # that leave by stores: they leave from registers

    @property
    def threads(self) -> int:
        return THREADS

    @property
    def results(self) -> tuple[int, int]:
        """The extents of a tile of results."""
        return self.tile[:2]

    @property
    def owners(self) -> int:
        """The peers that add up sums, each those of as many rows of x: two of 128 rows, or a pair of fewer."""
        return _owners(self.tokens, self.peers)

    @property
    def additions(self) -> int:
        """How often the sums of an item are added to the total: once a group, or not by themselves."""
        return 1 if self.rounds else self.parts

    @property
    def chunks(self) -> int:
        """The chunks of K in an iteration."""
        return self.items * self.shares // self.tiles

    @property
    def span(self) -> int:
        """The chunks of K in a stage: two, which are half as many copies, where both have groups of their own."""
        is_short = self.tiles == self.weights.chunks_in_group == 1
        return 2 if self.overlaps and is_short else 1

    @property
    def pieces(self) -> int:
        """The stages of an iteration."""
        return self.chunks // self.span

    @property
    def items(self) -> int:
        """What a consumer multiplies in an iteration: 64 columns of a chunk, so many times."""
        return 4 if self.overlaps else 2

    @property
    def overlaps(self) -> bool:
        """Whether an item is begun before the products of the last are over: registers hold the sums of both."""
        return self.parts == 1 and self.tokens * self.tiles <= ROWS

    @property
    def registers(self) -> tuple[int, int]:
        """The registers of the producer's threads and of the consumers'."""
        return (24, 240) if self.rounds else (PRODUCER_REGISTERS, CONSUMER_REGISTERS)

    @property
    def lends(self) -> bool:
        """Whether two peers send each other sums from a stage of x to a stage of x, when all are read."""
        return self.owners == self.peers == 2

    @property
    def lender(self) -> int | None:
        """What has stages that hold the sums that peers send, x (0) or the weights (1); None where neither has.

        Sums come only to those of x: threads have read the weights, and not wgmma alone.
        """
        words = CHUNK * self.tokens // 2, 0 if self.lends else self.block_tiles * self.weights.words
        sums = self.columns * self.tokens
        return next((n for n, each in enumerate(words) if self.stages * self.span * each >= sums), None)

    @property
    def begins_early(self) -> bool:
        """Whether blocks prepare while the launch before runs."""
        return self.lends or self.tokens <= _EARLY_ROWS

    @property
    def tile(self) -> tuple[int, int, int]:
        """Columns of the weights, rows of x, K of an iteration."""
        return self.columns, self.tokens, self.chunks * CHUNK

    @property
    def smem_x(self) -> ComposedLayout:
        """(row, K, stage), as TMA writes and wgmma reads it."""
        found: ComposedLayout = tile_to_shape(
            atoms.GMMA_K_SW128(self.dtype), (self.tokens, CHUNK * self.span, self.stages)
        )
        return found

    @property
    def smem_w(self) -> Layout:
        """(tile, chunk, word, stage); TMA brings 256 words of each chunk at once."""
        box, tiles, span = 256, self.block_tiles, self.span
        halves = self.weights.words // box
        words, step = (box, 1) if halves == 1 else ((box, halves), (1, box * span * tiles))
        return Layout((tiles, span, words, self.stages), (box * span, box, step, box * span * tiles * halves))

    @property
    def smem_groups(self) -> Layout:
        """(tile, group, column, stage) of scales or zeros; TMA brings them to multiples of 128 bytes."""
        of_tile = self.parts * self.span * TILE
        shape = (self.block_tiles, self.parts * self.span, TILE, self.stages)
        return Layout(shape, (of_tile, TILE, 1, -(-of_tile * self.block_tiles // ROW) * ROW))

    @property
    def buffers(self) -> int:
        """The buffers in `smem_d` of each consumer."""
        return 1

    @property
    def smem_d(self) -> ComposedLayout:
        """(column of the weights, row of x, consumer) of the results that are stored at once."""
        shape = (ROWS, self.part.shape_mnk[1], CONSUMERS)
        found: ComposedLayout = tile_to_shape(atoms.GMMA_MN_SW128(self.dtype), shape, (2, 1, 3))
        return found

    @property
    def write(self) -> TiledCopy:
        """The way of these to shared memory."""
        return make_tiled_copy_C(atoms.SM90_U16x8_STSM_T, self.part)

    @property
    def group_bytes(self) -> int:
        """The bytes of scales and zeros in a stage."""
        beside = self.weights.scale.bytes + (self.weights.bits // 4 if self.arrays > 1 else 0)
        return self.block_tiles * self.parts * self.span * TILE * beside

    @property
    def stage_bytes(self) -> int:
        """The bytes that come to a stage."""
        of_chunk = CHUNK * self.tokens * 2 + self.block_tiles * self.weights.words * 4
        return of_chunk * self.span + self.group_bytes

    @property
    def shared_bytes(self) -> int:
        """The bytes of shared memory, with two mbarriers for each stage, and the sums of peers."""
        sums = self.columns * self.tokens * 4
        results = ROWS * self.part.shape_mnk[1] * CONSUMERS * 2 if self.stores_boxes else 0
        spare = ROW if self.shares > 1 else 0  # behind the zeros of a stage
        others = (self.shares - 1) * sums + (0 if self.lends else (self.peers - 1) * sums // self.owners)
        return self.stages * (self.stage_bytes + spare + 16) + results + others


class WeightWarpgroups(WeightFamily):
    """Weights through shared memory to the registers of warpgroups, which multiply them by wgmma; sm_90a only."""

    name = "weight warpgroups"
    is_simulated = False  # roles that wait for each other take the simulator longer than one thread after another

    def candidates(self, problem: Problem, machine: Machine, *, lazily: bool = False) -> list[Candidate]:
        """Return the candidates, which launch as many blocks as the GPU has multiprocessors."""

        def on_all(configuration: Configuration) -> Configuration:
            assert isinstance(configuration, WarpgroupConfiguration), configuration
            return changed(configuration, blocks=machine.multiprocessors)

        found = super().candidates(problem, machine, lazily=lazily)
        return [changed(c, configuration=on_all(c.configuration)) for c in found]

    def configurations(self, problem: Problem, arch: Arch) -> Sequence[Configuration]:
        """Return tiles of 8 to 256 rows by 64 to 256 columns, with clusters that share K where tiles are few."""
        if arch.name != "sm_90a" or problem.weights is None or problem.k == 0:
            return []
        rows = [r for r in _ROWS_OF_X if r < 2 * problem.m or r == _ROWS_OF_X[0]]
        found = []
        for row in rows[-2:]:
            for columns in (64, 128, 256) if row <= ROWS else (128,):
                for peers in (1, *_PEERS) if columns > 64 else (1,):
                    found.append(_configuration(problem, row, columns, peers, arch))
        if problem.sums_stay and problem.m > _ROWS_OF_X[-1]:
            found.append(_configuration(problem, _ROUNDED_ROWS, 128, 1, arch))
        return [one for one in found if one is not None]

    def resources(self, problem: Problem, configuration: Configuration, arch: Arch) -> Resources:
        assert isinstance(configuration, WarpgroupConfiguration), configuration
        plan = warpgroup_plan(problem, configuration)
        rejection = None
        lacks_room = plan.peers > 1 and plan.lender is None
        if lacks_room or plan.shared_bytes + _SPARE_BYTES > arch.shared_bytes_optin or plan.stages < 2 * plan.shares:
            rejection = lack_of_shared(plan.shared_bytes, arch)
        return Resources(plan.shared_bytes, plan.columns * plan.tokens // 256, rejection)

    def predict(
        self, problem: Problem, configuration: Configuration, resources: Resources, machine: Machine
    ) -> Prediction:
        """Return the time of a block's tiles one after another, each chunk of K bound by products or conversions."""
        assert isinstance(configuration, WarpgroupConfiguration), configuration
        plan, (m, n, _) = warpgroup_plan(problem, configuration), configuration.tile
        tiles = -(-problem.m // m) * -(-problem.n // n) * problem.batch * plan.peers
        waves = -(-tiles // machine.multiprocessors)
        rate = machine.rate(problem.compute)
        assert rate is not None, machine.gpu.name
        is_slow = plan.weights.bits == 8 and problem.compute is bfloat16  # bytes go through float32
        convert = (_CONVERT_US if plan.overlaps else _CONVERT_ONE_US) * (_BYTES_OF_BFLOAT16 if is_slow else 1.0)
        products = 2 * m * n * CHUNK / rate
        power = _ROUNDED_POWER if plan.rounds else _POWER
        share = min(power * machine.multiprocessors / min(tiles, machine.multiprocessors), _ISSUED)
        step = max(n / 128 * (convert + plan.parts * _GROUP_US) + _BESIDE * products, products / share)
        filled = plan.stage_bytes / plan.span / min(_L2_BYTES_PER_CLOCK, _L2_BYTES_PER_CLOCK_IN_ALL / min(tiles, 132))
        filled /= machine.gpu.clock / 1e6
        chunks = -(-problem.k // (CHUNK * plan.chunks * plan.peers)) * plan.chunks
        sums = _SENT_US if plan.lends else _SUMS_US * (plan.peers > 1 or plan.shares > 1)
        finish = m * n / plan.owners * _TILE_US + sums
        start = _START_US - _EARLY_US * plan.begins_early
        compute = start + waves * (chunks * max(step, filled) + finish)
        return Prediction(tiles, 1, waves, compute, problem.bytes / machine.bandwidth + start)

    def launch(self, problem: Problem, configuration: Configuration, arch: Arch) -> KernelLaunch:
        assert isinstance(configuration, WarpgroupConfiguration), configuration
        plan = with_numbers(warpgroup_plan(problem, configuration), problem, arch)
        tiles = -(-problem.m // plan.tokens) * -(-problem.n // plan.columns) * problem.batch
        blocks = min(tiles, configuration.blocks) if plan.peers == 1 else tiles * plan.peers
        kernel_of = partial(_kernel, cluster=plan.peers, is_early=plan.begins_early)
        return launch_of(problem, plan, blocks, kernel_of, plan.arrays)


def _configuration(problem: Problem, rows: int, columns: int, peers: int, arch: Arch) -> WarpgroupConfiguration | None:
    """Return a configuration with as many stages as shared memory holds, if K has work for all peers."""
    tiles = -(-problem.m // rows) * -(-problem.n // columns) * problem.batch
    chunks = -(-problem.k // CHUNK)
    # Where 18 multiprocessors form clusters, 16 of them do.
    most = gpu_of(arch).multiprocessors * (16 if peers > 2 else 18) // 18
    if peers > 1 and (tiles * peers > most or chunks < 4 * peers):
        return None
    one = WarpgroupConfiguration((rows, columns, CHUNK), (4 * CONSUMERS, 1), 1, 1, splits=peers)
    plan = warpgroup_plan(problem, one)
    each = replace(plan, stages=2).shared_bytes - plan.shared_bytes
    stages = (arch.shared_bytes_optin - _SPARE_BYTES - plan.shared_bytes) // each + 1
    stages = max(min(stages, _MOST_STAGES), 1)
    if plan.rounds and stages < _ROUNDED_STAGES:
        return None
    # A consumer has every other stage: then it does not come to one two phases early.
    return changed(one, stages=stages - stages % one.shares)


@cache
def _kernel(further: int, cluster: int, is_early: bool) -> Kernel:
    kernel = multiply_weights_by_warpgroups.numbered(further).configure(min_blocks=1, dependent_launch=is_early)
    return kernel.configure(cluster=cluster) if cluster > 1 else kernel


def warpgroup_plan(problem: Problem, configuration: WarpgroupConfiguration) -> WarpgroupPlan:
    """Plan a kernel; problems that differ in extents only have equal plans, where rows of D end at 16 bytes or not."""
    weights = problem.weights
    assert weights is not None
    n = VECTOR_BYTES // problem.d.dtype.bytes if problem.is_whole_vectors else 1
    read = replace(problem, m=1, n=n, k=1, batch=min(problem.batch, 2), weights=weights.without_extents())
    return _plan(read, configuration)


@lru_cache(maxsize=1024)
def _plan(problem: Problem, configuration: WarpgroupConfiguration) -> WarpgroupPlan:
    rows, columns, _ = configuration.tile
    weights: WeightFormat | None = problem.weights
    assert weights is not None
    owners = _owners(rows, configuration.splits)
    return WarpgroupPlan(
        weights,
        max(columns // (ROWS * CONSUMERS), 1),
        columns // TILE,
        rows,
        configuration.shares,
        make_tiled_mma(_instruction(problem.compute, rows, "RS"), (CONSUMERS // configuration.shares, 1, 1)),
        ElementEpilogue.of(problem).transposed,
        configuration.stages,
        configuration.splits,
        problem.batch != 1,
        Grouped(_GROUP),
        make_tiled_mma(_instruction(problem.compute, min(rows // owners, ROWS) if rows <= 2 * ROWS else 32, "SS")),
        problem.compute,
        rows > 8 and problem.is_whole_vectors and problem.d.dtype.bytes == 2,
        rows == _ROUNDED_ROWS,
    )


def _owners(rows: int, peers: int) -> int:
    return 2 if (peers == 2 and rows >= _PAIRED_ROWS) or (peers > 1 and rows > ROWS) else 1


def _instruction(dtype: DType, columns: int, places: str) -> MMAAtom:
    types = "F16F16" if dtype is float16 else "BF16BF16"
    found: MMAAtom = getattr(atoms, f"SM90_64x{columns}x16_F32{types}_{places}")
    return found
