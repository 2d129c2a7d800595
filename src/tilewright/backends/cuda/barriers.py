"""How barriers that part of a block meets at are written: one function of inline PTX an instruction, and its calls."""

from __future__ import annotations

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import Expression, call
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import Printer
from tilewright.dtypes import bool_
from tilewright.ir.core import Op
from tilewright.ir.ops import (
    Elect,
    MbarrierArrive,
    MbarrierCopies,
    MbarrierInit,
    MbarrierTest,
    MbarrierWait,
    NamedBarrier,
)

_MBARRIER = "unsigned long long* barrier"
_ADDRESS = "const unsigned int address = (unsigned int)__cvta_generic_to_shared(barrier);"

NAMED_BARRIERS = {
    "sync": f"""\
// Waits until `threads` threads of the block have come to this barrier.
template <int threads>
{FUNCTION} void named_barrier_sync(int number) {{
    asm volatile("barrier.sync %0, %1;" :: "r"(number), "n"(threads) : "memory");
}}""",
    "arrive": f"""\
template <int threads>
{FUNCTION} void named_barrier_arrive(int number) {{
    asm volatile("barrier.arrive %0, %1;" :: "r"(number), "n"(threads) : "memory");
}}""",
}

ARRIVE = f"""\
{FUNCTION} void mbarrier_arrive({_MBARRIER}) {{
    {_ADDRESS}
    asm volatile("{{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }}" :: "r"(address) : "memory");
}}"""

COPIES = f"""\
// Arrives when this thread's asynchronous copies so far have landed.
{FUNCTION} void cp_async_mbarrier_arrive({_MBARRIER}) {{
    {_ADDRESS}
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(address) : "memory");
}}"""

WAIT = f"""\
{FUNCTION} void mbarrier_wait({_MBARRIER}, int parity) {{
    while (!mbarrier_test(barrier, parity)) {{
    }}
}}"""

ELECT = {
    # The elected thread is the hardware's choice there, and always the same one; before, it is lane 0.
    True: f"""\
{FUNCTION} bool elect_one() {{
    unsigned int elected;
    asm volatile("{{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }}" : "=r"(elected));
    return elected != 0;
}}""",
    False: f"""\
{FUNCTION} bool elect_one() {{
    unsigned int lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane == 0;
}}""",
}


def initialise_function(*, has_clusters: bool) -> str:
    """Return the function that makes 8 bytes an mbarrier; on sm_90 the rest of the cluster may see it, too."""
    fence = ""
    if has_clusters:
        fence = '\n    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");'
    return f"""\
{FUNCTION} void mbarrier_init({_MBARRIER}, int count) {{
    {_ADDRESS}
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(address), "r"(count) : "memory");{fence}
}}"""


def arrive_many_function(*, has_count: bool) -> str:
    """Return the function for several arrivals at once.

    Before sm_90 an arrival with a count must not complete the phase, so the last one comes by itself.
    """
    if has_count:
        body = """\
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0], %1; }"
                 :: "r"(address), "r"(count) : "memory");"""
    else:
        body = """\
    if (count > 1) {
        asm volatile("{ .reg .b64 state; mbarrier.arrive.noComplete.shared.b64 state, [%0], %1; }"
                     :: "r"(address), "r"(count - 1) : "memory");
    }
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" :: "r"(address) : "memory");"""
    return f"{FUNCTION} void mbarrier_arrive({_MBARRIER}, int count) {{\n    {_ADDRESS}\n{body}\n}}"


def test_function(*, may_sleep: bool) -> str:
    """Return the function that asks whether a phase is over; where it may sleep the thread waits a while for it."""
    instruction = "try_wait" if may_sleep else "test_wait"
    name = "mbarrier_try" if may_sleep else "mbarrier_test"
    return f"""\
{FUNCTION} bool {name}({_MBARRIER}, int parity) {{
    {_ADDRESS}
    unsigned int over;
    asm volatile("{{ .reg .pred p; mbarrier.{instruction}.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }}"
                 : "=r"(over) : "r"(address), "r"(parity) : "memory");
    return over != 0;
}}"""


def named_barrier(printer: Printer, op: NamedBarrier) -> None:
    """Print a call that arrives at a named barrier."""
    printer.prelude.need(NAMED_BARRIERS[op.kind])
    printer.statement(f"named_barrier_{op.kind}<{op.threads}>({exact(printer, op.id).text});", op)


def initialise(printer: Printer, op: MbarrierInit) -> None:
    """Print the call that makes memory an mbarrier."""
    _demand(printer, op, "an mbarrier")
    printer.prelude.need(initialise_function(has_clusters=printer.arch.has_clusters))
    printer.statement(f"mbarrier_init({_place(printer, op)}, {exact(printer, op.count).text});", op)


def arrive(printer: Printer, op: MbarrierArrive) -> None:
    """Print the call that arrives at an mbarrier, once or several times."""
    _demand(printer, op, "an mbarrier")
    count = exact(printer, op.count).text
    if count == "1":
        printer.prelude.need(ARRIVE)
        printer.statement(f"mbarrier_arrive({_place(printer, op)});", op)
    else:
        printer.prelude.need(arrive_many_function(has_count=printer.arch.number >= 90))
        printer.statement(f"mbarrier_arrive({_place(printer, op)}, {count});", op)


def copies(printer: Printer, op: MbarrierCopies) -> None:
    """Print the call that arrives when asynchronous copies have landed."""
    _demand(printer, op, "an mbarrier")
    printer.prelude.need(COPIES)
    printer.statement(f"cp_async_mbarrier_arrive({_place(printer, op)});", op)


def wait(printer: Printer, op: MbarrierWait) -> None:
    """Print the call that waits for a phase."""
    _demand(printer, op, "an mbarrier")
    sleeps = printer.arch.number >= 90
    printer.prelude.need(test_function(may_sleep=sleeps))
    printer.prelude.need(WAIT.replace("mbarrier_test", "mbarrier_try") if sleeps else WAIT)
    printer.statement(f"mbarrier_wait({_place(printer, op)}, {exact(printer, op.parity).text});", op)


def test(printer: Printer, op: MbarrierTest) -> Expression:
    """Return the call that asks whether a phase is over."""
    _demand(printer, op, "an mbarrier")
    printer.prelude.need(test_function(may_sleep=False))
    return call("mbarrier_test", (address(printer, op.buffer, op.index), exact(printer, op.parity)), bool_)


def elect(printer: Printer, op: Elect) -> Expression:
    """Return the call that elects a thread of the warp."""
    printer.prelude.need(ELECT[printer.arch.number >= 90])
    return call("elect_one", (), bool_)


def _place(printer: Printer, op: MbarrierInit | MbarrierArrive | MbarrierCopies | MbarrierWait) -> str:
    return address(printer, op.buffer, op.index).text


def _demand(printer: Printer, op: Op, what: str) -> None:
    if not printer.arch.has_mbarrier:
        raise printer.refuse(op, f"{what} needs sm_80 or later, and the target is {printer.arch}")
