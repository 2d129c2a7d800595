"""The small device functions and types above a kernel: collected while it is printed, only those used.

Short vectors are float4 and its like where CUDA and HIP have one of that name, a small template elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilewright.arch import VECTOR_BYTES
from tilewright.backends.cpp.expression import Expression, Rank, call, reads_of
from tilewright.dtypes import (
    FLOAT8,
    DType,
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tilewright.ir.core import Type, VectorType

_STEMS: dict[DType, str] = {
    int8: "char",
    uint8: "uchar",
    int16: "short",
    uint16: "ushort",
    int32: "int",
    uint32: "uint",
    int64: "longlong",
    uint64: "ulonglong",
    float32: "float",
    float64: "double",
}

VECTOR_TEMPLATE = """\
template <typename T, int N>
struct __align__(sizeof(T) * N) vec {
    T v[N];
};"""

# What the host encodes of an array for bulk copies (cuda.h has a type of this name, and is not included).
TENSOR_MAP = """\
struct __align__(64) CUtensorMap {
    unsigned long long opaque[16];
};"""
PREFETCH_TENSOR_MAP = """\
__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}"""


def c_type(type: Type) -> str:
    """Return the C++ name of a type."""
    if isinstance(type, DType):
        return type.c_name
    return built_in(type) or f"vec<{type.element.c_name}, {type.lanes}>"


def built_in(type: VectorType) -> str | None:
    """Return the name of CUDA's and HIP's own vector type with the same size and alignment, or None."""
    stem = _STEMS.get(type.element)
    # Four 8-byte elements would be 32 bytes, and the IR's vectors are 16 at most.
    return f"{stem}{type.lanes}" if stem is not None and type.lanes in (2, 4) and type.bytes <= VECTOR_BYTES else None


def lane_of(vector: Expression, lane: int) -> Expression:
    """Return one lane of a vector."""
    type = vector.type
    assert isinstance(type, VectorType), vector
    member = f".{'xyzw'[lane]}" if built_in(type) else f".v[{lane}]"
    return Expression(vector.at_least(Rank.POSTFIX) + member, Rank.POSTFIX, type.element, vector.reads)


def packed(elements: tuple[Expression, ...], type: VectorType) -> Expression:
    """Return the vector of elements that have its exact element type."""
    name = built_in(type)
    if name is not None:
        return call(f"make_{name}", elements, type)
    text = ", ".join(e.text for e in elements)
    return Expression(f"{c_type(type)}{{{{{text}}}}}", Rank.POSTFIX, type, reads_of(*elements))


# How the small functions begin.
FUNCTION = "__device__ __forceinline__"

HALF_TYPES = {
    float16: "struct half {  // float16, held as its bits; computed with as float\n    unsigned short bits;\n};",
    bfloat16: "struct bfloat16 {  // held as its bits; computed with as float\n    unsigned short bits;\n};",
    **{
        dtype: f"struct {dtype.c_name} {{  // held as its bits; computed with as float\n    unsigned char bits;\n}};"
        for dtype in FLOAT8
    },
}


# What begins at the start of a line of a definition: a function, whose name comes before its parameters, a struct, a
# macro, a typedef or an object.
_DEFINED = re.compile(
    r"^(?:__device__[^(]*?(\w+)\(|struct\b.*?(\w+) \{|#define (\w+)|typedef .*? (\w+)(?: __attribute__.*)?;$"
    r"|extern .* (\w+);$)",
    re.MULTILINE,
)


def defined_names(definitions: Iterable[str]) -> set[str]:
    """Return the names that definitions give to what comes below them.

    >>> sorted(defined_names(["struct half {", "__device__ float to_float(half x) {", "    return twice(x);"]))
    ['half', 'to_float']
    """
    return {name for text in definitions for found in _DEFINED.findall(text) for name in found if name}


class Prelude:
    """The definitions that a kernel needs, in the order in which they were first asked for."""

    def __init__(self) -> None:
        self._definitions: dict[str, None] = {}

    def need(self, definition: str) -> None:
        """Add a definition unless it is there."""
        self._definitions.setdefault(definition)

    def need_type(self, dtype: DType) -> None:
        """Add the struct of a narrow float."""
        if dtype in HALF_TYPES:
            self.need(HALF_TYPES[dtype])

    def need_vectors(self) -> None:
        self.need(VECTOR_TEMPLATE)

    def texts(self) -> list[str]:
        """Return all definitions, types before the functions that use them."""
        types = [t for t in (*HALF_TYPES.values(), VECTOR_TEMPLATE, TENSOR_MAP) if t in self._definitions]
        return types + [d for d in self._definitions if d not in types]


def shift(kind: str, dtype: DType) -> tuple[str, str]:
    """Return the name and the definition of a shift by an amount that may reach the number of bits.

    C++ leaves that undefined; here all bits are shifted out, and the sign fills from the left, as in PTX.
    """
    c, bits = dtype.c_name, dtype.bits
    name = "shift_left" if kind == "shl" else "shift_right"
    inside = f"(unsigned long long)n < {bits}"
    if kind == "shl":
        body = f"return {inside} ? ({c})(x << n) : ({c})0;"
    elif dtype.kind == "int":
        body = f"return x >> ({inside} ? (int)n : {bits - 1});"
    else:
        body = f"return {inside} ? ({c})(x >> n) : ({c})0;"
    return name, f"{FUNCTION} {c} {name}({c} x, {c} n) {{\n    {body}\n}}"


def power(dtype: DType) -> tuple[str, str]:
    """Return the name and the definition of an integer power, modulo 2**bits.

    A negative exponent gives the reciprocal rounded towards zero. It multiplies as unsigned, which may wrap.
    """
    c, unsigned = dtype.c_name, "unsigned long long" if dtype.bits == 64 else "unsigned int"
    lines = [f"{unsigned} result = 1, square = ({unsigned})x;"]
    if dtype.kind == "int":
        lines = ["if (n < 0) return x == 1 ? 1 : x == -1 ? (n % 2 ? -1 : 1) : 0;", *lines]
    lines += [
        "for (; n > 0; n /= 2, square *= square) {",
        "    if (n % 2) result *= square;",
        "}",
        f"return ({c})result;",
    ]
    body = "\n".join(f"    {line}" for line in lines)
    return "integer_power", f"{FUNCTION} {c} integer_power({c} x, {c} n) {{\n{body}\n}}"
