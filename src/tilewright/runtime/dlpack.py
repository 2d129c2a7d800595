"""Read DLPack capsules: the C structures by which array libraries show each other their memory.

A capsule is read and left as it is, under its own name. Its destructor then frees it when the capsule goes,
so keeping the capsule alive is all that ownership takes.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from tilewright.dtypes import DType, bfloat16, bool_, dtype
from tilewright.errors import ArgumentError


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_READ_ONLY = 1
_CODES = {0: "int", 1: "uint", 2: "float"}
_FLOAT8_CODES = {10: "float8_e4m3fn", 11: "float8_e4m3fnuz", 12: "float8_e5m2", 13: "float8_e5m2fnuz"}
_BY_CODE_AND_BITS = {
    (4, 16): bfloat16,
    (6, 8): bool_,
    **{(code, 8): dtype(name) for code, name in _FLOAT8_CODES.items()},
}
CUDA_KINDS = (2, 13)  # kDLCUDA, kDLCUDAManaged
CPU_KINDS = (1, 3)  # kDLCPU, kDLCUDAHost (pinned)

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_get_pointer.restype = ctypes.c_void_p


@dataclass(frozen=True)
class DLPackTensor:
    """The contents of a capsule; strides count in elements, `device_kind` is the protocol's number."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device_kind: int
    ordinal: int
    writable: bool


def read_capsule(capsule: object) -> DLPackTensor:
    """Return what a capsule says, of either generation of the protocol; the caller keeps the capsule alive."""
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = ctypes.cast(_get_pointer(capsule, b"dltensor_versioned"), ctypes.POINTER(_ManagedVersioned))[0]
        if versioned.major != 1:
            raise ArgumentError(f"DLPack version {versioned.major}.{versioned.minor} is not supported; 0 and 1 are")
        return _read(versioned.tensor, not versioned.flags & _READ_ONLY)
    if _is_valid(capsule, b"dltensor"):
        # The first generation has no word for read-only.
        managed = ctypes.cast(_get_pointer(capsule, b"dltensor"), ctypes.POINTER(_Managed))[0]
        return _read(managed.tensor, True)
    raise ArgumentError(f"__dlpack__ gave {capsule!r}, which is not a fresh DLPack capsule")


def _read(tensor: _Tensor, writable: bool) -> DLPackTensor:
    shape = tuple(tensor.shape[n] for n in range(tensor.rank))
    if tensor.strides:
        strides = tuple(tensor.strides[n] for n in range(tensor.rank))
    else:
        strides = row_major(shape)
    return DLPackTensor(
        pointer=(tensor.data or 0) + tensor.byte_offset,
        shape=shape,
        strides=strides,
        dtype=_element_type(tensor.dtype),
        device_kind=tensor.device.kind,
        ordinal=tensor.device.ordinal,
        writable=writable,
    )


def _element_type(found: _DataType) -> DType:
    if found.lanes == 1:
        if (found.code, found.bits) in _BY_CODE_AND_BITS:
            return _BY_CODE_AND_BITS[found.code, found.bits]
        try:
            return dtype(f"{_CODES.get(found.code)}{found.bits}")
        except TypeError:
            pass
    raise ArgumentError(
        f"DLPack type code {found.code} of {found.bits} bits and {found.lanes} lanes is not an element type here"
    )


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous array with the last mode fastest.

    >>> row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides = []
    stride = 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= extent
    return tuple(reversed(strides))
