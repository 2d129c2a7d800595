"""setmaxnreg: how many registers the threads of a warpgroup have from here on.

A block's registers are divided evenly at its launch. A warpgroup that only starts copies gives most of its own back,
and those that multiply take them: a role is a branch on `tw.warpgroup_id()`, and begins with its number of registers.
It may change that later. One instruction gives back and another takes; which of them it is follows from what the calls
before have left.

Source: PTX ISA, "setmaxnreg".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.agents import Agent, Pause, Scheduler, Waiting
from tilewright.backends.sim.machine import demand_whole_warps
from tilewright.backends.sim.values import Array, Frame, Lanes, Mask
from tilewright.errors import InternalError, LanguageError
from tilewright.ir.core import Block, Kernel, Op
from tilewright.ir.effects import WARPS_OF, Effects, Scope, Waits, attribute
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import For, If, While
from tilewright.trace.tracer import current, refuse_partial_warps

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

_LEAST, _MOST, _UNIT = 24, 256, 8
_OF_WARPGROUP = 128  # threads


def set_registers(count: int) -> None:
    """Set the number of registers of each thread of the warpgroup from here on (PTX setmaxnreg, sm_90a).

    A block of n threads starts with 65536 / n for each, at most 255, in whole units of 8; with 65536 / (n b) where the
    kernel is compiled for b blocks on a multiprocessor, by `configure(min_blocks=b)`. A `count` below the current
    number releases registers; one above it waits until other warpgroups have released enough. All warpgroups together
    cannot have more than at the start.

    Raises `LanguageError` for a number other than 24, 32, ... to 256, for one that the block never has left, and where
    the block is not known.
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
    tracer.emit(SetRegisters(given, x * y * z))


def registers_at_launch(threads: int) -> int:
    """Return how many registers each thread has at first; `threads` are those of all blocks of a multiprocessor.

    >>> [registers_at_launch(threads) for threads in (128, 256, 384, 512)]
    [255, 255, 168, 128]
    """
    return min(255, 65536 // threads // _UNIT * _UNIT)


@dataclass(eq=False)
class SetRegisters(Instruction):
    """Let the threads of the warpgroup, in a block of so many, have `count` registers (setmaxnreg)."""

    count: int = attribute()
    threads: int = attribute()
    at_once: int = attribute(default=1)  # blocks of a multiprocessor, that the kernel is compiled for

    CALLED: ClassVar[str | None] = "tw.set_registers"
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(
        together=Scope.WARPGROUP, removable=False, refused_apart=True, waits=Waits.SOME
    )
    COUNTED: ClassVar[str | None] = None
    RESERVED: ClassVar[str] = r"set_registers_\w+"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("setmaxnreg", "leave it out: the compiler divides the registers")

    @property
    def first(self) -> int:
        """What they began with."""
        return registers_at_launch(self.threads * self.at_once)

    @property
    def effects(self) -> Effects:
        return replace(self.EFFECTS, registers=self.count)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.count in range(_LEAST, _MOST + 1, _UNIT), f"no number of registers: {self.count}")

    def simulate(self, compiler: Compiler) -> Step:
        raise InternalError("tw.set_registers outside of agents", location=self.location)

    def pause(self, compiler: Compiler, live: Sequence[int]) -> Pause:
        return _Take(self, compiler, live)

    def cuda(self, printer: Printer) -> None:
        if printer.arch.name != "sm_90a":
            raise printer.refuse(self, f"setmaxnreg needs sm_90a, and the target is {printer.arch}")
        before = _known.get(printer.kernel)
        if before is None:
            before = _known[printer.kernel] = registers_before(printer.kernel)
        has = before[self] or self.first
        if has == _UNKNOWN:
            raise printer.refuse(
                self,
                "tw.set_registers: setmaxnreg gives back or takes, and how many registers the warpgroup has here is "
                "not the same on all ways to this line",
                help="let every role that comes here have called tw.set_registers with one number, or none of them",
            )
        if self.count == has:
            return
        direction = "inc" if self.count > has else "dec"
        printer.prelude.need(
            "// Lets the threads of the warpgroup have so many registers from here on.\n"
            f"template <int count>\n{FUNCTION} void set_registers_{direction}() {{\n"
            f'    asm volatile("setmaxnreg.{direction}.sync.aligned.u32 %0;" :: "n"(count));\n}}'
        )
        printer.statement(f"set_registers_{direction}<{self.count}>();", self)


def share_registers(kernel: Kernel) -> None:
    """Tell the calls of a kernel how many blocks it is compiled for: without a number ptxas takes no notice of them.

    Raises `LanguageError` where a call takes more registers than all other warpgroups can ever give back.
    """
    found = [op for op in kernel.body.walk() if isinstance(op, SetRegisters)]
    kernel.min_blocks = kernel.min_blocks or int(bool(found))
    for op in found:
        op.at_once = kernel.min_blocks
        groups = -(-op.threads // _OF_WARPGROUP)
        if op.count > (most := op.first * groups - _LEAST * (groups - 1)):
            raise LanguageError(
                f"tw.set_registers({op.count}): each of the block's {groups} warpgroups begins with {op.first} "
                f"registers a thread and keeps at least {_LEAST}, so that one can have {most}",
                help="take fewer, or leave it out" if most > op.first else "leave it out",
                location=op.location,
            )


_AT_LAUNCH, _UNKNOWN = 0, -1
_known: WeakKeyDictionary[Kernel, dict[Op, int]] = WeakKeyDictionary()


def registers_before(kernel: Kernel) -> dict[Op, int]:
    """Return for each call what the warpgroup has before it: a number, 0 as at the launch, -1 not known."""
    found: dict[Op, int] = {}
    _after(kernel.body, _AT_LAUNCH, found)
    return found


def _after(block: Block, has: int, found: dict[Op, int]) -> int:
    """Return what a warpgroup has after a block, and note what it has before each call in it."""
    for op in block.ops:
        if isinstance(op, SetRegisters):
            found[op] = has
            has = op.count
        elif isinstance(op, If):
            has = _either(*(_after(side, has, found) for side in op.blocks))
        elif isinstance(op, (For, While)):
            for _ in range(2):  # what an iteration leaves the next one finds
                for inner in op.blocks:
                    has = _either(has, _after(inner, has, found))
    return has


def _either(one: int, other: int) -> int:
    return one if one == other else _UNKNOWN


class _Take(Pause):
    """A wait until the block has as many registers left as the warpgroup takes. Giving registers back does not wait."""

    op: SetRegisters
    group = WARPS_OF[Scope.WARPGROUP]

    def __init__(self, op: SetRegisters, compiler: Compiler, live: Sequence[int]) -> None:
        super().__init__(live)
        self.op, self._machine = op, compiler.machine

    def begin(self, frame: Frame) -> None:
        demand_whole_warps(self.op, "tw.set_registers", frame.mask, self._machine, full=True)

    def _held(self) -> Array:
        """Return what each warpgroup has: (blocks, warpgroups)."""
        registers = self._machine.products.registers
        return np.where(registers > 0, registers, self.op.first)

    def _granted(self, mask: Mask) -> Array:
        """Return the warpgroups of a mask that get what they ask for."""
        groups, held = self._machine.products, self._held()
        more = np.where(groups.active(mask), self.op.count - held, 0)
        left = self.op.first * groups.count - held.sum(axis=1, keepdims=True)
        return np.asarray((more <= 0) | (np.maximum(more, 0).cumsum(axis=1) <= left))

    def ready(self, agent: Agent, scheduler: Scheduler) -> Lanes:
        size, threads = self._machine.products.size, self._machine.threads
        granted = np.repeat(self._granted(agent.frame.mask), size, axis=1)
        return np.pad(granted, ((0, 0), (0, threads - granted.shape[1])), constant_values=True)

    def finish(self, agent: Agent, scheduler: Scheduler) -> None:
        """Have the registers."""
        groups = self._machine.products
        groups.registers = np.where(groups.active(agent.frame.mask), self.op.count, groups.registers)

    def waiting(self, frame: Frame, row: int, threads: Array) -> list[Waiting]:
        held = self._held()[row]
        left = self.op.first * len(held) - int(held.sum())
        summary = (
            f"too many registers: the warpgroups of a block have {', '.join(map(str, held))} a thread, and began with "
            f"{self.op.first} each; one of them waits for {self.op.count}"
        )
        return [
            Waiting(
                self.op, threads, f"{self.op.count} registers a thread, of which {left} are left over",
                "let others give back what this one takes: tw.set_registers of a smaller number in their branch",
                "too-many-registers", summary,
            )
        ]  # fmt: skip
