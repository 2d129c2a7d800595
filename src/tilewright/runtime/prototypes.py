"""The C functions that are called: what each takes and returns, so that ctypes converts and refuses as C would.

Without a prototype ctypes passes every Python int as a C int, which cuts a pointer or a size to 32 bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any  # Any: types of ctypes, and libraries

_Ints, _Handles, _Sizes = POINTER(c_int), POINTER(c_void_p), POINTER(c_size_t)

# Arguments by function. All return a status, an int, but those in `_RESULTS`. A CUdeviceptr is a c_uint64, a CUdevice a
# c_int; handles (of contexts, modules, functions, streams, events, programs) are c_void_p.
DRIVER: Mapping[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDriverGetVersion": (_Ints,),
    "cuDeviceGetCount": (_Ints,),
    "cuDeviceGet": (_Ints, c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (_Ints, c_int, c_int),
    "cuDeviceTotalMem_v2": (_Sizes, c_int),
    "cuDevicePrimaryCtxRetain": (_Handles, c_int),
    "cuCtxGetCurrent": (_Handles,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (_Handles,),
    "cuCtxSynchronize": (),
    "cuModuleLoadData": (_Handles, c_char_p),
    "cuModuleGetFunction": (_Handles, c_void_p, c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuFuncGetAttribute": (_Ints, c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_Ints, c_void_p, c_int, c_size_t),
    "cuOccupancyMaxActiveClusters": (_Ints, c_void_p, c_void_p),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, c_void_p, c_void_p),
    "cuLaunchKernelEx": (c_void_p, c_void_p, c_void_p, c_void_p),
    "cuThreadExchangeStreamCaptureMode": (_Ints,),
    "cuStreamCreate": (_Handles, c_uint),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuStreamWaitValue32_v2": (c_void_p, c_uint64, c_uint, c_uint),
    "cuStreamWriteValue32_v2": (c_void_p, c_uint64, c_uint, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuEventCreate": (_Handles, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuEventElapsedTime_v2": (POINTER(c_float), c_void_p, c_void_p),
    "cuEventDestroy_v2": (c_void_p,),
    "cuPointerGetAttribute": (c_void_p, c_int, c_uint64),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemGetInfo_v2": (_Sizes, _Sizes),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemcpy2DAsync_v2": (c_void_p, c_void_p),
    "cuTensorMapEncodeTiled": (
        c_void_p,
        c_int,
        c_uint,
        c_void_p,
        POINTER(c_uint64),
        POINTER(c_uint64),
        POINTER(c_uint),
        POINTER(c_uint),
        c_int,
        c_int,
        c_int,
        c_int,
    ),
    "cuTensorMapEncodeIm2col": (
        c_void_p,
        c_int,
        c_uint,
        c_void_p,
        POINTER(c_uint64),
        POINTER(c_uint64),
        POINTER(c_int),
        POINTER(c_int),
        c_uint,
        c_uint,
        POINTER(c_uint),
        c_int,
        c_int,
        c_int,
        c_int,
    ),
    "cuMemsetD32Async": (c_uint64, c_uint, c_size_t, c_void_p),
}
NVRTC: Mapping[str, tuple[Any, ...]] = {
    "nvrtcVersion": (_Ints, _Ints),
    "nvrtcGetNumSupportedArchs": (_Ints,),
    "nvrtcGetSupportedArchs": (_Ints,),
    "nvrtcGetErrorString": (c_int,),
    "nvrtcCreateProgram": (_Handles, c_char_p, c_char_p, c_int, c_void_p, c_void_p),
    "nvrtcCompileProgram": (c_void_p, c_int, POINTER(c_char_p)),
    "nvrtcDestroyProgram": (_Handles,),
    **{f"nvrtcGet{kind}Size": (c_void_p, _Sizes) for kind in ("CUBIN", "PTX", "ProgramLog")},
    **{f"nvrtcGet{kind}": (c_void_p, c_char_p) for kind in ("CUBIN", "PTX", "ProgramLog")},
}
_RESULTS = {"nvrtcGetErrorString": c_char_p}


def declared(library: ctypes.CDLL, prototypes: Mapping[str, tuple[Any, ...]]) -> ctypes.CDLL:
    """Give a library's functions their prototypes, and return the library; what a release lacks is left out."""
    for name, arguments in prototypes.items():
        function = getattr(library, name, None)
        if function is not None:
            function.argtypes = arguments
            function.restype = _RESULTS.get(name, c_int)
    return library
