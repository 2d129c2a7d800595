"""How values change their type: casts, bit casts, and the functions that 16-bit floats need.

A float becomes an integer by truncation, saturates at the ends of the integer's range, and NaN becomes 0.
The instruction cvt.rzi does that for float to 32 bits; where the source or the result has 64 bits it makes
NaN another number, so these cases are written out. To 8 and 16 bits it saturates where it is told to (.sat).
"""

from __future__ import annotations

from tilewright.arch import missing_float8
from tilewright.backends.cpp.expression import Expression, binary, call, converted, literal, prefix
from tilewright.backends.cpp.prelude import FUNCTION, c_type
from tilewright.backends.cpp.printer import Printer
from tilewright.dtypes import (
    FLOAT8,
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
)
from tilewright.errors import LanguageError
from tilewright.ir.core import Value
from tilewright.ir.evaluate import facts_of
from tilewright.ir.ops import Bitcast, Cast

_INTRINSIC = {int32: "int", uint32: "uint", int64: "ll", uint64: "ull", float32: "float", float64: "double"}
_REINTERPRET = {
    (float32, int32): "__float_as_int",
    (float32, uint32): "__float_as_uint",
    (int32, float32): "__int_as_float",
    (uint32, float32): "__uint_as_float",
    (float64, int64): "__double_as_longlong",
    (int64, float64): "__longlong_as_double",
}


def is_half(dtype: DType) -> bool:
    """Return whether a type is a narrow float, which is stored as a struct and computed with as float."""
    return dtype.is_narrow_float


def cast(printer: Printer, op: Cast) -> Expression:
    """Return a value converted to another type."""
    assert isinstance(op.result.type, DType), op
    source, target = op.x.dtype, op.result.type
    x = printer.expression(op.x)
    if is_half(target):
        return from_float(printer, to_float(printer, x) if is_half(source) else _widened(x, op.x), target)
    if is_half(source):
        x, source = to_float(printer, x), float32
        if target is float32:
            return x
    if target is bool_:
        return binary("!=", x, literal(0, source), bool_)
    if source.is_float and target.is_integer:
        return _to_integer(printer, x, source, target)
    return _plain(x, op.x, source, target)


def _plain(x: Expression, value: Value, source: DType, target: DType) -> Expression:
    """Return a conversion that C++ defines as the IR does: between integers, from integer to float, between floats."""
    operator = f"({target.c_name})"
    if source.is_float or (target.is_integer and target.bits <= source.bits):
        return prefix(operator, x, target)  # the low bits are enough
    x = _widened(x, value)
    # Next to an operand of 64 bits C++ converts an int by itself, with the same result.
    implicit = target.is_integer and target.bits == 64 and x.dtype is not bool_
    return converted(operator, x, target) if implicit else prefix(operator, x, target)


def _widened(x: Expression, value: Value) -> Expression:
    """Return text whose value, and not only whose low bits, is the IR's."""
    have, wanted = x.dtype, value.dtype
    agrees = have is wanted or wanted.is_float or (have is uint32 and wanted is int32 and facts_of(value).non_negative)
    return x if agrees else prefix(f"({wanted.c_name})", x, wanted)


def _to_integer(printer: Printer, x: Expression, source: DType, target: DType) -> Expression:
    if source is float32 and target in (int32, uint32):
        return call(f"__float2{_INTRINSIC[target]}_rz", (x,), target)
    name = f"to_{target.name}"
    body = printer.dialect.to_narrow_integer(target) if source is float32 and target.bits < 32 else None
    printer.prelude.need(_saturating(name, source, target, body or f"return {_saturated(source, target)};"))
    return call(name, (x,), target)


def _saturated(source: DType, target: DType) -> str:
    """Return the expression of x truncated and saturated."""
    if target.bits < 32:
        # Every narrow range lies within int's, to which the instruction saturates.
        truncated = f"__{_INTRINSIC[source]}2int_rz(x)"
        result = f"({target.c_name})min(max({truncated}, {target.lowest}), {target.highest})"
    else:
        result = f"__{_INTRINSIC[source]}2{_INTRINSIC[target]}_rz(x)"
    if source is float64 or target.bits == 64:
        result = f"isnan(x) ? 0 : {result}"
    return result


def _saturating(name: str, source: DType, target: DType, body: str) -> str:
    comment = "// Truncates and saturates; NaN gives 0.\n"
    return f"{comment}{FUNCTION} {target.c_name} {name}({source.c_name} x) {{\n    {body}\n}}"


# --- 16-bit floats -------------------------------------------------------------------------------------


def to_float(printer: Printer, x: Expression) -> Expression:
    """Return a narrow float as float, which is exact."""
    dtype = x.dtype
    printer.prelude.need_type(dtype)
    if dtype.bits == 8:
        demand_float8(printer, dtype)
        body = printer.dialect.from_float8(dtype)
    elif dtype is float16:
        body = printer.dialect.from_float16()
    else:
        body = "return __uint_as_float((unsigned int)x.bits << 16);"
    printer.prelude.need(f"{FUNCTION} float to_float({dtype.c_name} x) {{\n    {body}\n}}")
    return call("to_float", (x,), float32)


def from_float(printer: Printer, x: Expression, target: DType) -> Expression:
    """Return a float or integer rounded to nearest even to a narrow float: once, and by way of float to 8 bits."""
    source = x.dtype
    if target.bits == 8:
        demand_float8(printer, target)
        printer.prelude.need_type(target)
        printer.prelude.need(printer.dialect.to_float8(target))
        return call(f"to_{target.c_name}", (x if source is float32 else prefix("(float)", x, float32),), target)
    if source not in _INTRINSIC:  # bool and the narrow integers
        x, source = prefix("(int)", x, int32), int32
    if target is bfloat16 and source in (int32, uint32):
        x, source = prefix("(double)", x, float64), float64  # exact
    printer.prelude.need_type(target)
    if target is float16:
        printer.prelude.need(printer.dialect.to_float16(source))
    else:
        printer.prelude.need(printer.dialect.to_bfloat16() if printer.arch.has_bfloat16 else TO_BFLOAT16)
        if source is not float32:
            printer.prelude.need(_to_bfloat16_through_odd(source))
    return call(f"to_{target.c_name}", (x,), target)


TO_BFLOAT16 = f"""\
// This GPU has no instruction for it: adds half a unit in the last place, ties to even, and cuts.
{FUNCTION} bfloat16 to_bfloat16(float x) {{
    const unsigned int bits = __float_as_uint(x);
    const unsigned int rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return bfloat16{{(unsigned short)(isnan(x) ? 0x7fff : rounded)}};
}}"""


def _to_bfloat16_through_odd(source: DType) -> str:
    """Return a conversion by way of float.

    Rounding twice to nearest can differ from rounding once; rounding to odd first cannot.
    """
    # A cut integer is at most its source, so it converts back without overflow; NaN differs from itself.
    return f"""\
// Rounds once: what the cut to float loses sets its last bit, so that no tie is seen where there is none.
{FUNCTION} bfloat16 to_bfloat16({source.c_name} x) {{
    const float cut = __{_INTRINSIC[source]}2float_rz(x);
    const bool inexact = ({source.c_name})cut != x;
    return to_bfloat16(__uint_as_float(__float_as_uint(cut) | (inexact ? 1 : 0)));
}}"""


def demand_float8(printer: Printer, *types: DType) -> None:
    """Raise `LanguageError` where the target cannot convert an 8-bit float of these types."""
    for dtype in types:
        if dtype in FLOAT8 and dtype.name not in printer.arch.float8:
            message, advice = missing_float8(dtype.name, printer.arch)
            raise LanguageError(message, help=advice)


# --- bits ----------------------------------------------------------------------------------------------


def bitcast(printer: Printer, op: Bitcast) -> Expression:
    """Return a value's bits read as another type."""
    source, target = op.x.type, op.result.type
    x = printer.expression(op.x)
    if source == target:
        return x
    if isinstance(source, DType) and isinstance(target, DType):
        if source.is_integer and target.is_integer:
            return prefix(f"({target.c_name})", x, target)
        if (source, target) in _REINTERPRET:
            return call(_REINTERPRET[source, target], (x,), target)
    printer.prelude.need(printer.dialect.bit_cast)
    printer.type_name(source)
    argument = x if x.type == source else prefix(f"({c_type(source)})", x, source)
    return call(f"bit_cast<{printer.type_name(target)}>", (argument,), target)
