"""The streaming family: at most 16 rows of float16 or bfloat16 times a matrix that is contiguous along K.

Such a product takes the time of reading B. The kernel is `_streaming_kernel`. No configuration of it has been measured
yet, and `predict` is a formula that leaves the choice to families which were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from tilewright import atoms
from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.dtypes import bfloat16, float16
from tilewright.kernels._streaming_kernel import stream_matrix
from tilewright.kernels.epilogue import ElementEpilogue
from tilewright.kernels.family import Family, KernelLaunch, LayoutNeeds, Needs, Resources, launch_of, with_numbers
from tilewright.kernels.model import Machine, Prediction, blocks_with, lack_of_products
from tilewright.kernels.problem import Configuration, Problem
from tilewright.launch import Kernel
from tilewright.layout import Layout
from tilewright.pickling import hashed_once
from tilewright.tiled import TiledMMA, make_tiled_mma

CHUNK, COLUMNS, MAX_ROWS = 128, 16, 16
# From a load to its data, and the first loads of a block with its last sums, in microseconds: the second is set high,
# so that on sm_90a the Hopper family is chosen, which was measured.
_LATENCY_US, _START_US = 0.8, 4.0


@hashed_once
@dataclass(frozen=True)
class StreamingPlan:
    """What the kernel knows at compile time: a block has `tokens` rows of A, and `shares` warps divide K."""

    tokens: int
    shares: int
    mma: TiledMMA
    epilogue: ElementEpilogue

    @property
    def threads(self) -> int:
        return 32 * self.shares

    @property
    def columns(self) -> int:
        """The columns of D that a block computes."""
        return COLUMNS // (1 + self.epilogue.is_gated)

    @property
    def w_layout(self) -> Layout:
        """A lane's elements of a chunk of B: (element, vector, row)."""
        return Layout((8, 4, 2))

    @property
    def w_fragments(self) -> Layout:
        """The same registers as fragments of operand A, for each of eight steps."""
        return Layout(((2, 2, 2), 1, 8), ((1, 32, 2), 64, 4))

    @property
    def x_layout(self) -> Layout:
        return Layout((8, 4, self.tokens // 8))

    @property
    def x_fragments(self) -> Layout:
        return Layout(((2, 2), self.tokens // 8, 8), ((1, 2), 32, 4))

    @property
    def sums(self) -> Layout:
        """The warps' sums: what half of a warp writes lies in different banks."""
        height = COLUMNS + 4
        return Layout((COLUMNS, self.tokens, self.shares), (1, height, height * self.tokens))


class Streaming(Family):
    """B from memory to the registers that multiply it; the warps of a block divide K."""

    name = "streaming"
    takes_pairs = True
    is_simulated = False  # a result is what such calls want, and one family gives it

    def configurations(self, problem: Problem, arch: Arch) -> Sequence[Configuration]:
        """Return tiles of 8 or 16 rows by 16 columns, with 2 to 16 warps; none for what the family is not for."""
        is_half = problem.compute in (float16, bfloat16) and problem.parts is None and not problem.blocks
        if not is_half or problem.m > MAX_ROWS or problem.b.major != "K" or problem.b.alignment < VECTOR_BYTES:
            return []
        rows = 8 if problem.m <= 8 else 16
        return [Configuration((rows, COLUMNS, CHUNK), (1, warps), 2, 1) for warps in (2, 4, 8, 16)]

    def needs(self, problem: Problem) -> Needs:
        """Return that rows of both are read by 16 bytes."""
        rows = LayoutNeeds(("K",), alignment=VECTOR_BYTES)
        return Needs(a=rows, b=rows)

    def resources(self, problem: Problem, configuration: Configuration, arch: Arch) -> Resources:
        rows, warps = configuration.tile[0], configuration.warps[1]
        shared = warps * rows * (COLUMNS + 4) * 4
        registers, limit = _registers(rows), min(arch.registers_per_thread, 65536 // configuration.threads)
        rejection = None
        if arch.number < 80:
            rejection = lack_of_products(problem, arch)
        elif registers > limit:
            rejection = f"about {registers} registers a thread; {configuration.threads} threads have {limit}"
        return Resources(shared, rows // 2, rejection)

    def predict(
        self, problem: Problem, configuration: Configuration, resources: Resources, machine: Machine
    ) -> Prediction:
        """Return the longer of what memory takes, and the loads of a warp, one after another."""
        rows, warps = configuration.tile[0], configuration.warps[1]
        blocks = -(-problem.columns // COLUMNS) * problem.batch
        resident = blocks_with(configuration.threads, _registers(rows), resources.shared_bytes, machine.arch)
        waves = -(-blocks // (machine.multiprocessors * resident))
        of_warp = -(-max(problem.k, 1) // (CHUNK * warps))
        compute = waves * (of_warp * _LATENCY_US + _START_US)
        return Prediction(blocks, resident, waves, compute, problem.bytes / machine.bandwidth + _START_US)

    def launch(self, problem: Problem, configuration: Configuration, arch: Arch) -> KernelLaunch:
        plan = with_numbers(_plan(problem, configuration), problem, arch)
        blocks = -(-problem.m // plan.tokens) * -(-problem.n // plan.columns) * problem.batch
        return launch_of(problem, plan, blocks, _kernel)


def _registers(rows: int) -> int:
    """Return about how many registers a thread takes: B and A, held and coming, and the sums."""
    return 2 * (32 + 2 * rows) + rows // 2 + 28


@cache
def _kernel(further: int) -> Kernel:
    return stream_matrix.numbered(further).configure(min_blocks=1)


@lru_cache(maxsize=1024)
def _plan(problem: Problem, configuration: Configuration) -> StreamingPlan:
    """Plan a kernel; problems that differ in extents only have equal plans."""
    is_half = problem.compute is float16
    atom = atoms.SM80_16x8x16_F32F16F16F32_TN if is_half else atoms.SM80_16x8x16_F32BF16BF16F32_TN
    return StreamingPlan(
        configuration.tile[0], configuration.warps[1], make_tiled_mma(atom, (1, 1, 1)), ElementEpilogue.of(problem)
    )
