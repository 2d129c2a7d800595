"""A barrier of all threads of the grid, for launches whose blocks are all on the GPU at once.

Source: CUDA programming guide, "Grid Synchronization"; the driver's cooperative launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.agents import Agent, Pause, Scheduler, Waiting
from tilewright.backends.sim.values import Array, Frame, Lanes
from tilewright.ir.effects import Effects, Order, Scope, Waits
from tilewright.ir.instruction import Instruction
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step


# --- what a kernel says ----------------------------------------------------------------------------------


def sync_grid() -> None:
    """Wait for all threads of all blocks; their memory accesses are then visible (grid_group::sync).

    A kernel with it is launched cooperatively: all blocks run at the same time, and for a grid that does not fit the
    launch raises an error with the number of blocks that do. No block may exit before it. Launches of one kernel on one
    stream use the barrier one after the other; do not replay one CUDA graph on several streams at once, where they
    would share it.
    """
    current("tw.sync_grid").emit(GridBarrier())


# --- the op ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class GridBarrier(Instruction):
    """Wait for all threads of the grid, and make their memory accesses visible."""

    CALLED: ClassVar[str | None] = "tw.sync_grid"
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(
        together=Scope.GRID, removable=False, refused_apart=True, order=Order.BOTH, waits=Waits.ALL
    )
    COUNTED: ClassVar[str | None] = "grid barrier"
    RESERVED: ClassVar[str] = "sync_grid|grid_arrivals"
    ON_AMD: ClassVar[tuple[str, str] | None] = (
        "barrier of the grid here",
        "split the kernel: two launches on one stream come one after the other",
    )

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        """Expect nothing: it has no operands."""

    def simulate(self, compiler: Compiler) -> Step:
        """Tell the observers: all blocks run in step."""
        machine = compiler.machine

        def run(frame: Frame) -> None:
            machine.grid_phase += 1
            for observer in machine.observers:
                observer.barrier(self, frame.mask)

        return run

    def pause(self, compiler: Compiler, live: Sequence[int]) -> Pause:
        return _GridWait(self, compiler, live)

    def cuda(self, printer: Printer) -> None:
        printer.prelude.need(_SYNC_GRID)
        printer.statement("sync_grid();", self)


class _GridWait(Pause):
    """A wait for all threads of the grid."""

    op: GridBarrier

    def __init__(self, op: GridBarrier, compiler: Compiler, live: Sequence[int]) -> None:
        self._number = compiler.hidden_slot()
        super().__init__((*live, self._number))
        self.op, self._machine = op, compiler.machine

    def begin(self, frame: Frame) -> None:
        frame.values[self._number] = np.int64(self._machine.meet_grid(frame.mask))

    def ready(self, agent: Agent, scheduler: Scheduler) -> Lanes:
        return np.asarray(self._machine.grid_phase > agent.frame.values[self._number])

    def passed(self, agent: Agent) -> None:
        for observer in self._machine.observers:
            observer.barrier(self.op, agent.frame.mask)

    def waiting(self, frame: Frame, row: int, threads: Array) -> list[Waiting]:
        machine = self._machine
        arrived, everybody = machine.grid_arrived, machine.blocks * machine.threads
        what = f"all threads of the grid: {arrived} of {everybody} have arrived"
        return [
            Waiting(self.op, threads, what, "let all threads of all blocks reach the barrier, and none return before")
        ]


# --- how it is written -----------------------------------------------------------------------------------

_SYNC_GRID = f"""\
__device__ unsigned int grid_arrivals;  // the top bit changes with each barrier of the grid, the others end as 0

// Waits until all threads of the grid have come; all blocks of the launch are on the GPU.
{FUNCTION} void sync_grid() {{
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {{
        const unsigned int others = gridDim.x * gridDim.y * gridDim.z - 1;
        const bool is_first = blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0;
        __threadfence();
        const unsigned int before = atomicAdd(&grid_arrivals, is_first ? 0x80000000u - others : 1u);
        while (((before ^ *(volatile unsigned int*)&grid_arrivals) & 0x80000000u) == 0) {{
        }}
        __threadfence();
    }}
    __syncthreads();
}}"""
