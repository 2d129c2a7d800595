"""The conversions that PTX has instructions for: of float16, bfloat16 and 8-bit floats. `bit_cast` between types."""

from __future__ import annotations

from tilewright.backends.cpp.conversions import demand_float8, to_float
from tilewright.backends.cpp.expression import Expression, Rank, call
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import Printer
from tilewright.dtypes import DType, float8_e4m3fn, float8_e5m2, float16, float32, float64, int32, int64, uint32, uint64
from tilewright.ir.ops import CastPair, RoundToTfloat32

_LETTER = {float32: "f", float64: "d", int32: "r", uint32: "r", int64: "l", uint64: "l"}
_PTX = {float32: "f32", float64: "f64", int32: "s32", uint32: "u32", int64: "s64", uint64: "u64"}

BIT_CAST = f"""\
template <typename To, typename From>
{FUNCTION} To bit_cast(From from) {{
    static_assert(sizeof(To) == sizeof(From), "the sizes differ");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}}"""

FROM_FLOAT16 = 'float y;\n    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));\n    return y;'

TO_BFLOAT16 = f"""\
{FUNCTION} bfloat16 to_bfloat16(float x) {{
    bfloat16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}}"""


def to_float16(source: DType) -> str:
    """Return the definition of a rounding to float16."""
    return f"""\
{FUNCTION} half to_half({source.c_name} x) {{
    half y;
    asm("cvt.rn.f16.{_PTX[source]} %0, %1;" : "=h"(y.bits) : "{_LETTER[source]}"(x));
    return y;
}}"""


_FLOAT8 = {float8_e4m3fn: "e4m3", float8_e5m2: "e5m2"}

_FROM_FLOAT8 = """unsigned int both;  // two float16, of which the lower counts
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(both) : "h"((unsigned short)x.bits));
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"((unsigned short)both));
    return y;"""

_TO_FLOAT8 = f"""\
// Rounds to nearest even; what is too large becomes the largest finite number.
{FUNCTION} float8_e4m3fn to_float8_e4m3fn(float x) {{
    unsigned short both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(x));
    return float8_e4m3fn{{(unsigned char)both}};
}}"""


def from_float8(dtype: DType) -> str:
    """Return the body of a conversion of an 8-bit float to float."""
    return _FROM_FLOAT8.replace("e4m3", _FLOAT8[dtype])


def to_float8(dtype: DType) -> str:
    """Return the definition of a rounding to an 8-bit float."""
    return _named(_TO_FLOAT8, dtype)


def _named(text: str, dtype: DType) -> str:
    """Return a text about float8_e4m3fn for another 8-bit float."""
    return text.replace("float8_e4m3fn", dtype.c_name).replace("e4m3x2", f"{_FLOAT8[dtype]}x2")


_TO_FLOAT8_PAIR = f"""\
// Rounds to nearest even; what is too large becomes the largest finite number.
{FUNCTION} vec<float8_e4m3fn, 2> to_float8_e4m3fn_pair(float2 x) {{
    unsigned short both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(x.y), "f"(x.x));
    return bit_cast<vec<float8_e4m3fn, 2>>(both);
}}"""

_TO_HALF_PAIR = f"""\
{FUNCTION} vec<half, 2> to_half_pair(vec<float8_e4m3fn, 2> x) {{
    unsigned int both;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(both) : "h"(bit_cast<unsigned short>(x)));
    return bit_cast<vec<half, 2>>(both);
}}"""

_TO_FLOAT_PAIR = f"""\
{FUNCTION} float2 to_float_pair(vec<float8_e4m3fn, 2> x) {{
    const vec<half, 2> both = to_half_pair(x);
    return make_float2(to_float(both.v[0]), to_float(both.v[1]));
}}"""


def cast_pair(printer: Printer, op: CastPair) -> Expression:
    """Return two values converted from or to 8-bit floats, by the instructions that take two."""
    source, target = op.x.dtype, op.result.dtype
    demand_float8(printer, source, target)
    printer.type_name(op.x.type)
    printer.type_name(op.result.type)
    printer.prelude.need(BIT_CAST)
    if target in _FLOAT8:
        texts, narrow, name = [_TO_FLOAT8_PAIR], target, f"to_{target.c_name}_pair"
    else:
        texts, narrow, name = [_TO_HALF_PAIR], source, "to_half_pair"
        printer.prelude.need_type(float16)
        if target is float32:
            to_float(printer, Expression("", Rank.ATOM, float16))
            texts, name = [_TO_HALF_PAIR, _TO_FLOAT_PAIR], "to_float_pair"
    for text in texts:
        printer.prelude.need(_named(text, narrow))
    return call(name, (printer.expression(op.x),), op.result.type)


def round_to_tfloat32(printer: Printer, op: RoundToTfloat32) -> Expression:
    """Return the call that rounds to the bits that a tensor core reads."""
    if printer.arch.number < 80:
        raise printer.refuse(op, f"cvt.rna.tf32 needs sm_80 or later, and the target is {printer.arch}")
    printer.prelude.need(_TO_TFLOAT32)
    return call("to_tfloat32", (printer.expression(op.x),), float32)


_TO_TFLOAT32 = f"""\
// Rounds to nearest, ties away from zero, to the 19 bits that a tensor core reads.
{FUNCTION} float to_tfloat32(float x) {{
    unsigned int y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return __uint_as_float(y);
}}"""


def to_narrow_integer(target: DType) -> str:
    """Return the body of a conversion of a float to an integer of 8 or 16 bits: one instruction, which saturates.

    Where x has been rounded, ptxas makes one instruction of both (F2I.S8.NTZ).
    """
    letter = "s" if target.is_signed else "u"
    return f"""\
int y;
    asm("cvt.rzi.sat.{letter}{target.bits}.f32 %0, %1;" : "=r"(y) : "f"(x));
    return ({target.c_name})y;"""
