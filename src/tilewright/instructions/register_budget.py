"""setmaxnreg: how many registers the threads of a warpgroup have from here on.

A block's registers are divided evenly at its launch. A warpgroup that only starts copies gives most of its own back,
and those that multiply take them: a role is a branch on `tw.warpgroup_id()`, and begins with its number of registers.

Source: PTX ISA, "setmaxnreg".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import demand_whole_warps
from tilewright.backends.sim.values import Frame
from tilewright.errors import LanguageError
from tilewright.ir.effects import Effects, Scope, attribute
from tilewright.ir.instruction import Instruction
from tilewright.trace.tracer import current, refuse_partial_warps

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

_LEAST, _MOST, _UNIT = 24, 256, 8
_OF_WARPGROUP = 128  # threads


def set_registers(count: int) -> None:
    """Let each thread of the warpgroup have `count` registers from here on (PTX setmaxnreg, sm_90a).

    A block of n threads begins with 65536 / n for each, at most 255, in whole units of 8. A number below that gives
    registers back, one above waits until others have. All warpgroups together cannot have more than at the beginning.
    The kernel is compiled for one block on a multiprocessor, as by `with_options(min_blocks=1)`.

    Raises `LanguageError` for another number than 24, 32, ... to 256, and where the block is not known.
    """
    given: object = count
    tracer = current("tw.set_registers")
    if tracer.arch.name != "sm_90a":
        raise LanguageError(f"tw.set_registers: setmaxnreg needs sm_90a, and the target is {tracer.arch}")
    if not isinstance(given, int) or isinstance(given, bool) or given not in range(_LEAST, _MOST + 1, _UNIT):
        raise LanguageError(
            f"tw.set_registers takes {_LEAST} to {_MOST} registers in steps of {_UNIT}, got {given!r}",
            help="the number is part of the instruction: a Python int",
        )
    if tracer.block_shape is None:
        raise LanguageError(
            "tw.set_registers: the size of the block, from which follows how many registers a thread begins with, is "
            "not known",
            help="lower or launch the kernel with its block",
        )
    refuse_partial_warps(tracer, "tw.set_registers", _OF_WARPGROUP)
    x, y, z = tracer.block_shape
    first = registers_at_launch(x * y * z)
    if given > first and x * y * z == _OF_WARPGROUP:
        raise LanguageError(
            f"tw.set_registers({given}): the one warpgroup of the block begins with {first} registers a thread, and no "
            "other can give it more",
            help="leave it out",
        )
    tracer.emit(SetRegisters(given, first))


def registers_at_launch(threads: int) -> int:
    """Return how many registers each thread of a block has that is compiled to be alone on its multiprocessor.

    >>> [registers_at_launch(threads) for threads in (128, 256, 384, 512)]
    [255, 255, 168, 128]
    """
    return min(255, 65536 // threads // _UNIT * _UNIT)


@dataclass(eq=False)
class SetRegisters(Instruction):
    """Let the threads of the warpgroup have `count` registers, where they began with `first` (setmaxnreg)."""

    count: int = attribute()
    first: int = attribute()

    CALLED: ClassVar[str | None] = "tw.set_registers"
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(together=Scope.WARPGROUP, removable=False, refused_apart=True)
    COUNTED: ClassVar[str | None] = None
    RESERVED: ClassVar[str] = r"set_registers_\w+"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("setmaxnreg", "leave it out: the compiler divides the registers")

    @property
    def effects(self) -> Effects:
        return replace(self.EFFECTS, registers=self.count)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.count in range(_LEAST, _MOST + 1, _UNIT), f"no number of registers: {self.count}")

    def simulate(self, compiler: Compiler) -> Step:
        """Count what the warpgroups of a block have: together not more than at the launch."""
        machine = compiler.machine

        def run(frame: Frame) -> None:
            demand_whole_warps(self, "tw.set_registers", frame.mask, machine, full=True)
            groups = machine.products
            groups.registers = np.where(groups.active(frame.mask), self.count, groups.registers)
            least = np.where(groups.registers > 0, groups.registers, _LEAST).sum(axis=1)
            if machine.observers and (least > self.first * groups.count).any():
                self._report(compiler, int(np.argmax(least > self.first * groups.count)), groups.registers)

        return run

    def _report(self, compiler: Compiler, row: int, registers: Any) -> None:  # Any: an array (blocks, warpgroups)
        machine = compiler.machine
        held = ", ".join(str(n) if n else f"at least {_LEAST}" for n in registers[row].tolist())
        machine.collector.report(
            Fault(
                self, "too-many-registers",
                f"too many registers: the warpgroups of a block have {held} a thread, and began with {self.first} each",
                machine.block_coordinate(row),
                help="let others give back what this one takes: tw.set_registers of a smaller number in their branch",
            )
        )  # fmt: skip

    def cuda(self, printer: Printer) -> None:
        if printer.arch.name != "sm_90a":
            raise printer.refuse(self, f"setmaxnreg needs sm_90a, and the target is {printer.arch}")
        if self.count == self.first:
            return
        direction = "inc" if self.count > self.first else "dec"
        printer.prelude.need(
            "// Lets the threads of the warpgroup have so many registers from here on.\n"
            f"template <int count>\n{FUNCTION} void set_registers_{direction}() {{\n"
            f'    asm volatile("setmaxnreg.{direction}.sync.aligned.u32 %0;" :: "n"(count));\n}}'
        )
        printer.statement(f"set_registers_{direction}<{self.count}>();", self)
