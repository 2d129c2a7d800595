"""How long a configuration takes: a small model whose every number can be printed.

The tiles are shared out in waves of as many blocks as the multiprocessors hold; in each wave a multiprocessor that
works on n tiles takes

    steps of K * step(n) + overhead

where step(n) was measured on an H200 for each configuration (`measured`). On another GPU it is estimated: a step is
arithmetic, at the share of the peak rate that the best step reached on the H200, and the rest, which is latency;
arithmetic takes as much more or less as the peak rate of a multiprocessor differs, and latency is the same. No wave is
faster than memory. Steps were measured in short runs at high clocks, so that long ones take up to a fifth longer than
predicted, all candidates alike. The time of the launch itself, the same for all, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tilewright.arch import GPUS, Arch, Gpu, blocks_allowed, gpu_of
from tilewright.dtypes import DType
from tilewright.kernels.candidates import Candidate
from tilewright.kernels.configuration import Configuration
from tilewright.kernels.measured import measured_steps, steps_us
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

    @property
    def us(self) -> float:
        return max(self.compute_us, self.memory_us)


def predict(problem: Problem, candidate: Candidate, machine: Machine) -> Prediction:
    """Return what a legal candidate is expected to take."""
    configuration = candidate.configuration
    m, n, k = configuration.tile
    tiles = -(-problem.m // m) * -(-problem.n // n) * problem.batch
    steps, step = -(-problem.k // k), _steps_us(problem.compute, configuration, machine)
    blocks = min(resident_blocks(candidate, machine.arch), len(step))

    def wave(held: int) -> float:
        return steps * step[held - 1] + _WAVE_US + held * m * n * _OUT_US

    full, rest = divmod(tiles, machine.multiprocessors * blocks)
    compute = full * wave(blocks)
    if rest:
        compute += wave(-(-rest // machine.multiprocessors))
    memory = _bytes(problem) / machine.bandwidth
    return Prediction(tiles, blocks, full + (rest > 0), compute, memory)


def _steps_us(compute: DType, configuration: Configuration, machine: Machine) -> tuple[float, ...]:
    """Return the microseconds of a step for 1, 2, ... tiles at the same time on a multiprocessor of a machine."""
    measured = steps_us(compute, configuration)
    here, there = machine.rate(compute), _MEASURED_ON.rate(compute)
    if here is None or there is None or here == there:
        return measured
    m, n, k = configuration.tile
    more = 2 * m * n * k / _reached(compute) * (1 / here - 1 / there)
    return tuple(us + tiles * more for tiles, us in enumerate(measured, 1))


@cache
def _reached(compute: DType) -> float:
    """Return the share of its peak rate that an H200 reached in the best step of any configuration."""
    peak = _MEASURED_ON.rate(compute)
    assert peak is not None, compute
    return max(
        tiles * 2 * m * n * k / us / peak
        for (m, n, k), steps in measured_steps(compute)
        for tiles, us in enumerate(steps, 1)
    )


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
