"""Tensors that show themselves to C by DLPack's exchange API as PyTorch's do, and a launch function that C can call."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from tests.unit.runtime.fake_arrays import Tensor

from tilewright.runtime import compiled
from tilewright.runtime.driver import EntryPoints

_CODES = {"float32": (2, 32), "float16": (2, 16), "float64": (2, 64), "bfloat16": (4, 16), "int32": (0, 32)}
_READ = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class _Shown(ctypes.Structure):
    """DLPack's DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


def _show(tensor: Any, out: int) -> int:
    shown = _Shown.from_address(out)
    rank = len(tensor.shape)
    tensor.kept = (ctypes.c_int64 * rank)(*tensor.shape), (ctypes.c_int64 * rank)(*tensor.stride())
    shown.data, shown.device_type, shown.device_id = tensor.data_ptr(), 2, tensor.get_device()
    shown.ndim, (shown.code, shown.bits), shown.lanes = rank, _CODES[tensor.dtype.name], 1
    shown.shape, shown.strides = (ctypes.addressof(each) for each in tensor.kept)
    return 0


_show_to_c = _READ(_show)
_api = (ctypes.c_void_p * 7)(1 | 3 << 32, None, None, None, None, ctypes.cast(_show_to_c, ctypes.c_void_p).value, None)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_NAME = b"dlpack_exchange_api"  # a capsule refers to it
CAPSULE: Any = _new_capsule(ctypes.addressof(_api), _NAME, None)


def shown_kind(name: str = "Tensor", module: str = "torch") -> Any:
    """Return a class of tensors that looks like PyTorch's and shows its tensors to C."""
    names: dict[str, Any] = {"__module__": module, "__qualname__": name, "__dlpack_c_exchange_api__": CAPSULE}
    # Where GPUs have their memory: lower pointers are looked at in Python.
    names["__init__"] = functools.partialmethod(Tensor.__init__, pointer=1 << 40)
    return type(name, (Tensor,), names)


def c_function(launch: Callable[[int, int, Any], int]) -> tuple[EntryPoints, Any]:
    """Return how C calls a launch function of Python's, and the function of ctypes, which has to be kept.

    The function takes the address of a configuration, a handle, and the addresses of the parameters.
    """

    def call(configuration: int, handle: int, parameters: int, extra: Any) -> int:
        return launch(configuration, handle, ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p)))

    function = _LAUNCH(call)
    return EntryPoints(ctypes.cast(function, ctypes.c_void_p).value or 0, 0, 0), function


def why_not_compiled() -> str | None:
    """Return why the compiled launcher cannot be built here."""
    return compiled.LAUNCHER.why_not("compiled")
