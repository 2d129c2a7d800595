"""HIP C++: which handler prints which op, and the definitions that the shared handlers ask for.

Ops of NVIDIA's GPUs that AMD's have no counterpart of are refused at their line, and so are functions of floats that
the library cannot make of the GPU's instructions. bfloat16 is rounded as on all targets without an instruction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from tilewright.arch import Arch
from tilewright.backends.cpp import arithmetic
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.dialect import Dialect, ExpressionHandler, StatementHandler
from tilewright.backends.cpp.expression import Expression, negated
from tilewright.backends.cpp.generate import EXPRESSIONS, STATEMENTS, DeviceSource
from tilewright.backends.cpp.generate import generate as generate_cpp
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.cpp.writer import line_comment
from tilewright.backends.hip import conversions
from tilewright.backends.hip.library import PIECES, pieces_for
from tilewright.dtypes import DType, float32
from tilewright.errors import InternalError
from tilewright.ir import ops
from tilewright.ir.core import Kernel, Op, Type
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import Assert, Binary, Print, Unary


def refuse_print(printer: Printer, op: Print) -> NoReturn:
    """Raise `LanguageError` for printf, for which ROCm's runtime would have to listen."""
    help = "write the values to an array, or print on the simulator"
    raise printer.refuse(op, f"{printer.arch} has no printf", help)


_OPERATORS = ("neg", "not", "add", "sub", "mul", "div")


def unary(printer: Printer, op: Unary) -> Expression:
    """Return a sign, a negation, or a call of a function of one argument."""
    _demand(printer, op)
    return arithmetic.unary(printer, op)


def binary(printer: Printer, op: Binary) -> Expression:
    """Return an operator between two operands, or a call of a function of two."""
    _demand(printer, op)
    return arithmetic.binary_op(printer, op)


def _demand(printer: Printer, op: Unary | Binary) -> None:
    dtype = op.operands[0].dtype
    if not dtype.is_float or op.kind in _OPERATORS:
        return
    computed = float32 if dtype.is_narrow_float else dtype
    name = op.kind if op.kind.startswith("is") else arithmetic.float_function(op.kind, computed)
    if name in PIECES:
        return
    single = arithmetic.float_function(op.kind, float32) in PIECES
    raise printer.refuse(
        op,
        f"{printer.arch} has no instruction for {op.kind} of {dtype}, and the math library of ROCm is not linked",
        "compute it in float32, for which there is one"
        if single
        else "compute it on the host, or from exp, exp2, log, log2, log10, sqrt and rsqrt of float32",
    )


def check(printer: Printer, op: Assert) -> None:
    """Print the test of an assertion; printf is missing, so the message is a comment beside it."""
    message = line_comment(" ".join(op.message.split()))
    printer.statement(f"if ({negated(exact(printer, op.condition)).text}) __builtin_trap();  {message}", op)


# AMD's GPUs have no clusters of blocks: their scope is that of the GPU.
_SCOPES = {"cta": "WORKGROUP", "cluster": "AGENT", "gpu": "AGENT", "sys": "SYSTEM"}
_SIMDS = 4  # of a compute unit, each of which holds waves of its own


class Hip(Dialect):
    """AMD's C++ as clang compiles it, without ROCm's headers and libraries."""

    bit_cast = conversions.BIT_CAST
    expressions: Mapping[type[Op], ExpressionHandler] = {
        **EXPRESSIONS,
        ops.RoundToTfloat32: conversions.round_to_tfloat32,
        ops.CastPair: conversions.cast_pair,
        ops.Unary: unary,
        ops.Binary: binary,
    }
    statements: Mapping[type[Op], StatementHandler] = {
        **STATEMENTS,
        ops.Print: refuse_print,
        ops.Assert: check,
    }

    def __init__(self, arch: Arch) -> None:
        self.arch = arch

    def instruction(self, printer: Printer, op: Instruction) -> Expression | None:
        return op.hip(printer)

    def attributes(self, kernel: Kernel) -> str:
        if kernel.block is None:
            return ""
        threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
        bounds = f"__launch_bounds__({threads}) "
        if not kernel.min_blocks:
            return bounds
        waves = kernel.min_blocks * self.arch.warps_of(threads)
        most = self.arch.warps_per_multiprocessor
        return f"{bounds}__attribute__((amdgpu_waves_per_eu({-(-min(waves, most) // _SIMDS)}))) "

    def from_float16(self) -> str:
        return conversions.FROM_FLOAT16

    def to_float16(self, source: DType) -> str:
        return conversions.to_float16(source)

    def to_bfloat16(self) -> str:
        raise InternalError(f"{self.arch} has no instruction that rounds to bfloat16")

    def from_float8(self, dtype: DType) -> str:
        return conversions.from_float8(dtype)

    def to_float8(self, dtype: DType) -> str:
        return conversions.to_float8(dtype)

    def to_narrow_integer(self, target: DType) -> str | None:
        return None  # min and max do it

    def half_add(self, printer: Printer, dtype: DType) -> str | None:
        return None  # a loop of compare-and-swap

    def ordered_atomic(
        self, printer: Printer, op: Op, kind: str, dtype: DType, sem: str, scope: str
    ) -> tuple[str, str] | None:
        name = f"atomic_{kind}_{sem}_{scope}"
        order, reach = f"__ATOMIC_{sem.upper()}", f"__HIP_MEMORY_SCOPE_{_SCOPES[scope]}"
        if kind == "cas":
            failed = "__ATOMIC_RELAXED" if sem in ("relaxed", "release") else "__ATOMIC_ACQUIRE"
            return (
                name,
                f"""\
template <typename T>
{FUNCTION} T {name}(T* address, T expected, T value) {{
    __hip_atomic_compare_exchange_strong(address, &expected, value, {order}, {failed}, {reach});
    return expected;
}}""",
            )
        if dtype.bits < 32 or (dtype.is_float and kind not in ("add", "exch")):
            return None
        function = "exchange" if kind == "exch" else f"fetch_{kind}"
        return (
            name,
            f"""\
template <typename T, typename Value>
{FUNCTION} T {name}(T* address, Value value) {{
    return __hip_atomic_{function}(address, (T)value, {order}, {reach});
}}""",
        )

    def hinted_load(self, printer: Printer, op: ops.Load, type: Type) -> Expression | None:
        return None  # the hints are of NVIDIA's caches, and for speed only

    def hinted_store(self, printer: Printer, op: ops.Store, type: Type, value: Expression) -> bool:
        return False

    def above(self, lines: Sequence[str]) -> list[str]:
        return [line for piece in pieces_for(lines) for line in _spaced(piece)]


def _spaced(piece: str) -> list[str]:
    """Return the lines of a definition, with an empty one below it where it is long."""
    lines = piece.split("\n")
    return lines if len(lines) == 1 else [*lines, ""]


HipSource = DeviceSource  # HIP C++ has nothing to add to it


def generate(
    kernel: Kernel, arch: Arch | str = "gfx90a", *, line_directives: bool = False, restrict: bool = True
) -> HipSource:
    """Return a kernel as freestanding HIP C++ for one architecture; see `cpp.generate`."""
    target = Arch.parse(arch)
    return generate_cpp(kernel, target, Hip(target), line_directives=line_directives, restrict=restrict)
