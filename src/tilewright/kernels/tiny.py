"""The tiny family: batches of matrices of a few rows and columns, several in each block, by multiply-adds.

Such products take the time of reading them, and what a block takes beside its products counts once for many. The
kernel is `_tiny_kernel`; `predict` is a formula with constants that were fitted on an H200.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from tilewright import dtypes as t
from tilewright.arch import VECTOR_BYTES, Arch
from tilewright.dtypes import DType
from tilewright.kernels._tiny_kernel import multiply_tiny
from tilewright.kernels.epilogue import ElementEpilogue
from tilewright.kernels.family import Family, KernelLaunch, Needs, Resources, launch_of, with_numbers
from tilewright.kernels.model import Machine, Prediction, lack_of_shared, resident_blocks
from tilewright.kernels.problem import Configuration, Operand, Problem
from tilewright.launch import Kernel
from tilewright.layout import Layout
from tilewright.pickling import hashed_once
from tilewright.transactions import ROW, wavefronts

MOST, DEEPEST = 64, 128  # rows or columns, and K
_TYPES = (t.float16, t.bfloat16, t.float32, t.tfloat32, t.float64, t.int8, t.uint8)
_THREADS, _EACH = (128, 256), 4  # of a block, and rows and columns of a thread; smaller blocks took as long or longer
_HELD, _DEEP = 96, 64  # registers of a thread for what it loads, and elements of K in shared memory
# Estimates: what a launch takes, and a way to memory or back, in microseconds; the instructions of a thread for a
# vector, and beside vectors and products; the clocks of a block beside its instructions, and of a step that waits for
# fragments; the share of its peak that a multiprocessor reaches.
_START_US, _LATENCY_US, _PASSED, _ALWAYS, _BLOCK, _STEP, _REACHED = 1.5, 0.5, 8, 60, 128, 40, 0.55


_Lanes = np.ndarray[Any, np.dtype[Any]]  # Any: a number of each lane of a warp


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
    across: int  # the vectors of a line: a row where K is contiguous, and otherwise a column
    down: int  # the lines of a matrix
    smem: Layout
    elements: int  # of shared memory
    wavefronts: float  # that a warp takes to read an element of K of its rows


@hashed_once
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
    elements: int  # of shared memory for the sums
    width: int
    unroll: int
    epilogue: ElementEpilogue


@dataclass(frozen=True)
class TinyConfiguration(Configuration):
    """A block has `matrices` of the batch, and a thread `own` rows and columns of one."""

    matrices: int = 1
    own: tuple[int, int] = (1, 1)

    @property
    def share(self) -> int:
        """The threads of a matrix."""
        return self.tile[0] // self.own[0] * (self.tile[1] // self.own[1])

    def __str__(self) -> str:
        m, n, k = self.tile
        rows, columns = self.own
        return f"{self.matrices} of {m}x{n}x{k}, {rows}x{columns} a thread, {self.threads // 32} warps"


class Tiny(Family):
    """Several matrices in a block, and a few rows and columns of one in a thread."""

    name = "tiny"
    is_simulated = False  # a result is what such calls want, and one family gives it

    def configurations(self, problem: Problem, arch: Arch) -> Sequence[Configuration]:
        """Return tiles that hold a matrix, in blocks of about 128 or 256 threads; none for larger matrices, or one."""
        is_plain = problem.compute in _TYPES and problem.a.dtype.bits == problem.b.dtype.bits
        is_tiny = max(problem.m, problem.n) <= MOST and problem.k <= DEEPEST
        if not is_plain or not is_tiny or problem.batch == 1 or problem.blocks:
            return []
        found: dict[Configuration, None] = {}
        n, own_n = _rows(problem.n, _EACH)
        for most in (_EACH, 2 * _EACH) if problem.m > 16 else (_EACH,):
            m, own_m = _rows(problem.m, most)
            share = m // own_m * (n // own_n)
            for threads, depth in itertools.product(_THREADS, _depths(problem, m, n, share)):
                matrices = max(threads // share, 1)
                warps = -(-share * matrices // 32)
                if 32 * warps >= max(m, n, depth):  # the threads pass whole lines at once
                    own = own_m, own_n
                    found[TinyConfiguration((m, n, depth), (1, warps), 1, 1, matrices=matrices, own=own)] = None
        return list(found)

    def needs(self, problem: Problem) -> Needs:
        """Return nothing: matrices are read as they lie."""
        return Needs()

    def resources(self, problem: Problem, configuration: Configuration, arch: Arch) -> Resources:
        plan = _plan(problem, configuration)
        shared = max(plan.a.elements + plan.b.elements, plan.elements) * plan.accumulator.bytes + ROW  # to align B
        accumulators = plan.a.each * plan.b.each * plan.accumulator.bits // 32
        rejection = None
        if shared > arch.shared_bytes_optin:
            rejection = lack_of_shared(shared, arch)
        return Resources(shared, accumulators, rejection)

    def predict(
        self, problem: Problem, configuration: Configuration, resources: Resources, machine: Machine
    ) -> Prediction:
        """Return the longest of what memory takes, what a multiprocessor does, and the way of blocks through memory."""
        plan, arch, gpu = _plan(problem, configuration), machine.arch, machine.gpu
        chunks, blocks = -(-max(problem.k, 1) // plan.depth), -(-problem.batch // plan.matrices)
        sides = (plan.a, problem.a), (plan.b, problem.b)
        loaded = sum(x.across * x.down * _registers(operand, x.width) for x, operand in sides)
        held = max(resources.accumulators, loaded * plan.matrices // plan.threads // 2)
        resident = resident_blocks(plan.threads, held, resources.shared_bytes, arch)
        waves = -(-blocks // (machine.multiprocessors * resident))
        # Clocks of a multiprocessor for a block: multiply-adds, what they read of shared memory, instructions.
        elements = plan.threads * plan.depth * chunks
        products = elements * plan.a.each * plan.b.each
        m, n, _ = configuration.tile
        passed = plan.matrices * (chunks * sum(x.across * x.down for x in (plan.a, plan.b)) + m * n // plan.width)
        read = elements / 32 * (plan.a.wavefronts + plan.b.wavefronts)
        issued = products / 32 + read / 2 + (_PASSED * passed + _ALWAYS * plan.threads) / 32
        clocks = _BLOCK + max(products / _rate(plan.accumulator, machine), read, issued / arch.issued_per_clock)
        alone = _STEP * chunks * plan.depth / plan.step + clocks  # of a block that has a multiprocessor for itself
        busy = -(-blocks // machine.multiprocessors) * clocks / _REACHED / gpu.clock * 1e6
        moved = problem.bytes / machine.bandwidth
        start = _START_US + min(busy, moved) / resident  # a block multiplies while others load
        compute = start + max(busy + _LATENCY_US, waves * ((1 + chunks) * _LATENCY_US + alone / gpu.clock * 1e6))
        return Prediction(problem.batch, resident, waves, compute, start + moved)

    def launch(self, problem: Problem, configuration: Configuration, arch: Arch) -> KernelLaunch:
        plan = with_numbers(_plan(problem, configuration), problem, arch)
        return launch_of(problem, plan, -(-problem.batch // plan.matrices), _kernel)


def _rate(accumulator: DType, machine: Machine) -> float:
    """Return the multiply-adds that a multiprocessor does in a clock."""
    if accumulator is t.int32:
        return machine.arch.fma_per_clock / 2
    rate = machine.gpu.rates.get(accumulator.name, 0.0) / 2 / machine.multiprocessors / machine.gpu.clock
    return rate or machine.arch.fma_per_clock


@cache
def _kernel(further: int) -> Kernel:
    return multiply_tiny.numbered(further).configure(min_blocks=1)


def _rows(extent: int, most: int) -> tuple[int, int]:
    """Return the rows of a tile that holds so many, and how many of them a thread has."""
    own = min(most, 1 << (extent - 1).bit_length())
    return -(-extent // own) * own, own


def _width(operand: Operand, rows: int, columns: int) -> int:
    """Return how many elements are copied at once: lines of the contiguous mode have whole vectors."""
    if operand.major == "none":
        return 1
    width = max(operand.alignment // operand.dtype.bytes, 1)
    while (columns if operand.major == "K" else rows) % width:
        width //= 2
    return width


def _registers(operand: Operand, width: int) -> int:
    """Return how many registers a vector takes that is under way, with its address."""
    return 1 + max(1, width * operand.dtype.bytes // 4)


def _depths(problem: Problem, m: int, n: int, threads: int) -> tuple[int, int]:
    """Return how deep in K the parts are that a thread has registers to load, as few as can be, and twice as many."""
    unit, registers = 4, 0.0  # registers for an element of K
    for operand, extent, rows in ((problem.a, problem.m, m), (problem.b, problem.n, n)):
        width = _width(operand, extent, problem.k)
        registers += rows / (width * threads) * _registers(operand, width)
        unit = max(unit, width * (operand.major == "K"))
    most = max(min(int(_HELD / registers), _DEEP) // unit, 1)
    units = -(-max(problem.k, 1) // unit)
    parts = -(-units // most)
    return -(-units // parts) * unit, -(-units // (2 * parts)) * unit


@lru_cache(maxsize=1024)
def _plan(problem: Problem, configuration: Configuration) -> TinyPlan:
    """Plan a kernel; problems that differ in extents only have equal plans where their tiles are the same."""
    assert isinstance(configuration, TinyConfiguration), configuration
    c, (m, n, depth), held = configuration, configuration.tile, problem.accumulator
    lanes, across = np.arange(32), n // c.own[1]
    matrix = np.minimum(lanes // c.share, c.matrices - 1)
    row, column = lanes % c.share // across, lanes % across
    a = _side(problem.a, (problem.m, problem.k), c, held, c.own[0], matrix, row)
    b = _side(problem.b, (problem.n, problem.k), c, held, c.own[1], matrix, column)
    widest = max(x.bytes for x in (problem.d.dtype, *problem.operands))
    width = min(_width(problem.d, problem.n, 0), VECTOR_BYTES // widest)
    unroll = max(4 // width, 1) if problem.operands or problem.epilogue is not None else 8
    line = lanes // (n // width)
    first = row if a.along_k else row * a.each
    written = (first, column, 1) if b.along_k and across > 1 else (first, column * b.each, b.each)
    read = line % m, lanes % (n // width) * width, width
    sums, elements, _ = _padded((m, n), c.matrices, held, [(matrix, *written), (line // m, *read)])
    return TinyPlan(
        a, b, c.matrices, depth, problem.k > depth, VECTOR_BYTES // held.bytes, c.threads, held,
        Layout((m, n, c.matrices), (sums[0], 1, sums[1])), elements, width, unroll, ElementEpilogue.of(problem),
    )  # fmt: skip


def _side(
    operand: Operand,
    extents: tuple[int, int],
    c: TinyConfiguration,
    held: DType,
    each: int,
    matrix: _Lanes,
    row: _Lanes,
) -> TinySide:
    """Plan an operand's way; `matrix` and `row` are those of a warp's lanes."""
    along_k, depth, width = operand.major != "MN", c.tile[2], _width(operand, *extents)
    rows = -(-extents[0] // each) * each
    if along_k:
        unit = VECTOR_BYTES // held.bytes
        (apart, gap), elements, read = _padded((rows, depth), c.matrices, held, [(matrix, row, 0 * row, unit)])
        smem, across, down = Layout((rows, depth, c.matrices), (apart, 1, gap)), depth // width, rows
    else:
        unit = each
        (apart, gap), elements, read = _padded((depth, rows), c.matrices, held, [(matrix, 0 * row, row * each, unit)])
        smem, across, down = Layout((rows, depth, c.matrices), (1, apart, gap)), rows // width, depth
    return TinySide(along_k, width, each, rows // each, across, down, smem, elements, read * each / unit)


def _padded(
    shape: tuple[int, int], matrices: int, held: DType, accesses: Sequence[tuple[_Lanes, _Lanes, _Lanes, int]]
) -> tuple[tuple[int, int], int, int]:
    """Return the strides of lines and of matrices that a warp accesses in the fewest wavefronts; elements; wavefronts.

    An access is of some elements in each lane: the matrices, the lines and the first elements of all lanes.
    """
    paddings = itertools.product(range(0, 12, 4), range(0, 32, 4) if matrices > 1 else (0,))
    pairs = [(shape[1] + pad, shape[0] * (shape[1] + pad) + gap) for pad, gap in paddings]
    apart, stride = (np.array(strides)[:, None] for strides in zip(*pairs, strict=True))
    took, is_active = np.zeros(len(pairs), np.int64), np.ones((len(pairs), 32), bool)
    for matrix, line, first, count in accesses:
        width = min(count * held.bytes, VECTOR_BYTES)
        for part in range(0, count * held.bytes, width):
            address = held.bytes * (matrix * stride + line * apart + first) + part
            took += wavefronts(address, is_active, width)[0]
    fewest, elements, strides = min(zip(took.tolist(), (matrices * pair[1] for pair in pairs), pairs, strict=True))
    return strides, elements, fewest
