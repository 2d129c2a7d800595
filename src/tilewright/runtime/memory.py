"""Arrays in device memory without an array library, and the time between two points of a stream.

Enough to run kernels where only Tilewright and the driver are installed: put NumPy arrays on a GPU, launch,
take them back. It is not an allocator; programs that use PyTorch or CuPy use their arrays.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_of
from tilewright.errors import ArgumentError
from tilewright.runtime import driver
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.dlpack import CUDA_KINDS, make_capsule, row_major


class DeviceArray:
    """A contiguous array in the memory of one CUDA device.

    Any library takes it by `__cuda_array_interface__`; element types that the interface does not know, such as
    bfloat16 and 8-bit floats, are shown there by their bits. The memory is freed with the object.
    """

    def __init__(self, shape: tuple[int, ...], dtype: object = "float32", *, ordinal: int = 0) -> None:
        self.shape: tuple[int, ...] = tuple(shape)
        self.dtype: DType = dtype_of(dtype)
        self.ordinal = ordinal
        self.strides: tuple[int, ...] = row_major(self.shape)
        self.bytes: int = self.dtype.bytes * int(np.prod(self.shape, dtype=np.int64))
        address = ctypes.c_uint64()
        cuda = driver.library()
        with driver.device_context(ordinal):
            status = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(max(self.bytes, 1)))
        driver.check(status, f"allocating {self.bytes} bytes on CUDA device {ordinal}")
        self.pointer: int = address.value
        free = weakref.finalize(self, _free, ordinal, self.pointer)
        free.atexit = False  # the driver may be down by then, and the memory goes with the process

    @staticmethod
    def from_numpy(array: np.ndarray[Any, Any], *, ordinal: int = 0) -> DeviceArray:
        """Return a copy of a NumPy array on a device."""
        result = DeviceArray(array.shape, array.dtype, ordinal=ordinal)
        result.fill_from(array)
        return result

    def fill_from(self, array: np.ndarray[Any, Any]) -> None:
        """Copy a NumPy array of the same shape and element type into this one."""
        if array.shape != self.shape or array.dtype != self.dtype.numpy:
            raise ArgumentError(f"expected {self.dtype} of shape {self.shape}, got {array.dtype} of {array.shape}")
        source = np.ascontiguousarray(array)
        with driver.device_context(self.ordinal):
            status = driver.library().cuMemcpyHtoD_v2(
                ctypes.c_uint64(self.pointer), ctypes.c_void_p(source.ctypes.data), ctypes.c_size_t(self.bytes)
            )
        driver.check(status, "copying an array to the device")

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return a copy as a NumPy array, after all work on the default stream is done."""
        result = np.empty(self.shape, self.dtype.numpy)
        with driver.device_context(self.ordinal):
            status = driver.library().cuMemcpyDtoH_v2(
                ctypes.c_void_p(result.ctypes.data), ctypes.c_uint64(self.pointer), ctypes.c_size_t(self.bytes)
            )
        driver.check(status, "copying an array from the device")
        return result

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA_KINDS[0], self.ordinal

    def __dlpack__(self, *, stream: int | None = None, **others: object) -> object:
        """Return a DLPack capsule, after all work on the default stream is done; it keeps the memory."""
        wait_for(self.ordinal, 0)
        return make_capsule(self.pointer, self.shape, self.dtype, *self.__dlpack_device__(), self)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        is_by_bits = self.dtype.is_narrow_float and self.dtype.name != "float16"
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": f"<u{self.dtype.bytes}" if is_by_bits else self.dtype.numpy.str,
            "data": (self.pointer, False),
            "strides": None,
            "stream": None,
        }


def wait_for(ordinal: int, stream: int) -> None:
    """Wait until a device has done all work that a stream was given."""
    with driver.device_context(ordinal):
        driver.check(driver.library().cuStreamSynchronize(ctypes.c_void_p(stream)), "waiting for a stream")


def copy_to_host(info: ArrayInfo) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a device's array as a NumPy array with the same strides, and the memory that it is a view of."""
    assert isinstance(info.device, int), info
    memory = np.empty(info.span, info.dtype.numpy)
    size = info.dtype.bytes
    with driver.device_context(info.device):
        status = driver.library().cuMemcpyDtoH_v2(
            ctypes.c_void_p(memory.ctypes.data),
            ctypes.c_uint64(info.pointer + info.lowest_offset * size),
            ctypes.c_size_t(memory.nbytes),
        )
    driver.check(status, "copying an array from the device")
    strides = tuple(stride * size for stride in info.strides)
    return np.lib.stride_tricks.as_strided(memory[-info.lowest_offset :], info.shape, strides), memory


def copy_to_device(info: ArrayInfo, memory: np.ndarray[Any, Any]) -> None:
    """Copy what `copy_to_host` gave back to the device's array."""
    assert isinstance(info.device, int), info
    with driver.device_context(info.device):
        status = driver.library().cuMemcpyHtoD_v2(
            ctypes.c_uint64(info.pointer + info.lowest_offset * info.dtype.bytes),
            ctypes.c_void_p(memory.ctypes.data),
            ctypes.c_size_t(memory.nbytes),
        )
    driver.check(status, "copying an array to the device")


def _free(ordinal: int, pointer: int) -> None:
    with driver.device_context(ordinal):
        driver.library().cuMemFree_v2(ctypes.c_uint64(pointer))


class Event:
    """A point of a stream, whose time the device records."""

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self._handle = ctypes.c_void_p()
        with driver.device_context(ordinal):
            driver.check(driver.library().cuEventCreate(ctypes.byref(self._handle), 0), "creating an event")
        weakref.finalize(self, _destroy_event, ordinal, self._handle).atexit = False

    def record(self, stream: int = 0) -> None:
        """Mark the point that `stream` has reached with all work given to it so far."""
        with driver.device_context(self.ordinal):
            driver.check(driver.library().cuEventRecord(self._handle, ctypes.c_void_p(stream)), "recording an event")

    def seconds_until(self, end: Event) -> float:
        """Wait for `end` and return the seconds between this point and that one."""
        elapsed = ctypes.c_float()
        cuda = driver.library()
        with driver.device_context(self.ordinal):
            driver.check(cuda.cuEventSynchronize(end._handle), "waiting for an event")
            driver.check(_elapsed_time(cuda)(ctypes.byref(elapsed), self._handle, end._handle), "timing")
        return elapsed.value / 1000


def _elapsed_time(cuda: Any) -> Any:  # Any: functions of the driver
    # CUDA 13 exports the function under a second name as well, and may one day drop the first.
    return getattr(cuda, "cuEventElapsedTime_v2", None) or cuda.cuEventElapsedTime


def _destroy_event(ordinal: int, handle: ctypes.c_void_p) -> None:
    with driver.device_context(ordinal):
        driver.library().cuEventDestroy_v2(handle)
