"""Where a thread is: indices and extents of threads and blocks, lane and warp numbers."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import int32
from tilewright.ir.ops import Special
from tilewright.lang.scalar import Scalar
from tilewright.lang.tracer import current


class Index3:
    """Three int32 special registers, `.x`, `.y` and `.z`.

    What the launch fixes is a Python int: the extents of a block, and an index along an axis of extent 1.
    """

    def __init__(self, group: str, doc: str) -> None:
        self._group = group
        self.__doc__ = doc

    @property
    def x(self) -> Any:
        return self._axis("x", 0)

    @property
    def y(self) -> Any:
        return self._axis("y", 1)

    @property
    def z(self) -> Any:
        return self._axis("z", 2)

    def _axis(self, axis: str, mode: int) -> Any:
        tracer = current(f"tw.{self._group}.{axis}")
        extent = None if tracer.block_shape is None else tracer.block_shape[mode]
        if extent is not None:
            if self._group == "block_dim":
                return extent
            if self._group == "thread_idx" and extent == 1:
                return 0
        value = tracer.emit(Special(f"{self._group}.{axis}"), int32)[0]
        if self._group == "thread_idx" and extent is not None and value.facts is not None:
            value.facts = type(value.facts)(0, extent - 1, 1)
        return Scalar(value)

    def __repr__(self) -> str:
        return f"tw.{self._group}"


thread_idx = Index3("thread_idx", "The thread's index in its block, from 0 (CUDA threadIdx).")
block_idx = Index3("block_idx", "The block's index in the grid, from 0 (CUDA blockIdx).")
block_dim = Index3("block_dim", "The number of threads of a block along each axis (CUDA blockDim).")
grid_dim = Index3("grid_dim", "The number of blocks of the grid along each axis (CUDA gridDim).")


def linear_thread() -> Any:
    """Return the thread's number in its block, x fastest: the order in which threads fill warps."""
    x, y, z = thread_idx.x, thread_idx.y, thread_idx.z
    if isinstance(y, int) and isinstance(z, int):
        return x
    return x + block_dim.x * (y + block_dim.y * z)


def lane_id() -> Any:
    """Return the thread's lane in its warp: its number in the block modulo 32 (64 on AMD targets)."""
    return linear_thread() % current("tw.lane_id").arch.warp_size


def warp_id() -> Any:
    """Return the number of the thread's warp: its number in the block divided by 32 (64 on AMD targets)."""
    return linear_thread() // current("tw.warp_id").arch.warp_size
