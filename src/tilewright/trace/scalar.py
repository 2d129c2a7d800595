"""Device scalars: stand-ins for numbers that exist only when the kernel runs.

The rules of arithmetic are those of docs/language.md, section "Numbers".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from tilewright.arguments import given, shown
from tilewright.dtypes import (
    DType,
    bool_,
    dtype,
    float32,
    float64,
    int32,
    int64,
    promote,
    tfloat32,
)
from tilewright.errors import LanguageError
from tilewright.ir.core import Value
from tilewright.ir.evaluate import facts_of
from tilewright.ir.facts import Facts
from tilewright.ir.fold import linear_terms
from tilewright.ir.ops import (
    APPROXIMATE_KINDS,
    Assert,
    Binary,
    Bitcast,
    Cast,
    Compare,
    RoundToTfloat32,
    Select,
    Unary,
    constant,
)
from tilewright.layout import DynamicInt
from tilewright.pickling import Refused
from tilewright.trace.literals import MIRRORED, in_integers, is_numpy, not_compared, note_wide_number
from tilewright.trace.literals import default_type as default_type
from tilewright.trace.literals import is_numpy_number as is_numpy_number
from tilewright.trace.literals import rounded as rounded
from tilewright.trace.tracer import current, require_multiple
from tilewright.trace.undecided import Undecided

Number: TypeAlias = "int | float | bool"
Operand: TypeAlias = "Scalar | int | float | bool"


class Scalar(Undecided, Refused, DynamicInt):
    """A number on the device: one IR value, the same expression in every thread."""

    __slots__ = ("value",)

    # NumPy's numbers leave `number * scalar` to the scalar.
    __array_ufunc__ = None

    _why_no_copy = (
        "it is a value of a kernel that is being traced, and does not exist outside of it",
        "keep what is known while tracing (numbers, layouts) apart from device values",
    )

    def __init__(self, value: Value) -> None:
        self.value: Value = value

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

    # --- arithmetic and comparisons ---

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

    def __rdivmod__(self, other: Any) -> Any:
        return floor_divide(other, self), modulo(other, self)

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if modulus is not None:
            raise LanguageError(
                "pow(a, b, c) has no device form",
                help="write a loop that multiplies and takes % c, in a type that holds c * c",
            )
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

    __hash__: Any = Undecided.__hash__


class Unrounded(Scalar):
    """A float32 that is computed of Python floats alone, such as `0.1 if c else 0.2`.

    A Python float has 64 bits: what float64 takes of this one is computed once more, of the numbers as they are.
    """

    __slots__ = ("_compute",)

    def __init__(self, value: Value, compute: Callable[[], Scalar]) -> None:
        super().__init__(value)
        self._compute = compute

    def exact(self) -> Scalar:
        """Return the number in float64."""
        return self._compute()


def are_untyped(*operands: object) -> bool:
    """Say whether what is computed of operands is computed of Python numbers alone."""
    return all(type(x) is Unrounded or is_number(x) for x in operands)


def select(condition: Scalar, a: Any, b: Any) -> Scalar:
    """Return `a` where the condition holds and `b` elsewhere, both computed."""
    if isinstance(a, Scalar) or isinstance(b, Scalar):
        type = common_type(a, b)
    else:
        type = promote(as_scalar(a).dtype, as_scalar(b).dtype)
    chosen = current("a selection").pure(
        Select(condition.value, as_scalar(a, type).value, as_scalar(b, type).value), type
    )
    return unrounded_choice(condition, a, b, Scalar(chosen))


def unrounded_choice(condition: Scalar, a: Any, b: Any, chosen: Scalar) -> Scalar:
    """Return what a condition chose of two numbers, such that float64 gets Python's floats among them as they are."""
    if chosen.dtype is not float32 or not are_untyped(a, b):
        return chosen

    def exact() -> Scalar:
        return select(condition, as_scalar(a, float64), as_scalar(b, float64))

    return Unrounded(chosen.value, exact)


def _sum(terms: list[Scalar]) -> int | DynamicInt:
    total: int | DynamicInt = 0
    for term in terms:
        total = term if isinstance(total, int) else total + term
    return total


def is_number(x: object) -> bool:
    """Say whether a value is a Python number, which has no element type of its own."""
    # A number that comes with the launch is a Scalar, and says no more of itself than it is asked.
    return not isinstance(x, Scalar) and isinstance(x, (int, float)) and not is_numpy(x)


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
                f"{x!r} is a float and is not converted to {target} implicitly", help=f"write {target!r}({x!r})"
            )
        if target is bool_:
            x = bool(x)
        elif not target.lowest <= x <= target.highest:
            raise LanguageError(f"{shown(x)} does not fit into {target} ({target.lowest} to {target.highest})")
    elif target.is_narrow_float or target is float32 or isinstance(x, int):
        x = rounded(x, target)
    return Scalar(constant(x, target))


def narrowed(x: object, target: DType = int32) -> Scalar:
    """Return an integer in a type that may be narrower: one that does not fit becomes the nearest one that does."""
    if not isinstance(x, Scalar) or x.dtype.is_float or x.dtype is bool_:
        return as_scalar(x, target)
    held = x
    if held.facts.low < target.lowest:
        held = arithmetic("max", held, target.lowest)
    if held.facts.high > target.highest:
        held = arithmetic("min", held, target.highest)
    return held.to(target)


def convert(x: Scalar, target: DType) -> Scalar:
    """Convert a scalar to a type."""
    if x.dtype is target:
        return x
    if target is float64 and type(x) is Unrounded:
        return x.exact()
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
    x, y = (v.dtype if isinstance(v, Scalar) else dtype(v.dtype) if is_numpy(v) else None for v in (a, b))  # type: ignore[attr-defined]
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
    if type is float64:
        for x, other in ((a, b), (b, a)):
            # A number of the host may not be asked its type: it would be compiled in.
            if is_typed(other) and (dtype := cast("Scalar", other).dtype).is_float and dtype is not float64:
                note_wide_number(cast("Scalar", x).value if is_typed(x) else x, dtype)
    return as_scalar(a, type), as_scalar(b, type), type


def _known(x: object) -> bool:
    return isinstance(x, (Scalar, int, float)) or is_numpy(x)


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
    result = tracer.pure(Binary(kind, x.value, y.value, approximate and _may_be_off(kind, type)), type)
    if type is float32 and are_untyped(a, b):
        return Unrounded(result, lambda: arithmetic(kind, as_scalar(a, float64), as_scalar(b, float64)))
    return Scalar(result)


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
    if are_untyped(a, b):
        return arithmetic("div", a, b)
    if not type.is_float:
        type = float32
    return arithmetic("div", as_scalar(a, type), as_scalar(b, type))


def floor_divide(a: object, b: object) -> Any:
    """Compute `//`: C++'s quotient of integers, the floor of the quotient of floats."""
    if not (_known(a) and _known(b)):
        return NotImplemented
    if common_type(a, b).is_float:
        return unary("floor", arithmetic("div", a, b, approximate=False))
    _refuse_zero("//", b)
    return arithmetic("div", a, b)


def _refuse_zero(operator: str, divisor: object) -> None:
    if _static_integer(divisor) == 0:
        raise LanguageError(f"an integer {operator} 0 has no result", help="convert to a float for infinity or NaN")


def modulo(a: object, b: object) -> Any:
    """Compute `%`: C++'s remainder of integers, fmod of floats."""
    if not (_known(a) and _known(b)):
        return NotImplemented
    if common_type(a, b).is_float:
        return arithmetic("fmod", a, b)
    _refuse_zero("%", b)
    return arithmetic("rem", a, b)


_MAX_UNROLLED_POWER = 16  # of floats: each multiplication rounds


def power(a: object, b: object) -> Any:
    """Compute `**`: of two integers exactly, modulo 2**bits; else in floating point.

    A small exponent that is known while tracing is multiplied out. A negative one gives a float, as `/` does. Where
    only the device knows that it is negative, the result is `1 / a**-b` rounded towards zero; the simulator reports it.
    """
    if not (_known(a) and _known(b)):
        return NotImplemented
    exponent = _static_integer(b)
    if isinstance(a, Scalar) and exponent is not None:
        base = a.to(int32) if a.dtype is bool_ else a
        base = base if isinstance(b, int) else base.to(promote(base.dtype, as_scalar(b).dtype))
        if exponent >= 0 and (base.dtype.is_integer or exponent <= _MAX_UNROLLED_POWER):
            return _multiplied_out(base, exponent)
    type = common_type(a, b)
    if type.is_float or (exponent or 0) < 0:
        return arithmetic("pow", as_scalar(a, type if type.is_float else float32), b)
    type = int32 if type is bool_ else type
    x, y = as_scalar(a, type), as_scalar(b, type)
    tracer = current("arithmetic")
    if tracer.bounds and y.facts.low < 0:
        holds = tracer.pure(Compare("ge", y.value, constant(0, type)), bool_)
        tracer.emit(Assert(holds, "the exponent of an integer power is negative: convert the base to a float"))
    return Scalar(tracer.pure(Binary("pow", x.value, y.value), type))


def _static_integer(x: object) -> int | None:
    """Return an integer that is known while tracing, None for anything else."""
    if isinstance(x, Scalar):
        known = x._known() if x.number is None else None
        return int(known) if known is not None and not x.dtype.is_float else None
    if is_numpy_number(x):
        x = x.item()  # type: ignore[attr-defined]
    return int(x) if isinstance(x, int) else None


def _multiplied_out(base: Any, exponent: int) -> Any:
    """Return a power as products of squares, one for each bit of the exponent."""
    result: Any = as_scalar(1, base.dtype) if exponent == 0 else None
    while exponent:
        if exponent & 1:
            result = base if result is None else result * base
        exponent >>= 1
        base = base * base if exponent else base
    return result


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
    x = x.to(int32) if x.dtype is bool_ else x
    if not x.dtype.is_integer:
        raise LanguageError(f"a shift is not defined on {x.dtype}")
    if isinstance(b, Scalar) and b.dtype.is_integer and b.dtype.bits > x.dtype.bits:
        # As unsigned numbers, amounts of the width or more and negative ones are all too large.
        b = narrowed(b.to(f"uint{b.dtype.bits}"), x.dtype)
    y = as_scalar(b, x.dtype)
    return Scalar(current("arithmetic").pure(Binary(kind, x.value, y.value), x.dtype))


def compare(kind: str, a: object, b: object) -> Any:
    """Compare in the common type."""
    if not (_known(a) and _known(b)):
        return not_compared(b)
    number, integer = (a, b) if is_number(a) else (b, a)
    if is_number(number) and is_typed(integer) and integer.dtype.is_integer:  # type: ignore[attr-defined]
        own = MIRRORED[kind] if number is a else kind
        own, whole = in_integers(own, number, integer.dtype)  # type: ignore[arg-type, attr-defined]
        if isinstance(whole, bool):
            return Scalar(constant(whole, bool_))
        if isinstance(number, float):
            kind, a, b = own, integer, whole
    x, y, type = _pair(a, b)
    if type.is_narrow_float:
        x, y = x.to(float32), y.to(float32)
    return Scalar(current("a comparison").pure(Compare(kind, x.value, y.value), bool_))


def unary(kind: str, x: Scalar) -> Scalar:
    """Apply a unary operation in the scalar's type; narrow floats through float32."""
    tracer = current(kind)
    if type(x) is Unrounded and kind in ("neg", "abs"):
        return Unrounded(tracer.pure(Unary(kind, x.value), x.dtype), lambda: unary(kind, x.exact()))
    if x.dtype.is_narrow_float and kind not in ("isnan", "isinf", "isfinite"):
        return convert(unary(kind, x.to(float32)), x.dtype)
    if kind in ("isnan", "isinf", "isfinite"):
        wide = x if x.dtype in (float32, float64) else x.to(float32)
        return Scalar(tracer.pure(Unary(kind, wide.value), bool_))
    return Scalar(tracer.pure(Unary(kind, x.value, _may_be_off(kind, x.dtype)), x.dtype))
