"""The family for few rows times weights of 4 or 8 bits: each weight is read once, and memory decides the time.

The kernel is `_weights_kernel.stream_weights`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from tilewright import atoms
from tilewright.arch import Arch
from tilewright.atoms import CopyAtom, CpAsync
from tilewright.dtypes import float16
from tilewright.kernels._weights_kernel import stream_weights
from tilewright.kernels.epilogue import ElementEpilogue
from tilewright.kernels.family import KernelLaunch, Resources
from tilewright.kernels.model import Machine, Prediction, blocks_with, lack_of_products, lack_of_shared
from tilewright.kernels.problem import Configuration, Problem
from tilewright.kernels.weight_plan import WeightFamily, WeightPlan, instruction_of, launch_plan
from tilewright.kernels.weights import CHUNK, STEPS, TILE
from tilewright.launch import Kernel
from tilewright.layout import ComposedLayout, Layout, Swizzle
from tilewright.tiled import make_tiled_mma

ROWS = 16  # of x in a block at most

# What the prediction takes: the time from a load to its data in microseconds, and how many bytes the second-level cache
# gives for each that memory does.
_LATENCY_US, _CACHE_RATE = 0.8, 1.3
_START_US = 3.9  # the first loads of a block and its last sums, which hide less where a multiprocessor has one block:
_ALONE_US = 0.7  # one row took 11.2 us in blocks of 64 columns on an H200, and 10.4 in those of 32
_INSTRUCTIONS_PER_US = 4 * 1400  # of warps, that a multiprocessor issues


@dataclass(frozen=True)
class StreamPlan(WeightPlan):
    """A plan for warps that each have the block's columns and rows, and a share of K."""

    rows: int = 8  # of x that are there: of the others of an instruction any will do

    def __hash__(self) -> int:  # a dataclass does not inherit one
        return super().__hash__()

    @property
    def x_layout(self) -> Layout:
        """What a lane has of a chunk of x: (of two steps, two steps, eight rows)."""
        return Layout((8, 4, self.tokens // 8))

    @property
    def smem_x(self) -> ComposedLayout:
        """x: (row, K, stage, warp); the swizzle puts the 16 bytes of eight rows into different banks."""
        chunk = self.rows * CHUNK
        shape = (self.rows, CHUNK, 2, self.shares)
        return ComposedLayout(Swizzle(3, 3, 4), 0, Layout(shape, (CHUNK, 1, chunk, 2 * chunk)))

    @property
    def copy_x(self) -> CopyAtom:
        found: CopyAtom = CpAsync(128)
        return found

    @property
    def load_x(self) -> CopyAtom:
        found: CopyAtom = atoms.SM75_U32x4_LDSM_N
        return found

    @property
    def x_fragments(self) -> Layout:
        """The same registers as fragments of operand B, for each step."""
        return Layout(((2, 2), self.tokens // 8, STEPS), ((1, 2), 32, 4))


class WeightStreaming(WeightFamily):
    """Weights from memory to the registers that multiply them; the warps of a block divide K."""

    name = "weight streaming"

    def configurations(self, problem: Problem, arch: Arch) -> Sequence[Configuration]:
        """Return tiles of 16 to 64 columns, by 4 to 16 warps."""
        if problem.weights is None:
            return []
        rows = 8 if problem.m <= 8 else ROWS
        return [
            Configuration((rows, TILE * tiles, CHUNK), (1, warps), 2, 1) for tiles in (1, 2, 4) for warps in (4, 8, 16)
        ]

    def resources(self, problem: Problem, configuration: Configuration, arch: Arch) -> Resources:
        rows, columns, _ = configuration.tile
        accumulators = rows * columns // 32
        shared = configuration.warps[1] * rows * max((columns + 4) * 4, 2 * CHUNK * 2)
        rejection = None
        registers = _registers(problem, configuration)
        limit = min(arch.registers_per_thread - 10, 65536 // configuration.threads)
        if arch.number < 80:
            rejection = lack_of_products(problem, arch)
        elif shared > arch.shared_bytes_optin:
            rejection = lack_of_shared(shared, arch)
        elif registers > limit:
            rejection = f"about {registers} registers a thread; {configuration.threads} threads have {limit}"
        return Resources(shared, accumulators, rejection)

    def predict(
        self, problem: Problem, configuration: Configuration, resources: Resources, machine: Machine
    ) -> Prediction:
        """Return the longest of what memory, the second-level cache, loads under way and instructions take."""
        weights = problem.weights
        assert weights is not None
        (rows, columns, _), (_, warps) = configuration.tile, configuration.warps
        tiles = columns // TILE
        blocks = -(-problem.n // columns) * -(-problem.m // rows) * problem.batch
        registers = _registers(problem, configuration)
        resident = blocks_with(configuration.threads, registers, resources.shared_bytes, machine.arch)
        resident = min(resident, -(-blocks // machine.multiprocessors))
        waves = -(-blocks // (machine.multiprocessors * resident))
        on_one = -(-blocks // machine.multiprocessors)  # blocks that the busiest multiprocessor computes
        of_warp = -(-weights.chunks // warps)
        chunk_bytes = tiles * weights.words * 4
        loading = on_one * of_warp * chunk_bytes * warps / (resident * warps * chunk_bytes) * _LATENCY_US
        read = min(rows, problem.m) * CHUNK * 2 + chunk_bytes
        cached = on_one * warps * of_warp * read * machine.multiprocessors / (machine.bandwidth * _CACHE_RATE)
        # A register of two weights takes about 2.5 instructions, and a byte in bfloat16 about as many for itself.
        each = 2.5 if weights.bits == 4 or problem.compute is float16 else 5.0
        instructions = tiles * (32 * each + STEPS * rows // 8 + 16 * weights.groups_in_chunk) + rows
        issued = on_one * warps * of_warp * instructions / _INSTRUCTIONS_PER_US
        compute = max(loading, cached, issued) + waves * _START_US
        memory = problem.bytes / machine.bandwidth + _START_US - _ALONE_US * (resident > 1)
        return Prediction(blocks, resident, waves, compute, memory)

    def launch(self, problem: Problem, configuration: Configuration, arch: Arch) -> KernelLaunch:
        return launch_plan(problem, stream_plan(problem, configuration, arch), arch, _kernel)


def _registers(problem: Problem, configuration: Configuration) -> int:
    """Return about how many registers a thread takes: weights, held and coming, x, sums of a group and of all."""
    weights = problem.weights
    assert weights is not None
    rows, tiles = configuration.tile[0], configuration.tile[1] // TILE
    groups = tiles * weights.groups_in_chunk * weights.scale.bytes // 2
    return 2 * (2 * weights.bits * tiles + rows + rows * tiles // 2) + 4 * tiles + 3 * groups + 32


@cache
def _kernel(further: int) -> Kernel:
    return stream_weights.numbered(further).configure(min_blocks=1)


@lru_cache(maxsize=1024)
def stream_plan(problem: Problem, configuration: Configuration, arch: Arch) -> StreamPlan:
    """Plan a kernel; problems that differ in extents only have equal plans."""
    assert problem.weights is not None
    rows, columns, _ = configuration.tile
    tiles, mma = columns // TILE, make_tiled_mma(instruction_of(problem), (1, 1, 1))
    weights = problem.weights.without_extents()
    there = rows if problem.m > 2 else 2
    return StreamPlan(weights, tiles, tiles, rows, configuration.warps[1], mma, ElementEpilogue.of(problem), there)
