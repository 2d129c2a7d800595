"""How long a configuration takes: a small model whose every number can be printed.

The tiles are shared out in waves of as many blocks as the multiprocessors hold; in each wave a multiprocessor that
works on n tiles takes

    steps of K * step(n) + overhead

where step(n) was measured on an H200 for each configuration (`measured`); on another GPU it is taken to be longer or
shorter as its multiprocessors' peak rate is lower or higher than the H200's, which is an estimate. No wave is faster
than memory. Steps were measured in short runs at high clocks, so that long ones take up to a fifth longer than
predicted, all candidates alike. The time of the launch itself, the same for all, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.arch import GPUS, Arch, Gpu, blocks_allowed, gpu_of
from tilewright.dtypes import DType
from tilewright.kernels.candidates import Candidate
from tilewright.kernels.measured import steps_us
from tilewright.kernels.problem import Problem

# What a wave takes beside its steps: the first tiles' way through memory, and the way out of the sums, which grows with
# the tile. Both from the same measurements, less 2.5 microseconds of launch.
_WAVE_US, _OUT_US = 1.0, 3.0 / (128 * 256)


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

    def slowdown(self, compute: DType) -> float:
        """Return how much longer than on an H200 a multiprocessor takes for products of an element type."""
        here, there = self.gpu.rate_of(compute.name), _MEASURED_ON.rate_of(compute.name)
        if here is None or there is None:
            return 1.0
        return there * self.multiprocessors / (here * _MEASURED_ON.multiprocessors)


_MEASURED_ON = GPUS["H200"]


@dataclass(frozen=True)
class Prediction:
    """What the model says of a candidate: times in microseconds."""

    tiles: int
    blocks: int  # that a multiprocessor holds
    waves: int
    compute_us: float
    memory_us: float

    @property
    def us(self) -> float:
        return max(self.compute_us, self.memory_us)


def predict(problem: Problem, candidate: Candidate, machine: Machine) -> Prediction:
    """Return what a legal candidate is expected to take."""
    configuration = candidate.configuration
    m, n, k = configuration.tile
    tiles = -(-problem.m // m) * -(-problem.n // n) * problem.batch
    slowdown = machine.slowdown(problem.compute)
    steps, step = -(-problem.k // k), [slowdown * us for us in steps_us(problem.compute, configuration)]
    blocks = min(resident_blocks(candidate, machine.arch), len(step))

    def wave(held: int) -> float:
        return steps * step[held - 1] + _WAVE_US + held * m * n * _OUT_US

    full, rest = divmod(tiles, machine.multiprocessors * blocks)
    compute = full * wave(blocks)
    if rest:
        compute += wave(-(-rest // machine.multiprocessors))
    memory = _bytes(problem) / machine.bandwidth
    return Prediction(tiles, blocks, full + (rest > 0), compute, memory)


def resident_blocks(candidate: Candidate, arch: Arch) -> int:
    """Return how many blocks of a candidate a multiprocessor holds, at least 1.

    Beside the sums a thread takes as many registers again for the fragments of a step, up to 64, and 40 for addresses.
    """
    registers = min(candidate.registers + min(candidate.registers, 64) + 40, arch.registers_per_thread)
    threads, shared = candidate.configuration.threads, candidate.shared_bytes
    return max(1, min(blocks_allowed(arch, threads=threads, registers=registers, shared_bytes=shared).values()))


def _bytes(problem: Problem) -> int:
    """Return the bytes that have to pass between device memory and the multiprocessors, each once."""
    a = problem.m * problem.k * problem.a.dtype.bytes
    b = problem.n * problem.k * problem.b.dtype.bytes
    d = problem.m * problem.n * problem.d.dtype.bytes
    c = problem.m * problem.n * problem.c.bytes if problem.c is not None else 0
    return (a + b + c + d) * problem.batch
