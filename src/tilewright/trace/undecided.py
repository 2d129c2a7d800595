"""What Python would need to know of a device value now, and only the device will know: refused, with a way out."""

from __future__ import annotations

import dis
import sys
from types import FrameType
from typing import TYPE_CHECKING, Any

from tilewright.errors import LanguageError
from tilewright.ir.ops import Constant
from tilewright.trace.tracer import asked_by_user, is_user_code

if TYPE_CHECKING:
    from tilewright.dtypes import DType
    from tilewright.ir.core import Value

_PRINT = "tw.device_print('x is', x) prints it when the kernel runs; repr(x) says what is known of it now"


def _undecided(what: str, help: str) -> LanguageError:
    return LanguageError(f"{what} is not known while the kernel is traced", help=help)


def _is_subscript(frame: FrameType) -> bool:
    """Say whether code of the user reads or writes x[...] at the moment."""
    if not is_user_code(frame.f_code):
        return False
    found = next((i for i in dis.get_instructions(frame.f_code) if i.offset == frame.f_lasti), None)
    # Python 3.14 has BINARY_OP [] for it.
    return found is not None and ("SUBSCR" in found.opname or found.argrepr.startswith("["))


class Undecided:
    """A value that has no truth, text or hash while a kernel is traced, unless it is a constant."""

    __slots__ = ()

    if TYPE_CHECKING:
        value: Value

        @property
        def dtype(self) -> DType: ...

    def _known(self) -> Any:
        """Return the number where it is a constant, such as `tw.int32(4)`, else None."""
        op = self.value.definition
        return op.value if isinstance(op, Constant) else None

    def __bool__(self) -> bool:
        if (known := self._known()) is not None:
            return bool(known)
        raise _undecided(
            "the truth of a device value",
            "decorate a helper function with @tw.function; "
            "in a lambda, a comprehension or a sort, write tw.where(condition, a, b)",
        )

    def __index__(self) -> int:
        if (known := self._known()) is not None and self.dtype.is_integer:
            return int(known)
        if _is_subscript(sys._getframe(1)):
            raise LanguageError(
                "a device value indexes what is not an array",
                help="pass an array where the kernel has x[...]: a number has no elements, and a list or a tuple is "
                "indexed by what is known while tracing, such as indices of tw.static_range",
            )
        raise _undecided(
            "the value of a device integer",
            "make it a tw.constexpr parameter, or a loop's index with tw.static_range, to know it while tracing",
        )

    def __int__(self) -> int:
        if (known := self._known()) is not None:
            return int(known)
        raise _undecided("the value of a device number as an int", "convert with tw.int32(x)")

    def __float__(self) -> float:
        if (known := self._known()) is not None:
            return float(known)
        raise _undecided(
            "the value of a device number as a float",
            "convert with tw.float32(x); use tw.sqrt and the like in place of math's functions",
        )

    def __iter__(self) -> Any:
        raise LanguageError("a device value is one number, and cannot be iterated over", help="loop over range(x)")

    def __str__(self) -> str:
        if asked_by_user():
            raise _undecided("the text of a device value", _PRINT)
        return self.value.name or "?"

    def __format__(self, spec: str) -> str:
        if asked_by_user():
            raise _undecided("the text of a device value", _PRINT)
        return repr(self)

    def __repr__(self) -> str:
        return f"<device {self.dtype}{' ' + self.value.name if self.value.name else ''}>"

    def __hash__(self) -> int:
        if asked_by_user():
            raise _undecided(
                "the hash of a device value, by which sets and dicts look up,",
                "compare with each item: x in (1, 3), tw.where(x == 1, a, b), or a table in a tensor",
            )
        return object.__hash__(self)  # of this object: two of one value differ
