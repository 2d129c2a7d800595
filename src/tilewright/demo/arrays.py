"""Put arrays where a backend wants them: NumPy for the simulator; torch, CuPy or our own memory for the GPU."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import numpy as np

from tilewright.demo.examples import Array, Backend
from tilewright.errors import DeviceError
from tilewright.runtime.options import is_simulator_chosen


def pick_backend(backend: str | None = None) -> tuple[Backend, str | None]:
    """Return the backend to run on, and a note where something is missing for comparisons.

    That is `backend`, or by default "cuda" where a GPU can be used, else "sim". Raises `DeviceError` where "cuda"
    is asked for and cannot be had, `ArgumentError` where TILEWRIGHT_BACKEND names none.
    """
    is_forced = is_simulator_chosen()
    if backend == "sim" or (backend is None and is_forced):
        return "sim", None
    from tilewright.runtime import driver

    reason = driver.why_unavailable()
    if reason is not None:
        if backend == "cuda":
            raise DeviceError("no GPU can be used here", details=[reason])
        return "sim", None
    note = "Without torch or CuPy there is nothing to compare with: pip install torch"
    return "cuda", note if array_library() is None else None


def put(array: Array, backend: Backend) -> Any:  # Any: an array of NumPy, torch, CuPy or our own
    """Return a copy of `array`, with its order of dimensions in memory, where `backend` computes.

    Raises `DeviceError` for element types on the GPU that NumPy has not by itself, such as bfloat16, without torch.
    """
    if backend == "sim":
        return np.array(array, order="K")
    own = array.dtype.isbuiltin == 1
    if not own and array_library() != "torch":
        raise DeviceError(f"{array.dtype.name} matrices on a GPU need torch", help="pip install torch")
    match array_library():
        case "torch":
            import torch

            if not own:
                return torch.from_numpy(array.astype(np.float32)).cuda().to(getattr(torch, array.dtype.name))
            # By way of a copy, because torch refuses to look at read-only memory.
            return torch.from_numpy(np.array(array, order="K")).cuda()
        case "cupy":
            import cupy

            return cupy.array(array, order="K")
    from tilewright.runtime.memory import DeviceArray

    if array.flags.c_contiguous:
        return DeviceArray.from_numpy(array)
    return _Transposed(DeviceArray.from_numpy(np.ascontiguousarray(array.T)))


def fetch(array: Any) -> Array:  # Any: what `put` returned
    """Return the elements of `array` as a NumPy array."""
    for to_host in ("cpu", "get"):  # torch, CuPy
        if hasattr(array, to_host):
            array = getattr(array, to_host)()
    if hasattr(array, "numpy"):
        array = array.numpy()
    return np.asarray(array)


def synchronize() -> None:
    """Wait until the GPU has done all that was asked of it, on every stream."""
    from tilewright.runtime import driver

    driver.synchronize()


@cache
def array_library() -> str | None:
    """Return the name of the installed library for arrays on the GPU, torch or cupy: looked up, not imported."""
    return next((name for name in ("torch", "cupy") if importlib.util.find_spec(name) is not None), None)


class _Transposed:
    """The transposed view of an array in device memory, for input whose first dimension is contiguous."""

    def __init__(self, base: Any) -> None:  # Any: has __cuda_array_interface__ and numpy()
        self._base = base

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = dict(self._base.__cuda_array_interface__)
        shape = interface["shape"]
        itemsize = int(interface["typestr"][2:])
        # The strides in bytes of the row-major base, last dimension first.
        strides = [itemsize]
        for extent in shape[:0:-1]:
            strides.append(strides[-1] * extent)
        return {**interface, "shape": shape[::-1], "strides": tuple(strides)}

    def numpy(self) -> Array:
        result: Array = self._base.numpy().T
        return result
