"""Conversions of float16, in clang's own type of it; bfloat16 is rounded as on all targets without an instruction."""

from __future__ import annotations

from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.dtypes import DType

BIT_CAST = f"""\
template <typename To, typename From>
{FUNCTION} To bit_cast(From from) {{
    return __builtin_bit_cast(To, from);
}}"""

FROM_FLOAT16 = "return (float)__builtin_bit_cast(_Float16, x.bits);"


def to_float16(source: DType) -> str:
    """Return the definition of a rounding to float16."""
    return f"""\
{FUNCTION} half to_half({source.c_name} x) {{
    return half{{__builtin_bit_cast(unsigned short, (_Float16)x)}};
}}"""
