"""One trial: a call that is made twice on poisoned results, and compared with float64, with itself, with its bands."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.random_problems.bounds import Verdict
from benchmarks.random_problems.memory import Held, Memory

POISONS = (0xFF, 0xAA)  # bytes of results, in the first run and in the second one
SHARED = 2  # configurations of a kind, as far as each can run


class NotTaken(Exception):
    """No configuration of the family takes a problem."""


class Case(Protocol):
    """A problem with the configuration that computes it. `held` are arrays that are read, `outs` those given."""

    configuration: str
    held: dict[str, Held]
    outs: list[Held]

    @property
    def reads_results(self) -> bool:
        """Whether what was in a result is added to it."""

    def choose(self) -> None:
        """Choose the configuration; raise `NotTaken` where the family has none. Grouped products do so as they run."""

    def poison(self, byte: int) -> None:
        """Fill the results that are given, with what is read of them or with a byte."""

    def call(self) -> list[Any]:
        """Compute the problem and return its results."""

    def judge(self, found: list[Any], verdict: Verdict) -> None:
        """Compare results with float64."""


@dataclass
class Trial:
    """What came of a problem: which configuration, the problem in words, how far from exact, what is wrong."""

    configuration: str
    problem: str
    verdict: Verdict


def rank(text: str, salt: object) -> int:
    """Return by what configurations are chosen: one that is chosen once is chosen wherever it can run."""
    return zlib.crc32(f"{salt} {re.sub(r'(splits|blocks)=[0-9]+', '', text)}".encode())


def differs_later(case: Case, memory: Memory, first: list[Any], repeats: int) -> bool:
    """Say whether any of so many more runs, one directly behind the other, has other bits than the first."""
    differs = memory.xp.zeros_like(first[0]).any()
    for _ in range(repeats):
        if case.reads_results:
            case.poison(POISONS[0])
        for one, x in zip(first, case.call(), strict=True):
            differs = differs | (memory.by_bits(x) != one).any()
    return bool(differs)


def tried(case: Case, memory: Memory, repeats: int = 0) -> Trial:
    """Compute a problem twice and compare, `repeats` times more; what the library raises goes on to the caller."""
    verdict, before = Verdict(), {name: memory.checksum(x) for name, x in case.held.items()}
    first: list[Any] = []
    for byte in POISONS:
        case.poison(byte)
        found = case.call()
        memory.finish()
        bits = [memory.copied(memory.by_bits(x)) for x in found]
        if not first:
            first = bits
            case.judge(found, verdict)
        elif not all(memory.equal(one, other) for one, other in zip(first, bits, strict=True)):
            verdict.says("two runs differ in bits")
        for out in case.outs:
            if not memory.is_untouched_beside(out, byte):
                verdict.says("elements beside the result were written")
    if repeats and verdict.wrong is None and differs_later(case, memory, first, repeats):
        verdict.says(f"{repeats} more runs differ in bits")
    for name, held in case.held.items():
        if memory.checksum(held) != before[name]:
            verdict.says(f"{name} is read only, and was written to")
    return Trial(case.configuration, str(case), verdict)
