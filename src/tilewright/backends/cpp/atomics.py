"""How atomic operations are spelled: functions of CUDA and HIP where there are, compare-and-swap loops elsewhere."""

from __future__ import annotations

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.conversions import from_float, to_float
from tilewright.backends.cpp.expression import Expression, Rank, call, prefix
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import Printer
from tilewright.dtypes import DType, bfloat16, float16, float32, float64, int32, int64, uint32, uint64
from tilewright.ir.core import Space, VectorType
from tilewright.ir.ops import Atomic

_NAMES = {"add": "atomicAdd", "min": "atomicMin", "max": "atomicMax"}
_INTEGERS = (int32, uint32, int64, uint64)


def atomic(printer: Printer, op: Atomic) -> Expression:
    """Return the call that does the operation and gives the old value."""
    dtype = op.buffer.dtype
    if op.buffer.space is Space.REGISTER:
        raise printer.refuse(op, f"{op.buffer} lives in registers: no other thread sees it", "use an ordinary update")
    if isinstance(op.value.type, VectorType):
        raise printer.refuse(op, "atomic operations work on scalars, not on vectors")
    target, value = address(printer, op.buffer, op.index), exact(printer, op.value)
    if dtype in _INTEGERS:
        return _integer(op, target, value, dtype)
    if op.kind == "add" and dtype in (float32, float64):
        return call("atomicAdd", (target, value), dtype)
    added = printer.dialect.half_add(printer, dtype) if op.kind == "add" and dtype in (float16, bfloat16) else None
    if added is not None:
        printer.prelude.need_type(dtype)
        printer.prelude.need(added)
        return call("atomic_add", (target, value), dtype)
    if dtype.is_float:
        return _swapping(printer, op.kind, target, value, dtype)
    raise printer.refuse(
        op, f"the hardware has no atomic operation on {dtype}", "use int32, uint32, int64, uint64 or a float type"
    )


def _integer(op: Atomic, target: Expression, value: Expression, dtype: DType) -> Expression:
    if not (op.kind == "add" and dtype is int64):
        if value.type != dtype:
            value = prefix(f"({dtype.c_name})", value, dtype)
        return call(_NAMES[op.kind], (target, value), dtype)
    # CUDA has no signed 64-bit atomicAdd; the unsigned one gives the same bits.
    unsigned = prefix(f"({uint64.c_name}*)", target, uint64), prefix(f"({uint64.c_name})", value, uint64)
    return prefix(f"({dtype.c_name})", call("atomicAdd", unsigned, uint64), dtype)


def _swapping(printer: Printer, kind: str, target: Expression, value: Expression, dtype: DType) -> Expression:
    """Return a call of a compare-and-swap loop.

    `min` and `max` are fminf and fmaxf: a NaN loses against a number, and -0 counts as less than +0.
    """
    printer.prelude.need_type(dtype)
    printer.prelude.need(_loop(printer, kind, dtype))
    return call(f"atomic_{kind}", (target, value), dtype)


def _loop(printer: Printer, kind: str, dtype: DType) -> str:
    c = dtype.c_name
    value, old = Expression("value", Rank.ATOM, dtype), _from_bits(dtype)
    if dtype in (float16, bfloat16):
        function = {"add": "{} + {}", "min": "fminf({}, {})", "max": "fmaxf({}, {})"}[kind]
        sides = to_float(printer, old).text, to_float(printer, value).text
        new = from_float(printer, Expression(function.format(*sides), Rank.SUM, float32), dtype).text + ".bits"
        word = "unsigned short"
    else:
        suffix = "f" if dtype is float32 else ""
        joined = f"f{kind}{suffix}({old.text}, value)"
        new = f"__float_as_uint({joined})" if dtype is float32 else f"__double_as_longlong({joined})"
        word = uint32.c_name if dtype is float32 else uint64.c_name
    return f"""\
{FUNCTION} {c} atomic_{kind}({c}* address, {c} value) {{
    {word}* const bits = ({word}*)address;
    {word} seen = *(volatile {word}*)bits, expected;
    do {{
        expected = seen;
        seen = atomicCAS(bits, expected, ({word}){new});
    }} while (seen != expected);
    return {old.text.replace("expected", "seen")};
}}"""


def _from_bits(dtype: DType) -> Expression:
    text = {
        float32: "__uint_as_float(expected)",
        float64: "__longlong_as_double(expected)",
        float16: "half{expected}",
        bfloat16: "bfloat16{expected}",
    }[dtype]
    return Expression(text, Rank.POSTFIX, dtype)
