"""The functions that stand above HIP texts compute what they should: they run on the host, with its arithmetic.

clang compiles the very text for the host, with stand-ins for the few instructions of the GPU: a square root that misses
by a unit in the last place, powers and logarithms that take numbers that are not normal for 0, and a lane of a wave
that is set from outside.
"""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tilewright.backends.hip.conversions import BIT_CAST
from tilewright.backends.hip.library import PIECES, pieces_for
from tilewright.runtime.clang import find_clang

SHIM = """\
#define __attribute__(x)
#define __builtin_amdgcn_sqrtf(x) near_root(x)
#define __builtin_amdgcn_ldexpf(x, n) __builtin_ldexpf(x, n)
#define __builtin_amdgcn_mbcnt_lo(mask, n) 0
#define __builtin_amdgcn_mbcnt_hi(mask, n) lane_now
#define __builtin_amdgcn_ds_bpermute(address, value) ((address) % 4 == 0 ? (address) / 4 : -1)

extern "C" {
float exp2f(float), log2f(float), sqrtf(float);
int lane_now = 0, miss = 0;
}
static float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? 0.0f * x : x; }
static float near_root(float x) {
    const float root = __builtin_sqrtf(flushed(x));
    if (!(root > 0.0f && root < 0x1p64f)) return root;
    return __builtin_bit_cast(float, __builtin_bit_cast(int, root) + miss);
}
static float host_power(float x) { return flushed(exp2f(x)); }
static float host_logarithm(float x) { return log2f(flushed(x)); }
namespace library {
#define __builtin_exp2f host_power
#define __builtin_log2f host_logarithm
"""
SINGLE = ("sqrtf", "rsqrtf", "exp2f", "expf", "log2f", "logf", "log10f")
INTEGERS = {
    "int": (ctypes.c_int, -(2**31), 2**31 - 1),
    "uint": (ctypes.c_uint, 0, 2**32 - 1),
    "ll": (ctypes.c_longlong, -(2**63), 2**63 - 1),
    "ull": (ctypes.c_ulonglong, 0, 2**64 - 1),
}
C_NAMES = {"int": "int", "uint": "unsigned int", "ll": "long long", "ull": "unsigned long long"}
SHUFFLES = ("__shfl", "__shfl_up", "__shfl_down", "__shfl_xor")


def _exports() -> str:
    """Return functions with C names around those of the library."""
    lines = [f"float host_{name}(float x) {{ return library::{name}(x); }}" for name in SINGLE]
    for stem, c in C_NAMES.items():
        for source in ("float", "double"):
            name = f"__{source}2{stem}_rz"
            lines.append(f"{c} host_{name}({source} x) {{ return library::{name}(x); }}")
    for name, source in (("__double2float_rz", "double"), ("__ll2float_rz", "long long"),
                         ("__ull2float_rz", "unsigned long long")):  # fmt: skip
        lines.append(f"float host_{name}({source} x) {{ return library::{name}(x); }}")
    for name in SHUFFLES:
        lines.append(f"int host_{name}(int by, int width) {{ return library::{name}(0, by, width); }}")
    lines.append("int host___clz(unsigned int x) { return library::__clz(x); }")
    lines.append("int host___clzll(unsigned long long x) { return library::__clzll(x); }")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    clang = find_clang()
    if clang is None:
        pytest.skip("needs clang")
    folder: Path = tmp_path_factory.mktemp("library")
    exports = _exports()
    library = "\n".join(pieces_for(exports.replace("library::", "").split("\n")))
    text = f'{SHIM}{library}\n}}\nextern "C" {{\n{exports}\n}}\n'
    (folder / "library.cpp").write_text(text)
    command = [clang, "-std=c++17", "-O2", "-ffp-contract=off", "-fwrapv", "-fno-builtin", "-w", "-mfma"]
    done = subprocess.run(
        [*command, "-shared", "-fPIC", "library.cpp", "-o", "library.so", "-lm"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0 and ("linker" in done.stderr or "cannot find" in done.stderr):
        pytest.skip(f"clang does not link for this host: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    loaded = ctypes.CDLL(str(folder / "library.so"))
    for name in SINGLE:
        _declare(loaded, name, ctypes.c_float, ctypes.c_float)
    for stem, (c, _, _) in INTEGERS.items():
        _declare(loaded, f"__float2{stem}_rz", c, ctypes.c_float)
        _declare(loaded, f"__double2{stem}_rz", c, ctypes.c_double)
    _declare(loaded, "__double2float_rz", ctypes.c_float, ctypes.c_double)
    _declare(loaded, "__ll2float_rz", ctypes.c_float, ctypes.c_longlong)
    _declare(loaded, "__ull2float_rz", ctypes.c_float, ctypes.c_ulonglong)
    _declare(loaded, "__clz", ctypes.c_int, ctypes.c_uint)
    _declare(loaded, "__clzll", ctypes.c_int, ctypes.c_ulonglong)
    return loaded


def _declare(loaded: ctypes.CDLL, name: str, result: type, argument: type) -> None:
    function = getattr(loaded, f"host_{name}")
    function.restype, function.argtypes = result, [argument]


def floats(seed: int, count: int, low: int, high: int) -> list[float]:
    """Return positive floats whose exponents lie between two limits."""
    random = np.random.default_rng(seed)
    return [
        float(x) for x in np.ldexp(random.uniform(1, 2, count), random.integers(low, high, count)).astype(np.float32)
    ]


@pytest.mark.parametrize("miss", [-1, 0, 1])
def test_square_roots_are_rounded_once(host: ctypes.CDLL, miss: int) -> None:
    ctypes.c_int.in_dll(host, "miss").value = miss
    squares = [float(np.float32(n * n)) for n in range(1, 40)]
    for x in [*floats(miss + 5, 3000, -148, 127), *squares, 2.0**-149, 3.4028234663852886e38]:
        assert host.host_sqrtf(x) == np.sqrt(np.float32(x)), (x, miss)
    for x in (0.0, -0.0, math.inf):
        found = host.host_sqrtf(x)
        assert (found, math.copysign(1, found)) == (x, math.copysign(1, x))
    assert math.isnan(host.host_sqrtf(-1.0)) and math.isnan(host.host_sqrtf(math.nan))


def within(found: float, exact: float, units: float) -> bool:
    """Return whether a float is so near to a number, in units of the last place."""
    if math.isinf(exact) or abs(exact) > float(np.finfo(np.float32).max):
        return found == exact or math.isinf(found)
    spacing = float(np.spacing(np.float32(abs(exact))))
    return abs(found - exact) <= units * spacing


REFERENCES = {
    "rsqrtf": (lambda x: 1 / math.sqrt(x), -140, 127),
    "log2f": (math.log2, -148, 127),
    "logf": (math.log, -148, 127),
    "log10f": (math.log10, -148, 127),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_functions_of_positive_numbers(host: ctypes.CDLL, name: str) -> None:
    ctypes.c_int.in_dll(host, "miss").value = 0
    reference, low, high = REFERENCES[name]
    for x in floats(3, 2000, low, high):
        found = getattr(host, f"host_{name}")(x)
        assert within(found, reference(x), 2), (x, found, reference(x))


@pytest.mark.parametrize("name", ["exp2f", "expf"])
def test_powers(host: ctypes.CDLL, name: str) -> None:
    base = 2.0 if name == "exp2f" else math.e
    limit = 127.99 if name == "exp2f" else 88.7
    for x in np.linspace(-1.18 * limit, limit, 5000).astype(np.float32):
        exact = math.exp(float(x)) if name == "expf" else base ** float(x)
        found = getattr(host, f"host_{name}")(float(x))
        assert within(found, exact, 2), (x, found, exact)


def test_the_ends_of_powers_and_logarithms(host: ctypes.CDLL) -> None:
    for name in ("exp2f", "expf"):
        power = getattr(host, f"host_{name}")
        assert power(math.inf) == math.inf and power(1e30) == math.inf and power(200.0) == math.inf
        assert power(-math.inf) == 0.0 and power(-1e30) == 0.0 and power(-200.0) == 0.0
        assert power(0.0) == 1.0 and math.isnan(power(math.nan))
    for name in ("log2f", "logf", "log10f"):
        logarithm = getattr(host, f"host_{name}")
        assert logarithm(0.0) == -math.inf and logarithm(math.inf) == math.inf and logarithm(1.0) == 0.0
        assert math.isnan(logarithm(-1.0)) and math.isnan(logarithm(math.nan))


@pytest.mark.parametrize("stem", INTEGERS)
@pytest.mark.parametrize("source", ["float", "double"])
def test_truncation_saturates(host: ctypes.CDLL, source: str, stem: str) -> None:
    _, low, high = INTEGERS[stem]
    function = getattr(host, f"host___{source}2{stem}_rz")
    numbers = [0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 1e10, -1e10, 1e30, -1e30, math.inf, -math.inf]
    numbers += [math.ldexp(sign, e) for e in (30, 31, 32, 53, 62, 63, 64) for sign in (1.0, -1.0)]
    if source == "double":
        numbers += [2147483646.5, 2147483647.5, -2147483648.5, 4294967295.5, float(2**63 - 1024), float(2**64 - 2048)]
    for x in numbers:
        given = float(np.float32(x)) if source == "float" else x
        exact = max(low, min(high, int(given))) if math.isfinite(given) else (high if given > 0 else low)
        assert function(given) == exact, given
    assert function(math.nan) == 0


def test_cuts_to_float(host: ctypes.CDLL) -> None:
    random = np.random.default_rng(2)
    for x in (*map(float, random.normal(size=500) * 10.0 ** random.integers(-45, 45, 500)), 1e39, -1e39, 2.0**-160):
        with np.errstate(over="ignore"):
            near = np.float32(x)
        exact = near if abs(float(near)) <= abs(x) else np.nextafter(near, np.float32(0))
        assert host.host___double2float_rz(x) == exact, x
    assert host.host___double2float_rz(math.inf) == math.inf and math.isnan(host.host___double2float_rz(math.nan))
    for bits in range(1, 65):
        for _ in range(8):
            n = int(random.integers(0, 2**63)) >> (64 - bits) if bits < 64 else 2**63 + int(random.integers(0, 2**63))
            kept = max(n.bit_length() - 24, 0)
            assert host.host___ull2float_rz(n) == float(n >> kept << kept), n
            if n < 2**63:
                assert host.host___ll2float_rz(-n) == -float(n >> kept << kept), n
    assert host.host___ll2float_rz(-(2**63)) == -(2.0**63)


def test_leading_zeros(host: ctypes.CDLL) -> None:
    for bits in range(65):
        n = (1 << bits) - 1
        assert host.host___clzll(n) == 64 - bits
        if bits <= 32:
            assert host.host___clz(n) == 32 - bits


def source_lane(name: str, lane: int, by: int, width: int) -> int:
    """Return which lane a shuffle reads: that of the group, and the own one where there is none (PTX shfl)."""
    first = lane // width * width
    if name == "__shfl":
        return first + by % width
    by %= 64
    other = {"__shfl_up": lane - by, "__shfl_down": lane + by, "__shfl_xor": lane ^ by}[name]
    inside = other >= first if name == "__shfl_up" else other < first + width
    return other if inside else lane


@pytest.mark.parametrize("name", SHUFFLES)
def test_shuffles_read_the_right_lane(host: ctypes.CDLL, name: str) -> None:
    lane_now = ctypes.c_int.in_dll(host, "lane_now")
    function = getattr(host, f"host_{name}")
    for lane in range(64):
        lane_now.value = lane
        for width in (1, 2, 4, 8, 16, 32, 64):
            for by in (0, 1, 2, 5, 16, 31, 32, 63, 64, 65):
                assert function(by, width) == source_lane(name, lane, by, width), (lane, width, by)


def test_pieces_stand_below_what_they_use() -> None:
    """A text of all names has all pieces, and each piece names only those above it."""
    names = list(PIECES)
    axes = [f"{group}.{axis}" for group in ("threadIdx", "blockIdx", "blockDim", "gridDim") for axis in "xyz"]
    assert pieces_for([" ".join(names + axes)]) == list(PIECES.values())
    words = re.compile(r"[A-Za-z_]\w*")
    for place, name in enumerate(names):
        used = {word for word in words.findall(re.sub(r"//.*", "", PIECES[name])) if word in PIECES}
        assert used <= set(names[: place + 1]), name
    assert pieces_for([BIT_CAST]) == [PIECES["__device__"], PIECES["__forceinline__"]]


def test_registers_have_the_axes_that_are_used() -> None:
    text = "\n".join(pieces_for(["int i = gridDim.y * threadIdx.x;  // blockIdx.z", '"blockIdx.x"']))
    assert "workitem_id_x" in text and "grid_size_y() / blockDim.y" in text and "workgroup_size_y" in text
    for other in ("workitem_id_y", "grid_size_x", "workgroup_size_x", "blockIdx"):
        assert other not in text
