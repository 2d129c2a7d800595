"""The tiny family: batches of matrices of a few rows and columns, several in each block, by multiply-adds.

Such products take the time of reading them, and what a block takes beside its products counts once for many. The
kernel is `_tiny_kernel`. No configuration has been measured yet; `predict` is a formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, lru_cache

import numpy as np

from tilewright import dtypes as t
from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.dtypes import DType
from tilewright.kernels._tiny_kernel import multiply_tiny
from tilewright.kernels.epilogue import ElementEpilogue
from tilewright.kernels.family import Family, KernelLaunch, Needs, Resources
from tilewright.kernels.functions import ElementFunction
from tilewright.kernels.model import Machine, Prediction, resident_blocks
from tilewright.kernels.problem import Configuration, Operand, Problem
from tilewright.launch import Kernel
from tilewright.layout import Layout
from tilewright.tensors import Tensor
from tilewright.transactions import wavefronts

MOST, DEEPEST = 64, 128  # rows or columns, and K
_TYPES = (t.float16, t.bfloat16, t.float32, t.tfloat32, t.float64, t.int8, t.uint8)
_EACH, _HELD = 4, 40  # rows and columns of a thread; registers for what it loads ahead


@dataclass(frozen=True)
class TinySide:
    """A or B in shared memory, (rows, K, matrix): a thread has `each` rows of a matrix, and `threads` share them.

    Vectors of `width` elements are loaded, along K or along rows. Rows of a thread are `threads` apart where K is
    contiguous, so that those that threads read at the same time are neighbours, and neighbours where rows are.
    """

    along_k: bool
    width: int
    each: int
    threads: int
    smem: Layout

    @property
    def inner(self) -> int:
        """The vectors of a row, or of a column."""
        return self.smem.shape[1 if self.along_k else 0] // self.width

    @property
    def outer(self) -> int:
        return self.smem.shape[0 if self.along_k else 1]

    @property
    def vectors(self) -> int:
        """The vectors of a matrix."""
        return self.inner * self.outer


@dataclass(frozen=True)
class TinyPlan:
    """What the kernel knows at compile time: a block has `matrices` of the batch, and a `depth` of K at a time.

    Fragments are of `step` elements of K. `sums` are those of the block's matrices in shared memory, from which D is
    written in vectors of `width` elements.
    """

    a: TinySide
    b: TinySide
    matrices: int
    depth: int
    has_chunks: bool
    step: int
    threads: int
    accumulator: DType
    sums: Layout
    width: int
    epilogue: ElementEpilogue

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # every launch looks its plan up
        return hash(tuple(getattr(self, field.name) for field in fields(self)))


@dataclass(frozen=True)
class TinyConfiguration(Configuration):
    """A block has `matrices` of the batch."""

    matrices: int = 1

    def __str__(self) -> str:
        m, n, k = self.tile
        return f"{self.matrices} of {m}x{n}x{k}, {self.threads // 32} warps"


class Tiny(Family):
    """Several matrices in a block, and a few rows and columns of one in a thread."""

    name = "tiny"

    def configurations(self, problem: Problem, arch: Arch) -> Sequence[Configuration]:
        """Return tiles that hold a matrix, in blocks of about 64, 128 and 256 threads; none for larger matrices."""
        is_plain = problem.compute in _TYPES and problem.a.dtype.bits == problem.b.dtype.bits
        if max(problem.m, problem.n) > MOST or problem.k > DEEPEST or not is_plain or problem.blocks:
            return []
        (m, own_m), (n, own_n) = (_rows(extent) for extent in (problem.m, problem.n))
        share, found = m // own_m * (n // own_n), []
        for threads in (64, 128, 256):
            matrices = max(threads // share, 1)
            configuration = TinyConfiguration(
                (m, n, _depth(problem, m, n, share)), (1, -(-share * matrices // 32)), 1, 1, matrices=matrices
            )
            if configuration not in found:
                found.append(configuration)
        return found

    def needs(self, problem: Problem) -> Needs:
        """Return nothing: matrices are read as they lie."""
        return Needs()

    def resources(self, problem: Problem, configuration: Configuration, arch: Arch) -> Resources:
        plan = _plan(problem, configuration)
        loaded = problem.a.dtype.bytes * (plan.a.smem.cosize + plan.b.smem.cosize)
        shared = max(loaded, plan.sums.cosize * plan.accumulator.bytes)
        accumulators = plan.a.each * plan.b.each * plan.accumulator.bits // 32
        rejection = None
        if shared > arch.shared_bytes_optin:
            rejection = f"{shared} bytes of shared memory; a block of {arch} has {arch.shared_bytes_optin}"
        return Resources(shared, accumulators, rejection)

    def predict(
        self, problem: Problem, configuration: Configuration, resources: Resources, machine: Machine
    ) -> Prediction:
        return Prediction(1, 1, 1, 100.0, problem.bytes / machine.bandwidth)

    def launch(self, problem: Problem, configuration: Configuration, arch: Arch) -> KernelLaunch:
        plan = _plan(problem, configuration)
        function = problem.epilogue
        if isinstance(function, ElementFunction):
            numbers = function.uses(problem.accumulator, problem.elements, arch)
            plan = replace(plan, epilogue=replace(plan.epilogue, numbers=numbers))
        launcher = _kernel(len(problem.operands) + len(plan.epilogue.numbers))[
            -(-problem.batch // plan.matrices), plan.threads
        ]
        return KernelLaunch(launcher, plan, plan.epilogue.numbers, launcher.repeat)


@cache
def _kernel(further: int) -> Kernel:
    return multiply_tiny.numbered(further).configure(min_blocks=1)


def _rows(extent: int) -> tuple[int, int]:
    """Return the rows of a tile that holds so many, and how many of them a thread has."""
    own = min(_EACH, 1 << (extent - 1).bit_length())
    return -(-extent // own) * own, own


def _width(operand: Operand, extent: int, most: int) -> int:
    """Return how many elements of a matrix are copied at once along a mode of `extent`, which has whole vectors."""
    width = min(operand.alignment // operand.dtype.bytes, most)
    while extent % width:
        width //= 2
    return width


def _depth(problem: Problem, m: int, n: int, threads: int) -> int:
    """Return the depth of K that a block has in shared memory: all, or what a thread has registers to load."""
    depth = 1 << max(problem.k - 1, 3).bit_length()
    while depth > 4 and (m + n) * depth * problem.a.dtype.bytes > 4 * _HELD * threads:
        depth //= 2
    return depth


@lru_cache(maxsize=1024)
def _plan(problem: Problem, configuration: Configuration) -> TinyPlan:
    """Plan a kernel; problems that differ in extents only have equal plans where their tiles are the same."""
    assert isinstance(configuration, TinyConfiguration), configuration
    matrices, (m, n, depth) = configuration.matrices, configuration.tile
    step = min(depth, VECTOR_BYTES // problem.a.dtype.bytes, 8)
    each_a, each_b = _rows(problem.m)[1], _rows(problem.n)[1]
    share_a, share_b = m // each_a, n // each_b
    lanes = np.arange(32)
    places = np.minimum(lanes // (share_a * share_b), matrices - 1), lanes // share_b % share_a, lanes % share_b
    a = _side(problem.a, problem.m, problem.k, each_a, share_a, depth, step, matrices, places[0], places[1])
    b = _side(problem.b, problem.n, problem.k, each_b, share_b, depth, step, matrices, places[0], places[2])
    width = 1
    if problem.d.major == "MN":
        widest = max(x.bytes for x in (problem.d.dtype, *problem.operands))
        width = _width(problem.d, problem.n, VECTOR_BYTES // widest)
    pad = max(4, width)
    sums = Layout((m, n, matrices), (n + pad, 1, m * (n + pad)))
    return TinyPlan(
        a, b, matrices, depth, problem.k > depth, step, configuration.threads, problem.accumulator, sums, width,
        ElementEpilogue.of(problem),
    )  # fmt: skip


def _side(
    operand: Operand, rows: int, k: int, each: int, threads: int, depth: int, step: int, matrices: int,
    matrix: np.ndarray, thread: np.ndarray,
) -> TinySide:  # fmt: skip
    """Plan an operand's way; of the paddings, that whose fragments a warp reads in the fewest wavefronts."""
    along_k, bytes = operand.major != "MN", operand.dtype.bytes
    width = 1 if operand.major == "none" else _width(operand, k if along_k else rows, VECTOR_BYTES // bytes)
    width = min(width, depth if along_k else each)
    inner, outer, unit = (depth, each * threads, step) if along_k else (each * threads, depth, each)
    found = []
    for pad in range(3):
        for gap in range(8 if matrices > 1 else 1):
            row = inner + pad * unit
            apart = outer * row + gap * unit
            address = bytes * (matrix * apart + thread * (row if along_k else each))
            read = wavefronts(address[None], np.ones((1, 32), bool), min(bytes * unit, 16))[0][0]
            strides = (row, 1, apart) if along_k else (1, row, apart)
            found.append((int(read), matrices * apart, strides))
    return TinySide(along_k, width, each, threads, Layout((each * threads, depth, matrices), min(found)[2]))
