"""What SASS says of a kernel: its inner loop, and what is under way where."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tilewright.runtime.libraries import find_program

_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?);")
_BRANCH = re.compile(r"\bBRA(?:\.\w+)*\s.*`\((\.L_x_\d+)\)")
_GUARD = re.compile(r"^@!?U?P\w+\s+")
_ENCODED = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);?\s*/\* 0x[0-9a-f]{16} \*/\s+/\* 0x([0-9a-f]{16}) \*/")


def opcodes(sass: str) -> list[str]:
    """Return the instructions of a text by nvdisasm, without operands, in order."""
    return [_opcode(match[1]) for line in sass.splitlines() if (match := _INSTRUCTION.match(line))]


def inner_loop(sass: str) -> Counter[str]:
    """Return how often each instruction stands in the loop with the most multiply-adds."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    loops: list[list[str]] = []
    for line in sass.splitlines():
        if match := _LABEL.match(line):
            labels[match[1]] = len(instructions)
        elif match := _INSTRUCTION.match(line):
            instructions.append(match[1])
            target = _BRANCH.search(match[1])
            if target and target[1] in labels:
                loops.append([_opcode(text) for text in instructions[labels[target[1]] :]])
    return max(map(Counter, loops), key=lambda loop: (multiply_adds(loop), -sum(loop.values())))


def fall_through(sass: str, taken: Sequence[bool]) -> list[str]:
    """Return the instructions that a thread runs from the start to an exit; `taken` are its conditional branches."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in sass.splitlines():
        if match := _LABEL.match(line):
            labels[match[1]] = len(instructions)
        elif match := _INSTRUCTION.match(line):
            instructions.append(match[1])
    path: list[str] = []
    choices, place = iter(taken), 0
    while True:
        text = instructions[place]
        path.append(_opcode(text))
        if text.startswith("EXIT"):
            return path
        target = _BRANCH.search(text)
        is_conditional = _GUARD.match(text) is not None or " P" in text.split("`")[0]
        place = labels[target[1]] if target and (not is_conditional or next(choices)) else place + 1


def reads_under_way(cubin: bytes, folder: Path) -> list[int]:
    """Return for each arrival at an mbarrier of threads that read how many loads of shared memory are under way there.

    An instruction says in its upper 64 bits which of six counters its result takes (from bit 46), and for which it
    waits (from bit 52). Source: Jia et al., "Dissecting the NVIDIA Volta GPU architecture via microbenchmarking" (2018).
    """
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    program = find_program("nvdisasm")
    assert program is not None
    command = [os.fspath(program), "--print-code", "--print-instruction-encoding", os.fspath(path)]
    code = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
    found, loads = [], Counter[int]()
    for text, encoded in _ENCODED.findall(code):
        opcode, bits = _opcode(text), int(encoded, 16)
        for counter in range(6):
            if bits >> 52 + counter & 1 or opcode.startswith("MEMBAR"):
                loads[counter] = 0
        if opcode == "SYNCS.ARRIVE.TRANS64.A1T0":
            found.append(sum(loads.values()))
        if opcode.startswith("LDS") and bits >> 46 & 7 < 6:  # others end before a later one that has a counter
            loads[bits >> 46 & 7] += 1
    return found


def multiply_adds(counts: Counter[str]) -> int:
    """Return how many of the instructions multiply and add: FFMA or HMMA."""
    return sum(count for name, count in counts.items() if name == "FFMA" or name.startswith("HMMA."))


def _opcode(text: str) -> str:
    return _GUARD.sub("", text).split()[0]
