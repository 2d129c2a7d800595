"""fence.proxy.async: a fence between a thread's own writes and the asynchronous work that others start on them.

Bulk copies and matrix instructions that read shared memory reach it by a proxy of their own. A barrier orders threads;
it says nothing of that proxy. So threads that wrote what such work will read (or overwrite) run this fence, and then
the barrier that tells the thread which starts the work::

    smem[...] = value
    tw.fence_proxy_async()
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        a bulk store of smem

Source: PTX ISA, "membar / fence", "Async proxy".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.values import Frame
from tilewright.errors import LanguageError
from tilewright.ir.core import Op
from tilewright.ir.effects import Effects, Proxy, attribute
from tilewright.ir.instruction import Instruction
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step

_SPACES = {"shared": "shared::cta", "global": "global"}


def fence_proxy_async(space: str = "shared") -> None:
    """Make this thread's writes visible to asynchronous work that starts later (PTX fence.proxy.async).

    `space` is "global", or "shared": the block's, and that of other blocks of the cluster if the kernel writes to it.
    Every thread that wrote executes the fence before the barrier or arrival that precedes the start of the bulk copy or
    matrix instruction. The completion of such work needs no fence. Raises `LanguageError` for another space, and on
    targets without asynchronous proxy (before sm_90).
    """
    given: object = space
    if not isinstance(given, str) or given not in _SPACES:
        raise LanguageError(f'tw.fence_proxy_async: space is "shared" or "global", not {given!r}')
    tracer = current("tw.fence_proxy_async")
    if tracer.arch.is_amd or tracer.arch.number < 90:
        raise LanguageError(
            f"tw.fence_proxy_async: {tracer.arch} has no async proxy; it needs sm_90 or later",
            help="without bulk copies a barrier is enough: tw.sync_threads()",
        )
    tracer.emit(ProxyFence(given))


@dataclass(eq=False)
class ProxyFence(Instruction):
    """Let the async proxy see what the thread wrote to a space, "shared" or "global", by the generic proxy."""

    space: str = attribute()

    CALLED: ClassVar[str | None] = "tw.fence_proxy_async"
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False)
    COUNTED: ClassVar[str | None] = "fence"
    RESERVED: ClassVar[str] = r"fence_proxy_async\w*"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("async proxy", "let the whole block meet: tw.sync_threads()")

    @property
    def effects(self) -> Effects:
        return replace(self.EFFECTS, fences_proxy=self.space)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.space in _SPACES, f"no space {self.space}")

    def simulate(self, compiler: Compiler) -> Step:
        """Tell the observers: values are where threads wrote them."""
        observers = compiler.machine.observers

        def run(frame: Frame) -> None:
            for observer in observers:
                observer.fence_proxy(self, frame.mask)

        return run

    def cuda(self, printer: Printer) -> None:
        if printer.arch.number < 90:
            raise printer.refuse(self, f"fence.proxy.async needs sm_90 or later, and the target is {printer.arch}")
        name, space = "fence_proxy_async", _SPACES[self.space]
        if self.space == "global":
            name += "_global"
        elif any(_writes_to_others(op) for op in printer.structure.places):
            # shared::cta is this block's alone; the other one waits for all writes of the thread, of global memory too.
            name, space = "fence_proxy_async_cluster", "shared::cluster"
        printer.prelude.need(f"""\
// Behind it and a barrier, bulk copies and matrix instructions see what this thread wrote, and come after what it read.
{FUNCTION} void {name}() {{
    asm volatile("fence.proxy.async.{space};" ::: "memory");
}}""")
        printer.statement(f"{name}();", self)


def _writes_to_others(op: Op) -> bool:
    """Return whether a thread writes to shared memory of another block; what bulk copies write needs no fence."""
    if op.effects.proxy is Proxy.ASYNC:
        return False
    return any(use.buffer.is_remote and use.use.is_write for use in op.uses)
