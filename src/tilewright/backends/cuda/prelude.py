"""The small device functions of CUDA C++ that more than one handler asks for."""

from __future__ import annotations

from tilewright.atoms.cache import CacheHints
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cuda.hinted import hinted_name, policy_statement, second_level

BIT_CAST = f"""\
template <typename To, typename From>
{FUNCTION} To bit_cast(From from) {{
    static_assert(sizeof(To) == sizeof(From), "the sizes differ");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}}"""

ASSERTION_FAILED = """\
__device__ __noinline__ void assertion_failed(const char* message) {
    printf("%s: in block (%u, %u, %u), thread (%u, %u, %u)\\n", message, blockIdx.x, blockIdx.y, blockIdx.z,
           threadIdx.x, threadIdx.y, threadIdx.z);
    __trap();
}"""

CP_ASYNC_COMMIT = f"""\
{FUNCTION} void cp_async_commit() {{
    asm volatile("cp.async.commit_group;" ::: "memory");
}}"""

CP_ASYNC_WAIT = f"""\
// Waits until at most `pending` of this thread's newest groups of copies are under way.
template <int pending>
{FUNCTION} void cp_async_wait() {{
    asm volatile("cp.async.wait_group %0;" :: "n"(pending) : "memory");
}}"""

CP_ASYNC_WAIT_ALL = f"""\
{FUNCTION} void cp_async_wait_all() {{
    asm volatile("cp.async.wait_all;" ::: "memory");
}}"""


def cp_async(
    size: int, cache: str, *, zero_fill: bool, some_of: int = 0, hints: CacheHints | None = None
) -> tuple[str, str]:
    """Return the name and the definition of a copy of 4, 8 or 16 bytes from global to shared memory.

    With `zero_fill` it takes whether the source is there; with `some_of` how many of that many elements are.
    """
    name = f"cp_async_{cache}_{size}" + (f"_some_of_{some_of}" if some_of else "_zero_fill" if zero_fill else "")
    instruction = f"cp.async.{cache}.shared.global{second_level(hints)} [%0], [%1], {size}"
    parameter, operand, comment, before = "", "", "", ""
    if some_of:
        comment = (
            f"// Copies the first `count` of {some_of} elements and writes zeros in place of the others, which are not "
            "read.\n"
        )
        parameter, operand = ", int count", ', "r"(bytes)'
        before = f"    const int bytes = count <= 0 ? 0 : count >= {some_of} ? {size} : count * {size // some_of};\n"
        instruction += ", %2"
    elif zero_fill:
        comment = "// Where `valid` is false, zeros are written and the source is not read.\n"
        parameter, operand = ", bool valid", f', "r"(valid ? {size} : 0)'
        instruction += ", %2"
    policy = "" if hints is None else policy_statement(hints)
    if policy:
        instruction += f", %{3 if some_of or zero_fill else 2}"
        operand += ', "l"(l2_policy)'
    name = hinted_name(name, hints)
    definition = f"""\
{comment}{FUNCTION} void {name}(void* destination, const void* source{parameter}) {{
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(destination);
{before}{policy}    asm volatile("{instruction};" :: "r"(address), "l"(source){operand} : "memory");
}}"""
    return name, definition
