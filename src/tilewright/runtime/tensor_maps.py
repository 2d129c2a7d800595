"""Tensor maps: what the driver makes of an array's address, extents and strides, for bulk copies of boxes.

Source: CUDA driver API, "cuTensorMapEncodeTiled".
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
# CUtensorMapDataType. The bits of a type without one go as an unsigned integer of its size.
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
    size, rank = map.buffer.dtype.bytes, len(map.box)
    status = cuda.cuTensorMapEncodeTiled(
        ctypes.addressof(memory) + start,
        _TYPES[map.buffer.dtype.name],
        rank,
        address,
        _array(ctypes.c_uint64, values.extents),
        _array(ctypes.c_uint64, [stride * size for stride in values.strides[1:]] or [0]),
        _array(ctypes.c_uint, map.box),
        _array(ctypes.c_uint, [1] * rank),
        _NOT_INTERLEAVED,
        _SWIZZLES[map.swizzle],
        _PROMOTED_TO_128_BYTES,
        int(map.nan),
    )
    details = [
        f"at {address:#x}, extents {values.extents}, strides {values.strides}, box {map.box} of {map.buffer.dtype}, "
        f"swizzle of {map.swizzle} bytes"
    ]
    driver.check(status, f"encoding the tensor map of {map.buffer.name!r}", details)
    return bytes(memory.raw[start : start + MAP_BYTES])


def _array(kind: Any, numbers: Sequence[int]) -> Any:  # Any: a type of ctypes, and an array of it
    return (kind * len(numbers))(*numbers)
