"""What HIP's headers would declare, written with clang's builtins: a kernel's text needs no header.

Each piece is a definition and the names that it gives to a text. A text gets the pieces whose names it uses, and
those that they use themselves, in the order of this table.

Sources: clang's "AMDGPU builtins" and "HIP support"; AMD's "Vega" and "CDNA" instruction set manuals for what v_sqrt,
v_exp and v_log give (one unit in the last place, denormal numbers as zero).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tilewright.backends.cpp.prelude import FUNCTION, built_in
from tilewright.dtypes import ALL
from tilewright.ir.core import VectorType

_WORD = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r"//.*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')

_MACROS = {
    "__global__": "#define __global__ __attribute__((global))",
    "__device__": "#define __device__ __attribute__((device))",
    "__forceinline__": "#define __forceinline__ static inline __attribute__((always_inline))",
    "__shared__": "#define __shared__ __attribute__((shared))",
    "__align__": "#define __align__(bytes) __attribute__((aligned(bytes)))",
    "__launch_bounds__": "#define __launch_bounds__(threads) "
    "__attribute__((amdgpu_flat_work_group_size(threads, threads)))",
}

# Read like CUDA's; the objects themselves are never touched, so that no memory is kept for them.
_REGISTERS = {
    "threadIdx": "__builtin_amdgcn_workitem_id_{}()",
    "blockIdx": "__builtin_amdgcn_workgroup_id_{}()",
    "blockDim": "__builtin_amdgcn_workgroup_size_{}()",
    "gridDim": "__builtin_amdgcn_grid_size_{0}() / blockDim.{0}",  # the size counts threads
}

_BITS = {
    "__float_as_int": ("int", "float"),
    "__float_as_uint": ("unsigned int", "float"),
    "__int_as_float": ("float", "int"),
    "__uint_as_float": ("float", "unsigned int"),
    "__double_as_longlong": ("long long", "double"),
    "__longlong_as_double": ("double", "long long"),
}

# Functions that clang turns into instructions of the GPU, with the number of their arguments.
_NATIVE = {"fabs": 1, "floor": 1, "ceil": 1, "trunc": 1, "rint": 1, "fmin": 2, "fmax": 2, "copysign": 2, "fma": 3}

_INTEGERS = (
    ("int", "int", "-0x1p31", "0x1p31", "-2147483647 - 1", "2147483647"),
    ("uint", "unsigned int", "0.0", "0x1p32", "0", "4294967295u"),
    ("ll", "long long", "-0x1p63", "0x1p63", "-9223372036854775807LL - 1", "9223372036854775807LL"),
    ("ull", "unsigned long long", "0.0", "0x1p64", "0", "18446744073709551615ULL"),
)

_WAVE = f"""\
// The number of the thread in its wave of 64.
{FUNCTION} int __lane_id() {{
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
}}"""

_READ_LANE = f"""\
// Reads a value of another lane of the wave, 4 bytes at a time.
template <typename T>
{FUNCTION} T __read_lane(T value, int lane) {{
    struct Words {{
        int word[sizeof(T) / 4];
    }};
    Words words = __builtin_bit_cast(Words, value);
    for (unsigned int i = 0; i < sizeof(T) / 4; i++) {{
        words.word[i] = __builtin_amdgcn_ds_bpermute(4 * lane, words.word[i]);
    }}
    return __builtin_bit_cast(T, words);
}}"""


def _shuffle(name: str, amount: str, source: str, outside: str) -> str:
    """Return a shuffle's definition; a lane keeps its own value where the other is outside of its group.

    A type narrower than int is promoted to it.
    """
    own = "" if not outside else f"{outside} ? lane : "
    group = "    const int first = lane & -width;\n" if "first" in source + outside else ""
    return f"""\
template <typename T>
{FUNCTION} auto {name}(T value, int {amount}, int width = 64) {{
    const int lane = __lane_id();
{group}    const int other = {source};
    return __read_lane(+value, {own}other);
}}"""


_SHUFFLES = {
    "__shfl": _shuffle("__shfl", "number", "first | (number & (width - 1))", ""),
    "__shfl_up": _shuffle("__shfl_up", "delta", "lane - (delta & 63)", "other < first"),
    "__shfl_down": _shuffle("__shfl_down", "delta", "lane + (delta & 63)", "other > first + width - 1"),
    "__shfl_xor": _shuffle("__shfl_xor", "mask", "lane ^ (mask & 63)", "other > first + width - 1"),
}

# The last argument of the comparison is LLVM's number of it: 33 is "not equal", 32 "equal".
_VOTES = {
    "__ballot": f"""\
{FUNCTION} unsigned long long __ballot(bool predicate) {{
    return __builtin_amdgcn_uicmp(predicate, 0, 33);
}}""",
    "__any": f"""\
{FUNCTION} bool __any(bool predicate) {{
    return __builtin_amdgcn_uicmp(predicate, 0, 33) != 0;
}}""",
    "__all": f"""\
{FUNCTION} bool __all(bool predicate) {{
    return __builtin_amdgcn_uicmp(predicate, 0, 32) == 0;
}}""",
    "__elect": f"""\
// True in the first of the wave's active lanes.
{FUNCTION} bool __elect() {{
    return __builtin_amdgcn_readfirstlane(__lane_id()) == __lane_id();
}}""",
}


def _barrier(name: str, scope: str, builtin: str) -> str:
    return f"""\
{FUNCTION} void {name}() {{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "{scope}");
    {builtin}();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "{scope}");
}}"""


_BARRIERS = {
    "__syncthreads": _barrier("__syncthreads", "workgroup", "__builtin_amdgcn_s_barrier"),
    "__syncwarp": _barrier("__syncwarp", "wavefront", "__builtin_amdgcn_wave_barrier"),
}


def _atomic(name: str, function: str) -> str:
    return f"""\
template <typename T, typename Value>
{FUNCTION} T {name}(T* address, Value value) {{
    return {function}(address, (T)value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}}"""


_ATOMICS = {
    "atomicAdd": _atomic("atomicAdd", "__hip_atomic_fetch_add"),
    "atomicMin": _atomic("atomicMin", "__hip_atomic_fetch_min"),
    "atomicMax": _atomic("atomicMax", "__hip_atomic_fetch_max"),
    "atomicAnd": _atomic("atomicAnd", "__hip_atomic_fetch_and"),
    "atomicOr": _atomic("atomicOr", "__hip_atomic_fetch_or"),
    "atomicXor": _atomic("atomicXor", "__hip_atomic_fetch_xor"),
    "atomicExch": _atomic("atomicExch", "__hip_atomic_exchange"),
    "atomicCAS": f"""\
template <typename T>
{FUNCTION} T atomicCAS(T* address, T expected, T value) {{
    __hip_atomic_compare_exchange_strong(
        address, &expected, value, __ATOMIC_RELAXED, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    return expected;
}}""",
}


def _fence(name: str, scope: str) -> str:
    return f"""\
{FUNCTION} void {name}() {{
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "{scope}");
}}"""


_FENCES = {
    "__threadfence_block": _fence("__threadfence_block", "workgroup"),
    "__threadfence": _fence("__threadfence", "agent"),
    "__threadfence_system": _fence("__threadfence_system", ""),
}

_EACH = tuple(c for _, c, *_ in _INTEGERS)


def _of_integers(function: str, *types: str) -> str:
    """Return a function for each of the types: narrower ones are promoted to int."""
    return "\n".join(f"{FUNCTION} {function.format(c)}" for c in types)


_CLASSES = {
    "isnan": "x != x",
    "isinf": "__builtin_isinf(x)",
    "isfinite": "__builtin_isfinite(x)",
}

_GENERIC = {
    "min": _of_integers("{0} min({0} a, {0} b) {{\n    return b < a ? b : a;\n}}", *_EACH),
    "max": _of_integers("{0} max({0} a, {0} b) {{\n    return a < b ? b : a;\n}}", *_EACH),
    "abs": _of_integers("{0} abs({0} x) {{\n    return x < 0 ? -x : x;\n}}", "int", "long long"),
    "__popc": f"{FUNCTION} int __popc(unsigned int x) {{\n    return __builtin_popcount(x);\n}}",
    "__popcll": f"{FUNCTION} int __popcll(unsigned long long x) {{\n    return __builtin_popcountll(x);\n}}",
    "__clz": f"{FUNCTION} int __clz(unsigned int x) {{\n    return x == 0 ? 32 : __builtin_clz(x);\n}}",
    "__clzll": f"{FUNCTION} int __clzll(unsigned long long x) {{\n    return x == 0 ? 64 : __builtin_clzll(x);\n}}",
    **{
        name: f"template <typename T>\n{FUNCTION} bool {name}(T x) {{\n    return {body};\n}}"
        for name, body in _CLASSES.items()
    },
}

_SATURATED = f"""\
// Truncates and saturates; NaN gives 0.
template <typename To, typename From>
{FUNCTION} To __saturated(From x, From low, From high, To lowest, To highest) {{
    return x != x ? (To)0 : x <= low ? lowest : x >= high ? highest : (To)x;
}}"""

# Roundings to float towards zero.
_CUT = {
    "__double2float_rz": f"""\
{FUNCTION} float __double2float_rz(double x) {{
    const float near = (float)x;
    const bool beyond = __builtin_fabs((double)near) > __builtin_fabs(x);
    return beyond ? __uint_as_float(__float_as_uint(near) - 1) : near;
}}""",
    "__ull2float_rz": f"""\
{FUNCTION} float __ull2float_rz(unsigned long long x) {{
    const int zeros = __clzll(x);
    return (float)(zeros >= 40 ? x : x & (~0ULL << (40 - zeros)));  // the 24 bits that a float holds
}}""",
    "__ll2float_rz": f"""\
{FUNCTION} float __ll2float_rz(long long x) {{
    return x < 0 ? -__ull2float_rz(-(unsigned long long)x) : __ull2float_rz(x);
}}""",
}

_MATHEMATICS = {
    "sqrtf": f"""\
// The instruction may miss by one unit in the last place: the sign of what is left over tells to which side.
{FUNCTION} float sqrtf(float x) {{
    const bool tiny = x < 0x1p-96f;
    const float scaled = tiny ? x * 0x1p32f : x;
    const float near = __builtin_amdgcn_sqrtf(scaled);
    const float below = __uint_as_float(__float_as_uint(near) - 1);
    const float above = __uint_as_float(__float_as_uint(near) + 1);
    float root = __builtin_fmaf(-below, near, scaled) <= 0.0f ? below : near;
    root = __builtin_fmaf(-above, near, scaled) > 0.0f ? above : root;
    return tiny ? root * 0x1p-16f : root;
}}""",
    "rsqrtf": f"{FUNCTION} float rsqrtf(float x) {{\n    return 1.0f / sqrtf(x);\n}}",
    "exp2f": f"""\
// The instruction gives 0 for subnormal results: those are computed with a scaled argument.
{FUNCTION} float exp2f(float x) {{
    const bool tiny = x < -126.0f;
    const float y = __builtin_exp2f(tiny ? x + 64.0f : x);
    return tiny ? y * 0x1p-64f : y;
}}""",
    "expf": f"""\
// 2 to the power of x / ln 2, a product of which the part that float loses is added again.
{FUNCTION} float expf(float x) {{
    const float high = x * 0x1.715476p+0f;
    const float low = __builtin_fmaf(x, 0x1.4ae0cp-26f, __builtin_fmaf(x, 0x1.715476p+0f, -high));
    const float whole = __builtin_rintf(high);
    const float power = __builtin_amdgcn_ldexpf(__builtin_exp2f(high - whole + low), __float2int_rz(whole));
    return x < -104.0f ? 0.0f : x > 89.0f ? __builtin_huge_valf() : power;
}}""",
    "log2f": f"""\
// The instruction takes a subnormal number for 0: such a number is multiplied first.
{FUNCTION} float log2f(float x) {{
    const bool tiny = x < 0x1p-126f;
    const float y = __builtin_log2f(tiny ? x * 0x1p32f : x);
    return tiny ? y - 32.0f : y;
}}""",
    "logf": f"{FUNCTION} float logf(float x) {{\n    return log2f(x) * 0x1.62e43p-1f;\n}}",
    "log10f": f"{FUNCTION} float log10f(float x) {{\n    return log2f(x) * 0x1.344136p-2f;\n}}",
}


def _vectors() -> Iterator[tuple[str, str]]:
    """Yield the short vectors that CUDA and HIP have names for, and the functions that make them."""
    for element in ALL:
        for lanes in (2, 4):
            name = built_in(VectorType(element, lanes)) if element.bits * lanes <= 128 else None
            if name is None:
                continue
            c = element.c_name
            yield name, f"typedef {c} {name} __attribute__((ext_vector_type({lanes})));"
            parameters = ", ".join(f"{c} {x}" for x in "xyzw"[:lanes])
            body = f"return {name}{{{', '.join('xyzw'[:lanes])}}};"
            yield f"make_{name}", f"{FUNCTION} {name} make_{name}({parameters}) {{\n    {body}\n}}"


def _register(name: str, axes: Iterable[str] = "xyz") -> str:
    """Return an object whose members x, y and z are special registers, in the way of HIP's headers."""
    type, builtin = f"__{name[0].upper()}{name[1:]}", _REGISTERS[name]
    readers = "\n".join(
        f"    {FUNCTION} unsigned int read_{axis}() {{ return {builtin.format(axis)}; }}\n"
        f"    __declspec(property(get = read_{axis})) unsigned int {axis};"
        for axis in axes
    )
    return f"struct {type} {{\n{readers}\n}};\nextern const __device__ __attribute__((weak)) {type} {name};"


def _native(name: str, count: int, c: str) -> tuple[str, str]:
    suffix = "f" if c == "float" else ""
    parameters = ", ".join(f"{c} {x}" for x in "xyz"[:count])
    arguments = ", ".join("xyz"[:count])
    text = f"{FUNCTION} {c} {name}{suffix}({parameters}) {{\n    return __builtin_{name}{suffix}({arguments});\n}}"
    return f"{name}{suffix}", text


def _truncations() -> Iterator[tuple[str, str]]:
    """Yield the conversions of floats to integers."""
    for source in ("float", "double"):
        suffix = "f" if source == "float" else ""
        for stem, c, low, high, lowest, highest in _INTEGERS:
            name = f"__{source}2{stem}_rz"
            bounds = f"{low}{suffix}, {high}{suffix}, ({c})({lowest}), ({c}){highest}"
            yield name, f"{FUNCTION} {c} {name}({source} x) {{\n    return __saturated(x, {bounds});\n}}"


def _bit_functions() -> Iterator[tuple[str, str]]:
    for name, (to, source) in _BITS.items():
        yield name, f"{FUNCTION} {to} {name}({source} x) {{\n    return __builtin_bit_cast({to}, x);\n}}"


# The pieces by the name that each gives, in an order in which a piece uses only what comes before it.
PIECES: dict[str, str] = {
    **_MACROS,
    **dict(_vectors()),
    **{name: _register(name) for name in _REGISTERS},
    **dict(_bit_functions()),
    **_GENERIC,
    **dict(_native(name, count, c) for name, count in _NATIVE.items() for c in ("float", "double")),
    "__saturated": _SATURATED,
    **dict(_truncations()),
    **_CUT,
    **_MATHEMATICS,
    **_BARRIERS,
    "__lane_id": _WAVE,
    "__read_lane": _READ_LANE,
    **_SHUFFLES,
    **_VOTES,
    **_ATOMICS,
    **_FENCES,
}


def pieces_for(lines: Iterable[str]) -> list[str]:
    """Return the definitions that lines of C++ need of this library, in order."""
    code = _code("\n".join(lines))
    wanted: dict[str, None] = {}
    pending = list(_names(code))
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted[name] = None
            pending += _names(_code(PIECES[name]))
    pieces = {name: text for name, text in PIECES.items() if name in wanted}
    for name in ("gridDim", "blockDim", "blockIdx", "threadIdx"):  # the first names axes of the second
        if name in pieces:
            used = set(re.findall(rf"\b{name}\.([xyz])\b", code))
            pieces[name] = _register(name, sorted(used))
            code += pieces[name]
    return list(pieces.values())


def _code(text: str) -> str:
    """Return C++ without its comments and the insides of its strings."""
    return "\n".join(_COMMENT.sub("", _STRING.sub('""', line)) for line in text.split("\n"))


def _names(code: str) -> set[str]:
    return {word for word in _WORD.findall(code) if word in PIECES}
