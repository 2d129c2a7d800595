"""The functions of CUDA C++ by which ops on mbarriers are written.

Source: PTX ISA, "mbarrier.init", "mbarrier.arrive", "mbarrier.try_wait" and its like.
"""

from __future__ import annotations

from tilewright.backends.cpp.prelude import FUNCTION

_MBARRIER = "unsigned long long* barrier"
_ADDRESS = "const unsigned int address = (unsigned int)__cvta_generic_to_shared(barrier);"

ARRIVE = f"""\
{FUNCTION} void mbarrier_arrive({_MBARRIER}) {{
    {_ADDRESS}
    asm volatile("{{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }}" :: "r"(address) : "memory");
}}"""

# The relaxed one has no scope, as CUTLASS has it (ClusterBarrier::arrive): no fence is made for it.
ARRIVE_AT = {
    relaxed: f"""\
// Arrives at the barrier that another block of the cluster has at this place.
{FUNCTION} void mbarrier_arrive_at{"_relaxed" if relaxed else ""}({_MBARRIER}, int rank, int count) {{
    {_ADDRESS}
    asm volatile("{{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1;"
                 " mbarrier.arrive{"" if relaxed else ".release.cluster"}.shared::cluster.b64 _, [there], %2; }}"
                 :: "r"(address), "r"(rank), "r"(count) : "memory");
}}"""
    for relaxed in (False, True)
}

COPIES = f"""\
// Arrives when this thread's asynchronous copies so far have landed.
{FUNCTION} void cp_async_mbarrier_arrive({_MBARRIER}) {{
    {_ADDRESS}
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(address) : "memory");
}}"""

EXPECT = {
    arrives: f"""\
// Announces bytes of bulk copies to the phase{", and arrives" if arrives else ""}.
{FUNCTION} void mbarrier_{"arrive_" if arrives else ""}expect_tx({_MBARRIER}, int bytes) {{
    {_ADDRESS}
    asm volatile("{instruction}" :: "r"(address), "r"(bytes) : "memory");
}}"""
    for arrives, instruction in (
        (True, "{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }"),
        (False, "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"),
    )
}

WAIT = f"""\
{FUNCTION} void mbarrier_wait({_MBARRIER}, int parity) {{
    while (!mbarrier_test(barrier, parity)) {{
    }}
}}"""


def init_function(*, has_clusters: bool) -> str:
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


def poll_function(*, may_sleep: bool, scope: str = "") -> str:
    """Return the function that asks whether a phase is over; where it may sleep the thread waits a while for it."""
    instruction = "try_wait.parity" if may_sleep else "test_wait.parity"
    instruction += ".acquire.cluster" if scope else ""
    name = f"mbarrier_{'try' if may_sleep else 'test'}{scope}"
    return f"""\
{FUNCTION} bool {name}({_MBARRIER}, int parity) {{
    {_ADDRESS}
    unsigned int over;
    asm volatile("{{ .reg .pred p; mbarrier.{instruction}.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }}"
                 : "=r"(over) : "r"(address), "r"(parity) : "memory");
    return over != 0;
}}"""
