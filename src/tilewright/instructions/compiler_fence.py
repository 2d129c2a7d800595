"""A place in a kernel that compilers move nothing across: it orders the code, and threads notice nothing of it.

Compilers read ahead. Where groups of reads and matrix instructions follow one another, they begin with the reads of all
groups, and keep what is read twice; they then need registers for all of it. What stops them:

- The pointers that are read through promise nothing (no `__restrict__`), and the statements name memory.
- Of NVIDIA's compiler the second half, ptxas, sees no empty statement. It reads nothing before a barrier of the warp,
  which orders memory, and moves nothing across a trigger of performance monitor events; the event mask 0 triggers none.
- clang sees the whole text: an empty statement that takes the accumulators has them computed before.

Source: PTX ISA, "bar.warp.sync", "pmevent"; LLVM, "Inline Assembler Expressions" and its constraints for AMDGPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.values import Frame
from tilewright.ir.core import Buffer, Value
from tilewright.ir.effects import Effects, names, operands
from tilewright.ir.instruction import Instruction
from tilewright.trace.scalar import as_scalar
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step


def compiler_fence(computed: Sequence[Any], left: Buffer, right: Buffer) -> None:  # Any: device numbers
    """Let compilers compute some values before this place, and read from two buffers after it.

    What one thread sees does not change, and nothing is ordered between threads.
    """
    tracer = current("a fence for the compiler")
    # NVIDIA's compiler moves nothing at all across its fence; values are named where clang has to be told of them.
    values = tuple(as_scalar(x).value for x in computed) if tracer.arch.is_amd else ()
    tracer.emit(CompilerFence(left, right, values))


@dataclass(eq=False)
class CompilerFence(Instruction):
    """Keep the computation of `computed` before this place, and later reads of two buffers behind it."""

    left: Buffer = names()
    right: Buffer = names()
    computed: tuple[Value, ...] = operands()

    CALLED: ClassVar[str | None] = "a fence for the compiler"
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, keeps_reads=True)
    COUNTED: ClassVar[str | None] = "compiler fence"
    RESERVED: ClassVar[str] = "compiler_fence"

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(all(x.dtype.bits in (32, 64) for x in self.computed), "what is computed before has 32 or 64 bits")

    def simulate(self, compiler: Compiler) -> Step:
        """Do nothing: a thread's own order is that of the program."""

        def run(frame: Frame) -> None:
            pass

        return run

    def cuda(self, printer: Printer) -> None:
        printer.prelude.need(_CUDA)
        printer.statement("compiler_fence();", self)

    def hip(self, printer: Printer) -> None:
        printer.prelude.need(_HIP)
        for value in self.computed:
            printer.statement(f"compiler_fence({exact(printer, value).text});", self)


_CUDA = f"""\
// The compiler moves nothing across this place, so that fragments which are read behind it take no registers before.
// Two instructions: a barrier of the warp, which is together here, and a trigger of no event (mask 0).
{FUNCTION} void compiler_fence() {{
    asm volatile("bar.warp.sync 0xffffffff; pmevent.mask 0;" ::: "memory");
}}"""

_HIP = f"""\
// The accumulator is computed before this place, and the compiler moves no access of memory across it, so that
// fragments which are read behind it take no registers before. It takes no instruction.
template <typename T>
{FUNCTION} void compiler_fence(T accumulator) {{
    asm volatile("" :: "a"(accumulator) : "memory");
}}"""
