"""CUDA C++: which handler prints which op, printf and assertions, and the definitions that shared handlers ask for."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from tilewright.arch import Arch
from tilewright.backends.cpp.arithmetic import PAIRED, exact
from tilewright.backends.cpp.conversions import is_half, to_float
from tilewright.backends.cpp.dialect import Dialect, ExpressionHandler, StatementHandler
from tilewright.backends.cpp.expression import Expression, Rank, call, negated
from tilewright.backends.cpp.generate import EXPRESSIONS, STATEMENTS, DeviceSource
from tilewright.backends.cpp.generate import generate as generate_cpp
from tilewright.backends.cpp.memory import address, pointer_to
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.cpp.writer import string
from tilewright.backends.cuda import cache_hints, conversions, operations
from tilewright.backends.cuda.conversions import BIT_CAST
from tilewright.dtypes import DType, bool_, float16, uint64
from tilewright.ir import ops
from tilewright.ir.core import Kernel, Op, Type, Value, VectorType
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import Assert, Print

ASSERTION_FAILED = """\
__device__ __noinline__ void assertion_failed(const char* message) {
    printf("%s: in block (%u, %u, %u), thread (%u, %u, %u)\\n", message, blockIdx.x, blockIdx.y, blockIdx.z,
           threadIdx.x, threadIdx.y, threadIdx.z);
    __trap();
}"""


def print_values(printer: Printer, op: Print) -> None:
    """Print a call of printf."""
    pieces, arguments = [], []
    for text, value in zip_longest(op.texts, op.values):
        pieces.append((text or "").replace("%", "%%"))
        if value is not None:
            directive, argument = _printed(printer, op, value)
            pieces.append(directive)
            arguments.append(argument)
    printer.statement(f"printf({', '.join([string(''.join(pieces) + chr(10)), *arguments])});", op)


def _printed(printer: Printer, op: Print, value: Value) -> tuple[str, str]:
    """Return printf's directive for a value and its argument; printf takes int, 64-bit integers and double."""
    if isinstance(value.type, VectorType):
        raise printer.refuse(op, "a vector cannot be printed as a whole", "print its lanes")
    x, dtype = exact(printer, value), value.type
    if dtype is bool_:
        return "%s", f'{x.at_least(Rank.OR)} ? "True" : "False"'
    if dtype.is_float:
        return "%g", (to_float(printer, x) if is_half(dtype) else x).text
    if dtype.bits == 64:
        return ("%llu" if dtype is uint64 else "%lld"), x.text
    return ("%u" if dtype.kind == "uint" else "%d"), x.text


def check(printer: Printer, op: Assert) -> None:
    """Print the test of an assertion."""
    printer.prelude.need(ASSERTION_FAILED)
    place = f"{op.location}: " if op.location is not None else ""
    condition = exact(printer, op.condition)
    message = string(f"{place}{op.message}")
    printer.statement(f"if ({negated(condition).text}) assertion_failed({message});", op)


class Cuda(Dialect):
    """NVIDIA's C++, with instructions that it has no words for as inline PTX."""

    bit_cast = BIT_CAST
    expressions: Mapping[type[Op], ExpressionHandler] = {
        **EXPRESSIONS,
        ops.RoundToTfloat32: conversions.round_to_tfloat32,
        ops.CastPair: conversions.cast_pair,
        ops.Unary: operations.unary,
        ops.Binary: operations.binary,
    }
    statements: Mapping[type[Op], StatementHandler] = {
        **STATEMENTS,
        ops.Print: print_values,
        ops.Assert: check,
    }

    def instruction(self, printer: Printer, op: Instruction) -> Expression | None:
        return op.cuda(printer)

    def attributes(self, kernel: Kernel) -> str:
        if kernel.block is None:
            return ""
        threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
        blocks = f", {kernel.min_blocks:d}" if kernel.min_blocks else ""
        return f"__launch_bounds__({threads}{blocks}) "

    def from_float16(self) -> str:
        return conversions.FROM_FLOAT16

    def to_float16(self, source: DType) -> str:
        return conversions.to_float16(source)

    def to_bfloat16(self) -> str:
        return conversions.TO_BFLOAT16

    def from_float8(self, dtype: DType) -> str:
        return conversions.from_float8(dtype)

    def to_float8(self, dtype: DType) -> str:
        return conversions.to_float8(dtype)

    def to_narrow_integer(self, target: DType) -> str | None:
        return conversions.to_narrow_integer(target)

    def half_add(self, printer: Printer, dtype: DType) -> str | None:
        if dtype is not float16 and printer.arch.number < 90:
            return None
        c, suffix = dtype.c_name, "f16" if dtype is float16 else "bf16"
        return f"""\
{FUNCTION} {c} atomic_add({c}* address, {c} value) {{
    {c} old;
    asm volatile("atom.add.noftz.{suffix} %0, [%1], %2;" : "=h"(old.bits) : "l"(address), "h"(value.bits) : "memory");
    return old;
}}"""

    def half_function(self, printer: Printer, kind: str, type: Type) -> str | None:
        return operations.half_function(printer, kind, type) if kind in PAIRED else None

    def ordered_atomic(
        self, printer: Printer, op: Op, kind: str, dtype: DType, sem: str, scope: str
    ) -> tuple[str, str] | None:
        return operations.atomic(printer, op, kind, dtype, sem, scope)

    def hinted_load(self, printer: Printer, op: ops.Load, type: Type) -> Expression | None:
        assert op.hints is not None, op
        is_own = not op.buffer.root.is_pointed  # what an address reaches may be what another buffer writes
        read_only = printer.restrict and is_own and op.buffer not in printer.written
        read_only = read_only and op.buffer not in printer.read_in_order
        name, definition = cache_hints.load_function(op.hints, type.bytes, read_only=read_only)
        printer.prelude.need(BIT_CAST)
        printer.prelude.need(definition)
        same = type is op.buffer.dtype
        at = address(printer, op.buffer, op.index)
        return call(name, (at if same else pointer_to(printer, op.buffer, op.index, type, "const "),), type)

    def hinted_store(self, printer: Printer, op: ops.Store, type: Type, value: Expression) -> bool:
        assert op.hints is not None, op
        name, definition = cache_hints.store_function(op.hints, type.bytes)
        printer.prelude.need(BIT_CAST)
        printer.prelude.need(definition)
        place = pointer_to(printer, op.buffer, op.index, type, "")
        printer.statement(f"{name}<{printer.type_name(type)}>({place.text}, {value.text});", op)
        return True


CUDA = Cuda()


CudaSource = DeviceSource  # CUDA C++ has nothing to add to it


def generate(
    kernel: Kernel, arch: Arch | str = "sm_90a", *, line_directives: bool = False, restrict: bool = True
) -> CudaSource:
    """Return a kernel as freestanding CUDA C++ for one architecture; see `cpp.generate`."""
    return generate_cpp(kernel, Arch.parse(arch), CUDA, line_directives=line_directives, restrict=restrict)
