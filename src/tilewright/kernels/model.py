"""How long a configuration takes: a small model whose every number can be printed.

The tiles are shared out in waves of as many blocks as the multiprocessors hold; in each wave a multiprocessor that
works on n tiles takes

    steps of K * step(n) + overhead

and no wave is faster than memory. `StepTimes` gives step(n): measured on an H200 where a family has a figure, and
otherwise

    step(n) = n * multiply-adds of a step / (reached share * peak rate of a multiprocessor) + latency

where the reached share is that of the best measured step of the element type, and the latency the median of what the
measured steps take beside that arithmetic. On another GPU than an H200 arithmetic takes as much more or less as the
peak rate of a multiprocessor differs, and latency is the same.

Steps were measured in short runs at high clocks, so that long ones take up to a fifth longer than predicted, all
candidates alike. What begins a launch was measured in CUDA graphs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tilewright.arch import GPUS, Arch, Gpu, blocks_allowed, gpu_of
from tilewright.dtypes import DType
from tilewright.kernels.problem import Configuration, Problem

# What a wave takes beside its steps: the first tiles' way through memory, and the epilogue, which grows with the tile.
# Both from the same measurements, less the microseconds of a launch, which a further pass takes.
_WAVE_US, _EPILOGUE_US, _LAUNCH_US = 1.0, 3.0 / (128 * 256), 2.5
# Blocks of a multiprocessor among which a store of 4 or 8 bytes an element is hidden behind others' products; and how
# often more each byte of D passes, by its bytes an element, where pairs of elements are not aligned and threads write a
# few bytes of a sector at once. Both fitted to products of a short K on an H200.
_HIDING, _SECTORS = 3, {2: 6, 4: 4}
_START_US = 1.3  # what small products took longer than that on an H200, as a node of a graph


@dataclass(frozen=True)
class Machine:
    """A target and the GPU whose figures count there."""

    arch: Arch
    gpu: Gpu

    @staticmethod
    def of(arch: Arch) -> Machine:
        """Return the machine for a target where no device is named."""
        return Machine(arch, gpu_of(arch))

    @property
    def multiprocessors(self) -> int:
        return self.gpu.multiprocessors

    @property
    def bandwidth(self) -> float:
        """The bytes that device memory moves in a microsecond."""
        return self.gpu.reached_bandwidth / 1e6

    def rate(self, compute: DType) -> float | None:
        """Return the operations on an element type that a multiprocessor does in a microsecond at its peak."""
        rate = self.gpu.rate_of(compute.name)
        return None if rate is None else rate / self.multiprocessors / 1e6


_MEASURED_ON = Machine(GPUS["H200"].arch, GPUS["H200"])


@dataclass(frozen=True)
class Prediction:
    """What the model says of a candidate: times in microseconds."""

    tiles: int
    blocks: int  # that a multiprocessor holds
    waves: int
    compute_us: float
    memory_us: float
    packing_us: float = 0.0  # of the passes before the kernel that pack A or B, or cut them into parts
    adding_us: float = 0.0  # of the pass behind it that adds up splits of K

    @property
    def us(self) -> float:
        return max(self.compute_us, self.memory_us) + self.packing_us + self.adding_us


Tiling = tuple[tuple[int, int, int], tuple[int, int], int]  # tile, warps, stages


class StepTimes:
    """The time of a step of K: what was measured of a family on an H200, and a formula for what was not.

    `measured` has for each element type and tiling the microseconds of a step by the number of tiles, 1, 2, ..., that a
    multiprocessor works on at the same time.
    """

    def __init__(self, measured: Mapping[DType, Mapping[Tiling, tuple[float, ...]]]) -> None:
        self.measured = measured
        self._figures = cache(self._figures_of)

    def steps_us(
        self, compute: DType, configuration: Configuration, blocks: int, machine: Machine, products: int = 1
    ) -> tuple[float, ...]:
        """Return the microseconds of a step for 1, 2, ... tiles on a multiprocessor, `blocks` at most.

        For each multiplication of two numbers `products` of their parts are multiplied; only 1 was measured. Where
        fewer numbers of tiles were measured than a multiprocessor holds blocks, they are all that is returned.
        """
        tiling = configuration.tile, configuration.warps, configuration.stages
        measured = self.measured.get(compute, {}).get(tiling) if products == 1 else None
        here, there = machine.rate(compute), _MEASURED_ON.rate(compute)
        flops = products * _flops(configuration.tile)
        reached, latency = self._figures(compute)
        if measured is None:
            rate = here or there or _rate_by_width(compute, machine)
            return tuple(tiles * flops / (reached * rate) + latency for tiles in range(1, blocks + 1))
        if here is None or there is None or here == there:
            return measured[:blocks]
        more = flops / reached * (1 / here - 1 / there)
        return tuple(us + tiles * more for tiles, us in enumerate(measured[:blocks], 1))

    def _figures_of(self, compute: DType) -> tuple[float, float]:
        """Return the share of its peak rate that an H200 reached in the best step, and the latency of a step.

        Of an element type of which nothing was measured: the least share and the greatest latency of the others.
        """
        if not self.measured.get(compute):
            others = [self._figures(dtype) for dtype, tilings in self.measured.items() if tilings]
            return min((share for share, _ in others), default=0.5), max((us for _, us in others), default=0.5)
        peak = _MEASURED_ON.rate(compute)
        assert peak is not None, compute
        steps = [
            (tiles * _flops(tile), us)
            for (tile, _, _), measured in self.measured[compute].items()
            for tiles, us in enumerate(measured, 1)
        ]
        reached = max(flops / us / peak for flops, us in steps)
        return reached, statistics.median(us - flops / (reached * peak) for flops, us in steps)


def _flops(tile: tuple[int, int, int]) -> int:
    m, n, k = tile
    return 2 * m * n * k


def _rate_by_width(compute: DType, machine: Machine) -> float:
    """Return a rate for an element type that no table has: that of float32, by as much as the type is narrower."""
    float32 = machine.gpu.rate_of("float32")
    assert float32 is not None, machine.gpu.name
    return float32 / machine.multiprocessors / 1e6 * 32 / compute.bits


def predict_waves(
    problem: Problem, configuration: Configuration, blocks: int, steps_us: tuple[float, ...], machine: Machine
) -> Prediction:
    """Return what a kernel takes that computes one tile of D, or of a split's sums, in each block.

    `blocks` are those that a multiprocessor holds, and `steps_us` the microseconds of a step of K for 1, 2, ... tiles
    on a multiprocessor.
    """
    m, n, k = configuration.tile
    splits = configuration.splits
    tiles = -(-problem.m // m) * -(-problem.columns // n) * problem.batch * splits
    steps = math.ceil(math.ceil(problem.k / k) / splits)
    blocks, size = min(blocks, len(steps_us)), problem.d.dtype.bytes
    busy = min(tiles, machine.multiprocessors)
    stored = m * n * (size if splits == 1 else problem.accumulator.bytes) * busy / machine.bandwidth * (size >= 4)

    def wave(held: int) -> float:
        exposed = max(_HIDING - held, 0) / (_HIDING - 1) * held * stored
        return steps * steps_us[held - 1] + _WAVE_US + held * m * n * _EPILOGUE_US + exposed

    full, left = divmod(tiles, machine.multiprocessors * blocks)
    compute = _START_US + full * wave(blocks)
    if left:
        compute += wave(-(-left // machine.multiprocessors))
    memory, adding = problem.bytes / machine.bandwidth, 0.0
    if splits == 1 and problem.d.alignment < 2 * size:
        memory += _SECTORS.get(size, 0) * problem.m * problem.n * problem.batch * size / machine.bandwidth
    if splits > 1:
        # The sums are written by this kernel and read by the next, if no cache holds them.
        sums = splits * problem.m * problem.n * problem.batch * problem.accumulator.bytes / machine.bandwidth
        memory, adding = memory + sums, _LAUNCH_US + _WAVE_US + sums
    return Prediction(tiles, blocks, full + (left > 0), compute, memory, adding_us=adding)


def resident_blocks(threads: int, accumulators: int, shared_bytes: int, arch: Arch) -> int:
    """Return how many blocks a multiprocessor holds, at least 1; `accumulators` are the registers of a thread's.

    Beside them a thread takes as many registers again for the fragments of a step, up to 64, and 40 for addresses.
    """
    registers = min(accumulators + min(accumulators, 64) + 40, arch.registers_per_thread)
    return blocks_with(threads, registers, shared_bytes, arch)


def blocks_with(threads: int, registers: int, shared_bytes: int, arch: Arch) -> int:
    """Return how many blocks a multiprocessor holds, at least 1, where a thread takes so many registers."""
    return max(1, min(blocks_allowed(arch, threads=threads, registers=registers, shared_bytes=shared_bytes).values()))


def lack_of_products(problem: Problem, arch: Arch) -> str:
    """Return the reason why warps cannot multiply tiles of 16 x 8 x 16."""
    return f"{arch} has no matrix instruction of 16 x 8 x 16 for {problem.compute}"


def lack_of_shared(shared_bytes: int, arch: Arch) -> str:
    """Return the reason why a block cannot have so many bytes of shared memory."""
    return f"{shared_bytes} bytes of shared memory; a block of {arch} has {arch.shared_bytes_optin}"


def packing_us(bytes: int, machine: Machine, follows: bool) -> float:
    """Return what packing operands of so many bytes takes, which one launch reads and writes.

    Of a product that `follows`, whose launch begins beside it, only the pass itself is waited for.
    """
    return pass_us(2 * bytes, machine) + _LAUNCH_US * (not follows) if bytes else 0.0


def pass_us(bytes: int, machine: Machine) -> float:
    """Return what a pass over so many bytes takes, at the bandwidth of memory, without its launch."""
    return _WAVE_US + bytes / machine.bandwidth
