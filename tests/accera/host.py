"""Kernels as C++ of the CPU: the printed text, compiled by g++ and called on NumPy arrays.

Threads of a block take turns at barriers. Texts with instructions of a GPU that have no such meaning are not compiled.
"""

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
#include <chrono>
#include <cstdlib>
#include <vector>
#include <ucontext.h>
#include <immintrin.h>
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __shared__ static
#define __constant__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
using std::min; using std::max; using std::abs;
struct Place { unsigned x, y, z; };
static Place threadIdx, blockIdx, blockDim, gridDim;

// The threads of a block take turns: each runs until it waits at a barrier or ends.
struct Thread { ucontext_t context; Place place; bool ended; char* stack; };
static ucontext_t scheduler;
static Thread* current;
static void (*body)();
static void begin() { body(); current->ended = true; }
static void __syncthreads() { if (current) { swapcontext(&current->context, &scheduler); threadIdx = current->place; } }
static const size_t stack_bytes = 1 << 19;
static void run_block(std::vector<Thread>& threads) {
    size_t n = 0;
    for (unsigned z = 0; z < blockDim.z; ++z) for (unsigned y = 0; y < blockDim.y; ++y) for (unsigned x = 0; x < blockDim.x; ++x) {
        Thread& thread = threads[n++];
        thread.place = {x, y, z}; thread.ended = false;
        if (!thread.stack) thread.stack = (char*)malloc(stack_bytes);
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = thread.stack; thread.context.uc_stack.ss_size = stack_bytes;
        thread.context.uc_link = &scheduler;
        makecontext(&thread.context, begin, 0);
    }
    for (bool any = true; any;) {
        any = false;
        for (Thread& thread : threads) if (!thread.ended) {
            current = &thread; threadIdx = thread.place;
            swapcontext(&scheduler, &thread.context);
            any |= !thread.ended;
        }
    }
    current = nullptr;
}
// Runs blocks until the last, or until they have taken so many seconds; returns how many ran.
static long run_grid(const int* grid, const int* block, double seconds) {
    gridDim = {(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]};
    blockDim = {(unsigned)block[0], (unsigned)block[1], (unsigned)block[2]};
    std::vector<Thread> threads((size_t)block[0] * block[1] * block[2], Thread());
    long ran = 0;
    auto start = std::chrono::steady_clock::now();
    for (int z = 0; z < grid[2]; ++z) for (int y = 0; y < grid[1]; ++y) for (int x = 0; x < grid[0]; ++x) {
        if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > seconds) return ran;
        blockIdx = {(unsigned)x, (unsigned)y, (unsigned)z};
        if (threads.size() == 1) { threadIdx = {0, 0, 0}; body(); } else run_block(threads);
        ++ran;
    }
    return ran;
}
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
static inline unsigned short half_bits(float x) { return _cvtss_sh(x, 0); }
static inline unsigned short bfloat16_bits(float x) {
    unsigned y = __float_as_uint(x);
    return (unsigned short)(x != x ? 0x7fff : (y + 0x7fff + (y >> 16 & 1)) >> 16);
}
static inline unsigned __cvta_generic_to_shared(const void*) { return 0; }
"""


_CONVERSIONS = {
    "cvt.f32.f16": "_cvtsh_ss",
    "cvt.rn.f16.f32": "half_bits",
    "cvt.rn.bf16.f32": "bfloat16_bits",
}


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
    for instruction, plain in _CONVERSIONS.items():
        pattern = (
            r'asm(?: volatile)?\("' + re.escape(instruction) + r' %0, %1;" : "=\w"\(([^)]*)\) : "\w"\(([^)]*)\)\);'
        )
        text = re.sub(pattern, lambda m, plain=plain: f"{m.group(1)} = {plain}({m.group(2)});", text)
    text = re.sub(r"extern __shared__ (.*?)\[\];", r"static \1[1 << 22];", text)
    signature = re.search(
        r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\((.*?)\) \{\n', text, re.DOTALL
    )
    name, parameters = signature.group(1), " ".join(signature.group(2).split())
    names = [re.search(r"(\w+)$", parameter.strip()).group(1) for parameter in parameters.split(",")]
    driver = f"""
struct Arguments {{ {"; ".join(p.replace("__restrict__ ", "") for p in parameters.split(","))}; }};
static Arguments* held;
extern "C" long drive(const int* grid, const int* block, double seconds, {parameters}) {{
    Arguments arguments = {{{", ".join(names)}}};
    held = &arguments;
    body = [] {{ {name}({", ".join(f"held->{n}" for n in names)}); }};
    return run_grid(grid, block, seconds);
}}
"""
    return _PRELUDE + text + driver


def run(kernel, values, grid, function=None, seconds=15.0):
    """Run blocks of a kernel for so many seconds; return how many, or the reason why none can be run."""
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
    drive = library.drive
    drive.restype = ctypes.c_long
    triple = ctypes.c_int * 3
    return drive(triple(*grid), triple(*kernel.block), ctypes.c_double(seconds), *arguments)


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
