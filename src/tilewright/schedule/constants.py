"""What a kernel takes beside its arguments: the data of CONST arrays and memory of caches, where these live."""

from __future__ import annotations

import builtins
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import ScheduleError
from tilewright.runtime.arrays import Adapter, ArrayInfo

if TYPE_CHECKING:
    from tilewright.dtypes import DType
    from tilewright.runtime.arrays import Device
    from tilewright.runtime.memory import DeviceArray
    from tilewright.schedule.arrays import Array


def bring(array: Array, like: Any, device: Device) -> Any:  # Any: arrays of any library
    """Return a CONST array's data on a device, in the strides that the array has.

    On the host it is a NumPy array. On a CUDA device the library of `like`, an argument that lives there, holds the
    memory, so that its allocator knows of it; for other libraries, and without one, the driver does.
    Raises `DriverError` where the device refuses the memory.
    """
    data = in_memory_order(array)
    if device == "cpu":
        return data
    from tilewright.runtime.memory import DeviceArray

    bits = data if data.dtype.kind in "fiu" and data.dtype.isbuiltin else data.view(f"u{data.dtype.itemsize}")
    module = type(like).__module__.partition(".")[0]
    if module == "torch":
        torch = sys.modules["torch"]
        held = torch.from_numpy(_memory(bits)).to(like.device)
        held = held.as_strided(bits.shape, [step // bits.itemsize for step in bits.strides])
        return held if bits is data else held.view(getattr(torch, array.element_type.name))
    steps = tuple(step // data.itemsize for step in data.strides)
    return Placed(DeviceArray.from_numpy(_memory(data), ordinal=device), data.shape, steps)


def memory_for(type: DType, elements: int, like: Any, device: Device) -> Any:  # Any: arrays of any library
    """Return memory for so many elements on a device, from the library of `like`, an argument that lives there.

    Torch gives it to later work of the stream alone once it is released; what the driver gives it takes back when all
    work of the device is done. Raises `DriverError` where the device refuses the memory.
    """
    if device == "cpu":
        return np.zeros(elements, type.numpy)
    from tilewright.runtime.memory import DeviceArray

    if builtins.type(like).__module__.partition(".")[0] == "torch":
        torch = sys.modules["torch"]
        return torch.empty(elements, dtype=getattr(torch, type.name), device=like.device)
    return DeviceArray((elements,), type, ordinal=device)


def allocate(array: Array, shape: tuple[int, ...], like: Any, device: Device) -> Any:  # Any: arrays of any library
    """Return memory for an array that lives as long as a launch, where the other arguments live.

    Each launch has its own, since launches on different streams run at the same time. What is in it is not a number,
    where the type has such.
    """
    numpy_type = array.element_type.numpy
    count = 1
    for extent in shape:
        count *= extent
    if device == "cpu":
        return np.full(count * numpy_type.itemsize, 255, np.uint8).view(numpy_type).reshape(shape)
    module = type(like).__module__.partition(".")[0]
    if module == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, array.element_type.name), device=like.device)
    from tilewright.runtime.memory import DeviceArray

    steps = tuple(int(np.prod(shape[mode + 1 :], dtype=np.int64)) for mode in range(len(shape)))
    return Placed(DeviceArray.from_numpy(np.zeros(max(count, 1), numpy_type), ordinal=device), shape, steps)


class Placed:
    """An array in the driver's memory with strides of its own."""

    def __init__(self, memory: DeviceArray, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.memory = memory
        self.shape = shape
        self.strides = strides

    def info(self) -> ArrayInfo:
        """Return where it is and how it lies."""
        memory = self.memory
        return ArrayInfo(memory.pointer, self.shape, self.strides, memory.dtype, memory.ordinal, owner=self)

    __tilewright_adapter__: Adapter = Adapter("tilewright", info)


def in_memory_order(array: Array) -> np.ndarray[Any, Any]:
    """Return the data in the array's element type and strides.

    >>> from tilewright.schedule.arrays import Array, Role
    >>> A = Array(Role.CONST, "float32", layout=Array.Layout.LAST_MAJOR, data=np.zeros((2, 3)), name="A")
    >>> in_memory_order(A).strides
    (4, 8)
    """
    assert array.data is not None, array
    if any(step < 0 for step in array.strides):
        raise ScheduleError(
            f"array {array.name} is CONST and has the strides {array.strides}",
            help="reverse the data, and give strides from 0",
        )
    data = array.data.astype(array.element_type.numpy)
    size = data.itemsize
    strides = tuple(step * size for step in array.strides)
    span = 1 + sum((extent - 1) * step for extent, step in zip(data.shape, array.strides, strict=True))
    memory = np.zeros(span, data.dtype)
    result = np.lib.stride_tricks.as_strided(memory, data.shape, strides)
    result[...] = data
    return result


def memory_of(array: Array) -> bytes:
    """Return the memory of a CONST array in its element type and strides, from its first element to its last.

    >>> from tilewright.schedule.arrays import Array, Role
    >>> A = Array(Role.CONST, "float32", layout=Array.Layout.LAST_MAJOR, data=[[1, 2], [3, 4]], name="A")
    >>> np.frombuffer(memory_of(A), np.float32)
    array([1., 3., 2., 4.], dtype=float32)
    """
    return _memory(in_memory_order(array)).tobytes()


def _memory(view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the memory that a view from `in_memory_order` lies in, as it lies there."""
    steps = [step // view.itemsize for step in view.strides]
    span = 1 + sum((extent - 1) * step for extent, step in zip(view.shape, steps, strict=True))
    return np.lib.stride_tricks.as_strided(view, (span,), (view.itemsize,))
