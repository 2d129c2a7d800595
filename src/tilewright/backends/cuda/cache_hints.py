"""Loads and stores of global memory with cache hints: inline PTX, one function for each size and set of hints."""

from __future__ import annotations

from tilewright.atoms.copy import CacheHints
from tilewright.backends.cpp.prelude import FUNCTION

# The bytes of an access -> the type of its words together, the words, PTX's type, the letter of a word's register.
_WORDS: dict[int, tuple[str, tuple[str, ...], str, str]] = {
    1: ("unsigned char", ("",), "u8", "r"),
    2: ("unsigned short", ("",), "b16", "h"),
    4: ("unsigned int", ("",), "b32", "r"),
    8: ("uint2", (".x", ".y"), "v2.b32", "r"),
    16: ("uint4", (".x", ".y", ".z", ".w"), "v4.b32", "r"),
}
# C++ has no 8-bit register of inline PTX.
_WIDE = {1: "unsigned int"}


def load_function(hints: CacheHints, size: int, *, read_only: bool) -> tuple[str, str]:
    """Return the name and the definition of a load of `size` bytes as any type of that size.

    `read_only`: nothing writes the memory while the kernel runs. The load then goes the non-coherent way, and the
    compiler may move it; else it stays in order with all that the kernel writes.
    """
    # The non-coherent load has no hint of last use.
    read_only = read_only and hints.cache != "lu"
    type, words, ptx, letter = _WORDS[size]
    count = len(words)
    outputs = ", ".join(f'"={letter}"(words{word})' for word in words)
    policy, operand = _policy(hints, f"%{count + 1}")
    inputs = ['"l"(source)', *(['"l"(l2_policy)'] if policy else [])]
    registers = "%0" if count == 1 else "{" + ", ".join(f"%{n}" for n in range(count)) + "}"
    operator = hints.cache or ""
    ordered = (operator, "nc") if operator and not operator.startswith("L1") else ("nc", operator)
    parts = ["ld.global", *(ordered if read_only else (operator,)), *_second_level(hints), ptx]
    instruction = ".".join(p for p in parts if p)
    volatile, clobber = ("", "") if read_only else (" volatile", ' : "memory"')
    name = _name("load_nc" if read_only else "load", hints, size)
    definition = f"""\
template <typename T>
{FUNCTION} T {name}(const T* source) {{
    {_WIDE.get(size, type)} words;
{policy}    asm{volatile}("{instruction} {registers}, [%{count}]{operand};"
        : {outputs} : {", ".join(inputs)}{clobber});
    return bit_cast<T>({f"({type})words" if size in _WIDE else "words"});
}}"""
    return name, definition


def store_function(hints: CacheHints, size: int) -> tuple[str, str]:
    """Return the name and the definition of a store of `size` bytes of any type of that size."""
    type, words, ptx, letter = _WORDS[size]
    count = len(words)
    policy, operand = _policy(hints, f"%{count + 1}")
    inputs = ['"l"(destination)', *(f'"{letter}"(words{word})' for word in words)]
    inputs += ['"l"(l2_policy)'] if policy else []
    registers = "%1" if count == 1 else "{" + ", ".join(f"%{n + 1}" for n in range(count)) + "}"
    instruction = ".".join(p for p in ("st.global", hints.cache or "", *_second_level(hints), ptx) if p)
    name = _name("store", hints, size)
    definition = f"""\
template <typename T>
{FUNCTION} void {name}(T* destination, T value) {{
    const {_WIDE.get(size, type)} words = bit_cast<{type}>(value);
{policy}    asm volatile("{instruction} [%0], {registers}{operand};"
        :: {", ".join(inputs)} : "memory");
}}"""
    return name, definition


def policy_statement(hints: CacheHints) -> str:
    """Return the line that declares `l2_policy`, or nothing; the compiler makes one policy of equal ones."""
    if hints.policy is None:
        return ""
    return f"""\
    unsigned long long l2_policy;
    asm("createpolicy.fractional.L2::{hints.policy}.b64 %0, 1.0;" : "=l"(l2_policy));
"""


def second_level(hints: CacheHints | None) -> str:
    """Return the qualifiers of an instruction that are about L2, each with its dot."""
    return "".join(f".{q}" for q in _second_level(hints)) if hints is not None else ""


def hinted_name(stem: str, hints: CacheHints | None) -> str:
    """Return a function's name with its hints."""
    if hints is None:
        return stem
    given = (hints.cache, hints.policy and f"l2_{hints.policy}", hints.prefetch and f"prefetch_{hints.prefetch}")
    return "_".join([stem, *(str(part).replace("L1::", "l1_") for part in given if part)])


def _name(stem: str, hints: CacheHints, size: int) -> str:
    return f"{hinted_name(stem, hints)}_{size}"


def _second_level(hints: CacheHints) -> list[str]:
    hinted = ["L2::cache_hint"] if hints.policy is not None else []
    return hinted + ([f"L2::{hints.prefetch}B"] if hints.prefetch is not None else [])


def _policy(hints: CacheHints, register: str) -> tuple[str, str]:
    """Return the line that makes the policy, and the operand that hands it on."""
    line = policy_statement(hints)
    return line, f", {register}" if line else ""
