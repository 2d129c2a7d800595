"""The small device functions of CUDA C++ that more than one handler asks for."""

from __future__ import annotations

from tilewright.backends.cpp.prelude import FUNCTION

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
