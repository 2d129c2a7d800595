"""Approximate functions by name: what the special function unit computes, in one instruction or two.

The simulator computes the exact function, rounded once; how far the instructions are from it is said at each.

Source: PTX ISA, "ex2.approx", "lg2.approx", "rcp.approx", "rsqrt.approx", "sqrt.approx", "sin.approx", "cos.approx",
"tanh.approx", "div.approx".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.arguments import shown
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import Expression, call
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim import floats
from tilewright.backends.sim.values import Array
from tilewright.dtypes import DType, float16, float32
from tilewright.errors import LanguageError
from tilewright.ir.core import Value
from tilewright.ir.effects import attribute, operands
from tilewright.ir.instruction import ScalarInstruction, TypedValues
from tilewright.tensors.arithmetic import elementwise
from tilewright.trace.scalar import Scalar, as_scalar, convert
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer


# --- what a kernel says ----------------------------------------------------------------------------------


@elementwise(1)
def ex2_approx(x: Any, *, ftz: bool = False) -> Scalar:
    """Return 2 ** x, within 2 ulp; within 2 ** -9.9 of it for a float16, for which there is an instruction.

    With `ftz` subnormal operands and results are zero, which saves the instructions that scale them.
    """
    return _approximate("ex2", ftz, x)


@elementwise(1)
def lg2_approx(x: Any, *, ftz: bool = False) -> Scalar:
    """Return the logarithm to base 2: within 2 ** -22 for x from 0.5 to 2, elsewhere within that times the result."""
    return _approximate("lg2", ftz, x)


@elementwise(1)
def rcp_approx(x: Any, *, ftz: bool = False) -> Scalar:
    """Return 1 / x, within 1 ulp."""
    return _approximate("rcp", ftz, x)


@elementwise(1)
def rsqrt_approx(x: Any, *, ftz: bool = False) -> Scalar:
    """Return 1 / sqrt(x), within 2 ** -22.9 times the result."""
    return _approximate("rsqrt", ftz, x)


@elementwise(1)
def sqrt_approx(x: Any, *, ftz: bool = False) -> Scalar:
    """Return the square root, within 2 ** -23 times the result."""
    return _approximate("sqrt", ftz, x)


@elementwise(1)
def sin_approx(x: Any, *, ftz: bool = False) -> Scalar:
    """Return the sine, within 2 ** -20.5 for x from -2 pi to 2 pi and less accurate beyond."""
    return _approximate("sin", ftz, x)


@elementwise(1)
def cos_approx(x: Any, *, ftz: bool = False) -> Scalar:
    """Return the cosine, within 2 ** -20.5 for x from -2 pi to 2 pi and less accurate beyond."""
    return _approximate("cos", ftz, x)


@elementwise(1)
def tanh_approx(x: Any) -> Scalar:
    """Return the hyperbolic tangent, within 2 ** -11 times the result; for a float16 within an absolute 2 ** -10.987.

    Needs sm_75.
    """
    return _approximate("tanh", False, x)


@elementwise(2)
def div_approx(a: Any, b: Any, *, ftz: bool = False) -> Scalar:
    """Return a / b, within 2 ulp for a divisor from 2 ** -126 to 2 ** 126 in magnitude; 0 for a greater one.

    An infinite dividend over a divisor beyond 2 ** 126 gives NaN.
    """
    return _approximate("div", ftz, a, b)


def _approximate(kind: str, ftz: bool, *values: Any) -> Scalar:
    what = f"tw.{kind}_approx"
    if not isinstance(ftz, bool):
        raise LanguageError(f"ftz= of {what} is True or False, known while tracing, got {shown(ftz)}")
    tracer = current(what)
    scalars = [as_scalar(x) for x in values]
    typed = [x.dtype for x, given in zip(scalars, values, strict=True) if not isinstance(given, (int, float))]
    types = {t for t in typed if t.is_float} or {float32}
    if len(types) > 1 or not min(types, key=str).bits <= 32:
        raise LanguageError(
            f"{what} computes in float32, got {' and '.join(map(str, typed))}",
            help="convert to float32 first: x.to(tw.float32)",
        )
    (type,) = types
    if kind == "tanh" and not tracer.arch.is_amd and tracer.arch.number < 75:
        raise LanguageError(f"tanh.approx needs sm_75 or later, and the target is {tracer.arch}", help="use tw.tanh")
    own = type is float16 and kind in _OF_FLOAT16 and not ftz and tracer.arch.number >= 75
    computed = float16 if own else float32
    op = Approximate(kind, ftz, tuple(x.to(computed).value for x in scalars))
    return convert(Scalar(tracer.pure(op, computed)), type)


# --- the op ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Approximate(ScalarInstruction):
    """result = a function of float32 operands, near enough; of float16 where the GPU has an instruction for it."""

    kind: str = attribute()
    ftz: bool = attribute()
    values: tuple[Value, ...] = operands()

    CALLED: ClassVar[str | None] = "an approximate function"
    COUNTED: ClassVar[str | None] = "special function"
    RESERVED: ClassVar[str] = r"\w+_approx(_ftz)?(_f16)?"

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.kind in _KINDS, f"no approximate {self.kind}")
        type = self.result.type
        expect(type is float32 or (type is float16 and self.kind in _OF_FLOAT16), f"no approximate {self.kind}: {type}")
        expect(all(v.type == type for v in self.values), "types differ")
        expect(len(self.values) == (2 if self.kind == "div" else 1), "wrong number of operands")

    def compute(self, *operands: Array) -> Array:
        given = [_flushed(x) for x in operands] if self.ftz else list(operands)
        result = _KINDS[self.kind](self.values[0].dtype)(*given)
        return _flushed(result) if self.ftz else result

    def floats(self) -> tuple[TypedValues, TypedValues]:
        return [(v, v.dtype) for v in self.values], [(self.result, self.result.dtype)]

    def cuda(self, printer: Printer) -> Expression:
        type = self.result.dtype
        ftz, half = ".ftz" if self.ftz else "", type is float16
        name = f"{self.kind}_approx{'_ftz' if self.ftz else ''}{'_f16' if half else ''}"
        letters = ("a", "b") if self.kind == "div" else ("x",)
        inputs = ", ".join(f'"h"({n}.bits)' if half else f'"f"({n})' for n in letters)
        places = ", ".join(f"%{n}" for n in range(len(letters) + 1))
        output = '"=h"(y.bits)' if half else '"=f"(y)'
        c = type.c_name
        printer.prelude.need_type(type)
        printer.prelude.need(f"""\
{FUNCTION} {c} {name}({", ".join(f"{c} {n}" for n in letters)}) {{
    {c} y;
    asm("{self.kind}.approx{ftz}.{"f16" if half else "f32"} {places};" : {output} : {inputs});
    return y;
}}""")
        return call(name, tuple(exact(printer, v) for v in self.values), type)

    def hip(self, printer: Printer) -> Expression:
        """Return what the library makes of the GPU's instructions, which are as near; they flush subnormals."""
        text = _ON_AMD.get(self.kind)
        if text is None:
            raise printer.refuse(
                self,
                f"{printer.arch} has no instruction that the library makes {self.kind} of",
                "compute it on the host, or from tw.exp2, tw.log2, tw.sqrt and tw.rsqrt",
            )
        values = [exact(printer, v) for v in self.values]
        letters = ("a", "b") if self.kind == "div" else ("x",)
        name, parameters = f"{self.kind}_approx", ", ".join(f"float {n}" for n in letters)
        printer.prelude.need(f"{FUNCTION} float {name}({parameters}) {{\n    return {text};\n}}")
        return call(name, tuple(values), float32)


# --- what they compute -----------------------------------------------------------------------------------


def _unary(name: str) -> Callable[[DType], Callable[..., Array]]:
    def of(dtype: DType) -> Callable[..., Array]:
        function = floats.unary(name, dtype)
        assert function is not None, name
        return function

    return of


_KINDS: dict[str, Callable[[DType], Callable[..., Array]]] = {
    "ex2": _unary("exp2"),
    "lg2": _unary("log2"),
    "rcp": lambda dtype: lambda x: np.asarray(x.dtype.type(1) / x),
    "rsqrt": _unary("rsqrt"),
    "sqrt": _unary("sqrt"),
    "sin": _unary("sin"),
    "cos": _unary("cos"),
    "tanh": _unary("tanh"),
    "div": lambda dtype: floats.approximate_quotient,
}
_OF_FLOAT16 = frozenset({"ex2", "tanh"})
_ON_AMD = {
    "ex2": "exp2f(x)",
    "lg2": "log2f(x)",
    "rcp": "1.0f / x",
    "rsqrt": "rsqrtf(x)",
    "sqrt": "sqrtf(x)",
    "div": "a / b",
}


def _flushed(x: Array) -> Array:
    """Return float32 with zeros, of the same sign, in place of subnormal numbers."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)
