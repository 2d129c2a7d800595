"""New arrays in the library and on the device of an input, for results and for what the host works out; and back."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast  # Any: arrays of any library

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import ArgumentError
from tilewright.frames import is_entry
from tilewright.kernels.repeats import watch
from tilewright.runtime.arrays import Adapter, Device, adapter_for, adapter_of_type, describe
from tilewright.runtime.memory import DeviceArray, copy_to_host, wait_for

Array = np.ndarray[Any, Any]
Maker = Callable[[], tuple[Any, int]]
F = TypeVar("F", bound=Callable[..., Any])


# Of libraries that are known above: the arrays of XLA's programs.
MAKERS: dict[str, Callable[[tuple[int, ...], DType, Device], Maker]] = {}


def maker_for(library: str, shape: tuple[int, ...], dtype: DType, device: Device) -> Maker:
    """Return what makes an uninitialised row-major array and tells its pointer.

    Raises `ArgumentError` for a library that cannot.
    """
    if library == "numpy" or (library == "tilewright" and device == "cpu"):

        def make_numpy() -> tuple[Any, int]:
            made = np.empty(shape, dtype.numpy)
            return made, made.ctypes.data

        return make_numpy
    if library == "torch":
        return _torch_maker(shape, dtype, device)
    if library == "jax":
        return _jax_maker(shape, dtype, device)
    if library == "cupy" and isinstance(device, int):
        return _cupy_maker(shape, dtype, device)
    if library == "tilewright" and isinstance(device, int):
        ordinal = device

        def make_device() -> tuple[Any, int]:
            made = DeviceArray(shape, dtype, ordinal=ordinal)
            return made, made.pointer

        return make_device
    if library in MAKERS:
        return MAKERS[library](shape, dtype, device)
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


class _HostForJax(np.ndarray[Any, Any]):
    """A result in the CPU's memory that becomes an array of JAX."""


class _DeviceForJax(DeviceArray):
    """A result on a GPU that becomes an array of JAX."""


def _jax_maker(shape: tuple[int, ...], dtype: DType, device: Device) -> Maker:
    """Make memory of our own: arrays of JAX never change. `handed_over` makes them of it, when it is written."""

    def make() -> tuple[Any, int]:
        if isinstance(device, str):
            made = np.empty(shape, dtype.numpy).view(_HostForJax)
            return made, made.ctypes.data
        held = _DeviceForJax(shape, dtype, ordinal=device)
        return held, held.pointer

    return make


def adapter_of_results(adapter: Adapter, device: Device) -> Adapter:
    """Return the adapter of what `maker_for` makes for the library of an adapter."""
    if adapter.library != "jax":
        return adapter
    found = adapter_of_type(_HostForJax if isinstance(device, str) else _DeviceForJax)
    assert found is not None
    return found


def handed_over(result: Any) -> Any:
    """Return a function's result, or its results, as arrays of the library that they are for."""
    if isinstance(result, (tuple, list)):
        return type(result)([handed_over(x) for x in result])
    if isinstance(result, _HostForJax):
        return sys.modules["jax"].numpy.asarray(result.view(np.ndarray))
    if isinstance(result, _DeviceForJax):
        return sys.modules["jax"].dlpack.from_dlpack(result)
    return result


def handing_over(function: F) -> F:
    """Make results of a function arrays of the library that they are for: those of JAX are made of what was written."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return handed_over(function(*args, **kwargs))

    is_entry(call)
    return cast("F", call)


def host_array(array: Any, name: str) -> Array:
    """Return an array's elements in the CPU's memory."""
    watch.reads_elements()
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "detach"):  # torch's, on whatever stream
        describe(array, name)  # which says why it has no elements
        array = array.detach().cpu()
    info = describe(array, name)
    if info is None:
        raise ArgumentError(f"{name} is a {type(array).__name__}, and an array is expected")
    if isinstance(info.device, int):
        adapter = adapter_for(array)
        if adapter is not None and adapter.current_stream is not None:
            wait_for(info.device, adapter.current_stream(info.device))
        on_host: Array = copy_to_host(info)[0]
        return on_host
    host = info.host()
    found: Array = np.lib.stride_tricks.as_strided(host, info.shape, [s * info.dtype.bytes for s in info.strides])
    return found


def array_beside(array: Array, other: Any) -> Any:
    """Return a NumPy array's elements as an array of another one's library, on its device."""
    adapter = adapter_for(other)
    assert adapter is not None, type(other)
    if adapter.library == "torch":
        torch = sys.modules["torch"]
        if array.dtype.kind not in "iuf":  # bfloat16
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(other.device)
        return torch.from_numpy(array).to(other.device)
    device: Device = adapter.describe(other).device
    if isinstance(device, str):
        return array
    if adapter.library == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device):
            return cupy.asarray(array)
    return DeviceArray.from_numpy(array, ordinal=device)
