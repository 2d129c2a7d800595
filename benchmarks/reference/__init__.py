"""Rungs 5 and 10 of the matmul ladder in CUDA C++ by hand, compiled by NVRTC: generated rungs are held to them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilewright.arch import Arch
from tilewright.errors import ArgumentError
from tilewright.runtime import driver
from tilewright.runtime.arrays import ArrayInfo, describe
from tilewright.runtime.nvrtc import CompiledModule, compile_cuda

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Reference:
    """A hand-written kernel: its file, the tile of C of a block, and the numbers it is compiled with."""

    name: str
    tile: tuple[int, int, int]
    threads: int
    numbers: tuple[tuple[str, int], ...] = field(default=())

    def compile(self, arch: Arch | str = "sm_90a") -> CompiledModule:
        """Return its machine code. Multiplications and additions are fused, as nvcc does by default."""
        options = ["-fmad=true", *(f"-D{name}={value}" for name, value in self.numbers)]
        source = (_FOLDER / f"{self.name}.cu").read_text()
        return compile_cuda(source, name=self.name, arch=arch, options=options)

    def __call__(self, C: Any, A: Any, B: Any, alpha: float, beta: float) -> None:  # Any: tensors of torch
        """Compute C = alpha A B + beta C on torch's current stream.

        Raises `ArgumentError` for extents that are not multiples of the tile, and for rows with gaps.
        """
        c, a, b = (_described(x) for x in (C, A, B))
        (m, n), k = c.shape, a.shape[1]
        if any(extent % tile for extent, tile in zip((m, n, k), self.tile, strict=True)):
            raise ArgumentError(f"{self.name} takes multiples of {self.tile}, got {m} x {n} x {k}")
        if any(x.strides != (x.shape[1], 1) or x.pointer % 16 for x in (c, a, b)):
            raise ArgumentError(f"{self.name} takes row-major matrices without gaps, aligned to 16 bytes")
        assert isinstance(c.device, int), c
        function = _load(self, c.device)
        values = [
            *(ctypes.c_void_p(x.pointer) for x in (c, a, b)),
            *(ctypes.c_int(extent) for extent in (m, n, k)),
            *(ctypes.c_float(x) for x in (alpha, beta)),
        ]
        parameters = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
        import torch

        grid = (n // self.tile[1], m // self.tile[0], 1)
        stream = ctypes.c_void_p(torch.cuda.current_stream(c.device).cuda_stream)
        with driver.device_context(c.device):
            status = driver.library().cuLaunchKernel(
                function.handle, *grid, self.threads, 1, 1, 0, stream, parameters, None
            )
        driver.check(status, f"launching {self.name}")


def _described(array: Any) -> ArrayInfo:
    info = describe(array)
    if info is None or not info.is_cuda:
        raise ArgumentError("the reference kernels take arrays on a GPU")
    return info


@lru_cache(maxsize=32)
def _load(reference: Reference, ordinal: int) -> driver.Function:
    arch = driver.device_properties(ordinal).arch
    return driver.load_function(reference.compile(arch).cubin, reference.name, ordinal=ordinal)


def warp_tiles(numbers: Mapping[str, int]) -> Reference:
    """Return rung 10 with tile BM x BN x BK, warp tile WM x WN, PARTS_N parts along N, and TM x TN a lane and part."""
    threads = 32 * (numbers["BM"] // numbers["WM"]) * (numbers["BN"] // numbers["WN"])
    tile = (numbers["BM"], numbers["BN"], numbers["BK"])
    return Reference("rung_10", tile, threads, tuple(numbers.items()))


# Written out, a round's 8 steps take 130 registers, and rolled up 94: one block on a multiprocessor, or two.
RUNG_5 = Reference("rung_05", (128, 128, 8), 256, (("UNROLL", 8),))
RUNG_5_ROLLED = Reference("rung_05", (128, 128, 8), 256, (("UNROLL", 1),))
# 128 threads with 16 x 8 elements each, and 256 threads with 8 x 8 as in examples/sgemm/10_warp_tiles.py.
RUNG_10_LARGE = warp_tiles({"BM": 128, "BN": 128, "BK": 16, "WM": 64, "WN": 64, "PARTS_N": 4, "TM": 8, "TN": 4})
RUNG_10 = warp_tiles({"BM": 128, "BN": 128, "BK": 16, "WM": 32, "WN": 64, "PARTS_N": 2, "TM": 4, "TN": 4})
