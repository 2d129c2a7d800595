"""Hardware facts, each of them in one place: what a target offers, what a GPU reaches, how many blocks it holds."""

# targets      compute capabilities: limits, granularities, features; the widest access; limits of grids and blocks
# gpus         GPU models: multiprocessors, clock, bandwidth and peak rates
# occupancy    how many blocks of a kernel a multiprocessor holds at once
#
# Nothing here asks a device; `runtime.driver` does that.

from tilewright.arch.gpus import DEFAULT_GPU, GPUS, Gpu, find_gpu, gpu_like, gpu_of
from tilewright.arch.occupancy import Occupancy, blocks_allowed, occupancy
from tilewright.arch.targets import (
    ARCHES,
    MAX_BLOCK,
    MAX_GRID,
    MAX_THREADS,
    VECTOR_BYTES,
    Arch,
    default_arch,
    missing_float8,
)

__all__ = [
    "ARCHES",
    "DEFAULT_GPU",
    "GPUS",
    "MAX_BLOCK",
    "MAX_GRID",
    "MAX_THREADS",
    "VECTOR_BYTES",
    "Arch",
    "Gpu",
    "Occupancy",
    "blocks_allowed",
    "default_arch",
    "find_gpu",
    "gpu_like",
    "gpu_of",
    "missing_float8",
    "occupancy",
]
