"""Products of a few vectors and a matrix (GEMV), by multiply-adds in the type of the accumulators.

Such a product takes the time of reading the matrix, whatever multiplies it: so float32, which tensor cores do not
multiply exactly, is as fast as memory. The kernel is `_gemv_kernel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.dtypes import DType, bfloat16, float16, float32, float64
from tilewright.kernels._gemv_kernel import multiply_vectors
from tilewright.kernels.epilogue import ElementEpilogue
from tilewright.kernels.family import Family, KernelLaunch, LayoutNeeds, Needs, Resources, launch_of, with_numbers
from tilewright.kernels.model import Machine, Prediction, blocks_with
from tilewright.kernels.problem import Configuration, Operand, Problem
from tilewright.launch import Kernel
from tilewright.layout import Layout
from tilewright.pickling import hashed_once

MOST, THREADS, AHEAD, LINE = 8, 256, 8, 128
_TYPES = (float16, bfloat16, float32, float64)
# From a load to its data, and what a launch takes beside its loads, in microseconds.
_LATENCY_US, _START_US = 0.8, 2.0
_BLOCK_US = 1.0  # what a block takes to begin, and to add up what its groups have
# More for 16 bits: tensor cores read them as fast, in families all of whose choices were measured.
_HALVES_US = 1.0
_ROW_BYTES = 12  # what a row of K costs beside its bytes


@hashed_once
@dataclass(frozen=True)
class GemvPlan:
    """What the kernel knows at compile time.

    A block computes `columns` of the result for all `vectors`; `lanes` read a line of the matrix, `width` elements
    each, and `shares` of them divide K. Along K a lane has as many columns as are `beside` each other, so that what it
    reads of a vector serves all of them. The few vectors are rows of B where it `is_turned`.
    """

    vectors: int
    columns: int
    lanes: int
    width: int
    ahead: int  # vectors of each column, or rows of K, that a lane asks for at a time
    beside: int
    is_along_k: bool
    is_turned: bool
    accumulator: DType
    epilogue: ElementEpilogue
    threads: int = THREADS

    @property
    def shares(self) -> int:
        """How many groups of lanes have the same columns."""
        return self.threads // self.lanes * self.beside // (self.columns if self.is_along_k else 1)

    @property
    def sums(self) -> Layout:
        """The sums of each share: columns, which threads write and read side by side, come first."""
        return Layout((self.columns, self.vectors, self.shares))


def is_turned(problem: Problem) -> bool:
    """Whether the few vectors are the columns of D."""
    return problem.n < problem.m


def matrix_of(problem: Problem) -> Operand:
    """Return the operand that is not of few rows."""
    return problem.a if is_turned(problem) else problem.b


class Gemv(Family):
    """Each column of a matrix times up to eight vectors; groups of lanes divide K."""

    name = "gemv"
    takes_parts = True  # float32 is multiplied as it is, which is more exact
    is_simulated = False  # a result is what such calls want, and one family gives it

    def configurations(self, problem: Problem, arch: Arch) -> Sequence[Configuration]:
        """Return tiles of a few rows by 1 to 256 columns; none for what the family is not for."""
        matrix, few = matrix_of(problem), min(problem.m, problem.n)
        known = problem.a.dtype in _TYPES and problem.a.dtype == problem.b.dtype and not problem.blocks
        if not known or few > MOST or matrix.major == "none" or problem.accumulator not in (float32, float64):
            return []
        vectors, size = 1 << (few - 1).bit_length(), matrix.dtype.bytes
        width = _width(matrix, vectors)
        if matrix.major == "MN":
            columns = [lanes * width for lanes in (32, 16, 8, 4, 2) if lanes * width * size <= 4 * LINE]
            return [Configuration((vectors, n, 1), (1, THREADS // 32), AHEAD) for n in columns]
        # Lanes that read a line, or a whole row of fewer bytes.
        lanes = min(32, LINE // (width * size), 1 << (-(-max(problem.k, 1) // width) - 1).bit_length())
        groups = THREADS // lanes
        return [
            Configuration((vectors, AHEAD // ahead * (groups >> n), lanes * width), (1, THREADS // 32), ahead)
            for ahead in (1, 2, 4, 8)  # of equally fast ones those whose columns share the most
            for n in range(groups.bit_length())
        ]

    def needs(self, problem: Problem) -> Needs:
        """Return that the matrix is contiguous along one mode, and the vectors along K as it is."""
        matrix, vectors = LayoutNeeds(("K", "MN")), LayoutNeeds()
        if matrix_of(problem).major == "K":
            vectors = LayoutNeeds(("K",), alignment=min(VECTOR_BYTES, matrix_of(problem).alignment))
        return Needs(a=matrix, b=vectors) if is_turned(problem) else Needs(a=vectors, b=matrix)

    def resources(self, problem: Problem, configuration: Configuration, arch: Arch) -> Resources:
        plan = _plan(problem, configuration)
        shared = plan.columns * plan.vectors * plan.shares * plan.accumulator.bytes
        sums = _sums(plan)
        rejection = None
        if sums > 64:
            rejection = f"{sums} registers for sums"
        elif shared > 49152:
            rejection = f"{shared} bytes of shared memory for sums"
        return Resources(shared, sums, rejection)

    def predict(
        self, problem: Problem, configuration: Configuration, resources: Resources, machine: Machine
    ) -> Prediction:
        """Return the longer of what memory takes, and the loads of a lane, one after another."""
        plan = _plan(problem, configuration)
        rows = problem.m if plan.is_turned else problem.n
        blocks = -(-rows // plan.columns) * problem.batch
        resident = blocks_with(plan.threads, _registers(plan), resources.shared_bytes, machine.arch)
        waves = -(-blocks // (machine.multiprocessors * resident))
        of_step = plan.shares * plan.ahead * (plan.lanes * plan.width if plan.is_along_k else 1)
        loads = -(-max(problem.k, 1) // of_step)
        more = _HALVES_US if matrix_of(problem).dtype.bytes == 2 else 0.0
        compute = more + _START_US + waves * (loads * _LATENCY_US + _BLOCK_US) - _BLOCK_US
        memory = more + problem.bytes / machine.bandwidth * max(1.0, _read(plan, matrix_of(problem).dtype.bytes))
        return Prediction(blocks, resident, waves, compute, memory)

    def launch(self, problem: Problem, configuration: Configuration, arch: Arch) -> KernelLaunch:
        plan = with_numbers(_plan(problem, configuration), problem, arch)
        blocks = -(-(problem.m if plan.is_turned else problem.n) // plan.columns) * problem.batch
        return launch_of(problem, plan, blocks, _kernel)


def _read(plan: GemvPlan, size: int) -> float:
    """Return by how much longer than its bytes take a matrix is read.

    Along K a vector's load takes as long as one of the matrix, once for all columns of a lane; along columns each row
    begins elsewhere in memory.
    """
    if plan.is_along_k:
        return 1 + max(0.0, plan.vectors / plan.beside - 0.25) / 8
    return 0.97 + _ROW_BYTES / (plan.columns * size)


def _registers(plan: GemvPlan) -> int:
    """Return about how many registers a thread takes."""
    return min(255, 48 + AHEAD * 4 + _sums(plan) + 4 * plan.vectors)


def _sums(plan: GemvPlan) -> int:
    """Return the registers that hold a thread's sums."""
    return plan.vectors * (plan.beside if plan.is_along_k else plan.width) * plan.accumulator.bytes // 4


def _width(matrix: Operand, vectors: int) -> int:
    """Return the elements of a vector of the matrix; along columns, as many as shared memory has room for sums of."""
    width = max(1, min(matrix.alignment, VECTOR_BYTES) // matrix.dtype.bytes)
    return width if matrix.major == "K" else min(width, 32 // vectors)


@cache
def _kernel(further: int) -> Kernel:
    return multiply_vectors.numbered(further).configure(min_blocks=1)


@lru_cache(maxsize=1024)
def _plan(problem: Problem, configuration: Configuration) -> GemvPlan:
    """Plan a kernel; problems that differ in extents only have equal plans."""
    vectors, columns, at_a_time = configuration.tile
    matrix, ahead = matrix_of(problem), configuration.stages
    width, is_along_k = _width(matrix, vectors), matrix.major == "K"
    lanes = (at_a_time if is_along_k else columns) // width
    return GemvPlan(
        vectors, columns, lanes, width, ahead, AHEAD // ahead, is_along_k, is_turned(problem), problem.accumulator,
        ElementEpilogue.of(problem),
    )  # fmt: skip
