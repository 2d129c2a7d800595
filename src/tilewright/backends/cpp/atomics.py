"""Atomic operations: functions of CUDA and HIP where there are such functions, compare-and-swap loops elsewhere.

One that orders other accesses, or reaches another scope than the GPU, is an instruction that the dialect names; where
there is none, the compare-and-swap of the loop orders them: the one that succeeds is the operation.
"""

from __future__ import annotations

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.conversions import from_float, to_float
from tilewright.backends.cpp.expression import Expression, Rank, call, prefix
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import Printer
from tilewright.dtypes import DType, bfloat16, float16, float32, float64, int16, int32, int64, uint16, uint32, uint64
from tilewright.ir.core import Buffer, Op, Space, Value, VectorType
from tilewright.ir.ops import Atomic

_NAMES = {
    "add": "atomicAdd", "min": "atomicMin", "max": "atomicMax", "and": "atomicAnd", "or": "atomicOr",
    "xor": "atomicXor", "exch": "atomicExch",
}  # fmt: skip
_INTEGERS = (int32, uint32, int64, uint64)
_TYPES = (*_INTEGERS, int16, uint16, float16, bfloat16, float32, float64)
_WORDS = {2: "unsigned short", 4: uint32.c_name, 8: uint64.c_name}


def atomic(printer: Printer, op: Atomic) -> Expression:
    """Return the call that does the operation and gives the old value."""
    dtype = op.buffer.dtype
    check(printer, op, op.buffer, op.value)
    target, value = address(printer, op.buffer, op.index), _typed(exact(printer, op.value), dtype)
    if not _is_plain(op.sem, op.scope):
        return _ordered(printer, op, target, value)
    if dtype in _INTEGERS:
        return _integer(op, target, value, dtype)
    if (op.kind in ("add", "exch") and dtype is float32) or (op.kind == "add" and dtype is float64):
        return call(_NAMES[op.kind], (target, value), dtype)
    added = printer.dialect.half_add(printer, dtype) if op.kind == "add" and dtype in (float16, bfloat16) else None
    if added is not None:
        printer.prelude.need_type(dtype)
        printer.prelude.need(added)
        return call("atomic_add", (target, value), dtype)
    return _swapping(printer, op, target, value)


def check(printer: Printer, op: Op, buffer: Buffer, value: Value) -> None:
    """Refuse what no atomic operation exists for."""
    if buffer.space is Space.REGISTER:
        raise printer.refuse(op, f"{buffer} lives in registers: no other thread sees it", "use an ordinary update")
    if isinstance(value.type, VectorType):
        raise printer.refuse(op, "atomic operations work on scalars, not on vectors")
    if buffer.dtype not in _TYPES:
        raise printer.refuse(
            op,
            f"the hardware has no atomic operation on {buffer.dtype}",
            "use an integer of 16, 32 or 64 bits or a float type",
        )


def _is_plain(sem: str, scope: str) -> bool:
    """Return whether the functions of CUDA and HIP do it: they order nothing, for the whole GPU."""
    return sem == "relaxed" and scope == "gpu"


def _typed(value: Expression, dtype: DType) -> Expression:
    """Return a value in its own integer type, where it was computed in another."""
    if dtype.is_float or value.type == dtype:
        return value
    return prefix(f"({dtype.c_name})", value, dtype)


def _integer(op: Atomic, target: Expression, value: Expression, dtype: DType) -> Expression:
    if not (op.kind not in ("min", "max") and dtype is int64):
        return call(_NAMES[op.kind], (target, value), dtype)
    # CUDA has signed 64-bit functions for minimum and maximum only; the unsigned ones give the same bits.
    unsigned = prefix(f"({uint64.c_name}*)", target, uint64), prefix(f"({uint64.c_name})", value, uint64)
    return prefix(f"({dtype.c_name})", call(_NAMES[op.kind], unsigned, uint64), dtype)


def _ordered(printer: Printer, op: Atomic, target: Expression, value: Expression) -> Expression:
    dtype = op.buffer.dtype
    found = printer.dialect.ordered_atomic(printer, op, op.kind, dtype, op.sem, op.scope)
    if found is None:
        return _swapping(printer, op, target, value)
    printer.prelude.need_type(dtype)
    printer.prelude.need(found[1])
    return call(found[0], (target, value), dtype)


# --- compare and swap ----------------------------------------------------------------------------------


def compare_and_swap(
    printer: Printer, op: Op, buffer: Buffer, places: tuple[Value, Value, Value], sem: str, scope: str
) -> Expression:
    """Return the call that puts a value in the place of an expected one; `places` are index, expected and value."""
    dtype, (index, compare, value) = buffer.dtype, places
    check(printer, op, buffer, value)
    target, *given = address(printer, buffer, index), *(_typed(exact(printer, v), dtype) for v in (compare, value))
    function = _cas(printer, op, dtype.bits // 8, sem, scope)
    plain_types = (int32, uint32, uint64) if function == "atomicCAS" else (uint16, uint32, uint64)
    if dtype in plain_types:
        return call(function, (target, *given), dtype)
    c, word = dtype.c_name, _WORDS[dtype.bits // 8]
    name = "atomic_cas" if function == "atomicCAS" else f"{function}_of"
    printer.prelude.need_type(dtype)
    printer.prelude.need(printer.dialect.bit_cast)
    printer.prelude.need(f"""\
{FUNCTION} {c} {name}({c}* address, {c} expected, {c} value) {{
    {word}* const bits = ({word}*)address;
    return bit_cast<{c}>({function}(bits, bit_cast<{word}>(expected), bit_cast<{word}>(value)));
}}""")
    return call(name, (target, *given), dtype)


def _cas(printer: Printer, op: Op, size: int, sem: str, scope: str) -> str:
    """Return the function that compares and swaps a word of so many bytes."""
    if _is_plain(sem, scope):
        return "atomicCAS"
    word = {2: uint16, 4: uint32, 8: uint64}[size]
    found = printer.dialect.ordered_atomic(printer, op, "cas", word, sem, scope)
    assert found is not None, (op, sem, scope)
    printer.prelude.need(found[1])
    return found[0]


def _swapping(printer: Printer, op: Atomic, target: Expression, value: Expression) -> Expression:
    """Return a call of a compare-and-swap loop.

    `min` and `max` are fminf and fmaxf: a NaN loses against a number, and -0 counts as less than +0.
    """
    dtype = op.buffer.dtype
    name = f"atomic_{op.kind}" + ("" if _is_plain(op.sem, op.scope) else f"_{op.sem}_{op.scope}")
    swap = _cas(printer, op, dtype.bits // 8, op.sem, op.scope)
    printer.prelude.need_type(dtype)
    printer.prelude.need(_loop(printer, op.kind, dtype, name, swap))
    return call(name, (target, value), dtype)


def _loop(printer: Printer, kind: str, dtype: DType, name: str, swap: str) -> str:
    c, word = dtype.c_name, _WORDS[dtype.bits // 8]
    old = _from_bits(dtype)
    new = _new(printer, kind, dtype, old)
    return f"""\
{FUNCTION} {c} {name}({c}* address, {c} value) {{
    {word}* const bits = ({word}*)address;
    {word} seen = *(volatile {word}*)bits, expected;
    do {{
        expected = seen;
        seen = {swap}(bits, expected, ({word}){new});
    }} while (seen != expected);
    return {old.text.replace("expected", "seen")};
}}"""


_INFIX = {"add": "+", "and": "&", "or": "|", "xor": "^"}


def _new(printer: Printer, kind: str, dtype: DType, old: Expression) -> str:
    """Return the bits that an update by `value` gives."""
    if dtype.is_integer:
        if kind == "exch":
            return "value"
        if kind in _INFIX:
            return f"({old.text} {_INFIX[kind]} value)"
        sign = "<" if kind == "min" else ">"
        return f"({old.text} {sign} value ? {old.text} : value)"
    value = Expression("value", Rank.ATOM, dtype)
    if dtype in (float16, bfloat16):
        if kind == "exch":
            return "value.bits"
        function = {"add": "{} + {}", "min": "fminf({}, {})", "max": "fmaxf({}, {})"}[kind]
        sides = to_float(printer, old).text, to_float(printer, value).text
        return from_float(printer, Expression(function.format(*sides), Rank.SUM, float32), dtype).text + ".bits"
    suffix = "f" if dtype is float32 else ""
    joined = {"add": f"{old.text} + value", "exch": "value"}.get(kind, f"f{kind}{suffix}({old.text}, value)")
    return f"__float_as_uint({joined})" if dtype is float32 else f"__double_as_longlong({joined})"


def _from_bits(dtype: DType) -> Expression:
    text = {
        float32: "__uint_as_float(expected)",
        float64: "__longlong_as_double(expected)",
        float16: "half{expected}",
        bfloat16: "bfloat16{expected}",
    }.get(dtype, f"({dtype.c_name})expected")
    return Expression(text, Rank.POSTFIX, dtype)
