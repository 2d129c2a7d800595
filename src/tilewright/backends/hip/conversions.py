"""The conversions that AMD's GPUs have instructions for: of float16, the 8-bit floats of gfx942, and xf32. `bit_cast`.

The 8-bit floats of gfx942 have a greater bias, no infinities, and 0x80, the bits of a negative zero elsewhere, for NaN
("FNUZ": finite, NaN, unsigned zero); a negative zero becomes zero. An instruction that rounds to them gives NaN, or the
largest number, of what is too large, as a mode of the wave says; here it is bounded first, so that the mode does not
count.

Source: AMD, instruction set architecture manual of CDNA3: "V_CVT_PK_FP8_F32", "V_CVT_F32_FP8" and their like.
"""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.backends.cpp.conversions import demand_float8
from tilewright.backends.cpp.expression import Expression, call
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import Printer
from tilewright.dtypes import DType, float8_e4m3fnuz, float8_e5m2fnuz, float16, float32
from tilewright.ir.ops import CastPair, RoundToTfloat32

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


# --- 8-bit floats ----------------------------------------------------------------------------------------

# The instructions' word for a type, and its largest number.
_FLOAT8 = {float8_e4m3fnuz: ("fp8", 240), float8_e5m2fnuz: ("bf8", 57344)}


def from_float8(dtype: DType) -> str:
    """Return the body of a conversion of an 8-bit float to float."""
    return f"return __builtin_amdgcn_cvt_f32_{_FLOAT8[dtype][0]}(x.bits, 0);"


def to_float8(dtype: DType) -> str:
    """Return the definition of a rounding to an 8-bit float."""
    word, largest = _FLOAT8[dtype]
    return f"""\
// Rounds to nearest even; what is too large becomes the largest finite number.
{FUNCTION} {dtype.c_name} to_{dtype.c_name}(float x) {{
    const float y = isnan(x) ? x : __builtin_amdgcn_fmed3f(x, -{largest}.0f, {largest}.0f);
    return {dtype.c_name}{{(unsigned char)__builtin_amdgcn_cvt_pk_{word}_f32(y, y, 0, false)}};
}}"""


def _to_float8_pair(dtype: DType) -> str:
    word, largest = _FLOAT8[dtype]
    return f"""\
// Rounds to nearest even; what is too large becomes the largest finite number.
{FUNCTION} vec<{dtype.c_name}, 2> to_{dtype.c_name}_pair(float2 x) {{
    const float y = isnan(x.x) ? x.x : __builtin_amdgcn_fmed3f(x.x, -{largest}.0f, {largest}.0f);
    const float z = isnan(x.y) ? x.y : __builtin_amdgcn_fmed3f(x.y, -{largest}.0f, {largest}.0f);
    const int both = __builtin_amdgcn_cvt_pk_{word}_f32(y, z, 0, false);
    return bit_cast<vec<{dtype.c_name}, 2>>((unsigned short)both);
}}"""


def _to_float_pair(dtype: DType) -> str:
    return f"""\
{FUNCTION} float2 to_float_pair(vec<{dtype.c_name}, 2> x) {{
    return __builtin_amdgcn_cvt_pk_f32_{_FLOAT8[dtype][0]}(bit_cast<unsigned short>(x), false);
}}"""


_TO_HALF_PAIR = f"""\
{FUNCTION} vec<half, 2> to_half_pair(vec<float8, 2> x) {{
    const float2 both = to_float_pair(x);
    return vec<half, 2>{{{{to_half(both.x), to_half(both.y)}}}};
}}"""


def cast_pair(printer: Printer, op: CastPair) -> Expression:
    """Return two values converted from or to 8-bit floats, by the instructions that take two."""
    source, target = op.x.dtype, op.result.dtype
    demand_float8(printer, source, target)
    printer.type_name(op.x.type)
    printer.type_name(op.result.type)
    if target in _FLOAT8:
        texts, name = [BIT_CAST, _to_float8_pair(target)], f"to_{target.c_name}_pair"
    else:
        texts, name = [BIT_CAST, _to_float_pair(source)], "to_float_pair"
        if target is float16:
            texts, name = [*texts, to_float16(float32), _TO_HALF_PAIR.replace("float8", source.c_name)], "to_half_pair"
    for text in texts:
        printer.prelude.need(text)
    return call(name, (printer.expression(op.x),), op.result.type)


# --- xf32 ------------------------------------------------------------------------------------------------


def round_to_tfloat32(printer: Printer, op: RoundToTfloat32) -> Expression:
    """Return the call that rounds to the bits that a xf32 instruction takes, on targets that have one."""
    if not printer.arch.has_instructions_of(Arch.parse("gfx942")):
        help = "multiply float32 by a MFMA instruction for float32"
        raise printer.refuse(op, f"{printer.arch} has no cvt.rna.tf32", help)
    printer.prelude.need(_TO_TFLOAT32)
    return call("to_tfloat32", (printer.expression(op.x),), float32)


_TO_TFLOAT32 = f"""\
// Rounds to nearest, ties away from zero, to the 19 bits of xf32; infinities and numbers that are none stay.
{FUNCTION} float to_tfloat32(float x) {{
    const unsigned int bits = __float_as_uint(x);
    const unsigned int rounded = (bits + 0x1000u) & 0xFFFFE000u;
    return __uint_as_float((bits & 0x7F800000u) == 0x7F800000u ? bits : rounded);
}}"""
