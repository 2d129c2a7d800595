"""Tensor maps: what the driver makes of an array's address, extents and strides, for bulk copies of boxes.

Source: CUDA driver API, "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col".
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from tilewright.errors import DeviceError
from tilewright.ir.core import TensorMap
from tilewright.ir.maps import MapValues
from tilewright.runtime import driver

MAP_BYTES = 128
MAP_ALIGNMENT = 64
# CUtensorMapDataType. The bits of a type without one go as an unsigned integer of its size, and so do those that are
# combined bit by bit: with a map of int64 an H200 takes such a reduction for an illegal instruction.
_TYPES = {
    "uint8": 0, "int8": 0, "float8_e4m3fn": 0, "float8_e5m2": 0, "uint16": 1, "int16": 1, "uint32": 2, "int32": 3,
    "uint64": 4, "int64": 5, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle
_NOT_INTERLEAVED = 0
_PROMOTED_TO_128_BYTES = 2  # CUtensorMapL2promotion
_LOWEST_DRIVER = "12.0"


def encode(map: TensorMap, values: MapValues, address: int) -> bytes:
    """Return a tensor map of an array at an address; raise `DeviceError` where the driver refuses it."""
    cuda = driver.library()
    if not hasattr(cuda, "cuTensorMapEncodeTiled"):
        raise DeviceError(
            f"the CUDA driver cannot encode tensor maps, which bulk copies need; version {_LOWEST_DRIVER} can",
            help="update NVIDIA's driver",
        )
    memory = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
    start = -ctypes.addressof(memory) % MAP_ALIGNMENT
    size, rank = map.dtype.bytes, map.rank
    steps = map.steps or (1,) * rank
    arguments = (
        ctypes.addressof(memory) + start,
        element_code(map),
        rank,
        address,
        _array(ctypes.c_uint64, values.extents),
        _array(ctypes.c_uint64, [stride * size for stride in values.strides[1:]] or [0]),
        *_box(map, steps),
        _array(ctypes.c_uint, steps),
        _NOT_INTERLEAVED,
        swizzle_code(map),
        _PROMOTED_TO_128_BYTES,
        int(map.nan),
    )
    status = _function(map, cuda)(*arguments)
    if status in driver.WRONG_CONTEXT:  # of a thread that has none, as the one that computes gradients at first
        with driver.device_context(driver.ordinal_of_pointer(address)):
            status = _function(map, cuda)(*arguments)
    details = [
        f"at {address:#x}, extents {values.extents}, strides {values.strides}, box {map.box} of {map.dtype}, "
        f"swizzle of {map.swizzle} bytes"
    ]
    driver.check(status, f"encoding the tensor map of {map.buffer.name!r}", details)
    return bytes(memory.raw[start : start + MAP_BYTES])


def element_code(map: TensorMap) -> int:
    """Return the CUtensorMapDataType of what a map copies."""
    return _TYPES[f"uint{8 * map.dtype.bytes}" if map.is_bits else map.dtype.name]


def swizzle_code(map: TensorMap) -> int:
    """Return the CUtensorMapSwizzle of a map."""
    return _SWIZZLES[map.swizzle]


def _function(map: TensorMap, cuda: Any) -> Any:  # Any: the driver and its functions
    return cuda.cuTensorMapEncodeIm2col if map.corners else cuda.cuTensorMapEncodeTiled


def _box(map: TensorMap, steps: Sequence[int]) -> list[Any]:  # Any: arguments of the driver
    """Return what the driver is told of a box: its extents with what is skipped, or corners, channels and pixels."""
    if not map.corners:
        return [_array(ctypes.c_uint, [extent * step for extent, step in zip(map.box, steps, strict=True)])]
    lows, highs = ([corner[side] for corner in map.corners] for side in (0, 1))
    return [_array(ctypes.c_int, lows), _array(ctypes.c_int, highs), *(ctypes.c_uint(extent) for extent in map.box)]


def _array(kind: Any, numbers: Sequence[int]) -> Any:  # Any: a type of ctypes, and an array of it
    return (kind * len(numbers))(*numbers)
