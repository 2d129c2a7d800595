"""CUDA C++: which handler prints which op, and the definitions that the shared handlers ask for."""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.backends.cpp.dialect import Dialect
from tilewright.backends.cpp.expression import Expression, call
from tilewright.backends.cpp.generate import EXPRESSIONS, STATEMENTS, DeviceSource
from tilewright.backends.cpp.generate import generate as generate_cpp
from tilewright.backends.cpp.memory import address, pointer_to
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.cuda import cache_hints, conversions, messages
from tilewright.backends.cuda.conversions import BIT_CAST
from tilewright.dtypes import DType, float16
from tilewright.ir import ops
from tilewright.ir.core import Kernel, Type
from tilewright.ir.instruction import Instruction


class Cuda(Dialect):
    """NVIDIA's C++, with instructions that it has no words for as inline PTX."""

    bit_cast = BIT_CAST
    expressions = {
        **EXPRESSIONS,
        ops.RoundToTfloat32: conversions.round_to_tfloat32,
        ops.CastPair: conversions.cast_pair,
    }
    statements = {
        **STATEMENTS,
        ops.Print: messages.print_values,
        ops.Assert: messages.check,
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

    def hinted_load(self, printer: Printer, op: ops.Load, type: Type) -> Expression | None:
        assert op.hints is not None, op
        read_only = printer.restrict and op.buffer not in printer.written
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
