"""Read what the CUDA compiler says: resources from a good compile, Python lines for a bad one.

NVRTC returns one log for its C++ front end and for ptxas. Errors of the front end carry a place,
`kernel.cu(12): error: ...`, or `user.py(7): error: ...` after a `#line`. What ptxas prints under
`--ptxas-options=-v` is, for each entry function::

    ptxas info    : Compiling entry function 'k' for 'sm_90a'
    ptxas info    : Function properties for k
    ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
    ptxas info    : Used 80 registers, used 4 barriers, 1024 bytes smem, 372 bytes cmem[0]
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes of the hardware, for each thread or each block, as ptxas reports it.

    Registers, spills, stack and local memory count for each thread; shared memory (the static part, not what
    a launch asks for) and barriers for each block; constant memory for the kernel, over all banks.
    """

    registers: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    stack_bytes: int = 0
    static_shared_bytes: int = 0
    constant_bytes: int = 0
    local_bytes: int = 0
    barriers: int = 0

    @property
    def spills(self) -> bool:
        return self.spill_stores > 0 or self.spill_loads > 0


@dataclass(frozen=True)
class AmdResources(Resources):
    """What a kernel takes of an AMD GPU, as clang notes it in the assembly.

    `registers` is what counts for how many waves fit: the vector registers of a lane, with the accumulation registers
    on gfx90a, where both share one file of 512 (gfx908 has 256 of each). `static_shared_bytes` is the local data share,
    `stack_bytes` and `local_bytes` the scratch memory of a lane; spills count registers. `waves_per_simd` is the
    compiler's estimate of the waves that fit on one of a compute unit's four SIMDs, from registers and shared memory.
    """

    vector_registers: int = 0
    accumulation_registers: int = 0
    scalar_registers: int = 0
    vector_spills: int = 0
    scalar_spills: int = 0
    waves_per_simd: int = 0
    code_bytes: int = 0

    @property
    def spills(self) -> bool:
        return self.vector_spills > 0 or self.scalar_spills > 0


@dataclass(frozen=True)
class CompilerMessage:
    """One error of the compiler's log: its file and line (None for ptxas), and its lines of text."""

    file: str | None
    line: int | None
    text: tuple[str, ...]


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_ERROR = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?:catastrophic )?error\b")
_OTHER_MESSAGE = re.compile(r"^.+?\(\d+\): (?:warning|remark)\b|^\d+ errors? detected|^Remark:|^ptxas ")
_ADVISORY = re.compile(r"^ptxas (?:info|warning)\s*:\s*\((C75\d\d)\):?\s*(.*)")
_PTX_FILE = re.compile(r'\.file\s+(\d+) "([^"]+)"')
_PTX_PLACE = re.compile(r"(?:\.loc|inlined_at)\s+(\d+) (\d+)")
_PTXAS_ERROR = re.compile(
    r"^ptxas .*?(?:, line (?P<line>\d+))?; (?:error|fatal)"
    r"|^(?:ptxas|nvrtc).*?(?:fatal|error)\b(?:.* at line (?P<at>\d+))?"
)


def parse_resources(log: str, name: str) -> Resources:
    """Return the resources of entry function `name` from a log; all zero where the log has none.

    The lines of other functions, of warnings and of the C++ front end are passed over. Local memory is
    counted in the stack frame, which ptxas prints in place of the "lmem" of older releases.
    """
    entry = function = ""
    stack = (0, 0, 0)
    for line in log.splitlines():
        if not line.startswith("ptxas"):
            continue
        if match := _ENTRY.search(line):
            entry = function = match[1]
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif function == name and (match := _STACK.search(line)):
            stack = (int(match[1]), int(match[2]), int(match[3]))
        elif entry == name and "Used " in line:
            return _used(line, stack)
    return Resources()


def _used(line: str, stack: tuple[int, int, int]) -> Resources:
    def amount(pattern: str) -> int:
        return sum(int(number) for number in re.findall(pattern, line))

    frame, stores, loads = stack
    return Resources(
        registers=amount(r"Used (\d+) registers"),
        spill_stores=stores,
        spill_loads=loads,
        stack_bytes=frame,
        static_shared_bytes=amount(r"(\d+) bytes smem"),
        constant_bytes=amount(r"(\d+) bytes cmem\[\d+\]"),
        local_bytes=max(frame, amount(r"(\d+) bytes lmem")),
        barriers=amount(r"used (\d+) barriers"),
    )


def advisories(log: str) -> list[tuple[str, str]]:
    """Return what ptxas says of products of warpgroups and their registers: (number, text), each number once.

    >>> advisories("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized")
    [('C7510', 'Potential Performance Loss: wgmma.mma_async instructions are serialized')]
    """
    found = {match[1]: match[2].strip() for line in log.splitlines() if (match := _ADVISORY.match(line))}
    return list(found.items())


def parse_errors(log: str) -> list[CompilerMessage]:
    """Return the errors of a log in order, each with the source excerpt that follows it."""
    found: list[CompilerMessage] = []
    collecting = False
    for line in log.splitlines():
        if match := _ERROR.match(line):
            found.append(CompilerMessage(match["file"], int(match["line"]), (line,)))
            collecting = True
        elif _PTXAS_ERROR.match(line):
            found.append(CompilerMessage(None, None, (line,)))
            collecting = False
        elif _OTHER_MESSAGE.match(line) or not line.strip():
            collecting = False
        elif collecting:
            last = found[-1]
            found[-1] = CompilerMessage(last.file, last.line, (*last.text, line))
    return found


def ptx_line_of(message: CompilerMessage) -> int | None:
    """Return the line of PTX that ptxas names in an error, or None."""
    match = _PTXAS_ERROR.match(message.text[0])
    line = match and (match["line"] or match["at"])
    return int(line) if line else None


def places_of_ptx_line(plain: str, located: str, line: int) -> list[tuple[str, int]]:
    """Return the places (file, line) in the CUDA source behind line `line` of the PTX text `plain`.

    `located` is the same PTX with line information, so its lines are numbered otherwise: the same text is
    looked for at the same occurrence, and the `.loc` directive before it names the place; for a function
    that was inlined, the place in that function first and the call second::

        .file 1 "k.cu"
        .loc 1 12 5, function_name $L__info_string0, inlined_at 1 40 3
    """
    lines = [text.strip() for text in plain.splitlines()]
    if not 0 < line <= len(lines):
        return []
    wanted = lines[line - 1]
    remaining = lines[:line].count(wanted)
    located_lines = [text.strip() for text in located.splitlines()]
    files = {match[1]: match[2] for text in located_lines if (match := _PTX_FILE.match(text))}
    location = ""
    for text in located_lines:
        if text.startswith(".loc"):
            location = text
        elif text == wanted:
            remaining -= 1
            if remaining == 0:
                break
    return [
        (os.path.basename(files[number]) if files[number].endswith(".cu") else files[number], int(row))
        for number, row in _PTX_PLACE.findall(location)
        if number in files
    ]
