"""Device scalars: stand-ins for numbers that exist only when the kernel runs.

The rules of arithmetic:

- Types promote by `tilewright.dtypes.promote`; a Python number takes the type of the other operand, except
  that a Python float with an integer gives float32.
- Unsigned integers wrap. A signed result that does not fit is undefined, as in C++ (the simulator wraps).
- `//` and `%` of integers round towards zero and take the dividend's sign, as in C++ (Python rounds down). `/` of two
  integers is float32.
- Floats are IEEE and rounded after each operation; narrower ones are computed in float32 and rounded, which for
  `+ - * /` of float16 and bfloat16 gives the same bits as arithmetic in the narrow type; 8-bit floats saturate.
  `%` of floats is C's fmod.
- Shifts by the width of the type or more give 0, or the sign.
- A conversion from float to integer truncates and saturates; NaN gives 0.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tilewright.arguments import given, shown
from tilewright.dtypes import DType, bool_, dtype, float32, float64, int32, int64, promote, tfloat32, uint32
from tilewright.errors import LanguageError
from tilewright.ir.core import Value
from tilewright.ir.evaluate import facts_of
from tilewright.ir.facts import Facts
from tilewright.ir.ops import (
    APPROXIMATE_KINDS,
    Binary,
    Bitcast,
    Cast,
    Compare,
    Constant,
    RoundToTfloat32,
    Special,
    Unary,
    constant,
)
from tilewright.layout import DynamicInt
from tilewright.pickling import Refused
from tilewright.trace.tracer import current, require_multiple

Number: TypeAlias = "int | float | bool"
Operand: TypeAlias = "Scalar | int | float | bool"


class Scalar(Refused, DynamicInt):
    """A number on the device: one IR value, the same expression in every thread."""

    __slots__ = ("value",)

    # NumPy's numbers leave `number * scalar` to the scalar.
    __array_ufunc__ = None

    _why_no_copy = (
        "it is a value of a kernel that is being traced, and does not exist outside of it",
        "keep what is known while tracing (numbers, layouts) apart from device values",
    )

    def __init__(self, value: Value) -> None:
        self.value = value

    def __deepcopy__(self, memo: object) -> Any:  # Any: itself; it is as constant as a number
        return self

    @property
    def number(self) -> Any:
        """For a number of the host that comes with each launch: one that promotes as it does (`host_numbers`)."""
        return None

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.value.dtype

    @property
    def facts(self) -> Facts:
        """What is known of an integer: its range, and what it is a multiple of."""
        return facts_of(self.value)

    def as_device(self, target: DType | None) -> Scalar:
        """Return the scalar in an element type, by default its own."""
        return self if target is None or self.dtype is target else convert(self, target)

    def to(self, type: object) -> Scalar:
        """Convert to another element type."""
        return convert(self, dtype(type))

    def bitcast(self, type: object) -> Scalar:
        """Read the bits as another type of the same size."""
        target = dtype(type)
        if target.bits != self.dtype.bits:
            raise LanguageError(f"bitcast from {self.dtype} to {target}: their sizes differ")
        return Scalar(current("bitcast").pure(Bitcast(self.value), target))

    def assume_multiple(self, divisor: int, what: str) -> None:
        """Check at the launch that `divisor` divides the value, unless it is known to."""
        if self.facts.divisor % divisor:
            tracer = current(what)
            message = f"{what} takes {self.value.name or 'a value'}, which is {{value}}, as a multiple of {divisor}"
            require_multiple(tracer, self.value, divisor, message, "pad the array", tracer.location())

    def split_multiple(self, divisor: int) -> tuple[int | DynamicInt, int | DynamicInt]:
        """Return (rest, multiple): the terms of a sum that `divisor` is known to divide, apart from the others."""
        rest: list[Scalar] = []
        multiples: list[Scalar] = []
        pending = [self.value]
        while pending:
            value = pending.pop()
            op = value.definition
            if facts_of(value).divisor % divisor == 0:
                multiples.append(Scalar(value))
            elif isinstance(op, Binary) and op.kind == "add":
                pending += [op.rhs, op.lhs]
            else:
                rest.append(Scalar(value))
        if not multiples:
            return self, 0
        return _sum(rest), _sum(multiples)

    def difference(self, other: int | DynamicInt) -> int | DynamicInt:
        """Return self - other, as an int where both are sums of the same terms."""
        if isinstance(other, Scalar) and other.dtype is self.dtype:
            (terms, constant), (others, less) = linear_terms(self.value), linear_terms(other.value)
            if terms == others:
                return constant - less
        rest: DynamicInt = self - other
        return rest

    def __tilewright_cast__(self, target: DType) -> Scalar:
        return convert(self, target)

    # --- arithmetic ---

    def __add__(self, other: Any) -> Any:
        return arithmetic("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return arithmetic("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return arithmetic("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return arithmetic("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return arithmetic("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return arithmetic("mul", other, self)

    def __truediv__(self, other: Any) -> Any:
        return true_divide(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return true_divide(other, self)

    def __floordiv__(self, other: Any) -> Any:
        return floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return floor_divide(other, self)

    def __mod__(self, other: Any) -> Any:
        return modulo(self, other)

    def __rmod__(self, other: Any) -> Any:
        return modulo(other, self)

    def __divmod__(self, other: Any) -> Any:
        return floor_divide(self, other), modulo(self, other)

    def __pow__(self, other: Any) -> Any:
        return power(self, other)

    def __rpow__(self, other: Any) -> Any:
        return power(other, self)

    def __and__(self, other: Any) -> Any:
        return bitwise("and", self, other)

    def __rand__(self, other: Any) -> Any:
        return bitwise("and", other, self)

    def __or__(self, other: Any) -> Any:
        return bitwise("or", self, other)

    def __ror__(self, other: Any) -> Any:
        return bitwise("or", other, self)

    def __xor__(self, other: Any) -> Any:
        return bitwise("xor", self, other)

    def __rxor__(self, other: Any) -> Any:
        return bitwise("xor", other, self)

    def __lshift__(self, other: Any) -> Any:
        return shift("shl", self, other)

    def __rlshift__(self, other: Any) -> Any:
        return shift("shl", other, self)

    def __rshift__(self, other: Any) -> Any:
        return shift("shr", self, other)

    def __rrshift__(self, other: Any) -> Any:
        return shift("shr", other, self)

    def __neg__(self) -> Scalar:
        return unary("neg", self if self.dtype is not bool_ else self.to(int32))

    def __pos__(self) -> Scalar:
        return self

    def __abs__(self) -> Scalar:
        return self if self.dtype.kind in ("bool", "uint") else unary("abs", self)

    def __invert__(self) -> Scalar:
        if self.dtype.is_float:
            raise LanguageError(f"~ is not defined on {self.dtype}")
        return unary("not" if self.dtype is bool_ else "bit_not", self)

    # --- comparisons ---

    def __eq__(self, other: object) -> Any:
        return compare("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return compare("ne", self, other)

    def __lt__(self, other: Any) -> Any:
        return compare("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return compare("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return compare("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return compare("ge", self, other)

    __hash__ = object.__hash__

    # --- what Python would need to know now, and only the device will know ---

    def __bool__(self) -> bool:
        raise _undecided(
            "the truth of a device value",
            "decorate a helper function with @tw.function; in a comprehension or a sort, write tw.where or a loop",
        )

    def __index__(self) -> int:
        raise _undecided(
            "the value of a device integer",
            "make it a tw.constexpr parameter, or a loop's index with tw.static_range, to know it while tracing",
        )

    def __int__(self) -> int:
        raise _undecided("the value of a device number as an int", "convert with tw.int32(x)")

    def __float__(self) -> float:
        raise _undecided(
            "the value of a device number as a float",
            "convert with tw.float32(x); use tw.sqrt and the like in place of math's functions",
        )

    def __iter__(self) -> Any:
        raise _undecided("iterating over a device value", "loop over range(x)")

    def __str__(self) -> str:
        return self.value.name or "?"

    def __format__(self, spec: str) -> str:
        return repr(self)  # shows in the text that the number is not known yet

    def __repr__(self) -> str:
        return f"<device {self.dtype}{' ' + self.value.name if self.value.name else ''}>"


def identity_of(value: Value) -> Any:  # Any: what is equal for values that are computed alike
    """Return a key that two values share if the same pure arithmetic gives them."""
    op = value.definition
    if isinstance(op, Constant):
        return ("constant", value.type, op.value)
    if isinstance(op, Special):
        return ("special", op.name)
    if isinstance(op, Binary):
        return (op.kind, value.type, identity_of(op.lhs), identity_of(op.rhs))
    return ("cast", value.type, identity_of(op.x)) if isinstance(op, Cast) else value


def linear_terms(value: Value) -> tuple[dict[Any, int], int]:
    """Return what an integer is a sum of: factors of terms, by their keys, and a number."""
    terms: dict[Any, int] = {}
    constant = 0
    pending = [(value, 1)]
    while pending:
        part, factor = pending.pop()
        op = part.definition
        if isinstance(op, Constant):
            constant += factor * int(op.value)
        elif isinstance(op, Binary) and op.kind in ("add", "sub"):
            pending += [(op.lhs, factor), (op.rhs, factor if op.kind == "add" else -factor)]
        elif isinstance(op, Binary) and op.kind == "mul" and isinstance(op.rhs.definition, Constant):
            pending.append((op.lhs, factor * int(op.rhs.definition.value)))
        else:
            key = identity_of(part)
            terms[key] = terms.get(key, 0) + factor
    return {key: factor for key, factor in terms.items() if factor}, constant


def _sum(terms: list[Scalar]) -> int | DynamicInt:
    total: int | DynamicInt = 0
    for term in terms:
        total = term if isinstance(total, int) else total + term
    return total


def _undecided(what: str, help: str) -> LanguageError:
    return LanguageError(f"{what} is not known while the kernel is traced", help=help)


def is_number(x: object) -> bool:
    """Say whether a value is a Python number, which has no element type of its own."""
    return isinstance(x, (int, float)) and not _is_numpy(x)


def is_numpy_number(x: object) -> bool:
    """Say whether a value is a NumPy number, which has an element type of its own: what `tw.float32(0)` gives."""
    return _is_numpy(x) and getattr(x, "shape", None) == () and hasattr(x, "item")


def _is_numpy(x: object) -> bool:
    return type(x).__module__ in ("numpy", "ml_dtypes")


def default_type(x: Number) -> DType:
    """Return the type that a Python number takes by itself: bool, int32 (int64 where needed), float32."""
    if isinstance(x, bool):
        return bool_
    if isinstance(x, int):
        return int32 if int32.lowest <= x <= int32.highest else int64
    return float32


def as_scalar(x: object, target: DType | None = None) -> Scalar:
    """Return a device scalar of a Python or NumPy number, of its own type or the given one."""
    if isinstance(x, Scalar):
        return x.as_device(target)
    if is_numpy_number(x):
        number: Any = x  # a NumPy scalar, or an array of one element without axes
        target = target or dtype(number.dtype)
        x = number.item()
    if not isinstance(x, (int, float)):
        raise LanguageError(f"expected a number, got {given(x)}")
    target = target or default_type(x)
    if not target.is_float:
        if isinstance(x, float):
            raise LanguageError(
                f"{x!r} is a float and is not converted to {target} implicitly", help=f"write tw.{target}({x!r})"
            )
        if target is bool_:
            x = bool(x)
        elif not target.lowest <= x <= target.highest:
            raise LanguageError(f"{shown(x)} does not fit into {target} ({target.lowest} to {target.highest})")
    elif target.is_narrow_float or target is float32 or isinstance(x, int):
        x = rounded(x, target)
    return Scalar(constant(x, target))


def as_word(x: object, what: str) -> Scalar:
    """Return the bits of an integer of 32 bits as uint32; `what` names the function that takes it."""
    if isinstance(x, int) and not isinstance(x, bool) and int32.lowest <= x <= uint32.highest:
        return as_scalar(x & uint32.highest, uint32)
    return as_integer(x, what, 32).to(uint32)


def as_integer(x: object, what: str, *bits: int) -> Scalar:
    """Return an integer of one of these widths as a device scalar; `what` names the function that takes it."""
    known = isinstance(x, (Scalar, int)) or is_numpy_number(x)
    scalar = as_scalar(x) if known and not isinstance(x, bool) else None
    if scalar is None or not scalar.dtype.is_integer or scalar.dtype.bits not in bits:
        widths = " or ".join(map(str, bits))
        raise LanguageError(f"{what} takes an integer of {widths} bits, got {shown(x)}")
    return scalar


def rounded(x: float, target: DType) -> float:
    """Return the number that the device would hold."""
    import numpy as np

    with np.errstate(over="ignore"):
        try:
            return float(target.numpy.type(x))
        except OverflowError:  # an int beyond float64
            raise LanguageError(f"{shown(x)} does not fit into {target}", help="write float('inf')") from None


def convert(x: Scalar, target: DType) -> Scalar:
    """Convert a scalar to a type."""
    if x.dtype is target:
        return x
    tracer = current("a conversion")
    if target is tfloat32:  # held as float32
        return Scalar(tracer.pure(RoundToTfloat32(convert(x, float32).value), float32))
    if target is bool_:
        return Scalar(tracer.pure(Compare("ne", x.value, constant(0, x.dtype)), bool_))
    return Scalar(tracer.pure(Cast(x.value), target))


def common_type(a: object, b: object) -> DType:
    """Return the type in which an operation on two operands is computed, at least one of them a Scalar."""
    if isinstance(a, Scalar) and a.number is not None:
        return common_type(a.number, b) if is_typed(b) else a.dtype
    if isinstance(b, Scalar) and b.number is not None:
        return common_type(a, b.number) if is_typed(a) else b.dtype
    x, y = (v.dtype if isinstance(v, Scalar) else dtype(v.dtype) if _is_numpy(v) else None for v in (a, b))  # type: ignore[attr-defined]
    if x is not None and y is not None:
        return promote(x, y)
    typed, number = (x, b) if x is not None else (y, a)
    assert typed is not None
    if not isinstance(number, (int, float)):
        raise LanguageError(f"a device {typed} and a {type(number).__name__} cannot be combined: {number!r}")
    if isinstance(number, bool):
        return typed
    if isinstance(number, float):
        return typed if typed.is_float else float32
    if typed is bool_:
        return default_type(number)
    if not typed.is_float and not typed.lowest <= number <= typed.highest:
        return promote(typed, int64)
    return typed


def is_typed(x: object) -> bool:
    """Say whether an operand is a device value, whose element type decides that of a number beside it."""
    return isinstance(x, Scalar) and x.number is None


def _pair(a: object, b: object) -> tuple[Scalar, Scalar, DType]:
    type = common_type(a, b)
    return as_scalar(a, type), as_scalar(b, type), type


def _known(x: object) -> bool:
    return isinstance(x, (Scalar, int, float)) or _is_numpy(x)


# What 16-bit floats are computed by themselves: rounded once from float32, each gives the same bits.
_NATIVE = frozenset({"add", "sub", "mul", "min", "max"})


def arithmetic(kind: str, a: object, b: object, *, approximate: bool = True) -> Any:
    """Compute add, sub, mul, div, min, max or fmod in the common type; narrow floats through float32.

    Without `approximate` a quotient is exact under fastmath too.
    """
    if not (_known(a) and _known(b)):
        return NotImplemented
    x, y, type = _pair(a, b)
    if type is bool_:
        x, y, type = x.to(int32), y.to(int32), int32
    if type.is_narrow_float and not (type.bits == 16 and kind in _NATIVE):
        wide = arithmetic(kind, x.to(float32), y.to(float32), approximate=approximate)
        return convert(wide, type)
    tracer = current("arithmetic")
    return Scalar(tracer.pure(Binary(kind, x.value, y.value, approximate and _may_be_off(kind, type)), type))


def _may_be_off(kind: str, type: DType) -> bool:
    """Say whether an operation is computed approximately: where the kernel or function asks for it (`fastmath`).

    AMD's compiler is given the functions that it has, and makes the same of both.
    """
    tracer = current(kind)
    return tracer.fastmath and type is float32 and kind in APPROXIMATE_KINDS and not tracer.arch.is_amd


def true_divide(a: object, b: object) -> Any:
    """Compute `/`: of integers in float32, of floats in their type."""
    if not (_known(a) and _known(b)):
        return NotImplemented
    type = common_type(a, b)
    if not type.is_float:
        type = float32
    return arithmetic("div", as_scalar(a, type), as_scalar(b, type))


def floor_divide(a: object, b: object) -> Any:
    """Compute `//`: C++'s quotient of integers, the floor of the quotient of floats."""
    if not (_known(a) and _known(b)):
        return NotImplemented
    if common_type(a, b).is_float:
        return unary("floor", arithmetic("div", a, b, approximate=False))
    return arithmetic("div", a, b)


def modulo(a: object, b: object) -> Any:
    """Compute `%`: C++'s remainder of integers, fmod of floats."""
    if not (_known(a) and _known(b)):
        return NotImplemented
    return arithmetic("fmod" if common_type(a, b).is_float else "rem", a, b)


_MAX_UNROLLED_POWER = 16


def power(a: object, b: object) -> Any:
    """Compute `**`: by multiplication for a small constant exponent, else by pow in floating point."""
    if not (_known(a) and _known(b)):
        return NotImplemented
    if isinstance(a, Scalar) and isinstance(b, int) and 0 <= b <= _MAX_UNROLLED_POWER:
        if b == 0:
            return as_scalar(1, a.dtype)
        result: Any = None
        square: Any = a
        while b:
            if b & 1:
                result = square if result is None else result * square
            b >>= 1
            square = square * square if b else square
        return result
    type = common_type(a, b)
    return arithmetic("pow", as_scalar(a, type if type.is_float else float32), b)


def bitwise(kind: str, a: object, b: object) -> Any:
    """Compute and, or, xor of integers or bools."""
    if not (_known(a) and _known(b)):
        return NotImplemented
    x, y, type = _pair(a, b)
    if type.is_float:
        sign = {"and": "&", "or": "|", "xor": "^"}[kind]
        raise LanguageError(f"{sign} is not defined on {type}", help="convert with tw.int32(x), or .bitcast(tw.uint32)")
    return Scalar(current("arithmetic").pure(Binary(kind, x.value, y.value), type))


def shift(kind: str, a: object, b: object) -> Any:
    """Compute a shift; the result has the type of the left operand."""
    if not (_known(a) and _known(b)):
        return NotImplemented
    x = as_scalar(a) if not isinstance(a, int) else as_scalar(a, common_type(a, b))
    if not x.dtype.is_integer:
        raise LanguageError(f"a shift is not defined on {x.dtype}")
    y = as_scalar(b, x.dtype)
    return Scalar(current("arithmetic").pure(Binary(kind, x.value, y.value), x.dtype))


def compare(kind: str, a: object, b: object) -> Any:
    """Compare in the common type."""
    if not (_known(a) and _known(b)):
        return NotImplemented
    x, y, type = _pair(a, b)
    if type.is_narrow_float:
        x, y = x.to(float32), y.to(float32)
    return Scalar(current("a comparison").pure(Compare(kind, x.value, y.value), bool_))


def unary(kind: str, x: Scalar) -> Scalar:
    """Apply a unary operation in the scalar's type; narrow floats through float32."""
    tracer = current(kind)
    if x.dtype.is_narrow_float and kind not in ("isnan", "isinf", "isfinite"):
        return convert(unary(kind, x.to(float32)), x.dtype)
    if kind in ("isnan", "isinf", "isfinite"):
        wide = x if x.dtype in (float32, float64) else x.to(float32)
        return Scalar(tracer.pure(Unary(kind, wide.value), bool_))
    return Scalar(tracer.pure(Unary(kind, x.value, _may_be_off(kind, x.dtype)), x.dtype))
