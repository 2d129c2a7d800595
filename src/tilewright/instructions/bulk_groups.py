"""cp.async.bulk.commit_group and wait_group: the groups of bulk stores that one thread has started.

    BulkCommit      cp.async.bulk.commit_group              closes the group
    BulkWait        cp.async.bulk.wait_group, with .read    waits until few groups are left that read or write

A bulk store is done in two steps: when it has read shared memory, that may be written again; when it has written
global memory, the thread sees it there.

Source: PTX ISA, "cp.async.bulk.commit_group", "cp.async.bulk.wait_group".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from tilewright.arguments import shown
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.values import Frame
from tilewright.dtypes import int32
from tilewright.errors import LanguageError
from tilewright.ir.effects import Completion, Effects, Order, attribute
from tilewright.ir.instruction import Instruction
from tilewright.trace.tracer import Tracer, current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step


def tma_store_commit() -> None:
    """Commit the thread's bulk stores started so far as one group (PTX cp.async.bulk.commit_group).

    Source: CUTLASS tma_store_arrive.
    """
    _demand("tw.tma_store_commit").emit(BulkCommit())


def tma_store_wait(pending: int = 0, *, read: bool = True) -> None:
    """Wait until at most `pending` of the thread's newest groups of bulk stores are incomplete.

    With `read` the older groups count as complete when they have read shared memory, which may then be overwritten;
    with `read=False` when they have also written global memory (PTX cp.async.bulk.wait_group.read, .wait_group). The
    thread that started the stores waits, and a barrier informs the others. Wait for a block's last stores too, because
    its shared memory ends with the block.

    Raises `LanguageError` for a number that is not an int, at least 0. Source: CUTLASS tma_store_wait.
    """
    groups: object = pending
    if not isinstance(groups, int) or isinstance(groups, bool) or not 0 <= groups <= int32.highest:
        raise LanguageError(
            f"tw.tma_store_wait takes the number of groups left pending, got {shown(groups)}",
            help="the number is part of the instruction: a Python int, at least 0",
        )
    if not isinstance(read, bool):
        raise LanguageError(f"tw.tma_store_wait: read is True or False, got {shown(read)}")
    _demand("tw.tma_store_wait").emit(BulkWait(groups, read))


def _demand(what: str) -> Tracer:
    tracer = current(what)
    if tracer.arch.is_amd or tracer.arch.number < 90:
        raise LanguageError(f"{what}: {tracer.arch} has no bulk copies; they need sm_90 or later")
    return tracer


@dataclass(eq=False)
class BulkCommit(Instruction):
    """Close the thread's current group of bulk stores (cp.async.bulk.commit_group)."""

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, commits=Completion.BULK_GROUP)
    COUNTED: ClassVar[str | None] = "commit"
    RESERVED: ClassVar[str] = r"tma_store_\w+"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("bulk copy", "store with tw.copy(src, dst)")

    def simulate(self, compiler: Compiler) -> Step:
        return compiler.bulk_groups.commit

    def cuda(self, printer: Printer) -> None:
        _refuse_old(printer, self)
        printer.prelude.need(_COMMIT)
        printer.statement("tma_store_commit();", self)


@dataclass(eq=False)
class BulkWait(Instruction):
    """Wait until at most `pending` of the thread's newest bulk groups have yet to read shared memory, or to write."""

    pending: int = attribute()
    read: bool = attribute()

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, order=Order.ACQUIRE, completes=Completion.BULK_GROUP)
    COUNTED: ClassVar[str | None] = "wait"
    RESERVED: ClassVar[str] = r"tma_store_\w+"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("bulk copy", "store with tw.copy(src, dst)")

    @property
    def effects(self) -> Effects:
        return replace(self.EFFECTS, pending=self.pending)

    def simulate(self, compiler: Compiler) -> Step:
        groups, newest, read = compiler.bulk_groups, self.pending, self.read

        def run(frame: Frame) -> None:
            groups.wait(newest, read, frame.mask)

        return run

    def cuda(self, printer: Printer) -> None:
        _refuse_old(printer, self)
        name = "tma_store_wait_read" if self.read else "tma_store_wait"
        printer.prelude.need(_wait_function(name, ".read" if self.read else ""))
        printer.statement(f"{name}<{self.pending}>();", self)


def _refuse_old(printer: Printer, op: Instruction) -> None:
    if printer.arch.number < 90:
        raise printer.refuse(op, f"bulk copies need sm_90 or later, and the target is {printer.arch}")


_COMMIT = f"""\
{FUNCTION} void tma_store_commit() {{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}}"""


def _wait_function(name: str, read: str) -> str:
    what = "read shared memory" if read else "written global memory"
    return f"""\
// Waits until all but `pending` of this thread's newest groups of bulk stores have {what}.
template <int pending>
{FUNCTION} void {name}() {{
    asm volatile("cp.async.bulk.wait_group{read} %0;" :: "n"(pending) : "memory");
}}"""
