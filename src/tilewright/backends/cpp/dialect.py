"""What a vendor's C++ writes its own way: the part of a text that printing cannot share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.dtypes import DType
from tilewright.ir.core import Kernel, Op, Type
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import Load, Store

if TYPE_CHECKING:
    from tilewright.backends.cpp.expression import Expression
    from tilewright.backends.cpp.printer import Printer

# A handler takes the printer and an op of its class; Any, because a table of handlers holds many classes.
ExpressionHandler = Callable[["Printer", Any], "Expression"]
StatementHandler = Callable[["Printer", Any], None]


class Dialect(ABC):
    """A vendor's C++: the handlers of all ops, and the few definitions and words that the shared handlers ask for."""

    # The handler of each op with a result, which gives its expression, and of each other op, which writes statements.
    expressions: Mapping[type[Op], ExpressionHandler]
    statements: Mapping[type[Op], StatementHandler]
    bit_cast: str  # the definition of bit_cast<To>(from)

    @abstractmethod
    def instruction(self, printer: Printer, op: Instruction) -> Expression | None:
        """Return the expression of an instruction's result, or print its statements and return None."""

    @abstractmethod
    def attributes(self, kernel: Kernel) -> str:
        """Return what is written between a kernel's `void` and its name, ending with a space, or nothing."""

    @abstractmethod
    def from_float16(self) -> str:
        """Return the body of `float to_float(half x)`."""

    @abstractmethod
    def to_float16(self, source: DType) -> str:
        """Return the definition of `half to_half(source x)`, which rounds once, to nearest even."""

    @abstractmethod
    def to_bfloat16(self) -> str:
        """Return the definition of the rounding of a float to bfloat16, for targets with an instruction for it."""

    @abstractmethod
    def from_float8(self, dtype: DType) -> str:
        """Return the body of `float to_float(dtype x)` of an 8-bit float, for targets that have them."""

    @abstractmethod
    def to_float8(self, dtype: DType) -> str:
        """Return the definition of the conversion of a float to an 8-bit float, for targets that have them."""

    @abstractmethod
    def to_narrow_integer(self, target: DType) -> str | None:
        """Return the body of `target to_target(float x)`, to 8 or 16 bits, or None where no instruction saturates."""

    @abstractmethod
    def half_add(self, printer: Printer, dtype: DType) -> str | None:
        """Return the definition of `atomic_add` of a 16-bit float by an instruction, or None where there is none."""

    def half_function(self, printer: Printer, kind: str, type: Type) -> str | None:
        """Return the definition of an operation on one or two 16-bit floats by an instruction, None without one."""
        return None

    @abstractmethod
    def ordered_atomic(
        self, printer: Printer, op: Op, kind: str, dtype: DType, sem: str, scope: str
    ) -> tuple[str, str] | None:
        """Return the name and the definition of an atomic operation with semantics and scope, or None without one.

        There always is one for the kind "cas", of unsigned integers.
        """

    @abstractmethod
    def hinted_load(self, printer: Printer, op: Load, type: Type) -> Expression | None:
        """Return a load with cache hints, or None where the target loads as without them."""

    @abstractmethod
    def hinted_store(self, printer: Printer, op: Store, type: Type, value: Expression) -> bool:
        """Print a store with cache hints; return False where the target stores as without them."""

    def above(self, lines: Sequence[str]) -> list[str]:
        """Return definitions for what the lines of the text use, to be written above its own."""
        return []
