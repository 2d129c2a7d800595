"""New arrays for results, in the library and on the device of an input."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any  # Any: arrays of any library

from tilewright.dtypes import DType
from tilewright.errors import ArgumentError
from tilewright.runtime.arrays import Device

Maker = Callable[[], tuple[Any, int]]


def maker_for(library: str, shape: tuple[int, ...], dtype: DType, device: Device) -> Maker:
    """Return what makes an uninitialised row-major array and tells its pointer.

    Raises `ArgumentError` for a library that cannot.
    """
    if library == "numpy" or (library == "tilewright" and device == "cpu"):
        import numpy as np

        def make_numpy() -> tuple[Any, int]:
            made = np.empty(shape, dtype.numpy)
            return made, made.ctypes.data

        return make_numpy
    if library == "torch":
        return _torch_maker(shape, dtype, device)
    if library == "cupy" and isinstance(device, int):
        return _cupy_maker(shape, dtype, device)
    if library == "tilewright" and isinstance(device, int):
        from tilewright.runtime.memory import DeviceArray

        ordinal = device

        def make_device() -> tuple[Any, int]:
            made = DeviceArray(shape, dtype, ordinal=ordinal)
            return made, made.pointer

        return make_device
    raise ArgumentError(
        f"a is an array that is known by {library} alone, and matmul cannot allocate a {library} array",
        help="give the array that the result goes to: out=",
    )


def _torch_maker(shape: tuple[int, ...], dtype: DType, device: Device) -> Maker:
    torch = sys.modules["torch"]
    element = getattr(torch, dtype.name, None)
    if element is None:
        raise ArgumentError(f"this version of torch has no {dtype}", help="ask for another out_dtype")
    place = torch.device("cpu" if isinstance(device, str) else f"cuda:{device}")
    empty = torch.empty

    def make() -> tuple[Any, int]:
        made = empty(shape, dtype=element, device=place)
        return made, made.data_ptr()

    return make


def _cupy_maker(shape: tuple[int, ...], dtype: DType, device: int) -> Maker:
    cupy = sys.modules["cupy"]
    try:
        element = cupy.dtype(dtype.numpy)
    except (TypeError, ValueError):
        raise ArgumentError(f"CuPy has no {dtype}", help="ask for another out_dtype, such as tw.float32") from None

    def make() -> tuple[Any, int]:
        with cupy.cuda.Device(device):
            made = cupy.empty(shape, element)
        return made, made.data.ptr

    return make
