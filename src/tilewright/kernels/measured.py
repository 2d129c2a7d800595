"""How long steps of K take on an H200: measured by `python -m benchmarks.matmul_model`, random normal data.

For each configuration (tile, warps, stages), the microseconds of one step of K by the number of tiles that each
multiprocessor works on at the same time; benchmarks/results/matmul_model_h200.json holds the record.
"""

from __future__ import annotations

from tilewright import dtypes as t
from tilewright.dtypes import DType
from tilewright.kernels.configuration import Configuration

Key = tuple[tuple[int, int, int], tuple[int, int], int]

_STEPS: dict[DType, dict[Key, tuple[float, ...]]] = {
    t.bfloat16: {
        ((128, 256, 64), (2, 4), 3): (1.020,),
        ((128, 128, 64), (2, 4), 4): (0.658,),
        ((128, 64, 64), (2, 2), 4): (0.379, 0.666),
        ((64, 128, 64), (2, 2), 4): (0.398, 0.718),
        ((64, 64, 64), (2, 2), 4): (0.252, 0.414, 0.611),
        ((64, 64, 128), (2, 2), 3): (0.488, 0.839),
        ((32, 64, 128), (1, 2), 4): (0.405, 0.549),
        ((32, 32, 128), (1, 1), 4): (0.405, 0.429, 0.511),
    },
    t.tfloat32: {
        ((128, 256, 32), (2, 4), 3): (1.068,),
        ((128, 128, 32), (2, 4), 4): (0.615,),
        ((128, 64, 32), (2, 2), 4): (0.411, 0.688),
        ((64, 64, 32), (2, 2), 4): (0.271, 0.436, 0.645),
        ((32, 64, 32), (1, 2), 4): (0.210, 0.288, 0.407, 0.478),
    },
    t.float32: {
        ((128, 256, 8), (2, 4), 4): (1.459,),
        ((128, 128, 8), (2, 4), 4): (0.828,),
        ((128, 64, 8), (2, 2), 4): (0.491, 0.843, 1.210),
        ((64, 64, 8), (2, 2), 4): (0.314, 0.546, 0.810, 1.077),
        ((64, 32, 16), (2, 1), 4): (0.477, 0.715, 1.177, 1.311, 1.675, 1.904, 2.546),
        ((32, 32, 16), (1, 1), 4): (0.473, 0.527, 0.641, 0.752, 1.087, 1.193, 1.306, 1.473, 2.472, 2.869),
    },
    t.float64: {
        ((128, 128, 16), (2, 4), 3): (1.091,),
        ((128, 64, 16), (4, 2), 4): (0.549,),
        ((64, 64, 16), (2, 2), 4): (0.331, 0.565, 0.870),
        ((32, 64, 16), (1, 2), 4): (0.316, 0.325, 0.574, 0.572),
    },
    t.int8: {
        ((128, 256, 128), (2, 4), 3): (1.041,),
        ((128, 256, 64), (2, 4), 4): (0.549,),
        ((128, 128, 128), (2, 4), 3): (0.621,),
        ((128, 64, 128), (2, 2), 4): (0.334, 0.638),
        ((64, 64, 128), (2, 2), 4): (0.170, 0.389, 0.583),
        ((32, 64, 128), (1, 2), 4): (0.149, 0.215, 0.403, 0.450),
    },
    t.float8_e4m3fn: {
        ((128, 128, 64), (2, 4), 4): (0.620,),
        ((64, 64, 128), (2, 2), 4): (0.387, 0.720, 1.084),
    },
}
_SAME_RATE = {t.float16: t.bfloat16, t.uint8: t.int8, t.float8_e5m2: t.float8_e4m3fn}


def steps_us(compute: DType, configuration: Configuration) -> tuple[float, ...]:
    """Return the microseconds of a step of K, for 1, 2, ... tiles at the same time on a multiprocessor."""
    table = _STEPS[_SAME_RATE.get(compute, compute)]
    return table[configuration.tile, configuration.warps, configuration.stages]


def measured_steps(compute: DType) -> list[tuple[tuple[int, int, int], tuple[float, ...]]]:
    """Return the tile of each configuration that was measured, with its steps."""
    return [(tile, steps) for (tile, _, _), steps in _STEPS[_SAME_RATE.get(compute, compute)].items()]
