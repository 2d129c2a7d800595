"""HIP C++: which handler prints which op, and the definitions that the shared handlers ask for."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arch import Arch
from tilewright.backends.cpp.dialect import Dialect
from tilewright.backends.cpp.expression import Expression
from tilewright.backends.cpp.handlers import EXPRESSIONS, STATEMENTS
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.hip import conversions, mathematics, threads
from tilewright.backends.hip.library import pieces_for
from tilewright.backends.hip.missing import MISSING_STATEMENTS, MISSING_VALUES, refuse
from tilewright.dtypes import DType
from tilewright.errors import InternalError
from tilewright.ir import ops
from tilewright.ir.core import Kernel, Type
from tilewright.ir.instruction import Instruction

_SIMDS = 4  # of a compute unit, each of which holds waves of its own


class Hip(Dialect):
    """AMD's C++ as clang compiles it, without ROCm's headers and libraries."""

    bit_cast = conversions.BIT_CAST
    expressions = {
        **EXPRESSIONS,
        **dict.fromkeys(MISSING_VALUES, refuse),
        ops.Unary: mathematics.unary,
        ops.Binary: mathematics.binary,
    }
    statements = {
        **STATEMENTS,
        **dict.fromkeys(MISSING_STATEMENTS, refuse),
        ops.Assert: threads.check,
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
        raise InternalError(f"{self.arch} has no instruction that converts {dtype}")

    def to_float8(self, dtype: DType) -> str:
        raise InternalError(f"{self.arch} has no instruction that converts to {dtype}")

    def half_add(self, printer: Printer, dtype: DType) -> str | None:
        return None  # a loop of compare-and-swap

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
