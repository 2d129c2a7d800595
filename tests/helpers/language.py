"""Running small kernels, and compiling them for the targets, in tests of the kernel language."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw

TARGETS = ("sm_80", "sm_90a")


def run(kernel: Any, *args: Any, grid: Any = 1, block: Any = 1) -> Any:
    """Launch a kernel on the simulator and return its first argument."""
    kernel[grid, block](*args)
    return args[0]


def compiles(kernel: Any, *args: Any, block: Any = 1) -> str:
    """Compile a kernel to machine code for the targets; return its CUDA C++ for the last."""
    for target in TARGETS:
        assert kernel.resources(*args, block=block, arch=target) is not None
    return kernel.source(*args, block=block, arch=TARGETS[-1])


def lowered(kernel: Any, *args: Any, block: Any = 1, arch: str = "sm_90a") -> Any:
    """Return the ops of a kernel after all passes, nested ones included."""
    return list(kernel.lower(*args, block=block, arch=arch).kernel.body.walk())


def zeros(n: int, dtype: Any = np.int32) -> np.ndarray:
    return np.zeros(n, dtype)


def array_type(array: np.ndarray) -> Any:
    return tw.dtype(array.dtype)
