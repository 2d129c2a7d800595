"""redux: the sum, extreme or bits of a 32-bit integer over all lanes of a warp, in one instruction.

All threads of the warp take part, and all of its lanes have to exist.

Source: PTX ISA, "redux.sync"; CUDA, __reduce_add_sync and its like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import Expression, Rank, call, prefix
from tilewright.backends.sim.machine import demand_whole_warps
from tilewright.backends.sim.values import Frame, at_least_2d
from tilewright.dtypes import DType, int32, uint32
from tilewright.errors import LanguageError
from tilewright.ir.core import Value
from tilewright.ir.effects import Effects, Scope, attribute, operand
from tilewright.ir.instruction import Instruction
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import Tracer, current, refuse_partial_warps

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

_FIRST = 80  # sm_80

_COMPUTED: dict[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
KINDS = frozenset(_COMPUTED)


# --- what a kernel says ----------------------------------------------------------------------------------


def redux(value: Any, op: Any) -> Scalar:
    """Return `op` over the values of all lanes of the warp, in every lane (PTX redux.sync).

    `op` is "add", "min", "max", "and", "or" or "xor", and the value an int32 or uint32; a sum is modulo 2^32. Raises
    `LanguageError` for others, and for blocks whose last warp is partial. `tw.reduce(x, op, group="warp")` works for
    all types, on all targets, and uses this instruction where it exists.
    """
    tracer = current("tw.redux")
    if not isinstance(op, str) or op not in KINDS:
        raise LanguageError(
            f"tw.redux computes {', '.join(sorted(KINDS))}, not {op!r}",
            help='tw.reduce(x, function, group="warp") takes any associative function',
        )
    source = as_scalar(value)
    if source.dtype not in (int32, uint32):
        raise LanguageError(
            f"tw.redux takes an int32 or uint32, got a {source.dtype}",
            help=f'write tw.reduce(x, "{op}", group="warp"), or convert the value',
        )
    refuse_partial_warps(tracer, "tw.redux")
    return Scalar(tracer.emit(Redux(op, source.value), source.dtype)[0])


def has_redux(tracer: Tracer, op: str, dtype: DType) -> bool:
    """Say whether the target of a trace computes an operation of a type by `redux`."""
    arch = tracer.arch
    return not arch.is_amd and arch.number >= _FIRST and op in KINDS and dtype in (int32, uint32)


# --- the op ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Redux(Instruction):
    """result = kind over the values of all lanes of the warp."""

    kind: str = attribute()
    value: Value = operand()

    CALLED: ClassVar[str | None] = "tw.redux"
    RESULTS: ClassVar[int | None] = 1
    EFFECTS: ClassVar[Effects] = Effects(together=Scope.WARP, removable=False)
    COUNTED: ClassVar[str | None] = "redux"
    STANDS_IN_EXPRESSIONS: ClassVar[bool] = True
    ON_AMD: ClassVar[tuple[str, str] | None] = (
        "reduction of a wave in one instruction",
        'write tw.reduce(x, op, group="warp"), which shuffles',
    )

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.kind in KINDS, f"no redux {self.kind}")
        expect(self.value.type in (int32, uint32), f"a redux of {self.value.type}")
        expect(self.value.type == self.result.type, f"types differ: {self.value.type}, {self.result.type}")

    def simulate(self, compiler: Compiler) -> Step:
        """Reduce each warp; all of its lanes have to exist and to take part."""
        value, result = compiler.slot(self.value), compiler.slot(self.result)
        machine, compute = compiler.machine, _COMPUTED[self.kind]
        threads, warp = machine.threads, machine.warp

        def run(frame: Frame) -> None:
            demand_whole_warps(self, "tw.redux", frame.mask, machine, full=True)
            given = at_least_2d(frame.values[value])
            whole = -(-threads // warp) * warp
            lanes = np.zeros((given.shape[0], whole), given.dtype)
            lanes[:, :threads] = given
            found = compute.reduce(lanes.reshape(given.shape[0], -1, warp), axis=2, dtype=given.dtype)
            frame.values[result] = np.repeat(found, warp, axis=1)[:, :threads]

        return run

    def cuda(self, printer: Printer) -> Expression:
        if printer.arch.number < _FIRST:
            raise printer.refuse(
                self,
                f"tw.redux needs sm_{_FIRST} or later, and the target is {printer.arch}",
                f'write tw.reduce(x, "{self.kind}", group="warp"), which shuffles there',
            )
        type = self.value.dtype
        # CUDA declares the bitwise ones for unsigned numbers only.
        taken = uint32 if self.kind in ("and", "or", "xor") else type
        value = exact(printer, self.value)
        if value.type != taken:
            value = prefix(f"({taken.c_name})", value, taken)
        reduced = call(f"__reduce_{self.kind}_sync", (_MASK, value), taken)
        return reduced if taken is type else prefix(f"({type.c_name})", reduced, type)


_MASK = Expression("0xffffffff", Rank.ATOM, uint32)
