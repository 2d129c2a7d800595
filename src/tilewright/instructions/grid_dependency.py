"""griddepcontrol: a launch that begins before the one before it on its stream has ended.

    LaunchDependents    griddepcontrol.launch_dependents    the next launch may begin
    GridDependencyWait  griddepcontrol.wait                 waits for the launches before this one, and their memory

CUDA calls it programmatic dependent launch. A kernel with the option `dependent_launch=True` may begin while the launch
before it still runs: its blocks set up barriers and read what nobody writes. Before it reads what the launch before
writes, or writes what that reads or writes, it waits. Without the option both do nothing: the launch begins when the
others have ended.

Source: PTX ISA, "griddepcontrol"; CUDA driver API, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION; CUTLASS,
grid_dependency_control.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.values import Frame
from tilewright.errors import LanguageError
from tilewright.ir.effects import Effects, Order
from tilewright.ir.instruction import Instruction
from tilewright.trace.tracer import Tracer, current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

_WAY_OUT = "leave it out there: a launch begins when the one before it on its stream has ended"


def grid_dependency_wait() -> None:
    """Wait until the launches before this one have ended and their memory is visible (PTX griddepcontrol.wait).

    A kernel that is launched with `dependent_launch=True` calls it before it reads what the previous launch wrote, or
    writes what that launch reads or writes. One thread may wait for the others, if a barrier follows. In other launches
    it does nothing. Raises `LanguageError` before sm_90. Source: CUTLASS `wait_on_dependent_grids`.
    """
    _demand("tw.grid_dependency_wait").emit(GridDependencyWait())


def launch_dependents() -> None:
    """Let the next launch begin, if it has `dependent_launch=True` (PTX griddepcontrol.launch_dependents).

    It may begin when each block has called this or ended. The call orders no memory: the next launch sees what this
    kernel writes, before or after the call, only after its `tw.grid_dependency_wait`. Raises `LanguageError` before
    sm_90. Source: CUTLASS `launch_dependent_grids`.
    """
    _demand("tw.launch_dependents").emit(LaunchDependents())


def _demand(what: str) -> Tracer:
    tracer = current(what)
    if tracer.arch.is_amd or tracer.arch.number < 90:
        raise LanguageError(
            f"{what}: {tracer.arch} has no launches that begin early; they need sm_90 or later", help=_WAY_OUT
        )
    return tracer


class _Control(Instruction):
    """A griddepcontrol; `ACTION` is PTX's, `COMMENT` what a reader of the C++ is told."""

    RESULTS: ClassVar[int | None] = 0
    ON_AMD: ClassVar[tuple[str, str] | None] = ("launches that begin early; they need sm_90 or later", _WAY_OUT)
    COUNTED: ClassVar[str | None] = None
    FUNCTION_NAME: ClassVar[str]
    ASSEMBLY: ClassVar[str]
    COMMENT: ClassVar[str]

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        """Expect nothing: it has no operands."""

    def cuda(self, printer: Printer) -> None:
        if printer.arch.number < 90:
            raise printer.refuse(
                self, f"griddepcontrol needs sm_90 or later, and the target is {printer.arch}", _WAY_OUT
            )
        printer.prelude.need(f"""\
// {self.COMMENT}
{FUNCTION} void {self.FUNCTION_NAME}() {{
    asm volatile("{self.ASSEMBLY};" ::: "memory");
}}""")
        printer.statement(f"{self.FUNCTION_NAME}();", self)


@dataclass(eq=False)
class GridDependencyWait(_Control):
    """Wait for the launches before this one; reads of all global memory stay behind it."""

    CALLED: ClassVar[str | None] = "tw.grid_dependency_wait"
    EFFECTS: ClassVar[Effects] = Effects(removable=False, order=Order.ACQUIRE, keeps_reads=True, awaits_grids=True)
    COUNTED: ClassVar[str | None] = "wait"
    RESERVED: ClassVar[str] = "grid_dependency_wait"
    FUNCTION_NAME: ClassVar[str] = "grid_dependency_wait"
    ASSEMBLY: ClassVar[str] = "griddepcontrol.wait"
    COMMENT: ClassVar[str] = "Waits until the launches before this one have ended and their memory is visible."

    def simulate(self, compiler: Compiler) -> Step:
        """Tell the observers: the launches before have ended already."""
        observers = compiler.machine.observers

        def run(frame: Frame) -> None:
            for observer in observers:
                observer.await_grids(self, frame.mask)

        return run


@dataclass(eq=False)
class LaunchDependents(_Control):
    """Let the next launch begin."""

    CALLED: ClassVar[str | None] = "tw.launch_dependents"
    EFFECTS: ClassVar[Effects] = Effects(removable=False)
    COUNTED: ClassVar[str | None] = "launch dependents"
    RESERVED: ClassVar[str] = "launch_dependents"
    FUNCTION_NAME: ClassVar[str] = "launch_dependents"
    ASSEMBLY: ClassVar[str] = "griddepcontrol.launch_dependents"
    COMMENT: ClassVar[str] = "Lets the next launch on the stream begin, where it may begin early."

    def simulate(self, compiler: Compiler) -> Step:
        """Do nothing: it orders nothing."""
        return lambda frame: None
