"""The small device functions and types that stand above a kernel: collected while it is printed, only those used."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilewright.backends.cpp.vectors import VECTOR_TEMPLATE
from tilewright.dtypes import DType, bfloat16, float8_e4m3fn, float8_e5m2, float16

# How the small functions begin.
FUNCTION = "__device__ __forceinline__"

HALF_TYPES = {
    float16: "struct half {  // float16, held as its bits; computed with as float\n    unsigned short bits;\n};",
    bfloat16: "struct bfloat16 {  // held as its bits; computed with as float\n    unsigned short bits;\n};",
    float8_e4m3fn: "struct float8_e4m3fn {  // held as its bits; computed with as float\n    unsigned char bits;\n};",
    float8_e5m2: "struct float8_e5m2 {  // held as its bits; computed with as float\n    unsigned char bits;\n};",
}


# What begins at the start of a line of a definition: a function, whose name stands before its parameters, a struct, a
# macro, a typedef or an object.
_DEFINED = re.compile(
    r"^(?:__device__[^(]*?(\w+)\(|struct\b.*?(\w+) \{|#define (\w+)|typedef .*? (\w+)(?: __attribute__.*)?;$"
    r"|extern .* (\w+);$)",
    re.MULTILINE,
)


def defined_names(definitions: Iterable[str]) -> set[str]:
    """Return the names that definitions give to what stands below them.

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
        types = [t for t in (*HALF_TYPES.values(), VECTOR_TEMPLATE) if t in self._definitions]
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
