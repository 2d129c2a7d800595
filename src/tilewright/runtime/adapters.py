"""One adapter for each kind of array: how to read its pointer, shape, strides, type and device.

An adapter is chosen by an array's type, once for each type. No array library is imported here: a type that
comes from PyTorch is recognised by the names of its classes. Some adapters also give the Python
expressions of the launch path (`FastAccess`), and those of PyTorch and CuPy the framework's current stream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

from tilewright.dtypes import DType, dtype
from tilewright.errors import ArgumentError
from tilewright.runtime.arrays import ArrayInfo, Device, Static
from tilewright.runtime.dlpack import CPU_KINDS, CUDA_KINDS, read_capsule, row_major

StreamGetter = Callable[[int], int]

LEGACY_STREAM = 1  # the default stream's handle in the two array protocols; the driver takes it as well


@dataclass(frozen=True)
class FastAccess:
    """Python expressions that read an array `{a}` within a fraction of a microsecond.

    `identity` is a list of expressions, which with the shape have to change whenever anything but the pointer changes
    that a kernel is specialised on, or gets passed.
    """

    pointer: str
    shape: str
    identity: str


@dataclass(frozen=True, eq=False)
class Adapter:
    """How to read arrays of one type. `current_stream` gives a device's current stream in its framework."""

    library: str
    describe: Callable[[Any], ArrayInfo]  # Any: an array of the adapter's library
    fast: FastAccess | None = None
    current_stream: StreamGetter | None = None


def _element_type(found: object) -> DType:
    try:
        return dtype(found)
    except TypeError:
        raise ArgumentError(f"{found} is not an element type of Tilewright") from None


def _elements(byte_strides: tuple[int, ...], size: int) -> tuple[int, ...]:
    if any(stride % size for stride in byte_strides):
        raise ArgumentError(f"its strides of {byte_strides} bytes are no multiples of the element's {size} bytes")
    return tuple(stride // size for stride in byte_strides)


# NumPy


def _describe_numpy(array: Any) -> ArrayInfo:
    if not array.dtype.isnative:
        raise ArgumentError(f"its type {array.dtype!r} has the other byte order")
    if array.dtype.names is not None:
        raise ArgumentError(f"its type {array.dtype} is a record")
    element = _element_type(array.dtype)
    return ArrayInfo(
        pointer=array.__array_interface__["data"][0],
        shape=array.shape,
        strides=_elements(array.strides, element.bytes),
        dtype=element,
        device="cpu",
        writable=array.flags.writeable,
        owner=array,
    )


def _numpy_adapter() -> Adapter:
    pointer = "{a}.__array_interface__['data'][0]"
    identity = "{a}.strides, {a}.dtype, {a}.flags.writeable"
    return Adapter("numpy", _describe_numpy, FastAccess(pointer, "{a}.shape", identity))


def _refuse_masked(array: Any) -> ArrayInfo:
    raise ArgumentError(
        "it is a masked array, and a kernel would take its masked elements for numbers",
        help="pass array.filled(value), or array.data and array.mask as two arguments",
    )


# PyTorch


def _describe_torch(tensor: Any) -> ArrayInfo:
    kind = tensor.device.type
    if kind not in ("cpu", "cuda"):
        raise ArgumentError(f"it is on the device {tensor.device}", help="move it to the CPU or to a CUDA device")
    try:
        pointer, strides = tensor.data_ptr(), tuple(tensor.stride())
    except RuntimeError:
        raise ArgumentError(f"it is a tensor of layout {tensor.layout}, which has no strides and no pointer") from None
    return ArrayInfo(
        pointer=pointer,
        shape=tuple(tensor.shape),
        strides=strides,
        dtype=_element_type(tensor.dtype),
        device="cpu" if kind == "cpu" else tensor.device.index,
        owner=tensor,
    )


def _torch_stream(ordinal: int) -> int:
    return int(sys.modules["torch"].cuda.current_stream(ordinal).cuda_stream)


def _torch_adapter() -> Adapter:
    # The underscored function takes 0.1 microseconds in place of 2; torch.compile relies on it too.
    torch = sys.modules.get("torch")
    raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    # x.numpy() is not needed anywhere: it refuses bfloat16 and tensors that require grad.
    # Where a tensor is contiguous, its shape tells its strides, and the question is cheaper than the strides.
    # get_device() is -1 on the CPU, and hashes faster than the device object.
    identity = "{a}.is_contiguous() or {a}.stride(), {a}.dtype, {a}.get_device()"
    return Adapter("torch", _describe_torch, FastAccess("{a}.data_ptr()", "{a}.shape", identity), raw or _torch_stream)


# CuPy


def _describe_cupy(array: Any) -> ArrayInfo:
    element = _element_type(array.dtype)
    return ArrayInfo(
        pointer=array.data.ptr,
        shape=array.shape,
        strides=_elements(array.strides, element.bytes),
        dtype=element,
        device=array.data.device_id,
        owner=array,
    )


def _cupy_stream(ordinal: int) -> int:
    cuda = sys.modules["cupy"].cuda
    with cuda.Device(ordinal):
        return int(cuda.get_current_stream().ptr)


def _cupy_adapter() -> Adapter:
    fast = FastAccess("{a}.data.ptr", "{a}.shape", "{a}.strides, {a}.dtype, {a}.data.device_id")
    return Adapter("cupy", _describe_cupy, fast, _cupy_stream)


# __cuda_array_interface__ and DLPack


def _describe_interface(array: Any) -> ArrayInfo:
    interface = array.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise ArgumentError("it is a masked array")
    typestr = interface["typestr"]
    if typestr[0] == ">":
        raise ArgumentError(f"its type {typestr} has the other byte order")
    import numpy as np

    element = _element_type(np.dtype(typestr))
    shape = tuple(interface["shape"])
    byte_strides = interface.get("strides")
    pointer, read_only = interface["data"]
    return ArrayInfo(
        pointer=pointer or 0,
        shape=shape,
        strides=row_major(shape) if byte_strides is None else _elements(tuple(byte_strides), element.bytes),
        dtype=element,
        device=_ordinal_of_pointer(pointer or 0),
        writable=not read_only,
        stream=interface.get("stream"),
        owner=array,
    )


def _ordinal_of_pointer(pointer: int) -> int:
    """Return the device that holds a pointer: the interface does not say."""
    from tilewright.runtime import driver

    return driver.ordinal_of_pointer(pointer) if pointer and driver.device_count() > 1 else 0


def _describe_dlpack(array: Any) -> ArrayInfo:
    kind, ordinal = array.__dlpack_device__()
    if kind not in (*CPU_KINDS, *CUDA_KINDS):
        raise ArgumentError(f"it is on DLPack device kind {int(kind)}, neither a CPU nor a CUDA device")
    device: Device = ordinal if kind in CUDA_KINDS else "cpu"
    # The producer makes this stream wait for the array's contents; the launch then follows this stream.
    stream = None if device == "cpu" else LEGACY_STREAM
    try:
        capsule = array.__dlpack__(stream=stream, max_version=(1, 1))
    except (TypeError, BufferError):  # a producer of the first generation, or one that shows no read-only arrays
        try:
            capsule = array.__dlpack__(stream=stream)
        except (TypeError, BufferError, RuntimeError) as error:
            raise ArgumentError(f"its library does not show it by DLPack: {error}") from error
    tensor = read_capsule(capsule)
    # JAX arrays are immutable, which its capsules do not say.
    immutable = type(array).__module__.partition(".")[0] in ("jax", "jaxlib")
    return ArrayInfo(
        pointer=tensor.pointer,
        shape=tensor.shape,
        strides=tensor.strides,
        dtype=tensor.dtype,
        device=device,
        writable=tensor.writable and not immutable,
        stream=stream,
        owner=capsule,
    )


_INTERFACE = Adapter("__cuda_array_interface__", _describe_interface)
_DLPACK = Adapter("DLPack", _describe_dlpack)


def adapter_for(array: object) -> Adapter | None:
    """Return the adapter for an array, or None for what is no array."""
    found = _adapter_of_type(cast("Hashable", type(array)))
    if found is None and hasattr(array, "__cuda_array_interface__") and not isinstance(array, type):
        return _INTERFACE  # some holders set it on the object, not on the class
    return found


@cache
def _adapter_of_type(kind: type) -> Adapter | None:
    own: Adapter | None = getattr(kind, "__tilewright_adapter__", None)  # a class of views, see views.py
    if own is not None:
        return own
    for base in kind.__mro__:
        library = base.__module__.partition(".")[0]
        if base.__name__ == "MaskedArray" and library == "numpy":
            return Adapter("numpy.ma", _refuse_masked)
        if base.__name__ == "ndarray" and library == "numpy":
            return _numpy_adapter()
        if base.__name__ == "Tensor" and library == "torch":
            return _torch_adapter()
        if base.__name__ == "ndarray" and library == "cupy":
            return _cupy_adapter()
        if base.__name__ == "generic" and library == "numpy":  # NumPy's scalars speak DLPack too
            return None
        if base.__name__ == "DeviceArray" and base.__module__ == "tilewright.runtime.memory":
            fast = FastAccess("{a}.pointer", "{a}.shape", "{a}.dtype, {a}.ordinal")
            return Adapter("tilewright", _describe_device_array, fast)
    if kind is Static:
        return Adapter("static", _describe_static)
    # DLPack first: JAX has both, and only DLPack knows bfloat16 and arrays on the CPU.
    if hasattr(kind, "__dlpack__"):
        return _DLPACK
    return _INTERFACE if hasattr(kind, "__cuda_array_interface__") else None


def _describe_device_array(array: Any) -> ArrayInfo:
    return ArrayInfo(array.pointer, array.shape, array.strides, array.dtype, array.ordinal, owner=array)


def _describe_static(static: Static) -> ArrayInfo:
    adapter = adapter_for(static.array)
    if adapter is None:
        raise ArgumentError(f"tw.static({static.array!r}) holds no array")
    return replace(adapter.describe(static.array), static=True)
