"""Kernels of one thread as C++ of the CPU: the printed text, compiled by g++ and called on NumPy arrays."""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import os
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from tilewright.schedule.functions import PackagedFunction

_CUDA = Path("/usr/local/cuda-13.0/include")

_PRELUDE = """
#include <cmath>
#include <cstring>
#include <cstdint>
#include <algorithm>
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static
#define __constant__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __syncthreads() ((void)0)
#define __grid_constant__
using std::min; using std::max; using std::abs;
struct dim3_ { int x, y, z; };
static const dim3_ threadIdx = {0, 0, 0}, blockIdx = {0, 0, 0}, blockDim = {1, 1, 1}, gridDim = {1, 1, 1};
template <class T, int n> struct alignas(sizeof(T) * n) vector_of;
#define VECTOR(T, t) \\
    struct alignas(2 * sizeof(T)) t##2 { T x, y; }; struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) t##4 { T x, y, z, w; };
VECTOR(float, float) VECTOR(double, double) VECTOR(int, int) VECTOR(unsigned int, uint) VECTOR(short, short)
VECTOR(unsigned short, ushort) VECTOR(signed char, char) VECTOR(unsigned char, uchar) VECTOR(long long, longlong)
VECTOR(unsigned long long, ulonglong)
template <class T> T __ldg(const T* p) { return *p; }
static inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static inline double __longlong_as_double(long long x) { double y; memcpy(&y, &x, 8); return y; }
static inline long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline int __float2int_rz(float x) { return (int)x; }
static inline int __float2int_rn(float x) { return (int)nearbyintf(x); }
static inline unsigned __cvta_generic_to_shared(const void*) { return 0; }
"""


def text_for_host(text):
    """Return the printed CUDA C++ as C++ of the host."""
    # Copies that the GPU does while the thread goes on are done at once.
    text = re.sub(
        r"(void cp_async_c[ag]_(\d+)\(void\* destination, const void\* source\)) \{.*?\n\}",
        r"\1 { memcpy(destination, source, \2); }",
        text,
        flags=re.DOTALL,
    )
    text = re.sub(
        r"(void cp_async_c[ag]_(\d+)_zero_fill\(void\* destination, const void\* source, bool valid\)) \{.*?\n\}",
        r"\1 { if (valid) memcpy(destination, source, \2); else memset(destination, 0, \2); }",
        text,
        flags=re.DOTALL,
    )
    text = re.sub(r"(void cp_async_(?:wait|commit)\w*\([^)]*\)) \{.*?\n\}", r"\1 { }", text, flags=re.DOTALL)
    text = re.sub(r"extern __shared__ (.*?)\[\];", r"static \1[1 << 22];", text)
    return _PRELUDE + text


def run(kernel, values, function=None):
    """Call a kernel of one block of one thread; return None, or why it cannot be done."""
    function = function or PackagedFunction(kernel.name, kernel.name, kernel, {})
    try:
        text = function.device_source.text
        parameters = function.lowered.kernel.parameters
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    source = text_for_host(text)
    if re.search(r"asm volatile|__shfl|mbarrier", source):
        return "the text has instructions of a GPU"
    try:
        library = compiled(source)
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.decode().splitlines() if "error" in line]
        return (lines or ["g++ failed"])[0][-200:]
    _, values = kernel._launch(tuple(values))  # with constants and scratch memory
    by_name = dict(zip(inspect.signature(kernel.kernel.__wrapped__).parameters, values, strict=True))
    arguments = []
    for parameter in parameters:
        value, part = by_name[parameter.argument], parameter.part
        if part == "pointer":
            arguments.append(ctypes.c_void_p(value.ctypes.data))
        elif part == "value":
            arguments.append(np.ctypeslib.as_ctypes(np.asarray(value)))
        else:
            what, mode = part
            number = value.shape[mode] if what == "shape" else value.strides[mode] // value.itemsize
            bits = parameter.target.type.bits
            arguments.append(ctypes.c_int64(number) if bits == 64 else ctypes.c_int32(number))
    getattr(library, kernel.name)(*arguments)
    return None


def compiled(source):
    """Return the library of a text, compiled once for all processes."""
    folder = Path(tempfile.gettempdir()) / f"tilewright-accera-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    stem = folder / hashlib.sha256(source.encode()).hexdigest()[:24]
    library = stem.with_suffix(".so")
    if not library.exists():
        path = folder / f"{stem.name}.{os.getpid()}.cpp"
        path.write_text(source)
        made = path.with_suffix(".tmp")
        include = ["-I", str(_CUDA)] if _CUDA.exists() else []
        command = ["g++", "-O1", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-shared", "-fPIC"]
        try:
            subprocess.run(
                [*command, *include, "-o", str(made), str(path)], check=True, capture_output=True, timeout=50
            )
            made.replace(library)
        finally:
            path.unlink()
    return ctypes.CDLL(str(library))
