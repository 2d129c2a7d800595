"""How scalar arithmetic is spelled: constants, operators, functions, comparisons, choices."""

from __future__ import annotations

from dataclasses import replace

from tilewright.backends.cpp import prelude
from tilewright.backends.cpp.conversions import from_float, is_half, to_float
from tilewright.backends.cpp.expression import Expression, Rank, binary, call, conditional, literal, negated, prefix
from tilewright.backends.cpp.inlining import MODULAR_KINDS
from tilewright.backends.cpp.prelude import lane_of
from tilewright.backends.cpp.printer import Printer
from tilewright.dtypes import DType, bool_, float32, int32, uint8, uint16, uint32
from tilewright.errors import InternalError
from tilewright.ir.core import Op, Value, VectorType
from tilewright.ir.evaluate import facts_of
from tilewright.ir.ops import Binary, Compare, Constant, Fma, Select, Unary

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^"}
_BOOL_OPERATORS = {"and": "&&", "or": "||", "xor": "!="}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# Functions of floats whose C names are not the op's kind; float32 adds an f.
_FLOAT_NAMES = {"abs": "fabs", "round": "rint", "min": "fmin", "max": "fmax", "rem": "fmod"}
PAIRED = ("add", "sub", "mul", "min", "max")  # what is computed of two 16-bit floats at once
_TESTS = ("isnan", "isinf", "isfinite")


def exact(printer: Printer, value: Value) -> Expression:
    """Return the text of a value, of exactly its IR type or one that C++ converts to it without change."""
    return exactly(printer.expression(value), value)


def exactly(expression: Expression, value: Value) -> Expression:
    """Bring text whose low bits are those of the value to the value's type, where they may differ."""
    wanted, have = value.type, expression.type
    if wanted == have or isinstance(wanted, VectorType) or isinstance(have, VectorType) or wanted.is_float:
        return expression
    if wanted is bool_:
        return binary("!=", expression, literal(0, have), bool_)
    if have is uint32 and wanted is int32 and facts_of(value).non_negative:
        return expression  # below 2**31 the two agree
    if have is int32 and wanted.bits < 32 and isinstance(value.definition, Constant):
        return expression
    return prefix(f"({wanted.c_name})", expression, wanted)


def constant(printer: Printer, op: Constant) -> Expression:
    """Return a number as a literal."""
    assert isinstance(op.result.type, DType)
    printer.prelude.need_type(op.result.type)
    return literal(op.value, op.result.type)


def unary(printer: Printer, op: Unary) -> Expression:
    """Return a sign, a negation, or a call of a function of one argument."""
    dtype = _scalar(op, op.x)
    if is_half(dtype):
        result = _float_unary(op.kind, to_float(printer, exact(printer, op.x)), float32)
        return result if op.result.type is bool_ else from_float(printer, result, dtype)
    if dtype.is_float:
        return _float_unary(op.kind, printer.expression(op.x), dtype)
    x = printer.expression(op.x)
    if op.kind == "not" or (op.kind == "bit_not" and dtype is bool_):
        return negated(exactly(x, op.x))
    if op.kind in ("neg", "bit_not"):
        return prefix("-" if op.kind == "neg" else "~", x, _promoted(x.dtype))
    if op.kind == "abs":
        return call("abs", (_as_argument(x, op.x),), _promoted(dtype)) if dtype.is_signed else x
    if op.kind in ("popcount", "clz"):
        return _count_bits(op.kind, x, op.x, dtype)
    raise InternalError(f"{dtype} has no {op.kind}", location=op.location)


def _float_unary(kind: str, x: Expression, dtype: DType) -> Expression:
    if kind == "neg":
        return prefix("-", x, dtype)
    if kind in _TESTS:
        return call(kind, (x,), bool_)
    if kind == "not":
        return prefix("!", x, bool_)
    return call(float_function(kind, dtype), (x,), dtype)


def float_function(kind: str, dtype: DType) -> str:
    """Return the C name of a function of floats: expf for float32, exp for float64."""
    return _FLOAT_NAMES.get(kind, kind) + ("f" if dtype is float32 else "")


def _count_bits(kind: str, x: Expression, value: Value, dtype: DType) -> Expression:
    wide = dtype.bits == 64
    unsigned = {8: uint8, 16: uint16}.get(dtype.bits)
    argument = prefix(f"({unsigned.c_name})", x, unsigned) if unsigned is not None else exactly(x, value)
    counted = call(("__popc" if kind == "popcount" else "__clz") + ("ll" if wide else ""), (argument,), int32)
    if kind == "clz" and dtype.bits < 32:
        return binary("-", counted, literal(32 - dtype.bits, int32), int32)
    return counted


def binary_op(printer: Printer, op: Binary) -> Expression:
    """Return an operator between two operands, or a call of a function of two."""
    if isinstance(op.lhs.type, VectorType):
        return _pair(printer, op, op.lhs.type)
    dtype = _scalar(op, op.lhs)
    if is_half(dtype):
        native = printer.dialect.half_function(printer, op.kind, dtype) if dtype.bits == 16 else None
        if native is not None:
            printer.prelude.need_type(dtype)
            printer.prelude.need(native)
            return call(f"{dtype.c_name}_{op.kind}", (exact(printer, op.lhs), exact(printer, op.rhs)), dtype)
        a, b = (to_float(printer, exact(printer, v)) for v in (op.lhs, op.rhs))
        return from_float(printer, _float_binary(op, a, b, float32), dtype)
    a, b = printer.expression(op.lhs), printer.expression(op.rhs)
    if dtype.is_float:
        return _float_binary(op, a, b, dtype)
    if dtype is bool_:
        if op.kind not in _BOOL_OPERATORS:
            raise InternalError(f"bool has no {op.kind}", location=op.location)
        return binary(_BOOL_OPERATORS[op.kind], exactly(a, op.lhs), exactly(b, op.rhs), bool_)
    if op.kind in ("min", "max"):
        return call(op.kind, (_as_argument(a, op.lhs), _as_argument(b, op.rhs)), _promoted(dtype))
    if op.kind in ("shl", "shr"):
        return _shift(printer, op, a, dtype)
    if op.kind == "pow":
        name, definition = prelude.power(dtype)
        printer.prelude.need(definition)
        return call(name, (_as_argument(a, op.lhs), _as_argument(b, op.rhs)), dtype)
    if op.kind not in _OPERATORS:
        raise InternalError(f"{dtype} has no {op.kind}", location=op.location)
    return _integer_binary(op, a, b)


def _pair(printer: Printer, op: Binary, type: VectorType) -> Expression:
    """Return the call of a function of two 16-bit floats at once: an instruction, or each in float."""
    dtype = type.element
    if type.lanes != 2 or dtype.bits != 16 or not dtype.is_float or op.kind not in PAIRED:
        raise InternalError(f"{op.kind} of {type}", location=op.location)
    printer.type_name(type)
    definition = printer.dialect.half_function(printer, op.kind, type)
    name = f"{dtype.c_name}_{op.kind}"
    if definition is None:
        lanes = []
        for lane in range(2):
            a, b = (lane_of(Expression(v, Rank.ATOM, type), lane) for v in "ab")
            wide = _float_binary(op, to_float(printer, a), to_float(printer, b), float32)
            lanes.append(from_float(printer, wide, dtype))
        c = prelude.c_type(type)
        body = prelude.packed(tuple(lanes), type).text
        definition = f"{prelude.FUNCTION} {c} {name}({c} a, {c} b) {{\n    return {body};\n}}"
    printer.prelude.need(definition)
    return call(name, (exact(printer, op.lhs), exact(printer, op.rhs)), type)


def _float_binary(op: Binary, a: Expression, b: Expression, dtype: DType) -> Expression:
    if op.kind in ("add", "sub"):
        return _sum(_OPERATORS[op.kind], a, b, op.rhs, dtype)
    if op.kind in ("mul", "div"):
        return binary(_OPERATORS[op.kind], a, b, dtype)
    if op.kind in ("and", "or", "xor", "shl", "shr"):
        raise InternalError(f"{dtype} has no {op.kind}", location=op.location)
    return call(float_function(op.kind, dtype), (a, b), dtype)


def _sum(operator: str, a: Expression, b: Expression, rhs: Value, type: DType) -> Expression:
    """Return a sum or difference; a + -5 is printed a - 5, and a - -5 is a + 5."""
    if isinstance(rhs.definition, Constant) and b.rank == Rank.UNARY and b.text.startswith("-"):
        inner = b.unconverted and replace(b.unconverted, text=b.unconverted.text[1:], rank=Rank.ATOM)
        b = replace(b, text=b.text[1:], rank=Rank.ATOM, unconverted=inner)
        operator = "-" if operator == "+" else "+"
    return binary(operator, a, b, type)


def _integer_binary(op: Binary, a: Expression, b: Expression) -> Expression:
    operator = _OPERATORS[op.kind]
    if op.kind not in MODULAR_KINDS:
        a, b = _of_one_sign(a, b, op.lhs, op.rhs)
    narrow = op.kind == "mul" and op.lhs.type in (uint8, uint16) and _joined(a, b) is int32
    if narrow and _most(a, op.lhs) * _most(b, op.rhs) > int32.highest:  # the int that C++ computes would overflow
        a = prefix(f"({uint32.c_name})", a, uint32)
    a, b = _implicit(a, b, op.lhs, op.rhs)
    if operator in "+-":
        return _sum(operator, a, b, op.rhs, _joined(a, b))
    return binary(operator, a, b, _joined(a, b))


def _most(x: Expression, value: Value) -> int:
    """Return the greatest number of the text of a narrow unsigned value, which may not be reduced to its type."""
    return facts_of(value).high if x.dtype.bits < 32 or isinstance(value.definition, Constant) else uint32.highest


def _of_one_sign(a: Expression, b: Expression, lhs: Value, rhs: Value) -> tuple[Expression, Expression]:
    """Return both operands with their values, and not as unsigned where one may be negative."""
    a, b = exactly(a, lhs), exactly(b, rhs)
    if a.type is b.type or (facts_of(lhs).non_negative and facts_of(rhs).non_negative):
        return a, b
    return _as_argument(a, lhs), _as_argument(b, rhs)


def _implicit(a: Expression, b: Expression, lhs: Value, rhs: Value) -> tuple[Expression, Expression]:
    """Leave out a conversion to 64 bits that C++ makes by itself, because the other operand has 64 bits."""
    if b.unconverted is not None and a.type == b.type == rhs.type:
        return a, b.unconverted
    if a.unconverted is not None and a.type == b.type == lhs.type:
        return a.unconverted, b
    return a, b


def _promoted(dtype: DType) -> DType:
    """Return the type that C++ computes in: int for the narrow ones."""
    return int32 if dtype.bits < 32 else dtype


def _joined(a: Expression, b: Expression) -> DType:
    """Return the type of an operation on two integers, by C++'s usual arithmetic conversions."""
    x, y = _promoted(a.dtype), _promoted(b.dtype)
    if x.bits != y.bits:
        return x if x.bits > y.bits else y
    return x if x.kind == "uint" else y


def _as_argument(x: Expression, value: Value) -> Expression:
    """Return an argument of an overloaded function, which chooses by the exact type."""
    wanted = value.dtype
    if wanted.bits < 32:
        return exactly(x, value)  # promoted to int, the only one that fits
    return x if x.type == wanted else prefix(f"({wanted.c_name})", x, wanted)


def _shift(printer: Printer, op: Binary, a: Expression, dtype: DType) -> Expression:
    amount = facts_of(op.rhs)
    if amount.low < 0 or amount.high >= dtype.bits:
        name, definition = prelude.shift(op.kind, dtype)
        printer.prelude.need(definition)
        arguments = (_as_argument(a, op.lhs), _as_argument(printer.expression(op.rhs), op.rhs))
        return call(name, arguments, dtype)
    b = exact(printer, op.rhs)
    b = b.unconverted or b
    if op.kind == "shr" or dtype.bits < 32:
        a = exactly(a, op.lhs)
    return binary("<<" if op.kind == "shl" else ">>", a, b, _promoted(a.dtype))


def compare(printer: Printer, op: Compare) -> Expression:
    """Return a comparison."""
    dtype = _scalar(op, op.lhs)
    a, b = printer.expression(op.lhs), printer.expression(op.rhs)
    if is_half(dtype):
        a, b = to_float(printer, a), to_float(printer, b)
    elif not dtype.is_float:
        a, b = _implicit(*_of_one_sign(a, b, op.lhs, op.rhs), op.lhs, op.rhs)
    return binary(_COMPARISONS[op.kind], a, b, bool_)


def fma(printer: Printer, op: Fma) -> Expression:
    """Return a call of fmaf or fma."""
    dtype = _scalar(op, op.a)
    if dtype.bits < 32:
        raise InternalError(f"{dtype} has no fma", location=op.location)
    arguments = tuple(printer.expression(v) for v in (op.a, op.b, op.c))
    return call("fmaf" if dtype is float32 else "fma", arguments, dtype)


def select(printer: Printer, op: Select) -> Expression:
    """Return `condition ? a : b`."""
    a, b = exact(printer, op.on_true), exact(printer, op.on_false)
    if isinstance(op.result.type, VectorType) or a.dtype.is_float or op.result.type is bool_:
        return conditional(exact(printer, op.condition), a, b, op.result.type)
    return conditional(exact(printer, op.condition), a, b, _joined(a, b))


def _scalar(op: Op, value: Value) -> DType:
    if isinstance(value.type, VectorType):
        raise InternalError(f"{type(op).__name__} of a vector", location=op.location)
    return value.type
