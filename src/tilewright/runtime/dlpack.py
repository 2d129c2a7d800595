"""Read and make DLPack capsules: the C structures by which array libraries show each other their memory.

A capsule is read and left as it is, under its own name. Its destructor then frees it when the capsule goes,
so keeping the capsule alive is all that ownership takes. One that is made keeps the memory's owner until whoever takes
it has called its deleter, or until it goes untaken.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any  # Any: types of ctypes

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


def _capi(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of Python's C interface. Not as an attribute of `pythonapi`, whose types all libraries set."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_is_valid = _capi("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_get_pointer = _capi("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_new = _capi("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# The same of a capsule that is going, by its address.
_is_valid_at = _capi("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer_at = _capi("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_NAME = b"dltensor"  # capsules keep a pointer to it
_handed_out: dict[int, object] = {}  # by the address of the structure: it, its shape, and the owner of the memory


def _delete(address: int) -> None:
    """Let go of what a capsule holds: whoever took it is done."""
    _handed_out.pop(address, None)


def _forget_untaken(capsule: int) -> None:
    """Let go of what a capsule holds that nobody took: who takes one renames it.

    It goes by the capsule's address: as an object it is gone already, and must not be counted again.
    """
    if _is_valid_at(capsule, _NAME):
        _handed_out.pop(int(_pointer_at(capsule, _NAME)), None)


# As C calls them; these objects stay, as capsules keep pointers to them.
_DELETE, _FORGET_UNTAKEN = (ctypes.CFUNCTYPE(None, ctypes.c_void_p)(each) for each in (_delete, _forget_untaken))


def make_capsule(pointer: int, shape: tuple[int, ...], dtype: DType, kind: int, ordinal: int, owner: object) -> object:
    """Return a capsule of a row-major array; `kind` is the protocol's number of the device's kind."""
    plain = 2 if dtype.is_float else 0 if dtype.is_signed else 1
    code = next((code for (code, _), of in _BY_CODE_AND_BITS.items() if of is dtype), plain)
    extents = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    managed = _Managed(
        _Tensor(
            pointer, _Device(kind, ordinal), len(shape), _DataType(code, dtype.bits, 1),
            ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64)), None, 0,
        ),
        None,
        ctypes.cast(_DELETE, ctypes.c_void_p),
    )  # fmt: skip
    address = ctypes.addressof(managed)
    _handed_out[address] = managed, extents, owner
    capsule: object = _new(address, _NAME, ctypes.cast(_FORGET_UNTAKEN, ctypes.c_void_p))
    return capsule


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
        pointer=tensor.data + tensor.byte_offset if tensor.data else 0,
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
