"""Kernels whose results once differed, shrunk by hand: each means on both backends what its text means."""

from __future__ import annotations

import pytest
from tests.conformance.harness import Backend, Gpu, Simulator
from tests.fuzz.trial import Argument, Program

import tilewright as tw

BOOLS_WITH_NUMBERS = """
@tw.kernel
def kernel(equal, less, sums, x):
    i = tw.thread_idx.x
    equal[i] = x[i] == 3
    less[i] = x[i] < 2
    sums[i] = x[i] + 300
"""

BITS_OF_A_NUMBER_THAT_ALL_SHARE = """
@tw.kernel
def kernel(ones, zeros, n):
    i = tw.thread_idx.x
    ones[i] = tw.shuffle_xor(tw.popcount(n), 1)
    zeros[i] = tw.shuffle_xor(tw.clz(n), 1)
"""

A_VALUE_WITH_ITS_NEXT = """
from dataclasses import dataclass
from typing import Any

@dataclass(frozen=True)
class Phase:
    index: Any
    parity: Any

    @tw.function
    def next(self, stages):
        if self.index + 1 == stages:
            return Phase(tw.int32(0), self.parity ^ 1)
        return Phase(self.index + 1, self.parity)

@tw.kernel
def kernel(index, parity, n):
    i = tw.thread_idx.x
    phase = Phase(i & 1, i & 2)
    for _ in range(n + i):
        phase = phase.next(3)
    index[i], parity[i] = phase.index, phase.parity
"""


def outputs(*dtypes: tw.DType) -> list[Argument]:
    return [Argument(f"out{n}", t, (64,), "zeros") for n, t in enumerate(dtypes)]


PROGRAMS = {
    # The meaning took the number as a bool; on the device the bool becomes an int32.
    "a bool with a number": Program(
        BOOLS_WITH_NUMBERS, 1, 64, (*outputs(tw.bool_, tw.bool_, tw.int32), Argument("x", tw.bool_, (64,))), 0
    ),
    # The simulator gave the count of a number that is the same in all threads an axis, which the shuffle tripped over.
    "bits of a number that all threads share": Program(
        BITS_OF_A_NUMBER_THAT_ALL_SHARE,
        1,
        64,
        (*outputs(tw.int32, tw.int32), Argument("n", tw.int32, None, "count")),
        0,
    ),
    # The text of a method that names its own class was taken for edited.
    "a value with its next": Program(
        A_VALUE_WITH_ITS_NEXT, 1, 64, (*outputs(tw.int32, tw.int32), Argument("n", tw.int32, None, "count")), 0
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", [Simulator(), pytest.param(Gpu(), marks=pytest.mark.gpu)], ids=lambda b: b.name)
def test_once_differed(name: str, backend: Backend) -> None:
    program = PROGRAMS[name]
    program.assert_agree((backend.name, "its text"), program.run(backend), program.meaning())
